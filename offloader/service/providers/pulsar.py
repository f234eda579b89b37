"""Topics of a Pulsar cluster, their subscriptions, and failover during store outages."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from formats.entries import Position
from formats.topic_layout import RangeSegment, TopicLayout
from offloader.errors import (
    ClosedError,
    FencedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.discovery import Roster, TopicPatterns, survey
from offloader.ledgers.pulsar.offload_triggers import OffloadTriggers, ServedTopic
from offloader.ledgers.pulsar.scalable import SEGMENT_SCHEME, place_of_topic
from offloader.ledgers.pulsar.source import PulsarCluster, PulsarSource
from offloader.ledgers.pulsar.topics import (
    TopicInternals,
    TopicStats,
    policy_warnings,
    stream_of_topic,
    topic_of_stream,
)
from offloader.manifest.topic_layouts import pruned
from offloader.parallel_map import at_once
from offloader.retention.cuts import StreamCut, cut_at, partition_segment
from offloader.retention.entries import StreamEntries
from offloader.retention.scope import Scope, is_part_of_scalable
from offloader.retention.subscribers import (
    SUBSCRIBER_NAME_CHARS_MAX,
    Followed,
    Registry,
    StreamRetention,
    open_retention,
)
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Alarm, SerialTask, Workers
from offloader.service.health import ask_store
from offloader.service.providers.scalable import ScalableTopics
from offloader.service.streams import ProviderProblem, ServedStreams, StreamSupervisor, error_of, stream_problems
from offloader.settings import PulsarSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.wrappers import with_short_retries
from offloader.stream_names import partition_of
from offloader.telemetry.recorder import NO_TELEMETRY, Reading, Recorder
from offloader.write.stream import Mode

_log = logging.getLogger("offloader.service")

_Item = TypeVar("_Item")
#: Prefix of subscribers that mirror a subscription.
PREFIX = "pulsar:"
#: Consecutive polls without a subscription before it counts as removed.
MISSES_MAX = 2
_BROKERS_OWN = ("__compaction", "pulsar.")
_HASH_CHARS = 16


def subscriber_name(subscription: str) -> str:
    """The subscriber name of a subscription; unique."""
    shown = "".join(each if each.isprintable() and each != "%" else f"%{ord(each):02X}" for each in subscription)
    name = PREFIX + (shown if shown == shown.strip() else shown.replace(" ", "%20"))
    if len(name) <= SUBSCRIBER_NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(subscription.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: SUBSCRIBER_NAME_CHARS_MAX - _HASH_CHARS - 1]}~{digest}"


#: State of one partition at its broker.
_Seen = tuple[TopicInternals, TopicStats]


class PulsarSubscribers:
    """Mirrors subscriptions as retention subscribers. Thread-safe for one call per topic at a time.

    Args:
        admin: of the cluster.
        own_subscription: the offloader's own subscription, which needs no data.
        retention_of: the retention of a stream or topic, by its name.
    """

    def __init__(
        self, admin: AdminClient, own_subscription: str, retention_of: Callable[[str], StreamRetention]
    ) -> None:
        self._admin = admin
        self._own = own_subscription
        self._retention_of = retention_of
        #: Of each place: its subscribers whose subscriptions were missing in the latest polls, and in how many.
        self._missed: dict[str, dict[str, int]] = {}

    def tell(
        self,
        topic: str,
        *,
        timeout_ms: int | None,
        is_ours: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Copies a topic's subscriptions, of all its partitions, to its retention.

        Args:
            topic: ``persistent://...``; of a partitioned topic without the partition.
            timeout_ms: how long a subscriber may be silent; a connected one is renewed in time.
            is_ours: whether this process leads a topic; nothing is done unless it leads the first partition.

        Raises:
            NotFoundError: nothing is offloaded yet, or a partition was deleted: nothing was changed.
            OffloaderError: the broker or the store doesn't respond; nothing was changed.
        """
        place = stream_of_topic(topic)
        retention = self._retention_of(place)
        found = retention.scope()
        topics = {number: f"{topic}-partition-{number}" if found.is_topic else topic for number in found.partitions}
        if not is_ours(topics[min(topics)]):
            return
        # Query the broker first: its acknowledged positions are then in the cuts, or rounded down to them.
        seen = {number: (self._admin.internals(each), self._admin.stats(each)) for number, each in topics.items()}
        own = retention.cuts(found, ahead=topics)
        subscriptions = self._subscriptions(seen)
        wanted = {
            subscriber_name(each): Followed(cut, any(_consumers(stats, each) for _, stats in seen.values()))
            for each in subscriptions
            if (cut := _cut_of(each, seen, own)) is not None
        }
        self._follow(retention, found, subscriptions, wanted, timeout_ms)

    def tell_scalable(self, topic: str, seen: TopicLayout, *, timeout_ms: int | None) -> None:
        """Copies the subscriptions that are registered at a scalable topic to its retention.

        Brokers tell no position in a segment, only whether everything is acknowledged: a segment counts as read up to
        its present end, or as unread. One that the broker deleted was read by all.

        Args:
            seen: the segments that the broker has.

        Raises: as ``tell``.
        """
        retention = self._retention_of(place_of_topic(topic))
        found = retention.scope()
        if found.layout is None:
            return
        own = retention.cuts(found, ahead=found.partitions)
        begin, tail = own.begin().offsets, own.tail().offsets  # before the broker is asked what was acknowledged
        registered = self._admin.scalable_subscriptions(topic)
        subscriptions = sorted(each for each in registered if each != self._own and not each.startswith(_BROKERS_OWN))
        wanted, gone = {}, pruned(found.layout, seen)
        for name in subscriptions:
            positions = dict[int, Position]()
            for number in found.partitions:
                segment, row = partition_segment(number), seen.by_id.get(number)
                is_read = number in gone if row is None else self._is_drained(row, name)
                if isinstance(at := (tail if is_read else begin).get(segment), Position):
                    positions[number] = at
            if positions:
                wanted[subscriber_name(name)] = Followed(own.canonical(cut_at(positions)), registered[name] > 0)
        self._follow(retention, found, subscriptions, wanted, timeout_ms)

    def _is_drained(self, row: RangeSegment, subscription: str) -> bool:
        topic = topic_of_stream(row.stream)
        if row.is_legacy or topic is None:
            return False  # a regular topic: its cursors were copied until it was migrated
        with suppress(NotFoundError):  # it was registered after the segment was sealed
            return self._admin.backlog(topic, subscription) == 0
        return False

    def _follow(
        self,
        retention: StreamRetention,
        found: Scope,
        subscriptions: Collection[str],
        wanted: Mapping[str, Followed],
        timeout_ms: int | None,
    ) -> None:
        place, registry = found.name, retention.registry(found)
        gone = self._gone(place, registry, {subscriber_name(each) for each in subscriptions})
        before = {name: registry.subscribers[name].cut for name in wanted if name in registry.subscribers}
        retention.follow(wanted, gone=gone, renew_ms=None if timeout_ms is None else timeout_ms // 3)
        for name, each in wanted.items():
            if before.get(name) is None:
                _log.info("stream %s: follows subscription %s, at %s", place, name, each.cut, extra={"stream": place})
        for name in gone:
            _log.info("stream %s: subscription %s is gone", place, name, extra={"stream": place})

    def _subscriptions(self, seen: Mapping[int, _Seen]) -> Sequence[str]:
        """Durable subscriptions of any partition, except the offloader's and the broker's own."""
        return sorted(
            {
                each.name
                for _, stats in seen.values()
                for each in stats.subscriptions.values()
                if each.is_durable and each.name != self._own and not each.name.startswith(_BROKERS_OWN)
            }
        )

    def _gone(self, place: str, registry: Registry, present: set[str]) -> list[str]:
        before = self._missed.get(place, {})
        missing = [name for name in registry.names() if name.startswith(PREFIX) and name not in present]
        missed = {name: before.get(name, 0) + 1 for name in missing}
        gone = [name for name in missing if missed[name] >= MISSES_MAX]
        self._missed[place] = {name: times for name, times in missed.items() if name not in gone}
        return gone


def _consumers(stats: TopicStats, subscription: str) -> int:
    found = stats.subscriptions.get(subscription)
    return 0 if found is None else found.consumers


def _cut_of(subscription: str, seen: Mapping[int, _Seen], own: StreamEntries) -> StreamCut | None:
    """A subscription's position in the streams; ``None``: the broker is changing it.

    A partition without entries isn't in it; one without the subscription counts as unread.
    """
    begin = own.begin()
    positions: dict[int, Position] = {}
    for number, (internals, stats) in seen.items():
        first = begin.offsets.get(partition_segment(number))
        if not isinstance(first, Position):
            continue
        positions[number] = first
        state = stats.subscriptions.get(subscription)
        if state is None or not state.is_durable:
            continue
        if (mark_delete := internals.cursors.get(subscription)) is None:
            return None
        if (reached := own.partitions[number].at_or_before(mark_delete.next())) is not None:
            positions[number] = max(first, reached)
    if not positions:
        return None
    return own.canonical(StreamCut({partition_segment(number): position for number, position in positions.items()}))


def _errors_of(act: Callable[[_Item], object], items: Iterable[_Item]) -> list[OffloaderError]:
    """Runs a step for several items in parallel; returns the errors, in the order of the items."""
    found = at_once(lambda item: error_of(partial(act, item), f"work on {getattr(item, 'stream', item)}"), items)
    return [error for error in found if error is not None]


class StoreReach:
    """Reachability of the store, for one thread.

    Attributes:
        answering_s: seconds for which every check succeeded; 0: the latest one failed.
        silent_s: seconds for which every check failed; 0: the latest one succeeded.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store, self._clock = with_short_retries(store), clock
        self._answers, self._since_s = True, clock.monotonic_s()
        self.answering_s = self.silent_s = 0.0

    def look(self) -> None:
        """Sends one request; takes as long as the store's deadlines allow."""
        asked_s, answers = self._clock.monotonic_s(), True
        try:
            ask_store(self._store)
        except OffloaderError as error:
            answers = not isinstance(error, StoreUnavailableError)
        now_s = self._clock.monotonic_s()
        if answers is not self._answers:
            # A failed request counts from when it was sent, an answered one from its response.
            self._answers, self._since_s = answers, now_s if answers else asked_s
        lasts_s = now_s - self._since_s
        self.answering_s, self.silent_s = (lasts_s, 0.0) if answers else (0.0, lasts_s)


class StoreOutageFailover:
    """Hands topics to a standby while the store is unreachable. One check at a time.

    Args:
        admin: of the cluster: counts a topic's candidates.
        subscription: the offloader's own.

    Attributes:
        problem: reports handed-over topics.
    """

    def __init__(self, store: ObjectStore, admin: AdminClient, subscription: str, clock: Clock) -> None:
        self._admin, self._subscription, self._clock = admin, subscription, clock
        self._url = store.url
        self._reach = StoreReach(store, clock)
        self.problem: ProviderProblem | None = None

    def look(
        self,
        after_s: float,
        *,
        ours: Callable[[], Sequence[PulsarSource]],
        aside: Callable[[], Sequence[PulsarSource]],
    ) -> None:
        """Checks the store once, and hands over or takes back topics.

        Args:
            after_s: how long the store must have been unreachable before a topic is handed over, and reachable before
                the process competes again for a topic with another candidate; 0: never hand over.
            ours: topics that this process leads.
            aside: topics that it handed over.

        Raises:
            OffloaderError: the first error of a query for a topic; such topics remain unchanged.
        """
        self._reach.look()
        silent_s = self._reach.silent_s
        errors: list[OffloaderError] = []
        changed: list[PulsarSource] = []
        if after_s and silent_s >= after_s:
            errors = _errors_of(lambda source: self._leave(source, changed), ours())
            _tell(
                changed,
                "topic_left",
                logging.WARNING,
                f"the store hasn't responded to this process for {silent_s:.0f} s: handed over to a standby process",
            )
        elif not silent_s:
            is_sure = self._reach.answering_s >= after_s
            errors = _errors_of(lambda source: self._return(source, changed, is_sure=is_sure), aside())
            _tell(changed, "topic_wanted", logging.INFO, "the store responds again: this process is a candidate again")
        count, before = len(aside()), self.problem
        told = ProviderProblem(
            where=f"store {self._url}",
            what=f"it doesn't respond to this process: {count} topics were handed over to a standby process",
            hint="check the network between this machine and the store; the process resumes automatically",
            since_ms=self._clock.now_ms() if before is None else before.since_ms,
        )
        self.problem = told if count else None
        if errors:
            raise errors[0]

    def _leave(self, source: PulsarSource, left: list[PulsarSource]) -> None:
        if self._candidates(source) >= 2:
            source.subscription.step_aside()
            left.append(source)

    def _return(self, source: PulsarSource, wanted: list[PulsarSource], *, is_sure: bool) -> None:
        if is_sure or self._candidates(source) == 0:
            source.subscription.step_back()
            wanted.append(source)

    def _candidates(self, source: PulsarSource) -> int:
        if source.topic.startswith(SEGMENT_SCHEME):
            return 1  # unknown: brokers have no statistics of segments
        return _consumers(self._admin.stats(source.topic), self._subscription)


#: Maximum number of topics of one change that are logged individually; further ones are only counted.
TOPICS_TOLD_MAX = 3


def _tell(sources: list[PulsarSource], event: str, level: int, text: str) -> None:
    """Logs the same about several topics."""
    sources.sort(key=lambda source: source.topic)
    for source in sources[:TOPICS_TOLD_MAX]:
        _log.log(level, "topic %s: %s", source.topic, text, extra={"event": event, "stream": source.stream})
    if (more := len(sources) - TOPICS_TOLD_MAX) > 0:
        _log.log(level, "%d further topics: %s", more, text, extra={"event": event, "stream": ""})


#: Interval of checks of namespace policies.
POLICIES_S = 600.0


#: Wait after a change of the cluster: several at a time are seen by one poll.
RING_S = 0.2


class _Poll:
    """Runs ``poll`` now, after each period, and soon after ``ring``; one at a time."""

    def __init__(self, workers: Workers, poll: Callable[[], None], period_s: Callable[[], float]) -> None:
        self._poll, self._period_s = poll, period_s
        self._lock = threading.Lock()
        self._has_rung = False
        self._task = SerialTask(workers, self._run)
        self._alarm = Alarm(workers, self._task.schedule)
        self._task.schedule()

    def ring(self) -> None:
        """A poll that begins now would see something new."""
        with self._lock:
            if not self._has_rung:
                self._has_rung = True
                self._alarm.set(RING_S)

    def _run(self) -> None:
        with self._lock:
            self._has_rung = False
        self._poll()
        with self._lock:
            if not self._has_rung:  # else the alarm is set already
                self._alarm.set(self._period_s())


@dataclass(slots=True)
class _Topic:
    """An open topic; ``is_ours``: whether this process leads it, ``None``: the broker hasn't chosen yet."""

    source: PulsarSource
    control: StreamSupervisor
    is_ours: bool | None = None


class PulsarProvider:
    """See ``offloader.service.streams.StreamProvider``.

    Each poll reads which topics (``pulsar.topics``, ``pulsar.exclude``) and how often: a reload applies at once.

    Args:
        settings: the section ``[pulsar]``: the cluster's address.
        store: of the streams, for retention's subscribers.
        cluster: replaces the settings' cluster; closed with the provider.

    Raises:
        InvalidCallError, AccessDeniedError: the settings can't be used.
    """

    name = "pulsar"

    def __init__(
        self,
        settings: PulsarSettings,
        store: ObjectStore,
        *,
        clock: Clock,
        cluster: PulsarCluster | None = None,
        recorder: Recorder = NO_TELEMETRY,
    ) -> None:
        TopicPatterns.of(settings.topics, settings.exclude)
        self._cluster = cluster or PulsarCluster(settings, clock=clock)
        self._store, self._clock = store, clock
        # Polls of the cluster, of subscriptions, of the store, and of offloads.
        self._workers = Workers(4, clock)
        # Separate threads, because a stream may take minutes to complete its last segment.
        self._enders = Workers(2, clock)
        self._triggers = OffloadTriggers(
            self._cluster.admin, settings.subscription, clock, follows=settings.follow_broker_trim
        )
        self._has_plugin = settings.broker_plugin
        self._unwatch = recorder.watch(self._readings)
        self._survey: _Poll | None = None
        self._scalable = ScalableTopics(self._cluster, store, recorder, changed=self._layout_changed)
        self._turns = StoreOutageFailover(store, self._cluster.admin, settings.subscription, clock)
        self._subscribers = PulsarSubscribers(
            self._cluster.admin,
            settings.subscription,
            lambda place: open_retention(store, place, source_of=self._source_of, clock=clock),
        )
        # Guards the state shared between threads.
        self._lock = threading.RLock()
        self._topics: dict[str, _Topic] = {}
        self._refused: dict[str, OffloaderError] = {}
        self._problems: dict[str, ProviderProblem] = {}
        self._is_starting = False
        self._warnings: dict[str, tuple[str, ...]] = {}
        self._stopped = threading.Event()
        # Used by polls only.
        self._roster, self._segments = Roster(), Roster()
        self._policies_due_s = 0.0
        #: Topics that were fenced while this process leads them, and when that was noticed.
        self._fenced_s: dict[str, float] = {}

    def start(self, streams: ServedStreams) -> None:
        self._is_starting = True
        self._survey = self._every(
            lambda: streams.settings_of("").pulsar.discovery_interval, lambda: self.look(streams), "topics"
        )
        self._every(
            lambda: streams.settings_of("").pulsar.subscribers_interval, lambda: self.tell(streams), "subscriptions"
        )
        self._every(
            lambda: streams.settings_of("").pulsar.discovery_interval, lambda: self._see_turns(streams), "turns"
        )
        if self._has_plugin:
            self._every(lambda: streams.settings_of("").pulsar.discovery_interval, self.trigger, "offloads")

    def stop(self, within_s: float) -> None:
        self._stopped.set()
        # A poll may be waiting for an unresponsive admin interface, and a stream that ends for the store.
        ending = threading.Thread(target=self._end_workers, name="offloader-pulsar-stop", daemon=True)
        ending.start()
        ending.join(within_s)

    def _end_workers(self) -> None:
        self._workers.close()
        self._enders.close()

    def close(self) -> None:
        self._unwatch()
        self._cluster.close()

    def _readings(self) -> Iterator[Reading]:
        for topic in self._triggers.failing():
            yield Reading("streams_broker_offloads_failing", 1.0, stream_of_topic(topic), "failed")
        if failing := len(self._scalable.problems()):
            yield Reading("scalable_topics_failing", float(failing))

    def problems(self) -> Sequence[ProviderProblem]:
        with self._lock:
            found = [*self._problems.values(), *filter(None, [self._turns.problem])]
            if self._is_starting:
                what = "the topics weren't listed yet"
                found.append(ProviderProblem(where=f"feed {self.name}", what=what, blocks_ready=True))
            topics, refused = list(self._topics.values()), dict(self._refused)
            found += [
                ProviderProblem(where=f"namespace {namespace}", what=each)
                for namespace, words in self._warnings.items()
                for each in words
            ]
        found += self._scalable.problems()
        failing = [(each.source.stream, error) for each in topics if (error := each.source.problem) is not None]
        failing += [(stream_of_topic(topic), error) for topic, error in refused.items()]
        untriggered = [(stream_of_topic(topic), error) for topic, error in self._triggers.problems()]
        found += stream_problems(untriggered, f"feed {self.name}", "brokers aren't requested to offload, or fail to")
        return found + stream_problems(failing, f"feed {self.name}", "topics have trouble")

    def look(self, streams: ServedStreams) -> None:
        """Polls the cluster's topics once: offloads new topics, removes deleted ones. Raises ``OffloaderError``: part
        of the cluster didn't respond; the rest is applied."""
        settings = streams.settings_of("").pulsar
        look, error = survey(
            self._cluster.admin,
            TopicPatterns.of(settings.topics, settings.exclude),
            is_stopped=self._stopped.is_set,
        )
        if self._stopped.is_set():
            return
        segments, segment_error = self._scalable.look(
            settings, look, self._open_source_of, is_stopped=self._stopped.is_set
        )
        new, gone = self._roster.see(look)
        new_segments, gone_segments = self._segments.see(segments)
        error = error or segment_error
        for topic in gone + gone_segments:
            _log.warning(
                "topic %s was deleted or is no longer selected: its stream ends", topic, extra={"event": "topic_gone"}
            )
            self._enders.submit(partial(self._wind_down, streams, topic))
        with self._lock:
            refused, self._refused = self._refused, {}
        present = self._roster.topics | self._segments.topics
        for topic in [*new, *new_segments, *(topic for topic in refused if topic in present)]:
            if self._stopped.is_set():
                return
            self._open(streams, topic, is_new=topic not in refused)
        self._look_at_policies(look.topics)
        self._take_back()
        if error is not None:
            raise error

    def _layout_changed(self) -> None:
        if self._survey is not None:
            self._survey.ring()

    def _open(self, streams: ServedStreams, topic: str, *, is_new: bool) -> None:
        try:
            source = self._cluster.open_topic(topic, changed=self._turn_changed)
        except OffloaderError as error:
            self._refuse(topic, error, is_new=is_new)
            return
        try:
            control = streams.add(
                source.stream, source, feed=self.name, adjust=partial(_with_gap_policy, streams), active=None
            )
        except OffloaderError as error:
            source.close()
            if not isinstance(error, ClosedError):  # the process is stopping
                self._refuse(topic, error, is_new=is_new)
            return
        with self._lock:
            self._topics[topic] = _Topic(source, control)
        self._turn_changed(source)

    def _refuse(self, topic: str, error: OffloaderError, *, is_new: bool) -> None:
        with self._lock:
            self._refused[topic] = error
        if is_new:
            _log.warning("topic %s isn't offloaded: %s", topic, error, extra={"event": "topic_refused"})

    def _turn_changed(self, source: PulsarSource) -> None:
        """Applies the broker's choice of a leader. Without one the state is kept, and the manifest fences the wrong
        process."""
        with self._lock:
            found = self._topics.get(source.topic)
            active = source.active
            if found is not None and found.is_ours is not active:
                # Unloaded, or another leader: the broker may have forgotten an offload.
                self._triggers.changed(source.topic)
            if found is None or found.source is not source or active is None or found.is_ours is active:
                return
            found.is_ours = active
            if active:
                found.control.activate()
            else:
                found.control.stand_by()
        _log.info(
            "topic %s: %s", source.topic, "this process is the leader" if active else "another process is the leader"
        )

    def _take_back(self) -> None:
        """Takes back topics of this process that a former leader fenced, unaware of the new choice.

        This process may itself be the unaware one: behind a broken network the broker's last choice persists. So it
        waits for a new choice; otherwise two processes would fence each other until the connection is given up.
        """
        with self._lock:
            ours = {topic: each for topic, each in self._topics.items() if each.is_ours}
        now_s, before = self._clock.monotonic_s(), self._fenced_s
        self._fenced_s = {
            topic: before.get(topic, now_s)
            for topic, each in ours.items()
            if (status := each.control.status()) is not None
            and (status.mode, status.error_kind) == (Mode.STOPPED, FencedError.__name__)
        }
        for topic, since_s in self._fenced_s.items():
            if ours[topic].source.subscription.consumer.is_chosen_since(since_s):
                ours[topic].control.activate()

    def _see_turns(self, streams: ServedStreams) -> None:
        self._turns.look(
            streams.settings_of("").pulsar.store_outage_handover,
            ours=lambda: self._open_topics(lambda each: bool(each.is_ours) and not each.source.subscription.is_aside),
            aside=lambda: self._open_topics(lambda each: each.source.subscription.is_aside),
        )

    def _open_topics(self, is_meant: Callable[[_Topic], bool]) -> Sequence[PulsarSource]:
        with self._lock:
            return [each.source for each in self._topics.values() if is_meant(each)]

    def _wind_down(self, streams: ServedStreams, topic: str) -> None:
        with self._lock:
            found = self._topics.get(topic)
        if found is None:
            return
        try:
            # Remove before closing, so that the topic isn't opened twice.
            streams.remove(found.source.stream)
        finally:
            with self._lock:
                self._topics.pop(topic, None)
            found.source.close()

    def _look_at_policies(self, namespaces: Iterable[str]) -> None:
        if self._clock.monotonic_s() < self._policies_due_s:
            return
        self._policies_due_s = self._clock.monotonic_s() + POLICIES_S
        found: dict[str, tuple[str, ...]] = {}
        for namespace in namespaces:
            try:
                found[namespace] = policy_warnings(
                    self._cluster.admin.policies(namespace), broker_plugin=self._has_plugin
                )
            except OffloaderError as error:
                # Few tokens may read policies, and no function depends on them.
                _log.debug("policies of namespace %s: %s", namespace, error)
                found[namespace] = self._warnings.get(namespace, ())
            for each in set(found[namespace]) - set(self._warnings.get(namespace, ())):
                _log.warning("namespace %s: %s", namespace, each, extra={"event": "policy"})
        with self._lock:
            self._warnings = found

    def trigger(self) -> None:
        """Requests the brokers of this process's topics once to offload the committed ledgers."""
        with self._lock:
            ours = [
                ServedTopic(topic, each.source.committed)
                for topic, each in self._topics.items()
                if each.is_ours and not topic.startswith(SEGMENT_SCHEME)  # brokers have no such request
            ]
        self._triggers.look(ours, is_stopped=self._stopped.is_set)

    def tell(self, streams: ServedStreams) -> None:
        """Copies the subscriptions of this process's topics to retention once, several topics at a time. Raises
        ``OffloaderError``: the first error of a topic; the others were copied."""
        bases = [*self._bases(), *self._scalable_bases()]
        if errors := _errors_of(lambda topic: self._tell_one(streams, topic), bases):
            raise errors[0]

    def _tell_one(self, streams: ServedStreams, topic: str) -> None:
        layout = self._scalable.seen().get(topic)
        retention = streams.settings_of(stream_of_topic(topic) if layout is None else place_of_topic(topic)).retention
        pulsar = streams.settings_of("").pulsar
        follows = pulsar.broker_plugin and pulsar.follow_broker_trim
        if not (retention.deletes or follows) or self._stopped.is_set():
            return
        timeout_ms = int(retention.subscriber_timeout * 1000) or None
        try:
            if layout is not None:
                self._subscribers.tell_scalable(topic, layout, timeout_ms=timeout_ms)
            else:
                self._subscribers.tell(topic, timeout_ms=timeout_ms, is_ours=self._is_ours)
        except NotFoundError as error:
            # Nothing is offloaded yet, or the topic is being deleted.
            _log.debug("subscriptions of %s: %s", topic, error)
        except InvalidCallError as error:
            if layout is not None or not is_part_of_scalable(self._store, stream_of_topic(topic)):
                raise
            # It was migrated. Its subscribers remain as they were until they are removed.
            _log.debug("subscriptions of %s: %s", topic, error)

    def _bases(self) -> Sequence[str]:
        """Topics with a part that this process leads, partitioned ones once."""
        with self._lock:
            ours = [
                topic
                for topic, each in self._topics.items()
                if each.is_ours and not topic.startswith(SEGMENT_SCHEME)  # brokers don't tell cursors of segments
            ]
        return sorted({(partition_of(topic) or (topic, 0))[0] for topic in ours})

    def _scalable_bases(self) -> Sequence[str]:
        """Scalable topics whose first active segment this process leads."""
        found = []
        for topic, layout in self._scalable.seen().items():
            active = (row for row in layout.segments if not row.is_sealed)
            first = min(active, key=lambda row: (row.hash_start, row.id), default=None)
            if first is not None and self._is_ours(topic_of_stream(first.stream) or ""):
                found.append(topic)
        return sorted(found)

    def _is_ours(self, topic: str) -> bool:
        with self._lock:
            found = self._topics.get(topic)
            return found is not None and bool(found.is_ours)

    def _open_source_of(self, topic: str) -> PulsarSource | None:
        with self._lock:
            found = self._topics.get(topic)
            return None if found is None else found.source

    def _source_of(self, stream: str) -> LedgerSource | None:
        with self._lock:
            return next((each.source for each in self._topics.values() if each.source.stream == stream), None)

    def _every(self, period_s: Callable[[], float], run: Callable[[], None], what: str) -> _Poll:
        def poll() -> None:
            self._say(what, error_of(run, f"feed {self.name}: looking at {what}"))

        return _Poll(self._workers, poll, period_s)

    def _say(self, what: str, error: OffloaderError | None) -> None:
        with self._lock:
            before = self._problems.pop(what, None)
            self._is_starting = self._is_starting and what != "topics"
            if error is None:
                return
            text = f"{what}: {error.message}"
            self._problems[what] = ProviderProblem(
                where=f"feed {self.name}",
                what=text,
                hint=error.hint,
                since_ms=self._clock.now_ms() if before is None else before.since_ms,
                blocks_ready=what == "topics" and not self._roster.topics,  # known topics are still offloaded
            )
        if before is None:
            is_away = isinstance(error, StoreUnavailableError)
            extra = {"event": "retry" if is_away else "feed_failed", "feed": self.name}
            _log.warning("feed %s: %s", self.name, text, extra=extra)


def _with_gap_policy(streams: ServedStreams, settings: Settings) -> Settings:
    """Topics have their own policy: waiting would only let the broker expire more."""
    return replace(settings, offload=replace(settings.offload, on_gap=streams.settings_of("").pulsar.on_gap))
