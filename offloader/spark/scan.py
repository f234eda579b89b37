"""Reads one partition on an executor: slices, blocks, Arrow batches of the wanted columns."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.pulsar.messages import BadEntry, MessageOptions
from formats.segment_map import SegmentMap
from offloader.errors import Corrupt, ObjectChanged, ObjectMissing, OffloaderError, Trimmed
from offloader.read import fetch as plan
from offloader.read.cache import Cache
from offloader.read.fetch import Fetcher
from offloader.read.reader import decode_messages, published_between
from offloader.settings import ReadSettings
from offloader.spark.options import US_PER_MS, Needs, Predicate, Projection, SourceOptions
from offloader.spark.planning import SegmentSlice, wanted_blocks
from offloader.store.attempts import VerbCount, requests_of
from offloader.store.base import ObjectStore

_log = logging.getLogger("offloader.spark")

#: The pipe to the JVM is efficient with batches of about 10,000 rows and 1 to 4 MiB.
BATCH_ROWS_MAX = 16_384
BATCH_BYTES_MAX = 4 * 1024 * 1024
_BATCH_ROWS = 8_192
_BATCH_BYTES = 1024 * 1024
_REMEDY = (
    "option onBadMessage=null makes rows of bad entries that say what is wrong, messageBytesMax allows larger ones"
)
#: Index cache of a Python worker: a hundred segments of 1 GiB.
INDEXES_KEPT_BYTES_MAX = 16 * 1024 * 1024
#: Blocks whose positions one step makes from the index: enough to be worth a thread switch.
_BLOCKS_PER_STEP = 64


#: Process-wide: later tasks of the same segment neither fetch nor parse its index.
_INDEXES = Cache(INDEXES_KEPT_BYTES_MAX)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Entries of one ledger in columns, payloads only if wanted. Shapes as in ``EntryBatch``."""

    objects: plan.SegmentObjects
    ledger_id: int
    entry_ids: NDArray[np.int64]
    publish_times_ms: NDArray[np.int64] | None = None
    payloads: pa.BinaryArray | None = None

    @property
    def entries(self) -> EntryBatch:
        assert self.publish_times_ms is not None
        return EntryBatch(self.ledger_id, self.entry_ids, self.payloads, self.publish_times_ms)

    def chosen(self, rows: slice | NDArray[np.bool_]) -> _Rows:
        times = None if self.publish_times_ms is None else self.publish_times_ms[rows]
        payloads = self.payloads
        if payloads is not None:
            payloads = payloads[rows] if isinstance(rows, slice) else payloads.filter(pa.array(rows))
        return replace(self, entry_ids=self.entry_ids[rows], publish_times_ms=times, payloads=payloads)


def read_slices(
    slices: Sequence[SegmentSlice],
    options: SourceOptions,
    predicates: Sequence[Predicate],
    projection: Projection,
    store: ObjectStore,
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the streams' order, within the bounds of ``options``.

    Blocks that ``predicates`` exclude aren't fetched; rows aren't filtered by them.

    Raises:
        Corrupt, ObjectChanged, ObjectMissing, Trimmed: unless the options skip them.
        StoreUnavailable: the store doesn't respond; Spark retries the task.
    """
    fetcher = Fetcher(store, ReadSettings(), cache=_INDEXES)
    task = _Task(options, predicates, projection, fetcher)
    before = requests_of(store)
    try:
        with closing(task.rows(slices)) as rows:
            if options.content == "messages":
                yield from _merged(_message_batches(rows, projection.schema, options))
            else:
                yield from _merged(_entry_batches(rows, projection.schema))
    finally:
        then, gets, done = before.get("get", VerbCount()), requests_of(store).get("get", VerbCount()), task.done
        _log.info(
            f"read {len(slices)} slices: {done['rows']} rows with payload columns of {done['payload_bytes']} bytes"
            f" out of {gets.bytes_received - then.bytes_received} bytes"
            f" in {gets.requests - then.requests} GETs ({gets.errors - then.errors} failed);"
            f" {done['blocks']} blocks read, {done['ruled_out']} ruled out,"
            f" {done['skipped']} damaged or missing pieces left out"
        )


class _Task:
    def __init__(
        self, options: SourceOptions, predicates: Sequence[Predicate], projection: Projection, fetcher: Fetcher
    ) -> None:
        self._options = options
        self._predicates = predicates
        # Time bounds are exact, so they need times even if the schema doesn't.
        bounded = options.start_ms is not None or options.end_ms is not None
        self._needs = max(projection.needs, Needs.ENTRY_TABLES if bounded else Needs.INDEXES)
        self._fetcher = fetcher
        self._lock = threading.Lock()
        #: Statistics: skipped pieces were damaged or missing, blocks that are ruled out can't hold wanted rows.
        self.done = Counter[str]()

    def rows(self, slices: Sequence[SegmentSlice]) -> Generator[_Rows, None, None]:
        """The rows, one piece per block; prefetches across slices."""
        workers = self._fetcher.workers
        maps = workers.in_order(partial(self._index, each) for each in slices)
        steps = (
            partial(self._bounded, each, step)
            for each, segment_map in zip(slices, maps, strict=True)
            if segment_map is not None
            for step in self._steps(each, segment_map)
        )
        with closing(maps), closing(workers.in_order(steps)) as results:
            for pieces in results:
                for rows in pieces:
                    self.done["rows"] += len(rows.entry_ids)
                    self.done["payload_bytes"] += 0 if rows.payloads is None else rows.payloads.nbytes
                    yield rows

    def _index(self, piece: SegmentSlice) -> SegmentMap | None:
        try:
            return self._fetcher.index(piece.objects)
        except OffloaderError as error:
            self._skip(error)
            return None

    def _steps(self, piece: SegmentSlice, segment_map: SegmentMap) -> Iterator[Callable[[], list[_Rows]]]:
        """The steps of a slice, in order: at most one storage call each."""
        numbers = wanted_blocks(self._options, self._predicates, segment_map, piece.first, piece.last)
        own = np.zeros(len(segment_map.blocks), dtype=bool)
        for start, stop in piece.blocks:
            own[start:stop] = True
        numbers = numbers[own[numbers]]
        self.done["blocks"] += len(numbers)
        self.done["ruled_out"] += int(own.sum()) - len(numbers)
        if not segment_map.has_extension or self._needs is Needs.PAYLOADS:
            request_bytes = self._fetcher.settings.request_bytes
            for run in plan.block_runs(piece.objects, segment_map, numbers, request_bytes):
                yield partial(self._whole_blocks, run)
        elif self._needs is Needs.ENTRY_TABLES:
            for number in numbers.tolist():
                yield partial(self._entry_table, piece, segment_map, number)
        else:
            for start in range(0, len(numbers), _BLOCKS_PER_STEP):
                yield partial(_positions, piece, segment_map, numbers[start : start + _BLOCKS_PER_STEP])

    def _whole_blocks(self, run: plan.BlockRun) -> list[_Rows]:
        return [
            _Rows(run.objects, batch.ledger_id, batch.entry_ids, batch.publish_times_ms, batch.payloads)
            for batch in self._fetcher.run(run, skip=self._skip)
        ]

    def _entry_table(self, piece: SegmentSlice, segment_map: SegmentMap, number: int) -> list[_Rows]:
        table = self._fetcher.entry_table(piece.objects, segment_map, number)
        [rows] = _positions(piece, segment_map, np.array([number]))
        return [replace(rows, publish_times_ms=table.publish_times_ms)]

    def _skip(self, error: OffloaderError) -> None:
        corrupt = isinstance(error, (Corrupt, ObjectChanged)) and self._options.skip_corrupt
        missing = isinstance(error, (ObjectMissing, Trimmed)) and self._options.skip_missing
        missing = missing or (isinstance(error, Trimmed) and not self._options.fail_on_data_loss)
        if not corrupt and not missing:
            raise error
        with self._lock:
            self.done["skipped"] += 1
        _log.warning("left out: %s", error)

    def _bounded(self, piece: SegmentSlice, step: Callable[[], list[_Rows]]) -> list[_Rows]:
        try:
            found = step()
        except OffloaderError as error:
            self._skip(error)
            return []
        bounded = [self._in_time(_between(piece, rows)) for rows in found]
        return [rows for rows in bounded if len(rows.entry_ids)]

    def _in_time(self, rows: _Rows) -> _Rows:
        times, start_ms, end_ms = rows.publish_times_ms, self._options.start_ms, self._options.end_ms
        if times is None or (start_ms is None and end_ms is None):
            return rows
        if self._options.content == "messages":
            mask = published_between(rows.entries, start_ms, end_ms)
        else:
            mask = times != TIME_UNKNOWN_MS
            if start_ms is not None:
                mask &= times >= start_ms
            if end_ms is not None:
                mask &= times < end_ms
        return rows if mask.all() else rows.chosen(mask)


def _positions(piece: SegmentSlice, segment_map: SegmentMap, numbers: NDArray[np.int64]) -> list[_Rows]:
    """The ids in extended blocks, from the index alone: they are consecutive there."""
    blocks = segment_map.blocks
    return [
        _Rows(piece.objects, ledger_id, np.arange(first, last + 1, dtype=np.int64))
        for ledger_id, first, last in zip(
            blocks.ledger_id[numbers].tolist(),
            blocks.first_entry_id[numbers].tolist(),
            blocks.last_entry_id[numbers].tolist(),
            strict=True,
        )
    ]


def _between(piece: SegmentSlice, rows: _Rows) -> _Rows:
    ids = rows.entry_ids
    low, high = 0, len(ids)
    if rows.ledger_id == piece.first.ledger_id:
        low = int(np.searchsorted(ids, piece.first.entry_id, side="left"))
    if rows.ledger_id == piece.last.ledger_id:
        high = int(np.searchsorted(ids, piece.last.entry_id, side="right"))
    return rows.chosen(slice(low, max(low, high))) if low > 0 or high < len(ids) else rows


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges small batches up to an efficient size for the JVM."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(waiting)
            waiting, count, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _entry_batches(rows: Iterable[_Rows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for piece in chain.from_iterable(map(_pieces, rows)):
        yield pa.RecordBatch.from_arrays([_entry_column(name, piece) for name in schema.names], schema=schema)


def _message_batches(rows: Iterable[_Rows], schema: pa.Schema, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    # Entries don't hold the stream's name.
    names = tuple(name for name in schema.names if name != "stream")
    how = MessageOptions(
        columns=names or ("batch_index",),
        bad_entries=BadEntry.NULL if options.bad_messages_are_rows else BadEntry.ERROR,
        markers=options.markers,
        payload_bytes_max=options.message_bytes_max,
        rows_max=BATCH_ROWS_MAX,
        bytes_max=BATCH_BYTES_MAX,
    )
    for piece in rows:
        stream = piece.objects.stream
        source = f"stream {stream}, object {piece.objects.data_key},"
        for batch in decode_messages(piece.entries, how, source=source, remedy=_REMEDY):
            yield pa.RecordBatch.from_arrays([_column(field, batch, stream) for field in schema], schema=schema)


def _column(field: pa.Field, messages: pa.RecordBatch, stream: str) -> pa.Array:
    if field.name == "stream":
        return pa.repeat(pa.scalar(stream), messages.num_rows)
    column = messages.column(field.name)
    if pa.types.is_timestamp(field.type):  # ms; the decoder excludes times that overflow as us
        return pc.multiply(column.view(pa.int64()), US_PER_MS).view(field.type)
    return column


def _pieces(rows: _Rows) -> Iterator[_Rows]:
    total = len(rows.entry_ids)
    step = BATCH_ROWS_MAX
    if rows.payloads is not None and rows.payloads.nbytes > BATCH_BYTES_MAX:
        step = max(1, min(step, int(total * BATCH_BYTES_MAX / rows.payloads.nbytes)))
    return (rows.chosen(slice(start, start + step)) for start in range(0, total, step))


def _entry_column(name: str, rows: _Rows) -> pa.Array:
    count = len(rows.entry_ids)
    match name:
        case "stream":
            return pa.repeat(pa.scalar(rows.objects.stream), count)
        case "ledger_id":
            return pa.array(np.full(count, rows.ledger_id, dtype=np.int64))
        case "entry_id":
            return pa.array(rows.entry_ids)
        case "publish_time":
            times_ms = rows.publish_times_ms
            assert times_ms is not None
            unknown = times_ms == TIME_UNKNOWN_MS
            micros = pc.multiply(pa.array(times_ms, mask=unknown if unknown.any() else None), US_PER_MS)
            return micros.view(pa.timestamp("us", tz="UTC"))
        case _:
            assert rows.payloads is not None
            return rows.payloads
