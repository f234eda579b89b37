"""Batches of a streaming query over a scalable topic: every entry once, children after their parents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from formats.entries import Position
from formats.manifest import StreamDeleted
from offloader.errors import InvalidCallError, NotFoundError, TrimmedError
from offloader.retention.subscribers import open_retention
from offloader.spark.options import SourceOptions
from offloader.spark.stream import IDLE_POLL_SECONDS, StreamingReader
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.segmented_topic import PLACE, SegmentedTopic

SCHEMA = StructType().add("stream", StringType()).add("ledger_id", LongType()).add("entry_id", LongType())
_Entries = list[tuple[int, int]]


@pytest.fixture
def topic(tmp_path: Path) -> SegmentedTopic:
    return SegmentedTopic(open_store(f"file://{tmp_path}/store"))


class Query:
    """A query by hand. Each plan finds the newest layout and manifests."""

    def __init__(self, topic: SegmentedTopic, **options: str) -> None:
        self._given = {"store": topic.store.url, "stream": topic.topic, **options}
        self._streams = topic.rows
        self.restart()
        self.offset: Any = self.reader.initialOffset()

    def restart(self, **changed: str) -> None:
        """A new process, with the offset of the checkpoint."""
        self._given |= changed
        self.clock = ManualClock()
        self.reader = StreamingReader(SourceOptions.of(self._given), SCHEMA, clock=self.clock)

    def plan(self) -> Any:
        self.clock.advance(IDLE_POLL_SECONDS)
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        return json.loads(json.dumps(end))

    def rows(self, end: Any) -> _Entries:
        """The entries of the batch up to ``end``: segment and number."""
        batches = (batch for each in self.reader.partitions(self.offset, end) for batch in self.reader.read(each))
        found: _Entries = []
        for batch in batches:
            ids = zip(batch["ledger_id"].to_pylist(), batch["entry_id"].to_pylist(), strict=True)
            names = {self._streams[number].stream for number in batch["ledger_id"].to_pylist()}
            assert names == set(batch["stream"].to_pylist())
            found += ids
        return found

    def batch(self) -> _Entries:
        end = self.plan()
        found = self.rows(end)
        self.offset = end
        return found

    @property
    def positions(self) -> dict[int, str]:
        """Segment -> position, of the offset."""
        ids = {row.stream: row.id for row in self._streams.values()}
        return {ids[name]: each["position"] for name, each in self.offset.items() if "position" in each}


def ids(number: int, count: int, first: int = 0) -> _Entries:
    return [(number, entry_id) for entry_id in range(first, count)]


def test_segment_is_read_in_batches_after_those_of_its_parents(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    one, other = topic.split(0)
    topic.send(one, 4)
    topic.send(other, 3)
    merged = topic.merge(one, other)
    topic.send(merged, 2)
    topic.finish()
    query = Query(topic)
    assert query.positions == {}
    assert query.batch() == ids(0, 10)
    assert query.positions == {0: "0:9"}
    assert sorted(query.batch()) == ids(one, 4) + ids(other, 3)
    assert query.batch() == ids(merged, 2)
    assert query.positions == {0: "0:9", one: "1:3", other: "2:2", merged: "3:1"}
    assert query.plan() == query.offset


def test_layout_is_read_again_for_each_batch(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    topic.offload(0)
    query = Query(topic)
    assert query.batch() == ids(0, 10)
    one, _ = topic.split(0)
    topic.send(one, 5)
    topic.offload(one)
    assert query.batch() == [], "the end of its parent isn't recorded"
    topic.end(0)
    assert query.batch() == ids(one, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_entry_is_read_once_and_after_those_of_its_ancestors(topic: SegmentedTopic, seed: int) -> None:
    """A topic grows, splits and merges between batches; the query restarts, and batches are repeated."""
    rng = random.Random(seed)
    limit = {"maxEntriesPerTrigger": str(rng.randint(1, 9))} if rng.random() < 0.6 else {}
    query, found = Query(topic, **limit), list[_Entries]()
    for _ in range(rng.randint(20, 60)):
        topic.step(rng)
        match rng.choice(("batch", "batch", "restart", "repeat", "", "", "")):
            case "batch":
                found.append(query.batch())
            case "restart":
                query.restart()
            case "repeat":  # killed between planning and commit
                end = query.plan()
                rows = query.rows(end)
                topic.step(rng)
                query.restart()
                assert query.rows(end) == rows
                found.append(rows)
                query.offset = end
    topic.finish()
    while rows := query.batch():
        found.append(rows)
    assert sorted(entry for rows in found for entry in rows) == sorted(topic.entries)
    places: dict[int, list[int]] = {}
    for place, rows in enumerate(found):
        for number, _ in rows:
            places.setdefault(number, []).append(place)
    for number, own in places.items():
        assert all(each < own[0] for parent in topic.parents_of(number) for each in places.get(parent, []))
        order = [entry_id for rows in found for segment, entry_id in sorted(rows) if segment == number]
        assert order == sorted(order)


@pytest.mark.slow
def test_available_now_reads_the_segments_that_were_complete_when_it_began(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    one, other = topic.split(0)
    topic.send(one, 4)
    topic.send(other, 4)
    topic.finish()
    topic.split(one)
    topic.send(3, 5)
    topic.offload(3)
    query = Query(topic)
    query.reader.prepareForTriggerAvailableNow()
    topic.end(one)
    topic.send(other, 4)
    topic.offload(other)
    topic.send(4, 7)
    topic.offload(4)
    found = [query.batch() for _ in range(4)]
    assert [sorted(rows) for rows in found] == [ids(0, 10), ids(one, 4) + ids(other, 4), ids(3, 5), []]


def test_available_now_withholds_children_of_a_segment_that_was_not_complete_when_it_began(
    topic: SegmentedTopic,
) -> None:
    topic.send(0, 10)
    topic.offload(0, 8)
    one, _ = topic.split(0)
    topic.send(one, 4)
    topic.offload(one)
    query = Query(topic)
    query.reader.prepareForTriggerAvailableNow()
    topic.finish()
    assert [query.batch(), query.batch()] == [ids(0, 8), []]
    query.restart()
    assert [query.batch(), query.batch()] == [ids(0, 10, 8), ids(one, 4)]


def test_latest_begins_after_the_readable_entries(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    topic.offload(0, 8)
    one, _ = topic.split(0)
    topic.send(one, 3)
    topic.offload(one)
    early = Query(topic, startFrom="latest")
    topic.finish()
    late = Query(topic, startFrom="latest")
    topic.send(one, 1)
    topic.offload(one)
    assert [early.batch(), early.batch()] == [ids(0, 10, 8), ids(one, 4)]
    assert [late.batch(), late.batch()] == [ids(one, 4, 3), []]


@pytest.mark.slow
def test_query_of_a_regular_topic_continues_after_its_migration(tmp_path: Path) -> None:
    former = "public/default/persistent/orders"
    topic = SegmentedTopic(open_store(f"file://{tmp_path}/store"), former=former)
    topic.send(0, 10)
    topic.offload(0)
    query = Query(topic, stream=f"persistent://{former.replace('/persistent', '')}")
    assert query.batch() == ids(0, 10)
    topic.send(0, 5)
    one, _ = topic.split(0)
    topic.send(one, 3)
    topic.finish()
    query.restart(stream=topic.topic)
    assert [query.batch(), query.batch()] == [ids(0, 15, 10), ids(one, 3)]


def test_unknown_segment_in_a_checkpoint_is_refused(topic: SegmentedTopic, tmp_path: Path) -> None:
    topic.send(0, 10)
    topic.finish()
    query = Query(topic)
    query.offset = query.plan()
    offset = dict(query.offset)
    offset["public/default/segment/orders/0000-7fff-7"] = offset[topic.rows[0].stream]
    with pytest.raises(
        InvalidCallError, match=r"names .*0000-7fff-7, but the recorded layout of topic://public/default/orders"
    ):
        query.rows(offset)
    query.offset = offset
    with pytest.raises(InvalidCallError, match="has no such segment"):
        query.plan()


def test_topic_without_a_layout_is_an_error_and_without_entries_is_empty(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    with pytest.raises(NotFoundError, match="public/default/topic/orders"):
        StreamingReader(SourceOptions.of({"store": store.url, "stream": SegmentedTopic.topic}), SCHEMA).initialOffset()
    topic = SegmentedTopic(store)
    query = Query(topic)
    assert (query.offset, query.batch()) == ({}, [])
    topic.send(0, 3)
    topic.offload(0)
    assert query.batch() == ids(0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("read", [10, 6])
def test_deleted_stream_of_a_segment_is_a_loss_unless_it_was_read_to_its_end(topic: SegmentedTopic, read: int) -> None:
    topic.send(0, 10)
    one, _ = topic.split(0)
    topic.send(one, 3)
    topic.finish()
    strict, lenient = (Query(topic, maxEntriesPerTrigger=str(read), failOnDataLoss=each) for each in ("true", "false"))
    assert strict.batch() == lenient.batch() == ids(0, read)
    topic.writers[0].log.commit([StreamDeleted()])
    if read < 10:
        with pytest.raises(TrimmedError, match="was deleted; 0:5 was the last position read"):
            strict.batch()
    else:
        assert strict.batch() == ids(one, 3)
        assert strict.batch() == []
    assert lenient.batch() == ids(one, 3)
    assert lenient.batch() == []
    assert lenient.positions[0] == "0:9"


def test_finished_segments_are_not_polled(topic: SegmentedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.send(0, 10)
    one, _ = topic.split(0)
    topic.send(one, 3)
    topic.finish()
    store = FaultyStore(topic.store)
    monkeypatch.setattr(SourceOptions, "open_store", lambda *_, **__: store)
    query = Query(topic)
    assert [len(query.batch()) for _ in range(3)] == [10, 3, 0]
    calls = len(store.calls)
    query.plan()
    keys = [key for _, key, *_ in store.calls[calls:]]
    assert not any(topic.rows[0].stream in key for key in keys)
    assert any(topic.rows[one].stream in key for key in keys)
    assert Position.parse(query.positions[one]) == Position(one, 2)


def test_subscriber_keeps_the_entries_of_segments_that_are_not_read_yet(topic: SegmentedTopic) -> None:
    topic.send(0, 10)
    one, _ = topic.split(0)
    topic.send(one, 3)
    topic.finish()
    query = Query(topic, subscriber="query")

    def cut() -> str:
        return str(open_retention(topic.store, PLACE).registry().subscribers["query"].cut)

    assert cut() == "0.0=0:0,1.0=1:0"
    query.batch()
    query.plan()
    assert cut() == "0.0=0:10,1.0=1:0"
    query.reader.stop()
