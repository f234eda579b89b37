"""Retention cycles: load a snapshot, decide, truncate; once or periodically.

Steps D1 to D4 of docs/explanation/manifest.md; rule R30 of docs/explanation/retention.md.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from zlib import crc32

from formats.entries import Position
from formats.manifest import SetMethod
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.manifest.catalog import list_streams, read_entry
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import DeletionClock, user_at_host
from offloader.manifest.topic_layouts import read_layout
from offloader.parallel_map import at_once
from offloader.retention.broker import BrokerView, ListedOf, ask_brokers, listed_by_source
from offloader.retention.cuts import Record, StreamCut, cut_at, partition_segment
from offloader.retention.decide import Situation, decide, subscriptions_of
from offloader.retention.entries import Ahead, Boundaries, StreamEntries, published_ahead, segment_ends
from offloader.retention.lineage import Lineage
from offloader.retention.message_counts import MessagesFrom, count_messages
from offloader.retention.policy import Policy, PolicyKind, Unit, is_internal, policy_of
from offloader.retention.scope import DocumentStore, LoadedPartitions, Scope, SourceOf, find_scope, home_of, no_source
from offloader.retention.state import (
    Decision,
    Lag,
    RecordedState,
    RetentionSet,
    Rule,
    decision_change,
    read_decisions,
    read_records,
    records_change,
)
from offloader.retention.subscribers import Registry, StreamRetention
from offloader.retention.succession import Succession
from offloader.retention.truncate import Truncation, resume_topic_truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import Clock
from offloader.settings import PulsarSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts
from offloader.store.rate_limit import Priority, working_at
from offloader.stream_names import is_segment, partition_of, place_of
from offloader.telemetry.recorder import NO_TELEMETRY, Reading, Recorder
from offloader.times import time_text

#: Attempts to decide again because subscribers changed before the truncation.
DECISIONS_MAX = 5
#: Entries published less than this in the future aren't reported: clocks differ.
_AHEAD_MS_MIN = 60_000
#: Fields equal in two decisions of which the second isn't stored.
_SAME = ("head", "cut", "rule", "is_held", "bound_kind", "limits", "second", "overridden")
#: Unit of lags without a policy; decides nothing.
_LOOKING = Policy(kind=PolicyKind.CONSUMPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOutcome:
    """Input, decision and actions of a cycle.

    Attributes:
        policy: ``None``: no automatic truncation, unless the broker's trim is followed.
        decision: ``None``: nothing decides about the stream, or it is empty.
        records: the recorded cuts it is based on, this cycle's among them.
        sizes: bytes before ``begin``, each record's and candidate's cut, and the tail, for plots.
        unread_from: the position that all have read, or the beginning.
        unread_bytes, unread_entries: from there to the tail.
        unread_messages: of the offloaded entries among them; ``None``: another policy, a plan, or the brokers don't
            number messages.
        is_recorded: whether this cycle recorded the tail, or in a dry run would.
        subscribers: number registered.
        truncations: by stream; empty: none.
        ahead: with a limit by time, the first entries of each partition with a publish time in the future.
    """

    stream: str
    policy: Policy | None
    decision: Decision | None
    records: tuple[Record, ...] = ()
    begin: StreamCut = field(default_factory=StreamCut)
    tail: StreamCut = field(default_factory=StreamCut)
    lags: tuple[Lag, ...] = ()
    sizes: Mapping[StreamCut, int] = field(default_factory=dict)
    unread_from: StreamCut = field(default_factory=StreamCut)
    unread_bytes: int = 0
    unread_entries: int = 0
    unread_messages: int | None = None
    is_recorded: bool = False
    subscribers: int = 0
    truncations: Mapping[str, Truncation] = field(default_factory=dict)
    ahead: tuple[Ahead, ...] = ()

    @property
    def why(self) -> str:
        """The reason for the decision, or for there being none, in words."""
        if self.decision is None:
            return "the stream has no entry" if not self.tail.offsets else Rule.NO_POLICY.value
        if self.decision.cut is None and self.ahead:
            first = self.ahead[0]
            return (
                f"{self.decision.why}; {first.first} to {first.last} have a publish time in the future, "
                f"{time_text(first.time_ms)}"
            )
        return self.decision.why

    @property
    def bytes_truncated(self) -> int:
        """Payload bytes that the start position moved over."""
        return (self.decision.removed_bytes or 0) if self.truncations and self.decision else 0


def require_no_broker(pulsar: PulsarSettings) -> None:
    """Refuses a cycle that can't ask the brokers which ledgers their consumers need.

    Raises ``InvalidCallError``.
    """
    if pulsar.broker_plugin:
        raise InvalidCallError(
            "pulsar.broker_plugin: retention must ask the brokers which ledgers they list, and this call doesn't",
            hint="use `offloader retention plan` or `offloader retention run`, or leave it to `offloader serve`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """A stream or topic as of ``now_ms``: its recorded state, cuts and subscribers, from which a cycle decides."""

    retention: StreamRetention
    scope: Scope
    lineage: Lineage
    past: RecordedState
    own: StreamEntries
    partitions: LoadedPartitions
    registry: Registry
    now_ms: int
    succession: Succession

    def canonical(self, cut: StreamCut) -> StreamCut:
        """Normal form of a cut that a decision is made from."""
        return self.succession.lowered(self.own.canonical(cut))

    def offloaded_end(self) -> StreamCut:
        """Limit of the start position: the committed end, or of partitions that aren't offloaded the tail."""
        found: dict[int, Position | None] = {}
        for number in self.scope.partitions:
            entries = self.own.partitions[number]
            if entries.state.method == "none":
                found[number] = entries.tail
            elif (end := entries.state.prefix_end()) is not None:
                found[number] = entries.canonical(end.next())
        return self.succession.lowered(cut_at(found))

    def with_records(self, past: RecordedState, begin: StreamCut, *, is_recorded: bool) -> RecordedState:
        """``past`` adjusted to the current start position, whatever moved it; with the tail if recorded."""
        past = past.truncated(begin, self.lineage, None)
        return past.with_tail(self.own, self.now_ms) if is_recorded else past


class RetentionCycle:
    """Runs cycles. Thread-safe, without state of streams. Use one for a process: it detects clock jumps.

    Args:
        store: where the streams are; open for writing, for everything but plans.
        clock: of this machine; deletions use the store's if that is earlier.
        by: operator or process that runs the cycles, for display.
        listed_of: the ledgers that a broker lists, with ``pulsar.broker_plugin``; ``None``: asks through ``source_of``.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        settings_of: Callable[[str], Settings] = lambda _: Settings(),
        source_of: SourceOf = no_source,
        by: str = "",
        entropy: Callable[[int], bytes] = os.urandom,
        listed_of: ListedOf | None = None,
        messages_from: MessagesFrom | None = None,
    ) -> None:
        self._listed_of, self._messages_from = listed_of or listed_by_source(source_of), messages_from
        self.store = store
        self.clock = clock
        self._settings_of = settings_of
        self._source_of = source_of
        self._by = by or user_at_host()
        self._documents = DocumentStore(store, clock, entropy)
        self._times = DeletionClock(store, clock, skew_ms_max=settings_of("").manifest.clock_skew_max * 1000)

    def plan(self, stream: str) -> CycleOutcome:
        """What ``run`` would do now; writes nothing.

        Raises:
            NotFoundError: no such stream.
            InvalidCallError: its settings contradict each other, or it is one partition of a topic.
            CorruptError, UnsupportedError: a document or a manifest can't be read.
        """
        policy = policy_of(stream, self._settings_of(stream).retention)
        return self._decided(stream, policy, self._load(stream, create=False))

    def run(self, stream: str) -> CycleOutcome:
        """Run one cycle: record the tail if due, decide, and truncate.

        Safe to interrupt, to repeat and to run concurrently: the start position never moves back.

        Raises:
            NotFoundError, InvalidCallError, CorruptError, UnsupportedError: as ``plan``; nothing was deleted.
            ClockSkewError: the clocks can't be trusted; nothing was deleted.
            DeletionStoppedError, EditRefusedError: the store or the stream is on hold.
            StoreUnavailableError, OutcomeUnknownError: it ended early; the next cycle continues.
        """
        policy = policy_of(stream, self._settings_of(stream).retention)
        if find_scope(self.store, stream).is_topic:
            # A decision made by another clock also waits until this one can be trusted.
            self._times.now_ms()
            after_s = self._settings_of(stream).offload.takeover_after
            resume_topic_truncation(
                self.store, stream, clock=self.clock, source_of=self._source_of, takeover_after_s=after_s
            )
        if policy is None and not self._follows(stream):
            return self._decided(stream, None, self._load(stream, create=False))
        for _ in range(DECISIONS_MAX):
            snapshot = self._load(stream, create=True)
            done = self._carried_out(self._decided(stream, policy, snapshot), snapshot, policy)
            if done is not None:
                return self._counted(done, snapshot)
        raise StoreUnavailableError(f"stream {stream}: subscribers changed {DECISIONS_MAX} times during the decision")

    def _counted(self, outcome: CycleOutcome, snapshot: _Snapshot) -> CycleOutcome:
        if outcome.policy is None or outcome.policy.kind is not PolicyKind.CONSUMPTION:
            return outcome  # it would read two blocks of each stream, for a figure of this policy
        cut, ask = outcome.unread_from, self._messages_from
        return replace(outcome, unread_messages=count_messages(self.store, snapshot.scope, snapshot.own, cut, ask))

    def _follows(self, stream: str) -> bool:
        """Whether the trim of the stream's broker moves its start position."""
        pulsar = self._settings_of("").pulsar
        return (
            pulsar.broker_plugin
            and pulsar.follow_broker_trim
            and topic_of_stream(stream) is not None
            and not is_internal(stream)
        )

    def _broker(self, stream: str, snapshot: _Snapshot) -> BrokerView | None:
        """The ledgers or segments that the brokers list; ``None``: no broker reads the cold tier."""
        if not self._settings_of("").pulsar.broker_plugin:
            return None
        view = ask_brokers(
            *(self._listed_of, self._source_of, snapshot.scope, snapshot.own), follows=self._follows(stream)
        )
        if view is None or view.bound is None:
            return view
        return replace(view, bound=snapshot.succession.lowered(view.bound))

    # --- snapshot ------------------------------------------------------------------------------------------------

    def _load(self, stream: str, *, create: bool) -> _Snapshot:
        retention = StreamRetention(self._documents, stream, self._source_of)
        scope = retention.scope(create=create)
        past = read_records(retention, scope)
        newest_ms = past.records.newest.time_ms if past.records.newest else 0
        if create:
            # Check this before loading anything.
            self._times.now_ms(newest_ms=newest_ms)
        partitions = LoadedPartitions(self.store, scope, self._source_of, past.known)
        partitions.load(scope.partitions)
        # Read the time afterwards: no entry of the recorded tail is younger than its record.
        now_ms = self._times.now_ms(newest_ms=newest_ms) if create else self.clock.now_ms()
        return _Snapshot(
            retention=retention,
            scope=scope,
            lineage=Lineage.of_partitions(scope.partitions),
            past=past,
            own=StreamEntries(partitions),
            partitions=partitions,
            # Load this last, so that concurrent acknowledgements count.
            registry=retention.registry(scope),
            now_ms=now_ms,
            succession=Succession(scope, partitions),
        )

    def _decided(self, stream: str, policy: Policy | None, snapshot: _Snapshot) -> CycleOutcome:
        own = snapshot.own
        tail, begin = own.canonical(own.tail()), own.canonical(own.begin())
        is_recorded = policy is not None and self._is_due(stream, snapshot, tail, begin)
        past = snapshot.with_records(snapshot.past, begin, is_recorded=is_recorded)
        records = RetentionSet(tuple(replace(each, cut=own.canonical(each.cut)) for each in past.records.records))
        # Sizes were measured at the cuts as recorded.
        measure = replace(past, records=records).measure(own)
        records = RetentionSet(
            tuple(replace(each, cut=snapshot.succession.lowered(each.cut)) for each in records.records)
        )
        outcome = CycleOutcome(
            stream=stream,
            policy=policy,
            decision=None,
            records=records.records,
            begin=begin,
            tail=tail,
            is_recorded=is_recorded,
            subscribers=len(snapshot.registry.subscribers),
        )
        if not tail.offsets:
            return outcome
        follows = self._follows(stream)
        ruling = policy or _LOOKING
        decision = decide(
            Situation(
                policy=ruling,
                lineage=snapshot.lineage,
                measure=measure,
                records=records,
                head=begin,
                now_ms=snapshot.now_ms,
                created_ms=self._created_ms(snapshot, ruling),
                head_time_ms=past.head_ms,
                subscriptions=subscriptions_of(
                    *(snapshot.registry, ruling),
                    now_ms=snapshot.now_ms,
                    tail=tail,
                    rules=own,
                    canonical=snapshot.canonical,
                ),
                tail=tail,
                offloaded=snapshot.offloaded_end(),
                broker=self._broker(stream, snapshot) if policy is not None or follows else None,
                has_policy=policy is not None,
                boundaries=Boundaries(
                    {number: segment_ends(own.partitions[number].state) for number in snapshot.scope.partitions},
                    snapshot.canonical,
                ),
            )
        )
        unread_from = decision.bound or begin
        total, read = own.total(), own.size_before(unread_from)
        cuts = {begin, tail, unread_from, *(record.cut for record in records.records)}
        cuts |= {candidate.cut for candidate in decision.candidates} | {lag.cut for lag in decision.lags}
        by_time = policy is not None and any(limits.unit is Unit.TIME for limits in policy.all_limits)
        looked = snapshot.scope.partitions if by_time else ()
        ahead = (published_ahead(own.partitions[each].state, snapshot.now_ms + _AHEAD_MS_MIN) for each in looked)
        return replace(
            outcome,
            ahead=tuple(each for each in ahead if each is not None),
            decision=decision if policy is not None or follows else None,
            lags=decision.lags,
            sizes={cut: measure.bytes_before(cut) for cut in cuts},
            unread_from=unread_from,
            unread_bytes=max(total.payload_bytes - read.payload_bytes, 0),
            unread_entries=max(total.entries - read.entries, 0),
        )

    def _created_ms(self, snapshot: _Snapshot, policy: Policy) -> int | None:
        """When the stream was created, the start of its subscribers' silence; loaded only if needed."""
        if policy.fallback_after_ms is None or snapshot.registry.subscribers:
            return None
        entries = [read_entry(self.store, partition.stream) for partition in snapshot.scope.partitions.values()]
        return min((entry.created_ms for entry in entries if entry is not None), default=None)

    def _is_due(self, stream: str, snapshot: _Snapshot, tail: StreamCut, begin: StreamCut) -> bool:
        records = snapshot.past.records
        period_ms = int(self._settings_of(stream).retention.record_interval * 1000)
        # An unmoved tail needs no second record: the older one keeps as much and is older.
        newest = records.newest
        has_moved = newest is None or not snapshot.lineage.equal(snapshot.own.canonical(newest.cut), tail)
        return has_moved and not snapshot.lineage.reaches(begin, tail) and records.is_due(snapshot.now_ms, period_ms)

    # --- execution -----------------------------------------------------------------------------------------------

    def _carried_out(self, outcome: CycleOutcome, snapshot: _Snapshot, policy: Policy | None) -> CycleOutcome | None:
        """The outcome with the actions; ``None``: the decision no longer holds, nothing was truncated."""
        decision, scope = outcome.decision, snapshot.scope
        if decision is None:
            return outcome
        limits = [] if policy is None else [*policy.all_limits, *([policy.fallback] if policy.fallback else [])]

        def before(state: RecordedState) -> RecordedState:
            found = snapshot.with_records(state, outcome.begin, is_recorded=outcome.is_recorded)
            found = replace(found, records=found.records.thinned(snapshot.now_ms, limits, decision.used_ms))
            # Make the size before the new start position durable before its entries can be deleted.
            return found.before_truncation(snapshot.own, decision.cut or snapshot.own.head())

        self._documents.change(*records_change(scope, before))
        if (cut := decision.cut) is None:
            self._keep(snapshot, decision)
            return outcome
        positions = {
            number: position
            for number in scope.partitions
            if isinstance(position := cut.offsets.get(partition_segment(number)), Position)
        }
        if scope.layout is not None:
            # Each start position is moved after those of the segments before it, and not set where nothing goes.
            moved = {n: at for n, at in positions.items() if outcome.begin.offsets.get(partition_segment(n)) != at}
            positions = snapshot.succession.parents_first(moved)
        heads = {scope.partitions[number].stream: position for number, position in positions.items()}
        truncations: Mapping[str, Truncation] = {}
        if scope.is_topic:
            truncations = truncate_topic(
                *(self.store, scope.name, heads),
                clock=self.clock,
                by=self._by,
                source_of=self._source_of,
                takeover_after_s=self._settings_of(scope.name).offload.takeover_after,
                still=lambda: self._still(snapshot, decision),
            )
        elif self._still(snapshot, decision):
            truncations = {stream: self._truncate_plain(scope, position) for stream, position in heads.items()}
        if not truncations:
            return None
        self._documents.change(
            *records_change(scope, lambda state: state.truncated(cut, snapshot.lineage, decision.cut_time_ms))
        )
        return replace(outcome, truncations=truncations)

    def _still(self, snapshot: _Snapshot, decision: Decision) -> bool:
        """Whether the decision still holds; stores it if so, so that a loss for a subscriber is recorded, even if this
        run is interrupted."""
        is_same = snapshot.retention.registry(snapshot.scope) == snapshot.registry
        # A concurrent cycle may have cut elsewhere: each keeps min, but together they may not.
        if not is_same or (snapshot.scope.is_topic and not self._heads_are(snapshot)):
            return False
        self._keep(snapshot, decision)
        return True

    def _keep(self, snapshot: _Snapshot, decision: Decision) -> None:
        """Store a decision, unless it repeats the newest one: by the same rule, nothing, or a truncation still blocked.

        Stored each cycle, repeats would displace the records of losses.
        """
        newest, now = read_decisions(snapshot.retention, snapshot.scope)[:1], decision.as_json()
        if not newest or any(newest[0].get(name) != now[name] for name in _SAME):
            self._documents.change(*decision_change(snapshot.scope, decision))

    def _heads_are(self, snapshot: _Snapshot) -> bool:
        numbers = snapshot.scope.partitions
        with suppress(NotFoundError):
            scope = find_scope(self.store, snapshot.scope.name)
            heads = at_once(lambda number: snapshot.partitions.state(number).head, numbers)
            # For a partition without objects, a reload returns the view from before.
            return scope.partitions == numbers and heads == [snapshot.own.partitions[number].head for number in numbers]
        return False  # one was deleted: the decision is about another topic

    def _truncate_plain(self, scope: Scope, position: Position) -> Truncation:
        log = ManifestLog(
            self.store,
            scope.name,
            clock=self.clock,
            entropy=self._documents.entropy,
            settings=self._settings_of(scope.name).manifest,
            # A recreated stream of that name is another one.
            incarnation=scope.incarnation,
        )
        try:
            return truncate_stream(log, position, clock=self.clock, source=self._source_of(scope.name))
        except OffloaderError as error:
            entry = read_entry(self.store, scope.name)
            if entry is not None and entry.incarnation == scope.incarnation:
                raise
            raise NotFoundError(f"stream {scope.name} was deleted in the meantime") from error


_log = logging.getLogger("offloader.retention")

#: Jitter of a cycle's time, as a fraction of the period.
JITTER = 0.1
#: Retry delay of a failed cycle, as a fraction of the period, but at least ``RETRY_S_MIN``.
RETRY = 0.1
RETRY_S_MIN = 10.0
#: Failures in a row after which the delay no longer grows, whatever the period.
MANY = 64
#: Longest time between two listings of the streams.
DISCOVERY_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class StreamCycle:
    """The newest cycle of a stream: its outcome or error."""

    outcome: CycleOutcome | None
    error: OffloaderError | None
    at_ms: int


def retained_streams(store: ObjectStore) -> list[str]:
    """Streams under retention: streams, partitioned topics by the topic's name, scalable topics by their place; without
    brokers' internal ones."""
    there = [*list_streams(store)]
    homes = _segment_homes(store, there)
    plain = {stream: partition_of(stream) for stream in there if stream not in homes}
    # A topic that is also a stream has no partitions of ours: those are separate streams with similar names.
    found = {stream if split is None or split[0] in plain else split[0] for stream, split in plain.items()}
    return sorted(name for name in found | {*homes.values()} if not is_internal(name))


def _segment_homes(store: ObjectStore, streams: Iterable[str]) -> dict[str, str]:
    """Segments' streams -> the place of their scalable topic; of topics with a stream of a segment of their own."""
    places: dict[str, list[str]] = {}
    for stream in filter(is_segment, streams):
        places.setdefault(place_of(stream) or "", []).append(stream)
    found: dict[str, str] = {}
    for place, segments in places.items():
        try:
            layout = read_layout(store, place)
        except (CorruptError, UnsupportedError):
            found |= dict.fromkeys(segments, place)  # a cycle about the topic raises this error
            continue
        found |= {} if layout is None else {row.stream: place for row in layout.segments}
    return found


def phase(text: str) -> float:
    """A number in [0, 1), constant for a text."""
    return crc32(text.encode()) / 2**32


def until_next_s(period_s: float, seed: str, *, failed: bool, in_a_row: int = MANY) -> float:
    """Seconds until a periodic job comes round again, jittered by the seed; sooner after a failure.

    Args:
        in_a_row: of a job that is cheap to try again, its failures in a row: it is retried after ``RETRY_S_MIN``, then
            after twice as long, up to the delay of all others.
    """
    jittered_s = period_s * (1 + (phase(seed) * 2 - 1) * JITTER)
    if not failed:
        return jittered_s
    return min(RETRY_S_MIN * 2.0 ** max(in_a_row - 1, 0), max(period_s * RETRY, RETRY_S_MIN), jittered_s)


class HotStreams:
    """Streams whose hot tier this process has, in a store that is open for writing. Not thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        settings_of: Callable[[str], Settings],
        names: Callable[[], Iterable[str]],
    ) -> None:
        self._store, self._clock, self._settings_of, self._names = store, clock, settings_of, names
        self._settled: set[str] = set()
        self._is_probed = False

    def enrol(self) -> list[str]:
        """Ensure that each unoffloaded stream under a policy has a manifest that records it as unoffloaded.

        Returns the streams with newly written manifests. A failure is logged, and retried by the next call.
        """
        names = set(self._names())
        self._settled &= names
        begun = []
        for stream in sorted(names - self._settled):
            try:
                begun += [stream] if self._begin(stream) else []
            except OffloaderError as error:
                extra = {"event": "retention_failed", "stream": stream, "retryable": error.retryable}
                _log.warning("retention of stream %s, which isn't offloaded: %s", stream, error, extra=extra)
        return begun

    def _begin(self, stream: str) -> bool:
        """Whether a manifest was written, or changed."""
        settings = self._settings_of(stream)
        if settings.offload.method != "none":
            return False  # its offloader creates the manifest
        name, _ = home_of(self._store, stream)
        if policy_of(name, self._settings_of(name).retention) is None:
            return False
        if not self._is_probed:
            # Two manifests that both "win" would disagree about the start position.
            require_conditional_puts(self._store, single_writer=settings.store.single_writer)
            self._is_probed = True
        log = ManifestLog(self._store, stream, clock=self._clock, settings=settings.manifest)
        is_new = log.load(create=True).method != "none"
        if is_new:
            # Also of a formerly offloaded stream: entries never offloaded must not hold the start position back.
            log.commit_as_maintainer([SetMethod("none")])
        self._settled.add(stream)
        return is_new


class RetentionService:
    """Runs cycles until it is closed.

    Args:
        period_s: between two cycles of a stream.
        recorder: takes the measurements of each cycle.
        on_cycle: called after each cycle, by stream.
    """

    def __init__(
        self,
        cycle: RetentionCycle,
        *,
        clock: Clock,
        period_s: float,
        recorder: Recorder = NO_TELEMETRY,
        hot_streams: HotStreams | None = None,
        on_cycle: Callable[[str, StreamCycle], object] = lambda _stream, _cycle: None,
    ) -> None:
        self._cycle = cycle
        self._clock = clock
        self._period_s = period_s
        self._recorder = recorder
        self._hot_streams = hot_streams
        self._on_cycle = on_cycle
        # Guards the next three; not held during requests.
        self._lock = threading.Lock()
        self._latest: dict[str, StreamCycle] = {}
        self._started = self._closed = False
        # Held while cycles run; guards the rest.
        self._running = threading.Lock()
        #: A heap of the time of each known stream's next cycle, without the running one's.
        self._due: list[tuple[float, str]] = []
        self._discovery_due_s = 0.0
        self._turns = 0
        self._unwatch = recorder.watch(self._readings)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Start running due cycles. Idempotent.

        Args:
            call_after: runs a function after so many seconds, on another thread.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True

        def turn() -> None:
            try:
                wait_s = self.run_due()
            except Exception:
                # An error of one stream must not stop retention.
                _log.exception("a retention round failed and will be retried")
                wait_s = RETRY_S_MIN
            if not self._closed:
                call_after(wait_s, turn)

        call_after(0.0, turn)

    def close(self) -> None:
        """Start no further cycle and wait for the running one. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._unwatch()
        with self._running:
            pass

    @property
    def latest(self) -> Mapping[str, StreamCycle]:
        """The newest cycle of each stream that had one."""
        with self._lock:
            return dict(self._latest)

    def run_due(self) -> float:
        """Run all due cycles in sequence; returns the seconds until the next one."""
        with self._running:
            self._discover()
            while not self._closed and self._due and self._due[0][0] <= self._clock.monotonic_s():
                self._run(heapq.heappop(self._due)[1])
            next_s = min([self._discovery_due_s, *(due for due, _ in self._due[:1])])
            return max(next_s - self._clock.monotonic_s(), 0.0)

    def _discover(self) -> None:
        """List the streams: schedule new ones, drop missing ones."""
        now_s = self._clock.monotonic_s()
        if now_s < self._discovery_due_s:
            return
        if self._hot_streams is not None:
            self._hot_streams.enrol()
        try:
            streams = set(retained_streams(self._cycle.store))
        except OffloaderError as error:
            extra = {"event": "retention_failed", "stream": "", "retryable": error.retryable}
            _log.warning("retention can't list the streams: %s", error, extra=extra)
            self._discovery_due_s = now_s + RETRY_S_MIN
            return
        self._discovery_due_s = now_s + min(self._period_s, DISCOVERY_S_MAX)
        new = streams - {stream for _, stream in self._due}
        # A sorted list is a heap.
        self._due = sorted(
            [each for each in self._due if each[1] in streams]
            + [(now_s + phase(stream) * self._period_s, stream) for stream in new]
        )
        with self._lock:
            self._latest = {stream: each for stream, each in self._latest.items() if stream in streams}

    def _run(self, stream: str) -> None:
        outcome, error = None, None
        with working_at(Priority.DELETION):
            try:
                outcome = self._cycle.run(stream)
            except OffloaderError as raised:
                error = raised
        found = StreamCycle(outcome, error, self._clock.now_ms())
        self._tell(stream, found)
        self._count_reads(self._latest.get(stream), found, stream)
        if isinstance(error, NotFoundError):
            # Deleted meanwhile; if recreated, the next listing finds it.
            with self._lock:
                self._latest.pop(stream, None)
            return
        with self._lock:
            self._latest[stream] = found
        self._turns += 1
        wait_s = until_next_s(self._period_s, f"{stream} {self._turns}", failed=error is not None)
        heapq.heappush(self._due, (self._clock.monotonic_s() + wait_s, stream))

    # --- reporting -----------------------------------------------------------------------------------------------

    def _tell(self, stream: str, found: StreamCycle) -> None:
        add = self._recorder.add
        outcome, error = found.outcome, found.error
        add("retention_cycles_total", stream=stream, label="failed" if error else "done")
        if error is not None:
            add("retention_refusals_total", stream=stream, label=error.label)
            level = logging.INFO if isinstance(error, NotFoundError) else logging.WARNING
            extra = {"event": "retention_failed", "stream": stream, "retryable": error.retryable}
            _log.log(level, "retention of stream %s: %s", stream, error, extra=extra)
        elif outcome is not None and outcome.decision is not None:
            decision, done = outcome.decision, bool(outcome.truncations)
            # Zeros too, so that the first truncation is an increase and not a new series.
            add("retention_truncations_total", float(done), stream=stream)
            add("retention_truncated_bytes_total", outcome.bytes_truncated, stream=stream)
            add("subscribers_overridden_total", float(len(decision.overridden)), stream=stream)
            if done:
                self._log_truncation(stream, outcome, decision)
        self._on_cycle(stream, found)

    def _log_truncation(self, stream: str, outcome: CycleOutcome, decision: Decision) -> None:
        losers = [each.name for each in decision.overridden]
        extra = {
            "event": "truncated",
            "stream": stream,
            "head": str(decision.cut),
            "rule": decision.rule.name.lower(),
            "bytes": outcome.bytes_truncated,
            "overridden": losers,
        }
        text = f"stream {stream} begins at {decision.cut}: {decision.rule.value}; {outcome.bytes_truncated} bytes"
        text += f", not read by {', '.join(losers)}" if losers else ""
        _log.log(logging.WARNING if losers else logging.INFO, "%s", text, extra=extra)

    def _count_reads(self, before: StreamCycle | None, now: StreamCycle, stream: str) -> None:
        if before is None or before.outcome is None or now.outcome is None:
            return
        old = {lag.name: before.outcome.sizes.get(lag.cut) for lag in before.outcome.lags}
        for lag in now.outcome.lags:
            was, size = old.get(lag.name), now.outcome.sizes.get(lag.cut)
            if was is not None and size is not None and size > was:
                self._recorder.add("subscriber_read_bytes_total", size - was, stream=stream, label=lag.name)

    def _readings(self) -> Iterator[Reading]:
        for stream, found in self.latest.items():
            outcome = found.outcome
            yield Reading("streams_retention_failing", float(found.error is not None), stream)
            if outcome is None:
                continue
            yield Reading("unconsumed_bytes", outcome.unread_bytes, stream)
            yield Reading("unconsumed_entries", outcome.unread_entries, stream)
            if outcome.unread_messages is not None:
                yield Reading("unconsumed_messages", outcome.unread_messages, stream)
            is_queue = outcome.policy is not None and outcome.policy.kind is PolicyKind.CONSUMPTION
            yield Reading("streams_without_subscribers", float(is_queue and not outcome.subscribers), stream)
            for lag in outcome.lags:
                yield Reading("subscriber_lag_bytes", lag.unread_bytes or 0, stream, lag.name)
                yield Reading("subscriber_lag_entries", lag.unread_entries or 0, stream, lag.name)
