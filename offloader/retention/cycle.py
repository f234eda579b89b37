"""One cycle of retention over one stream: look, decide, truncate.

Owns the order: what is remembered first, then the head, and that the run does what the plan said. Must never truncate
by a registry that changed since the decision, nor by a clock that can't be trusted.

Rules: the retention specification, sections 2 and 4. The decision itself is ``offloader.retention.decide``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import NotFound, OffloaderError, StoreUnavailable
from offloader.manifest.catalog import read_entry
from offloader.manifest.leases import user_at_host
from offloader.manifest.log import ManifestLog
from offloader.manifest.store_time import DeletionClock
from offloader.retention.at_once import at_once
from offloader.retention.cuts import Cut
from offloader.retention.decide import decide
from offloader.retention.decision import Decision, Lag
from offloader.retention.documents import DocumentStore
from offloader.retention.look import Look, offloaded_end, with_records
from offloader.retention.own_cuts import OwnCuts
from offloader.retention.partitions import LoadedPartitions, SourceOf
from offloader.retention.place import Place, find_place
from offloader.retention.policies import policy_of
from offloader.retention.policy import Policy, PolicyKind
from offloader.retention.recorded import Record
from offloader.retention.recorded_state import (
    RecordedCuts,
    RecordedState,
    change_records,
    read_decisions,
    read_records,
    remember_decision,
)
from offloader.retention.rows import partition_segment
from offloader.retention.situation import Situation, subscriptions_of
from offloader.retention.stream_retention import StreamRetention
from offloader.retention.topic_truncation import resume_topic_truncation, truncate_topic
from offloader.retention.truncation import Truncation, truncate_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore

__all__ = ["CycleOutcome", "RetentionCycle", "no_source"]

#: Times a decision is made again because subscribers changed before it was carried out.
DECISIONS_MAX = 5
_MS_PER_MINUTE = 60_000
#: What two decisions have in common of which the second isn't kept.
_SAME = ("head", "cut", "rule", "is_held", "bound_kind", "limits", "overridden")


#: What lags are counted by where no policy rules; it decides nothing.
_LOOKING = Policy(kind=PolicyKind.CONSUMPTION)


def no_source(stream: str) -> None:
    """The hot tier of a stream, for who hasn't got it: the stream then ends at its committed end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOutcome:
    """What a cycle saw, decided and did.

    Attributes:
        stream: the stream or partitioned topic.
        policy: what rules; ``None``: nothing goes by itself.
        decision: what was decided; ``None``: no policy, or there is nothing in the stream.
        records: the recorded cuts that it was decided by, this cycle's among them.
        begin, tail: where the stream begins and ends.
        lags: of all subscribers.
        sizes: bytes before ``begin``, each record's and candidate's cut, and the tail, for pictures.
        unread_bytes, unread_entries: from what all have read, or from the beginning, to the tail.
        is_recorded: whether the tail was recorded by this cycle, or in a dry run would be.
        subscribers: how many are registered.
        truncations: what was truncated, by stream; empty: nothing.
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
        """Payload bytes that the head moved over."""
        if not self.truncations or self.decision is None:
            return 0
        return self.decision.removed_bytes or 0


class RetentionCycle:
    """Runs cycles. Thread-safe; holds nothing of a stream. Keep one for a process: it notices a clock that jumps.

    Args:
        store: where the streams are; open for writing, for everything but plans.
        clock: of this machine; what deletes takes the store's if that is earlier.
        settings_of: the settings of a stream or topic.
        source_of: the hot tier of a stream.
        by: who runs the cycles, for people.
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
        """One cycle: records the tail if that is due, decides, and truncates.

        Safe to interrupt and to repeat, and for several to run at once: the head never moves back.

        Raises:
            NotFound, InvalidCall, Corrupt, Unsupported: as ``plan``; nothing was deleted.
            ClockSkew: the clocks can't be trusted; nothing was deleted.
            DeletionStopped, EditRefused: the store or the stream is on hold.
            StoreUnavailable, OutcomeUnknown: it ended early; the next cycle goes on.
        """
        settings = self._settings_of(stream)
        policy = policy_of(stream, settings.retention)
        if find_place(self.store, stream).is_topic:
            # Also what was decided by another clock waits until this one can be trusted.
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
        """One for the life of this object, so that a clock that jumps is noticed."""
        with self._lock:
            if self._deletion_clock is None:
                skew_ms_max = self._settings_of(stream).manifest.clock_skew_seconds_max * 1000
                self._deletion_clock = DeletionClock(self.store, self.clock, skew_ms_max=skew_ms_max)
            return self._deletion_clock

    # --- looking -------------------------------------------------------------------------------------------------

    def _look(self, stream: str, *, create: bool) -> Look:
        retention = StreamRetention(self._documents, stream, self._source_of, self._entropy)
        place = retention.place(create=create)
        past = read_records(retention, place)
        newest = past.records.newest
        newest_ms = 0 if newest is None else newest.time_ms
        if create:
            # Said before anything is loaded.
            self._times(stream).now_ms(newest_ms=newest_ms)
        partitions = LoadedPartitions(self.store, place, self._source_of, past.known)
        partitions.load(place.partitions)
        # After that: of what is recorded as the tail nothing is younger than its record says.
        now_ms = self._times(stream).now_ms(newest_ms=newest_ms) if create else self.clock.now_ms()
        return Look(
            retention=retention,
            place=place,
            past=past,
            own=OwnCuts(partitions),
            partitions=partitions,
            # Last, so that who publishes meanwhile counts.
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
        """When the stream was created, where silence counts from then; else nobody has to ask."""
        if policy.fallback_after_ms is None or look.registry.subscribers:
            return None
        entries = [read_entry(self.store, partition.stream) for partition in look.place.partitions.values()]
        return min((entry.created_ms for entry in entries if entry is not None), default=None)

    def _is_due(self, stream: str, look: Look, tail: Cut, begin: Cut) -> bool:
        """Whether the tail is to be recorded."""
        records = look.past.records
        period_ms = int(self._settings_of(stream).retention.record_minutes * _MS_PER_MINUTE)
        # A tail that hasn't moved needs no second record: the older one keeps as much and is older.
        newest = records.newest
        has_moved = newest is None or not look.lineage.equal(look.own.canonical(newest.cut), tail)
        return has_moved and not look.lineage.reaches(begin, tail) and records.is_due(look.now_ms, period_ms)

    # --- acting --------------------------------------------------------------------------------------------------

    def _carried_out(self, outcome: CycleOutcome, look: Look, policy: Policy) -> CycleOutcome | None:
        """The outcome with what was done; ``None``: subscribers changed, nothing was truncated."""
        decision, place, lineage = outcome.decision, look.place, look.lineage
        if decision is None:
            return outcome
        limits = [each for each in (policy.limits, policy.fallback) if each is not None]

        def before(state: RecordedState) -> RecordedState:
            found = with_records(replace(look, past=state), outcome.begin, is_recorded=outcome.is_recorded)
            found = replace(found, records=found.records.thinned(look.now_ms, limits, decision.used_ms))
            # What lies before the new head is counted durably before it can vanish.
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
        """Whether what was decided still stands; it is kept then: who loses something finds it written down, wherever
        this ends."""
        if look.retention.registry(look.place) != look.registry:
            return False
        # Another cycle may have cut elsewhere meanwhile: each keeps min, and what both leave may not.
        if look.place.is_topic and not self._heads_are(look):
            return False
        _keep(look, decision)
        return True

    def _heads_are(self, look: Look) -> bool:
        """Whether there are the same partitions, and all still begin where they did."""
        try:
            place = find_place(self.store, look.place.name)
            heads = at_once(lambda number: look.partitions.state(number).head, look.place.partitions)
        except NotFound:
            return False  # one was deleted: it is another topic to decide about
        # Of one that is gone to its last object the view from before is all that a look at it finds.
        before = [look.own.partitions[number].head for number in look.place.partitions]
        return place.partitions == look.place.partitions and heads == before

    def _truncate(self, place: Place, cut: Cut, still: Callable[[], bool]) -> Mapping[str, Truncation] | None:
        """What was done; ``None``: it doesn't stand any more, nothing was."""
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
            # One of that name that was created again meanwhile is none of this.
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
    """Keeps a decision, unless it says what the newest one says.

    Nothing goes by the same rule; or what was to go still can't, of a stream on hold for example: said again each cycle
    it would push out who lost something before.
    """
    newest, now = read_decisions(look.retention, look.place)[:1], decision.as_json()
    if newest and all(newest[0].get(name) == now[name] for name in _SAME):
        return
    remember_decision(look.retention, look.place, decision)
