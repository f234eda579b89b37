"""Hosts with ledger databases, made of the product's own code, and the model's invariants H1 to H5. Not a test.

A host is one process over one database file: the owner's start, appends, streaming offload, hot release, truncation.
Each request of its store, and each transaction in which a start or a deletion changes its database, waits for its turn
in a ``Schedule``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from formats.entries import Position
from offloader.errors import FencedError, NotFoundError, OffloaderError, SourceMismatchError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.state import ManifestState
from offloader.read.reader import open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.rate_limit import Traffic
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.manual_clock import ManualClock
from offloader.write.epoch import open_source
from offloader.write.hot_release import release_hot_ledgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from tests.proof.models.loss_traces import Databases
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.schedule import Fate, Schedule

__all__ = ["STREAM", "GatedStore", "Host", "HostWorld", "InvariantBroken"]

STREAM = "public/default/persistent/orders"
#: Transactions of the database that wait for their turn, as verbs of requests for the key "database".
GATED = ("record_start", "grant_ledgers", "delete")
#: All entries have one length, so that sizes can't tell two ledgers apart; each fills a segment.
PAYLOAD_BYTES = 1100
_SETTINGS = Settings.of(
    {
        "offload": {"block_size": 2048, "segment_size_max": 1049, "deletion_lag": "0m"},
        "manifest": {"record_requests_max": 1, "checkpoint_records": 10**5},
    }
)
_names = count()
_Answer = TypeVar("_Answer")


class InvariantBroken(AssertionError):
    """What must hold whatever happens doesn't.

    Attributes:
        invariant: its name in the model, as H1.
    """

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class GatedStore(StoreWrapper):
    """A store whose requests wait in the gate of what its process does at the time; without a gate they don't."""

    gate: StoreWrapper | None = None

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        return call() if self.gate is None else self.gate.around(request, call)


@dataclass(slots=True)
class Host:
    """One process.

    Attributes:
        path: its database.
        error: why it doesn't go on: refused, fenced, or damaged.
    """

    name: str
    path: Path
    store: GatedStore
    workers: SimulatedWorkers | None = None
    ledgers: EmbeddedLedgers | None = None
    source: EmbeddedStream | None = None
    offload: StreamOffload | None = None
    error: OffloaderError | None = None


@dataclass
class HostWorld:
    """A bucket, the hosts, and what was acknowledged.

    Attributes:
        checks: names of the invariants that are checked.
        acknowledged: position and number of every entry, in order.
        destroyed: entries that only a database had which the operator lost.
        truncated: entries that the cold tier had, and whose positions a truncation gave up.
        named: entries of which a refusal said that they are missing, or an operator agreed that they are.
        is_harmed: whether the operator did what may be refused.
    """

    folder: Path
    checks: Collection[str]
    clock: ManualClock = field(default_factory=ManualClock)
    store: ObjectStore = field(init=False)
    schedule: Schedule = field(init=False)
    databases: Databases = field(init=False)
    hosts: dict[str, Host] = field(default_factory=dict)
    acknowledged: list[tuple[Position, int]] = field(default_factory=list)
    destroyed: set[int] = field(default_factory=set)
    truncated: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    is_harmed: bool = False

    def __post_init__(self) -> None:
        self.store = MemoryStore(f"hosts-{next(_names)}", "", self.clock)
        self.schedule = Schedule(self.store)
        self.databases = Databases(self.folder)

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(name, self.databases.path(name), GatedStore(self.store))
        return self.hosts[name]

    # -- what a host does

    def start(self, host: Host, *, new_source: bool = False) -> None:
        """The owner's start; it stands before its first request then."""
        host.error = None
        host.workers = SimulatedWorkers(self.clock, Random(1))

        def run() -> None:
            host.ledgers = EmbeddedLedgers(str(host.path), clock=self.clock)
            self._gate_database(host, host.ledgers)
            offloader = LedgerOffloader(host.store, _SETTINGS, clock=self.clock, workers=host.workers)
            log = offloader.history.owners_log(STREAM)
            source = open_source(host.ledgers, log, settings=_SETTINGS.offload, clock=self.clock, new_source=new_source)
            self._opened(host, is_told=new_source)
            host.offload = offloader.offload_stream(source, STREAM, log=log)
            host.source = source

        self.act(host, run)

    def offload(self, host: Host, until: Position | None = None) -> None:
        """Brings what the host has, up to ``until``, into the cold tier; it stands before its first request then."""
        offload, workers = host.offload, host.workers
        assert offload is not None
        assert workers is not None

        def run() -> None:
            offload.request_offload(until)
            while workers.run_one():
                pass
            if (error := offload._shared.error) is not None:
                raise error

        self.act(host, run)

    def truncate(self, host: Host) -> None:
        """Lets the stream begin after the committed end; the host stands before its first request then."""
        self.truncated |= set(self.cold().values())
        end = self.state().committed_end()
        assert end is not None
        before = end.next()
        log = ManifestLog(host.store, STREAM, clock=self.clock, settings=_SETTINGS.manifest)
        self.act(host, lambda: truncate_stream(log, before, clock=self.clock, source=host.source))

    def release(self, host: Host) -> None:
        """Deletes hot copies that may go; the host stands before its first request then."""
        source = host.source
        assert source is not None
        log = ManifestLog(host.store, STREAM, clock=self.clock, settings=_SETTINGS.manifest)

        def run() -> None:
            released = release_hot_ledgers(source, log, now_ms=self.clock.now_ms(), lag_ms=0)
            for error in released.errors:
                raise error

        self.act(host, run)

    def append(self, host: Host) -> Position | None:
        """One more entry; where it is, ``None``: it wasn't acknowledged."""
        assert host.source is not None
        number = len(self.acknowledged) + 1
        try:
            [batch] = host.source.append([(b"%08d" % number).ljust(PAYLOAD_BYTES, b".")])
        except FencedError as error:
            host.error = error
            return None
        self.acknowledged.append((batch.first, number))
        return batch.first

    def act(self, host: Host, run: Callable[[], object]) -> None:
        """Begins what a host does next, once it is through with what it did before."""
        self.finish(host)

        def gated(store: ObjectStore) -> None:
            assert isinstance(store, StoreWrapper)
            host.store.gate = store
            try:
                run()
            except OffloaderError as error:
                self._heard(host, error)
            finally:
                host.store.gate = None

        self.schedule.start(host.name, gated)

    def step(self, host: Host) -> None:
        """Lets the host's next request, or transaction, happen."""
        self.schedule.step(host.name)
        if self.pending(host) is None:
            self.schedule.finish(host.name)

    def crash(self, host: Host) -> None:
        """The process is gone, at whatever it was."""
        while self.pending(host) is not None:
            self.schedule.step(host.name, Fate.CRASH)
        if host.offload is not None:
            host.offload.forget()
        if host.workers is not None:
            host.workers.close()
        if host.ledgers is not None:
            host.ledgers.close()
        host.ledgers = host.source = host.offload = host.workers = host.error = None

    def close(self) -> None:
        """Ends every host: none goes on beside the next test."""
        for host in self.hosts.values():
            self.crash(host)

    def pending(self, host: Host) -> tuple[str, str] | None:
        """What the host waits for; ``None``: nothing, or it never did anything."""
        try:
            return self.schedule.pending(host.name)
        except KeyError:
            return None

    def finish(self, host: Host) -> None:
        """Lets what the host does come to its end."""
        while self.pending(host) is not None:
            self.step(host)

    def _gate_database(self, host: Host, ledgers: EmbeddedLedgers) -> None:
        """Lets the handle that this opens wait for its turn before each of the ``GATED`` transactions."""
        opened = ledgers.open_stream

        def open_stream(*arguments: Any, **options: Any) -> EmbeddedStream:
            stream = opened(*arguments, **options)
            for name in GATED:
                setattr(stream, name, partial(self._wait, host, name, getattr(stream, name)))
            return stream

        ledgers.open_stream = open_stream  # type: ignore[method-assign]

    def _wait(self, host: Host, verb: str, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        return host.store.around(Request(verb, Traffic.UPLOAD, "database"), lambda: call(*arguments))

    # -- what the operator does

    def operate(self, what: str, host: str = "A") -> None:
        """What a line of the operator says, to a database that no process writes at the time."""
        before = self._kept()
        self.is_harmed = True
        self.databases.handle(what, host)
        self.destroyed |= before - self._kept()

    # -- what must hold

    def judge(self) -> None:
        """H1 and H2."""
        cold, places = self.cold(), dict[Position, int]()
        for at, number in self.acknowledged:
            if places.setdefault(at, number) != number:
                self._break("H2", f"{at} was acknowledged for {places[at]} and for {number}")
        gone = {number for _, number in self.acknowledged} - self._kept() - self.destroyed - self.truncated
        if gone:
            self._break("H1", f"{sorted(gone)} were acknowledged and are in neither tier")
        for at, number in self.acknowledged:
            if cold.get(at, number) != number:
                self._break("H2", f"{at} was acknowledged as {number} and is read as {cold[at]}")

    def settle(self, *, finishes: bool) -> None:
        """H5, and all others once more: each host starts again, alone, and finishes.

        Args:
            finishes: what the hosts are about comes to its end first; else they crash.
        """
        for host in self.hosts.values() if finishes else ():
            self.finish(host)
        self.judge()
        for host in self.hosts.values():
            self.crash(host)
            self.start(host)
            self.finish(host)
            for step in (self.offload, self.release):
                if host.error is None:
                    step(host)
                    self.finish(host)
                    self.judge()
            if host.error is None:
                self._require_offloaded(host)
            self.crash(host)
        self.judge()

    def _require_offloaded(self, host: Host) -> None:
        """H5: nothing stays in the hot tier alone but what an operator set aside, or truncated."""
        state = self.state()
        head = state.head or Position(0, 0)
        wanted = {at for at in self.hot(host) if at >= head and at.ledger_id not in state.aside_ledgers}
        if left := wanted - self.cold().keys():
            self._break("H5", f"{host.name} leaves {min(left)} in its hot tier")

    def _opened(self, host: Host, *, is_told: bool) -> None:
        """H3: a start that goes on isn't silent about what its database lacks."""
        missing = self._missing(host)
        if is_told:
            self.named |= missing
        elif missing:
            self._break("H3", f"{host.name} opens a database without {sorted(missing)} and says nothing")

    def _heard(self, host: Host, error: OffloaderError) -> None:
        host.error = error
        if isinstance(error, SourceMismatchError):
            self.named |= self._missing(host)
            if not self.is_harmed:
                self._break("H4", f"{host.name} is refused after nothing but ordinary events: {error}")
        elif not isinstance(error, FencedError):
            raise error

    def _break(self, invariant: str, message: str) -> None:
        if invariant in self.checks:
            raise InvariantBroken(invariant, message)

    def _missing(self, host: Host) -> set[int]:
        acknowledged = {number for _, number in self.acknowledged}
        return acknowledged - set(self.cold().values()) - set(self.hot(host).values()) - self.named - self.truncated

    def _kept(self) -> set[int]:
        """What some tier has, of the right bytes or not at its place."""
        hot = [set(self.hot(host).values()) for host in self.hosts.values()]
        return set(self.cold().values()).union(*hot)

    def state(self) -> ManifestState:
        """The manifest now."""
        return load_manifest(self.store, STREAM)

    def cold(self) -> dict[Position, int]:
        """What a reader of the store gets."""
        try:
            with open_stream_reader(self.store, STREAM) as reader:
                return {entry.position: int(entry.payload[:8]) for batch in reader.scan() for entry in batch.entries()}
        except NotFoundError:
            return {}

    def hot(self, host: Host) -> dict[Position, int]:
        """What a host's database has, read past its process."""
        if not host.path.exists():
            return {}
        ledgers = EmbeddedLedgers(str(host.path), create=False, clock=self.clock)
        try:
            source, found = ledgers.view_stream(STREAM), dict[Position, int]()
            at = Position(0, 0)
            while (batch := source.read(at, 1 << 20)) is not None:
                found |= {entry.position: int(entry.payload[:8]) for entry in batch.entries()}
                at = batch.last.next()
        except NotFoundError:
            return {}
        else:
            return found
        finally:
            ledgers.close()
