"""One stream offloaded in a simulated world: one seed drives the clock, the scheduler, the store's faults and crashes,
other writers, changes of the method, and what happens to the hot tier.

Owns the schedule. Must never depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NoReturn

from formats.entries import Position
from formats.manifest import LedgerClosed, LedgersDeleted, Truncate
from offloader.errors import OffloaderError
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.testing.simulated_process import SimulatedProcess
from offloader.testing.simulated_store import FaultPlan, SimulatedStore, Weather
from offloader.testing.simulation_checks import loaded, what_is_unaccounted, what_is_unreadable
from offloader.write.status import Mode

__all__ = ["STREAM", "InvariantBroken", "Simulation", "simulate"]

STREAM = "simulated/stream"
#: Steps of one simulation before it has to come to rest, and until it has.
STEPS = 150
STEPS_TO_REST_MAX = 20_000
#: Steps between two looks whether it has.
LOOK_STEPS = 10
#: Processes of one simulation: each restart and each second owner is one.
PROCESSES_MAX = 5
#: What encoding may hold above the budget: headers and tables of the blocks under way.
OVERHEAD_BYTES = 256 * 1024


class InvariantBroken(AssertionError):
    """What must never be, was; the message says what, and how to see it again."""


@dataclass(frozen=True, slots=True)
class _Habits:
    """How often in this world what happens apart from appends and work, as chances per step."""

    close_ledger: float
    request: float
    land: float
    second_owner: float
    crash: float
    release_hot: float
    trim: float
    lose: float
    switch: float


class Simulation:
    """One run. ``run`` raises ``InvariantBroken``, or answers the digest of its trace.

    Attributes:
        ledgers: the hot tier.
        store: the bucket, as it is without any weather.
        keep: leave the bucket as it is in the end, for who wants to look at it.
    """

    def __init__(self, seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> None:
        self.seed = seed
        self._random = Random(seed)  # noqa: S311 - chance that can be repeated
        self._clock = ManualClock()
        self.store = MemoryStore(f"simulation-{seed}-{id(self)}", "", self._clock)
        self._weather = Weather(self._another_random(), self._clock, self._others_work)
        self.ledgers = MemoryLedgers(STREAM, self._clock)
        self._settings = _drawn_settings(self._random)
        self._habits = _drawn_habits(self._random)
        self.keep = False
        self._crash = (crash_call, crash_after)
        self._fair = False
        self._count = 0
        self._processes: list[SimulatedProcess] = []
        #: Entries whose hot copy was deleted and nobody was asked.
        self._lost: set[Position] = set()
        #: Ledgers of them that a process that started since never heard of.
        self._unheard: set[int] = set()

    def run(self) -> str:
        """Appends, crashes and restarts for a while, then lets everything come to rest, and checks."""
        self._start()
        for number in range(STEPS):
            self._one_step()
            self._check_memory(thoroughly=number % LOOK_STEPS == 0)
        self._come_to_rest()
        self.check()
        if not self.keep:
            self.store.delete([info.key for info in self.store.list("").objects])
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    @property
    def trace(self) -> list[str]:
        """Every request, with what became of it, and whatever else happened."""
        return self._weather.trace

    # -- the world

    def _another_random(self) -> Random:
        """So that what one part draws doesn't change what another does."""
        return Random(self._random.getrandbits(64))  # noqa: S311 - chance that can be repeated

    def _start(self) -> None:
        self._count += 1
        name = f"p{self._count}"
        store = SimulatedStore(self.store, self._weather, self._drawn_plan(), name)
        self.trace.append(f"start {name}")
        self._unheard |= {position.ledger_id for position in self._lost}
        process = SimulatedProcess(
            *(name, store, self.ledgers, self._settings),
            clock=self._clock,
            random=self._another_random(),
            turn=self._work,
            trace=self.trace.append,
        )
        self._processes.append(process)

    def _drawn_plan(self) -> FaultPlan:
        random = self._random
        crash_call, crash_after = self._crash
        if crash_call is None:
            crash_call, crash_after = random.choice([0, random.randint(1, 60)]), random.random() < 0.5
        elif self._count > 1:
            crash_call = 0
        drawn = FaultPlan(
            refused=random.choice([0, 0, 0.02, 0.2]),
            lost=random.choice([0, 0, 0.02, 0.2]),
            slow=random.choice([0, 0, 0.02]),
            meanwhile=random.choice([0, 0, 0.05, 0.3]),
            crash_call=crash_call,
            crash_after=crash_after,
        )
        return FaultPlan() if self._fair else drawn

    def _one_step(self) -> None:
        random, habits, newest = self._random, self._habits, self._processes[-1]
        drawn = random.random() - 0.12
        if drawn < 0:
            self._append()
            self._bury()
            return
        happenings: list[tuple[float, Callable[[], object]]] = [
            (habits.close_ledger, self.ledgers.close_ledger),
            (habits.request, self._request),
            (habits.land, self._land),
            (habits.second_owner, self._start_another),
            (habits.crash, self._kill),
            (habits.release_hot, random.choice(self._processes).release_hot),
            (habits.trim, self._trim),
            (habits.lose, self._lose_ledger),
            (habits.switch, lambda: newest.switch(random.choice(["streaming", "ledger", "ledger", "none"]))),
            (5 * habits.switch if newest.method == "ledger" else 0, self._offload_ledgers),
        ]
        for chance, happen in happenings:
            drawn -= chance
            if drawn < 0:
                happen()
                break
        else:
            self._work()
        self._bury()

    def _append(self) -> None:
        sizes = [self._random.choice([0, 1, 50, 300, 2000]) for _ in range(self._random.randint(1, 12))]
        self.ledgers.append([self._random.randbytes(size) for size in sizes])

    def _request(self) -> None:
        for process in self._processes:
            if process.stream is not None:
                process.stream.request_offload()

    def _offload_ledgers(self) -> None:
        self.ledgers.close_ledger()
        self._processes[-1].offload_ledgers()

    def _land(self) -> None:
        if self._weather.late:
            self._weather.land_one()

    def _start_another(self) -> None:
        """A second owner, while the first one lives."""
        if self._count < PROCESSES_MAX:
            self._start()

    def _kill(self) -> None:
        if self._count < PROCESSES_MAX:
            self._processes[-1].store.dead = True

    def _work(self) -> None:
        """One task of one process, or the next timer of any of them when there is none."""
        busy = [process for process in self._processes if process.workers.ready]
        if busy:
            self._random.choice(busy).workers.run_one()
            return
        due = [process.workers.next_timer_s for process in self._processes]
        next_s = min((at_s for at_s in due if at_s is not None), default=None)
        if next_s is not None:
            self._clock.advance(max(0.0, next_s - self._clock.monotonic_s()))

    def _others_work(self, name: str) -> None:
        """A task of another process, in the middle of one of ``name``: their requests come in any order."""
        others = [process for process in self._processes if process.name != name and process.workers.ready]
        if others:
            self._weather.meanwhile = lambda _: None
            self._random.choice(others).workers.run_one()
            self._weather.meanwhile = self._others_work

    def _bury(self) -> None:
        """Takes dead processes away, and starts another when none is left."""
        for process in [each for each in self._processes if each.store.dead]:
            self.trace.append(f"crash {process.name}")
            process.die()
            self._processes.remove(process)
        if not self._processes:
            self._start()

    # -- what happens to the hot tier

    def _trim(self) -> None:
        """Retention: everything up to a committed ledger's end leaves the stream, recorded first."""
        log = ManifestLog(self.store, STREAM, clock=self._clock, entropy=self._random.randbytes)
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
            log.amend([*facts, LedgersDeleted(ids), Truncate(Position(last + 1, 0))])
        except OffloaderError as error:
            self.trace.append(f"trim: {type(error).__name__}")
            return
        self.trace.append(f"trim {ids}")
        for ledger_id in ids:
            self.ledgers.delete(ledger_id)

    def _lose_ledger(self) -> None:
        """Somebody deletes a ledger and asks nobody, whether its entries are in the cold tier or not."""
        infos = [info for info in self.ledgers.ledgers() if info.entries]
        if len(infos) < 2:
            return
        info = self._random.choice([info for info in infos[:-1] if info.closed])
        self._lost |= {Position(info.ledger_id, entry_id) for entry_id in range(info.entries)}
        self.trace.append(f"lose {info.ledger_id}")
        self.ledgers.delete(info.ledger_id)

    # -- rest

    def _come_to_rest(self) -> None:
        """The weather is fine again, somebody wants everything offloaded, and nobody deletes anything any more."""
        self._fair = True
        while self._weather.late:
            self._weather.land_one()
        for process in self._processes:
            process.store.plan = FaultPlan()
        self._processes[-1].switch("streaming")
        if self._lost:
            self._append()  # that a ledger is gone shows at the next entry
        for number in range(STEPS_TO_REST_MAX):
            if number % 100 == 0:  # also those that start meanwhile; a request makes work, so not each time
                self._request()
            if number % LOOK_STEPS == 0:
                if any(process.committed_all for process in self._processes):
                    break
                self._go_on_without()
            self._work()
            self._bury()
        else:
            self._broken(f"no rest: {[process.stream and process.stream.status() for process in self._processes]}")
        while any(process.workers.ready for process in self._processes):
            self._work()

    def _go_on_without(self) -> None:
        """A stream that stopped at a hole, as ``on_gap = block`` says: its operator decides to go on without."""
        statuses = [process.stream.status() for process in self._processes if process.stream is not None]
        blocked = any(s.mode is Mode.STOPPED and s.error_kind == "Corrupt" and "are gone" in s.error for s in statuses)
        if not blocked or self._settings.offload.on_gap == "record":
            return
        state = loaded(self.store, STREAM)
        if state is not None:
            if state.gaps:
                self._broken("a gap was recorded, and on_gap is block")
            self._check_readable(state, whole=False)
        self._settings = replace(self._settings, offload=replace(self._settings.offload, on_gap="record"))
        for process in self._processes:
            process.store.dead = True

    # -- the invariants

    def _check_memory(self, *, thoroughly: bool) -> None:
        for process in self._processes:
            held = process.offloader.memory_bytes
            if held > self._settings.offload.offload_memory_bytes_max + OVERHEAD_BYTES:
                self._broken(f"{process.name} holds {held} bytes")
            if thoroughly and process.stream is not None:
                status = process.stream.status()
                if status.buffer_bytes > status.buffer_bytes_max + OVERHEAD_BYTES:
                    self._broken(f"{process.name} buffers {status.buffer_bytes} bytes")

    def check(self) -> None:
        """Everything that must hold at rest."""
        released = self.ledgers.released
        state = loaded(self.store, STREAM)
        end = state.committed_end() if state else None
        if released is not None and (end is None or released > end):
            self._broken(f"{released} was released, {end or 'nothing'} is committed")
        if not self.ledgers.appended or state is None:
            return
        self._check_readable(state, whole=True)
        for process in self._processes:
            # One that was fenced and doesn't know it yet may hold bytes; one that is done holds none.
            status = process.stream.status() if process.stream is not None else None
            if status and status.committed == self.ledgers.tail and status.buffer_bytes:
                self._broken(f"{process.name} still counts {status.buffer_bytes} bytes")
        self._must_not(what_is_unaccounted(self.store, state))

    def _check_readable(self, state: ManifestState, *, whole: bool) -> None:
        appended = self.ledgers.appended
        self._must_not(what_is_unreadable(self.store, state, appended, self._lost, self._unheard, whole=whole))

    def _must_not(self, what: str) -> None:
        if what:
            self._broken(what)

    def _broken(self, what: str) -> NoReturn:
        crash = "" if self._crash[0] is None else f" --crash-call {self._crash[0]}"
        after = " --crash-after" if self._crash[1] else ""
        raise InvariantBroken(f"{what}; again: ./dev soak --seed {self.seed}{crash}{after}")


def simulate(seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> str:
    """Runs one seed; the digest of its trace.

    Args:
        crash_call: let the first process die at that storage call, and no other; ``None``: as the seed says.
        crash_after: whether that call takes effect.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    logging.getLogger("offloader").setLevel(logging.CRITICAL)
    return Simulation(seed, crash_call=crash_call, crash_after=crash_after).run()


def _drawn_habits(random: Random) -> _Habits:
    return _Habits(
        close_ledger=0.02,
        request=0.02,
        land=0.03,
        second_owner=0.01,
        crash=0.01,
        release_hot=random.choice([0, 0.02]),
        trim=random.choice([0, 0, 0.01]),
        lose=random.choice([0, 0, 0.01]),
        switch=random.choice([0, 0, 0.03]),
    )


def _drawn_settings(random: Random) -> Settings:
    memory_bytes = random.choice([64, 128, 1024]) * 1024
    return Settings.of(
        {
            "offload": {
                "block_bytes": random.choice([512, 4096]),
                "max_size_per_offload_segment_mbytes": random.choice([1 / 512, 1 / 128, 1]),
                "offload_buffer_bytes_max": random.choice([64, 256]) * 1024,
                "offload_memory_bytes_max": memory_bytes,
                "retry_seconds_max": 1.0,
                "codec": random.choice(["none", "zstd"]),
                "deletion_lag_minutes": random.choice([0, 1, 240]),
                "on_gap": random.choice(["block", "record", "record"]),
            },
            # Checkpoints as often as there can be any, not too often: they are what a simulation spends most time on.
            # And no request on a thread of its own: those come in any order.
            "manifest": {"checkpoint_records": random.choice([1, 3, 10, 10, 100, 100]), "record_requests_max": 1},
        }
    )
