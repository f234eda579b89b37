"""Decide whether and where to truncate a stream, and why: rules R8 to R29 of docs/explanation/retention.md. Pure.

**The problem.** The position in a stream is a cut, one position in each partition, and two cuts may overlap: neither is
before the other. Ages are known only at recorded tails and at ends of segments, and are minimum ages of the data before
them. Sizes aren't known exactly inside a segment. Subscribers hold data back, limits give it up, and a decision may
cost the only copy of an unread entry. The plan, the explanation and the cycle therefore call one function with the same
values.

**Order of a decision** (``_Cycle.decision``):

1. ``bound``: the meet of the cuts of all subscribers that count (R8, R26 to R29).
2. ``verdict``: the cut and the rule of each pair of limits (R2, R3, R14 to R16, R20); ``together`` combines two (R19).
3. ``within_offloaded``: no further than the committed end (R1).
4. ``with_broker``: no listed ledger goes; a trim that is followed goes further (R21 to R24).
5. ``overridden``: the subscribers that lose unread entries, with the amounts (R13).

**Invariants.** The new head is never before the old one, after the committed end (R1), or after the beginning of a
ledger that a broker lists (R22). It keeps min of each pair of limits, measured by ``keeps_surely`` (R17), or the stream
isn't truncated. Unread entries of a subscriber that counts are deleted only for max (R13), or beyond the limits of the
policy ``keep`` (R2). Limits delete nothing before a cut is recorded (R18), and nothing is deleted while the list of a
broker that reads the cold tier is unknown (R22).

**Nothing is stored here.** A crash during a decision has no effect. Steps D1 to D9, from the decision to the deleted
object, are in ``offloader.gc.sweep``. The subscribers are read again before the truncation (R30).

**Differences from the proposals**, PDP-47 and *Pravega Stream Retention*. All other decisions about their policies are
equal (docs/explanation/pravega.md). m and M are the candidates of R12.

| rule | proposals | here |
| --- | --- | --- |
| R2, R3 | published cuts hold data back | policy ``keep``: entries beyond the limits are deleted, read or unread |
| R10, R12 | the head is a recorded cut | ends of segments are candidates too, so existing data is deleted earlier |
| R12, R16 | no cut within min and max: no truncation | M is m, the cut closest to min |
| R14 | the bound overlaps min: the first cut before it | the meet of the bound and m, which keeps less, and min |
| R14 | the bound overlaps max: the first cut behind it | the join of the bound and M, which deletes less unread data |
| R15 | unread data older than max: the cut closest to max | no further than data is known to be older than max |
| R15 | the bound overlaps min and max: not specified | unread data that is known to be older than max is deleted |
| R19 | limits by size or by time | by both: the later cut, as far as both min allow |
| R27 | without a published cut nothing is held back | with ``protect_unpublished``, from the registration on |
| R28, R29 | timeouts by consumption only | with ``size`` and ``time`` too; last cuts count if all are silent |
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from offloader.errors import InvalidCallError
from offloader.retention.broker import BrokerRuling, BrokerView
from offloader.retention.cuts import Order, Record, StreamCut
from offloader.retention.entries import TIME_UNKNOWN
from offloader.retention.lineage import Lineage, Measure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import (
    BoundKind,
    Candidate,
    Decision,
    Lag,
    Overridden,
    OverrideReason,
    RetentionSet,
    Role,
    Rule,
)
from offloader.retention.subscribers import Activity, CutRules, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscriber's facts for a decision.

    Attributes:
        name: unique in the stream.
        cut: its newest acknowledged cut, valid in the stream; ``None``: none yet.
        start: where it was registered; ``None``: at the stream's beginning.
        is_active: whether it was silent for no longer than the policy's ``subscriber_timeout_ms``.
        active_ms: its last sign of life, including registration, ms since 1970 UTC.
    """

    name: str
    cut: StreamCut | None = None
    start: StreamCut | None = None
    is_active: bool = True
    active_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Complete input of a decision about a stream.

    Attributes:
        records: cuts recorded at the tail, this cycle's included.
        boundaries: the ends of segments, each with the newest publish time before it, oldest first. They are candidates
            as records are.
        now_ms: the time, ms since 1970 UTC.
        created_ms: when the stream was created, ``None``: unknown.
        head_time_ms: ``Decision.cut_time_ms`` of the truncation that made the head; ``None``: there was none.
        subscriptions: all registered subscribers, in any order.
        tail: where the stream ends now, for lags; ``None``: at the newest record.
        offloaded: the offloaded end: entries after it aren't truncated; ``None``: no such bound.
        broker: the ledgers that brokers list, which the start position doesn't pass; ``None``: no broker reads the cold
            tier.
        has_policy: False: only the broker's trim moves the start position, if it is followed.
    """

    policy: Policy
    lineage: Lineage
    measure: Measure
    records: RetentionSet
    head: StreamCut
    now_ms: int
    created_ms: int | None = None
    head_time_ms: int | None = None
    subscriptions: tuple[Subscription, ...] = ()
    tail: StreamCut | None = None
    offloaded: StreamCut | None = None
    broker: BrokerView | None = None
    has_policy: bool = True
    boundaries: Sequence[Record] = ()


def subscriptions_of(
    registry: Registry,
    policy: Policy,
    *,
    now_ms: int,
    tail: StreamCut | None,
    rules: CutRules,
    canonical: Callable[[StreamCut], StreamCut] = lambda cut: cut,
) -> tuple[Subscription, ...]:
    """The registry's subscribers as input of a decision.

    Args:
        policy: its ``subscriber_timeout_ms`` decides which are silent.
        tail: where the stream ends: a subscriber that has read everything isn't silent; ``None``: unknown.
        canonical: normal form of a cut, for streams where a place has several positions.
    """
    timeout_ms = policy.subscriber_timeout_ms
    activities = registry.active(now_ms=now_ms, timeout_ms=timeout_ms, tail=tail, rules=rules)
    found = []
    for name, activity in activities.items():
        each, is_active = registry.subscribers[name], activity is Activity.ACTIVE
        if activity is Activity.UNPUBLISHED:
            # Its registration was its last sign of life
            is_active = timeout_ms is None or now_ms - each.active_ms <= timeout_ms
        cut, start = (None if one is None else canonical(one) for one in (each.cut, each.start))
        found.append(Subscription(name=name, cut=cut, start=start, is_active=is_active, active_ms=each.active_ms))
    return tuple(found)


def decide(situation: Situation) -> Decision:
    """Decide for one stream and cycle.

    Raises:
        InvalidCallError: limits by size, and the size of the stream can't be measured; a cut names unknown stream
            segments.
    """
    return _Cycle(situation).decision()


def window(
    count: int, kept: Callable[[int], int], limits: Limits, *, surely: Callable[[int], int] | None = None
) -> tuple[int | None, int | None]:
    """Candidates among the recorded cuts.

    Args:
        count: number of cuts, oldest first.
        kept: amount kept when truncated at one of them; doesn't increase from one to the next. Called for about 2
            log2(count) of them.
        limits: min and max.
        surely: the value compared with min, where ``kept`` may be larger; also doesn't increase.

    Returns:
        The one with the smallest amount kept that is at least min (the youngest such), and the one with the largest
            within min..max (the oldest such), else again the first; ``None`` where no cut keeps min.
    """
    rows = range(count)
    least = bisect_right(rows, -limits.min, key=lambda row: -kept(row)) - 1
    if surely is not None and least >= 0 and surely(least) < limits.min:
        least = bisect_right(rows[:least], -limits.min, key=lambda row: -surely(row)) - 1
    if least < 0:
        return None, None
    most = 0 if limits.max is None else bisect_left(rows, -limits.max, key=lambda row: -kept(row))
    return least, min(least, most)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A rule's result, before the comparison with the start position and the offloaded end; ``None``: no truncation.

    ``ruled``: as ``Decision.ruled``.
    """

    rule: Rule
    cut: StreamCut | None = None
    candidates: tuple[Candidate, ...] = ()
    ruled: Unit | None = None


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


class _Cycle:
    def __init__(self, situation: Situation) -> None:
        self.given = situation
        self.lineage = situation.lineage
        self.head = situation.head
        self.is_keep = situation.policy.kind is PolicyKind.KEEP
        #: The recorded cuts, and the segment boundaries.
        self.chains = (situation.records.records, situation.boundaries)

    # --- positions -------------------------------------------------------------------------------------------------

    @cached_property
    def newest_bytes(self) -> int | None:
        newest = self.given.records.newest
        return None if newest is None else self.given.measure.bytes_before(newest.cut)

    def keeps(self, cut: StreamCut) -> int | None:
        """Bytes from ``cut`` to the newest recorded cut, but no more than there are."""
        kept = _difference(self.newest_bytes, self.given.measure.bytes_before(cut))
        if kept is None:
            return None
        there = self.given.measure.bytes_after(cut)
        return kept if there is None else min(kept, there)

    def keeps_exactly(self, cut: StreamCut) -> int:
        if (kept := self.keeps(cut)) is None:
            raise InvalidCallError(
                f"the amount that a truncation at {cut} keeps is unknown, because the size before it is unknown",
                hint="limit the stream by time",
            )
        return kept

    def keeps_surely(self, cut: StreamCut) -> int:
        """Bytes that are kept wherever in a counted piece the cut is; min is compared with this value."""
        return self.keeps_exactly(cut) - self.given.measure.bytes_in_doubt(cut)

    def not_before_head(self, cut: StreamCut) -> StreamCut:
        return self.lineage.join((cut, self.head))

    @cached_property
    def head_record(self) -> tuple[Record, ...]:
        """The record that the start position was made of, which left the set; none before a truncation."""
        if self.given.head_time_ms is None:
            return ()
        # A boundary's time may be a producer's, whose clock was ahead.
        times = [self.given.head_time_ms, *(one.time_ms for one in self.given.records.records[:1])]
        return (Record(min(times), self.head),)

    def kept(self, record: Record, unit: Unit) -> int:
        """The amount kept if the stream is truncated at a record or boundary: its age in ms, or bytes."""
        return (
            self.given.now_ms - record.time_ms
            if unit is Unit.TIME
            else self.keeps_exactly(self.not_before_head(record.cut))
        )

    def window_of(self, chain: Sequence[Record], limits: Limits) -> tuple[int | None, int | None]:
        def surely(row: int) -> int:
            return self.keeps_surely(self.not_before_head(chain[row].cut))

        return window(
            len(chain),
            lambda row: self.kept(chain[row], limits.unit),
            limits,
            surely=surely if limits.unit is Unit.SIZE else None,
        )

    def candidate(self, role: Role, record: Record, chain: int) -> Candidate:
        cut = self.not_before_head(record.cut)
        time_ms = None if record.time_ms >= TIME_UNKNOWN else record.time_ms
        return Candidate(role, cut, self.keeps(cut), time_ms, is_boundary=chain > 0)

    # --- subscribers -----------------------------------------------------------------------------------------------

    def position(self, subscription: Subscription) -> StreamCut | None:
        """Where a subscriber begins to hold data back, if it counts and isn't silent."""
        is_protected = subscription.cut is None and self.given.policy.protect_unpublished
        return subscription.start or self.head if is_protected else subscription.cut

    @cached_property
    def bound(self) -> tuple[BoundKind, tuple[str, ...], StreamCut | None]:
        """Kind of the bound, the cuts it is the lower bound of, and the bound itself."""
        published = {one.name: cut for one in self.given.subscriptions if (cut := self.position(one)) is not None}
        counted = tuple(one.name for one in self.given.subscriptions if one.is_active and one.name in published)
        kind = BoundKind.SUBSCRIBERS
        if not counted:
            counted, kind = tuple(published), self.kind_without_active(has_published=bool(published))
        if kind not in (BoundKind.SUBSCRIBERS, BoundKind.LAST_CUTS):
            return kind, (), None
        return kind, counted, self.not_before_head(self.lineage.meet([published[name] for name in counted]))

    def kind_without_active(self, *, has_published: bool) -> BoundKind:
        policy = self.given.policy
        is_queue = policy.kind is PolicyKind.CONSUMPTION
        if not has_published and not (is_queue and policy.limits is None):
            return BoundKind.NOBODY_PUBLISHED
        if policy.fallback_after_ms is not None and self.silent_ms > policy.fallback_after_ms:
            return BoundKind.GIVEN_UP
        if not has_published:
            return BoundKind.NOBODY_PUBLISHED
        return BoundKind.SILENT if is_queue else BoundKind.LAST_CUTS

    @property
    def silent_ms(self) -> int:
        """Time since any subscriber was active."""
        if any(one.is_active for one in self.given.subscriptions):
            return 0
        heard_ms = max((one.active_ms for one in self.given.subscriptions), default=self.given.created_ms)
        return 0 if heard_ms is None else self.given.now_ms - heard_ms

    # --- the rules -----------------------------------------------------------------------------------------------

    def decision(self) -> Decision:
        given = self.given
        kind, counted, bound = self.bound
        fallback = given.policy.fallback if kind is BoundKind.GIVEN_UP else None
        limits = given.policy.all_limits if fallback is None else (fallback,)
        verdict = self.verdict(kind, bound, limits) if given.has_policy else _Verdict(Rule.NO_POLICY)
        cut, is_held = self.within_offloaded(verdict.cut)
        rule, cut, ruling = self.with_broker(verdict.rule, cut, limits)
        candidates = verdict.candidates
        candidates += () if bound is None else (Candidate(Role.BOUND, bound, self.keeps(bound)),)
        candidates += () if cut is None else (self.chosen(cut, candidates),)
        newest = given.records.newest
        bytes_gone, entries_gone = (None, None) if cut is None else self.amount(self.head, cut)
        return Decision(
            at_ms=given.now_ms,
            cut=cut,
            rule=rule,
            limits=limits[0] if limits else None,
            second=limits[1] if len(limits) > 1 else None,
            ruled=verdict.ruled if rule is verdict.rule else None,
            is_fallback=fallback is not None,
            is_held=is_held,
            head=self.head,
            newest=None if newest is None else newest.cut,
            bound=bound,
            bound_kind=kind,
            candidates=candidates,
            removed_bytes=bytes_gone,
            removed_entries=entries_gone,
            cut_time_ms=None if cut is None else self.time_at(cut),
            lags=tuple(self.lag(one, one.name in counted) for one in given.subscriptions),
            overridden=() if cut is None else tuple(self.overridden(cut, counted)),
            broker=ruling,
        )

    def verdict(self, kind: BoundKind, bound: StreamCut | None, limits: Sequence[Limits]) -> _Verdict:
        if kind is BoundKind.SILENT:
            return _Verdict(Rule.ALL_SILENT)
        if not limits:
            return _Verdict(Rule.NOBODY_PUBLISHED) if bound is None else _Verdict(Rule.ALL_READ, bound)
        if self.given.records.newest is None:
            return _Verdict(Rule.NOTHING_RECORDED)
        verdicts = [self.beyond_keep(each) if self.is_keep else self.by_limits(each, bound) for each in limits]
        return verdicts[0] if len(limits) == 1 and not self.is_keep else self.together(limits, verdicts)

    def by_limits(self, limits: Limits, bound: StreamCut | None) -> _Verdict:
        if bound is None:
            return self.without_bound(limits)
        return self.size_bound(limits, bound) if limits.unit is Unit.SIZE else self.time_bound(limits, bound)

    def beyond_keep(self, limits: Limits) -> _Verdict:
        """The latest candidate that still keeps ``max`` of one unit: nothing within it goes, read or not."""
        candidates = None if limits.max is None else self.window(Limits(limits.unit, limits.max))
        if candidates is None:
            return _Verdict(Rule.WITHIN_KEEP)
        rule = Rule.BEYOND_KEEP if limits.unit is Unit.TIME else Rule.BEYOND_KEEP_SIZE
        return _Verdict(rule, candidates[0].cut, (replace(candidates[0], role=Role.KEEP),))

    def together(self, limits: Sequence[Limits], verdicts: Sequence[_Verdict]) -> _Verdict:
        """The later cut of several limits, as far as all their min allow."""
        if not (cuts := [each.cut for each in verdicts if each.cut is not None]):
            return verdicts[0]
        wanted = cut = self.not_before_head(self.lineage.join(cuts))
        ruling = self.ruling(limits, verdicts, wanted)
        candidates = tuple(candidate for verdict in verdicts for candidate in verdict.candidates)
        kept_by_time: list[StreamCut] = []
        for each in limits:
            if not each.min or (each.unit is Unit.SIZE and self.keeps_surely(cut) >= each.min):
                continue
            if (window := self.window(Limits(each.unit, each.min))) is None:
                return _Verdict(Rule.NO_CUT_KEEPS_MIN, candidates=candidates)
            cut = self.lower(cut, window[0].cut)
            candidates = (*candidates, window[0])
            if each.unit is Unit.TIME:
                kept_by_time.append(window[0].cut)
        # What one of the limits asks for may be further on, and keep every min.
        sizes = [each.min for each in limits if each.unit is Unit.SIZE and each.min]
        for own in map(self.not_before_head, cuts):
            keeps_all = all(self.keeps_surely(own) >= least for least in sizes)
            if keeps_all and self.lineage.reaches(own, cut) and all(self.lineage.reaches(m, own) for m in kept_by_time):
                cut = own
        if self.lineage.equal(cut, wanted):
            return _Verdict(ruling.rule, wanted, candidates, ruling.ruled)
        rule = Rule.KEPT_AT_LEAST if self.is_keep else Rule.BOTH_KEEPING_MIN
        return _Verdict(rule, cut, candidates, ruling.ruled)

    def ruling(self, limits: Sequence[Limits], verdicts: Sequence[_Verdict], wanted: StreamCut) -> _Verdict:
        """The verdict that goes as far as ``wanted``, or else furthest by bytes, with its unit if there are two."""
        moving = [
            (each.unit, verdict, verdict.cut)
            for each, verdict in zip(limits, verdicts, strict=True)
            if verdict.cut is not None
        ]
        unit, verdict, _ = max(
            moving, key=lambda one: (self.lineage.reaches(one[2], wanted), -(self.keeps(one[2]) or 0))
        )
        return replace(verdict, ruled=unit if len(limits) > 1 else None)

    def within_offloaded(self, cut: StreamCut | None) -> tuple[StreamCut | None, bool]:
        """The cut, limited to the offloaded end, and whether that limited it; ``None`` if nothing is left of it."""
        if cut is None:
            return None, False
        held = cut if self.given.offloaded is None else self.lower(cut, self.given.offloaded)
        return None if self.lineage.equal(held, self.head) else held, not self.lineage.equal(cut, held)

    # --- the broker's list of ledgers --------------------------------------------------------------------------------

    def with_broker(
        self, rule: Rule, cut: StreamCut | None, limits: Sequence[Limits]
    ) -> tuple[Rule, StreamCut | None, BrokerRuling | None]:
        """Rule and cut with the broker's list: no listed ledger goes, and where its trim is followed, the rest does."""
        if (view := self.given.broker) is None:
            return rule, cut, None
        if view.bound is None:
            return rule, None, BrokerRuling(problem=view.problem, rules=cut is not None)
        kept = self.head if cut is None else self.lower(cut, view.bound)
        rules = cut is not None and not self.lineage.equal(kept, cut)
        reasons = view.doubts
        if view.followed is not None:
            allowed, held = self.followed(view.followed, limits)
            # Counted in the requested amount, also if nothing of it remains.
            reasons += held
            further = self.lineage.join((kept, allowed))
            if not self.lineage.equal(further, kept):
                kept, rule = further, Rule.FOLLOWS_BROKER
        ruling = BrokerRuling(first=view.first, rules=rules, not_followed=reasons)
        return rule, None if self.lineage.equal(kept, self.head) else kept, ruling

    def followed(self, trimmed: StreamCut, limits: Sequence[Limits]) -> tuple[StreamCut, tuple[str, ...]]:
        """How far the broker's trim may be followed, and what keeps the rest."""
        allowed = wanted = self.not_before_head(trimmed)
        reasons = []
        for reason, limit in self.holds(wanted, limits):
            allowed = self.lower(allowed, limit)
            if not self.lineage.equal(self.lower(wanted, limit), wanted):
                reasons.append(reason)
        return allowed, tuple(reasons)

    def holds(self, wanted: StreamCut, limits: Sequence[Limits]) -> Iterator[tuple[str, StreamCut]]:
        """Limits of a followed trim: a reason, and the cut."""
        if self.given.offloaded is not None:
            yield "the following entries aren't offloaded yet", self.given.offloaded
        kind = self.bound[0]
        published = {one.name: cut for one in self.given.subscriptions if (cut := self.position(one)) is not None}
        counted = published if kind is BoundKind.SILENT else {name: published[name] for name in self.bound[1]}
        for name, cut in counted.items():
            if not self.lineage.reaches(cut, wanted):
                yield f"subscriber {name} hasn't read it", cut
        for each in limits:
            # Entries protected by keep are kept although the broker trimmed them.
            least = max(each.min, each.max or 0) if self.is_keep else each.min
            if not least:
                continue
            candidates = None if self.given.records.newest is None else self.window(Limits(each.unit, least))
            yield "retention's min keeps it", self.head if candidates is None else candidates[0].cut

    def lower(self, cut: StreamCut, limit: StreamCut) -> StreamCut:
        """The earlier of both, not before the start position."""
        return self.not_before_head(self.lineage.meet((cut, limit)))

    # --- candidates ------------------------------------------------------------------------------------------------

    def window(self, limits: Limits) -> tuple[Candidate, Candidate] | None:
        """Candidates m and M (rule R12); ``None``: none keeps min. Records win over boundaries.

        A start position that a truncation made and that fits max is M, as the cut was before it left the set.
        """
        found = [
            (number, chain[least], chain[most])
            for number, chain in enumerate(self.chains)
            for least, most in [self.window_of(chain, limits)]
            if least is not None and most is not None
        ]
        if not found:
            return None
        is_boundary_later = len(found) > 1 and self.is_later(found[1][1], found[0][1], limits.unit)
        source, low, own = found[1] if is_boundary_later else found[0]
        # Of the other chain only a cut that isn't after m in any partition: else a join with it might not keep min.
        others = [(number, high) for number, _, high in found if high is own or self.is_at_or_after(low, high)]
        others = [*((0, record) for record in self.head_record), *others]
        fitting = [each for each in others if limits.max is None or self.kept(each[1], limits.unit) <= limits.max]
        number, high = fitting[0] if fitting else (source, low)
        for other, cut in fitting[1:]:
            if self.is_later(high, cut, limits.unit):
                number, high = other, cut
        return self.candidate(Role.MIN, low, source), self.candidate(Role.MAX, high, number)

    def is_at_or_after(self, one: Record, other: Record) -> bool:
        return self.lineage.reaches(self.not_before_head(one.cut), self.not_before_head(other.cut))

    def is_later(self, one: Record, other: Record, unit: Unit) -> bool:
        """Whether a truncation at ``one`` removes more, or where neither does, keeps the smaller amount."""
        return not self.is_at_or_after(other, one) and (
            self.is_at_or_after(one, other) or self.kept(one, unit) < self.kept(other, unit)
        )

    def chosen(self, cut: StreamCut, candidates: Sequence[Candidate]) -> Candidate:
        """The chosen cut, with the time of the record or boundary that it is."""
        same = [each for each in candidates if each.role is not Role.BOUND and self.lineage.equal(each.cut, cut)]
        if same:
            return replace(same[0], role=Role.CHOSEN)
        return Candidate(Role.CHOSEN, cut, self.keeps(cut))

    def time_at(self, cut: StreamCut) -> int | None:
        """The time of the newest record at or before a cut, else boundary, else of the start position."""
        for chain in self.chains:
            count = self.count_up_to(cut, chain)
            if count and chain[count - 1].time_ms < TIME_UNKNOWN:
                # A producer's clock may be ahead.
                return min(chain[count - 1].time_ms, self.given.now_ms)
        return self.given.head_time_ms

    def count_up_to(self, cut: StreamCut, chain: Sequence[Record]) -> int:
        """How many records or boundaries are at or before a cut."""
        return bisect_left(range(len(chain)), True, key=lambda row: not self.lineage.reaches(cut, chain[row].cut))

    def without_bound(self, limits: Limits) -> _Verdict:
        size = self.stream_age_ms if limits.unit is Unit.TIME else self.keeps_exactly(self.head)
        if size < limits.min:
            return _Verdict(Rule.BELOW_MIN)
        if (candidates := self.window(limits)) is None:
            return _Verdict(Rule.NO_CUT_KEEPS_MIN)
        if limits.max is not None and size > limits.max:
            return _Verdict(Rule.MAX_WITHOUT_BOUND, candidates[1].cut, candidates)
        return _Verdict(Rule.MIN_WITHOUT_BOUND, candidates[0].cut, candidates)

    @property
    def stream_age_ms(self) -> int:
        """Minimum age of the stream's oldest data."""
        records, boundaries = self.chains
        since_ms = self.given.head_time_ms if self.given.head_time_ms is not None else self.given.created_ms
        times = [records[0].time_ms if since_ms is None else since_ms]
        # Entries of the first segment may be older than all that was noted: than the policy, for example.
        row = self.count_up_to(self.head, boundaries)
        times += [boundaries[row].time_ms] if row < len(boundaries) else []
        return self.given.now_ms - min(times)

    def size_bound(self, limits: Limits, bound: StreamCut) -> _Verdict:
        kept, keeps_min = self.keeps_exactly(bound), self.keeps_surely(bound) >= limits.min
        if keeps_min and (limits.max is None or kept <= limits.max):
            return _Verdict(Rule.BOUND, bound)
        if (candidates := self.window(limits)) is None:
            return _Verdict(Rule.BOUND_ABOVE_MAX, bound) if keeps_min else _Verdict(Rule.NO_CUT_KEEPS_MIN)
        low, high = (candidate.cut for candidate in candidates)
        join, meet = self.lineage.join, self.lineage.meet
        if not keeps_min:
            # Also where that keeps more than max: less than min is unread, so no unread data has to go for max.
            cut, rule = meet((bound, low)), Rule.BOUND_LOWERED_TO_MIN
        elif self.keeps_exactly(high) >= kept:
            cut, rule = bound, Rule.BOUND_ABOVE_MAX
        else:
            cut, rule = join((bound, high)), Rule.BOUND_RAISED_TO_MAX
            if self.keeps_surely(cut) < limits.min:
                cut, rule = join((meet((bound, low)), high)), Rule.BOUND_RAISED_KEEPING_MIN
        return _Verdict(rule, cut, candidates)

    def time_bound(self, limits: Limits, bound: StreamCut) -> _Verdict:
        if (candidates := self.window(limits)) is None:
            return _Verdict(Rule.NO_CUT_KEEPS_MIN)
        low, high = (candidate.cut for candidate in candidates)
        base = self.lineage.meet((bound, low))
        # The newest that is older than max: what is as old as max may stay.
        beyond = None if limits.max is None else self.window(Limits(Unit.TIME, limits.max + 1))
        if beyond is None:
            return _Verdict(Rule.TIME_BOUND, base, candidates)
        old = beyond[0].cut
        with_old = (*candidates, replace(beyond[0], role=Role.OLD))
        match self.lineage.order(bound, old):
            case Order.BEFORE:
                return _Verdict(Rule.TIME_RAISED_TO_MAX, self.lineage.join((base, high)), with_old)
            case Order.OVERLAPS:
                return _Verdict(Rule.TIME_RAISED_TO_OLD, self.lineage.join((base, old)), with_old)
            case _:
                return _Verdict(Rule.TIME_BOUND, base, with_old)

    # --- effect on the subscribers ---------------------------------------------------------------------------------

    def amount(self, start: StreamCut, end: StreamCut) -> tuple[int | None, int | None]:
        """Bytes and entries from ``start`` to ``end``."""
        measure = self.given.measure
        return (
            _difference(measure.bytes_before(end), measure.bytes_before(start)),
            _difference(measure.entries_before(end), measure.entries_before(start)),
        )

    def reads_from(self, subscription: Subscription) -> StreamCut:
        """Where a subscriber's unread data begins."""
        cut = subscription.cut if subscription.cut is not None else subscription.start
        return self.head if cut is None else self.not_before_head(cut)

    def lag(self, subscription: Subscription, is_counted: bool) -> Lag:
        newest = self.given.records.newest
        tail = self.given.tail or (newest.cut if newest else None)
        cut = self.reads_from(subscription)
        unread_bytes, unread_entries = (
            (None, None) if tail is None else self.amount(cut, self.lineage.join((tail, cut)))
        )
        return Lag(
            name=subscription.name,
            cut=cut,
            has_published=subscription.cut is not None,
            is_active=subscription.is_active,
            is_counted=is_counted,
            unread_bytes=unread_bytes,
            unread_entries=unread_entries,
        )

    def overridden(self, cut: StreamCut, counted: tuple[str, ...]) -> Iterator[Overridden]:
        for one in self.given.subscriptions:
            unread_from = self.reads_from(one)
            if not self.lineage.reaches(unread_from, cut):
                uncounted = OverrideReason.NEVER_PUBLISHED if self.position(one) is None else OverrideReason.TIMED_OUT
                reason = OverrideReason.ABOVE_MAX if one.name in counted else uncounted
                yield Overridden(one.name, reason, *self.amount(self.lineage.meet((unread_from, cut)), cut))
