"""The algebra of cuts holds in random histories of splits and merges."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.retention.cuts import FUTURE, Order, SegmentId, StreamCut
from offloader.retention.lineage import END, Consumed
from tests.retention.case_file import cut
from tests.retention.histories import cuts, lineages, read
from tests.retention.lineages import KeyedSegment, ScalableLineage, full


@st.composite
def streams_with_cuts(draw: st.DrawFn, count: int) -> tuple[ScalableLineage, list[StreamCut]]:
    stream = draw(lineages())
    return stream, [draw(cuts(stream)) for _ in range(count)]


def consumed_in_words(stream: ScalableLineage, at: StreamCut) -> Consumed:
    """The specification's sentence, word by word, on keys in 1/64: an independent model."""
    listed = [one for one in stream.keyed if one.segment in at.offsets]

    def keys(one: KeyedSegment) -> set[float]:
        low = one.key_from
        return {low + (one.key_to - low) * part / 64 for part in range(64)}

    found: dict[SegmentId, Any] = {s: offset for s, offset in at.offsets.items() if offset not in (0, FUTURE)}
    for one in stream.keyed:
        if one.segment in at.offsets:
            continue
        later = [s for s in listed if one.ended_epoch is not None and s.segment.epoch >= one.ended_epoch]
        covered = all(any(s.key_from <= key < s.key_to for s in later) for key in keys(one))
        held = any(
            at.offsets[s.segment] != FUTURE
            and s.segment.epoch < one.segment.epoch
            and s.key_from < one.key_to
            and one.key_from < s.key_to
            for s in listed
        )
        if covered and not held:
            found[one.segment] = END
    return found


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(streams_with_cuts(1))
def test_consumed_positions_of_a_cut_match_the_specification(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    """For every cut valid by the specification both agree; ours never counts more as read."""
    stream, [one] = given_
    mine, words = stream.consumed(one), consumed_in_words(stream, one)
    assert mine.items() <= words.items()
    assert words.keys() - mine.keys() <= full(words)
    started = words.keys() | {s for s, offset in one.offsets.items() if offset != FUTURE}
    if all(words.get(p) is END for s in started for p in stream.by_id[s].predecessors):
        assert mine == words


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_state_of_reading_is_described_by_a_valid_cut(data: st.DataObject) -> None:
    stream = data.draw(lineages())
    state = data.draw(read(stream))
    at = stream.cut_of(state)

    assert stream.problem(at) == ""
    assert state == stream.consumed(at)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(streams_with_cuts(3))
def test_order_is_an_order(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    """Reflexive, also with future segments; antisymmetric; transitive; and sizes follow it."""
    stream, (one, other, third) = given_
    assert stream.order(one, one) is Order.EQUAL_OR_AFTER
    if stream.reaches(one, other) and stream.reaches(other, one):
        assert stream.equal(one, other)
    if stream.reaches(one, other) and stream.reaches(other, third):
        assert stream.reaches(one, third)
    if stream.reaches(one, other):
        assert stream.bytes_till(one) >= stream.bytes_till(other)
        assert stream.deleted_between(one, other) == []
    assert (stream.order(one, other) is Order.BEFORE) == (stream.reaches(other, one) and not stream.equal(one, other))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(streams_with_cuts(4))
def test_lower_bound_is_the_latest_that_loses_nothing(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    """Valid, independent of the order, before every cut, at or after any other such cut; joins dually."""
    stream, [*some, aside] = given_
    low, high = stream.meet(some), stream.join(some)
    for ordered in itertools.permutations(some):
        assert stream.equal(low, stream.meet(ordered))
        assert stream.equal(high, stream.join(ordered))
    assert stream.problem(low) == stream.problem(high) == ""
    assert all(stream.reaches(one, low) and stream.reaches(high, one) for one in some)
    below = stream.meet([aside, low])
    assert all(stream.reaches(one, below) for one in some)
    assert stream.reaches(low, aside) == all(stream.reaches(one, aside) for one in some)
    assert stream.reaches(aside, high) == all(stream.reaches(aside, one) for one in some)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(streams_with_cuts(3))
def test_meet_and_join_make_a_distributive_lattice(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    stream, (a, b, c) = given_
    meet, join = stream.meet, stream.join
    assert meet([a, a]) == join([a, a]) == a
    assert stream.equal(meet([a, meet([b, c])]), meet([meet([a, b]), c]))
    assert stream.equal(join([a, join([b, c])]), join([join([a, b]), c]))
    assert stream.equal(meet([a, join([a, b])]), a)
    assert stream.equal(join([a, meet([a, b])]), a)
    assert stream.equal(meet([a, join([b, c])]), join([meet([a, b]), meet([a, c])]))
    sizes = stream.bytes_till(meet([a, b])) + stream.bytes_till(join([a, b]))
    assert sizes == stream.bytes_till(a) + stream.bytes_till(b)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(streams_with_cuts(3))
def test_combined_cuts_contain_only_offsets_of_their_inputs(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    """So that a bound is on entry boundaries."""
    stream, some = given_
    for found in (stream.meet(some), stream.join(some)):
        for segment, offset in found.offsets.items():
            assert offset in (0, FUTURE) or offset in [one.offsets.get(segment) for one in some]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(streams_with_cuts(2))
def test_segments_to_delete_are_those_that_became_read(given_: tuple[ScalableLineage, list[StreamCut]]) -> None:
    """What a move deletes adds up over any stop on the way; a reader on the way meets the rest."""
    stream, (one, other) = given_
    low, high = stream.meet([one, other]), stream.join([one, other])
    direct = stream.deleted_between(low, high)
    assert sorted(direct) == sorted(stream.deleted_between(low, one) + stream.deleted_between(one, high))
    assert set(direct) <= set(stream.between(low, high))
    assert stream.between(stream.first_cut, high)[: len(full(stream.consumed(high)))] != [] or not direct


def test_bound_of_valid_cuts_is_a_cut_where_the_specification_has_none() -> None:
    """1.0 was read to its end, so 3.1 is listed; 2.0 too, so 6.3 is. Nothing of 5.2, which 6.3 follows, was read."""
    stream = ScalableLineage.build(
        {SegmentId.parse(name): keys for name, keys in RANGES.items()},
        [[SegmentId.parse(name) for name in epoch] for epoch in EPOCHS],
        dict.fromkeys([SegmentId.parse(name) for name in ("0.0", "1.0", "2.0", "3.1", "5.2")], 10),
    )
    one = cut({"0.0": 3, "1.0": 2, "6.3": -1})
    other = cut({"0.0": 0, "3.1": -1, "2.0": 1})
    both = stream.join([one, other])

    assert cut({"0.0": 3, "3.1": -1, "6.3": -1}) == both
    assert stream.problem(both) == ""
    assert stream.bytes_till(both) == 3 + 10 + 10
    assert SegmentId(5, 2) in full(consumed_in_words(stream, both))


RANGES = {
    "0.0": (0.0, 0.25),
    "1.0": (0.25, 0.5),
    "2.0": (0.5, 1.0),
    "3.1": (0.0, 0.5),
    "4.2": (0.0, 0.25),
    "5.2": (0.25, 0.5),
    "6.3": (0.25, 1.0),
}
EPOCHS = [["0.0", "1.0", "2.0"], ["2.0", "3.1"], ["2.0", "4.2", "5.2"], ["4.2", "6.3"]]


@pytest.mark.slow
@pytest.mark.parametrize("epoch_of", [lambda i: i % 11, lambda i: 10 - i % 11, lambda i: 0, lambda i: (i * 7) % 11])
def test_cuts_of_a_hundred_segments_scaled_ten_times(epoch_of: object) -> None:
    """Each key range may be in an epoch of its own; the guide's case 2 of section 5."""
    assert callable(epoch_of)
    ids = [[SegmentId(epoch * 100 + i, epoch) for i in range(100)] for epoch in range(11)]
    ranges = {one[i]: (i / 100, (i + 1) / 100) for one in ids for i in range(100)}
    stream = ScalableLineage.build(ranges, ids, dict.fromkeys([s for one in ids[:-1] for s in one], 1))
    chosen = StreamCut({ids[epoch_of(i)][i]: 0 for i in range(100)})

    assert stream.problem(chosen) == ""
    assert stream.bytes_till(chosen) == sum(epoch_of(i) for i in range(100))
    assert "neither lists 1.0" in stream.problem(cut({"0.0": 0}))
