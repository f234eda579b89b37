"""Decoders of the bytes inside an entry's payload: Pulsar's metadata and messages."""
