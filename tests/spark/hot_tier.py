"""A ledger database with several streams, and openers that let tasks die or hang in the middle."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from formats.entries import EntryBatch, Position
from formats.manifest import Edit, decode_record
from offloader.ledgers.base import ClosedListener, LedgerInfo, Ledgers, LedgerSource, Listener, Subscription
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.settings import LedgerSettings, Size
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore

SEGMENT_BYTES = 16_384
LEDGER_BYTES = 25_000
#: Small segments, so that a stream of some kilobytes is several tasks.
SMALL = {
    "offload.method": "streaming",
    "offload.block_size": 1024,
    "offload.segment_size_max": SEGMENT_BYTES,
}


def settings_of(**more: object) -> SettingsFile:
    """As a settings file would give them; keyword arguments are settings of the section ``offload``."""
    return SettingsFile("test", {"": {**SMALL, **{f"offload.{name}": value for name, value in more.items()}}})


@dataclass
class HotTier:
    """Streams of random entries in a database file."""

    folder: Path
    expected: dict[str, list[tuple[Position, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder}/ledgers.db"
        self.database = EmbeddedLedgers(self.url, settings=LedgerSettings(ledger_size_max=Size(LEDGER_BYTES)))
        self._sources: dict[str, EmbeddedStream] = {}
        self._random = random.Random(7)

    def append(self, stream: str, entries: int, *, size_max: int = 300) -> None:
        source = self._sources.get(stream) or self.database.open_stream(stream)
        self._sources[stream] = source
        payloads = [self._random.randbytes(self._random.randint(0, size_max)) for _ in range(entries)]
        for batch in source.append(payloads, 0):
            self.expected.setdefault(stream, []).extend((entry.position, entry.payload) for entry in batch.entries())

    def close_ledger(self, stream: str) -> None:
        self._sources[stream].close_ledger()


def edits_of(store: ObjectStore, stream: str) -> list[Edit]:
    """Everything that was ever recorded of a stream, in order."""
    keys = [info.key for info in store.list(f"{stream}/manifest/").objects if info.key.endswith(".json")]
    return [edit for key in sorted(keys) for edit in decode_record(store.get(key)[0]).edits]


class Around:
    """A stream that is read through here."""

    def __init__(self, inner: LedgerSource, before_read: object = None) -> None:
        self._inner = inner
        self._before_read = before_read

    def ledgers(self) -> list[LedgerInfo]:
        return self._inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        if callable(self._before_read):
            self._before_read()
        return self._inner.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self._inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self._inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self._inner.delete(ledger_id)


class MisbehavingLedgers:
    """A hot tier whose tasks are counted over all processes, some of which die or hang.

    Args:
        url: of the database.
        folder: where the count is kept.
        die_reading: numbers of tasks, from 0, that kill their process before their first read.
        die_done: that do so when their segment is uploaded.
        hang_reading: that wait for ever before their first read.
        hang_done: that wait for ever when their segment is uploaded.
        opened: opens the hot tier itself; default: the database.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        die_reading: Iterable[int] = (),
        die_done: Iterable[int] = (),
        hang_reading: Iterable[int] = (),
        hang_done: Iterable[int] = (),
        opened: Callable[[], Ledgers] | None = None,
    ) -> None:
        from pyspark import TaskContext

        self._inner: Ledgers = EmbeddedLedgers(url, create=False) if opened is None else opened()
        self._number = _next_number(folder) if TaskContext.get() is not None else -1
        self._die_reading, self._die_done = set(die_reading), set(die_done)
        self._hang_reading, self._hang_done = set(hang_reading), set(hang_done)

    def streams(self) -> list[str]:
        return self._inner.streams()

    def view_stream(self, stream: str, *, may_delete: bool = False) -> Around:
        return Around(self._inner.view_stream(stream, may_delete=may_delete), self._before_read)

    def close(self) -> None:
        if self._number in self._die_done:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._number in self._hang_done:
            threading.Event().wait()
        self._inner.close()

    def _before_read(self) -> None:
        if self._number in self._die_reading:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._number in self._hang_reading:
            threading.Event().wait()


def another_database(url: str, *, folder: Path) -> Ledgers:
    """The database for the driver, and an empty one, or an old copy, for executors."""
    from pyspark import TaskContext

    return EmbeddedLedgers(url if TaskContext.get() is None else f"sqlite:///{folder}/ledgers.db", create=False)


class LosingLedgers(EmbeddedLedgers):
    """For executors: everything of a stream that isn't its manifest is gone from the store when a task ends.

    Args:
        url: of the database.
        store: the stream's folder.
    """

    def __init__(self, url: str, *, store: Path) -> None:
        super().__init__(url, create=False)
        self._store = store

    def close(self) -> None:
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            for path in self._store.iterdir():
                if path.is_file():
                    path.unlink()
        super().close()


def _next_number(folder: Path) -> int:
    number = 0
    while True:
        try:
            (folder / f"task-{number}").open("x").close()
        except FileExistsError:
            number += 1
        else:
            return number
