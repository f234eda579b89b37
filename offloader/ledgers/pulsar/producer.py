"""Producer of one topic: sends entries in their stored form, and reports which of them are stored.

Never resends: after an error the outcome is unknown, and the caller must check which entries were stored before it
continues with another producer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, position_of
from offloader.errors import ClosedError, InvalidCallError, OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar.protocol import Connection, PulsarClient, refusal
from offloader.runtime.clock import Clock, SystemClock

#: Margin below the broker's size limit: parts of large messages have the maximum size, and become longer under another
#: name. Brokers and bookies allow frames 10 KiB above that.
SPARE_BYTES = 4096


class Receipt(NamedTuple):
    """An entry that the broker has stored, now or before.

    Its position is ``None`` for a duplicate: a deduplicating broker doesn't report it.
    """

    sequence_id: int
    position: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """Limits of unacknowledged entries.

    Attributes:
        entries_max, bytes_max: limits of entries in flight.
        store_s: time limit for the broker to store an entry.
    """

    entries_max: int = 1000
    bytes_max: int = 16 * 1024 * 1024
    store_s: float = 60.0


class Producer:
    """Thread-safe, except that one thread at a time sends; entries are stored in that order.

    Args:
        topic: ``persistent://tenant/namespace/topic``, or a partition's name.
        name: by which a broker recognises duplicates; a topic admits one producer per name.

    Raises:
        AccessDeniedError, NotFoundError, InvalidCallError: the broker refuses.
        StoreUnavailableError: no broker serves the topic now, or a producer of that name is connected; retry later.
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        name: str,
        *,
        limits: ProducerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.topic, self.name = topic, name
        self._limits, self._clock = limits or ProducerLimits(), clock or SystemClock()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._waiting: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._error: OffloaderError | None = None
        #: The newest stored entry; everything sent before it is stored too.
        self.newest: Receipt | None = None
        self._connection: Connection = client.connection(topic)
        self._id = self._connection.attach(self)
        try:
            body = self._connection.request(CommandType.PRODUCER, topic=topic, producer_id=self._id, producer_name=name)
        except BaseException:
            # The broker may have accepted the producer anyway, which would reserve the name.
            self._connection.leave(CommandType.CLOSE_PRODUCER, self._id)
            raise
        #: The newest entry that a producer of this name has stored; -1: none, or the topic does not deduplicate.
        self.last_sequence_id: int = body.last_sequence_id

    def send(self, sequence_id: int, entry: bytes, messages: int) -> None:
        """Send an entry; waits while too much is in flight.

        Args:
            sequence_id: above that of the previous entry.
            entry: metadata, payload and their checksum; the metadata has the same name and sequence id.
            messages: number of messages in it.

        Raises:
            InvalidCallError: the entry is above the broker's limit; nothing was sent.
            OffloaderError: the producer has failed; entries in flight may be stored or not.
        """
        most = self._connection.message_bytes_max + SPARE_BYTES
        if len(entry) > most:
            raise InvalidCallError(
                f"the entry has {len(entry)} bytes; {self._connection.name} accepts at most {most}",
                hint="increase maxMessageSize of the broker",
            )
        bytes_max = max(self._limits.bytes_max - len(entry), 0)  # one entry is sent, however large
        self._wait(lambda: len(self._waiting) < self._limits.entries_max and self._bytes <= bytes_max)
        with self._lock:
            self._waiting.append((sequence_id, len(entry)))
            self._bytes += len(entry)
        self._connection.send(
            CommandType.SEND, entry, producer_id=self._id, sequence_id=sequence_id, num_messages=messages
        )

    def flush(self) -> None:
        """Waits until everything sent is stored. Raises as ``send``."""
        self._wait(lambda: not self._waiting)

    def close(self) -> None:
        """Release the name at the broker, without waiting for entries in flight. Idempotent."""
        with self._lock:
            was_closed = isinstance(self._error, ClosedError)
            self._error = self._error or ClosedError(f"the producer of {self.topic} is closed")
            self._changed.set()
        if not was_closed:
            self._connection.leave(CommandType.CLOSE_PRODUCER, self._id)

    def received(self, command: Command) -> None:
        """Handles a command, for the connection."""
        body = command.body
        match command.type:
            case CommandType.SEND_RECEIPT:
                self._stored(body.sequence_id, position_of(body.message_id) if body.HasField("message_id") else None)
            case CommandType.SEND_ERROR:
                self.lost(refusal(self._connection.name, CommandType.SEND.name, body.error, body.message))
            case CommandType.CLOSE_PRODUCER:
                self.lost(StoreUnavailableError(f"{self._connection.name} closed the producer for {self.topic}"))

    def lost(self, error: OffloaderError) -> None:
        """Handles the loss of the connection."""
        with self._lock:
            self._error = self._error or error
            self._changed.set()

    def _stored(self, sequence_id: int, position: Position | None) -> None:
        with self._lock:
            if not self._waiting or sequence_id < self._waiting[0][0]:
                return  # already reported
            if sequence_id != self._waiting[0][0]:
                self._error = self._error or StoreUnavailableError(
                    f"{self._connection.name} stored {sequence_id} of {self.topic} before {self._waiting[0][0]}"
                )
            else:
                self._bytes -= self._waiting.popleft()[1]
                self.newest = Receipt(sequence_id, None if position is None or position.ledger_id < 0 else position)
            self._changed.set()

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait until ``is_enough``; fails after ``store_s`` without a receipt."""
        while True:
            with self._lock:
                if self._error is not None:
                    raise copy(self._error)
                if is_enough():
                    return
                self._changed.clear()
                before = self.newest
            arrived = self._clock.wait(self._changed, self._limits.store_s)
            with self._lock:
                if not arrived and self.newest is before and self._error is None:
                    self._error = StoreUnavailableError(
                        f"{self._connection.name} stored nothing of {self.topic} for {self._limits.store_s:g} s"
                    )
