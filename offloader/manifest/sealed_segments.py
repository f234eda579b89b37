"""Segments that don't change any more, in columns, and searching them; pure.

Owns bisection over columns. Must never change a column: what no longer counts is a row number beside them.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import RunRef
from formats.checkpoint_columns import SegmentColumns
from formats.entries import Position
from offloader.manifest.segment_record import OFFLOADED, RETIRED, SegmentRecord, record_of

__all__ = ["NO_ROWS", "Rows", "SealedSegments", "rows_not_after"]

Rows = NDArray[np.int64]

_HALF = (1 << 64) - 1
#: Rows looked at together when the first of a kind is wanted.
_LOOK_ROWS = 1024
NO_ROWS: Rows = np.empty(0, np.int64)


def rows_not_after(columns: SegmentColumns, position: Position) -> int:
    """How many segments begin at or before ``position``."""
    # By hand: NumPy's own search knows no pairs, and copies columns that are narrower than what it looks for.
    ledger_id, entry_id = columns.begin_ledger_id.item, columns.begin_entry_id.item
    low, high = 0, len(columns)
    while low < high:
        middle = (low + high) // 2
        if (ledger_id(middle), entry_id(middle)) <= position:
            low = middle + 1
        else:
            high = middle
    return low


class _UuidOrder:
    """Row numbers in the order of the uuids, made when the first uuid is looked up."""

    __slots__ = ("_columns", "_order")

    def __init__(self, columns: SegmentColumns) -> None:
        self._columns = columns
        self._order: NDArray[np.int32] | None = None

    def row(self, uuid: UUID) -> int | None:
        if self._order is None:
            self._order = np.argsort(self._columns.uuid_high, kind="stable").astype(np.int32)
        order, high_of, low_of = self._order.item, self._columns.uuid_high.item, self._columns.uuid_low.item
        wanted_high, wanted_low = uuid.int >> 64, uuid.int & _HALF
        low, high = 0, len(self._columns)
        while low < high:
            middle = (low + high) // 2
            if high_of(order(middle)) < wanted_high:
                low = middle + 1
            else:
                high = middle
        while low < len(self._columns) and high_of(order(low)) == wanted_high:
            if low_of(order(low)) == wanted_low:
                return order(low)
            low += 1
        return None


class SealedSegments:
    """Segments in columns, some of them dead. A value.

    Attributes:
        columns: ascending by begin, disjoint.
        dead: row numbers that don't count any more, ascending.
        run: the object that holds the columns; ``None`` when they are in none yet.
    """

    __slots__ = ("_first_offloaded", "_order", "columns", "dead", "run")

    def __init__(
        self, columns: SegmentColumns, dead: Rows = NO_ROWS, run: RunRef | None = None, order: _UuidOrder | None = None
    ) -> None:
        self.columns = columns
        self.dead = dead
        self.run = run
        self._order = order or _UuidOrder(columns)
        self._first_offloaded: int | None = None

    def __len__(self) -> int:
        return len(self.columns) - len(self.dead)

    def without(self, rows: Rows) -> SealedSegments:
        """The same segments, ``rows`` dead as well."""
        return SealedSegments(self.columns, np.union1d(self.dead, rows), self.run, self._order)

    def in_run(self, run: RunRef) -> SealedSegments:
        """The same segments, now held by an object."""
        return SealedSegments(self.columns, self.dead, run, self._order)

    def is_dead(self, row: int) -> bool:
        at = int(np.searchsorted(self.dead, row))
        return at < len(self.dead) and int(self.dead[at]) == row

    def row_of(self, uuid: UUID) -> int | None:
        """The row of a segment, also of a dead one."""
        return self._order.row(uuid)

    def record(self, row: int) -> SegmentRecord:
        return record_of(self.columns, row)

    def begin(self, row: int) -> Position:
        return Position(self.columns.begin_ledger_id.item(row), self.columns.begin_entry_id.item(row))

    def end(self, row: int) -> Position:
        return Position(self.columns.end_ledger_id.item(row), self.columns.end_entry_id.item(row))

    def bounds(self, first: Position | None, last: Position | None) -> tuple[int, int]:
        """Rows ``start`` to ``stop`` hold every segment with a position in ``first`` .. ``last``, dead ones too."""
        start, stop = 0, len(self.columns)
        if first is not None:
            start = rows_not_after(self.columns, first)
            if start and self.end(start - 1) >= first:
                start -= 1
        if last is not None:
            stop = rows_not_after(self.columns, last)
        return start, max(start, stop)

    def live_rows(self, start: int, stop: int) -> Rows:
        """The rows of ``start`` to ``stop`` that count."""
        rows = np.arange(start, stop, dtype=np.int64)
        low, high = np.searchsorted(self.dead, (start, stop))
        return np.delete(rows, self.dead[low:high] - start) if high > low else rows

    def offloaded_rows(self, start: int, stop: int) -> Rows:
        """The rows of ``start`` to ``stop`` that are readable."""
        rows = self.live_rows(start, stop)
        readable: Rows = rows[self.columns.status[rows] == OFFLOADED]
        return readable

    def retired_rows(self) -> Rows:
        """All rows that count and are retired."""
        retired = np.flatnonzero(self.columns.status == RETIRED)
        return np.setdiff1d(retired, self.dead, assume_unique=True) if len(self.dead) else retired

    def first_offloaded(self) -> int | None:
        """The first readable row."""
        if self._first_offloaded is None:
            self._first_offloaded = self._find_first_offloaded()
        return None if self._first_offloaded == len(self.columns) else self._first_offloaded

    def _find_first_offloaded(self) -> int:
        for start in range(0, len(self.columns), _LOOK_ROWS):
            found = self.offloaded_rows(start, min(start + _LOOK_ROWS, len(self.columns)))
            if len(found):
                return int(found[0])
        return len(self.columns)
