"""A stream's segments: immutable columns and a small table of the newest. Does no I/O."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from enum import Enum
from operator import itemgetter
from typing import Any, NamedTuple, overload
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import AssignedSegment, RunRef
from formats.checkpoint_parquet import NUMBER_COLUMNS, PLAIN_SPAN_COLUMNS, SPAN_NUMBERS, SegmentColumns
from formats.entries import TIME_UNKNOWN_MS, Position
from formats.keys import data_key, index_key
from formats.summary import Layout, LedgerSpan, SegmentSummary

_HALF = (1 << 64) - 1

#: Driver metadata of a segment whose objects lie at the store's root, as Pulsar's do, and not below the stream's name.
AT_ROOT: Mapping[str, str] = {"objectKeys": "root"}


def is_at_root(driver: Mapping[str, str]) -> bool:
    """Whether driver metadata marks the objects as lying at the store's root."""
    return all(driver.get(name) == value for name, value in AT_ROOT.items())


class SegmentStatus(Enum):
    """Status of a segment. Failed and purged segments leave the manifest: ``failed_segments`` lists the failed ones."""

    ASSIGNED = "assigned"
    OFFLOADED = "offloaded"
    RETIRED = "retired"
    FAILED = "failed"


#: Numbers of the statuses of segments in columns.
_STATUS_NUMBERS = {SegmentStatus.OFFLOADED: 1, SegmentStatus.RETIRED: 2}
_STATUSES = {number: status for status, number in _STATUS_NUMBERS.items()}
OFFLOADED = _STATUS_NUMBERS[SegmentStatus.OFFLOADED]
RETIRED = _STATUS_NUMBERS[SegmentStatus.RETIRED]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One offload segment in the manifest.

    Attributes:
        uuid: its name, and its objects' key.
        epoch: the writer generation that assigned it; only this one writes under the uuid.
        begin: first position, never changed.
        end: last position; ``None`` while a live segment is being filled.
        assigned_ms, offloaded_ms: ms since 1970 UTC.
        driver: where the objects are (``managedLedgerOffloadDriver``, ``bucket``, ``region``, ``serviceEndpoint``).
        summary: lengths, checksums, counts; from ``offloaded`` on.
        owned: whether we may delete its objects (adopted ones: only when ownership was taken).
    """

    uuid: UUID
    status: SegmentStatus
    epoch: int
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    offloaded_ms: int | None = None
    driver: Mapping[str, str]
    summary: SegmentSummary | None = None
    owned: bool = True
    retire_record: int | None = None

    @property
    def v1_ledger_id(self) -> int | None:
        """The ledger id in the keys of a V1 segment; ``None`` for V2."""
        return self.begin.ledger_id if self.layout == 1 else None

    @property
    def content(self) -> SegmentSummary:
        """The summary of an offloaded or retired segment."""
        assert self.summary is not None, "an assigned segment has no summary"
        return self.summary

    @property
    def object_bytes(self) -> int:
        """Bytes of both objects of an offloaded or retired segment."""
        return self.content.data_bytes + self.content.index_bytes

    @property
    def spans(self) -> tuple[LedgerSpan, ...]:
        """The parts of ledgers that it is known to hold."""
        return () if self.summary is None else self.summary.ledgers

    def object_keys(self, stream: str) -> tuple[str, str]:
        """Keys of the data object and of the index object; adopted objects have other keys than our own."""
        folder = "" if is_at_root(self.driver) else stream
        return data_key(folder, self.uuid, self.v1_ledger_id), index_key(folder, self.uuid, self.v1_ledger_id)


class SegmentSums(NamedTuple):
    """Sums over some offloaded segments."""

    segments: int = 0
    entries: int = 0
    payload_bytes: int = 0
    object_bytes: int = 0

    def plus(self, record: SegmentRecord, sign: int) -> SegmentSums:
        """Adds (``sign`` 1) or subtracts (-1) one segment."""
        more = SegmentSums(1, record.content.entries, record.content.payload_bytes, record.object_bytes)
        return SegmentSums(*(own + sign * its for own, its in zip(self, more, strict=True)))


#: Columns that are called like their field of the summary, or of the record.
_SUMMARY_NUMBERS = (
    *("data_bytes", "index_bytes", "data_crc32c", "index_crc32c", "entries", "payload_bytes"),
    *("publish_time_min_ms", "publish_time_max_ms", "blocks"),
)
_RECORD_NUMBERS = ("epoch", "layout", "assigned_ms")


def records_of(columns: SegmentColumns, rows: NDArray[np.int32]) -> list[SegmentRecord]:
    """The segments in some rows, in their order; three times as fast as one by one for many."""
    taken = [getattr(columns, name)[rows].tolist() for name in NUMBER_COLUMNS]
    halves = zip(columns.uuid_high[rows].tolist(), columns.uuid_low[rows].tolist(), strict=True)
    spanned = np.isin(rows, columns.span_rows).tolist()
    records = []
    for row, (high, low), has_spans, *numbers in zip(rows.tolist(), halves, spanned, *taken, strict=True):
        value: dict[str, int] = dict(zip(NUMBER_COLUMNS, numbers, strict=True))
        spans = columns.spans_of(row) if has_spans else [[value[name] for name in PLAIN_SPAN_COLUMNS]]
        records.append(_record(high << 64 | low, value, columns.drivers, spans))
    return records


def _record(
    uuid: int, value: Mapping[str, int], drivers: Sequence[Mapping[str, str]], spans: Iterable[Iterable[int]]
) -> SegmentRecord:
    begin = Position(value["begin_ledger_id"], value["begin_entry_id"])
    end = Position(value["end_ledger_id"], value["end_entry_id"])
    summary = SegmentSummary(
        layout=Layout(value["layout"]),
        begin=begin,
        end=end,
        compressed=bool(value["compressed"]),
        ledgers=tuple(LedgerSpan(*numbers) for numbers in spans),
        **{name: value[name] for name in _SUMMARY_NUMBERS},
    )
    return SegmentRecord(
        uuid=UUID(int=uuid),
        status=_STATUSES[value["status"]],
        begin=begin,
        end=end,
        offloaded_ms=value["offloaded_ms"],
        driver=drivers[value["driver"]],
        summary=summary,
        owned=bool(value["owned"]),
        retire_record=None if value["retire_record"] < 0 else value["retire_record"],
        **{name: value[name] for name in _RECORD_NUMBERS},
    )


def columns_of(records: Iterable[SegmentRecord]) -> SegmentColumns:
    """Offloaded and retired segments, in the order of their begins, as columns."""
    taken = list(records)
    drivers: list[Mapping[str, str]] = []
    rows: list[dict[str, int]] = []
    spans: dict[int, list[list[int]]] = {}
    for row, record in enumerate(taken):
        summary, begin, end = record.content, record.begin, record.end
        assert end is not None, "an offloaded segment has an end"
        if record.driver not in drivers:
            drivers.append(record.driver)
        rows.append(
            {
                "status": _STATUS_NUMBERS[record.status],
                "owned": record.owned,
                "compressed": summary.compressed,
                "driver": drivers.index(record.driver),
                "retire_record": -1 if record.retire_record is None else record.retire_record,
                "begin_ledger_id": begin.ledger_id,
                "begin_entry_id": begin.entry_id,
                "end_ledger_id": end.ledger_id,
                "end_entry_id": end.entry_id,
                "offloaded_ms": record.assigned_ms if record.offloaded_ms is None else record.offloaded_ms,
                **{name: getattr(record, name) for name in _RECORD_NUMBERS},
                **{name: getattr(summary, name) for name in _SUMMARY_NUMBERS},
            }
        )
        own = [[s.ledger_id, s.first_entry_id, s.last_entry_id, s.entries, s.payload_bytes] for s in summary.ledgers]
        # The other columns imply the span of a segment in one ledger.
        if own != [[begin.ledger_id, begin.entry_id, summary.end.entry_id, summary.entries, summary.payload_bytes]]:
            spans[row] = own
    halves = [(record.uuid.int >> 64, record.uuid.int & _HALF) for record in taken]
    numbers: dict[str, Any] = {
        name: np.array([row[name] for row in rows], dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()
    }
    return SegmentColumns(
        uuid_high=np.array([high for high, _ in halves], dtype=np.uint64),
        uuid_low=np.array([low for _, low in halves], dtype=np.uint64),
        **numbers,
        span_rows=np.array(list(spans), dtype=np.int64),
        span_offsets=np.cumsum([0, *map(len, spans.values())], dtype=np.int64),
        spans=np.array([*itertools.chain.from_iterable(spans.values())], dtype=np.int64).reshape(-1, SPAN_NUMBERS),
        drivers=tuple(drivers),
    )


_ASSIGNED_FIELDS = tuple(each.name for each in fields(AssignedSegment))


def assigned_record(assigned: AssignedSegment) -> SegmentRecord:
    """The record of a segment in flight."""
    return SegmentRecord(status=SegmentStatus.ASSIGNED, **{name: getattr(assigned, name) for name in _ASSIGNED_FIELDS})


def assigned_of(record: SegmentRecord) -> AssignedSegment:
    """The segment in flight of a record."""
    return AssignedSegment(**{name: getattr(record, name) for name in _ASSIGNED_FIELDS})


Rows = NDArray[np.int64]
#: One half of each of some uuids.
Words = NDArray[np.uint64]

#: Rows scanned together for the first of a kind.
_LOOK_ROWS = 1024
NO_ROWS: Rows = np.empty(0, np.int64)


def rows_not_after(columns: SegmentColumns, position: Position) -> int:
    """How many segments begin at or before ``position``."""
    # Not by NumPy: its search has no pairs, and copies columns that are narrower than the key.
    ledger_id, entry_id = columns.begin_ledger_id.item, columns.begin_entry_id.item
    return bisect_right(range(len(columns)), tuple(position), key=lambda row: (ledger_id(row), entry_id(row)))


@dataclass(eq=False, slots=True)
class SealedSegments:
    """Segments in columns, some tombstoned. Immutable.

    Attributes:
        columns: ascending by begin, disjoint.
        dead: tombstoned row numbers, ascending.
        run: the object that holds the columns; ``None`` if no run does yet.
        by_uuid: row numbers in the order of the uuids, built at the first lookup.
    """

    columns: SegmentColumns
    dead: Rows = field(default_factory=lambda: NO_ROWS)
    run: RunRef | None = None
    by_uuid: NDArray[np.int32] | None = field(default=None, repr=False)
    _first_offloaded: int | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.columns) - len(self.dead)

    def is_dead(self, row: int) -> bool:
        at = int(np.searchsorted(self.dead, row))
        return at < len(self.dead) and int(self.dead[at]) == row

    def _order(self) -> NDArray[np.int32]:
        if self.by_uuid is None:
            self.by_uuid = np.argsort(self.columns.uuid_high, kind="stable").astype(np.int32)
        return self.by_uuid

    def has(self, high: Words, low: Words) -> NDArray[np.bool_]:
        """Which of many uuids have a row that isn't tombstoned."""
        columns, order = self.columns, self._order()
        found = np.zeros(len(high), dtype=bool)
        at = np.searchsorted(columns.uuid_high, high, sorter=order)
        pending = np.flatnonzero(at < len(order))
        while len(pending):  # again only for uuids with equal upper halves
            rows = order[at[pending]]
            same = columns.uuid_high[rows] == high[pending]
            pending, rows = pending[same], rows[same]
            found[pending] |= (columns.uuid_low[rows] == low[pending]) & ~np.isin(rows, self.dead)
            at[pending] += 1
            pending = pending[at[pending] < len(order)]
        return found

    def row_of(self, uuid: UUID) -> int | None:
        """The row of a segment, also of a tombstoned one."""
        row_at, high_of, low_of = self._order().item, self.columns.uuid_high.item, self.columns.uuid_low.item
        high, low, rows = uuid.int >> 64, uuid.int & _HALF, range(len(self.columns))
        first = bisect_left(rows, high, key=lambda at: high_of(row_at(at)))
        same_high = itertools.takewhile(lambda row: high_of(row) == high, map(row_at, rows[first:]))
        return next((row for row in same_high if low_of(row) == low), None)

    def record(self, row: int) -> SegmentRecord:
        value: dict[str, int] = {name: getattr(self.columns, name).item(row) for name in NUMBER_COLUMNS}
        return _record(
            self.columns.uuid_high.item(row) << 64 | self.columns.uuid_low.item(row),
            value,
            self.columns.drivers,
            self.columns.spans_of(row),
        )

    def begin(self, row: int) -> Position:
        return Position(self.columns.begin_ledger_id.item(row), self.columns.begin_entry_id.item(row))

    def end(self, row: int) -> Position:
        return Position(self.columns.end_ledger_id.item(row), self.columns.end_entry_id.item(row))

    def bounds(self, first: Position | None, last: Position | None) -> tuple[int, int]:
        """Rows ``start`` to ``stop`` hold every segment in ``first`` .. ``last``, tombstoned ones too."""
        start = 0 if first is None else rows_not_after(self.columns, first)
        if first is not None and start and self.end(start - 1) >= first:
            start -= 1
        return start, max(start, len(self.columns) if last is None else rows_not_after(self.columns, last))

    def live_rows(self, start: int, stop: int) -> Rows:
        """The rows of ``start`` to ``stop`` that aren't tombstoned."""
        rows = np.arange(start, stop, dtype=np.int64)
        low, high = np.searchsorted(self.dead, (start, stop))
        return np.delete(rows, self.dead[low:high] - start) if high > low else rows

    def rows_with(self, status: int, start: int = 0, stop: int | None = None) -> Rows:
        """The rows of ``start`` to ``stop`` that have a status and aren't tombstoned."""
        rows: Rows = np.flatnonzero(self.columns.status[start:stop] == status) + start
        low, high = np.searchsorted(self.dead, (start, len(self.columns) if stop is None else stop))
        return np.setdiff1d(rows, self.dead[low:high], assume_unique=True) if high > low else rows

    def first_offloaded(self) -> int | None:
        """The first readable row."""
        rows = len(self.columns)
        if self._first_offloaded is None:
            parts = (self.rows_with(OFFLOADED, at, min(at + _LOOK_ROWS, rows)) for at in range(0, rows, _LOOK_ROWS))
            self._first_offloaded = next((int(found[0]) for found in parts if len(found)), rows)
        return None if self._first_offloaded == rows else self._first_offloaded


#: Records that an iterator builds and holds together, after the first few.
_RECORDS_AT_ONCE_MAX = 256
#: From so many rows on it is faster to build records from slices of columns than one by one.
_RECORDS_TOGETHER_MIN = 4
#: Rows of one column that are gathered together.
_GATHER_ROWS = 4096


@dataclass(eq=False, repr=False, slots=True)
class SegmentSlice(Sequence[SegmentRecord]):
    """Segments in the stream's order; equal to any sequence of the same records."""

    _sealed: tuple[SealedSegments, ...]
    _tail: Sequence[SegmentRecord]
    #: Index in ``_sealed``, or one more for the tail; and the row there.
    _source: NDArray[np.int32]
    _rows: NDArray[np.int32]

    @classmethod
    def merged(
        cls, sealed: tuple[SealedSegments, ...], rows: Sequence[Rows], tail: Sequence[SegmentRecord]
    ) -> SegmentSlice:
        """Merges those rows of each of ``sealed``, and ``tail``, each ascending by begin."""
        if not any(map(len, rows)):  # as of most streams, and of what few segments are: a dozen arrays take longer
            return cls(
                sealed, tail, np.full(len(tail), len(sealed), dtype=np.int32), np.arange(len(tail), dtype=np.int32)
            )
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
        source, row = int(self._source[at]), int(self._rows[at])
        return self._tail[row] if source == len(self._sealed) else self._sealed[source].record(row)

    def __iter__(self) -> Iterator[SegmentRecord]:
        start, count = 0, 1
        while start < len(self):
            source, rows = (each[start : start + count].tolist() for each in (self._source, self._rows))
            for number, pairs in itertools.groupby(zip(source, rows, strict=True), key=itemgetter(0)):
                yield from self._records(number, [row for _, row in pairs])
            start, count = start + count, min(4 * count, _RECORDS_AT_ONCE_MAX)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def published_from(self, publish_time_ms: int) -> SegmentSlice:
        """Segments that may hold an entry published at that time or later, by their recorded times."""
        latest = self._newest_times()
        return self.where((latest >= publish_time_ms) | (latest == TIME_UNKNOWN_MS))

    def _newest_times(self) -> NDArray[np.int64]:
        times = [r.summary.publish_time_max_ms if r.summary else TIME_UNKNOWN_MS for r in self._tail]
        return self._gathered("publish_time_max_ms", np.int64, times)

    def ends(self) -> NDArray[np.int64]:
        """Each segment's last position and newest publish time: ledger id, entry id, ms; int64, shape (n, 3)."""
        ends = [r.end or r.begin for r in self._tail]
        ledgers = self._gathered("end_ledger_id", np.int64, [end.ledger_id for end in ends])
        entries = self._gathered("end_entry_id", np.int64, [end.entry_id for end in ends])
        return np.stack([ledgers, entries, self._newest_times()], axis=1)

    def sums(self) -> SegmentSums:
        """Number of segments, entries and bytes."""
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
            own = [astuple(span) for span in self._tail[int(self._rows[at_row])].spans]
            pieces.append(np.array(own, dtype=np.int64).reshape(-1, SPAN_NUMBERS))
            owners.append(np.full(len(own), at_row))
        found: NDArray[np.int64] = np.concatenate(pieces)[np.argsort(np.concatenate(owners), kind="stable")]
        return found

    def owned(self) -> NDArray[np.bool_]:
        """Whether each segment's objects are ours to delete, bool, shape (n,)."""
        return self._gathered("owned", np.bool_, [record.owned for record in self._tail])

    def retire_records(self) -> NDArray[np.int64]:
        """The record that retired each, -1: none did; int64, shape (n,)."""
        own = [-1 if record.retire_record is None else record.retire_record for record in self._tail]
        return self._gathered("retire_record", np.int64, own)

    def _gathered(self, column: str, dtype: type[np.generic], own: Sequence[int]) -> NDArray[Any]:
        """A column, or for the tail ``own``; some rows at a time to bound temporary memory."""
        found = np.empty(len(self), dtype=dtype)
        values = [getattr(part.columns, column) for part in self._sealed] + [np.array(own, dtype=dtype)]
        for start in range(0, len(self), _GATHER_ROWS):
            stop = start + _GATHER_ROWS
            source, rows, target = self._source[start:stop], self._rows[start:stop], found[start:stop]
            for number in np.unique(source).tolist():
                mine = source == number
                target[mine] = values[number][rows[mine]]
        return found

    def where(self, keep: NDArray[np.bool_] | NDArray[np.int32]) -> SegmentSlice:
        """Selects segments by ``keep``: bool, shape (n,), or their numbers, ascending."""
        return SegmentSlice(self._sealed, self._tail, self._source[keep], self._rows[keep])

    def not_in(self, other: SegmentSlice) -> SegmentSlice:
        """Segments that aren't in ``other``."""
        return self.where(~np.isin(self._uuids(), other._uuids()))

    def _uuids(self) -> NDArray[np.void]:
        uuids = np.empty(len(self), dtype=[("high", np.uint64), ("low", np.uint64)])
        own = [record.uuid.int for record in self._tail]
        uuids["high"] = self._gathered("uuid_high", np.uint64, [number >> 64 for number in own])
        uuids["low"] = self._gathered("uuid_low", np.uint64, [number & _HALF for number in own])
        return uuids

    def _records(self, source: int, rows: Sequence[int]) -> list[SegmentRecord]:
        if source == len(self._sealed):
            return [self._tail[row] for row in rows]
        part = self._sealed[source]
        if len(rows) < _RECORDS_TOGETHER_MIN:
            return [part.record(row) for row in rows]
        return records_of(part.columns, np.array(rows, dtype=np.int32))


class SegmentTable(Mapping[UUID, SegmentRecord]):
    """uuid -> segment. Immutable.

    Attributes:
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
        for number, row in self._places(uuid):
            return self.sealed[number].record(row)
        raise KeyError(uuid)

    def __contains__(self, uuid: object) -> bool:
        return isinstance(uuid, UUID) and (uuid in self.tail or any(True for _ in self._places(uuid)))

    def sealed_uuids(self, high: Words, low: Words) -> NDArray[np.bool_]:
        """Which of many uuids are segments outside of the tail."""
        found = np.zeros(len(high), dtype=bool)
        for part in self.sealed:
            found |= part.has(high, low)
        return found

    def _places(self, uuid: UUID) -> Iterator[tuple[int, int]]:
        """Where the segment is sealed: number of the part, and row."""
        for number, part in enumerate(self.sealed):
            row = part.row_of(uuid)
            if row is not None and not part.is_dead(row):
                yield number, row

    def __iter__(self) -> Iterator[UUID]:
        return (record.uuid for record in self.in_order())

    def in_order(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Segments with a position in ``first`` .. ``last``, in the stream's order, whatever their status."""
        rows = [part.live_rows(*part.bounds(first, last)) for part in self.sealed]
        return SegmentSlice.merged(self.sealed, rows, self._tail_between(first, last))

    def offloaded(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Readable segments with a position in ``first`` .. ``last``, in the stream's order."""
        rows = [part.rows_with(OFFLOADED, *part.bounds(first, last)) for part in self.sealed]
        tail = [r for r in self._tail_between(first, last) if r.status is SegmentStatus.OFFLOADED]
        return SegmentSlice.merged(self.sealed, rows, tail)

    def retired(self) -> SegmentSlice:
        """Segments that are to be deleted, in the stream's order."""
        rows = [part.rows_with(RETIRED) for part in self.sealed]
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
        return min([*begins, *itertools.islice(tail, 1)], default=None)

    def _tail_between(self, first: Position | None, last: Position | None) -> list[SegmentRecord]:
        stop = len(self.order) if last is None else bisect_right(self.order, last, key=itemgetter(0))
        found = (self.tail[uuid] for _, uuid in self.order[:stop])
        return [r for r in found if first is None or r.end is None or r.end >= first]


class SegmentDraft(SegmentTable):
    """A mutable table, for building one record. Only lookups by uuid and ``overlapping`` see its changes."""

    __slots__ = ("_dead",)

    tail: dict[UUID, SegmentRecord]

    def __init__(self, base: SegmentTable) -> None:
        super().__init__(base.sealed, dict(base.tail), list(base.order))
        self._dead: list[set[int]] = [set() for _ in base.sealed]

    def table(self) -> SegmentTable:
        """The current table as an immutable value."""
        sealed = tuple(
            replace(part, dead=np.union1d(part.dead, list(rows)).astype(np.int64)) if rows else part
            for part, rows in zip(self.sealed, self._dead, strict=True)
        )
        return SegmentTable(tuple(part for part in sealed if len(part)), dict(self.tail), list(self.order))

    def put(self, record: SegmentRecord) -> None:
        """Adds a segment or replaces the one of that uuid, which has the same begin."""
        if record.uuid not in self.tail:
            self._drop_sealed(record.uuid)
            insort(self.order, (record.begin, record.uuid))
        self.tail[record.uuid] = record

    def drop(self, uuid: UUID) -> None:
        record = self.tail.pop(uuid, None)
        if record is None:
            self._drop_sealed(uuid)
        else:
            del self.order[bisect_left(self.order, (record.begin, uuid))]

    def overlapping(self, begin: Position, end: Position | None, *, but: UUID | None = None) -> SegmentRecord | None:
        """A segment that shares a position with ``begin`` .. ``end``; a range without an end is unbounded."""
        at = len(self.order) if end is None else bisect_right(self.order, end, key=itemgetter(0))
        # Ranges are disjoint, so of those that begin before ``end`` the last one reaches furthest.
        near = [self.tail[uuid] for _, uuid in self.order[max(at - 2, 0) : at] if uuid != but]
        if near and (near[-1].end is None or near[-1].end >= begin):
            return near[-1]
        for part, dead in zip(self.sealed, self._dead, strict=True):
            start, stop = part.bounds(begin, end)
            for row in range(start, stop):
                if not part.is_dead(row) and row not in dead and part.end(row) >= begin:
                    record = part.record(row)
                    if record.uuid != but:
                        return record
        return None

    def _places(self, uuid: UUID) -> Iterator[tuple[int, int]]:
        return (place for place in super()._places(uuid) if place[1] not in self._dead[place[0]])

    def _drop_sealed(self, uuid: UUID) -> None:
        for number, row in self._places(uuid):
            self._dead[number].add(row)
