"""A stream whose ledgers are ours: payloads come in through Arrow Flight and are durable in the ledger database.

Owns passing over what a producer repeats, by its own numbers. Must never acknowledge what the database hasn't.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import EntryBatch, Position
from offloader.clock import Clock
from offloader.errors import InvalidCall, LimitReached
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription
from offloader.ledgers.embedded import EmbeddedStream
from offloader.ledgers.pushed import Offered, PushNews
from offloader.ledgers.tailing import TailingSource

__all__ = ["PRODUCERS_MAX", "AppendedLedgers"]

#: Producers of one stream that number their batches; the numbers are kept for ever.
PRODUCERS_MAX = 256
#: The note that has them.
_NOTE = "flight-producers"
#: Longest sleep of who waits for news before they look again.
_WAIT_S_MAX = 0.5


class AppendedLedgers:
    """An embedded stream as a ``LedgerSource``, and its producers' way in. Thread-safe.

    Args:
        inner: the stream, open to append to.
        tail_bytes_max: newest entries kept in memory.
        clock: for waiting.

    Attributes:
        offered: asks what became of entries; set before the first append.
    """

    def __init__(self, inner: EmbeddedStream, tail_bytes_max: int, clock: Clock) -> None:
        self._inner, self._clock = inner, clock
        self._tail = TailingSource(inner, tail_bytes_max)
        self.offered: Callable[[], Offered] = Offered
        self._changed = threading.Condition()
        self._appending = threading.Lock()
        self._sequences: dict[str, int] = json.loads(inner.get_note(_NOTE) or b"{}")
        self._end = inner.last_position()

    # -- the producer's side

    def sequence(self, producer: str) -> int | None:
        """The newest number of a producer's batch that is durable."""
        return self._sequences.get(producer)

    def append(
        self, payloads: pa.BinaryArray, times_ms: NDArray[np.int64] | None, *, producer: str, sequence: int | None
    ) -> list[EntryBatch]:
        """Adds a batch; what was written where, nothing where the producer repeats one.

        Args:
            producer, sequence: whose, and its number; without both nothing is known of repetitions.

        Raises:
            InvalidCall: a number without a producer.
            LimitReached: too many producers.
            as ``EmbeddedStream.append``.
        """
        with self._appending:
            notes = {} if sequence is None else self._note_of(producer, sequence)
            if sequence is not None and sequence <= self._sequences.get(producer, -1):
                return []
            written = self._inner.append(payloads, times_ms, notes=notes)
            if sequence is not None:
                self._sequences[producer] = sequence
            with self._changed:
                self._end = written[-1].last if written else self._end
                self._changed.notify_all()
        return written

    def news(self) -> PushNews:
        """The newest entry there is, and the newest that is committed in the cold tier."""
        return PushNews(self._end, self.offered().committed)

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:
        """The news when it isn't ``seen`` any more, when something happened, or after ``within_s``."""
        deadline_s = self._clock.monotonic_s() + within_s
        happened = False
        while True:
            with self._changed:
                found = self.news()
                left_s = deadline_s - self._clock.monotonic_s()
                if found != seen or left_s <= 0 or happened:
                    return found
                happened = self._changed.wait(min(left_s, _WAIT_S_MAX))

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, so that the next append opens another."""
        return self._inner.close_ledger()

    def end(self) -> None:
        """Keeps nothing in memory any more. Calling it twice is fine."""
        self._tail.close()

    # -- LedgerSource

    @property
    def inner(self) -> LedgerSource:
        """The hot tier behind it."""
        return self._tail

    def ledgers(self) -> list[LedgerInfo]:
        return self._tail.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return self._tail.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self._tail.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self._tail.release(position)
        self.wake()

    def delete(self, ledger_id: int) -> None:
        self._tail.delete(ledger_id)

    def _note_of(self, producer: str, sequence: int) -> dict[str, bytes]:
        if not producer:
            raise InvalidCall("a batch has a sequence, and nobody said whose", hint="the descriptor names the producer")
        if producer not in self._sequences and len(self._sequences) >= PRODUCERS_MAX:
            raise LimitReached(
                f"{PRODUCERS_MAX} producers have numbered their batches, and {producer!a} is another one",
                hint="use the same names again, or send without a sequence",
            )
        return {_NOTE: json.dumps({**self._sequences, producer: sequence}).encode()}
