"""Delivers a topic's new entries no faster than they are accepted, and reads older ones."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from formats.entries import EntryBatch, Position
from offloader.errors import (
    BeyondEndError,
    ClosedError,
    CorruptError,
    OffloaderError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.ledgers.base import LedgerInfo, newest
from offloader.ledgers.pulsar.consumer import EARLIEST, Consumer, batches_of
from offloader.ledgers.pulsar.ledger_list import SINGLE_ENTRIES, InconsistentReadError, LedgerList, first_from
from offloader.ledgers.tail_buffer import Listeners, part_to_read
from offloader.runtime.clock import Clock
from offloader.runtime.workers import RETRY_DELAY_FIRST_S, Alarm, Backoff, SerialTask, Workers


class LiveWindow:
    """The newest entries of a topic, without a gap between them. Not thread-safe.

    Entries that were read remain readable until newer ones need their memory; only unread entries count as waiting.
    """

    def __init__(self) -> None:
        self._batches: deque[EntryBatch] = deque()
        #: Everything up to here was read or accepted; later entries wait.
        self._read: Position | None = None
        self.waiting_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Payload bytes of all entries held."""
        return sum(batch.payload_bytes for batch in self._batches)

    def add(self, batch: EntryBatch) -> None:
        """Appends entries that follow the last ones."""
        self._batches.append(batch)
        self.waiting_bytes += batch.wire_bytes

    def taken(self) -> None:
        """Drops all entries: the listener accepted them."""
        self._batches.clear()
        self.waiting_bytes = 0

    def read(self, start: Position, max_bytes: int, bytes_max: int) -> EntryBatch | None:
        """Entries from ``start`` on, of one ledger, as ``LedgerSource.read``; ``None`` if they aren't here.

        Args:
            start: the caller has read everything before it, here or elsewhere.
            bytes_max: limit of read entries that are kept.
        """
        self._mark_read(start.previous(), bytes_max)
        found = next((batch for batch in self._batches if batch.last >= start), None)
        if found is None or start < self._batches[0].first:
            return None
        answer = part_to_read(found, start, max_bytes)
        self._mark_read(answer.last, bytes_max)
        return answer

    def _mark_read(self, position: Position, bytes_max: int) -> None:
        if self._read is not None and position <= self._read:
            return
        self._read = position
        self.waiting_bytes = sum(
            batch.between(self._read.next(), batch.last).wire_bytes
            for batch in self._batches
            if batch.last > self._read
        )
        # The oldest are evicted first; a reader that needs them again gets them from the broker.
        while len(self._batches) > 1 and self._batches[0].last <= self._read and self.held_bytes > bytes_max:
            self._batches.popleft()


_log = logging.getLogger("offloader.ledgers.pulsar")

#: Messages in the buffer of a reader.
MESSAGES_MAX = 100_000
#: Errors that a retry doesn't fix. All others are retried: a token may be renewed, a topic may come back.
FOR_GOOD = (CorruptError, BeyondEndError)


class TailReader:
    """Reads a topic's tail while a listener is subscribed. Thread-safe.

    Args:
        open_reader: makes a reader of the topic; called with ``start``, ``after``, ``messages_max`` and ``ready`` of
            ``Consumer``.
        workers: run reads and listeners.
        bytes_max: returns how many bytes may wait now.
        retry_s_max: longest back-off after a broker error.
        failed: called on a worker after an error that a retry doesn't fix.

    Attributes:
        told: the newest delivered entry; ``None`` if there is none, or no listener.
        trouble: why nothing is delivered now; retried.
    """

    def __init__(
        self,
        ledgers: LedgerList,
        listeners: Listeners,
        *,
        open_reader: Callable[..., Consumer],
        workers: Workers,
        clock: Clock,
        bytes_max: Callable[[], int],
        retry_s_max: float,
        failed: Callable[[OffloaderError], object],
    ) -> None:
        self._ledgers, self._listeners, self._open_reader = ledgers, listeners, open_reader
        self._bytes_max, self._failed, self._clock = bytes_max, failed, clock
        self._task = SerialTask(workers, self._bring)
        self._backoff = Backoff(workers, retry_s_max, self._task.schedule)
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self.told: Position | None = None
        self._window = LiveWindow()
        self._asked: Position | None = None
        self._is_stalled = self._is_ended = False
        #: The position after which delivery began.
        self._after: Position | None = None
        #: The newest delivered entry, and since when a later one is listed.
        self._waits_since: tuple[Position | None, float] | None = None
        #: An entry that the broker has passed over.
        self._passed_over: Position | None = None
        self.trouble: OffloaderError | None = None

        # Used by the task only.
        self._begin: Position | None = None
        self._reader: Consumer | None = None
        self._is_single = False
        self._last: Position | None = None
        self._untold: deque[EntryBatch] = deque()

    def start(self, after: Position | None) -> None:
        """Starts delivery after ``after`` (``None``: from the beginning), for the first listener."""
        with self._lock:
            self._asked, self._after = EARLIEST if after is None else after, after
        self._task.schedule()

    def wake(self) -> None:
        """Wakes the task: a listener subscribed, or read entries that waited."""
        self._task.schedule()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """Waiting entries, as ``LedgerSource.read``; ``None`` if they aren't here."""
        bytes_max = self._bytes_max()
        with self._lock:
            found = self._window.read(start, max_bytes, bytes_max)
            goes_on = self._is_stalled and self._window.waiting_bytes < bytes_max
        if goes_on:
            self._task.schedule()
        return found

    def wait(self, start: Position, max_bytes: int, wait_s: float) -> EntryBatch | None:
        """As ``read``, for the entries that come next: waits for them instead of fetching them twice."""
        with self._came:
            self._came.wait_for(lambda: self.told is None or self.told >= start or self.trouble, wait_s)
        return self.read(start, max_bytes)

    def expect(self, listed: Position | None) -> None:
        """Learns the newest listed entry that readers receive.

        If nothing is delivered up to there for ``READ_S_MAX``, the broker has passed over it together with a lost one,
        and sends nothing until a later entry comes. Then the reader begins again, once after each delivered entry.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            last = newest(self.told, self._after)
            is_delivered = listed is None or (last is not None and listed <= last)
            if is_delivered or self._is_stalled or self.trouble is not None or not self._listeners.want_entries:
                self._waits_since = None
                return
            if self._waits_since is None or self._waits_since[0] != last:
                self._waits_since = last, now_s
            if now_s - self._waits_since[1] < READ_S_MAX:
                return
            self._waits_since, self._passed_over = (last, math.inf), listed
        self._task.schedule()

    def end(self) -> None:
        """Stops delivery."""
        self._is_ended = True
        self._task.schedule()

    def _bring(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, None
        if self._is_ended or asked is not None or not self._listeners.want_entries:
            self._leave()
            self._begin = asked
        if self._is_ended or self._begin is None or self._backoff.waiting:
            return
        try:
            while self._has_room() and self._tell_some():
                pass
        except ClosedError:
            return
        except OffloaderError as error:
            self._trouble(error)
        else:
            self._backoff.reset()
            self.trouble = None

    def _has_room(self) -> bool:
        bytes_max = self._bytes_max()
        with self._lock:
            self._is_stalled = self._window.waiting_bytes >= bytes_max
            return not self._is_stalled

    def _tell_some(self) -> bool:
        """Delivers some entries; returns whether there were any."""
        if not self._untold:
            with self._lock:
                passed_over, self._passed_over = self._passed_over, None
            if passed_over is not None and (self._last is None or passed_over > self._last):
                self._ledgers.skipped(self._last or EARLIEST, passed_over)
                self._close_reader()
            if self._is_single and self._last is not None and not self._ledgers.were_skipped(self._last):
                self._close_reader()
            self._untold.extend(batches_of((self._reader or self._open()).take()))
        if not self._untold:
            return False
        batch = self._untold[0]
        for info in self._ledgers.follow(self._last, batch.first):
            self._listeners.tell_closed(info)
        self._ledgers.delivered(batch.last)
        self._untold.popleft()
        self._last = batch.last
        with self._lock:
            self._window.add(batch)
            self.told = batch.last
            self._came.notify_all()
        if self._listeners.tell(batch):
            with self._lock:
                self._window.taken()
        return True

    def _open(self) -> Consumer:
        """Opens the reader after the newest entry that was received."""
        assert self._begin is not None, "called without a read"
        self._last = self._begin if self._begin != EARLIEST else None
        start = self._start(self._begin)
        self._is_single = self._ledgers.were_skipped(self._begin)
        self._reader = self._open_reader(
            start=start,
            after=self._last if start == self._begin else None,  # a reader begins there, if it is delivered
            messages_max=1 if self._is_single else MESSAGES_MAX,
            ready=self._task.schedule,
        )
        return self._reader

    def _start(self, begin: Position) -> Position:
        """The first listed entry after ``begin``, or ``begin`` itself: a reader must begin at an entry that exists.

        ``begin`` may have been lost since it was delivered, and a broker would skip entries with it.
        """
        return first_from(self._ledgers.known(), begin.next()) or begin

    def _trouble(self, error: OffloaderError) -> None:
        if isinstance(error, FOR_GOOD):
            self._is_ended = True
            self._failed(error)
            self._leave()
            return
        if isinstance(error, InconsistentReadError):
            self._close_reader()
        with self._lock:
            self.trouble = error
            self._came.notify_all()
        delay_s = self._backoff.wait()
        # Once an outage: further attempts fail the same way.
        log = _log.warning if delay_s <= RETRY_DELAY_FIRST_S else _log.debug
        log("%s: %s; again in %.1f s", self._ledgers.topic, error, delay_s, extra={"event": "retry"})

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._untold.clear()
        self._begin = self._last or self._begin  # of the next reader

    def _leave(self) -> None:
        self._close_reader()
        self._begin = None
        with self._lock:
            self._window.taken()
            self.told = self.trouble = None
            self._came.notify_all()


#: Readers in the whole process; idle ones are closed when others are needed.
READERS_MAX = 64
#: How long an idle reader is kept open.
IDLE_S_MAX = 10.0
#: Longest wait for an entry that the broker lists.
READ_S_MAX = 15.0


@dataclass(eq=False)
class _Reader:
    """A reader of one topic.

    Attributes:
        last: the newest entry it received.
        next_start: the start position of the next call, if this reader is reused.
        kept: entries that were not returned yet.
        is_single: it asks for single entries, because the broker would skip some otherwise.
        is_spent: it failed, or skipped entries that another reader gets, and isn't reused.
    """

    ledgers: LedgerList
    consumer: Consumer
    last: Position
    next_start: Position
    kept: deque[EntryBatch] = field(default_factory=deque)
    idle_since_s: float = 0.0
    is_single: bool = False
    is_spent: bool = False


class ReaderPool:
    """Readers of all topics of a cluster. Thread-safe: reads at different positions run in parallel.

    Args:
        open_reader: opens a reader of a topic at a position, with so many messages in its buffer.
        workers: close idle readers.
    """

    def __init__(
        self, open_reader: Callable[[str, Position, int], Consumer], *, workers: Workers, clock: Clock
    ) -> None:
        self._open_reader, self._clock = open_reader, clock
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        self._busy = 0
        self._next_sweep = Alarm(workers, self._sweep)

    def read(self, ledgers: LedgerList, infos: Sequence[LedgerInfo], target: Position, max_bytes: int) -> EntryBatch:
        """Entries of one ledger from the first delivered one at or after ``target`` on, as ``LedgerSource.read``.

        Args:
            ledgers: of the topic; records which entries aren't delivered.
            infos: the ledgers as listed now; ``target`` is an entry in them.

        Raises:
            StoreUnavailableError, ThrottledError: no entry arrived in time, or too many concurrent reads; retry later.
            CorruptError, BeyondEndError: the broker sent impossible entries.
            NotFoundError, AccessDeniedError: the broker refuses.
        """
        reader = self._borrow(ledgers, infos, target)
        try:
            while reader.kept and reader.kept[0].last < target:
                reader.kept.popleft()
            if not reader.kept:
                self._bring(reader, target)
            answer = part_to_read(_consecutive(reader.kept, max_bytes), target, max_bytes)
            reader.next_start = answer.last.next()
            reader.is_spent |= reader.is_single and not ledgers.were_skipped(answer.last)
            return answer
        except BaseException:
            reader.is_spent = True
            raise
        finally:
            self._give_back(reader)

    def forget(self, ledgers: LedgerList) -> None:
        """Closes the topic's readers."""
        self._close_idle(lambda reader: reader.ledgers is ledgers)

    def close(self) -> None:
        """Closes idle readers now, and the others when they are returned."""
        self._next_sweep.stop()
        self._close_idle(lambda _: True)

    def _close_idle(self, is_over: Callable[[_Reader], bool]) -> None:
        with self._lock:
            over = [reader for reader in self._idle if is_over(reader)]
            self._idle = [reader for reader in self._idle if reader not in over]
        for reader in over:
            reader.consumer.close()

    def _borrow(self, ledgers: LedgerList, infos: Sequence[LedgerInfo], target: Position) -> _Reader:
        dropped: _Reader | None = None
        is_single = ledgers.were_skipped(target.previous())
        with self._lock:
            if self._next_sweep.is_stopped:
                raise ClosedError(f"the readers of {ledgers.topic} were closed")
            for reader in self._idle:
                keeps = bool(reader.kept) and reader.kept[0].first <= target <= reader.kept[-1].last
                # One that asks for several entries would skip what it skipped before.
                follows = first_from(infos, reader.next_start) == target and (reader.is_single or not is_single)
                if reader.ledgers is ledgers and (keeps or follows):
                    self._idle.remove(reader)
                    self._busy += 1
                    return reader
            if self._busy + len(self._idle) >= READERS_MAX:
                if not self._idle:
                    raise ThrottledError(
                        f"{READERS_MAX} readers of Pulsar topics are busy", hint="the read will be retried"
                    )
                dropped = self._idle.pop(0)  # the one that was idle longest
            self._busy += 1
        try:
            if dropped is not None:
                dropped.consumer.close()
            opened = self._open_reader(ledgers.topic, target, 1 if is_single else MESSAGES_MAX)
        except BaseException:
            with self._lock:
                self._busy -= 1
            raise
        return _Reader(ledgers, opened, last=target.previous(), next_start=target, is_single=is_single)

    def _bring(self, reader: _Reader, target: Position) -> None:
        deadline_s = self._clock.monotonic_s() + READ_S_MAX
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                reader.ledgers.doubt()
                if not reader.is_single:  # the broker may have skipped everything up to the newest entry
                    until = Position(target.ledger_id, target.entry_id + SINGLE_ENTRIES)
                    reader.ledgers.skipped(target.previous(), until)
                raise StoreUnavailableError(
                    f"{reader.ledgers.topic}: the broker sent nothing from {target} on for {READ_S_MAX:g} s",
                    hint="the read will be retried",
                )
            batches = [batch for batch in batches_of(reader.consumer.take(left_s)) if batch.last >= target]
            for batch in batches:
                # Everything received is accounted for immediately, so that later reads know each gap.
                try:
                    reader.ledgers.follow(reader.last, batch.first)
                except InconsistentReadError:
                    if not reader.kept:
                        raise
                    reader.is_spent = True  # the entries received before are valid
                    return
                reader.last = batch.last
                reader.kept.append(batch)
            if batches:
                return

    def _give_back(self, reader: _Reader) -> None:
        with self._lock:
            self._busy -= 1
            is_over = self._next_sweep.is_stopped or reader.is_spent
            if not is_over:
                reader.idle_since_s = self._clock.monotonic_s()
                self._idle.append(reader)
                if len(self._idle) == 1:  # while one is idle, a sweep is due
                    self._next_sweep.set(IDLE_S_MAX)
        if is_over:
            reader.consumer.close()

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        self._close_idle(lambda reader: now_s - reader.idle_since_s >= IDLE_S_MAX)
        if self._idle:
            self._next_sweep.set(IDLE_S_MAX)


def _consecutive(kept: Sequence[EntryBatch], max_bytes: int) -> EntryBatch:
    """Joins the first batches, as far as they are consecutive and one read's size."""
    run, size_bytes = [kept[0]], kept[0].payload_bytes
    for batch in itertools.islice(kept, 1, None):
        if size_bytes >= max_bytes or batch.first != run[-1].last.next():
            break
        run.append(batch)
        size_bytes += batch.payload_bytes
    return EntryBatch.concat(run)
