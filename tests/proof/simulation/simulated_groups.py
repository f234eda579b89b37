"""Reader groups of a simulated topic: what their readers have really read, and so what may go.

It doesn't look at a group's document to know what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from formats.documents import GroupState
from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.groups.group_service import GroupOutcome
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.retention.cuts import StreamCut, partition_segment
from offloader.retention.scope import SourceOf
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from tests.groups.bookkept_groups import BookkeptGroups, open_bookkept_groups
from tests.groups.grouped_streams import is_published
from tests.proof.simulation.simulated_subscribers import SimulatedSubscribers, Subscriber

__all__ = ["GROUPS", "SimulatedGroups"]

GROUPS = ("red", "blue")
READERS = ("r1", "r2")
#: How old what was published may be when a tick publishes it again.
RENEW_MS = 15_000

#: One step of a group: gets the groups over its way to the store.
Step = Callable[[BookkeptGroups], GroupOutcome]


@dataclass(slots=True)
class _Group:
    """What is known of one.

    Attributes:
        retention: as it was asked for last.
        at: what its readers read next, by partition.
        generation: as far as it is known.
    """

    retention: RetentionType
    at: dict[int, Position] = field(default_factory=dict)


class SimulatedGroups:
    """All groups of one topic. Each reads the topic, some also the stream beside it.

    Args:
        topic, plain: what they read; of ``plain`` only its first entries, always the same.
        positions: the entries of each partition of the topic, in order.
        subscribers: where what they said goes: a group subscribes under its own name.
        line: the number of the trace's line.
    """

    def __init__(
        self,
        topic: str,
        plain: str,
        *,
        random: Random,
        clock: Clock,
        source_of: SourceOf,
        positions: Callable[[], Mapping[int, list[Position]]],
        subscribers: SimulatedSubscribers,
        line: Callable[[], int],
    ) -> None:
        self._topic, self._plain, self._random, self._clock, self._line = topic, plain, random, clock, line
        self._source_of, self._positions, self._subscribers = source_of, positions, subscribers
        self._groups: dict[str, _Group] = {}
        #: Groups whose deletion failed: made again, such a group is the stored one, which has read what it had read.
        self._undeleted: dict[str, _Group] = {}
        self._checkpoints = 0

    def opened(self, store: ObjectStore) -> BookkeptGroups:
        """The groups, over a way to the store."""
        return open_bookkept_groups(store, source_of=self._source_of, clock=self._clock, entropy=self._random.randbytes)

    def forget_partition(self, number: int) -> None:
        """It is another one now: nobody has read anything of it."""
        for group in (*self._groups.values(), *self._undeleted.values()):
            group.at.pop(number, None)

    def step(self) -> Callable[[ObjectStore], object]:
        """What one of the groups does next."""
        random, name = self._random, self._random.choice(GROUPS)
        group = self._groups.get(name)
        if group is None:
            return self._made(name, random.choice(list(RetentionType)))
        drawn = random.random()
        if drawn < 0.04:
            return self._updated(name, random.choice(list(RetentionType)))
        if drawn < 0.06:
            return self._deleted(name)
        if drawn < 0.16:
            return self._heard(name, lambda groups: groups.add_reader(name, random.choice(READERS)))
        if drawn < 0.19:
            return self._left(name, random.choice(READERS))
        if drawn < 0.35:
            return self._heard(name, lambda groups: groups.tick(name, renew_ms=RENEW_MS))
        if drawn < 0.45 and group.retention is RetentionType.MANUAL:
            return self._told(name)
        self._read_on(group)
        return self._checkpoint(name)

    # -- what changes who they are

    def _made(self, name: str, retention: RetentionType) -> Callable[[ObjectStore], object]:
        config = self._config(retention)

        def act(store: ObjectStore) -> None:
            self._begin(name, retention)
            groups = self.opened(store)
            groups.create(name, config)
            for reader in READERS:
                self._hear(name, groups.add_reader(name, reader))

        return act

    def _config(self, retention: RetentionType) -> GroupConfig:
        streams = [self._topic, self._plain] if self._random.random() < 0.5 else [self._topic]
        return GroupConfig(streams, retention, automatic_checkpoint_ms=60_000)

    def _begin(self, name: str, retention: RetentionType) -> None:
        """From now on nobody may rely on what it said before; what it has read it has read."""
        before = self._groups.get(name) or self._undeleted.get(name)
        self._groups[name] = _Group(retention, {} if before is None else before.at)
        self._subscribers.known.pop(name, None)
        who = self._subscribers.known[name] = Subscriber()
        self._allow(self._groups[name], who)

    def _updated(self, name: str, retention: RetentionType) -> Callable[[ObjectStore], object]:
        config = self._config(retention)

        def act(store: ObjectStore) -> None:
            groups = self.opened(store)
            generation = groups.get(name).generation
            self._begin(name, retention)
            self._hear(name, groups.update(name, generation, config))

        return act

    def _deleted(self, name: str) -> Callable[[ObjectStore], object]:
        def act(store: ObjectStore) -> None:
            self._subscribers.known.pop(name, None)
            group = self._groups.pop(name, None)
            if group is not None:
                self._undeleted[name] = group
            self.opened(store).delete(name)
            self._undeleted.pop(name, None)

        return act

    # -- reading

    def _read_on(self, group: _Group) -> None:
        """Each partition is read a little further."""
        for number, entries in self._positions().items():
            left = [each for each in entries if each >= group.at.get(number, Position(0, 0))]
            if left:
                last = left[min(self._random.choice([0, 1, 3, 10]), len(left) - 1)]
                group.at[number] = last.next()

    def _cut(self, group: _Group, group_state: GroupState, reader: str) -> dict[str, StreamCut]:
        """Where a reader is in the partitions that are its own."""
        readers = group_state.readers or (reader,)
        own = {
            number: position
            for number, position in group.at.items()
            if reader not in readers or readers[number % len(readers)] == reader
        }
        found = {self._topic: StreamCut({partition_segment(number): at for number, at in own.items()})}
        if self._plain in group_state.streams:
            found[self._plain] = StreamCut({partition_segment(0): Position(1, 2)})
        return found

    def _checkpoint(self, name: str) -> Callable[[ObjectStore], object]:
        """The next step of the newest checkpoint that isn't through; or another one."""
        kept = self._random.random() < 0.5

        def act(store: ObjectStore) -> None:
            groups = self.opened(store)
            group, now = self._groups.get(name), groups.get(name)
            if group is None:
                return
            for row in now.checkpoints:
                if row.waiting:
                    reader = self._random.choice(row.waiting)
                    cuts = self._cut(group, now, reader)
                    self._read_on(group)
                    self._hear(name, groups.reach_checkpoint(name, row.name, reader, cuts))
                    return
                if row.behind:
                    self._hear(name, groups.pass_checkpoint(name, row.name, self._random.choice(row.behind)))
                    return
                if now.retention == RetentionType.MANUAL.value and self._random.random() < 0.5:
                    self._hear(name, groups.update_truncation_checkpoint(name, row.name))
                    return
            self._checkpoints += 1
            self._hear(name, groups.initiate_checkpoint(name, f"c{self._checkpoints}", keep=kept))

        return act

    def _left(self, name: str, reader: str) -> Callable[[ObjectStore], object]:
        def act(store: ObjectStore) -> None:
            groups = self.opened(store)
            group = self._groups.get(name)
            if group is not None:
                self._hear(name, groups.remove_reader(name, reader, self._cut(group, groups.get(name), reader)))

        return act

    def _told(self, name: str) -> Callable[[ObjectStore], object]:
        """A manual group is told what may go: what it has read, or less."""
        group = self._groups[name]
        some = {number: at for number, at in group.at.items() if self._random.random() < 0.8}
        cut = StreamCut({partition_segment(number): at for number, at in some.items()})
        return self._heard(name, lambda groups: groups.update_truncation_cuts(name, {self._topic: cut}))

    # -- what may be relied on

    def _heard(self, name: str, step: Step) -> Callable[[ObjectStore], object]:
        return lambda store: self._hear(name, step(self.opened(store)))

    def _hear(self, name: str, outcome: GroupOutcome) -> None:
        """What was published counts from now on."""
        who, group, state = self._subscribers.known.get(name), self._groups.get(name), outcome.group
        if who is None or group is None or state.retention == RetentionType.NONE.value or state.deleted:
            return
        self._allow(group, who)
        cut = next((row.cut for row in state.published if row.stream == self._topic), None)
        if cut is not None and is_published(state) and not any(row.action == "remove" for row in state.to_do):
            who.is_told({row.partition: row.position for row in cut}, state.published_ms, self._line())

    def allow_all(self) -> None:
        """What they have read until now may go, whoever says so."""
        for name, group in self._groups.items():
            if name in self._subscribers.known:
                self._allow(group, self._subscribers.known[name])

    def _allow(self, group: _Group, who: Subscriber) -> None:
        # Nobody says more than was really read.
        who.may_count(group.at)

    # -- rest

    def settle(self, store: ObjectStore) -> None:
        """Until nothing is owed any more."""
        groups = self.opened(store)
        for name in GROUPS:
            for _ in range(5):
                if not groups.settle(name).group.to_do:
                    break

    def what_is_registered_wrongly(self, store: ObjectStore, names: set[str]) -> str:
        """At rest: those that hold data back are subscribers, the others aren't."""
        groups = self.opened(store)
        for name in GROUPS:
            try:
                subscribes = groups.get(name).retention != RetentionType.NONE.value
            except OffloaderError:
                subscribes = False
            if subscribes != (name in names):
                return (
                    f"group {name} {'should' if subscribes else 'should not'} be among the subscribers {sorted(names)}"
                )
        return ""
