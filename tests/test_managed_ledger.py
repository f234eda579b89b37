"""The embedded broker half: append, read through both tiers, offload, continue after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import (
    BeyondEndError,
    ClosedError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    StoreUnavailableError,
)
from offloader.ledgers.sqlite.embedded import EmbeddedStream
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.partitions import open_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.machine import StreamOffload
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

STREAM = "public/default/persistent/orders"
_names = count()


def settings(**changes: object) -> Settings:
    offload = {"block_size": 1024, "segment_size_max": "16KiB", **changes}
    return Settings.of({"offload": offload, "ledgers": {"ledger_size_max": 25_000}})


class Bench:
    def __init__(self, directory: Path) -> None:
        self.store = FaultyStore(MemoryStore(f"managed-{next(_names)}", "", SystemClock()))
        self.ledgers = f"sqlite:///{directory}/data/ledgers.db"
        self.expected: list[tuple[Position, bytes]] = []
        self._random = Random(5)
        self.opened: list[ManagedLedger] = []

    def open(self, **changes: object) -> ManagedLedger:
        topic = open_managed_ledger(STREAM, ledgers=self.ledgers, store=self.store, settings=settings(**changes))
        self.opened.append(topic)
        return topic

    def append(self, topic: ManagedLedger, batches: int) -> None:
        for _ in range(batches):
            payloads = [self._random.randbytes(self._random.randint(0, 300)) for _ in range(10)]
            for batch in topic.append_batch(payloads):
                self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def read(self, topic: ManagedLedger, first: Position, last: Position) -> list[tuple[Position, bytes]]:
        return [(entry.position, entry.payload) for entry in topic.read(first, last)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for topic in made.opened:
        topic.close(drain=False)


def test_single_entries_batches_and_arrow_arrays_are_appended(bench: Bench) -> None:
    topic = bench.open()

    first = topic.append(b"one", 5)
    second = topic.append_batch([b"two", b"three"], [6, 7])
    third = topic.append_batch(pa.array([b"four"]), 8)

    assert [first, second[0].first, second[0].last, third[0].first] == [
        Position(first.ledger_id, number) for number in range(4)
    ]
    entries = list(topic.read(first, third[0].last))
    assert [(entry.payload, entry.publish_time_ms) for entry in entries] == [
        (b"one", 5),
        (b"two", 6),
        (b"three", 7),
        (b"four", 8),
    ]


@pytest.mark.slow
def test_reads_cross_from_the_cold_into_the_hot_tier(bench: Bench) -> None:
    topic = bench.open()
    bench.append(topic, 30)
    end = topic.offload()
    bench.append(topic, 3)
    assert end is not None
    assert end < bench.expected[-1][0]

    assert bench.read(topic, bench.expected[0][0], bench.expected[-1][0]) == bench.expected
    assert bench.read(topic, bench.expected[17][0], bench.expected[322][0]) == bench.expected[17:323]


@pytest.mark.slow
def test_committed_entries_are_read_without_the_hot_tier(bench: Bench) -> None:
    topic = bench.open()
    bench.append(topic, 60)
    topic.offload()
    gone = [info.ledger_id for info in topic.ledgers() if info.closed and info.entries]
    assert len(gone) >= 2
    for ledger_id in gone:
        topic._parts.source.delete(ledger_id)

    assert bench.read(topic, bench.expected[0][0], bench.expected[-1][0]) == bench.expected


@pytest.mark.slow
def test_closing_completes_the_last_segment_and_the_next_opening_continues(bench: Bench) -> None:
    with bench.open() as topic:
        bench.append(topic, 25)
    assert stored_entries(bench.store, STREAM) == bench.expected

    with bench.open() as topic:
        bench.append(topic, 25)
    assert stored_entries(bench.store, STREAM) == bench.expected
    assert load_manifest(bench.store, STREAM).offloaded()[0].begin == bench.expected[0][0]


@pytest.mark.slow
def test_ledger_and_streaming_methods_make_one_stream(bench: Bench) -> None:
    """V1 and V2 mixed: readers don't notice."""
    with bench.open(method="ledger") as topic:
        bench.append(topic, 40)
        topic.close_ledger()
        topic.offload()
    with bench.open(method="streaming") as topic:
        bench.append(topic, 30)
        topic.offload()

        assert {s.layout for s in load_manifest(bench.store, STREAM).offloaded()} == {1, 2}
        assert bench.read(topic, bench.expected[0][0], bench.expected[-1][0]) == bench.expected
    with open_reader(bench.store, STREAM) as reader:
        scanned = [(entry.position, entry.payload) for batch in reader.scan() for entry in batch.entries()]
        assert scanned == bench.expected


def test_without_a_method_nothing_is_offloaded(bench: Bench) -> None:
    topic = bench.open(method="none")
    bench.append(topic, 3)

    with pytest.raises(InvalidCallError, match="method is none"):
        topic.offload()
    assert topic.status() is None
    assert bench.store.list("").objects == ()
    assert bench.read(topic, bench.expected[0][0], bench.expected[-1][0]) == bench.expected


def test_before_anything_is_offloaded_no_hot_copy_is_deleted(bench: Bench) -> None:
    topic = bench.open(method="none", deletion_lag="0m")
    bench.append(topic, 3)
    topic.close_ledger()

    assert topic.release_hot() == []
    assert bench.read(topic, bench.expected[0][0], bench.expected[-1][0]) == bench.expected


@pytest.mark.slow
def test_a_second_opening_fences_the_first(bench: Bench) -> None:
    first = bench.open()
    bench.append(first, 2)
    second = bench.open()

    with pytest.raises(FencedError):
        first.append(b"late")
    bench.append(second, 2)
    second.offload()
    assert stored_entries(bench.store, STREAM) == bench.expected


def test_entry_too_large_to_offload_is_refused_before_it_is_written(bench: Bench) -> None:
    topic = bench.open(entry_size_max=1000)
    for payloads in ([b"small", bytes(1001)], pa.array([b"small", bytes(1001)])):
        with pytest.raises(LimitReachedError, match="nothing of the batch was appended"):
            topic.append_batch(payloads)
    assert topic.ledgers()[-1].entries == 0


def test_reading_past_the_end_names_the_last_position(bench: Bench) -> None:
    topic = bench.open()
    bench.append(topic, 1)
    last = bench.expected[-1][0]
    with pytest.raises(BeyondEndError, match=str(last)):
        topic.read(last, last.next())


def test_notes_become_durable_with_their_batch(bench: Bench) -> None:
    with bench.open() as topic:
        topic.append_batch([b"x"], notes={"input_offset": b"17"})
    assert bench.open().get_note("input_offset") == b"17"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_failed_switch_keeps_the_current_method(bench: Bench, method: str) -> None:
    topic = bench.open(method=method)
    bench.append(topic, 5)
    topic.close_ledger()
    topic.offload()
    bench.store.set_faults([Fault(call=1, calls=100, verb="put", key_part=".json")])

    with pytest.raises(StoreUnavailableError):
        topic.set_method("none")

    bench.store.set_faults([])
    assert topic.method == method
    bench.append(topic, 5)
    topic.close_ledger()
    topic.offload()
    assert stored_entries(bench.store, STREAM) == bench.expected


@pytest.fixture
def hot_reads(monkeypatch: pytest.MonkeyPatch) -> list[Position]:
    """Where each read of the embedded ledgers began."""
    starts: list[Position] = []
    read = EmbeddedStream.read

    def counted(stream: EmbeddedStream, start: Position, max_bytes: int) -> EntryBatch | None:
        starts.append(start)
        return read(stream, start, max_bytes)

    monkeypatch.setattr(EmbeddedStream, "read", counted)
    return starts


KIB = 1024
#: Cache, and whether it holds all that is appended while the stream can't keep up: about 150 KB.
CACHES = [pytest.param(512 * KIB, id="all kept"), pytest.param(80 * KIB, id="some kept"), pytest.param(0, id="none")]


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", CACHES)
def test_a_refused_stream_reads_the_hot_tier_only_for_what_the_cache_gave_up(
    bench: Bench, hot_reads: list[Position], cache_bytes: int
) -> None:
    topic = bench.open(offload_buffer_size_max=64 * KIB, tail_cache_size_max=cache_bytes)
    bench.append(topic, 1)
    topic.offload()
    hot_reads.clear()
    bench.store.set_faults([Fault(call=1, calls=10**9)])
    bench.append(topic, 100)
    assert topic._parts.tail.held_bytes <= cache_bytes
    kept = topic._parts.tail._chunks[0].first if cache_bytes else Position(10**9, 0)

    bench.store.set_faults([])
    topic.offload()

    assert [start for start in hot_reads if start >= kept] == []
    assert bool(hot_reads) == (cache_bytes < 512 * KIB)
    assert stored_entries(bench.store, STREAM) == bench.expected


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", CACHES)
def test_restarted_stream_reads_from_the_hot_tier_only_evicted_entries(
    bench: Bench, hot_reads: list[Position], cache_bytes: int
) -> None:
    topic = bench.open(tail_cache_size_max=cache_bytes)
    bench.append(topic, 1)
    topic.set_method("none")
    hot_reads.clear()
    bench.append(topic, 100)
    kept = topic._parts.tail._chunks[0].first if cache_bytes else Position(10**9, 0)

    topic.set_method("streaming")
    topic.offload()

    assert [start for start in hot_reads if start >= kept] == []
    assert bool(hot_reads) == (cache_bytes < 512 * KIB)
    assert stored_entries(bench.store, STREAM) == bench.expected


def test_a_closed_stream_keeps_no_entries_in_memory(bench: Bench) -> None:
    topic = bench.open()
    bench.append(topic, 3)
    assert topic._parts.tail.held_bytes > 0
    topic.close()
    assert topic._parts.tail.held_bytes == 0


def test_stream_is_closed_although_ctrl_c_ends_the_wait_for_its_last_segment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the process goes on, and the next call to close has nothing left to do."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    topic = bench.open()
    bench.append(topic, 3)
    monkeypatch.setattr(StreamOffload, "offload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        topic.close()
    topic.close()
    assert topic._parts.tail.held_bytes == 0
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClosedError):
        topic.append_batch([b"late"])


class _Contradicting(StoreWrapper):
    """Takes the next record that a stream writes, and says that it didn't."""

    armed = False

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        answer = call()
        if self.armed and request.verb == "put" and request.key.endswith(".json"):
            self.armed = False
            raise StoreUnavailableError(f"{request.key} wasn't written, says a gateway that has passed it on")
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("at", ["assign", "end"])
def test_stream_continues_after_a_refused_record_that_was_stored(tmp_path: Path, at: str) -> None:
    """The manifest is read back before a contradiction is reported; a remaining contradiction restarts the stream."""
    store = _Contradicting(MemoryStore(f"managed-{next(_names)}", "", SystemClock()))
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    expected: list[tuple[Position, bytes]] = []
    with open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings()) as topic:
        for number in range(3):
            if at == "end" and number == 1:
                position = topic.append(b"assigned")
                expected.append((position, b"assigned"))
                eventually(lambda: load_manifest(store, STREAM).assigned())
            store.armed = number == 1
            for batch in topic.append_batch([b"%d" % number] * 10):
                expected += [(entry.position, entry.payload) for entry in batch.entries()]
            topic.offload(timeout_s=20)

    assert stored_entries(store, STREAM) == expected
