"""A lazy table of entries: a range, a filter, columns and a limit, bound before anything is read from the store.

``Scan`` is a ``pyarrow.dataset.Dataset``, so DuckDB and Polars pass it the columns and the filter of each query:

* The filter is compared with the positions and publish times of segments, then of blocks (``pruning``). Only the
  parts that may match are read, and the filter is evaluated on their rows.
* ``stream``, ``ledger_id`` and ``entry_id`` come from the manifest and the indexes, without reading a payload.
* A count without a filter is computed from the manifest and the indexes too.

The dataset of Arrow's C++ library behind the class does not exist: ``Scan`` and its scanner override every method
that would use it.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from formats.entries import EntryBatch, Position, repeated_text
from offloader.errors import InvalidCallError, NotFoundError, UnsupportedError
from offloader.read.messages import decode_messages
from offloader.read.partitions import TopicReader, merge_published
from offloader.read.pruning import Pruner
from offloader.read.reader import Reader
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN, moment_ms

if TYPE_CHECKING:
    from formats.pulsar.messages import MessageOptions

#: Batches are joined up to this many bytes: the partitions of a topic interleave entry by entry.
JOINED_BYTES_MAX = 1024 * 1024
#: Batches are joined up to this many rows.
JOINED_ROWS_MAX = 65_536
#: All columns, in order.
SCHEMA = pa.schema([pa.field("stream", pa.string(), nullable=False), *EntryBatch.build(0, 0, []).to_arrow().schema])
#: Columns that need no payload: the first ones, so that a filter may also name them by number.
_POSITIONS = pa.schema([SCHEMA.field(name) for name in ("stream", "ledger_id", "entry_id")])
_REMEDY = "set bad_entries in the options (--on-bad-message null) to skip damaged entries"
#: Milliseconds since 1970 UTC, a time, or a text such as "2026-11-25T08:00:00Z" or "-1h".
Moment = int | str | datetime
_Range = tuple[Position, Position]


@dataclass(frozen=True, slots=True)
class Query:
    """The rows and columns of a scan.

    Attributes:
        columns: in the wanted order.
        filter: a condition on columns of the entries, also on columns that aren't selected.
        limit: the maximum number of rows.
    """

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    filter: pc.Expression | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidCallError("no column is selected", hint=f"columns: {', '.join(SCHEMA.names)}")
        if unknown := [name for name in self.columns if name not in SCHEMA.names]:
            raise InvalidCallError(
                f"entries have no column {', '.join(unknown)}", hint=f"columns: {', '.join(SCHEMA.names)}"
            )
        if len(set(self.columns)) < len(self.columns):
            raise InvalidCallError(f"duplicate column in: {', '.join(self.columns)}", hint="name each column once")
        if self.limit is not None and self.limit < 0:
            raise InvalidCallError(f"limit is {self.limit}", hint="give 0 or more rows")
        if self.filter is not None:
            try:
                SCHEMA.empty_table().filter(self.filter)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, TypeError) as error:
                raise InvalidCallError(
                    f"the filter {self.filter} does not fit the columns of entries: {str(error).splitlines()[0]}",
                    hint=f"columns: {', '.join(f'{each.name} ({each.type})' for each in SCHEMA)}",
                ) from error

    @property
    def schema(self) -> pa.Schema:
        """The schema of the selected columns."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    @property
    def needs_payloads(self) -> bool:
        """Whether entries must be read, not only their positions."""
        if not set(self.columns) <= set(_POSITIONS.names):
            return True
        try:
            _POSITIONS.empty_table().filter(pc.scalar(True) if self.filter is None else self.filter)
        except pa.ArrowInvalid:  # it names another column
            return True
        return False

    def narrowed(self, columns: Sequence[str] | None, condition: pc.Expression | None, limit: int | None) -> Query:
        """The query with fewer columns, one more condition and a lower limit; ``None``: no change."""
        if self.limit is not None and condition is not None:
            raise UnsupportedError(
                "a scan with a limit accepts no further filter", hint="give the filter before the limit, or no limit"
            )
        if outside := [name for name in columns or () if name not in self.columns]:
            raise InvalidCallError(
                f"the scan does not select {', '.join(outside)}", hint=f"its columns: {', '.join(self.columns)}"
            )
        limits = [each for each in (self.limit, limit) if each is not None]
        conditions = [each for each in (self.filter, condition) if each is not None]
        return replace(
            self,
            columns=self.columns if columns is None else tuple(columns),
            filter=conditions[0] & conditions[1] if len(conditions) == 2 else next(iter(conditions), None),
            limit=min(limits, default=None),
        )


def scan_of(
    reader: Reader | TopicReader,
    query: Query,
    *,
    start: Position | None = None,
    stop: Position | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    segments: Sequence[UUID] = (),
) -> Scan:
    """A range of a stream, or of all partitions of a topic, as a lazy table: see ``Stream.scan``.

    The scan owns the reader, and closes it; so does this function if it raises.
    """
    try:
        for position, moment, what in ((start, since, "begin"), (stop, until, "end")):
            if position is not None and moment is not None:
                raise InvalidCallError(f"{what}: both a position and a time are given", hint="give only one of them")
        # Convert once for all partitions, so that "-1h" is the same time for each.
        from_ms, to_ms = (None if each is None else moment_ms(each, what="publish time") for each in (since, until))
        if isinstance(reader, TopicReader):
            if start is not None or stop is not None or segments:
                reader.scan(start or stop or Position(0, 0))  # raises: a position belongs to a single partition
            parts = [_Part(each, _ranges(each, None, None, from_ms, to_ms)) for each in reader.partitions.values()]
        else:
            parts = [_Part(reader, _within(reader, segments, _ranges(reader, start, stop, from_ms, to_ms)))]
        return Scan(_Snapshot(reader, parts), query)
    except BaseException:
        reader.close()
        raise


def _ranges(
    reader: Reader, start: Position | None, stop: Position | None, from_ms: int | None, to_ms: int | None
) -> list[_Range]:
    """The range, with fixed ends although the hot tier grows; empty: it has no entry."""
    if start is not None and stop is not None and stop < start:
        raise InvalidCallError(f"stream {reader.stream}: {start} to {stop} ends before it begins", hint="swap them")
    if stop is not None and stop in (start, reader.first_position):
        return []
    last = None if stop is None else stop.previous()
    if last is not None and last.entry_id < 0 and reader.last_position is not None:
        last = min(last, reader.last_position)
    if (chosen := reader.range_of(start, last, from_ms, to_ms)) is None:
        return []
    reader.scan(*chosen).close()  # checks the positions
    begin, end = chosen[0] or reader.first_position, chosen[1] or reader.last_position
    return [] if begin is None or end is None else [(begin, end)]


def _within(reader: Reader, segments: Sequence[UUID], ranges: list[_Range]) -> list[_Range]:
    """The parts of ``ranges`` in ``segments``; without segments, all."""
    if not segments:
        return ranges
    held = {record.uuid: record for record in reader.segments()}
    if missing := [str(uuid) for uuid in segments if uuid not in held]:
        raise NotFoundError(
            f"stream {reader.stream} has no readable segment {', '.join(missing)}",
            hint=f"list them: offloader ls {reader.stream}",
        )
    chosen = sorted((held[uuid].content.begin, held[uuid].content.end) for uuid in set(segments))
    return [
        (max(first, begin), min(last, end))
        for begin, end in chosen
        for first, last in ranges
        if begin <= last and first <= end
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """Ranges of one stream, ascending, both ends included."""

    reader: Reader
    ranges: Sequence[_Range]

    def narrowed(self, query: Query) -> _Part:
        """The ranges that may have rows of the query."""
        if query.filter is None:
            return self
        may_match = Pruner(self.reader.stream, query.filter, SCHEMA).may_match
        return _Part(self.reader, [found for each in self.ranges for found in self.reader.narrowed(*each, may_match)])

    def entries(self) -> Generator[EntryBatch, None, None]:
        for first, last in self.ranges:
            with closing(self.reader.scan(first, last)) as batches:
                yield from batches

    def positions(self) -> Iterator[pa.RecordBatch]:
        """All rows, with the columns that need no payload."""
        for first, last in chain.from_iterable(self.reader.entry_ranges(*each) for each in self.ranges):
            for low in range(first.entry_id, last.entry_id + 1, JOINED_ROWS_MAX):
                ids = np.arange(low, min(low + JOINED_ROWS_MAX, last.entry_id + 1), dtype=np.int64)
                yield pa.RecordBatch.from_arrays(
                    [
                        repeated_text(self.reader.stream, len(ids)),
                        pa.array(np.full(len(ids), first.ledger_id, dtype=np.int64)),
                        pa.array(ids),
                    ],
                    schema=_POSITIONS,
                )

    def count(self) -> int:
        return sum(self.reader.count(*each) for each in self.ranges)


class _Snapshot:
    """Ranges of opened readers, which can be read repeatedly. Closes ``owner`` when it is dropped."""

    def __init__(self, owner: Reader, parts: Sequence[_Part]) -> None:
        self.parts = tuple(parts)
        self._after = owner.after if isinstance(owner, TopicReader) else ()
        weakref.finalize(self, owner.close)

    def merged(self, parts: Sequence[_Part]) -> Generator[tuple[int, EntryBatch], None, None]:
        """The entries of all parts, which may be narrowed, with the number of their part; see ``merge_published``."""
        return merge_published([part.entries() for part in parts], self._after)


def _of_files(*_positional: Any, **_named: Any) -> Any:
    raise UnsupportedError("a scan of entries has no files", hint="use to_table(), and this method of the table")


class Scan(ds.Dataset):  # type: ignore[misc]
    """A lazy table of entries; see ``Stream.scan``. Each use reads the entries again, from the same snapshot.

    Columns and filters of a use (``to_table(columns=, filter=)``, a query of DuckDB or Polars) narrow those of the
    scan. The entries of several partitions are merged by publish time, unless only positions are read: then partition
    follows partition. One batch per stream or partition is in memory at a time: ``settings.batch_size`` payload bytes,
    or one larger entry. The settings bound the prefetched data.
    """

    def __init__(self, snapshot: _Snapshot, query: Query) -> None:
        self._snapshot = snapshot
        self._query = query

    def __repr__(self) -> str:
        return f"Scan({', '.join(part.reader.stream for part in self._snapshot.parts)})"

    def __reduce__(self) -> Any:
        raise UnsupportedError("a scan cannot be pickled", hint="open the stream in the other process")

    @property
    def schema(self) -> pa.Schema:
        """The schema of the selected columns."""
        return self._query.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        **_arrow_options: Any,
    ) -> EntryScanner:
        """One read of the table, with fewer columns or rows. Arrow's other options, for files, have no effect.

        Raises:
            InvalidCallError: an unknown column, or a filter that does not fit the columns.
            UnsupportedError: columns that are expressions, or a filter although the scan has a limit.
        """
        return EntryScanner(self._snapshot, self._query.narrowed(_named(columns), filter, None))

    def filter(self, expression: pc.Expression | None) -> Scan:
        """A scan of the same snapshot with one more condition."""
        return Scan(self._snapshot, self._query.narrowed(None, expression, None))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as record batches, each read on demand."""
        return self.scanner().to_reader()

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows as record batches. Options as for ``scanner``."""
        return self.scanner(**options).to_batches()

    def to_table(self, **options: Any) -> pa.Table:
        """All rows as one table in memory. Options as for ``scanner``."""
        return self.scanner(**options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """The first rows as a table. Options as for ``scanner``."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, **options: Any) -> int:
        """Number of rows. Options as for ``scanner``."""
        return self.scanner(**options).count_rows()

    def count(self) -> int:
        """Number of rows; without a filter, computed from the manifest and the indexes."""
        return self.scanner().count_rows()

    def ends(self) -> dict[str, tuple[Position, Position]]:
        """First and last position of the range in each stream or partition that has one, before the filter."""
        parts = [part for part in self._snapshot.parts if part.ranges]
        return {part.reader.stream: (part.ranges[0][0], part.ranges[-1][1]) for part in parts}

    def entries(self) -> Generator[EntryBatch, None, None]:
        """The entries as ``EntryBatch`` objects, with the publish time that is stored.

        Raises:
            InvalidCallError: the scan has a filter, a limit or a selection of columns.
        """
        query = self._query
        if query.filter is not None or query.limit is not None or query.columns != tuple(SCHEMA.names):
            raise InvalidCallError(
                "entries are read whole, but this scan has a filter, a limit or a selection of columns",
                hint="choose them by positions, times or segments, or use to_batches",
            )
        return self._entries()

    def _entries(self) -> Generator[EntryBatch, None, None]:
        with closing(self._snapshot.merged(self._snapshot.parts)) as merged:
            for _, batch in merged:
                yield batch

    def messages(self, options: MessageOptions | None = None) -> Generator[pa.RecordBatch, None, None]:
        """The decoded Pulsar messages of the entries; a message in chunks is one row.

        Args:
            options: columns and limits of the decoder; default: all columns, and joined chunks.

        Raises:
            InvalidCallError: as ``entries``; or the entries are not Pulsar's.
            CorruptError, LimitReachedError, UnsupportedError: an entry can't be decoded.
        """
        from formats.pulsar.messages import MessageOptions  # protobuf, which few scans need

        self.entries().close()  # refuses a filter
        return self._messages(options or MessageOptions(join_chunks=True))

    def _messages(self, options: MessageOptions) -> Generator[pa.RecordBatch, None, None]:
        from formats.pulsar.messages import MessageDecoder

        parts = self._snapshot.parts
        decoders = [MessageDecoder(options, source=part.reader.stream) for part in parts]
        with closing(self._snapshot.merged(parts)) as merged:
            for number, batch in merged:
                yield from decode_messages(batch, decoders[number], remedy=_REMEDY)

    def to_duckdb(self, connection: Any = None) -> Any:
        """A ``duckdb.DuckDBPyRelation``. Each query passes its columns and most conditions to the scan.

        DuckDB wraps read errors in its own; their text includes this library's error.

        Args:
            connection: the DuckDB connection; default: DuckDB's default connection.

        Raises:
            UnsupportedError: duckdb is not installed.
        """
        duckdb = _package("duckdb")
        return duckdb.from_arrow(self, connection=connection or duckdb.default_connection())

    def to_polars(self) -> Any:
        """A ``polars.LazyFrame``. Its queries pass their columns and conditions to the scan.

        Raises:
            UnsupportedError: polars is not installed.
        """
        return _package("polars").scan_pyarrow_dataset(self)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with all rows in memory.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        _package("pandas")
        return self.to_reader().read_pandas()

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    get_fragments = _get_fragments = join = join_asof = replace_schema = sort_by = take = _of_files
    _scan_options = _scanner_options = _of_files
    partition_expression = property(_of_files)


class EntryScanner(ds.Scanner):  # type: ignore[misc]
    """One read of a scan."""

    def __init__(self, snapshot: _Snapshot, query: Query) -> None:
        self._snapshot = snapshot
        self._query = query

    @property
    def projected_schema(self) -> pa.Schema:
        return self._query.schema

    dataset_schema = projected_schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._query.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return _batches(self._snapshot, self._query)

    def to_table(self) -> pa.Table:
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        return EntryScanner(self._snapshot, self._query.narrowed(None, None, num_rows)).to_table()

    def count_rows(self) -> int:
        query = self._query
        if query.filter is not None:
            return sum(batch.num_rows for batch in _batches(self._snapshot, replace(query, columns=("entry_id",))))
        count = sum(part.count() for part in self._snapshot.parts)
        return count if query.limit is None else min(count, query.limit)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    scan_batches = take = _of_files


def _batches(snapshot: _Snapshot, query: Query) -> Generator[pa.RecordBatch, None, None]:
    parts = [part.narrowed(query) for part in snapshot.parts]
    with ExitStack() as opened:
        if query.needs_payloads:
            merged = opened.enter_context(closing(snapshot.merged(parts)))
            rows: Iterable[pa.RecordBatch] = (_rows(parts[number].reader.stream, batch) for number, batch in merged)
        else:
            rows = chain.from_iterable(part.positions() for part in parts)
        chosen = (batch.select(query.columns) for batch in _filtered(rows, query.filter))
        yield from _joined(_limited(chosen, query.limit))


def _rows(stream: str, batch: EntryBatch) -> pa.RecordBatch:
    columns = [repeated_text(stream, len(batch)), *batch.to_arrow().columns]
    times_ms = batch.publish_times_ms
    beyond = (times_ms > TABLE_TIME_MS_MAX) | (times_ms < TABLE_TIME_MS_MIN)
    if beyond.any():
        number = SCHEMA.get_field_index("publish_time")
        columns[number] = pc.if_else(pa.array(beyond), None, columns[number])
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _filtered(batches: Iterable[pa.RecordBatch], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
    """The rows that satisfy a condition. A batch whose rows all do is not copied."""
    for batch in batches:
        if condition is None:
            yield batch
            continue
        evaluated = ds.InMemoryDataset([batch]).scanner(columns={"chosen": condition}, use_threads=False).to_table()
        mask = evaluated["chosen"].combine_chunks()
        if (count := mask.true_count) == batch.num_rows:
            yield batch
        elif count:
            yield batch.filter(mask)


def _limited(batches: Iterable[pa.RecordBatch], rows_max: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows_max is not None and batch.num_rows >= rows_max:
            if rows_max:
                yield batch.slice(0, rows_max)
            return
        rows_max = None if rows_max is None else rows_max - batch.num_rows
        yield batch


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


def _named(columns: Any) -> Sequence[str] | None:
    if isinstance(columns, dict):
        raise UnsupportedError(
            "a scan of entries computes no columns", hint="name the columns, and compute on the result"
        )
    return columns  # type: ignore[no-any-return]


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(f"{name} isn't installed", hint=f"pip install {name}") from error
