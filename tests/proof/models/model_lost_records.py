"""A model of rules M34 to M40 of docs/explanation/manifest.md: losses of records and folders. Not a test.

Processes load the manifest in one step, and stop between that and the PUT of a record, between the PUT and the look at
the boundary, and before whatever they destroy. Only the slow reader L loads request by request. That a reader gets what
is committed, or names damage, is checked in every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.proof.models.model_search import Broken

__all__ = ["RULES", "Boundary", "LostModel", "Process", "Record", "View", "World", "folded"]

#: Rule -> what holds with it.
RULES = {
    "list-end": "a listing proves the end of the log",
    "limit": "the boundary names a newest record",
    "limit-nonce": "it names that record's nonce too",
    "name-before": "it names a record before anything is destroyed, or promised to stay, on its word",
    "chain": "a record names the nonce of the one before",
    "testimony": "an object that tells of an unknown record is kept",
    "testimony-nonce": "it tells of the nonce of its epoch, not only of a number",
    "no-records": "a manifest without a boundary isn't begun anew over segments",
    "reread": "the boundary is read again before damage is named",
}

Edit = tuple[str, int]


class Record(NamedTuple):
    nonce: int
    previous: int
    edit: Edit


class View(NamedTuple):
    """What records add up to; ``epochs``: nonce, and the newest record of it that assigned."""

    newest: int = 0
    nonces: tuple[int, ...] = (0,)
    epochs: tuple[tuple[int, int], ...] = ()
    segments: tuple[tuple[int, str], ...] = ()

    def state_of(self, segment: int) -> str:
        return dict(self.segments).get(segment, "")


class Boundary(NamedTuple):
    first: int = 1
    newest: int = 0
    nonce: int = 0
    checkpoint: View = View()


class Process(NamedTuple):
    """One process; ``step``: what it stands before."""

    name: str
    step: str = "load"
    view: View = View()
    record: Record | None = None
    epoch: int = 0
    boundary: Boundary = Boundary()
    #: Objects that an orphan search listed before it loaded.
    listed: frozenset[tuple[int, int, int]] = frozenset()


class World(NamedTuple):
    processes: tuple[Process, ...]
    log: tuple[tuple[int, Record], ...] = ()
    boundary: Boundary | None = Boundary()
    #: Segment, nonce of the epoch and number of the record that assigned it.
    objects: frozenset[tuple[int, int, int]] = frozenset()
    hot: bool = True
    #: Segment, and nonce of the record, of what a reader has to get.
    committed: frozenset[tuple[int, int]] = frozenset()
    #: Nonces of lost records that nothing tells of which a reader asks for.
    hidden: frozenset[int] = frozenset()
    purged: bool = False
    nonces: int = 0
    events: tuple[tuple[str, int], ...] = ()
    is_harmed: bool = False


def folded(view: View, number: int, record: Record, *, chained: bool = True) -> View | None:
    """The view after a record; ``None``: it doesn't follow."""
    if chained and record.previous != view.nonces[-1]:
        return None
    kind, segment = record.edit
    needed = {"done": "assigned", "retire": "live", "undo": "retired", "purged": "retired", "fail": "assigned"}.get(
        kind
    )
    if needed is not None and view.state_of(segment) != needed:
        return None
    segments, epochs = dict(view.segments), list(view.epochs)
    if kind == "open":
        epochs.append((record.nonce, 0))
    elif kind == "assign":
        segments[segment] = "assigned"
        epochs[-1] = epochs[-1][0], number
    elif kind in ("done", "undo"):
        segments[segment] = "live"
    elif kind == "retire":
        segments[segment] = "retired"
    elif kind in ("purged", "fail"):
        del segments[segment]
    return View(number, (*view.nonces, record.nonce), tuple(epochs), tuple(sorted(segments.items())))


class LostModel:
    """What may happen next in a world.

    Args:
        off: rules that nobody follows.
        records_max: no process commits more.
    """

    def __init__(self, off: frozenset[str] = frozenset(), records_max: int = 5) -> None:
        self.off, self.records_max = off, records_max

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        self.check(world)
        for number, process in enumerate(world.processes):
            step = self._STEPS.get(process.step)
            if step is not None:
                yield from step(self, world, number, process)
            if process.name == "W" and process.step != "load" and _left(world, "crash"):
                yield "W: crash", _process(_spent(world, "crash"), number, Process("W"))
        yield from self._store(world)

    def _follows(self, rule: str) -> bool:
        return rule not in self.off

    def check(self, world: World) -> None:
        """N1 and N2."""
        if world.purged or not world.committed:
            return
        # All segments have the same entries.
        segments = {segment for segment, _ in world.committed}
        if not segments & {segment for segment, _, _ in world.objects}:
            raise Broken("N1", f"the last object of {segments} is deleted")
        view = self.load(world)
        is_excused = world.hot and {nonce for _, nonce in world.committed} <= world.hidden
        if view is None or is_excused:
            return
        if not any(view.state_of(segment) in ("live", "retired") for segment in segments):
            raise Broken("N2", f"a reader gets nothing of {segments} and names no damage")

    # -- loading

    def load(self, world: World) -> View | None:
        """The newest view; ``None``: damage is named."""
        boundary = world.boundary
        if boundary is None:
            if self._follows("no-records"):
                return None
            boundary = Boundary()
        view = self._tail(world, boundary.checkpoint)
        if view is None or (self._follows("list-end") and any(number > view.newest for number, _ in world.log)):
            return None
        if self._follows("limit") and boundary.newest > view.newest:
            return None
        is_other = 0 < boundary.newest <= view.newest and view.nonces[boundary.newest] != boundary.nonce
        return None if is_other and self._follows("limit-nonce") else view

    def _tail(self, world: World, view: View) -> View | None:
        log = dict(world.log)
        while view.newest + 1 in log:
            after = folded(view, view.newest + 1, log[view.newest + 1], chained=self._follows("chain"))
            if after is None:
                return None
            view = after
        return view

    def _load(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        name = process.name
        if name == "L":
            slow = process._replace(step="read", boundary=world.boundary or Boundary())
            yield "L: reads the boundary", _process(world, number, slow)
            return
        view = self.load(world)
        if view is None:
            if not world.is_harmed:
                raise Broken("N4", f"{name} names damage where nothing was lost")
            yield f"{name}: names damage", _process(world, number, process._replace(step="over"))
            return
        if world.boundary is None:
            world = world._replace(boundary=Boundary())
        loaded = process._replace(step="plan", view=view, listed=world.objects if name == "S" else frozenset())
        yield f"{name}: loads", _process(world, number, loaded)

    # -- committing

    def _plan(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if process.view.newest >= self.records_max:
            return
        edit = self._next_of(world, process)
        if edit is None:
            yield from self._acts(world, number, process)
            return
        record = Record(world.nonces + 1, process.view.nonces[-1], edit)
        world = world._replace(nonces=world.nonces + 1)
        yield f"{process.name}: builds {edit}", _process(world, number, process._replace(step="put", record=record))

    def _next_of(self, world: World, process: Process) -> Edit | None:
        """What a process commits next."""
        view = process.view
        retired = [segment for segment, state in view.segments if state == "retired"]
        if process.name in "UP":
            return ("undo" if process.name == "U" else "purged", retired[0]) if retired else None
        if process.name == "X":
            return None if process.epoch or not view.epochs else ("note", 0)
        if process.name != "W":
            return None
        if not process.epoch:
            return "open", 0
        assigned = [segment for segment, state in view.segments if state == "assigned"]
        if view.epochs[-1][0] != process.epoch:
            return None
        if assigned and any(segment == assigned[0] for segment, _, _ in world.objects):
            return "done", assigned[0]
        if assigned and view.epochs[-1][1] == 0:
            return "fail", assigned[0]
        if not view.segments and world.hot:
            return "assign", 100 + world.nonces
        is_released = not world.hot and any(state == "live" for _, state in view.segments)
        return ("note", 0) if is_released and process.record is None else None

    def _put(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        record, at = process.record, process.view.newest + 1
        assert record is not None
        if at in dict(world.log):
            yield f"{process.name}: record {at} is taken", _process(world, number, process._replace(step="load"))
            return
        world = world._replace(log=tuple(sorted((*world.log, (at, record)))))
        kind, segment = record.edit
        if kind == "done" and at >= (world.boundary or Boundary()).first:
            world = world._replace(committed=world.committed | {(segment, record.nonce)})
        if kind == "purged" and not world.committed:
            world = world._replace(purged=True)
        yield f"{process.name}: puts record {at}", _process(world, number, process._replace(step="look"))

    def _look(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Reads the boundary after a record was created: it may say that another one had the number."""
        record, boundary = process.record, world.boundary or Boundary()
        assert record is not None
        at = process.view.newest + 1
        is_other = boundary.newest >= at and (boundary.newest, boundary.nonce) != (at, record.nonce)
        after = folded(process.view, at, record)
        if at < boundary.first or (is_other and self._follows("limit-nonce")) or after is None:
            yield f"{process.name}: may have lost", _process(world, number, process._replace(step="load"))
            return
        kind = record.edit[0]
        epoch = record.nonce if kind in ("open", "note") and not process.epoch else process.epoch
        step = "name" if kind in ("undo", "purged") or (kind == "note" and process.name == "W") else "plan"
        won = process._replace(step=step, view=after, epoch=epoch, record=record if kind == "note" else None)
        yield f"{process.name}: won", _process(world, number, won)

    def _acts(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """What a process does that has nothing to commit."""
        view = process.view
        states = {state: segment for segment, state in view.segments}
        if process.name == "W" and view.epochs and view.epochs[-1][0] == process.epoch:
            if "assigned" in states:
                told = states["assigned"], process.epoch, view.epochs[-1][1]
                yield "W: puts data", world._replace(objects=world.objects | {told})
            elif "live" in states and world.hot:
                yield "W: may release", _process(world, number, process._replace(step="name"))
        if process.name == "S":
            for told in process.listed & world.objects:
                if not view.state_of(told[0]) and not self._tells(view, told):
                    yield f"S: deletes {told}", world._replace(objects=world.objects - {told})
        if process.name == "K" and view.newest and world.boundary is not None and view.newest >= world.boundary.first:
            raised = Boundary(view.newest + 1, view.newest, view.nonces[-1], view)
            yield "K: checkpoint", _process(world, number, process._replace(step="expire"))._replace(boundary=raised)

    def _tells(self, view: View, told: tuple[int, int, int]) -> bool:
        """Whether an object tells of a record that the view hasn't."""
        if not self._follows("testimony"):
            return False
        if not self._follows("testimony-nonce"):
            return told[2] > view.newest
        return told[2] > dict(view.epochs).get(told[1], -1)

    def _name(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Makes the boundary name the view's newest record, before something is destroyed or promised."""
        view, boundary = process.view, world.boundary
        if boundary is None:
            return
        is_other = boundary.newest >= view.newest and (boundary.newest, boundary.nonce) != (
            view.newest,
            view.nonces[-1],
        )
        if is_other and self._follows("limit-nonce"):
            yield f"{process.name}: looks again", _process(world, number, process._replace(step="load"))
            return
        if self._follows("name-before") and boundary.newest < view.newest:
            world = world._replace(boundary=boundary._replace(newest=view.newest, nonce=view.nonces[-1]))
        yield f"{process.name}: names", _process(world, number, process._replace(step="act"))

    def _act(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        over = process._replace(step="over")
        if process.name == "W":
            step = "plan" if world.hot else "over"
            yield "W: deletes hot", _process(world._replace(hot=False), number, process._replace(step=step))
        elif process.name == "U":
            retired = frozenset((segment, process.view.nonces[-1]) for segment, _ in process.view.segments)
            yield "U: reports", _process(world._replace(committed=retired, purged=False, hot=False), number, over)
        else:
            yield "P: deletes", _process(world._replace(objects=frozenset()), number, over)

    # -- old records, and a reader that meets their deletion

    def _expire(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        kept = tuple(each for each in world.log if each[0] >= (world.boundary or Boundary()).first)
        yield "K: expires", _process(world._replace(log=kept), number, process._replace(step="over"))

    def _read(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        view = self._tail(world, process.boundary.checkpoint)
        if view is not None:
            yield "L: reads records", _process(world, number, process._replace(step="list", view=view))

    def _list(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        higher = any(at > process.view.newest for at, _ in world.log)
        step = "missing" if higher and (world.boundary or Boundary()).first <= process.boundary.first else "over"
        yield "L: lists", _process(world, number, process._replace(step=step))

    def _missing(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if process.view.newest + 1 in dict(world.log):
            yield "L: it is there", _process(world, number, process._replace(step="read"))
        elif self._follows("reread") and (world.boundary or Boundary()).first > process.boundary.first:
            yield "L: starts over", _process(world, number, process._replace(step="load"))
        elif not world.is_harmed:
            raise Broken("N4", "L names damage where nothing was lost")

    _STEPS: ClassVar = {
        "load": _load, "plan": _plan, "put": _put, "look": _look, "name": _name, "act": _act, "expire": _expire,
        "read": _read, "list": _list, "missing": _missing,
    }  # fmt: skip

    # -- what the store loses

    def _store(self, world: World) -> Iterator[tuple[str, World]]:
        numbers = [at for at, _ in world.log if at >= (world.boundary or Boundary()).first]
        for at in numbers:
            if _left(world, "record"):
                yield f"store: loses record {at}", _lost(_spent(world, "record"), {at})
            if _left(world, "suffix"):
                yield f"store: loses records from {at}", _lost(_spent(world, "suffix"), {n for n in numbers if n >= at})
        if world.log and _left(world, "folder"):
            bare = _spent(world, "folder")._replace(log=(), boundary=None, is_harmed=True)
            yield "store: loses the folder", bare


def _lost(world: World, gone: set[int]) -> World:
    kept = tuple(each for each in world.log if each[0] not in gone)
    told = max([at for at, _ in kept] + [(world.boundary or Boundary()).newest])
    hidden = {record.nonce for at, record in world.log if at in gone and at > told}
    return world._replace(log=kept, hidden=world.hidden | hidden, is_harmed=True)


def _process(world: World, number: int, process: Process) -> World:
    processes = (*world.processes[:number], process, *world.processes[number + 1 :])
    return world._replace(processes=processes)


def _left(world: World, event: str) -> int:
    return dict(world.events).get(event, 0)


def _spent(world: World, event: str) -> World:
    return world._replace(events=tuple((each, left - (each == event)) for each, left in world.events))
