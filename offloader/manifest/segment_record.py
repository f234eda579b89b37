"""One segment as the manifest knows it, and its way into columns and back.

Owns ``SegmentRecord``. Must never build one where columns are enough: a stream may have a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import AssignedSegment
from formats.checkpoint_columns import NUMBER_COLUMNS, PLAIN_SPAN_COLUMNS, SPAN_NUMBERS, SegmentColumns
from formats.entries import Position
from formats.keys import data_key, index_key
from formats.segment import Layout, LedgerSpan, SegmentSummary

__all__ = [
    "AT_ROOT",
    "OFFLOADED",
    "RETIRED",
    "SegmentRecord",
    "SegmentStatus",
    "SegmentSums",
    "assigned_record",
    "columns_of",
    "is_at_root",
    "record_of",
    "records_of",
]

_HALF = (1 << 64) - 1

#: Added to the driver metadata of a segment whose objects lie at the store's root, where Pulsar puts them, and not
#: below the stream's name.
AT_ROOT: Mapping[str, str] = {"objectKeys": "root"}


def is_at_root(driver: Mapping[str, str]) -> bool:
    """Whether driver metadata says that the objects lie at the store's root."""
    return all(driver.get(name) == value for name, value in AT_ROOT.items())


class SegmentStatus(Enum):
    """Where a segment is in its life. Failed and purged segments leave the manifest."""

    ASSIGNED = "assigned"
    OFFLOADED = "offloaded"
    RETIRED = "retired"


#: Numbers of the statuses that segments in columns have.
_STATUS_NUMBERS = {SegmentStatus.OFFLOADED: 1, SegmentStatus.RETIRED: 2}
_STATUSES = {number: status for status, number in _STATUS_NUMBERS.items()}
OFFLOADED = _STATUS_NUMBERS[SegmentStatus.OFFLOADED]
_LAYOUTS = {int(layout): layout for layout in Layout}
RETIRED = _STATUS_NUMBERS[SegmentStatus.RETIRED]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One offload segment as the manifest knows it.

    Attributes:
        uuid: its name, and its objects' key.
        status: assigned, offloaded or retired.
        epoch: the writer generation that assigned it; nobody else ever writes under this uuid.
        layout: 1 (one ledger per object) or 2.
        begin: first position, never changed.
        end: last position; ``None`` while a live segment is being filled.
        assigned_ms, offloaded_ms: ms since 1970 UTC.
        driver: where the objects are (``managedLedgerOffloadDriver``, ``bucket``, ``region``, ``serviceEndpoint``).
        summary: lengths, checksums, counts; from ``offloaded`` on.
        owned: whether we may delete its objects (adopted ones: only when ownership was taken).
        retire_record: the record that retired it.
    """

    uuid: UUID
    status: SegmentStatus
    epoch: int
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    offloaded_ms: int | None
    driver: Mapping[str, str]
    summary: SegmentSummary | None
    owned: bool = True
    retire_record: int | None = None

    @property
    def v1_ledger_id(self) -> int | None:
        """The ledger id in the keys of a V1 segment; ``None`` for V2."""
        return self.begin.ledger_id if self.layout == 1 else None

    def object_keys(self, stream: str) -> tuple[str, str]:
        """Keys of the data object and of the index object. The only right way to find the objects of a record: adopted
        ones aren't where our own would be."""
        folder = "" if is_at_root(self.driver) else stream
        return data_key(folder, self.uuid, self.v1_ledger_id), index_key(folder, self.uuid, self.v1_ledger_id)


class SegmentSums(NamedTuple):
    """Sums over some offloaded segments."""

    segments: int = 0
    entries: int = 0
    payload_bytes: int = 0
    object_bytes: int = 0

    def plus(self, record: SegmentRecord, sign: int) -> SegmentSums:
        """With (``sign`` 1) or without (-1) one segment."""
        summary = record.summary
        assert summary is not None, "only offloaded segments are counted"
        return SegmentSums(
            self.segments + sign,
            self.entries + sign * summary.entries,
            self.payload_bytes + sign * summary.payload_bytes,
            self.object_bytes + sign * (summary.data_bytes + summary.index_bytes),
        )


def record_of(columns: SegmentColumns, row: int) -> SegmentRecord:
    """The segment in one row."""
    value: dict[str, int] = {name: getattr(columns, name).item(row) for name in NUMBER_COLUMNS}
    uuid = columns.uuid_high.item(row) << 64 | columns.uuid_low.item(row)
    return _record(uuid, value, columns.drivers, columns.spans_of(row))


def records_of(columns: SegmentColumns, rows: NDArray[np.int32]) -> list[SegmentRecord]:
    """The segments in some rows, in their order; of many a third of the work of one after the other."""
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
    return SegmentRecord(
        uuid=UUID(int=uuid),
        status=_STATUSES[value["status"]],
        epoch=value["epoch"],
        layout=value["layout"],
        begin=begin,
        end=end,
        assigned_ms=value["assigned_ms"],
        offloaded_ms=value["offloaded_ms"],
        driver=drivers[value["driver"]],
        summary=SegmentSummary(
            layout=_LAYOUTS[value["layout"]],
            begin=begin,
            end=end,
            data_bytes=value["data_bytes"],
            index_bytes=value["index_bytes"],
            data_crc32c=value["data_crc32c"],
            index_crc32c=value["index_crc32c"],
            entries=value["entries"],
            payload_bytes=value["payload_bytes"],
            publish_time_min_ms=value["publish_time_min_ms"],
            publish_time_max_ms=value["publish_time_max_ms"],
            blocks=value["blocks"],
            compressed=bool(value["compressed"]),
            ledgers=tuple(LedgerSpan(*numbers) for numbers in spans),
        ),
        owned=bool(value["owned"]),
        retire_record=None if value["retire_record"] < 0 else value["retire_record"],
    )


def columns_of(records: Iterable[SegmentRecord]) -> SegmentColumns:
    """Offloaded and retired segments, which are in the order of their begins, in columns."""
    taken = list(records)
    drivers: list[Mapping[str, str]] = []
    rows: list[dict[str, int]] = []
    span_rows: list[int] = []
    span_counts: list[int] = []
    spans: list[list[int]] = []
    for row, record in enumerate(taken):
        if record.driver not in drivers:
            drivers.append(record.driver)
        rows.append(_numbers(record, drivers.index(record.driver)))
        own = _spans(record)
        if own is not None:
            span_rows.append(row)
            span_counts.append(len(own))
            spans += own
    halves = [(record.uuid.int >> 64, record.uuid.int & _HALF) for record in taken]
    numbers: dict[str, Any] = {
        name: np.array([row[name] for row in rows], dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()
    }
    return SegmentColumns(
        uuid_high=np.array([high for high, _ in halves], dtype=np.uint64),
        uuid_low=np.array([low for _, low in halves], dtype=np.uint64),
        **numbers,
        span_rows=np.array(span_rows, dtype=np.int64),
        span_offsets=np.cumsum([0, *span_counts], dtype=np.int64),
        spans=np.array(spans, dtype=np.int64).reshape(-1, SPAN_NUMBERS),
        drivers=tuple(drivers),
    )


def _numbers(record: SegmentRecord, driver: int) -> dict[str, int]:
    summary, end = record.summary, record.end
    assert summary is not None, "an assigned segment isn't kept in columns"
    assert end is not None, "an offloaded segment has an end"
    return {
        "status": _STATUS_NUMBERS[record.status],
        "layout": record.layout,
        "owned": record.owned,
        "compressed": summary.compressed,
        "driver": driver,
        "epoch": record.epoch,
        "retire_record": -1 if record.retire_record is None else record.retire_record,
        "begin_ledger_id": record.begin.ledger_id,
        "begin_entry_id": record.begin.entry_id,
        "end_ledger_id": end.ledger_id,
        "end_entry_id": end.entry_id,
        "assigned_ms": record.assigned_ms,
        "offloaded_ms": record.assigned_ms if record.offloaded_ms is None else record.offloaded_ms,
        "data_bytes": summary.data_bytes,
        "index_bytes": summary.index_bytes,
        "data_crc32c": summary.data_crc32c,
        "index_crc32c": summary.index_crc32c,
        "entries": summary.entries,
        "payload_bytes": summary.payload_bytes,
        "publish_time_min_ms": summary.publish_time_min_ms,
        "publish_time_max_ms": summary.publish_time_max_ms,
        "blocks": summary.blocks,
    }


def _spans(record: SegmentRecord) -> list[list[int]] | None:
    """The ledger spans, ``None`` when the other columns say the same."""
    summary = record.summary
    assert summary is not None
    found = [[s.ledger_id, s.first_entry_id, s.last_entry_id, s.entries, s.payload_bytes] for s in summary.ledgers]
    begin, end = record.begin, summary.end
    plain = [begin.ledger_id, begin.entry_id, end.entry_id, summary.entries, summary.payload_bytes]
    return None if found == [plain] else found


def assigned_record(assigned: AssignedSegment) -> SegmentRecord:
    """The record of a segment that a checkpoint has as assigned."""
    return SegmentRecord(
        uuid=assigned.uuid,
        status=SegmentStatus.ASSIGNED,
        epoch=assigned.epoch,
        layout=assigned.layout,
        begin=assigned.begin,
        end=assigned.end,
        assigned_ms=assigned.assigned_ms,
        offloaded_ms=None,
        driver=assigned.driver,
        summary=None,
    )
