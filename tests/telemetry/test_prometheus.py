"""Metrics: their text, their namespaces, and expiry of labels of closed streams."""

from __future__ import annotations

from collections.abc import Iterator

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from offloader.settings import TelemetrySettings
from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import METRICS, NO_TELEMETRY, Reading, namespace_of
from offloader.testing.manual_clock import ManualClock
from tests.support.metrics import exposed, of_namespace

TOPIC = "tenant/ns/persistent/topic-partition-0"
OTHER_TOPIC = "tenant/ns/persistent/topic-partition-1"


def metrics(clock: ManualClock | None = None, **given: object) -> Metrics:
    return Metrics(TelemetrySettings(**given), clock or ManualClock())  # type: ignore[arg-type]


def lines(kept: Metrics) -> list[str]:
    """Those of streams."""
    return [line for line in kept.exposition().decode().splitlines() if "{" in line]


def of_streams(kept: Metrics) -> dict[str, float]:
    return {name: value for name, value in exposed(kept).items() if "{" in name}


@pytest.mark.parametrize(
    ("stream", "namespace"),
    [(TOPIC, "tenant/ns"), ("a/b/c", "a/b"), ("orders", ""), ("tenant/cluster/ns/topic/x", "tenant/cluster")],
)
def test_the_namespace_of_a_stream(stream: str, namespace: str) -> None:
    assert namespace_of(stream) == namespace


def test_counters_add_up_by_namespace_and_by_topic_where_asked() -> None:
    by_namespace, by_topic = metrics(), metrics(labels="topic")
    for kept in (by_namespace, by_topic):
        kept.add("entries_offloaded_total", 3, stream=TOPIC)
        kept.add("entries_offloaded_total", 4, stream=OTHER_TOPIC)
    assert of_streams(by_namespace) == {'entries_offloaded_total{namespace="tenant/ns"}': 7}
    assert of_streams(by_topic) == {
        f'entries_offloaded_total{{namespace="tenant/ns",topic="{TOPIC}"}}': 3,
        f'entries_offloaded_total{{namespace="tenant/ns",topic="{OTHER_TOPIC}"}}': 4,
    }


def test_namespace_gauges_are_sums_except_largest_lag_and_earliest_progress() -> None:
    kept = metrics()
    names = ("lag_bytes", "lag_seconds", "last_progress_timestamp_seconds")
    kept.watch(lambda: [Reading(name, 5.0, TOPIC) for name in names])
    kept.watch(lambda: [Reading(name, 7.0, OTHER_TOPIC) for name in names])
    assert [of_namespace(kept, name, TOPIC) for name in names] == [12.0, 7.0, 5.0]


def test_gauges_are_read_at_exposition_and_removed_with_their_watch() -> None:
    kept, asked = metrics(labels="topic"), list[int]()

    def readings() -> Iterator[Reading]:
        asked.append(len(asked))
        yield Reading("lag_bytes", float(len(asked)), TOPIC)

    unwatch = kept.watch(readings)
    assert asked == []
    name = f'lag_bytes{{namespace="tenant/ns",topic="{TOPIC}"}}'
    assert exposed(kept)[name] == 1
    assert exposed(kept)[name] == 2
    unwatch()
    unwatch()
    assert of_streams(kept) == {}
    assert len(asked) == 2


def test_counters_of_a_new_stream_start_at_zero() -> None:
    kept = metrics()
    kept.watch(lambda: [Reading("buffer_bytes", 0.0, TOPIC)])
    assert of_namespace(kept, "gaps_total", TOPIC) == 0.0
    assert of_namespace(kept, "segments_total", TOPIC, status="failed") == 0.0
    kept.add("gaps_total", stream=TOPIC)
    assert of_namespace(kept, "gaps_total", TOPIC) == 1.0


def test_the_text_is_prometheus_text() -> None:
    kept = metrics(labels="topic")
    kept.add("entries_offloaded_total", 3, stream=TOPIC)
    kept.add("retries_total")
    assert (
        kept.exposition()
        .decode()
        .startswith(
            "# HELP offloader_entries_offloaded_total Entries that became readable from the cold tier.\n"
            "# TYPE offloader_entries_offloaded_total counter\n"
            f'offloader_entries_offloaded_total{{namespace="tenant/ns",topic="{TOPIC}"}} 3.0\n'
            "# HELP offloader_retries_total Retries of store requests.\n"
            "# TYPE offloader_retries_total counter\n"
            "offloader_retries_total 1.0\n"
        )
    )
    assert b"_created" not in kept.exposition()


def test_a_histogram_counts_up_to_each_bound_and_all_above() -> None:
    kept = metrics()
    for seconds in (0.005, 0.02, 0.02, 100.0):
        kept.observe("upload_seconds", seconds, stream=TOPIC)
    found = exposed(kept)
    counts = {le: found[f'upload_seconds_bucket{{le="{le}",namespace="tenant/ns"}}'] for le in ("0.005", "0.01")}
    counts |= {le: found[f'upload_seconds_bucket{{le="{le}",namespace="tenant/ns"}}'] for le in ("60.0", "+Inf")}
    assert counts == {"0.005": 1, "0.01": 1, "60.0": 3, "+Inf": 4}
    assert found['upload_seconds_count{namespace="tenant/ns"}'] == 4
    assert found['upload_seconds_sum{namespace="tenant/ns"}'] == pytest.approx(100.045)


def test_every_metric_parses_back_for_any_stream_name() -> None:
    kept, odd = metrics(labels="topic"), 'a"b\\c\nd'
    for metric in METRICS.values():
        if metric.kind == "counter":
            kept.add(metric.name, 0.5, stream=odd, label="x")
        elif metric.kind == "histogram":
            kept.observe(metric.name, 1.0, stream=odd)
    gauges = [name for name, metric in METRICS.items() if metric.kind == "gauge"]
    kept.watch(lambda: [Reading(name, 1e300, odd, "x") for name in gauges])
    families = list(text_string_to_metric_families(kept.exposition().decode()))
    assert {family.name.removeprefix("offloader_") for family in families} == {
        name.removesuffix("_total") for name in METRICS
    }
    assert {(f"{f.name.removeprefix('offloader_')}", f.type) for f in families} == {
        (name.removesuffix("_total"), metric.kind) for name, metric in METRICS.items()
    }
    topics = {sample.labels["topic"] for family in families for sample in family.samples if "topic" in sample.labels}
    assert topics == {odd}


def test_counters_end_in_total_and_names_contain_their_unit() -> None:
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.kind == "counter")
        if metric.kind == "histogram":
            assert name.endswith("_seconds")
        units = {"bytes", "seconds", "dollars", "entries", "messages", "second"}
        counts = {"segments", "offers", "gaps", "fenced", "streams", "requests", "errors", "objects", "throttles"}
        counts |= {"retries", "hits", "misses", "waiting", "sets", "cycles", "truncations", "refusals", "subscribers"}
        counts |= {"topics", "subscriptions"}
        counts |= {"up", "standby", "differs"}  # 1 or 0
        assert (units | counts) & set(name.split("_")), f"{name} says neither a unit nor what it counts"


def test_metrics_stay_out_of_the_global_registry() -> None:
    before = prometheus_client.generate_latest()
    kept = metrics()
    kept.add("entries_offloaded_total", stream=TOPIC)
    assert b"offloader" in kept.exposition()
    names = {line.split(" ")[0] for line in prometheus_client.generate_latest().decode().splitlines()}
    assert names == {line.split(" ")[0] for line in before.decode().splitlines()}
    assert not any("offloader" in name for name in names)


def test_metric_names_are_reserved_in_their_registry() -> None:
    with pytest.raises(ValueError, match="offloader_retries_total"):
        prometheus_client.Counter("offloader_retries_total", "somebody else's", registry=metrics().registry)


def test_request_cost_is_estimated_by_billing_class() -> None:
    kept = metrics(write_cost_per_1000=5.0, read_cost_per_1000=1.0)
    writes = ("put", "upload_part", "begin_upload", "complete_upload", "list")
    for verb in (*writes, "get", "head", "delete", "abort_upload"):
        kept.add("requests_total", stream=TOPIC, label=verb)
    assert of_namespace(kept, "request_cost_estimate_dollars_total", TOPIC) == pytest.approx((5 * 5 + 2) / 1000)


# -- label sets that come and go


def test_unused_label_sets_are_dropped() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", label_lifetime=60.0)
    for number in range(1000):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
        clock.advance(1.0)
    assert len(lines(kept)) == 60
    assert kept.label_sets == 60
    assert lines(kept)[-1].endswith('topic="t/n/persistent/999"} 1.0')


def test_label_sets_of_open_streams_stay_and_expire_after_closing() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", label_lifetime=60.0)
    unwatch = kept.watch(lambda: [Reading("buffer_bytes", 0.0, TOPIC)])
    kept.add("entries_offloaded_total", 5, stream=TOPIC)
    name = f'entries_offloaded_total{{namespace="tenant/ns",topic="{TOPIC}"}}'
    for _ in range(10):
        clock.advance(100.0)
        assert exposed(kept)[name] == 5
    unwatch()
    assert of_streams(kept) == {name: 5}, "whoever scrapes sees the last value"
    clock.advance(61.0)
    assert of_streams(kept) == {}


@pytest.mark.slow
def test_number_of_label_sets_is_bounded_and_the_rest_counts_as_other() -> None:
    kept = metrics(labels="topic", label_sets_max=10)
    for number in range(1000):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
        kept.observe("upload_seconds", 0.1, stream=f"t/n/persistent/{number}")
    kept.watch(lambda: [Reading("buffer_bytes", 1.0, f"t/n/persistent/{number}") for number in range(1000)])
    assert kept.label_sets <= 10 + 3
    found = exposed(kept)
    assert found["label_sets_refused_total"] == 1000 - 9
    assert found['entries_offloaded_total{namespace="other",topic="other"}'] == 991
    assert found['buffer_bytes{namespace="other",topic="other"}'] == 990
    assert found['upload_seconds_count{namespace="t/n"}'] == 1000


def test_expired_label_sets_make_room_for_new_ones() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", label_sets_max=10, label_lifetime=60.0)
    for number in range(10):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
    clock.advance(61.0)
    kept.add("entries_offloaded_total", stream=TOPIC)
    assert of_streams(kept) == {f'entries_offloaded_total{{namespace="tenant/ns",topic="{TOPIC}"}}': 1}


def test_metrics_fall_back_to_namespaces_above_the_topic_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = metrics(labels="topic", topic_labels_max=5)
    gauges = [Reading("buffer_bytes", 2.0, f"t/n/persistent/{number}") for number in range(5)]
    kept.watch(lambda: gauges)
    for number in range(5):
        kept.add("entries_offloaded_total", 10, stream=f"t/n/persistent/{number}")
        kept.add("segments_total", stream=f"t/n/persistent/{number}", label="offloaded")
    assert len([line for line in lines(kept) if line.startswith("offloader_entries_offloaded_total")]) == 5
    assert caplog.records == []
    kept.add("entries_offloaded_total", 10, stream="t/m/persistent/one more")
    kept.add("entries_offloaded_total", 1, stream="t/n/persistent/0")
    found = exposed(kept)
    assert found['entries_offloaded_total{namespace="t/n",topic=""}'] == 51
    assert found['entries_offloaded_total{namespace="t/m",topic=""}'] == 10
    assert found['segments_total{namespace="t/n",status="offloaded",topic=""}'] == 5
    assert found['segments_total{namespace="t/n",status="failed",topic=""}'] == 0
    assert found['buffer_bytes{namespace="t/n",topic=""}'] == 10
    assert not [line for line in lines(kept) if "persistent" in line]
    assert [getattr(each, "event", "") for each in caplog.records] == ["topic_labels_off"]


def test_watched_streams_count_as_topics_too() -> None:
    kept = metrics(labels="topic", topic_labels_max=3)
    gauges = [Reading("buffer_bytes", 2.0, f"t/n/persistent/{number}") for number in range(3)]
    kept.watch(lambda: gauges)
    assert len([line for line in lines(kept) if line.startswith("offloader_buffer_bytes")]) == 3
    gauges.append(Reading("buffer_bytes", 2.0, "t/n/persistent/3"))
    assert exposed(kept)['buffer_bytes{namespace="t/n",topic=""}'] == 8


def test_long_names_are_no_labels_where_a_scrape_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = metrics(labels="topic")
    gauges = [Reading("buffer_bytes", 2.0, f"t/n/persistent/{number:0>200}") for number in range(5)]
    kept.watch(lambda: gauges)
    for reading in gauges:
        kept.add("entries_offloaded_total", 10, stream=reading.stream)
    text = kept.exposition()
    samples = sum(len(line) + 1 for line in text.splitlines() if not line.startswith(b"#"))
    # About what it takes: so much that the smallest limit that is kept is told by it.
    monkeypatch.setattr("offloader.telemetry.prometheus.TOPICS_SCRAPE_BYTES_MAX", round(1.1 * samples))
    assert kept.exposition() == text
    monkeypatch.setattr("offloader.telemetry.prometheus.TOPICS_SCRAPE_BYTES_MAX", round(0.9 * samples))
    found = exposed(kept)
    assert found['entries_offloaded_total{namespace="t/n",topic=""}'] == 50
    assert found['buffer_bytes{namespace="t/n",topic=""}'] == 10
    assert len(kept.exposition()) < 0.9 * samples
    assert [getattr(each, "event", "") for each in caplog.records] == ["topic_labels_off"]


def test_short_lived_topics_never_exceed_the_topic_limit() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", topic_labels_max=10, label_lifetime=60.0)
    for number in range(200):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
        clock.advance(10.0)
    assert lines(kept)[-1].endswith('topic="t/n/persistent/199"} 1.0')


def test_histograms_of_open_streams_stay_with_labels_by_topic() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", label_lifetime=60.0)
    kept.observe("upload_seconds", 0.1, stream=TOPIC)
    unwatch = kept.watch(lambda: [Reading("buffer_bytes", 0.0, TOPIC)])
    clock.advance(600.0)
    assert exposed(kept)['upload_seconds_count{namespace="tenant/ns"}'] == 1
    unwatch()
    clock.advance(61.0)
    assert of_streams(kept) == {}


def test_no_telemetry_accepts_all_metrics() -> None:
    NO_TELEMETRY.add("entries_offloaded_total", 3, stream=TOPIC)
    NO_TELEMETRY.observe("upload_seconds", 1.0)
    NO_TELEMETRY.watch(list)()
