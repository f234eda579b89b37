"""A broker's record of a topic's ledgers, as its metadata store has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from formats.metadata import pulsar_ledger_pb2
from formats.metadata.messages import PulsarLedger

__all__ = ["encoded_ledger", "record_of"]


def record_of(ledgers: Sequence[PulsarLedger]) -> bytes:
    """The bytes: the ledgers as field 1, each with its length."""
    found = b""
    for each in ledgers:
        data = encoded_ledger(each)
        size = len(data)
        assert size < 1 << 14
        found += bytes([0x0A, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + data
    return found


def encoded_ledger(ledger: PulsarLedger) -> bytes:
    """The message with its context, which the product only reads."""
    if ledger.context is None:
        return ledger.encode()
    whole: Any = pulsar_ledger_pb2.LedgerInfo.FromString(ledger.encode())  # type: ignore[attr-defined]
    whole.offloadContext.ParseFromString(ledger.context.encode())
    return bytes(whole.SerializeToString(deterministic=True))
