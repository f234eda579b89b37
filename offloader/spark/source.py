"""The Spark data source ``offloader``, and the contents that its driver produces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from formats.checkpoint import DELETED, HOT_RELEASED, LAST_UNKNOWN
from formats.entries import TIME_UNKNOWN_MS
from formats.manifest import encode_record
from formats.summary import LedgerSpan
from offloader.errors import InvalidCallError, OffloaderError, UnsupportedError
from offloader.manifest.failed_segments import failed_segments
from offloader.manifest.load import kept_records
from offloader.manifest.names import parts_of
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Fetcher
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.spark.frames import FACTS
from offloader.spark.options import (
    US_PER_MS,
    SourceOptions,
    arrow_schema,
    column_names,
    ddl,
    is_option,
    projection,
    require_fixed_start,
)
from offloader.spark.scan import facts_of, pinned_states, plan_slices, read_slices
from offloader.spark.session import work_begins
from offloader.store.base import ObjectStore
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN

if TYPE_CHECKING:
    from offloader.retention.subscribers import StreamRetention
    from offloader.spark.stream import StreamingReader

#: Columns of a segment that its summary has under the same name.
_OF_SUMMARY = ("entries", "payload_bytes", "data_bytes", "index_bytes", "blocks", "compressed")

_Row = Mapping[str, object]


def _segments(state: ManifestState, store: ObjectStore, options: SourceOptions) -> Iterator[_Row]:
    """By position, including assigned and retired ones; then those that failed."""
    yield from (segment_row(state.stream, record) for record in state.segments.in_order())
    for record, failed_ms, reason in failed_segments(store, state) if options.failed_segments else ():
        yield {**segment_row(state.stream, record), "failed_time": _micros(failed_ms), "reason": reason}


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
        "failed_time": None,
        "reason": None,
    }


def _micros(time_ms: int | None) -> int | None:
    if time_ms is None or time_ms == TIME_UNKNOWN_MS or not TABLE_TIME_MS_MIN <= time_ms <= TABLE_TIME_MS_MAX:
        return None
    return time_ms * US_PER_MS


def _ledgers(state: ManifestState, _: ObjectStore, __: SourceOptions) -> Iterator[_Row]:
    """Every ledger of a segment or of the source's facts, by id."""
    offloaded: dict[int, list[LedgerSpan]] = {}
    for span in chain.from_iterable(record.spans for record in state.offloaded()):
        offloaded.setdefault(span.ledger_id, []).append(span)
    facts = state.ledgers.merged()
    columns = facts.ledger_id.tolist(), facts.last_entry_id.tolist(), facts.flags.tolist()
    known = {ledger_id: (last, flags) for ledger_id, last, flags in zip(*columns, strict=True)}
    for ledger_id in sorted({*offloaded, *known}):
        last_entry_id, flags = known.get(ledger_id, (LAST_UNKNOWN, 0))
        spans = offloaded.get(ledger_id, [])
        yield {
            "stream": state.stream,
            "ledger_id": ledger_id,
            "closed": last_entry_id != LAST_UNKNOWN,
            "closed_at_entry_id": None if last_entry_id == LAST_UNKNOWN else last_entry_id,
            "deleted": bool(flags & DELETED),
            "hot_released": bool(flags & HOT_RELEASED),
            "segments": len(spans),
            "entries": sum(span.entries for span in spans),
            "payload_bytes": sum(span.payload_bytes for span in spans),
            "first_entry_id": min((span.first_entry_id for span in spans), default=None),
            "last_entry_id": max((span.last_entry_id for span in spans), default=None),
        }


def _records(state: ManifestState, store: ObjectStore, _: SourceOptions) -> Iterator[_Row]:
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


def _anomalies(state: ManifestState, store: ObjectStore, options: SourceOptions) -> Iterator[_Row]:
    from offloader.inspect.verify import check_stream

    fetcher = Fetcher(store, ReadSettings(relocate=options.relocate))
    return (each.as_row() for each in check_stream(fetcher, state, deep=False))


def _retention_of(state: ManifestState, store: ObjectStore) -> StreamRetention | None:
    """Retention of a stream, or of its topic with its first partition; ``None``: another partition has it."""
    from offloader.retention.scope import home_of
    from offloader.retention.subscribers import open_retention

    name, number = home_of(store, state.stream)
    is_first = name == state.stream or number == min(parts_of(store, name).partitions)
    return open_retention(store, name) if is_first else None


def _subscribers(state: ManifestState, store: ObjectStore, _: SourceOptions) -> Iterator[_Row]:
    """Those of a topic with partitions come once, with its first partition: they are about the topic."""
    if (retention := _retention_of(state, store)) is None:
        return
    for each in retention.subscribers():
        own = each.subscriber
        yield {
            "stream": retention.name,
            "subscriber": own.name,
            "generation": own.generation,
            "cut": None if own.cut is None else str(own.cut),
            "start": None if own.start is None else str(own.start),
            "updated_time": _micros(own.updated_ms or None),
            "active_time": _micros(own.active_ms or None),
            "lag_entries": each.lag_entries,
            "lag_bytes": each.lag_bytes,
        }


def _retention(state: ManifestState, store: ObjectStore, _: SourceOptions) -> Iterator[_Row]:
    """Past decisions, the newest first, each before its candidates; those of a topic as ``_subscribers``."""
    from offloader.retention.state import read_decisions

    if (retention := _retention_of(state, store)) is None:
        return
    for each in read_decisions(retention, retention.scope()):
        own = {**_RETENTION_ROW, "stream": retention.name, "time": _micros(each["at_ms"])}
        yield {
            **own,
            "kind": "decision",
            **{name: _cut_text(each.get(name)) for name in ("cut", "head", "bound")},
            "cut_time": _micros(each.get("cut_time_ms")),
            **{name: each.get(name) for name in ("rule", "why", "bound_kind", "removed_entries", "removed_bytes")},
            "overridden": [lost["name"] for lost in each.get("overridden") or ()],
            "held": each.get("is_held"),
            "fallback": each.get("is_fallback"),
        }
        for candidate in each.get("candidates") or ():
            yield {
                **own,
                "kind": "candidate",
                "role": candidate["role"],
                "cut": _cut_text(candidate["cut"]),
                "cut_time": _micros(candidate.get("time_ms")),
                "keeps_bytes": candidate.get("keeps_bytes"),
                "segment_end": candidate.get("is_boundary"),
            }


#: A row without values.
_RETENTION_ROW: _Row = dict.fromkeys(column_names("retention"))


def _cut_text(cut: Mapping[str, Any] | None) -> str | None:
    """A stored cut in the form of the other contents; ``None``: there is none."""
    from offloader.retention.cuts import StreamCut

    return None if cut is None else str(StreamCut.of(cut))


def _orphans(state: ManifestState, store: ObjectStore, _: SourceOptions) -> Iterator[_Row]:
    """Results of `offloader cleanup orphans` for the current stream, whatever manifest is pinned."""
    from offloader.gc.reconcile import Reconciliation

    for each in Reconciliation(store, state.stream, clock=SystemClock()).leftovers():
        yield {
            "stream": state.stream,
            "object": each.key,
            "what": each.place.value,
            "upload_id": each.upload_id or None,
            "objects": each.objects,
            "bytes": each.size_bytes,
            "modified_time": _micros(each.modified_ms),
            "ours": each.reason.is_ours,
            "reason": each.reason.value,
            "deletable": each.reason.is_deletable,
        }


#: content -> the rows of one stream.
DRIVER_CONTENTS: Mapping[str, Callable[[ManifestState, ObjectStore, SourceOptions], Iterator[_Row]]] = {
    "segments": _segments,
    "ledgers": _ledgers,
    "manifest": _records,
    "anomalies": _anomalies,
    "subscribers": _subscribers,
    "retention": _retention,
    "orphans": _orphans,
}


class OffloaderReader(DataSourceReader):
    """Reads the pinned manifests. Pickled to the executors without them: those need options and columns only."""

    def __init__(self, options: SourceOptions, schema: StructType, pinned: Pinned) -> None:
        self.options = options
        self.projection = projection(schema.fields, options.content)
        self._pinned: Pinned | None = pinned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pinned": None}

    def partitions(self) -> Sequence[InputPartition]:
        """Plans a query. Spark calls this once, or for each query with a filter while it pushes filters."""
        work_begins()
        store = self.options.open_store()
        assert self._pinned is not None, "planned where the source was unpickled"
        states = self._pinned.found()
        if self.options.content in DRIVER_CONTENTS:
            rows_of = DRIVER_CONTENTS[self.options.content]
            rows = [row for state in states for row in rows_of(state, store, self.options)]
            schema = self.projection.schema
            columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
            return [InputPartition(pa.Table.from_arrays(columns, schema=schema).to_batches())]
        return [InputPartition(each) for each in plan_slices(self.options, states, self.projection.needs, store)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        value = partition.value
        if value is None:  # Spark makes one such partition if there is none
            return iter(())
        if self.options.content in DRIVER_CONTENTS:
            return iter(value)
        work_begins()
        return read_slices(value, self.options, self.projection, self.options.open_store())


class Pinned:
    """The streams' manifests as they were when a data frame was loaded, or why they couldn't be read.

    An error is raised by queries only: Spark loads a streaming query in the same way, which reads none of this.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._found: list[ManifestState] | OffloaderError
        try:
            self._found = pinned_states(options, options.open_store())
        except OffloaderError as error:
            self._found = error

    def found(self) -> list[ManifestState]:
        """The manifests; raises the error that loading had."""
        if isinstance(self._found, OffloaderError):
            raise self._found
        return self._found


class OffloaderDataSource(DataSource):
    """The data source. Spark makes one for each ``load()``, and keeps it pickled in the data frame.

    For a data frame with a user's schema it does so at the first query. A streaming query and a statement that
    writes or makes a table have one too. Of its methods Spark calls one in each copy.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        work_begins()
        self._pinned: Pinned | None = None
        # Refused options are reported by the methods.
        with suppress(InvalidCallError, UnsupportedError):
            checked = SourceOptions.of(options)
            checked.require_batch()
            self._pinned = Pinned(checked)

    @classmethod
    def name(cls) -> str:
        return "offloader"

    def schema(self) -> str | StructType:
        if "provider" in self.options:
            return _schema_of_table(self.options)
        options = SourceOptions.of(self.options)
        columns = ddl(options.content, options.columns)
        if options.bounds is None or self._pinned is None:
            return columns
        return with_facts(options, self._pinned.found())

    def reader(self, schema: StructType) -> OffloaderReader:
        options = SourceOptions.of(self.options)
        options.require_batch()
        assert self._pinned is not None, "one reader a copy"
        # Spark sends this object to the executors too.
        pinned, self._pinned = self._pinned, None
        return OffloaderReader(options, schema, pinned)

    def streamReader(self, schema: StructType) -> StreamingReader:  # noqa: N802 - Spark's name
        from offloader.spark.stream import StreamingReader

        self._pinned = None
        require_fixed_start(self.options)
        return StreamingReader(SourceOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's arguments
        raise _read_only()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        raise _read_only()


def with_facts(options: SourceOptions, states: Sequence[ManifestState]) -> StructType:
    """The columns; the first has the manifests' facts in its metadata, where ``offloader.spark.frames`` reads them."""
    schema = from_arrow_schema(arrow_schema(options.content, options.columns))
    schema.fields[0].metadata = {FACTS: facts_of(options, states)}
    return schema


def _read_only() -> UnsupportedError:
    return UnsupportedError(
        "Spark can't write with the format offloader: entries come from a broker or from `offloader stream offload`",
        hint="keep rows with frame.write.parquet(...), or CREATE TABLE name USING parquet AS SELECT ...",
    )


def _schema_of_table(given: Mapping[str, str]) -> str:
    """The columns for CREATE TABLE; Spark keeps them, and forgets every option that the statement gives.

    Raises:
        UnsupportedError: it gives others than the columns depend on.
    """
    own = {name: text for name, text in given.items() if is_option(name)}
    lost = sorted(name for name in own if name.lower() not in ("content", "columns"))
    if lost:
        raise UnsupportedError(
            f"Spark keeps no options of a table with the format offloader: {', '.join(lost)} would be lost",
            hint="CREATE TEMPORARY VIEW ... USING offloader OPTIONS (...) keeps them; or CREATE TABLE offloader USING"
            " offloader without them, and SELECT ... FROM offloader WITH (store '...', stream '...')",
        )
    options = SourceOptions.of({"store": "file:///", "stream": "*", **own})
    return ddl(options.content, options.columns)
