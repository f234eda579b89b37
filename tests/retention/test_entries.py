"""Sizes and validity of cuts of our own streams, against counting entry by entry."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import Position
from formats.manifest import Assign, Edit, Gap, LedgerClosed, LedgersDeleted, Offloaded, Purged, Retire, Truncate
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import StreamCut
from offloader.retention.entries import Known, PartitionEntries, Size, StreamEntries
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import DRIVER, uuid_of

_names = itertools.count()
NOTHING_OFFLOADED = ManifestState(stream="hot", incarnation=UUID(int=0))


@dataclass
class World:
    """Ledgers of entries with sizes, some of them offloaded in segments; the truth to compare with."""

    sizes: dict[int, list[int]]
    closed: set[int]
    log: ManifestLog = field(init=False)
    segments: list[tuple[UUID, list[Position]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = ManualClock()
        self.log = ManifestLog(MemoryStore(f"own-cuts-{next(_names)}", "", clock), "orders", clock=clock)
        self.log.open_epoch()
        if self.closed:
            self.log.commit([LedgerClosed(each, len(self.sizes[each]) - 1) for each in sorted(self.closed)])

    @property
    def positions(self) -> list[Position]:
        return [Position(ledger, entry) for ledger, own in self.sizes.items() for entry in range(len(own))]

    def size_of(self, positions: list[Position]) -> int:
        return sum(self.sizes[p.ledger_id][p.entry_id] for p in positions)

    def offload(self, positions: list[Position]) -> None:
        """One segment of these entries, which are consecutive."""
        uuid = uuid_of(len(self.segments) + 1)
        spans = []
        for ledger, group in itertools.groupby(positions, key=lambda p: p.ledger_id):
            own = list(group)
            spans.append(LedgerSpan(ledger, own[0].entry_id, own[-1].entry_id, len(own), self.size_of(own)))
        summary = SegmentSummary(
            layout=Layout.V2, begin=positions[0], end=positions[-1], data_bytes=1, index_bytes=1, data_crc32c=0,
            index_crc32c=0, entries=len(positions), payload_bytes=self.size_of(positions), publish_time_min_ms=-1,
            publish_time_max_ms=-1, blocks=1, compressed=False, ledgers=tuple(spans),
        )  # fmt: skip
        edits: list[Edit] = [Assign(uuid, 2, positions[0], None, 5, DRIVER), Offloaded(uuid, summary, 6)]
        self.log.commit(edits)
        self.segments.append((uuid, positions))

    def hot(self, first_ledger: int) -> list[LedgerInfo]:
        return [
            LedgerInfo(
                ledger_id=ledger, closed=ledger in self.closed, entries=len(own), size_bytes=sum(own), created_ms=0
            )
            for ledger, own in self.sizes.items()
            if ledger >= first_ledger
        ]

    def pieces(self, count: int, with_hot: bool) -> list[list[Position]]:
        """The first ``count`` entries by segment and ledger, and the rest by ledger."""
        found = [
            list(group) for _, own in self.segments for _, group in itertools.groupby(own, key=lambda p: p.ledger_id)
        ]
        rest = self.positions[count:] if with_hot else []
        return found + [list(group) for _, group in itertools.groupby(rest, key=lambda p: p.ledger_id)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, int, bool]:
    """A world, how many of its entries are offloaded, and whether the hot tier has the others."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    ledgers = [3 * number + draw(st.integers(1, 3)) for number in range(len(counts))]
    sizes = {
        ledger: draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
        for ledger, count in zip(ledgers, counts, strict=True)
    }
    world = World(sizes, set(ledgers[:-1]))
    positions = world.positions
    cuts = sorted(draw(st.sets(st.integers(0, len(positions)), max_size=4)))
    for start, stop in itertools.pairwise([0, *cuts]):
        if stop > start:
            world.offload(positions[start:stop])
    count = sum(len(own) for _, own in world.segments)
    if draw(st.booleans()):
        world.log.checkpoint()
    return world, count, draw(st.booleans())


def entries_of(world: World, count: int, with_hot: bool, known: Known | None = None) -> PartitionEntries:
    first = world.positions[count].ledger_id if count < len(world.positions) else max(world.sizes)
    return PartitionEntries(world.log.load(), world.hot(first) if with_hot else [], known)


def places(world: World) -> list[Position]:
    """Every position of an entry, and the ends of the ledgers."""
    ends = [Position(ledger, len(own)) for ledger, own in world.sizes.items()]
    return sorted({*world.positions, *ends})


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(worlds())
def test_sizes_count_whole_pieces_and_never_overstate(drawn: tuple[World, int, bool]) -> None:
    world, count, with_hot = drawn
    found = entries_of(world, count, with_hot)
    pieces = world.pieces(count, with_hot)
    present = [p for piece in pieces for p in piece]
    for place in places(world):
        whole = [p for piece in pieces if piece[-1] < place for p in piece]
        size = found.before(place)
        assert size.payload_bytes == world.size_of(whole)
        assert size.entries == sum(1 for p in present if p < place)
        assert size.payload_bytes <= world.size_of([p for p in world.positions if p < place])
    assert found.total() == Size(world.size_of(present), len(present))
    if present:
        assert found.tail is not None
        assert found.before(found.tail) == found.total()
        assert found.tail == present[-1].next()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(worlds())
def test_only_places_between_entries_are_cuts(drawn: tuple[World, int, bool]) -> None:
    world, count, with_hot = drawn
    found = entries_of(world, count, with_hot)
    present = [p for piece in world.pieces(count, with_hot) for p in piece]
    after = {p.next() for p in present}
    # What the source said of ledgers lets a cut begin them, also empty ones.
    begins = {Position(ledger, 0) for ledger in (*world.closed, *(info.ledger_id for info in world.hot(0)))}
    for place in [Position(ledger, entry) for ledger in range(14) for entry in range(9)]:
        problem = found.problem(place)
        if place in after | set(present):
            assert not problem, problem
        elif place not in begins:
            assert problem


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_sizes_continue_after_truncated_segments_left_the_manifest(
    drawn: tuple[World, int, bool], data: st.DataObject
) -> None:
    world, count, _ = drawn
    if not count:
        return
    before = entries_of(world, count, with_hot=True)
    committed = world.positions[:count]
    head = data.draw(st.sampled_from([*committed, committed[-1].next()]))
    known = before.known(head)
    assert known.position <= head
    gone = [uuid for uuid, own in world.segments if own[-1] < head]
    deleted = tuple(ledger for ledger in sorted(world.closed) if ledger < head.ledger_id)
    edits: list[Edit] = [*([LedgersDeleted(deleted)] if deleted else []), Truncate(head)]
    state = world.log.commit_as_maintainer(edits)
    if gone:
        state = world.log.commit_as_maintainer([Retire(tuple(gone))])
        world.log.commit_as_maintainer([Purged(tuple(gone), state.record_id)])
    later = entries_of(world, count, True, known)
    for place in places(world):
        if place >= head:
            assert later.before(place) == before.before(place)
    assert later.total() == before.total()
    again = later.known(head)
    assert entries_of(world, count, True, again).total() == before.total()


def state_of(*ledgers: tuple[int, int], closed: set[int]) -> World:
    """Each ledger offloaded as a whole, entries of 10 bytes."""
    world = World({ledger: [10] * count for ledger, count in ledgers}, closed)
    for ledger, count in ledgers:
        world.offload([Position(ledger, entry) for entry in range(count)])
    return world


def test_the_end_of_a_ledger_is_the_beginning_of_the_next_one() -> None:
    found = PartitionEntries(state_of((1, 5), (4, 5), closed={1}).log.load())
    assert found.canonical(Position(1, 5)) == Position(4, 0)
    assert found.canonical(Position(4, 5)) == Position(4, 5)
    assert found.canonical(Position(1, 4)) == Position(1, 4)
    own = StreamEntries({0: found})
    end, begin = StreamCut.of({"0.0": "1:5"}), StreamCut.of({"0.0": "4:0"})
    assert own.reaches(end, begin)
    assert own.reaches(begin, end)
    assert not own.reaches(StreamCut.of({"0.0": "1:4"}), end)


def test_open_ledger_counts_as_empty_inside_and_full_at_its_end() -> None:
    open_ledger = LedgerInfo(ledger_id=7, closed=False, entries=100, size_bytes=5000, created_ms=0)
    found = PartitionEntries(NOTHING_OFFLOADED, [open_ledger])
    assert found.before(Position(7, 60)) == Size(0, 60)
    assert found.before(Position(7, 100)) == Size(5000, 100)
    assert found.tail == Position(7, 100)


def test_recorded_gaps_have_no_size_and_may_contain_a_cut() -> None:
    world = World({1: [10] * 10}, set())
    world.offload([Position(1, entry) for entry in range(4)])
    world.log.commit([Gap(Position(1, 4), Position(1, 7), "lost")])
    world.offload([Position(1, 8), Position(1, 9)])
    found = PartitionEntries(world.log.load())
    assert found.before(Position(1, 8)) == Size(40, 4)
    assert found.total() == Size(60, 6)
    assert not found.problem(Position(1, 6))
    assert found.problem(Position(1, 11)) == "1:11 is beyond the tail 1:10"


def test_refused_cuts_have_a_reason() -> None:
    offloaded = state_of((1, 5), closed=set()).log.load()
    own = StreamEntries({0: PartitionEntries(offloaded), 2: PartitionEntries(NOTHING_OFFLOADED)})
    assert own.problem(StreamCut()) == "it names no position"
    assert own.problem(StreamCut.of({"1.0": "1:0"})) == "the stream has no partition 1"
    assert own.problem(StreamCut.of({"0.1": "1:0"})) == "0.1 is none"
    assert own.problem(StreamCut.of({"0.0": 7})) == "7 in partition 0 is not a position"
    assert own.problem(StreamCut.of({"0.0": "1:6"})) == "partition 0: 1:6 is beyond the tail 1:5"
    assert own.problem(StreamCut.of({"0.0": "0:3"})) == "partition 0: 0:3 is no entry's place, nor the end of a ledger"
    assert own.problem(StreamCut.of({"0.0": "1:-1"})) == "partition 0: 1:-1 is not a position"
    assert own.problem(StreamCut.of({"2.0": "1:0"})) == "partition 2: 1:0 is beyond the tail: there is no entry"
    assert not own.problem(StreamCut.of({"0.0": "1:5"}))


def test_partitions_that_a_cut_does_not_name_count_nothing() -> None:
    one, two = (PartitionEntries(state_of((1, count), closed=set()).log.load()) for count in (5, 3))
    own = StreamEntries({0: one, 1: two})
    assert own.size_before(StreamCut.of({"1.0": "1:3"})) == Size(30, 3)
    assert own.size_before(own.tail()) == own.total() == Size(80, 8)
    assert own.tail() == StreamCut.of({"0.0": "1:5", "1.0": "1:3"})
    assert own.head() == StreamCut()
    assert not own.reaches(StreamCut.of({"1.0": "1:3"}), own.tail())
    assert own.reaches(own.tail(), StreamCut.of({"1.0": "1:3"}))


def test_without_a_hot_tier_a_stream_ends_at_its_committed_end() -> None:
    world = World({1: [10] * 6}, set())
    world.offload([Position(1, 0), Position(1, 1)])
    world.log.commit([Assign(uuid_of(99), 2, Position(1, 2), None, 5, DRIVER)])
    state: ManifestState = world.log.load()
    assert PartitionEntries(state).tail == Position(1, 2)
    assert PartitionEntries(state, world.hot(0)).tail == Position(1, 6)


def test_ledger_rewritten_into_one_object_keeps_its_sizes() -> None:
    small = World({1: [10] * 4, 5: [10, 20, 30, 40]}, {1, 5})
    small.offload([Position(1, entry) for entry in range(4)])
    small.offload([Position(5, 0), Position(5, 1)])
    small.offload([Position(5, 2), Position(5, 3)])
    known = PartitionEntries(small.log.load()).known(Position(5, 2))
    assert known == Known(Position(5, 2), Size(70, 6), Size(40, 4))
    joined = World(small.sizes, small.closed)
    joined.offload([Position(1, entry) for entry in range(4)])
    joined.offload([Position(5, entry) for entry in range(4)])
    found = PartitionEntries(joined.log.load(), known=known)
    assert found.total() == Size(140, 8)
    assert found.before(Position(5, 0)) == Size(40, 4)


def test_segments_in_front_of_a_known_position_stay_exact_while_all_are_there() -> None:
    """A cut was decided and never carried out: what is known is ahead of the start position."""
    world = World({1: [10, 20, 30, 40]}, {1})
    for entry in range(4):
        world.offload([Position(1, entry)])
    known = PartitionEntries(world.log.load()).known(Position(1, 3))
    found = PartitionEntries(world.log.load(), known=known)
    assert [found.before(Position(1, entry)).payload_bytes for entry in range(5)] == [0, 10, 30, 60, 100]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(worlds())
def test_what_is_before_a_position_is_between_its_size_and_what_is_in_doubt(drawn: tuple[World, int, bool]) -> None:
    world, count, with_hot = drawn
    found = entries_of(world, count, with_hot)
    present = [p for piece in world.pieces(count, with_hot) for p in piece]
    for place in places(world):
        truth, least = world.size_of([p for p in present if p < place]), found.before(place).payload_bytes
        assert least <= truth <= least + found.bytes_in_doubt(place)
