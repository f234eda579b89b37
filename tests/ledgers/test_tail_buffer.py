"""The tailing cache answers exactly what the hot tier would, within its bytes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from offloader.ledgers.sqlite.database import AckedSlot
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.ledgers.tail_buffer import CHUNK_BYTES, TailingSource, kept_bytes
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


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    bytes_max=st.sampled_from([0, 1, 6_000, 20_000, 400_000]),
    max_bytes=st.sampled_from([1, 150, 5_000]),
)
def test_reads_through_the_cache_are_those_of_the_hot_tier(seed: int, bytes_max: int, max_bytes: int) -> None:
    """Appends of one and of many, empty ones too, ledgers that end and are deleted, reads in between."""
    random = Random(seed)
    ledgers = CountingLedgers("s", ManualClock())
    ledgers.append([b"before the cache"])
    source = TailingSource(ledgers, bytes_max)
    for _ in range(random.randint(1, 40)):
        drawn = random.random()
        if drawn < 0.7:
            sizes = [random.choice([0, 1, 100, 900]) for _ in range(random.choice([1, 1, 1, 8]))]
            ledgers.append([random.randbytes(size) for size in sizes])
        elif drawn < 0.8:
            ledgers.close_ledger()
        elif drawn < 0.85:
            source.delete(random.choice([0, *(info.ledger_id for info in ledgers.ledgers()[:-1])]))
        else:
            source.read(random.choice(ledgers.appended)[0], max_bytes)
        assert source.held_bytes <= bytes_max
        assert source.held_bytes == sum(map(kept_bytes, source._chunks)), "the count is exact"
    for start in [random.choice(ledgers.appended)[0], Position(0, 0), Position(10**6, 0)]:
        assert everything(source, start, max_bytes) == everything(ledgers, start, max_bytes)


def test_cached_entries_are_not_read_from_the_hot_tier() -> None:
    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 100_000)
    first = ledgers.append([b"a" * 100] * 3)
    ledgers.close_ledger()
    ledgers.append([b"b" * 100] * 3)
    found = source.read(first.first, 10_000)
    assert found is not None
    assert [entry.payload for entry in found.entries()] == [b"a" * 100] * 3
    assert source.read(Position(2, 0), 10_000) is not None
    assert ledgers.reads == 0
    assert source.read(Position(1, 3), 10_000) is not None, "the next ledger follows"
    assert ledgers.reads == 1, "nobody else knows that no entry comes before it"

    ledgers.append([b"c" * 95_500])
    source.read(first.first, 10_000)
    assert ledgers.reads == 2, "the oldest were given up for the newest"
    source.close()
    assert source.held_bytes == 0


@pytest.mark.slow
def test_entries_appended_one_by_one_are_kept_and_read_together() -> None:
    """Each alone would take more memory than it holds, and a read each."""
    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 1024 * 1024)
    for _ in range(5_000):
        ledgers.append([b"x" * 100])
    reads, start = 0, Position(1, 0)
    while (batch := source.read(start, 2**20)) is not None:
        reads, start = reads + 1, Position(1, batch.last.entry_id + 1)

    assert start == Position(1, 5_000)
    assert ledgers.reads == 1, "only the end is the hot tier's to tell"
    assert reads < 25
    assert source.held_bytes < 1024 * 1024


@pytest.mark.slow
def test_empty_entries_count_too() -> None:
    """Else they would be kept without end."""
    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 50_000)
    for _ in range(5_000):
        ledgers.append([b""])
        assert source.held_bytes <= 50_000
    assert sum(map(len, source._chunks)) < 2_500


@pytest.mark.slow
@pytest.mark.parametrize("entry_bytes", [100, 30_000, 60_000])
@pytest.mark.parametrize("limit_mib", [1, 2, 8])
def test_eviction_leaves_most_of_the_limit_in_use(limit_mib: int, entry_bytes: int) -> None:
    """The oldest entries are evicted a chunk at a time, so a chunk must be small beside the limit."""
    bytes_max = limit_mib * 1024 * 1024
    source = TailingSource(MemoryLedgers("s", ManualClock()), bytes_max)
    payloads, times = pa.array([b"x" * entry_bytes], type=pa.binary()), np.zeros(1, np.int64)
    shares = []
    for entry_id in range(bytes_max * 5 // 4 // entry_bytes):
        source._keep(EntryBatch(1, np.array([entry_id]), payloads, times))
        if source._chunks[0].first.entry_id:
            shares.append(source.held_bytes / bytes_max)
    assert shares, "the buffer was never full"
    assert min(shares) > 0.8
    assert max(chunk.payload_bytes for chunk in source._chunks) <= CHUNK_BYTES


def test_batch_out_of_order_leaves_the_reads_to_the_hot_tier() -> None:
    """It can't be joined with those before it; a buffer without it, or without them, would hide entries."""
    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 100_000)
    before = [ledgers.append([b"%d" % number]) for number in range(3)]
    source._keep(before[1])
    ledgers.append([b"3"])
    for _ in range(2):
        assert everything(source, Position(1, 0), 10_000) == everything(ledgers, Position(1, 0), 10_000)
    assert source.held_bytes == sum(map(kept_bytes, source._chunks))

    ledgers.append([b"4"])
    ledgers.reads = 0
    found = source.read(Position(1, 4), 10_000)
    assert found is not None
    assert ledgers.reads == 0, "later entries are buffered again"


def test_batch_that_memory_is_short_for_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def compact(_: EntryBatch) -> EntryBatch:
        raise MemoryError

    ledgers = CountingLedgers("s", ManualClock())
    source = TailingSource(ledgers, 100_000)
    ledgers.append([b"0"])
    with monkeypatch.context() as patched:
        patched.setattr(EntryBatch, "compact", compact)
        ledgers.append([b"1"])
    ledgers.append([b"2"])
    assert everything(source, Position(1, 0), 10_000) == everything(ledgers, Position(1, 0), 10_000)


@pytest.mark.parametrize("closes", [False, True])
def test_entries_of_an_append_that_ctrl_c_ended_after_its_commit_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """In a notebook the process and its stream go on after that."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(EmbeddedLedgers(str(tmp_path / "l.db"))) as database:
        stream = database.open_stream("s")
        source = TailingSource(stream, 100_000)
        stream.append([b"before"])
        monkeypatch.setattr(AckedSlot, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.append([b"interrupted"])
        monkeypatch.undo()
        if closes:
            stream.close_ledger()
        stream.append([b"after"])
        found, start = [], Position(1, 0)
        while (batch := source.read(start, 1)) is not None:
            found += [entry.payload for entry in batch.entries()]
            start = batch.last.next()
        assert found == [b"before", b"interrupted", b"after"]
