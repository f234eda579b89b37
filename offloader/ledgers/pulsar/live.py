"""A topic's new entries, told as they come: read from where its subscription began, never faster than they are taken.

Owns the reader at the topic's end and what it brought that nobody took yet. Must never tell an entry before everything
between it and the one before is accounted for, nor ask the broker for more while its listener is behind.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from formats.entries import EntryBatch, Position
from offloader.backoff import Backoff
from offloader.errors import BeyondEnd, Closed, Corrupt, OffloaderError
from offloader.ledgers.listening import Listeners
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.delivered import batches_of
from offloader.ledgers.pulsar.ledger_list import LedgerList, first_from
from offloader.ledgers.pulsar.second_look import PassedOver
from offloader.ledgers.pulsar.window import LiveWindow
from offloader.workers import SerialTask, Workers

__all__ = ["FOR_GOOD", "LiveFeed"]

_log = logging.getLogger("offloader.ledgers.pulsar")

#: Opens a reader: where it begins, the last entry that isn't wanted any more, whom to tell that something came.
OpenReader = Callable[[Position, Position | None, Callable[[], object]], Consumer]

#: What waiting doesn't mend. A token may be renewed and a topic come back: these are tried again.
FOR_GOOD = (Corrupt, BeyondEnd)
#: Before a topic's first entry.
EARLIEST = Position(-1, -1)


class LiveFeed:
    """Works while somebody listens. Thread-safe.

    Args:
        ledgers: of the topic.
        listeners: who hears of entries.
        open_reader: a reader of the topic.
        workers: read and tell.
        bytes_max: how much may wait to be taken now.
        retry_s_max: longest wait before a broker that failed is asked again.
        failed: called on a worker when it can't go on for good.
    """

    def __init__(
        self,
        ledgers: LedgerList,
        listeners: Listeners,
        *,
        open_reader: OpenReader,
        workers: Workers,
        bytes_max: Callable[[], int],
        retry_s_max: float,
        failed: Callable[[OffloaderError], object],
    ) -> None:
        self._ledgers, self._listeners, self._open_reader = ledgers, listeners, open_reader
        self._bytes_max, self._failed = bytes_max, failed
        self._task = SerialTask(workers, self._bring)
        self._backoff = Backoff(workers, retry_s_max, self._task.schedule)
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._told: Position | None = None
        self._window = LiveWindow()
        self._asked: Position | None = None
        self._is_stalled = False
        self._is_ended = False
        self.trouble: OffloaderError | None = None

        # Touched by the task only.
        self._begin: Position | None = None
        self._reader: Consumer | None = None
        self._last: Position | None = None
        self._untold: deque[EntryBatch] = deque()

    @property
    def held_bytes(self) -> int:
        """Payload bytes that wait here."""
        with self._lock:
            return self._window.held_bytes

    def start(self, after: Position | None) -> None:
        """Brings what comes after ``after``, ``None``: everything; for the first who listens."""
        with self._lock:
            self._asked = EARLIEST if after is None else after
        self._task.schedule()

    def wake(self) -> None:
        """Somebody listens, or took what waited."""
        self._task.schedule()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """What waits here, as ``LedgerSource.read``; ``None``: it isn't here."""
        bytes_max = self._bytes_max()
        with self._lock:
            found = self._window.read(start, max_bytes, bytes_max)
            goes_on = self._is_stalled and self._window.waiting_bytes < bytes_max
        if goes_on:
            self._task.schedule()
        return found

    @property
    def told(self) -> Position | None:
        """The newest entry that was told; ``None``: none, or nobody listens."""
        with self._lock:
            return self._told

    def wait(self, start: Position, max_bytes: int, wait_s: float) -> EntryBatch | None:
        """As ``read``, for what has to come next: it is on its way, and would only be brought twice otherwise."""
        with self._came:
            self._came.wait_for(lambda: self._told is None or self._told >= start or self.trouble, wait_s)
        return self.read(start, max_bytes)

    def end(self) -> None:
        """Brings nothing any more."""
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
        except Closed:
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
        """Whether there was something."""
        if not self._untold:
            if self._reader is None:
                assert self._begin is not None, "nobody asked for anything"
                self._last = self._begin if self._begin != EARLIEST else None
                start = self._start(self._begin)
                after = self._last if start == self._begin else None  # a reader begins there, if it is given
                self._reader = self._open_reader(start, after, self._task.schedule)
            self._untold.extend(batches_of(self._reader.take()))
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
            self._told = batch.last
            self._came.notify_all()
        if self._listeners.tell(batch):
            with self._lock:
                self._window.taken()
        return True

    def _start(self, begin: Position) -> Position:
        """Behind entries after ``begin`` that no reader gets, where some are known: with them a broker passes over
        others, which a reader that begins there gets."""
        infos = self._ledgers.known()
        first = first_from(infos, Position(begin.ledger_id, begin.entry_id + 1))
        if first is None:
            return begin
        passed = (info for info in infos if begin.ledger_id <= info.ledger_id <= first.ledger_id)
        return first if any(info.not_given for info in passed) else begin

    def _trouble(self, error: OffloaderError) -> None:
        if isinstance(error, FOR_GOOD):
            self._is_ended = True
            self._failed(error)
            self._leave()
            return
        if isinstance(error, PassedOver):
            self._read_again()
        with self._lock:
            self.trouble = error
            self._came.notify_all()
        delay_s = self._backoff.wait()
        _log.warning("%s: %s; again in %.1f s", self._ledgers.topic, error, delay_s)

    def _read_again(self) -> None:
        """Another reader, behind what was told."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._untold.clear()
        self._begin = self._last or self._begin

    def _leave(self) -> None:
        reader, self._reader, self._begin = self._reader, None, None
        if reader is not None:
            reader.close()
        self._untold.clear()
        with self._lock:
            self._window.taken()
            self._told = None
            self._came.notify_all()
