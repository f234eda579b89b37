"""Range segments with explicit predecessors: migrations, splits, merges, refused graphs, and the meaning of cuts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.retention.cuts import FUTURE, UNBOUNDED, Order, SegmentId, StreamCut
from offloader.retention.lineage import END, Consumed, Lineage, StreamSegment
from tests.retention.case_file import cut
from tests.retention.drawn_situations import migrated
from tests.retention.lineages import full


def lineage(graph: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Lineage:
    """From ``{"2.0": "0.0 1.0"}``: range segment -> predecessors."""
    return Lineage(
        tuple(
            StreamSegment(SegmentId.parse(name), tuple(map(SegmentId.parse, before.split())), (sizes or {}).get(name))
            for name, before in graph.items()
        )
    )


def read(stream: Lineage, at: StreamCut) -> list[str]:
    return sorted(map(str, full(stream.consumed(at))))


#: A topic of two partitions that was migrated: both have all keys, as have their successors together; all epochs are 0.
MIGRATED = lineage({"0.0": "", "1.0": "", "2.0": "0.0 1.0", "3.0": "0.0 1.0"}, {"0.0": 10, "1.0": 20})


def test_migrated_topic_of_one_partition_is_read_before_its_successor() -> None:
    stream = lineage({"0.0": "", "1.0": "0.0"}, {"0.0": 10})
    old, new = cut({"0.0": 10}), cut({"1.0": 0})
    assert stream.problem(old) == stream.problem(new) == ""
    assert (read(stream, old), read(stream, new)) == ([], ["0.0"])
    assert stream.order(new, old) is Order.EQUAL_OR_AFTER
    assert stream.order(old, new) is Order.BEFORE
    assert stream.meet([old, new]) == old
    assert stream.bytes_till(cut({"1.0": 7})) == 17
    assert "1.0, which follows 0.0" in stream.problem(cut({"0.0": 10, "1.0": 0}))


def test_migrated_partitions_with_all_keys_each_are_both_read_before_their_successors() -> None:
    both, one, other = cut({"2.0": 5, "3.0": 0}), cut({"0.0": 3, "1.0": 4}), cut({"0.0": 2, "2.0": -1, "3.0": -1})
    assert MIGRATED.problem(both) == MIGRATED.problem(one) == MIGRATED.problem(other) == ""
    assert (read(MIGRATED, both), read(MIGRATED, one), read(MIGRATED, other)) == (["0.0", "1.0"], [], ["1.0"])
    assert MIGRATED.order(one, other) is Order.OVERLAPS
    assert MIGRATED.meet([one, other]) == cut({"0.0": 2, "1.0": 4})
    assert MIGRATED.join([one, other]) == cut({"0.0": 3, "2.0": -1, "3.0": -1})
    assert MIGRATED.join([one, both]) == both
    assert MIGRATED.bytes_till(other) == 22


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({"0.0": 3}, "neither lists 1.0 nor all that follow it"),
        ({"2.0": 5}, "neither lists 0.0 nor all that follow it"),
        ({"0.0": 3, "2.0": -1}, "neither lists 1.0 nor all that follow it"),
        ({"0.0": 3, "2.0": 0, "3.0": 0}, "an offset in 2.0, which follows 0.0, not read to its end"),
        ({"0.0": 3, "1.0": 3, "4.0": 1}, "has no stream segment 4.0"),
        ({"2.0": -1, "3.0": -1}, "lists no stream segment with an offset"),
    ],
)
def test_cut_of_a_migrated_topic_is_refused(offsets: dict[str, int], why: str) -> None:
    assert why in MIGRATED.problem(cut(offsets))


def test_cuts_of_positions_work_as_those_of_bytes() -> None:
    at = StreamCut({SegmentId(0, 0): Position(7, 3), SegmentId(2, 0): FUTURE, SegmentId(3, 0): FUTURE})
    later = StreamCut({SegmentId(2, 0): Position(9, 0), SegmentId(3, 0): Position(11, 4)})
    assert MIGRATED.problem(at) == MIGRATED.problem(later) == ""
    assert MIGRATED.join([at, later]) == later
    assert MIGRATED.meet([at, later]) == at


def test_split_and_merge_and_both_in_a_chain() -> None:
    stream = lineage(
        {"0.0": "", "1.1": "0.0", "2.1": "0.0", "3.2": "1.1 2.1", "4.3": "3.2", "5.3": "3.2", "6.4": "5.3"},
        {"0.0": 1, "1.1": 2, "2.1": 4, "3.2": 8, "5.3": 16},
    )
    for offsets, before, size in [
        ({"0.0": 0}, "", 0),
        ({"1.1": 1, "2.1": 0}, "0.0", 2),
        ({"1.1": 1, "3.2": -1}, "0.0 2.1", 6),
        ({"3.2": 5}, "0.0 1.1 2.1", 12),
        ({"4.3": 9, "6.4": 0}, "0.0 1.1 2.1 3.2 5.3", 40),
    ]:
        assert stream.problem(cut(offsets)) == ""
        assert read(stream, cut(offsets)) == before.split()
        assert stream.bytes_till(cut(offsets)) == size
    assert stream.join([cut({"1.1": 1, "3.2": -1}), cut({"2.1": 3, "3.2": -1})]) == cut({"3.2": 0})


def test_unbounded_cut_has_nothing_before_it() -> None:
    assert MIGRATED.consumed(UNBOUNDED) == {}


def test_segment_that_the_broker_pruned_is_kept_before_its_successors() -> None:
    """The cuts and sizes of before remain true; without the pruned segment, its successors would be a beginning."""
    kept = cut({"2.0": 5, "3.0": 1})
    assert read(MIGRATED, kept) == ["0.0", "1.0"]
    assert MIGRATED.bytes_till(kept) == 36
    assert MIGRATED.reaches(kept, cut({"0.0": 10, "1.0": 20}))
    with pytest.raises(InvalidCallError, match=r"segment 2\.0 follows 0\.0, which the stream doesn't have"):
        lineage({"1.0": "", "2.0": "0.0 1.0", "3.0": "0.0 1.0"})


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        ({"0.0": "0.0"}, r"precede each other: 0\.0 before 0\.0"),
        ({"0.0": "", "1.0": "2.0 0.0", "2.0": "3.0", "3.0": "1.0"}, r"precede each other: \d\.0 before \d\.0 before"),
        ({"0.0": "", "1.0": "0.0 7.1 8.1"}, r"segment 1\.0 follows 7\.1, 8\.1, which the stream doesn't have"),
    ],
)
def test_graph_with_a_cycle_or_a_missing_predecessor_is_refused(graph: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidCallError, match=why):
        lineage(graph)


def test_segment_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="two range segments of a stream have one name"):
        Lineage((StreamSegment(SegmentId(0, 0)), StreamSegment(SegmentId(0, 0))))


def test_segments_are_ordered_by_their_predecessors_whatever_their_names() -> None:
    stream = lineage({"1.0": "5.0", "0.0": "1.0", "5.0": ""})
    assert [str(one.segment) for one in stream.segments] == ["5.0", "1.0", "0.0"]
    assert stream.join([cut({"5.0": 3}), cut({"0.0": 0})]) == cut({"0.0": 0})


# --- cuts are states of reading, by brute force -----------------------------------------------------------------------


def states(stream: Lineage) -> Iterator[Consumed]:
    """All that can have been read, with offsets 0 and 1."""
    names = [one.segment for one in stream.segments]
    sealed = {before for one in stream.segments for before in one.predecessors}
    for values in itertools.product((0, 1, END), repeat=len(names)):
        state = {name: offset for name, offset in zip(names, values, strict=True) if offset}
        begun = [one for one in stream.segments if one.segment in state]
        if full(state) <= sealed and all(state.get(before) is END for one in begun for before in one.predecessors):
            yield state


def names_the_state(stream: Lineage, at: StreamCut, state: Consumed) -> bool:
    """Whether the cut lists all that can be read next, where it is, and no more but future segments.

    And a way on from a segment that was read, up to an active one, meets a listed one.
    """
    for one in stream.segments:
        offset = at.offsets.get(one.segment)
        if state.get(one.segment) is END:
            if offset is not None or not all(set(way) & set(at.offsets) for way in ways(stream, one.segment)):
                return False
        elif full(state).issuperset(one.predecessors):
            if offset not in (state.get(one.segment, 0), FUTURE) or (offset == FUTURE and one.segment in state):
                return False
        elif offset not in (None, FUTURE):
            return False
    return any(offset != FUTURE for offset in at.offsets.values())


def ways(stream: Lineage, begin: SegmentId) -> Iterator[list[SegmentId]]:
    after = [one.segment for one in stream.segments if begin in one.predecessors]
    if not after:
        yield [begin]
    for each in after:
        for way in ways(stream, each):
            yield [begin, *way]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_valid_cuts_are_those_of_consistent_states(seed: int) -> None:
    """Each of all cuts is valid if and only if it names a state, and then exactly that lies before it."""
    stream = migrated(random.Random(seed), scalings_max=2)
    while len(stream.segments) > 5:
        seed += 100
        stream = migrated(random.Random(seed), scalings_max=2)
    all_states = list(states(stream))
    for state in all_states:
        assert stream.problem(stream.cut_of(state)) == ""
        assert stream.consumed(stream.cut_of(state)) == state
    for offsets in itertools.product((None, FUTURE, 0, 1), repeat=len(stream.segments)):
        listed = zip(stream.segments, offsets, strict=True)
        at = StreamCut({one.segment: offset for one, offset in listed if offset is not None})
        named = [state for state in all_states if names_the_state(stream, at, state)]
        assert len(named) == (0 if stream.problem(at) else 1)
        if named:
            assert stream.consumed(at) == named[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_meet_and_join_are_the_lower_and_upper_bound_of_all_states(seed: int) -> None:
    stream = migrated(random.Random(seed), scalings_max=2)
    some = random.Random(seed).sample(found := list(states(stream)), min(12, len(found)))
    for one, other in itertools.product(some, repeat=2):
        cuts = [stream.cut_of(one), stream.cut_of(other)]
        low, high = stream.meet(cuts), stream.join(cuts)
        assert stream.problem(low) == stream.problem(high) == ""
        for segment in (each.segment for each in stream.segments):
            both = [rank(one, segment), rank(other, segment)]
            assert rank(stream.consumed(low), segment) == min(both)
            assert rank(stream.consumed(high), segment) == max(both)


def rank(state: Consumed, segment: SegmentId) -> int:
    offset = state.get(segment, 0)
    return 2 if offset is END else int(offset)
