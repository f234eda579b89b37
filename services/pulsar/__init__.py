"""A real Pulsar broker in one process of its own, for tests and for trying things out."""
