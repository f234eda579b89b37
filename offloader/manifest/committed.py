"""How far a stream is offloaded without a hole; pure.

Owns the walk from one range to the next. Must never go past a range that is only assigned, nor over positions that
nobody accounts for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from formats.entries import Position
from formats.manifest import Gap
from offloader.manifest.ledger_table import LedgerTable, follows
from offloader.manifest.sealed_segments import SealedSegments, rows_not_after
from offloader.manifest.segment_record import SegmentStatus
from offloader.manifest.segment_table import SegmentTable

__all__ = ["committed_end_from", "first_begin"]

#: Sealed rows looked at together, at first and at most.
_STRIDE_ROWS = 64
_STRIDE_ROWS_MAX = 65_536

_Step = tuple[Position, Position | None, int]


def committed_end_from(
    reached: Position | None, segments: SegmentTable, gaps: Sequence[Gap], ledgers: LedgerTable
) -> Position | None:
    """End of the longest run of offloaded ranges and gaps that goes on from ``reached``.

    Args:
        reached: everything up to here is accounted for; ``None``: begin with the first range there is.
        segments: offloaded and retired ones count, an assigned one ends the run.
        gaps: recorded gaps, in the stream's order.
        ledgers: which ledgers end where.
    """
    begins = [gap.first for gap in gaps]
    while True:
        steps = _next_steps(reached, segments, gaps, begins)
        if not steps:
            return reached
        begin, end, source = min(steps)
        if end is None or (reached is not None and not follows(reached, begin, ledgers.closed)):
            return reached
        if source < 0:
            reached = end
            continue
        others = min((step[0] for step in steps if step[2] != source), default=None)
        reached = _along(segments.sealed[source], begin, others, ledgers)


def first_begin(segments: SegmentTable, gaps: Sequence[Gap]) -> Position | None:
    """Where the first range begins, whatever became of it; ``None``: there is none."""
    begins = [begin for begin, _, _ in _next_steps(None, segments, gaps, [gap.first for gap in gaps[:1]])]
    return min(begins, default=None)


def _next_steps(
    reached: Position | None, segments: SegmentTable, gaps: Sequence[Gap], begins: list[Position]
) -> list[_Step]:
    """Of each source the first range after ``reached``: begin, end (``None``: assigned), number of the sealed one."""
    steps: list[_Step] = []
    for number, part in enumerate(segments.sealed):
        row = 0 if reached is None else rows_not_after(part.columns, reached)
        while row < len(part.columns) and part.is_dead(row):
            row += 1
        if row < len(part.columns):
            steps.append((part.begin(row), part.end(row), number))
    at = 0 if reached is None else bisect_right(segments.order, reached, key=lambda item: item[0])
    if at < len(segments.order):
        begin, uuid = segments.order[at]
        record = segments.tail[uuid]
        steps.append((begin, None if record.status is SegmentStatus.ASSIGNED else record.end, -1))
    at = 0 if reached is None else bisect_right(begins, reached)
    if at < len(gaps):
        steps.append((gaps[at].first, gaps[at].last, -1))
    return steps


def _along(part: SealedSegments, begin: Position, others: Position | None, ledgers: LedgerTable) -> Position:
    """The end of the run of sealed ranges that starts at ``begin`` and stays before ``others``."""
    columns, stride = part.columns, _STRIDE_ROWS
    start = rows_not_after(columns, begin) - 1
    limit = len(columns) if others is None else rows_not_after(columns, others)
    while True:
        rows = part.live_rows(start, min(start + stride, limit))
        ledger, entry, last_ledger, last_entry = (
            column[rows].astype(np.int64)
            for column in (
                columns.begin_ledger_id,
                columns.begin_entry_id,
                columns.end_ledger_id,
                columns.end_entry_id,
            )
        )
        follow = ledgers.follow((last_ledger[:-1], last_entry[:-1]), (ledger[1:], entry[1:]))
        breaks = np.flatnonzero(~follow)
        if len(breaks):
            return part.end(int(rows[breaks[0]]))
        if start + stride >= limit:
            return part.end(int(rows[-1]))
        start, stride = int(rows[-1]), min(stride * 4, _STRIDE_ROWS_MAX)
