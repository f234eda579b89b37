"""Readers of a group: requests, ends, changed partitions, clocks, damaged documents, deleted entries."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from formats.documents import group_key
from formats.entries import Position
from formats.manifest import Truncate
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TrimmedError,
)
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import StreamCut
from offloader.retention.subscribers import open_retention
from offloader.store.base import OVERWRITE
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.groups.group_bench import TOPIC, GroupBench, TurnClock
from tests.support.streams import StreamWriter, batch_of


@pytest.mark.slow
@pytest.mark.parametrize("retention", [RetentionType.NONE, RetentionType.AUTOMATIC])
def test_idle_reader_makes_one_conditional_request_a_heartbeat(retention: RetentionType) -> None:
    renew_ms = 600_000  # a sign of life for the subscribers is more than one write
    bench = GroupBench(
        retention=retention, through=lambda store: FaultyStore(store, clock=ManualClock()), renew_ms=renew_ms
    )
    one, two = bench.group.join("one"), bench.group.join("two")
    bench.rounds(one, two, number=40, seconds=1)
    assert isinstance(bench.store, FaultyStore)
    assert (bench.share("one"), bench.share("two")) == (2, 2)
    before = len(bench.store.calls)
    for _ in range(50):
        bench.clock.advance(1)
        bench.turn(one, two)
    calls = bench.store.calls[before:]
    writes = [key for verb, key in calls if verb == "put"]
    assert writes == [group_key("rg")] * len(writes)
    assert 8 <= len(writes) <= 10, "five heartbeats of two readers"


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", range(1, 16, 2))
def test_failed_write_of_the_group_delivers_no_entry_twice(call: int, after: bool) -> None:
    bench = GroupBench(partitions=3, through=lambda store: FaultyStore(store, clock=ManualClock()))
    assert isinstance(bench.store, FaultyStore)
    one = bench.group.join("one")
    error = OutcomeUnknownError if after else StoreUnavailableError
    bench.store.set_faults([Fault(call=call, verb="put", key_part="_groups/", after=after, error=error, calls=3)])
    readers = [one]
    for turn in range(20):
        for reader in readers:
            with suppress(StoreUnavailableError, OutcomeUnknownError):
                bench.turn(reader)
        bench.clock.advance(4)
        if turn == 3:
            with suppress(StoreUnavailableError, OutcomeUnknownError):
                readers.append(bench.group.join("two"))
    assert sorted(bench.delivered) == bench.expected()
    assert bench.cut() == {f"{number}.0": "1:10" for number in range(3)}


@pytest.mark.slow
def test_idle_group_shows_its_streams_that_it_is_alive() -> None:
    bench = GroupBench(partitions=2)
    one, two = bench.group.join("one"), bench.group.join("two")
    for _ in range(30):
        bench.turn(one, two)
        bench.clock.advance(10)
    found = open_retention(bench.memory, TOPIC, clock=bench.clock).registry().subscribers["rg"]
    assert bench.clock.now_ms() - found.active_ms <= 80_000, "renewed every 60 s, at a heartbeat"
    assert found.active_ms - found.updated_ms > 200_000


@pytest.mark.slow
def test_kept_checkpoint_before_the_head_is_dropped_when_a_later_one_is_passed() -> None:
    bench = GroupBench(partitions=1, retention=RetentionType.MANUAL, automatic_checkpoint_ms=0)
    one = bench.group.join("one")
    for name in ("first", "second"):
        bench.turn(one)
        bench.group.initiate_checkpoint(name)
        bench.clock.advance(3)
        bench.turn(one)
        bench.append(0, 5)
        bench.clock.advance(10)
    log = ManifestLog(bench.memory, f"{TOPIC}-partition-0", clock=bench.clock)
    log.load()
    log.commit_as_maintainer([Truncate(Position(1, 12))])
    bench.turn(one)
    bench.group.initiate_checkpoint("third")
    bench.clock.advance(3)
    bench.turn(one)
    assert [row.name for row in bench.state().checkpoints] == ["second", "third"]
    with pytest.raises(NotFoundError, match="no checkpoint first"):
        bench.group.update_truncation_checkpoint("first")


@pytest.mark.slow
def test_group_reads_from_its_start_to_its_end_and_stops() -> None:
    starts, ends = StreamCut.of({"0.0": "1:2", "1.0": "1:5"}), StreamCut.of({"0.0": "1:8", "1.0": "1:10"})
    bench = GroupBench(partitions=2, starts={TOPIC: starts}, ends={TOPIC: ends})
    one, two = bench.group.join("one"), bench.group.join("two")
    bench.rounds(one, two, number=6)
    assert sorted(bench.delivered) == [each for each in bench.expected() if is_between(each[0], each[1])]
    assert bench.positions() == {0: "1:8", 1: "1:10"}
    bench.append(1, 5)
    bench.clock.advance(30)
    found = bench.turn(one, two)
    assert not found["one"].entries + found["two"].entries


def is_between(stream: str, position: Position) -> bool:
    return 2 <= position.entry_id < 8 if stream.endswith("0") else 5 <= position.entry_id < 10


@pytest.mark.slow
def test_group_reads_several_streams() -> None:
    bench = GroupBench(partitions=2)
    plain = StreamWriter(bench.memory, "a/plain", clock=bench.clock)
    plain.add([batch_of(7, 0, 4)])
    bench.groups.create("both", GroupConfig([TOPIC, "a/plain"], RetentionType.AUTOMATIC))
    with bench.groups.open("both").join("one") as one:
        assert sorted(one.streams) == ["a/plain", f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
        bench.turn(one)
    assert len(bench.delivered) == 24


@pytest.mark.slow
def test_new_partition_is_read_and_a_deleted_one_is_dropped() -> None:
    bench = GroupBench(partitions=2)
    one = bench.group.join("one")
    bench.turn(one)
    bench.writers[2] = bench.partition(2)
    bench.append(2, 5)
    for _ in range(8):
        bench.clock.advance(10)
        bench.turn(one)
    assert sorted(bench.delivered) == bench.expected()
    deleted(bench, 1)
    for _ in range(8):
        bench.clock.advance(10)
        bench.turn(one)
    assert sorted(one.streams) == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-2"]


def deleted(bench: GroupBench, number: int) -> None:
    stream = f"{TOPIC}-partition-{number}"

    def delete_objects(state: ManifestState) -> None:
        bench.memory.delete([key for each in state.segments.values() for key in each.object_keys(stream)])

    for _ in range(2):
        delete_stream(bench.memory, stream, clock=bench.clock, delete_objects=delete_objects)
        bench.clock.advance(86_401)


@pytest.mark.slow
def test_recreated_partition_is_read_from_its_beginning() -> None:
    bench = GroupBench(partitions=2)
    one = bench.group.join("one")
    bench.turn(one)
    deleted(bench, 1)
    bench.writers[1] = bench.partition(1)
    bench.append(1, 3)
    bench.delivered.clear()
    for _ in range(4):
        bench.clock.advance(10)
        bench.turn(one)
    assert [str(position) for _, position in bench.delivered] == ["1:0", "1:1", "1:2"]


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-5, 5])
def test_readers_whose_clocks_differ_by_hours_share_the_partitions(hours: int) -> None:
    bench = GroupBench(partitions=4)
    other = TurnClock(bench.clock.now_ms() + hours * 3_600_000)
    one, two = bench.group.join("one"), bench.open(other).open("rg").join("two")
    for _ in range(20):
        bench.turn(one, two)
        for clock in (bench.clock, other):
            clock.advance(5)
    assert (bench.share("one"), bench.share("two")) == (2, 2)
    assert sorted(bench.delivered) == bench.expected()
    assert bench.cut() == {f"{number}.0": "1:10" for number in range(4)}


@pytest.mark.slow
def test_damaged_document_ends_no_reader_once_it_is_put_back() -> None:
    bench = GroupBench(partitions=1)
    one = bench.group.join("one")
    bench.turn(one)
    good, _ = bench.memory.get(group_key("rg"))
    bench.memory.put(group_key("rg"), good[:-9] + b"?" * 9, mode=OVERWRITE)
    bench.clock.advance(10)
    with pytest.raises(CorruptError, match="_groups/rg"):
        next(one)
    with pytest.raises(CorruptError):
        bench.group.join("two")
    bench.memory.put(group_key("rg"), good, mode=OVERWRITE)
    bench.append(0, 2)
    bench.clock.advance(10)
    assert len(bench.turn(one)["one"].entries) == 2


@pytest.mark.slow
def test_deleted_document_is_a_group_that_does_not_exist() -> None:
    bench = GroupBench(partitions=1)
    one = bench.group.join("one")
    bench.turn(one)
    bench.memory.delete([group_key("rg")])
    bench.clock.advance(10)
    with pytest.raises(NotFoundError, match="reader group rg doesn't exist"):
        next(one)
    one.close()
    bench.groups.create("rg", GroupConfig([TOPIC]))
    with bench.groups.open("rg").join("one") as again:
        assert len(bench.turn(again)["one"].entries) == 10, "from the beginning: nothing is lost"


@pytest.mark.slow
def test_entries_deleted_before_they_were_read_are_an_error_once() -> None:
    bench = GroupBench(partitions=1, retention=RetentionType.NONE)
    one = bench.group.join("one")
    bench.turn(one, most=0)
    log = ManifestLog(bench.memory, f"{TOPIC}-partition-0", clock=bench.clock)
    log.load()
    bench.turn(one)
    bench.append(0, 10)
    log.load()
    log.commit_as_maintainer([Truncate(Position(1, 15))])
    bench.clock.advance(10)
    with pytest.raises(TrimmedError, match="1:15") as caught:
        bench.turn(one)
    assert caught.value.first_available == Position(1, 15)
    assert [str(position) for _, position in bench.turn(one)["one"].entries] == [f"1:{n}" for n in range(15, 20)]


def test_last_batch_may_be_given_back_in_part() -> None:
    bench = GroupBench(partitions=1)
    one = bench.group.join("one")
    next(one)
    one.close(unread=Position(1, 4))
    assert bench.positions() == {0: "1:4"}


def test_stop_ends_the_iteration() -> None:
    bench, stop = GroupBench(partitions=1), threading.Event()
    one = bench.group.join("one", stop=stop)
    next(one)
    stop.set()
    assert list(one) == []
    one.close()
    assert bench.positions() == {0: "1:10"}


def test_times_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidCallError, match="expiry_ms of a reader group is 15000, at least 20000"):
        GroupConfig([TOPIC], expiry_ms=15_000)
    with pytest.raises(InvalidCallError, match="heartbeat_ms of a reader group is 0"):
        GroupConfig([TOPIC], heartbeat_ms=0)
    with pytest.raises(InvalidCallError, match="automatic_checkpoint_ms of a reader group is -1"):
        GroupConfig([TOPIC], automatic_checkpoint_ms=-1)


def test_unknown_groups_and_names_of_readers_are_refused() -> None:
    bench = GroupBench(partitions=1)
    with pytest.raises(NotFoundError, match="reader group other doesn't exist"):
        bench.groups.open("other")
    with pytest.raises(InvalidCallError, match="is not a valid reader name"):
        bench.group.join(" one")
