"""The ledger method: one V1 object pair for each closed ledger, and no success without proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.keys import parse_object_key
from formats.manifest import Failed, decode_record
from offloader.clock import SystemClock
from offloader.errors import Corrupt, InvalidCall, StoreUnavailable
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.by_ledger import SourceLedger
from offloader.write.ledger_method import ledgers_due
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries

STREAM = "a/b"
MIB = 1024 * 1024
SETTINGS = Settings.of(
    {"offload": {"block_bytes": 4096, "part_bytes": 5 * MIB}, "ledgers": {"ledger_bytes_max": 20_000}}
)
_names = count()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.memory = MemoryStore(f"ledger-method-{next(_names)}", "", SystemClock())
        self.store = FaultyStore(self.memory)
        self.database = EmbeddedLedgers(str(directory / "ledgers.db"), settings=SETTINGS.ledgers)
        self.source: EmbeddedStream = self.database.open_stream(STREAM)
        self.offloader = LedgerOffloader(self.store, SETTINGS)
        self.expected: list[tuple[Position, bytes]] = []

    def append(self, entries: int, size: int = 100) -> None:
        for batch in self.source.append([bytes([i % 250]) * size for i in range(entries)], 0):
            self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def offload(self) -> Position | None:
        return self.offloader.offload_ledgers(self.source, STREAM)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.offloader.close()
    made.database.close()


def test_each_closed_ledger_becomes_one_pair_of_objects_and_the_open_one_waits(bench: Bench) -> None:
    bench.append(700)
    closed = [info for info in bench.source.ledgers() if info.closed and info.entries]
    assert len(closed) == 3

    end = bench.offload()

    state = load_manifest(bench.memory, STREAM)
    assert end == state.committed_end() == Position(closed[-1].ledger_id, closed[-1].last_entry_id)
    assert [s.v1_ledger_id for s in state.offloaded()] == [info.ledger_id for info in closed]
    assert stored_entries(bench.memory, STREAM) == [item for item in bench.expected if item[0] <= end]
    keys = [parse_object_key(info.key, STREAM) for info in bench.memory.list("").objects]
    assert sorted(key.ledger_id for key in keys if key) == sorted([info.ledger_id for info in closed] * 2)

    assert bench.offload() == end, "nothing is sent twice"
    bench.source.close_ledger()
    bench.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_a_large_ledger_goes_up_in_parts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.database = EmbeddedLedgers(str(tmp_path / "large.db"))
    bench.source = bench.database.open_stream(STREAM)
    bench.append(1300, size=10_000)
    bench.source.close_ledger()

    bench.offload()

    assert [verb for verb, _ in bench.store.calls].count("upload_part") == 3
    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.offloader.close()
    bench.database.close()


def test_open_and_empty_ledgers_are_refused(bench: Bench) -> None:
    bench.append(5)
    info = bench.source.ledgers()[-1]
    for wrong in (info, replace(info, closed=True, entries=0)):
        future = bench.offloader.offload(SourceLedger(bench.source, wrong), UUID(int=next(_names)), {}, stream=STREAM)
        with pytest.raises(InvalidCall, match="can't be offloaded"):
            future.result(30)
    assert bench.store.calls == []


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        (lambda info: replace(info, entries=info.entries + 1), "the source gives nothing"),
        (lambda info: replace(info, entries=info.entries - 1), "but at 0 the source gives"),
    ],
)
def test_a_ledger_that_is_not_what_it_claims_is_not_reported_as_offloaded(
    bench: Bench, claim: Callable[[LedgerInfo], LedgerInfo], shown: str
) -> None:
    """Pulsar reports success on a truncated object and later deletes the source."""
    bench.append(50)
    bench.source.close_ledger()
    info = claim(next(info for info in bench.source.ledgers() if info.closed and info.entries))

    future = bench.offloader.offload(SourceLedger(bench.source, info), UUID(int=1), {}, stream=STREAM)

    with pytest.raises(Corrupt, match=shown):
        future.result(30)
    assert bench.memory.list("").objects == ()


@pytest.mark.parametrize("size", [0, 1, 4999, 5001])
def test_a_wrong_recorded_size_neither_truncates_nor_prevents(bench: Bench, size: int) -> None:
    bench.append(50)
    bench.source.close_ledger()
    info = next(info for info in bench.source.ledgers() if info.closed and info.entries)

    future = bench.offloader.offload(
        SourceLedger(bench.source, replace(info, size_bytes=size)), UUID(int=1), {}, stream=STREAM
    )

    summary = future.result(30).summary
    assert summary is not None
    assert (summary.entries, summary.payload_bytes) == (50, 5000)


def test_a_failed_attempt_is_recorded_and_the_next_one_has_another_name(bench: Bench) -> None:
    bench.append(300)
    bench.store.set_faults([Fault(call=1, calls=10, verb="put", key_part="-index", error=StoreUnavailable)])
    with pytest.raises(StoreUnavailable):
        bench.offload()
    bench.store.set_faults([])

    bench.offload()

    records = [info.key for info in bench.memory.list("").objects if info.key.endswith(".json")]
    edits = [edit for key in records for edit in decode_record(bench.memory.get(key)[0]).edits]
    failed = [edit.uuid for edit in edits if isinstance(edit, Failed)]
    assert len(failed) == 1
    assert failed[0] not in load_manifest(bench.memory, STREAM).segments
    end = load_manifest(bench.memory, STREAM).committed_end()
    assert end is not None
    assert stored_entries(bench.memory, STREAM) == [item for item in bench.expected if item[0] <= end]


def test_ledgers_are_due_when_they_are_closed_hold_entries_and_lie_after_the_committed_end() -> None:
    def ledger(ledger_id: int, *, closed: bool = True, entries: int = 5) -> LedgerInfo:
        return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=1, created_ms=0)

    ledgers = [ledger(1), ledger(2), ledger(3, entries=0), ledger(4), ledger(5, closed=False)]

    assert [info.ledger_id for info in ledgers_due(ledgers, None)] == [1, 2, 4]
    assert [info.ledger_id for info in ledgers_due(ledgers, Position(1, 4))] == [2, 4]


def test_reading_stops_at_the_ledgers_end(bench: Bench) -> None:
    bench.append(700)
    first, second = [info for info in bench.source.ledgers() if info.closed and info.entries][:2]
    handle = SourceLedger(bench.source, first)

    assert handle.read(first.entries, 100) is None
    batch = handle.read(0, 10**9)
    assert isinstance(batch, EntryBatch)
    assert {batch.ledger_id} == {first.ledger_id} != {second.ledger_id}
