"""Retention cycles: load a snapshot, decide, truncate; once or periodically."""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from zlib import crc32

from formats.entries import Position
from offloader.errors import NotFound, OffloaderError, StoreUnavailable
from offloader.manifest.catalog import list_streams, read_entry
from offloader.manifest.deletion_clock import DeletionClock
from offloader.manifest.leases import user_at_host
from offloader.manifest.log import ManifestLog
from offloader.manifest.topics import partition_of
from offloader.parallel_map import at_once
from offloader.retention.cuts import Cut, OwnCuts, partition_segment
from offloader.retention.decide import Situation, decide, subscriptions_of
from offloader.retention.policy import Policy, PolicyKind, is_internal, policy_of
from offloader.retention.scope import DocumentStore, LoadedPartitions, Place, SourceOf, find_place
from offloader.retention.snapshot import HotStreams, Look, offloaded_end, with_records
from offloader.retention.state import (
    Decision,
    Lag,
    Record,
    RecordedCuts,
    RecordedState,
    change_records,
    read_decisions,
    read_records,
    remember_decision,
)
from offloader.retention.subscribers import StreamRetention
from offloader.retention.truncate import Truncation, resume_topic_truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.telemetry.recorder import NO_TELEMETRY, Reading, Recorder

__all__ = ["CycleOutcome", "RetentionCycle", "RetentionService", "StreamCycle", "no_source", "retained_streams"]

#: Attempts to decide again because subscribers changed before the truncation.
DECISIONS_MAX = 5
_MS_PER_MINUTE = 60_000
#: Fields equal in two decisions of which the second isn't stored.
_SAME = ("head", "cut", "rule", "is_held", "bound_kind", "limits", "overridden")


#: Unit of lags without a policy; decides nothing.
_LOOKING = Policy(kind=PolicyKind.CONSUMPTION)


def no_source(stream: str) -> None:
    """Placeholder for a missing hot tier: the stream then ends at its committed end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOutcome:
    """Input, decision and actions of a cycle.

    Attributes:
        stream: the stream or partitioned topic.
        policy: the active policy; ``None``: no automatic truncation.
        decision: the decision; ``None``: no policy, or the stream is empty.
        records: the recorded cuts it is based on, this cycle's among them.
        begin, tail: where the stream begins and ends.
        lags: of all subscribers.
        sizes: bytes before ``begin``, each record's and candidate's cut, and the tail, for plots.
        unread_bytes, unread_entries: from the position that all have read, or from the beginning, to the tail.
        is_recorded: whether this cycle recorded the tail, or in a dry run would.
        subscribers: number registered.
        truncations: by stream; empty: none.
    """

    stream: str
    policy: Policy | None
    decision: Decision | None
    records: tuple[Record, ...] = ()
    begin: Cut = field(default_factory=Cut)
    tail: Cut = field(default_factory=Cut)
    lags: tuple[Lag, ...] = ()
    sizes: Mapping[Cut, int] = field(default_factory=dict)
    unread_bytes: int = 0
    unread_entries: int = 0
    is_recorded: bool = False
    subscribers: int = 0
    truncations: Mapping[str, Truncation] = field(default_factory=dict)

    @property
    def bytes_truncated(self) -> int:
        """Payload bytes that the start position moved over."""
        if not self.truncations or self.decision is None:
            return 0
        return self.decision.removed_bytes or 0


class RetentionCycle:
    """Runs cycles. Thread-safe, without state of streams. Use one for a process: it detects clock jumps.

    Args:
        store: where the streams are; open for writing, for everything but plans.
        clock: of this machine; deletions use the store's if that is earlier.
        settings_of: the settings of a stream or topic.
        source_of: the hot tier of a stream.
        by: operator or process that runs the cycles, for display.
        entropy: source of random bytes.
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
    ) -> None:
        self.store = store
        self.clock = clock
        self._settings_of = settings_of
        self._source_of = source_of
        self._by = by or user_at_host()
        self._entropy = entropy
        self._documents = DocumentStore(store, clock, entropy)
        self._lock = threading.Lock()
        self._deletion_clock: DeletionClock | None = None

    def plan(self, stream: str) -> CycleOutcome:
        """What ``run`` would do now; writes nothing.

        Raises:
            NotFound: no such stream.
            InvalidCall: its settings contradict each other, or it is one partition of a topic.
            Corrupt, Unsupported: a document or a manifest can't be read.
        """
        policy = policy_of(stream, self._settings_of(stream).retention)
        look = self._look(stream, create=False)
        return self._decided(stream, policy, look)

    def run(self, stream: str) -> CycleOutcome:
        """Run one cycle: record the tail if due, decide, and truncate.

        Safe to interrupt, to repeat and to run concurrently: the start position never moves back.

        Raises:
            NotFound, InvalidCall, Corrupt, Unsupported: as ``plan``; nothing was deleted.
            ClockSkew: the clocks can't be trusted; nothing was deleted.
            DeletionStopped, EditRefused: the store or the stream is on hold.
            StoreUnavailable, OutcomeUnknown: it ended early; the next cycle continues.
        """
        settings = self._settings_of(stream)
        policy = policy_of(stream, settings.retention)
        if find_place(self.store, stream).is_topic:
            # A decision made by another clock also waits until this one can be trusted.
            self._times(stream).now_ms()
            resume_topic_truncation(self.store, stream, clock=self.clock, source_of=self._source_of)
        if policy is None:
            return self._decided(stream, None, self._look(stream, create=False))
        for _ in range(DECISIONS_MAX):
            look = self._look(stream, create=True)
            outcome = self._decided(stream, policy, look)
            done = self._carried_out(outcome, look, policy)
            if done is not None:
                if done.decision is not None and done.decision.cut is None:
                    _keep(look, done.decision)
                return done
        raise StoreUnavailable(f"stream {stream}: it was changed {DECISIONS_MAX} times while it was decided")

    def _times(self, stream: str) -> DeletionClock:
        """One clock for the lifetime of this object, to detect clock jumps."""
        with self._lock:
            if self._deletion_clock is None:
                skew_ms_max = self._settings_of(stream).manifest.clock_skew_seconds_max * 1000
                self._deletion_clock = DeletionClock(self.store, self.clock, skew_ms_max=skew_ms_max)
            return self._deletion_clock

    # --- snapshot ------------------------------------------------------------------------------------------------

    def _look(self, stream: str, *, create: bool) -> Look:
        retention = StreamRetention(self._documents, stream, self._source_of, self._entropy)
        place = retention.place(create=create)
        past = read_records(retention, place)
        newest = past.records.newest
        newest_ms = 0 if newest is None else newest.time_ms
        if create:
            # Check this before loading anything.
            self._times(stream).now_ms(newest_ms=newest_ms)
        partitions = LoadedPartitions(self.store, place, self._source_of, past.known)
        partitions.load(place.partitions)
        # Read the time afterwards: no entry of the recorded tail is younger than its record.
        now_ms = self._times(stream).now_ms(newest_ms=newest_ms) if create else self.clock.now_ms()
        return Look(
            retention=retention,
            place=place,
            past=past,
            own=OwnCuts(partitions),
            partitions=partitions,
            # Load this last, so that concurrent acknowledgements count.
            registry=retention.registry(place),
            now_ms=now_ms,
        )

    def _decided(self, stream: str, policy: Policy | None, look: Look) -> CycleOutcome:
        own, tail, begin = look.own, look.own.canonical(look.own.tail()), look.own.canonical(look.own.begin())
        is_recorded = policy is not None and self._is_due(stream, look, tail, begin)
        past = with_records(look, begin, is_recorded=is_recorded)
        records = replace(
            past.records, records=tuple(replace(each, cut=own.canonical(each.cut)) for each in past.records.records)
        )
        outcome = CycleOutcome(
            stream=stream,
            policy=policy,
            decision=None,
            records=records.records,
            begin=begin,
            tail=tail,
            is_recorded=is_recorded,
            subscribers=len(look.registry.subscribers),
        )
        if not tail.offsets:
            return outcome
        ruling, measure = policy or _LOOKING, RecordedCuts(own, records, past.known)
        decision = decide(
            Situation(
                policy=ruling,
                lineage=look.lineage,
                measure=measure,
                records=records,
                head=begin,
                now_ms=look.now_ms,
                created_ms=self._created_ms(look, ruling),
                head_time_ms=past.head_ms,
                subscriptions=subscriptions_of(
                    *(look.registry, ruling),
                    now_ms=look.now_ms,
                    tail=tail,
                    rules=own,
                    canonical=own.canonical,
                ),
                tail=tail,
                offloaded=offloaded_end(look),
            )
        )
        unread_from = decision.bound or begin
        total, read = own.total(), own.size_before(unread_from)
        cuts = {begin, tail, unread_from, *(record.cut for record in records.records)}
        cuts |= {candidate.cut for candidate in decision.candidates} | {lag.cut for lag in decision.lags}
        return replace(
            outcome,
            decision=None if policy is None else decision,
            lags=decision.lags,
            sizes={cut: measure.bytes_before(cut) for cut in cuts},
            unread_bytes=max(total.payload_bytes - read.payload_bytes, 0),
            unread_entries=max(total.entries - read.entries, 0),
        )

    def _created_ms(self, look: Look, policy: Policy) -> int | None:
        """When the stream was created, the start of its subscribers' silence; loaded only if needed."""
        if policy.fallback_after_ms is None or look.registry.subscribers:
            return None
        entries = [read_entry(self.store, partition.stream) for partition in look.place.partitions.values()]
        return min((entry.created_ms for entry in entries if entry is not None), default=None)

    def _is_due(self, stream: str, look: Look, tail: Cut, begin: Cut) -> bool:
        """Whether the tail should be recorded."""
        records = look.past.records
        period_ms = int(self._settings_of(stream).retention.record_minutes * _MS_PER_MINUTE)
        # An unmoved tail needs no second record: the older one keeps as much and is older.
        newest = records.newest
        has_moved = newest is None or not look.lineage.equal(look.own.canonical(newest.cut), tail)
        return has_moved and not look.lineage.reaches(begin, tail) and records.is_due(look.now_ms, period_ms)

    # --- execution -----------------------------------------------------------------------------------------------

    def _carried_out(self, outcome: CycleOutcome, look: Look, policy: Policy) -> CycleOutcome | None:
        """The outcome with the actions; ``None``: subscribers changed, nothing was truncated."""
        decision, place, lineage = outcome.decision, look.place, look.lineage
        if decision is None:
            return outcome
        limits = [each for each in (policy.limits, policy.fallback) if each is not None]

        def before(state: RecordedState) -> RecordedState:
            found = with_records(replace(look, past=state), outcome.begin, is_recorded=outcome.is_recorded)
            found = replace(found, records=found.records.thinned(look.now_ms, limits, decision.used_ms))
            # Make the size before the new start position durable before its entries can be deleted.
            return found.before_truncation(look.own, decision.cut or look.own.head())

        change_records(look.retention, place, before)
        cut = decision.cut
        if cut is None:
            return outcome
        truncations = self._truncate(place, cut, lambda: self._still(look, decision))
        if truncations is None:
            return None
        change_records(look.retention, place, lambda state: state.truncated(cut, lineage, decision.cut_time_ms))
        return replace(outcome, truncations=truncations)

    def _still(self, look: Look, decision: Decision) -> bool:
        """Whether the decision still holds; stores it if so, so that a loss for a subscriber is recorded, even if this
        run is interrupted."""
        if look.retention.registry(look.place) != look.registry:
            return False
        # A concurrent cycle may have cut elsewhere: each keeps min, but together they may not.
        if look.place.is_topic and not self._heads_are(look):
            return False
        _keep(look, decision)
        return True

    def _heads_are(self, look: Look) -> bool:
        """Whether the partitions and their start positions are unchanged."""
        try:
            place = find_place(self.store, look.place.name)
            heads = at_once(lambda number: look.partitions.state(number).head, look.place.partitions)
        except NotFound:
            return False  # one was deleted: the decision is about another topic
        # For a partition without objects, a reload returns the view from before.
        before = [look.own.partitions[number].head for number in look.place.partitions]
        return place.partitions == look.place.partitions and heads == before

    def _truncate(self, place: Place, cut: Cut, still: Callable[[], bool]) -> Mapping[str, Truncation] | None:
        """Perform the truncation; ``None``: the decision no longer holds, nothing was truncated."""
        heads = {
            partition.stream: position
            for number, partition in place.partitions.items()
            if isinstance(position := cut.offsets.get(partition_segment(number)), Position)
        }
        if place.is_topic:
            return (
                truncate_topic(
                    *(self.store, place.name, heads),
                    clock=self.clock,
                    by=self._by,
                    source_of=self._source_of,
                    still=still,
                )
                or None
            )
        if not still():
            return None
        return {stream: self._truncate_plain(place, position) for stream, position in heads.items()}

    def _truncate_plain(self, place: Place, position: Position) -> Truncation:
        log = ManifestLog(
            self.store,
            place.name,
            clock=self.clock,
            entropy=self._entropy,
            settings=self._settings_of(place.name).manifest,
            # A recreated stream of that name is another one.
            incarnation=place.incarnation,
        )
        try:
            return truncate_stream(log, position, clock=self.clock, source=self._source_of(place.name))
        except OffloaderError as error:
            entry = read_entry(self.store, place.name)
            if entry is not None and entry.incarnation == place.incarnation:
                raise
            raise NotFound(f"stream {place.name} was deleted meanwhile") from error


def _keep(look: Look, decision: Decision) -> None:
    """Store a decision, unless it repeats the newest one.

    Repeats are: no truncation by the same rule, or a truncation still blocked, as by a hold. Stored each cycle, they
    would displace the records of losses.
    """
    newest, now = read_decisions(look.retention, look.place)[:1], decision.as_json()
    if newest and all(newest[0].get(name) == now[name] for name in _SAME):
        return
    remember_decision(look.retention, look.place, decision)


_log = logging.getLogger("offloader.retention")

#: Jitter of a cycle's time, as a fraction of the period.
JITTER = 0.1
#: Retry delay of a failed cycle, as a fraction of the period, but at least ``RETRY_S_MIN``.
RETRY = 0.1
RETRY_S_MIN = 10.0
#: Longest time between two listings of the streams.
DISCOVERY_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class StreamCycle:
    """The newest cycle of a stream: its outcome or error."""

    outcome: CycleOutcome | None
    error: OffloaderError | None
    at_ms: int


def retained_streams(store: ObjectStore) -> list[str]:
    """Streams under retention: streams, and partitioned topics by the topic's name; without brokers' internal ones."""
    streams = list_streams(store)
    plain = set(streams)
    found = set()
    for stream in plain:
        split = partition_of(stream)
        # A topic that is also a stream has no partitions of ours: those are separate streams with similar names.
        name = stream if split is None or split[0] in plain else split[0]
        if not is_internal(name):
            found.add(name)
    return sorted(found)


class RetentionService:
    """Runs cycles until it is closed.

    Args:
        cycle: runs one.
        clock: schedules.
        period_s: between two cycles of a stream.
        recorder: takes the measurements of the retention specification, section 5.
        streams: lists the streams; default: those of the cycle's store.
        hot_streams: streams of this process that aren't offloaded.
        on_cycle: called after each cycle, by stream.
    """

    def __init__(
        self,
        cycle: RetentionCycle,
        *,
        clock: Clock,
        period_s: float,
        recorder: Recorder = NO_TELEMETRY,
        streams: Callable[[], Iterable[str]] | None = None,
        hot_streams: HotStreams | None = None,
        on_cycle: Callable[[str, StreamCycle], object] = lambda _stream, _cycle: None,
    ) -> None:
        self._cycle = cycle
        self._clock = clock
        self._period_s = period_s
        self._recorder = recorder
        self._streams = streams or (lambda: retained_streams(cycle.store))
        self._hot_streams = hot_streams
        self._on_cycle = on_cycle
        # Guards the fields below; not held during requests.
        self._lock = threading.Lock()
        self._due: list[tuple[float, str]] = []
        self._known: set[str] = set()
        self._latest: dict[str, StreamCycle] = {}
        self._discovery_due_s = 0.0
        self._turns = 0
        self._running = threading.Lock()
        self._started = False
        self._closed = False
        self._unwatch = recorder.watch(self._readings)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Start running due cycles; idempotent.

        Args:
            call_after: runs a function after so many seconds, on another thread.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True

        def turn() -> None:
            wait_s = 1.0
            try:
                wait_s = self.run_due()
            except Exception:
                # An error of one stream must not stop retention.
                _log.exception("a round of retention failed; it is tried again")
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
            while not self._closed:
                stream = self._next_due()
                if stream is None:
                    break
                self._run(stream)
            with self._lock:
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
            streams = set(self._streams())
        except OffloaderError as error:
            _log.warning("retention can't list the streams: %s", error)
            self._discovery_due_s = now_s + RETRY_S_MIN
            return
        self._discovery_due_s = now_s + min(self._period_s, DISCOVERY_S_MAX)
        with self._lock:
            if not self._known <= streams:
                # Drop schedules of missing streams too: a recreated stream has one, not two.
                self._due = [each for each in self._due if each[1] in streams]
                heapq.heapify(self._due)
            for stream in streams - self._known:
                heapq.heappush(self._due, (now_s + self._phase(stream) * self._period_s, stream))
            for stream in self._known - streams:
                self._latest.pop(stream, None)
            self._known = streams

    def _next_due(self) -> str | None:
        with self._lock:
            while self._due and self._due[0][0] <= self._clock.monotonic_s():
                _, stream = heapq.heappop(self._due)
                if stream in self._known:
                    return stream
            return None

    def _run(self, stream: str) -> None:
        with working_at(Priority.DELETION):
            found = self._cycle_of(stream)
        self._tell(stream, found)
        self._turns += 1
        jitter = (self._phase(f"{stream} {self._turns}") * 2 - 1) * JITTER
        wait_s = self._period_s * (1 + jitter)
        if found.error is not None:
            wait_s = min(max(self._period_s * RETRY, RETRY_S_MIN), wait_s)
        with self._lock:
            before = self._latest.get(stream)
        self._count_reads(before, found, stream)
        with self._lock:
            if isinstance(found.error, NotFound):
                # Deleted meanwhile; if recreated, the next listing finds it.
                self._known.discard(stream)
                self._latest.pop(stream, None)
                return
            self._latest[stream] = found
            heapq.heappush(self._due, (self._clock.monotonic_s() + wait_s, stream))

    def _cycle_of(self, stream: str) -> StreamCycle:
        try:
            return StreamCycle(self._cycle.run(stream), None, self._clock.now_ms())
        except OffloaderError as error:
            return StreamCycle(None, error, self._clock.now_ms())

    def _phase(self, text: str) -> float:
        """A number in [0, 1), constant for a text."""
        return crc32(text.encode()) / 2**32

    # --- reporting -----------------------------------------------------------------------------------------------

    def _tell(self, stream: str, found: StreamCycle) -> None:
        add = self._recorder.add
        outcome, error = found.outcome, found.error
        add("retention_cycles_total", stream=stream, label="failed" if error else "done")
        if error is not None:
            add("retention_refusals_total", stream=stream, label=type(error).__name__)
            level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
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
        """Count the subscribers' progress since the previous cycle."""
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
            is_queue = outcome.policy is not None and outcome.policy.kind is PolicyKind.CONSUMPTION
            yield Reading("streams_without_subscribers", float(is_queue and not outcome.subscribers), stream)
            for lag in outcome.lags:
                yield Reading("subscriber_lag_bytes", lag.unread_bytes or 0, stream, lag.name)
                yield Reading("subscriber_lag_entries", lag.unread_entries or 0, stream, lag.name)
