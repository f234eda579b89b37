"""A topic with partitions is read as one stream: merged by publish time, each partition in its own order."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from datetime import UTC, datetime

import numpy as np
import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.errors import InvalidCallError, NotFoundError
from offloader.manifest.names import NamedStreams
from offloader.read.partitions import (
    PARTITIONS_READ_MAX,
    TopicReader,
    follow_all,
    merge_published,
    open_reader,
    open_topic,
)
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import BASE_MS, StreamWriter

TOPIC = "persistent://shop/eu/orders"
STREAM = "shop/eu/persistent/orders"
numbers = itertools.count()


def batch(ledger_id: int, first: int, times: list[int]) -> EntryBatch:
    payloads = [b"%d:%d" % (ledger_id, first + number) for number in range(len(times))]
    return EntryBatch.build(ledger_id, first, payloads, np.array(times, dtype=np.int64))


def text_of(batches: list[EntryBatch]) -> list[str]:
    return [entry.payload.decode() for each in batches for entry in each.entries()]


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://partitions-{next(numbers)}")


@pytest.fixture
def writers(store: ObjectStore) -> list[StreamWriter]:
    writers = [StreamWriter(store, f"{STREAM}-partition-{number}") for number in range(3)]
    writers[0].add([batch(1, 0, [1000, 4000, 7000])])
    writers[1].add([batch(2, 0, [2000, 2000, 8000])])
    writers[2].add([batch(3, 0, [4000, 9000])])
    return writers


MERGED = ["1:0", "2:0", "2:1", "1:1", "3:0", "1:2", "2:2", "3:1"]


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize("name", [TOPIC, STREAM])
def test_topic_name_reads_all_partitions_by_publish_time(store: ObjectStore, name: str) -> None:
    with open_reader(store, name) as reader:
        assert isinstance(reader, TopicReader)
        assert text_of(list(reader.scan())) == MERGED
        assert reader.count() == 8
        assert len(reader.segments()) == 3
        assert list(reader.partitions) == [0, 1, 2]


@pytest.mark.usefixtures("writers")
def test_times_may_be_numbers_texts_or_moments(store: ObjectStore) -> None:
    reader = open_reader(store, TOPIC)
    assert text_of(list(reader.scan_published(2000, 8000))) == MERGED[1:6]
    assert text_of(list(reader.scan_published("1970-01-01T00:00:07Z"))) == MERGED[5:]
    assert text_of(list(reader.scan_published(end=datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)))) == MERGED[:3]
    assert text_of(list(reader.scan_published("-1h"))) == []
    one = open_reader(store, f"{TOPIC}-partition-1")
    assert one.position_at("1970-01-01T00:00:03") == Position(2, 2)
    assert text_of(list(one.scan_published("1970-01-01", 8000))) == ["2:0", "2:1"]
    with pytest.raises(InvalidCallError, match="publish time: 'yesterday' is not a time"):
        one.position_at("yesterday")


@pytest.mark.usefixtures("writers")
def test_positions_of_a_topic_are_refused_with_a_partition_to_name(store: ObjectStore) -> None:
    reader = open_reader(store, TOPIC)
    for call in (
        lambda: reader.read(Position(1, 0), Position(1, 1)),
        lambda: reader.scan(Position(1, 0)),
        lambda: reader.count(Position(1, 0)),
        lambda: reader.position_at(0),
        lambda: reader.last_position,
    ):
        with pytest.raises(
            InvalidCallError, match="has 3 partitions, but a position belongs to a single partition"
        ) as caught:
            call()
        assert f"{STREAM}-partition-0" in caught.value.hint


def test_name_that_is_neither_stream_nor_topic_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError, match=f"stream {STREAM} isn't in"):
        open_reader(store, TOPIC)


def test_stream_of_that_name_comes_before_partitions(store: ObjectStore, writers: list[StreamWriter]) -> None:
    StreamWriter(store, STREAM).add([batch(9, 0, [1])])
    assert text_of(list(open_reader(store, TOPIC).scan())) == ["9:0"]


@pytest.mark.parametrize("seed", range(20))
def test_merge_keeps_each_streams_order_and_sorts_by_time_where_it_can(seed: int) -> None:
    draw = random.Random(seed)
    streams = []
    for ledger in range(1 + seed % 4):
        times = [draw.choice([TIME_UNKNOWN_MS, draw.randrange(50)]) for _ in range(draw.randrange(30))]
        cuts = sorted({0, len(times), *(draw.randrange(len(times) + 1) for _ in range(3))})
        streams.append((times, [batch(ledger, a, times[a:b]) for a, b in itertools.pairwise(cuts)]))
    merged = [
        (number, entry)
        for number, part in merge_published([iter(batches) for _, batches in streams])
        for entry in part.entries()
    ]
    keys = []
    latest = [TIME_UNKNOWN_MS] * len(streams)
    for number, entry in merged:
        latest[number] = max(latest[number], entry.publish_time_ms)
        keys.append((latest[number], number))
    assert keys == sorted(keys)
    for number, (times, _) in enumerate(streams):
        own = [entry.publish_time_ms for each, entry in merged if each == number]
        assert own == times


def calls_of_a_merge(scans: int, entries: int) -> int:
    """Calls of Python functions while so many scans are merged whose entries alternate."""
    each = entries // scans
    batches = [batch(number, 0, [BASE_MS + number + scans * at for at in range(each)]) for number in range(scans)]
    merged, calls = merge_published([iter([one]) for one in batches]), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = sum(len(part) for _, part in merged)
    finally:
        sys.setprofile(before)
    assert found == entries
    return calls


def test_merging_an_entry_takes_no_longer_with_many_partitions() -> None:
    assert calls_of_a_merge(64, 1024) < 2 * calls_of_a_merge(4, 1024)


def test_scans_that_are_not_read_to_their_end_are_closed(store: ObjectStore, writers: list[StreamWriter]) -> None:
    scans = [open_stream_reader(store, writer.stream).scan() for writer in writers]
    merged = merge_published(scans)
    next(merged)
    merged.close()
    assert [list(scan) for scan in scans] == [[], [], []]


def test_too_many_partitions_are_refused() -> None:
    names = {number: f"x-partition-{number}" for number in range(PARTITIONS_READ_MAX + 1)}
    with pytest.raises(InvalidCallError, match="has 257 partitions; at most 256 can be read as one stream"):
        open_topic(
            NamedStreams("x", names), lambda name, settings: open_stream_reader(open_store("memory://none"), name)
        )


def test_partitions_are_followed_merged_and_then_as_they_come(store: ObjectStore, writers: list[StreamWriter]) -> None:
    stop = threading.Event()

    class Steps(ManualClock):
        steps = 0

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.steps += 1
            if self.steps == 1:
                writers[1].add([batch(2, 3, [10_000])])
                writers[0].add([batch(1, 3, [9_500])])
            else:
                event.set()
            return super().wait(event, timeout_s)

    clock: Clock = Steps()
    readers = [open_stream_reader(store, writer.stream) for writer in writers]
    found = follow_all(readers, [None] * 3, clock=clock, stop=stop)
    assert text_of([part for _, part in found]) == [*MERGED, "1:3", "2:3"]
