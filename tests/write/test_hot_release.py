"""The hot copy of a ledger is deleted after the lag, once every entry of it is provably in the cold tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import data_key, index_key
from formats.manifest import HotReleased, decode_record
from offloader.errors import ObjectChangedError, ObjectMissingError, OutcomeUnknownError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.read.reader import open_stream_reader
from offloader.settings import ReadSettings, Settings, Size
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.hot_release import HotRelease, ReleasedLedgers, release_hot_ledgers
from offloader.write.offloader import LedgerOffloader
from tests.support.waiting import eventually

STREAM = "a/b"
LAG_MINUTES = 10
SETTINGS = Settings.of(
    {
        "offload": {"block_size": 1024, "segment_size_max": 4194, "deletion_lag": "10m"},
        "ledgers": {"ledger_size_max": 5000},
    }
)
_names = count()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(waits_pass=False)
        self.memory = MemoryStore(f"hot-release-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.database = EmbeddedLedgers(str(directory / "ledgers.db"), settings=SETTINGS.ledgers, clock=self.clock)
        self.source: EmbeddedStream = self.database.open_stream(STREAM)
        self.offloader = LedgerOffloader(self.store, SETTINGS, clock=self.clock)
        self.expected: list[tuple[Position, bytes]] = []
        for batch in self.source.append([bytes([n]) * 100 for n in range(220)], 0):
            self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def ledgers(self) -> list[int]:
        return [info.ledger_id for info in self.source.ledgers() if info.entries]

    def backfill(self, last: Position | None = None) -> None:
        self.offloader.history.backfill(self.source, STREAM, last=last)

    def pass_minutes(self, minutes: float) -> None:
        self.clock.advance(minutes * 60)

    def release(self, source: Any = None) -> ReleasedLedgers:
        log = ManifestLog(self.store, STREAM, clock=self.clock)
        now_ms = self.clock.now_ms()
        return release_hot_ledgers(source or self.source, log, now_ms=now_ms, lag_ms=LAG_MINUTES * 60_000)

    def first_of(self, ledger_id: int) -> Position:
        return next(position for position, _ in self.expected if position.ledger_id == ledger_id)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    assert made.ledgers() == [1, 2, 3, 4, 5]
    yield made
    made.offloader.close()
    made.database.close()


def test_closed_ledgers_are_deleted_after_the_lag_only(bench: Bench) -> None:
    bench.backfill()
    bench.pass_minutes(LAG_MINUTES - 0.01)
    assert bench.release().deleted == []
    bench.pass_minutes(0.01)
    assert bench.release() == ReleasedLedgers(deleted=[1, 2, 3, 4])
    assert bench.ledgers() == [5], "the open ledger stays"
    assert set(load_manifest(bench.memory, STREAM).hot_released_ledgers) == {1, 2, 3, 4}
    assert bench.release().deleted == []


def test_ledger_with_an_entry_not_offloaded_stays(bench: Bench) -> None:
    bench.backfill(Position(3, bench.source.ledgers()[2].last_entry_id - 1))
    bench.pass_minutes(60)
    assert bench.release().deleted == [1, 2]


def test_a_ledger_before_the_committed_end_that_no_segment_holds_stays(bench: Bench) -> None:
    """The stream's first range need not begin at the source's first entry."""
    bench.offloader.history.ledgers(Hiding(bench.source, 1), STREAM)
    state = load_manifest(bench.memory, STREAM)
    assert state.committed_end() == Position(4, bench.source.ledgers()[3].last_entry_id)
    bench.pass_minutes(60)
    assert bench.release().deleted == [2, 3, 4]


class Hiding:
    """A source that doesn't tell of one ledger."""

    def __init__(self, inner: EmbeddedStream, ledger_id: int) -> None:
        self._inner = inner
        self._ledger_id = ledger_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def ledgers(self) -> list[Any]:
        return [info for info in self._inner.ledgers() if info.ledger_id != self._ledger_id]


def _missing(store: MemoryStore, data: str, index: str) -> None:
    store.delete([index])


def _shorter(store: MemoryStore, data: str, index: str) -> None:
    store.put(data, store.get(data)[0][:-1])


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "error"), [(_missing, ObjectMissingError), (_shorter, ObjectChangedError)])
def test_ledger_with_damaged_objects_stays(
    bench: Bench, damage: Callable[[MemoryStore, str, str], None], error: type[Exception]
) -> None:
    bench.backfill()
    segment = load_manifest(bench.memory, STREAM).find(bench.first_of(2))
    assert segment is not None
    damage(bench.memory, data_key(STREAM, segment.uuid), index_key(STREAM, segment.uuid))
    bench.pass_minutes(60)

    done = bench.release()

    assert {type(each) for each in done.errors} == {error}
    assert 2 in bench.ledgers()
    assert 4 not in bench.ledgers()
    assert 2 not in load_manifest(bench.memory, STREAM).hot_released_ledgers


class Failing(Hiding):
    """A source whose deletions fail."""

    def ledgers(self) -> list[Any]:
        return self._inner.ledgers()

    def delete(self, ledger_id: int) -> None:
        records = [i.key for i in self.records() if i.key.endswith(".json")]
        edits = [edit for key in records for edit in decode_record(self.store.get(key)[0]).edits]
        assert any(isinstance(edit, HotReleased) and ledger_id in edit.ledger_ids for edit in edits), "recorded first"
        raise StoreUnavailableError(f"ledger {ledger_id} stays for now")

    def records(self) -> Any:
        return self.store.list("").objects

    store: MemoryStore


def test_release_is_recorded_first_and_a_failed_deletion_retried(bench: Bench) -> None:
    bench.backfill()
    bench.pass_minutes(60)
    failing = Failing(bench.source, 0)
    failing.store = bench.memory
    assert len(bench.release(failing).errors) == 4
    assert bench.ledgers() == [1, 2, 3, 4, 5]
    assert bench.release().deleted == [1, 2, 3, 4]


def test_nothing_is_deleted_while_the_record_is_in_doubt(bench: Bench) -> None:
    bench.backfill()
    bench.pass_minutes(60)
    bench.store.set_faults([Fault(call=1, calls=50, verb="put", key_part="manifest", error=OutcomeUnknownError)])
    with pytest.raises(OutcomeUnknownError):
        bench.release()
    assert bench.ledgers() == [1, 2, 3, 4, 5]


def test_release_runs_by_itself_and_sends_no_request_before_the_lag(bench: Bench) -> None:
    bench.backfill()
    release = bench.offloader.history.hot_release(bench.source, STREAM)
    before = len(bench.store.calls)
    assert release.look() == ReleasedLedgers()
    assert len(bench.store.calls) == before
    release.start()
    bench.pass_minutes(LAG_MINUTES)
    eventually(lambda: bench.ledgers() == [5])
    release.stop()


def test_release_goes_on_after_an_error_of_any_kind(bench: Bench) -> None:
    class ShortOfMemory:
        """The hot tier, without memory for one list of its ledgers."""

        failing = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.source, name)

        def ledgers(self) -> list[Any]:
            if self.failing:
                self.failing -= 1
                raise MemoryError("no memory")
            return bench.source.ledgers()

    bench.backfill()
    source = ShortOfMemory()
    log = ManifestLog(bench.store, STREAM, clock=bench.clock)
    release = HotRelease(source, log, lag_s=60 * LAG_MINUTES, workers=bench.offloader._workers, clock=bench.clock)
    release.start()
    eventually(lambda: not source.failing, first=lambda: bench.pass_minutes(LAG_MINUTES))
    eventually(lambda: bench.ledgers() == [5], first=lambda: bench.pass_minutes(LAG_MINUTES))
    release.stop()


def test_a_negative_lag_means_never(bench: Bench) -> None:
    bench.backfill()
    bench.pass_minutes(10_000_000)
    log = ManifestLog(bench.store, STREAM, clock=bench.clock)
    release = HotRelease(bench.source, log, lag_s=-1, workers=bench.offloader._workers, clock=bench.clock)
    release.start()
    assert release.look() == ReleasedLedgers()


def test_common_cause_for_keeping_all_ledgers_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class FullDisk:
        """The hot tier, that can't write to delete."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.source, name)

        def delete(self, ledger_id: int) -> None:
            raise StoreUnavailableError("ledger database l.db: the disk is full; nothing was written")

    bench.backfill()
    bench.pass_minutes(LAG_MINUTES + 1)
    log = ManifestLog(bench.store, STREAM, clock=bench.clock)
    release = HotRelease(
        FullDisk(),
        log,
        lag_s=60 * LAG_MINUTES,
        workers=bench.offloader._workers,
        clock=bench.clock,
    )
    with caplog.at_level("WARNING", logger="offloader.hot_release"):
        release._tick()
    release.stop()
    said = "hot copies are kept for now: ledger database l.db: the disk is full; nothing was written (4 times)"
    assert [record.getMessage() for record in caplog.records] == [f"stream {STREAM}: {said}"]


@pytest.mark.slow
@pytest.mark.parametrize("priority", ["tiered-storage-first", "bookkeeper-first"])
def test_reader_switches_tiers_without_an_error_when_the_hot_copy_is_deleted(bench: Bench, priority: str) -> None:
    settings = ReadSettings(read_priority=priority, batch_size=Size(300))
    with open_stream_reader(bench.memory, STREAM, source=bench.source, settings=settings) as reader:
        scan = reader.scan()
        found = [*next(scan).entries()]
        bench.backfill()
        bench.pass_minutes(60)
        assert bench.release().deleted == [1, 2, 3, 4]
        found += [entry for batch in scan for entry in batch.entries()]
    assert [(entry.position, entry.payload) for entry in found] == bench.expected


def test_read_priority_selects_the_tier_of_entries_in_both(bench: Bench) -> None:
    bench.backfill()
    for priority, cold in (("bookkeeper-first", False), ("tiered-storage-first", True)):
        before = len(bench.store.calls)
        settings = ReadSettings(read_priority=priority)
        with open_stream_reader(bench.store, STREAM, source=bench.source, settings=settings) as reader:
            entries = list(reader.read(bench.expected[0][0], bench.expected[-1][0]))
        assert [(entry.position, entry.payload) for entry in entries] == bench.expected
        read = [key for verb, key in bench.store.calls[before:] if verb == "get" and "manifest" not in key]
        assert any("_catalog" not in key for key in read) is cold
