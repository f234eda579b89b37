"""In-memory metrics of a process, rendered in Prometheus' text format."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass

from offloader.errors import needs_extra
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import TelemetrySettings
from offloader.telemetry.recorder import METRICS, LastHour, Metric, Reading, namespace_of

with needs_extra("cli", "metrics"):
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.core import Metric as Family

#: Media type of ``exposition``.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds of the histograms, seconds.
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Value of the labels namespace and topic above ``label_sets_max``.
OTHER = "other"

#: Size of a scrape above which topic labels are dropped, even below ``topic_labels_max``: names may be long.
TOPICS_SCRAPE_BYTES_MAX = 5_000_000
#: Bytes of a sample in addition to its name, and of a label in addition to its name and value.
_SAMPLE_BYTES, _LABEL_BYTES = 6, 4

#: Searches for unused label sets per lifetime while the limit is reached: one costs as much as a thousand counts.
SWEEPS_PER_LIFETIME = 60

_log = logging.getLogger("offloader.telemetry.prometheus")

_PREFIX = "offloader"
#: Verbs by S3's billing classes; deletes and aborts are free.
_WRITES = ("put", "begin_upload", "upload_part", "complete_upload", "list", "list_uploads", "list_parts")
_READS = ("get", "head")


#: ``Metrics.exposition``.
Exposition = Callable[[Callable[[str], bool] | None], bytes]


@dataclass(slots=True)
class _Series:
    child: Counter | Histogram
    used_s: float


class Metrics:
    """Keeps measurements in memory and renders them. Thread-safe; pass it to ``open_store(..., recorder=...)``.

    With ``labels = "namespace"`` the streams of a namespace share a label set: counters, histograms and most gauges are
    summed, lag in seconds is the maximum, the last progress the minimum. With ``"topic"`` each stream has a separate
    label set, except for histograms. Once there are more than ``topic_labels_max`` topics, or a scrape exceeds
    ``TOPICS_SCRAPE_BYTES_MAX``, the topic label is empty and the topics' counts are added to the namespace's.

    The gauges of a closed stream are dropped immediately. Its counters are kept for ``label_lifetime`` after their
    last use, so that the next scrape includes their last value. Counters of open streams are never dropped. Above
    ``label_sets_max`` new label sets are counted under the namespace ``other``.

    Attributes:
        registry: used by this object only; a process may register further metrics in it.
        last_hour: bytes offloaded per minute by all streams, and each stream's rate.
    """

    def __init__(self, settings: TelemetrySettings | None = None, clock: Clock | None = None) -> None:
        self._settings = settings or TelemetrySettings()
        self._clock = clock or SystemClock()
        self.last_hour = LastHour(self._clock)
        self._names = {
            metric.name: tuple(n for n in metric.labels if n != "topic" or self._settings.labels == "topic")
            for metric in METRICS.values()
        }
        #: Whether a metric has the label namespace, and the label topic.
        self._shapes = {name: ("namespace" in names, "topic" in names) for name, names in self._names.items()}
        self._by_topic = self._settings.labels == "topic"
        self._costs = {
            **dict.fromkeys(_WRITES, self._settings.write_cost_per_1000 / 1000),
            **dict.fromkeys(_READS, self._settings.read_cost_per_1000 / 1000),
        }
        # Guards the label sets. A leaf lock: the holder takes no other lock and calls no other component.
        self._lock = threading.Lock()
        self._kept = {metric.name: self._new(metric) for metric in METRICS.values() if metric.kind != "gauge"}
        self._series: dict[tuple[str, tuple[str, ...]], _Series] = {}
        #: Topic -> number of its label sets.
        self._topics: dict[str, int] = defaultdict(int)
        self._sweep_due_s = 0.0
        self._watched: dict[object, Callable[[], Iterable[Reading]]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        cost = self._costs.get(label, 0.0) * amount if name == "requests_total" else 0.0
        if name == "bytes_offloaded_total":
            self.last_hour.add(amount, stream)
        with self._lock:
            self._child(name, stream, label).inc(amount)  # type: ignore[union-attr]
            if cost:
                self._child("request_cost_estimate_dollars_total", stream, "").inc(cost)  # type: ignore[union-attr]

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        with self._lock:
            self._child(name, stream, "").observe(seconds)  # type: ignore[union-attr]

    def watch(self, readings: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        token = object()
        with self._lock:
            self._watched[token] = readings
        return lambda: self._forget(token)

    @property
    def label_sets(self) -> int:
        """Number of label sets of all counters and histograms."""
        with self._lock:
            return len(self._series)

    def exposition(self, sees: Callable[[str], bool] | None = None, /) -> bytes:
        """All metrics in Prometheus' text format (``CONTENT_TYPE``); queries every stream's state.

        Args:
            sees: filter; with it the result has only metrics of the streams that it accepts, and of the namespaces that
                it accepts as ``tenant/namespace/``, and no metrics of the process.
        """
        return generate_latest(self.registry if sees is None else _Seen(self, sees))

    def describe(self) -> Iterable[Family]:
        """The names taken in the registry."""
        return [
            Family(f"{_PREFIX}_{name.removesuffix('_total')}", metric.help, metric.kind)
            for name, metric in METRICS.items()
        ]

    def collect(self) -> Iterator[Family]:
        """Called by ``registry``."""
        with self._lock:
            watched = list(self._watched.values())
        now = [reading for readings in watched for reading in readings()]
        if self._by_topic and len({reading.stream for reading in now} - {""}) > self._settings.topic_labels_max:
            with self._lock:
                self._forget_topics(f"more than {self._settings.topic_labels_max} topics")
        families = self._families(now)
        if self._by_topic and (size_bytes := _text_bytes(families)) > TOPICS_SCRAPE_BYTES_MAX:
            with self._lock:
                self._forget_topics(f"a scrape with a label for each topic has {size_bytes} bytes")
            families = self._families(now)
        yield from (family for family in families if family.samples)

    def _families(self, now: Iterable[Reading]) -> list[Family]:
        gauges, live = self._merged(now)
        with self._lock:
            self._drop_unused(live)
            return [
                _gauges(metric, self._names[name], gauges[name])
                if metric.kind == "gauge"
                else self._counted(metric, live)
                for name, metric in METRICS.items()
            ]

    def _new(self, metric: Metric) -> Counter | Histogram:
        name, names = f"{_PREFIX}_{metric.name}", self._names[metric.name]
        if metric.kind == "counter":
            return Counter(name, metric.help, names, registry=None)
        return Histogram(name, metric.help, names, registry=None, buckets=SECONDS_BUCKETS)

    def _forget(self, token: object) -> None:
        with self._lock:
            self._watched.pop(token, None)

    def _labels(self, name: str, stream: str, label: str) -> tuple[str, ...]:
        known = {"namespace": namespace_of(stream), "topic": stream if self._by_topic else ""}
        return tuple(known.get(each, label) for each in self._names[name])

    def _child(self, name: str, stream: str, label: str) -> Counter | Histogram:
        """The series of a value; the lock is held."""
        now_s = self._clock.monotonic_s()
        if self._by_topic and stream and self._shapes[name][1] and stream not in self._topics:
            topics_max = self._settings.topic_labels_max
            if self._is_full(self._topics, topics_max, now_s):
                self._forget_topics(f"more than {topics_max} topics")
        labels = self._labels(name, stream, label)
        if (series := self._series.get((name, labels))) is None:
            if self._is_full(self._series, self._settings.label_sets_max, now_s) and self._shapes[name][0]:
                labels = self._as_other(name, labels)
                self._kept["label_sets_refused_total"].inc()  # type: ignore[union-attr]
            series = self._series.get((name, labels))
        if series is None:
            series = self._new_series(name, labels, now_s)
        series.used_s = now_s
        return series.child

    def _new_series(self, name: str, labels: tuple[str, ...], now_s: float) -> _Series:
        kept = self._kept[name]
        series = self._series[name, labels] = _Series(kept.labels(*labels) if labels else kept, now_s)
        if self._shapes[name][1] and labels[1]:
            self._topics[labels[1]] += 1
        return series

    def _drop(self, name: str, labels: tuple[str, ...]) -> None:
        self._kept[name].remove(*labels)
        del self._series[name, labels]
        if self._shapes[name][1] and labels[1]:
            self._topics[labels[1]] -= 1
            if not self._topics[labels[1]]:
                del self._topics[labels[1]]

    def _is_full(self, kept: Sized, size_max: int, now_s: float) -> bool:
        """Drops unused label sets if the limit is reached; returns whether it is still reached. The lock is held."""
        if len(kept) >= size_max and now_s >= self._sweep_due_s:
            self._drop_unused(set())
        return len(kept) >= size_max

    def _forget_topics(self, why: str) -> None:
        """Merges topic label sets into their namespaces' until the process ends: labels that appear and disappear are
        useless. The lock is held."""
        if not self._by_topic:
            return
        self._by_topic = False
        for (name, labels), series in list(self._series.items()):
            if not self._shapes[name][1] or labels[1] in ("", OTHER):
                continue
            whole = labels[0], "", *labels[2:]
            merged = self._series.get((name, whole)) or self._new_series(name, whole, series.used_s)
            merged.used_s = max(merged.used_s, series.used_s)
            (family,) = series.child.collect()
            merged.child.inc(family.samples[0].value)  # type: ignore[union-attr]  # histograms have no topic
            self._drop(name, labels)
        _log.warning("%s: metrics are kept by namespace from now on", why, extra={"event": "topic_labels_off"})

    def _as_other(self, name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            OTHER if each in ("namespace", "topic") else value
            for each, value in zip(self._names[name], labels, strict=True)
        )

    def _drop_unused(self, live: set[tuple[str, ...]]) -> None:
        """Drops label sets unused for their lifetime, except those of open streams."""
        now_s, lifetime_s = self._clock.monotonic_s(), self._settings.label_lifetime
        self._sweep_due_s, oldest_s = now_s + lifetime_s / SWEEPS_PER_LIFETIME, now_s - lifetime_s
        for (name, labels), series in list(self._series.items()):
            if not self._shapes[name][0]:
                continue
            if labels[: 1 + self._shapes[name][1]] in live:
                series.used_s = max(series.used_s, oldest_s)
            elif series.used_s < oldest_s:
                self._drop(name, labels)

    def _merged(
        self, readings: Iterable[Reading]
    ) -> tuple[dict[str, dict[tuple[str, ...], float]], set[tuple[str, ...]]]:
        """Gauges by label set, and the streams (or namespaces) that have any."""
        gauges: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        live: set[tuple[str, ...]] = set()
        for name, value, stream, label in readings:
            labels, kept = self._labels(name, stream, label), gauges[name]
            if self._shapes[name][0]:
                if labels not in kept and len(kept) >= self._settings.label_sets_max:
                    labels = self._as_other(name, labels)
                # For metrics by topic and for metrics by namespace.
                live.update((labels[:1], labels[: 1 + self._shapes[name][1]]))
            kept[labels] = METRICS[name].merge(kept[labels], value) if labels in kept else value
        return gauges, live

    def _counted(self, metric: Metric, live: set[tuple[str, ...]]) -> Family:
        """A counter or histogram, with zeros for open streams; the lock is held."""
        (family,) = self._kept[metric.name].collect()
        # Omit "_created" samples, a third of all lines: Prometheus takes a series' start from its first scrape.
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        names = self._names[metric.name]
        if metric.kind == "histogram" and not names and (metric.name, ()) not in self._series:
            family.samples = []  # otherwise fourteen lines of zeros in a process that never observes it
        stream_labels = 1 + self._shapes[metric.name][1]
        for labels in sorted(each for each in live if len(each) == stream_labels) if metric.begins_at_zero else ():
            for label in metric.begins_at_zero:
                full = (*labels, label) if label else labels
                if (metric.name, full) not in self._series:
                    family.add_sample(f"{family.name}_total", dict(zip(names, full, strict=True)), 0.0)
        return family


class _Seen(CollectorRegistry):
    """The metrics of the streams that ``sees`` accepts."""

    def __init__(self, metrics: Metrics, sees: Callable[[str], bool]) -> None:
        super().__init__()
        self._metrics, self._sees = metrics, sees

    def collect(self) -> Iterator[Family]:
        for family in self._metrics.collect():
            family.samples = [each for each in family.samples if self._is_seen(each.labels)]
            if family.samples:
                yield family

    def _is_seen(self, labels: Mapping[str, str]) -> bool:
        namespace, topic = labels.get("namespace", ""), labels.get("topic", "")
        return bool(namespace) and self._sees(topic or f"{namespace}/")


def _gauges(metric: Metric, names: tuple[str, ...], values: dict[tuple[str, ...], float]) -> Family:
    family = GaugeMetricFamily(f"{_PREFIX}_{metric.name}", metric.help, labels=names)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _text_bytes(families: Iterable[Family]) -> int:
    """Approximate size in the text format."""
    return sum(
        len(sample.name) + _SAMPLE_BYTES + sum(len(n) + len(value) + _LABEL_BYTES for n, value in sample.labels.items())
        for family in families
        for sample in family.samples
    )
