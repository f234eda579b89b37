"""The Spark data source ``offloader``, and the contents that its driver produces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from formats.checkpoint import DELETED, HOT_RELEASED, LAST_UNKNOWN
from formats.entries import TIME_UNKNOWN_MS
from formats.manifest import encode_record
from offloader.errors import InvalidCall
from offloader.inspect.verify import check_fills, check_order, check_segments, find_unexpected
from offloader.manifest.load import kept_records
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Fetcher
from offloader.settings import ReadSettings
from offloader.spark.options import (
    US_PER_MS,
    Predicate,
    SourceOptions,
    ddl,
    microseconds,
    projection,
    require_fixed_start,
)
from offloader.spark.scan import pinned_states, plan_slices, read_slices
from offloader.spark.session import work_begins
from offloader.spark.stream import StreamingReader
from offloader.store.base import ObjectStore

#: Columns of a segment that its summary has under the same name.
_OF_SUMMARY = ("entries", "payload_bytes", "data_bytes", "index_bytes", "blocks", "compressed")

_Row = Mapping[str, object]


def segment_row(stream: str, record: SegmentRecord) -> _Row:
    """One segment; ``None`` for values unknown before it is offloaded. Times in microseconds since 1970 UTC."""
    summary, end = record.summary, record.end
    return {
        "stream": stream,
        "uuid": str(record.uuid),
        "status": record.status.value,
        "format": record.layout,
        "epoch": record.epoch,
        "first_ledger_id": record.begin.ledger_id,
        "first_entry_id": record.begin.entry_id,
        "last_ledger_id": end.ledger_id if end else None,
        "last_entry_id": end.entry_id if end else None,
        **{name: getattr(summary, name, None) for name in _OF_SUMMARY},
        "publish_time_min": _micros(summary.publish_time_min_ms if summary else None),
        "publish_time_max": _micros(summary.publish_time_max_ms if summary else None),
        "assigned_time": _micros(record.assigned_ms),
        "offloaded_time": _micros(record.offloaded_ms),
        "ledgers": [asdict(span) for span in summary.ledgers] if summary else [],
    }


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None or time_ms == TIME_UNKNOWN_MS else time_ms * US_PER_MS


def _ledgers(state: ManifestState, _: ObjectStore, __: ReadSettings) -> Iterator[_Row]:
    """Every ledger of a segment or of the source's facts, by id."""
    offloaded: dict[int, list[int]] = {}
    for record in state.offloaded():
        for span in record.summary.ledgers if record.summary else ():
            sums = offloaded.setdefault(span.ledger_id, [0, 0, 0, span.first_entry_id, span.last_entry_id])
            sums[0] += 1
            sums[1] += span.entries
            sums[2] += span.payload_bytes
            sums[3], sums[4] = min(sums[3], span.first_entry_id), max(sums[4], span.last_entry_id)
    facts = state.ledgers.merged()
    columns = facts.ledger_id.tolist(), facts.last_entry_id.tolist(), facts.flags.tolist()
    known = {ledger_id: (last, flags) for ledger_id, last, flags in zip(*columns, strict=True)}
    for ledger_id in sorted({*offloaded, *known}):
        last_entry_id, flags = known.get(ledger_id, (LAST_UNKNOWN, 0))
        segments, entries, payload_bytes, first, last = offloaded.get(ledger_id, (0, 0, 0, None, None))
        yield {
            "stream": state.stream,
            "ledger_id": ledger_id,
            "closed": last_entry_id != LAST_UNKNOWN,
            "closed_at_entry_id": None if last_entry_id == LAST_UNKNOWN else last_entry_id,
            "deleted": bool(flags & DELETED),
            "hot_released": bool(flags & HOT_RELEASED),
            "segments": segments,
            "entries": entries,
            "payload_bytes": payload_bytes,
            "first_entry_id": first,
            "last_entry_id": last,
        }


def _records(state: ManifestState, store: ObjectStore, _: ReadSettings) -> Iterator[_Row]:
    for record in kept_records(store, state):
        yield {
            "stream": state.stream,
            "incarnation": str(record.incarnation),
            "record_id": record.record_id,
            "time": _micros(record.time_ms),
            "epoch": record.epoch,
            "writer": record.writer.name,
            "edits": [edit.kind for edit in record.edits],
            "json": json.dumps(json.loads(encode_record(record)), separators=(",", ":")),
        }


def _anomalies(state: ManifestState, store: ObjectStore, settings: ReadSettings) -> Iterator[_Row]:
    checks = check_segments(Fetcher(store, settings), state, deep=False)
    found = chain.from_iterable(check.findings for check in checks)
    fills = check_fills(store, state, deep=False)
    for finding in chain(check_order(state), found, fills, find_unexpected(store, state)):
        yield finding.as_row()


#: content -> the rows of one stream.
DRIVER_CONTENTS: Mapping[str, Callable[[ManifestState, ObjectStore, ReadSettings], Iterator[_Row]]] = {
    # By position, including assigned and retired ones.
    "segments": lambda state, *_: (segment_row(state.stream, record) for record in state.segments.in_order()),
    "ledgers": _ledgers,
    "manifest": _records,
    "anomalies": _anomalies,
}


class OffloaderReader(DataSourceReader):
    """Reads without pushed filters. Pickled to the executors: holds options and columns only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.projection = projection(schema.fields, options.content)
        self.predicates: tuple[Predicate, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the query, once: every stream's manifest is pinned here."""
        work_begins()
        store = self.options.open_store()
        if self.options.content in DRIVER_CONTENTS:
            states = pinned_states(self.options, self.predicates, store)
            settings = ReadSettings(relocate=self.options.relocate)
            rows = [row for state in states for row in DRIVER_CONTENTS[self.options.content](state, store, settings)]
            schema = self.projection.schema
            columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
            return [InputPartition(pa.Table.from_arrays(columns, schema=schema).to_batches())]
        slices = plan_slices(self.options, self.predicates, self.projection.needs, store)
        return [InputPartition(each) for each in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        value = partition.value
        if value is None:  # Spark makes one such partition if there is none
            return iter(())
        if self.options.content in DRIVER_CONTENTS:
            return iter(value)
        work_begins()
        return read_slices(value, self.options, self.predicates, self.projection, self.options.open_store())


class PushingReader(OffloaderReader):
    """Reads with pushed filters, which Spark allows only where its setting is on.

    They skip blocks only with the option ``pruneByFilters``, and that is safe only for a data frame that takes part in
    one query, once. Spark (4.1 to 4.3) keeps the partitions of the last filtered query with the *relation*. It reads a
    later query without filters from them, and both sides of a union or a self-join: with pruned partitions those would
    silently lose rows. ``startPosition``, ``endPosition``, ``startTime``, ``endTime`` and ``stream`` skip the same
    blocks, belong to the relation, and are always safe.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Records filters where that is safe, and leaves all of them to Spark: statistics exclude blocks, not rows."""
        if self.options.prune_by_filters:
            known = (p for p in map(_predicate, filters) if p is not None)
            # A message's own publish time may differ from its entry's, which the statistics have.
            own_time = self.options.content == "messages"
            self.predicates = tuple(p for p in known if not (own_time and p.column == "publish_time"))
        return filters


class PlainOffloaderDataSource(DataSource):
    """The data source without filter pushdown: works with all of Spark's settings."""

    pushes_filters = False

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        work_begins()

    @classmethod
    def name(cls) -> str:
        return "offloader"

    def schema(self) -> str:
        options = SourceOptions.of(self.options)
        return ddl(options.content, options.columns)

    def reader(self, schema: StructType) -> OffloaderReader:
        options = SourceOptions.of(self.options)
        options.require_batch()
        if options.prune_by_filters and not self.pushes_filters:
            raise InvalidCall(
                "option pruneByFilters needs filters that are pushed", hint="call offloader.spark.register(spark) first"
            )
        return (PushingReader if self.pushes_filters else OffloaderReader)(options, schema)

    def streamReader(self, schema: StructType) -> StreamingReader:  # noqa: N802 - Spark's name
        require_fixed_start(self.options)
        return StreamingReader(SourceOptions.of(self.options), schema)


class OffloaderDataSource(PlainOffloaderDataSource):
    """The data source with filter pushdown; ``offloader.spark.register`` installs it."""

    pushes_filters = True


_OPERATIONS: dict[type[Filter], tuple[str, str]] = {
    # Operation of a filter, and its negation for non-null values.
    EqualTo: ("eq", "ne"),
    In: ("in", "not_in"),
    LessThan: ("lt", "ge"),
    LessThanOrEqual: ("le", "gt"),
    GreaterThan: ("gt", "le"),
    GreaterThanOrEqual: ("ge", "lt"),
    IsNull: ("null", "not_null"),
    IsNotNull: ("not_null", "null"),
    StringStartsWith: ("prefix", ""),
}


def _predicate(given: Filter) -> Predicate | None:
    """The filter as a value; ``None`` when it can't exclude anything."""
    negated = isinstance(given, Not)
    inner: Any = given.child if isinstance(given, Not) else given
    names = _OPERATIONS.get(type(inner))
    operation = "" if names is None else names[negated]
    if not operation or len(inner.attribute) != 1:
        return None
    column = inner.attribute[0]
    if operation in ("null", "not_null"):
        return Predicate(column, operation)
    values = inner.value if isinstance(inner, In) else (inner.value,)
    # A comparison with null is never true, so a null in a list has no effect.
    known = [_value(column, value) for value in values if value is not None]
    if not known or any(value is None for value in known):
        return None
    return Predicate(column, operation, tuple(known))


def _value(column: str, value: object) -> str | int | None:
    """A literal for ``Predicate``; ``None`` if its type doesn't fit the column."""
    match column, value:
        case "stream", str():
            return value
        case "ledger_id" | "entry_id", int() if not isinstance(value, bool):
            return value
        case "publish_time", datetime():
            return microseconds(value)
        case _:
            return None
