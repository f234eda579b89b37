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

#: How long is waited for an entry that is on its way, before it is fetched apart from the others.
LIVE_WAIT_S = 1.0


class PulsarSource:
    """A ``LedgerSource``. Thread-safe. Made by ``PulsarCluster.open_topic``.

    Args:
        topic: ``persistent://tenant/namespace/topic``.
        client, admin: of the cluster.
        subscription: name of ours.
        open_reader: a reader at the topic's end.
        read_again: a reader for a second look at what wasn't given.
        readers: of the cluster, for what is older.
        workers: of the cluster.
        clock: of ages.
        bytes_max: how much of this topic may wait in memory now.
        entries_asked_max: as ``asked_max`` of ``SkippedEntries``.
        retry_s_max: longest wait before something is tried again.
        trims: whether the broker is asked to look at once what it may delete.
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
        """Whether the broker chose this process to work on the topic; ``None``: it hasn't said, or can't be heard."""
        return self._standing.active

    def is_chosen_since(self, since_s: float) -> bool:
        """Whether the broker still chose this process after ``since_s``, of the clock's ``monotonic_s``. One that was
        silent since is asked to say something; False until it does."""
        return self._standing.is_chosen_since(since_s)

    @property
    def problem(self) -> OffloaderError | None:
        """Why the topic isn't subscribed, read or believed now; retryable: it is tried again by itself."""
        return self._failure or self._standing.problem or self._live.trouble

    @property
    def held_bytes(self) -> int:
        """Payload bytes of this topic that wait to be taken."""
        return self._live.held_bytes

    def start(self) -> None:
        """Subscribes, which makes the subscription where there is none; ``active`` is known some time later."""
        self._standing.start()

    @property
    def is_aside(self) -> bool:
        """Whether this process has stepped aside."""
        return self._standing.is_aside

    def step_aside(self) -> None:
        """Leaves the topic to another process that waits for it, soon: ``active`` is False until ``step_back``, and the
        broker isn't asked who should work. What the subscription keeps stays."""
        self._standing.step_aside()

    def step_back(self) -> None:
        """The broker may choose this process again."""
        self._standing.step_back()

    def close(self) -> None:
        """Leaves the topic to others; the subscription stays. Closing twice is fine."""
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
        """As ``LedgerSource``; up to some seconds old, but never older than what was delivered.

        Raises:
            StoreUnavailable: neither broker nor admin interface answers; AccessDenied, NotFound: they refuse.
            Corrupt: what the broker gave before can't be.
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
        # An answer of the broker waits behind all that it sends meanwhile: it is asked only for what isn't known.
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
        """Notes what is committed: what the subscription lost beyond that is lost to it.

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
        """The broker may delete a closed ledger, as far as we are concerned: it is acknowledged as soon as all earlier
        ones are.

        Raises:
            StoreUnavailable: try again later.
            SourceMismatch: as ``require_same``, which was told what is known.
        """
        self._require_usable()
        self._ledgers.doubt()
        if self._known is not None:
            self.require_same(self._known)
        for gone in self._fence.give_up(ledger_id, self._ledgers.infos()):
            self._ledgers.gave_up(gone)

    # -- ComparedSource

    def require_same(self, known: AskKnown) -> None:
        """As ``ComparedSource``. A contradiction counts when the owning broker is asked again and it is still there;
        then the topic stops. What is known is compared again before a ledger is given up.

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
        """The newest entry that the broker has which owns the topic now, found and connected to for this."""
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
        """What the broker gave can't be. Because it is another cluster's, if that is so."""
        if self._known is not None:
            with suppress(OffloaderError):
                self.require_same(self._known)
        self._fail(error)

    def _fail(self, error: OffloaderError) -> None:
        """Something that waiting doesn't mend: this topic stops, others go on."""
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
    """A subscription; when it ends, nobody may be left to listen."""

    def __init__(self, inner: Subscription, ended: Callable[[], object]) -> None:
        self._inner, self._ended = inner, ended

    def cancel(self) -> None:
        self._inner.cancel()
        self._ended()


#: What a topic may hold at least, however many there are: a few messages of usual size.
TOPIC_BYTES_MIN = 128 * 1024
#: And at most: a connection's bytes of about a tenth of a second.
TOPIC_BYTES_MAX = 16 * 1024 * 1024
#: Of readers in the middle of a topic: what is read ahead.
READER_BYTES = 4 * 1024 * 1024
_MESSAGES_MAX = 100_000


class PulsarCluster:
    """Thread-safe. Closing it closes its sources.

    Args:
        settings: the section ``[pulsar]``.
        security: of brokers and of the admin interface, instead of what the settings say.
        clock: of waits.
        admin: instead of one for ``settings.admin_url``; belongs to the cluster.

    Raises:
        InvalidCall: a URL or another setting is missing, or isn't what it should be.
        AccessDenied: there is no token where the settings say.
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
        # A call is tried once: whoever needs it tries again later and keeps no thread meanwhile.
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
        # Once more at once, for a connection that the other side had closed.
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
        """A topic, or a partition, as a hot tier; its subscription is made soon, if there is none.

        Args:
            topic: ``persistent://tenant/namespace/topic``.
            changed: called on a worker of the cluster when ``active`` or ``problem`` of the source may have changed.

        Raises:
            InvalidCall: no topic's name, one whose stream no store can keep, or it is open already.
            LimitReached: ``pulsar.topics_max`` are open.
        """
        # Before the subscription is made: what nobody can offload would pile up behind it.
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
        """Those that are open, ascending."""
        with self._lock:
            return sorted(self._sources)

    def close(self) -> None:
        """Closes all sources, then everything else. Closing twice is fine."""
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
        """What may wait of one topic: its share of what may wait of all."""
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
