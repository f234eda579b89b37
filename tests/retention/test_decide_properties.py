"""A decision keeps what it must in random streams with random policies and subscribers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from offloader.retention.cuts import FUTURE, Order, Record, StreamCut
from offloader.retention.decide import Situation, Subscription, decide, window
from offloader.retention.lineage import LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import Decision, RetentionSet, Rule
from tests.retention.histories import cuts, limits, lineages, policies, situations
from tests.retention.independent_cycle import IndependentCycle
from tests.retention.lineages import full


@pytest.mark.slow
@settings(max_examples=450, deadline=None)
@given(situations(), st.integers(0, 2**16))
def test_a_decision_keeps_what_it_has_to(situation: Situation, seed: int) -> None:
    """All properties of one decision; drawing a situation costs more than looking at it from every side."""
    decision = decide(situation)
    event(decision.rule.name)
    matches_the_specification(situation, decision)
    does_not_depend_on_the_order_of_subscribers(situation, decision, seed)
    if decision.cut is None:
        assert decision.overridden == ()
        assert decision.cut_time_ms is decision.removed_bytes is None
        return
    keeps_min(situation, decision)
    keep_keeps(situation, decision)
    drops_unread_only_for_max(situation, decision)
    names_who_loses_what(situation, decision)
    converges_when_it_is_repeated(situation)
    is_a_cut_made_of_given_ones(situation, decision, decision.cut)


def matches_the_specification(situation: Situation, decision: Decision) -> None:
    cycle = IndependentCycle(situation, {one.segment: one.predecessors for one in situation.lineage.segments})
    assert cycle.new_head() == (None if decision.cut is None else cycle.vector(decision.cut))


def applied(decision: Decision) -> list[Limits]:
    return [each for each in (decision.limits, decision.second) if each is not None]


def aged(situation: Situation, age_ms: int) -> list[StreamCut]:
    """The latest record and the latest boundary that show an age, and the start position."""
    chains: tuple[Sequence[Record], ...] = (situation.records.records, situation.boundaries)
    latest = [[one.cut for one in chain if situation.now_ms - one.time_ms >= age_ms][-1:] for chain in chains]
    return [*(cut for found in latest for cut in found), situation.head]


def keeps_min(situation: Situation, decision: Decision) -> None:
    """By size, as much as min stays; by time, nothing goes that isn't known to be as old as min."""
    newest, lineage = situation.records.newest, situation.lineage
    if decision.cut is None:
        return
    for each in applied(decision):
        assert newest is not None
        if each.unit is Unit.SIZE and (each.min or decision.second is None):
            assert lineage.bytes_till(newest.cut) - lineage.bytes_till(decision.cut) >= each.min
        elif each.unit is Unit.TIME and each.min:
            assert lineage.reaches(lineage.join(aged(situation, each.min)), decision.cut)


def keep_keeps(situation: Situation, decision: Decision) -> None:
    """Under keep nothing goes that is within every limit, whoever read it."""
    newest, lineage = situation.records.newest, situation.lineage
    if situation.policy.kind is not PolicyKind.KEEP or decision.cut is None:
        return
    assert newest is not None
    within = []
    for each in (one for one in applied(decision) if one.max is not None):
        if each.unit is Unit.TIME:
            within.append(lineage.reaches(lineage.join(aged(situation, each.max or 0)), decision.cut))
        else:
            within.append(lineage.bytes_till(newest.cut) - lineage.bytes_till(decision.cut) >= (each.max or 0))
    assert any(within) or len(lineage.segments) > 1


def drops_unread_only_for_max(situation: Situation, decision: Decision) -> None:
    lineage, newest = situation.lineage, situation.records.newest
    if decision.cut is None or decision.bound is None or lineage.reaches(decision.bound, decision.cut):
        return
    assert newest is not None
    assert decision.limits is not None
    assert any(is_forced(situation, decision, each) for each in applied(decision) if each.max is not None)
    counted = {lag.name for lag in decision.lags if lag.is_counted}
    assert counted & {one.name for one in decision.overridden}


def is_forced(situation: Situation, decision: Decision, limits: Limits) -> bool:
    lineage, newest = situation.lineage, situation.records.newest
    assert newest is not None
    assert limits.max is not None
    assert decision.bound is not None
    if situation.policy.kind is PolicyKind.KEEP:
        return True
    if limits.unit is Unit.SIZE:
        return lineage.bytes_till(newest.cut) - lineage.bytes_till(decision.bound) > limits.max
    return not all(lineage.reaches(decision.bound, each) for each in aged(situation, limits.max + 1)[:-1])


def names_who_loses_what(situation: Situation, decision: Decision) -> None:
    assert decision.cut is not None
    lineage, lost = situation.lineage, {one.name: one.lost_bytes for one in decision.overridden}
    for one in situation.subscriptions:
        read = lineage.join([one.cut or one.start or situation.head, situation.head])
        if lineage.reaches(read, decision.cut):
            assert one.name not in lost
        else:
            both = lineage.meet([read, decision.cut])
            assert lost[one.name] == lineage.bytes_till(decision.cut) - lineage.bytes_till(both)
    assert decision.removed_bytes == lineage.bytes_till(decision.cut) - lineage.bytes_till(situation.head)


def does_not_depend_on_the_order_of_subscribers(situation: Situation, decision: Decision, seed: int) -> None:
    shuffled = list(situation.subscriptions)
    random.Random(seed).shuffle(shuffled)
    other = decide(replace(situation, subscriptions=tuple(shuffled)))
    assert (decision.rule, decision.bound_kind) == (other.rule, other.bound_kind)
    for mine, theirs in ((decision.cut, other.cut), (decision.bound, other.bound)):
        assert (mine is theirs is None) or (
            mine is not None and theirs is not None and situation.lineage.equal(mine, theirs)
        )
    assert {lag.name: (lag.is_counted, lag.unread_bytes) for lag in decision.lags} == {
        lag.name: (lag.is_counted, lag.unread_bytes) for lag in other.lags
    }
    assert {one.name: one for one in decision.overridden} == {one.name: one for one in other.overridden}


def converges_when_it_is_repeated(situation: Situation) -> None:
    """Whether the records before the new head are gone by then or not.

    A later cycle goes further in two cases only. Without subscribers, a stream above max is cut down to max first, and
    to min by the cycle after that, as Pravega's is; to both mins under limits by size and by time. And a record (or,
    under both, what all have read) that was neither before nor after the cut, in a stream with parallel segments, is
    joined with the new head, and may then be a cut that fits: each such cycle takes the head past one, so it ends.
    """
    situation = with_its_time(situation)
    decision = decide(situation)
    if decision.cut is None:
        return
    after, last = situation, decision
    for _ in range(len(situation.records.records) + len(situation.boundaries) + 2):
        assert last.cut is not None
        after = replace(situation, head=last.cut, head_time_ms=last.cut_time_ms)
        pruned = replace(after, records=after.records.truncated(after.head, situation.lineage))
        chains: tuple[Sequence[Record], ...] = (after.records.records, after.boundaries)
        others = [one.cut for chain in chains for one in chain]
        if last.second is not None and last.bound is not None:
            others.append(last.bound)
        beside = [one for one in others if is_beside(situation, one, last.cut)]
        again = decide(after)
        assert decide(pruned).cut == again.cut or beside
        if again.cut is None:
            return
        assert beside or cuts_to_max_first(last, again)
        keeps_min(after, again)
        drops_unread_only_for_max(after, again)
        last = again
    raise AssertionError(f"still cuts after {len(situation.records.records) + 2} cycles")


def cuts_to_max_first(decision: Decision, again: Decision) -> bool:
    """Whether nobody holds data back, and the limits leave the next cycle the way from max to min."""
    if decision.second is None:
        return decision.rule is Rule.MAX_WITHOUT_BOUND and again.rule is Rule.MIN_WITHOUT_BOUND
    return decision.bound is None and any(each.max is not None for each in applied(decision))


def with_its_time(situation: Situation) -> Situation:
    """A start position made by a truncation has the time of the newest record before it, as far as one is left."""
    records = situation.records.records
    if situation.head_time_ms is None or not records:
        return situation
    passed = [one.time_ms for one in records if situation.lineage.reaches(situation.head, one.cut)]
    time_ms = passed[-1] if passed else min(situation.head_time_ms, records[0].time_ms)
    return replace(situation, head_time_ms=time_ms)


def is_beside(situation: Situation, one: StreamCut, other: StreamCut) -> bool:
    lineage = situation.lineage
    return not lineage.reaches(one, other) and not lineage.reaches(other, one)


def is_a_cut_made_of_given_ones(situation: Situation, decision: Decision, cut: StreamCut) -> None:
    """Valid, after the old head, not behind the offloaded end, each offset from a cut of the same segment."""
    lineage = situation.lineage
    assert lineage.problem(cut) == ""
    assert lineage.order(situation.head, cut) is Order.BEFORE
    if situation.offloaded is not None:
        assert lineage.reaches(lineage.join([situation.head, situation.offloaded]), cut)
    some: list[StreamCut | None] = [
        situation.head,
        situation.offloaded,
        *(one.cut for one in situation.records.records),
    ]
    some += [one.cut for one in situation.boundaries]
    some += [at for one in situation.subscriptions for at in (one.cut, one.start)]
    for segment, offset in cut.offsets.items():
        assert offset in (0, FUTURE) or offset in [one.offsets.get(segment) for one in some if one]
    assert all(lineage.reaches(one.cut, situation.head) for one in decision.candidates)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_candidates_are_found_by_halving_as_by_looking_at_all(data: st.DataObject) -> None:
    kept = sorted(data.draw(st.lists(st.integers(-5, 60), max_size=12)), reverse=True)
    between = data.draw(limits(Unit.SIZE))
    enough = [amount for amount in kept if amount >= between.min]
    fitting = [amount for amount in enough if between.max is None or amount <= between.max]
    least = max(row for row, amount in enumerate(kept) if amount == enough[-1]) if enough else None
    most = kept.index(fitting[0]) if fitting else least
    assert (least, most) == window(len(kept), kept.__getitem__, between)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_stream_over_many_cycles(data: st.DataObject) -> None:
    """Its head never moves back, each segment is deleted once and when it became read, records stay in their order."""
    lineage = data.draw(lineages())
    policy: Policy = data.draw(policies())
    head, tail, head_time_ms = lineage.first_cut, lineage.first_cut, None
    records, now_ms = RetentionSet(), 0
    read: dict[str, StreamCut | None] = {"a": None, "b": None}
    deleted: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(1, 8))):
        now_ms += data.draw(st.integers(1, 20))
        tail = lineage.join([tail, data.draw(cuts(lineage))])
        for name, before in read.items():
            if data.draw(st.booleans()):
                at = lineage.meet([tail, data.draw(cuts(lineage))])
                read[name] = at if before is None else lineage.join([before, at])
        if records.is_due(now_ms, 5):
            records = records.add(Record(now_ms, tail, lineage.bytes_till(tail)))
        decision = decide(
            Situation(
                policy=policy, lineage=lineage, measure=LineageMeasure(lineage), records=records, head=head,
                now_ms=now_ms, created_ms=0, head_time_ms=head_time_ms,
                subscriptions=tuple(Subscription(name=name, cut=at, active_ms=now_ms) for name, at in read.items()),
            )
        )  # fmt: skip
        if decision.cut is not None:
            deleted.update(str(segment) for segment in lineage.deleted_between(head, decision.cut))
            assert lineage.reaches(decision.cut, head)
            head, head_time_ms = decision.cut, decision.cut_time_ms
            records = records.truncated(head, lineage)
            assert not [one for one in records.records if lineage.reaches(head, one.cut)]
        records = records.thinned(now_ms, policy.all_limits, decision.used_ms)
        times = [one.time_ms for one in records.records]
        assert times == sorted(set(times))
    assert deleted == Counter(str(segment) for segment in full(lineage.consumed(head)))
