"""Readers of a group over a scalable topic: a segment is read after those that it continues."""

from __future__ import annotations

import itertools
import random

import pytest

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.groups.group_reader import Checkpoint, GroupReader
from offloader.groups.group_service import open_reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.retention.cuts import StreamCut
from offloader.retention.subscribers import open_retention
from tests.groups.group_bench import TurnClock
from tests.retention.retained_streams import ENTRIES
from tests.retention.scalable_topic import NAME, PLACE, ScalableBench

pytestmark = pytest.mark.slow


class SegmentGroup(ScalableBench):
    """A scalable topic that grows, and the group ``rg`` whose readers take turns.

    Attributes:
        delivered: segment and position of each entry, in the order of delivery.
    """

    def __init__(self, retention: RetentionType = RetentionType.AUTOMATIC) -> None:
        super().__init__(policy="consumption")
        self.turns = TurnClock()
        self.delivered: list[tuple[int, Position]] = []
        self.fill(0)
        self.record()
        self.groups = open_reader_groups(self.memory, clock=self.turns)
        self.groups.create("rg", GroupConfig([NAME], retention, expiry_ms=3_600_000))
        self.group = self.groups.open("rg")

    def turn(self, *readers: GroupReader, most: int = 1000) -> None:
        """Each reader delivers everything that it has for now, or so many items."""
        numbers = {row.stream: number for number, row in self.rows.items()}
        for reader in readers:
            for item in itertools.islice(reader, most):
                if not isinstance(item, Checkpoint):
                    self.delivered += [(numbers[item[0]], entry.position) for entry in item[1].entries()]

    def rounds(self, *readers: GroupReader, number: int = 8) -> None:
        for _ in range(number):
            self.turn(*readers)
            self.turns.advance(10)
            self.clock.advance(10)

    def expected(self) -> list[tuple[int, Position]]:
        numbers = {row.stream: number for number, row in self.rows.items()}
        return sorted(
            (numbers[stream], entry.position) for stream, writer in self.writers.items() for entry in writer.entries
        )

    def require_order(self) -> None:
        """The first entry of a segment was delivered after every entry of those that it continues."""
        first, last = dict[int, int](), dict[int, int]()
        seen = set[tuple[int, Position]]()
        for place, each in enumerate(self.delivered):
            if each not in seen:
                seen.add(each)
                first.setdefault(each[0], place)
                last[each[0]] = place
        for number, row in self.rows.items():
            for parent in row.parents:
                assert first.get(number, len(self.delivered)) > last.get(parent, -1), (number, parent)

    def share(self, reader: str) -> int:
        return sum(row.reader == reader for row in self.groups.get("rg").assignments)

    def finished(self) -> list[int]:
        return [row.partition for row in self.groups.get("rg").assignments if row.is_finished]


def test_segments_are_read_after_those_that_they_continue() -> None:
    bench = SegmentGroup()
    children = bench.split(0)
    for child in children:
        bench.fill(child, 2)
    bench.fill(bench.merge(*children))
    bench.record()
    reader = bench.group.join("one")
    bench.rounds(reader)
    assert sorted(bench.delivered) == bench.expected()
    bench.require_order()
    assert bench.finished() == [0, 1, 2]
    assert bench.share("one") == 1


@pytest.mark.parametrize("seed", range(12))
def test_every_entry_is_read_in_order_through_splits_merges_and_changes_of_readers(seed: int) -> None:
    rng = random.Random(seed)
    bench = SegmentGroup()
    names = map("r{}".format, itertools.count())
    readers = [bench.group.join(next(names))]
    crashed = False
    for _ in range(25):
        active = bench.active()
        act = rng.choice(["fill", "fill", "split", "merge", "record", "turn", "turn", "join", "leave", "crash"])
        if act == "fill":
            bench.fill(rng.choice(active))
        elif act == "split" and len(active) < 6:
            bench.split(rng.choice(active))
        elif act == "merge" and len(active) > 1:
            ordered = sorted(active, key=lambda each: bench.rows[each].hash_start)
            place = rng.randrange(len(ordered) - 1)
            bench.merge(ordered[place], ordered[place + 1])
        elif act == "record":
            bench.record(ends=rng.random() < 0.7)
        elif act == "join" and len(readers) < 4:
            readers.append(bench.group.join(next(names)))
        elif act == "leave" and len(readers) > 1:
            readers.pop(rng.randrange(len(readers))).close()
        elif act == "crash":
            place = rng.randrange(len(readers))
            readers[place] = bench.group.join(readers[place].reader)  # its partitions begin at persisted positions
            crashed = True
        else:
            bench.turn(rng.choice(readers), most=rng.choice([1, 2, 1000]))
            bench.turns.advance(rng.choice([0, 3, 10]))
            bench.clock.advance(3)
    bench.record()
    bench.rounds(*readers, number=12 + 3 * len(bench.rows))
    assert sorted(set(bench.delivered)) == bench.expected()
    assert crashed or len(bench.delivered) == len(bench.expected())
    bench.require_order()
    shares = [bench.share(reader.reader) for reader in readers]
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == sum(bench.stream(number) in bench.writers for number in bench.active())
    for reader in readers:
        reader.close()
    bench.run(PLACE)
    bench.require_in_order()


def test_unread_entries_are_kept_and_consumed_ones_are_truncated_in_order() -> None:
    bench = SegmentGroup()
    children = bench.split(0)
    for child in children:
        bench.fill(child, 3)
    bench.record()
    one, two = bench.group.join("one"), bench.group.join("two")
    for _ in range(20):
        bench.turn(one, two, most=2)
        bench.turns.advance(10)
        bench.clock.advance(60)
        bench.run(PLACE)
        bench.require_in_order()
        consumed = set(bench.delivered)
        for number, head in bench.heads().items():
            if head is not None:
                deleted = [each for each in bench.expected() if each[0] == number and each[1] < head]
                assert consumed.issuperset(deleted)
    bench.rounds(one, two, number=20)
    assert sorted(bench.delivered) == bench.expected()
    assert bench.is_at_end(0)


def test_segment_without_entries_holds_nothing_back() -> None:
    bench = SegmentGroup()
    one, other = bench.split(0)
    bench.fill(bench.merge(one, other))  # nothing came between
    bench.record()
    reader = bench.group.join("one")
    bench.rounds(reader)
    assert sorted(bench.delivered) == bench.expected()
    bench.require_order()


def test_child_waits_until_the_store_has_the_recorded_end() -> None:
    bench = SegmentGroup()
    child, _ = bench.split(0)
    bench.fill(child)
    bench.record(ends=False)
    reader = bench.group.join("one")
    bench.rounds(reader)
    assert {number for number, _ in bench.delivered} == {0}
    bench.record()
    bench.rounds(reader)
    assert sorted(bench.delivered) == bench.expected()


def test_deleted_entries_of_a_segment_hold_nothing_back() -> None:
    bench = SegmentGroup(RetentionType.NONE)
    child, _ = bench.split(0)
    bench.fill(child)
    bench.record()
    open_retention(bench.memory, NAME, clock=bench.clock).add("billing")
    bench.publish("billing", {0: bench.newest[0].next()}, NAME)
    bench.run(PLACE)
    assert bench.is_at_end(0)
    reader = bench.group.join("one")
    bench.rounds(reader)
    assert [number for number, _ in bench.delivered] == [child] * ENTRIES


def test_start_and_end_are_refused() -> None:
    bench = SegmentGroup()
    for bound in ("starts", "ends"):
        config = GroupConfig([NAME], **{bound: {NAME: StreamCut.of({"0.0": "1:0"})}})  # type: ignore[arg-type]
        with pytest.raises(InvalidCallError, match="a reader group begins at its beginning and has no end"):
            bench.groups.create("other", config)
