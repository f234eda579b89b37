"""One read of a stream's hot tier, from where offering stopped.

Owns how much is read at once and when the source's ledgers are asked for. Must never decide what a hole means.
"""

from __future__ import annotations

from dataclasses import dataclass

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import LedgerInfo, LedgerSource

__all__ = ["CATCH_UP_READ_BYTES", "HotRead", "read_next"]

#: Payload bytes of one read from the hot tier while catching up.
CATCH_UP_READ_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HotRead:
    """Entries of one ledger, and, where they aren't the next ones of the same, what the source says of its ledgers
    afterwards."""

    batch: EntryBatch
    ledgers: list[LedgerInfo]


def read_next(source: LedgerSource, offered: Position | None, room_bytes: int) -> HotRead | None:
    """What follows ``offered`` in the hot tier (``None``: from its beginning); ``None`` when nothing does."""
    start = Position(0, 0) if offered is None else Position(offered.ledger_id, offered.entry_id + 1)
    batch = source.read(start, min(CATCH_UP_READ_BYTES, max(1, room_bytes)))
    if batch is None:
        return None
    # A ledger's end, its absence or a hole in it is known for sure only after an entry behind it was seen.
    return HotRead(batch, [] if offered is not None and batch.first == start else source.ledgers())
