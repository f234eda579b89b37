"""Readers of a group: shares, checkpoints, crashes, ends, and requests of an idle reader."""

from __future__ import annotations

import pytest

from offloader.errors import ClosedError, InvalidCallError, NotFoundError, ReaderExpiredError
from offloader.groups.group_reader import Checkpoint
from offloader.groups.reader_groups import RetentionType
from tests.groups.group_bench import GroupBench


@pytest.mark.slow
def test_two_readers_deliver_each_entry_once() -> None:
    bench = GroupBench(partitions=5)
    one = bench.group.join("one")
    bench.turn(one, most=2)
    two = bench.group.join("two")
    bench.rounds(one, two, number=8)
    assert (bench.share("one"), bench.share("two")) == (3, 2)
    for number in range(5):
        bench.append(number, 3)
    bench.clock.advance(10)
    found = bench.turn(one, two)
    assert len(found["one"].entries) == 9
    assert len(found["two"].entries) == 6
    assert sorted(bench.delivered) == bench.expected()


@pytest.mark.slow
def test_new_reader_has_its_share_within_two_heartbeats() -> None:
    bench = GroupBench(partitions=6)
    one = bench.group.join("one")
    bench.turn(one)
    two = bench.group.join("two")
    assert two.streams == {}
    for _ in range(2):
        bench.clock.advance(10)
        bench.turn(one, two)
    assert (len(one.streams), len(two.streams)) == (3, 3)


@pytest.mark.slow
def test_partitions_of_a_reader_that_leaves_go_to_the_others_where_it_stopped() -> None:
    bench = GroupBench(partitions=4)
    one, two = bench.group.join("one"), bench.group.join("two")
    bench.rounds(one, two, number=8)
    two.close()
    bench.clock.advance(3)
    bench.turn(one)
    assert bench.share("one") == 4
    assert sorted(bench.delivered) == bench.expected()
    with pytest.raises(ClosedError, match="left its group"):
        next(two)


@pytest.mark.slow
def test_reader_that_fails_in_the_application_gives_back_what_was_not_confirmed() -> None:
    bench = GroupBench(partitions=1, entries=10)

    def fail() -> None:
        with bench.group.join("one") as one:
            next(one)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert bench.positions() == {0: "None"}
    with bench.group.join("one") as one:
        bench.turn(one)
    assert bench.positions() == {0: "1:10"}


@pytest.mark.slow
def test_dead_reader_is_released_at_its_last_checkpoint_and_blocks_none() -> None:
    bench = GroupBench(partitions=4, automatic_checkpoint_ms=0)
    one, two = bench.group.join("one"), bench.group.join("two")
    bench.rounds(one, two, number=8)
    bench.group.initiate_checkpoint("c1")
    bench.rounds(one, two, number=2)
    assert bench.state().checkpoints[0].behind == ()
    for number in range(4):
        bench.append(number, 5)
    bench.clock.advance(10)
    lost = bench.turn(two)["two"].entries
    assert len(lost) == 10, "delivered, and not confirmed"
    bench.group.initiate_checkpoint("c2")
    bench.delivered = [each for each in bench.delivered if each not in lost]
    for _ in range(5):
        bench.clock.advance(10)
        bench.turn(one)
    assert bench.share("one") == 4
    assert bench.state().checkpoints[-1].behind == ()
    assert sorted(bench.delivered) == bench.expected()
    with pytest.raises(ReaderExpiredError, match="silent for more than 30 s"):
        next(two)
    with pytest.raises(ReaderExpiredError):
        next(two)


@pytest.mark.slow
def test_second_reader_of_a_name_fences_the_first() -> None:
    bench = GroupBench(partitions=2)
    first = bench.group.join("one")
    bench.turn(first)
    second = bench.group.join("one")
    bench.clock.advance(3)
    with pytest.raises(ReaderExpiredError, match="joined again by another process"):
        next(first)
    assert bench.share("one") == len(second.streams) == 2
    assert len(bench.turn(second)["one"].entries) == 20


@pytest.mark.slow
def test_restarted_reader_goes_on_at_its_last_checkpoint() -> None:
    bench = GroupBench(partitions=2, automatic_checkpoint_ms=10_000)
    one = bench.group.join("one")
    bench.turn(one)
    bench.clock.advance(10)
    bench.turn(one)
    assert set(bench.positions().values()) == {"1:10"}
    bench.append(0, 7)
    bench.clock.advance(5)
    bench.turn(one)  # and dies
    again = bench.group.join("one")
    assert [str(position) for _, position in bench.turn(again)["one"].entries] == [f"1:{n}" for n in range(10, 17)]


@pytest.mark.slow
def test_automatic_checkpoint_is_published_when_all_readers_have_passed() -> None:
    bench = GroupBench(partitions=2, automatic_checkpoint_ms=30_000)
    one, two = bench.group.join("one"), bench.group.join("two")
    bench.turn(one, two)
    assert bench.cut() is None
    bench.clock.advance(10)
    names = bench.turn(one)["one"].checkpoints
    assert len(names) == 1
    assert bench.cut() is None
    bench.clock.advance(1)
    assert bench.turn(two)["two"].checkpoints == names
    assert bench.cut() == {"0.0": "1:10", "1.0": "1:10"}


@pytest.mark.slow
def test_checkpoint_event_is_no_consumption_until_the_application_asks_for_more() -> None:
    bench = GroupBench(partitions=1)
    one = bench.group.join("one")
    bench.turn(one)
    bench.group.initiate_checkpoint("c1")
    bench.clock.advance(3)
    assert next(one) == Checkpoint("c1")
    assert bench.cut() is None
    assert bench.positions() == {0: "None"}
    bench.turn(one)
    assert bench.cut() == {"0.0": "1:10"}


@pytest.mark.slow
def test_name_of_a_dropped_checkpoint_may_be_used_again() -> None:
    bench = GroupBench(partitions=1, automatic_checkpoint_ms=0)
    one = bench.group.join("one")
    for number in range(1, 4):
        bench.append(0, 1)
        bench.clock.advance(10)
        bench.turn(one)
        bench.group.initiate_checkpoint("again", keep=False)
        bench.clock.advance(3)
        assert bench.turn(one)["one"].checkpoints == ["again"]
        assert bench.cut() == {"0.0": f"1:{10 + number}"}


@pytest.mark.slow
def test_interval_of_zero_starts_no_checkpoint() -> None:
    bench = GroupBench(partitions=1, automatic_checkpoint_ms=0)
    one = bench.group.join("one")
    bench.rounds(one, number=20, seconds=10)
    assert bench.state().checkpoints == ()
    assert bench.cut() is None


@pytest.mark.slow
def test_manual_group_publishes_a_kept_checkpoint_only() -> None:
    bench = GroupBench(partitions=1, retention=RetentionType.MANUAL, automatic_checkpoint_ms=0)
    one = bench.group.join("one")
    bench.turn(one)
    bench.group.initiate_checkpoint("kept")
    bench.group.initiate_checkpoint("passing", keep=False)
    with pytest.raises(InvalidCallError, match="waits for one"):
        bench.group.update_truncation_checkpoint("kept")
    bench.clock.advance(3)
    assert bench.turn(one)["one"].checkpoints == ["kept", "passing"]
    with pytest.raises(InvalidCallError, match="checkpoint passing of reader group rg was not kept"):
        bench.group.update_truncation_checkpoint("passing")
    assert bench.cut() is None
    bench.group.update_truncation_checkpoint("kept")
    assert bench.cut() == {"0.0": "1:10"}
    with pytest.raises(NotFoundError, match="no checkpoint other"):
        bench.group.update_truncation_checkpoint("other")
