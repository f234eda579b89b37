"""A stream's reader: by position or by time, one entry or all of it, across segments, layouts and tiers.

Owns what the caller sees of a stream: which positions there are, and exactly the asked entries. Must never
look at a newer manifest by itself than the one it pinned, except where the hot tier lost entries to the cold one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from types import TracebackType
from typing import Literal
from uuid import UUID

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.clock import Clock, SystemClock
from offloader.errors import BeyondEnd, Closed, InvalidCall, Trimmed
from offloader.ledgers.base import LedgerSource
from offloader.manifest.leases import HeldLease, take_lease
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cache import Cache, process_cache
from offloader.read.cold import Skipped
from offloader.read.entries import Entries
from offloader.read.fetch import Fetcher
from offloader.read.streams import load_stream
from offloader.read.tiers import BothTiers
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["Entries", "Reader", "open_reader", "require_inside"]


def open_reader(
    store: ObjectStore,
    stream: str,
    *,
    settings: ReadSettings | None = None,
    source: LedgerSource | None = None,
    state: ManifestState | None = None,
    cache: Cache | None = None,
    executor: Executor | None = None,
    on_missing: Literal["error", "skip"] = "error",
    lease_seconds: int = 0,
    clock: Clock | None = None,
) -> Reader:
    """A reader of ``stream`` as its manifest is now.

    Args:
        store: where the stream is.
        stream: its name.
        settings: sizes and limits.
        source: the hot tier, for entries that aren't offloaded yet; with it the manifest may not exist yet, without it
            the stream ends at the committed end.
        state: a view of the manifest to pin instead of the newest one.
        cache: for single reads; default: the process's, which all readers share.
        executor: a thread pool to use instead of own threads.
        on_missing: ``skip`` leaves out segments of which an object is missing, and says so in ``Reader.skipped``.
        lease_seconds: a lease keeps cleanup away from what this reader sees; it is renewed while something is read and
            ends when the reader is closed. 0: none. The store must be open for writing.
        clock: renews it.

    Raises:
        NotFound: no such stream (the hint names similar ones), or no such bucket or directory.
        InvalidCall: not a stream's name.
        Corrupt: the manifest is damaged.
    """
    if lease_seconds and state is not None:
        raise InvalidCall(
            f"stream {stream}: a lease protects only what is loaded after it was written", hint="leave out the state"
        )
    lease = take_lease(store, stream, lease_seconds, clock=clock or SystemClock()) if lease_seconds else None
    try:
        if state is None:
            state = load_stream(store, stream, may_be_absent=source is not None)
        chosen = settings or ReadSettings()
        shared = process_cache(chosen.cache_bytes_max) if cache is None else cache
        fetcher = Fetcher(store, chosen, cache=shared, executor=executor)
        return Reader(fetcher, state, source, Skipped() if on_missing == "skip" else None, lease)
    except BaseException:
        if lease is not None:
            lease.end()
        raise


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

    def __init__(
        self,
        fetcher: Fetcher,
        state: ManifestState,
        source: LedgerSource | None = None,
        skipped: Skipped | None = None,
        lease: HeldLease | None = None,
    ) -> None:
        self.state = state
        self.stream = state.stream
        self._fetcher = fetcher
        self._source = source
        self._skipped = skipped
        self._lease = lease
        self._tiers = BothTiers(fetcher, state, source, None if skipped is None else skipped.add)
        self._closed = False

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Later reads and scans raise ``Closed``; the store stays open, a lease ends. Closing twice is fine."""
        if self._lease is not None and not self._closed:
            self._lease.end()
        self._closed = True

    @property
    def first_position(self) -> Position | None:
        """The first readable position (the head, once something is truncated); ``None`` when there is no entry."""
        return self._tiers.first_position()

    @property
    def last_position(self) -> Position | None:
        """The last readable position: the committed end, with a hot tier its last entry; ``None``: no entry."""
        return self._tiers.last_position()

    @property
    def skipped(self) -> Mapping[UUID, str]:
        """Segments that were left out because an object of them is missing, and why; empty unless asked to skip."""
        return {} if self._skipped is None else self._skipped.found()

    def segments(self) -> list[SegmentRecord]:
        """The offloaded segments with readable entries, in the stream's order."""
        return list(self._tiers.cold.segments)

    def refresh(self) -> Reader:
        """A reader of the same stream as its manifest is now, with a lease of its own; shares cache and threads."""
        self._require_open()
        lease = None if self._lease is None else self._lease.another()
        state = load_stream(self._fetcher.store, self.stream, may_be_absent=self._source is not None)
        return Reader(self._fetcher, state, self._source, self._skipped, lease)

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
        batches = self._tiers.cached(first, last)
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
        return 0 if wanted is None else self._tiers.count(*wanted)

    def position_at(self, publish_time_ms: int) -> Position | None:
        """The earliest position whose publish time is ``publish_time_ms`` or later; ``None`` when there is none.

        Publish times needn't ascend. Entries without a publish time are passed over. Where segments have statistics
        this fetches one index and one block.
        """
        self._require_open()
        return self._tiers.position_at(publish_time_ms)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the reader of stream {self.stream} was closed", hint="open another one")
        if self._lease is not None:
            self._lease.renew_if_due()

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
        for batch in self._tiers.batches(first, last):
            if self._lease is not None:
                self._lease.renew_if_due()
            yield batch


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
