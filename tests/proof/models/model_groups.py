"""A model of the group protocol of ``offloader.groups.assignment``, with the product's own decisions. Not a test.

A few processes join, read, confirm, write, crash, expire and leave in every order. The application is the worst that
the interface allows: it keeps what was delivered, loses it when it crashes, and consumes it when it asks for more
behind an event. A write is one step, as each replaces the version that it read; its answer may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from formats.documents import NO_VERSION, GroupState, PartitionRow
from formats.entries import Position
from offloader.errors import LimitReachedError, ReaderExpiredError
from offloader.groups.assignment import Held, Parents, held, joined, left, repartitioned, require_session, stepped
from offloader.groups.reader_groups import (
    GroupConfig,
    Homes,
    RetentionType,
    absent_group,
    created,
    settled,
    started_checkpoint,
)
from offloader.retention.subscribers import PublishStatus
from tests.proof.models.model_search import Broken

__all__ = ["RULES", "GroupModel", "GroupWorld", "first_world"]

#: Rule -> what holds with it.
RULES = {
    "confirm": "positions are given only for entries that the application has consumed",
    "together": "a partition is released only together with the positions of everything that was delivered",
    "epoch": "each change of a holder raises the epoch, and positions name the epoch they are of",
    "repeat": "a reader whose answer was lost writes again before it delivers anything",
    "succession": "a segment is assigned only when those that it continues are finished",
}
STREAM = "t"
EXPIRED_MS = -(10**9)


class Process(NamedTuple):
    """One process with a session.

    Attributes:
        view: partition and epoch -> the entry that it delivers next.
        kept: entries that were delivered and not consumed.
        must_write: the answer of its last write was lost.
    """

    name: str
    session: str
    view: tuple[tuple[Held, int], ...]
    kept: frozenset[tuple[int, int]] = frozenset()
    must_write: bool = False


class GroupWorld(NamedTuple):
    """The document, the processes, and what really happened.

    Attributes:
        consumed: by partition how many entries from the beginning are consumed.
        is_disturbed: something happened after which entries may be delivered twice.
        left: how often each event may still happen.
    """

    group: GroupState
    processes: tuple[Process, ...]
    consumed: tuple[int, ...]
    is_disturbed: bool
    left: tuple[tuple[str, int], ...]


def first_world(partitions: int, **events: int) -> GroupWorld:
    """A group without readers. ``events``: how often each may happen."""
    homes = {STREAM: _partitions(partitions)}
    config = GroupConfig([STREAM], RetentionType.AUTOMATIC, automatic_checkpoint_ms=0)
    group = replace(created(absent_group("g"), config, homes), to_do=())
    return GroupWorld(group, (), (0,) * partitions, False, tuple(sorted(events.items())))


def _partitions(number: int) -> tuple[PartitionRow, ...]:
    return tuple(PartitionRow(each, UUID(int=each + 1)) for each in range(number))


class GroupModel:
    """The protocol, without some rules.

    Args:
        names: of readers.
        entries: in each partition.
        off: rules that don't hold.
        parents: partition -> those that it continues, which are sealed segments.
    """

    def __init__(
        self,
        names: str,
        entries: int,
        off: frozenset[str] = frozenset(),
        parents: Mapping[int, frozenset[int]] = MappingProxyType({}),
    ) -> None:
        self._names, self._entries, self._off, self._parents = names, entries, off, parents
        self._sealed = frozenset[int]().union(*parents.values())

    def successors(self, world: GroupWorld) -> Iterator[tuple[str, GroupWorld]]:
        """Each next step and the world after it; raises ``Broken``."""
        for name in self._names:
            yield from self._joins(world, name)
        if (after := _spent(world, "checkpoint")) is not None and world.group.readers:
            name = f"c{dict(after.left)['checkpoint']}"
            try:
                group = started_checkpoint(world.group, name, kept=False, now_ms=0)
            except LimitReachedError:
                return
            yield name, self._checked(world, after._replace(group=group))
        for process in world.processes:
            yield from self._reads(world, process)
            yield from self._writes(world, process)
            yield from self._ends(world, process)

    def _joins(self, world: GroupWorld, name: str) -> Iterator[tuple[str, GroupWorld]]:
        if (after := _spent(world, "join")) is None:
            return
        session = f"{name}{dict(after.left)['join']}"
        group = joined(world.group, name, session, *self._homes(world))
        again = any(row.name == name for row in world.group.members)
        process = self._adopted(Process(name, session, ()), group)
        after = after._replace(group=group, processes=(*world.processes, process))
        yield f"{session} joins", self._checked(world, after, disturbs=again)

    def _homes(self, world: GroupWorld) -> tuple[Homes, Parents]:
        parents = {} if "succession" in self._off else {STREAM: self._parents}
        return {STREAM: _partitions(len(world.consumed))}, parents

    # -- reading

    def _reads(self, world: GroupWorld, process: Process) -> Iterator[tuple[str, GroupWorld]]:
        if process.must_write and "repeat" not in self._off:
            return
        for key, entry in process.view:
            if entry == self._entries:
                continue
            number = key.partition
            is_new = entry >= world.consumed[number] and not any((number, entry) in p.kept for p in world.processes)
            if any(world.consumed[each] < self._entries for each in self._parents.get(number, ())):
                raise Broken("G6", f"{process.session} delivers {number}:{entry} before what it continues")
            if not is_new and not world.is_disturbed:
                raise Broken("once", f"{process.session} delivers {number}:{entry} again")
            view = tuple((each, entry + 1 if each == key else at) for each, at in process.view)
            read = process._replace(view=view, kept=process.kept | {(number, entry)})
            yield f"{process.session} delivers {number}:{entry}", _with(world, process, read)
        if process.kept:
            consumed = list(world.consumed)
            for number, entry in sorted(process.kept):
                if entry > consumed[number]:
                    raise Broken("G4", f"{process.session} skipped {number}:{consumed[number]}")
                consumed[number] = max(consumed[number], entry + 1)
            after = _with(world, process, process._replace(kept=frozenset()))
            yield f"{process.session} consumes", after._replace(consumed=tuple(consumed))

    # -- writing

    def _writes(self, world: GroupWorld, process: Process) -> Iterator[tuple[str, GroupWorld]]:
        others = [row.name for row in world.group.members if row.name != process.name]
        for late in ("", *others):
            began = world if not late else _spent(world, "expire")
            if began is None:
                continue
            label = f"{process.session} writes" + (f", {late} is late" if late else "")
            try:
                group = self._stepped(world, _late(world.group, late), process)
            except ReaderExpiredError:
                yield f"{process.session} is fenced", _with(world, process, None)._replace(is_disturbed=True)
                return
            heard = self._adopted(process._replace(must_write=False), group)
            after = _with(began, process, heard)._replace(group=group)
            yield label, self._checked(world, after, disturbs=bool(late))
            if (lost := _spent(began, "lost")) is not None:
                after = _with(lost, process, process._replace(must_write=True))._replace(group=group)
                yield f"{label}, no answer", self._checked(world, after, disturbs=bool(late))
        if not process.must_write or "repeat" in self._off:
            try:
                require_session(world.group, process.name, process.session)
            except ReaderExpiredError:
                return
            seen = self._adopted(process, world.group)
            if seen != process:
                yield f"{process.session} looks", _with(world, process, seen)

    def _stepped(self, world: GroupWorld, group: GroupState, process: Process) -> GroupState:
        is_consumed = not process.kept or "confirm" in self._off
        unconsumed: dict[Held, Position] | None = {} if "together" in self._off else None
        positions = self._positions(group, process) if is_consumed else unconsumed
        read = {key for key, entry in process.view if key.partition in self._sealed and entry == self._entries}
        group = stepped(group, process.name, process.session, positions, read)
        return repartitioned(group, *self._homes(world)) if read else group

    def _positions(self, group: GroupState, process: Process) -> dict[Held, Position]:
        found = {key: Position(1, entry) for key, entry in process.view}
        if "epoch" not in self._off:
            return found
        now = {key.partition: key for key in held(group, process.name)}
        return {now.get(key.partition, key): position for key, position in found.items()}

    def _adopted(self, process: Process, group: GroupState) -> Process:
        """The process after it saw a version: new partitions begin at their persisted positions."""
        before, rows = dict(process.view), held(group, process.name)
        if "epoch" in self._off:
            before |= {key: before[old] for key in rows for old in before if old.partition == key.partition}
        view = tuple(
            (key, before.get(key, 0 if row.position is None else row.position.entry_id)) for key, row in rows.items()
        )
        gone = {old.partition for old in before} - {key.partition for key in rows}
        return process._replace(view=view, kept=frozenset(each for each in process.kept if each[0] not in gone))

    # -- ends

    def _ends(self, world: GroupWorld, process: Process) -> Iterator[tuple[str, GroupWorld]]:
        if (after := _spent(world, "crash")) is not None:
            yield f"{process.session} crashes", _with(after, process, None)._replace(is_disturbed=True)
        if (after := _spent(world, "leave")) is not None:
            positions = None if process.kept else self._positions(world.group, process)
            group = left(world.group, process.name, process.session, positions)
            after = _with(after, process, None)._replace(group=group)
            yield f"{process.session} leaves", self._checked(world, after, disturbs=bool(process.kept))

    # -- what must hold

    def _checked(self, before: GroupWorld, after: GroupWorld, *, disturbs: bool = False) -> GroupWorld:
        group, consumed = _published(after.group, after.consumed), after.consumed
        sessions = {row.name: row.session for row in group.members}
        earlier = {row.name: row.session for row in before.group.members}
        old = {row.partition: row for row in before.group.assignments}
        for row in group.assignments:
            was = old.get(row.partition)
            if was is not None and was.position and (row.position is None or row.position < was.position):
                raise Broken("G2", f"partition {row.partition} moves back from {was.position} to {row.position}")
            if row.position is not None and row.position.entry_id > consumed[row.partition]:
                raise Broken("G3", f"partition {row.partition} is persisted at {row.position}, which isn't consumed")
            holder = sessions.get(row.reader)
            if holder and was is not None and holder != earlier.get(was.reader) and row.epoch <= was.epoch:
                raise Broken("G1", f"{holder} gets partition {row.partition} in an epoch of another session")
        for checkpoint in group.checkpoints:
            if not set(checkpoint.behind) <= set(sessions):
                raise Broken("G5", f"checkpoint {checkpoint.name} waits for {checkpoint.behind}")
            for cut in (row for each in checkpoint.cuts for row in each.cut):
                if cut.position.entry_id > consumed[cut.partition]:
                    raise Broken("G3", f"checkpoint {checkpoint.name} has {cut}, which isn't consumed")
        counts = [sum(1 for row in group.assignments if row.reader == name) for name in sessions]
        if counts and sum(counts) != sum(not row.is_finished for row in group.assignments):
            raise Broken("assigned", "a partition has no reader although there are members")
        return _plain(after._replace(group=group, is_disturbed=before.is_disturbed or after.is_disturbed or disturbs))


def _published(group: GroupState, consumed: tuple[int, ...]) -> GroupState:
    """Perform the group's obligations; what is published may be deleted."""
    for row in group.to_do:
        for cut in row.cut or ():
            if cut.position.entry_id > consumed[cut.partition]:
                raise Broken("G3", f"published {cut}, which isn't consumed")
        group = settled(group, row, PublishStatus.SUCCESS, now_ms=0)
    return group


def _plain(world: GroupWorld) -> GroupWorld:
    """Without what only tells versions apart; epochs keep their order."""
    group = world.group
    named = {row.epoch for row in group.assignments} | {key.epoch for p in world.processes for key, _ in p.view}
    epochs = {epoch: number for number, epoch in enumerate(sorted(named | {group.epoch}))}
    members = tuple(replace(row, beat=0, seen_ms=0) for row in group.members)
    rows = tuple(replace(row, epoch=epochs[row.epoch]) for row in group.assignments)
    plain = replace(
        group,
        members=members,
        assignments=rows,
        epoch=epochs[group.epoch],
        version=NO_VERSION,
        published_ms=0,
        checkpoint_ms=0,
    )
    processes = tuple(
        each._replace(view=tuple((key._replace(epoch=epochs[key.epoch]), at) for key, at in each.view))
        for each in world.processes
    )
    return world._replace(group=plain, processes=processes)


def _late(group: GroupState, name: str) -> GroupState:
    rows = tuple(replace(row, seen_ms=EXPIRED_MS) if row.name == name else row for row in group.members)
    return replace(group, members=rows)


def _spent(world: GroupWorld, event: str) -> GroupWorld | None:
    """The world with one event less; ``None``: it can't happen again."""
    left = dict(world.left)
    if not left.get(event):
        return None
    return world._replace(left=tuple(sorted({**left, event: left[event] - 1}.items())))


def _with(world: GroupWorld, before: Process, after: Process | None) -> GroupWorld:
    processes = (each if each is not before else after for each in world.processes)
    return world._replace(processes=tuple(each for each in processes if each is not None))
