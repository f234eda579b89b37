"""Each retention rule by one small example, and the record of its decision."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.retention.broker import BrokerView
from offloader.retention.cuts import Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription, decide, subscriptions_of
from offloader.retention.lineage import LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import BoundKind, Candidate, Lag, Overridden, OverrideReason, RetentionSet, Role, Rule
from offloader.retention.subscribers import Registry
from tests.retention.lineages import ScalableLineage
from tests.retention.plain_stream import Offsets, at, by_size, by_time, ends, keep, queue, stream, who

#: Records of a stream that writes ten bytes every ten ms; the newest is at 100.
TENS = {time: (time,) for time in range(10, 101, 10)}
FALLBACK = {"subscriber_timeout_ms": 10, "fallback_after_ms": 30}
QUIET: dict[str, Any] = {"is_active": False, "active_ms": 60}

# fmt: off
EXAMPLES: list[tuple[Rule, Situation, Offsets | None]] = [
    (Rule.NOTHING_RECORDED, stream(by_size(10), {}, who("a", (5,))), None),
    (Rule.BELOW_MIN, stream(by_size(101), TENS), None),
    (Rule.BELOW_MIN, stream(by_size(100), TENS, head=(1,)), None),
    (Rule.BELOW_MIN, stream(by_time(50), TENS, head_time_ms=60), None),
    (Rule.BELOW_MIN, stream(by_time(50), TENS, created_ms=60), None),
    (Rule.NO_CUT_KEEPS_MIN, stream(by_size(95), TENS), None),
    (Rule.NO_CUT_KEEPS_MIN, stream(by_size(95), TENS, who("a", (10,))), None),
    (Rule.NO_CUT_KEEPS_MIN, stream(by_time(95), TENS, who("a", (90,))), None),
    (Rule.MIN_WITHOUT_BOUND, stream(by_size(35), TENS), (60,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_size(40), TENS), (60,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_size(40, 100), TENS), (60,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_time(40, 90), TENS, head_time_ms=10), (60,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_time(40, 90), TENS, head_time_ms=10, created_ms=0), (60,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_time(40, 90), TENS), (60,)),
    (Rule.MAX_WITHOUT_BOUND, stream(by_size(40, 99), TENS), (10,)),
    (Rule.MAX_WITHOUT_BOUND, stream(by_size(41, 42), TENS), (50,)),
    (Rule.MAX_WITHOUT_BOUND, stream(by_time(40, 89), TENS, head_time_ms=10), (20,)),
    (Rule.MAX_WITHOUT_BOUND, stream(by_time(40, 89), TENS, created_ms=5), (20,)),
    (Rule.ALL_READ, stream(queue(), TENS, who("a", (33,)), who("b", (47,))), (33,)),
    (Rule.ALL_READ, stream(queue(), {}, who("a", (33,)), head=(0,)), (33,)),
    (Rule.BOUND, stream(by_size(40, 68), TENS, who("a", (33,))), (33,)),
    (Rule.BOUND, stream(by_size(67, 68), TENS, who("a", (33,))), (33,)),
    (Rule.BOUND, stream(by_size(40, 67), TENS, who("a", (33,))), (33,)),
    (Rule.BOUND, stream(by_size(0, 1), {1: (1,), 2: (2,)}, who("a", (1,)), who("b", (2,))), (1,)),
    (Rule.BOUND, stream(by_size(40), TENS, who("a", (33,))), (33,)),
    (Rule.BOUND_LOWERED_TO_MIN, stream(by_size(40, 80), TENS, who("a", (77,))), (60,)),
    (Rule.BOUND_LOWERED_TO_MIN, stream(by_size(40), {1: (30, 30), 2: (50, 50)}, who("a", (20, 48))), (20, 30)),
    (Rule.BOUND_LOWERED_TO_MIN, stream(by_size(60, 80), {1: (25, 48), 2: (30, 50), 3: (50, 100)},
                                       who("a", (1, 100))), (1, 50)),
    (Rule.BOUND_LOWERED_TO_MIN, stream(by_size(60, 99), {1: (25, 48), 2: (30, 50), 3: (50, 100)},
                                       who("a", (1, 100))), (1, 50)),
    (Rule.BOUND_RAISED_TO_MAX, stream(by_size(50, 100), {1: (60, 40), 2: (75, 60), 3: (100, 100)},
                                      who("a", (0, 90))), (60, 90)),
    (Rule.BOUND_RAISED_TO_MAX, stream(by_size(40, 75), TENS, who("a", (5,)), who("b", (90,))), (30,)),
    (Rule.BOUND_RAISED_TO_MAX, stream(by_size(41, 42), TENS, who("a", (5,))), (50,)),
    (Rule.BOUND_RAISED_KEEPING_MIN, stream(by_size(60, 100), {1: (60, 40), 2: (75, 60), 3: (100, 100)},
                                           who("a", (0, 90))), (60, 60)),
    (Rule.BOUND_ABOVE_MAX, stream(by_size(2, 66), {50: (33,), 100: (100,)}, who("a", (33,))), (33,)),
    (Rule.BOUND_ABOVE_MAX, stream(by_size(50, 60), {100: (100,)}, who("a", (33,))), (33,)),
    (Rule.TIME_BOUND, stream(by_time(40, 80), TENS, who("a", (33,))), (33,)),
    (Rule.TIME_BOUND, stream(by_time(40, 80), TENS, who("a", (77,))), (60,)),
    (Rule.TIME_BOUND, stream(by_time(40, 80), TENS, who("a", (20,))), (20,)),
    (Rule.TIME_BOUND, stream(by_time(40), TENS, who("a", (1,))), (1,)),
    (Rule.TIME_BOUND, stream(by_time(40, 99), TENS, who("a", (1,))), (1,)),
    (Rule.TIME_BOUND, stream(by_time(40, 80), TENS, who("a", (19,))), (19,)),
    (Rule.TIME_RAISED_TO_MAX, stream(by_time(40, 80), TENS, who("a", (9,))), (20,)),
    (Rule.TIME_RAISED_TO_MAX, stream(by_time(40, 79), TENS, who("a", (19,))), (30,)),
    (Rule.TIME_RAISED_TO_OLD, stream(by_time(10, 60), {30: (30, 30), 50: (50, 50), 80: (80, 80), 100: (100, 100)},
                                     who("a", (20, 40))), (30, 40)),
    (Rule.WITHIN_KEEP, stream(keep(age=100), TENS), None),
    (Rule.WITHIN_KEEP, stream(keep(size=100), TENS, who("a", (90,))), None),
    (Rule.BEYOND_KEEP, stream(keep(age=35), TENS), (60,)),
    (Rule.BEYOND_KEEP, stream(keep(age=40), TENS, who("a", (10,)), who("b", (100,))), (60,)),
    (Rule.BEYOND_KEEP, stream(keep(age=40, size=70), TENS), (60,)),
    (Rule.BEYOND_KEEP, stream(keep(age=40, size=1000), TENS), (60,)),
    (Rule.BEYOND_KEEP_SIZE, stream(keep(size=35), TENS), (60,)),
    (Rule.BEYOND_KEEP_SIZE, stream(keep(age=70, size=40), TENS), (60,)),
    (Rule.BEYOND_KEEP_SIZE, stream(keep(age=1000, size=40), TENS), (60,)),
    (Rule.KEPT_AT_LEAST, stream(keep(size=20, age_least=55), TENS), (40,)),
    (Rule.KEPT_AT_LEAST, stream(keep(age=20, size_least=55), TENS), (40,)),
    (Rule.NO_CUT_KEEPS_MIN, stream(keep(size=20, age_least=95), TENS), None),
    (Rule.BOTH_KEEPING_MIN, stream(by_size(20, second=Limits(Unit.TIME, 45)), TENS), (50,)),
    (Rule.MIN_WITHOUT_BOUND, stream(by_size(40, second=Limits(Unit.TIME, 40)), TENS), (60,)),
    (Rule.NOBODY_PUBLISHED, stream(queue(), TENS, who("a")), None),
    (Rule.NOBODY_PUBLISHED, stream(queue(), TENS), None),
    (Rule.ALL_SILENT, stream(queue(**FALLBACK, fallback=Limits(Unit.SIZE, 40)), TENS,
                             who("a", (33,), is_active=False, active_ms=70)), None),
    (Rule.NO_POLICY, stream(queue(), TENS, who("a", (33,)), has_policy=False), None),
    (Rule.FOLLOWS_BROKER, stream(queue(), TENS, who("a", (33,)), head=(0,), has_policy=False,
                                 broker=BrokerView(bound=at((20,)), followed=at((20,)))), (20,)),
]
# fmt: on


@pytest.mark.parametrize(
    ("rule", "situation", "head"), [pytest.param(*example, id=example[0].name) for example in EXAMPLES]
)
def test_rule(rule: Rule, situation: Situation, head: Offsets | None) -> None:
    decision = decide(situation)
    assert (rule, at(head)) == (decision.rule, decision.cut)


def test_each_rule_has_an_example() -> None:
    assert {*Rule} == {rule for rule, _, _ in EXAMPLES}


def test_decision_has_its_reason() -> None:
    moving = {rule for rule, _, head in EXAMPLES if head is not None}
    for rule, situation, _ in EXAMPLES:
        decision = decide(situation)
        assert decision.why == rule.value
        if decision.cut is not None:
            again = decide(replace(situation, head=decision.cut, head_time_ms=decision.cut_time_ms))
            assert ("head is already there" in again.why) == (again.cut is None and again.rule in moving)


# --- who holds data back ----------------------------------------------------------------------------------------------

OWN = Limits(Unit.SIZE, 40)


@pytest.mark.parametrize(
    ("situation", "kind", "head"),
    [
        # One that is silent doesn't hold back the others
        (stream(by_size(10), TENS, who("a", (33,)), who("b", (5,), **QUIET)), BoundKind.SUBSCRIBERS, (33,)),
        # All silent: their last cuts stay the bound, until y if there is one
        (stream(by_size(10), TENS, who("a", (33,), **QUIET)), BoundKind.LAST_CUTS, (33,)),
        (stream(by_size(40, **FALLBACK), TENS, who("a", (33,), **QUIET)), BoundKind.GIVEN_UP, (60,)),
        (stream(by_size(40, **FALLBACK), TENS, who("a", (33,), **QUIET), now_ms=91), BoundKind.GIVEN_UP, (60,)),
        (stream(by_size(40, **FALLBACK), TENS, who("a", (33,), **QUIET), now_ms=90), BoundKind.LAST_CUTS, (33,)),
        # A queue waits for the fallback, which then rules as if nobody had published
        (stream(queue(**FALLBACK, fallback=OWN), TENS, who("a", (33,), **QUIET)), BoundKind.GIVEN_UP, (60,)),
        (stream(queue(**FALLBACK, fallback=OWN), TENS, who("a", (33,), **QUIET), now_ms=90), BoundKind.SILENT, None),
        (stream(queue(limits=OWN), TENS, who("a", (33,), **QUIET)), BoundKind.SILENT, None),
        (stream(queue(limits=Limits(Unit.SIZE, 1), **FALLBACK, fallback=OWN), TENS, who("a", (33,), **QUIET)),
         BoundKind.GIVEN_UP, (60,)),
        # One that never published but is there keeps the fallback away
        (stream(queue(**FALLBACK, fallback=OWN), TENS, who("a", (33,), **QUIET), who("b")), BoundKind.SILENT, None),
        # Nobody ever published: limits of its own rule a queue too, and the fallback one without
        (stream(queue(limits=OWN), TENS, who("a")), BoundKind.NOBODY_PUBLISHED, (60,)),
        (stream(queue(limits=OWN, **FALLBACK, fallback=Limits(Unit.SIZE, 1)), TENS, who("a", **QUIET)),
         BoundKind.NOBODY_PUBLISHED, (60,)),
        (stream(queue(**FALLBACK, fallback=OWN), TENS, who("a", **QUIET)), BoundKind.GIVEN_UP, (60,)),
        (stream(queue(**FALLBACK, fallback=OWN), TENS, created_ms=69), BoundKind.GIVEN_UP, (60,)),
        (stream(queue(**FALLBACK, fallback=OWN), TENS, created_ms=70), BoundKind.NOBODY_PUBLISHED, None),
        (stream(queue(**FALLBACK, fallback=OWN), TENS), BoundKind.NOBODY_PUBLISHED, None),
        # Only when asked to, a subscriber that never published holds data back from its start on
        (stream(by_size(10), TENS, who("a", (33,)), who("b", None, (20,))), BoundKind.SUBSCRIBERS, (33,)),
        (stream(by_size(10, protect_unpublished=True), TENS, who("a", (33,)), who("b", None, (20,))),
         BoundKind.SUBSCRIBERS, (20,)),
        (stream(by_size(10, protect_unpublished=True), TENS, who("a", (33,)), who("b"), head=(7,)),
         BoundKind.SUBSCRIBERS, None),
        (stream(by_size(10, protect_unpublished=True), TENS, who("b", (33,), (20,))), BoundKind.SUBSCRIBERS, (33,)),
        # Behind the head, it counts from the head
        (stream(by_size(10), TENS, who("a", (3,)), head=(20,)), BoundKind.SUBSCRIBERS, None),
        (stream(by_size(10), {1: (50, 50)}, who("a", (3, 9)), head=(5, 5)), BoundKind.SUBSCRIBERS, (5, 9)),
    ],
)  # fmt: skip
def test_decision_names_the_kind_of_bound(situation: Situation, kind: BoundKind, head: Offsets | None) -> None:
    decision = decide(situation)
    assert (kind, at(head)) == (decision.bound_kind, decision.cut)


def test_fallback_applies_its_own_limits() -> None:
    fallback = Limits(Unit.TIME, 20)
    decision = decide(stream(queue(limits=OWN, **FALLBACK, fallback=fallback), TENS, who("a", (33,), **QUIET)))
    assert (decision.cut, decision.limits, decision.is_fallback) == (at((80,)), fallback, True)
    decision = decide(stream(by_size(40, **FALLBACK), TENS, who("a", (33,), **QUIET)))
    assert (decision.limits, decision.is_fallback) == (OWN, False)


# --- what isn't offloaded yet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offloaded", "head", "is_held"),
    [((20,), (20,), True), ((33,), (33,), False), ((99,), (33,), False), ((0,), None, True)],
)
def test_only_offloaded_entries_are_truncated(offloaded: Offsets, head: Offsets | None, is_held: bool) -> None:
    decision = decide(stream(by_size(40), TENS, who("a", (33,)), offloaded=offloaded))
    assert (at(head), is_held, Rule.BOUND) == (decision.cut, decision.is_held, decision.rule)
    assert ("offloaded" in decision.why) == is_held
    assert ("nothing is offloaded" in decision.why) == (head is None)


def test_decision_reports_an_unchanged_head() -> None:
    decision = decide(stream(by_size(40), TENS, who("a", (33,)), head=(33,)))
    assert decision.cut is None
    assert decision.why == f"{Rule.BOUND.value}; the head is already there, and a holds back the rest"


def test_a_head_behind_the_offloaded_end_stays() -> None:
    """It was forced there; a cycle neither moves it back nor on."""
    decision = decide(stream(by_size(40), TENS, who("a", (33,)), head=(25,), offloaded=(20,)))
    assert decision.cut is None
    assert decision.is_held


# --- the record -------------------------------------------------------------------------------------------------------


class WithEntries(LineageMeasure):
    """Entries of five bytes."""

    def entries_before(self, cut: StreamCut) -> int | None:
        found = self.bytes_before(cut)
        return None if found is None else found // 5


def test_a_decision_can_be_explained_from_its_record() -> None:
    situation = stream(
        by_size(40, 75), TENS,
        who("slow", (5,)), who("fast", (90,)), who("gone", (4,), **QUIET), who("new", None, (25,)),
        head=(3,), tail=(105,),
    )  # fmt: skip
    decision = decide(replace(situation, measure=WithEntries(situation.lineage)))

    assert decision.cut == at((30,))
    assert (decision.head, decision.newest, decision.bound) == (at((3,)), at((100,)), at((5,)))
    assert (decision.removed_bytes, decision.removed_entries, decision.cut_time_ms) == (27, 6, 30)
    assert decision.candidates == (
        Candidate(Role.MIN, at((60,)) or StreamCut(), 40, 60),
        Candidate(Role.MAX, at((30,)) or StreamCut(), 70, 30),
        Candidate(Role.BOUND, at((5,)) or StreamCut(), 95),
        Candidate(Role.CHOSEN, at((30,)) or StreamCut(), 70, 30),
    )
    assert decision.used_ms == {60, 30}
    assert decision.lags == (
        Lag("slow", at((5,)) or StreamCut(), True, True, True, 100, 20),
        Lag("fast", at((90,)) or StreamCut(), True, True, True, 15, 3),
        Lag("gone", at((4,)) or StreamCut(), True, False, False, 101, 21),
        Lag("new", at((25,)) or StreamCut(), False, True, False, 80, 16),
    )
    assert decision.overridden == (
        Overridden("slow", OverrideReason.ABOVE_MAX, 25, 5),
        Overridden("gone", OverrideReason.TIMED_OUT, 26, 6),
        Overridden("new", OverrideReason.NEVER_PUBLISHED, 5, 1),
    )


def test_a_decision_by_time_names_the_record_beyond_max() -> None:
    decision = decide(stream(by_time(40, 80), TENS, who("a", (9,))))
    assert [(one.role, one.time_ms) for one in decision.candidates] == [
        (Role.MIN, 60), (Role.MAX, 20), (Role.OLD, 10), (Role.BOUND, None), (Role.CHOSEN, 20),
    ]  # fmt: skip


def test_a_decision_is_written_as_json() -> None:
    decision = decide(stream(by_size(40, 75), TENS, who("slow", (5,))))
    value = json.loads(json.dumps(decision.as_json()))
    assert value["cut"] == {"0.0": 30}
    assert value["rule"] == "bound_raised_to_max"
    assert value["why"] == Rule.BOUND_RAISED_TO_MAX.value
    assert value["limits"] == {"unit": "size", "min": 40, "max": 75}
    assert value["overridden"] == [{"name": "slow", "reason": "above_max", "lost_bytes": 25, "lost_entries": None}]
    first = {"role": "min", "cut": {"0.0": 60}, "keeps_bytes": 40, "time_ms": 60, "is_boundary": False}
    assert value["candidates"][0] == first
    assert json.loads(json.dumps(decide(stream(queue(), {})).as_json()))["cut"] is None


def test_a_lag_is_never_below_zero() -> None:
    """The newest record may be older than what a subscriber has read since."""
    decision = decide(stream(by_size(40), TENS, who("a", (104,))))
    assert decision.lags[0].unread_bytes == 0


def test_age_at_a_new_head_is_that_of_the_newest_record_before_it() -> None:
    between = decide(stream(by_size(40), TENS, who("a", (33,)), head_time_ms=7))
    assert between.cut_time_ms == 30
    before_all = decide(stream(by_size(40), TENS, who("a", (3,)), head_time_ms=7))
    assert (before_all.cut, before_all.cut_time_ms) == (at((3,)), 7)


class Unmeasured(LineageMeasure):
    """A stream whose sizes weren't recorded."""

    def bytes_before(self, cut: StreamCut) -> int | None:
        return None


def test_unknown_sizes_matter_only_to_policies_by_size() -> None:
    by_age = stream(by_time(40, 80), TENS, who("a", (9,)))
    decision = decide(replace(by_age, measure=Unmeasured(by_age.lineage)))
    assert decision.cut == at((20,))
    assert {one.keeps_bytes for one in decision.candidates} == {None}
    assert (decision.lags[0].unread_bytes, decision.overridden[0].lost_bytes) == (None, None)
    with pytest.raises(InvalidCallError, match=r"amount that a truncation .* keeps is unknown.*by time"):
        decide(replace(by_age, policy=by_size(40), measure=Unmeasured(by_age.lineage)))


# --- from the registry and from positions -----------------------------------------------------------------------------


def test_subscribers_of_the_registry_are_silent_after_the_timeout() -> None:
    """One that has read everything isn't; registering counts as a sign of life."""
    rules, names = ScalableLineage.of_partitions(range(1)), ("at-tail", "behind", "late", "new", "old", "on-time")
    registry = Registry()
    for name in names:
        registry = registry.add(name, 0, now_ms={"new": 95, "on-time": 90}.get(name, 50))
    for name, offset in {"at-tail": 100, "behind": 40, "late": 20}.items():
        when = 90 if name == "late" else 60
        registry = registry.publish(name, 0, at((offset,)) or StreamCut(), rules, now_ms=when).registry
    policy = queue(subscriber_timeout_ms=10)
    found = subscriptions_of(registry, policy, now_ms=100, tail=at((100,)), rules=rules)
    assert [one.name for one in found] == list(names)
    assert {one.name for one in found if not one.is_active} == {"behind", "old"}
    assert {one.name: one.active_ms for one in found}["new"] == 95
    assert [one.cut for one in found[-3:]] == [None, None, None]
    for_ever = subscriptions_of(registry, queue(), now_ms=10**9, tail=None, rules=rules)
    assert all(one.is_active for one in for_ever)


class CountedPositions:
    """Two ledgers of ten entries of three bytes in each partition; entries between them are nowhere."""

    def entries_before(self, cut: StreamCut) -> int | None:
        places = [offset for offset in cut.offsets.values() if isinstance(offset, Position)]
        return sum((place.ledger_id > 7) * 10 + min(place.entry_id, 10) for place in places)

    def bytes_before(self, cut: StreamCut) -> int | None:
        entries = self.entries_before(cut)
        return None if entries is None else 3 * entries

    def bytes_after(self, cut: StreamCut) -> int:
        return 2 * 2 * 10 * 3 - 3 * (self.entries_before(cut) or 0)

    def bytes_in_doubt(self, _: StreamCut) -> int:
        return 0


def test_cuts_of_our_own_streams_are_positions() -> None:
    """A partition that a cut doesn't name counts as unread: it was added later."""

    def place(*positions: tuple[int, int]) -> StreamCut:
        return StreamCut({SegmentId(n, 0): Position(*position) for n, position in enumerate(positions)})

    tails = {1: [(7, 5)], 2: [(9, 0), (7, 4)], 3: [(9, 9), (7, 9)]}
    records = tuple(Record(time, place(*positions)) for time, positions in tails.items())
    situation = Situation(
        policy=by_size(18, 60), lineage=ScalableLineage.of_partitions(range(2)), measure=CountedPositions(),
        records=RetentionSet(records), head=StreamCut(), now_ms=4,
        subscriptions=(Subscription(name="a", cut=place((9, 2))), Subscription(name="b", cut=place((7, 9), (7, 1)))),
    )  # fmt: skip
    decision = decide(situation)
    assert (decision.rule, decision.cut) == (Rule.BOUND, place((7, 9)))
    assert (decision.removed_bytes, decision.removed_entries) == (27, 9)
    assert [(lag.unread_bytes, lag.unread_entries) for lag in decision.lags] == [(48, 16), (54, 18)]

    pressed = decide(replace(situation, policy=by_size(18, 50)))
    assert (pressed.rule, pressed.cut) == (Rule.BOUND_RAISED_TO_MAX, place((9, 0), (7, 4)))
    assert [(one.name, one.lost_entries) for one in pressed.overridden] == [("a", 4), ("b", 4)]


def test_stream_that_was_cut_to_exactly_max_is_left_there_by_the_next_cycle() -> None:
    """The record that the first cycle used has left the set; unread data isn't above max because of that."""
    policy, slow = by_size(0, 8), who("slow", (0,))
    first = stream(policy, {1: (1,), 9: (9,)}, slow)
    decision = decide(first)
    assert decision.cut is not None
    assert (decision.rule, decision.cut) == (Rule.BOUND_RAISED_TO_MAX, at((1,)))
    again = replace(
        first,
        head=decision.cut,
        head_time_ms=decision.cut_time_ms,
        records=first.records.truncated(decision.cut, first.lineage),
    )
    assert len(again.records.records) == 1
    assert decide(again).cut is None

    grown = replace(again, records=RetentionSet((*again.records.records, Record(12, at((10,)) or StreamCut(), 10))))
    decision = decide(grown)
    assert (decision.rule, decision.cut) == (Rule.BOUND_RAISED_TO_MAX, at((9,)))


def test_next_cut_is_not_a_boundary_of_the_same_age_as_the_record_that_left_the_set() -> None:
    """A record and a segment's end behind it are both as old as max: what is between them stays."""
    given = stream(by_time(0, 20), {70: (2,), 80: (5,), 90: (9,)}, who("slow", (0,)), boundaries=ends({80: (7,)}))
    decision = decide(given)
    assert decision.cut is not None
    assert decision.cut == at((5,))
    pruned = given.records.truncated(decision.cut, given.lineage)
    again = replace(given, head=decision.cut, head_time_ms=decision.cut_time_ms, records=pruned)
    assert decide(again).cut is None


def test_by_two_limits_what_all_have_read_goes_where_that_keeps_min_and_a_record_would_not() -> None:
    """By time all of it may go, by size what all have read; the only candidate before the end keeps more than min."""
    policy = Policy(kind=PolicyKind.SIZE, limits=Limits(Unit.SIZE, 1), second=Limits(Unit.TIME, 0, 1))
    given = stream(policy, {50: (3,)}, who("all", (2,)), boundaries=ends({40: (1,)}))
    decision = decide(given)
    assert (decision.rule, decision.cut) == (Rule.BOTH_KEEPING_MIN, at((2,)))


def test_head_follows_the_published_cut_over_a_split_and_a_merge() -> None:
    """The guide's case 10 of section 5: 90 to 180 bytes are kept, which each published cut does."""
    root = SegmentId(0, 0)
    stream = ScalableLineage.build({root: (0.0, 1.0)}, [[root]])
    split = stream.scaled({root: 150}, [(0.0, 0.5), (0.5, 1.0)])
    merged = split.scaled({SegmentId(1, 1): 120, SegmentId(2, 1): 90}, [(0.0, 1.0)])
    head = stream.first_cut
    records = RetentionSet()
    for now_ms, lineage, tail, published, gone in [
        (1, stream, {"0.0": 150}, {"0.0": 30}, []),
        (2, split, {"1.1": 60, "2.1": 60}, {"1.1": 0, "2.1": 30}, [root]),
        (3, merged, {"3.2": 30}, {"1.1": 30, "3.2": -1}, [SegmentId(2, 1)]),
        (4, merged, {"3.2": 150}, {"3.2": 0}, [SegmentId(1, 1)]),
        (5, merged, {"3.2": 200}, {"3.2": 60}, []),
    ]:
        cut = StreamCut.of(tail)
        records = records.add(Record(now_ms, cut, lineage.bytes_till(cut)))
        decision = decide(
            Situation(
                policy=by_size(90, 180), lineage=lineage, measure=LineageMeasure(lineage), records=records, head=head,
                now_ms=now_ms, subscriptions=(Subscription(name="a", cut=StreamCut.of(published)),),
            )
        )  # fmt: skip
        assert (decision.rule, decision.cut) == (Rule.BOUND, StreamCut.of(published))
        assert lineage.deleted_between(head, decision.cut or head) == gone
        head = decision.cut or head
        records = records.truncated(head, lineage)
