"""A model of rules M17 to M22 of docs/explanation/manifest.md: lost, restored and copied ledger databases. Not a test.

Hosts start, append, offload and release over database files; an operator loses, restores and copies the files. Entries
are numbers in the order in which they were acknowledged. A commit to the manifest is one step: how a record gets into
the bucket is another model's subject.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.proof.models.model_search import Broken

__all__ = ["RULES", "Bucket", "File", "Host", "Ledger", "Model", "World"]

#: Rule -> what holds with it.
RULES = {
    "identity": "a database with another uuid is refused",
    "token": "a database without the newest start's token is refused",
    "random": "a start is known by a random token, not by the number of starts",
    "database-first": "the database has the token before the record names it",
    "recheck": "the source is compared again when other records came before the one that opens the epoch",
    "reach": "a database that ends below the newest known position is refused",
    "reserve": "ledger ids come from a range above all that were ever reserved",
    "new-ledger": "every start begins a new ledger",
    "truncate-held": "a truncation deletes only ledgers that are offloaded whole",
}
#: Events after which nothing is missing.
ORDINARY = {"crash", "truncate"}
RANGE = 3

Place = tuple[int, int]


class Ledger(NamedTuple):
    id: int
    entries: tuple[int, ...]
    is_open: bool

    def places(self) -> dict[Place, int]:
        return {(self.id, at): number for at, number in enumerate(self.entries)}


class File(NamedTuple):
    """A ledger database."""

    uuid: int
    tokens: tuple[int, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    next_id: int = 1
    reached: Place = (0, 0)

    def places(self) -> dict[Place, int]:
        return {at: number for ledger in self.ledgers for at, number in ledger.places().items()}


class Bucket(NamedTuple):
    """What the manifest's records add up to, and the entries in the cold tier."""

    records: int = 0
    epoch: int = 0
    uuid: int = 0
    token: int = 0
    starts: int = 0
    reserved: int = 0
    reach: Place = (0, 0)
    cold: frozenset[tuple[Place, int]] = frozenset()
    aside: frozenset[int] = frozenset()


class Host(NamedTuple):
    """One process; ``file`` is the number of its database."""

    name: str
    file: int
    step: str = "down"
    token: int = 0
    first_id: int = 0
    epoch: int = 0
    view: int = 0


class World(NamedTuple):
    bucket: Bucket
    files: tuple[File | None, ...]
    hosts: tuple[Host, ...]
    backup: File | None = None
    acknowledged: tuple[tuple[Place, int], ...] = ()
    #: Went with a database, and was in no other place.
    destroyed: frozenset[int] = frozenset()
    #: A refusal said that they are missing.
    named: frozenset[int] = frozenset()
    tokens: int = 0
    events: tuple[tuple[str, int], ...] = ()
    is_harmed: bool = False


class Model:
    """What may happen next in a world.

    Args:
        appends: entries that are acknowledged at most.
        off: rules that nobody follows.
        checks: invariants that are checked.
    """

    def __init__(
        self,
        appends: int,
        off: frozenset[str] = frozenset(),
        checks: frozenset[str] = frozenset({"H1", "H2", "H3", "H4"}),
    ) -> None:
        self.appends, self.off, self.checks = appends, off, checks

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        self.check(world)
        for number, host in enumerate(world.hosts):
            step = self._STEPS.get(host.step)
            if step is not None:
                yield from step(self, world, number, host)
            if host.step != "down" and _left(world, "crash"):
                yield f"{host.name}: crash", _host(_spent(world, "crash"), number, Host(host.name, host.file))
        yield from self._operator(world)

    def check(self, world: World) -> None:
        """H1 and H2."""
        cold, places = dict(world.bucket.cold), dict[Place, int]()
        there = set(cold.values()).union(*(file.places().values() for file in world.files if file))
        for at, number in world.acknowledged:
            if places.setdefault(at, number) != number:
                self._break("H2", f"{at} was acknowledged for {places[at]} and for {number}")
            if cold.get(at, number) != number:
                self._break("H2", f"{at} was acknowledged for {number} and is read as {cold[at]}")
            if number not in there | world.destroyed:
                self._break("H1", f"{number} is in neither tier")

    def _break(self, invariant: str, why: str) -> None:
        if invariant in self.checks:
            raise Broken(invariant, why)

    def _follows(self, rule: str) -> bool:
        return rule not in self.off

    # -- what a host compares

    def _mismatch(self, bucket: Bucket, file: File) -> bool:
        if not bucket.uuid:
            return False
        if file.uuid != bucket.uuid:
            return self._follows("identity")
        has_start = bucket.token in file.tokens if self._follows("random") else len(file.tokens) >= bucket.starts
        lacks_start = self._follows("token") and not has_start
        return lacks_start or (self._follows("reach") and file.reached < bucket.reach)

    def _refuse(self, world: World, number: int, host: Host) -> tuple[str, World]:
        if not world.is_harmed:
            self._break("H4", f"{host.name} is refused after nothing but ordinary events")
        named = world.named | _missing(world, host)
        return f"{host.name}: refused", _host(world._replace(named=named), number, host._replace(step="refused"))

    # -- an owner's start

    def _load(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        file = world.files[host.file]
        if file is None:
            file = File(100 + world.tokens)
            world = _file(world, host.file, file)
        if self._mismatch(world.bucket, file):
            yield self._refuse(world, number, host)
            return
        step = "record" if self._follows("database-first") else "open"
        loaded = host._replace(step=step, view=world.bucket.records)
        yield f"{host.name}: loads", _host(world, number, loaded)

    def _record(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        """The start's token becomes durable in the database."""
        file = world.files[host.file]
        assert file is not None
        token = host.token or world.tokens + 1
        world = _file(world, host.file, file._replace(tokens=(*file.tokens, token)))
        step = "open" if self._follows("database-first") else "begin"
        recorded = host._replace(step=step, token=token)
        yield f"{host.name}: records token {token}", _host(world._replace(tokens=world.tokens + 1), number, recorded)

    def _open(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        file, bucket = world.files[host.file], world.bucket
        assert file is not None
        if bucket.records != host.view and self._follows("recheck") and self._mismatch(bucket, file):
            yield self._refuse(world, number, host)
            return
        lost = _missing(world, host)
        tells = file.uuid != bucket.uuid or bucket.token not in file.tokens or file.reached < bucket.reach
        if lost and bucket.uuid and tells:
            self._break("H3", f"{host.name} opens a database without {set(lost)} and says nothing")
        yield self._opened(world, number, host, file)

    def _opened(self, world: World, number: int, host: Host, file: File) -> tuple[str, World]:
        bucket = world.bucket
        cold_ids = [ledger for (ledger, _), _ in bucket.cold]
        above = [bucket.reserved, *cold_ids] if self._follows("reserve") else [0]
        first = max([file.next_id, *(each + 1 for each in above)])
        token = host.token or world.tokens + 1
        opened = bucket._replace(
            records=bucket.records + 1,
            epoch=bucket.epoch + 1,
            uuid=file.uuid,
            token=token,
            starts=len({*file.tokens, token}),
            reserved=max(bucket.reserved, first + RANGE - 1) if self._follows("reserve") else 0,
            reach=max(bucket.reach, file.reached) if bucket.uuid == file.uuid else file.reached,
        )
        step = "begin" if self._follows("database-first") else "record"
        begun = host._replace(step=step, token=token, epoch=opened.epoch, first_id=first)
        return f"{host.name}: opens epoch {opened.epoch}", _host(world._replace(bucket=opened), number, begun)

    def _begin(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        file = world.files[host.file]
        assert file is not None
        if file.tokens[-1] != host.token:
            yield f"{host.name}: fenced", _host(world, number, host._replace(step="fenced"))
            return
        if self._follows("new-ledger") or not any(ledger.is_open for ledger in file.ledgers):
            closed = tuple(each._replace(is_open=False) for each in file.ledgers if each.entries)
            ledger = Ledger(host.first_id, (), True)
            file = file._replace(ledgers=(*closed, ledger), next_id=ledger.id + 1)
        runs = host._replace(step="runs")
        yield f"{host.name}: begins ledger {file.ledgers[-1].id}", _host(_file(world, host.file, file), number, runs)

    # -- a running owner

    def _run(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        file, bucket = world.files[host.file], world.bucket
        assert file is not None
        if file.tokens[-1] != host.token:
            yield f"{host.name}: fenced", _host(world, number, host._replace(step="fenced"))
            return
        if len(world.acknowledged) < self.appends:
            yield self._append(world, host, file)
        held = {at for at, _ in bucket.cold}
        waits = [(at, each) for at, each in file.places().items() if at not in held and at[0] not in bucket.aside]
        if waits and bucket.epoch == host.epoch:
            cold = bucket.cold | {min(waits)}
            reach = max(bucket.reach, file.reached)
            offloaded = bucket._replace(records=bucket.records + 1, cold=cold, reach=reach)
            yield f"{host.name}: offloads {min(waits)}", world._replace(bucket=offloaded)
        if self._mismatch(bucket, file):
            return
        end = max(held, default=(0, 0))
        for ledger in file.ledgers:
            is_held = ledger.places().keys() <= held
            is_before = ledger.id < end[0] and _left(world, "truncate") > 0
            may_go = is_held or (is_before and not self._follows("truncate-held"))
            if not ledger.is_open and may_go and ledger.id not in bucket.aside:
                rest = file._replace(ledgers=tuple(each for each in file.ledgers if each != ledger))
                yield f"{host.name}: deletes ledger {ledger.id}", _file(world, host.file, rest)

    def _append(self, world: World, host: Host, file: File) -> tuple[str, World]:
        entry, ledger = len(world.acknowledged) + 1, file.ledgers[-1]
        at = ledger.id, len(ledger.entries)
        ledgers = (*file.ledgers[:-1], ledger._replace(entries=(*ledger.entries, entry)))
        world = _file(world, host.file, file._replace(ledgers=ledgers, reached=at))
        return f"{host.name}: appends {entry} at {at}", world._replace(acknowledged=(*world.acknowledged, (at, entry)))

    def _accept(self, world: World, number: int, host: Host) -> Iterator[tuple[str, World]]:
        """An operator goes on with this database; what contradicts is left aside."""
        file, bucket = world.files[host.file], world.bucket
        if file is None or not _left(world, "accept"):
            return
        longest = {ledger: at + 1 for (ledger, at), _ in sorted(bucket.cold)}
        aside = {each.id for each in file.ledgers if longest.get(each.id, 0) > len(each.entries)}
        if file.uuid != bucket.uuid:
            aside |= {each.id for each in file.ledgers if each.id <= bucket.reserved}
        token = world.tokens + 1
        file = file._replace(tokens=(*file.tokens, token))
        world = _file(_spent(world, "accept"), host.file, file)
        bucket = bucket._replace(uuid=0, aside=bucket.aside | aside)
        world = world._replace(bucket=bucket, tokens=world.tokens + 1, named=world.named | _missing(world, host))
        label, world = self._opened(world, number, host._replace(token=token), file)
        yield f"{label} of an accepted source", _host(world, number, world.hosts[number]._replace(step="begin"))

    _STEPS: ClassVar = {
        "down": _load, "record": _record, "open": _open, "begin": _begin, "runs": _run, "refused": _accept,
    }  # fmt: skip

    # -- the operator

    def _operator(self, world: World) -> Iterator[tuple[str, World]]:
        file = world.files[0]
        is_idle = all(host.step in ("down", "refused", "fenced") for host in world.hosts if host.file == 0)
        if file is not None and file.tokens:
            if _left(world, "backup"):
                yield "operator: backup", _spent(world, "backup")._replace(backup=file)
            if _left(world, "lose") and is_idle:
                yield "operator: loses the database", _replaced(_spent(world, "lose"), None)
            if _left(world, "copy"):
                hosts = (*world.hosts, Host("B", len(world.files)))
                yield "operator: copy", _spent(world, "copy")._replace(files=(*world.files, file), hosts=hosts)
        if world.backup is not None and _left(world, "restore") and is_idle:
            yield "operator: restores the backup", _replaced(_spent(world, "restore"), world.backup)


def _host(world: World, number: int, host: Host) -> World:
    return world._replace(hosts=(*world.hosts[:number], host, *world.hosts[number + 1 :]))


def _file(world: World, number: int, file: File | None) -> World:
    return world._replace(files=(*world.files[:number], file, *world.files[number + 1 :]))


def _replaced(world: World, file: File | None) -> World:
    """The first database becomes another one; what only it had is gone with it."""
    after = _file(world, 0, file)
    kept = dict(world.bucket.cold).values(), *(each.places().values() for each in after.files if each)
    gone = {number for _, number in world.acknowledged} - set().union(*kept)
    return after._replace(destroyed=world.destroyed | gone)


def _missing(world: World, host: Host) -> frozenset[int]:
    file = world.files[host.file]
    has = set() if file is None else set(file.places().values())
    acknowledged = {number for _, number in world.acknowledged}
    return frozenset(acknowledged - has - {number for _, number in world.bucket.cold} - world.named)


def _left(world: World, event: str) -> int:
    return dict(world.events).get(event, 0)


def _spent(world: World, event: str) -> World:
    events = tuple((each, left - (each == event)) for each, left in world.events)
    return world._replace(events=events, is_harmed=world.is_harmed or event not in ORDINARY)
