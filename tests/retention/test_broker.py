"""A broker with the plugin lists ledgers: none of them goes, and its trim is followed as far as retention allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from formats.entries import Position
from formats.manifest import Hold, HotReleased
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.base import BrokerLedgers
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefusedError
from offloader.retention.broker import BrokerView, FirstListed
from offloader.retention.cycle import CycleOutcome, RetentionCycle
from offloader.retention.decide import Situation, decide
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.policy import Limits, Unit
from offloader.retention.state import Rule
from offloader.retention.truncate import truncate_stream, truncate_topic
from offloader.settings import Settings
from tests.retention.plain_stream import Offsets, at, by_size, queue, stream, who
from tests.retention.retained_streams import ENTRIES, STREAM, TOPIC, Bench

TENS = {time: (time,) for time in range(10, 101, 10)}
PARTITION = "public/default/persistent/payments-partition-{}"


def lists(bound: Offsets, followed: Offsets | None = None, doubts: tuple[str, ...] = ()) -> BrokerView:
    first = tuple(FirstListed(number, offset) for number, offset in enumerate(bound))
    return BrokerView(first=first, bound=at(bound), followed=at(followed), doubts=doubts)


# --- the decision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "cut", "rules"),
    [
        (stream(by_size(35), TENS, broker=lists((17,))), (17,), True),
        (stream(by_size(35), TENS, broker=lists((60,))), (60,), False),
        (stream(by_size(35), TENS, broker=lists((80,))), (60,), False),
        (stream(by_size(35), TENS, head=(17,), broker=lists((17,))), None, True),
        # A forced truncation was further: nothing moves back.
        (stream(by_size(35), TENS, head=(30,), broker=lists((17,))), None, True),
        (stream(by_size(101), TENS, broker=lists((17,))), None, False),
        (stream(queue(), TENS, who("a", (33,)), broker=lists((17,))), (17,), True),
        (stream(queue(), {1: (30, 30)}, who("a", (20, 25)), broker=lists((5, 40))), (5, 25), True),
    ],
)
def test_start_position_never_passes_a_listed_ledger(situation: Situation, cut: Offsets | None, rules: bool) -> None:
    decision = decide(situation)
    assert decision.cut == at(cut)
    assert decision.broker is not None
    assert decision.broker.rules is rules
    assert ("the broker still lists ledger" in decision.why) is rules


def test_unknown_list_moves_nothing_and_says_why() -> None:
    decision = decide(stream(by_size(35), TENS, broker=BrokerView(problem="it doesn't answer")))
    assert decision.cut is None
    assert decision.why.endswith("; it doesn't answer, so nothing is deleted")


@pytest.mark.parametrize(
    ("situation", "cut", "kept_by"),
    [
        (stream(by_size(35), TENS, broker=lists((50,), (50,))), (50,), ()),
        # The policy alone would keep all of it.
        (stream(by_size(35, 500), TENS, who("a", (20,)), broker=lists((50,), (50,))), (20,), ("a hasn't read",)),
        (stream(by_size(35, 500), TENS, who("a", (70,)), broker=lists((50,), (50,))), (50,), ()),
        (stream(by_size(75), TENS, broker=lists((50,), (50,))), (20,), ("min keeps",)),
        (stream(by_size(101), TENS, broker=lists((50,), (50,))), None, ("min keeps",)),
        (stream(by_size(95), {}, broker=lists((50,), (50,))), None, ("min keeps",)),
        (stream(by_size(35), TENS, offloaded=(40,), broker=lists((50,), (50,))), (40,), ("aren't offloaded",)),
        # One that timed out holds nothing back, and all of them do.
        (
            stream(queue(), TENS, who("a", (5,), is_active=False), who("b", (70,)), broker=lists((50,), (50,))),
            (50,),
            (),
        ),
        (
            stream(
                queue(subscriber_timeout_ms=5, fallback_after_ms=500, fallback=Limits(Unit.SIZE, 40)),
                TENS,
                who("a", (5,), is_active=False),
                broker=lists((50,), (50,)),
            ),
            (5,),
            ("a hasn't read",),
        ),
        (stream(queue(), TENS, has_policy=False, broker=lists((50,), (50,))), (50,), ()),
        (stream(queue(), TENS, who("a", (20,)), has_policy=False, broker=lists((50,), (50,))), (20,), ("a hasn't",)),
        (stream(queue(), TENS, has_policy=False, broker=lists((50,), None, ("on hold",))), None, ("on hold",)),
        (stream(queue(), TENS, has_policy=False, broker=lists((50,))), None, ()),
        # In one partition it isn't sure.
        (
            stream(queue(), {1: (90, 90)}, has_policy=False, broker=lists((50, 60), (50, 0), ("not sure",))),
            (50, 0),
            ("not sure",),
        ),
    ],
)
def test_trim_is_followed_as_far_as_retention_allows(
    situation: Situation, cut: Offsets | None, kept_by: tuple[str, ...]
) -> None:
    decision = decide(situation)
    assert decision.cut == at(cut)
    assert decision.broker is not None
    said = decision.broker.not_followed
    assert len(said) == len(kept_by)
    assert all(wanted in text for wanted, text in zip(kept_by, said, strict=True))
    # The same again changes nothing more.
    again = decide(replace(situation, head=decision.cut or situation.head))
    assert again.cut is None


# --- cycles over manifests ------------------------------------------------------------------------------------------


class Listed(Bench):
    """Streams whose brokers answer what a test puts into ``lists``: ledger ids and where they begin to be followed."""

    def __init__(self, *, follow: bool = False, **retention: Any) -> None:
        super().__init__(**retention)
        kept = {"record_interval": "0.5m", **retention}
        pulsar = {"broker_plugin": True, "follow_broker_trim": follow}
        self.settings = Settings.of({"retention": kept, "pulsar": pulsar})
        self.lists: dict[str, BrokerLedgers | OffloaderError | None] = {}

    def listing(self, *ledgers: int, stream: str = STREAM, since: int | None = None) -> None:
        stored = tuple((ledger_id, ENTRIES) for ledger_id in ledgers)
        self.lists[stream] = BrokerLedgers(stored=stored, since=since)

    def cycle(self, store: Any = None) -> RetentionCycle:
        def listed_of(name: str) -> BrokerLedgers | None:
            answer = self.lists.get(name, NotFoundError(f"{name} isn't there"))
            if isinstance(answer, OffloaderError):
                raise answer
            return answer

        return RetentionCycle(
            store or self.store, clock=self.clock, settings_of=lambda _: self.settings, by="tester", listed_of=listed_of
        )


def why(outcome: CycleOutcome) -> str:
    assert outcome.decision is not None
    return outcome.decision.why


@pytest.mark.slow
def test_cycle_stops_at_the_first_listed_ledger_and_the_plan_names_it() -> None:
    bench = Listed(policy="size", min_size="10KiB")
    bench.listing(1)
    bench.grow_and_run(6)
    bench.listing(3, 4, 5, 6)
    plan = bench.cycle().plan(STREAM)
    assert why(plan).endswith("; the broker still lists ledger 3")
    assert any(line.startswith("held     the broker still lists ledger 3") for line in explain(plan))
    assert outcome_facts(plan, done=False)["broker"] == ["the broker still lists ledger 3"]
    bench.run()
    assert bench.head() == Position(3, 0)
    # The broker has only what is newer than the policy's cut: that rules again.
    bench.listing(6)
    assert why(bench.run()) == Rule.MIN_WITHOUT_BOUND.value
    assert bench.head() == Position(6, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            StoreUnavailableError("it doesn't answer"),
            "the ledgers that the broker lists are unknown: it doesn't answer",
        ),
        (NotFoundError("no such topic"), "no such topic"),
        (BrokerLedgers(stored=()), "the broker lists no ledger"),
        # Older than the manifest: a broker that doesn't own the topic any more.
        (BrokerLedgers(stored=((3, ENTRIES), (4, ENTRIES))), "its newest ledger is 4, and the manifest has entries"),
        (BrokerLedgers(stored=((3, ENTRIES), (6, ENTRIES - 2))), "ledger 6 ends at entry 7"),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_answer_that_is_no_answer_moves_nothing(
    answer: BrokerLedgers | OffloaderError, said: str, follow: bool
) -> None:
    bench = Listed(policy="size", min_size="10KiB", follow=follow)
    bench.listing(1, since=1)
    bench.grow_and_run(6)
    before = bench.head()
    bench.lists[STREAM] = answer
    outcome = bench.run()
    assert bench.head() == before
    assert outcome.truncations == {}
    assert said in why(outcome)


@pytest.mark.slow
def test_stream_of_another_hot_tier_has_its_policy_alone() -> None:
    bench = Listed(policy="size", min_size="10KiB")
    bench.lists[STREAM] = None
    bench.grow_and_run(6)
    assert bench.head() == Position(6, 0)
    assert bench.cycle().plan(STREAM).decision is not None


@pytest.mark.slow
def test_without_the_setting_no_broker_is_asked() -> None:
    bench = Listed(policy="size", min_size="10KiB")
    bench.settings = Settings.of({"retention": {"record_interval": "0.5m", "policy": "size", "min_size": "10KiB"}})
    outcome = bench.grow_and_run(6)
    assert outcome.decision is not None
    assert outcome.decision.broker is None
    assert bench.head() == Position(6, 0)


def test_process_without_a_source_moves_nothing() -> None:
    bench = Listed(policy="size", min_size="10KiB")
    bench.listing(1)
    bench.grow_and_run(6)
    before = bench.head()
    cycle = RetentionCycle(bench.store, clock=bench.clock, settings_of=lambda _: bench.settings)
    assert "isn't connected to its broker" in why(cycle.run(STREAM))
    assert bench.head() == before


def test_topic_keeps_what_any_partition_lists() -> None:
    bench = Listed(policy="consumption")
    for number in (0, 1):
        bench.grow(PARTITION.format(number), 4)
    bench.subscribe("all", TOPIC)
    bench.publish("all", {0: Position(4, 0), 1: Position(3, 0)}, TOPIC)
    bench.listing(2, 3, 4, stream=PARTITION.format(0))
    outcome = bench.run(TOPIC)
    assert outcome.truncations == {}
    assert "lists are unknown in partition 1" in why(outcome)
    bench.listing(4, stream=PARTITION.format(1))
    assert why(bench.run(TOPIC)).endswith("the broker still lists ledger 2 in partition 0, ledger 4 in partition 1")
    assert bench.head(PARTITION.format(0)) == Position(2, 0)
    assert bench.head(PARTITION.format(1)) == Position(3, 0)


# --- the broker's trim ----------------------------------------------------------------------------------------------


def test_trim_is_followed_without_a_policy() -> None:
    bench = Listed(follow=True)
    bench.grow(ledgers=5)
    bench.listing(1, 2, 3, 4, 5, since=1)
    assert bench.run().truncations == {}
    bench.listing(4, 5, since=1)
    outcome = bench.run()
    assert outcome.decision is not None
    assert outcome.decision.rule is Rule.FOLLOWS_BROKER
    assert bench.head() == Position(4, 0)
    assert bench.run().truncations == {}


@pytest.mark.slow
@pytest.mark.parametrize("since", [None, 4, 5])
def test_topic_that_was_created_again_or_trimmed_before_moves_nothing(since: int | None) -> None:
    bench = Listed(follow=True)
    bench.grow(ledgers=5)
    bench.listing(5, since=since)
    outcome = bench.run()
    assert bench.head() is None
    assert outcome.decision is not None
    assert outcome.decision.broker is not None
    assert len(outcome.decision.broker.not_followed) == 1
    # Cut once by hand, the stream begins where the list is known from.
    if since is not None:
        truncate_stream(ManifestLog(bench.memory, STREAM, clock=bench.clock), Position(since, 0), clock=bench.clock)
        bench.run()
        assert bench.head() == Position(5, 0)


def test_ledgers_that_the_deletion_lag_released_were_not_trimmed_by_the_broker() -> None:
    bench = Listed(follow=True)
    bench.grow(ledgers=5)
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([HotReleased((1, 2))])
    bench.listing(3, 4, 5, since=1)
    outcome = bench.run()
    assert outcome.decision is not None
    assert outcome.decision.broker is not None
    assert "ledger 2 was released after the deletion lag" in outcome.decision.broker.not_followed[0]
    assert bench.head() is None


def test_stream_on_hold_does_not_follow() -> None:
    bench = Listed(follow=True)
    bench.grow(ledgers=5)
    bench.listing(4, 5, since=1)
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([Hold(True, "audit")])
    outcome = bench.run()
    assert outcome.decision is not None
    assert outcome.decision.broker is not None
    assert outcome.decision.broker.not_followed == ("the stream is on hold",)
    assert bench.head() is None


def test_subscriber_keeps_what_the_broker_trimmed() -> None:
    bench = Listed(follow=True)
    bench.grow(ledgers=5)
    bench.subscribe("audit")
    bench.publish("audit", Position(2, 4))
    bench.listing(5, since=1)
    bench.run()
    assert bench.head() == Position(2, 4)
    plan = bench.cycle().plan(STREAM)
    assert "broker   its trim isn't followed further: subscriber audit hasn't read it" in list(explain(plan))


# --- truncation by command ------------------------------------------------------------------------------------------


def test_truncation_past_a_listed_ledger_needs_force() -> None:
    bench = Listed()
    bench.grow(ledgers=5)
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    for position in (Position(3, 1), Position(4, 0)):
        with pytest.raises(EditRefusedError, match="the broker still lists ledger 3") as raised:
            truncate_stream(log, position, clock=bench.clock, listed=3)
        assert "stops there" in raised.value.hint
    assert truncate_stream(log, Position(3, 0), clock=bench.clock, listed=3).moves
    assert truncate_stream(log, Position(4, 0), clock=bench.clock, listed=3, force=True).moves
    assert bench.head() == Position(4, 0)


def test_topic_is_truncated_in_no_partition_if_one_refuses() -> None:
    bench = Listed()
    heads = {PARTITION.format(number): Position(3, 0) for number in (0, 1)}
    for name in heads:
        bench.grow(name, 4)
    with pytest.raises(EditRefusedError, match="the broker still lists ledger 2"):
        truncate_topic(bench.memory, TOPIC, heads, clock=bench.clock, by="tester", listed={PARTITION.format(1): 2})
    assert [bench.head(name) for name in heads] == [None, None]
