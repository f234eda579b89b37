"""Looks at the streams of a process now and then: status file, watchdog, metrics.

Owns when it looks and what it tells whom. Must never keep a stream alive, hold it up, or fail because telling failed.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from offloader.clock import Clock
from offloader.errors import OffloaderError
from offloader.limits import LimitStatus
from offloader.settings import Settings
from offloader.status_document import process_document, stream_document, write_status_file
from offloader.telemetry import NO_TELEMETRY, Recorder
from offloader.watchdog import Stall, Watchdog
from offloader.write.progress import Lag
from offloader.write.status import StreamStatus

__all__ = ["Observation", "ObservedStream"]

_log = logging.getLogger("offloader.watchdog")


class ObservedStream(Protocol):
    """What is looked at; ``StreamOffload`` is one."""

    @property
    def stream(self) -> str: ...

    def status(self) -> StreamStatus: ...

    def lag(self) -> Lag: ...


#: A look at ten thousand streams takes a quarter of a second: it must stay a small part of the time.
_IDLE_FACTOR = 50.0
#: Error of a stream that somebody else owns.
_FENCED = "Fenced"
#: Counter of a status -> metric and its label.
_COUNTERS = {
    "entries_committed": ("entries_offloaded_total", ""),
    "bytes_committed": ("bytes_offloaded_total", ""),
    "segments_committed": ("segments_total", "offloaded"),
    "segments_failed": ("segments_total", "failed"),
    "offers_refused": ("offers_refused_total", ""),
}


class Observation:
    """The streams that are looked at.

    Args:
        settings: of the process; ``settings.telemetry`` says how often and where to.
        clock: for the watchdog and the time of a document.
        recorder: takes the metrics of the streams.
        limits: what the store's limits do at the moment.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        recorder: Recorder = NO_TELEMETRY,
        limits: Callable[[], LimitStatus | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._limits = limits
        self._watchdog = Watchdog(
            settings.telemetry.watchdog_no_progress_s,
            settings.offload.max_offload_segment_rollover_time_minutes * 60,
        )
        # Guards the streams; a look is made by one thread at a time.
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._streams: weakref.WeakSet[ObservedStream] = weakref.WeakSet()
        self._counted: weakref.WeakKeyDictionary[ObservedStream, dict[str, int]] = weakref.WeakKeyDictionary()
        self._stalled: set[str] = set()
        self._waited_s = 0.0
        self._told: str = ""
        self._started = False
        self._closed = False

    def add(self, stream: ObservedStream) -> None:
        """Looks at it from now on, for as long as somebody else holds it."""
        with self._lock:
            self._streams.add(stream)

    def remove(self, stream: ObservedStream) -> None:
        """Doesn't look at it any more."""
        with self._lock:
            self._streams.discard(stream)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Looks every ``status_interval_s``, less often where a look takes long; a second call changes nothing.

        Args:
            call_after: runs something after so many seconds, on another thread.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True

        def turn() -> None:
            if not self._closed:
                started_s = self._clock.monotonic_s()
                self.look()
                took_s = self._clock.monotonic_s() - started_s
                call_after(max(self._settings.telemetry.status_interval_s, took_s * _IDLE_FACTOR), turn)

        call_after(0.0, turn)

    def close(self) -> None:
        """Looks for the last time, so that the status file says how it ended. Closing twice is fine."""
        with self._lock:
            closed, self._closed = self._closed, True
        if self._started and not closed:
            self.look()

    def look(self) -> dict[str, Any]:
        """Looks once; the document of the process."""
        with self._looking:
            with self._lock:
                streams = sorted(self._streams, key=lambda stream: stream.stream)
            statuses = {stream: stream.status() for stream in streams}
            lags = {stream: _lag_of(stream) for stream in streams}
            stalls = self._watchdog.look(
                self._clock.monotonic_s(), {stream.stream: status for stream, status in statuses.items()}
            )
            self._warn(stalls)
            limits = self._limits()
            self._measure(statuses, lags, stalls, limits)
            documents = [
                stream_document(stream.stream, statuses[stream], lags[stream], stalls.get(stream.stream))
                for stream in streams
            ]
            document = process_document(documents, settings=self._settings, limits=limits, now_ms=self._clock.now_ms())
            self._write(document)
            return document

    def _warn(self, stalls: Mapping[str, Stall]) -> None:
        """Once when it begins, once when it is over."""
        for name in stalls.keys() - self._stalled:
            extra = {"event": "stream_stalled", "stream": name, "seconds": round(stalls[name].seconds, 3)}
            _log.warning("%s", stalls[name].reason, extra=extra)
        for name in self._stalled - stalls.keys():
            _log.info("stream %s: not stalled any more", name, extra={"event": "stream_moves", "stream": name})
        self._stalled = set(stalls)

    def _measure(
        self,
        statuses: Mapping[ObservedStream, StreamStatus],
        lags: Mapping[ObservedStream, Lag | None],
        stalls: Mapping[str, Stall],
        limits: LimitStatus | None,
    ) -> None:
        gauges: dict[str, dict[tuple[str, str], float]] = {name: {} for name in _GAUGES}
        for stream, status in statuses.items():
            self._count(stream, status)
            at = (stream.stream, "")
            gauges["streams"][stream.stream, status.mode.value] = 1.0
            gauges["streams_stalled"][at] = float(stream.stream in stalls)
            gauges["buffer_bytes"][at] = status.buffer_bytes
            gauges["buffer_limit_bytes"][at] = status.buffer_bytes_max
            if status.last_progress_ms is not None:
                gauges["last_progress_timestamp_seconds"][at] = status.last_progress_ms / 1000
            lag = lags[stream]
            if lag is not None:
                gauges["lag_entries"][at] = lag.entries
                gauges["lag_bytes"][at] = lag.payload_bytes
                if lag.seconds is not None:
                    gauges["lag_seconds"][at] = lag.seconds
        if limits is not None:
            gauges["turns_waiting"] = {("", name): float(count) for name, count in limits.waiting.items()}
            if limits.pace_requests_per_s is not None:
                gauges["pace_requests_per_second"] = {("", ""): limits.pace_requests_per_s}
            self._recorder.add("turns_waited_seconds_total", limits.waited_s - self._waited_s)
            self._waited_s = limits.waited_s
        for name, values in gauges.items():
            self._recorder.set(name, values)

    def _count(self, stream: ObservedStream, status: StreamStatus) -> None:
        """Counters grow by what is new since the last look: a namespace's outlive its streams."""
        before = self._counted.setdefault(stream, dict.fromkeys(_COUNTERS, 0))
        if status.error_kind == _FENCED and not before.get(_FENCED):
            before[_FENCED] = 1
            self._recorder.add("fenced_total", stream=stream.stream)
        for name, (metric, label) in _COUNTERS.items():
            grown = getattr(status, name) - before[name]
            if grown:
                self._recorder.add(metric, grown, stream=stream.stream, label=label)
                before[name] += grown

    def _write(self, document: Mapping[str, Any]) -> None:
        if not self._settings.telemetry.status_file:
            return
        try:
            write_status_file(Path(self._settings.telemetry.status_file), document)
            self._told = ""
        except OffloaderError as error:
            if str(error) != self._told:
                _log.warning("%s", error)
            self._told = str(error)


_GAUGES = (
    *("streams", "streams_stalled", "buffer_bytes", "buffer_limit_bytes", "last_progress_timestamp_seconds"),
    *("lag_entries", "lag_bytes", "lag_seconds", "turns_waiting", "pace_requests_per_second"),
)


def _lag_of(stream: ObservedStream) -> Lag | None:
    try:
        return stream.lag()
    except OffloaderError:
        return None
