"""A scalable topic is read as one stream: each segment after its parents, siblings merged by publish time."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import offloader
from formats.entries import EntryBatch, Position
from formats.topic_layout import HASHES, RangeSegment, TopicLayout
from offloader.cli.main import main
from offloader.errors import InvalidCallError, NotFoundError
from offloader.manifest.names import named_streams
from offloader.manifest.topic_layouts import record_end, record_layout
from offloader.read.partitions import FollowedSegments, TopicReader, follow_all, merge_published, open_reader
from offloader.read.reader import existing_streams, load_stream, open_stream_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter

TOPIC, PLACE = "topic://shop/eu/orders", "shop/eu/topic/orders"
HALF = HASHES // 2
numbers = itertools.count()


def stream_of(number: int) -> str:
    return f"shop/eu/segment/orders/{RANGES[number][0]:04x}-{RANGES[number][1] - 1:04x}-{number}"


RANGES = {0: (0, HASHES), 1: (0, HALF), 2: (HALF, HASHES), 3: (0, HASHES)}
PARENTS: Mapping[int, tuple[int, ...]] = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}
#: Segment -> publish times of its entries; the clocks of producers differ.
TIMES = {0: [1000, 5000], 1: [2000, 9000], 2: [3000, 4000], 3: [3500, 9500]}
#: Segment of each entry, and its number.
ORDER = ["0:0", "0:1", "1:0", "2:0", "2:1", "1:1", "3:0", "3:1"]


def layout_of(*active: int) -> TopicLayout:
    """The layout in which these segments are active: they and their ancestors."""
    kept, todo = set[int](), list(active)
    while todo:
        kept.add(number := todo.pop())
        todo += PARENTS[number]
    rows = (
        RangeSegment(
            id=number,
            stream=stream_of(number),
            hash_start=RANGES[number][0],
            hash_stop=RANGES[number][1],
            parents=PARENTS[number],
            created_epoch=(number + 1) // 2,
            sealed_epoch=None if number in active else (number + 1) // 2 + 1,
        )
        for number in sorted(kept)
    )
    return TopicLayout(topic=TOPIC, epoch=max(active), segments=tuple(rows))


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://segments-{next(numbers)}")


def write(store: ObjectStore, number: int, times: list[int] | None = None) -> None:
    times = TIMES[number] if times is None else times
    payloads = [b"%d:%d" % (number, place) for place in range(len(times))]
    StreamWriter(store, stream_of(number)).add([EntryBatch.build(number, 0, payloads, np.array(times, dtype=np.int64))])


def end(store: ObjectStore, *segments: int) -> None:
    for number in segments:
        record_end(store, PLACE, number, Position(number, 1))


@pytest.fixture
def whole(store: ObjectStore) -> ObjectStore:
    record_layout(store, PLACE, layout_of(3))
    for number in TIMES:
        write(store, number)
    end(store, 0, 1, 2)
    return store


def texts(batches: Iterable[EntryBatch]) -> list[str]:
    return [entry.payload.decode() for batch in batches for entry in batch.entries()]


def test_children_come_after_all_of_their_parents_whatever_their_times(whole: ObjectStore) -> None:
    with open_reader(whole, TOPIC) as reader:
        assert isinstance(reader, TopicReader)
        assert texts(reader.scan()) == ORDER
        assert reader.count() == 8
        assert texts(reader.scan_published(3000, 9200)) == ["0:1", "2:0", "2:1", "1:1", "3:0"]


@pytest.mark.parametrize("name", [TOPIC, PLACE])
def test_names_of_a_scalable_topic(whole: ObjectStore, name: str) -> None:
    named = named_streams(whole, name)
    assert named.streams == tuple(stream_of(number) for number in (0, 1, 2, 3))
    assert existing_streams(whole, name) == named
    with pytest.raises(InvalidCallError, match="has 4 segments, and a position is of one"):
        named.require_one("a position is of one")
    with pytest.raises(NotFoundError, match="a topic with 4 segments, but a single stream is required"):
        load_stream(whole, name)


def test_one_segment_by_its_own_name(whole: ObjectStore) -> None:
    with open_reader(whole, "segment://shop/eu/orders/8000-ffff-2") as reader:
        assert texts(reader.scan()) == ["2:0", "2:1"]


def test_library_and_table(whole: ObjectStore) -> None:
    stream = offloader.open_store(whole.url).stream(TOPIC)
    table = stream.scan(columns=["stream", "entry_id"]).to_table()
    assert [name.rpartition("-")[2] for name in table["stream"].to_pylist()] == ["0"] * 2 + ["1"] * 2 + ["2"] * 2 + [
        "3"
    ] * 2
    assert [each.as_py().decode() for each in stream.scan().to_table()["payload"]] == ORDER
    assert stream.scan().count_rows() == 8


def test_positions_are_refused(whole: ObjectStore) -> None:
    with open_reader(whole, TOPIC) as reader, pytest.raises(InvalidCallError, match="has 4 segments, but a position"):
        reader.scan(Position(0, 0))


def test_child_is_left_out_until_the_store_has_its_parents_to_their_ends(store: ObjectStore) -> None:
    def readable() -> list[str]:
        with open_reader(store, TOPIC) as reader:
            return texts(reader.scan())

    record_layout(store, PLACE, layout_of(1, 2))
    write(store, 0, [1000])
    write(store, 1)
    assert readable() == ["0:0"]  # its end isn't known
    record_end(store, PLACE, 0, Position(0, 1))
    assert readable() == ["0:0"]  # its last entry isn't offloaded
    StreamWriter(store, stream_of(0)).add([EntryBatch.build(0, 1, [b"0:1"], np.array([5000], dtype=np.int64))])
    assert readable() == ["0:0", "0:1", "1:0", "1:1"]


def test_grandchildren_wait_too(store: ObjectStore) -> None:
    record_layout(store, PLACE, layout_of(3))
    for number in (0, 1, 3):
        write(store, number)
    end(store, 0, 1)
    record_end(store, PLACE, 2, Position(2, 1))  # segment 2 has entries, and nothing of it is offloaded
    with open_reader(store, TOPIC) as reader:
        assert texts(reader.scan()) == ["0:0", "0:1", "1:0", "1:1"]


def test_empty_parent_holds_nothing_back(store: ObjectStore) -> None:
    record_layout(store, PLACE, layout_of(1, 2))
    write(store, 1)
    record_end(store, PLACE, 0, Position(-1, -1))
    with open_reader(store, TOPIC) as reader:
        assert texts(reader.scan()) == ["1:0", "1:1"]


def withheld(store: ObjectStore) -> None:
    """A child is in the store, and its parent isn't."""
    record_layout(store, PLACE, layout_of(1, 2))
    write(store, 1)


def test_topic_of_which_nothing_can_be_read_yet_is_empty(store: ObjectStore) -> None:
    withheld(store)
    with open_reader(store, TOPIC) as reader:
        assert (texts(reader.scan()), reader.count(), reader.segments()) == ([], 0, [])
        with pytest.raises(InvalidCallError, match="has 1 segments, but a position belongs to a single segment"):
            reader.scan(Position(1, 0))
    scan = offloader.open_store(store.url).stream(TOPIC).scan()
    assert (scan.to_table().num_rows, scan.count_rows()) == (0, 0)


def test_topic_of_which_nothing_can_be_read_yet_is_followed(store: ObjectStore) -> None:
    stop, polls = threading.Event(), itertools.count()

    class Steps(ManualClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            if next(polls) == 0:
                write(store, 0)
                end(store, 0)
            else:
                stop.set()
            return super().wait(event, timeout_s)

    withheld(store)
    segments = FollowedSegments(lambda: named_streams(store, TOPIC), lambda name: open_stream_reader(store, name), [])
    found = follow_all([], [], clock=Steps(), stop=stop, segments=segments)
    assert texts(batch for _, batch in found) == ["0:0", "0:1", "1:0", "1:1"]


def test_topic_without_offloaded_segments_is_said_so(store: ObjectStore) -> None:
    record_layout(store, PLACE, layout_of(0))
    with pytest.raises(NotFoundError, match="shop/eu/topic/orders"):
        open_reader(store, TOPIC)


def test_followed_topic_gets_new_segments_after_their_parents(store: ObjectStore) -> None:
    """Each step is what one poll finds; what it reads must not go beyond the segments whose parents are complete."""
    stop = threading.Event()

    def split() -> None:
        record_layout(store, PLACE, layout_of(1, 2))
        write(store, 1)

    def merge() -> None:
        record_layout(store, PLACE, layout_of(3))
        write(store, 3)
        end(store, 1, 2)  # and 2 isn't there

    # After the first one, the end of 0 isn't known.
    steps = iter([split, lambda: end(store, 0), merge, lambda: write(store, 2), stop.set])

    class Steps(ManualClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            next(steps)()
            polls.append(len(seen))
            return super().wait(event, timeout_s)

    record_layout(store, PLACE, layout_of(0))
    write(store, 0)
    seen, polls, ids = list[str](), list[int](), [0]
    segments = FollowedSegments(lambda: named_streams(store, TOPIC), lambda name: open_stream_reader(store, name), ids)
    with open_stream_reader(store, stream_of(0)) as reader:
        for _, batch in follow_all([reader], [None], clock=Steps(), stop=stop, segments=segments):
            seen += texts(iter([batch]))
    assert seen == ["0:0", "0:1", "1:0", "1:1", "2:0", "2:1", "3:0", "3:1"]
    assert polls == [2, 2, 4, 4, 8]
    assert ids == [0, 1, 3, 2]


@pytest.mark.parametrize("seed", range(20))
def test_merge_keeps_the_order_of_any_graph(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    after = [tuple(each for each in range(number) if rng.random() < 0.3) for number in range(count)]
    shuffled = rng.sample(range(count), count)
    place = {number: where for where, number in enumerate(shuffled)}
    graph = [tuple(place[each] for each in after[number]) for number in shuffled]
    lengths = [rng.randint(0, 4) for _ in range(count)]

    def scan(number: int) -> Iterator[EntryBatch]:
        for entry in range(lengths[number]):
            yield EntryBatch.build(number, entry, [b""], np.array([rng.randint(1, 9)], dtype=np.int64))

    seen = [(number, batch.first.entry_id) for number, batch in merge_published([*map(scan, range(count))], graph)]
    assert sorted(seen) == [(number, entry) for number in range(count) for entry in range(lengths[number])]
    for number, entry in seen:
        before = seen[: seen.index((number, entry))]
        assert [each for each in before if each[0] == number] == [(number, early) for early in range(entry)]
        for parent in graph[number]:
            assert sum(each[0] == parent for each in before) == lengths[parent]


def test_command_reads_a_topic(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"file://{tmp_path}")
    record_layout(store, PLACE, layout_of(1, 2))
    for number in (0, 1, 2):
        write(store, number)
    end(store, 0)
    assert main(["read", TOPIC, "--store", store.url, "--count"]) == 0
    assert "6" in capsys.readouterr().out
    assert main(["read", TOPIC, "--store", store.url, "--messages", "--on-bad-message", "null", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert main(["read", TOPIC, "--store", store.url, "--from", "1:0"]) != 0
    assert "has 3 segments, but a position belongs to one" in capsys.readouterr().err


def test_command_reads_a_topic_of_which_nothing_can_be_read_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"file://{tmp_path}")
    withheld(store)
    for more in ([], ["--count"], ["--messages", "--json"]):
        assert main(["read", TOPIC, "--store", store.url, *more]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == "0\n"
