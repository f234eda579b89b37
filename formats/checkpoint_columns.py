"""Offload segments in columns, as a checkpoint keeps them.

Owns which columns there are and how wide they are in memory. Must never hold an object per segment, nor decide which
segments belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUMBER_COLUMNS", "PLAIN_SPAN_COLUMNS", "SPAN_NUMBERS", "Numbers", "SegmentColumns", "narrow_dtype"]

#: Numbers of one ledger span: ledger id, first and last entry id, entries, payload bytes.
SPAN_NUMBERS = 5
#: The same of a segment whose one span is all of it: these columns say them.
PLAIN_SPAN_COLUMNS = ("begin_ledger_id", "begin_entry_id", "end_entry_id", "entries", "payload_bytes")

Numbers = NDArray[Any]

#: Columns of one number per segment. In memory they are as narrow as their values allow.
NUMBER_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "status": np.dtype(np.uint8),
    "layout": np.dtype(np.uint8),
    "owned": np.dtype(np.uint8),
    "compressed": np.dtype(np.uint8),
    "driver": np.dtype(np.int32),
    "epoch": np.dtype(np.int64),
    "retire_record": np.dtype(np.int64),
    "begin_ledger_id": np.dtype(np.int64),
    "begin_entry_id": np.dtype(np.int64),
    "end_ledger_id": np.dtype(np.int64),
    "end_entry_id": np.dtype(np.int64),
    "assigned_ms": np.dtype(np.int64),
    "offloaded_ms": np.dtype(np.int64),
    "data_bytes": np.dtype(np.int64),
    "index_bytes": np.dtype(np.int64),
    "data_crc32c": np.dtype(np.uint32),
    "index_crc32c": np.dtype(np.uint32),
    "entries": np.dtype(np.int64),
    "payload_bytes": np.dtype(np.int64),
    "publish_time_min_ms": np.dtype(np.int64),
    "publish_time_max_ms": np.dtype(np.int64),
    "blocks": np.dtype(np.int64),
}
_NARROW = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32"))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SegmentColumns:
    """n offloaded or retired segments, ascending by begin, their ranges disjoint; every column has shape (n,).

    Attributes:
        uuid_high, uuid_low: the two halves of the uuids, uint64.
        status: 1 offloaded, 2 retired.
        layout: 1 or 2.
        owned, compressed: 0 or 1.
        driver: index into ``drivers``.
        epoch: which assigned it.
        retire_record: which retired it, -1 none.
        begin_ledger_id, begin_entry_id, end_ledger_id, end_entry_id: the range.
        assigned_ms, offloaded_ms: ms since 1970 UTC.
        data_bytes, index_bytes, data_crc32c, index_crc32c: the two objects.
        entries, payload_bytes, blocks: what is in them.
        publish_time_min_ms, publish_time_max_ms: -1 where none is known.
        span_rows: int64, ascending: rows whose ledgers can't be told from the other columns.
        span_offsets: int64, shape (len(span_rows) + 1,): where the spans of each such row begin in ``spans``.
        spans: int64, shape (m, 5): ledger id, first and last entry id, entries, payload bytes.
        drivers: where the objects are.
    """

    uuid_high: Numbers
    uuid_low: Numbers
    status: Numbers
    layout: Numbers
    owned: Numbers
    compressed: Numbers
    driver: Numbers
    epoch: Numbers
    retire_record: Numbers
    begin_ledger_id: Numbers
    begin_entry_id: Numbers
    end_ledger_id: Numbers
    end_entry_id: Numbers
    assigned_ms: Numbers
    offloaded_ms: Numbers
    data_bytes: Numbers
    index_bytes: Numbers
    data_crc32c: Numbers
    index_crc32c: Numbers
    entries: Numbers
    payload_bytes: Numbers
    publish_time_min_ms: Numbers
    publish_time_max_ms: Numbers
    blocks: Numbers
    span_rows: Numbers
    span_offsets: Numbers
    spans: Numbers
    drivers: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.begin_ledger_id)

    def spans_of(self, row: int) -> list[list[int]]:
        """The ledger spans of one segment, each as five numbers."""
        at = int(np.searchsorted(self.span_rows, row))
        if at < len(self.span_rows) and self.span_rows[at] == row:
            found = self.spans[int(self.span_offsets[at]) : int(self.span_offsets[at + 1])].tolist()
            return cast("list[list[int]]", found)
        columns = [getattr(self, name) for name in PLAIN_SPAN_COLUMNS]
        return [[int(column[row]) for column in columns]]

    def ledger_spans(self, rows: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ledger spans of some rows, in their order: the spans, int64, shape (m, 5), and how many each row has."""
        at = np.searchsorted(self.span_rows, rows)
        has_spans = np.append(self.span_rows, -1)[at] == rows
        counts = np.ones(len(rows), np.int64)
        starts = self.span_offsets[at[has_spans]]
        counts[has_spans] = self.span_offsets[at[has_spans] + 1] - starts
        firsts = np.cumsum(counts) - counts
        found = np.empty((int(counts.sum()), SPAN_NUMBERS), np.int64)
        plain = rows[~has_spans]
        columns = [getattr(self, name) for name in PLAIN_SPAN_COLUMNS]
        found[firsts[~has_spans]] = np.stack([column[plain].astype(np.int64) for column in columns], axis=1)
        own = counts[has_spans]
        within = np.arange(int(own.sum())) - np.repeat(np.cumsum(own) - own, own)
        found[np.repeat(firsts[has_spans], own) + within] = self.spans[np.repeat(starts, own) + within]
        return found, counts

    def take(self, rows: Numbers) -> SegmentColumns:
        """Those rows, in that order."""
        at = np.searchsorted(self.span_rows, rows)
        padded = np.append(self.span_rows, -1)
        has_spans = np.flatnonzero(padded[at] == rows)
        starts, stops = self.span_offsets[at[has_spans]], self.span_offsets[at[has_spans] + 1]
        pieces = [self.spans[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return SegmentColumns(
            uuid_high=self.uuid_high[rows],
            uuid_low=self.uuid_low[rows],
            **{name: _narrowed(getattr(self, name)[rows]) for name in NUMBER_COLUMNS},
            span_rows=has_spans.astype(np.int64),
            span_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts, dtype=np.int64)]),
            spans=np.concatenate([np.empty((0, SPAN_NUMBERS), np.int64), *pieces]),
            drivers=self.drivers,
        )

    def narrowed(self) -> SegmentColumns:
        """The same values in as few bytes as they need."""
        values = {name: _narrowed(getattr(self, name)) for name in NUMBER_COLUMNS}
        return replace(self, **values)  # type: ignore[arg-type]

    @classmethod
    def concatenated(cls, parts: Sequence[SegmentColumns]) -> SegmentColumns:
        """The rows of ``parts`` in the order of their begins."""
        drivers: list[Mapping[str, str]] = []
        numbers = {name: [getattr(part, name) for part in parts] for name in NUMBER_COLUMNS}
        for position, part in enumerate(parts):
            drivers += [driver for driver in part.drivers if driver not in drivers]
            renumbered = np.array([drivers.index(driver) for driver in part.drivers] or [0], dtype=np.int32)
            numbers["driver"][position] = renumbered[part.driver]
        first_row = np.cumsum([0, *map(len, parts)])
        first_span = np.cumsum([0, *(len(part.spans) for part in parts)])
        joined = cls(
            uuid_high=np.concatenate([part.uuid_high for part in parts]),
            uuid_low=np.concatenate([part.uuid_low for part in parts]),
            **{name: np.concatenate(columns) for name, columns in numbers.items()},
            span_rows=np.concatenate([part.span_rows + first_row[i] for i, part in enumerate(parts)]),
            span_offsets=np.concatenate(
                [np.zeros(1, np.int64), *(part.span_offsets[1:] + first_span[i] for i, part in enumerate(parts))]
            ),
            spans=np.concatenate([part.spans for part in parts]),
            drivers=tuple(drivers),
        )
        order = np.lexsort((joined.begin_entry_id, joined.begin_ledger_id))
        if (order[1:] > order[:-1]).all():
            return joined.narrowed()
        return joined.take(order)


def narrow_dtype(low: int, high: int, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The smallest unsigned type that holds ``low`` to ``high``, or ``dtype`` where none is smaller."""
    for narrow in _NARROW:
        if low >= 0 and high < 1 << 8 * narrow.itemsize and narrow.itemsize < dtype.itemsize:
            return narrow
    return dtype


def _narrowed(values: Numbers) -> Numbers:
    if not len(values) or values.strides == (0,):
        return values
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.broadcast_to(values[:1].copy()[0], (len(values),))
    return values.astype(narrow_dtype(low, high, values.dtype), copy=False)
