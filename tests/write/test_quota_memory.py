"""The process's memory budget: exact, first come first served, and free of deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from formats.entries import Position
from offloader.errors import OutcomeUnknownError
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader
from offloader.write.quota import MemoryBudget, StreamQuota
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.readback import stored_entries

KIB = 1024
_names = count()


class BudgetMachine(RuleBasedStateMachine):
    """Buffers that take, give back and wait, in any order; the sums are always right and nobody waits for nothing."""

    @initialize(limit=st.sampled_from([64 * KIB, 100_000, 512 * KIB]), members=st.integers(1, 6))
    def begin(self, limit: int, members: int) -> None:
        self.budget = MemoryBudget(limit)
        self.woken: set[int] = set()
        self.buffers = [
            StreamQuota(200 * KIB, self.budget, wake=lambda number=number: self.woken.add(number))  # type: ignore[misc]
            for number in range(members)
        ]
        self.held = [0] * members

    @rule(data=st.data(), size=st.integers(1, 80 * KIB))
    def take(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.integers(0, len(self.buffers) - 1))
        room = self.buffers[number].room_bytes
        taken = self.buffers[number].take(size)
        assert taken == (size <= room), "room_bytes is what take admits"
        self.held[number] += size if taken else 0

    @rule(data=st.data(), share=st.floats(0, 1))
    def give_back(self, data: st.DataObject, share: float) -> None:
        number = data.draw(st.integers(0, len(self.buffers) - 1))
        change = int(self.held[number] * share)
        self.buffers[number].adjust(-change)
        self.held[number] -= change

    @rule(data=st.data(), size=st.integers(1, 2 * KIB))
    def encoding_adds(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.integers(0, len(self.buffers) - 1))
        if self.budget.granted_bytes + size <= self.budget.limit_bytes:
            self.buffers[number].adjust(size)
            self.held[number] += size

    @rule(data=st.data(), size=st.integers(1, 60 * KIB))
    def wait(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.integers(0, len(self.buffers) - 1))
        if self.buffers[number].wait_for_room(size):
            assert self.buffers[number].take(size), "what was waited for is there"
            self.held[number] += size

    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        self.buffers[data.draw(st.integers(0, len(self.buffers) - 1))].stop_waiting()

    @invariant()
    def the_sums_are_exact_and_bounded(self) -> None:
        if not hasattr(self, "budget"):
            return
        assert [buffer.held_bytes for buffer in self.buffers] == self.held
        assert sum(self.held) <= self.budget.granted_bytes <= self.budget.limit_bytes

    def teardown(self) -> None:
        """When everything is given back, nobody is left in line and nothing is counted."""
        if not hasattr(self, "budget"):
            return
        for number, buffer in enumerate(self.buffers):
            buffer.adjust(-self.held[number])
        for _ in self.buffers:
            for buffer in self.buffers:
                buffer.stop_waiting()
        assert self.budget.waiting == 0
        assert self.budget.granted_bytes == 0


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)


def test_waiting_stream_is_granted_memory_before_later_requests() -> None:
    woken: list[str] = []
    budget = MemoryBudget(100 * KIB)
    busy = StreamQuota(200 * KIB, budget, wake=lambda: woken.append("busy"))
    other = StreamQuota(200 * KIB, budget, wake=lambda: woken.append("other"))
    assert busy.take(90 * KIB)
    assert not other.wait_for_room(40 * KIB)

    busy.adjust(-20 * KIB)
    assert not busy.take(5 * KIB + busy.granted_bytes - busy.held_bytes), "the free bytes are somebody else's turn"
    busy.adjust(-30 * KIB)

    assert woken == ["other"]
    assert other.take(40 * KIB)


def test_waiting_stream_causes_pressure_and_the_fullest_streams_flush_first() -> None:
    asked: list[str] = []
    told: list[bool] = []
    budget = MemoryBudget(64 * KIB, on_pressure=lambda: told.append(True))

    def request_flush(name: str, size: int) -> int:
        asked.append(name)
        return size

    small = StreamQuota(64 * KIB, budget, request_flush=lambda: request_flush("small", 10 * KIB))
    large = StreamQuota(64 * KIB, budget, request_flush=lambda: request_flush("large", 50 * KIB))
    late = StreamQuota(64 * KIB, budget)
    assert small.take(10 * KIB)
    assert large.take(50 * KIB)
    assert budget.request_flush() == 0, "nobody waits"
    assert not late.wait_for_room(20 * KIB)
    assert told

    assert budget.request_flush() == 50 * KIB
    assert asked == ["large"]


def test_stopped_stream_returns_all_its_memory() -> None:
    budget = MemoryBudget(64 * KIB)
    buffer = StreamQuota(64 * KIB, budget)
    assert buffer.take(50 * KIB)
    buffer.leave()
    assert budget.granted_bytes == 0
    assert not buffer.take(1)


class World:
    """Many streams of one process, without threads."""

    def __init__(self, streams: int, seed: int, faults: Sequence[Fault] = (), **offload: object) -> None:
        self.clock = ManualClock()
        self.random = Random(seed)
        self.store = MemoryStore(f"memory-{next(_names)}", "", SystemClock())
        self.workers = SimulatedWorkers(self.clock, Random(seed + 1))
        settings = Settings.of({"offload": {"block_size": 4 * KIB, **offload}})
        store = FaultyStore(self.store, faults)
        self.offloader = LedgerOffloader(store, settings, clock=self.clock, workers=self.workers)
        self.ledgers = {f"many/s{number}": MemoryLedgers(f"many/s{number}", self.clock) for number in range(streams)}
        self.streams = {name: self.offloader.offload_stream(source, name) for name, source in self.ledgers.items()}
        self.limit_bytes = settings.offload.offload_memory_size_max

    def run(self) -> None:
        """Until no task is ready; timers aren't waited for."""
        while self.workers.run_one():
            assert self.offloader.memory_bytes <= self.limit_bytes + 64 * KIB

    def settle(self) -> None:
        """Until everything is offered: nothing but the pressure on memory closes a segment, no size, age or request."""
        self._until(lambda name: self.streams[name].status().offered)

    def commit_all(self) -> None:
        """Until everything that there is, is committed, because somebody asks for it."""
        for stream in self.streams.values():
            stream.request_offload()
        self._until(lambda name: self.streams[name].status().committed)
        assert [stream.status().buffer_bytes for stream in self.streams.values() if stream.status().buffer_bytes] == []

    def _until(self, reached: Callable[[str], Position | None]) -> None:
        for _ in range(1000):
            self.run()
            if all(reached(name) == source.tail for name, source in self.ledgers.items()):
                return
            next_s = self.workers.next_timer_s
            assert next_s is not None, "streams wait, and nothing is ready: the budget is full and nothing moves"
            wait_s = next_s - self.clock.monotonic_s()
            assert wait_s < 60, "only retries may be waited for, not a segment's age"
            self.clock.advance(wait_s)
        raise AssertionError("no end")


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.offloader.close()


def test_a_stream_goes_on_whose_bytes_were_given_back_while_its_first_assignment_was_in_doubt(
    worlds: list[World],
) -> None:
    first, second = "many/s0", "many/s1"
    # The record after the one that opens the epoch; every repeat of one commit, too.
    doubt = Fault(call=2, calls=8, verb="put", key_part=f"{first}/manifest", but="boundary", error=OutcomeUnknownError)
    world = World(2, 1, [doubt], offload_memory_size_max=64 * KIB, offload_buffer_size_max=64 * KIB)
    worlds.append(world)
    world.ledgers[first].append([bytes(10 * KIB)] * 5)
    world.run()
    assert world.streams[first].status().error_kind == "OutcomeUnknownError"
    world.ledgers[second].append([bytes(10 * KIB)] * 5)
    world.run()
    assert world.streams[first].status().buffer_bytes == 0, "the other stream needs them"

    world.settle()
    world.commit_all()

    for name, source in world.ledgers.items():
        assert stored_entries(world.store, name) == source.appended
