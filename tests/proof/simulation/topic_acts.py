"""What is done to a topic of partitions: each act a call on a way to the store of its own.

It doesn't decide which one comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import NotFoundError, OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import cleanup_all, cleanup_stream
from offloader.manifest.log import ManifestLog
from offloader.retention.cycle import RetentionCycle
from offloader.retention.scope import DocumentStore, record_partitions
from offloader.retention.subscribers import StreamRetention
from offloader.retention.truncate import truncate_topic
from offloader.store.base import ObjectStore
from tests.proof.simulation.simulated_groups import SimulatedGroups
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_subscribers import SimulatedSubscribers
from tests.proof.simulation.topic_world import PLAIN, TOPIC, Partition, TopicWorld

__all__ = ["TopicActs"]

NAMES = ("ann", "ben")


class TopicActs:
    """The acts of one world.

    Args:
        world: it begins them.
        random: draws what they are about.
        plan_of: the faults that an act of some name meets.
        subscribers: who publishes.
    """

    def __init__(
        self,
        world: TopicWorld,
        random: Random,
        plan_of: Callable[[str], FaultPlan],
        subscribers: SimulatedSubscribers,
    ) -> None:
        self.world, self._random, self._plan_of, self._subscribers = world, random, plan_of, subscribers
        self.groups = SimulatedGroups(
            *(TOPIC, PLAIN),
            random=random,
            clock=world.clock,
            source_of=world.source_of,
            positions=lambda: {n: [at for at, _, _ in each.appended] for n, each in world.alive.items()},
            subscribers=subscribers,
            line=lambda: len(world.trace),
        )

    def _begin(self, what: str, act: Callable[[ObjectStore], object]) -> None:
        self.world.acts.begin(what, act, self._plan_of(what))

    def offload(self) -> None:
        """A writer offloads what a partition has."""
        partition = self._random.choice(list(self.world.partitions.values()))
        self._begin("offload", lambda store: self.world.offload(store, partition))

    def retain(self) -> None:
        """A cycle of retention."""
        self._begin("retain", lambda store: self.cycle(store).run(TOPIC))

    def cycle(self, store: ObjectStore) -> RetentionCycle:
        """What runs cycles."""
        world = self.world
        return RetentionCycle(
            store,
            clock=world.clock,
            settings_of=lambda _: world.settings,
            source_of=world.source_of,
            by="simulated",
            entropy=self._random.randbytes,
        )

    def truncate(self) -> None:
        """Somebody truncates some partitions."""
        heads = {
            each.stream: place
            for number, each in self.world.alive.items()
            if (place := self._somewhere(number)) is not None and self._random.random() < 0.7
        }
        if heads:
            self._begin("truncate", lambda store: self.truncated(store, heads))

    def truncated(self, store: ObjectStore, heads: Mapping[str, Position]) -> None:
        """As one stream."""
        truncate_topic(*(store, TOPIC, heads), clock=self.world.clock, by="somebody", source_of=self.world.source_of)

    def _somewhere(self, number: int) -> Position | None:
        appended = self.world.partitions[number].appended
        return self._random.choice(appended)[0] if appended else None

    def clean_up(self) -> None:
        """A round of cleanup of one partition."""
        partition = self._random.choice(list(self.world.partitions.values()))
        self._begin("cleanup", lambda store: self._cleaned(store, partition))

    def _cleaned(self, store: ObjectStore, partition: Partition) -> None:
        cleanup_stream(
            *(store, partition.stream),
            clock=self.world.clock,
            settings=self.world.settings,
            by="simulated",
            allow_large=True,
            entropy=self._random.randbytes,
        )

    def subscribe(self) -> None:
        """A subscriber comes, goes or publishes."""
        name, drawn = self._random.choice(NAMES), self._random.random()
        if drawn < 0.15:
            self._begin("add", lambda store: self._subscribers.add(self.retention(store), name))
        elif drawn < 0.2:
            self._begin("remove", lambda store: self._subscribers.remove(self.retention(store), name))
        else:
            drawn_places = {number: self._somewhere(number) for number in self.world.alive}
            places = {n: at for n, at in drawn_places.items() if at is not None and self._random.random() < 0.9}
            if places:
                self._begin("publish", lambda store: self._published(store, name, places))

    def _published(self, store: ObjectStore, name: str, places: Mapping[int, Position]) -> None:
        self._subscribers.publish(self.retention(store), name, places, places)

    def retention(self, store: ObjectStore) -> StreamRetention:
        """The registry."""
        documents = DocumentStore(store, self.world.clock, self._random.randbytes)
        return StreamRetention(documents, TOPIC, self.world.source_of)

    def group(self) -> None:
        """A reader group goes on."""
        step = self.groups.step()
        self._begin("group", step)

    def hold(self) -> None:
        """A hold is set on a partition, or lifted."""
        partition, on = self._random.choice(list(self.world.partitions.values())), self._random.random() < 0.4
        self._begin("hold", lambda store: self.held(store, partition, on=on))

    def held(self, store: ObjectStore, partition: Partition, *, on: bool) -> None:
        """Sets or lifts it."""
        log = ManifestLog(
            *(store, partition.stream),
            clock=self.world.clock,
            entropy=self._random.randbytes,
            settings=self.world.settings.manifest,
        )
        if log.load().held != on:
            log.commit_as_maintainer([Hold(on, "")])

    # -- deletion, which meets no weather here: worlds of one stream have that

    def delete(self, partition: Partition) -> None:
        """A partition is deleted until nothing of it is left."""
        world = self.world
        store = world.quiet("delete")
        record_partitions(store, [partition.stream])
        for _ in range(3):
            try:
                remove_stream(
                    *(store, partition.stream),
                    clock=world.clock,
                    settings=world.settings.manifest,
                    ignore_leases=True,
                    entropy=self._random.randbytes,
                )
            except NotFoundError:
                return
            world.clock.advance(30 * 3600)

    def tidy_up(self) -> None:
        """Cleanup of everything, and a search for what is left over.

        Raises:
            OffloaderError: it couldn't be finished.
        """
        world = self.world
        store = world.quiet("tidy")
        settings = world.settings
        failures: list[OffloaderError] = []
        for report in cleanup_all(store, clock=world.clock, settings_of=lambda _: settings, allow_large=True):
            failures += [report.error] if report.error is not None else []
        run = StoreReconciliation(
            store,
            clock=world.clock,
            settings_of=lambda _: settings.manifest,
            failed=lambda _, error: failures.append(error),
            delete=True,
        )
        for _ in run.leftovers():
            pass
        if failures:
            raise failures[0]
