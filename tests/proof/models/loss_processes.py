"""The processes over a manifest that loses records, made of the product's own code, and N1, N2, N4. Not a test.

W offloads and releases hot copies, R reads, S searches for orphans, K writes checkpoints and deletes old records, X
commits something that isn't the owner's, N undoes a retirement, P purges. Each request waits for its turn in a
``Schedule``. A process that names damage does nothing more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random
from uuid import UUID

from formats.entries import Position
from formats.keys import data_key
from formats.manifest import LedgerClosed, Offloaded, decode_record
from offloader.errors import CorruptError, NotFoundError, OffloaderError
from offloader.gc.plan import retired_groups
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import Sweeper, cleanup_stream, undo_retirements
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import expire_records
from offloader.read.reader import open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import StoreWrapper
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.hot_release import release_hot_ledgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from tests.proof.models.loss_hosts import STREAM, GatedStore, InvariantBroken
from tests.proof.models.loss_traces import lose
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.schedule import Fate, Schedule

__all__ = ["ProcessWorld"]

#: Of a ledger; one ledger is one segment.
ENTRIES = 3
#: In the model everything is old enough at any time.
_SETTINGS = Settings.of(
    {
        "offload": {"block_size": 1024, "deletion_lag": "0m"},
        "manifest": {"record_requests_max": 1, "checkpoint_records": 10**5, "orphan_age_min": "0h"},
    }
)
_names = count()


@dataclass
class ProcessWorld:
    """A bucket, a hot tier, and the processes.

    Attributes:
        checks: names of the invariants that are checked.
        segments: that a writer makes, one a ledger.
        is_retired: two segments are there, and the first is retired.
        committed: uuid -> range of each segment that a record said is offloaded.
        given_up: ranges that a truncation took, unless an undo was reported.
        is_harmed: whether records were lost.
    """

    checks: Collection[str]
    segments: int = 1
    is_retired: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    committed: dict[UUID, tuple[Position, Position]] = field(default_factory=dict)
    given_up: set[tuple[Position, Position]] = field(default_factory=set)
    is_harmed: bool = False

    def __post_init__(self) -> None:
        self.store: ObjectStore = MemoryStore(f"processes-{next(_names)}", "", self.clock)
        self.schedule = Schedule(self.store)
        self.hot = MemoryLedgers(STREAM, self.clock)
        self.incarnation = self._log(self.store).load(create=True).incarnation
        self.started: list[str] = []
        if self.is_retired:
            self._retire_first()

    def _retire_first(self) -> None:
        workers, offload = self._owner(self.store)
        for number in (1, 2):
            self._offload(workers, offload, number)
        offload.stop()
        first, second = [info.ledger_id for info in self.hot.ledgers()]
        log = self._log(self.store)
        self.committed |= {each.uuid: (each.begin, each.end or each.begin) for each in log.load().offloaded()}
        truncate_stream(log, Position(second, 0), clock=self.clock)
        cleanup_stream(self.store, STREAM, clock=self.clock, settings=Settings())
        assert len(log.load().segments.retired()) == 1
        self.given_up = {(Position(first, 0), Position(first, ENTRIES - 1))}

    # -- processes

    def start(self, name: str) -> None:
        """Starts the process of that name, or starts it again; it comes as far as its first request."""
        roles: dict[str, Callable[[ObjectStore], object]] = {
            "W": self._writer, "R": self._reader, "S": self._orphan_search, "K": self._checkpointer,
            "X": self._other, "N": self._undo, "P": self._sweeper,
        }  # fmt: skip

        def run(store: ObjectStore) -> None:
            try:
                roles[name](store)
            except OffloaderError as error:
                if isinstance(error, CorruptError) and not self.is_harmed:
                    self._break("N4", f"{name} names damage where nothing was lost: {error}")

        if name in self.started:
            self.crash(name)
        self.schedule.start(name, run)
        if name not in self.started:
            self.started.append(name)

    def step(self, name: str) -> tuple[str, str]:
        """Lets the next request of a process happen; verb and key of it."""
        request = self.schedule.step(name)
        if request[0] == "put" and re.search(r"/manifest/.*\.json$", request[1]):
            self._count(request[1])
        if self.schedule.pending(name) is None:
            self.schedule.finish(name)
        return request

    def finish(self, name: str) -> None:
        while self.schedule.pending(name) is not None:
            self.step(name)

    def crash(self, name: str) -> None:
        while self.schedule.pending(name) is not None:
            self.schedule.step(name, Fate.CRASH)

    def close(self) -> None:
        """Ends every process: none goes on beside the next test."""
        for name in self.started:
            self.crash(name)

    def alone(self, name: str) -> None:
        """A process of that name begins, and comes to its end."""
        self.start(name)
        self.finish(name)

    def lose(self, what: str) -> None:
        """Loses what a line of the store says, with the product's numbers of records."""
        self.is_harmed = True
        lose(self.store, STREAM, self.incarnation, what)

    def _log(self, store: ObjectStore) -> ManifestLog:
        return ManifestLog(store, STREAM, clock=self.clock, settings=_SETTINGS.manifest)

    def _writer(self, store: ObjectStore) -> None:
        """A writer that offloads one ledger after the other and lets the hot copy of each go."""
        workers, offload = self._owner(store)
        for number in range(1, self.segments + 1):
            self._offload(workers, offload, number)
            released = release_hot_ledgers(self.hot, self._log(store), now_ms=self.clock.now_ms(), lag_ms=0)
            for error in released.errors:
                raise error

    def _owner(self, store: ObjectStore) -> tuple[SimulatedWorkers, StreamOffload]:
        workers = SimulatedWorkers(self.clock, Random(1))
        offloader = LedgerOffloader(store, _SETTINGS, clock=self.clock, workers=workers)
        return workers, offloader.offload_stream(self.hot, STREAM)

    def _offload(self, workers: SimulatedWorkers, offload: StreamOffload, segments: int) -> None:
        """Brings so many ledgers into the cold tier, one a segment."""
        if len(self.hot.appended) < segments * ENTRIES:
            self.hot.append([b"%d" % segments] * ENTRIES)
            self.hot.close_ledger()
        offload.request_offload()
        while workers.run_one():
            pass
        if (error := offload._shared.error) is not None:
            raise error

    def _reader(self, store: ObjectStore) -> None:
        """N2: a reader gets all that was committed when it began, or names damage."""
        expected = {at for at, _ in self.hot.appended if any(first <= at <= last for first, last in self._kept())}
        gate = GatedStore(self.store)
        gate.gate = store if isinstance(store, StoreWrapper) else None
        with open_stream_reader(gate, STREAM) as reader:
            gate.gate = None  # objects are read on threads, and nobody deletes meanwhile
            found = {entry.position for batch in reader.scan() for entry in batch.entries()}
        if missing := expected - found:
            self._break("N2", f"a reader doesn't get {min(missing)} and no damage is named")

    def _orphan_search(self, store: ObjectStore) -> None:
        found = Reconciliation(
            store, STREAM, clock=self.clock, settings=_SETTINGS.manifest, delete=True, finds_by_prefix=True
        )
        list(found.leftovers())

    def _checkpointer(self, store: ObjectStore) -> None:
        state, _ = checkpoint_now(store, self._log(store).load(), os.urandom)
        expire_records(store, state, clock=self.clock, settings=_SETTINGS.manifest)

    def _other(self, store: ObjectStore) -> None:
        log = self._log(store)
        log.load()
        log.commit_as_maintainer([LedgerClosed(900, 1)])

    def _undo(self, store: ObjectStore) -> None:
        undo_retirements(self._log(store))
        self.given_up.clear()

    def _sweeper(self, store: ObjectStore) -> None:
        log = self._log(store)
        state = log.load()
        sweeper = Sweeper(log, now_ms=self.clock.now_ms, by="a test")
        for group in retired_groups(state):
            sweeper.purge(group)

    # -- what must hold

    def _count(self, key: str) -> None:
        """Takes note of what a record in the store commits."""
        try:
            record = decode_record(self.store.get(key)[0])
        except NotFoundError:
            return
        for edit in record.edits:
            if isinstance(edit, Offloaded):
                self.committed[edit.uuid] = edit.summary.begin, edit.summary.end

    def _kept(self) -> set[tuple[Position, Position]]:
        return set(self.committed.values()) - self.given_up

    def judge(self) -> None:
        """N1: some object with the entries of each committed range is there."""
        there = {info.key for info in self.store.list(f"{STREAM}/").objects}
        for kept in self._kept():
            if not any(data_key(STREAM, uuid) in there for uuid, each in self.committed.items() if each == kept):
                self._break("N1", f"the last object with {kept[0]} up to {kept[1]} is deleted")

    def _break(self, invariant: str, message: str) -> None:
        if invariant in self.checks:
            raise InvariantBroken(invariant, message)
