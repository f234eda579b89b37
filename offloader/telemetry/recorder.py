"""Names, kinds and labels of all metrics, and the interface through which components record them."""

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
#: Labels of histograms, which would add sixteen lines per topic to a scrape.
_NAMESPACE = ("namespace",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``kind`` is counter, gauge or histogram.

    Attributes:
        begins_at_zero: counters only: values of the last label that every stream exposes from the start, so that the
            first event is an increase and not a new series; ``("",)`` for counters with only stream labels.
        merge: gauges only: merges the values of several streams into one namespace.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = _STREAM
    begins_at_zero: tuple[str, ...] = ()
    merge: Callable[[float, float], float] = lambda one, other: one + other


_NO_LABEL = ("",)
#: Errors that stop all deletion; an alert fires on the first one.
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
        "Segments by outcome; abandoned: the owner or run stopped, and the next one writes the entries again.",
        (*_STREAM, "status"),
        ("offloaded", "failed", "abandoned"),
    ),
    Metric("offers_refused_total", "counter", "Writes refused because the buffer was full.", _STREAM, _NO_LABEL),
    Metric(
        "gaps_total", "counter", "Ranges of entries recorded as lost before they were offloaded.", _STREAM, _NO_LABEL
    ),
    Metric(
        "fenced_total", "counter", "Times a stream stopped because another process took ownership.", _STREAM, _NO_LABEL
    ),
    Metric("streams", "gauge", "Streams by mode.", (*_STREAM, "mode")),
    Metric("store_up", "gauge", "1 if the object store responds to this process, else 0.", (), merge=min),
    Metric(
        "store_identity_differs",
        "gauge",
        "1 if the store's identity differs from the one recorded by this process or its hot tiers, else 0.",
        (),
    ),
    Metric(
        "source_up",
        "gauge",
        "1 if the source of a feed (hot tier) responds to this process, else 0.",
        ("feed",),
        merge=min,
    ),
    Metric(
        "standby",
        "gauge",
        "Streams for which this process is the standby and takes over if the leader stops.",
        _NAMESPACE,
    ),
    Metric("streams_stalled", "gauge", "Streams with a backlog and no progress: mode stalled, or stopped by an error."),
    Metric("lag_entries", "gauge", "Entries in the hot tier that are not yet offloaded."),
    Metric("lag_bytes", "gauge", "Payload bytes in the hot tier that are not yet offloaded."),
    Metric(
        "lag_seconds",
        "gauge",
        "Publish time of the newest entry in the hot tier minus that of the newest committed entry; the maximum of the "
        "streams; grows while the hot tier is unavailable.",
        merge=max,
    ),
    Metric("buffer_bytes", "gauge", "Bytes of entries buffered in memory."),
    Metric("buffer_limit_bytes", "gauge", "Limit of buffer_bytes."),
    Metric(
        "last_progress_timestamp_seconds",
        "gauge",
        "Time of the last segment commit; the earliest of the streams.",
        merge=min,
    ),
    Metric("upload_seconds", "histogram", "Duration of completed requests that write data objects.", _NAMESPACE),
    Metric("index_seconds", "histogram", "Duration of completed requests that write index objects.", _NAMESPACE),
    Metric("commit_seconds", "histogram", "Duration of completed requests that write manifest records.", _NAMESPACE),
    Metric("read_seconds", "histogram", "Duration of completed reads of data objects, including decoding.", _NAMESPACE),
    Metric("index_read_seconds", "histogram", "Duration of completed requests that read index objects.", _NAMESPACE),
    Metric("requests_open", "gauge", "Store requests without a response yet.", (), merge=max),
    Metric(
        "requests_open_oldest_seconds", "gauge", "Age of the oldest store request without a response.", (), merge=max
    ),
    Metric("requests_total", "counter", "Store requests by verb; each attempt counts.", (*_STREAM, "verb")),
    Metric("request_errors_total", "counter", "Failed store requests by kind of error.", (*_STREAM, "kind")),
    Metric(
        "request_cost_estimate_dollars_total",
        "counter",
        "Estimated cost of the store requests, at the configured prices.",
    ),
    Metric("uploaded_bytes_total", "counter", "Bytes sent to the store; each attempt counts."),
    Metric("downloaded_bytes_total", "counter", "Bytes received from the store, all kinds of objects."),
    Metric("deleted_objects_total", "counter", "Objects deleted from the store."),
    Metric("throttles_total", "counter", "Requests that the store refused because of their rate."),
    Metric("retries_total", "counter", "Retries of store requests.", ()),
    Metric("read_fetched_bytes_total", "counter", "Bytes of data and index objects fetched for readers."),
    Metric("read_used_bytes_total", "counter", "Payload bytes of the entries returned to readers from the cold tier."),
    Metric("cache_hits_total", "counter", "Blocks and indexes that a reader found in memory."),
    Metric("cache_misses_total", "counter", "Blocks and indexes that a reader had to fetch."),
    Metric(
        "adaptive_rate_requests_per_second",
        "gauge",
        "Current request rate limit while the store throttles; absent otherwise.",
        (),
        merge=min,
    ),
    Metric(
        "throttle_queue_requests",
        "gauge",
        "Requests waiting for a rate limit, by priority.",
        ("priority",),
        merge=max,
    ),
    Metric("throttled_seconds_total", "counter", "Time that requests waited for a rate limit.", ()),
    Metric("unconsumed_bytes", "gauge", "Payload bytes that not all subscribers have read."),
    Metric("unconsumed_entries", "gauge", "Entries that not all subscribers have read."),
    Metric(
        "unconsumed_messages",
        "gauge",
        "Messages in offloaded entries that not all subscribers have read: with the retention policy consumption, "
        "where brokers number messages.",
    ),
    Metric("streams_without_subscribers", "gauge", "Streams with the retention policy consumption and no subscriber."),
    Metric("subscriber_lag_bytes", "gauge", "Payload bytes that a subscriber has not read.", (*_STREAM, "subscriber")),
    Metric("subscriber_lag_entries", "gauge", "Entries that a subscriber has not read.", (*_STREAM, "subscriber")),
    Metric(
        "subscriber_read_bytes_total", "counter", "Payload bytes that a subscriber has read.", (*_STREAM, "subscriber")
    ),
    Metric("retention_cycles_total", "counter", "Retention cycles by result.", (*_STREAM, "result")),
    Metric("streams_retention_failing", "gauge", "Streams whose latest retention cycle failed."),
    Metric("retention_truncations_total", "counter", "Times that retention moved a stream's start position forward."),
    Metric("retention_truncated_bytes_total", "counter", "Payload bytes truncated by retention."),
    Metric("subscribers_overridden_total", "counter", "Times that a subscriber lost unread entries to retention."),
    Metric(
        "retention_refusals_total",
        "counter",
        "Retention cycles that changed nothing because of an error, by kind of error.",
        (*_STREAM, "kind"),
        _CLOCK,
    ),
    Metric("cleanup_cycles_total", "counter", "Cleanup rounds by result.", (*_STREAM, "result")),
    Metric(
        "cleanup_refusals_total",
        "counter",
        "Cleanup rounds that an error ended early, by kind of error.",
        (*_STREAM, "kind"),
        _CLOCK,
    ),
    Metric(
        "cleanup_segments_total",
        "counter",
        "Segments advanced by cleanup, by the status reached.",
        (*_STREAM, "status"),
    ),
    Metric("cleanup_deleted_objects_total", "counter", "Deleted objects of purged segments."),
    Metric("cleanup_deleted_bytes_total", "counter", "Bytes of purged segments whose objects were deleted."),
    Metric("cleanup_deletable_bytes", "gauge", "Bytes of segments that would be deleted with `cleanup.delete = true`."),
    Metric("cleanup_pending_objects", "gauge", "Objects of purged segments that are not deleted yet."),
    Metric(
        "cleanup_pending_retries",
        "gauge",
        "Batches of objects of purged segments that the store refused to delete, to be retried.",
    ),
    Metric(
        "orphan_objects",
        "gauge",
        "Orphans kept in the store: objects and uploads that no manifest references.",
        ("owner",),
    ),
    Metric("orphan_bytes", "gauge", "Bytes of the orphans kept in the store.", ("owner",)),
    Metric("orphan_oldest_seconds", "gauge", "Age of the oldest orphan kept in the store.", ("owner",), merge=max),
    Metric(
        "orphan_deleted_objects_total", "counter", "Deleted orphans: objects and uploads that no manifest referenced."
    ),
    Metric("orphan_deleted_bytes_total", "counter", "Bytes of deleted orphans."),
    Metric(
        "maintenance_last_success_timestamp_seconds",
        "gauge",
        "Time of the job's last successful run.",
        ("job",),
        merge=max,
    ),
    Metric("http_requests_total", "counter", "HTTP requests by status class.", ("status",)),
    Metric(
        "http_request_duration_seconds",
        "histogram",
        "Duration of HTTP requests, from the request headers to the response.",
        (),
    ),
    Metric("http_refusals_total", "counter", "Connections and callers refused by the HTTP server.", ("reason",)),
    Metric("broker_plan_requests_total", "counter", "Ledger plans sent to brokers, by broker.", ("broker",)),
    Metric(
        "broker_planned_bytes_total",
        "counter",
        "Payload bytes in the ledger plans sent to brokers, by broker.",
        ("broker",),
    ),
    Metric("broker_plan_seconds", "histogram", "Duration of plan requests.", ()),
    Metric(
        "broker_answer_seconds_total",
        "counter",
        "Time spent on plans and on responses with entries, by broker.",
        ("broker",),
    ),
    Metric("broker_read_requests_total", "counter", "Responses with entries sent to brokers, by broker.", ("broker",)),
    Metric("broker_read_bytes_total", "counter", "Payload bytes in responses with entries, by broker.", ("broker",)),
    Metric(
        "broker_cache_hits_total",
        "counter",
        "Blocks and indexes for responses with entries found in memory, by broker.",
        ("broker",),
    ),
    Metric(
        "broker_read_seconds", "histogram", "Duration of responses with entries, until the broker received them.", ()
    ),
    Metric(
        "broker_offload_requests_total",
        "counter",
        "Broker requests that wait for a ledger to be offloaded, by result.",
        ("result",),
    ),
    Metric(
        "streams_broker_offloads_failing",
        "gauge",
        "Streams whose ledgers brokers keep because offloading fails; refused: by this process, failed: in the broker.",
        (*_STREAM, "by"),
    ),
    Metric(
        "scalable_topics_failing",
        "gauge",
        "Scalable topics with segments that are not offloaded, for example because their layout is damaged.",
    ),
    Metric(
        "scalable_subscriptions_removed_total",
        "counter",
        "Removals of this process's subscription at scalable topics; it was registered again.",
    ),
    Metric(
        "broker_offload_seconds", "histogram", "Duration of broker requests that wait for a ledger to be offloaded.", ()
    ),
    Metric("broker_filled_entries_total", "counter", "Entries sent by brokers because readers do not receive them."),
    Metric(
        "broker_delete_requests_total",
        "counter",
        "Notices of brokers that an offload attempt ended; nothing is deleted.",
        (),
    ),
    Metric("label_sets_refused_total", "counter", "Label sets above the limit, counted under the namespace other.", ()),
)
#: Name without the prefix ``offloader_`` -> metric.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


class Reading(NamedTuple):
    """A current value of a gauge."""

    name: str
    value: float
    stream: str = ""
    label: str = ""


class Recorder(Protocol):
    """Records measurements. The methods don't block, and never raise because of a measurement."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """Increases a counter."""

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """Adds a value to a histogram."""

    def watch(self, readings: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Registers ``readings``, called for gauge values at every scrape; the returned function unregisters it."""


class NoTelemetry:
    """Discards all measurements."""

    def add(self, name: str, amount: float = 1.0, *, stream: str = "", label: str = "") -> None:
        """Discards the measurement."""

    def observe(self, name: str, seconds: float, *, stream: str = "") -> None:
        """Discards the measurement."""

    def watch(self, readings: Callable[[], Iterable[Reading]]) -> Callable[[], None]:  # noqa: ARG002
        """Ignores the registration."""
        return lambda: None


NO_TELEMETRY: Recorder = NoTelemetry()


@lru_cache(_NAMESPACES_REMEMBERED_MAX)
def namespace_of(stream: str) -> str:
    """``tenant/ns/persistent/topic`` -> ``tenant/ns``; other names lose their last level."""
    levels = stream.split("/")
    return "/".join(levels[:2] if len(levels) >= _PULSAR_LEVELS else levels[:-1])


#: Minutes kept.
MINUTES_MAX = 60
#: Minutes averaged for the rate, because segments are committed in bursts.
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
        #: Bytes by stream for each of the newest minutes; only streams that offloaded something.
        self._streams: deque[Counter[str]] = deque([Counter()], maxlen=RATE_MINUTES)

    def add(self, size_bytes: float, stream: str = "") -> None:
        """Counts bytes of a stream that just became readable from the cold tier."""
        with self._lock:
            self._turn()
            self._bytes[-1] += int(size_bytes)
            self._streams[-1][stream] += int(size_bytes)

    def rate_of(self, stream: str) -> float:
        """Bytes per second of one stream, the mean of the last ``RATE_MINUTES``; 0.0 if it offloaded nothing."""
        with self._lock:
            seconds = self._seconds()
            return sum(minute[stream] for minute in self._streams) / seconds

    def document(self) -> dict[str, Any]:
        """``{"minute_bytes", "bytes_per_second"}``: bytes by minute, the oldest first, including the current minute;
        and the mean of the last ``RATE_MINUTES``."""
        with self._lock:
            seconds = self._seconds()
            found = list(self._bytes)
        return {"minute_bytes": found, "bytes_per_second": sum(found[-RATE_MINUTES:]) / seconds}

    def _seconds(self) -> float:
        """Seconds covered by the mean rate. The lock is held."""
        into_s = self._turn()
        return max(into_s + _MINUTE_S * (len(self._streams) - 1), 1.0)

    def _turn(self) -> float:
        """Starts the minutes elapsed since the last call; returns the seconds of the current one. The lock is held."""
        minute, into_s = divmod(self._clock.monotonic_s() - self._started_s, _MINUTE_S)
        passed = int(minute) - self._newest
        self._bytes.extend([0] * min(passed, MINUTES_MAX))
        self._streams.extend(Counter[str]() for _ in range(min(passed, RATE_MINUTES)))
        self._newest = int(minute)
        return into_s
