"""Readers somewhere in topics: for what isn't at their ends, or isn't there any more.

Owns how many there are and how long one that nobody needs stays. Must never leave a trace in a broker, nor answer with
an entry before the one that was asked for.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from formats.entries import EntryBatch, Position
from offloader.clock import Clock
from offloader.errors import Closed, StoreUnavailable, Throttled
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.delivered import batches_of
from offloader.ledgers.pulsar.ledger_list import LedgerList, first_from
from offloader.ledgers.pulsar.second_look import PassedOver
from offloader.ledgers.pulsar.window import leading_bytes
from offloader.workers import Timer, Workers

__all__ = ["ReaderPool"]

#: Readers at once, whole process; those that wait for their next call are closed when others are needed.
READERS_MAX = 64
#: How long one that nobody needs stays.
IDLE_S_MAX = 10.0
#: Longest wait for an entry that the broker lists.
READ_S_MAX = 15.0


@dataclass(eq=False)
class _Reader:
    """A reader of one topic and what it brought and nobody got yet.

    Attributes:
        last: the newest entry it brought.
        next_start: what would be asked for next, if it is read on.
        is_spent: it passed over entries that another reader gets, and isn't read on.
    """

    ledgers: LedgerList
    consumer: Consumer
    last: Position
    next_start: Position
    kept: deque[EntryBatch] = field(default_factory=deque)
    idle_since_s: float = 0.0
    is_spent: bool = False


class ReaderPool:
    """Of all topics of a cluster. Thread-safe: calls for different places don't wait for each other.

    Args:
        open_reader: a reader of a topic that begins at a position.
        workers: close what is idle.
        clock: of waits.
    """

    def __init__(self, open_reader: Callable[[str, Position], Consumer], *, workers: Workers, clock: Clock) -> None:
        self._open_reader, self._workers, self._clock = open_reader, workers, clock
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        self._busy = 0
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """Readers there are."""
        with self._lock:
            return self._busy + len(self._idle)

    def read(self, ledgers: LedgerList, infos: Sequence[LedgerInfo], target: Position, max_bytes: int) -> EntryBatch:
        """Entries of one ledger from the first one at or after ``target`` that is given.

        Args:
            ledgers: of the topic; accounts for what isn't given.
            infos: what it lists now.
            target: an entry in there.
            max_bytes: of payload; at least one entry.

        Raises:
            StoreUnavailable: nothing came in time; try again later.
            Throttled: too many read at once.
            Corrupt, BeyondEnd: what the broker gives can't be.
            NotFound, AccessDenied: the broker refuses.
        """
        reader = self._borrow(ledgers, infos, target)
        try:
            answer = self._next(reader, target, max_bytes)
        except BaseException:
            reader.consumer.close()
            with self._lock:
                self._busy -= 1
            raise
        self._give_back(reader)
        return answer

    def forget(self, ledgers: LedgerList) -> None:
        """The topic isn't read any more."""
        with self._lock:
            gone = [reader for reader in self._idle if reader.ledgers is ledgers]
            self._idle = [reader for reader in self._idle if reader.ledgers is not ledgers]
        for reader in gone:
            reader.consumer.close()

    def close(self) -> None:
        """Closes those that nobody uses; the others when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
        for reader in idle:
            reader.consumer.close()

    def _borrow(self, ledgers: LedgerList, infos: Sequence[LedgerInfo], target: Position) -> _Reader:
        dropped: _Reader | None = None
        with self._lock:
            if self._is_closed:
                raise Closed(f"the readers of {ledgers.topic} were closed")
            for reader in self._idle:
                if reader.ledgers is ledgers and (
                    _keeps(reader, target) or first_from(infos, reader.next_start) == target
                ):
                    self._idle.remove(reader)
                    self._busy += 1
                    return reader
            if self._busy + len(self._idle) >= READERS_MAX:
                if not self._idle:
                    raise Throttled(f"{READERS_MAX} readers of Pulsar topics are busy", hint="it is tried again")
                dropped = self._idle.pop(0)  # the one that waited longest
            self._busy += 1
        if dropped is not None:
            dropped.consumer.close()
        before = Position(target.ledger_id, target.entry_id - 1)
        return _Reader(ledgers, self._open_reader(ledgers.topic, target), last=before, next_start=target)

    def _next(self, reader: _Reader, target: Position, max_bytes: int) -> EntryBatch:
        while reader.kept and reader.kept[0].last < target:
            reader.kept.popleft()
        if not reader.kept:
            self._bring(reader, target)
        rest = _consecutive(reader.kept, max_bytes)
        rest = rest.between(max(target, rest.first), rest.last)
        answer = rest.slice(0, leading_bytes(rest, max_bytes))
        reader.next_start = Position(answer.ledger_id, answer.last.entry_id + 1)
        return answer

    def _bring(self, reader: _Reader, target: Position) -> None:
        deadline_s = self._clock.monotonic_s() + READ_S_MAX
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                reader.ledgers.doubt()
                raise StoreUnavailable(
                    f"{reader.ledgers.topic}: the broker gave nothing from {target} on for {READ_S_MAX:g} s",
                    hint="it is tried again",
                )
            batches = [batch for batch in batches_of(reader.consumer.take(left_s)) if batch.last >= target]
            for batch in batches:
                # All of what came is accounted for at once: who comes for it finds each hole known.
                try:
                    reader.ledgers.follow(reader.last, batch.first)
                except PassedOver:
                    if not reader.kept:
                        raise
                    reader.is_spent = True  # what came before is good
                    return
                reader.last = batch.last
                reader.kept.append(batch)
            if batches:
                return

    def _give_back(self, reader: _Reader) -> None:
        with self._lock:
            self._busy -= 1
            is_over = self._is_closed or reader.is_spent
            if not is_over:
                reader.idle_since_s = self._clock.monotonic_s()
                self._idle.append(reader)
                if self._timer is None:
                    self._timer = self._workers.call_after(IDLE_S_MAX, self._sweep)
        if is_over:
            reader.consumer.close()

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            old = [reader for reader in self._idle if now_s - reader.idle_since_s >= IDLE_S_MAX]
            self._idle = [reader for reader in self._idle if reader not in old]
            self._timer = self._workers.call_after(IDLE_S_MAX, self._sweep) if self._idle else None
        for reader in old:
            reader.consumer.close()


def _consecutive(kept: Sequence[EntryBatch], max_bytes: int) -> EntryBatch:
    """The first batches as one, as far as they follow each other and are worth a read."""
    run, size_bytes = [kept[0]], kept[0].payload_bytes
    for batch in itertools.islice(kept, 1, None):
        if size_bytes >= max_bytes or batch.first != (run[-1].ledger_id, run[-1].last.entry_id + 1):
            break
        run.append(batch)
        size_bytes += batch.payload_bytes
    return EntryBatch.concat(run)


def _keeps(reader: _Reader, target: Position) -> bool:
    return bool(reader.kept) and reader.kept[0].first <= target <= reader.kept[-1].last
