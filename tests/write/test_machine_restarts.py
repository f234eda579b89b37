"""A stream whose record the manifest refused is started again, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from formats.manifest import Edit
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import RESTART_S_MIN, LedgerOffloader, MethodOffload
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
_names = count()


class Ledgers(MemoryLedgers):
    """A hot tier that can't list its ledgers as long as there is an error to raise."""

    errors: Sequence[Exception] = ()

    def ledgers(self) -> list[LedgerInfo]:
        if self.errors:
            first, *self.errors = self.errors
            raise first
        return super().ledgers()


class Refusing(ManifestLog):
    """The manifest of an owner, that takes no edit."""

    def commit(self, edits: Sequence[Edit]) -> ManifestState:
        raise EditRefusedError(f"stream {self.stream}: no edit is taken: {len(edits)}")


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"restarts-{next(_names)}", "", SystemClock())
        self.workers = SimulatedWorkers(self.clock, Random(1))
        self.offloader = LedgerOffloader(self.store, Settings(), clock=self.clock, workers=self.workers)
        self.source = Ledgers(STREAM, self.clock)
        self.source.append([b"entry"] * 10)
        self.method = MethodOffload(self.offloader, self.source, STREAM, "streaming")

    def run(self) -> None:
        is_busy = True
        while is_busy:
            with suppress(MemoryError):  # as threads: they only log it
                is_busy = self.workers.run_one()

    def begin_and_be_refused(self) -> None:
        self.method.begin(Refusing(self.store, STREAM, clock=self.clock))
        self.run()

    def commit_all(self) -> None:
        for _ in range(10):
            self.clock.advance(10)
            self.run()
        offload = self.method._offload
        assert offload is not None
        assert offload.status().error == ""
        offload.request_offload()
        self.run()
        assert stored_entries(self.store, STREAM) == self.source.appended


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.method.end()
    made.offloader.close()


def test_stream_that_is_refused_before_its_start_returns_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = world.offloader.observation.add

    def late(offload: StreamOffload) -> None:
        world.run()  # its thread waits: the workers are faster
        add(offload)

    monkeypatch.setattr(world.offloader.observation, "add", late)
    world.begin_and_be_refused()
    world.commit_all()


def test_stream_is_started_again_although_an_attempt_failed_with_an_error_of_any_kind(world: World) -> None:
    world.begin_and_be_refused()
    world.source.errors = [MemoryError("no memory")]
    world.commit_all()
    assert not world.source.errors


def test_stream_that_made_progress_is_started_again_after_the_first_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refused = ManifestLog.commit, [False]

    def some(log: ManifestLog, edits: Sequence[Edit]) -> ManifestState:
        if refused[0]:
            refused[0] = False
            raise EditRefusedError(f"stream {STREAM}: no edit is taken")
        return commit(log, edits)

    monkeypatch.setattr(ManifestLog, "commit", some)
    world.method.begin()
    for _ in range(4):
        world.commit_all()
        world.source.append([b"entry"] * 10)
        refused[0] = True
        world.run()
        assert not refused[0]
        world.clock.advance(1.1 * RESTART_S_MIN)
        world.run()
        status = world.method.status()
        assert status is not None
        assert status.error == ""


@pytest.mark.slow
def test_stream_that_is_ended_while_it_is_started_again_does_not_run_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it fights with the method that the stream was switched to."""
    world.begin_and_be_refused()
    ended = threading.Thread(target=world.method.end)
    start = StreamOffload.start

    def late(offload: StreamOffload) -> None:
        ended.start()
        ended.join(0.2)  # it may have to wait
        start(offload)

    monkeypatch.setattr(StreamOffload, "start", late)
    world.clock.advance(1.1 * RESTART_S_MIN)
    world.run()
    ended.join(PATIENCE_S)
    assert not world.method.is_running
