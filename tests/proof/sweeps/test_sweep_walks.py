"""Random walks: truncations, rounds that break off anywhere, undo, holds, readers with leases, time.

After every step nothing dangles and every reader with a lease reads the same entries; at the end no garbage is left.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import InvalidCallError, OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.gc.sweep import undo_retirements
from offloader.manifest.state import EditRefusedError
from offloader.read.fetch import Cache
from offloader.read.reader import Reader, open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.testing.faulty_store import Fault
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import batch_of

STEPS = 40
WALKS = 16


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench(ledgers=3)
        self.ledgers = 3
        self.readers: list[Reader] = []
        self.trace: list[str] = []

    def step(self) -> None:
        name = self.random.choice(
            [
                "add",
                "truncate",
                "truncate",
                "round",
                "round",
                "round",
                "undo",
                "hold",
                "open",
                "close",
                "hours",
                "hours",
            ]
        )
        self.trace.append(name)
        getattr(self, name)()
        self.check()

    def add(self) -> None:
        self.ledgers += 1
        self.bench.writer.log.load()
        self.bench.writer.add([batch_of(self.ledgers, 0, 10)], closes=[self.ledgers])

    def truncate(self) -> None:
        position = Position(self.random.randint(1, self.ledgers), self.random.randint(0, 10))
        log = self.bench.log()
        self.fault()
        with contextlib.suppress(OffloaderError):
            truncate_stream(log, position, clock=self.bench.clock)
        self.bench.store.set_faults([])

    def round(self) -> None:
        self.fault()
        with contextlib.suppress(OffloaderError):
            self.bench.run()
        self.bench.store.set_faults([])

    def undo(self) -> None:
        retired = [segment.uuid for segment in self.bench.state.segments.retired()]
        chosen = self.random.sample(retired, self.random.randint(0, len(retired)))
        with contextlib.suppress(InvalidCallError, EditRefusedError):
            undo_retirements(self.bench.log(), segments=chosen)

    def hold(self) -> None:
        self.bench.log().commit_as_maintainer([Hold(self.random.random() < 0.3, "")])

    def open(self) -> None:
        reader = open_stream_reader(
            self.bench.memory, STREAM, lease_seconds=7 * 24 * 3600, clock=self.bench.clock, cache=Cache(0)
        )
        self.readers.append(reader)

    def close(self) -> None:
        if self.readers:
            self.readers.pop(self.random.randrange(len(self.readers))).close()

    def hours(self) -> None:
        self.bench.hours(self.random.choice([0.1, 3, 25]))

    def fault(self) -> None:
        kind = self.random.choice([None, StoreUnavailableError, OutcomeUnknownError])
        if kind is not None:
            calls = self.random.choice([1, 1, 10**6])
            after = self.random.random() < 0.5
            self.bench.store.set_faults([Fault(call=self.random.randint(1, 60), calls=calls, error=kind, after=after)])

    def check(self) -> None:
        self.bench.check()
        for reader in self.readers:
            first, last = reader.first_position, reader.last_position
            if first is not None and last is not None:
                entries = [entry.position for entry in reader.read(first, last)]
                assert entries == sorted(entries)
                assert len(entries) == reader.count()

    def come_to_rest(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers.clear()
        self.bench.log().commit_as_maintainer([Hold(False, "")])
        for _ in range(4):
            self.bench.hours(25)
            self.bench.run()
            self.check()
        assert self.bench.stored() == self.bench.named()
        state = self.bench.state
        assert not list(state.segments.retired())
        assert state.head is None or all(s.end is not None and s.end >= state.head for s in state.offloaded())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(WALKS))
def test_random_walk_leaves_nothing_dangling_and_no_garbage(seed: int) -> None:
    walk = Walk(seed)
    try:
        for _ in range(STEPS):
            walk.step()
        walk.come_to_rest()
    except BaseException:
        print(f"seed {seed}:", " ".join(walk.trace))
        raise
