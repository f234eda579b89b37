"""Automatic offloading by the ledger method: when a ledger is closed, when it is old, and not before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from offloader.errors import ClosedError, StoreUnavailableError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.runtime.workers import Workers
from offloader.settings import OffloadSettings, Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.backfill import HistoryResult
from offloader.write.offloader import LedgerTrigger
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "public/default/persistent/orders"
_names = count()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(waits_pass=False)
        self.memory = MemoryStore(f"trigger-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.ledgers = f"sqlite:///{directory}/ledgers.db"
        self.opened: list[ManagedLedger] = []

    def open(self, **offload: object) -> ManagedLedger:
        made = Settings.of({"offload": {"method": "ledger", **offload}, "ledgers": {"ledger_entries_max": 10}})
        topic = open_managed_ledger(STREAM, ledgers=self.ledgers, store=self.store, settings=made, clock=self.clock)
        self.opened.append(topic)
        return topic

    def offloaded(self) -> list[int | None]:
        if STREAM not in list_streams(self.memory):
            return []
        return [segment.v1_ledger_id for segment in load_manifest(self.memory, STREAM).offloaded()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for topic in made.opened:
        topic.close(drain=False)


def test_ledger_is_offloaded_as_soon_as_it_is_closed(bench: Bench) -> None:
    topic = bench.open()
    topic.append_batch([b"x" * 100] * 25)
    eventually(lambda: bench.offloaded() == [1, 2])
    topic.append_batch([b"x" * 100] * 10)
    eventually(lambda: bench.offloaded() == [1, 2, 3])


def test_oldest_ledgers_above_the_size_threshold_are_offloaded(bench: Bench) -> None:
    topic = bench.open(offload_threshold_size=2500)
    topic.append_batch([b"x" * 100] * 45)
    eventually(lambda: bench.offloaded() == [1, 2])
    topic.append_batch([b"x" * 100] * 10)
    eventually(lambda: bench.offloaded() == [1, 2, 3])


def test_ledger_is_offloaded_at_its_age_without_an_append_or_earlier_requests(bench: Bench) -> None:
    topic = bench.open(offload_threshold_size="never", offload_threshold_age=600)
    before = len(bench.store.calls)
    topic.append_batch([b"x"] * 25)
    bench.clock.advance(599)
    topic.append_batch([b"x"] * 10)
    assert len(bench.store.calls) == before
    bench.clock.advance(61)
    eventually(lambda: bench.offloaded() == [1, 2])


def test_with_both_thresholds_off_only_the_command_offloads(bench: Bench) -> None:
    topic = bench.open(offload_threshold_size="never", offload_threshold_age="never")
    topic.append_batch([b"x"] * 25)
    bench.clock.advance(10_000_000)
    assert bench.offloaded() == []
    topic.offload()
    assert bench.offloaded() == [1, 2]


@pytest.mark.slow
def test_failed_ledger_is_retried_after_a_while(bench: Bench) -> None:
    bench.store.set_faults([Fault(call=1, verb="put", key_part="-ledger-1", error=StoreUnavailableError)])
    topic = bench.open()
    topic.append_batch([b"x"] * 25)

    def is_whole_a_minute_later() -> bool:
        bench.clock.advance(61)
        return bench.offloaded() == [1, 2]

    eventually(is_whole_a_minute_later)
    puts = [key for verb, key in bench.store.calls if verb == "put" and key.endswith("-ledger-1")]
    assert len(puts) == len(set(puts)) == 2, "each attempt has its own name"


def test_no_run_begins_once_a_stopped_trigger_was_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the late run fences whatever offloads the stream next."""
    listed, go_on = threading.Event(), threading.Event()
    list_ledgers = EmbeddedStream.ledgers

    def held(stream: EmbeddedStream) -> list[LedgerInfo]:
        found = list_ledgers(stream)
        listed.set()
        assert go_on.wait(PATIENCE_S)
        return found

    runs: list[int] = []

    def run(**_: int) -> HistoryResult:
        runs.append(1)
        return HistoryResult()

    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        source = database.open_stream(STREAM)
        source.append([b"x"])
        source.close_ledger()
        monkeypatch.setattr(EmbeddedStream, "ledgers", held)
        workers = Workers(1, SystemClock())
        trigger = LedgerTrigger(source, run, settings=OffloadSettings(), workers=workers, clock=SystemClock())
        trigger.start()
        assert listed.wait(PATIENCE_S)
        trigger.stop()
        trigger.wait()
        go_on.set()
        workers.close()
    assert runs == []


def test_requested_run_that_waited_for_another_one_does_not_begin_after_the_stop(tmp_path: Path) -> None:
    """Else it fences what offloads the stream next: ``set_method`` waits for the same run as the request."""
    running, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    def run(**_: int) -> HistoryResult:
        runs.append(1)
        running.set()
        assert go_on.wait(PATIENCE_S)
        return HistoryResult()

    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        workers = Workers(1, SystemClock())
        source = database.open_stream(STREAM)
        trigger = LedgerTrigger(source, run, settings=OffloadSettings(), workers=workers, clock=SystemClock())
        trigger.start()
        with ThreadPoolExecutor(2) as callers:
            first = callers.submit(trigger.offload)
            assert running.wait(PATIENCE_S)
            second = callers.submit(trigger.offload)
            trigger.stop()
            go_on.set()
            trigger.wait()
            first.result(PATIENCE_S)
            with pytest.raises(ClosedError):
                second.result(PATIENCE_S)
        workers.close()
    assert runs == [1]
