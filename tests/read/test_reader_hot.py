"""Reading both tiers: entries not yet offloaded come from the ledgers, deleted ledgers from the cold tier."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.entries import Entry, EntryBatch, Position
from formats.manifest import Truncate
from offloader.errors import BeyondEndError, TrimmedError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import LedgerSettings, ReadSettings
from offloader.store.open import open_store
from tests.support.streams import BASE_MS, StreamWriter

names = itertools.count()
BOTH_PRIORITIES = pytest.mark.parametrize("priority", ["tiered-storage-first", "bookkeeper-first"])


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedStream]:
    ledgers = EmbeddedLedgers(str(tmp_path / "ledgers.db"), settings=LedgerSettings(ledger_entries_max=50))
    yield ledgers.open_stream("public/default/persistent/orders")
    ledgers.close()


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://hot-{next(names)}"))


def append(source: EmbeddedStream, count: int, start: int = 0) -> list[Entry]:
    payloads = [f"event {number}".encode() for number in range(start, start + count)]
    times = [BASE_MS + number for number in range(start, start + count)]
    return entries_of(source.append(payloads, times))


def entries_of(batches: object) -> list[Entry]:
    return [entry for batch in batches for entry in batch.entries()]  # type: ignore[attr-defined]


def offload(writer: StreamWriter, source: EmbeddedStream, until: Position) -> None:
    """Makes one segment of everything after the committed end."""
    closed = {info.ledger_id: info for info in source.ledgers() if info.closed}
    last = writer.log.state.committed_end()
    start = Position(0, 0) if last is None else last.next()
    batches: list[EntryBatch] = []
    while start <= until and (batch := source.read(start, 10**6)) is not None:
        part = batch.between(start, until)
        if not len(part):
            break
        batches.append(part)
        start = part.last.next()
    ends = [
        b.ledger_id for b in batches if b.ledger_id in closed and b.last.entry_id == closed[b.ledger_id].last_entry_id
    ]
    writer.add(batches, closes=ends)


def reader_of(writer: StreamWriter, source: EmbeddedStream, priority: str = "tiered-storage-first") -> Reader:
    return open_stream_reader(writer.store, writer.stream, source=source, settings=ReadSettings(read_priority=priority))


def test_stream_without_offloaded_entries_is_read_from_the_ledgers(
    writer: StreamWriter, source: EmbeddedStream
) -> None:
    written = append(source, 120)
    reader = reader_of(writer, source)
    assert (reader.first_position, reader.last_position) == (written[0].position, written[-1].position)
    assert entries_of(reader.scan()) == written
    assert list(reader.read(written[40].position, written[60].position)) == written[40:61]
    assert reader.count() == 120
    assert reader.position_at(BASE_MS + 77) == written[77].position


def test_a_stream_without_any_manifest_is_read_from_the_ledgers(source: EmbeddedStream) -> None:
    written = append(source, 7)
    with open_stream_reader(open_store(f"memory://hot-{next(names)}"), "never/offloaded", source=source) as reader:
        assert list(reader.read(written[2].position, written[4].position)) == written[2:5]


def test_ranges_over_both_tiers_are_seamless(writer: StreamWriter, source: EmbeddedStream) -> None:
    written = append(source, 170)
    offload(writer, source, written[99].position)
    offload(writer, source, written[120].position)
    reader = reader_of(writer, source)
    assert entries_of(reader.scan()) == written
    assert reader.count() == 170
    for low, high in [(0, 169), (119, 121), (121, 121), (95, 160), (130, 169)]:
        first, last = written[low].position, written[high].position
        assert list(reader.read(first, last)) == written[low : high + 1]
        assert reader.count(first, last) == high - low + 1
    assert reader.position_at(BASE_MS + 110) == written[110].position
    assert reader.position_at(BASE_MS + 150) == written[150].position
    assert reader.position_at(BASE_MS + 1000) is None


def test_reading_past_the_end_fails_until_the_ledgers_grow(writer: StreamWriter, source: EmbeddedStream) -> None:
    written = append(source, 10)
    reader = reader_of(writer, source)
    with pytest.raises(BeyondEndError):
        reader.read(written[0].position, Position(written[-1].ledger_id, 10))
    more = append(source, 1, start=10)
    assert list(reader.read(more[0].position, more[0].position)) == more


@BOTH_PRIORITIES
def test_ledgers_leaving_the_hot_tier_during_a_read_come_from_the_cold_tier(
    writer: StreamWriter, source: EmbeddedStream, priority: str
) -> None:
    """The pinned view doesn't have them yet, the hot tier has them no more: nothing may be skipped."""
    written = append(source, 170)
    offload(writer, source, written[30].position)
    reader = reader_of(writer, source, priority)
    ledgers = [info.ledger_id for info in source.ledgers() if info.entries]
    offload(writer, source, written[149].position)
    for ledger in ledgers[:3]:
        source.delete(ledger)
    assert entries_of(reader.scan()) == written
    assert list(reader.read(written[25].position, written[155].position)) == written[25:156]


@BOTH_PRIORITIES
def test_a_ledger_that_leaves_the_hot_tier_during_a_scan_is_not_skipped(
    writer: StreamWriter, source: EmbeddedStream, priority: str
) -> None:
    written = append(source, 170)
    scan = reader_of(writer, source, priority).scan()
    found = list(next(scan).entries())
    ledgers = [info.ledger_id for info in source.ledgers() if info.entries]
    offload(writer, source, written[149].position)
    for ledger in ledgers[:3]:
        source.delete(ledger)
    assert found + entries_of(scan) == written


@pytest.mark.slow
@BOTH_PRIORITIES
def test_ledger_created_and_deleted_during_a_read_is_not_skipped(
    writer: StreamWriter, source: EmbeddedStream, priority: str
) -> None:
    written = append(source, 50)
    source.close_ledger()
    offload(writer, source, written[-1].position)
    reader = reader_of(writer, source, priority)
    written += append(source, 70, start=50)
    offload(writer, source, written[99].position)
    source.delete(written[50].ledger_id)
    assert entries_of(reader.scan()) == written


@BOTH_PRIORITIES
def test_entries_truncated_in_both_tiers_during_a_read_are_not_skipped(
    writer: StreamWriter, source: EmbeddedStream, priority: str
) -> None:
    written = append(source, 170)
    scan = reader_of(writer, source, priority).scan()
    next(scan)
    ledgers = [info.ledger_id for info in source.ledgers() if info.entries]
    offload(writer, source, written[149].position)
    for ledger in ledgers[:3]:
        source.delete(ledger)
    writer.log.commit([Truncate(written[120].position)])
    with pytest.raises(TrimmedError, match="was deleted during the read") as caught:
        list(scan)
    assert caught.value.first_available == written[120].position


@BOTH_PRIORITIES
def test_scan_continues_after_a_ledger_that_was_read_before_retention_deleted_it(
    writer: StreamWriter, source: EmbeddedStream, priority: str
) -> None:
    """The scan stands after the last entry of that ledger, before the new beginning: it misses nothing."""
    written = append(source, 170)
    scan = reader_of(writer, source, priority).scan()
    assert list(next(scan).entries()) == written[:50]
    offload(writer, source, written[149].position)
    source.delete(written[0].ledger_id)
    writer.log.commit([Truncate(written[50].position)])
    assert entries_of(scan) == written[50:]


def test_empty_ledgers_between_are_passed_over(writer: StreamWriter, source: EmbeddedStream) -> None:
    written = append(source, 5)
    source.close_ledger()
    written += append(source, 5, start=5)
    infos: list[LedgerInfo] = source.ledgers()
    assert len(infos) >= 2
    assert entries_of(reader_of(writer, source).scan()) == written
