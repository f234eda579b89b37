"""All segments of a stream: sealed columns and a small table of the newest; pure.

Owns lookups by uuid and by position, and changes that copy only what is small. Must never hold an object for each
sealed segment, nor walk over all of them for a lookup.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, ValuesView
from uuid import UUID

import numpy as np

from formats.entries import Position
from offloader.manifest.sealed_segments import SealedSegments
from offloader.manifest.segment_record import SegmentRecord, SegmentStatus
from offloader.manifest.segment_slice import SegmentSlice

__all__ = ["SegmentDraft", "SegmentTable"]


class SegmentTable(Mapping[UUID, SegmentRecord]):
    """uuid -> segment. A value: it never changes.

    Attributes:
        sealed: segments in columns.
        tail: the others, by uuid.
        order: begin and uuid of the tail's, ascending.
    """

    __slots__ = ("order", "sealed", "tail")

    def __init__(
        self,
        sealed: tuple[SealedSegments, ...] = (),
        tail: Mapping[UUID, SegmentRecord] | None = None,
        order: list[tuple[Position, UUID]] | None = None,
    ) -> None:
        self.sealed = sealed
        self.tail: Mapping[UUID, SegmentRecord] = {} if tail is None else tail
        self.order = sorted((record.begin, uuid) for uuid, record in self.tail.items()) if order is None else order

    def __len__(self) -> int:
        return sum(map(len, self.sealed)) + len(self.tail)

    def __getitem__(self, uuid: UUID) -> SegmentRecord:
        found = self.tail.get(uuid)
        if found is not None:
            return found
        for part in self.sealed:
            row = part.row_of(uuid)
            if row is not None and not part.is_dead(row):
                return part.record(row)
        raise KeyError(uuid)

    def __contains__(self, uuid: object) -> bool:
        if not isinstance(uuid, UUID):
            return False
        if uuid in self.tail:
            return True
        rows = ((part, part.row_of(uuid)) for part in self.sealed)
        return any(row is not None and not part.is_dead(row) for part, row in rows)

    def __iter__(self) -> Iterator[UUID]:
        return (record.uuid for record in self.in_order())

    def values(self) -> ValuesView[SegmentRecord]:
        return _Values(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{uuid}: {record.status.value}" for uuid, record in list(self.tail.items())[:10])
        return f"SegmentTable({len(self)}, tail {{{shown}}})"

    def in_order(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Segments with a position in ``first`` .. ``last``, in the stream's order, whatever their status."""
        rows = [part.live_rows(*part.bounds(first, last)) for part in self.sealed]
        return SegmentSlice.merged(self.sealed, rows, self._tail_between(first, last))

    def offloaded(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Readable segments with a position in ``first`` .. ``last``, in the stream's order."""
        rows = [part.offloaded_rows(*part.bounds(first, last)) for part in self.sealed]
        tail = [r for r in self._tail_between(first, last) if r.status is SegmentStatus.OFFLOADED]
        return SegmentSlice.merged(self.sealed, rows, tail)

    def retired(self) -> SegmentSlice:
        """Segments that are to be deleted, in the stream's order."""
        rows = [part.retired_rows() for part in self.sealed]
        tail = [self.tail[uuid] for _, uuid in self.order if self.tail[uuid].status is SegmentStatus.RETIRED]
        return SegmentSlice.merged(self.sealed, rows, tail)

    def assigned(self) -> list[SegmentRecord]:
        """Segments without objects, in the stream's order."""
        found = (self.tail[uuid] for _, uuid in self.order)
        return [record for record in found if record.status is SegmentStatus.ASSIGNED]

    def first_offloaded(self) -> Position | None:
        """Where the first readable segment begins."""
        begins = [part.begin(row) for part in self.sealed if (row := part.first_offloaded()) is not None]
        tail = (b for b, uuid in self.order if self.tail[uuid].status is SegmentStatus.OFFLOADED)
        begins += [begin for begin in [next(tail, None)] if begin is not None]
        return min(begins, default=None)

    def _tail_between(self, first: Position | None, last: Position | None) -> list[SegmentRecord]:
        stop = len(self.order) if last is None else bisect_right(self.order, last, key=_begin)
        found = (self.tail[uuid] for _, uuid in self.order[:stop])
        return [r for r in found if first is None or r.end is None or r.end >= first]


class _Values(ValuesView[SegmentRecord]):
    """Records in the stream's order, without a lookup for each."""

    _mapping: SegmentTable

    def __iter__(self) -> Iterator[SegmentRecord]:
        return iter(self._mapping.in_order())


def _begin(item: tuple[Position, UUID]) -> Position:
    return item[0]


class SegmentDraft:
    """A table being changed, for the length of one record."""

    def __init__(self, base: SegmentTable) -> None:
        self._base = base
        self._tail = dict(base.tail)
        self._order = list(base.order)
        self._dead: list[set[int]] = [set() for _ in base.sealed]

    def table(self) -> SegmentTable:
        """What it is now, as a value."""
        sealed = tuple(
            part.without(np.array(sorted(rows), dtype=np.int64)) if rows else part
            for part, rows in zip(self._base.sealed, self._dead, strict=True)
        )
        return SegmentTable(tuple(part for part in sealed if len(part)), dict(self._tail), list(self._order))

    def get(self, uuid: UUID) -> SegmentRecord | None:
        found = self._tail.get(uuid)
        if found is not None:
            return found
        place = self._place(uuid)
        return None if place is None else self._base.sealed[place[0]].record(place[1])

    def put(self, record: SegmentRecord) -> None:
        """Adds a segment or replaces the one of that uuid, which has the same begin."""
        if record.uuid not in self._tail:
            self._drop_sealed(record.uuid)
            insort(self._order, (record.begin, record.uuid))
        self._tail[record.uuid] = record

    def drop(self, uuid: UUID) -> None:
        record = self._tail.pop(uuid, None)
        if record is None:
            self._drop_sealed(uuid)
        else:
            del self._order[bisect_left(self._order, (record.begin, uuid))]

    def overlapping(self, begin: Position, end: Position | None, *, but: UUID | None = None) -> SegmentRecord | None:
        """A segment that shares a position with ``begin`` .. ``end``; without an end a range goes on for ever."""
        at = len(self._order) if end is None else bisect_right(self._order, end, key=_begin)
        # Ranges are disjoint, so of those that begin before ``end`` the last one reaches furthest.
        for _, uuid in reversed(self._order[max(at - 2, 0) : at]):
            record = self._tail[uuid]
            if uuid != but:
                if record.end is None or record.end >= begin:
                    return record
                break
        for number, part in enumerate(self._base.sealed):
            start, stop = part.bounds(begin, end)
            for row in range(start, stop):
                if not part.is_dead(row) and row not in self._dead[number] and part.end(row) >= begin:
                    record = part.record(row)
                    if record.uuid != but:
                        return record
        return None

    def _place(self, uuid: UUID) -> tuple[int, int] | None:
        for number, part in enumerate(self._base.sealed):
            row = part.row_of(uuid)
            if row is not None and not part.is_dead(row) and row not in self._dead[number]:
                return number, row
        return None

    def _drop_sealed(self, uuid: UUID) -> None:
        place = self._place(uuid)
        if place is not None:
            self._dead[place[0]].add(place[1])
