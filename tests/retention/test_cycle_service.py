"""The retention service: schedule, isolation of failures, metrics."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from formats.documents import Subscribers, document_key
from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import InvalidCallError, StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import set_global_hold
from offloader.retention.cycle import (
    DISCOVERY_S_MAX,
    JITTER,
    RetentionCycle,
    RetentionService,
    StreamCycle,
    retained_streams,
)
from offloader.retention.scope import find_scope
from offloader.retention.subscribers import open_retention
from offloader.settings import Duration, ManifestSettings, Settings, TelemetrySettings
from offloader.store.memory import MemoryStore
from offloader.telemetry.prometheus import Metrics
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits

PERIOD_S = 1800.0
_names = itertools.count()


class Bench:
    def __init__(self, streams: int = 0, **retention: Any) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"retention-service-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.settings = Settings.of({"retention": {"record_interval": "0.01m", **retention}})
        self.metrics = Metrics(TelemetrySettings(labels="topic"), clock=self.clock)
        self.cycles: list[tuple[float, str, StreamCycle]] = []
        for number in range(streams):
            self.grow(f"a/b/persistent/topic{number}", 0)
        cycle = RetentionCycle(self.store, clock=self.clock, settings_of=lambda _: self.settings)
        self.service = RetentionService(
            cycle, clock=self.clock, period_s=PERIOD_S, recorder=self.metrics, on_cycle=self.heard
        )

    def heard(self, stream: str, cycle: StreamCycle) -> None:
        self.cycles.append((self.clock.monotonic_s(), stream, cycle))

    def grow(self, stream: str, number: int) -> None:
        log = ManifestLog(self.memory, stream, clock=self.clock)
        log.open_epoch()
        log.commit(segment_edits(number))

    def pass_time(self, seconds: float) -> None:
        """Runs what is due, as the timer would."""
        end_s = self.clock.monotonic_s() + seconds
        while True:
            wait_s = self.service.run_due()
            if self.clock.monotonic_s() + wait_s > end_s:
                self.clock.advance(end_s - self.clock.monotonic_s())
                return
            self.clock.advance(wait_s)

    def value(self, name: str, stream: str = "", **labels: str) -> float | None:
        names = {"namespace": "a/b", "topic": stream, **labels} if stream else labels
        return self.metrics.registry.get_sample_value(f"offloader_{name}", names)


@pytest.mark.slow
def test_every_stream_has_one_cycle_a_period_and_cycles_are_spread() -> None:
    bench = Bench(streams=40)
    start_s = bench.clock.monotonic_s()
    bench.pass_time(PERIOD_S)
    firsts = {stream: at - start_s for at, stream, _ in reversed(bench.cycles)}
    assert len(firsts) == 40
    for part in range(4):
        assert any(part * PERIOD_S / 4 <= at < (part + 1) * PERIOD_S / 4 for at in firsts.values())
    bench.pass_time(3 * PERIOD_S)
    for stream in {stream for _, stream, _ in bench.cycles}:
        turns = [at for at, each, _ in bench.cycles if each == stream]
        steps = [b - a for a, b in itertools.pairwise(turns)]
        assert steps
        assert all(PERIOD_S * (1 - JITTER) <= step <= PERIOD_S * (1 + JITTER) for step in steps)


def test_new_streams_are_found_and_deleted_ones_forgotten() -> None:
    bench = Bench(streams=1)
    bench.pass_time(1)
    bench.grow("a/b/persistent/new", 0)
    bench.pass_time(DISCOVERY_S_MAX + PERIOD_S)
    assert {stream for _, stream, _ in bench.cycles} == {"a/b/persistent/topic0", "a/b/persistent/new"}
    for _ in range(2):
        delete_stream(bench.memory, "a/b/persistent/new", clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(24 * 3600 + 1)
    bench.cycles.clear()
    bench.pass_time(DISCOVERY_S_MAX + 2 * PERIOD_S)
    assert {stream for _, stream, _ in bench.cycles} == {"a/b/persistent/topic0"}
    assert set(bench.service.latest) == {"a/b/persistent/topic0"}


def test_recreated_stream_has_one_cycle_a_period() -> None:
    stream = "a/b/persistent/topic0"
    bench = Bench(streams=1)
    while not bench.cycles:
        bench.pass_time(1)
    at_once = ManifestSettings(orphan_age_min=Duration("0h"))
    delete_stream(bench.memory, stream, clock=bench.clock, delete_objects=lambda _: None, settings=at_once)
    bench.pass_time(DISCOVERY_S_MAX + 1)
    bench.grow(stream, 0)
    bench.pass_time(5 * PERIOD_S)
    turns = [at for at, _, _ in bench.cycles]
    assert len(turns) > 3
    assert all(step >= PERIOD_S * (1 - JITTER) for step in (b - a for a, b in itertools.pairwise(turns[1:])))


def test_failing_stream_is_retried_and_counted_and_stops_no_other() -> None:
    bench = Bench(streams=3, policy="size", min_size="1MiB")
    bench.store.set_faults([Fault(call=1, calls=10**6, key_part="/topic1/")])
    bench.pass_time(2 * PERIOD_S)
    errors = {stream: cycle.error for _, stream, cycle in bench.cycles if cycle.error is not None}
    assert list(errors) == ["a/b/persistent/topic1"]
    assert isinstance(errors["a/b/persistent/topic1"], StoreUnavailableError)
    turns = [stream for _, stream, _ in bench.cycles]
    assert turns.count("a/b/persistent/topic1") > turns.count("a/b/persistent/topic0")
    assert bench.value("streams_retention_failing", "a/b/persistent/topic1") == 1
    assert bench.value("streams_retention_failing", "a/b/persistent/topic0") == 0
    failed = bench.value("retention_cycles_total", "a/b/persistent/topic1", result="failed")
    assert failed == turns.count("a/b/persistent/topic1")
    assert bench.value("retention_refusals_total", "a/b/persistent/topic1", kind="StoreUnavailable") == failed
    bench.store.set_faults([])
    bench.pass_time(PERIOD_S)
    assert bench.service.latest["a/b/persistent/topic1"].error is None
    assert bench.value("streams_retention_failing", "a/b/persistent/topic1") == 0


def test_truncated_bytes_and_subscriber_lag_are_measured(caplog: pytest.LogCaptureFixture) -> None:
    stream = "a/b/persistent/topic0"
    bench = Bench(policy="consumption")
    for number in range(3):
        bench.grow(stream, number)
    bench.pass_time(PERIOD_S)
    assert bench.value("streams_without_subscribers", stream) == 1
    subscribers = open_retention(bench.memory, stream, clock=bench.clock)
    subscribers.add("slow")
    subscribers.add("fast")
    subscribers.publish("slow", Position(1, 10))
    subscribers.publish("fast", Position(1, 20))
    with caplog.at_level(logging.INFO, "offloader.retention"):
        bench.pass_time(PERIOD_S * 1.2)
    assert load_manifest(bench.memory, stream).head == Position(1, 10)
    assert bench.value("streams_without_subscribers", stream) == 0
    assert bench.value("unconsumed_entries", stream) == 20
    assert bench.value("unconsumed_bytes", stream) == 200
    assert bench.value("subscriber_lag_entries", stream, subscriber="slow") == 20
    assert bench.value("subscriber_lag_bytes", stream, subscriber="fast") == 100
    assert bench.value("retention_truncations_total", stream) == 1
    assert bench.value("retention_truncated_bytes_total", stream) == 100
    assert bench.value("subscribers_overridden_total", stream) == 0
    told = [record for record in caplog.records if getattr(record, "event", "") == "truncated"]
    assert [(each.stream, each.head) for each in told] == [(stream, "0.0=1:10")]  # type: ignore[attr-defined]
    subscribers.publish("slow", Position(1, 20))
    bench.pass_time(PERIOD_S * 1.2)
    assert bench.value("subscriber_read_bytes_total", stream, subscriber="slow") == 100


def test_subscribers_losing_data_to_max_are_counted() -> None:
    """Segments of ten entries and 100 bytes; 200 bytes may stay for slow subscribers."""
    stream = "a/b/persistent/topic0"
    bench = Bench(policy="consumption", min_size=50, max_size=200)
    bench.grow(stream, 0)
    for name in ("slow", "slower"):
        subscribers = open_retention(bench.memory, stream, clock=bench.clock)
        subscribers.add(name)
        subscribers.publish(name, Position(1, 1))
    for number in range(1, 5):
        bench.grow(stream, number)
        bench.pass_time(PERIOD_S * 1.2)
    decisions = [cycle.outcome.decision for _, _, cycle in bench.cycles if cycle.outcome is not None]
    lost = sum(len(each.overridden) for each in decisions if each is not None)
    assert lost >= 2
    assert bench.value("subscribers_overridden_total", stream) == lost
    head = load_manifest(bench.memory, stream).head
    assert head == Position(1, 30)
    assert bench.value("retention_truncated_bytes_total", stream) == 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DeletionStopped", "EditRefused", "ClockSkew", "InvalidCall", "Corrupt"])
def test_refusals_are_counted_by_their_reason_and_nothing_changes(kind: str) -> None:
    stream = "a/b/persistent/topic0"
    bench = Bench(policy="consumption")
    bench.grow(stream, 0)
    bench.pass_time(PERIOD_S * 1.2)
    registry = open_retention(bench.memory, stream, clock=bench.clock)
    registry.add("billing")
    registry.publish("billing", Position(1, 10))
    if kind == "DeletionStopped":
        set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
    elif kind == "EditRefused":
        log = ManifestLog(bench.memory, stream, clock=bench.clock)
        log.load()
        log.commit_as_maintainer([Hold(True, "court")])
    elif kind == "ClockSkew":
        bench.clock.set_now_ms(bench.clock.now_ms() + 72 * 3_600_000)
    elif kind == "InvalidCall":
        bench.settings = Settings.of({"retention": {"policy": "size", "min_size": "2MiB", "max_size": "1MiB"}})
    else:
        place = find_scope(bench.memory, stream)
        assert place.incarnation is not None
        bench.memory.put(document_key(Subscribers, stream, place.incarnation), b"{}")
    bench.pass_time(PERIOD_S * 1.2)
    assert (bench.value("retention_refusals_total", stream, kind=kind) or 0) >= 1
    assert bench.value("retention_truncations_total", stream) == 0
    assert load_manifest(bench.memory, stream).head is None


def test_topic_has_one_cycle_and_internal_streams_none() -> None:
    bench = Bench()
    for name in ("a/b/persistent/t-partition-0", "a/b/persistent/t-partition-1", "a/b/persistent/__internal", "a/b/c"):
        bench.grow(name, 0)
    assert retained_streams(bench.memory) == ["a/b/c", "a/b/persistent/t"]


def test_service_outlives_a_bug_and_ends_when_closed() -> None:
    bench = Bench(streams=1)
    calls: list[Any] = []

    def call_after(_: float, run: Any) -> None:
        calls.append(run)

    bench.service.start(call_after)
    bench.service.start(call_after)
    assert len(calls) == 1
    bench.service._cycle.store = None  # type: ignore[assignment]
    calls.pop()()
    assert len(calls) == 1
    bench.service.close()
    calls.pop()()
    assert not calls
    bench.service.close()


def test_contradictory_settings_are_an_error_of_that_stream_only() -> None:
    bench = Bench(streams=1, policy="size")
    bench.pass_time(PERIOD_S)
    errors = [cycle.error for _, _, cycle in bench.cycles]
    assert errors
    for error in errors:
        assert isinstance(error, InvalidCallError)
        assert "retention.min_size" in error.message


def test_queue_without_subscribers_falls_back_after_its_period() -> None:
    stream = "a/b/persistent/topic0"
    bench = Bench(
        policy="consumption",
        subscriber_timeout="10m",
        fallback_after="60m",
        fallback_min_size=150,
    )
    for number in range(3):
        bench.grow(stream, number)
        bench.pass_time(PERIOD_S * 0.6)
    assert load_manifest(bench.memory, stream).head is None
    for number in range(3, 6):
        bench.grow(stream, number)
        bench.pass_time(PERIOD_S * 1.2)
    decision = bench.service.latest[stream].outcome.decision  # type: ignore[union-attr]
    assert decision is not None
    assert decision.is_fallback
    # Of 600 bytes the newest recorded cut that leaves 150.
    assert load_manifest(bench.memory, stream).head == Position(1, 40)
