"""Open readers of streams by name: a topic with partitions or segments is read as one stream, merged by publish time.

The segments of a scalable topic succeed each other: the entries of a key are in a segment, then in its child. So a
segment is read after the ends of all its parents, and left out while the store doesn't have a parent to its recorded
end: its entries would come before earlier ones of the same keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.pulsar.messages import publish_times_ms
from formats.topic_layout import TopicLayout
from offloader.errors import InvalidCallError, NotFoundError
from offloader.ledgers.base import HotTierLostError, ReadableLedgers
from offloader.manifest.names import NamedStreams, parts_of, stream_name
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.manifest.topic_layouts import in_order
from offloader.read.fetch import Cache
from offloader.read.ranges import is_lost_between
from offloader.read.reader import Reader, open_stream_reader
from offloader.runtime.clock import Clock
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.times import moment_ms

#: Partitions that one reader merges; each has its own requests in flight.
PARTITIONS_READ_MAX = 256
#: Smallest request of a reader that shares its bytes in flight with others.
_REQUEST_BYTES_MIN = 1024 * 1024
_Moment = int | str | datetime


def open_reader(
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
    """Open a reader of a stream, or of all partitions of a topic (a ``TopicReader``), at the current manifest.

    Args:
        stream: the stream's name or its topic's, ``persistent://tenant/ns/topic``. If that stream does not exist and
            ``<name>-partition-0``, ``-1``, ... do, all of these partitions.
        source: the hot tier, for entries that aren't offloaded yet; with it the manifest may not exist yet, without it
            the stream ends at the committed end. Only for a single stream; each read compares it with the manifest.
        state: a view of the manifest to pin instead of the newest one. Only for a single stream.
        cache: for single reads; default: the process's cache, which all readers share.
        executor: a thread pool to use instead of own threads.
        on_missing: ``skip`` leaves out segments with a missing object, and lists them in ``Reader.skipped``.
        lease_seconds: duration of a lease that protects this reader's view from cleanup; reads renew it and closing the
            reader ends it. 0: no lease. The store must be open for writing.
        clock: for the renewal of the lease.

    Raises:
        NotFoundError: the stream, bucket or directory does not exist (the hint names similar streams).
        InvalidCallError: an invalid stream name, or a topic with more than ``PARTITIONS_READ_MAX`` partitions.
        CorruptError: the manifest is damaged.
        SourceMismatchError: raised by reads: the hot tier is not the one that the manifest records.
    """
    opened = partial(
        open_stream_reader,
        store,
        source=source,
        state=state,
        cache=cache,
        executor=executor,
        on_missing=on_missing,
        lease_seconds=lease_seconds,
        clock=clock,
    )
    try:
        return opened(stream, settings=settings)
    except NotFoundError:
        named = parts_of(store, stream_name(stream))
        if not named.partitions:
            raise
        return open_topic(named, lambda name, chosen: opened(name, settings=chosen), settings)


def open_topic(
    named: NamedStreams,
    opened: Callable[[str, ReadSettings], Reader],
    settings: ReadSettings | None = None,
) -> TopicReader:
    """A reader of a topic's partitions or segments, which share the settings' limits on bytes in flight and read ahead.

    Args:
        opened: opens the reader of one stream.

    Raises:
        InvalidCallError: more than ``PARTITIONS_READ_MAX``.
    """
    partitions = named.partitions
    if len(partitions) > PARTITIONS_READ_MAX:
        raise InvalidCallError(
            f"topic {named.name} has {len(partitions)} {named.kind}s; at most {PARTITIONS_READ_MAX} can be read as one "
            "stream",
            hint=f"read a single {named.kind}, for example {next(iter(partitions.values()))}",
        )
    chosen = settings or ReadSettings()
    at_once = max(chosen.requests_in_flight_max // len(partitions), 1)
    bytes_in_flight = chosen.requests_in_flight_max * chosen.request_size
    request_bytes = max(bytes_in_flight // (at_once * len(partitions)), min(_REQUEST_BYTES_MIN, chosen.request_size))
    shared = replace(
        chosen,
        requests_in_flight_max=at_once,
        request_size=Size(min(request_bytes, chosen.request_size)),
        ahead_size_max=Size(max(chosen.ahead_size_max // len(partitions), 1)),
    )
    readers: dict[int, Reader] = {}
    with ExitStack() as stack:
        for number, stream in partitions.items():
            readers[number] = opened(stream, shared)
            stack.callback(readers[number].close)
        after = readable_after(named.layout, readers)
        withheld = [readers.pop(number) for number in partitions if number not in after]
        stack.pop_all()
    for reader in withheld:
        reader.close()
    return TopicReader(named, readers, after)


def readable_after(layout: TopicLayout | None, readers: Mapping[int, Reader]) -> Mapping[int, tuple[int, ...]]:
    """The readers that can be read -> those that must be read before; without a layout all, in any order."""
    if layout is None:
        return dict.fromkeys(readers, ())
    found: dict[int, tuple[int, ...]] = {}
    complete: set[int] = set()
    for row in (row for group in in_order(layout) for row in group):
        if not complete.issuperset(row.parents):
            continue
        reader = readers.get(row.id)
        if reader is not None:
            found[row.id] = tuple(parent for parent in row.parents if parent in found)
        if row.end is not None and (row.end.entry_id < 0 or (reader is not None and has_until(reader, row.end))):
            complete.add(row.id)
    return found


def has_until(reader: Reader, end: Position) -> bool:
    """Whether the entries of a stream up to ``end`` can be read, or were deleted by retention."""
    ends = (reader.last_position, reader.state.committed_end())
    return any(each is not None and each >= end for each in ends)


class TopicReader(Reader):
    """Reads all partitions, or all readable segments, of a topic; see ``open_reader``. Thread-safe.

    A position belongs to one partition: methods that take or return one raise ``InvalidCallError``. Times apply to all.

    Args:
        after: number -> the ones that are read to their end before it.

    Attributes:
        partitions: number -> reader of the partition, or id -> reader of the segment.
        after: for each of them, the places of those that are read to their end before it.
    """

    def __init__(
        self, named: NamedStreams, partitions: Mapping[int, Reader], after: Mapping[int, Sequence[int]]
    ) -> None:
        self.stream, self._named, self._after = named.name, named, after
        self.partitions = dict(partitions)
        places = {number: place for place, number in enumerate(self.partitions)}
        self.after = [tuple(places[each] for each in after[number]) for number in self.partitions]

    def close(self) -> None:
        """Close the readers of all partitions. Idempotent."""
        for reader in self.partitions.values():
            reader.close()

    @property
    def first_position(self) -> Position | None:
        """Always raises ``InvalidCallError``: a position belongs to one partition."""
        raise self._of_one_partition()

    last_position = first_position

    @property
    def skipped(self) -> Mapping[UUID, str]:
        """Skipped segments of all partitions, with the reason."""
        return {uuid: why for reader in self.partitions.values() for uuid, why in reader.skipped.items()}

    def segments(self) -> list[SegmentRecord]:
        """The offloaded segments with readable entries, partition by partition."""
        return [record for reader in self.partitions.values() for record in reader.segments()]

    def refresh(self, hot_of: Callable[[ManifestState], ReadableLedgers | None] | None = None) -> TopicReader:
        """A reader of the same partitions at their current manifests. Arguments as for ``Reader``."""
        newer = {number: each.refresh(hot_of) for number, each in self.partitions.items()}
        return TopicReader(self._named, newer, self._after)

    @property
    def has_hot_tier(self) -> bool:
        """Whether entries of a partition that aren't offloaded yet are also read."""
        return any(reader.has_hot_tier for reader in self.partitions.values())

    def _require_open(self) -> None:
        raise self._of_one_partition()  # for every inherited method that takes or returns a position

    def scan(
        self, start: Position | None = None, end: Position | None = None, batch_bytes: int | None = None
    ) -> Generator[EntryBatch, None, None]:
        """All entries of all partitions, merged by publish time; does not accept positions."""
        if start is not None or end is not None:
            raise self._of_one_partition()
        scans = [reader.scan(batch_bytes=batch_bytes) for reader in self.partitions.values()]
        return _only_batches(merge_published(scans, self.after))

    def count(self, first: Position | None = None, last: Position | None = None) -> int:
        """Number of entries of all partitions; does not accept positions."""
        if first is not None or last is not None:
            raise self._of_one_partition()
        return sum(reader.count() for reader in self.partitions.values())

    def scan_published(
        self, start: _Moment | None = None, end: _Moment | None = None
    ) -> Generator[EntryBatch, None, None]:
        """All entries of all partitions, from ``start`` to before ``end``, merged by publish time."""
        # Convert once, so that "-1h" is the same time for all.
        ends = [None if each is None else moment_ms(each, what="publish time") for each in (start, end)]
        return _only_batches(merge_published([r.scan_published(*ends) for r in self.partitions.values()], self.after))

    def _of_one_partition(self) -> InvalidCallError:
        kind = self._named.kind
        return InvalidCallError(
            f"{self.stream} has {len(self._named.partitions)} {kind}s, but a position belongs to a single {kind}",
            hint=f"use times, or read a single {kind}: {self._named.streams[0]}",
        )


def _only_batches(merged: Generator[tuple[int, EntryBatch], None, None]) -> Generator[EntryBatch, None, None]:
    with closing(merged):
        for _, batch in merged:
            yield batch


def merge_published(
    scans: Sequence[Iterator[EntryBatch]], after: Sequence[Sequence[int]] = ()
) -> Generator[tuple[int, EntryBatch], None, None]:
    """Merge scans of several streams by publish time; each keeps its order.

    An entry that was published before an earlier entry of its stream, or at an unknown time, directly follows that
    entry. For equal times, the first scan's entries come first. Closes the scans that can be closed.

    Args:
        after: for each scan, the numbers of those that end before it begins, without cycles; default: none.

    Yields:
        the number of the scan, and entries of it.
    """
    with ExitStack() as stack:
        for scan in scans:
            if isinstance(scan, Generator):
                stack.callback(scan.close)
        if len(scans) == 1:
            yield from ((0, batch) for batch in scans[0])
            return
        waiting = TopologicalSorter(dict(enumerate(after)) if after else dict.fromkeys(range(len(scans)), ()))
        waiting.prepare()
        heads: dict[int, tuple[EntryBatch, NDArray[np.int64]]] = {}
        order: list[tuple[int, int]] = []
        while waiting.is_active():
            for number in waiting.get_ready():
                if head := timed_batch(scans[number], TIME_UNKNOWN_MS):
                    heads[number] = head
                    heappush(order, (int(head[1][0]), number))
                else:
                    waiting.done(number)
            if not order:
                continue
            _, number = heappop(order)
            batch, times = heads[number]
            stop = len(batch)
            if order:
                until_ms, other = order[0]
                stop = int(np.searchsorted(times, until_ms, side="right" if number < other else "left"))
            yield number, batch.slice(0, stop)
            if stop < len(batch):
                heads[number] = (batch.slice(stop, len(batch)), times[stop:])
            elif head := timed_batch(scans[number], int(times[-1])):
                heads[number] = head
            else:
                del heads[number]
                waiting.done(number)
                continue
            heappush(order, (int(heads[number][1][0]), number))


def timed_batch(scan: Iterator[EntryBatch], after_ms: int) -> tuple[EntryBatch, NDArray[np.int64]] | None:
    """The next entries of a scan, and their times, none below ``after_ms`` or the time of an earlier entry."""
    for batch in scan:
        if len(batch):
            return batch, np.maximum.accumulate(np.maximum(publish_times_ms(batch), after_ms))
    return None


#: Seconds between polls: the first, and the longest after polls without news, for the manifest alone and with a hot
#: tier.
WAIT_S_MIN, WAIT_S_MAX, HOT_WAIT_S_MAX = 0.5, 10.0, 1.0


class FollowedSegments:
    """The segments of a scalable topic while it is followed: new ones are added, and each is read after its parents.

    Args:
        named_now: returns the topic's segments in the store, and its layout.
        opened: opens the reader of a stream.
        ids: of the segments that are read already; new ones are appended.
    """

    def __init__(self, named_now: Callable[[], NamedStreams], opened: Callable[[str], Reader], ids: list[int]) -> None:
        self._named_now, self._opened, self._ids = named_now, opened, ids
        self._layout = named_now().layout

    def added(self) -> list[Reader]:
        """Readers of the segments that appeared since the last call, in the order of ``ids``."""
        named = self._named_now()
        self._layout = named.layout
        found: list[Reader] = []
        for number, stream in named.partitions.items():
            if number not in self._ids:
                found.append(self._opened(stream))
                self._ids.append(number)
        return found

    def after(self, readers: Sequence[Reader]) -> list[Sequence[int] | None]:
        """For each reader, the places of those that are read before it; ``None``: it can't be read yet."""
        places = {number: place for place, number in enumerate(self._ids)}
        readable = readable_after(self._layout, dict(zip(self._ids, readers, strict=True)))
        return [[places[each] for each in readable[number]] if number in readable else None for number in self._ids]


def follow_all(
    readers: Sequence[Reader],
    starts: Sequence[Position | None],
    *,
    clock: Clock,
    stop: threading.Event,
    refreshed: Callable[[Reader], Reader] = Reader.refresh,
    segments: FollowedSegments | None = None,
) -> Generator[tuple[int, EntryBatch], None, None]:
    """All entries of streams from ``starts``, including future ones: each stream's entries in order, once.

    Existing entries are merged by publish time; new entries follow. Polls after 0.5 s, doubling each time without news:
    at most every 10 s, with a hot tier at most every second. When a hot tier is lost (``HotTierLostError``), resumes
    after the last yielded entry of each stream.

    Args:
        starts: ``None``: the stream's first readable entry, present or future.
        stop: ends the iteration when set.
        refreshed: returns the reader for the next poll, which may have another hot tier, or none.
        segments: of a scalable topic, whose readers these are.

    Yields:
        the number of the reader, and entries of its stream.

    Raises:
        TrimmedError: the next entries of a stream were deleted meanwhile; names the first remaining position.
        as ``Reader.scan``.
    """
    wait_s = WAIT_S_MIN
    current, begins = list(readers), list(starts)
    while not stop.is_set():
        try:
            after = [()] * len(current) if segments is None else segments.after(current)
            ends = [None if before is None else each.last_position for each, before in zip(current, after, strict=True)]
            scans = [
                iter(())
                if last is None or (first is not None and first > last)
                else each.scan(kept_begin(each, first), last)
                for each, first, last in zip(current, begins, ends, strict=True)
            ]
            with closing(merge_published(scans, [before or () for before in after])) as merged:
                for number, batch in merged:
                    wait_s = WAIT_S_MIN
                    begins[number] = batch.last.next()
                    yield number, batch
            begins = [next_begin(*each) for each in zip(current, begins, ends, strict=True)]
        except HotTierLostError:
            wait_s = WAIT_S_MIN
        longest_s = min((HOT_WAIT_S_MAX if each.has_hot_tier else WAIT_S_MAX for each in current), default=WAIT_S_MAX)
        if clock.wait(stop, min(wait_s, longest_s)):
            return
        wait_s = min(2 * wait_s, longest_s)
        newer = [refreshed(each) for each in current]
        for each in current:
            if each not in readers:
                each.close()
        added = [] if segments is None else segments.added()
        current, begins = newer + added, begins + [None] * len(added)


def kept_begin(reader: Reader, begin: Position | None) -> Position | None:
    """Where to resume at ``begin``: the stream's first entry if all earlier entries were deleted and none is unread."""
    first = reader.first_position
    if begin is None or first is None or first <= begin or is_lost_between(reader.state, begin.previous(), first):
        return begin
    return first


def next_begin(reader: Reader, begin: Position | None, last: Position | None) -> Position | None:
    """Where a stream resumes after a poll that ended at ``last``; ``begin``: after the last yielded entry.

    A manifest proves that no entry lies between the two. A hot tier that is read over HTTP may only not have returned
    one yet.
    """
    if last is None or reader.has_hot_tier or (begin is not None and begin > last):
        return begin
    return last.next()
