"""A topic of partitions that is written, scaled, read by subscribers and groups, truncated, deleted, as one seed says.

It doesn't depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from formats.entries import Position
from offloader.errors import NotFoundError, OffloaderError
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import read_entry, read_intent
from offloader.retention.cuts import partition_segment
from offloader.retention.policy import Policy, PolicyKind, policy_of
from offloader.retention.state import read_decisions
from tests.proof.simulation.maintained_checks import what_is_left, what_should_be_gone
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_subscribers import SimulatedSubscribers
from tests.proof.simulation.simulated_world import InvariantBroken
from tests.proof.simulation.topic_acts import TopicActs
from tests.proof.simulation.topic_settings import drawn_topic_settings
from tests.proof.simulation.topic_world import TOPIC, Partition, TopicWorld

__all__ = ["TopicSimulation", "simulate_topic"]

STEPS = 160
PARTITIONS_MAX = 4
QUIET_ROUNDS = 3
QUIET_S = 40 * 3600.0
LAPS_S = (5.0, 30.0, 600.0, 2 * 3600.0)


class TopicSimulation:
    """One run.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random = Random(seed)
        self.world = TopicWorld(f"topic-{seed}", random, drawn_topic_settings)
        self.policy: Policy | None = policy_of(TOPIC, self.world.settings.retention)
        self.subscribers = SimulatedSubscribers(self.world.clock.now_ms, lambda: len(self.world.trace))
        self.acts = TopicActs(self.world, random, self._plan, self.subscribers)
        self.world.on_heads = self._head_moved
        #: Some are deleted in the end, and others have partitions that come again.
        self._ends_deleted, self._comes_again = random.random() < 0.25, random.random() < 0.3

    def run(self) -> str:
        """Everything for a while, then rest, and checks.

        Returns:
            The digest of the trace.

        Raises:
            InvariantBroken: says what, and how to see it again.
        """
        try:
            self._begin()
            for _ in range(STEPS):
                self._one_step()
                self._must_not(self.world.broken or self.subscribers.wrong)
            self._come_to_rest()
        except OffloaderError as error:
            raise self._with_command(f"{type(error).__name__}: {error}") from error
        except InvariantBroken as broken:
            raise self._with_command(str(broken)) from None
        return hashlib.sha256("\n".join(self.world.trace).encode()).hexdigest()

    def _with_command(self, what: str) -> InvariantBroken:
        return InvariantBroken(f"{what}; again: ./dev soak --topic --seed {self.seed}")

    @staticmethod
    def _must_not(what: str) -> None:
        if what:
            raise InvariantBroken(what)

    # -- what happens

    def _plan(self, what: str) -> FaultPlan:
        random = self._random
        return FaultPlan(
            refused=random.choice([0, 0, 0, 0.05]),
            lost=random.choice([0, 0, 0.05, 0.2]) if what != "offload" else 0,
            slow=random.choice([0, 0, 0.02]),
            crash_call=random.choice([0, 0, random.randint(1, 40)]),
            crash_after=random.random() < 0.5,
        )

    def _begin(self) -> None:
        """There is something to tend from the beginning on."""
        world = self.world
        world.append(world.plain, [100] * 4)
        world.plain.ledgers.close_ledger()
        world.offload(world.quiet("begin"), world.plain)
        for number in range(self._random.randint(1, 3)):
            world.add_partition()
            self._append(world.partitions[number])
            world.offload(world.quiet("begin"), world.partitions[number])

    def _append(self, to: Partition | None = None) -> None:
        random = self._random
        chosen = to or random.choice(list(self.world.partitions.values()))
        self.world.append(chosen, [random.choice([1, 50, 300, 1500]) for _ in range(random.randint(1, 6))])
        if random.random() < 0.5:
            chosen.ledgers.close_ledger()

    def _one_step(self) -> None:
        acts, random, policy = self.acts, self._random, self.policy
        happenings: list[tuple[float, Callable[[], object]]] = [
            (0.12, self._append),
            (0.06, acts.offload),
            (0.02, self._scale),
            (0.05, self._lap),
            (0.02, self._land),
            (0.09, acts.truncate if policy is None else acts.retain),
            (0.03, acts.clean_up),
            (0.005, acts.hold),
            (0.07 if policy else 0, acts.subscribe),
            (0.13 if policy else 0, acts.group),
            (0.02 if self._comes_again else 0, self._come_again),
            (0.4, lambda: self.world.acts.go_on(random.choice([1, 2, 5, 20]))),
        ]
        drawn = random.random() * sum(chance for chance, _ in happenings)
        for chance, happen in happenings:
            drawn -= chance
            if drawn < 0:
                happen()
                return

    def _scale(self) -> None:
        if len(self.world.partitions) < PARTITIONS_MAX:
            self.world.add_partition()

    def _lap(self) -> None:
        """Time passes. What is on its way arrives before it is taken for lost."""
        lap_s = self._random.choice(LAPS_S)
        while lap_s > 3600 and self.world.weather.late:
            self._land()
        self.world.clock.advance(lap_s)

    def _land(self) -> None:
        if self.world.weather.late:
            self.world.weather.land_one()

    def _come_again(self) -> None:
        """A partition is deleted alone and made again; nobody has read anything of it then."""
        number = self._random.choice(list(self.world.partitions))
        if len(self.world.partitions) < 2 or not self.world.partitions[number].is_there:
            return
        self._let_finish()
        self._lift_holds()
        self.acts.delete(self.world.partitions[number])
        self.world.made_again(number)
        if not self.world.alive:
            # The other partitions have nothing in the store: with the last one that had, the topic is gone, and a topic
            # of that name inherits no subscribers.
            self.subscribers.forget()
        self.subscribers.forget_partition(number)
        self.acts.groups.forget_partition(number)

    def _head_moved(self, number: int, before: Position, since: int) -> None:
        world = self.world
        if self.policy is None or world.deleted_at >= since:
            return
        self.acts.groups.allow_all()
        heads = {number: each.head for number, each in world.alive.items()}
        appended = {number: each.appended for number, each in world.alive.items()}
        world.must_not(
            self.subscribers.what_heads_break(self.policy, heads, {**heads, number: before}, since, appended)
        )

    # -- rest

    def _come_to_rest(self) -> None:
        world = self.world
        self._let_finish()
        self._lift_holds()
        self._must_not(world.broken or self.subscribers.wrong)
        for each in world.partitions.values():
            each.ledgers.close_ledger()
            if each.appended:
                world.offload(world.quiet("rest"), each)
        world.check_readable(whole=True)
        store = world.quiet("rest")
        self.acts.groups.settle(store)
        if self.policy is not None and world.deleted_at < 0:  # who reads a topic that was made again has to say so
            names = set(self.acts.retention(store).registry().subscribers)
            self._must_not(self.acts.groups.what_is_registered_wrongly(store, names))
        self._check_reported()
        self._last_cycle()
        intent = read_intent(world.store, TOPIC)[0]
        self._must_not("" if intent is None or intent.is_done else "a truncation isn't finished at rest")
        self._check_reclaimed()
        self._check_fallback()
        for _ in range(QUIET_ROUNDS):
            world.clock.advance(QUIET_S)
            self.acts.tidy_up()
        world.check_readable(whole=True)
        for each in world.alive.values():
            self._must_not(what_is_left(world.store, each.stream, each.view, ()))
            self._must_not(what_should_be_gone(each.view))
        if self._ends_deleted:
            self._delete_all()
        self._must_not(world.broken)

    def _last_cycle(self) -> None:
        """Retention decides once more; of a topic whose partitions are all gone it says that there is none."""
        world, cycle = self.world, self.acts.cycle(self.world.quiet("retain"))
        # One whose writer died between its catalogue entry and its first record is there, and empty.
        if world.alive or any(read_entry(world.store, each.stream) for each in world.partitions.values()):
            cycle.run(TOPIC)
            return
        try:
            cycle.run(TOPIC)
        except NotFoundError:
            return
        raise InvariantBroken("a retention cycle ran for a topic that has no partition")

    def _let_finish(self) -> None:
        self.world.acts.finish()
        while self.world.weather.late:
            self._land()

    def _lift_holds(self) -> None:
        for each in self.world.alive.values():
            self.acts.held(self.world.quiet("lift"), each, on=False)

    def _check_reported(self) -> None:
        if self.subscribers.forced:
            retention = self.acts.retention(self.world.quiet("look"))
            decisions = read_decisions(retention, retention.scope())
            self._must_not(self.subscribers.what_is_unreported(decisions))

    def _check_reclaimed(self) -> None:
        """What everybody has read of a queue goes, when nothing stands in the way."""
        policy = self.policy
        if policy is None or policy.limits is not None or policy.subscriber_timeout_ms is not None:
            return
        if not self.world.alive:
            return
        registry = self.acts.retention(self.world.store).registry()
        cuts = [each.cut for each in registry.subscribers.values() if each.cut is not None]
        for number, each in self.world.alive.items() if cuts else ():
            # Of a partition that a cut doesn't name nothing was read.
            ends = [cut.offsets.get(partition_segment(number), Position(0, 0)) for cut in cuts]
            least = min(end for end in ends if isinstance(end, Position))
            left = [at for at, _, _ in each.appended if each.head <= at < least]
            self._must_not(f"{left[0]} of {number} was read by all, and it begins at {each.head}" if left else "")

    def _check_fallback(self) -> None:
        """When all have been silent for long enough, the fallback of a queue rules; not a moment earlier."""
        policy, world = self.policy, self.world
        if policy is None or policy.fallback is None or not any(each.appended for each in world.alive.values()):
            return
        assert policy.kind is PolicyKind.CONSUMPTION
        assert policy.fallback_after_ms is not None
        for _ in range(3):
            world.clock.advance(policy.fallback_after_ms / 1000 + 60)
            self.acts.cycle(world.quiet("retain")).run(TOPIC)
        registry = self.acts.retention(world.store).registry()
        tail = self.acts.retention(world.store).tail()
        own = self.acts.retention(world.store).cuts()
        if any(each.cut is not None and own.reaches(each.cut, tail) for each in registry.subscribers.values()):
            return  # who has read everything never counts as silent
        kept = sum(size for each in world.alive.values() for at, size, _ in each.appended if at >= each.head)
        newest = max(size for each in world.alive.values() for _, size, _ in each.appended)
        most = policy.fallback.max or 0
        self._must_not(f"{kept} bytes are kept though the fallback keeps {most}" if kept > most + newest * 64 else "")

    def _delete_all(self) -> None:
        """A topic that is deleted leaves nothing in the bucket."""
        world = self.world
        for each in world.partitions.values():
            self.acts.delete(each)
        for _ in range(QUIET_ROUNDS):
            world.clock.advance(QUIET_S)
            self.acts.tidy_up()
        left = sorted(info.key for info in listed(world.store, "") if TOPIC in info.key)
        self._must_not(f"{left[0]} is left of a topic that was deleted" if left else "")


def simulate_topic(seed: int) -> str:
    """Runs one seed; the digest of its trace.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    with quiet_log():
        run = TopicSimulation(seed)
        try:
            return run.run()
        finally:
            run.world.erase()
