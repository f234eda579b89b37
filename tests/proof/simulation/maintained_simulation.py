"""A stream that is written, read, truncated, swept, undone, held, deleted and made again, as one seed says.

It doesn't depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from formats.entries import Position
from offloader.errors import NotFoundError, OffloaderError
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import is_released, read_entry
from offloader.manifest.protection import lift_global_hold
from offloader.retention.policy import Policy, policy_of
from offloader.retention.state import read_decisions
from tests.proof.simulation.maintained_acts import MaintainedActs
from tests.proof.simulation.maintained_checks import what_is_left, what_should_be_gone
from tests.proof.simulation.maintained_settings import drawn_settings
from tests.proof.simulation.maintained_world import FOREIGN, MaintainedWorld
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_subscribers import AppendedAt, SimulatedSubscribers
from tests.proof.simulation.simulated_world import STREAM, InvariantBroken

__all__ = ["MaintainedSimulation", "simulate_maintained"]

STEPS = 220
#: Steps between two looks at all that is readable.
LOOK_STEPS = 55
WARM_TURNS = 12
PROCESSES_MAX = 4
#: Rounds in quiet time within which everything that nobody needs has to be gone.
QUIET_ROUNDS = 4
QUIET_S = 40 * 3600.0
LAPS_S = (30.0, 600.0, 2 * 3600.0, 9 * 3600.0, 30 * 3600.0)


class MaintainedSimulation:
    """One run.

    Args:
        seed: decides everything.
        crash_call, crash_after: each first act of a kind dies at that storage call; ``None``: as the seed says.
    """

    def __init__(self, seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> None:
        self.seed = seed
        self._random = Random(seed)
        self._crash = (crash_call, crash_after)
        self._crashed: set[str] = set()
        self.world = MaintainedWorld(
            f"tended-{seed}",
            self._random,
            drawn_settings,
            lambda _: self._plan(),
            is_topic=self._random.random() < 0.5,
        )
        self.policy: Policy | None = policy_of(STREAM, self.world.settings.retention)
        self.subscribers = SimulatedSubscribers(self.world.clock.now_ms, lambda: len(self.world.trace))
        self.appended: list[AppendedAt] = []
        self.acts = MaintainedActs(self.world, self._random, self._plan, self.subscribers, self.appended)
        self.world.on_head = self._head_moved
        self._deletes = self._random.random() < 0.4

    def run(self) -> str:
        """Everything for a while, then rest, and checks.

        Returns:
            The digest of the trace.

        Raises:
            InvariantBroken: says what, and how to see it again.
        """
        try:
            self.world.start()
            self._warm_up()
            for number in range(STEPS):
                self._one_step()
                self._must_not(self.world.broken or self.subscribers.wrong)
                if number % LOOK_STEPS == 0:
                    self.world.check_now()
            self._come_to_rest()
        except OffloaderError as error:
            raise self._with_command(f"{type(error).__name__}: {error}") from error
        except InvariantBroken as broken:
            raise self._with_command(str(broken)) from None
        return hashlib.sha256("\n".join(self.world.trace).encode()).hexdigest()

    def _with_command(self, what: str) -> InvariantBroken:
        crash = "" if self._crash[0] is None else f" --crash-call {self._crash[0]}"
        crash += " --crash-after" if self._crash[1] else ""
        return InvariantBroken(f"{what}; again: ./dev soak --maintained --seed {self.seed}{crash}")

    @staticmethod
    def _must_not(what: str) -> None:
        if what:
            raise InvariantBroken(what)

    # -- what happens

    def _plan(self, what: str = "") -> FaultPlan:
        random = self._random
        crash_call, crash_after = self._crash
        if crash_call is None:
            crash_call, crash_after = random.choice([0, 0, random.randint(1, 40)]), random.random() < 0.5
        elif not what or what in self._crashed:
            crash_call = 0
        self._crashed.add(what)
        return FaultPlan(
            refused=random.choice([0, 0, 0, 0.05]),
            lost=random.choice([0, 0, 0.05, 0.2]),
            slow=random.choice([0, 0, 0.02]),
            meanwhile=0.0 if what else random.choice([0, 0.05, 0.3]),
            crash_call=crash_call,
            crash_after=crash_after,
        )

    def _warm_up(self) -> None:
        """In most worlds there is something to tend from the beginning on."""
        for _ in range(self._random.choice([0, 3, 6])):
            self._append()
            self.world.ledgers.close_ledger()
            self.world.request()
            for _ in range(WARM_TURNS):
                self.world.work()
                self.world.bury()

    def _one_step(self) -> None:
        world, random = self.world, self._random
        happenings: list[tuple[float, Callable[[], object]]] = [
            (0.06, self._append),
            (0.03, world.ledgers.close_ledger),
            (0.05, world.request),
            (0.02, world.land),
            (0.01, self._start_another),
            (0.005, self._kill),
            (0.01 if world.processes else 0, lambda: world.processes[-1].release_hot()),
            (0.03, self._lap),
            (0.04, self.acts.open),
            (0.05, lambda: world.read(gives_up=random.random() < 0.1)),
            (0.06, self.acts.truncate if self.policy is None else self.acts.retain),
            (0.09, self.acts.clean_up),
            (0.03, self.acts.reconcile),
            (0.015, self.acts.expire),
            (0.06 if world.view and world.view.segments.retired() else 0, self.acts.undo),
            (0.008, self.acts.hold),
            (0.008, self.acts.stop),
            (0.06 if self.policy else 0, self.acts.subscribe),
            (0.01 if self._deletes else 0, self.acts.delete),
            (0.05 if world.is_deleted else 0, self._make_again),
            (0.33, lambda: world.acts.go_on(random.choice([1, 1, 2, 5, 20]))),
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
        if self.world.is_deleted:
            return
        sizes = [self._random.choice([1, 50, 300, 2000]) for _ in range(self._random.randint(1, 12))]
        batch = self.world.ledgers.append([self._random.randbytes(size) for size in sizes])
        now_ms = self.world.clock.now_ms()
        self.appended += [(entry.position, len(entry.payload), now_ms) for entry in batch.entries()]

    def _start_another(self) -> None:
        if self.world.started < PROCESSES_MAX and not self.world.is_deleted:
            self.world.start()

    def _kill(self) -> None:
        for process in self.world.processes[-1:]:
            process.store.dead = True

    def _lap(self) -> None:
        """Time passes. What is on its way arrives before it is taken for lost."""
        lap_s = self._random.choice(LAPS_S)
        if lap_s > 3600:
            while self.world.weather.late:
                self.world.land()
        self.world.clock.advance(lap_s)

    def _make_again(self) -> None:
        if self.world.make_again():
            self.appended.clear()
            self.subscribers.forget()

    def _head_moved(self, by: str, before: Position, head: Position) -> None:
        if self.policy is not None and by.startswith("retain"):
            broken = self.subscribers.what_heads_break(
                self.policy, {0: head}, {0: before}, self.world.began(by), {0: self.appended}
            )
            self.world.must_not(broken)

    # -- rest

    def _come_to_rest(self) -> None:
        world = self.world
        world.acts.finish()
        while world.weather.late:
            world.land()
        for reader in world.readers:
            reader.close()
        world.readers.clear()
        lift_global_hold(world.quiet("go on"))
        if is_released(world.store, STREAM):
            # Somebody died in the middle of removing the name: nobody can begin the stream for an hour.
            world.clock.advance(QUIET_S)
            self._tidy_up()
        if not world.is_deleted and read_entry(world.store, STREAM) is not None:
            self.acts.held(world.quiet("hold"), on=False)
        if not world.is_deleted:
            world.come_to_rest()
            self._must_not(world.broken)
            world.check()
            self._check_reported()
            self._check_reclaimed()
        for process in world.processes:
            process.die()
        for _ in range(QUIET_ROUNDS):
            world.clock.advance(QUIET_S)
            self._tidy_up()
        self._must_not(world.broken)
        if world.is_deleted:
            self._must_not("its entry is still there" if read_entry(world.store, STREAM) else "")
            self._must_not(what_is_left(world.store, STREAM, None, FOREIGN))
            more = sorted({info.key for info in listed(world.store, "")} - world.others)
            self._must_not(f"{more[0]} is left of a stream that was deleted" if more else "")
        else:
            world.check()
            self._must_not(what_is_left(world.store, STREAM, world.view, FOREIGN))
            self._must_not(what_should_be_gone(world.view))

    def _tidy_up(self) -> None:
        acts, world = self.acts, self.world
        for name, act in (("cleanup", acts.clean_everything), ("reconcile", acts.reconcile_everything)):
            try:
                act(world.quiet(name))
            except NotFoundError:
                self._must_not("" if world.is_deleted or world.view is None else f"{name} finds no stream")

    def _check_reported(self) -> None:
        if self.subscribers.forced:
            retention = self.acts.retention(self.world.quiet("look"))
            decisions = read_decisions(retention, retention.scope())
            self._must_not(self.subscribers.what_is_unreported(decisions))

    def _check_reclaimed(self) -> None:
        """What everybody has read of a queue goes, when nothing stands in the way."""
        world, policy = self.world, self.policy
        if policy is None or policy.limits is not None or policy.subscriber_timeout_ms is not None:
            return
        if world.view is None or not world.view.offloaded():
            return
        store = world.quiet("retain")
        self.acts.cycle(store, world.clock).run(world.home)
        published = self.subscribers.what_all_have_read(self.acts.retention(store).registry())
        end, head = world.view.committed_end(), world.view.head or Position(0, 0)
        if published and end is not None:
            read = [at for at, _, _ in self.appended if head <= at < published[0] and at <= end]
            self._must_not(f"{read[0]} was read by all, and the stream still begins at {head}" if read else "")


def simulate_maintained(seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> str:
    """Runs one seed; the digest of its trace.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    with quiet_log():
        run = MaintainedSimulation(seed, crash_call=crash_call, crash_after=crash_after)
        try:
            return run.run()
        finally:
            run.world.erase()
