"""The ledger method: one V1 object pair for each closed ledger, and no success without proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.keys import parse_object_key
from formats.manifest import Failed, Gap, LedgersDeleted, decode_record
from offloader.errors import CorruptError, FencedError, InvalidCallError, StoreUnavailableError, UnsupportedError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.backfill_service import due_ledgers
from offloader.write.offloader import LedgerOffloader
from offloader.write.upload import SourceLedger
from tests.support.presence import there
from tests.support.readback import stored_entries, unaccounted_keys
from tests.support.waiting import PATIENCE_S

STREAM = "a/b"
MIB = 1024 * 1024
SETTINGS = Settings.of({"offload": {"block_size": 4096, "part_size": 5 * MIB}, "ledgers": {"ledger_size_max": 20_000}})
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


@pytest.mark.slow
def test_each_closed_ledger_becomes_one_object_pair_and_the_open_one_waits(bench: Bench) -> None:
    bench.append(700)
    closed = [info for info in bench.source.ledgers() if info.closed and info.entries]
    assert len(closed) == 3

    end = bench.offload()

    state = load_manifest(bench.memory, STREAM)
    assert end == state.committed_end() == Position(closed[-1].ledger_id, closed[-1].last_entry_id)
    assert [s.v1_ledger_id for s in state.offloaded()] == [info.ledger_id for info in closed]
    assert stored_entries(bench.memory, STREAM) == [item for item in bench.expected if item[0] <= end]
    keys = [parse_object_key(info.key, STREAM) for info in bench.memory.list("").objects]
    assert sorted(there(key.ledger_id) for key in keys if key) == sorted([info.ledger_id for info in closed] * 2)

    assert bench.offload() == end, "nothing is sent twice"
    bench.source.close_ledger()
    bench.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_the_plan_is_shown_although_the_gaps_of_the_stream_cant_be_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise CorruptError("the source lists entries in a gap")

    bench.append(700)
    monkeypatch.setattr("offloader.write.backfill_service.find_gaps", refused)
    shown: list[int] = []

    with pytest.raises(CorruptError, match="in a gap"):
        bench.offloader.history.ledgers(bench.source, STREAM, on_plan=lambda plan: shown.append(len(plan.segments)))

    assert shown == [3]


def test_deleted_ledger_is_skipped_and_later_ones_become_readable(bench: Bench) -> None:
    bench.append(700)
    deleted = 2
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    log.load(create=True)
    log.commit_as_maintainer([LedgersDeleted((deleted,))])
    closed = [info for info in bench.source.ledgers() if info.closed and info.entries]

    end = bench.offload()

    state = load_manifest(bench.memory, STREAM)
    assert end == state.committed_end() == Position(closed[-1].ledger_id, closed[-1].last_entry_id)
    assert [s.v1_ledger_id for s in state.offloaded()] == [1, 3]


@pytest.mark.slow
def test_large_ledger_is_uploaded_in_parts(tmp_path: Path) -> None:
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
        with pytest.raises(InvalidCallError, match="can't be offloaded"):
            future.result(PATIENCE_S)
    assert bench.store.calls == []


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        (lambda info: replace(info, entries=info.entries + 1), "the source returns nothing"),
        (lambda info: replace(info, entries=info.entries - 1), "but at 0 the source returns"),
    ],
)
def test_ledger_differing_from_its_recorded_facts_is_not_reported_as_offloaded(
    bench: Bench, claim: Callable[[LedgerInfo], LedgerInfo], shown: str
) -> None:
    """Pulsar reports success on a truncated object and later deletes the source."""
    bench.append(50)
    bench.source.close_ledger()
    info = claim(next(info for info in bench.source.ledgers() if info.closed and info.entries))

    future = bench.offloader.offload(SourceLedger(bench.source, info), UUID(int=1), {}, stream=STREAM)

    with pytest.raises(CorruptError, match=shown):
        future.result(PATIENCE_S)
    assert bench.memory.list("").objects == ()


@pytest.mark.parametrize("size", [0, 1, 4999, 5001])
def test_wrong_recorded_size_neither_truncates_nor_fails(bench: Bench, size: int) -> None:
    bench.append(50)
    bench.source.close_ledger()
    info = next(info for info in bench.source.ledgers() if info.closed and info.entries)

    future = bench.offloader.offload(
        SourceLedger(bench.source, replace(info, size_bytes=size)), UUID(int=1), {}, stream=STREAM
    )

    summary = future.result(PATIENCE_S).summary
    assert summary is not None
    assert (summary.entries, summary.payload_bytes) == (50, 5000)


def test_a_failed_attempt_is_recorded_and_the_next_one_has_another_name(bench: Bench) -> None:
    bench.append(300)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="-ledger-1", error=StoreUnavailableError)])
    with pytest.raises(StoreUnavailableError):
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


def test_complete_data_object_of_a_failed_attempt_is_adopted_without_resending(bench: Bench) -> None:
    bench.append(300)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="-ledger-1-index", error=StoreUnavailableError)])
    with pytest.raises(StoreUnavailableError):
        bench.offload()
    sent = [key for verb, key in bench.store.calls if verb == "put" and key.endswith("-ledger-1")]

    end = there(bench.offload())

    assert [key for verb, key in bench.store.calls if verb == "put" and key.endswith("-ledger-1")] == sent
    assert stored_entries(bench.memory, STREAM) == [item for item in bench.expected if item[0] <= end]


def _ledger(ledger_id: int, size: int = 100, *, closed: bool = True, closed_ms: int = 0) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=ledger_id, closed=closed, entries=5, size_bytes=size, created_ms=0, closed_ms=closed_ms or None
    )


@pytest.mark.parametrize(
    ("threshold_bytes", "due"),
    [(-1, []), (0, [1, 2, 3]), (250, [1, 2]), (249, [1, 2, 3]), (350, [1]), (349, [1, 2]), (450, []), (449, [1])],
)
def test_oldest_ledgers_above_the_size_threshold_are_due(threshold_bytes: int, due: list[int]) -> None:
    """The open ledger's bytes belong to the tail; it itself is never due."""
    ledgers = [_ledger(1), _ledger(2), _ledger(3), _ledger(4, 150, closed=False)]
    found = due_ledgers(ledgers, now_ms=0, threshold_bytes=threshold_bytes, threshold_seconds=-1)
    assert [info.ledger_id for info in found] == due


@pytest.mark.parametrize(
    ("threshold_seconds", "due"), [(-1, []), (0, [1, 2, 3]), (70, [1]), (71, []), (60, [1, 2]), (50, [1, 2, 3])]
)
def test_a_closed_ledger_is_due_at_the_age_threshold(threshold_seconds: float, due: list[int]) -> None:
    ledgers = [_ledger(n, closed_ms=10_000 * n) for n in (1, 2, 3)] + [_ledger(4, closed=False)]
    found = due_ledgers(ledgers, now_ms=80_000, threshold_bytes=-1, threshold_seconds=threshold_seconds)
    assert [info.ledger_id for info in found] == due


def test_a_closed_ledger_of_empty_payloads_is_due_as_soon_as_it_is_closed() -> None:
    assert due_ledgers([_ledger(1, 0)], now_ms=0, threshold_bytes=0, threshold_seconds=-1) == [_ledger(1, 0)]


def test_failing_ledger_is_reported_and_does_not_stop_the_others(bench: Bench) -> None:
    bench.append(700)
    first = bench.source.ledgers()[0]
    bench.store.set_faults([Fault(call=1, verb="put", key_part="-ledger-1", error=StoreUnavailableError)])

    with pytest.raises(StoreUnavailableError, match=r"fault before put of .*-ledger-1"):
        bench.offload()

    state = load_manifest(bench.memory, STREAM)
    assert [segment.v1_ledger_id for segment in state.offloaded()] == [2, 3]
    assert state.committed_end() is None, "nothing is readable in order before the first ledger is there"
    assert bench.source.released_position() is None, "no position behind a gap is released to the source"

    bench.store.set_faults([])
    assert bench.offload() == bench.source.released_position() == Position(3, first.last_entry_id)
    assert stored_entries(bench.memory, STREAM) == [item for item in bench.expected if item[0].ledger_id <= 3]


class Trimming:
    """A source that loses a ledger when that is read for the first time."""

    def __init__(self, inner: EmbeddedStream, ledger_id: int) -> None:
        self._inner = inner
        self._ledger_id = ledger_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        if start.ledger_id == self._ledger_id:
            self._inner.delete(self._ledger_id)
        return self._inner.read(start, max_bytes)


def test_ledger_trimmed_during_its_read_is_no_error_of_the_run(bench: Bench) -> None:
    bench.append(700)
    trimming = Trimming(bench.source, 2)

    result = bench.offloader.history.ledgers(trimming, STREAM)

    assert result.errors == []
    assert [segment.begin for segment in result.trimmed] == [Position(2, 0)]
    state = load_manifest(bench.memory, STREAM)
    assert [segment.v1_ledger_id for segment in state.offloaded()] == [1, 3]
    assert state.assigned() == []
    assert unaccounted_keys(bench.memory, STREAM) == set()


class Holed(Trimming):
    """A source whose ledger lacks an entry in the middle."""

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        batch = self._inner.read(start, max_bytes)
        if batch is None or batch.ledger_id != self._ledger_id or start.entry_id >= 20:
            return batch
        return batch.slice(0, 10) if start.entry_id < 10 else batch.slice(21 - start.entry_id, len(batch))


def test_ledger_with_a_gap_is_refused_by_name_and_others_are_offloaded(bench: Bench) -> None:
    bench.append(700)
    result = bench.offloader.history.ledgers(Holed(bench.source, 2), STREAM)

    assert [type(error) for error in result.errors] == [UnsupportedError]
    assert "ledger 2 has a gap at entry 10" in str(result.errors[0])
    assert [segment.v1_ledger_id for segment in load_manifest(bench.memory, STREAM).offloaded()] == [1, 3]


def test_a_ledger_with_a_recorded_gap_is_refused_by_name(bench: Bench) -> None:
    bench.append(700)
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    log.open_epoch()
    log.commit([Gap(Position(2, 5), Position(2, 8), "gone")])

    result = bench.offloader.history.ledgers(bench.source, STREAM)

    assert [str(error)[:40] for error in result.errors] == ["stream a/b: ledger 2 has a gap, which th"]
    assert [segment.v1_ledger_id for segment in load_manifest(bench.memory, STREAM).offloaded()] == [1, 3]


def test_attempt_of_a_fenced_writer_is_not_recorded_as_complete(bench: Bench) -> None:
    """Between upload and record another writer takes the stream: the record is refused."""
    bench.append(300)

    class Usurped(Trimming):
        def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
            log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
            log.open_epoch()
            return self._inner.read(start, max_bytes)

    with pytest.raises(FencedError):
        bench.offloader.history.ledgers(Usurped(bench.source, 1), STREAM)

    state = load_manifest(bench.memory, STREAM)
    assert list(state.offloaded()) == []
    assert len(state.assigned()) == 1


def test_living_owner_is_fenced_only_on_request(bench: Bench) -> None:
    bench.append(300)
    ManifestLog(bench.memory, STREAM, clock=SystemClock()).open_epoch()
    with pytest.raises(FencedError, match="--take-over"):
        bench.offloader.history.ledgers(bench.source, STREAM, take_over=False)
    assert bench.offloader.history.ledgers(bench.source, STREAM).errors == []


@pytest.mark.parametrize("method", ["ledgers", "backfill"])
def test_owner_that_comes_after_the_manifest_was_loaded_is_not_fenced_either(bench: Bench, method: str) -> None:
    bench.append(300)
    owner = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    run = getattr(bench.offloader.history, method)
    with pytest.raises(FencedError, match="--take-over"):
        run(bench.source, STREAM, take_over=False, on_plan=lambda _: owner.open_epoch())
    assert load_manifest(bench.memory, STREAM).epoch == owner.epoch == 1
    owner.load()
    assert run(bench.source, STREAM).errors == []


def test_with_nothing_due_no_epoch_is_opened(bench: Bench) -> None:
    bench.append(5)
    assert bench.offload() is None
    assert load_manifest(bench.memory, STREAM).epoch == 0


def test_reading_stops_at_the_ledgers_end(bench: Bench) -> None:
    bench.append(700)
    first, second = [info for info in bench.source.ledgers() if info.closed and info.entries][:2]
    handle = SourceLedger(bench.source, first)

    assert handle.read(first.entries, 100) is None
    batch = handle.read(0, 10**9)
    assert isinstance(batch, EntryBatch)
    assert {batch.ledger_id} == {first.ledger_id} != {second.ledger_id}
