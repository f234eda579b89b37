"""Some segments of a stream in order, each made into a record when it is asked for; pure.

Owns the order over several sets of columns. Must never make records of segments that nobody looks at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint_columns import SPAN_NUMBERS
from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.manifest.sealed_segments import Rows, SealedSegments
from offloader.manifest.segment_record import SegmentRecord, SegmentSums, records_of

__all__ = ["SegmentSlice"]


_HALF = (1 << 64) - 1
#: Records that an iterator makes together, and holds, once more than a few were taken.
_RECORDS_AT_ONCE_MAX = 256
#: Rows of one column that are looked up together.
_GATHER_ROWS = 4096


class SegmentSlice(Sequence[SegmentRecord]):
    """Segments in the stream's order; equal to any sequence of the same records."""

    __slots__ = ("_rows", "_sealed", "_source", "_tail")

    def __init__(
        self,
        sealed: tuple[SealedSegments, ...],
        tail: Sequence[SegmentRecord],
        source: NDArray[np.int32],
        rows: NDArray[np.int32],
    ) -> None:
        self._sealed = sealed
        self._tail = tail
        #: Which of ``sealed``, or one more for the tail; and the row there.
        self._source = source
        self._rows = rows

    @classmethod
    def merged(
        cls, sealed: tuple[SealedSegments, ...], rows: Sequence[Rows], tail: Sequence[SegmentRecord]
    ) -> SegmentSlice:
        """Those rows of each of ``sealed``, and ``tail``, each ascending by begin, as one."""
        counts = [*map(len, rows), len(tail)]
        source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        row = np.concatenate([*(each.astype(np.int32) for each in rows), np.arange(len(tail), dtype=np.int32)])
        ends: list[tuple[Position, Position]] = [
            (part.begin(int(each[0])), part.begin(int(each[-1])))
            for part, each in zip(sealed, rows, strict=True)
            if len(each)
        ]
        if tail:
            ends.append((tail[0].begin, tail[-1].begin))
        if any(after[0] < before[1] for before, after in itertools.pairwise(ends)):
            ledgers = [part.columns.begin_ledger_id[each] for part, each in zip(sealed, rows, strict=True)]
            entries = [part.columns.begin_entry_id[each] for part, each in zip(sealed, rows, strict=True)]
            own = np.array([record.begin for record in tail], dtype=np.int64).reshape(-1, 2)
            order = np.lexsort((np.concatenate([*entries, own[:, 1]]), np.concatenate([*ledgers, own[:, 0]])))
            source, row = source[order], row[order]
        return cls(sealed, tail, source, row)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> SegmentRecord: ...

    @overload
    def __getitem__(self, at: slice) -> SegmentSlice: ...

    def __getitem__(self, at: int | slice) -> SegmentRecord | SegmentSlice:
        if isinstance(at, slice):
            return SegmentSlice(self._sealed, self._tail, self._source[at], self._rows[at])
        return self._record(int(self._source[at]), int(self._rows[at]))

    def __iter__(self) -> Iterator[SegmentRecord]:
        start, count = 0, 1
        while start < len(self):
            source, rows = (each[start : start + count] for each in (self._source, self._rows))
            cuts = [0, *(np.flatnonzero(np.diff(source)) + 1).tolist(), len(source)]
            for first, end in itertools.pairwise(cuts):
                yield from self._records(int(source[first]), rows[first:end])
            start, count = start + count, min(4 * count, _RECORDS_AT_ONCE_MAX)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SegmentSlice({list(self[:3])}{', ...' if len(self) > 3 else ''})"

    def published_from(self, publish_time_ms: int) -> SegmentSlice:
        """Those that may hold an entry published at that time or later, by what is recorded of each."""
        keep = np.empty(len(self), dtype=bool)
        for number, part in enumerate(self._sealed):
            mine = self._source == number
            latest = part.columns.publish_time_max_ms[self._rows[mine]].astype(np.int64)
            keep[mine] = (latest >= publish_time_ms) | (latest == TIME_UNKNOWN_MS)
        times = [r.summary.publish_time_max_ms if r.summary else TIME_UNKNOWN_MS for r in self._tail]
        mine = self._source == len(self._sealed)
        latest = np.array(times, dtype=np.int64)[self._rows[mine]]
        keep[mine] = (latest >= publish_time_ms) | (latest == TIME_UNKNOWN_MS)
        return SegmentSlice(self._sealed, self._tail, self._source[keep], self._rows[keep])

    def sums(self) -> SegmentSums:
        """How many segments, entries and bytes these are."""
        sums = SegmentSums()
        for number, part in enumerate(self._sealed):
            rows = self._rows[self._source == number]
            columns = part.columns
            entries, payload, data, index = (
                int(column[rows].sum(dtype=np.int64))
                for column in (columns.entries, columns.payload_bytes, columns.data_bytes, columns.index_bytes)
            )
            more = SegmentSums(len(rows), entries, payload, data + index)
            sums = SegmentSums(*(own + its for own, its in zip(sums, more, strict=True)))
        for row in self._rows[self._source == len(self._sealed)].tolist():
            sums = sums.plus(self._tail[row], 1)
        return sums

    def ledger_spans(self) -> NDArray[np.int64]:
        """The parts of ledgers in these, in order: ledger id, first and last entry id, entries, payload bytes.

        Returns:
            int64, shape (m, 5), m >= len(self).
        """
        pieces, owners = [np.empty((0, SPAN_NUMBERS), np.int64)], [np.empty(0, np.int64)]
        for number, part in enumerate(self._sealed):
            at = np.flatnonzero(self._source == number)
            spans, counts = part.columns.ledger_spans(self._rows[at])
            pieces.append(spans)
            owners.append(np.repeat(at, counts))
        for at_row in np.flatnonzero(self._source == len(self._sealed)).tolist():
            summary = self._tail[int(self._rows[at_row])].summary
            own = [] if summary is None else [astuple(span) for span in summary.ledgers]
            pieces.append(np.array(own, dtype=np.int64).reshape(-1, SPAN_NUMBERS))
            owners.append(np.full(len(own), at_row))
        order = np.argsort(np.concatenate(owners), kind="stable")
        found: NDArray[np.int64] = np.concatenate(pieces)[order]
        return found

    def owned(self) -> NDArray[np.bool_]:
        """Of each whether its objects are ours to delete, bool, shape (n,)."""
        found = np.empty(len(self), dtype=bool)
        self._gather(found, "owned", [record.owned for record in self._tail])
        return found

    def retire_records(self) -> NDArray[np.int64]:
        """The record that retired each, -1: none did; int64, shape (n,)."""
        found = np.empty(len(self), dtype=np.int64)
        own = [-1 if record.retire_record is None else record.retire_record for record in self._tail]
        self._gather(found, "retire_record", own)
        return found

    def _gather(self, found: NDArray[Any], column: str, own: Sequence[int]) -> None:
        """Fills ``found`` with a column, a few rows at a time: what it takes besides doesn't grow with the slice."""
        values = [getattr(part.columns, column) for part in self._sealed] + [np.array(own, dtype=found.dtype)]
        for start in range(0, len(self), _GATHER_ROWS):
            stop = start + _GATHER_ROWS
            source, rows, target = self._source[start:stop], self._rows[start:stop], found[start:stop]
            for number in np.unique(source).tolist():
                mine = source == number
                target[mine] = values[number][rows[mine]]

    def where(self, keep: NDArray[np.bool_] | NDArray[np.int32]) -> SegmentSlice:
        """Those that ``keep`` says: bool, shape (n,), or their numbers, ascending."""
        return SegmentSlice(self._sealed, self._tail, self._source[keep], self._rows[keep])

    def not_in(self, other: SegmentSlice) -> SegmentSlice:
        """Those that aren't in ``other``."""
        keep = ~np.isin(self._uuids(), other._uuids())
        return SegmentSlice(self._sealed, self._tail, self._source[keep], self._rows[keep])

    def _uuids(self) -> NDArray[np.void]:
        uuids = np.empty(len(self), dtype=[("high", np.uint64), ("low", np.uint64)])
        for number, part in enumerate(self._sealed):
            mine = self._source == number
            uuids["high"][mine] = part.columns.uuid_high[self._rows[mine]]
            uuids["low"][mine] = part.columns.uuid_low[self._rows[mine]]
        for at in np.flatnonzero(self._source == len(self._sealed)).tolist():
            uuid = self._tail[int(self._rows[at])].uuid.int
            uuids[at] = (uuid >> 64, uuid & _HALF)
        return uuids

    def _records(self, source: int, rows: NDArray[np.int32]) -> list[SegmentRecord]:
        if source == len(self._sealed):
            return [self._tail[row] for row in rows.tolist()]
        return records_of(self._sealed[source].columns, rows)

    def _record(self, source: int, row: int) -> SegmentRecord:
        return self._tail[row] if source == len(self._sealed) else self._sealed[source].record(row)
