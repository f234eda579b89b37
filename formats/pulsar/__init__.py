"""What Pulsar stored in an entry: metadata and messages.

Owns the bytes inside of an entry's payload. Must never know how entries got there (blocks, segments, ledgers).
"""
