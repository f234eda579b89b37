"""One live stream: small steps that a pool of workers runs, from the tail to the committed end."""
