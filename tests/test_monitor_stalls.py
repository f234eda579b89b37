"""Stalls without an error: an unresponsive store, a dead worker, a hanging source; the watchdog reports each."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from offloader.settings import Settings, TelemetrySettings
from offloader.store.base import StoreOptions
from offloader.store.memory import MemoryStore
from offloader.store.open import stack
from offloader.telemetry.prometheus import Metrics
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader
from tests.support.metrics import exposed
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "tenant/ns/persistent/orders"
NO_PROGRESS_S = 900.0
SEGMENT_AGE_S = 600.0


class Hanging(MemoryStore):
    """Doesn't answer a put of a segment's object before it is let go."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(f"hanging-{uuid.uuid4()}", "", clock)
        self.reached = threading.Event()
        self.go = threading.Event()

    def put(self, key: str, *given: Any, **more: Any) -> Any:
        if "/manifest/" not in key and not key.startswith("_catalog/"):
            self.reached.set()
            assert self.go.wait(PATIENCE_S)
        return super().put(key, *given, **more)


class Bench:
    """One stream over a store that hangs, at a clock that only the test moves."""

    def __init__(self, source: type[MemoryLedgers] = MemoryLedgers, **telemetry: object) -> None:
        self.clock = ManualClock(waits_pass=False)
        self.metrics = Metrics(TelemetrySettings(), self.clock)
        self.raw = Hanging(self.clock)
        settings = Settings.of({"offload": {"workers_max": 1}, "telemetry": telemetry})
        options = StoreOptions(settings=settings.store, clock=self.clock, recorder=self.metrics)
        self.offloader = LedgerOffloader(stack(self.raw, options), settings, clock=self.clock)
        self.source = source(STREAM, self.clock)
        self.source.append([b"one", b"two"])
        self.stream = self.offloader.offload_stream(self.source, STREAM)

    def close(self) -> None:
        self.raw.go.set()
        self.stream.stop()
        self.offloader.close()

    def stalled(self) -> str | None:
        (row,) = self.offloader.status()["streams"]
        reason: str | None = row["stalled"]
        return reason


@pytest.fixture
def hanging(caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    caplog.set_level(logging.INFO, logger="offloader.monitor")
    bench = Bench(status_interval=60.0)
    bench.stream.request_offload()
    assert bench.raw.reached.wait(PATIENCE_S)
    yield bench
    bench.close()


def test_unresponsive_store_is_reported_with_its_waiting_request(hanging: Bench) -> None:
    assert hanging.stalled() is None
    hanging.clock.advance(NO_PROGRESS_S + SEGMENT_AGE_S)
    reason = hanging.stalled()
    assert reason is not None
    assert reason.startswith(f"stream {STREAM}: entries up to 1:1 wait, committed end none; no progress for 1500 s; ")
    assert "; put of tenant/ns/persistent/orders/" in reason
    assert reason.endswith("has had no answer for 1500 s")
    document = hanging.offloader.status()
    assert document["store"]["open_requests"] == 1
    assert document["store"]["oldest_request"]["verb"] == "put"
    assert document["store"]["oldest_request"]["seconds"] == 1500.0
    found = exposed(hanging.metrics)
    assert found["requests_open"] == 1
    assert found["requests_open_oldest_seconds"] == 1500.0
    assert found['streams_stalled{namespace="tenant/ns"}'] == 1


@pytest.mark.slow
def test_watchdog_reports_a_stall_although_every_worker_hangs(hanging: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def told_after_a_minute() -> list[str]:
        hanging.clock.advance(60.0)
        return [record.event for record in caplog.records if getattr(record, "stream", "") == STREAM]  # type: ignore[attr-defined]

    eventually(lambda: told_after_a_minute() == ["stream_stalled"])
    hanging.raw.go.set()
    eventually(lambda: hanging.stream.status().committed == Position(1, 1))
    eventually(lambda: told_after_a_minute()[-1:] == ["stream_moves"])
    assert exposed(hanging.metrics)["requests_open"] == 0


class Deadly(MemoryLedgers):
    """Reading kills whoever reads, without an error that anybody catches."""

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        raise SystemExit("the interpreter is told to end")


def test_dead_worker_is_reported() -> None:
    bench = Bench(Deadly, status_interval=3600.0)
    try:
        assert bench.stalled() is None
        eventually(lambda: "SystemExit" in bench.stream.status().error)
        bench.clock.advance(NO_PROGRESS_S)
        reason = bench.stalled()
        assert reason is not None
        assert "no progress for 900 s; last error: " in reason
        assert "SystemExit: the interpreter is told to end" in reason
    finally:
        bench.close()


class Silent(MemoryLedgers):
    """Whoever asks for its ledgers waits while ``go`` is cleared."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.go = threading.Event()
        self.go.set()

    def ledgers(self) -> Any:
        assert self.go.wait(PATIENCE_S)
        return super().ledgers()


def test_hanging_source_does_not_block_the_watchdog(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="offloader.monitor")
    bench = Bench(Silent, status_interval=60.0)
    source = bench.source
    assert isinstance(source, Silent)
    looking = threading.Thread(target=bench.offloader.status)
    try:
        bench.stream.request_offload()
        assert bench.raw.reached.wait(PATIENCE_S)
        assert bench.stalled() is None
        source.go.clear()
        bench.clock.advance(NO_PROGRESS_S + SEGMENT_AGE_S)
        looking.start()
        eventually(lambda: [r for r in caplog.records if getattr(r, "event", "") == "stream_stalled"])
    finally:
        source.go.set()
        bench.close()
        if looking.ident is not None:
            looking.join()
