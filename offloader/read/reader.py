"""A stream's reader: by position or by time, one entry or all of it, across segments, layouts and tiers.

Owns what the caller sees of a stream: which positions there are, and exactly the asked entries. Must never
look at a newer manifest by itself than the one it pinned, except where the hot tier lost entries to the cold one.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Executor
from types import TracebackType
from uuid import UUID

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.errors import BeyondEnd, Closed, InvalidCall, NotFound, Trimmed
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cache import Cache
from offloader.read.cold import ColdTier, first_at
from offloader.read.entries import Entries
from offloader.read.fetch import Fetcher
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["Entries", "Reader", "load_stream", "open_reader", "require_inside"]

#: Names that an error about an unknown stream suggests.
SUGGESTIONS_MAX = 3
#: Of a stream that has no manifest yet.
_NO_INCARNATION = UUID(int=0)


def open_reader(
    store: ObjectStore,
    stream: str,
    *,
    settings: ReadSettings | None = None,
    source: LedgerSource | None = None,
    state: ManifestState | None = None,
    cache: Cache | None = None,
    executor: Executor | None = None,
) -> Reader:
    """A reader of ``stream`` as its manifest is now.

    Args:
        store: where the stream is.
        stream: its name.
        settings: sizes and limits.
        source: the hot tier, for entries that aren't offloaded yet; with it the manifest may not exist yet, without it
            the stream ends at the committed end.
        state: a view of the manifest to pin instead of the newest one.
        cache: for single reads, to share it between readers; default: the reader's own.
        executor: a thread pool to use instead of own threads.

    Raises:
        NotFound: no such stream (the hint names similar ones), or no such bucket or directory.
        InvalidCall: not a stream's name.
        Corrupt: the manifest is damaged.
    """
    if state is None:
        state = load_stream(store, stream, may_be_absent=source is not None)
    fetcher = Fetcher(store, settings or ReadSettings(), cache=cache, executor=executor)
    return Reader(fetcher, state, source)


def load_stream(store: ObjectStore, stream: str, *, may_be_absent: bool = False) -> ManifestState:
    """The newest view of a stream, as ``load_manifest``, for people: similar names in the hint.

    Args:
        store: where it is.
        stream: its name.
        may_be_absent: an empty view instead of ``NotFound``.

    Raises:
        NotFound: no such stream, or it was deleted.
        InvalidCall: not a stream's name.
        Corrupt: the manifest is damaged.
    """
    try:
        state = load_manifest(store, stream)
    except NotFound as error:
        if may_be_absent:
            return ManifestState(stream=stream, incarnation=_NO_INCARNATION)
        similar = difflib.get_close_matches(stream, list_streams(store), n=SUGGESTIONS_MAX)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "`offloader ls` lists the streams"
        raise NotFound(f"stream {stream} isn't in {store.url}", hint=hint) from error
    if state.stream_deleted:
        raise NotFound(f"stream {stream} in {store.url} was deleted")
    return state


def require_inside(
    state: ManifestState, ends: tuple[Position, Position] | None, first: Position | None, last: Position | None
) -> None:
    """Checks a range that was asked for against what there is.

    Args:
        state: names the stream, and tells whether something was truncated.
        ends: first and last readable position, ``None`` when there is no entry.
        first, last: the range, both included; ``None`` = not bounded on that side.

    Raises:
        InvalidCall: ``last`` is before ``first``.
        Trimmed: ``first`` or ``last`` is before the beginning.
        BeyondEnd: ``last`` or ``first`` is after the end.
    """
    if first is not None and last is not None and last < first:
        raise InvalidCall(f"stream {state.stream}: {first}..{last} ends before it begins", hint="swap the two")
    if ends is None:
        raise BeyondEnd(f"stream {state.stream} has no readable entries", last_available=None)
    begin, end = ends
    for position in (each for each in (first, last) if each is not None):
        if position < begin:
            why = "was deleted: the stream begins at" if state.head is not None else "is before the first entry"
            raise Trimmed(
                f"stream {state.stream}: position {position} {why} {begin}",
                first_available=begin,
                hint=f"begin at {begin}",
            )
        if position > end:
            raise BeyondEnd(
                f"stream {state.stream}: position {position} is beyond the last readable entry {end}",
                last_available=end,
                hint=f"end at {end}",
            )


class Reader:
    """Reads one stream; see ``open_reader``. Thread-safe and stateless: readers don't disturb each other.

    Holds no threads and no connections of its own while nobody reads: closing it only makes later calls fail.
    """

    def __init__(self, fetcher: Fetcher, state: ManifestState, source: LedgerSource | None = None) -> None:
        self.state = state
        self.stream = state.stream
        self._fetcher = fetcher
        self._source = source
        self._cold = ColdTier(fetcher, state)
        self._closed = False

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Later reads and scans raise ``Closed``; the store stays open. Closing twice is fine."""
        self._closed = True

    @property
    def first_position(self) -> Position | None:
        """The first readable position (the head, once something is truncated); ``None`` when there is no entry."""
        if self._cold.ends is not None:
            return self._cold.ends[0]
        return None if self._source is None else _first_of(self._source)

    @property
    def last_position(self) -> Position | None:
        """The last readable position: the committed end, with a hot tier its last entry; ``None``: no entry."""
        hot = None if self._source is None else _last_of(self._source)
        cold = None if self._cold.ends is None else self._cold.ends[1]
        return max((each for each in (hot, cold) if each is not None), default=None)

    def segments(self) -> list[SegmentRecord]:
        """The offloaded segments with readable entries, in the stream's order."""
        return list(self._cold.segments)

    def refresh(self) -> Reader:
        """A reader of the same stream as its manifest is now; shares the cache and the threads."""
        self._require_open()
        state = load_stream(self._fetcher.store, self.stream, may_be_absent=self._source is not None)
        return Reader(self._fetcher, state, self._source)

    def read(self, first: Position, last: Position) -> Entries:
        """Exactly the entries with ``first <= position <= last``, in order.

        Blocks of short ranges are kept in the cache. Positions that never held an entry (between ledgers, in recorded
        gaps) are no error inside the stream's range.

        Raises:
            InvalidCall: ``last`` is before ``first``.
            Trimmed: ``first`` is before the stream's beginning.
            BeyondEnd: ``last`` is after the last readable entry.
            Corrupt, ObjectMissing, ObjectChanged, StoreUnavailable: the store's objects or the store are damaged.
        """
        self._checked_range(first, last)
        ends = self._cold.ends
        cold = ends is not None and last <= ends[1] and not self._prefers_hot
        batches = self._cold.cached(first, last) if cold else None
        if batches is None:
            batches = list(self._all(first, last))
        return Entries(tuple(batch for batch in batches if len(batch)))

    def scan(
        self, start: Position | None = None, end: Position | None = None, batch_bytes: int | None = None
    ) -> Generator[EntryBatch, None, None]:
        """All entries from ``start`` to ``end``, both included, in order; recorded gaps are passed over.

        Blocks are fetched ahead in parallel and don't go through the cache. Stop early by closing the iterator.

        Args:
            start: default: the first position.
            end: default: the last position at the time of this call.
            batch_bytes: most payload bytes of one batch (a larger entry comes alone); default: from the settings.

        Raises:
            what ``read`` raises: for the arguments at once, for the data when it is reached.
        """
        limit = batch_bytes or self._fetcher.settings.batch_bytes
        ends = self._checked_range(start, end)
        return _sliced((), limit) if ends is None else _sliced(self._all(*ends), limit)

    def count(self, first: Position | None = None, last: Position | None = None) -> int:
        """How many entries there are from ``first`` to ``last``, both included.

        Read from the manifest; of segments that the range cuts, from the index. Only plain Pulsar blocks at the ends of
        the range, and entries in the hot tier, have to be read themselves.

        Raises:
            what ``scan`` raises.
        """
        wanted = self._checked_range(first, last)
        if wanted is None:
            return 0
        first, last = wanted
        total, ends = 0, self._cold.ends
        if ends is not None and first <= ends[1]:
            total += self._cold.count(first, min(last, ends[1]))
            first = _after(ends[1])
        if self._source is not None and first <= last:
            total += sum(map(len, self._hot(self._source, first, last)))
        return total

    def position_at(self, publish_time_ms: int) -> Position | None:
        """The earliest position whose publish time is ``publish_time_ms`` or later; ``None`` when there is none.

        Publish times needn't ascend. Entries without a publish time are passed over. Where segments have statistics
        this fetches one index and one block.
        """
        self._require_open()
        position = self._cold.position_at(publish_time_ms)
        if position is not None:
            return position
        start = Position(0, 0) if self._cold.ends is None else _after(self._cold.ends[1])
        last = None if self._source is None else _last_of(self._source)
        if last is not None and start <= last:
            for batch in self._all(start, last):
                position = first_at(batch, publish_time_ms)
                if position is not None:
                    return position
        return None

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the reader of stream {self.stream} was closed", hint="open another one")

    def _checked_range(self, first: Position | None, last: Position | None) -> tuple[Position, Position] | None:
        """The range that is meant, known to be inside the stream; ``None``: all of a stream without entries."""
        self._require_open()
        begin, end = self.first_position, self.last_position
        ends = None if begin is None or end is None else (begin, end)
        if ends is None and first is None and last is None:
            return None
        require_inside(self.state, ends, first, last)
        assert ends is not None  # checked by the line before
        return first or ends[0], last or ends[1]

    def _all(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """The entries from both tiers, one batch per block or hot read."""
        if self._source is not None and self._prefers_hot:
            yield from self._hot_first(self._source, first, last)
            return
        ends = self._cold.ends
        if ends is not None and first <= ends[1]:
            yield from self._cold.batches(first, min(last, ends[1]))
            first = _after(ends[1])
        if self._source is not None and first <= last:
            yield from self._hot(self._source, first, last)

    def _hot(self, source: LedgerSource, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries after the pinned committed end. What the hot tier gave away since then is in the cold one."""
        expected = first
        while expected <= last:
            batch = source.read(expected, self._fetcher.settings.batch_bytes)
            if batch is None or batch.first != expected:
                # The next ledger, or a hole: entries leave the hot tier only after the manifest has them, so the
                # manifest as it is after this read tells which.
                state = self._newest_or_pinned()
                end = state.committed_end()
                if end is not None and expected <= end:
                    self._require_kept(state, expected)
                    yield from ColdTier(self._fetcher, state).batches(expected, min(end, last))
                    expected = _after(end)
                    continue
            if batch is None:
                return
            part = batch.between(expected, last)
            if len(part):
                yield part
            expected = _after(batch.last)

    @property
    def _prefers_hot(self) -> bool:
        return self._source is not None and self._fetcher.settings.read_priority == "bookkeeper-first"

    def _hot_first(self, source: LedgerSource, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from the hot tier as far as it has them, the others from the cold one."""
        expected = first
        while expected <= last:
            batch = source.read(expected, self._fetcher.settings.batch_bytes)
            before = Position(expected.ledger_id, expected.entry_id - 1)
            if batch is None or not (batch.first == expected or self.state.follows(before, batch.first)):
                # Maybe the end of a ledger, maybe one that the hot tier gave away, maybe just now.
                until = last if batch is None else min(last, Position(batch.ledger_id, batch.first.entry_id - 1))
                yield from self._cold_between(expected, until)
            if batch is None:
                return
            part = batch.between(expected, last)
            if len(part):
                yield part
            expected = _after(batch.last)

    def _cold_between(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """What the cold tier has of a range that the hot one doesn't have."""
        cold = self._cold
        if cold.ends is None or last > cold.ends[1]:
            state = self._newest_or_pinned()
            cold = ColdTier(self._fetcher, state)
            if cold.ends is not None and first <= cold.ends[1]:
                self._require_kept(state, first)
        if cold.ends is not None and first <= min(last, cold.ends[1]):
            yield from cold.batches(first, min(last, cold.ends[1]))

    def _newest_or_pinned(self) -> ManifestState:
        try:
            return load_manifest(self._fetcher.store, self.stream)
        except NotFound:
            return self.state  # nothing was ever offloaded

    def _require_kept(self, state: ManifestState, position: Position) -> None:
        begin = state.first_position()
        if begin is None or position < begin:
            raise Trimmed(
                f"stream {self.stream}: position {position} was deleted while it was read; the stream begins at "
                f"{begin or 'nothing'} now",
                first_available=begin,
                hint="open the stream anew",
            )


def _after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


def _first_of(source: LedgerSource) -> Position | None:
    return next((Position(info.ledger_id, 0) for info in source.ledgers() if info.entries), None)


def _last_of(source: LedgerSource) -> Position | None:
    filled = [info for info in source.ledgers() if info.entries]
    return Position(filled[-1].ledger_id, filled[-1].last_entry_id) if filled else None


def _sliced(batches: Iterable[EntryBatch], batch_bytes: int) -> Generator[EntryBatch, None, None]:
    """The same entries in batches of at most ``batch_bytes`` payload bytes; a single larger entry comes alone."""
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
