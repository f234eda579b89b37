"""A topic with partitions is read as one stream: merged by publish time, each partition in its own order."""

from __future__ import annotations

import random
import threading

import pytest

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import HotTierLostError, LedgerInfo, ReadableLedgers
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.partitions import follow_all
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import LedgerSettings, Size
from offloader.store.base import ObjectStore
from offloader.testing.manual_clock import ManualClock
from tests.read.test_partitions import STREAM
from tests.read.test_partitions import store as store
from tests.support.streams import StreamWriter


class Shaky:
    """A hot tier whose owner is lost with every few requests, also in the midst of a read."""

    def __init__(self, source: ReadableLedgers, seed: int) -> None:
        self._source, self._random, self.losses = source, random.Random(seed), 0

    def ledgers(self) -> list[LedgerInfo]:
        self._lose()
        return self._source.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        self._lose()
        found = self._source.read(start, max_bytes)
        return None if found is None else found.slice(0, self._random.randint(1, 3))

    def _lose(self) -> None:
        if self._random.random() < 0.2:
            self.losses += 1
            raise HotTierLostError("nobody answers")


@pytest.mark.parametrize("seed", range(20))
def test_followed_entries_come_once_and_in_order_when_hot_tiers_are_lost(store: ObjectStore, seed: int) -> None:
    stop, database = threading.Event(), EmbeddedLedgers(":memory:", settings=LedgerSettings(ledger_size_max=Size(60)))
    names = [f"{STREAM}-partition-{number}" for number in (0, 1)]
    sources = [database.open_stream(name) for name in names]
    expected: list[list[bytes]] = [[], []]

    def append(count: int) -> None:
        for number, source in enumerate(sources):
            payloads = [b"%d:%d" % (number, len(expected[number]) + n) for n in range(count)]
            source.append(payloads, [1000 + len(expected[number]) + n for n in range(count)])
            expected[number] += payloads

    class Steps(ManualClock):
        left = 5

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            if self.left:
                self.left -= 1
                append(3)
            return super().wait(event, timeout_s)

    append(20)
    tiers = [Shaky(source, 2 * seed + number) for number, source in enumerate(sources)]
    hot = dict(zip(names, tiers, strict=True))
    chance = random.Random(seed)

    def refreshed(reader: Reader) -> Reader:
        return reader.refresh(lambda state: hot[state.stream] if chance.random() < 0.7 else None)

    for name in names:  # so that it can be read without a hot tier, too
        StreamWriter(store, name)
    readers = [open_stream_reader(store, name, source=hot[name]) for name in names]
    found: list[list[bytes]] = [[], []]
    steps = Steps()
    for number, part in follow_all(readers, [None, None], clock=steps, stop=stop, refreshed=refreshed):
        found[number] += [entry.payload for entry in part.entries()]
        if not steps.left and found == expected:
            stop.set()
    assert found == expected
    assert sum(each.losses for each in tiers) > 0
    database.close()
