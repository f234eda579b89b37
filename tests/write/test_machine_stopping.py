"""A stream that is stopped while one of its steps runs: it stays stopped, and takes nothing from its successor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from offloader.errors import StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.readback import stored_entries

STREAM = "public/default/persistent/orders"
_names = count()


class InterruptedStore(StoreWrapper):
    """Something else happens before one call of a verb reaches the store."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.at: tuple[str, str] | None = None
        self.happens: Callable[[], object] = lambda: None
        self.calls = 0

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.at is not None and request.verb == self.at[0] and self.at[1] in request.key:
            self.at = None
            self.happens()
        return call()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"stopping-{next(_names)}", "", SystemClock())
        self.store = InterruptedStore(self.memory)
        self.workers = SimulatedWorkers(self.clock, Random(1))
        settings = Settings.of({"offload": {"segment_size_max": 1049}})
        self.offloader = LedgerOffloader(self.store, settings, clock=self.clock, workers=self.workers)
        self.source = MemoryLedgers(STREAM, self.clock)
        self.takeover_s = settings.offload.takeover_after

    def start(self) -> StreamOffload:
        return self.offloader.offload_stream(self.source, STREAM)

    def run(self) -> None:
        while self.workers.run_one():
            pass

    def pass_time(self, seconds: float) -> None:
        for _ in range(20):
            self.clock.advance(seconds / 20)
            self.run()

    def take_over(self) -> ManifestLog:
        """As a successor does, past the interrupted store."""
        log = ManifestLog(self.memory, STREAM, clock=self.clock)
        log.open_epoch()
        return log


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.offloader.close()


def test_stream_that_is_fenced_after_its_stop_is_not_taken_back(world: World) -> None:
    stream = world.start()
    world.source.append([b"entry"])
    world.run()
    successors: list[ManifestLog] = []

    def stopped_and_replaced() -> None:
        stream.stop()
        successors.append(world.take_over())

    world.store.at, world.store.happens = ("put", ".json"), stopped_and_replaced
    stream.request_offload()
    world.run()
    assert successors
    calls = world.store.calls
    world.pass_time(20 * world.takeover_s)
    assert load_manifest(world.memory, STREAM).epoch == successors[0].epoch
    assert world.store.calls == calls, "nobody looks after a stopped stream"


class _ReleasedLock:
    """A lock after whose next release something happens."""

    def __init__(self, lock: threading.Lock, happens: Callable[[], object]) -> None:
        self._lock, self._happens = lock, [happens]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._happens:
            self._happens.pop()()


def test_stream_that_is_stopped_while_it_is_taken_back_stays_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.start()
    world.source.append([b"entry"])
    world.run()
    successor = world.take_over()
    stream.request_offload()
    world.run()
    assert stream.status().error_kind == "FencedError"
    monkeypatch.setattr(stream._shared, "lock", _ReleasedLock(stream._shared.lock, stream.stop))
    stream.reopen()
    world.run()
    assert stream.status().mode is Mode.STOPPED
    assert load_manifest(world.memory, STREAM).epoch == successor.epoch


def test_stream_that_is_stopped_while_it_takes_the_stream_over_leaves_it_to_its_successor(world: World) -> None:
    world.source.append([b"entry"])
    stream = world.start()
    successors: list[ManifestLog] = []

    def stopped_and_replaced() -> None:
        stream.stop()
        successors.append(world.take_over())

    world.store.at, world.store.happens = ("put", ".json"), stopped_and_replaced
    world.run()
    assert load_manifest(world.memory, STREAM).epoch == successors[0].epoch


def test_stream_that_is_stopped_while_it_takes_the_stream_over_begins_no_run(world: World) -> None:
    world.source.append([b"entry" * 100] * 100)
    stream = world.start()
    world.store.at, world.store.happens = ("put", ".json"), stream.stop
    world.run()
    assert stored_entries(world.memory, STREAM) == []
    assert not load_manifest(world.memory, STREAM).assigned()


def test_stream_that_is_stopped_while_it_loads_its_manifest_stays_stopped(world: World) -> None:
    world.source.append([b"entry"])
    before = world.start()
    before.request_offload()
    world.run()
    before.stop()
    stream = world.start()
    world.store.at, world.store.happens = ("get", ""), stream.stop
    world.run()
    assert (stream.status().mode, stream.status().was_closed) == (Mode.STOPPED, True)


def test_error_after_the_stop_is_not_the_reason_of_the_stop(world: World) -> None:
    world.source.append([b"entry"])
    stream = world.start()

    def stopped_in_an_outage() -> None:
        stream.stop()
        raise StoreUnavailableError("no route to the store")

    world.store.at, world.store.happens = ("put", ".json"), stopped_in_an_outage
    world.run()
    assert stream.status().was_closed


def test_stream_with_nothing_to_offload_forgets_the_error_of_its_first_attempt(world: World) -> None:
    world.source.append([b"entry"])
    before = world.start()
    before.request_offload()
    world.run()
    before.stop()

    def outage() -> None:
        raise StoreUnavailableError("no route to the store")

    world.store.at, world.store.happens = ("get", ""), outage
    stream = world.start()
    world.run()
    assert "no route" in stream.status().error
    world.pass_time(10)
    assert (stream.status().mode, stream.status().error) == (Mode.LIVE, "")
