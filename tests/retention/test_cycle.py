"""Retention cycles over real manifests: records, decisions, truncations, and failures at any request."""

from __future__ import annotations

from typing import Any

import pytest

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import CorruptError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import ClockSkewError
from offloader.read.reader import open_stream_reader
from offloader.retention.cycle import RetentionCycle
from offloader.retention.state import OverrideReason, Rule, read_decisions
from offloader.retention.subscribers import open_retention
from offloader.retention.truncate import truncate_stream, truncate_topic
from offloader.settings.retention import RetentionSettings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.retention.retained_streams import ENTRIES, KIB, STREAM, TOPIC, Bench


def test_stream_above_its_size_loses_only_the_oldest_ledgers_needed() -> None:
    bench = Bench(policy="size", min_size="30KiB")
    outcome = bench.grow_and_run(6)
    # 60 KiB were written, each cycle leaves at least 30 behind the newest recorded cut.
    assert bench.head() == Position(4, 0)
    assert outcome.decision is not None
    assert outcome.decision.rule is Rule.MIN_WITHOUT_BOUND
    assert outcome.bytes_truncated == 10 * KIB
    reader = open_stream_reader(bench.memory, STREAM)
    assert reader.first_position == Position(4, 0)
    assert reader.last_position == Position(6, ENTRIES - 1)


def test_plan_equals_the_following_run_and_writes_nothing() -> None:
    bench = Bench(policy="size", min_size="10KiB")
    bench.grow(ledgers=2)
    bench.run()
    bench.grow(ledgers=2)
    assert bench.head() == Position(2, 0)
    before = bench.objects()
    plan = bench.cycle().plan(STREAM)
    assert bench.objects() == before
    assert plan.decision is not None
    assert plan.decision.cut is not None
    done = bench.run()
    assert done.decision == plan.decision
    assert done.truncations[STREAM].head == Position(4, 0) == bench.head()


def test_nothing_is_deleted_or_written_without_a_policy() -> None:
    bench = Bench()
    bench.grow(ledgers=3)
    before = bench.objects()
    outcome = bench.run()
    assert outcome.policy is None
    assert outcome.decision is None
    assert bench.objects() == before


def test_streams_that_brokers_keep_for_themselves_are_exempt() -> None:
    bench = Bench(policy="size", min_size="1KiB")
    bench.grow("public/default/persistent/__change_events", 3)
    assert bench.run("public/default/persistent/__change_events").decision is None


def test_entries_read_by_all_subscribers_are_truncated_and_unread_ones_stay() -> None:
    bench = Bench(policy="consumption")
    bench.grow(ledgers=3)
    for name in ("fast", "slow"):
        bench.subscribe(name)
    bench.publish("fast", Position(3, 0))
    bench.publish("slow", Position(2, 4))
    outcome = bench.run()
    # A position inside a block: the head is exact, the segment stays until all of it is before the head.
    assert bench.head() == Position(2, 4)
    assert outcome.unread_entries == 16
    assert {lag.name: lag.unread_entries for lag in outcome.lags} == {"fast": 10, "slow": 16}
    assert bench.run().decision is not None
    assert bench.head() == Position(2, 4)


def test_unread_data_above_max_is_truncated_and_the_losing_subscriber_recorded() -> None:
    bench = Bench(policy="consumption", min_size="10KiB", max_size="30KiB")
    bench.grow()
    bench.subscribe("slow")
    bench.publish("slow", Position(1, 2))
    bench.grow_and_run(5)
    retention = open_retention(bench.memory, STREAM, clock=bench.clock)
    lost = [each for each in read_decisions(retention, retention.scope()) if each["overridden"]]
    head = bench.head()
    assert head is not None
    assert Position(2, 0) < head
    assert [each["name"] for each in lost[0]["overridden"]] == ["slow"]
    assert lost[0]["overridden"][0]["reason"] == OverrideReason.ABOVE_MAX.name.lower()


def test_age_decides_by_the_records_and_is_counted_from_the_head_on() -> None:
    bench = Bench(policy="time", min_age="3m")
    bench.grow_and_run(8)
    # Recorded a minute apart: the newest cut that is three minutes old.
    assert bench.head() == Position(6, 0)
    past = bench.remembered()
    assert past.head_ms == bench.clock.now_ms() - 180_000
    assert [record.cut.offsets for record in past.records.records]
    assert past.records.records[0].time_ms > past.head_ms


def test_a_tail_that_doesnt_move_is_recorded_once() -> None:
    bench = Bench(policy="time", min_age="1000m")
    bench.grow(ledgers=2)
    assert bench.run().is_recorded
    before = bench.objects()
    for _ in range(3):
        bench.clock.advance(3600)
        assert not bench.run().is_recorded
    assert bench.objects() == before


@pytest.mark.slow
def test_nothing_is_recorded_sooner_than_the_period_allows() -> None:
    bench = Bench(policy="size", min_size="1000KiB", record_interval="5m")
    recorded = []
    for _ in range(11):
        bench.grow()
        recorded.append(bench.run().is_recorded)
    assert recorded.count(True) == 2
    assert len(bench.remembered().records.records) == 2


@pytest.mark.slow
def test_each_cycle_that_finds_new_entries_records_the_tail() -> None:
    """Also sooner after the last one than cycles are apart: their times vary."""
    for policy in ({"policy": "consumption"}, {"policy": "size", "min_size": "1000KiB"}):
        bench = Bench(**policy, record_interval=60 * (RetentionSettings().record_interval.minutes))
        recorded = []
        for _ in range(5):
            bench.grow()
            recorded.append(bench.run().is_recorded)
            assert not bench.run().is_recorded
        assert recorded == [True] * 5
        assert len(bench.remembered().records.records) == 5


def test_manual_truncation_removes_used_records() -> None:
    bench = Bench(policy="size", min_size="1000KiB")
    bench.grow_and_run(4)
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    truncate_stream(log, Position(3, 0), clock=bench.clock)
    bench.grow()
    bench.run()
    past = bench.remembered()
    assert len(past.records.records) == 3
    assert past.head_ms is not None
    assert past.head_ms < past.records.records[0].time_ms


@pytest.mark.slow
def test_a_topic_is_truncated_as_one_stream() -> None:
    bench = Bench(policy="size", min_size="40KiB")
    for _ in range(4):
        for number in range(3):
            bench.grow(f"{TOPIC}-partition-{number}")
        bench.run(TOPIC)
    # 30 KiB each time: the newest cut that keeps 40 is the one before the last.
    assert [bench.head(f"{TOPIC}-partition-{number}") for number in range(3)] == [Position(3, 0)] * 3
    with pytest.raises(InvalidCallError, match="is partition 0 of a topic"):
        bench.run(f"{TOPIC}-partition-0")


def test_subscriber_registered_during_a_decision_counts() -> None:
    bench = Bench(policy="consumption", protect_unpublished=True)
    bench.grow(ledgers=3)
    bench.subscribe("fast")
    bench.publish("fast", Position(3, 0))
    real, seen = bench.memory.get, list[str]()

    class Meddling(MemoryStore):
        def __init__(self) -> None:
            self.__dict__ = bench.memory.__dict__

        def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            found = real(key, *args, **kwargs)
            if key.endswith("/subscribers") and not seen:
                seen.append(key)
                bench.subscribe("late")
            return found

    RetentionCycle(Meddling(), clock=bench.clock, settings_of=lambda _: bench.settings).run(STREAM)
    assert seen
    assert bench.head() is None


@pytest.mark.slow
def test_min_is_kept_in_the_cycle_that_finds_a_partition_deleted() -> None:
    bench = Bench(policy="size", min_size="25KiB")
    names = [f"{TOPIC}-partition-{number}" for number in range(2)]
    bench.grow(names[0], ledgers=3)
    bench.grow(names[1], ledgers=6)
    bench.subscribe("ann", TOPIC)
    bench.publish("ann", {0: Position(1, 0)}, TOPIC)
    bench.run(TOPIC)
    for _ in range(2):
        delete_stream(bench.memory, names[1], clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(25 * 3600)
    bench.publish("ann", {0: Position(3, 0)}, TOPIC)
    bench.grow(names[0])
    bench.run(TOPIC)
    head = bench.head(names[0])
    assert head is None or head <= Position(2, 5), "4 ledgers of 10 KiB are there"


def test_overtaken_cycle_leaves_recorded_sizes_unchanged() -> None:
    """It reads the stream before the other cycle does, and records after it."""
    bench = Bench(policy="size", min_size="10KiB")
    bench.grow(ledgers=3)
    seen = list[str]()

    class Overtaken(FaultyStore):
        def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            if key.endswith("/subscribers") and not seen:
                seen.append(key)
                bench.grow(ledgers=3)
                bench.run()
            return super().get(key, *args, **kwargs)

    bench.cycle(Overtaken(bench.memory)).run(STREAM)
    assert seen
    assert [record.size_bytes for record in bench.remembered().records.records] == [60 * KIB]
    bench.grow_and_run(1)
    assert bench.remembered().records.newest.size_bytes == 70 * KIB
    assert bench.head() == Position(7, 0), "10 KiB are kept"


def test_held_stream_is_not_truncated() -> None:
    bench = Bench(policy="size", min_size="10KiB")
    bench.grow(ledgers=2)
    bench.run()
    bench.grow(ledgers=2)
    bench.writers[STREAM].log.commit_as_maintainer([Hold(on=True, reason="audit")])
    for _ in range(3):
        with pytest.raises(OffloaderError, match="hold"):
            bench.run()
    assert bench.head() == Position(2, 0)
    # Said once, not with each try: what is kept of decisions is bounded. The other one is of before the hold.
    retention = open_retention(bench.memory, STREAM, clock=bench.clock)
    kept = [each["cut"] for each in read_decisions(retention, retention.scope())]
    assert len([cut for cut in kept if cut is not None]) == 2


def test_consumed_entries_not_yet_offloaded_stay() -> None:
    """Readers of the hot tier are ahead of the offloading."""
    bench = Bench(policy="consumption")
    bench.grow(ledgers=2)
    hot = MemoryLedgers(STREAM, bench.clock)
    for _ in range(4):
        hot.append([b"x" * KIB] * ENTRIES)
        hot.close_ledger()
    retention = open_retention(bench.memory, STREAM, source_of=lambda _: hot, clock=bench.clock)
    retention.add("ahead")
    retention.publish("ahead", Position(4, 0))
    cycle = RetentionCycle(
        bench.memory, clock=bench.clock, settings_of=lambda _: bench.settings, source_of=lambda _: hot
    )
    done = cycle.run(STREAM)
    assert done.decision is not None
    assert done.decision.is_held
    assert bench.head() == Position(3, 0), "the end of what is offloaded"


def test_clock_far_ahead_deletes_nothing() -> None:
    bench = Bench(policy="time", min_age="1m")
    bench.grow_and_run(3)
    head = bench.head()
    ahead = ManualClock()
    ahead.advance(bench.clock.monotonic_s() + 10 * 365 * 24 * 3600)
    cycle = RetentionCycle(bench.memory, clock=ahead, settings_of=lambda _: bench.settings)
    with pytest.raises(ClockSkewError):
        cycle.run(STREAM)
    assert bench.head() == head


def test_a_clock_that_jumps_back_while_the_process_runs_deletes_nothing() -> None:
    bench = Bench(policy="size", min_size="10KiB", max_size="20KiB")
    cycle = bench.cycle(bench.memory)
    bench.grow(ledgers=2)
    cycle.run(STREAM)
    bench.grow(ledgers=4)
    head, objects = bench.head(), bench.objects()
    bench.clock.set_now_ms(bench.clock.now_ms() - 3_600_000)
    with pytest.raises(ClockSkewError, match="jumped"):
        cycle.run(STREAM)
    assert (bench.head(), bench.objects()) == (head, objects)


@pytest.mark.slow
@pytest.mark.parametrize("off_s", [-3600, 3600])
def test_a_truncation_under_way_waits_for_a_clock_that_can_be_trusted(off_s: int) -> None:
    """A process truncated one partition of a topic and died; the next process has a wrong clock."""
    bench = Bench(policy="size", min_size="1000KiB")
    names = [f"{TOPIC}-partition-{number}" for number in range(2)]
    for name in names:
        bench.grow(name, ledgers=3)
    wanted = {name: Position(2, 0) for name in names}
    store = FaultyStore(bench.memory, [Fault(call=1, verb="put", key_part=f"{names[1]}/manifest/")])
    with pytest.raises(StoreUnavailableError):
        truncate_topic(store, TOPIC, wanted, clock=bench.clock, by="ana")
    wrong = ManualClock(bench.clock.now_ms() + off_s * 1000)
    cycle = RetentionCycle(bench.memory, clock=wrong, settings_of=lambda _: bench.settings)
    with pytest.raises(ClockSkewError):
        cycle.run(TOPIC)
    assert [bench.head(name) for name in names] == [Position(2, 0), None]
    bench.run(TOPIC)
    assert [bench.head(name) for name in names] == [Position(2, 0)] * 2


def test_damaged_subscribers_stop_retention_of_their_stream() -> None:
    bench = Bench(policy="consumption")
    bench.grow(ledgers=2)
    bench.subscribe("one")
    bench.publish("one", Position(2, 0))
    key = next(key for key in bench.objects() if key.endswith("/subscribers"))
    bench.memory.put(key, b"{}")
    with pytest.raises(CorruptError):
        bench.run()
    assert bench.head() is None


def test_bad_calls_are_refused_by_name() -> None:
    bench = Bench(policy="size", min_size="20KiB", max_size="10KiB")
    bench.grow(ledgers=2)
    with pytest.raises(InvalidCallError, match=r"retention\.min_size = .* is above max_size"):
        bench.run()
    with pytest.raises(NotFoundError, match="nowhere"):
        Bench(policy="consumption").run("public/default/persistent/nowhere")
    assert bench.head() is None


def test_subscriber_in_the_midst_of_a_segment_never_lets_go_of_what_min_keeps() -> None:
    """It isn't known how much of the segment is before it: at the most all."""
    bench = Bench(policy="size", min_size="35KiB")
    bench.grow(ledgers=4)
    bench.subscribe("billing")
    bench.publish("billing", Position(1, ENTRIES - 1))
    outcome = bench.run()
    assert outcome.decision is not None
    assert (outcome.decision.rule, bench.head()) == (Rule.NO_CUT_KEEPS_MIN, None)
    bench.grow()
    outcome = bench.run()
    assert outcome.decision is not None
    assert (outcome.decision.rule, bench.head()) == (Rule.BOUND, Position(1, ENTRIES - 1))
