"""Names, kinds and labels of all metrics, and the recorder interface of components."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from offloader.runtime.clock import Clock

#: Levels of a Pulsar stream name: tenant, namespace, persistent, topic.
_PULSAR_LEVELS = 4
#: Stream names whose namespace is cached; the oldest are evicted.
_NAMESPACES_REMEMBERED_MAX = 4096

_STREAM = ("namespace", "topic")
#: For histograms: sixteen lines per topic would dominate a scrape.
_NAMESPACE = ("namespace",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``kind`` is counter, gauge or histogram.

    Attributes:
        begins_at_zero: of a counter: values of its last label that each stream has from the start, so that the first
            event is an increase and not a new series; ``("",)`` where it has no label but the stream's.
        merge: of a gauge: merges several streams into one namespace.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = _STREAM
    begins_at_zero: tuple[str, ...] = ()
    merge: Callable[[float, float], float] = lambda one, other: one + other


_NO_LABEL = ("",)
#: Errors that stop all deletion, with an immediate alert.
_CLOCK = ("ClockSkew",)
_ALL = (
    Metric(
        "entries_offloaded_total", "counter", "Entries that became readable from the cold tier.", _STREAM, _NO_LABEL
    ),
    Metric(
        "bytes_offloaded_total", "counter", "Payload bytes that became readable from the cold tier.", _STREAM, _NO_LABEL
    ),
    Metric(
        "segments_total",
        "counter",
        "Segments by how they ended; abandoned: its owner or run stopped, the next one writes the entries again.",
        (*_STREAM, "status"),
        ("offloaded", "failed", "abandoned"),
    ),
    Metric(
        "offers_refused_total", "counter", "Times an entry was written and the buffer had no room.", _STREAM, _NO_LABEL
    ),
    Metric("gaps_total", "counter", "Ranges recorded as lost before they were offloaded.", _STREAM, _NO_LABEL),
    Metric("fenced_total", "counter", "Times a stream stopped because another process owned it.", _STREAM, _NO_LABEL),
    Metric("streams", "gauge", "Streams by mode.", (*_STREAM, "mode")),
    Metric("store_up", "gauge", "Whether the store answers this process: 1, or 0.", (), merge=min),
    Metric(
        "store_identity_differs",
        "gauge",
        "Whether the store's identity isn't the one that this process or its hot tiers know: 1, or 0.",
        (),
    ),
    Metric("source_up", "gauge", "Whether what a feed reads answers this process: 1, or 0.", ("feed",), merge=min),
    Metric("standby", "gauge", "Streams that this process takes over if their leader ends.", _NAMESPACE),
    Metric("streams_stalled", "gauge", "Streams whose entries wait in vain: of mode stalled, or stopped by an error."),
    Metric("lag_entries", "gauge", "Entries that the hot tier has and the cold tier has not."),
    Metric("lag_bytes", "gauge", "Their payload bytes."),
    Metric(
        "lag_seconds",
        "gauge",
        "Newest hot entry against newest committed one, by publish time; grows while the hot tier can't be asked; the "
        "largest.",
        merge=max,
    ),
    Metric("buffer_bytes", "gauge", "Bytes held in memory."),
    Metric("buffer_limit_bytes", "gauge", "What may be held."),
    Metric(
        "last_progress_timestamp_seconds",
        "gauge",
        "When the last segment was committed; the earliest of them.",
        merge=min,
    ),
    Metric("upload_seconds", "histogram", "Answered requests that write data objects.", _NAMESPACE),
    Metric("index_seconds", "histogram", "Answered requests that write index objects.", _NAMESPACE),
    Metric("commit_seconds", "histogram", "Answered requests that write manifest records.", _NAMESPACE),
    Metric("read_seconds", "histogram", "Answered reads of data objects, decoding included.", _NAMESPACE),
    Metric("index_read_seconds", "histogram", "Answered requests that read index objects.", _NAMESPACE),
    Metric("requests_open", "gauge", "Requests that have no answer yet.", (), merge=max),
    Metric("requests_open_oldest_seconds", "gauge", "How long the oldest of them has had none.", (), merge=max),
    Metric("requests_total", "counter", "Requests by verb, each attempt.", (*_STREAM, "verb")),
    Metric("request_errors_total", "counter", "Requests that failed, by kind of error.", (*_STREAM, "kind")),
    Metric(
        "request_cost_estimate_dollars_total",
        "counter",
        "Estimated price of the requests, at the rates of the settings.",
    ),
    Metric("uploaded_bytes_total", "counter", "Bytes sent, each attempt."),
    Metric("downloaded_bytes_total", "counter", "Bytes received, of any object."),
    Metric("deleted_objects_total", "counter", "Keys that a delete removed."),
    Metric("throttles_total", "counter", "Requests that the store refused because there were too many."),
    Metric("retries_total", "counter", "Attempts after the first.", ()),
    Metric("read_fetched_bytes_total", "counter", "Bytes of data and index objects fetched for readers."),
    Metric("read_used_bytes_total", "counter", "Payload bytes of the entries that readers got from the cold tier."),
    Metric("cache_hits_total", "counter", "Blocks and indexes that a reader found in memory."),
    Metric("cache_misses_total", "counter", "Blocks and indexes that a reader had to fetch."),
    Metric(
        "adaptive_rate_requests_per_second", "gauge", "Request rate while slowed down; absent when free.", (), merge=min
    ),
    Metric(
        "throttle_queue_requests",
        "gauge",
        "Requests that wait because of a rate limit, by priority.",
        ("priority",),
        merge=max,
    ),
    Metric("throttled_seconds_total", "counter", "Time that requests waited because of a rate limit.", ()),
    Metric("unconsumed_bytes", "gauge", "Payload bytes that not all subscribers have read."),
    Metric("unconsumed_entries", "gauge", "Entries that not all subscribers have read."),
    Metric("streams_without_subscribers", "gauge", "Streams kept by consumption that nobody subscribes to."),
    Metric("subscriber_lag_bytes", "gauge", "Payload bytes a subscriber hasn't read.", (*_STREAM, "subscriber")),
    Metric("subscriber_lag_entries", "gauge", "Entries a subscriber hasn't read.", (*_STREAM, "subscriber")),
    Metric("subscriber_read_bytes_total", "counter", "Payload bytes a subscriber has read.", (*_STREAM, "subscriber")),
    Metric("retention_cycles_total", "counter", "Cycles of retention by how they ended.", (*_STREAM, "result")),
    Metric("streams_retention_failing", "gauge", "Streams whose newest cycle of retention failed."),
    Metric("retention_truncations_total", "counter", "Times retention let a stream begin later."),
    Metric("retention_truncated_bytes_total", "counter", "Payload bytes that retention let go."),
    Metric("subscribers_overridden_total", "counter", "Times a subscriber lost what it hadn't read."),
    Metric(
        "retention_refusals_total",
        "counter",
        "Cycles that changed nothing, by kind of error.",
        (*_STREAM, "kind"),
        _CLOCK,
    ),
    Metric("cleanup_cycles_total", "counter", "Rounds of cleanup by how they ended.", (*_STREAM, "result")),
    Metric(
        "cleanup_refusals_total",
        "counter",
        "Rounds of cleanup that ended early, by kind of error.",
        (*_STREAM, "kind"),
        _CLOCK,
    ),
    Metric("cleanup_segments_total", "counter", "Segments that cleanup took a step further.", (*_STREAM, "status")),
    Metric("cleanup_deleted_objects_total", "counter", "Objects of purged segments that are gone."),
    Metric("cleanup_deleted_bytes_total", "counter", "Bytes of purged segments whose objects are gone."),
    Metric("cleanup_deletable_bytes", "gauge", "Bytes of segments that wait for `cleanup.delete`."),
    Metric("cleanup_pending_objects", "gauge", "Objects of purged segments that aren't deleted yet."),
    Metric("cleanup_pending_retries", "gauge", "Batches of them that the store refused to delete."),
    Metric("orphan_objects", "gauge", "Objects and uploads that no manifest names and that stay.", ("owner",)),
    Metric("orphan_bytes", "gauge", "Their bytes.", ("owner",)),
    Metric("orphan_oldest_seconds", "gauge", "Age of the oldest of them.", ("owner",), merge=max),
    Metric("orphan_deleted_objects_total", "counter", "Objects and uploads that no manifest named and that are gone."),
    Metric("orphan_deleted_bytes_total", "counter", "Bytes of objects that no manifest named and that are gone."),
    Metric(
        "maintenance_last_success_timestamp_seconds", "gauge", "When the job last ended in order.", ("job",), merge=max
    ),
    Metric("http_requests_total", "counter", "Requests over HTTP, by class of answer.", ("status",)),
    Metric("http_request_duration_seconds", "histogram", "Requests over HTTP, from their head to their answer.", ()),
    Metric("http_refusals_total", "counter", "Connections and callers that HTTP turned away.", ("reason",)),
    Metric("broker_plan_requests_total", "counter", "Plans of ledgers that brokers got, by broker.", ("broker",)),
    Metric("broker_planned_bytes_total", "counter", "Payload bytes in these plans, by broker.", ("broker",)),
    Metric("broker_plan_seconds", "histogram", "Time to answer with a plan.", ()),
    Metric(
        "broker_answer_seconds_total", "counter", "Time of plans and of answers with entries, by broker.", ("broker",)
    ),
    Metric("broker_read_requests_total", "counter", "Answers with entries that brokers got, by broker.", ("broker",)),
    Metric("broker_read_bytes_total", "counter", "Payload bytes in these answers, by broker.", ("broker",)),
    Metric("broker_cache_hits_total", "counter", "Blocks and indexes of them found in memory, by broker.", ("broker",)),
    Metric("broker_read_seconds", "histogram", "Time of an answer with entries, until the broker has it.", ()),
    Metric(
        "broker_offload_requests_total", "counter", "Waits of brokers for a ledger, by how they ended.", ("result",)
    ),
    Metric(
        "streams_broker_offloads_failing",
        "gauge",
        "Streams of which brokers keep ledgers; refused: by this process, failed: in the broker.",
        (*_STREAM, "by"),
    ),
    Metric("broker_offload_seconds", "histogram", "Time of these waits.", ()),
    Metric("broker_filled_entries_total", "counter", "Entries that brokers sent because readers aren't given them."),
    Metric(
        "broker_delete_requests_total", "counter", "Hints of brokers that an attempt is over; nothing is deleted.", ()
    ),
    Metric("label_sets_refused_total", "counter", "Label sets above the limit, counted as other.", ()),
)
#: Name without the prefix ``offloader_`` -> metric.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


class Reading(NamedTuple):
    """A gauge's value now."""

    name: str
    value: float
    stream: str = ""
    label: str = ""


class Recorder(Protocol):
    """Takes measurements. Every method returns at once and never raises for a measurement."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """Increases a counter."""

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """Adds a value to a histogram."""

    def watch(self, readings: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Calls ``readings`` for gauges at every scrape; the returned function ends that."""


class NoTelemetry:
    """Discards all measurements."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """Discards it."""

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """Discards it."""

    def watch(self, readings: Callable[[], Iterable[Reading]]) -> Callable[[], None]:  # noqa: ARG002
        """Ignores it."""
        return lambda: None


NO_TELEMETRY: Recorder = NoTelemetry()


@lru_cache(_NAMESPACES_REMEMBERED_MAX)
def namespace_of(stream: str) -> str:
    """``tenant/ns/persistent/topic`` -> ``tenant/ns``; other names lose their last level."""
    levels = stream.split("/")
    return "/".join(levels[:2] if len(levels) >= _PULSAR_LEVELS else levels[:-1])


#: Minutes kept.
MINUTES_MAX = 60
#: Minutes of the mean rate: segments are committed in bursts.
RATE_MINUTES = 5
_MINUTE_S = 60.0


class LastHour:
    """Bytes by minute, since the process began or for ``MINUTES_MAX`` minutes; by stream for ``RATE_MINUTES``.
    Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._started_s = clock, clock.monotonic_s()
        self._lock = threading.Lock()
        self._newest = 0
        self._bytes: deque[int] = deque([0], maxlen=MINUTES_MAX)
        #: By stream, of the newest minutes: only streams that offloaded something.
        self._streams: deque[Counter[str]] = deque([Counter()], maxlen=RATE_MINUTES)

    def add(self, size_bytes: float, stream: str = "") -> None:
        """Counts bytes of a stream that became readable from the cold tier now."""
        with self._lock:
            self._turn()
            self._bytes[-1] += int(size_bytes)
            self._streams[-1][stream] += int(size_bytes)

    def rate_of(self, stream: str) -> float:
        """Bytes a second of one stream, the mean of the last ``RATE_MINUTES``; 0.0: it offloaded nothing."""
        with self._lock:
            seconds = self._seconds()
            return sum(minute[stream] for minute in self._streams) / seconds

    def document(self) -> dict[str, Any]:
        """``{"minute_bytes", "bytes_per_second"}``: bytes by minute, the oldest first, the last one not over yet; and
        the mean of the last ``RATE_MINUTES``."""
        with self._lock:
            seconds = self._seconds()
            found = list(self._bytes)
        return {"minute_bytes": found, "bytes_per_second": sum(found[-RATE_MINUTES:]) / seconds}

    def _seconds(self) -> float:
        """How long the minutes of the mean rate have lasted. The lock is held."""
        into_s = self._turn()
        return max(into_s + _MINUTE_S * (len(self._streams) - 1), 1.0)

    def _turn(self) -> float:
        """Begins the minutes that have come since; returns the seconds of the current one. The lock is held."""
        minute, into_s = divmod(self._clock.monotonic_s() - self._started_s, _MINUTE_S)
        passed = int(minute) - self._newest
        self._bytes.extend([0] * min(passed, MINUTES_MAX))
        self._streams.extend(Counter[str]() for _ in range(min(passed, RATE_MINUTES)))
        self._newest = int(minute)
        return into_s
