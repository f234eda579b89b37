"""Scan planning on the driver: streams -> pinned manifests -> segments -> slices, packed into partitions."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.segment import SegmentSummary
from formats.segment_map import SegmentMap
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.manifest.leases import take_lease
from offloader.manifest.log import list_streams
from offloader.manifest.state import ManifestState
from offloader.parallel_map import at_once
from offloader.read import fetch as plan
from offloader.read.cold import objects_of
from offloader.read.fetch import Fetcher, SegmentObjects
from offloader.read.reader import load_manifest_at, load_stream, require_inside
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.spark.options import Needs, Predicate, SourceOptions, block_mask, matches_value
from offloader.store.base import ObjectStore

#: Indexes that planning reads. Further segments are split by their number of blocks alone, and pruned by the tasks.
INDEXES_READ_MAX = 1000
#: Cost of a row in a task without payloads, in bytes: the ids, and with them the publish time.
_ROW_BYTES = {Needs.INDEXES: 16, Needs.ENTRY_TABLES: 24}
_PATTERN = frozenset("*?[")


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


def pinned_states(options: SourceOptions, predicates: Sequence[Predicate], store: ObjectStore) -> list[ManifestState]:
    """One view of each stream's manifest, for all further planning.

    Raises:
        NotFound: no such stream, or none matches the pattern.
        InvalidCall, Trimmed: ``asOfManifest`` can't be pinned.
    """
    names = streams_named(options, store)
    if not names:
        raise NotFound(f"no stream in {store.url} fits {options.stream}", hint="`offloader ls` lists the streams")
    names = [name for name in names if matches_value(predicates, "stream", name)]
    if options.lease_seconds:
        # Before loading; leases are neither renewed nor ended, and hold for the requested time.
        writable = options.open_store(read_only=False)
        for name in names:
            take_lease(writable, name, options.lease_seconds, clock=SystemClock(), reader="Spark")
    if options.as_of_manifest is not None:
        if len(names) > 1:
            raise InvalidCall(
                f"option asOfManifest pins one stream, {options.stream} names {len(names)}", hint="name one stream"
            )
        return [load_manifest_at(store, name, options.as_of_manifest) for name in names]
    return load_streams(names, store)


def load_streams(names: Iterable[str], store: ObjectStore, *, may_be_gone: bool = False) -> list[ManifestState]:
    """The newest view of each stream, several loaded concurrently, with the errors of ``load_stream``.

    With ``may_be_gone`` deleted streams are left out.
    """
    load = _load_or_none if may_be_gone else load_stream
    return [state for state in at_once(partial(load, store), names, sequential_max=1) if state is not None]


def _load_or_none(store: ObjectStore, name: str) -> ManifestState | None:
    try:
        return load_stream(store, name)
    except NotFound:
        return None


def is_pattern(stream: str) -> bool:
    """Whether the option ``stream`` is a pattern and not a name."""
    return bool(_PATTERN & set(stream))


def streams_named(options: SourceOptions, store: ObjectStore) -> list[str]:
    """The streams of the option ``stream``, sorted: the named one, or all current matches."""
    pattern = options.stream
    if not is_pattern(pattern):
        return [pattern]
    literal = pattern[: min(pattern.index(sign) for sign in _PATTERN if sign in pattern)]
    return [name for name in list_streams(store, prefix=literal) if fnmatch.fnmatchcase(name, pattern)]


def plan_slices(
    options: SourceOptions, predicates: Sequence[Predicate], needs: Needs, store: ObjectStore
) -> list[tuple[SegmentSlice, ...]]:
    """The partitions of a scan of entries, of about equal cost, each at most about ``splitBytes``.

    Raises:
        the errors of ``pinned_states``;
        Trimmed, BeyondEnd: ``startPosition`` or ``endPosition`` is outside of the one named stream. With a pattern they
            are mere bounds.
    """
    states = pinned_states(options, predicates, store)
    ranges = [wanted for state in states if (wanted := _wanted_range(options, state)) is not None]
    return plan_ranges(options, predicates, needs, ranges, store)


def plan_ranges(
    options: SourceOptions,
    predicates: Sequence[Predicate],
    needs: Needs,
    ranges: Iterable[StreamRange],
    store: ObjectStore,
) -> list[tuple[SegmentSlice, ...]]:
    """As ``plan_slices``, of given ranges; ``options`` bounds only times."""
    candidates = [candidate for wanted in ranges for candidate in _candidates(options, predicates, wanted, store)]
    maps = _indexes(options, predicates, candidates, store)
    pieces = [
        _piece(options, predicates, needs, candidate, segment_map)
        for candidate, segment_map in zip(candidates, maps, strict=True)
    ]
    return _packed([piece for piece in pieces if piece.blocks], options.split_bytes)


def _wanted_range(options: SourceOptions, state: ManifestState) -> StreamRange | None:
    ends = plan.whole_range(state)
    first, last = options.start_position, options.end_position
    if (first is not None or last is not None) and not is_pattern(options.stream):
        require_inside(state, ends, first, last)
    if ends is None:
        return None
    return StreamRange(state, max(first or ends[0], ends[0]), min(last or ends[1], ends[1]))


def _candidates(
    options: SourceOptions, predicates: Sequence[Predicate], wanted: StreamRange, store: ObjectStore
) -> list[_Candidate]:
    state, first, last = wanted.state, wanted.first, wanted.last
    return [
        _Candidate(objects_of(state.stream, record, store, options.relocate), record.summary, first, last)
        for record in plan.segments_between(plan.readable_segments(state), first, last)
        if record.summary is not None and _segment_matches(options, predicates, record.summary)
    ]


def _segment_matches(options: SourceOptions, predicates: Sequence[Predicate], summary: SegmentSummary) -> bool:
    if not _prunes(options, predicates):
        return True
    low, high = summary.publish_time_min_ms, summary.publish_time_max_ms
    if not _in_time(options, np.array([low]), np.array([high]))[0]:
        return False
    spans = summary.ledgers
    return bool(
        block_mask(
            predicates,
            {
                "ledger_id": np.array([span.ledger_id for span in spans], dtype=np.int64),
                "first_entry_id": np.array([span.first_entry_id for span in spans], dtype=np.int64),
                "last_entry_id": np.array([span.last_entry_id for span in spans], dtype=np.int64),
                "publish_time_min_ms": np.full(len(spans), low, dtype=np.int64),
                "publish_time_max_ms": np.full(len(spans), high, dtype=np.int64),
            },
        ).any()
    )


def _prunes(options: SourceOptions, predicates: Sequence[Predicate]) -> bool:
    return options.start_ms is not None or options.end_ms is not None or bool(predicates)


def _in_time(options: SourceOptions, low_ms: NDArray[np.int64], high_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
    unknown = (low_ms == TIME_UNKNOWN_MS) | (high_ms == TIME_UNKNOWN_MS)
    mask = np.ones(len(low_ms), dtype=bool)
    if options.start_ms is not None:
        mask &= unknown | (high_ms >= options.start_ms)
    if options.end_ms is not None:
        mask &= unknown | (low_ms < options.end_ms)
    return mask


def _indexes(
    options: SourceOptions, predicates: Sequence[Predicate], candidates: Sequence[_Candidate], store: ObjectStore
) -> list[SegmentMap | None]:
    """Indexes of the segments to split or prune; ``None`` for others and for damaged ones."""
    prunes = _prunes(options, predicates)
    wanted = [c.summary.data_bytes > options.split_bytes or prunes or not c.is_whole for c in candidates]
    if sum(wanted) > INDEXES_READ_MAX:
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
    options: SourceOptions,
    predicates: Sequence[Predicate],
    needs: Needs,
    candidate: _Candidate,
    segment_map: SegmentMap | None,
) -> _Piece:
    """Costs of a segment's blocks for a task, in bytes; equal without the index."""
    summary = candidate.summary
    if segment_map is None:
        total = summary.data_bytes if needs is Needs.PAYLOADS else summary.entries * _ROW_BYTES[needs]
        return _Piece(candidate, max(summary.blocks, 1), float(total))
    numbers = wanted_blocks(options, predicates, segment_map, candidate.first, candidate.last)
    if needs is Needs.PAYLOADS or not segment_map.has_extension:
        costs = segment_map.blocks.length[numbers].astype(np.float64)
    else:
        costs = segment_map.blocks.entries[numbers].astype(np.float64) * _ROW_BYTES[needs]
    return _Piece(candidate, len(numbers), float(costs.sum()), numbers, costs)


def wanted_blocks(
    options: SourceOptions, predicates: Sequence[Predicate], segment_map: SegmentMap, first: Position, last: Position
) -> NDArray[np.int64]:
    """Numbers of the blocks that may hold wanted rows, in the order of positions."""
    numbers = segment_map.find(first, last)
    blocks = segment_map.blocks
    columns = {
        name: getattr(blocks, name)[numbers]
        for name in ("ledger_id", "first_entry_id", "last_entry_id", "publish_time_min_ms", "publish_time_max_ms")
    }
    mask = block_mask(predicates, columns)
    mask &= _in_time(options, columns["publish_time_min_ms"], columns["publish_time_max_ms"])
    return numbers[mask]


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
