"""Looks at the streams of a process now and then: status file, watchdog, metrics.

Owns when it looks and what it tells whom. Must never keep a stream alive, hold it up, or fail because telling failed.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from offloader.clock import Clock
from offloader.errors import OffloaderError
from offloader.limits import LimitStatus
from offloader.settings import Settings
from offloader.status_document import process_document, store_document, stream_document, write_status_file
from offloader.store.attempts import limits_of, open_requests_of, stream_of
from offloader.store.base import ObjectStore
from offloader.telemetry import NO_TELEMETRY, Reading, Recorder
from offloader.watchdog import Stall, Watchdog
from offloader.write.stream.progress import Lag
from offloader.write.stream.status import StreamStatus

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


@dataclass(frozen=True, slots=True)
class _Seen:
    stream: str
    status: StreamStatus
    lag: Lag | None
    stall: Stall | None


class Observation:
    """The streams that are looked at.

    Args:
        settings: of the process; ``settings.telemetry`` says how often and where to.
        clock: for the watchdog and the time of a document.
        recorder: asks for the gauges of the streams until this is closed.
        store: where the streams go; its limits and open requests are looked at too.
        store_problems: promises that the store was found not to keep.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        recorder: Recorder = NO_TELEMETRY,
        store: ObjectStore | None = None,
        store_problems: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._store_problems = store_problems
        self._watchdog = Watchdog(
            settings.telemetry.watchdog_no_progress_s,
            settings.offload.max_offload_segment_rollover_time_minutes * 60,
        )
        # Guards the streams; a look is made by one thread at a time.
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._streams: weakref.WeakSet[ObservedStream] = weakref.WeakSet()
        self._reasons: dict[str, str] = {}
        self._told: str = ""
        self._complete: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows
        self._started = False
        self._closed = False
        self._unwatch = recorder.watch(self.readings)

    def add(self, stream: ObservedStream) -> None:
        """Looks at it from now on, for as long as somebody else holds it."""
        with self._lock:
            self._streams.add(stream)

    def complete_with(self, complete: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        """From here on ``complete`` makes the document's rows of what was seen: who serves streams knows more of them,
        and of others too. Must be quick."""
        self._complete = complete

    @property
    def stalled(self) -> Mapping[str, str]:
        """The streams that were stalled at the last look, and why."""
        return dict(self._reasons)

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
                try:
                    self.look()
                except Exception:
                    # The watchdog must outlive whatever is wrong with one stream.
                    _log.exception("looking at the streams failed; they are looked at again")
                took_s = self._clock.monotonic_s() - started_s
                call_after(max(self._settings.telemetry.status_interval_s, took_s * _IDLE_FACTOR), turn)

        call_after(0.0, turn)

    def close(self) -> None:
        """Looks for the last time, so that the status file says how it ended. Closing twice is fine."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._unwatch()
            if self._started:
                self.look()

    def look(self) -> dict[str, Any]:
        """Looks once; the document of the process, which goes to the status file too."""
        seen = self._see()
        documents = [stream_document(each.stream, each.status, each.lag, each.stall) for each in seen]
        document = process_document(
            self._complete(documents),
            settings=self._settings,
            limits=self._limits(),
            store=None if self._store is None else store_document(self._store, self._settings, self._store_problems),
            now_ms=self._clock.now_ms(),
        )
        self._write(document)
        return document

    def readings(self) -> Iterator[Reading]:
        """The gauges of the streams and of what they wait for, as they are now."""
        for each in self._see():
            if not each.status.was_closed:
                yield from _readings_of(each)
        limits = self._limits()
        for priority, count in ({} if limits is None else limits.waiting).items():
            yield Reading("turns_waiting", count, label=priority)
        if limits is not None and limits.pace_requests_per_s is not None:
            yield Reading("pace_requests_per_second", limits.pace_requests_per_s)

        if self._store is not None:
            requests = open_requests_of(self._store)
            yield Reading("requests_open", len(requests))
            yield Reading("requests_open_oldest_seconds", requests[0].seconds if requests else 0.0)

    def _limits(self) -> LimitStatus | None:
        return None if self._store is None else limits_of(self._store)

    def _hanging(self) -> dict[str, str]:
        """Stream -> its oldest request without an answer, of those that are overdue."""
        found: dict[str, str] = {}
        for request in () if self._store is None else open_requests_of(self._store):
            if request.seconds > self._settings.store.read_timeout_s:
                text = f"{request.verb} of {request.key} has had no answer for {request.seconds:.0f} s"
                found.setdefault(stream_of(request.key), text)
        return found

    def _see(self) -> list[_Seen]:
        with self._looking:
            with self._lock:
                held = sorted(self._streams, key=lambda stream: stream.stream)
            streams: dict[str, tuple[ObservedStream, StreamStatus]] = {}
            for stream in held:
                status = stream.status()
                # A stream that was stopped and started again may be held twice for a while.
                if stream.stream not in streams or not status.was_closed:
                    streams[stream.stream] = stream, status
            # Before any source is asked: one that doesn't answer must not keep the watchdog quiet.
            named = {name: status for name, (_, status) in streams.items()}
            stalls = self._watchdog.look(self._clock.monotonic_s(), named, self._hanging())
            self._warn(stalls)
            return [
                _Seen(name, status, _lag_of(stream), stalls.get(name)) for name, (stream, status) in streams.items()
            ]

    def _warn(self, stalls: Mapping[str, Stall]) -> None:
        """Once when it begins, once when it is over."""
        for name in stalls.keys() - self._reasons.keys():
            extra = {"event": "stream_stalled", "stream": name, "seconds": round(stalls[name].seconds, 3)}
            _log.warning("%s", stalls[name].reason, extra=extra)
        for name in self._reasons.keys() - stalls.keys():
            _log.info("stream %s: not stalled any more", name, extra={"event": "stream_moves", "stream": name})
        self._reasons = {name: stall.reason for name, stall in stalls.items()}

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


def _readings_of(seen: _Seen) -> Iterator[Reading]:
    stream, status = seen.stream, seen.status
    yield Reading("streams", 1.0, stream, status.mode.value)
    yield Reading("streams_stalled", float(seen.stall is not None), stream)
    yield Reading("buffer_bytes", status.buffer_bytes, stream)
    yield Reading("buffer_limit_bytes", status.buffer_bytes_max, stream)
    if status.last_progress_ms is not None:
        yield Reading("last_progress_timestamp_seconds", status.last_progress_ms / 1000, stream)
    if seen.lag is None:
        return
    yield Reading("lag_entries", seen.lag.entries, stream)
    yield Reading("lag_bytes", seen.lag.payload_bytes, stream)
    if seen.lag.seconds is not None:
        yield Reading("lag_seconds", seen.lag.seconds, stream)


def _lag_of(stream: ObservedStream) -> Lag | None:
    try:
        return stream.lag()
    except OffloaderError:
        return None
