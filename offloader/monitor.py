"""Periodic observation of a process's streams: status document, stalls and metrics."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from formats.entries import Position
from offloader.errors import AccessDeniedError, CorruptError, NotFoundError, OffloaderError
from offloader.manifest.state import ManifestState
from offloader.read.reader import load_stream
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import LimitStatus
from offloader.store.wrappers import limits_of, open_requests_of, stream_of
from offloader.telemetry.recorder import NO_TELEMETRY, Reading, Recorder
from offloader.write.quota import segment_age_s_max
from offloader.write.stream import Mode
from offloader.write.stream_state import Lag, StreamStatus


@dataclass(frozen=True, slots=True)
class Stall:
    """A stream with a backlog and without progress.

    Attributes:
        seconds: since its last progress.
        reason: one line: the backlog, its age and the cause, if known.
    """

    stream: str
    seconds: float
    reason: str


class _SeenProgress(NamedTuple):
    committed: Position | None
    offered_max: Position | None
    since_s: float


class Watchdog:
    """Detects streams without progress between observations.

    Args:
        no_progress_s: maximum time without progress for a stream with a backlog.
        segment_age_s: maximum age of a segment; the wait of a stream with all entries in a segment.
    """

    def __init__(self, no_progress_s: float, segment_age_s: float) -> None:
        self._no_progress_s, self._segment_age_s = no_progress_s, segment_age_s
        self._seen: dict[str, _SeenProgress] = {}

    def look(
        self, now_s: float, statuses: Mapping[str, StreamStatus], hanging: Mapping[str, str] | None = None
    ) -> dict[str, Stall]:
        """The currently stalled streams by name; forgets streams that aren't in ``statuses``.

        Args:
            now_s: of a monotonic clock.
            hanging: stream -> its overdue request as text.
        """
        seen: dict[str, _SeenProgress] = {}
        stalls: dict[str, Stall] = {}
        for stream, status in statuses.items():
            # A paused stream makes no progress; its time restarts when it is resumed.
            waits = _has_data(status) and status.mode is not Mode.PAUSED
            seen[stream] = self._moved(self._seen.get(stream) if waits else None, status, now_s)
            quiet_s, hangs = now_s - seen[stream].since_s, (hanging or {}).get(stream, "")
            if waits and (stall := self._stall(stream, status, quiet_s, hangs)) is not None:
                stalls[stream] = stall
        self._seen = seen
        return stalls

    def _moved(self, before: _SeenProgress | None, status: StreamStatus, now_s: float) -> _SeenProgress:
        if before is None:
            return _SeenProgress(status.committed, status.offered, now_s)
        offered = _after(status.offered, before.offered_max)
        if offered or before.committed != status.committed:
            return _SeenProgress(status.committed, status.offered if offered else before.offered_max, now_s)
        return before

    def _stall(self, stream: str, status: StreamStatus, quiet_s: float, hangs: str) -> Stall | None:
        waits = f"stream {stream}: entries up to {status.tail} wait, committed end {status.committed or 'none'}"
        if status.mode is Mode.STOPPED:
            return None if status.was_closed else Stall(stream, quiet_s, f"{waits}; it stopped: {status.error}")
        gathering = status.mode is Mode.LIVE and not _after(status.tail, status.offered)
        segment_age_s = self._segment_age_s if status.segment_age_s is None else status.segment_age_s
        if quiet_s < self._no_progress_s + (segment_age_s if gathering else 0):
            return None
        why = hangs or (f"last error: {status.error}" if status.error else "no error is known")
        return Stall(stream, quiet_s, f"{waits}; no progress for {quiet_s:.0f} s; {why}")


def _has_data(status: StreamStatus) -> bool:
    return _after(status.tail, status.committed)


def _is_unread(status: StreamStatus) -> bool:
    """Whether the process hasn't read the stream's manifest yet, so that the committed end is unknown."""
    return status.stored is None and status.committed is None


def _after(one: Position | None, other: Position | None) -> bool:
    return one is not None and (other is None or one > other)


@dataclass(frozen=True, slots=True)
class Outage:
    """Unreachable services that a stream needs, as text; empty: reachable, or not needed."""

    source: str = ""
    store: str = ""


#: Modes that an outage doesn't change.
_LASTING = (Mode.PAUSED.value, Mode.STOPPED.value, "deleted")


def mode_of(mode: str, *, disconnected: str = "", stalled: str | None = None) -> str:
    """A stream's mode as displayed: ``disconnected`` without its hot tier, ``stalled`` with blocked entries, else
    ``mode``."""
    if mode in _LASTING:
        return mode
    return "disconnected" if disconnected else "stalled" if stalled else mode


def lag_now(known: Lag, known_s: float, known_ms: int, now_s: float, *, is_caught_up: bool) -> Lag:
    """The lag while it can't be measured: it grows from the last known value.

    Args:
        known: the lag at ``known_s`` of the monotonic clock, which was ``known_ms``.
        is_caught_up: whether all known entries of the hot tier are committed by now.
    """
    seconds = (0.0 if is_caught_up else known.seconds or 0.0) + max(now_s - known_s, 0.0)
    entries, size_bytes = (0, 0) if is_caught_up else (known.entries, known.payload_bytes)
    return Lag(entries, size_bytes, seconds, known_ms)


VERSION = 1
_WHERE = "give the file of the writing process's setting telemetry.status_file"
#: Ten thousand streams take about seven MiB.
STATUS_FILE_BYTES_MAX = 256 * 1024 * 1024


def stream_document(
    stream: str, status: StreamStatus, lag: Lag | None, stall: Stall | None, outage: Outage | None = None
) -> dict[str, Any]:
    """One stream's status in this process. ``lag`` is ``None`` if it was never known. The offloaded amounts are those
    of the manifest as last read, ``None`` before the first read."""
    outage, stored = outage or Outage(), status.stored
    stalled = _stalled(status, stall, outage)
    return {
        "stream": stream,
        "source": "process",
        "mode": mode_of(status.mode.value, disconnected=outage.source, stalled=stalled),
        "tail": _position(status.tail),
        "offered": _position(status.offered),
        "committed": _position(status.committed),
        "lag": None if lag is None else {"entries": lag.entries, "bytes": lag.payload_bytes, "seconds": lag.seconds},
        "lag_known_ms": None if lag is None else lag.known_ms,
        "buffer": {"bytes": status.buffer_bytes, "bytes_max": status.buffer_bytes_max},
        "segments": {"offloaded": None if stored is None else stored.segments, "failed": status.segments_failed},
        "entries_offloaded": None if stored is None else stored.entries,
        "bytes_offloaded": None if stored is None else stored.payload_bytes,
        "bytes_per_second": None,  # a serving process counts it
        "offers_refused": status.offers_refused,
        "gaps_recorded": status.gaps_recorded,
        # A stream that was stopped on request has no error.
        "last_error": None if status.was_closed else status.error or None,
        "last_progress_ms": status.last_progress_ms,
        "stalled": stalled,
        "disconnected": outage.source or None,
    }


def _stalled(status: StreamStatus, stall: Stall | None, outage: Outage) -> str | None:
    """The cause that blocks entries; ``None``: they aren't blocked."""
    if stall is not None:
        return stall.reason
    waits = outage.store and _has_data(status) and status.mode.value not in _LASTING
    return f"entries up to {status.tail} wait: {outage.store}" if waits else None


_UNKNOWN = (
    *("tail", "offered", "committed", "lag", "buffer", "segments", "entries_offloaded", "bytes_offloaded"),
    *("offers_refused", "gaps_recorded", "last_error", "last_progress_ms", "stalled", "disconnected"),
    *("lag_known_ms", "bytes_per_second"),
)


def idle_document(stream: str, mode: str, *, error: str | None) -> dict[str, Any]:
    """A stream of this process without streaming offload: ``mode`` is ``standby``, ``ledger``, ``none``,
    ``starting`` or ``stopped``. Unknown values are ``null``, or come from the manifest."""
    return {
        "stream": stream,
        "source": "process",
        "mode": mode,
        **dict.fromkeys(_UNKNOWN),
        "segments": {"offloaded": None, "failed": 0},
        "last_error": error,
    }


def manifest_document(state: ManifestState) -> dict[str, Any]:
    """Status from the manifest alone: valid for a writer on any machine, but without hot tier and buffers."""
    totals = state.totals()
    assigned = len(state.assigned())
    return {
        "stream": state.stream,
        "source": "manifest",
        "mode": "deleted" if state.stream_deleted else "paused" if state.paused else None,
        "method": state.method,
        "tail": None,
        "offered": None,
        "committed": _position(state.committed_end()),
        "lag": None,
        "lag_known_ms": None,
        "buffer": None,
        "segments": {
            "assigned": assigned,
            "offloaded": totals.segments,
            "retired": len(state.segments) - assigned - totals.segments,
        },
        "entries_offloaded": totals.entries,
        "bytes_offloaded": totals.payload_bytes,
        "bytes_per_second": None,
        "gaps": len(state.gaps),
        "offers_refused": None,
        "last_error": None,
        "last_progress_ms": max((record.offloaded_ms or 0 for record in state.offloaded()[-1:]), default=None),
        "stalled": None,
        "disconnected": None,
        "epoch": state.epoch,
        "writer": state.writer.name,
        "record": state.record_id,
        "recorded_ms": state.time_ms or None,
    }


def with_manifest(process: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Merges both documents of a stream: segments, entries, bytes and the committed end from the manifest (they outlive
    processes), the others from the writing process."""
    merged = {**manifest, **process, "source": "process and manifest"}
    merged["segments"] = {**manifest["segments"], "failed": process["segments"]["failed"]}
    if manifest["mode"] == "paused" and process["mode"] != Mode.STOPPED.value:
        merged["mode"] = "paused"  # the process notices at its next commit or offload
    merged["last_progress_ms"] = process["last_progress_ms"] or manifest["last_progress_ms"]
    return merged | {name: manifest[name] for name in ("committed", "entries_offloaded", "bytes_offloaded")}


def status_rows(store: ObjectStore, streams: Sequence[str], served: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row for each stream: the facts of its manifest and, if the document ``served`` has it, those of its process.

    Raises:
        NotFoundError, CorruptError: a stream does not exist, or its manifest is damaged.
    """
    by_stream = {row["stream"]: row for row in served["streams"]}
    rows: list[Mapping[str, Any]] = []
    for stream in streams:
        manifest, process = manifest_document(load_stream(store, stream)), by_stream.get(stream)
        rows.append(manifest if process is None else with_manifest(process, manifest))
    return rows


def trouble_of(row: Mapping[str, Any]) -> str | None:
    """A stream's problem according to its status document; ``None``: none known."""
    return row.get("stalled") or row.get("disconnected") or row.get("last_error")


def write_status_file(path: Path, document: Mapping[str, Any]) -> None:
    """Replaces the file atomically: a reader sees the old document or the new one.

    Raises:
        AccessDeniedError: the folder doesn't exist or can't be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as cause:
        raise AccessDeniedError(
            f"the status file {path} can't be written: {cause.strerror}", hint="check telemetry.status_file"
        ) from cause


def read_status_file(path: Path) -> dict[str, Any]:
    """The document that a process last wrote; ``written_ms`` is its time.

    Raises:
        NotFoundError: no document was written yet.
        AccessDeniedError: the file can't be read.
        CorruptError: it isn't a status document.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(STATUS_FILE_BYTES_MAX + 1)
    except FileNotFoundError as cause:
        raise NotFoundError(
            f"the status file {path} doesn't exist", hint="set telemetry.status_file of the writing process"
        ) from cause
    except OSError as cause:
        raise AccessDeniedError(f"the status file {path} can't be read: {cause.strerror}") from cause
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError) as cause:
        raise CorruptError(f"{path} isn't a status document: {cause}", hint=_WHERE) from cause
    return status_document(document, where=str(path))


def status_document(document: Any, *, where: str) -> dict[str, Any]:
    """The checked document. Raises ``CorruptError`` if it isn't a status document."""
    if not (
        isinstance(document, dict)
        and document.get("version") == VERSION
        and isinstance(document.get("written_ms"), int)
        and isinstance(document.get("streams"), list)
        and all(isinstance(each, dict) and isinstance(each.get("stream"), str) for each in document["streams"])
    ):
        raise CorruptError(f"{where} isn't a status document of version {VERSION}", hint=_WHERE)
    return document


def _position(position: Position | None) -> str | None:
    return None if position is None else str(position)


_log = logging.getLogger("offloader.monitor")


class ObservedStream(Protocol):
    """A stream to observe, such as ``StreamOffload``. Its ``lag`` is requested only if its status has one."""

    @property
    def stream(self) -> str: ...

    def status(self) -> StreamStatus: ...

    def lag(self) -> Lag: ...


#: Stalls with a log line in one observation; further ones are only counted.
_STALLS_TOLD_MAX = 3
#: Observing ten thousand streams takes a quarter of a second: limit its share of the time.
_IDLE_FACTOR = 50.0


#: One observed stream, by name.
_Seen = tuple[str, StreamStatus, Lag | None, Stall | None, Outage]

#: Maximum wait of an observation for the ledgers of sources; then it shows the last known values.
LAG_WAIT_S_MAX = 1.0
#: Maximum age of a current lag.
LAG_CURRENT_S_MAX = 10.0


class Lags:
    """Last known lags of a process's streams. A separate thread queries the sources: one that doesn't answer delays one
    observation by at most ``LAG_WAIT_S_MAX``. One observation at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Stream -> its lag, and the time of the measurement by both clocks.
        self._known: dict[str, tuple[Lag, float, int]] = {}
        self._asking = threading.Event()
        self._asking.set()

    def look(
        self,
        streams: Mapping[str, tuple[ObservedStream, StreamStatus, Outage]],
        is_away: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, Lag | None]:
        """The lag of each stream; ``None``: it was never known.

        Args:
            is_away: whether a stream that isn't among them is unreachable now: its last known lag is kept.
        """
        # One shared value for streams without lag: a process may have thousands of idle streams.
        none_now = Lag(0, 0, 0.0), self._clock.monotonic_s(), self._clock.now_ms()
        unknown: dict[str, ObservedStream] = {}
        with self._lock:
            # A handover or restart of a stream during an outage doesn't reduce its lag.
            self._known = {name: each for name, each in self._known.items() if name in streams or is_away(name)}
            for name, (stream, status, outage) in streams.items():
                if outage.source or (outage.store and _is_unread(status)):
                    self._known.setdefault(name, none_now)
                elif _is_unread(status) and status.tail is None:
                    continue
                elif status.tail == status.committed:
                    self._known[name] = none_now
                else:
                    unknown[name] = stream
        if unknown and self._asking.is_set():
            self._asking = asked = threading.Event()
            threading.Thread(target=self._ask, args=(unknown, asked), name="offloader-lags", daemon=True).start()
            asked.wait(LAG_WAIT_S_MAX)
        return {name: self._lag(name, status, outage) for name, (_, status, outage) in streams.items()}

    def _ask(self, streams: Mapping[str, ObservedStream], asked: threading.Event) -> None:
        try:
            for name, stream in streams.items():
                with suppress(OffloaderError):
                    lag = stream.lag()
                    with self._lock:
                        self._known[name] = lag, self._clock.monotonic_s(), self._clock.now_ms()
        finally:
            asked.set()

    def _lag(self, name: str, status: StreamStatus, outage: Outage) -> Lag | None:
        with self._lock:
            known = self._known.get(name)
        if known is None:
            return None
        lag, known_s, known_ms = known
        now_s = self._clock.monotonic_s()
        if not outage.source and now_s - known_s <= LAG_CURRENT_S_MAX:
            return lag
        is_caught_up = status.tail == status.committed and not _is_unread(status)
        return lag_now(lag, known_s, known_ms, now_s, is_caught_up=is_caught_up)


class Observation:
    """Observes a process's streams.

    Args:
        settings: of the process; ``settings.telemetry`` has the interval and the destination.
        clock: for the watchdog and the time of a document.
        recorder: reads the gauges of the streams until this is closed.
        store: of the streams; its limits and open requests are observed too.
        store_problems: guarantees that the store failed in a check; with ``store.single_writer`` set, writes continue.
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
        self._settings, self._clock = settings, clock
        self._store, self._store_problems = store, store_problems
        self._watchdog = Watchdog(settings.telemetry.watchdog_no_progress, segment_age_s_max(settings.offload))
        # Guards the streams; one thread at a time observes.
        self._lock, self._looking, self._writing = threading.Lock(), threading.Lock(), threading.Lock()
        self._streams: weakref.WeakSet[ObservedStream] = weakref.WeakSet()
        self._reasons: dict[str, str] = {}
        #: Stalled streams whose recovery isn't logged yet.
        self._stalls_told: set[str] = set()
        self._told: str = ""
        self._complete: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows
        self._outage_of: Callable[[str], Outage] = lambda _: Outage()
        self._lags = Lags(clock)
        self._started = self._closed = False
        self._unwatch = recorder.watch(self.readings)

    def add(self, stream: ObservedStream) -> None:
        """Starts the observation of a stream, by weak reference."""
        with self._lock:
            self._streams.add(stream)

    def remove(self, stream: ObservedStream) -> None:
        """Ends the observation of a stream that was replaced, or is no longer offloaded by its process."""
        with self._lock:
            self._streams.discard(stream)

    def complete_with(
        self, complete: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], outage_of: Callable[[str], Outage]
    ) -> None:
        """Sets the function ``complete`` that makes the document's rows of the observations, as a service knows more
        about its streams and has further ones. ``outage_of`` returns unreachable services of a stream. Both must be
        fast."""
        self._complete, self._outage_of = complete, outage_of

    @property
    def stalled(self) -> Mapping[str, str]:
        """The streams stalled at the last observation, with the reasons."""
        return dict(self._reasons)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Observes every ``status_interval``, less often if that takes long. A second call has no effect.

        Args:
            call_after: runs a call after a number of seconds, on another thread.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True

        def turn() -> None:
            if not self._closed:
                started_s = self._clock.monotonic_s()
                try:
                    with self._writing:
                        if not self._closed:  # otherwise this would replace the final state
                            self._document()
                except Exception:
                    # An error of one stream must not stop the watchdog.
                    _log.exception("the observation of the streams failed; it is repeated")
                took_s = self._clock.monotonic_s() - started_s
                call_after(max(self._settings.telemetry.status_interval, took_s * _IDLE_FACTOR), turn)

        call_after(0.0, turn)

    def close(self) -> None:
        """Observes one last time, so that the status file has the final state. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._unwatch()
            if self._started:
                self.look()

    def look(self) -> dict[str, Any]:
        """Observes once; returns the process's document, also written to the status file."""
        with self._writing:
            return self._document()

    def _document(self) -> dict[str, Any]:
        from offloader import __version__

        streams, limits = self._complete([stream_document(*each) for each in self._see()]), self._limits()
        document = {
            "version": VERSION,
            "written_ms": self._clock.now_ms(),
            "software": __version__,
            "pid": os.getpid(),
            "store": self._store_document(),
            "limits": None if limits is None else asdict(limits),
            "settings": asdict(self._settings),
            "streams": streams,
        }
        self._write(document)
        return document

    def _store_document(self) -> dict[str, Any] | None:
        if self._store is None:
            return None
        requests = open_requests_of(self._store)
        return {
            "url": self._store.url,
            "single_writer": self._settings.store.single_writer,
            "problems": list(self._store_problems),
            "open_requests": len(requests),
            "oldest_request": asdict(requests[0]) if requests else None,
        }

    def readings(self) -> Iterator[Reading]:
        """Current gauges of the streams and of the resources they wait for."""
        for each in self._see():
            yield from _readings_of(*each)
        limits = self._limits()
        for priority, count in ({} if limits is None else limits.waiting).items():
            yield Reading("throttle_queue_requests", count, label=priority)
        if limits is not None and limits.pace_requests_per_s is not None:
            yield Reading("adaptive_rate_requests_per_second", limits.pace_requests_per_s)
        if self._store is not None:
            requests = open_requests_of(self._store)
            yield Reading("requests_open", len(requests))
            yield Reading("requests_open_oldest_seconds", requests[0].seconds if requests else 0.0)

    def _limits(self) -> LimitStatus | None:
        return None if self._store is None else limits_of(self._store)

    def _hanging(self) -> dict[str, str]:
        """Stream -> its oldest overdue request."""
        requests = () if self._store is None else open_requests_of(self._store)
        return {
            stream_of(each.key): f"{each.verb} of {each.key} has had no answer for {each.seconds:.0f} s"
            for each in reversed(requests)  # the oldest is the first one
            if each.seconds > self._settings.store.read_timeout
        }

    def _see(self) -> list[_Seen]:
        with self._looking:
            with self._lock:
                held = sorted(self._streams, key=lambda stream: stream.stream)
            streams: dict[str, tuple[ObservedStream, StreamStatus]] = {}
            for stream in held:
                status = stream.status()
                # A restarted stream may be listed twice for a while.
                if stream.stream not in streams or not status.was_closed:
                    streams[stream.stream] = stream, status
            # Before the queries of sources: an unresponsive source must not block the watchdog.
            named = {name: status for name, (_, status) in streams.items()}
            stalls = self._watchdog.look(self._clock.monotonic_s(), named, self._hanging())
            self._warn(stalls)
            known = {name: (stream, status, self._outage_of(name)) for name, (stream, status) in streams.items()}
            lags = self._lags.look(known, lambda name: self._outage_of(name) != Outage())
            return [(name, status, lags[name], stalls.get(name), outage) for name, (_, status, outage) in known.items()]

    def _warn(self, stalls: Mapping[str, Stall]) -> None:
        # The log line of an outage covers the stalls that it causes.
        new = {name for name in stalls.keys() - self._reasons.keys() if self._outage_of(name) == Outage()}
        for name in sorted(new)[:_STALLS_TOLD_MAX]:
            extra = {"event": "stream_stalled", "stream": name, "seconds": round(stalls[name].seconds, 3)}
            _log.warning("%s", stalls[name].reason, extra=extra)
        if (more := len(new) - _STALLS_TOLD_MAX) > 0:
            _log.warning(
                "%d further streams make no progress", more, extra={"event": "streams_stalled", "streams": more}
            )
        self._stalls_told |= new
        over = self._stalls_told - stalls.keys()
        for name in sorted(over)[:_STALLS_TOLD_MAX]:
            _log.info("stream %s: no longer stalled", name, extra={"event": "stream_moves", "stream": name})
        if (more := len(over) - _STALLS_TOLD_MAX) > 0:
            _log.info(
                "%d further streams are no longer stalled", more, extra={"event": "streams_move", "streams": more}
            )
        self._stalls_told -= over
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


def _readings_of(
    stream: str, status: StreamStatus, lag: Lag | None, stall: Stall | None, outage: Outage
) -> Iterator[Reading]:
    if status.was_closed:
        return
    stalled = _stalled(status, stall, outage)
    mode = mode_of(status.mode.value, disconnected=outage.source, stalled=stalled)
    yield Reading("streams", 1.0, stream, mode)
    yield Reading("streams_stalled", float(stalled is not None), stream)
    yield Reading("buffer_bytes", status.buffer_bytes, stream)
    yield Reading("buffer_limit_bytes", status.buffer_bytes_max, stream)
    if status.last_progress_ms is not None:
        yield Reading("last_progress_timestamp_seconds", status.last_progress_ms / 1000, stream)
    if lag is None:
        return
    yield Reading("lag_entries", lag.entries, stream)
    yield Reading("lag_bytes", lag.payload_bytes, stream)
    if lag.seconds is not None:
        yield Reading("lag_seconds", lag.seconds, stream)
