"""Decoders of the bytes inside an entry's payload: Pulsar's metadata and messages."""

from __future__ import annotations

#: Default limit of a payload's decompressed bytes. Pulsar's brokers accept 5 MiB.
PAYLOAD_BYTES_MAX = 128 * 1024 * 1024
#: Upper bound of that limit: one entry's bytes come on top of a batch's, and Arrow counts both in 31 bits.
PAYLOAD_BYTES_LIMIT = 1 << 30
