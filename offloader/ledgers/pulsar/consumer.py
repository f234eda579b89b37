"""Raw entries of one topic, received through a durable subscription or a reader."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import NamedTuple

from formats.entries import TIME_MS_MAX, TIME_MS_MIN, TIME_UNKNOWN_MS, EntryBatch, Position
from formats.pulsar.commands import Command, CommandType, message_id, position_of
from formats.pulsar.entry import decode_frame, signed64
from offloader.errors import (
    BeyondEndError,
    ClosedError,
    CorruptError,
    InvalidCallError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.ledgers.base import newest
from offloader.ledgers.pulsar.protocol import UNASKED_REQUEST, Connection, PulsarClient
from offloader.runtime.clock import Clock, SystemClock

#: Assumed size of a message before any was received; the estimate converges within a few entries.
FIRST_ESTIMATE_BYTES = 64 * 1024
#: Largest number of permits that brokers count.
PERMITS_MAX = 2**31 - 1


class FlowWindow:
    """Flow control: the protocol's permits count messages, the buffer counts bytes. Not thread-safe.

    A broker sends whole batches: it may exceed its permits, and the next grant is reduced accordingly.

    Args:
        messages_max: permitted or buffered.
        bytes_max: approximate limit, by the largest of the last messages; may be changed.

    Attributes:
        permitted: messages that the broker may send; 0 in a new session.
        messages, bytes: buffered.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max, self.bytes_max = messages_max, bytes_max
        self._message_bytes = float(FIRST_ESTIMATE_BYTES)
        self.permitted = self.messages = self.bytes = 0

    def arrived(self, messages: int, size_bytes: int, *, kept: bool) -> None:
        """Count an entry that arrived, and that is buffered if ``kept``."""
        self.permitted -= messages
        self._message_bytes = max(size_bytes / messages, self._message_bytes * 15 / 16, 1.0)
        if kept:
            self.messages += messages
            self.bytes += size_bytes

    def grant(self) -> int:
        """Number of messages to permit now, counted as permitted; 0: too few for a command."""
        room = min(self._messages_max - self.messages, int((self.bytes_max - self.bytes) / self._message_bytes))
        if not self.messages:
            room = max(room, 1)  # one message is permitted, however large
        more = min(room - self.permitted, PERMITS_MAX)
        if more <= 0 or more < room // 2:
            return 0
        self.permitted += more
        return more


#: Before a topic's first entry.
EARLIEST = Position(-1, -1)
_EXCLUSIVE, _FAILOVER = 0, 2
_FROM_EARLIEST = 1
#: A consumer without it is a client of Pulsar 4, which can't follow a migrated topic.
_FOLLOWS_SEGMENTS = {"key": "__pulsar.v5.managed", "value": "true"}
_CUMULATIVE = 1


class Delivery(NamedTuple):
    """One stored entry: all after the command (CRC-32C checked), its messages, and publish time, ms since 1970
    UTC.
    """

    position: Position
    entry: bytes
    messages: int
    publish_time_ms: int


#: Default buffer of a consumer.
_BUFFER_BYTES = 16 * 1024 * 1024


class _Session:
    """One session of a consumer with a broker; commands for an earlier session are ignored."""

    def __init__(self, consumer: Consumer, connection: Connection, begin: Position | None) -> None:
        self._consumer, self.connection = consumer, connection
        #: For a reader: its start position, and the last entry received.
        self.begin = begin
        self.last: Position | None = None
        self.consumer_id = connection.attach(self)
        self.is_known = True
        self.is_broken = False

    def received(self, command: Command) -> None:
        if command.type is CommandType.CLOSE_CONSUMER:
            self.is_known = False
            self.connection.detach(self.consumer_id)
        self._consumer.heard(self, command)

    def lost(self, error: OffloaderError) -> None:
        self._consumer.ended(self, error)

    @property
    def is_usable(self) -> bool:
        return self.is_known and not self.is_broken

    def leave(self) -> None:
        """Close the session at the broker, if the broker knows it and is reachable."""
        if self.is_known:
            self.connection.leave(CommandType.CLOSE_CONSUMER, self.consumer_id)

    def abandon(self) -> None:
        """Close the session without waiting for a broker that did not respond or refused.

        Commands are executed in order, so the broker closes this session before the next one begins.
        """
        with contextlib.suppress(OffloaderError):
            self.connection.send(CommandType.CLOSE_CONSUMER, consumer_id=self.consumer_id, request_id=UNASKED_REQUEST)
        self.connection.detach(self.consumer_id)


class Consumer:
    """Receives a topic's entries. Thread-safe, with one ``take`` at a time. Connects at the first ``take``.

    Args:
        topic: ``persistent://tenant/namespace/topic``, or a partition's name.
        subscription: its name. A durable subscription is created at the topic's beginning if it is missing; of several
            consumers with one name, the broker chooses the active one.
        start: start position of a reader, instead of a durable subscription.
        after: the last entry that is no longer needed; it and earlier entries are dropped on arrival.
        messages_max: in the buffer.
        bytes_max: returns the current byte limit of the buffer, before each grant.
        ready: called by another thread when entries are available; return quickly.

    Attributes:
        is_at_end: whether the broker reported that the topic is terminated and has no entries after the acknowledged
            ones; for a reader, none from its start position on.
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        subscription: str,
        *,
        start: Position | None = None,
        after: Position | None = None,
        messages_max: int = 10_000,
        bytes_max: Callable[[], int] = lambda: _BUFFER_BYTES,
        clock: Clock | None = None,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        self.topic = topic
        self._client, self._subscription, self._start, self._ready = client, subscription, start, ready
        self._clock = clock or SystemClock()
        self._flow = FlowWindow(messages_max, bytes_max())
        self._bytes_max = bytes_max
        self._subscribing = threading.Lock()
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._arrived = threading.Event()
        self._kept: list[Delivery] = []
        self._last = self._taken = after
        self._acknowledged: Position | None = None
        self._error: OffloaderError | None = None
        self._is_active: bool | None = None
        self._choices = 0
        self.is_at_end = False
        self._is_closed = self._is_away = False

    @property
    def is_active(self) -> bool | None:
        """Whether the broker chose this consumer; a reader always is. ``None``: not reported yet, or no connection."""
        with self._lock:
            session = self._session
            return self._is_active if session is not None and session.is_usable else None

    @property
    def choice(self) -> int | None:
        """Number of the broker's choice that made this consumer the active one, without interruption; ``None``:
        inactive.
        """
        with self._lock:
            session = self._session
            is_chosen = session is not None and session.is_usable and bool(self._is_active)
            return self._choices if is_chosen else None

    def is_chosen_since(self, since_s: float) -> bool:
        """Whether the broker chose this consumer, as confirmed by a command received after ``since_s``.

        ``since_s`` is of the clock's ``monotonic_s``.
        Commands are ordered, so a later choice would have arrived before. Pings a silent broker; does not wait.
        """
        with self._lock:
            session = self._session
            if session is None or not session.is_usable or not self._is_active:
                return False
        if session.connection.heard_s > since_s:
            return True
        with contextlib.suppress(OffloaderError):
            session.connection.send(CommandType.PING)
        return False

    def attend(self) -> None:
        """Subscribe if needed, also after ``leave``; takes no entries. Raises as ``take``."""
        self._is_away = False
        self._raise_error()
        self._subscribed()

    def leave(self) -> None:
        """Unsubscribe until ``attend``: the broker chooses another consumer of the subscription.

        Calls that need the broker are refused meanwhile: subscribing would make this consumer a candidate.
        """
        with self._subscribing:
            self._is_away = True
            self._end_session()

    def skip(self, position: Position) -> None:
        """Drop everything up to ``position``: it counts as taken."""
        with self._lock:
            self._taken, self._last = newest(self._taken, position), newest(self._last, position)
            self._kept = [each for each in self._kept if each.position > position]

    def take(self, wait_s: float = 0.0) -> list[Delivery]:
        """The next entries, in order; none if no entry arrived within ``wait_s``.

        Subscribes first, and resubscribes after the broker or the connection was lost, without repeating or losing
        entries.

        Raises:
            StoreUnavailableError: no broker serves the topic now, or an entry arrived damaged; retry later.
            CorruptError: the entries of a reader don't ascend. AccessDeniedError, NotFoundError, InvalidCallError: the
                broker refuses.
            BeyondEndError: a reader's broker began before ``start``, as brokers do when no later entry is stored.
            ClosedError: this consumer was closed.
        """
        self._raise_error()
        session = self._subscribed()
        self._permit(session)
        self._clock.wait(self._arrived, wait_s)
        self._raise_error()
        with self._lock:
            taken, self._kept = self._kept, []
            self._flow.messages = self._flow.bytes = 0
            if taken:
                self._taken = taken[-1].position
            self._arrived.clear()
        self._permit(session)
        return taken

    def last_position(self) -> Position | None:
        """The newest entry that the broker delivers, ``None`` if there is none.

        Raises as ``take``.
        """
        session = self._subscribed()
        body = session.connection.request(CommandType.GET_LAST_MESSAGE_ID, consumer_id=session.consumer_id)
        found = position_of(body.last_message_id)
        return found if min(found) >= 0 else None

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to ``position``: the broker may delete it. Sends nothing if this was done before.

        Raises:
            InvalidCallError: it is a reader, or ``position`` is after the last taken entry.
            StoreUnavailableError: retry later.
        """
        if self._start is not None:
            raise InvalidCallError(f"{self.topic}: a reader can't acknowledge")
        if self._taken is None or position > self._taken:
            raise InvalidCallError(f"{self.topic}: can't acknowledge {position}, the last taken entry is {self._taken}")
        if self._acknowledged is not None and position <= self._acknowledged:
            return
        session = self._subscribed()
        session.connection.request(
            CommandType.ACK, consumer_id=session.consumer_id, type=_CUMULATIVE, message_id=[message_id(position)]
        )
        self._acknowledged = position

    def close(self) -> None:
        """Close the session; a durable subscription remains. Idempotent."""
        with self._subscribing:
            self._is_closed = True
            self._end_session()
        self._arrived.set()

    def heard(self, session: _Session, command: Command) -> None:
        """Handles a command of the broker, for the session."""
        with self._lock:
            if session is not self._session or session.is_broken:
                return
            if command.type is CommandType.MESSAGE:
                self._keep(session, command)
            elif command.type is CommandType.ACTIVE_CONSUMER_CHANGE:
                self._choices += bool(command.body.is_active) and not self._is_active
                self._is_active = bool(command.body.is_active)
            elif command.type is CommandType.REACHED_END_OF_TOPIC:
                self.is_at_end = True
            if self._kept or self.is_at_end or session.is_broken or not session.is_known:
                self._arrived.set()
        self._ready()

    def ended(self, session: _Session, error: OffloaderError) -> None:
        """Handles a lost connection or damaged data, for the session."""
        with self._lock:
            if session is not self._session:
                return
            # A lost connection is re-established; damage is raised.
            if session.connection.is_open:
                self._error = error
            session.is_broken = True
            self._arrived.set()
        self._ready()

    def _keep(self, session: _Session, command: Command) -> None:
        """Buffers one entry, with the lock held. ``FormatError``: damaged."""
        position = position_of(command.body.message_id)
        metadata = decode_frame(command.entry).metadata
        messages = max(metadata.num_messages_in_batch, 1)
        if self._start is not None and (error := self._out_of_order(session, position)) is not None:
            self._error, session.is_broken = error, True
            return
        # After a change of consumers or connections, brokers resend from the acknowledged position.
        is_new = self._last is None or position > self._last
        self._flow.arrived(messages, len(command.entry), kept=is_new)
        if is_new:
            self._last = position
            time_ms = signed64(metadata.publish_time)
            # No format can hold other times; the entry itself keeps the producer's value.
            known_ms = time_ms if TIME_MS_MIN <= time_ms <= TIME_MS_MAX else TIME_UNKNOWN_MS
            self._kept.append(Delivery(position, command.entry, messages, known_ms))

    def _out_of_order(self, session: _Session, position: Position) -> OffloaderError | None:
        """The error in the position of a reader's next entry: readers never receive repeats."""
        last, session.last = session.last, position
        if last is not None and position <= last:
            return CorruptError(
                f"{self.topic}: {session.connection.name} sent {position} after {last}",
                hint="the broker's entry ids are inconsistent: unload the topic, so that another broker serves it",
            )
        if last is None and session.begin is not None and position < session.begin:
            return BeyondEndError(f"{self.topic}: requested {session.begin}, the broker began at {position}")
        return None

    def _raise_error(self) -> None:
        """Raise a failure once, after all entries before it were taken."""
        with self._lock:
            if self._error is None or self._kept:
                return
            error, self._error = self._error, None
        raise error

    def _permit(self, session: _Session) -> None:
        with self._lock:
            self._flow.bytes_max = self._bytes_max()
            permits = self._flow.grant() if session is self._session and session.is_usable else 0
        if permits:
            # If the connection breaks now, the next take reconnects.
            with contextlib.suppress(StoreUnavailableError):
                session.connection.send(CommandType.FLOW, consumer_id=session.consumer_id, permits=permits)

    def _subscribed(self) -> _Session:
        """The current session, or a new one."""
        with self._subscribing:
            if self._is_closed:
                raise ClosedError(f"the consumer of {self.topic} is closed")
            if self._is_away:
                raise StoreUnavailableError(f"{self.topic}: this process has stepped aside for another one")
            with self._lock:
                session = self._session
                if session is not None and session.is_usable:
                    return session
            self._end_session()
            return self._subscribe()

    def _end_session(self) -> None:
        """Call with the subscription lock held."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.leave()

    def _follows_segments(self, connection: Connection) -> bool:
        return self._client.follows_segments and connection.has_scalable_topics

    def _subscribe(self) -> _Session:
        """Call with the subscription lock held."""
        connection = self._client.connection(self.topic)
        is_reader = self._start is not None
        begin = self._last or self._start
        session = _Session(self, connection, begin)
        # Brokers close a subscription asynchronously: a reader that reuses its name is refused, or begins at the
        # position of the earlier one.
        name = f"{self._subscription}-{os.urandom(8).hex()}" if is_reader else self._subscription
        with self._lock:
            self._session = session
            self._is_active = True if is_reader else None
            self._flow.permitted = 0
        try:
            connection.request(
                CommandType.SUBSCRIBE,
                topic=self.topic,
                subscription=name,
                type=_EXCLUSIVE if is_reader else _FAILOVER,
                consumer_id=session.consumer_id,
                durable=not is_reader,
                start_message_id=message_id(begin) if is_reader and begin is not None else None,
                initial_position=_FROM_EARLIEST,
                force_topic_creation=False,
                # Else a broker refuses to migrate the topic while this process is connected.
                metadata=[_FOLLOWS_SEGMENTS] if self._follows_segments(connection) else None,
            )
        except BaseException:
            with self._lock:
                self._session = None
            session.abandon()
            raise
        return session


#: Payload bytes at which a batch ends: a listener refuses whole batches.
BATCH_BYTES = 1024 * 1024
#: Maximum number of entries in a batch, which bounds batches of small entries.
BATCH_ENTRIES_MAX = 8192


def batches_of(deliveries: Sequence[Delivery]) -> Iterator[EntryBatch]:
    """Batches of consecutive entries of one ledger each, in order, from ascending deliveries."""
    start, size_bytes = 0, 0
    for end, (each, following) in enumerate(zip_longest(deliveries, deliveries[1:]), 1):
        size_bytes += len(each.entry)
        is_last = following is None or following.position != each.position.next()
        if is_last or size_bytes >= BATCH_BYTES or end - start >= BATCH_ENTRIES_MAX:
            first, run = deliveries[start].position, deliveries[start:end]
            yield EntryBatch.build(*first, [each.entry for each in run], [each.publish_time_ms for each in run])
            start, size_bytes = end, 0


def first_entries(
    client: PulsarClient, topic: str, *, bytes_max: int, wait_s: float, clock: Clock
) -> Sequence[EntryBatch]:
    """A sample of a topic's oldest entries, of about ``bytes_max``; fewer if they don't arrive within ``wait_s``.

    It uses a reader, which leaves no subscription behind.

    Raises:
        StoreUnavailableError, AccessDeniedError, NotFoundError, CorruptError: as ``Consumer.take``.
    """
    found: list[Delivery] = []
    size_bytes, until_s = 0, clock.monotonic_s() + wait_s
    with closing(
        Consumer(client, topic, "offloader-sample", start=EARLIEST, bytes_max=lambda: bytes_max, clock=clock)
    ) as reader:
        last = reader.last_position() or EARLIEST
        while (
            size_bytes < bytes_max
            and (found[-1].position if found else EARLIEST) < last
            and (left_s := until_s - clock.monotonic_s()) > 0
        ):
            found += (taken := reader.take(left_s))
            size_bytes += sum(len(each.entry) for each in taken)
    return list(batches_of(found))
