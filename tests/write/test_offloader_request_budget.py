"""Cost of streams: requests of a segment, concurrent parts, restarts, threads; and fairness to other streams."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest

from formats.keys import parse_object_key, record_number
from formats.manifest import Offloaded, decode_record
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings, Size
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.waiting import PATIENCE_S, eventually

KIB = 1024
_names = count()
WRITES = {"put", "delete", "begin_upload", "upload_part", "complete_upload", "abort_upload"}


def small_parts(part_bytes: int, **offload: object) -> Settings:
    """Below what a bucket takes as a part."""
    made = Settings.of({"offload": {"block_size": KIB, **offload}})
    return replace(made, offload=replace(made.offload, part_size=Size(part_bytes)))


class World:
    """Streams without threads over one store whose requests are counted."""

    def __init__(self, streams: int, settings: Settings) -> None:
        self.clock = ManualClock()
        self.settings = settings
        self.store = FaultyStore(MemoryStore(f"budget-{next(_names)}", "", self.clock))
        self.ledgers = {f"many/s{number}": MemoryLedgers(f"many/s{number}", self.clock) for number in range(streams)}
        self.start()

    def start(self) -> None:
        """A process that has all the streams."""
        self.workers = SimulatedWorkers(self.clock, Random(1))
        self.offloader = LedgerOffloader(self.store, self.settings, clock=self.clock, workers=self.workers)
        self.streams = {name: self.offloader.offload_stream(source, name) for name, source in self.ledgers.items()}

    def stop(self) -> None:
        for stream in self.streams.values():
            stream.stop()
        self.offloader.close()

    def run(self) -> None:
        while self.workers.run_one():
            pass

    def commit_all(self) -> None:
        for stream in self.streams.values():
            stream.request_offload()
        self.run()
        assert all(self.streams[name].status().committed == source.tail for name, source in self.ledgers.items())


@pytest.mark.slow
def test_restart_with_many_idle_streams_writes_nothing_and_sets_no_timer() -> None:
    world = World(100, Settings())
    for source in world.ledgers.values():
        source.append([b"x" * 100])
    world.commit_all()
    world.stop()
    before = len(world.store.calls)

    world.start()
    world.run()
    calls = world.store.calls[before:]
    assert WRITES.isdisjoint(verb for verb, _ in calls)
    assert len(calls) <= 100 * 10, "entry, boundary, records, one that is absent, a listing, boundary; some twice"
    assert world.workers.next_timer_s is None, "nothing will wake them but entries"
    assert all(stream.status().committed is not None for stream in world.streams.values())
    assert world.offloader.memory_bytes == 0
    world.stop()


@pytest.mark.slow
def test_streams_share_the_worker_threads() -> None:
    clock = SystemClock()
    store = MemoryStore(f"budget-{next(_names)}", "", clock)
    threads = threading.active_count()
    offloader = LedgerOffloader(store, Settings.of({"offload": {"workers_max": 3}}), clock=clock)
    sources = [MemoryLedgers(f"many/s{number}", clock) for number in range(200)]
    streams = [offloader.offload_stream(source, source.stream) for source in sources]
    for source in sources:
        source.append([b"x"])
    for stream in streams:
        stream.request_offload()
    eventually(lambda: all(stream.status().committed for stream in streams))
    assert threading.active_count() - threads <= 3 + 1, "the workers, and one for the timers of all"
    for stream in streams:
        stream.stop()
    offloader.close()


@pytest.mark.slow
def test_segment_costs_its_parts_and_four_requests_or_three_when_small() -> None:
    world = World(1, small_parts(8 * KIB, segment_size_max="32KiB"))
    [source] = world.ledgers.values()
    for _ in range(40):
        source.append([b"x" * 500] * 8)
        for _ in range(4):
            world.workers.run_one()
    source.append([b"small"])
    world.commit_all()

    records = [decode_record(world.store.inner.get(key)[0]) for key in keys_of(world) if record_number(key)]
    done = [edit.uuid for record in records for edit in record.edits if isinstance(edit, Offloaded)]
    assert len(done) > 4
    by_segment: dict[UUID, Counter[str]] = {}
    for verb, key in world.store.calls:
        named = parse_object_key(key, "many/s0")
        if named is not None and verb in WRITES:
            by_segment.setdefault(named.uuid, Counter())[verb] += 1
    assert set(by_segment) == set(done)
    for number, uuid in enumerate(done):
        made = by_segment[uuid]
        parts = made.pop("upload_part", 0)
        whole = {"begin_upload": 1, "complete_upload": 1, "put": 1} if parts else {"put": 2}
        assert made == whole, f"segment {number}"
        assert parts == 0 or parts >= 4
    # A record for each segment; one opens the epoch, one assigns the first, and the small one came after a while.
    assert len(records) <= len(done) + 3
    world.stop()


def keys_of(world: World) -> list[str]:
    return [info.key for info in world.store.inner.list("").objects]


class _Gate(StoreWrapper):
    """Parts wait until they are let through; how many waited at once."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self._lock = threading.Lock()
        self.waiting = self.waiting_max = 0

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if request.verb == "upload_part":
            with self._lock:
                self.waiting += 1
                self.waiting_max = max(self.waiting_max, self.waiting)
            assert self.open.wait(PATIENCE_S)
            with self._lock:
                self.waiting -= 1
        return call()


@pytest.mark.slow
def test_part_uploads_of_a_segment_are_bounded() -> None:
    gate = _Gate(MemoryStore(f"budget-{next(_names)}", "", SystemClock()))
    made = small_parts(8 * KIB, parts_in_flight_max=3, workers_max=8, segment_size_max="1MiB")
    offloader = LedgerOffloader(gate, made)
    source = MemoryLedgers("many/s0", SystemClock())
    stream = offloader.offload_stream(source, "many/s0")
    source.append([b"x" * 500] * 300)
    last = source.append([b"x" * 500] * 300).last
    eventually(lambda: gate.waiting == 3)
    stream.request_offload()
    gate.open.set()
    eventually(lambda: stream.status().committed == last)
    assert gate.waiting_max == 3
    stream.stop()
    offloader.close()


@pytest.mark.slow
def test_busy_stream_leaves_room_for_all_others() -> None:
    """While it writes without a pause into a full budget, every other stream's first entry is offered soon."""
    world = World(30, Settings.of({"offload": {"block_size": KIB, "offload_memory_size_max": 256 * KIB}}))
    busy, *others = world.ledgers.values()
    for _ in range(50):
        busy.append([bytes(8 * KIB)] * 4)
        world.workers.run_one()
    for source in others:
        source.append([b"x" * 3000])
    for _ in range(3000):
        busy.append([bytes(8 * KIB)])
        if not world.workers.run_one():
            next_s = world.workers.next_timer_s
            assert next_s is not None
            world.clock.advance(max(0.0, min(next_s - world.clock.monotonic_s(), 1.0)))
        if all(world.streams[source.stream].status().offered == source.tail for source in others):
            break
    else:
        raise AssertionError("somebody waits for ever")
    assert world.streams[busy.stream].status().offered != busy.tail, "it is still behind: it waited too"
    world.commit_all()
    world.stop()
