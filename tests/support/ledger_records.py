"""A broker's record of a topic's ledgers, as its metadata store has it."""

from __future__ import annotations

from collections.abc import Sequence

from formats.metadata.messages import PulsarLedger

__all__ = ["record_of"]


def record_of(ledgers: Sequence[PulsarLedger]) -> bytes:
    """The bytes: the ledgers as field 1, each with its length."""
    found = b""
    for each in ledgers:
        data = each.encode()
        size = len(data)
        assert size < 1 << 14
        found += bytes([0x0A, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + data
    return found
