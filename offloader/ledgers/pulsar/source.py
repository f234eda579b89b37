"""Topics of a Pulsar cluster as hot tiers: sources, and the connections that they share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType

from formats.entries import EntryBatch, Position
from offloader.errors import Fenced, InvalidCall, LimitReached, OffloaderError, SourceMismatch, StoreUnavailable
from offloader.ledgers.base import AskKnown, ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.pulsar.ack_cursor import AckCursor
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.client import ClientLimits, PulsarClient
from offloader.ledgers.pulsar.consumer import Consumer, ConsumerLimits
from offloader.ledgers.pulsar.failover_subscription import FailoverSubscription
from offloader.ledgers.pulsar.ledger_list import LedgerList, SkippedEntries, first_from, newest_of
from offloader.ledgers.pulsar.protocol import ConnectionLimits
from offloader.ledgers.pulsar.tail_reader import EARLIEST, FOR_GOOD, OpenReader, ReaderPool, TailReader
from offloader.ledgers.pulsar.topics import TopicInternals, contradiction, stream_of_topic
from offloader.ledgers.pulsar.transport import Security, security_of
from offloader.ledgers.tail_buffer import Listeners
from offloader.runtime.clock import Clock, SystemClock
from offloader.runtime.workers import Workers
from offloader.settings import PulsarSettings
from offloader.stream_names import require_stream_name

__all__ = ["PulsarCluster", "PulsarSource"]

_log = logging.getLogger("offloader.ledgers.pulsar")

#: How long a read waits for an entry that is being delivered, before a separate reader fetches it.
LIVE_WAIT_S = 1.0


class PulsarSource:
    """A topic as a ``LedgerSource``. Thread-safe. Made by ``PulsarCluster.open_topic``.

    Args:
        topic: ``persistent://tenant/namespace/topic``.
        client, admin: of the cluster.
        subscription: this project's subscription.
        open_reader: opens a reader at the topic's end.
        read_again: opens a second reader, for entries that weren't delivered.
        readers: of the cluster, for older entries.
        workers: of the cluster.
        clock: of ages.
        bytes_max: returns how many bytes of this topic may wait in memory now.
        entries_asked_max: as ``asked_max`` of ``SkippedEntries``.
        retry_s_max: longest back-off.
        trims: whether to make the broker trim ledgers at once.
        changed: called on a worker when ``active`` or ``problem`` may have changed.
        closed: called once, when it is closed.
    """

    def __init__(
        self,
        topic: str,
        *,
        client: PulsarClient,
        admin: AdminClient,
        subscription: str,
        open_reader: OpenReader,
        read_again: Callable[[Position], Consumer],
        readers: ReaderPool,
        workers: Workers,
        clock: Clock,
        bytes_max: Callable[[], int],
        entries_asked_max: int,
        retry_s_max: float,
        trims: bool,
        changed: Callable[[PulsarSource], object],
        closed: Callable[[PulsarSource], object],
    ) -> None:
        self.topic = topic
        self.stream = stream_of_topic(topic)
        self._admin, self._readers, self._changed, self._closed = admin, readers, changed, closed
        self._lock = threading.Lock()
        self._is_closed = False
        self._failure: OffloaderError | None = None
        self._read_again = read_again
        self._known: AskKnown | None = None
        self._standing = FailoverSubscription(
            client,
            topic,
            subscription,
            workers=workers,
            clock=clock,
            retry_s_max=retry_s_max,
            changed=lambda: changed(self),
        )
        self._fence = AckCursor(self._standing, subscription, trim=(lambda: admin.trim(topic)) if trims else None)
        look = SkippedEntries(
            topic,
            fate_of=partial(admin.fate, topic),
            asked_max=entries_asked_max,
            open_reader=read_again,
            clock=clock,
        )
        self._ledgers = LedgerList(
            topic, ask=self._ask, ask_last=self._standing.last_position, look=look.look, clock=clock
        )
        self._listeners = Listeners(self.stream)
        self._live = TailReader(
            self._ledgers,
            self._listeners,
            open_reader=open_reader,
            workers=workers,
            bytes_max=bytes_max,
            retry_s_max=retry_s_max,
            failed=self._break,
        )

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process to work on the topic; ``None``: not reported yet, or no connection."""
        return self._standing.active

    def is_chosen_since(self, since_s: float) -> bool:
        """Whether the broker confirmed this process after ``since_s``, of the clock's ``monotonic_s``.

        Pings a broker that was silent since; False until it responds.
        """
        return self._standing.is_chosen_since(since_s)

    @property
    def problem(self) -> OffloaderError | None:
        """Why the topic isn't subscribed, read or trusted now; a retryable error is retried automatically."""
        return self._failure or self._standing.problem or self._live.trouble

    @property
    def held_bytes(self) -> int:
        """Payload bytes of this topic that wait to be accepted."""
        return self._live.held_bytes

    def start(self) -> None:
        """Subscribes, creating a missing subscription; ``active`` becomes known some time later."""
        self._standing.start()

    @property
    def is_aside(self) -> bool:
        """Whether this process has stepped aside."""
        return self._standing.is_aside

    def step_aside(self) -> None:
        """Hands the topic to a standby process soon: ``active`` is False until ``step_back``.

        The broker isn't queried meanwhile. The subscription keeps what it retains.
        """
        self._standing.step_aside()

    def step_back(self) -> None:
        """Becomes a candidate again."""
        self._standing.step_back()

    def close(self) -> None:
        """Hands the topic to other processes; the subscription stays. Idempotent."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._live.end()
        self._readers.forget(self._ledgers)
        self._standing.close()
        self._closed(self)

    # -- LedgerSource

    def ledgers(self) -> list[LedgerInfo]:
        """As ``LedgerSource``; up to some seconds old, but never older than delivered entries.

        Raises:
            StoreUnavailable: neither broker nor admin interface responds; AccessDenied, NotFound: they refuse.
            Corrupt: the broker sent impossible entries before.
        """
        self._require_usable()
        return self._ledgers.infos()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """As ``LedgerSource``.

        Raises:
            as ``ledgers`` and ``ReaderPool.read``.
        """
        self._require_usable()
        found = self._live.read(start, max_bytes)
        if found is not None:
            return found
        # A broker's response queues behind the entries it sends: query only what isn't known.
        infos = self._ledgers.known()
        target = first_from(infos, start)
        if target is None:
            infos = self._ledgers.infos()
            target = first_from(infos, start)
        if target is None:
            return None
        told = self._live.told
        try:
            if told is not None and first_from(infos, told.next()) == target:
                found = self._live.wait(target, max_bytes, LIVE_WAIT_S)
            return found or self._readers.read(self._ledgers, infos, target, max_bytes)
        except OffloaderError as error:
            self._ledgers.doubt()
            if isinstance(error, FOR_GOOD):
                self._break(error)
                self._require_usable()
            raise

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """As ``LedgerSource``.

        Raises: as ``ledgers``.
        """
        self._require_usable()
        if listener is None:
            return self._listeners.add(None, closed)
        self._ledgers.doubt()
        newest = newest_of(self._ledgers.infos())
        with self._lock:
            is_first = not self._listeners.want_entries
            subscription = self._listeners.add(listener, closed)
        if is_first:
            self._live.start(newest)
        return _Heard(subscription, self._live.wake)

    def release(self, position: Position) -> None:
        """Notes what is committed, to detect a subscription that was moved beyond it.

        Raises:
            Fenced: the broker chose another process.
        """
        if self.active is False:
            raise Fenced(
                f"{self.topic}: the broker made another consumer of the subscription the active one",
                hint="that process offloads the topic; this one stands by",
            )
        self._fence.committed(position)

    def delete(self, ledger_id: int) -> None:
        """Releases a closed ledger to the broker: it is acknowledged as soon as all earlier ones are released.

        Raises:
            StoreUnavailable: retry later.
            SourceMismatch: as ``require_same``, with the facts it got last.
        """
        self._require_usable()
        self._ledgers.doubt()
        if self._known is not None:
            self.require_same(self._known)
        for gone in self._fence.give_up(ledger_id, self._ledgers.infos()):
            self._ledgers.gave_up(gone)

    # -- ComparedSource

    def require_same(self, known: AskKnown) -> None:
        """As ``ComparedSource``.

        A contradiction counts if the owning broker confirms it; then the topic stops. The known facts are compared
        again before a ledger is released.

        Raises: as ``ComparedSource``, and as ``ledgers``.
        """
        self._require_usable()
        self._known = known
        if _contradiction(self._ledgers.internals(), known) is None:
            return
        self._ledgers.doubt()
        owners = self._newest_of_owner()
        internals = self._ledgers.internals()
        why = _contradiction(internals, known)
        if why is None:
            return
        stored = internals.stored()
        if owners is not None and owners.ledger_id > stored[-1][0]:
            raise StoreUnavailable(
                f"{self.topic}: the admin interface lists ledgers up to {stored[-1][0]}, and the owning broker has "
                f"{owners}: the list is older than that",
                hint="nothing is deleted meanwhile; it is asked again",
            )
        error = SourceMismatch(
            f"{self.topic}: its ledgers aren't those that the manifest knows: {why}; the cluster was made anew, or "
            "restored from an older copy. Nothing was deleted",
            hint="restore the cluster's metadata and ledgers; or offload this topic into another store or prefix, "
            "which leaves readable what is here, and start again",
        )
        self._fail(error)
        raise error

    def _newest_of_owner(self) -> Position | None:
        """The newest entry of the broker that owns the topic now, after a fresh lookup and connection."""
        reader = self._read_again(EARLIEST)
        try:
            return reader.last_position()
        finally:
            reader.close()

    # -- the rest

    def _ask(self) -> TopicInternals:
        internals = self._admin.internals(self.topic)
        self._fence.look(internals)
        return internals

    def _require_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.topic} was closed here")
        if self._failure is not None:
            raise self._failure

    def _break(self, error: OffloaderError) -> None:
        """Handles impossible entries from the broker; another cluster is the cause if its ledgers differ."""
        if self._known is not None:
            with suppress(OffloaderError):
                self.require_same(self._known)
        self._fail(error)

    def _fail(self, error: OffloaderError) -> None:
        """Stops this topic after an error that a retry doesn't fix; others continue."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        _log.error("%s: %s; nothing of it is read any more", self.topic, error)
        self._live.end()
        self._changed(self)


def _contradiction(internals: TopicInternals, known: AskKnown) -> str | None:
    stored = internals.stored()
    return contradiction(stored, known([ledger_id for ledger_id, _ in stored]))


class _Heard:
    """A subscription whose cancellation wakes the tail reader, which stops without listeners."""

    def __init__(self, inner: Subscription, ended: Callable[[], object]) -> None:
        self._inner, self._ended = inner, ended

    def cancel(self) -> None:
        self._inner.cancel()
        self._ended()


#: Minimum buffer of a topic, however many there are: a few messages of usual size.
TOPIC_BYTES_MIN = 128 * 1024
#: Maximum buffer of a topic: what a connection receives in about a tenth of a second.
TOPIC_BYTES_MAX = 16 * 1024 * 1024
#: Read-ahead of readers in the middle of a topic.
READER_BYTES = 4 * 1024 * 1024
_MESSAGES_MAX = 100_000


class PulsarCluster:
    """A Pulsar cluster and its open sources. Thread-safe. Closing it closes its sources.

    Args:
        settings: the section ``[pulsar]``.
        security: of brokers and of the admin interface, instead of the settings'.
        clock: of waits.
        admin: instead of one for ``settings.admin_url``; owned by the cluster.

    Raises:
        InvalidCall: a URL or another setting is missing or invalid.
        AccessDenied: there is no token at the configured location.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        *,
        security: Security | None = None,
        clock: Clock | None = None,
        admin: AdminClient | None = None,
    ) -> None:
        if not settings.service_url or not (settings.admin_url or admin):
            raise InvalidCall(
                "pulsar.service_url and pulsar.admin_url are needed",
                hint='service_url = "pulsar://broker:6650", admin_url = "http://broker:8080"',
            )
        self.settings = settings
        self._clock = clock or SystemClock()
        # No retry within a call: the caller retries later and blocks no thread meanwhile.
        limits = ClientLimits(
            connection=ConnectionLimits(
                connect_s=settings.connect_seconds_max,
                request_s=settings.request_seconds_max,
                keep_alive_s=settings.keep_alive_seconds,
            ),
            retry_s=0.0,
            delay_s_max=settings.retry_seconds_max,
        )
        security = security or security_of(settings)
        self.client = PulsarClient(settings.service_url, security=security, limits=limits, clock=self._clock)
        # One immediate retry, for a connection that the peer had closed.
        self.admin = admin or AdminClient(
            settings.admin_url, security=security, hosts=settings.admin_hosts, clock=self._clock, retries_max=1
        )
        self._workers = Workers(settings.workers_max, self._clock)
        self._readers = ReaderPool(self._reader_from, workers=self._workers, clock=self._clock)
        self._lock = threading.Lock()
        self._sources: dict[str, PulsarSource] = {}

    def __enter__(self) -> PulsarCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_topic(self, topic: str, *, changed: Callable[[PulsarSource], object] = lambda _: None) -> PulsarSource:
        """Opens a topic, or a partition, as a hot tier; a missing subscription is created soon.

        Args:
            topic: ``persistent://tenant/namespace/topic``.
            changed: called on a worker of the cluster when ``active`` or ``problem`` of the source may have changed.

        Raises:
            InvalidCall: not a topic's name, one whose stream no store can hold, or it is open already.
            LimitReached: ``pulsar.topics_max`` are open.
        """
        # Before the subscription is created: a topic that can't be offloaded would build up a backlog.
        require_stream_name(stream_of_topic(topic))
        with self._lock:
            if topic in self._sources:
                raise InvalidCall(f"{topic} is open already")
            if len(self._sources) >= self.settings.topics_max:
                raise LimitReached(
                    f"{topic}: {len(self._sources)} topics are open, as many as pulsar.topics_max allows",
                    hint="raise pulsar.topics_max, or share the topics between several processes",
                )
            source = self._sources[topic] = PulsarSource(
                topic,
                client=self.client,
                admin=self.admin,
                subscription=self.settings.subscription,
                open_reader=lambda begin, after, ready: self._live_reader(topic, begin, after, ready),
                read_again=lambda start: self._reader_from(topic, start, messages_max=1),
                readers=self._readers,
                workers=self._workers,
                clock=self._clock,
                bytes_max=self._topic_bytes,
                entries_asked_max=self.settings.entries_asked_max,
                retry_s_max=self.settings.retry_seconds_max,
                trims=self.settings.trim,
                changed=changed,
                closed=self._closed,
            )
        source.start()
        return source

    def topics(self) -> list[str]:
        """The open topics, ascending."""
        with self._lock:
            return sorted(self._sources)

    def close(self) -> None:
        """Closes all sources, then everything else. Idempotent."""
        with self._lock:
            sources = list(self._sources.values())
        for source in sources:
            source.close()
        self._readers.close()
        self.client.close()
        self._workers.close()
        self.admin.close()

    def _closed(self, source: PulsarSource) -> None:
        with self._lock:
            self._sources.pop(source.topic, None)

    def _topic_bytes(self) -> int:
        """Buffer of one topic: its share of the total."""
        return min(max(self.settings.receive_bytes_max // max(len(self._sources), 1), TOPIC_BYTES_MIN), TOPIC_BYTES_MAX)

    def _live_reader(
        self, topic: str, begin: Position, after: Position | None, ready: Callable[[], object]
    ) -> Consumer:
        return Consumer(
            self.client,
            topic,
            f"{self.settings.subscription}-live",
            start=begin,
            after=after,
            limits=ConsumerLimits(messages_max=_MESSAGES_MAX, bytes_max=self._topic_bytes()),
            bytes_max=self._topic_bytes,
            clock=self._clock,
            ready=ready,
        )

    def _reader_from(self, topic: str, start: Position, messages_max: int = _MESSAGES_MAX) -> Consumer:
        return Consumer(
            self.client,
            topic,
            f"{self.settings.subscription}-history",
            start=start,
            limits=ConsumerLimits(messages_max=messages_max, bytes_max=READER_BYTES),
            clock=self._clock,
        )
