"""Streams in a store in memory that grow ledger by ledger, and cycles of retention over them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.retention.cycle import CycleOutcome, RetentionCycle
from offloader.retention.state import read_records
from offloader.retention.subscribers import open_retention
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
TOPIC = "public/default/persistent/payments"
KIB = 1024
#: Entries of one ledger and segment, of 1 KiB each.
ENTRIES = 10
_names = itertools.count()


class Bench:
    """Ledgers of 10 KiB, one segment each, a minute apart; a cycle whenever one is asked for."""

    def __init__(self, **retention: Any) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"cycle-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.ledgers: dict[str, int] = {}
        self.writers: dict[str, StreamWriter] = {}
        self.settings = Settings.of({"retention": {"record_interval": "0.5m", **retention}})

    def grow(self, stream: str = STREAM, ledgers: int = 1) -> None:
        if stream not in self.writers:
            self.writers[stream] = StreamWriter(self.memory, stream, clock=self.clock)
        writer = self.writers[stream]
        for _ in range(ledgers):
            number = self.ledgers[stream] = self.ledgers.get(stream, 0) + 1
            writer.add([batch_of(number, 0, ENTRIES, size=KIB)], closes=[number])
            self.clock.advance(60)

    def cycle(self, store: Any = None) -> RetentionCycle:
        return RetentionCycle(store or self.store, clock=self.clock, settings_of=lambda _: self.settings, by="tester")

    def run(self, stream: str = STREAM) -> CycleOutcome:
        return self.cycle().run(stream)

    def grow_and_run(self, ledgers: int, stream: str = STREAM) -> CycleOutcome:
        for _ in range(ledgers):
            self.grow(stream)
            found = self.run(stream)
        return found

    def publish(self, name: str, position: Position | Mapping[int, Position], stream: str = STREAM) -> None:
        open_retention(self.memory, stream, clock=self.clock).publish(name, position)

    def subscribe(self, name: str, stream: str = STREAM) -> None:
        open_retention(self.memory, stream, clock=self.clock).add(name)

    def head(self, stream: str = STREAM) -> Position | None:
        return load_manifest(self.memory, stream).head

    def remembered(self, stream: str = STREAM) -> Any:
        retention = open_retention(self.memory, stream, clock=self.clock)
        return read_records(retention, retention.scope())

    def objects(self) -> dict[str, str]:
        page = self.memory.list("")
        return {info.key: info.etag for info in page.objects}
