"""Times and sizes in a retention cycle stay true whatever happens between its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from formats.documents import GLOBAL_HOLD_KEY, intent_key
from formats.entries import Position
from offloader.errors import NotFoundError, OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import cleanup_stream
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.protection import ClockSkewError
from offloader.retention.cycle import RetentionCycle
from offloader.retention.state import BoundKind
from offloader.retention.subscribers import open_retention
from offloader.retention.truncate import truncate_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.retention.retained_streams import ENTRIES, KIB, STREAM, TOPIC, Bench
from tests.support.streams import StreamWriter, batch_of

_Answer = TypeVar("_Answer")


class Meanwhile(StoreWrapper):
    """Before each request something may happen, until it did once.

    Args:
        happen: whether it did.
    """

    def __init__(self, inner: ObjectStore, happen: Callable[[Request], bool]) -> None:
        super().__init__(inner)
        self._happen, self._has_happened = happen, False

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self._has_happened = self._has_happened or self._happen(request)
        return call()


def test_nothing_of_a_recorded_tail_is_younger_than_its_record() -> None:
    bench = Bench(policy="time", min_age="10m")
    bench.grow()

    def grows(request: Request) -> bool:
        """While the manifest is read nine minutes pass, and another ledger comes."""
        if "/manifest/" in request.key:
            bench.clock.advance(8 * 60)
            bench.grow()
        return "/manifest/" in request.key

    bench.cycle(Meanwhile(bench.memory, grows)).run(STREAM)
    (record,) = bench.remembered().records.records
    assert str(record.cut) == "0.0=2:10"
    bench.clock.advance(3 * 60)
    # Of the second ledger everything is four minutes old.
    assert bench.run().truncations == {}
    assert bench.head() is None
    bench.clock.advance(8 * 60)
    bench.run()
    assert bench.head() is not None


def test_a_clock_that_went_back_behind_what_was_recorded_stops_retention() -> None:
    bench = Bench(policy="size", min_size="10KiB")
    bench.grow_and_run(1)
    bench.grow(ledgers=2)
    bench.clock.set_now_ms(bench.clock.now_ms() - 3600_000)
    before = bench.objects()
    with pytest.raises(ClockSkewError, match="behind existing records"):
        bench.run()
    assert bench.objects() == before
    assert bench.head() is None


def test_sizes_continue_after_truncation_by_an_interrupted_cycle() -> None:
    bench = Bench(policy="size", min_size="10KiB")
    bench.grow_and_run(1)
    bench.grow()
    # What comes after the truncation is lost with the process.
    bench.store.set_faults([Fault(call=2, verb="put", key_part="/records", calls=1000)])
    with pytest.raises(OffloaderError):
        bench.run()
    bench.store.set_faults([])
    assert bench.head() == Position(2, 0)
    settings = Settings.of({"cleanup": {"grace_period": "0h", "allow_large_delete": True}})
    for _ in range(2):
        cleanup_stream(bench.memory, STREAM, clock=bench.clock, settings=settings)
    assert len(load_manifest(bench.memory, STREAM).segments) == 1
    bench.grow()
    bench.run()
    assert bench.remembered().records.newest.size_bytes == 30 * KIB


def test_sizes_continue_after_a_manual_truncation() -> None:
    bench = Bench(policy="size", min_size="1MiB")
    bench.grow_and_run(2)
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    truncate_stream(log, Position(2, 0), clock=bench.clock)
    bench.grow_and_run(1)
    settings = Settings.of({"cleanup": {"grace_period": "0h", "allow_large_delete": True}})
    for _ in range(2):
        cleanup_stream(bench.memory, STREAM, clock=bench.clock, settings=settings)
    assert len(load_manifest(bench.memory, STREAM).segments) == 2
    bench.grow_and_run(1)
    assert bench.remembered().records.newest.size_bytes == 40 * KIB


@pytest.mark.slow
@pytest.mark.parametrize("is_truncated", [False, True])
def test_sizes_grow_with_what_is_written_though_a_partition_left_uncounted(is_truncated: bool) -> None:
    bench = Bench(policy="size", min_size="1MiB")
    zero, one = (f"{TOPIC}-partition-{number}" for number in range(2))
    for _ in range(2):
        bench.grow(one)
        bench.grow(zero)
        bench.run(TOPIC)
    if is_truncated:
        truncate_stream(ManifestLog(bench.memory, zero, clock=bench.clock), Position(2, 0), clock=bench.clock)
    for _ in range(2):
        remove_stream(bench.memory, one, clock=bench.clock)
        bench.clock.advance(25 * 3600)
    sizes = []
    for _ in range(3):
        bench.grow(zero)
        bench.run(TOPIC)
        sizes.append(bench.remembered(TOPIC).records.newest.size_bytes)
    assert sizes == [40 * KIB, 50 * KIB, 60 * KIB]


def test_added_partition_does_not_restart_the_fallback_period() -> None:
    bench = Bench(policy="consumption", subscriber_timeout="5m", fallback_after="60m", fallback_min_size="10KiB")
    zero, one = (f"{TOPIC}-partition-{number}" for number in range(2))
    for _ in range(2):
        bench.grow(zero)
        decision = bench.run(TOPIC).decision
        assert decision is not None
        assert decision.bound_kind is BoundKind.NOBODY_PUBLISHED
    bench.clock.advance(3600)
    bench.grow(one)
    decision = bench.run(TOPIC).decision
    assert decision is not None
    assert decision.bound_kind is BoundKind.GIVEN_UP
    # Recorded when nobody had heard of the other.
    assert (bench.head(zero), bench.head(one)) == (Position(2, 10), Position(1, 0))


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_two_cycles_at_once_that_cut_elsewhere_leave_min_together(comes_back: bool) -> None:
    """Each keeps 40 KiB: one all of partition 1, the other, of other subscribers, all of partition 0."""
    bench = Bench(policy="size", min_size="40KiB")
    streams = [f"{TOPIC}-partition-{number}" for number in range(2)]
    for stream in streams:
        bench.grow(stream, ledgers=4)
    retention = open_retention(bench.memory, TOPIC, clock=bench.clock)
    retention.add("x")
    retention.publish("x", {0: Position(4, 10)})

    def other(request: Request) -> bool:
        """Just before the first one's intent would be written."""
        if request.verb != "put" or request.key != intent_key(TOPIC):
            return False
        retention.remove("x")
        retention.add("y")
        retention.publish("y", {1: Position(4, 10)})
        bench.run(TOPIC)
        if comes_back:
            # To the first one nothing seems to have happened, but for where the partitions begin.
            retention.remove("y")
            retention.add("x")
            retention.publish("x", {0: Position(4, 10)})
        return True

    bench.cycle(Meanwhile(bench.memory, other)).run(TOPIC)
    heads = [bench.head(stream) for stream in streams]
    assert heads[1] == Position(4, 10)
    kept = sum(10 * KIB for head in heads for ledger in range(1, 5) if head is None or head <= Position(ledger, 0))
    assert kept >= 40 * KIB


def test_decision_is_dropped_when_a_partition_was_deleted_since() -> None:
    bench = Bench(policy="size", min_size="10KiB")
    zero, one = (f"{TOPIC}-partition-{number}" for number in range(2))
    for stream in (zero, one):
        bench.grow(stream, ledgers=4)
    bench.subscribe("x", TOPIC)
    bench.publish("x", {0: Position(3, 0)}, TOPIC)
    asked = []

    def deleted(request: Request) -> bool:
        """Just before it is asked once more who subscribes, to carry out what was decided by that."""
        asked.extend([request] if request.key.endswith("/subscribers") else [])
        if len(asked) < 2:
            return False
        remove_stream(bench.memory, one, clock=bench.clock)
        return True

    with pytest.raises(NotFoundError, match="was deleted"):
        bench.cycle(Meanwhile(bench.memory, deleted)).run(TOPIC)
    assert bench.head(zero) is None


@pytest.mark.slow
def test_decision_is_not_carried_out_when_a_partition_was_purged_since() -> None:
    bench = Bench(policy="size", min_size="30KiB")
    zero, one = (f"{TOPIC}-partition-{number}" for number in range(2))
    for stream in (zero, one):
        bench.grow(stream, ledgers=4)
    bench.subscribe("x", TOPIC)
    bench.publish("x", {0: Position(4, 10)}, TOPIC)
    asked = []

    def deleted(request: Request) -> bool:
        """A day passes between the decision, which counts what both hold, and the question whether it still stands."""
        asked.extend([request] if request.key.endswith("/subscribers") else [])
        if len(asked) < 2:
            return False
        for _ in range(2):
            remove_stream(bench.memory, one, clock=bench.clock)
            bench.clock.advance(25 * 3600)
        assert bench.memory.list(f"{one}/").objects == ()
        return True

    bench.cycle(Meanwhile(bench.memory, deleted)).run(TOPIC)
    # 30 of the 40 KiB that are left stay; of the 80 from before all of them could have gone.
    assert (bench.head(zero) or Position(1, 0)) <= Position(2, 0)


@pytest.mark.slow
def test_recreated_stream_is_not_cut_at_positions_of_its_predecessor() -> None:
    bench = Bench(policy="size", min_size="10KiB", max_size="20KiB")
    bench.grow_and_run(1)
    bench.grow(ledgers=4)

    def created_again(request: Request) -> bool:
        """After the decision was found to stand: what truncates asks for a stop first."""
        if request.key != GLOBAL_HOLD_KEY:
            return False
        for _ in range(2):
            remove_stream(bench.memory, STREAM, clock=bench.clock)
            bench.clock.advance(25 * 3600)
        del bench.writers[STREAM], bench.ledgers[STREAM]
        bench.grow(ledgers=5)
        return True

    with pytest.raises(NotFoundError):
        bench.cycle(Meanwhile(bench.memory, created_again)).run(STREAM)
    assert load_manifest(bench.memory, STREAM).first_position() == Position(1, 0)


def test_a_stream_of_which_nothing_is_left_has_no_tail_to_record() -> None:
    bench = Bench(policy="consumption")
    bench.grow(ledgers=2)
    bench.subscribe("billing")
    bench.publish("billing", Position(2, 10))
    first = bench.run()
    assert (first.is_recorded, bench.head()) == (True, Position(2, 10))
    bench.clock.advance(3600)
    assert not bench.run().is_recorded
    assert bench.remembered().records.records == ()


@pytest.mark.slow
def test_old_records_are_thinned_by_the_cycles() -> None:
    bench = Bench(policy="size", min_size="1000MiB")
    bench.grow_and_run(40)
    records = bench.remembered().records.records
    assert len(records) < 40
    assert (records[0].size_bytes, records[-1].size_bytes) == (10 * KIB, 400 * KIB)


def test_unpublished_subscriber_is_protected_until_the_timeout() -> None:
    bench = Bench(policy="consumption", subscriber_timeout="10m", protect_unpublished=True)
    bench.grow(ledgers=2)
    for name in ("never", "fast"):
        bench.subscribe(name)
    heads = []
    for _ in range(2):
        bench.publish("fast", Position(2, 0))
        bench.run()
        heads.append(bench.head())
        bench.clock.advance(601)
    assert heads == [None, Position(2, 0)]


def test_ledger_offloaded_during_a_cycle_counts_by_its_manifest() -> None:
    bench = Bench(policy="size", min_size="1000KiB")
    bench.grow(ledgers=1)
    hot = MemoryLedgers(STREAM, bench.clock)
    for _ in range(2):
        hot.append([b"x" * KIB] * ENTRIES)
        hot.close_ledger()
    listed = hot.ledgers

    def offloaded_and_deleted() -> list[LedgerInfo]:
        if len(listed()) == 2:
            bench.grow()
            hot.delete(2)
        return listed()

    hot.ledgers = offloaded_and_deleted  # type: ignore[method-assign]
    cycle = RetentionCycle(
        bench.memory, clock=bench.clock, settings_of=lambda _: bench.settings, source_of=lambda _: hot
    )
    assert cycle.run(STREAM).unread_bytes == 20 * KIB


def test_segments_that_are_offloaded_during_a_cycle_take_no_part_in_its_decision() -> None:
    bench = Bench(policy="size", min_size="20KiB")
    hot = MemoryLedgers(STREAM, bench.clock)
    hot.append([b"x" * KIB] * 4 * ENTRIES)
    writer = StreamWriter(bench.memory, STREAM, clock=bench.clock)
    writer.add([batch_of(1, 0, ENTRIES, size=KIB)])

    def offloads(request: Request) -> bool:
        """Once all entries are counted, the rest of the open ledger is offloaded in three segments."""
        if not request.key.endswith("/subscribers"):
            return False
        for first in range(ENTRIES, 4 * ENTRIES, ENTRIES):
            writer.add([batch_of(1, first, ENTRIES, size=KIB)])
        return True

    store = Meanwhile(bench.memory, offloads)
    cycle = RetentionCycle(
        store, clock=bench.clock, settings_of=lambda _: bench.settings, source_of=lambda _: hot, by="tester"
    )
    cycle.run(STREAM)
    assert bench.head() == Position(1, ENTRIES)
    cycle.run(STREAM)
    assert bench.head() == Position(1, 2 * ENTRIES)
