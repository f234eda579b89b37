"""Admission of a scalable topic's segments to the batches of a query, as a function of layout, manifests and offset."""

from __future__ import annotations

import itertools

import pytest

from formats.entries import Position
from formats.manifest import Retire, Truncate
from formats.topic_layout import TopicLayout
from offloader.errors import InvalidCallError
from offloader.manifest.names import named_streams
from offloader.manifest.state import ManifestState
from offloader.manifest.topic_layouts import NOTHING_MORE, record_end
from offloader.spark.scan import load_streams
from offloader.spark.segments import admitted, require_recorded
from offloader.store.open import open_store
from tests.support.segmented_topic import PLACE, SegmentedTopic

numbers = itertools.count()


@pytest.fixture
def topic() -> SegmentedTopic:
    return SegmentedTopic(open_store(f"memory://admission-{next(numbers)}"))


@pytest.fixture
def split(topic: SegmentedTopic) -> SegmentedTopic:
    """Segment 0 has 10 entries, its children 1 and 2 have 5 each; all are offloaded, and no end is recorded."""
    topic.send(0, 10)
    topic.split(0)
    for number in (1, 2):
        topic.send(number, 5)
    for number in (0, 1, 2):
        topic.offload(number)
    return topic


def seen(topic: SegmentedTopic) -> tuple[TopicLayout, dict[str, ManifestState]]:
    named = named_streams(topic.store, topic.topic)
    assert named.layout is not None
    return named.layout, {state.stream: state for state in load_streams(named.streams, topic.store)}


def admitted_at(topic: SegmentedTopic, reached: dict[int, int], known: tuple[int, ...] = ()) -> list[int]:
    """The admitted segments of an offset: segment -> number of its last entry that was read."""
    layout, views = seen(topic)
    positions = {topic.rows[number].stream: Position(number, entry_id) for number, entry_id in reached.items()}
    ids = {row.stream: row.id for row in layout.segments}
    names = [topic.rows[number].stream for number in known]
    return [ids[stream] for stream in admitted(layout, views, positions, names)]


def test_children_are_admitted_when_their_parent_is_read_to_its_recorded_end(split: SegmentedTopic) -> None:
    assert admitted_at(split, {0: 9}) == [0]  # its end isn't recorded
    split.end(0)
    assert admitted_at(split, {}) == [0]
    assert admitted_at(split, {0: 8}) == [0]
    assert admitted_at(split, {0: 9}) == [0, 1, 2]


def test_child_waits_while_the_store_lacks_entries_of_its_parent(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    topic.split(0)
    topic.end(0)
    topic.offload(0, 9)
    assert admitted_at(topic, {0: 8}) == [0]
    topic.offload(0)
    assert admitted_at(topic, {0: 8}) == [0]
    assert admitted_at(topic, {0: 9}) == [0, 1, 2]


def test_merged_segment_waits_for_both_parents(split: SegmentedTopic) -> None:
    split.merge(1, 2)
    split.finish()
    assert admitted_at(split, {0: 9, 1: 4}) == [0, 1, 2]
    assert admitted_at(split, {0: 9, 1: 4, 2: 4}) == [0, 1, 2, 3]


def test_empty_parent_holds_nothing_back_but_its_own_parents_do(topic: SegmentedTopic) -> None:
    topic.send(0, 2)
    one, other = topic.split(0)
    topic.split(one)
    topic.send(3, 1)
    topic.finish()
    assert topic.rows[3].parents == (one,)
    assert one not in topic.writers
    assert admitted_at(topic, {0: 0}) == [0]
    assert admitted_at(topic, {0: 1}) == [0, one, other, 3, 4]


def test_entries_of_a_parent_that_the_broker_deleted_are_read_first(split: SegmentedTopic) -> None:
    record_end(split.store, PLACE, 0, NOTHING_MORE)
    assert admitted_at(split, {0: 8}) == [0]
    assert admitted_at(split, {0: 9}) == [0, 1, 2]


def test_entries_of_a_parent_that_retention_deleted_hold_nothing_back(split: SegmentedTopic) -> None:
    split.end(0)
    parent = split.writers[0]
    parent.log.commit([Truncate(Position(0, 10)), Retire(tuple(parent.uuids))])
    assert admitted_at(split, {}) == [0, 1, 2]


def test_segment_of_the_offset_remains_admitted(split: SegmentedTopic) -> None:
    assert admitted_at(split, {1: 2}, known=(1,)) == [0, 1]


def test_parent_whose_stream_was_deleted_is_read_if_the_offset_is_at_its_end(split: SegmentedTopic) -> None:
    split.end(0)
    layout, views = seen(split)
    parent = split.rows[0].stream
    del views[parent]
    children = [split.rows[number].stream for number in (1, 2)]
    assert admitted(layout, views, {parent: Position(0, 8)}) == [parent]
    assert admitted(layout, views, {parent: Position(0, 9)}) == [parent, *children]
    assert admitted(layout, views, {}) == [parent]


def test_segment_that_is_not_recorded_is_refused(split: SegmentedTopic) -> None:
    layout, views = seen(split)
    require_recorded(layout, views)
    with pytest.raises(
        InvalidCallError, match=r"names public/default/segment/other/0000-ffff-0, but .* topic://public/default/orders"
    ):
        require_recorded(layout, [*views, "public/default/segment/other/0000-ffff-0"])
