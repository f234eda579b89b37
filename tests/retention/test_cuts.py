"""Cuts as text, bytes and JSON; invalid cuts; impossible scalings."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.retention.cuts import FUTURE, UNBOUNDED, Order, SegmentId, StreamCut
from offloader.retention.lineage import LineageMeasure
from tests.retention.case_file import cut, layout
from tests.retention.lineages import ScalableLineage, full

#: The guide's case 1 of section 5.
WIDE = cut({"1.1": 10, "2.1": 20, "3.1": 30, "4.1": 20, "5.2": 50, "8.2": 50, "9.2": 60, "10.2": -1})
POSITIONS = StreamCut({SegmentId(0, 0): Position(7, 12), SegmentId(1, 0): Position(9, 3)})


@pytest.mark.parametrize("one", [WIDE, POSITIONS, cut({"0.0": 2**63 - 1})])
@pytest.mark.parametrize("stream", ["scope/stream", "public/default/persistent/orders", "a:b/c:1.0=3"])
def test_a_cut_survives_text_bytes_json_and_pickling(one: StreamCut, stream: str) -> None:
    assert (stream, one) == StreamCut.parse(one.text(stream))
    assert (stream, one) == StreamCut.from_bytes(one.to_bytes(stream))
    assert one == StreamCut.of(one.as_json())
    assert one == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(StreamCut.of(one.as_json()))


def test_a_cut_reads_in_the_order_of_creation() -> None:
    assert WIDE.text("scope/stream") == "scope/stream:1.1=10,2.1=20,3.1=30,4.1=20,5.2=50,8.2=50,9.2=60,10.2=-1"
    assert cut({"3.2": 1, "4.1": 2}).text("s") == "s:4.1=2,3.2=1"
    assert POSITIONS.text("s") == "s:0.0=7:12,1.0=9:3"
    assert POSITIONS.as_json() == {"0.0": "7:12", "1.0": "9:3"}


def test_unbounded_cut_is_a_word_as_text_and_empty_as_bytes() -> None:
    assert UNBOUNDED.text("scope/stream") == "UNBOUNDED"
    assert UNBOUNDED.to_bytes("scope/stream") == b""
    assert StreamCut.parse(" UNBOUNDED ") == ("", UNBOUNDED)
    assert StreamCut.from_bytes(b"") == ("", UNBOUNDED)
    assert pickle.loads(pickle.dumps(UNBOUNDED)) == UNBOUNDED


@pytest.mark.parametrize(
    "text",
    [
        "", "a/b", "a/b:", ":0.0=1", "a/b:0.0", "a/b:0.0=", "a/b:0=1", "a/b:0.0=x", "a/b:0.0=1,", "a/b:0.0=1;1.0=2",
        "a/b:0.0=1,0.0=2", "a/b:0.0=-2", "a/b:0.0=1.5", "a/b:-1.0=1", "a/b:0.0=--1", "unbounded",
    ],
)  # fmt: skip
def test_invalid_text_of_a_cut_is_refused(text: str) -> None:
    with pytest.raises(InvalidCallError):
        StreamCut.parse(text)


@pytest.mark.parametrize(
    "offsets", [{"0.0": -2}, {"0.0": True}, {"0.0": None}, {"0.0": 1.0}, {"0": 1}, {"0.0": "7:x"}, [1]]
)
def test_invalid_json_of_a_cut_is_refused(offsets: object) -> None:
    with pytest.raises(InvalidCallError):
        StreamCut.of(offsets)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"stream":"s"}', b'{"stream":"s","cut":7}', b"\xff"])
def test_invalid_bytes_of_a_cut_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidCallError):
        StreamCut.from_bytes(data)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_cut_or_refused(text: str) -> None:
    try:
        stream, found = StreamCut.parse(text)
    except InvalidCallError:
        return
    assert StreamCut.parse(found.text(stream)) == (stream, found)


# --- what is consistent -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "offsets", "why"),
    [
        ("two", {}, "lists no stream segment with an offset"),
        ("two", {"0.0": -1, "1.0": -1}, "lists no stream segment with an offset"),
        ("two", {"0.0": 1, "7.9": 1}, "has no stream segment 7.9"),
        ("two", {"0.0": 1}, "neither lists 1.0 nor all that follow it"),
        ("two", {"1.0": 1}, "neither lists 0.0 nor all that follow it"),
        ("merge2", {"0.0": 1, "2.1": 0}, "offset in 2.1, which follows 0.0, not read to its end"),
        ("merge2", {"0.0": 1, "1.0": -1}, ""),
        ("split2", {"1.0": 1, "2.1": 0, "3.1": 0}, ""),
        ("merge_then_split", {"0.0": 1, "2.1": -1, "4.2": 3}, "offset in 4.2, which follows 2.1, not read to its end"),
    ],
)
def test_why_a_cut_is_no_point_of_the_stream(name: str, offsets: dict[str, int], why: str) -> None:
    found = layout(name).problem(cut(offsets))
    assert why in found
    assert bool(why) == bool(found)


def test_cuts_with_unknown_segments_are_refused_by_every_operation() -> None:
    stream, known, unknown = layout("two"), cut({"0.0": 1, "1.0": 1}), cut({"0.0": 1, "7.0": 1})
    for use in (
        lambda: stream.order(unknown, known), lambda: stream.meet([known, unknown]), lambda: stream.span(unknown),
        lambda: stream.bytes_till(unknown), lambda: stream.between(unknown, known),
        lambda: stream.equal(known, unknown), lambda: stream.deleted_between(known, unknown),
    ):  # fmt: skip
        with pytest.raises(InvalidCallError, match=r"lists stream segments that the stream doesn't have: 7\.0"):
            use()


def test_a_size_needs_recorded_sizes_and_bytes() -> None:
    with pytest.raises(InvalidCallError, match=r"size of stream segment 0\.0, .*wasn't recorded"):
        layout("between").bytes_till(cut({"3.1": 0, "4.1": 0, "1.0": 0, "2.0": 0}))
    with pytest.raises(InvalidCallError, match=r"7:12 .*is a position"):
        ScalableLineage.of_partitions(range(1)).bytes_till(StreamCut({SegmentId(0, 0): Position(7, 12)}))
    assert LineageMeasure(layout("between")).bytes_before(cut({"3.1": 0, "4.1": 0, "1.0": 0, "2.0": 0})) is None
    assert LineageMeasure(layout("two")).entries_before(cut({"0.0": 1, "1.0": 1})) is None


def test_a_segment_counts_as_read_only_when_all_its_keys_were_taken_over() -> None:
    """Also in what is no cut of the stream."""
    stream = layout("split2")
    assert stream.consumed(cut({"1.0": 3, "2.1": 0})) == {SegmentId(1, 0): 3}
    assert full(stream.consumed(cut({"1.0": 3, "2.1": 0, "3.1": -1}))) == {SegmentId(0, 0)}


def test_a_reader_does_not_meet_a_future_segment_at_its_end() -> None:
    stream = layout("merge2")
    assert stream.between(UNBOUNDED, cut({"0.0": 9, "2.1": -1})) == [SegmentId(0, 0), SegmentId(1, 0)]
    assert stream.between(cut({"0.0": 9, "2.1": -1}), UNBOUNDED) == [SegmentId(0, 0), SegmentId(2, 1)]


# --- partitions -------------------------------------------------------------------------------------------------------


def positions(*places: tuple[int, int] | None) -> StreamCut:
    return StreamCut({SegmentId(n, 0): Position(*place) for n, place in enumerate(places) if place})


def test_cuts_of_partitions_may_leave_some_out() -> None:
    """Partitions can be added: of one that a cut doesn't name nothing was read."""
    topic = ScalableLineage.of_partitions(range(3))
    old, new = positions((7, 1), (9, 5)), positions((7, 0), (9, 6), (1, 0))

    assert topic.problem(old) == topic.problem(new) == ""
    assert topic.order(old, new) is Order.OVERLAPS
    assert topic.meet([old, new]) == positions((7, 0), (9, 5))
    assert topic.join([old, new]) == positions((7, 1), (9, 6), (1, 0))
    assert topic.order(topic.join([old, new]), old) is Order.EQUAL_OR_AFTER
    assert ScalableLineage(topic.segments, is_partitioned=True).first_cut == UNBOUNDED
    assert topic.problem(positions(None, (9, 5))) == ""


def test_cuts_of_partitions_have_no_future_and_no_strangers() -> None:
    topic = ScalableLineage.of_partitions(range(2))
    assert "partition 1.0 has no offset" in topic.problem(StreamCut({SegmentId(0, 0): 3, SegmentId(1, 0): FUTURE}))
    assert "has no stream segment 2.0" in topic.problem(StreamCut({SegmentId(2, 0): 3}))
    assert "lists no stream segment" in topic.problem(UNBOUNDED)


# --- scalings ---------------------------------------------------------------------------------------------------------


def test_a_scaling_seals_what_takes_entries_and_replaces_its_keys() -> None:
    stream = layout("merge2")
    with pytest.raises(InvalidCallError, match=r"seals 0\.0, 9\.9: no stream segment that takes entries"):
        stream.scaled({SegmentId(0, 0): 1, SegmentId(9, 9): None}, [(0.0, 1.0)])
    for ranges in ([], [(0.0, 0.5)], [(0.0, 0.5), (0.5, 0.5), (0.5, 1.0)], [(0.0, 0.6), (0.5, 1.0)], [(0.0, 1.1)]):
        with pytest.raises(InvalidCallError, match="new stream segment"):
            stream.scaled({SegmentId(2, 1): 5}, ranges)
    with pytest.raises(InvalidCallError, match="new stream segments"):
        stream.scaled({}, [])

    grown = stream.scaled({SegmentId(2, 1): None}, [(0.0, 0.5), (0.5, 1.0)])
    assert [str(one.segment) for one in grown.active] == ["3.2", "4.2"]
    assert grown.by_id[SegmentId(3, 2)].predecessors == (SegmentId(2, 1),)
    assert grown.problem(cut({"3.2": 0, "4.2": 0})) == ""
    assert stream.scaled({SegmentId(2, 1): 5}, [(0.0, 1.0)]).bytes_till(cut({"3.2": 1})) == 20 + 20 + 5 + 1


def test_an_epoch_covers_each_key_once() -> None:
    one, other = SegmentId(0, 0), SegmentId(1, 0)
    for ranges in ({one: (0.0, 0.5), other: (0.6, 1.0)}, {one: (0.0, 0.6), other: (0.5, 1.0)}, {one: (0.0, 0.9)}):
        with pytest.raises(InvalidCallError, match="epoch 0 don't cover each key once"):
            ScalableLineage.build(ranges, [list(ranges)])
