"""Every metric's value for known numbers: offloaded, requested, refused, lost, read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import FencedError, OutcomeUnknownError, StoreUnavailableError, ThrottledError
from offloader.ledgers.base import NotChosenError
from offloader.ledgers.sqlite.stream import EmbeddedStream
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, LedgerSettings, LimitSettings, Settings, StoreSettings, TelemetrySettings
from offloader.store.base import Body, ObjectInfo, ObjectStore, StoreOptions
from offloader.store.memory import MemoryStore
from offloader.store.open import stack
from offloader.store.rate_limit import Limiter, Traffic
from offloader.store.wrappers import Request, histogram_of, requests_of, stream_of
from offloader.telemetry.prometheus import Metrics
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from tests.support.metrics import exposed
from tests.support.waiting import eventually
from tests.write.streaming_bench import STREAM, Bench, settings

NAMESPACE = "public/default"


class Measured:
    """A stream's hot tier and store; what goes through the store is measured."""

    def __init__(self, directory: Path, given: Settings) -> None:
        self.bench = Bench(directory, settings=given)
        self.metrics = Metrics()
        self.store = opened(self.bench.store, self.metrics)

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of a metric of the stream's namespace."""
        return self.metrics.registry.get_sample_value(f"offloader_{name}", {"namespace": NAMESPACE, **labels})


def opened(raw: ObjectStore, metrics: Metrics, clock: ManualClock | None = None) -> ObjectStore:
    fast = StoreSettings(retry_delay_first=Duration(0.0), retry_delay_max=Duration(0.0))
    return stack(raw, StoreOptions(settings=fast, clock=clock or SystemClock(), recorder=metrics))


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[Measured]:
    made = Measured(tmp_path, settings(segment_size_max="100MiB"))
    yield made
    made.bench.close()


def test_entries_bytes_and_segments_of_a_stream(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([b"x" * 100] * 7, 1_000)
    stream.offload()
    source.append([b"y" * 10] * 2, 2_000)
    stream.offload()
    assert measured("entries_offloaded_total") == 9
    assert measured("bytes_offloaded_total") == 720
    assert measured("segments_total", status="offloaded") == 2
    assert measured("segments_total", status="failed") == 0
    assert measured("gaps_total") == measured("fenced_total") == measured("offers_refused_total") == 0
    assert measured("streams", mode="live") == 1
    assert measured("buffer_bytes") == 0
    assert measured("buffer_limit_bytes") == stream.status().buffer_bytes_max


def test_entries_that_wait_in_memory_are_buffered_and_behind(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([b"x" * 100] * 3, 1_000)
    stream.offload()
    source.append([b"x" * 100] * 5, 4_500)
    eventually(lambda: stream.status().mode is Mode.LIVE and stream.status().offered == stream.status().tail)
    assert measured("lag_entries") == 5
    assert measured("lag_bytes") == 500
    assert measured("lag_seconds") == 3.5
    assert measured("buffer_bytes") == stream.status().buffer_bytes
    assert (measured("buffer_bytes") or 0) >= 500
    assert measured("last_progress_timestamp_seconds") == pytest.approx((stream.status().last_progress_ms or 0) / 1000)


def test_history_and_the_ledger_method_count_like_a_stream(measured: Measured) -> None:
    source = measured.bench.open()
    for size in (10, 20):
        source.append([bytes(size)] * 4, 1_000)
        source.close_ledger()
    with_offloader = LedgerOffloader(measured.store, measured.bench.settings)
    with_offloader.offload_ledgers(source, STREAM)
    assert measured("segments_total", status="offloaded") == 2
    source.append([bytes(30)] * 4, 1_000)
    result = with_offloader.history.backfill(source, STREAM)
    with_offloader.close()
    assert len(result.offloaded) == 1
    assert measured("segments_total", status="offloaded") == 3
    assert measured("entries_offloaded_total") == 12
    assert measured("bytes_offloaded_total") == 4 * (10 + 20 + 30)


def test_adopted_segment_is_counted_by_its_new_owner(measured: Measured) -> None:
    source = measured.bench.open()
    measured.bench.store.set_faults([Fault(call=1, calls=10**9, verb="put", key_part="-index")])
    dead = measured.bench.start(source)
    source.append([b"x" * 100] * 3, 1_000)
    dead.request_offload()
    eventually(lambda: "-index" in dead.status().error)
    dead.forget()
    dead.stop()  # else it may commit the segment itself once the store works again
    measured.bench.store.set_faults([])
    again = measured.bench.start(source, measured.store)
    eventually(lambda: again.status().committed == again.status().tail)
    assert measured("segments_total", status="offloaded") == 1
    assert measured("entries_offloaded_total") == 3
    assert measured("bytes_offloaded_total") == 300


def test_a_record_of_unknown_outcome_counts_once(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([b"x" * 100] * 3, 1_000)
    eventually(lambda: stream.status().offered == stream.status().tail)
    lost = [Fault(call=2, calls=20, verb="put", key_part="/manifest/", after=True, error=OutcomeUnknownError)]
    measured.bench.store.set_faults(lost)
    stream.offload()
    assert measured("entries_offloaded_total") == 3
    assert measured("segments_total", status="offloaded") == 1


def test_segment_that_its_owner_abandoned_is_no_failed_one(
    measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    first = measured.bench.start(source := measured.bench.open(), measured.store)
    source.append([b"x" * 100] * 3, 1_000)
    eventually(measured.bench.has_assigned)
    first.stop()
    with caplog.at_level("INFO", "offloader.segments"):
        measured.bench.start(measured.bench.open(), measured.store).offload()
    assert measured("segments_total", status="failed") == 0
    assert measured("segments_total", status="abandoned") == 1
    assert measured("segments_total", status="offloaded") == 1
    [line] = [each for each in caplog.records if "owner was replaced" in each.getMessage()]
    assert (line.levelname, line.__dict__["event"]) == ("INFO", "segment_abandoned")


def test_a_segment_that_fails_counts_and_so_do_its_errors_and_retries(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([b"x" * 100] * 3, 1_000)
    eventually(lambda: stream.status().offered == stream.status().tail)
    attempts = 1 + StoreSettings().retries_max
    failing = [Fault(call=1, calls=attempts, verb="put", key_part="-index", error=StoreUnavailableError)]
    measured.bench.store.set_faults(failing)
    stream.offload()
    assert measured("segments_total", status="failed") == 1
    assert measured("segments_total", status="offloaded") == 1
    assert measured("entries_offloaded_total") == 3
    assert measured("request_errors_total", kind="store_unavailable") == attempts
    assert exposed(measured.metrics)["retries_total"] == attempts - 1


def test_throttles_are_errors_too_and_slow_the_process_down() -> None:
    metrics, clock = Metrics(TelemetrySettings(), ManualClock()), ManualClock()
    raw = FaultyStore(MemoryStore("throttles", "", clock), [Fault(verb="head", call=1, calls=3, error=ThrottledError)])
    raw.put("a/b/persistent/c/k", b"x")
    opened(raw, metrics, clock).head("a/b/persistent/c/k")
    found = exposed(metrics)
    assert found['throttles_total{namespace="a/b"}'] == 3
    assert found['request_errors_total{kind="throttled",namespace="a/b"}'] == 3
    assert found["retries_total"] == 3


def test_time_spent_throttled_is_counted() -> None:
    metrics, clock = Metrics(TelemetrySettings(), ManualClock()), ManualClock()
    limits = LimitSettings(bytes_per_s=100.0)
    options = StoreOptions(settings=StoreSettings(), clock=clock, recorder=metrics, limiter=Limiter(limits, clock))
    store = stack(MemoryStore("turns", "", clock), options)
    for number in range(4):
        store.put(f"k{number}", bytes(100))
    assert exposed(metrics)["throttled_seconds_total"] == pytest.approx(3.0, abs=0.1)
    assert exposed(metrics)["throttled_seconds_total"] == pytest.approx(clock.monotonic_s())


def test_stream_taken_by_another_owner_counts_as_fenced_once(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([b"x" * 100] * 3, 1_000)
    stream.offload()
    other = measured.bench.start(source)
    source.append([b"y"] * 2, 2_000)
    other.offload()
    source.append([b"z"] * 2, 3_000)
    with pytest.raises(FencedError):
        stream.offload()
    assert measured("fenced_total") == 1
    assert measured("streams", mode="stopped") == 1
    assert measured("streams_stalled") == 1
    assert measured("entries_offloaded_total") == 3, "the other one's are counted where it runs"


def test_handover_that_the_broker_decided_alarms_nobody(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)

    def release(_: object, position: Position) -> None:
        raise NotChosenError(f"another consumer has {position}")

    monkeypatch.setattr(EmbeddedStream, "release", release)
    source.append([b"x" * 100] * 3, 1_000)
    with caplog.at_level(logging.INFO, "offloader"):
        stream.offload()
        eventually(lambda: "is left to another process" in caplog.text)
    assert measured("fenced_total") == 0
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []


def test_an_entry_that_finds_the_buffer_full_is_a_refused_offer(tmp_path: Path) -> None:
    small = settings(offload_buffer_size_max=64 * 1024, segment_size_max="100MiB")
    measured = Measured(tmp_path, replace(small, ledgers=LedgerSettings()))
    try:
        source = measured.bench.open()
        stream = measured.bench.start(source, measured.store)
        source.append([bytes(1000)], 1_000)
        eventually(lambda: stream.status().mode is Mode.LIVE and stream.status().offered == stream.status().tail)
        source.append([bytes(30_000)] * 3, 2_000)
        assert measured("offers_refused_total") == stream.status().offers_refused == 1
        stream.offload()
        assert measured("entries_offloaded_total") == 4
    finally:
        measured.bench.close()


def test_recorded_gap_is_counted(tmp_path: Path) -> None:
    measured = Measured(tmp_path, settings(on_gap="record"))
    try:
        source = measured.bench.open()
        stream = measured.bench.start(source, measured.store)
        source.append([b"x"] * 2, 1_000)
        first = source.close_ledger()
        stream.offload()
        measured.bench.store.set_faults([Fault(call=1, calls=10**9)])
        source.append([b"y"] * 3, 1_000)
        lost = source.close_ledger()
        source.append([b"z"] * 4, 1_000)
        assert first is not None
        assert lost is not None
        source.delete(first.ledger_id)
        source.delete(lost.ledger_id)
        # What was offered before it was deleted would still be offloaded: a restart has only the hot tier.
        stream.stop()
        measured.bench.store.set_faults([])
        measured.bench.start(source, measured.store).offload()
        assert measured("gaps_total") == 1
        assert measured("entries_offloaded_total") == 6
    finally:
        measured.bench.close()


def test_requests_and_their_cost_are_counted_by_verb(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([bytes(5000)] * 20, 1_000)
    stream.offload()
    stream.stop()
    counted = requests_of(measured.store)
    labels = {"namespace": NAMESPACE}
    by_verb = {verb: measured("requests_total", verb=verb) or 0 for verb in counted}
    # The catalogue asks for two names above the namespace too; the store's identity is asked for and created.
    others = {"get": 3, "put": 1}
    assert by_verb == {verb: count.requests - others.get(verb, 0) for verb, count in counted.items()}
    assert by_verb["put"] == 7, "data, index, three records, and what a new stream needs: catalogue, boundary"
    identity_bytes = measured.store.head("_store").size_bytes
    sent = sum(count.bytes_sent for count in counted.values()) - identity_bytes
    assert measured.metrics.registry.get_sample_value("offloader_uploaded_bytes_total", labels) == sent
    received = sum(count.bytes_received for count in counted.values())
    assert measured("downloaded_bytes_total") == received
    prices = TelemetrySettings()
    assert by_verb.keys() == {"get", "head", "put", "list"}
    writes, reads = by_verb["put"] + by_verb["list"], by_verb["get"] + by_verb["head"]
    expected = (writes * prices.write_cost_per_1000 + reads * prices.read_cost_per_1000) / 1000
    assert measured("request_cost_estimate_dollars_total") == pytest.approx(expected)


def test_latencies_are_recorded_by_purpose(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    source.append([bytes(1000)] * 20, 1_000)
    stream.offload()
    assert measured("upload_seconds_count") == 1
    assert measured("index_seconds_count") == 1
    assert measured("commit_seconds_count") == 3
    assert measured("read_seconds_count") is None
    with open_stream_reader(measured.store, STREAM) as reader:
        first = reader.first_position
        assert first is not None
        reader.read(first, first)
    assert measured("index_read_seconds_count") == 1
    assert measured("read_seconds_count") == 1


def test_a_requests_latency_is_the_time_it_took() -> None:
    clock = ManualClock()
    metrics = Metrics(TelemetrySettings(), clock)

    class Slow(MemoryStore):
        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            clock.advance(0.75)
            return super().put(key, body, **more)

    store = opened(Slow("slow", "", clock), metrics, clock)
    store.put("a/b/persistent/c/00000000-0000-0000-0000-000000000001", b"x")
    found = exposed(metrics)
    assert found['upload_seconds_sum{namespace="a/b"}'] == 0.75
    assert found['upload_seconds_bucket{le="0.5",namespace="a/b"}'] == 0
    assert found['upload_seconds_bucket{le="1.0",namespace="a/b"}'] == 1


@pytest.mark.slow
def test_reads_count_fetched_used_and_cached_bytes(measured: Measured) -> None:
    source = measured.bench.open()
    stream = measured.bench.start(source, measured.store)
    [batch] = source.append([bytes(500)] * 20, 1_000)
    stream.offload()
    with open_stream_reader(measured.store, STREAM) as reader:
        [segment] = reader.segments()
        assert segment.summary is not None
        assert measured("read_fetched_bytes_total") is None
        reader.read(batch.first, batch.first)
        assert measured("read_used_bytes_total") == 500
        assert (measured("cache_hits_total"), measured("cache_misses_total")) == (None, 2)
        fetched = measured("read_fetched_bytes_total") or 0
        assert segment.summary.index_bytes + 500 < fetched < segment.summary.index_bytes + 3000
        second = Position(batch.ledger_id, batch.first.entry_id)
        reader.read(second, second)
        assert measured("read_used_bytes_total") == 1000
        assert (measured("cache_hits_total"), measured("cache_misses_total")) == (2, 2)
        assert measured("read_fetched_bytes_total") == fetched, "all of it was in memory"
        assert sum(len(each) for each in reader.scan()) == 20
    assert measured("read_used_bytes_total") == 1000 + 20 * 500
    # The index was in memory; a scan looks there and keeps nothing.
    blocks_bytes = (measured("read_fetched_bytes_total") or 0) - fetched
    assert 20 * 500 < blocks_bytes <= segment.summary.data_bytes


UUID = "0a7434f0-4b1d-8b09-9c70-26297034f452"


@pytest.mark.parametrize(
    ("verb", "traffic", "key", "stream", "histogram"),
    [
        ("put", Traffic.UPLOAD, f"{STREAM}/{UUID}", STREAM, "upload_seconds"),
        ("upload_part", Traffic.UPLOAD, f"{STREAM}/{UUID}-ledger-7", STREAM, "upload_seconds"),
        ("put", Traffic.UPLOAD, f"{STREAM}/{UUID}-index", STREAM, "index_seconds"),
        ("put", Traffic.UPLOAD, f"{STREAM}/manifest/{UUID}/{7:020d}.json", STREAM, "commit_seconds"),
        ("put", Traffic.UPLOAD, f"{STREAM}/manifest/{UUID}/{7:020d}.checkpoint.parquet", STREAM, ""),
        ("put", Traffic.UPLOAD, f"{STREAM}/manifest/{UUID}/boundary", STREAM, ""),
        ("get", Traffic.READ, f"{STREAM}/{UUID}", STREAM, "read_seconds"),
        ("get", Traffic.READ, f"{STREAM}/{UUID}-index", STREAM, "index_read_seconds"),
        ("get", Traffic.READ, f"{STREAM}/manifest/{UUID}/{7:020d}.json", STREAM, ""),
        ("get", Traffic.READ, f"_catalog/{STREAM}", STREAM, ""),
        ("list", Traffic.READ, f"_catalog/{STREAM}/", STREAM, ""),
        ("list", Traffic.READ, f"{STREAM}/", STREAM, ""),
        ("head", Traffic.READ, f"{STREAM}/{UUID}", STREAM, ""),
        ("put", Traffic.UPLOAD, f"t/n/persistent/a%20c/{UUID}", "t/n/persistent/a c", "upload_seconds"),
        ("get", Traffic.READ, UUID, "", "read_seconds"),
    ],
)
def test_stream_and_histogram_of_a_request_follow_from_its_key(
    verb: str, traffic: Traffic, key: str, stream: str, histogram: str
) -> None:
    assert stream_of(key) == stream
    assert histogram_of(Request(verb, traffic, key)) == histogram


def test_deleted_objects_are_those_that_a_delete_removed(measured: Measured) -> None:
    for name in ("a", "b", "c"):
        measured.store.put(f"{STREAM}/{name}", b"x")
    measured.store.delete([f"{STREAM}/{name}" for name in ("a", "b")])
    assert measured("deleted_objects_total") == 2
