"""One stream, its hot tier, its bucket and its writers, without threads: who drives it says what happens next.

It doesn't decide what happens, and doesn't depend on anything but the randomness it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from formats.entries import Position
from formats.manifest import LedgerClosed, LedgersDeleted, Pause, Resume, Truncate
from offloader.errors import NotFoundError, OffloaderError
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.stream import Mode
from tests.proof.simulation.simulated_process import SimulatedProcess
from tests.proof.simulation.simulated_store import FaultModel, FaultPlan, SimulatedStore
from tests.proof.simulation.simulation_checks import loaded, what_is_unaccounted, what_is_unreadable

__all__ = ["STREAM", "TOPIC", "InvariantBroken", "World"]

#: The stream is named like a partition: of a topic, or, where a stream has the topic's name, one of its own.
TOPIC = "simulated/stream"
STREAM = f"{TOPIC}-partition-0"
#: Turns until a world has come to rest, and between two looks whether it has.
TURNS_TO_REST_MAX = 10_000
LOOK_TURNS = 10
#: What encoding may hold above the budget: headers and tables of the blocks under way.
OVERHEAD_BYTES = 256 * 1024


class InvariantBroken(AssertionError):
    """What must never be, was."""


class World:
    """See the module. Methods that check raise ``InvariantBroken``.

    Args:
        name: of its bucket, which is its own: another world's of that name is another.
        random: decides what is left to chance: which task is next, which ledger it is.
        settings: of every process.
        plan_of: the faults that a process meets, for the number of the process, from 1.
        way_in: what processes see of the bucket: a store around it, for the clock.

    Attributes:
        clock: everybody's.
        store: the bucket, as it is without any weather.
        weather: the faults that processes share, and the trace.
        ledgers: the hot tier.
        processes: that live, the newest last.
        started: how many there were.
        lost: entries whose hot copy was deleted and nobody was asked.
        unheard: ledgers of them that somebody who started since never heard of.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        settings: Callable[[Random], Settings],
        plan_of: Callable[[int], FaultPlan] = lambda _: FaultPlan(),
        way_in: Callable[[ObjectStore, Clock], ObjectStore] = lambda bucket, _: bucket,
    ) -> None:
        self._random = random
        self._plan_of = plan_of
        self.clock = ManualClock()
        self.store = MemoryStore(name, "", self.clock, is_shared=False)
        self._way_in = way_in(self.store, self.clock)
        self.weather = FaultModel(self._another_random(), self.clock, self._others_work)
        self.ledgers = MemoryLedgers(STREAM, self.clock)
        self.settings = settings(random)
        self.processes: list[SimulatedProcess] = []
        self.started = 0
        self.lost: set[Position] = set()
        self.unheard: set[int] = set()

    @property
    def trace(self) -> list[str]:
        """Every request, with what became of it, and whatever else happened."""
        return self.weather.trace

    def _another_random(self) -> Random:
        """So that what one part draws doesn't change what another does."""
        return Random(self._random.getrandbits(64))

    def erase(self) -> None:
        """Nothing of it takes memory any more."""
        for process in self.processes:
            process.die()
        self.store.delete([info.key for info in self.store.list("").objects])

    def land(self) -> None:
        """One of the writes that are on their way arrives."""
        if self.weather.late:
            self.weather.land_one()

    # -- processes

    def start(self) -> SimulatedProcess:
        """Another process, which takes the stream."""
        self.started += 1
        name = f"p{self.started}"
        store = SimulatedStore(self._way_in, self.weather, self._plan_of(self.started), name)
        self.trace.append(f"start {name}")
        self._nobody_told()
        process = SimulatedProcess(
            *(name, store, self.ledgers, self.settings),
            clock=self.clock,
            random=self._another_random(),
            turn=self.work,
            trace=self.trace.append,
        )
        self.processes.append(process)
        return process

    def switch(self, process: SimulatedProcess, method: str) -> None:
        """Gives the stream another method; a stream that starts with it hears only of the ledgers that are left."""
        before = process.stream
        process.switch(method)
        if process.stream is not None and process.stream is not before:
            self._nobody_told()

    def _nobody_told(self) -> None:
        """Somebody begins who can't have heard of the ledgers that are lost by now."""
        self.unheard |= {position.ledger_id for position in self.lost}

    def request(self) -> None:
        """Somebody wants everything offloaded that there is."""
        for process in self.processes:
            if process.stream is not None:
                process.stream.request_offload()

    def work(self) -> None:
        """One task of one process, or the next timer of any of them when there is none."""
        busy = [process for process in self.processes if process.workers.ready]
        if busy:
            self._random.choice(busy).workers.run_one()
            return
        due = [process.workers.next_timer_s for process in self.processes]
        next_s = min((at_s for at_s in due if at_s is not None), default=None)
        if next_s is not None:
            self.clock.advance(max(0.0, next_s - self.clock.monotonic_s()))

    def _others_work(self, name: str) -> None:
        """A task of another process, in the middle of one of ``name``: their requests come in any order."""
        others = [process for process in self.processes if process.name != name and process.workers.ready]
        if others:
            self.weather.meanwhile = lambda _: None
            self._random.choice(others).workers.run_one()
            self.weather.meanwhile = self._others_work

    def bury(self) -> None:
        """Takes dead processes away, and starts another when none is left."""
        for process in [each for each in self.processes if each.store.dead]:
            self.trace.append(f"crash {process.name}")
            process.die()
            self.processes.remove(process)
        if not self.processes:
            self.start()

    # -- what happens to the hot tier

    def _somebodys_log(self) -> ManifestLog:
        """Of a command, which reads records one after the other as everybody here does: threads come in any order."""
        one_by_one = ManifestSettings(record_requests_max=1)
        return ManifestLog(self.store, STREAM, clock=self.clock, entropy=self._random.randbytes, settings=one_by_one)

    def trim(self) -> None:
        """Retention: everything up to a committed ledger's end leaves the stream, recorded first."""
        log = self._somebodys_log()
        state = loaded(self.store, STREAM)
        end = state.committed_end() if state else None
        old = [info for info in self.ledgers.ledgers() if info.closed and end and (info.ledger_id, info.entries) <= end]
        if not old or state is None:
            return
        last = self._random.choice(old).ledger_id
        ids = tuple(info.ledger_id for info in old if info.ledger_id <= last)
        facts = [
            LedgerClosed(info.ledger_id, info.last_entry_id)
            for info in old
            if info.ledger_id in ids and info.ledger_id not in state.closed_ledgers
        ]
        log.load()
        try:
            log.commit_as_maintainer([*facts, LedgersDeleted(ids), Truncate(Position(last + 1, 0))])
        except OffloaderError as error:
            self.trace.append(f"trim: {type(error).__name__}")
            return
        self.trace.append(f"trim {ids}")
        for ledger_id in ids:
            self.ledgers.delete(ledger_id)

    def pause(self, on: bool) -> None:
        """Somebody pauses the stream, or lets it go on; whoever offloads it isn't told."""
        log = self._somebodys_log()
        try:
            state = log.load()
        except NotFoundError:
            return
        if state.record_id and state.paused is not on:
            log.commit_as_maintainer([Pause("") if on else Resume()])
            self.trace.append("pause" if on else "resume")

    def lose_ledger(self) -> None:
        """Somebody deletes a ledger and asks nobody, whether its entries are in the cold tier or not."""
        infos = [info for info in self.ledgers.ledgers() if info.entries]
        if len(infos) < 2:
            return
        info = self._random.choice([info for info in infos[:-1] if info.closed])
        self.lost |= {Position(info.ledger_id, entry_id) for entry_id in range(info.entries)}
        if any(process.stream is None for process in self.processes):
            self.unheard.add(info.ledger_id)  # by a stream that starts again when the method is streaming
        self.trace.append(f"lose {info.ledger_id}")
        self.ledgers.delete(info.ledger_id)

    # -- rest

    def come_to_rest(self) -> None:
        """The weather is fine again, somebody wants everything offloaded, and nobody deletes anything any more."""
        self._plan_of = lambda _: FaultPlan()
        while self.weather.late:
            self.weather.land_one()
        for process in self.processes:
            process.store.plan = FaultPlan()
        self.pause(False)
        self.switch(self.processes[-1], "streaming")
        # That a ledger is gone shows at the next entry, and where a stream ends when its hot copies are all gone.
        self.ledgers.append([b"rest"])
        for number in range(TURNS_TO_REST_MAX):
            if number % 100 == 0:  # also those that start meanwhile; a request makes work, so not each time
                self.request()
            if number % LOOK_TURNS == 0:
                if any(process.committed_all for process in self.processes):
                    break
                self._go_on_without()
            self.work()
            self.bury()
        else:
            statuses = [process.stream and process.stream.status() for process in self.processes]
            raise InvariantBroken(f"no rest: {statuses}")
        while any(process.workers.ready for process in self.processes):
            self.work()

    def _go_on_without(self) -> None:
        """A stream that stopped at a gap, as ``on_gap = block`` says: its operator decides to go on without."""
        statuses = [process.stream.status() for process in self.processes if process.stream is not None]
        blocked = any(
            s.mode is Mode.STOPPED and s.error_kind == "CorruptError" and "are missing" in s.error for s in statuses
        )
        if not blocked or self.settings.offload.on_gap == "record":
            return
        state = loaded(self.store, STREAM)
        if state is not None:
            _must_not("a gap was recorded, and on_gap is block" if state.gaps else "")
            self._check_readable(state, whole=False)
        self.settings = replace(self.settings, offload=replace(self.settings.offload, on_gap="record"))
        for process in self.processes:
            process.store.dead = True

    # -- what must hold

    def check_memory(self) -> None:
        """At any time: no process holds more than its budget, no stream more than its buffer."""
        for process in self.processes:
            held_bytes = process.offloader.memory_bytes
            if held_bytes > self.settings.offload.offload_memory_size_max + OVERHEAD_BYTES:
                raise InvariantBroken(f"{process.name} holds {held_bytes} bytes")
            if process.stream is not None:
                status = process.stream.status()
                if status.buffer_bytes > status.buffer_bytes_max + OVERHEAD_BYTES:
                    raise InvariantBroken(f"{process.name} buffers {status.buffer_bytes} bytes")

    def check_so_far(self) -> None:
        """At any time: what is readable is the beginning of what was appended, and only that is acknowledged."""
        state = loaded(self.store, STREAM)
        self._check_released(state)
        if state is not None:
            self._check_readable(state, whole=False)

    def _check_released(self, state: ManifestState | None) -> None:
        end = state.committed_end() if state else None
        released = self.ledgers.released
        if released is not None and (end is None or released > end):
            raise InvariantBroken(f"{released} was released, {end or 'nothing'} is committed")

    def check(self) -> None:
        """At rest: everything is readable, nothing is held, and everything in the bucket is accounted for."""
        state = loaded(self.store, STREAM)
        self._check_released(state)
        if not self.ledgers.appended or state is None:
            return
        self._check_readable(state, whole=True)
        for process in self.processes:
            # One that was fenced learns it at its next commit, although its view may have the new owner's records.
            if process.stream is None or (process.epoch is not None and process.epoch < state.epoch):
                continue
            status = process.stream.status()  # one that is done holds none
            if status.committed == self.ledgers.tail and status.buffer_bytes:
                raise InvariantBroken(f"{process.name} still counts {status.buffer_bytes} bytes")
        _must_not(what_is_unaccounted(self.store, state))

    def _check_readable(self, state: ManifestState, *, whole: bool) -> None:
        appended = self.ledgers.appended
        _must_not(what_is_unreadable(self.store, state, appended, self.lost, self.unheard, whole=whole))


def _must_not(what: str) -> None:
    if what:
        raise InvariantBroken(what)
