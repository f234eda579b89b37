"""Scans of a scalable topic: the union of its segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.errors import NotFoundError
from offloader.spark.options import Needs, SourceOptions, arrow_schema, projection
from offloader.spark.scan import pinned_states, read_slices
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.spark.reading import planned
from tests.support.segmented_topic import PLACE, SegmentedTopic


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


def options(store: ObjectStore, stream: str = SegmentedTopic.topic, **more: str) -> SourceOptions:
    return SourceOptions.of({"store": store.url, "stream": stream, "columns": "stream,ledger_id,entry_id", **more})


def rows_of(given: SourceOptions, store: ObjectStore) -> list[tuple[str, int, int]]:
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = projection(from_arrow_schema(arrow_schema("entries", given.columns)).fields, "entries")
    return [
        row
        for partition in planned(given, Needs.INDEXES, store)
        for batch in read_slices(partition, given, wanted, store)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.slow
def test_scan_of_a_topic_is_the_union_of_its_segments(store: ObjectStore) -> None:
    topic = SegmentedTopic(store)
    topic.send(0, 10)
    one, other = topic.split(0)
    for number, count in ((one, 4), (other, 3)):
        topic.send(number, count)
    topic.offload(one)
    topic.offload(0)
    expected = {(topic.rows[number].stream, number, entry_id) for number in (0, one) for entry_id in range(10)}
    expected = {row for row in expected if row[1] == 0 or row[2] < 4}
    for name in (topic.topic, PLACE):
        found = rows_of(options(store, name), store)
        assert (len(found), set(found)) == (14, expected)
    topic.finish()
    assert sorted(row[1:] for row in rows_of(options(store), store)) == sorted(topic.entries)
    assert [row[1:] for row in rows_of(options(store, stop="1:2", start="0:9"), store)] == [(0, 9), (1, 0), (1, 1)]


def test_snapshot_names_a_record_of_each_segment(store: ObjectStore) -> None:
    topic = SegmentedTopic(store)
    topic.send(0, 10)
    topic.split(0)
    topic.send(1, 4)
    topic.finish()
    record = topic.writers[0].log.state.record_id
    snapshot = options(store, asOfManifest=f"{topic.rows[0].stream}={record}")
    assert [state.stream for state in pinned_states(snapshot, store)] == [topic.rows[0].stream]


def test_topic_without_offloaded_segments_is_an_error(store: ObjectStore) -> None:
    SegmentedTopic(store)
    with pytest.raises(NotFoundError, match=PLACE):
        pinned_states(options(store), store)
