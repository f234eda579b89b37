"""A stream offloaded in a simulated world: one seed drives the clock, the scheduler, the store's faults and crashes,
other writers, changes of the method, and what happens to the hot tier.

It doesn't depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from offloader.settings import Settings, Size
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_world import InvariantBroken, World

__all__ = ["InvariantBroken", "Simulation", "simulate"]

#: Steps of one simulation before it has to come to rest, and between two looks at its memory.
STEPS = 150
LOOK_STEPS = 10
#: Processes of one simulation: each restart and each second owner is one.
PROCESSES_MAX = 5
#: Share of appends among the steps.
APPENDS = 0.12
#: Share of pauses among the pauses and resumptions.
PAUSED = 0.4


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
    pause: float


class Simulation:
    """One run.

    Args:
        seed: decides everything.
        crash_call, crash_after: as for ``simulate``.

    Attributes:
        world: where it happens.
    """

    def __init__(self, seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> None:
        self.seed = seed
        self._random = Random(seed)
        self._crash = (crash_call, crash_after)
        self.world = World(f"simulation-{seed}", self._random, _drawn_settings, self._drawn_plan)
        self._habits = _drawn_habits(self._random)

    def run(self) -> str:
        """Appends, crashes and restarts for a while, then lets everything come to rest, and checks.

        Returns:
            The digest of the trace.

        Raises:
            InvariantBroken: says what, and how to see it again.
        """
        try:
            self.world.start()
            for number in range(STEPS):
                self._one_step()
                if number % LOOK_STEPS == 0:
                    self.world.check_memory()
            self.world.come_to_rest()
            self.world.check()
        except InvariantBroken as broken:
            raise self.with_command(broken) from None
        return hashlib.sha256("\n".join(self.world.trace).encode()).hexdigest()

    def with_command(self, broken: Exception) -> InvariantBroken:
        """The error with the command that shows it again."""
        crash = "" if self._crash[0] is None else f" --crash-call {self._crash[0]}"
        after = " --crash-after" if self._crash[1] else ""
        return InvariantBroken(f"{broken}; again: ./dev soak --seed {self.seed}{crash}{after}")

    def _drawn_plan(self, number: int) -> FaultPlan:
        random = self._random
        crash_call, crash_after = self._crash
        if crash_call is None:
            crash_call, crash_after = random.choice([0, random.randint(1, 60)]), random.random() < 0.5
        elif number > 1:
            crash_call = 0
        return FaultPlan(
            refused=random.choice([0, 0, 0.02, 0.2]),
            lost=random.choice([0, 0, 0.02, 0.2]),
            slow=random.choice([0, 0, 0.02]),
            meanwhile=random.choice([0, 0, 0.05, 0.3]),
            crash_call=crash_call,
            crash_after=crash_after,
        )

    def _one_step(self) -> None:
        random, habits, world, newest = self._random, self._habits, self.world, self.world.processes[-1]
        happenings: list[tuple[float, Callable[[], object]]] = [
            (APPENDS, self._append),
            (habits.close_ledger, world.ledgers.close_ledger),
            (habits.request, world.request),
            (habits.land, world.land),
            (habits.second_owner, self._start_another),
            (habits.crash, self._kill),
            (habits.release_hot, random.choice(world.processes).release_hot),
            (habits.trim, world.trim),
            (habits.lose, world.lose_ledger),
            (habits.switch, lambda: world.switch(newest, random.choice(["streaming", "ledger", "ledger", "none"]))),
            (habits.pause, lambda: world.pause(on=random.random() < PAUSED)),
            (5 * habits.switch if newest.method == "ledger" else 0, self._offload_ledgers),
        ]
        drawn = random.random()
        for chance, happen in happenings:
            drawn -= chance
            if drawn < 0:
                happen()
                break
        else:
            world.work()
        world.bury()

    def _append(self) -> None:
        sizes = [self._random.choice([0, 1, 50, 300, 2000]) for _ in range(self._random.randint(1, 12))]
        self.world.ledgers.append([self._random.randbytes(size) for size in sizes])

    def _offload_ledgers(self) -> None:
        self.world.ledgers.close_ledger()
        self.world.processes[-1].offload_ledgers()

    def _start_another(self) -> None:
        """A second owner, while the first one lives."""
        if self.world.started < PROCESSES_MAX:
            self.world.start()

    def _kill(self) -> None:
        if self.world.started < PROCESSES_MAX:
            self.world.processes[-1].store.dead = True


def simulate(seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> str:
    """Runs one seed; the digest of its trace.

    Args:
        crash_call: let the first process die at that storage call, and no other; ``None``: as the seed says.
        crash_after: whether that call takes effect.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    with quiet_log():
        run = Simulation(seed, crash_call=crash_call, crash_after=crash_after)
        digest = run.run()
        run.world.erase()
        return digest


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
        pause=random.choice([0, 0, 0, 0.02]),
    )


def _drawn_settings(random: Random) -> Settings:
    memory_bytes = random.choice([64, 128, 1024]) * 1024
    drawn = Settings.of(
        {
            "offload": {
                "block_size": random.choice([512, 4096]),
                "segment_size_max": random.choice(["2KiB", "8KiB", "1MiB"]),
                "offload_buffer_size_max": random.choice([64, 256]) * 1024,
                "offload_memory_size_max": memory_bytes,
                "retry_delay_max": 1.0,
                "codec": random.choice(["none", "zstd"]),
                "deletion_lag": 60 * random.choice([0, 1, 240]),
                "on_gap": random.choice(["block", "record", "record"]),
            },
            # Checkpoints as often as there can be any, not too often: they are what a simulation spends most time on.
            # And no request on a thread of its own: those come in any order.
            "manifest": {
                "checkpoint_records": random.choice([1, 3, 10, 10, 100, 100, 100, 100]),
                "record_requests_max": 1,
            },
        }
    )
    # Below what a bucket takes as a part: so that small segments have many.
    return replace(drawn, offload=replace(drawn.offload, part_size=Size(random.choice([4096, 2**24, 2**24]))))
