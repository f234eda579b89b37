"""Random schedules of one stream whose ledger database is lost, restored from a backup or opened as two copies.

Each draw runs the public library over a real SQLite file and a store in memory. The oracle knows every entry that was
acknowledged, with its bytes, and compares that with what the store and the surviving databases have at the end.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.entries import Position
from offloader.errors import FencedError, NotFoundError, OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.manifest.state import ManifestState
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore

__all__ = ["CLASSES", "Draw", "class_of", "play"]

#: What happens to the database. "ordinary" is the control: restarts and a file that moves lose nothing.
CLASSES = ("deleted", "restored", "copied", "ordinary")
STREAM = "draws/orders"
#: All entries have one length, so that facts such as sizes can't tell two ledgers apart.
PAYLOAD = "{seed:06d}-{number:05d}"
#: Steps before the database is changed, and after it.
STEPS_BEFORE, STEPS_AFTER = (3, 9), (4, 10)
#: How long one call may take before the draw counts as stuck.
CALL_S_MAX = 60.0

_STEPS = ("append", "append", "append", "offload", "offload", "roll", "release", "truncate", "restart", "crash")
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "offload": {"block_size": 256, "deletion_lag": "0m", "drain_timeout": CALL_S_MAX},
    "ledgers": {"ledger_entries_max": 6},
}
_Entries = dict[Position, bytes]


def class_of(seed: int) -> str:
    """What happens to the database in the draw of this seed."""
    return CLASSES[seed % len(CLASSES)]


def play(seed: int, folder: Path) -> Draw:
    """Plays one draw in an empty folder; what the oracle found is in ``Draw.findings``."""
    draw = Draw(seed, folder)
    draw.play()
    return draw


@dataclass(slots=True)
class _Host:
    """One process with a database file of its own.

    Attributes:
        starts: how often it was opened.
        refused: why it may not go on; empty: it may.
    """

    name: str
    folder: Path
    topic: ManagedLedger | None = None
    starts: int = 0
    refused: str = ""


class Draw:
    """One schedule and what the oracle says of it.

    Attributes:
        named: errors by which the product said that something is wrong with the hot tier, by class name.
        findings: each a sentence; empty: all is well.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.named: Counter[str] = Counter()
        self.findings: list[str] = []
        self.trace: list[str] = []
        self.acknowledged: list[tuple[Position, bytes]] = []
        self._folder = folder
        self._random = random.Random(seed)
        self._kind = class_of(seed)
        self._store = MemoryStore(f"draw-{seed}", "", SystemClock(), is_shared=False)
        self._hosts = [_Host("A", folder / "a")]
        #: Payloads that a truncation gave up, that went with a database, and of those the ones nothing can tell of.
        self._truncated: set[bytes] = set()
        self._destroyed: set[bytes] = set()
        self._excused: set[bytes] = set()

    def play(self) -> None:
        try:
            self._steps(STEPS_BEFORE, backup=self._kind == "restored")
            self._strike()
            self._steps(STEPS_AFTER, backup=False)
            for host in self._hosts:
                self._finish(host)
        finally:
            for host in self._hosts:
                self._end(host)
        self._judge()

    # -- what happens

    def _steps(self, bounds: tuple[int, int], *, backup: bool) -> None:
        count = self._random.randint(*bounds)
        backup_at = self._random.randrange(count) if backup else -1
        for number in range(count):
            if number == backup_at:
                self._open(self._hosts[0])
                self._append(self._hosts[0])
                self._copy(self._hosts[0], self._folder / "backup")
            host = self._random.choice(self._hosts)
            if not host.refused:
                self._step(host, self._random.choice(_STEPS))

    def _step(self, host: _Host, step: str) -> None:
        self.trace.append(f"{host.name}: {step}")
        try:
            self._open(host)
            if host.topic is None:
                return
            match step:
                case "append":
                    self._append(host)
                case "offload":
                    host.topic.offload(timeout_s=CALL_S_MAX)
                case "roll":
                    host.topic.close_ledger()
                case "release":
                    host.topic.release_hot()
                case "truncate":
                    self._truncate(host.topic)
                case "restart":
                    host.topic.close()
                    host.topic = None
                case "crash":
                    self._end(host)
        except OffloaderError as error:
            self._heard(host, error)

    def _open(self, host: _Host) -> None:
        if host.topic is not None or host.refused:
            return
        host.folder.mkdir(exist_ok=True)
        host.starts += 1
        try:
            host.topic = self._opened(host)
        except OffloaderError as error:
            if self._heard(host, error) == "SourceMismatchError" and self._random.random() < 0.5:
                self.trace.append(f"{host.name}: the operator accepts the source")
                host.refused = ""
                host.topic = self._opened(host, new_source=True)

    def _opened(self, host: _Host, **options: Any) -> ManagedLedger:
        url = f"sqlite:///{host.folder}/ledgers.db"
        return open_managed_ledger(STREAM, ledgers=url, store=self._store, settings=Settings.of(_SETTINGS), **options)

    def _append(self, host: _Host) -> None:
        if host.topic is None:
            return
        first = len(self.acknowledged)
        payloads = [
            PAYLOAD.format(seed=self.seed, number=first + n).encode() for n in range(self._random.randint(1, 5))
        ]
        for batch in host.topic.append_batch(payloads):
            self.acknowledged += [(entry.position, bytes(entry.payload)) for entry in batch.entries()]

    def _truncate(self, topic: ManagedLedger) -> None:
        state = self._state()
        end = None if state is None else state.committed_end()
        if end is None:
            return
        before = self._cold()
        topic.truncate(end.next())
        # What the store had of it, with these bytes, was given up; nothing else may go.
        self._truncated |= {payload for at, payload in self.acknowledged if at <= end and before.get(at) == payload}

    def _strike(self) -> None:
        """Changes the database as the draw's class says."""
        host = self._hosts[0]
        self.trace.append(f"operator: {self._kind}")
        if self._kind == "copied":
            self._open(host)
            self._append(host)
            self._copy(host, self._folder / "b")
            self._hosts.append(_Host("B", self._folder / "b"))
            return
        self._end(host)
        if not host.folder.exists():
            return
        if self._kind == "ordinary":
            moved = self._folder / "moved"
            host.folder.rename(moved)
            host.folder = moved
            return
        had = self._hot(host)
        shutil.rmtree(host.folder)
        if self._kind == "restored":
            (self._folder / "backup").rename(host.folder)
        kept = {**self._cold(), **self._hot(host)}
        lost = {payload for at, payload in had.items() if kept.get(at) != payload}
        self._destroyed |= lost
        self._excused |= self._unknowable(had, lost)

    def _unknowable(self, had: _Entries, lost: set[bytes]) -> set[bytes]:
        """What nothing can tell of: acknowledged after the owner's newest record, in the start of the backup.

        The oracle takes every loss beyond the newest position that the manifest knows of; whether the start was another
        one is looked at by the draws that restart.
        """
        state = self._state()
        reached = None if state is None else getattr(state, "source_end", None)
        if self._kind == "deleted":
            return set() if state is not None and state.record_id else lost
        return {payload for at, payload in had.items() if payload in lost and (reached is None or at > reached)}

    def _copy(self, host: _Host, target: Path) -> None:
        """A consistent copy of a database in use, as a backup tool makes one."""
        target.mkdir()
        source = host.folder / "ledgers.db"
        if not source.exists():
            return
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target / "ledgers.db")) as new:
            old.backup(new)

    def _finish(self, host: _Host) -> None:
        """Everything that is allowed to come into the store does, and what is held may go from the hot tier."""
        for step in ("offload", "release"):
            if not host.refused:
                self._step(host, step)

    def _end(self, host: _Host) -> None:
        if host.topic is not None:
            host.topic.close(drain=False)
            host.topic = None

    def _heard(self, host: _Host, error: OffloaderError) -> str:
        """Ends a host that was refused; the class name of its error."""
        name = type(error).__name__
        self.named[name] += 1
        self.trace.append(f"{host.name}: {name}: {error}")
        if name != "SourceMismatchError" and not isinstance(error, FencedError):
            self.findings.append(f"{host.name}: {name}: {error}")
        host.refused = name
        self._end(host)
        return name

    # -- what must hold

    def _judge(self) -> None:
        cold, state = self._cold(), self._state()
        hot = [self._hot(host) for host in self._hosts]
        places: _Entries = {}
        for at, payload in self.acknowledged:
            if places.setdefault(at, payload) != payload:
                self.findings.append(f"{at} was acknowledged for {places[at]!r} and for {payload!r}")
            if at in cold and cold[at] != payload and payload not in self._destroyed:
                self.findings.append(f"{at} was acknowledged as {payload!r} and is read as {cold[at]!r}")
            if payload in self._truncated or cold.get(at) == payload or any(each.get(at) == payload for each in hot):
                continue
            if payload not in self._destroyed:
                self.findings.append(f"{at} {payload!r} is in neither tier")
            elif payload not in self._excused and not self.named["SourceMismatchError"]:
                self.findings.append(f"{at} {payload!r} went with its database and no error says so")
        if self._kind == "ordinary" and self.named:
            self.findings.append(f"refused after ordinary events: {dict(self.named)}")
        for host, entries in zip(self._hosts, hot, strict=True):
            left = [at for at in entries if at not in cold and (state is None or not _is_aside(state, at))]
            if not host.refused and left:
                self.findings.append(f"{host.name} leaves {left[0]} and {len(left) - 1} more in the hot tier")

    def _state(self) -> ManifestState | None:
        try:
            return load_manifest(self._store, STREAM)
        except NotFoundError:
            return None

    def _cold(self) -> _Entries:
        """What a reader of the store alone gets, from the stream's start position on."""
        if self._state() is None:
            return {}
        with open_stream_reader(self._store, STREAM) as reader:
            return {entry.position: bytes(entry.payload) for batch in reader.scan() for entry in batch.entries()}

    def _hot(self, host: _Host) -> _Entries:
        """What a host's database has now."""
        if not (host.folder / "ledgers.db").exists():
            return {}
        ledgers = EmbeddedLedgers(str(host.folder / "ledgers.db"), create=False)
        try:
            return dict(_entries_of(ledgers))
        except NotFoundError:
            return {}
        finally:
            ledgers.close()


def _entries_of(ledgers: EmbeddedLedgers) -> Iterator[tuple[Position, bytes]]:
    source = ledgers.view_stream(STREAM)
    at: Position | None = Position(0, 0)
    while at is not None and (batch := source.read(at, 1 << 20)) is not None:
        for entry in batch.entries():
            yield entry.position, bytes(entry.payload)
        at = batch.last.next()


def _is_aside(state: ManifestState, at: Position) -> bool:
    """Whether the operator agreed to leave the entry's ledger alone when a new source was accepted."""
    return at.ledger_id in getattr(state, "aside_ledgers", ()) or (state.head is not None and at < state.head)
