"""Decide whether and where to truncate a stream, and why. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from offloader.errors import InvalidCall
from offloader.retention.cuts import Cut, Order
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

__all__ = ["Situation", "Subscription", "decide", "subscriptions_of", "window"]


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
    cut: Cut | None = None
    start: Cut | None = None
    is_active: bool = True
    active_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Complete input of a decision about a stream.

    Attributes:
        policy: the stream's policy.
        lineage: the stream's segments.
        measure: sizes before cuts.
        records: cuts recorded at the tail, this cycle's included.
        head: the start position.
        now_ms: the time, ms since 1970 UTC.
        created_ms: when the stream was created, ``None``: unknown.
        head_time_ms: ``Decision.cut_time_ms`` of the truncation that made the head; ``None``: there was none.
        subscriptions: all registered subscribers, in any order.
        tail: where the stream ends now, for lags; ``None``: at the newest record.
        offloaded: the offloaded end: entries after it aren't truncated; ``None``: no such bound.
    """

    policy: Policy
    lineage: Lineage
    measure: Measure
    records: RetentionSet
    head: Cut
    now_ms: int
    created_ms: int | None = None
    head_time_ms: int | None = None
    subscriptions: tuple[Subscription, ...] = ()
    tail: Cut | None = None
    offloaded: Cut | None = None


def subscriptions_of(
    registry: Registry,
    policy: Policy,
    *,
    now_ms: int,
    tail: Cut | None,
    rules: CutRules,
    canonical: Callable[[Cut], Cut] = lambda cut: cut,
) -> tuple[Subscription, ...]:
    """The registry's subscribers as input of a decision.

    Args:
        registry: of the stream.
        policy: its ``subscriber_timeout_ms`` decides which are silent.
        now_ms: the time.
        tail: where the stream ends: a subscriber that has read everything isn't silent; ``None``: unknown.
        rules: to compare cuts by.
        canonical: normal form of a cut, for streams where a place has several positions.
    """
    timeout_ms = policy.subscriber_timeout_ms
    activities = registry.active(now_ms=now_ms, timeout_ms=timeout_ms, tail=tail, rules=rules)
    found = []
    for name in registry.names():
        each, activity = registry.subscribers[name], activities[name]
        if activity is Activity.UNPUBLISHED:
            # Its registration was its last sign of life
            is_active = timeout_ms is None or now_ms - each.active_ms <= timeout_ms
        else:
            is_active = activity is Activity.ACTIVE
        cut, start = (None if one is None else canonical(one) for one in (each.cut, each.start))
        found.append(Subscription(name=name, cut=cut, start=start, is_active=is_active, active_ms=each.active_ms))
    return tuple(found)


def decide(situation: Situation) -> Decision:
    """Decide for one stream and cycle.

    Raises:
        InvalidCall: limits by size, and the size of the stream can't be measured; a cut names unknown stream segments.
    """
    return _Cycle(situation).decision()


def window(count: int, kept: Callable[[int], int], limits: Limits) -> tuple[int | None, int | None]:
    """Candidates among the recorded cuts.

    Args:
        count: number of cuts, oldest first.
        kept: amount kept when truncated at one of them; doesn't increase from one to the next. Called for about 2
            log2(count) of them.
        limits: min and max.

    Returns:
        The one with the smallest amount kept that is at least min (the youngest such), and the one with the largest
            within min..max (the oldest such), else again the first; ``None`` where no cut keeps min.
    """
    rows = range(count)
    least = bisect_right(rows, -limits.min, key=lambda row: -kept(row)) - 1
    if least < 0:
        return None, None
    most = 0 if limits.max is None else bisect_left(rows, -limits.max, key=lambda row: -kept(row))
    return least, min(least, most)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A rule's result, before the comparison with the start position and the offloaded end; ``None``: no truncation."""

    rule: Rule
    cut: Cut | None = None
    candidates: tuple[Candidate, ...] = ()


class _Cycle:
    """A decision in progress: its input and intermediate results."""

    def __init__(self, situation: Situation) -> None:
        self.given = situation
        self.lineage = situation.lineage
        self.head = situation.head

    # --- positions -------------------------------------------------------------------------------------------------

    @cached_property
    def newest_bytes(self) -> int | None:
        newest = self.given.records.newest
        return None if newest is None else self.given.measure.bytes_before(newest.cut)

    def keeps(self, cut: Cut) -> int | None:
        """Bytes from ``cut`` to the newest recorded cut."""
        before = self.given.measure.bytes_before(cut)
        return None if self.newest_bytes is None or before is None else self.newest_bytes - before

    def keeps_exactly(self, cut: Cut) -> int:
        kept = self.keeps(cut)
        if kept is None:
            raise InvalidCall(
                f"can't tell how much a truncation at {cut} keeps: the size of what lies before it is unknown",
                hint="limit the stream by time",
            )
        return kept

    def not_before_head(self, cut: Cut) -> Cut:
        return self.lineage.join((cut, self.head))

    def recorded(self, row: int) -> Cut:
        """A recorded cut, not before the start position."""
        return self.not_before_head(self.given.records.records[row].cut)

    def age_ms(self, row: int) -> int:
        return self.given.now_ms - self.given.records.records[row].time_ms

    def candidate(self, role: Role, cut: Cut, row: int | None = None) -> Candidate:
        time_ms = None if row is None else self.given.records.records[row].time_ms
        return Candidate(role, cut, self.keeps(cut), time_ms)

    # --- subscribers -----------------------------------------------------------------------------------------------

    def position(self, subscription: Subscription) -> Cut | None:
        """Where a subscriber begins to hold data back, if it counts and isn't silent."""
        if subscription.cut is None and self.given.policy.protect_unpublished:
            return subscription.start or self.head
        return subscription.cut

    @cached_property
    def bound(self) -> tuple[BoundKind, tuple[str, ...], Cut | None]:
        """Kind of the bound, the cuts it is the lower bound of, and the bound itself."""
        published = {one.name: cut for one in self.given.subscriptions if (cut := self.position(one)) is not None}
        active = {one.name for one in self.given.subscriptions if one.is_active}
        counted = tuple(name for name in published if name in active)
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
        heard_ms = [one.active_ms for one in self.given.subscriptions]
        if not heard_ms and self.given.created_ms is not None:
            heard_ms = [self.given.created_ms]
        return self.given.now_ms - max(heard_ms, default=self.given.now_ms)

    # --- the rules -----------------------------------------------------------------------------------------------

    def decision(self) -> Decision:
        given = self.given
        kind, counted, bound = self.bound
        limits, is_fallback = given.policy.limits, False
        if kind is BoundKind.GIVEN_UP and given.policy.fallback is not None:
            limits, is_fallback = given.policy.fallback, True
        verdict = self.verdict(kind, bound, limits)
        cut, is_held = self.within_offloaded(verdict.cut)
        candidates = verdict.candidates
        if bound is not None:
            candidates = (*candidates, self.candidate(Role.BOUND, bound))
        if cut is not None:
            candidates = (*candidates, self.candidate(Role.CHOSEN, cut))
        newest = given.records.newest
        younger = None if cut is None else given.records.at_or_before(cut, self.lineage)
        bytes_gone, entries_gone = (None, None) if cut is None else self.amount(self.head, cut)
        return Decision(
            at_ms=given.now_ms,
            cut=cut,
            rule=verdict.rule,
            limits=limits,
            is_fallback=is_fallback,
            is_held=is_held,
            head=self.head,
            newest=None if newest is None else newest.cut,
            bound=bound,
            bound_kind=kind,
            candidates=candidates,
            removed_bytes=bytes_gone,
            removed_entries=entries_gone,
            cut_time_ms=None if cut is None else given.head_time_ms if younger is None else younger.time_ms,
            lags=tuple(self.lag(one, one.name in counted) for one in given.subscriptions),
            overridden=() if cut is None else tuple(self.overridden(cut, counted)),
        )

    def verdict(self, kind: BoundKind, bound: Cut | None, limits: Limits | None) -> _Verdict:
        if kind is BoundKind.SILENT:
            return _Verdict(Rule.ALL_SILENT)
        if limits is None:
            return _Verdict(Rule.NOBODY_PUBLISHED) if bound is None else _Verdict(Rule.ALL_READ, bound)
        if self.given.records.newest is None:
            return _Verdict(Rule.NOTHING_RECORDED)
        if bound is None:
            return self.without_bound(limits)
        return self.size_bound(limits, bound) if limits.unit is Unit.SIZE else self.time_bound(limits, bound)

    def within_offloaded(self, cut: Cut | None) -> tuple[Cut | None, bool]:
        """The cut, limited to the offloaded end, and whether that limited it; ``None`` if nothing is left of it."""
        if cut is None or self.given.offloaded is None:
            held = cut
        else:
            held = self.not_before_head(self.lineage.meet((cut, self.given.offloaded)))
        is_held = cut is not None and held is not None and not self.lineage.equal(cut, held)
        return (None if held is None or self.lineage.equal(held, self.head) else held), is_held

    def rows(self, limits: Limits) -> tuple[int | None, int | None]:
        """Candidates m and M of the specification, as rows of the retention set."""
        count = len(self.given.records.records)
        if limits.unit is Unit.TIME:
            return window(count, self.age_ms, limits)
        return window(count, lambda row: self.keeps_exactly(self.recorded(row)), limits)

    def without_bound(self, limits: Limits) -> _Verdict:
        size = self.stream_age_ms if limits.unit is Unit.TIME else self.keeps_exactly(self.head)
        if size < limits.min:
            return _Verdict(Rule.BELOW_MIN)
        least, most = self.rows(limits)
        if least is None or most is None:
            return _Verdict(Rule.NO_CUT_KEEPS_MIN)
        low, high = self.recorded(least), self.recorded(most)
        candidates = (self.candidate(Role.MIN, low, least), self.candidate(Role.MAX, high, most))
        if limits.max is not None and size > limits.max:
            return _Verdict(Rule.MAX_WITHOUT_BOUND, high, candidates)
        return _Verdict(Rule.MIN_WITHOUT_BOUND, low, candidates)

    @property
    def stream_age_ms(self) -> int:
        """Minimum age of the stream's oldest data."""
        since_ms = self.given.head_time_ms if self.given.head_time_ms is not None else self.given.created_ms
        return self.age_ms(0) if since_ms is None else self.given.now_ms - since_ms

    def size_bound(self, limits: Limits, bound: Cut) -> _Verdict:
        kept = self.keeps_exactly(bound)
        if limits.min <= kept and (limits.max is None or kept < limits.max):
            return _Verdict(Rule.BOUND, bound)
        least, most = self.rows(limits)
        if least is None or most is None:
            return _Verdict(Rule.NO_CUT_KEEPS_MIN) if kept < limits.min else _Verdict(Rule.BOUND_ABOVE_MAX, bound)
        low, high = self.recorded(least), self.recorded(most)
        candidates = (self.candidate(Role.MIN, low, least), self.candidate(Role.MAX, high, most))
        join, meet = self.lineage.join, self.lineage.meet
        if kept < limits.min:
            cut, rule = meet((bound, low)), Rule.BOUND_LOWERED_TO_MIN
            if limits.max is not None and self.keeps_exactly(cut) > limits.max:
                cut, rule = join((cut, high)), Rule.BOUND_LOWERED_THEN_RAISED
        elif self.keeps_exactly(high) >= kept:
            cut, rule = bound, Rule.BOUND_ABOVE_MAX
        else:
            cut, rule = join((bound, high)), Rule.BOUND_RAISED_TO_MAX
            if self.keeps_exactly(cut) < limits.min:
                cut, rule = join((meet((bound, low)), high)), Rule.BOUND_RAISED_KEEPING_MIN
        return _Verdict(rule, cut, candidates)

    def time_bound(self, limits: Limits, bound: Cut) -> _Verdict:
        least, most = self.rows(limits)
        if least is None or most is None:
            return _Verdict(Rule.NO_CUT_KEEPS_MIN)
        low, high = self.recorded(least), self.recorded(most)
        candidates = [self.candidate(Role.MIN, low, least), self.candidate(Role.MAX, high, most)]
        base = self.lineage.meet((bound, low))
        verdict = _Verdict(Rule.TIME_BOUND, base)
        # Records at least as old as max
        older = 0 if limits.max is None else len(self.given.records.up_to_time(self.given.now_ms - limits.max))
        if older:
            old = self.recorded(older - 1)
            candidates.append(self.candidate(Role.OLD, old, older - 1))
            lies = self.lineage.order(bound, old)
            if lies is Order.BEFORE:
                verdict = _Verdict(Rule.TIME_RAISED_TO_MAX, self.lineage.join((base, high)))
            elif lies is Order.OVERLAPS:
                verdict = _Verdict(Rule.TIME_RAISED_TO_OLD, self.lineage.join((base, old)))
        return replace(verdict, candidates=tuple(candidates))

    # --- effect on the subscribers ---------------------------------------------------------------------------------

    def amount(self, start: Cut, end: Cut) -> tuple[int | None, int | None]:
        """Bytes and entries from ``start`` to ``end``."""
        measure = self.given.measure
        before, after = measure.bytes_before(start), measure.bytes_before(end)
        first, last = measure.entries_before(start), measure.entries_before(end)
        return (
            None if before is None or after is None else after - before,
            None if first is None or last is None else last - first,
        )

    def reads_from(self, subscription: Subscription) -> Cut:
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

    def overridden(self, cut: Cut, counted: tuple[str, ...]) -> list[Overridden]:
        found = []
        for one in self.given.subscriptions:
            unread_from = self.reads_from(one)
            if not self.lineage.reaches(unread_from, cut):
                reason = OverrideReason.TIMED_OUT
                if one.name in counted:
                    reason = OverrideReason.ABOVE_MAX
                elif self.position(one) is None:
                    reason = OverrideReason.NEVER_PUBLISHED
                lost = self.amount(self.lineage.meet((unread_from, cut)), cut)
                found.append(Overridden(one.name, reason, *lost))
        return found
