"""Metrics: their names, a recorder that costs nothing by default, and one that answers Prometheus' text.

Owns every metric's name, kind and labels, and how long a label set lives. Must never grow without a bound when streams
come and go, nor fail the caller.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from offloader.clock import Clock
from offloader.settings import TelemetrySettings

__all__ = ["METRICS", "NO_TELEMETRY", "OTHER", "Metric", "Metrics", "NoTelemetry", "Recorder", "namespace_of"]

#: Upper bounds of the histograms, seconds.
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Namespace and topic of what is above ``label_sets_max``.
OTHER = "other"
#: Levels of a Pulsar stream name: tenant, namespace, persistent, topic.
_PULSAR_LEVELS = 4

_STREAM = ("namespace", "topic")
#: Verbs by how S3 bills them; deletes and aborts are free.
_WRITES = ("put", "begin_upload", "upload_part", "complete_upload", "list", "list_uploads", "list_parts")
_READS = ("get", "head")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = _STREAM


_ALL = (
    Metric("entries_offloaded_total", "counter", "Entries that became readable from the cold tier."),
    Metric("bytes_offloaded_total", "counter", "Payload bytes that became readable from the cold tier."),
    Metric("segments_total", "counter", "Segments by how they ended.", (*_STREAM, "status")),
    Metric("offers_refused_total", "counter", "Times an entry was written and the buffer had no room."),
    Metric("fenced_total", "counter", "Streams that stopped because somebody else owns them now."),
    Metric("streams", "gauge", "Streams by mode.", (*_STREAM, "mode")),
    Metric("streams_stalled", "gauge", "Streams with data and no progress."),
    Metric("lag_entries", "gauge", "Entries that the hot tier has and the cold tier has not."),
    Metric("lag_bytes", "gauge", "Their payload bytes."),
    Metric("lag_seconds", "gauge", "Newest hot entry against newest committed one, by publish time; the largest."),
    Metric("buffer_bytes", "gauge", "Bytes held in memory."),
    Metric("buffer_limit_bytes", "gauge", "What may be held."),
    Metric("last_progress_timestamp_seconds", "gauge", "When the last segment was committed; the earliest of them."),
    Metric("upload_seconds", "histogram", "Requests that write data objects."),
    Metric("index_seconds", "histogram", "Requests that write index objects."),
    Metric("commit_seconds", "histogram", "Requests that write manifest records."),
    Metric("read_seconds", "histogram", "Requests that read data objects."),
    Metric("index_read_seconds", "histogram", "Requests that read index objects."),
    Metric("requests_total", "counter", "Requests by verb, each attempt.", (*_STREAM, "verb")),
    Metric("request_errors_total", "counter", "Requests that failed, by kind of error.", (*_STREAM, "kind")),
    Metric("request_cost_estimate_total", "counter", "Estimated price of the requests, at the rates of the settings."),
    Metric("uploaded_bytes_total", "counter", "Bytes sent, each attempt."),
    Metric("fetched_bytes_total", "counter", "Bytes received."),
    Metric("deleted_objects_total", "counter", "Keys that a delete removed."),
    Metric("throttles_total", "counter", "Requests that the store refused because there were too many."),
    Metric("retries_total", "counter", "Attempts after the first.", ()),
    Metric("pace_requests_per_second", "gauge", "Request rate while slowed down; absent when free.", ()),
    Metric("turns_waiting", "gauge", "Requests that wait for their turn, by priority.", ("priority",)),
    Metric("turns_waited_seconds_total", "counter", "Time that requests waited for their turn.", ()),
    Metric("label_sets_refused_total", "counter", "Label sets above the limit, counted as other.", ()),
)
#: Name without the prefix ``offloader_`` -> metric.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


class Recorder(Protocol):
    """What takes measurements. Every method returns at once and never raises for what is measured."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """A counter grows."""
        ...

    def set(self, name: str, values: Mapping[tuple[str, str], float]) -> None:
        """A gauge's values, by (stream, label); it has no others from now on."""
        ...

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """One more value of a histogram."""
        ...


class NoTelemetry:
    """Forgets everything."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """Nothing."""

    def set(self, name: str, values: Mapping[tuple[str, str], float]) -> None:
        """Nothing."""

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """Nothing."""


NO_TELEMETRY: Recorder = NoTelemetry()


def namespace_of(stream: str) -> str:
    """``tenant/ns/persistent/topic`` -> ``tenant/ns``; of other names all but the last level."""
    levels = stream.split("/")
    return "/".join(levels[:2] if len(levels) >= _PULSAR_LEVELS else levels[:-1])


@dataclass(slots=True)
class _Series:
    """One label set of one metric. ``counts``: of a histogram, one for each bucket and one for what is above."""

    used_s: float
    value: float = 0.0
    counts: list[int] | None = None


def _sum(one: float, other: float) -> float:
    return one + other


#: How a gauge of several streams becomes one of their namespace; the others are sums.
_MERGED: Mapping[str, Callable[[float, float], float]] = {"lag_seconds": max, "last_progress_timestamp_seconds": min}


class Metrics:
    """Keeps measurements in memory and renders them.

    With ``labels = "namespace"`` streams of one namespace are one label set: counters, histograms and most gauges are
    sums, lag in seconds is the largest, the last progress the earliest. With ``"topic"`` each stream is one.

    A label set that isn't used for ``label_lifetime_s`` is dropped, and above ``label_sets_max`` of them new ones are
    counted under the namespace ``other``: streams that come and go leave nothing behind.

    Args:
        settings: labels, bounds and prices.
        clock: measures lifetimes.
    """

    def __init__(self, settings: TelemetrySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._series: dict[str, dict[tuple[str, ...], _Series]] = {name: {} for name in METRICS}
        self._count = 0
        self._costs = dict.fromkeys(_WRITES, settings.write_cost_per_1000 / 1000)
        self._costs |= dict.fromkeys(_READS, settings.read_cost_per_1000 / 1000)

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        cost = self._costs.get(label, 0.0) * amount if name == "requests_total" else 0.0
        with self._lock:
            self._get(METRICS[name], stream, label).value += amount
            if cost:
                self._get(METRICS["request_cost_estimate_total"], stream, "").value += cost

    def set(self, name: str, values: Mapping[tuple[str, str], float]) -> None:
        metric = METRICS[name]
        merged: dict[tuple[str, ...], float] = {}
        merge = _MERGED.get(name, _sum)
        for (stream, label), value in values.items():
            labels = self._labels(metric, stream, label)
            merged[labels] = merge(merged[labels], value) if labels in merged else value
        with self._lock:
            kept = self._series[name]
            for labels in kept.keys() - merged.keys():
                self._drop(name, labels)
            for labels, value in merged.items():
                self._get_at(metric, labels).value = value

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        with self._lock:
            series = self._get(METRICS[name], stream, "")
            if series.counts is None:
                series.counts = [0] * (len(SECONDS_BUCKETS) + 1)
            series.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
            series.value += seconds

    @property
    def label_sets(self) -> int:
        """How many are kept."""
        with self._lock:
            return self._count

    def value(self, name: str, *, stream: str = "", label: str = "") -> float | None:
        """A counter's or gauge's value, a histogram's sum; ``None``: not there."""
        labels = self._labels(METRICS[name], stream, label)
        with self._lock:
            series = self._series[name].get(labels)
            return None if series is None else series.value

    def render(self) -> str:
        """All of it in Prometheus' text format 0.0.4."""
        lines: list[str] = []
        with self._lock:
            self._drop_unused()
            for metric in METRICS.values():
                if self._series[metric.name]:
                    lines += [f"# HELP offloader_{metric.name} {metric.help}"]
                    lines += [f"# TYPE offloader_{metric.name} {metric.kind}"]
                for values, series in sorted(self._series[metric.name].items()):
                    lines += _lines(
                        f"offloader_{metric.name}", list(zip(self._names(metric), values, strict=True)), series
                    )
        return "".join(line + "\n" for line in lines)

    def _names(self, metric: Metric) -> list[str]:
        return [name for name in metric.labels if name != "topic" or self._settings.labels == "topic"]

    def _labels(self, metric: Metric, stream: str, label: str) -> tuple[str, ...]:
        known = {"namespace": namespace_of(stream), "topic": stream}
        return tuple(known.get(name, label) for name in self._names(metric))

    def _get(self, metric: Metric, stream: str, label: str) -> _Series:
        return self._get_at(metric, self._labels(metric, stream, label))

    def _get_at(self, metric: Metric, labels: tuple[str, ...]) -> _Series:
        now_s = self._clock.monotonic_s()
        kept = self._series[metric.name]
        series = kept.get(labels)
        if series is None:
            if self._count >= self._settings.label_sets_max:
                self._drop_unused()
            if self._count >= self._settings.label_sets_max and "namespace" in metric.labels:
                labels = tuple(
                    OTHER if name in _STREAM else value for name, value in zip(self._names(metric), labels, strict=True)
                )
                refused = self._series["label_sets_refused_total"].setdefault((), _Series(now_s))
                refused.value += 1
                refused.used_s = now_s
            series = kept.get(labels)
            if series is None:
                series = kept[labels] = _Series(now_s)
                self._count += 1
        series.used_s = now_s
        return series

    def _drop(self, name: str, labels: tuple[str, ...]) -> None:
        if self._series[name].pop(labels, None) is not None:
            self._count -= 1

    def _drop_unused(self) -> None:
        oldest_s = self._clock.monotonic_s() - self._settings.label_lifetime_s
        for metric in METRICS.values():
            if "namespace" in metric.labels:
                for labels in [at for at, series in self._series[metric.name].items() if series.used_s < oldest_s]:
                    self._drop(metric.name, labels)


def _lines(name: str, labels: list[tuple[str, str]], series: _Series) -> list[str]:
    if series.counts is None:
        return [f"{name}{_braces(labels)} {_number(series.value)}"]
    lines, below = [], 0
    for bound, count in zip((*SECONDS_BUCKETS, math.inf), series.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_braces([*labels, ('le', _number(bound))])} {below}")
    return [*lines, f"{name}_sum{_braces(labels)} {_number(series.value)}", f"{name}_count{_braces(labels)} {below}"]


def _braces(labels: list[tuple[str, str]]) -> str:
    if not labels:
        return ""
    escaped = [(name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for name, value in labels]
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
