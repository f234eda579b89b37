"""The tailing cache answers exactly what the hot tier would, within its bytes."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from offloader.ledgers.tailing import TailingSource
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers


class CountingLedgers(MemoryLedgers):
    """Counts the reads of the hot tier."""

    reads = 0

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        self.reads += 1
        return super().read(start, max_bytes)


def everything(source: TailingSource | MemoryLedgers, start: Position, max_bytes: int) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    while (batch := source.read(start, max_bytes)) is not None:
        found += [(entry.position, entry.payload) for entry in batch.entries()]
        start = Position(batch.ledger_id, batch.last.entry_id + 1)
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), bytes_max=st.sampled_from([0, 1, 300, 3000]), max_bytes=st.integers(1, 500))
def test_reads_through_the_cache_are_those_of_the_hot_tier(seed: int, bytes_max: int, max_bytes: int) -> None:
    random = Random(seed)
    ledgers = CountingLedgers("s", ManualClock())
    ledgers.append([b"before the cache"])
    source = TailingSource(ledgers, bytes_max)
    for _ in range(random.randint(1, 20)):
        ledgers.append([random.randbytes(random.randint(0, 200)) for _ in range(random.randint(1, 6))])
        if random.random() < 0.3:
            ledgers.close_ledger()
        assert source.held_bytes <= bytes_max
    starts = [position for position, _ in ledgers.appended]
    start = random.choice([*starts, Position(0, 0), Position(10**6, 0)])
    assert everything(source, start, max_bytes) == everything(ledgers, start, max_bytes)


def test_what_is_kept_is_not_read_from_the_hot_tier() -> None:
    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 1000)
    first = ledgers.append([b"a" * 100] * 3)
    ledgers.close_ledger()
    ledgers.append([b"b" * 100] * 3)
    found = source.read(first.first, 10_000)
    assert found is not None
    assert [entry.payload for entry in found.entries()] == [b"a" * 100] * 3
    assert source.read(Position(1, 3), 10_000) is not None, "the next ledger follows"
    assert ledgers.reads == 0

    ledgers.append([b"c" * 900])
    source.read(first.first, 10_000)
    assert ledgers.reads == 1, "the oldest were given up for the newest"
    source.close()
    assert source.held_bytes == 0
