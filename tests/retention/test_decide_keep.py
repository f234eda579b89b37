"""Keep, keep_size and keep_at_least; and segment boundaries, by which a policy acts on existing data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.errors import InvalidCallError
from offloader.retention.decide import Situation, decide
from offloader.retention.entries import TIME_UNKNOWN
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit, policy_of, policy_text
from offloader.retention.state import Role, Rule
from offloader.settings import Duration, RetentionSettings, Size
from offloader.settings.layered import parse_settings
from tests.retention.plain_stream import Offsets, at, by_time, ends, keep, queue, stream, who
from tests.retention.retained_streams import KIB, STREAM, TOPIC, Bench
from tests.support.streams import StreamWriter, batch_of

DAY_S, HOUR_S = 86_400, 3600
TENS = {time: (time,) for time in range(10, 101, 10)}
NOW = {100: (100,)}


# --- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "head", "ruled"),
    [
        (keep(age=40, size=70), (60,), Unit.TIME),
        (keep(age=70, size=40), (60,), Unit.SIZE),
        (keep(age=40), (60,), None),
        (keep(size=20, age_least=55), (40,), Unit.SIZE),
    ],
)
def test_the_limit_that_is_reached_first_rules_and_is_named(policy: Policy, head: Offsets, ruled: Unit | None) -> None:
    decision = decide(stream(policy, TENS))
    assert (decision.cut, decision.ruled) == (at(head), ruled)


def test_data_within_keep_stays_though_all_have_read_it_and_over_many_cycles() -> None:
    head, head_time_ms = at((0,)), None
    for now_ms in (100, 101, 105):
        given = stream(keep(age=40), TENS, who("a", (100,)), now_ms=now_ms, head_time_ms=head_time_ms)
        decision = decide(given if head is None else Situation(**{**fields_of(given), "head": head}))
        if decision.cut is not None:
            head, head_time_ms = decision.cut, decision.cut_time_ms
    assert head == at((60,))


def fields_of(given: Situation) -> dict[str, Any]:
    return {name: getattr(given, name) for name in Situation.__dataclass_fields__}


def test_unread_data_beyond_keep_goes_and_its_reader_is_named() -> None:
    decision = decide(stream(keep(age=40), TENS, who("slow", (15,))))
    assert decision.cut == at((60,))
    assert [(each.name, each.lost_bytes) for each in decision.overridden] == [("slow", 45)]


@pytest.mark.parametrize(
    ("policy", "boundaries", "head"),
    [
        (keep(age=40), {30: (30,), 55: (55,), 90: (90,)}, (55,)),
        (keep(size=40), {30: (30,), 55: (55,), 90: (90,)}, (55,)),
        # Of an entry without a publish time nobody knows that it is old, nor of what comes after it.
        (keep(age=20), {30: (30,), TIME_UNKNOWN: (55,)}, (30,)),
        (keep(age=1), {TIME_UNKNOWN: (30,)}, None),
        (keep(size=40), {30: (30,), TIME_UNKNOWN: (55,)}, (55,)),
        # Published in the future: younger than everything.
        (keep(age=1), {30: (30,), 500: (55,)}, (30,)),
        (by_time(40, 60), {10: (10,), 45: (45,), 55: (55,)}, (45,)),
        (by_time(40), {10: (10,), 45: (45,), 55: (55,)}, (55,)),
        (queue(limits=Limits(Unit.TIME, 40, 50)), {10: (10,), 45: (45,), 55: (55,)}, (55,)),
    ],
)
def test_segment_boundary_is_a_candidate_beside_recorded_cuts(
    policy: Policy, boundaries: Mapping[int, Offsets], head: Offsets | None
) -> None:
    """The only recorded cut is the tail, as in the first cycle of a policy."""
    decision = decide(stream(policy, NOW, boundaries=ends(boundaries)))
    assert decision.cut == at(head)
    chosen = [each for each in decision.candidates if each.role is Role.CHOSEN]
    assert [(each.is_boundary, each.cut) for each in chosen] == ([] if head is None else [(True, at(head))])


def test_old_data_that_came_after_an_old_record_goes_in_the_first_cycle() -> None:
    """As a replay of history writes it: the boundary is further in the stream, and older, than the record."""
    given = stream(keep(age=40), {50: (50,), **NOW}, boundaries=ends({10: (70,)}))
    decision = decide(given)
    assert decision.cut == at((70,))
    assert decide(Situation(**{**fields_of(given), "head": decision.cut})).cut is None


def test_recorded_cut_wins_over_a_boundary_that_keeps_the_same() -> None:
    decision = decide(stream(keep(age=40), {60: (60,), **NOW}, boundaries=ends({60: (58,)})))
    assert decision.cut == at((60,))
    assert not any(each.is_boundary for each in decision.candidates)


def test_cuts_of_two_partitions_that_overlap_do_not_undercut_min_together() -> None:
    """A recorded cut keeps least but min, a boundary aside of it keeps most: their join would keep less than min."""
    policy = Policy(kind=PolicyKind.SIZE, limits=Limits(Unit.SIZE, 100, 115))
    given = stream(policy, {10: (90, 0), 100: (100, 100)}, who("a", (0, 0)), boundaries=ends({5: (0, 86)}))
    decision = decide(given)
    assert decision.cut is not None
    assert 200 - given.measure.bytes_before(decision.cut) >= 100  # type: ignore[operator]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_keep_and_keep_size_are_settings_alone_and_together() -> None:
    file = parse_settings('[retention]\nkeep = "1d"\nkeep_size = "1GB"\nkeep_at_least = "2h"\n', "s.toml")
    policy = policy_of(STREAM, file.settings_of(STREAM).retention)
    assert policy == Policy(
        kind=PolicyKind.KEEP,
        limits=Limits(Unit.TIME, 2 * HOUR_S * 1000, DAY_S * 1000),
        second=Limits(Unit.SIZE, 0, 10**9),
    )
    text = "keep: entries older than 1 d or beyond the newest 1 GB are deleted; entries younger than 2 h are kept"
    assert policy_text(policy) == text
    for line, unit in (('keep = "1d"', Unit.TIME), ('keep_size = "1GiB"', Unit.SIZE)):
        alone = policy_of(STREAM, parse_settings(f"[retention]\n{line}", "s.toml").settings_of(STREAM).retention)
        assert alone is not None
        assert [each.unit for each in alone.all_limits] == [unit]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('keep_at_least = "2d"\nkeep = "1d"', "keep_at_least = 2d is above keep = 1d"),
        ('keep_at_least_size = "2GiB"\nkeep_size = "1GiB"', "keep_at_least_size = 2GiB is above keep_size = 1GiB"),
        ('keep_at_least = "2d"', "keep_at_least: has no effect, no policy is set, nor keep or keep_size"),
        ('policy = "time"\nmin_age = "1d"\nkeep = "1d"', "keep: has no effect, the policy is time"),
        ('keep = "1d"\nmin_age = "1h"', "min_age: has no effect, the policy is keep"),
        ('keep = "1d"\nfallback_after = "1h"', "fallback_after: has no effect, the policy is keep"),
        ('policy = "none"\nkeep = "1d"', "keep: has no effect, the policy is none"),
        ('policy = "time"\nmax_age = "1d"', "set keep alone, without policy"),
        ('keep = "1 day"', "a duration like"),
    ],
)
def test_settings_that_contradict_keep_are_refused_with_what_to_do(text: str, words: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        parse_settings(f"[retention]\n{text}\n", "s.toml")
    assert words in caught.value.message


def test_policy_none_of_a_topic_stands_below_a_keep_for_all() -> None:
    file = parse_settings(f'[retention]\nkeep = "1d"\n[topics."{STREAM}".retention]\npolicy = "none"\n', "s.toml")
    assert policy_of(STREAM, file.settings_of(STREAM).retention) is None
    assert policy_of(TOPIC, file.settings_of(TOPIC).retention) is not None


def test_settings_of_earlier_releases_mean_what_they_meant() -> None:
    assert policy_of(STREAM, RetentionSettings()) is None
    assert policy_of(STREAM, RetentionSettings(policy="none")) is None
    old = policy_of(STREAM, RetentionSettings(policy="time", min_age=Duration("60m"), max_age=Duration("120m")))
    assert old == Policy(kind=PolicyKind.TIME, limits=Limits(Unit.TIME, HOUR_S * 1000, 2 * HOUR_S * 1000))


def test_min_and_max_by_size_and_time_may_stand_together() -> None:
    policy = policy_of(
        STREAM, RetentionSettings(policy="time", min_age=Duration("1m"), min_size=Size("1MiB"), max_size=Size("3MiB"))
    )
    assert policy is not None
    assert policy.all_limits == (Limits(Unit.TIME, 60_000), Limits(Unit.SIZE, 2**20, 3 * 2**20))


# --- cycles over data that was there before the policy ----------------------------------------------------------------


class Aged(Bench):
    """Streams whose segments of 10 KiB were published an hour apart before a policy began."""

    def add(self, stream: str, ages_h: Sequence[float], *, known: bool = True) -> None:
        if stream not in self.writers:
            self.writers[stream] = StreamWriter(self.memory, stream, clock=self.clock)
        writer = self.writers[stream]
        for age_h in ages_h:
            number = self.ledgers[stream] = self.ledgers.get(stream, 0) + 1
            time_ms = self.clock.now_ms() - int(age_h * 3_600_000) if known else TIME_UNKNOWN_MS
            writer.add([batch_of(number, 0, 10, size=KIB, times=time_ms)], closes=[number])

    def kept_h(self, stream: str, start: Position | None, ages_h: Sequence[float]) -> float:
        """The age of the oldest segment that stays."""
        return ages_h[0 if start is None else start.ledger_id - 1]


#: Three days, a segment an hour.
THREE_DAYS = [72 - number for number in range(73)]


@pytest.mark.slow
def test_first_cycle_starts_existing_data_within_one_segment_of_keep() -> None:
    bench = Aged(keep=DAY_S)
    bench.add(STREAM, THREE_DAYS)
    planned = bench.cycle().plan(STREAM).decision
    done = bench.run()
    assert done.truncations
    assert done.decision == planned
    assert done.decision is not None
    assert done.decision.rule is Rule.BEYOND_KEEP
    oldest_h = bench.kept_h(STREAM, bench.head(), THREE_DAYS)
    # What is a day old exactly may go.
    assert 23 <= oldest_h <= 24
    before = bench.head()
    bench.clock.advance(60)
    assert not bench.run().truncations
    assert bench.head() == before


@pytest.mark.slow
def test_existing_data_is_cut_by_size_and_by_the_limit_that_is_reached_first() -> None:
    for retention, ledger in (
        ({"keep_size": 100 * KIB}, 64),
        ({"keep_size": 100 * KIB, "keep": DAY_S}, 64),
        ({"keep_size": 500 * KIB, "keep": DAY_S}, 50),
        ({"keep_size": 100 * KIB, "keep_at_least": DAY_S}, 50),
        ({"keep": HOUR_S, "keep_at_least_size": 200 * KIB}, 54),
        ({"keep_size": 1000 * KIB, "keep": 90 * HOUR_S}, None),
    ):
        bench = Aged(**retention)
        bench.add(STREAM, THREE_DAYS)
        bench.run()
        assert bench.head() == (None if ledger is None else Position(ledger, 0)), retention


@pytest.mark.slow
def test_entries_without_publish_times_stay_until_a_recorded_cut_is_old_enough() -> None:
    bench = Aged(keep=DAY_S)
    bench.add(STREAM, THREE_DAYS[:10])
    bench.add(STREAM, THREE_DAYS[10:20], known=False)
    bench.add(STREAM, THREE_DAYS[20:])
    bench.run()
    assert bench.head() == Position(11, 0)
    bench.clock.advance(DAY_S + 60)
    bench.add(STREAM, [0])
    bench.run()
    assert bench.head() == Position(74, 0)


def test_an_older_entry_that_comes_late_is_kept_by_a_younger_one_before_it() -> None:
    bench = Aged(keep=DAY_S)
    bench.add(STREAM, [60, 50, 12, 48, 40, 2])
    bench.run()
    assert bench.head() == Position(3, 0)


def test_partitions_are_cut_at_one_publish_time() -> None:
    bench = Aged(keep=DAY_S)
    zero, one = (f"{TOPIC}-partition-{number}" for number in range(2))
    bench.add(zero, [70, 60, 30, 26, 2])
    bench.add(one, [71, 25, 23, 1])
    outcome = bench.run(TOPIC)
    assert outcome.truncations
    assert (bench.head(zero), bench.head(one)) == (Position(5, 0), Position(3, 0))


def test_head_never_passes_what_is_offloaded_or_held_by_a_hole() -> None:
    bench = Aged(keep=HOUR_S)
    bench.add(STREAM, [60, 50])
    bench.run()
    # The end of the last segment is the tail: all that is offloaded may go, and nothing beyond.
    head = bench.head()
    assert head is not None
    assert head <= Position(2, 10)
