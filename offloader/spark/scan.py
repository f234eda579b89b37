"""Scans: the driver plans streams -> pinned manifests -> segments -> slices, packed into partitions.

An executor reads one partition: slices, blocks, Arrow batches of the wanted columns.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position, repeated_text
from formats.segment_map import SegmentMap
from formats.summary import LedgerSpan, SegmentSummary
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    TrimmedError,
)
from offloader.manifest.load import refreshed
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.names import named_streams
from offloader.manifest.protection import take_lease
from offloader.manifest.state import ManifestState
from offloader.parallel_map import at_once
from offloader.read.cold import objects_of
from offloader.read.fetch import BlockRun, Cache, Fetcher, SegmentObjects, Sized, block_runs, request_sizes
from offloader.read.messages import decode_messages, published_between
from offloader.read.ranges import readable_segments, segments_between, whole_range
from offloader.read.reader import load_manifest_at, load_stream, require_inside
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.spark.options import US_PER_MS, Needs, Projection, SourceOptions
from offloader.spark.where import Bounds
from offloader.store.base import ObjectStore
from offloader.store.wrappers import VerbCount, requests_of
from offloader.stream_names import is_pattern, literal_prefix, matches
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN

#: Indexes that planning reads. Further segments are split by their number of blocks alone, and pruned by the tasks.
INDEXES_READ_MAX = 1000
#: Cost of a row in a task without payloads, in bytes: the ids, and with them the publish time.
_ROW_BYTES = {Needs.INDEXES: 16, Needs.ENTRY_TABLES: 24}
#: Streams that an error names.
NAMES_SHOWN_MAX = 3
#: Streams whose records ``facts_of`` names: they are sent along with every plan.
FACTS_STREAMS_MAX = 100
#: Segments that a task opens at most, about: each costs it as much as this part of ``splitBytes``.
SEGMENTS_PER_PARTITION = 64


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Some blocks of one segment, as ranges without their end; they may exceed ``first`` .. ``last``. Picklable."""

    objects: SegmentObjects
    blocks: tuple[tuple[int, int], ...]
    first: Position
    last: Position


@dataclass(frozen=True, slots=True, eq=False)
class StreamRange:
    """Wanted range of one stream: ``first`` .. ``last``, inclusive, with its manifest in ``state``."""

    state: ManifestState
    first: Position
    last: Position


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    objects: SegmentObjects
    summary: SegmentSummary
    first: Position
    last: Position

    @property
    def is_whole(self) -> bool:
        return self.first <= self.summary.begin and self.last >= self.summary.end

    @property
    def bytes_wanted(self) -> float:
        """About how much of the data object is in the range, by the manifest."""
        if self.is_whole:
            return self.summary.data_bytes
        taken = sum(part.entries for part in parts_between(self.summary.ledgers, self.first, self.last))
        return self.summary.data_bytes * min(1.0, taken / max(self.summary.entries, 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """The wanted blocks of a segment: ``blocks`` of them, with a total cost of ``cost`` bytes.

    ``numbers`` and ``costs`` give the number and cost of each; without them all blocks are wanted, at equal cost.
    """

    candidate: _Candidate
    blocks: int
    cost: float
    numbers: NDArray[np.int64] | None = None
    costs: NDArray[np.float64] | None = None

    def homes(self, before: float, scale: float, count: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
        """The partitions of these blocks, out of ``count``, and the ranges of blocks in each, by the blocks' middles.

        ``before``: total cost of the preceding blocks; ``scale``: partitions per byte of cost.
        """
        if self.costs is None:
            each = self.cost / self.blocks
            low, high = (int(middle * scale) for middle in (before + each / 2, before + self.cost - each / 2))
            if min(low, count - 1) == min(high, count - 1):
                yield min(low, count - 1), ((0, self.blocks),)
                return
            middles = before + (np.arange(self.blocks) + 0.5) * each
        else:
            middles = before + np.cumsum(self.costs) - self.costs / 2
        # Ascending: costs aren't negative.
        homes = np.minimum((middles * scale).astype(np.int64), count - 1)
        cuts = [0, *(np.flatnonzero(homes[1:] != homes[:-1]) + 1).tolist(), self.blocks]
        for start, stop in itertools.pairwise(cuts):
            own = ((start, stop),) if self.numbers is None else _ranges(self.numbers[start:stop])
            yield int(homes[start]), own


def pinned_states(options: SourceOptions, store: ObjectStore) -> list[ManifestState]:
    """One view of each stream's manifest, for all further planning.

    Raises:
        NotFoundError: no such stream, or none matches the pattern.
        InvalidCallError, TrimmedError: ``asOfManifest`` can't be pinned.
    """
    if not (options.lease_seconds or options.as_of_manifest or is_pattern(options.stream)):
        with suppress(NotFoundError):
            state = load_manifest(store, options.stream)
            if not state.stream_deleted:
                return [state] if _is_wanted(options, state.stream) else []
    records = _pinned_records(options, store) if options.as_of_manifest else {}
    names = list(records) if options.as_of_manifest else _wanted_names(options, store)
    if options.lease_seconds:
        # Before loading; leases are neither renewed nor ended, and hold for the requested time.
        writable = options.open_store(read_only=False)
        for name in names:
            take_lease(writable, name, options.lease_seconds, clock=SystemClock(), reader="Spark")
    if options.as_of_manifest:
        return at_once(lambda name: load_manifest_at(store, name, records[name]), names, sequential_max=1)
    return load_streams(names, store, may_be_gone=is_pattern(options.stream))


def _wanted_names(options: SourceOptions, store: ObjectStore) -> list[str]:
    names = streams_named(options, store)
    if not names:
        raise NotFoundError(
            f"no stream in {store.url} matches {options.stream}", hint="run `offloader ls` to list the streams"
        )
    return [name for name in names if _is_wanted(options, name)]


def _pinned_records(options: SourceOptions, store: ObjectStore) -> dict[str, int]:
    """The record of each stream; streams that ``asOfManifest`` doesn't name are left out: they are newer."""
    given = dict(options.as_of_manifest)
    if "" in given:
        names = _wanted_names(options, store)
        if len(names) > 1:
            shown = ", ".join(f"{name}=..." for name in names[:NAMES_SHOWN_MAX])
            raise InvalidCallError(f"option asOfManifest needs one record per stream here: {shown}")
        return dict.fromkeys(names, given[""])
    pattern = options.stream
    names = [name for name in given if matches(name, pattern)] if is_pattern(pattern) else streams_named(options, store)
    if others := sorted(set(given) - set(names)):
        raise InvalidCallError(f"option asOfManifest names {', '.join(others)}, which {pattern} doesn't match")
    return {name: record for name, record in given.items() if _is_wanted(options, name)}


def _is_wanted(options: SourceOptions, stream: str) -> bool:
    return options.bounds is None or options.bounds.streams is None or stream in options.bounds.streams


def load_streams(
    names: Iterable[str],
    store: ObjectStore,
    *,
    may_be_gone: bool = False,
    known: Mapping[str, ManifestState] | None = None,
) -> list[ManifestState]:
    """The newest view of each stream, several loaded concurrently, with the errors of ``load_stream``.

    Args:
        may_be_gone: leave deleted streams out.
        known: older views by name: of such a stream only newer records are read.
    """
    found = at_once(partial(_newest, store, known or {}, may_be_gone), names, sequential_max=1)
    return [state for state in found if state is not None]


def _newest(
    store: ObjectStore, known: Mapping[str, ManifestState], may_be_gone: bool, name: str
) -> ManifestState | None:
    before = known.get(name)
    if before is not None and before.record_id:
        state, boundary = refreshed(store, before)
        if boundary is not None and not state.stream_deleted:
            return state
    # New, or deleted: there may be another stream of that name by now.
    with suppress(NotFoundError) if may_be_gone else nullcontext():
        return load_stream(store, name)
    return None


def streams_named(options: SourceOptions, store: ObjectStore) -> list[str]:
    """The streams of the option ``stream``: the named one, a topic's partitions or segments, or all current matches."""
    pattern = options.stream
    if not is_pattern(pattern):
        return list(named_streams(store, pattern).streams)
    return [name for name in list_streams(store, prefix=literal_prefix(pattern)) if matches(name, pattern)]


def plan_slices(
    options: SourceOptions, states: Iterable[ManifestState], needs: Needs, store: ObjectStore
) -> list[tuple[SegmentSlice, ...]]:
    """The partitions of a scan of entries, of about equal cost, each at most about ``splitBytes``.

    Raises:
        TrimmedError, BeyondEndError: ``start`` or ``stop`` is outside of the one named stream. With a
            pattern they are mere bounds.
    """
    ranges = wanted_ranges(options, states)
    if options.bounds is not None and options.bounds.limit is not None:
        ranges = first_of(ranges, options.bounds.limit)
    return plan_ranges(options, needs, ranges, store)


def plan_ranges(
    options: SourceOptions, needs: Needs, ranges: Iterable[StreamRange], store: ObjectStore
) -> list[tuple[SegmentSlice, ...]]:
    """As ``plan_slices``, of given ranges; ``options`` bounds only times."""
    candidates = [candidate for wanted in ranges for candidate in _candidates(options, wanted, store)]
    maps = _indexes(options, candidates, store)
    opening = options.split_bytes / SEGMENTS_PER_PARTITION
    pieces = [
        _piece(options, needs, candidate, segment_map, opening)
        for candidate, segment_map in zip(candidates, maps, strict=True)
    ]
    return _packed([piece for piece in pieces if piece.blocks], options.split_bytes)


def wanted_ranges(options: SourceOptions, states: Iterable[ManifestState]) -> list[StreamRange]:
    """The wanted range of each stream that has one, with the errors of ``plan_slices``."""
    return [wanted for state in states if (wanted := _wanted_range(options, state)) is not None]


def _wanted_range(options: SourceOptions, state: ManifestState) -> StreamRange | None:
    ends = whole_range(state)
    first, last = options.start_position, options.end_position
    if (first is not None or last is not None) and state.stream == options.stream:
        require_inside(state, ends, first, last)
    if ends is None:
        return None
    bounds = options.bounds or Bounds()
    begin = max(each for each in (ends[0], first, bounds.first) if each is not None)
    end = min(each for each in (ends[1], last, bounds.last) if each is not None)
    return StreamRange(state, begin, end) if begin <= end else None


def first_of(ranges: Iterable[StreamRange], limit: int) -> list[StreamRange]:
    """The beginning of the ranges: ``limit`` entries, or more where the manifest doesn't say which is the last."""
    found = []
    for wanted in ranges:
        if limit <= 0:
            break
        last = wanted.last
        for part in parts_of(wanted):
            if part.is_counted and part.entries >= limit:
                last = Position(part.ledger_id, part.first + limit - 1)
            limit -= part.entries if part.is_counted else 0
            if limit <= 0:
                break
        found.append(replace(wanted, last=last))
    return found


class LedgerPart(NamedTuple):
    """Entries ``first`` .. ``last`` of a ledger in one segment; ``payload_bytes`` is about theirs.

    ``is_counted``: ``entries`` is exact, as all ids in between are taken; else it is the most there can be.
    """

    ledger_id: int
    first: int
    last: int
    entries: int
    payload_bytes: float
    is_counted: bool


def parts_of(wanted: StreamRange) -> Iterator[LedgerPart]:
    """The ledgers' parts in a range, in the stream's order, as the manifest has them."""
    for record in segments_between(readable_segments(wanted.state), wanted.first, wanted.last):
        yield from parts_between(record.spans, wanted.first, wanted.last)


def parts_between(spans: Iterable[LedgerSpan], begin: Position, end: Position) -> Iterator[LedgerPart]:
    """The parts of a segment's ledgers from ``begin`` to ``end``, both included."""
    for span in spans:
        first, last = span.first_entry_id, span.last_entry_id
        count = last - first + 1
        if span.ledger_id == begin.ledger_id:
            first = max(first, begin.entry_id)
        if span.ledger_id == end.ledger_id:
            last = min(last, end.entry_id)
        if begin.ledger_id <= span.ledger_id <= end.ledger_id and first <= last:
            taken = last - first + 1
            size = span.payload_bytes * taken / count
            yield LedgerPart(span.ledger_id, first, last, taken, size, is_counted=span.entries == count)


def facts_of(options: SourceOptions, states: Sequence[ManifestState]) -> dict[str, Any]:
    """Facts from the manifests about a scan: records, number of entries (``None``: not exact) and payload bytes."""
    bounds, parts = options.bounds or Bounds(), list(chain.from_iterable(map(parts_of, wanted_ranges(options, states))))
    is_exact = options.content == "entries" and bounds.is_exact and not _bounds_times(options)
    is_exact &= not (options.skip_corrupt or options.skip_missing) and all(part.is_counted for part in parts)
    entries, size = sum(part.entries for part in parts), sum(part.payload_bytes for part in parts)
    if bounds.limit is not None and bounds.limit < entries:
        entries, size = bounds.limit, size * bounds.limit / entries
    records = {state.stream: state.record_id for state in states[:FACTS_STREAMS_MAX]}
    return {"records": records, "entries": entries if is_exact else None, "payload_bytes": int(size)}


def _candidates(options: SourceOptions, wanted: StreamRange, store: ObjectStore) -> list[_Candidate]:
    state, first, last = wanted.state, wanted.first, wanted.last
    return [
        _Candidate(objects_of(state.stream, record, store, options.relocate), record.summary, first, last)
        for record in segments_between(readable_segments(state), first, last)
        if record.summary is not None and _segment_matches(options, record.summary)
    ]


def _segment_matches(options: SourceOptions, summary: SegmentSummary) -> bool:
    low, high = summary.publish_time_min_ms, summary.publish_time_max_ms
    return not _bounds_times(options) or bool(_in_time(options, np.array([low]), np.array([high]))[0])


def _bounds_times(options: SourceOptions) -> bool:
    return options.start_ms is not None or options.end_ms is not None


def _in_time(options: SourceOptions, low_ms: NDArray[np.int64], high_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
    unknown = (low_ms == TIME_UNKNOWN_MS) | (high_ms == TIME_UNKNOWN_MS)
    mask = np.ones(len(low_ms), dtype=bool)
    if options.start_ms is not None:
        mask &= unknown | (high_ms >= options.start_ms)
    if options.end_ms is not None:
        mask &= unknown | (low_ms < options.end_ms)
    return mask


def _indexes(options: SourceOptions, candidates: Sequence[_Candidate], store: ObjectStore) -> list[SegmentMap | None]:
    """Indexes of the segments to split; ``None`` for others and for damaged ones.

    A task looks for its blocks in the index itself, so nothing is gained where all fits into one partition.
    """
    sizes, times = [each.bytes_wanted for each in candidates], _bounds_times(options)
    wanted = [
        times or size > options.split_bytes or not each.is_whole for each, size in zip(candidates, sizes, strict=True)
    ]
    if sum(sizes) <= options.split_bytes or sum(wanted) > INDEXES_READ_MAX:
        return [None] * len(candidates)
    load = partial(index_or_none, Fetcher(store, ReadSettings()))
    objects = [each.objects for each in itertools.compress(candidates, wanted)]
    loaded = iter(at_once(load, objects, sequential_max=1))
    return [next(loaded) if is_wanted else None for is_wanted in wanted]


def index_or_none(fetcher: Fetcher, objects: SegmentObjects) -> SegmentMap | None:
    """A segment's index; ``None`` for a damaged one: the task that reads it reports or skips it, by the options."""
    try:
        return fetcher.index(objects, keep=False)
    except OffloaderError as error:
        if error.retryable:
            raise
        return None


def _piece(
    options: SourceOptions, needs: Needs, candidate: _Candidate, segment_map: SegmentMap | None, opening: float
) -> _Piece:
    """Costs of a segment's blocks for a task, in bytes and at least ``opening``; equal without the index."""
    summary = candidate.summary
    if segment_map is None:
        total = candidate.bytes_wanted if needs is Needs.PAYLOADS else summary.entries * _ROW_BYTES[needs]
        return _Piece(candidate, max(summary.blocks, 1), max(float(total), opening))
    numbers = wanted_blocks(options, segment_map, candidate.first, candidate.last)
    costs = (
        segment_map.blocks.length[numbers].astype(np.float64)
        if needs is Needs.PAYLOADS or not segment_map.has_extension
        else segment_map.blocks.entries[numbers].astype(np.float64) * _ROW_BYTES[needs]
    )
    costs *= max(1.0, opening / max(float(costs.sum()), 1.0))
    return _Piece(candidate, len(numbers), float(costs.sum()), numbers, costs)


def wanted_blocks(
    options: SourceOptions, segment_map: SegmentMap, first: Position, last: Position
) -> NDArray[np.int64]:
    """Numbers of the blocks that may hold wanted rows, in the order of positions."""
    numbers = segment_map.find(first, last)
    blocks = segment_map.blocks
    return numbers[_in_time(options, blocks.publish_time_min_ms[numbers], blocks.publish_time_max_ms[numbers])]


def _packed(pieces: Sequence[_Piece], split_bytes: int) -> list[tuple[SegmentSlice, ...]]:
    """Splits the row of all blocks into partitions of equal cost, at block boundaries."""
    total = sum(piece.cost for piece in pieces)
    count = max(1, int(-(-total // split_bytes)))
    partitions: list[list[SegmentSlice]] = [[] for _ in range(count)]
    scale = count / max(total, 1.0)
    before = 0.0
    for piece in pieces:
        candidate = piece.candidate
        for home, blocks in piece.homes(before, scale, count):
            partitions[home].append(SegmentSlice(candidate.objects, blocks, candidate.first, candidate.last))
        before += piece.cost
    return [tuple(partition) for partition in partitions if partition]


def _ranges(numbers: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """``[3, 4, 5, 9]`` -> ``((3, 6), (9, 10))``."""
    ordered = np.sort(numbers)
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    starts = np.concatenate([ordered[:1], ordered[breaks + 1]]).tolist()
    stops = (np.concatenate([ordered[breaks], ordered[-1:]]) + 1).tolist()
    return tuple(zip(starts, stops, strict=True))


_log = logging.getLogger("offloader.spark")

#: The pipe to the JVM is efficient with batches of about 10,000 rows and 1 to 4 MiB.
BATCH_ROWS_MAX = 16_384
BATCH_BYTES_MAX = 4 * 1024 * 1024
_BATCH_ROWS = 8_192
_BATCH_BYTES = 1024 * 1024
_REMEDY = "option onBadMessage=null makes rows of bad entries with the reason, messageBytesMax allows larger entries"
#: Index cache of a Python worker: a hundred segments of 1 GiB.
INDEXES_KEPT_BYTES_MAX = 16 * 1024 * 1024
#: Blocks whose positions one step makes from the index: enough to be worth a thread switch.
_BLOCKS_PER_STEP = 64


#: Process-wide: later tasks of the same segment neither fetch nor parse its index.
_INDEXES = Cache(INDEXES_KEPT_BYTES_MAX)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Entries of one ledger in columns, payloads only if wanted. Shapes as in ``EntryBatch``."""

    objects: SegmentObjects
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
    projection: Projection,
    store: ObjectStore,
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the streams' order, within the bounds of ``options``.

    Raises:
        CorruptError, ObjectChangedError, ObjectMissingError, TrimmedError: unless the options skip them.
        StoreUnavailableError: the store doesn't respond; Spark retries the task.
    """
    task = _Task(options, projection, Fetcher(store, ReadSettings(), cache=_INDEXES))
    before = requests_of(store)
    try:
        with closing(task.rows(slices)) as rows:
            batches_of = _message_batches if options.content == "messages" else _entry_batches
            yield from _merged(batches_of(rows, projection.schema, options))
    finally:
        then, gets, done = before.get("get", VerbCount()), requests_of(store).get("get", VerbCount()), task.done
        _log.info(
            f"read {len(slices)} slices: {done['rows']} rows with payload columns of {done['payload_bytes']} bytes"
            f" out of {gets.bytes_received - then.bytes_received} bytes"
            f" in {gets.requests - then.requests} GETs ({gets.errors - then.errors} failed);"
            f" {done['blocks']} blocks read, {done['ruled_out']} ruled out,"
            f" {done['skipped']} damaged or missing pieces skipped"
        )


class _Task:
    def __init__(self, options: SourceOptions, projection: Projection, fetcher: Fetcher) -> None:
        self._options = options
        # Time bounds are exact, so they need times even if the schema doesn't.
        self._needs = max(projection.needs, Needs.ENTRY_TABLES if _bounds_times(options) else Needs.INDEXES)
        self._fetcher = fetcher
        self._sizes = request_sizes(fetcher.settings.request_size)
        self._lock = threading.Lock()
        #: Statistics: skipped pieces were damaged or missing, blocks that are ruled out can't hold wanted rows.
        self.done = Counter[str]()

    def rows(self, slices: Sequence[SegmentSlice]) -> Generator[_Rows, None, None]:
        """The rows, one piece per block; prefetches across slices."""
        workers = self._fetcher.workers
        maps = workers.in_order(partial(self._index, each) for each in slices)
        steps = (
            Sized(partial(self._bounded, each, step.call), step.held_bytes)
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

    def _steps(self, piece: SegmentSlice, segment_map: SegmentMap) -> Iterator[Sized[list[_Rows]]]:
        """The steps of a slice, in order: at most one storage call each."""
        numbers = wanted_blocks(self._options, segment_map, piece.first, piece.last)
        own = np.zeros(len(segment_map.blocks), dtype=bool)
        for start, stop in piece.blocks:
            own[start:stop] = True
        numbers = numbers[own[numbers]]
        self.done["blocks"] += len(numbers)
        self.done["ruled_out"] += int(own.sum()) - len(numbers)
        if not segment_map.has_extension or self._needs is Needs.PAYLOADS:
            for run in block_runs(piece.objects, segment_map, numbers, self._sizes):
                yield Sized(partial(self._whole_blocks, run), run.held_bytes)
        elif self._needs is Needs.ENTRY_TABLES:
            for number in numbers.tolist():
                yield Sized(partial(self._entry_table, piece, segment_map, number), 0)
        else:
            for start in range(0, len(numbers), _BLOCKS_PER_STEP):
                yield Sized(partial(_positions, piece, segment_map, numbers[start : start + _BLOCKS_PER_STEP]), 0)

    def _whole_blocks(self, run: BlockRun) -> list[_Rows]:
        return [
            _Rows(run.objects, batch.ledger_id, batch.entry_ids, batch.publish_times_ms, batch.payloads)
            for batch in self._fetcher.run(run, skip=self._skip)
        ]

    def _entry_table(self, piece: SegmentSlice, segment_map: SegmentMap, number: int) -> list[_Rows]:
        table = self._fetcher.entry_table(piece.objects, segment_map, number)
        [rows] = _positions(piece, segment_map, np.array([number]))
        return [replace(rows, publish_times_ms=table.publish_times_ms)]

    def _skip(self, error: OffloaderError) -> None:
        corrupt = isinstance(error, (CorruptError, ObjectChangedError)) and self._options.skip_corrupt
        missing = isinstance(error, (ObjectMissingError, TrimmedError)) and self._options.skip_missing
        missing = missing or (isinstance(error, TrimmedError) and not self._options.fail_on_data_loss)
        if not corrupt and not missing:
            raise error
        with self._lock:
            self.done["skipped"] += 1
        _log.warning("skipped: %s", error)

    def _bounded(self, piece: SegmentSlice, step: Callable[[], list[_Rows]]) -> list[_Rows]:
        try:
            found = step()
        except OffloaderError as error:
            self._skip(error)
            return []
        bounded = [self._in_time(_between(piece, rows)) for rows in found]
        return [rows for rows in bounded if len(rows.entry_ids)]

    def _in_time(self, rows: _Rows) -> _Rows:
        times, options = rows.publish_times_ms, self._options
        if times is None or not _bounds_times(options):
            return rows
        mask = (
            published_between(rows.entries, options.start_ms, options.end_ms)
            if options.content == "messages"
            else _in_time(options, times, times) & (times != TIME_UNKNOWN_MS)
        )
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


def _entry_batches(rows: Iterable[_Rows], schema: pa.Schema, _: SourceOptions) -> Iterator[pa.RecordBatch]:
    for piece in chain.from_iterable(map(_pieces, rows)):
        yield pa.RecordBatch.from_arrays([_entry_column(name, piece) for name in schema.names], schema=schema)


def _message_batches(rows: Iterable[_Rows], schema: pa.Schema, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    from formats.pulsar.messages import BadEntry, MessageDecoder, MessageOptions  # protobuf, which entries don't need

    how = MessageOptions(
        # Entries don't hold the stream's name.
        columns=tuple(name for name in schema.names if name != "stream") or ("batch_index",),
        bad_entries=BadEntry.NULL if options.bad_messages_are_rows else BadEntry.ERROR,
        markers=options.markers,
        payload_bytes_max=options.message_bytes_max,
        rows_max=BATCH_ROWS_MAX,
        bytes_max=BATCH_BYTES_MAX,
    )
    for piece in rows:
        stream = piece.objects.stream
        source = f"stream {stream}, object {piece.objects.data_key},"
        for batch in decode_messages(piece.entries, MessageDecoder(how, source=source), remedy=_REMEDY):
            yield pa.RecordBatch.from_arrays([_column(field, batch, stream) for field in schema], schema=schema)


def _column(field: pa.Field, messages: pa.RecordBatch, stream: str) -> pa.Array:
    if field.name == "stream":
        return repeated_text(stream, messages.num_rows)
    import pyarrow.compute as pc

    column = messages.column(field.name)
    # Times are ms; the decoder excludes those that overflow as us.
    is_time = pa.types.is_timestamp(field.type)
    return pc.multiply(column.view(pa.int64()), US_PER_MS).view(field.type) if is_time else column


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
            return repeated_text(rows.objects.stream, count)
        case "ledger_id":
            return pa.array(np.full(count, rows.ledger_id, dtype=np.int64))
        case "entry_id":
            return pa.array(rows.entry_ids)
        case "publish_time":
            times_ms = rows.publish_times_ms
            assert times_ms is not None
            beyond = (times_ms > TABLE_TIME_MS_MAX) | (times_ms < TABLE_TIME_MS_MIN)
            unknown = beyond | (times_ms == TIME_UNKNOWN_MS)
            micros = pa.array(times_ms * US_PER_MS, mask=unknown if unknown.any() else None)
            return micros.view(pa.timestamp("us", tz="UTC"))
        case _:
            assert rows.payloads is not None
            return rows.payloads
