"""Read the partitions that a group assigned to one reader.

The loop of ``GroupReader.__next__`` does one thing at a time: deliver an event, write a step, read the group, deliver a
batch, wait. ``assignment`` decides the changes of a step; this module decides when to take one, and keeps these rules:

* A batch is delivered only while the last write is younger than ``heartbeat_ms``; before that the reader writes again.
  So a reader that was suspended learns that it expired before it delivers anything else.
* A step gives positions only when everything delivered is consumed: after the application asked for more behind a
  ``Checkpoint`` event, or when nothing was delivered since.
* A sealed segment of a scalable topic is finished when everything up to its recorded end was delivered. The reader asks
  for a confirmation then, and tells it with its next step, so that the segments that continue it are assigned.
* An entry counts as delivered when ``__next__`` returns it, not when it is read from the store.

Requests: one read of the group's document each ``refresh_ms``, one conditional write each ``heartbeat_ms``, and one
for each checkpoint or rebalance after an event. Of a group with a scalable topic, each reader also reads its layout and
lists its streams each ``heartbeat_ms``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from uuid import UUID

from formats.documents import AssignmentRow, GroupState
from formats.entries import EntryBatch, Position
from formats.topic_layout import TopicLayout
from offloader.errors import ClosedError, NotFoundError, ReaderExpiredError, TrimmedError
from offloader.groups.assignment import (
    Held,
    Parents,
    has_surplus,
    held,
    left,
    repartitioned,
    require_session,
    stepped,
    waiting,
)
from offloader.groups.reader_groups import CHECKPOINTS_MAX, Homes
from offloader.ledgers.base import HotTierLostError
from offloader.manifest.topic_layouts import in_order
from offloader.read.partitions import HOT_WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MIN, has_until, kept_begin, next_begin
from offloader.read.reader import Reader
from offloader.retention.scope import Scope
from offloader.runtime.clock import Clock

#: Payload bytes of one partition before another one is read.
TURN_BYTES = 64 * 1024 * 1024
#: Heartbeats between two looks for new and deleted partitions, by the group's first reader. Segments of scalable topics
#: change more often: all readers look for them at each heartbeat.
PARTITIONS_HEARTBEATS = 6


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An event between batches: if the application asks for more, it has consumed everything delivered before.

    Attributes:
        name: of the group's checkpoint; empty: only this reader persists its positions, for example to hand partitions
            over to a new reader.
    """

    name: str


@dataclass(frozen=True, slots=True)
class GroupAccess:
    """How a reader reaches its group and the streams.

    Attributes:
        read: the group's document.
        change: replaces it, and performs its obligations.
        expire: drops its checkpoints that lie before the streams' beginnings.
        scopes: the current partitions of streams, without streams that don't exist.
        opened: opens a reader of one partition's stream.
        refreshed: a reader of the same stream at its current manifest.
    """

    read: Callable[[], GroupState]
    change: Callable[[Callable[[GroupState], GroupState]], GroupState]
    expire: Callable[[GroupState], GroupState]
    scopes: Callable[[Sequence[str]], Mapping[str, Scope]]
    opened: Callable[[str], Reader]
    refreshed: Callable[[Reader], Reader]
    clock: Clock


class GroupReader:
    """Iterates over ``(stream, EntryBatch)`` and ``Checkpoint`` events; see ``ReaderGroup.join``. Not thread-safe.

    Waits for new entries; ends when ``stop`` is set, or when the group has an end in each partition and all are read.
    Ask for the next item within the group's ``expiry_ms``: a reader that is silent for longer loses its partitions.
    After an error the iteration may be continued by calling ``next`` again, except after ``ReaderExpiredError``.

    Every call of ``next`` raises:
        ReaderExpiredError: the group gave the partitions to others. Stop processing, and join again.
        TrimmedError: entries were deleted before the group read them; the next call continues at the first remaining
            entry.
        NotFoundError: the group was deleted.
        OffloaderError: the store failed, or a document or an object is damaged.
    """

    def __init__(
        self,
        access: GroupAccess,
        group: GroupState,
        reader: str,
        session: str,
        scopes: Mapping[str, Scope],
        stop: threading.Event,
        joined_s: float,
    ) -> None:
        self.reader, self._session = reader, session
        self._scopes = dict(scopes)
        self._access, self._stop = access, stop
        self._partitions: dict[Held, _Partition] = {}
        self._ready = deque[Held]()
        self._turn_bytes = 0
        self._pending: tuple[Held, EntryBatch] | None = None
        self._last = Held("", 0, 0)
        self._events = deque[Checkpoint]()
        self._announced = frozenset[str]()
        #: Whether entries were delivered since the application confirmed, and since positions were persisted.
        self._is_unconfirmed = self._has_news = False
        self._asks_confirmation = self._steps_now = False
        self._seeks_partitions = False
        self._finished = set[Held]()
        self._heartbeats = 0
        self._wait_s, self._poll_s = WAIT_S_MIN, joined_s
        self._ended: ReaderExpiredError | ClosedError | None = None
        self._note(group, joined_s)

    def __iter__(self) -> Iterator[tuple[str, EntryBatch] | Checkpoint]:
        return self

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(consumed=error is None)

    @property
    def streams(self) -> dict[str, int]:
        """The streams, or partitions of topics, that are assigned to this reader, each with the epoch of that."""
        return {each.stream: key.epoch for key, each in self._partitions.items()}

    def close(self, *, consumed: bool = True, unread: Position | None = None) -> None:
        """Leave the group, so that its other readers continue immediately. Idempotent.

        Args:
            consumed: everything that was delivered is consumed; ``False``: others read it again from the last
                checkpoint.
            unread: position in the last batch from which on entries weren't consumed.
        """
        if self._ended is not None:
            return
        if unread is not None and self._last in self._partitions:
            self._partitions[self._last].position = unread
        self._ended = ClosedError(f"reader {self.reader} left its group", hint="join again")
        positions = self._positions() if consumed or not self._is_unconfirmed else None
        self._drop_all()
        self._access.change(lambda group: left(group, self.reader, self._session, positions))

    def __next__(self) -> tuple[str, EntryBatch] | Checkpoint:
        if self._ended is not None:
            raise self._ended
        if self._asks_confirmation and not self._events:
            self._asks_confirmation = self._is_unconfirmed = False
            self._steps_now = True
        try:
            return self._next()
        except ReaderExpiredError as error:
            self._ended = error
            self._drop_all()
            raise

    def _next(self) -> tuple[str, EntryBatch] | Checkpoint:
        clock = self._access.clock
        while True:
            if self._stop.is_set():
                raise StopIteration
            if self._events:
                return self._events.popleft()
            now_s = clock.monotonic_s()
            if self._steps_now or now_s >= self._beat_s:
                self._step(now_s)
            elif now_s >= self._look_s:
                self._look(now_s)
            elif self._pending is not None:
                return self._deliver(*self._pending)
            elif self._ready:
                self._fetch()
            elif self._reached_ends():
                if not self._is_unconfirmed:
                    raise StopIteration
                self._ask([Checkpoint("")])
            elif self._poll_s <= now_s:
                self._wait_s = min(2 * self._wait_s, self._longest_wait_s())
                self._poll_s = now_s + self._wait_s
                self._ready.extend(held for held, each in self._partitions.items() if not each.is_at_end)
            elif clock.wait(self._stop, max(min(self._beat_s, self._look_s, self._poll_s) - now_s, 0)):
                raise StopIteration

    # -- entries

    def _fetch(self) -> None:
        """Read the next batch, or find that the first ready partition has none for now."""
        key = self._ready[0]
        partition = self._partitions.get(key)
        batch = None
        if partition is not None:
            try:
                batch = partition.batch()
            except (_OtherIncarnation, NotFoundError):
                self._seeks_partitions = self._steps_now = True
            except TrimmedError:
                self._is_unconfirmed = self._has_news = True  # the position moved
                raise
        if batch is not None:
            self._pending = key, batch
            return
        if partition is not None and partition.is_finished and key not in self._finished:
            self._finished.add(key)
            self._seeks_partitions = True
            self._report()
        self._ready.popleft()
        self._turn_bytes = 0

    def _deliver(self, key: Held, batch: EntryBatch) -> tuple[str, EntryBatch]:
        partition = self._partitions[key]
        self._pending, self._wait_s = None, WAIT_S_MIN
        self._is_unconfirmed = self._has_news = True
        partition.position, self._last = batch.last.next(), key
        self._turn_bytes += batch.payload_bytes
        if self._turn_bytes >= TURN_BYTES and len(self._ready) > 1:
            partition.pause()
            self._ready.rotate(-1)
            self._turn_bytes = 0
        return partition.stream, batch

    def _reached_ends(self) -> bool:
        """Whether all of the group's partitions are read to their ends."""
        ends, rows = _ends(self._group), self._group.assignments
        own = held(self._group, self.reader)
        if not rows or any((row.stream, row.partition) not in ends for row in rows):
            return False
        mine = all(each.is_at_end for each in self._partitions.values())
        if mine and self._is_unconfirmed:
            return True  # persist that, others wait for it
        return mine and all(
            row.position is not None and row.position >= ends[row.stream, row.partition]
            for row in rows
            if Held(row.stream, row.partition, row.epoch) not in own
        )

    def _longest_wait_s(self) -> float:
        return HOT_WAIT_S_MAX if any(each.has_hot_tier for each in self._partitions.values()) else WAIT_S_MAX

    # -- the group

    def _step(self, now_s: float) -> None:
        """Show that this reader is alive, with positions if everything delivered is consumed."""
        self._heartbeats += 1
        is_first = self._group.members and self._group.members[0].name == self.reader
        is_due = self._seeks_partitions or (is_first and self._heartbeats % PARTITIONS_HEARTBEATS == 0)
        scalable = [stream for stream, each in self._scopes.items() if each.layout is not None]
        sought = self._group.streams if is_due else scalable
        found = self._access.scopes(sought) if sought else {}
        homes, parents = homes_of(found, sought), parents_of(found)
        self._scopes = (dict[str, Scope]() if is_due else self._scopes) | dict(found)
        self._learn_ends()
        positions = None if self._is_unconfirmed else self._positions()
        finished = frozenset(self._finished)
        has_news, passed = self._has_news, tuple[str, ...]()

        def change(group: GroupState) -> GroupState:
            nonlocal passed
            after = stepped(group, self.reader, self._session, positions, finished, has_news=has_news)
            passed = () if positions is None else waiting(group, self.reader)
            return repartitioned(after, homes, parents) if homes else after

        group = self._access.change(change)
        if passed or len(group.checkpoints) >= CHECKPOINTS_MAX:
            group = self._access.expire(group)
        self._steps_now = self._seeks_partitions = False
        if positions is not None:
            self._has_news = False
            self._finished -= finished
            self._events.extend(Checkpoint(name) for name in passed if name not in self._announced)
            self._announced = frozenset()
        self._note(group, now_s)

    def _look(self, now_s: float) -> None:
        """Learn of checkpoints and of the other readers."""
        group = self._access.read()
        require_session(group, self.reader, self._session)
        self._adopt(group, now_s)

    def _note(self, group: GroupState, now_s: float) -> None:
        """After a write that began at ``now_s``."""
        self._beat_s = now_s + group.heartbeat_ms / 1000
        self._adopt(group, now_s)

    def _adopt(self, group: GroupState, now_s: float) -> None:
        self._group = group
        self._look_s = now_s + min(group.refresh_ms, group.heartbeat_ms) / 1000
        self._assign(held(group, self.reader).keys())
        names = waiting(group, self.reader)
        if names or has_surplus(group, self.reader):
            self._report(names)

    def _report(self, checkpoints: Sequence[str] = ()) -> None:
        """Give positions with the next step, after the application has confirmed that they are consumed."""
        if not self._is_unconfirmed:
            self._steps_now = True
        elif not self._asks_confirmation:
            self._ask([Checkpoint(name) for name in checkpoints] or [Checkpoint("")])

    def _ask(self, events: Sequence[Checkpoint]) -> None:
        """Deliver events; once the application asks for more, everything before them is consumed."""
        self._events.extend(events)
        self._announced = frozenset(each.name for each in events)
        self._asks_confirmation = True

    def _assign(self, keys: Collection[Held]) -> None:
        """Drop partitions that others have now, and begin the new ones."""
        for key in [key for key in self._partitions if key not in keys]:
            self._partitions.pop(key).close()
            if self._pending is not None and self._pending[0] == key:
                self._pending = None
        rows = held(self._group, self.reader)
        new = [key for key in rows if key not in self._partitions]
        if not new:
            return
        unknown = {key.stream for key in new if self._name_of(rows[key]) is None}
        self._scopes |= self._access.scopes(sorted(unknown))
        ends = _ends(self._group)
        for key in new:
            row, name = rows[key], self._name_of(rows[key])
            if name is None:
                self._seeks_partitions = True  # with the next step
                continue
            end = ends.get((key.stream, key.partition))
            self._partitions[key] = _Partition(self._access, name, row.incarnation, row.position, end)
            self._ready.append(key)
        self._learn_ends()

    def _learn_ends(self) -> None:
        """Tell partitions that are sealed segments which entry is their last one."""
        for key, each in self._partitions.items():
            layout = None if (scope := self._scopes.get(key.stream)) is None else scope.layout
            row = None if layout is None else layout.by_id.get(key.partition)
            each.learn_end(None if row is None else row.end)

    def _name_of(self, row: AssignmentRow) -> str | None:
        """The stream of an assigned partition, if it is known."""
        scope = self._scopes.get(row.stream)
        found = None if scope is None else scope.partitions.get(row.partition)
        return found.stream if found is not None and found.incarnation == row.incarnation else None

    def _positions(self) -> dict[Held, Position]:
        return {key: each.position for key, each in self._partitions.items() if each.position is not None}

    def _drop_all(self) -> None:
        for each in self._partitions.values():
            each.close()
        self._partitions, self._pending = {}, None
        self._ready.clear()
        self._events.clear()


class _OtherIncarnation(Exception):
    """A partition's stream was created again since the partition was assigned."""


class _Partition:
    """One partition's stream from a position on.

    Attributes:
        stream: the stream's name.
        position: of the next entry to deliver; ``None``: the first one.
        is_finished: whether all of a sealed segment was delivered.
    """

    def __init__(
        self, access: GroupAccess, stream: str, incarnation: UUID, begin: Position | None, end: Position | None
    ) -> None:
        self.stream, self.position = stream, begin
        self._access, self._incarnation, self._end = access, incarnation, end
        self._reader: Reader | None = None
        self._scan: Generator[EntryBatch, None, None] | None = None
        self._last = Position(0, 0)
        self._is_stale = False
        self._sealed_end: Position | None = None
        self.is_finished = False

    @property
    def is_at_end(self) -> bool:
        """Whether the group reads nothing more of it."""
        return self._end is not None and self.position is not None and self.position >= self._end

    @property
    def has_hot_tier(self) -> bool:
        """Whether entries are read before they are offloaded."""
        return self._reader is not None and self._reader.has_hot_tier

    def batch(self) -> EntryBatch | None:
        """The next entries, which count once ``position`` is behind them; ``None``: there are none for now."""
        try:
            reader = self._current()
            if self._scan is None and not self._begin(reader):
                return None
            assert self._scan is not None, "it was begun"
            batch = next(self._scan, None)
        except HotTierLostError:
            self.pause()
            return None
        except TrimmedError as error:
            self.pause()
            if isinstance(error.first_available, Position):
                self.position = error.first_available
            raise
        if batch is not None:
            return batch
        self.pause()
        is_at_end = self._end is not None and self._last == self._end.previous()
        self.position = self._end if is_at_end else next_begin(reader, self.position, self._last)
        return None

    def pause(self) -> None:
        """Close the scan; the next batch is read from the newest manifest."""
        if self._scan is not None:
            self._scan.close()
        self._scan, self._is_stale = None, True

    def close(self) -> None:
        """Close the scan and the reader."""
        self.pause()
        if self._reader is not None:
            self._reader.close()

    def _current(self) -> Reader:
        if self._reader is None:
            self._reader = self._access.opened(self.stream)
        elif self._is_stale:
            newer = self._access.refreshed(self._reader)
            self._reader.close()
            self._reader = newer
        self._is_stale = False
        if self._reader.state.incarnation != self._incarnation:
            raise _OtherIncarnation
        return self._reader

    def learn_end(self, end: Position | None) -> None:
        """Learns the recorded end of a sealed segment; ``None``: there is none."""
        if end != self._sealed_end:
            self._sealed_end = end
            self.pause()  # the manifest that is read next has what was committed before the end was recorded

    def _begin(self, reader: Reader) -> bool:
        """Start a scan up to the newest entry; false: there is nothing to scan."""
        self._is_stale = True
        span = self._span(reader)
        if span is not None:
            self._is_stale = False
            self._last = span[1]
            self._scan = reader.scan(*span)
            return True
        end = self._sealed_end
        self.is_finished = end is not None and (end.entry_id < 0 or has_until(reader, end))
        if self.is_finished and self.position is None and (committed := reader.state.committed_end()) is not None:
            self.position = committed.next()  # retention deleted all of it
        return False

    def _span(self, reader: Reader) -> tuple[Position, Position] | None:
        """The first and the last entry to read; ``None``: there are none."""
        last, begin = reader.last_position, kept_begin(reader, self.position) or reader.first_position
        if last is None or begin is None:
            return None
        if self._end is not None and self._end <= last:
            last = self._end.previous()
            if begin >= self._end:
                self.position = self._end
        return None if begin > last else (begin, last)


def _ends(group: GroupState) -> dict[tuple[str, int], Position]:
    return {(each.stream, row.partition): row.position for each in group.ends for row in each.cut}


def parents_of(scopes: Mapping[str, Scope]) -> Parents:
    """Of the segments of scalable topics: which others must be finished before they are read."""
    layouts = {stream: (scope.layout, scope.partitions) for stream, scope in scopes.items()}
    return {stream: _parents_in(layout, there) for stream, (layout, there) in layouts.items() if layout is not None}


def _parents_in(layout: TopicLayout, there: Collection[int]) -> dict[int, frozenset[int]]:
    """Args: ``there``: the segments of which something was offloaded."""
    found: dict[int, frozenset[int]] = {}
    for row in (row for group in in_order(layout) for row in group):
        found[row.id] = frozenset[int]()
        for parent in (layout.by_id[each] for each in row.parents):
            has_nothing = parent.id not in there and parent.end is not None and parent.end.entry_id < 0
            found[row.id] |= found[parent.id] if has_nothing else {parent.id}
    return found


def homes_of(scopes: Mapping[str, Scope], streams: Sequence[str]) -> Homes:
    """The current partitions of streams; a stream that doesn't exist has none."""
    return {stream: scopes[stream].rows if stream in scopes else () for stream in streams}
