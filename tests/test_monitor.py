"""The stream monitor: values of metrics and status document, and cleanup after closed streams."""

from __future__ import annotations

import gc
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.segment_table import SegmentSums
from offloader.monitor import Observation, Outage
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings, TelemetrySettings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.telemetry.prometheus import Metrics
from offloader.testing.manual_clock import ManualClock
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from offloader.write.stream_state import Lag, StreamStatus
from tests.support.metrics import exposed, of_namespace
from tests.support.waiting import eventually

TOPIC = "tenant/ns/persistent/topic-0"
MS = 1_700_000_000_000


class Scripted:
    """A stream that says what it is told to say."""

    def __init__(self, stream: str, **given: Any) -> None:
        self.stream = stream
        self.given = given
        self.lag_given: Lag | None = Lag(0, 0, 0.0)

    def status(self) -> StreamStatus:
        defaults: dict[str, Any] = {
            "mode": Mode.LIVE,
            "buffer_bytes": 0,
            "buffer_bytes_max": 1000,
            "tail": None,
            "offered": None,
            "committed": None,
            "segments_committed": 0,
            "segments_failed": 0,
            "offers_refused": 0,
            "error": "",
            "stored": SegmentSums(),
        }
        return StreamStatus(**{**defaults, **self.given})

    def lag(self) -> Lag:
        if self.lag_given is None:
            raise StoreUnavailableError("the ledgers are away")
        return self.lag_given


def observed(clock: Clock | None = None, **given: Any) -> tuple[Observation, Metrics]:
    clock = clock or ManualClock()
    metrics = Metrics(TelemetrySettings(), clock)
    return Observation(Settings.of({"telemetry": given}), clock, recorder=metrics), metrics


@contextmanager
def streaming(tmp_path: Path, store: ObjectStore) -> Iterator[tuple[Any, LedgerOffloader, StreamOffload]]:
    """A source, an offloader that isn't looking by itself, and its stream."""
    ledgers = EmbeddedLedgers(str(tmp_path / "ledgers.db"))
    settings = Settings.of({"telemetry": {"status_interval": 3600.0}})
    offloader = LedgerOffloader(store, settings)
    source = ledgers.open_stream(TOPIC)
    offload = offloader.offload_stream(source, TOPIC)
    try:
        yield source, offloader, offload
    finally:
        offload.stop()
        offloader.close()
        ledgers.close()


def test_offloaded_bytes_are_counted_exactly(tmp_path: Path) -> None:
    metrics = Metrics(TelemetrySettings(), SystemClock())
    store = open_store(f"file://{tmp_path}/store", recorder=metrics)
    with streaming(tmp_path, store) as (source, offloader, offload):
        source.append([b"x" * 10] * 7, [MS + 1000 * i for i in range(7)])
        assert offload.lag() == Lag(7, 70, 6.0)
        offload.offload()
        source.append([b"y" * 5] * 4, MS + 20_000)
        (row,) = offloader.observation.look()["streams"]
        # 90 bytes in 11 entries, 4 of which aren't committed: by the mean entry
        assert row["lag"] == {"entries": 4, "bytes": 33, "seconds": 14.0}
        assert of_namespace(metrics, "lag_entries", TOPIC) == 4
        assert of_namespace(metrics, "lag_seconds", TOPIC) == 14.0
        offload.offload()
        (row,) = offloader.status()["streams"]
        assert row["committed"] == row["tail"] == row["offered"]
        assert row["lag"] == {"entries": 0, "bytes": 0, "seconds": 0.0}
        assert of_namespace(metrics, "lag_entries", TOPIC) == 0
        assert of_namespace(metrics, "lag_bytes", TOPIC) == 0
        assert of_namespace(metrics, "last_progress_timestamp_seconds", TOPIC) == row["last_progress_ms"] / 1000
    assert of_namespace(metrics, "streams", TOPIC, mode="stopped") is None, "it was closed"
    assert of_namespace(metrics, "entries_offloaded_total", TOPIC) == 11
    assert of_namespace(metrics, "bytes_offloaded_total", TOPIC) == 90
    assert of_namespace(metrics, "segments_total", TOPIC, status="offloaded") == 2
    stored = [info for info in store.list(TOPIC + "/").objects if "/manifest/" not in info.key]
    uploaded = of_namespace(metrics, "uploaded_bytes_total", TOPIC) or 0
    assert uploaded >= sum(info.size_bytes for info in stored)


def test_numbers_of_a_namespace_are_those_of_its_streams_together() -> None:
    observation, metrics = observed()
    tail = Position(1, 6)
    one = Scripted("t/n/persistent/a", buffer_bytes=100, last_progress_ms=9000, tail=tail)
    other = Scripted("t/n/persistent/b", buffer_bytes=50, mode=Mode.CATCH_UP, last_progress_ms=4000, tail=tail)
    one.lag_given, other.lag_given = Lag(3, 30, 1.5), Lag(4, 40, 9.0)
    observation.add(one)
    observation.add(other)
    observation.look()
    stream = "t/n/persistent/a"
    assert of_namespace(metrics, "buffer_bytes", stream) == 150
    assert of_namespace(metrics, "buffer_limit_bytes", stream) == 2000
    assert of_namespace(metrics, "streams", stream, mode="live") == 1
    assert of_namespace(metrics, "streams", stream, mode="catch-up") == 1
    assert of_namespace(metrics, "lag_entries", stream) == 7
    assert of_namespace(metrics, "lag_bytes", stream) == 70
    assert of_namespace(metrics, "lag_seconds", stream) == 9.0
    assert of_namespace(metrics, "last_progress_timestamp_seconds", stream) == 4.0


@pytest.mark.slow
def test_closed_streams_leave_nothing_in_the_monitor() -> None:
    (observation, metrics), held = observed(), []
    for number in range(20):
        stream = Scripted(f"t/n/persistent/{number}", buffer_bytes=1)
        observation.add(stream)
        assert of_namespace(metrics, "buffer_bytes", stream.stream) == number + 1
        held.append(stream)
    del stream, held
    gc.collect()
    assert observation.look()["streams"] == []
    assert [name for name in exposed(metrics) if "{" in name] == []


def test_closed_streams_have_no_gauges_but_fenced_ones_do() -> None:
    observation, metrics = observed()
    streams = [
        Scripted("t/fenced/persistent/a", mode=Mode.STOPPED, error="epoch 7 has it", error_kind="FencedError"),
        Scripted("t/closed/persistent/a", mode=Mode.STOPPED, error="it was stopped", error_kind="ClosedError"),
    ]
    for stream in streams:
        observation.add(stream)
    assert of_namespace(metrics, "streams", "t/fenced/persistent/a", mode="stopped") == 1
    assert of_namespace(metrics, "streams", "t/closed/persistent/a", mode="stopped") is None
    assert len(observation.look()["streams"]) == 2


def test_restarted_stream_counts_once_while_the_old_one_is_still_referenced() -> None:
    observation, metrics = observed()
    streams = [
        Scripted("a", mode=Mode.STOPPED, error="it was stopped", error_kind="ClosedError", buffer_bytes=7),
        Scripted("a", mode=Mode.LIVE, buffer_bytes=5),
    ]
    for stream in streams:
        observation.add(stream)
    assert of_namespace(metrics, "buffer_bytes", "a") == 5
    assert [row["mode"] for row in observation.look()["streams"]] == ["live"]


def test_closed_monitor_reports_no_gauges() -> None:
    observation, metrics = observed()
    observation.add(stream := Scripted("a"))
    observation.close()
    assert of_namespace(metrics, "streams", stream.stream, mode="live") is None


@pytest.mark.slow
def test_unreferenced_stream_is_no_longer_monitored() -> None:
    observation, _ = observed()
    stream = Scripted("a")
    observation.add(stream)
    assert [row["stream"] for row in observation.look()["streams"]] == ["a"]
    del stream
    gc.collect()
    assert observation.look()["streams"] == []


def test_unreachable_source_leaves_the_lag_unknown() -> None:
    observation, metrics = observed()
    stream = Scripted("a", tail=Position(1, 6))
    stream.lag_given = None
    observation.add(stream)
    (row,) = observation.look()["streams"]
    assert row["lag"] is None
    assert of_namespace(metrics, "lag_entries", "a") is None


def test_stall_is_logged_once_at_its_beginning_and_once_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="offloader.monitor")
    clock = ManualClock()
    observation, metrics = observed(clock, watchdog_no_progress=60.0)
    stream = Scripted("a", mode=Mode.CATCH_UP, tail=Position(1, 5), error="the disk is full")
    observation.add(stream)
    for _ in range(5):
        observation.look()
        clock.advance(30.0)
    (row,) = observation.look()["streams"]
    assert "no progress for 150 s; last error: the disk is full" in row["stalled"]
    assert of_namespace(metrics, "streams_stalled", "a") == 1
    stream.given["committed"] = Position(1, 5)
    (row,) = observation.look()["streams"]
    assert row["stalled"] is None
    assert of_namespace(metrics, "streams_stalled", "a") == 0
    events = [(record.event, record.stream) for record in caplog.records if hasattr(record, "event")]  # type: ignore[attr-defined]
    assert events == [("stream_stalled", "a"), ("stream_moves", "a")]


def test_unwritable_status_file_is_logged_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    observation, _ = observed(status_file=str(tmp_path / "missing" / "status.json"))
    observation.add(stream := Scripted("a"))
    for _ in range(3):
        assert observation.look()["streams"][0]["stream"] == stream.stream
    assert len([record for record in caplog.records if "can't be written" in record.getMessage()]) == 1


def test_monitor_looks_every_interval_and_once_more_on_close(tmp_path: Path) -> None:
    clock = ManualClock()
    file = tmp_path / "status.json"
    observation, _ = observed(clock, status_file=str(file), status_interval=7.0)
    due: list[tuple[float, Any]] = []
    observation.start(lambda delay_s, run: due.append((delay_s, run)))
    observation.start(lambda delay_s, run: due.append((delay_s, run)))
    for _ in range(3):
        ((delay_s, run),) = due
        due.clear()
        clock.advance(delay_s)
        run()
        assert json.loads(file.read_text())["written_ms"] == clock.now_ms()
    assert due[0][0] == 7.0
    clock.advance(1.0)
    observation.close()
    assert json.loads(file.read_text())["written_ms"] == clock.now_ms()
    file.unlink()
    observation.close()
    due[0][1]()
    assert not file.exists()
    assert list(tmp_path.iterdir()) == []


class OvertakenClock(ManualClock):
    """Something else happens between a look's beginning and what it sees."""

    meanwhile: Callable[[], object] | None = None

    def monotonic_s(self) -> float:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().monotonic_s()


def test_a_look_that_close_overtakes_does_not_replace_the_final_status(tmp_path: Path) -> None:
    clock, file = OvertakenClock(), tmp_path / "status.json"
    observation, _ = observed(clock, status_file=str(file))
    due: list[Any] = []
    observation.start(lambda _, run: due.append(run))

    def close_and_take_away() -> None:
        observation.close()
        file.unlink()

    clock.meanwhile = close_and_take_away
    due.pop()()
    assert not file.exists()


def test_failing_look_is_logged_and_followed_by_more(caplog: pytest.LogCaptureFixture) -> None:
    observation, _ = observed(watchdog_no_progress=60.0)
    observation.add(stream := Scripted("a"))
    stream.given["mode"] = "no mode at all"
    due: list[Any] = []
    observation.start(lambda _, run: due.append(run))
    due.pop()()
    assert "the observation of the streams failed" in caplog.text
    stream.given["mode"] = Mode.LIVE
    caplog.clear()
    due.pop()()
    assert caplog.text == ""
    assert len(due) == 1


@pytest.mark.slow
def test_offloader_writes_its_status_file_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    settings = Settings.of({"telemetry": {"status_file": str(file), "status_interval": 0.05}})
    store = open_store(f"file://{tmp_path}/store")
    with open_managed_ledger(TOPIC, ledgers=str(tmp_path / "l.db"), store=store, settings=settings) as ledger:
        ledger.append(b"x")
        # The first ones may be older than the stream.
        eventually(lambda: file.exists() and any(each["tail"] for each in json.loads(file.read_text())["streams"]))
        document = json.loads(file.read_text())
    assert document["streams"][0]["mode"] in ("live", "catch-up")
    assert document["limits"]["pace_requests_per_s"] is None
    assert json.loads(file.read_text())["streams"][0]["mode"] == "stopped"


class Weak(MemoryStore):
    """Lets two creators win."""

    def put(self, key: str, body: Any, *, mode: Any = None, **more: Any) -> Any:
        return super().put(key, body, **more)


def test_weak_store_with_a_single_writer_is_reported_in_the_status(tmp_path: Path) -> None:
    store = Weak("weak", "", SystemClock())
    file = tmp_path / "status.json"
    settings = Settings.of({"store": {"single_writer": True}, "telemetry": {"status_file": str(file)}})
    with open_managed_ledger(TOPIC, ledgers=str(tmp_path / "l.db"), store=store, settings=settings) as ledger:
        ledger.append(b"x")
    document = json.loads(file.read_text())
    assert document["store"]["single_writer"] is True
    assert "a create replaces an existing object" in document["store"]["problems"]
    assert document["store"]["url"] == store.url


@pytest.mark.slow
def test_hanging_source_delays_a_look_once_and_what_was_known_is_shown() -> None:
    clock, go_on = ManualClock(), threading.Event()
    observation, _ = observed(clock)
    stream = Scripted("a", tail=Position(1, 9), committed=Position(1, 4))
    stream.lag_given = Lag(5, 50, 2.0)
    observation.add(stream)
    (row,) = observation.look()["streams"]
    assert (row["lag"], row["lag_known_ms"]) == ({"entries": 5, "bytes": 50, "seconds": 2.0}, None)
    known_ms, asked = clock.now_ms(), threading.Semaphore(0)

    class Hanging(Scripted):
        def lag(self) -> Lag:
            asked.release()
            go_on.wait()
            return Lag(0, 0, 0.0)

    observation.remove(stream)
    hanging = Hanging("a", tail=Position(1, 9), committed=Position(1, 4))
    observation.add(hanging)
    try:
        for _ in range(3):
            clock.advance(20.0)
            (row,) = observation.look()["streams"]
        asked.acquire()
        assert not asked.acquire(timeout=0.1), "it isn't asked again while it hangs"
        assert row["lag"] == {"entries": 5, "bytes": 50, "seconds": 62.0}
        assert row["lag_known_ms"] == known_ms
    finally:
        go_on.set()


def test_disconnected_stream_has_a_lag_that_grows_and_ends_with_the_outage() -> None:
    clock, outage = ManualClock(), Outage()
    observation, metrics = observed(clock)
    stream = Scripted("a/b", tail=Position(1, 9), committed=Position(1, 9))
    observation.add(stream)
    observation.complete_with(lambda rows: rows, lambda _: outage)
    (row,) = observation.look()["streams"]
    assert (row["mode"], row["lag"]["seconds"], row["lag_known_ms"], row["disconnected"]) == ("live", 0.0, None, None)
    known_ms, outage = clock.now_ms(), Outage(source="the broker doesn't answer: connection refused")
    for seconds in (30.0, 60.0):
        clock.advance(30.0)
        (row,) = observation.look()["streams"]
        assert (row["mode"], row["disconnected"]) == ("disconnected", outage.source)
        assert (row["lag"]["seconds"], row["lag_known_ms"]) == (seconds, known_ms)
        assert of_namespace(metrics, "lag_seconds", "a/b") == seconds
        assert of_namespace(metrics, "streams", "a/b", mode="disconnected") == 1.0
    outage = Outage()
    (row,) = observation.look()["streams"]
    assert (row["mode"], row["lag"]["seconds"], row["lag_known_ms"]) == ("live", 0.0, None)


def test_waiting_stream_is_stalled_while_the_store_does_not_answer() -> None:
    clock, outage = ManualClock(), Outage(store="the store doesn't answer: no answer within 5 s")
    observation, metrics = observed(clock)
    waits = Scripted("a/waits", tail=Position(1, 9), committed=Position(1, 4))
    rests = Scripted("a/rests", tail=Position(1, 9), committed=Position(1, 9))
    for each in (waits, rests):
        observation.add(each)
    observation.complete_with(lambda rows: rows, lambda _: outage)
    found = {row["stream"]: row for row in observation.look()["streams"]}
    assert (found["a/waits"]["mode"], found["a/rests"]["mode"]) == ("stalled", "live")
    assert found["a/waits"]["stalled"] == f"entries up to 1:9 wait: {outage.store}"
    assert of_namespace(metrics, "streams", "a/waits", mode="stalled") == 1.0
    assert of_namespace(metrics, "streams_stalled", "a/waits") == 1.0


def test_handover_during_an_outage_keeps_the_lag() -> None:
    """A process that takes a stream over can't read its manifest: it isn't caught up because it knows nothing."""
    clock, outage = ManualClock(), Outage()
    observation, metrics = observed(clock)
    observation.complete_with(lambda rows: rows, lambda _: outage)
    led = Scripted("a/b", tail=Position(1, 9), committed=Position(1, 4))
    led.lag_given = Lag(5, 50, 2.0)
    observation.add(led)
    observation.look()
    assert of_namespace(metrics, "lag_seconds", "a/b") == 2.0
    outage = Outage(store="the store doesn't answer: no answer within 5 s")
    observation.remove(led)
    clock.advance(30.0)
    observation.look()  # handed over
    back, taken = Scripted("a/b", stored=None), Scripted("a/taken", stored=None)
    for each in (back, taken):
        observation.add(each)
        observation.look()
        clock.advance(60.0)
        rows = {row["stream"]: row for row in observation.look()["streams"]}
        assert rows[each.stream]["lag"]["seconds"] == (92.0 if each is back else 60.0)
    assert of_namespace(metrics, "lag_seconds", "a/b") == 152.0
    outage = Outage()
    rows = {row["stream"]: row for row in observation.look()["streams"]}
    assert rows["a/b"]["lag"]["seconds"] == 152.0, "until its manifest is read"
    for each in (back, taken):
        each.given = {"tail": Position(1, 9), "committed": Position(1, 9)}
    assert {row["lag"]["seconds"] for row in observation.look()["streams"]} == {0.0}


def test_lag_is_unknown_before_the_manifest_is_read() -> None:
    observation, metrics = observed()
    stream = Scripted("a/b", stored=None)
    observation.add(stream)
    (row,) = observation.look()["streams"]
    assert row["lag"] is None
    assert of_namespace(metrics, "lag_seconds", "a/b") is None
