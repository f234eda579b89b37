"""Metrics: their values, their text, and that nothing is left behind by streams that come and go."""

from __future__ import annotations

import re

import pytest

from offloader.settings import TelemetrySettings
from offloader.telemetry import METRICS, NO_TELEMETRY, Metrics, namespace_of
from offloader.testing.manual_clock import ManualClock

TOPIC = "tenant/ns/persistent/topic-partition-0"
OTHER_TOPIC = "tenant/ns/persistent/topic-partition-1"
_SAMPLE = re.compile(r'offloader_[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})? [-+]?([0-9.e+-]+|Inf)')


def metrics(clock: ManualClock | None = None, **given: object) -> Metrics:
    return Metrics(TelemetrySettings(**given), clock or ManualClock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stream", "namespace"),
    [(TOPIC, "tenant/ns"), ("a/b/c", "a/b"), ("orders", ""), ("tenant/cluster/ns/topic/x", "tenant/cluster")],
)
def test_the_namespace_of_a_stream(stream: str, namespace: str) -> None:
    assert namespace_of(stream) == namespace


def test_counters_add_up_by_namespace_and_by_topic_where_asked() -> None:
    for labels, expected in (("namespace", 7.0), ("topic", 3.0)):
        kept = metrics(labels=labels)
        kept.add("entries_offloaded_total", 3, stream=TOPIC)
        kept.add("entries_offloaded_total", 4, stream=OTHER_TOPIC)
        assert kept.value("entries_offloaded_total", stream=TOPIC) == expected


def test_gauges_of_a_namespace_are_sums_but_lag_in_seconds_is_the_largest_and_progress_the_earliest() -> None:
    kept = metrics()
    for name in ("lag_bytes", "lag_seconds", "last_progress_timestamp_seconds"):
        kept.set(name, {(TOPIC, ""): 5.0, (OTHER_TOPIC, ""): 7.0})
    assert kept.value("lag_bytes", stream=TOPIC) == 12.0
    assert kept.value("lag_seconds", stream=TOPIC) == 7.0
    assert kept.value("last_progress_timestamp_seconds", stream=TOPIC) == 5.0


def test_a_gauge_that_isnt_set_again_is_gone() -> None:
    kept = metrics(labels="topic")
    kept.set("lag_bytes", {(TOPIC, ""): 5.0, (OTHER_TOPIC, ""): 7.0})
    kept.set("lag_bytes", {(OTHER_TOPIC, ""): 8.0})
    assert kept.value("lag_bytes", stream=TOPIC) is None
    assert kept.value("lag_bytes", stream=OTHER_TOPIC) == 8.0


def test_the_text_is_prometheus_text() -> None:
    kept = metrics(labels="topic")
    kept.add("entries_offloaded_total", 3, stream=TOPIC)
    kept.set("streams", {(TOPIC, "live"): 1.0})
    assert kept.render() == (
        "# HELP offloader_entries_offloaded_total Entries that became readable from the cold tier.\n"
        "# TYPE offloader_entries_offloaded_total counter\n"
        f'offloader_entries_offloaded_total{{namespace="tenant/ns",topic="{TOPIC}"}} 3\n'
        "# HELP offloader_streams Streams by mode.\n"
        "# TYPE offloader_streams gauge\n"
        f'offloader_streams{{namespace="tenant/ns",topic="{TOPIC}",mode="live"}} 1\n'
    )


def test_a_histogram_counts_up_to_each_bound_and_all_above() -> None:
    kept = metrics()
    for seconds in (0.005, 0.02, 0.02, 100.0):
        kept.observe("upload_seconds", seconds, stream="orders")
    lines = kept.render().splitlines()[2:]
    counts = {line.partition('le="')[2].partition('"')[0]: line.split()[-1] for line in lines if "_bucket" in line}
    assert (counts["0.005"], counts["0.01"], counts["0.025"], counts["60"], counts["+Inf"]) == ("1", "1", "3", "3", "4")
    assert 'offloader_upload_seconds_count{namespace=""} 4' in lines
    assert float(next(line for line in lines if "_sum" in line).split()[-1]) == pytest.approx(100.045)


def test_every_metric_renders_as_valid_lines_whatever_a_stream_is_called() -> None:
    kept = metrics(labels="topic")
    for metric in METRICS.values():
        if metric.kind == "counter":
            kept.add(metric.name, 0.5, stream='a"b\\c\nd', label="x")
        elif metric.kind == "gauge":
            kept.set(metric.name, {('a"b\\c\nd', "x"): 1e300})
        else:
            kept.observe(metric.name, 1.0, stream='a"b\\c\nd')
    samples = [line for line in kept.render().split("\n")[:-1] if not line.startswith("# ")]
    assert len(samples) > len(METRICS)
    assert [line for line in samples if not _SAMPLE.fullmatch(line)] == []


def test_the_price_of_requests_is_estimated_by_how_they_are_billed() -> None:
    kept = metrics(write_cost_per_1000=5.0, read_cost_per_1000=1.0)
    for verb in (
        "put",
        "upload_part",
        "begin_upload",
        "complete_upload",
        "list",
        "get",
        "head",
        "delete",
        "abort_upload",
    ):
        kept.add("requests_total", stream=TOPIC, label=verb)
    assert kept.value("request_cost_estimate_total", stream=TOPIC) == pytest.approx((5 * 5 + 2) / 1000)


def test_label_sets_that_arent_used_any_more_are_dropped() -> None:
    clock = ManualClock()
    kept = metrics(clock, labels="topic", label_lifetime_s=60.0)
    for number in range(1000):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
        clock.advance(1.0)
    kept.render()
    assert kept.label_sets <= 61
    assert kept.value("entries_offloaded_total", stream="t/n/persistent/999") == 1.0


def test_the_number_of_label_sets_is_bounded_and_the_rest_is_counted_as_other() -> None:
    kept = metrics(labels="topic", label_sets_max=10)
    for number in range(1000):
        kept.add("entries_offloaded_total", stream=f"t/n/persistent/{number}")
        kept.observe("upload_seconds", 0.1, stream=f"t/n/persistent/{number}")
    assert kept.label_sets <= 10 + 2
    assert kept.value("label_sets_refused_total") == 2000 - 10
    assert 'offloader_entries_offloaded_total{namespace="other",topic="other"} 995\n' in kept.render()


def test_recording_nothing_is_the_default_and_takes_everything() -> None:
    NO_TELEMETRY.add("entries_offloaded_total", 3, stream=TOPIC)
    NO_TELEMETRY.set("lag_bytes", {})
    NO_TELEMETRY.observe("upload_seconds", 1.0)
