"""Read a stream by position or by time, across segments and tiers, or read one ledger."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from formats.entries import Entry, EntryBatch, Position
from formats.index import LedgerGroup
from formats.metadata.messages import BookKeeperLedger, OffloadContext, PulsarLedger
from formats.segment_map import SegmentMap
from formats.summary import Layout
from offloader.errors import (
    BeyondEndError,
    ClosedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    TrimmedError,
    UnsupportedError,
)
from offloader.ledgers.base import ReadableLedgers, newest, newest_listed
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import load_manifest_view_at
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.names import NamedStreams, named_streams, parts_of, stream_name
from offloader.manifest.noted import noted_by, require_absence_noted, require_noted
from offloader.manifest.protection import HeldLease, take_lease
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.source_identity import CheckedLedgers
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import CACHED_READ_CACHE_SHARE, ColdTier, first_at, require_same_place
from offloader.read.fetch import Cache, Fetcher, SegmentObjects, block_runs, newest_view, process_cache
from offloader.read.ranges import Run, consecutive
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore, require_open_store
from offloader.times import moment_ms


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries in stream order, as batches: a range may span several ledgers, an ``EntryBatch`` has one.

    Attributes:
        batches: none of them empty, ascending.
    """

    batches: tuple[EntryBatch, ...]

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over single entries (a convenience; hot paths use the batches)."""
        for batch in self.batches:
            yield from batch.entries()

    @property
    def first(self) -> Position | None:
        """Position of the first entry; ``None`` when there is none."""
        return self.batches[0].first if self.batches else None

    @property
    def last(self) -> Position | None:
        """Position of the last entry; ``None`` when there is none."""
        return self.batches[-1].last if self.batches else None

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of all entries together."""
        return sum(batch.payload_bytes for batch in self.batches)

    def to_arrow(self) -> pa.Table:
        """Columns ledger_id, entry_id, publish_time (ms, UTC, null = unknown), payload; payloads aren't copied."""
        parts = [batch.to_arrow() for batch in self.batches] or [EntryBatch.build(0, 0, []).to_arrow()]
        return pa.Table.from_batches(parts)


#: For an empty view of a stream that does not exist.
NO_INCARNATION = UUID(int=0)
#: Number of stream names suggested in an error about an unknown stream.
SUGGESTIONS_MAX = 3


def load_stream(
    store: ObjectStore,
    stream: str,
    *,
    may_be_absent: bool = False,
    meanwhile: Callable[[ManifestState], object] | None = None,
) -> ManifestState:
    """The newest view of a stream, as ``load_manifest``, with similar names in the error's hint.

    ``stream`` may be a topic's name, ``persistent://tenant/ns/topic``. ``may_be_absent`` returns an empty view instead
    of raising ``NotFoundError``.

    Raises:
        NotFoundError: the stream does not exist, or was deleted.
        InvalidCallError: an invalid stream name.
        CorruptError: the manifest is damaged.
    """
    stream = stream_name(stream)
    try:
        state = load_manifest(store, stream, meanwhile=meanwhile)
    except NotFoundError as error:
        if may_be_absent:
            return ManifestState(stream=stream, incarnation=NO_INCARNATION)
        named = parts_of(store, stream)
        if named.partitions:
            raise NotFoundError(
                f"{stream} is a topic with {len(named.partitions)} {named.kind}s, but a single stream is required",
                hint=f"name {named.some()}",
            ) from error
        similar = difflib.get_close_matches(stream, list_streams(store), n=SUGGESTIONS_MAX)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "run `offloader ls` to list the streams"
        raise NotFoundError(f"stream {stream} isn't in {store.url}", hint=hint) from error
    if state.stream_deleted:
        raise NotFoundError(f"stream {stream} in {store.url} was deleted")
    return state


def load_of_source(store: ObjectStore, stream: str, source: ReadableLedgers | None) -> ManifestState:
    """As ``load_stream`` for a reader of both tiers: an empty view if nothing is offloaded yet.

    Raises:
        StoreMismatchError: the store lacks data that the hot tier has recorded as offloaded.
        CorruptError: as ``load_stream``; or only the catalogue entry is missing.
    """
    noted = noted_by(source)
    state = load_stream(store, stream, may_be_absent=True)
    if state.incarnation == NO_INCARNATION:
        require_absence_noted(store, state.stream, source, noted)
    elif noted:
        require_noted(store, state, source, noted)
    return state


def existing_streams(store: ObjectStore, given: str) -> NamedStreams:
    """As ``named_streams``, for an existing stream or topic.

    A stream with an unreadable catalogue entry exists.

    Raises:
        NotFoundError: the stream does not exist; similar names are in the hint.
        InvalidCallError: not the name of a stream or of a persistent topic.
    """
    named = named_streams(store, given)
    with suppress(CorruptError, UnsupportedError):
        if not named.partitions and read_entry(store, named.name) is None:
            load_stream(store, named.name)
    return named


def open_stream_reader(
    store: ObjectStore,
    stream: str,
    *,
    settings: ReadSettings | None = None,
    source: ReadableLedgers | None = None,
    state: ManifestState | None = None,
    cache: Cache | None = None,
    executor: Executor | None = None,
    on_missing: Literal["error", "skip"] = "error",
    lease_seconds: int = 0,
    clock: Clock | None = None,
) -> Reader:
    """Open a reader of one stream; arguments and errors as for ``offloader.open_reader``, which also opens topics."""
    require_open_store(store)
    if lease_seconds and state is not None:
        raise InvalidCallError(
            f"stream {stream}: a lease only protects a view that is loaded after the lease", hint="omit the state"
        )
    stream = stream_name(stream)
    lease = take_lease(store, stream, lease_seconds, clock=clock or SystemClock()) if lease_seconds else None
    try:
        chosen = settings or ReadSettings()
        shared = process_cache(chosen.cache_size_max) if cache is None else cache
        fetcher = Fetcher(store, chosen, cache=shared, executor=executor)
        if state is None and source is None:
            state = load_stream(store, stream, meanwhile=lambda view: ColdTier(fetcher, view).read_ahead())
        elif state is None:
            state = load_of_source(store, stream, source)
        return Reader(fetcher, state, source, {} if on_missing == "skip" else None, lease)
    except BaseException:
        if lease is not None:
            lease.end()
        raise


def require_inside(
    state: ManifestState, ends: tuple[Position, Position] | None, first: Position | None, last: Position | None
) -> None:
    """Check a requested range, both ends included, ``None`` = not bounded, against the stream's readable ``ends``.

    Raises:
        InvalidCallError: ``last`` is before ``first``.
        TrimmedError: ``first`` or ``last`` is before the beginning.
        BeyondEndError: ``last`` or ``first`` is after the end.
    """
    if first is not None and last is not None and last < first:
        raise InvalidCallError(
            f"stream {state.stream}: {first}..{last} ends before it begins", hint="swap the two positions"
        )
    if ends is None:
        raise BeyondEndError(f"stream {state.stream} has no readable entries", last_available=None)
    begin, end = ends
    for verb, position in (("begin", first), ("end", last)):
        if position is None:
            continue
        if position < begin:
            why = "was deleted: the stream begins at" if state.head is not None else "is before the first entry"
            raise TrimmedError(
                f"stream {state.stream}: position {position} {why} {begin}",
                first_available=begin,
                hint=f"begin at {begin}" if verb == "begin" else f"end at {begin} or later",
            )
        if position > end:
            raise BeyondEndError(
                f"stream {state.stream}: position {position} is beyond the last readable entry {end}",
                last_available=end,
                hint=f"end at {end}" if verb == "end" else f"begin at {end} or earlier",
            )


def _first_of(source: ReadableLedgers, head: Position | None) -> Position | None:
    start = Position(0, 0) if head is None else head
    found = (info for info in source.ledgers() if Position(info.ledger_id, info.last_entry_id) >= start)
    return next((max(start, Position(info.ledger_id, 0)) for info in found if info.entries), None)


class Reader:
    """Reads one stream; see ``offloader.open_reader``. Thread-safe and stateless.

    Between reads it holds no threads and no connections: closing it only makes later calls fail.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        state: ManifestState,
        source: ReadableLedgers | None = None,
        skipped: dict[UUID, str] | None = None,
        lease: HeldLease | None = None,
    ) -> None:
        self.state = state
        self.stream = state.stream
        self._fetcher = fetcher
        #: As given, and compared with the manifest whenever it is listed, which every read does first.
        self._given = source
        self._source = None if source is None else CheckedLedgers(source, lambda: state)
        self._skipped = skipped
        self._lease = lease
        #: Whether entries that both tiers hold are read from the hot tier.
        self._prefers_hot = source is not None and fetcher.settings.read_priority == "bookkeeper-first"
        self._cold = ColdTier(fetcher, state, skipped)
        self._closed = False

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the reader and end its lease; later reads raise ``ClosedError``. The store stays open. Idempotent."""
        if self._lease is not None and not self._closed:
            self._lease.end()
        self._closed = True

    @property
    def first_position(self) -> Position | None:
        """The first readable position (the start position after a truncation); ``None`` when there is no entry."""
        if self._cold.ends is not None:
            return self._cold.ends[0]
        return None if self._source is None else _first_of(self._source, self.state.head)

    @property
    def last_position(self) -> Position | None:
        """The last readable position: the committed end, or the last entry of the hot tier; ``None``: no entry."""
        hot = None if self._source is None else newest_listed(self._source.ledgers())
        cold = None if self._cold.ends is None else self._cold.ends[1]
        return newest(hot, cold)

    @property
    def has_hot_tier(self) -> bool:
        """Whether entries that aren't offloaded yet are also read."""
        return self._source is not None

    @property
    def skipped(self) -> Mapping[UUID, str]:
        """Segments skipped because an object is missing, with the reason; empty without ``on_missing="skip"``."""
        return dict(self._skipped or {})

    def segments(self) -> list[SegmentRecord]:
        """The offloaded segments with readable entries, in stream order."""
        return list(self._cold.segments)

    def refresh(self, hot_of: Callable[[ManifestState], ReadableLedgers | None] | None = None) -> Reader:
        """A reader of the same stream at its current manifest, with its own lease; shares cache and threads.

        Args:
            hot_of: returns the hot tier for that manifest; default: the same one.
        """
        self._require_open()
        lease = None if self._lease is None else self._lease.another()
        state = load_stream(self._fetcher.store, self.stream, may_be_absent=self._given is not None)
        return Reader(self._fetcher, state, self._given if hot_of is None else hot_of(state), self._skipped, lease)

    def read(self, first: Position, last: Position) -> Entries:
        """Exactly the entries with ``first <= position <= last``, in order.

        Blocks of short ranges are cached. Positions that never held an entry (between ledgers, in recorded gaps) are no
        error inside the stream's range.

        Raises:
            InvalidCallError: ``last`` is before ``first``.
            TrimmedError: ``first`` is before the stream's beginning.
            BeyondEndError: ``last`` is after the last readable entry.
            CorruptError, ObjectMissingError, ObjectChangedError, StoreUnavailableError: objects are damaged, or the
                store is unavailable.
        """
        self._checked_range(first, last)
        ends, batches = self._cold.ends, None
        if ends is not None and last <= ends[1] and not self._prefers_hot:
            batches = self._cold.cached(first, last)
        if batches is None:
            batches = list(self._all(first, last))
        return Entries(tuple(batch for batch in batches if len(batch)))

    def scan(
        self, start: Position | None = None, end: Position | None = None, batch_bytes: int | None = None
    ) -> Generator[EntryBatch, None, None]:
        """All entries from ``start`` to ``end``, both included, in order; recorded gaps are skipped.

        Blocks are prefetched in parallel and bypass the cache. Close the iterator to stop early.

        Args:
            start: default: the first position.
            end: default: the last position at the time of this call.
            batch_bytes: maximum payload bytes of one batch (a larger entry is a separate batch); default: from the
                settings.

        Raises:
            as ``read``: for the arguments immediately, for the data when the iteration reaches it.
        """
        ends = self._checked_range(start, end)
        return _sliced(() if ends is None else self._all(*ends), batch_bytes or self._fetcher.settings.batch_size)

    def count(self, first: Position | None = None, last: Position | None = None) -> int:
        """Number of entries from ``first`` to ``last``, both included.

        Computed from the manifest and, for segments that the range cuts, the index. Only plain Pulsar blocks at the
        ends of the range, and entries in the hot tier, are read. With ``on_missing="skip"`` each segment's objects are
        looked up.

        Raises:
            as ``scan``.
        """
        if (wanted := self._checked_range(first, last)) is None:
            return 0
        (first, last), ends, total = wanted, self._cold.ends, 0
        if ends is not None and first <= ends[1]:
            total += self._cold.count(first, min(last, ends[1]))
            first = ends[1].next()
        if self._source is not None and first <= last:
            total += sum(map(len, self._hot(self._source, first, last)))
        return total

    def narrowed(
        self, first: Position, last: Position, may_match: Callable[[Sequence[Run]], Sequence[bool]]
    ) -> list[tuple[Position, Position]]:
        """The parts of a range that may match, from the manifest and from the indexes at the ends of each part.

        Args:
            first, last: inside the stream, both included.
            may_match: for each run of entries, whether one of them may match.
        """
        self._require_open()
        ends = self._cold.ends
        if self._prefers_hot:
            return [(first, last)]
        found = [] if ends is None or first > ends[1] else self._cold.narrowed(first, min(last, ends[1]), may_match)
        if self._source is not None and (ends is None or last > ends[1]):
            found.append((first if ends is None else max(first, ends[1].next()), last))
        return found

    def entry_ranges(self, first: Position, last: Position) -> Generator[tuple[Position, Position], None, None]:
        """The positions from ``first`` to ``last`` that hold entries, as ranges inside one ledger, in order.

        Reads the manifest, and the index of a segment with missing entry ids. Data is read from plain Pulsar segments
        with missing ids and from the hot tier.
        """
        self._require_open()
        ends = self._cold.ends
        if ends is not None and first <= ends[1]:
            yield from self._cold.entry_ranges(first, min(last, ends[1]))
            first = ends[1].next()
        if self._source is not None and first <= last:
            for batch in self._hot(self._source, first, last):
                yield from consecutive(batch)

    def position_at(self, publish_time_ms: int | str | datetime) -> Position | None:
        """Earliest position whose publish time is ``publish_time_ms`` or later; ``None`` when there is none.

        Publish times need not ascend. Entries without a publish time are skipped. For segments with statistics this
        fetches one index and one block.

        Args:
            publish_time_ms: milliseconds since 1970 UTC, a time, or a text: ``"2026-11-25T08:00:00Z"``,
                ``"2026-11-25"`` (UTC without a zone), ``"-1h"``.
        """
        self._require_open()
        publish_time_ms = moment_ms(publish_time_ms, what="publish time")
        if (position := self._cold.position_at(publish_time_ms)) is not None:
            return position
        start = Position(0, 0) if self._cold.ends is None else self._cold.ends[1].next()
        last = None if self._source is None else newest_listed(self._source.ledgers())
        if last is not None and start <= last:
            found = (first_at(batch, publish_time_ms) for batch in self._batches(start, last))
            return next((position for position in found if position is not None), None)
        return None

    def scan_published(
        self, start: int | str | datetime | None = None, end: int | str | datetime | None = None
    ) -> Generator[EntryBatch, None, None]:
        """All entries of a time range, in order.

        Starts at the earliest entry published at or after ``start``, and stops before the earliest entry published at
        or after ``end``.

        Times as for ``position_at``; default: the stream's ends. Raises as ``scan``.
        """
        ends = (None if each is None else moment_ms(each, what="publish time") for each in (start, end))
        chosen = self.range_of(None, None, *ends)
        return _sliced((), 1) if chosen is None else self.scan(*chosen)

    def range_of(
        self, first: Position | None, last: Position | None, from_ms: int | None, to_ms: int | None
    ) -> tuple[Position | None, Position | None] | None:
        """First and last position of a range by positions, by publish times, or one end by each; ``None``: empty.

        Args:
            first, last: included; ``None``: by the time, else the stream's end.
            from_ms, to_ms: instead of ``first`` and ``last``: start at the earliest entry published at or after
                ``from_ms``, and stop before the earliest entry published at or after ``to_ms``.
        """
        if from_ms is not None:
            first = self.position_at(from_ms)
            if first is None or (last is not None and first > last):
                return None
        if to_ms is not None:
            after, begin = self.position_at(to_ms), first or self.first_position
            if after is not None and begin is not None and after <= begin:
                return None
            last = None if after is None else after.previous()
        return first, last

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the reader of stream {self.stream} is closed", hint="open another reader")
        if self._lease is not None:
            self._lease.renew_if_due()

    def _checked_range(self, first: Position | None, last: Position | None) -> tuple[Position, Position] | None:
        """The effective range, inside the stream; ``None``: all of a stream without entries."""
        self._require_open()
        begin, end = self.first_position, self.last_position
        ends = None if begin is None or end is None else (begin, end)
        if ends is None and first is None and last is None:
            return None
        require_inside(self.state, ends, first, last)
        assert ends is not None  # checked by the previous line
        return first or ends[0], last or ends[1]

    def _all(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from both tiers; renews the lease between batches."""
        for batch in self._batches(first, last):
            if self._lease is not None:
                self._lease.renew_if_due()
            yield batch

    def _batches(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from both tiers, one batch per block or hot read."""
        ends = self._cold.ends
        if ends is not None and first <= ends[1] and not self._prefers_hot:
            yield from self._cold.batches(first, min(last, ends[1]))
            first = ends[1].next()
        if self._source is not None and first <= last:
            yield from self._hot(self._source, first, last)

    def _hot(self, source: ReadableLedgers, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from the hot tier as far as it holds them, the rest from the cold tier."""
        expected = first
        while expected <= last:
            batch = source.read(expected, self._fetcher.settings.batch_size)
            if batch is None or not self._adjoins(expected, batch.first):
                # Either the end of a ledger, or a ledger that the hot tier released, possibly just now. Entries are
                # released only after the manifest records them, so a manifest loaded after this read decides.
                until = last if batch is None else min(last, Position(batch.ledger_id, batch.first.entry_id - 1))
                yield from self._cold_between(expected, until)
            if batch is None:
                return
            if len(part := batch.between(expected, last)):
                yield part
            expected = batch.last.next()

    def _adjoins(self, expected: Position, begin: Position) -> bool:
        """Whether no entry lies between, by the pinned manifest, which has no ledger after its end."""
        ends = self._cold.ends
        is_known = ends is not None and begin <= ends[1]
        return begin == expected or (is_known and self.state.follows(expected.previous(), begin))

    def _cold_between(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Cold-tier entries of a range that the hot tier does not hold."""
        cold = self._cold
        if cold.ends is None or last > cold.ends[1]:
            state = newest_view(self._fetcher.store, self.stream) or self.state
            end = state.committed_end()
            if end is not None and first <= end:
                self._require_kept(state, first)
                cold = ColdTier(self._fetcher, state, self._skipped)
        if cold.ends is not None and first <= min(last, cold.ends[1]):
            yield from cold.batches(first, min(last, cold.ends[1]))

    def _require_kept(self, state: ManifestState, position: Position) -> None:
        begin = state.first_position()
        if begin is None or (position < begin and not state.follows(position.previous(), begin)):
            raise TrimmedError(
                f"stream {self.stream}: position {position} was deleted during the read; the stream now begins at "
                f"{begin or 'nothing'}",
                first_available=begin,
                hint="reopen the stream",
            )


def _sliced(batches: Iterable[EntryBatch], batch_bytes: int) -> Generator[EntryBatch, None, None]:
    """The same entries in batches of at most ``batch_bytes`` payload bytes; a larger entry is a separate batch."""
    for batch in batches:
        if batch.payload_bytes <= batch_bytes:
            yield batch
            continue
        ends = batch.offsets[1:]
        start, before = 0, int(batch.offsets[0])
        while start < len(batch):
            stop = max(int(np.searchsorted(ends, before + batch_bytes, side="right")), start + 1)
            yield batch.slice(start, stop)
            start, before = stop, int(ends[stop - 1])


def load_manifest_at(store: ObjectStore, stream: str, record_id: int) -> ManifestState:
    """The view of ``stream`` as of record ``record_id``.

    Raises:
        NotFoundError: the stream does not exist.
        InvalidCallError: the manifest ends before that record, or a checkpoint replaced it.
        TrimmedError: segments of that view were retired since.
        CorruptError: a record is damaged.
    """
    newest = load_manifest(store, stream)
    if record_id > newest.record_id:
        raise InvalidCallError(
            f"stream {stream}: the manifest ends at record {newest.record_id}; record {record_id} does not exist yet"
        )
    state = load_manifest_view_at(store, newest, record_id)
    if gone := state.offloaded().not_in(newest.offloaded()):
        raise TrimmedError(
            f"stream {stream}: {len(gone)} segments of manifest record {record_id} were retired since; the first "
            f"is {gone[0].uuid} ({gone[0].begin}..{gone[0].end})",
            first_available=newest.first_position(),
            hint="pin a later record",
        )
    return state


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """The part of the ledger in one segment: entries ``first`` .. ``last``."""

    objects: SegmentObjects
    segment_map: SegmentMap
    first: int
    last: int


def read_offloaded(
    store: ObjectStore,
    ledger_id: int,
    context: OffloadContext,
    driver_metadata: Mapping[str, str],
    *,
    stream: str = "",
    settings: ReadSettings | None = None,
) -> ReadHandle:
    """Open a handle on one offloaded ledger (PIP-76 ``LedgerOffloader.readOffloaded``); reads the indexes it needs.

    Args:
        context: names the ledger's objects: one V1 attempt (``uuid``), or V2 segments, or both.
        driver_metadata: where the objects were written; empty, or this store's.
        stream: determines the keys; empty: Pulsar's own layout, objects at the store's root.

    Raises:
        InvalidCallError: the context has no complete segment, or a segment was written to another location than
            ``store``.
        NotFoundError: no segment has an entry of the ledger.
        ObjectMissingError, ObjectChangedError, CorruptError: the indexes are damaged.
    """
    relocate = (settings or ReadSettings()).relocate
    require_same_place(f"ledger {ledger_id}", driver_metadata, store, relocate)
    segments = [segment for segment in context.segments if segment.complete]
    for segment in segments:
        require_same_place(f"ledger {ledger_id}, segment {segment.uuid}", segment.driver_metadata, store, relocate)
    objects = [
        SegmentObjects(stream=stream, uuid=segment.uuid, at_root=is_at_root(segment.driver_metadata))
        for segment in segments
    ]
    # A context with segments has a separate uuid only if the ledger was also offloaded by V1.
    if context.complete and context.uuid is not None and not objects:
        at_root = is_at_root(context.driver_metadata)
        objects.append(SegmentObjects(stream=stream, uuid=context.uuid, ledger_id=ledger_id, at_root=at_root))
    if not objects:
        raise InvalidCallError(f"ledger {ledger_id}: no segment of it is completely offloaded")
    return ReadHandle(Fetcher(store, settings or ReadSettings()), ledger_id, objects)


class ReadHandle:
    """Reader of one ledger. Thread-safe.

    Attributes:
        length: payload bytes of the ledger in the newest metadata.
        closed_ledger: whether the metadata marks the ledger as closed.
    """

    def __init__(self, fetcher: Fetcher, ledger_id: int, objects: Sequence[SegmentObjects]) -> None:
        """Read the indexes of ``objects``; raises as ``read_offloaded``."""
        self.ledger_id = ledger_id
        self._fetcher = fetcher
        self._closed = False
        maps = [(each, fetcher.index(each)) for each in objects]
        groups = [
            (each, segment_map, group)
            for each, segment_map in maps
            for group in segment_map.ledgers
            if group.ledger_id == ledger_id and group.first_entry_id >= 0
        ]
        if not groups:
            raise NotFoundError(
                f"segments {', '.join(str(each.uuid) for each in objects)} have no entry of ledger {ledger_id}"
            )
        self._pieces = sorted(
            (self._piece(each, segment_map, group) for each, segment_map, group in groups),
            key=lambda piece: piece.first,
        )
        for before, after in itertools.pairwise(self._pieces):
            if after.first <= before.last:
                raise CorruptError(
                    f"ledger {ledger_id}: segments {before.objects.uuid} and {after.objects.uuid} "
                    f"both hold entry {after.first}"
                )
        self.last_entry_id = self._pieces[-1].last
        newest = self._pieces[-1]
        group = next(group for each, _, group in groups if each is newest.objects)
        self.closed_ledger = group.closed
        self.length = (
            BookKeeperLedger.decode(group.metadata).length_bytes
            if newest.segment_map.layout is Layout.V1
            else PulsarLedger.decode(group.metadata).size_bytes or 0
        )

    @property
    def first_entry_id(self) -> int:
        """The first entry that the segments hold."""
        return self._pieces[0].first

    def read(self, first_entry: int, last_entry: int) -> Entries:
        """Exactly the entries from ``first_entry`` to ``last_entry``, in order, across segments.

        Raises:
            InvalidCallError: not a valid range.
            BeyondEndError: after the last entry.
            NotFoundError: before the first offloaded entry, or in a gap between segments.
            ClosedError: the handle was closed.
            CorruptError, ObjectMissingError, ObjectChangedError, StoreUnavailableError.
        """
        self._require_held(first_entry, last_entry)
        first, last = Position(self.ledger_id, first_entry), Position(self.ledger_id, last_entry)
        batches = []
        for piece in self._pieces:
            if piece.first > last_entry or piece.last < first_entry:
                continue
            numbers = piece.segment_map.find(first, last)
            stored_bytes = int(piece.segment_map.blocks.length[numbers].sum())
            runs = block_runs(piece.objects, piece.segment_map, numbers, self._fetcher.settings.request_size)
            found = (
                self._fetcher.kept_blocks(piece.objects, piece.segment_map, numbers)
                if stored_bytes <= self._fetcher.settings.cache_size_max // CACHED_READ_CACHE_SHARE
                else list(itertools.chain.from_iterable(self._fetcher.runs(runs)))
            )
            for batch in found:
                if len(part := batch.between(first, last)):
                    self._fetcher.count_used(piece.objects.stream, part)
                    batches.append(part)
        return Entries(tuple(batches))

    def close(self) -> None:
        """Close the handle: later reads raise ``ClosedError``. Idempotent."""
        self._closed = True

    def _require_held(self, first_entry: int, last_entry: int) -> None:
        if self._closed:
            raise ClosedError(f"the handle on ledger {self.ledger_id} is closed", hint="open another handle")
        if not 0 <= first_entry <= last_entry:
            raise InvalidCallError(
                f"ledger {self.ledger_id}: entries {first_entry}..{last_entry} are not a valid range"
            )
        if last_entry > self.last_entry_id:
            raise BeyondEndError(
                f"ledger {self.ledger_id}: entry index: {last_entry} beyond last entry id: {self.last_entry_id}",
                last_available=Position(self.ledger_id, self.last_entry_id),
            )
        expected = first_entry
        for piece in self._pieces:
            if expected > last_entry:
                return
            if piece.first > expected:
                raise NotFoundError(
                    f"ledger {self.ledger_id}: entries {expected}..{piece.first - 1} aren't offloaded to this store"
                )
            expected = max(expected, piece.last + 1)

    def _piece(self, objects: SegmentObjects, segment_map: SegmentMap, group: LedgerGroup) -> _Piece:
        blocks = segment_map.blocks
        own = blocks.ledger_id == self.ledger_id
        first = int(blocks.first_entry_id[own].min())
        if segment_map.has_extension:
            return _Piece(objects, segment_map, first, int(blocks.last_entry_id[own].max()))
        # A plain index only has the starts of the blocks. The ledger's end in this segment comes from the metadata,
        # which may be too early (the ledger was open) or too late (it continues in the next segment).
        numbers = segment_map.find(
            Position(self.ledger_id, int(blocks.first_entry_id[own].max())), Position(self.ledger_id, 2**63 - 1)
        )
        [batch] = self._fetcher.kept_blocks(objects, segment_map, numbers[-1:])
        last = int(batch.entry_ids[-1]) if len(batch) else group.last_entry_id
        return _Piece(objects, segment_map, first, last)
