"""Collected messages -> one Arrow record batch of the wanted columns.

Owns how a column is made of what entries and messages say. Must never make a column that nobody wants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.pulsar.columns import (
    COLUMNS,
    TIME_MS_MAX,
    binary_column,
    entry_column,
    key_column,
    properties_column,
    schema_of,
    time_column,
)
from formats.pulsar.frame import signed64
from formats.pulsar.rows import NOT_IN_A_BATCH, NOTHING, MessageRows

__all__ = ["record_batch"]


def record_batch(rows: MessageRows, names: Sequence[str]) -> pa.RecordBatch:
    """All of ``rows`` as one record batch of the columns ``names``."""
    table = _Table(rows)
    return pa.RecordBatch.from_arrays([table.column(name) for name in names], schema=schema_of(names))


class _Table:
    """Makes the columns of collected rows; ``owners`` is each row's piece."""

    def __init__(self, rows: MessageRows) -> None:
        self.rows = rows
        self.counts = np.array(rows.counts, dtype=np.int64)
        self.firsts = np.array(rows.firsts, dtype=np.int64)
        self.is_batch = self.firsts != NOT_IN_A_BATCH
        self.owners = np.repeat(np.arange(len(self.counts)), self.counts)
        self.unread: NDArray[np.bool_] | None = None
        if rows.errors and rows.singles:
            unread = np.array([single is NOTHING for single in rows.singles], dtype=bool)
            self.unread = unread if unread.any() else None

    def column(self, name: str) -> pa.Array:
        make = _MAKERS.get(name)
        if make is not None:
            return make(self)
        return self.expanded(entry_column(name, self.rows.metadata, self.rows.brokers))

    def expanded(self, of_entries: pa.Array) -> pa.Array:
        """A value per entry -> a value per row."""
        return of_entries if len(of_entries) == len(self.owners) else of_entries.take(pa.array(self.owners))

    @functools.cached_property
    def batch_indices(self) -> NDArray[np.int64]:
        before = np.cumsum(self.counts) - self.counts
        indices = np.arange(self.rows.count, dtype=np.int64) + (self.firsts - before)[self.owners]
        return np.where(self.is_batch[self.owners], indices, NOT_IN_A_BATCH)

    @functools.cached_property
    def event_times_ms(self) -> NDArray[np.uint64]:
        """Of each message, else of its batch; 0 where there is none."""
        own = np.array([single.event_time for single in self.rows.singles], dtype=np.uint64)
        return np.where(own == 0, self.of_entries("event_time")[self.owners], own)

    @functools.cached_property
    def keys(self) -> tuple[pa.Array, pa.Array]:
        singles = self.rows.singles
        keys = [single.partition_key or ("" if single.HasField("partition_key") else None) for single in singles]
        return key_column(keys, [single.partition_key_b64_encoded for single in singles], self.unread)

    @functools.cached_property
    def compacted_out(self) -> list[bool]:
        """Only messages of a batch can be: the field isn't one of an entry's metadata."""
        is_batch = self.is_batch[self.owners].tolist()
        return [inside and single.compacted_out for single, inside in zip(self.rows.singles, is_batch, strict=True)]

    def of_entries(self, name: str) -> NDArray[np.uint64]:
        """A numeric field of each entry's metadata, 0 where that couldn't be read."""
        return np.array([0 if m is None else getattr(m, name) for m in self.rows.metadata], dtype=np.uint64)

    def masked(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """A value per row, null in rows that couldn't be read."""
        return pa.array(values, kind) if self.unread is None else pa.array(values, kind, mask=self.unread)


def _ledger_id(table: _Table) -> pa.Array:
    return pa.array(np.full(table.rows.count, table.rows.ledger_id, dtype=np.int64))


def _entry_id(table: _Table) -> pa.Array:
    return pa.array(np.array(table.rows.entry_ids, dtype=np.int64)[table.owners])


def _batch_index(table: _Table) -> pa.Array:
    return pa.array(table.batch_indices.astype(np.int32))


def _broker_index(table: _Table) -> pa.Array:
    """The broker counts messages, and an entry has the number of its last one."""
    brokers = table.rows.brokers
    known = np.array([broker is not None and broker.HasField("index") for broker in brokers], dtype=bool)
    last = np.array([broker.index if there else 0 for broker, there in zip(brokers, known, strict=True)], np.uint64)
    is_batch = table.is_batch
    sizes = [m.num_messages_in_batch if batch else 0 for m, batch in zip(table.rows.metadata, is_batch, strict=True)]
    sizes_of_rows = np.array(sizes, dtype=np.int64)[table.owners]
    behind = np.where(is_batch[table.owners], sizes_of_rows - 1 - table.batch_indices, 0)
    return pa.array(last.view(np.int64)[table.owners] - behind, mask=~known[table.owners])


def _publish_time(table: _Table) -> pa.Array:
    return table.expanded(time_column(table.of_entries("publish_time")))


def _event_time(table: _Table) -> pa.Array:
    return time_column(table.event_times_ms)


def _sequence_id(table: _Table) -> pa.Array:
    """Of each message, else of its batch, as in Pulsar."""
    singles, metadata = table.rows.singles, table.rows.metadata
    ids = [single.sequence_id for single in singles]
    for row, number in enumerate(ids):
        if number == 0 and not singles[row].HasField("sequence_id") and singles[row] is not NOTHING:
            ids[row] = metadata[table.owners[row]].sequence_id
    if ids and max(ids) >= 2**63:
        ids = [signed64(number) for number in ids]
    return table.masked(ids, pa.int64())


def _ordering_key(table: _Table) -> pa.Array:
    singles = table.rows.singles
    keys = [single.ordering_key or (b"" if single.HasField("ordering_key") else None) for single in singles]
    return pa.array(keys, pa.binary())


def _null_key(table: _Table) -> pa.Array:
    return table.masked([single.null_partition_key for single in table.rows.singles], pa.bool_())


def _compacted_out(table: _Table) -> pa.Array:
    return table.masked(table.compacted_out, pa.bool_())


def _properties(table: _Table) -> pa.Array:
    return properties_column(table.rows.singles, table.unread)


def _value(table: _Table) -> pa.Array:
    rows = table.rows
    is_null = np.array([single.null_value for single in rows.singles], dtype=bool)
    is_null |= np.array(table.compacted_out, dtype=bool)
    if table.unread is not None:
        is_null |= table.unread
    data = b"".join(rows.payloads)
    return binary_column(data, np.array(rows.starts, dtype=np.int64), np.array(rows.ends, dtype=np.int64), is_null)


def _error(table: _Table) -> pa.Array:
    """Why a row couldn't be read, or which of its times isn't one."""
    reasons = dict(table.rows.errors)
    beyond = {
        "publish_time": table.of_entries("publish_time")[table.owners],
        "event_time": table.event_times_ms,
    }
    for name, times_ms in beyond.items():
        for row in np.flatnonzero(times_ms > TIME_MS_MAX).tolist():
            reasons.setdefault(row, f"{name} {times_ms[row]} ms is beyond the year 9999")
    if not reasons:
        return pa.nulls(table.rows.count, pa.string())
    return pa.array([reasons.get(row) for row in range(table.rows.count)], pa.string())


_MAKERS: Final[dict[str, Callable[[_Table], pa.Array]]] = {
    "ledger_id": _ledger_id,
    "entry_id": _entry_id,
    "batch_index": _batch_index,
    "broker_index": _broker_index,
    "publish_time": _publish_time,
    "key": lambda table: table.keys[0],
    "key_is_base64": lambda table: table.keys[1],
    "null_key": _null_key,
    "ordering_key": _ordering_key,
    "event_time": _event_time,
    "sequence_id": _sequence_id,
    "properties": _properties,
    "value": _value,
    "compacted_out": _compacted_out,
    "error": _error,
}
assert set(_MAKERS) <= set(COLUMNS)
