"""One stream's hot tier and store, and writers over them: what the tests of streaming share."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from formats.entries import Position
from formats.keys import record_number
from formats.manifest import Edit, decode_record
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
KIB = 1024
_names = count()


def settings(**changes: object) -> Settings:
    """Segments of about 16 KiB, ledgers of about 25 KiB, retries at once."""
    offload = {
        "block_size": 1 * KIB,
        "segment_size_max": "16KiB",
        "retry_delay_max": 0.01,
        "workers_max": 4,
        "drain_timeout": PATIENCE_S,
        **changes,
    }
    return Settings.of({"offload": offload, "ledgers": {"ledger_size_max": 25 * KIB}})


def records_in(store: ObjectStore) -> list[tuple[Edit, ...]]:
    """What each record of the one stream in a store says, in order."""
    keys = [info.key for info in store.list("").objects if record_number(info.key) is not None]
    return [decode_record(store.get(key)[0]).edits for key in sorted(keys)]


@dataclass
class Bench:
    """One stream's hot tier and store, and the writers started over them."""

    directory: Path
    settings: Settings = field(default_factory=settings)
    clock: Clock = field(default_factory=SystemClock)
    expected: list[tuple[Position, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(f"streaming-{next(_names)}", "", SystemClock())
        self.store = FaultyStore(self.memory)
        self.database = EmbeddedLedgers(str(self.directory / f"{next(_names)}.db"), settings=self.settings.ledgers)
        self._started: list[tuple[LedgerOffloader, StreamOffload]] = []
        self._random = Random(7)

    def open(self) -> EmbeddedStream:
        return self.database.open_stream(STREAM)

    @property
    def offloaders(self) -> list[LedgerOffloader]:
        """Of the writers started so far, in order."""
        return [offloader for offloader, _ in self._started]

    def start(
        self, source: EmbeddedStream, store: ObjectStore | None = None, *, take_over: bool = True
    ) -> StreamOffload:
        offloader = LedgerOffloader(store or self.store, self.settings, clock=self.clock)
        stream = offloader.offload_stream(source, STREAM, take_over=take_over)
        self._started.append((offloader, stream))
        return stream

    def append(self, source: EmbeddedStream, batches: int, *, entries: int = 10, size: int = 300) -> None:
        for _ in range(batches):
            payloads = [self._random.randbytes(self._random.randint(0, size)) for _ in range(entries)]
            for batch in source.append(payloads, 1_700_000_000_000):
                self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def records(self) -> list[tuple[Edit, ...]]:
        return records_in(self.memory)

    def has_assigned(self) -> bool:
        """Whether a segment is assigned now."""
        return bool(self.records()) and bool(load_manifest(self.memory, STREAM).assigned())

    def close(self) -> None:
        for offloader, stream in self._started:
            stream.stop()
            offloader.close()
        self.database.close()
