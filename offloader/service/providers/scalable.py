"""Scalable topics of a Pulsar cluster (Pulsar 5): which segments to offload, and what is recorded before that.

**The problem.** A broker deletes a sealed segment after its retention, unread by this process or not, unless a
subscription that is registered at the *topic* still has entries of it. It then forgets the segment, and which segment
continues it. Children take entries as soon as they exist.

**Order of steps**, for each topic, at each survey:

1. The subscription is registered at the topic, if it isn't. From then on the broker keeps unread segments, and creates
   the subscription in every new one. A subscription that disappears is registered again, and reported as a problem:
   segments may have been deleted meanwhile.
2. The layout is recorded in the object store (``offloader.manifest.topic_layouts``), and the schemas of the values.
3. The segments are opened. The failover consumer of each creates the subscription where it is older than step 1.
4. The last entry of a sealed segment is asked from its broker, and recorded when a reader has received nothing after
   it but the end. A seal is final, and the broker closes a segment before its layout says so.

A survey is made every ``pulsar.discovery_interval``, and when a broker tells that something changed (``LayoutWatch``).

A process that dies between two steps repeats them. Several processes do the same for one topic: every step leaves what
is there. A topic with a damaged layout, or one that contradicts the record, is reported; its segments that are open
already remain so, and other topics aren't affected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from formats.topic_layout import RangeSegment, TopicLayout, TopicSchema
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError, UnsupportedError
from offloader.ledgers.base import newest_listed
from offloader.ledgers.pulsar.discovery import FAILURES_MAX, Look, TopicPatterns, namespace_of
from offloader.ledgers.pulsar.layout_watch import LayoutWatch
from offloader.ledgers.pulsar.scalable import place_of_topic
from offloader.ledgers.pulsar.source import PulsarCluster, PulsarSource
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.manifest.load import load_manifest
from offloader.manifest.topic_layouts import NOTHING_MORE, record_end, record_layout, record_schemas
from offloader.service.streams import ProviderProblem
from offloader.settings import PulsarSettings
from offloader.store.base import ObjectStore
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

#: How long the removal of a subscription is reported.
REMOVAL_TOLD_S = 3600.0

_log = logging.getLogger("offloader.service")


class ScalableTopics:
    """The scalable topics of one cluster. ``look`` is called by one thread at a time.

    Args:
        store: where layouts are recorded.
        changed: called when another survey would see something new; returns quickly.
    """

    def __init__(
        self,
        cluster: PulsarCluster,
        store: ObjectStore,
        recorder: Recorder = NO_TELEMETRY,
        *,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._cluster, self._store, self._recorder = cluster, store, recorder
        self._watch, self._changed = LayoutWatch(cluster.client, cluster.clock, changed), changed
        self._lock = threading.Lock()
        self._problems: dict[str, ProviderProblem] = {}
        #: Topic -> what the broker told last, and the record after that.
        self._layouts: dict[str, tuple[TopicLayout, TopicLayout]] = {}
        #: Topic -> the schemas that the broker told last, and that were recorded.
        self._schemas: dict[str, Sequence[TopicSchema]] = {}
        self._registered: set[str] = set()
        self._removed_s: dict[str, float] = {}
        self._has_feature = False

    def problems(self) -> Sequence[ProviderProblem]:
        """Topics that aren't offloaded completely, and why."""
        with self._lock:
            return list(self._problems.values())

    def seen(self) -> Mapping[str, TopicLayout]:
        """The latest layout that the broker told, by topic."""
        return {topic: seen for topic, (seen, _) in dict(self._layouts).items()}

    def look(
        self,
        settings: PulsarSettings,
        survey: Look,
        source_of: Callable[[str], PulsarSource | None],
        *,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[Look, OffloaderError | None]:
        """The segments that exist, by namespaces, and the first error of the failed queries.

        Args:
            survey: of regular topics: has the namespaces with selected topics.
            source_of: the open source of a topic or segment.
        """
        if settings.scalable_topics == "off":
            self._watch.follow({})
            return Look({}), None
        if (error := self._absence()) is not None or not self._has_feature:
            return Look({}, is_whole=not self._layouts), error
        patterns = TopicPatterns.of(settings.topics, settings.exclude)
        topics: dict[str, frozenset[str]] = {}
        failed = set(survey.failed)
        first: OffloaderError | None = None
        problems: dict[str, ProviderProblem] = {}
        seen: dict[str, frozenset[str] | int] = {}
        in_a_row = 0
        for namespace in sorted(survey.topics):
            if is_stopped() or in_a_row >= FAILURES_MAX:
                failed.add(namespace)
                continue
            try:
                listed = self._listed(namespace)
            except OffloaderError as cause:
                first = first or cause
                failed.add(namespace)
                in_a_row += 1
                continue
            in_a_row = 0
            seen[namespace] = frozenset(listed)
            selected = [each for each in listed if patterns.have_scalable(each)]
            topics[namespace] = frozenset(
                segment for topic in selected for segment in self._segments(topic, settings, source_of, problems)
            )
            seen |= {topic: self._layouts[topic][0].epoch for topic in selected if topic in self._layouts}
        self._watch.follow(seen)
        with self._lock:
            unknown = {topic: each for topic, each in self._problems.items() if namespace_of(topic) in failed}
            self._problems = unknown | problems
        return Look(topics, frozenset(failed), survey.is_whole), first

    def _absence(self) -> OffloaderError | None:
        """Asks whether brokers have scalable topics; the error if those that were known can't be looked at."""
        try:
            self._has_feature = self._cluster.client.has_scalable_topics()
        except OffloaderError as error:
            self._has_feature = False
            return error if self._layouts else None  # sources of regular topics report it
        if self._has_feature or not self._layouts:
            return None
        return UnsupportedError(
            f"the brokers don't announce scalable topics any more, and {len(self._layouts)} were offloaded",
            hint="set scalableTopicsEnabled=true in broker.conf again; what is offloaded remains readable",
        )

    def _listed(self, namespace: str) -> Sequence[str]:
        try:
            return self._cluster.admin.scalable_topics(namespace)
        except NotFoundError:
            return ()

    def _segments(
        self,
        topic: str,
        settings: PulsarSettings,
        source_of: Callable[[str], PulsarSource | None],
        problems: dict[str, ProviderProblem],
    ) -> Sequence[str]:
        """The segments of a topic that the broker has; those of the last answer if there is an error."""
        try:
            self._hold(topic, settings.subscription)
            removed_s = self._removed_s.get(topic)
            if removed_s is not None and self._cluster.clock.monotonic_s() - removed_s < REMOVAL_TOLD_S:
                problems[topic] = ProviderProblem(
                    where=f"topic {topic}",
                    what=f"its subscription {settings.subscription} was removed, and is registered again: the broker "
                    "may have deleted segments that aren't offloaded",
                    hint="find out who removes it; `offloader ls TOPIC --graph` shows which segments are complete",
                )
            self._record(topic, source_of)
        except NotFoundError:  # a deleted topic may remain listed
            self._layouts.pop(topic, None)
            self._schemas.pop(topic, None)
            self._registered.discard(topic)
            return ()
        except OffloaderError as error:
            problems[topic] = ProviderProblem.of(f"topic {topic}", error)
            if topic not in self._problems:
                _log.warning("topic %s: %s", topic, error, extra={"event": "topic_refused"})
        if topic not in self._layouts:
            return ()
        seen, _ = self._layouts[topic]
        rows = (row for row in seen.segments if not row.is_legacy)  # those are topics of their own
        return [segment for row in rows if (segment := topic_of_stream(row.stream)) is not None]

    def _hold(self, topic: str, subscription: str) -> None:
        """Registers the subscription where it is missing, and notes that it was removed."""
        is_registered = subscription in self._cluster.admin.scalable_subscriptions(topic)
        if not is_registered:
            self._cluster.admin.register(topic, subscription)
        if not is_registered and topic in self._registered:
            self._removed_s[topic] = self._cluster.clock.monotonic_s()
            self._recorder.add("scalable_subscriptions_removed_total")
            _log.error(
                "topic %s: subscription %s was removed: registered again, but the broker may have deleted segments "
                "that aren't offloaded",
                topic,
                subscription,
            )
        self._registered.add(topic)

    def _record(self, topic: str, source_of: Callable[[str], PulsarSource | None]) -> None:
        place = place_of_topic(topic)
        seen = self._cluster.admin.layout(topic)
        told, recorded = self._layouts.get(topic, (None, None))
        # Another process may record the ends that this one can't see yet.
        has_ends = recorded is not None and all(row.end is not None for row in recorded.segments if row.is_sealed)
        if recorded is None or told != seen or not has_ends:
            recorded = record_layout(self._store, place, seen)
        self._layouts[topic] = seen, recorded
        there = seen.by_id
        of_schemas = self._record_schemas(topic, place)
        first: OffloaderError | None = None
        for row in recorded.segments:
            source = source_of(topic_of_stream(row.stream) or "")
            if source is None or not row.is_sealed:
                if told != seen and row.is_sealed and row.end is None:
                    self._changed()  # it is opened after this survey
                continue
            if row.end is None and row.id in there:
                try:
                    recorded = self._ended(place, row, source)
                except OffloaderError as error:  # of this segment: the ends of others don't depend on it
                    first = first or error
                    continue
                self._layouts[topic] = seen, recorded
            if (end := recorded.by_id[row.id].end) is not None:
                source.sealed(end)
        if (why := first or of_schemas) is not None:
            raise why

    def _record_schemas(self, topic: str, place: str) -> OffloaderError | None:
        """Records the schemas that the broker has now; returns why it couldn't: entries are offloaded nevertheless."""
        try:
            told = self._cluster.admin.schemas(topic)
            if told != self._schemas.get(topic, ()):
                record_schemas(self._store, place, told)
                self._schemas[topic] = told
        except OffloaderError as error:
            return error
        return None

    def _ended(self, place: str, row: RangeSegment, source: PulsarSource) -> TopicLayout:
        try:
            last = source.sealed_end()
            if last is None:  # so it is too if all entries are acknowledged, and this process hasn't read them
                with suppress(NotFoundError):
                    last = load_manifest(self._store, source.stream).newest_end
            last = last or NOTHING_MORE
            listed = newest_listed(source.ledgers())
            if listed is not None and listed > last:
                raise StoreUnavailableError(f"the broker answers {last}, and has delivered {listed}")
        except OffloaderError as error:
            raise StoreUnavailableError(
                f"{source.topic}: the last entry of the sealed segment isn't known yet: {error.message}",
                hint="the broker is asked again, and the children can't be read before; if it lasts, "
                "see docs/how-to/scalable-topics.md",
            ) from error
        return record_end(self._store, place, row.id, last)
