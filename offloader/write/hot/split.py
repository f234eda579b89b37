"""Where historical entries are cut into segments: a binary search over cumulative bytes; pure.

Owns that arithmetic. Must never read an entry, nor know what is offloaded already.

Sizes are known per ledger only, so inside a ledger they are estimated: evenly, corrected by what was measured when
neighbouring entries were read (spec: historical ledgers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.segment import LedgerSpan
from offloader.ledgers.base import LedgerInfo

__all__ = ["HistoryBytes", "HistoryRange", "position_leaving"]


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """Positions that become one segment, or several; both ends included."""

    begin: Position
    end: Position


class HistoryBytes:
    """How many bytes lie before a position, and the other way round.

    Bytes are those of a segment: payloads and a 12-byte header each.

    Args:
        ledgers: ascending; empty ones don't matter.
        measured: ledger id -> runs of its entries whose bytes are known, in order, disjoint.
    """

    def __init__(
        self, ledgers: Iterable[LedgerInfo], measured: Mapping[int, Sequence[LedgerSpan]] | None = None
    ) -> None:
        pieces: list[tuple[int, int, int, float]] = []
        for info in ledgers:
            if info.entries:
                pieces += _pieces_of(info, (measured or {}).get(info.ledger_id, ()))
        self._ledger = np.array([piece[0] for piece in pieces], dtype=np.int64)
        self._first = np.array([piece[1] for piece in pieces], dtype=np.int64)
        self._count = np.array([piece[2] for piece in pieces], dtype=np.int64)
        self._bytes = np.array([piece[3] for piece in pieces], dtype=np.float64)
        self._ends = np.cumsum(self._bytes)

    def before(self, position: Position) -> float:
        """Bytes of all entries before ``position``."""
        row = int(np.searchsorted(self._ledger, position.ledger_id, side="left"))
        stop = int(np.searchsorted(self._ledger, position.ledger_id, side="right"))
        row += int(np.searchsorted(self._first[row:stop], position.entry_id, side="right"))
        if row == 0:
            return 0.0
        start = float(self._ends[row - 1] - self._bytes[row - 1])
        if self._ledger[row - 1] != position.ledger_id:
            return float(self._ends[row - 1])
        done = min(position.entry_id - int(self._first[row - 1]), int(self._count[row - 1]))
        return start + float(self._bytes[row - 1]) * done / int(self._count[row - 1])

    def between(self, begin: Position, end: Position) -> float:
        """Bytes of the entries ``begin`` .. ``end``, both included."""
        return self.before(Position(end.ledger_id, end.entry_id + 1)) - self.before(begin)

    def holding(self, size_bytes: float) -> Position:
        """The entry in which the first ``size_bytes`` bytes end."""
        row = min(int(np.searchsorted(self._ends, size_bytes, side="left")), len(self._ends) - 1)
        inside = size_bytes - float(self._ends[row] - self._bytes[row])
        entry = ceil(inside * int(self._count[row]) / float(self._bytes[row]) - 1e-9) - 1
        entry = min(max(entry, 0), int(self._count[row]) - 1)
        return Position(int(self._ledger[row]), int(self._first[row]) + entry)

    def cut(self, wanted: HistoryRange, segment_bytes: int) -> HistoryRange:
        """The first segment of ``wanted``: it is cut into as few equal shares as keep each within ``segment_bytes``.

        Args:
            wanted: entries that exist, not empty.
            segment_bytes: the size of a segment; the entry that reaches a share's end is the last one in it.
        """
        start = self.before(wanted.begin)
        total = self.between(wanted.begin, wanted.end)
        shares = ceil(total / segment_bytes)
        if shares <= 1:
            return wanted
        return HistoryRange(wanted.begin, min(max(self.holding(start + total / shares), wanted.begin), wanted.end))

    def segments(self, wanted: HistoryRange, segment_bytes: int) -> int:
        """How many segments ``wanted`` becomes."""
        return max(1, ceil(self.between(wanted.begin, wanted.end) / segment_bytes))


def _pieces_of(info: LedgerInfo, spans: Sequence[LedgerSpan]) -> list[tuple[int, int, int, float]]:
    """Runs of a ledger's entries with about equal sizes: ledger id, first entry, entries, bytes."""
    known = [span for span in spans if 0 <= span.first_entry_id <= span.last_entry_id < info.entries]
    seen = sum(span.entries for span in known)
    seen_bytes = sum(span.payload_bytes for span in known)
    rest_bytes = info.size_bytes - seen_bytes
    if rest_bytes < 0 or (seen and seen_bytes and not info.size_bytes):
        # The recorded size is wrong (Pulsar has closed ledgers with a recorded length of 0): what was read counts.
        rest_bytes = seen_bytes * (info.entries - seen) // max(seen, 1)
    mean = rest_bytes / (info.entries - seen) if info.entries > seen else 0.0
    pieces: list[tuple[int, int, int, float]] = []

    def add(first: int, stop: int, payload_bytes: float) -> None:
        if stop > first:
            pieces.append((info.ledger_id, first, stop - first, payload_bytes + ENTRY_HEADER_BYTES * (stop - first)))

    at = 0
    for span in known:
        add(at, span.first_entry_id, mean * (span.first_entry_id - at))
        add(span.first_entry_id, span.last_entry_id + 1, span.payload_bytes)
        at = span.last_entry_id + 1
    add(at, info.entries, mean * (info.entries - at))
    return pieces


def position_leaving(ledgers: Sequence[LedgerInfo], kept_bytes: int) -> Position | None:
    """The newest position that may be offloaded so that payloads of at most ``kept_bytes`` bytes stay behind.

    Walks from the newest ledger to the oldest; inside a ledger entries count evenly.

    Returns:
        ``None``: everything together is no larger than that.
    """
    left = float(kept_bytes)
    for info in sorted((info for info in ledgers if info.entries), key=lambda info: info.ledger_id, reverse=True):
        if info.size_bytes > left:
            stay = int(left * info.entries / info.size_bytes)
            return Position(info.ledger_id, info.last_entry_id - stay)
        left -= info.size_bytes
    return None
