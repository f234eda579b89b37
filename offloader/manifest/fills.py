"""Fills, which are objects with the entries of recorded gaps, and runs of entry ids. Does no I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import DELETED, LAST_UNKNOWN
from formats.entries import Position
from formats.manifest import Gap, GapFilled
from offloader.manifest.ledger_table import LedgerFact
from offloader.manifest.segment_table import SegmentStatus, SegmentTable, first_missing

#: First and last entry id, both included.
Run = tuple[int, int]


def gap_runs(gaps: Sequence[Gap], ledger_id: int, first: int, last: int) -> list[Run]:
    """Runs of ids from ``first`` to ``last`` of a ledger that recorded gaps cover; those side by side are joined.

    Args:
        gaps: in the stream's order. One may begin or end in another ledger.
    """
    begin, end = Position(ledger_id, first), Position(ledger_id, last)
    found = []
    for gap in gaps[
        bisect_left(gaps, begin, key=attrgetter("last")) : bisect_right(gaps, end, key=attrgetter("first"))
    ]:
        low = gap.first.entry_id if gap.first >= begin else first
        high = gap.last.entry_id if gap.last <= end else last
        if low <= high:
            found.append((low, high))
    return joined(found)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same ids, ascending; runs that touch or overlap are one."""
    found: list[Run] = []
    for low, high in sorted(runs):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def without(runs: Iterable[Run], others: Sequence[Run]) -> list[Run]:
    """The ids of ``runs`` that aren't in ``others``; both ascend and are disjoint."""
    found = []
    at = 0
    for low, high in runs:
        while at < len(others) and others[at][1] < low:
            at += 1
        each = at
        while each < len(others) and others[each][0] <= high:
            if others[each][0] > low:
                found.append((low, others[each][0] - 1))
            low = others[each][1] + 1
            each += 1
        if low <= high:
            found.append((low, high))
    return found


def runs_of(entry_ids: NDArray[np.int64]) -> list[Run]:
    """The runs of ascending ids, int64, shape (n,)."""
    if not len(entry_ids):
        return []
    breaks = np.flatnonzero(np.diff(entry_ids) != 1)
    starts, stops = entry_ids[np.append(0, breaks + 1)], entry_ids[np.append(breaks, len(entry_ids) - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def count_of(runs: Iterable[Run]) -> int:
    """How many ids the runs have."""
    return sum(high - low + 1 for low, high in runs)


def fills_in(fills: Sequence[GapFilled], ledger_id: int, first: int, last: int) -> Sequence[GapFilled]:
    """The fills that overlap ``first`` to ``last`` of a ledger; ``fills`` ascend and are disjoint."""
    start = bisect_left(fills, Position(ledger_id, first), key=attrgetter("last"))
    return fills[start : bisect_right(fills, Position(ledger_id, last), key=attrgetter("first"))]


def is_settled(segments: SegmentTable, gaps: Sequence[Gap], ledger_id: int, first: int, last: int) -> bool:
    """Whether every id from ``first`` to ``last`` is in a gap or in a segment with objects.

    Then no later gap can lie there, which a fill of this range would lack.
    """
    begin, end = Position(ledger_id, first), Position(ledger_id, last)
    runs = gap_runs(gaps, ledger_id, first, last)
    held = [(Position(ledger_id, low), Position(ledger_id, high)) for low, high in runs]
    held += [
        (segment.begin, segment.end)
        for segment in segments.in_order(begin, end)
        if segment.status is not SegmentStatus.ASSIGNED and segment.end is not None
    ]
    return first_missing(held, begin, end) is None


def is_gone(ledger_id: int, fact: LedgerFact, head: Position | None) -> bool:
    """Whether a ledger is deleted from the stream, or lies wholly before its head."""
    if fact.flags & DELETED or head is None or head.ledger_id < ledger_id:
        return bool(fact.flags & DELETED)
    return head.ledger_id > ledger_id or LAST_UNKNOWN != fact.last_entry_id < head.entry_id
