"""Read entries as Arrow batches, or as DuckDB, Polars and pandas tables."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from importlib import import_module
from typing import Any, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from formats.entries import EntryBatch, Position, repeated_text
from offloader.errors import InvalidCall, Unsupported
from offloader.ledgers.base import ReadableLedgers
from offloader.read.partitions import TopicReader, merge_published, open_reader
from offloader.read.reader import Reader
from offloader.runtime.clock import Clock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN, moment_ms

#: Batches are joined up to this many bytes: the partitions of a topic interleave entry by entry.
JOINED_BYTES_MAX = 1024 * 1024
#: Batches are joined up to this many rows.
JOINED_ROWS_MAX = 65_536
#: All columns, in order.
SCHEMA = pa.schema([pa.field("stream", pa.string(), nullable=False), *EntryBatch.build(0, 0, []).to_arrow().schema])
_Moment = int | str | datetime


class ArrowOptions(TypedDict, total=False):
    """Arguments of ``read_arrow`` that ``to_duckdb``, ``to_polars`` and ``to_pandas`` also accept."""

    start: Position | None
    end: Position | None
    from_time: _Moment | None
    to_time: _Moment | None
    columns: Sequence[str]
    settings: ReadSettings | None
    source: ReadableLedgers | None
    lease_seconds: int
    clock: Clock | None


def read_arrow(
    store: ObjectStore,
    stream: str,
    *,
    start: Position | None = None,
    end: Position | None = None,
    from_time: _Moment | None = None,
    to_time: _Moment | None = None,
    columns: Sequence[str] = (),
    settings: ReadSettings | None = None,
    source: ReadableLedgers | None = None,
    lease_seconds: int = 0,
    clock: Clock | None = None,
) -> pa.RecordBatchReader:
    """The entries of a stream, or of all partitions of a topic merged by publish time, as Arrow batches.

    This call loads and pins the manifest: later commits are not visible. One batch per stream or partition is in memory
    at a time. A batch has ``settings.batch_bytes`` payload bytes, or one larger entry. Small batches are joined up to
    ``JOINED_BYTES_MAX``. The settings bound the prefetched data.

    Args:
        stream: as for ``open_reader``.
        start, end: first and last position, both included. Only for a single stream.
        from_time, to_time: instead of ``start`` and ``end``: start at the earliest entry published at or after
            ``from_time``, and stop before the earliest entry published at or after ``to_time``. Times as for
            ``Reader.position_at``.
        columns: any of stream, ledger_id, entry_id, publish_time (ms, UTC, null = unknown, or outside of the years 1 to
            9999) and payload, in the wanted order; default: all.
        settings, source, lease_seconds, clock: as for ``open_reader``. The lease ends when the result is dropped.

    Raises:
        NotFound: the stream does not exist (the hint names similar ones).
        InvalidCall: an invalid stream name, an unknown column, two bounds for the same end, or a position in a
            partitioned topic.
        Trimmed, BeyondEnd: a position is outside of the stream.
        Corrupt: the manifest is damaged. Reading the batches raises the same errors as ``Reader.scan``.
    """
    return _snapshot(
        store,
        stream,
        start=start,
        end=end,
        from_time=from_time,
        to_time=to_time,
        columns=columns,
        settings=settings,
        source=source,
        lease_seconds=lease_seconds,
        clock=clock,
    ).batch_reader()


def to_duckdb(store: ObjectStore, stream: str, *, connection: Any = None, **options: Unpack[ArrowOptions]) -> Any:
    """A DuckDB relation over a stream or topic. Each query reads the entries again, from the same snapshot.

    Args:
        connection: the DuckDB connection; default: DuckDB's default connection.
        options: as for ``read_arrow``. A lease ends when the relation is dropped.

    Returns:
        a ``duckdb.DuckDBPyRelation``. DuckDB wraps read errors in its own; their text includes this library's error.

    Raises:
        Unsupported: duckdb isn't installed.
        as ``read_arrow``.
    """
    duckdb = _package("duckdb")
    return duckdb.from_arrow(_snapshot(store, stream, **options), connection=connection or duckdb.default_connection())


def to_polars(store: ObjectStore, stream: str, **options: Unpack[ArrowOptions]) -> Any:
    """A ``polars.DataFrame`` with a whole stream or topic in memory.

    Args:
        options: as for ``read_arrow``.

    Raises:
        Unsupported: polars is not installed.
        as ``read_arrow`` and ``Reader.scan``.
    """
    polars = _package("polars")
    return polars.from_arrow(read_arrow(store, stream, **options).read_all())


def to_pandas(store: ObjectStore, stream: str, **options: Unpack[ArrowOptions]) -> Any:
    """A ``pandas.DataFrame`` with a whole stream or topic in memory.

    Args:
        options: as for ``read_arrow``.

    Raises:
        Unsupported: pandas is not installed.
        as ``read_arrow`` and ``Reader.scan``.
    """
    _package("pandas")
    return read_arrow(store, stream, **options).read_pandas()


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise Unsupported(f"{name} isn't installed", hint=f"pip install {name}") from error


def _snapshot(
    store: ObjectStore,
    stream: str,
    *,
    start: Position | None = None,
    end: Position | None = None,
    from_time: _Moment | None = None,
    to_time: _Moment | None = None,
    columns: Sequence[str] = (),
    **options: Any,
) -> _Snapshot:
    """The entries that ``read_arrow`` returns; ``options`` as for ``open_reader``."""
    columns = list(columns) or SCHEMA.names
    if unknown := [name for name in columns if name not in SCHEMA.names]:
        raise InvalidCall(f"entries have no column {', '.join(unknown)}", hint=f"columns: {', '.join(SCHEMA.names)}")
    if len(set(columns)) < len(columns):
        raise InvalidCall(f"duplicate column in: {', '.join(columns)}", hint="name each column once")
    for position, moment, what in ((start, from_time, "begin"), (end, to_time, "end")):
        if position is not None and moment is not None:
            raise InvalidCall(f"{what}: both a position and a time are given", hint="give only one of them")
    # Convert once for all partitions, so that "-1h" is the same time for each.
    from_ms, to_ms = (None if each is None else moment_ms(each, what="publish time") for each in (from_time, to_time))
    reader = open_reader(store, stream, **options)
    try:
        if not isinstance(reader, TopicReader):
            return _Snapshot(reader, [(reader, _range(reader, start, end, from_ms, to_ms))], columns)
        if start is not None or end is not None:
            reader.scan(start, end)  # refuses positions
        both = [(each, _range(each, None, None, from_ms, to_ms)) for each in reader.partitions.values()]
        return _Snapshot(reader, both, columns)
    except BaseException:
        reader.close()
        raise


_Range = tuple[Position, Position] | None


def _range(
    reader: Reader, first: Position | None, last: Position | None, from_ms: int | None, to_ms: int | None
) -> _Range:
    """The ends of the range, fixed although the hot tier grows; ``None``: the range has no entry."""
    if (chosen := reader.range_of(first, last, from_ms, to_ms)) is None:
        return None
    reader.scan(*chosen).close()  # checks the positions
    begin, end = chosen[0] or reader.first_position, chosen[1] or reader.last_position
    return None if begin is None or end is None else (begin, end)


class _Snapshot:
    """Entries in ranges of opened readers, which can be read repeatedly. Closes ``owner`` when it is dropped."""

    def __init__(self, owner: Reader, ranges: Sequence[tuple[Reader, _Range]], columns: Sequence[str]) -> None:
        self._ranges = ranges
        self._columns = columns
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        weakref.finalize(self, owner.close)

    def batch_reader(self) -> pa.RecordBatchReader:
        """The batches, in order; each is read on demand."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.batch_reader().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        scans: list[Iterator[EntryBatch]] = [
            iter(()) if chosen is None else reader.scan(*chosen) for reader, chosen in self._ranges
        ]
        with closing(merge_published(scans)) as merged:
            yield from _joined(self._table(self._ranges[number][0].stream, batch) for number, batch in merged)

    def _table(self, stream: str, batch: EntryBatch) -> pa.RecordBatch:
        columns = [repeated_text(stream, len(batch)), *batch.to_arrow().columns]
        times_ms = batch.publish_times_ms
        beyond = (times_ms > TABLE_TIME_MS_MAX) | (times_ms < TABLE_TIME_MS_MIN)
        if beyond.any():
            number = SCHEMA.get_field_index("publish_time")
            columns[number] = pc.if_else(pa.array(beyond), None, columns[number])
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).select(self._columns)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with small adjacent batches joined. A batch above ``JOINED_BYTES_MAX`` is not copied."""
    # a row counts at least this much, so one sum enforces both limits
    row_bytes_min = JOINED_BYTES_MAX // JOINED_ROWS_MAX
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        own = max(batch.nbytes, row_bytes_min * batch.num_rows)
        if waiting and size + own > JOINED_BYTES_MAX:
            yield _one(waiting)
            waiting, size = [], 0
        if own >= JOINED_BYTES_MAX:  # yield immediately, without waiting for the next batch
            yield batch
            continue
        waiting.append(batch)
        size += own
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
