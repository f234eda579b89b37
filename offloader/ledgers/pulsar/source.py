"""Topics of a Pulsar cluster as hot tiers: sources, and the connections that they share.

**The problem.** The broker owns the entries and deletes them by its rules. A durable subscription keeps unacknowledged
entries, but message TTL, a backlog quota or an administrator may move it, and an acknowledgement covers all earlier
entries. Facts come from the binary protocol and from the admin interface, and either answer may be older than the
other. A broker skips entries without a reason. A topic has no UUID: only its ledgers identify it (M24), and a recreated
cluster assigns the same ledger ids again.

**Parts of a source.** ``PulsarSource`` combines them.

* ``FailoverSubscription``: the durable subscription. It makes the broker keep unacknowledged entries, and this process
  a candidate for the topic. It takes no entries.
* ``TailReader`` and ``ReaderPool``: non-durable readers of new and of older entries.
* ``LedgerList``: the ledgers, by the admin interface and the newest entry of the broker, and the reasons for entries
  that no reader receives.
* ``AckCursor``: the acknowledged position, and whether the subscription was moved beyond the committed end.

**States.** ``active`` is whether the broker chose this process; ``None`` without a connection or an answer. Two
processes may both count as chosen for a while. The epoch in the manifest decides between them (M11); ``release`` and
``acknowledge`` are refused only if the broker chose another process. A ``problem`` is retried, except ``_failure``:
then the topic is neither read nor acknowledged until it is opened again.

**Order of durable steps.** The subscription begins at the first entry of the topic, and is created before the process
leads the topic. An entry is acknowledged only after its commit:

1. The record ``offloaded`` is committed. ``release`` notes the committed end in memory.
2. Without ``pulsar.broker_plugin``, ``offloader.write.hot_release`` looks the objects up after ``offload.deletion_lag``
   and commits a record that releases whole ledgers.
3. It makes the boundary name the newest record (M34), and a property of the subscription name the manifest (M23).
4. ``require_same`` compares the listed ledgers with the manifest (M20).
5. With the plugin the committed position is acknowledged. Without it, ``delete`` marks a released ledger, and the
   leading ledgers that are all marked are acknowledged. A truncation calls ``delete`` too, after the boundary names its
   record.

**After a crash.** Nothing that a source has in memory is needed. The manifest has the committed end, and the stream
continues there, at whatever position the subscription is. Ledgers that were released and not acknowledged are still
listed, so the next process marks and acknowledges them.

**In doubt the broker is asked again.** ``LedgerList.doubt`` discards the cached list before a ledger is released and
after a failed read. A contradiction with the manifest counts if a new list has it, too, and the broker that owns the
topic, found by a new lookup, has no later ledger. Then the topic stops with ``SourceMismatchError``. If a broker
doesn't answer, nothing is skipped and nothing is acknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from uuid import UUID

from formats.entries import EntryBatch, Position
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.base import (
    AskKnown,
    BrokerLedgers,
    ClosedListener,
    LedgerInfo,
    Listener,
    NotChosenError,
    Subscription,
    newest,
    newest_given,
    newest_listed,
)
from offloader.ledgers.pulsar.ack_cursor import AckCursor
from offloader.ledgers.pulsar.admin import AdminClient, require_admin_url
from offloader.ledgers.pulsar.consumer import EARLIEST, Consumer
from offloader.ledgers.pulsar.ledger_list import LedgerList, SkippedEntries, first_from, require_same_ledgers
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from offloader.ledgers.pulsar.scalable import SEGMENT_SCHEME
from offloader.ledgers.pulsar.tail_reader import FOR_GOOD, MESSAGES_MAX, ReaderPool, TailReader
from offloader.ledgers.pulsar.topic_facts import END_S_MAX, AdminFacts, ObservedFacts, TopicFacts, listed_by_broker
from offloader.ledgers.pulsar.topics import TopicInternals, stream_of_topic
from offloader.ledgers.pulsar.transport import parse_service_url, security_of
from offloader.ledgers.tail_buffer import Listeners
from offloader.runtime.clock import Clock, SystemClock
from offloader.runtime.workers import Backoff, SerialTask, Workers
from offloader.settings import PulsarSettings
from offloader.stream_names import require_stream_name

_log = logging.getLogger("offloader.ledgers.pulsar")


class FailoverSubscription:
    """A topic's failover subscription. Thread-safe. Contacts no broker before ``step_back``.

    Args:
        topic: its name; a partition's where there are partitions.
        subscription: name of the failover subscription; created at the topic's beginning if it is missing.
        workers: subscribe, and resubscribe when the broker or the connection is lost.
        retry_s_max: longest back-off between attempts.
        changed: called on a worker when ``active`` or ``problem`` may have changed; return quickly.

    Attributes:
        consumer: of the subscription.
        is_aside: whether it has stepped aside.
        problem: why there is no subscription now.
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        subscription: str,
        *,
        workers: Workers,
        clock: Clock,
        retry_s_max: float,
        changed: Callable[[], object],
    ) -> None:
        self._topic, self._changed = topic, changed
        self._task = SerialTask(workers, self._attend)
        self._backoff = Backoff(workers, retry_s_max, self._task.schedule)
        self.consumer = Consumer(client, topic, subscription, clock=clock, ready=self._task.schedule)
        self._told: tuple[bool | None, str] = None, ""
        self.problem: OffloaderError | None = None
        self.is_aside = self._is_closed = False

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process; ``None``: not reported yet, or no connection."""
        return False if self.is_aside else self.consumer.is_active

    def step_aside(self) -> None:
        """Hands leadership to another process soon; until ``step_back`` this one isn't a candidate.

        The subscription keeps its retained entries.
        """
        self.is_aside = True
        self._task.schedule()

    def step_back(self) -> None:
        """Becomes a candidate soon, and remains subscribed: at the beginning, and after ``step_aside``."""
        self.is_aside = False
        self._task.schedule()

    def close(self) -> None:
        """Closes the subscription: another process becomes the leader. Idempotent."""
        self._is_closed = True
        self.consumer.close()

    def _attend(self) -> None:
        if self._is_closed or self._backoff.waiting:
            return
        try:
            if self.is_aside:
                self.consumer.leave()
            else:
                self.consumer.attend()
        except ClosedError:
            return
        except OffloaderError as error:
            # Whatever the error: a token may be renewed, a topic may come back.
            delay_s = self._backoff.wait()
            if self.problem is None:
                _log.warning(
                    "%s: not subscribed: %s; again in %.1f s", self._topic, error, delay_s, extra={"event": "retry"}
                )
            self.problem = error
        else:
            self._backoff.reset()
            self.problem = None
        now = self.active, str(self.problem or "")
        if now != self._told:
            self._told = now
            self._changed()


#: How long a read waits for an entry that is being delivered, before a separate reader fetches it.
LIVE_WAIT_S = 1.0


class PulsarSource:
    """A topic as a ``LedgerSource``. Thread-safe. Made by ``PulsarCluster.open_topic``.

    Args:
        cluster: has the connections, readers and workers.
        changed: called on a worker when ``active`` or ``problem`` may have changed.

    Attributes:
        subscription: makes this process a candidate for the topic, or hands it over.
        acknowledges_commits: as ``ListedSource``: the setting ``pulsar.broker_plugin``.
        committed: the newest position that ``release`` was called with.
    """

    def __init__(self, topic: str, cluster: PulsarCluster, changed: Callable[[PulsarSource], object]) -> None:
        self.topic, self.stream = topic, stream_of_topic(topic)
        self._cluster, self._changed = cluster, changed
        self._lock = threading.Lock()
        self._is_closed = False
        self._failure: OffloaderError | None = None
        self._noted_store: UUID | None = None
        #: Held while the ledgers are listed and compared, both with the same facts: several threads compare, each with
        #: its own view of the manifest, and a list that was completed with older facts contradicts newer ones.
        self._comparing = threading.Lock()
        self._known: AskKnown | None = None
        settings = cluster.settings
        self.acknowledges_commits = settings.broker_plugin
        self.committed: Position | None = None
        self._released: Callable[[], object] = lambda: None
        self.subscription = FailoverSubscription(
            cluster.client,
            topic,
            settings.subscription,
            workers=cluster.subscribers,
            clock=cluster.clock,
            retry_s_max=settings.retry_delay_max,
            changed=lambda: changed(self),
        )
        consumer = self.subscription.consumer
        self._facts = facts_of(cluster, topic, consumer)
        self._ack_cursor = AckCursor(
            topic,
            consumer,
            settings.subscription,
            trim=self._facts.trim,
        )
        skipped = SkippedEntries(
            topic,
            self._facts.fate,
            asked_max=settings.entries_asked_max,
            open_reader=self._read_again,
            clock=cluster.clock,
        )
        self._ledgers = LedgerList(
            topic,
            ask=self._ask,
            ask_last=consumer.last_position,
            look=skipped.look,
            clock=cluster.clock,
            ended=self._ack_cursor.ended,
            heard=self._facts.heard,
        )
        self._listeners = Listeners(self.stream)
        self._live = TailReader(
            self._ledgers,
            self._listeners,
            open_reader=partial(
                Consumer,
                cluster.client,
                topic,
                f"{settings.subscription}-live",
                bytes_max=cluster.topic_bytes,
                clock=cluster.clock,
            ),
            workers=cluster.workers,
            clock=cluster.clock,
            bytes_max=cluster.topic_bytes,
            retry_s_max=settings.retry_delay_max,
            failed=self._break,
        )

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process to work on the topic; ``None``: not reported yet, or no connection."""
        return self.subscription.active

    @property
    def problem(self) -> OffloaderError | None:
        """Why the topic isn't subscribed, read or trusted now; a retryable error is retried automatically."""
        return self._failure or self.subscription.problem or self._live.trouble

    def close(self) -> None:
        """Hands the topic to other processes; the subscription is kept. Idempotent."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._live.end()
        self._cluster.readers.forget(self._ledgers)
        self.subscription.close()
        self._cluster.forget(self)

    def ledgers(self) -> list[LedgerInfo]:
        """As ``LedgerSource``; up to some seconds old, but never older than delivered entries.

        Raises:
            StoreUnavailableError: neither broker nor admin interface responds; AccessDeniedError, NotFoundError: they
                refuse.
            CorruptError: the broker sent impossible entries before.
        """
        self._require_usable()
        infos = self._ledgers.infos()
        self._live.expect(newest_given(infos))
        return infos

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """As ``LedgerSource``; raises as ``ledgers`` and ``ReaderPool.read``."""
        self._require_usable()
        if (found := self._live.read(start, max_bytes)) is not None:
            return found
        # A broker's response queues behind the entries it sends: query unknown facts only.
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
            return found or self._cluster.readers.read(self._ledgers, infos, target, max_bytes)
        except OffloaderError as error:
            self._ledgers.doubt()
            if isinstance(error, FOR_GOOD):
                self._break(error)
                self._require_usable()
            raise

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """As ``LedgerSource``; raises as ``ledgers``."""
        self._require_usable()
        if listener is None:
            return self._listeners.add(None, closed)
        self._ledgers.doubt()
        newest = newest_listed(self._ledgers.infos())
        with self._lock:
            is_first = not self._listeners.want_entries
            subscription = self._listeners.add(listener, closed)
            subscription.ended = self._live.wake
        if is_first:
            self._live.start(newest)
        return subscription

    def release(self, position: Position) -> None:
        """Notes the committed end, to detect a subscription that was moved beyond it.

        Raises:
            FencedError: the broker chose another process.
        """
        self._require_chosen()
        self._ack_cursor.committed(position)
        self.committed = newest(self.committed, position)
        self._released()

    def delete(self, ledger_id: int) -> None:
        """Releases a closed ledger to the broker: it is acknowledged as soon as all earlier ones are released.

        With ``acknowledges_commits`` it does nothing: the broker decides about its copies.

        Raises:
            StoreUnavailableError: retry later.
            SourceMismatchError: as ``require_same``, with the facts it got last.
        """
        self._require_usable()
        if self.acknowledges_commits:
            return
        self._ledgers.doubt()
        self._compare()
        for gone in self._ack_cursor.give_up(ledger_id, self._ledgers.infos()):
            self._ledgers.gave_up(gone)

    def broker_ledgers(self) -> BrokerLedgers:
        """As ``ListedSource``; raises as the admin interface."""
        return listed_by_broker(self._cluster.admin, self.topic, self._cluster.settings)

    def acknowledge(self, position: Position) -> None:
        """As ``ListedSource``.

        Raises:
            SourceMismatchError: as ``require_same``: these may be another cluster's ledgers.
        """
        self._require_usable()
        self._require_chosen()
        self._compare()
        self._ack_cursor.acknowledge(position)

    def noted_remedy(self) -> str:
        """As ``NotingSource``."""
        return noted_remedy(self._cluster.settings)

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """As ``NotingSource``, in a property of the subscription; only of a new incarnation."""
        noted = self.noted_manifests()
        if noted and noted[-1][0] == incarnation:
            return
        kept = [each for each in noted if each[0] != incarnation][-NOTED_MAX + 1 :]
        self._note(NOTED_PROPERTY, ",".join(f"{uuid}:{number}" for uuid, number in (*kept, (incarnation, record_id))))

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        """As ``NotingSource``: asks the admin interface; raises as that."""
        found, self._noted_store = _notes_in(self._facts)
        return found

    def note_store(self, store_id: UUID) -> None:
        """As ``NotingSource``, in a property of the subscription."""
        self._note(STORE_PROPERTY, str(store_id))
        self._noted_store = store_id

    def noted_store(self) -> UUID | None:
        """As ``NotingSource``: as ``noted_manifests`` found it last."""
        return self._noted_store

    def _note(self, name: str, text: str) -> None:
        try:
            self._facts.note({name: text})
        except (AccessDeniedError, NotFoundError, UnsupportedError) as error:
            # Nothing depends on the note: without it another store isn't recognised.
            _log.warning("%s: which store it is committed to isn't noted: %s", self.topic, error)

    def sealed(self, end: Position) -> None:
        """Learns that the topic is a sealed segment, and its last entry; entry -1: it has none."""
        if isinstance(self._facts, ObservedFacts) and self._facts.end != end:
            self._facts.end = end
            self._ledgers.doubt()
            if end.entry_id < 0:
                self._live.end()  # nothing comes, and a broker may refuse the reader
            self._live.wake()

    def sealed_end(self) -> Position | None:
        """The last entry of a sealed topic, ``None``: it has none. Raises as ``ObservedFacts.sealed_end``."""
        if isinstance(self._facts, ObservedFacts):
            return self._facts.sealed_end()
        return self.subscription.consumer.last_position()

    def watch_releases(self, released: Callable[[], object]) -> None:
        """As ``ListedSource``."""
        self._released = released

    def require_same(self, known: AskKnown) -> None:
        """As ``ComparedSource``.

        A contradiction counts if the owning broker confirms it; then the topic stops. The known facts are compared
        again before a ledger is released.

        Raises: as ``ComparedSource``, and as ``ledgers``.
        """
        self._require_usable()
        self._compare(known)

    def _compare(self, known: AskKnown | None = None) -> None:
        """Compares with ``known``, or with the facts it got last, if any. Raises as ``require_same``."""
        try:
            with self._comparing:
                self._known = known or self._known
                if self._known is not None:
                    self._facts.known(self._known)
                    require_same_ledgers(self._ledgers, self._known, lambda: owners_newest(self._cluster, self.topic))
        except SourceMismatchError as error:
            self._fail(error)
            raise

    def _require_chosen(self) -> None:
        if self.active is False:
            raise NotChosenError(
                f"{self.topic}: the broker made another consumer of the subscription the active one",
                hint="that process offloads the topic; this one stands by",
            )

    def _read_again(self, start: Position) -> Consumer:
        """A second reader, for entries that weren't delivered."""
        return self._cluster.reader_from(self.topic, start, messages_max=1)

    def _ask(self) -> TopicInternals:
        internals = self._facts.internals()
        self._ack_cursor.look(internals)
        return internals

    def _require_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(f"{self.topic} was closed here")
        if self._failure is not None:
            raise self._failure

    def _break(self, error: OffloaderError) -> None:
        """Handles impossible entries from the broker; another cluster is the cause if its ledgers differ."""
        with suppress(OffloaderError):
            self._compare()
        self._fail(error)

    def _fail(self, error: OffloaderError) -> None:
        """Stops this topic after an error that a retry doesn't fix; others continue."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        _log.error("%s: %s; the topic is no longer read", self.topic, error)
        self._live.end()
        self._changed(self)


def facts_of(cluster: PulsarCluster, topic: str, consumer: Consumer | None = None) -> TopicFacts:
    """What there is to know of a topic; without ``consumer``, only ``properties`` of a segment may be called."""
    if not topic.startswith(SEGMENT_SCHEME):
        return AdminFacts(cluster.admin, topic, cluster.settings)
    return ObservedFacts(
        topic,
        ask_last=lambda: None if consumer is None else consumer.last_position(),
        open_reader=partial(cluster.reader_from, topic),
        is_acknowledged=lambda: consumer is not None and not consumer.take(END_S_MAX) and consumer.is_at_end,
    )


#: Property of our subscription: the manifests that the topic was committed to, as ``incarnation:record,...``.
NOTED_PROPERTY = "offloader-manifests"
#: Manifests in that property.
NOTED_MAX = 10
#: Property of our subscription: the identity of the store that the topic was committed to.
STORE_PROPERTY = "offloader-store"


def _noted_in(text: str) -> Iterator[tuple[UUID, int]]:
    for each in filter(None, text.split(",")):
        incarnation, _, record_id = each.partition(":")
        with suppress(ValueError):
            yield UUID(incarnation), int(record_id)


def notes_of(cluster: PulsarCluster, topic: str) -> tuple[list[tuple[UUID, int]], UUID | None]:
    """The manifests and the store that a topic was committed to, as its subscription has them; raises as the admin
    interface."""
    return _notes_in(facts_of(cluster, topic))


def _notes_in(facts: TopicFacts) -> tuple[list[tuple[UUID, int]], UUID | None]:
    found: Mapping[str, str] = {}
    with suppress(NotFoundError):
        found = facts.properties()
    return list(_noted_in(found.get(NOTED_PROPERTY, ""))), _uuid_in(found.get(STORE_PROPERTY, ""))


def noted_store(cluster: PulsarCluster, topic: str) -> UUID | None:
    """The identity of the store that a topic was committed to; raises as ``notes_of``."""
    return notes_of(cluster, topic)[1]


def noted_remedy(settings: PulsarSettings) -> str:
    """As ``NotingSource.noted_remedy``."""
    return f"remove the properties {NOTED_PROPERTY} and {STORE_PROPERTY} of subscription {settings.subscription}"


def _uuid_in(text: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(text)
    return None


def owners_newest(cluster: PulsarCluster, topic: str) -> Position | None:
    """The newest entry that the broker that owns the topic now delivers: a new lookup and a new session, without a
    subscription."""
    with closing(cluster.reader_from(topic, EARLIEST, messages_max=1)) as reader:
        return reader.last_position()


#: Minimum buffer of a topic, however many there are: a few messages of usual size.
TOPIC_BYTES_MIN = 128 * 1024
#: Maximum buffer of a topic: what a connection receives in about a tenth of a second.
TOPIC_BYTES_MAX = 16 * 1024 * 1024
#: Read-ahead of readers in the middle of a topic.
READER_BYTES = 4 * 1024 * 1024


def require_addresses(settings: PulsarSettings) -> None:
    """Raises ``InvalidCallError``: a cluster's address is missing or invalid."""
    if not settings.service_url or not settings.admin_url:
        raise InvalidCallError(
            "pulsar.service_url and pulsar.admin_url are needed",
            hint='service_url = "pulsar://broker:6650", admin_url = "http://broker:8080"',
        )
    parse_service_url(settings.service_url)
    require_admin_url(settings.admin_url)


class PulsarCluster(AbstractContextManager["PulsarCluster"]):
    """A Pulsar cluster and its open sources. Thread-safe. Closing it closes its sources.

    Args:
        settings: the section ``[pulsar]``.

    Raises:
        InvalidCallError: a URL or another setting is missing or invalid.
        AccessDeniedError: there is no token at the configured location.
    """

    def __init__(self, settings: PulsarSettings, *, clock: Clock | None = None) -> None:
        require_addresses(settings)
        self.settings = settings
        self.clock = clock or SystemClock()
        # No retry within a call: the caller retries later and blocks no thread meanwhile.
        limits = ClientLimits(
            connect_s=settings.connect_timeout,
            request_s=settings.request_timeout,
            keep_alive_s=settings.keep_alive,
            retry_s=0.0,
            delay_s_max=settings.retry_delay_max,
        )
        security = security_of(settings)
        self.client = PulsarClient(
            settings.service_url,
            security=security,
            limits=limits,
            clock=self.clock,
            follows_segments=settings.scalable_topics != "off",
        )
        # One immediate retry, for a connection that the peer had closed.
        self.admin = AdminClient(
            settings.admin_url, security=security, hosts=settings.admin_hosts, clock=self.clock, retries_max=1
        )
        self.workers = Workers(settings.workers_max, self.clock)
        # Separate threads: after an unload of many topics, readers wait for the broker in all the others.
        self.subscribers = Workers(settings.workers_max, self.clock)
        self.readers = ReaderPool(self.reader_from, workers=self.workers, clock=self.clock)
        self._lock = threading.Lock()
        self._sources: dict[str, PulsarSource] = {}

    def __exit__(self, *error: object) -> None:
        self.close()

    def open_topic(self, topic: str, *, changed: Callable[[PulsarSource], object] = lambda _: None) -> PulsarSource:
        """Opens a topic, or a partition, as a hot tier; a missing subscription is created soon.

        Args:
            changed: called on a worker of the cluster when ``active`` or ``problem`` of the source may have changed.

        Raises:
            InvalidCallError: not a topic's name, one whose stream no store can hold, or it is open already.
            LimitReachedError: ``pulsar.topics_max`` are open.
        """
        # Before the subscription is created: a topic that can't be offloaded would build up a backlog.
        require_stream_name(stream_of_topic(topic))
        with self._lock:
            if topic in self._sources:
                raise InvalidCallError(f"{topic} is open already")
            if len(self._sources) >= self.settings.topics_max:
                raise LimitReachedError(
                    f"{topic}: {len(self._sources)} topics are open, as many as pulsar.topics_max allows",
                    hint="raise pulsar.topics_max, or share the topics between several processes",
                )
            source = self._sources[topic] = PulsarSource(topic, self, changed)
        source.subscription.step_back()
        return source

    def close(self) -> None:
        """Closes all sources, then everything else. Idempotent."""
        with self._lock:
            sources = list(self._sources.values())
        for source in sources:
            source.close()
        for each in (self.readers, self.client, self.workers, self.subscribers, self.admin):
            each.close()

    def forget(self, source: PulsarSource) -> None:
        """Handles the end of a source, for the source."""
        with self._lock:
            self._sources.pop(source.topic, None)

    def topic_bytes(self) -> int:
        """Buffer of one topic: its share of the total."""
        return min(
            max(self.settings.receive_buffer_size_max // max(len(self._sources), 1), TOPIC_BYTES_MIN), TOPIC_BYTES_MAX
        )

    def reader_from(self, topic: str, start: Position, messages_max: int = MESSAGES_MAX) -> Consumer:
        """Opens a reader in the middle of a topic; arguments as of ``Consumer``."""
        return Consumer(
            self.client,
            topic,
            f"{self.settings.subscription}-history",
            start=start,
            messages_max=messages_max,
            bytes_max=lambda: READER_BYTES,
            clock=self.clock,
        )
