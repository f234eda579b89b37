"""Streams of a serving process, each offloaded here or on standby."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from formats.entries import Position
from formats.keys import levels_above
from offloader.errors import (
    Closed,
    Fenced,
    InvalidCall,
    LimitReached,
    NotFound,
    OffloaderError,
    SourceMismatch,
    StoreUnavailable,
)
from offloader.ledgers.base import LedgerSource, newest_given
from offloader.manifest.state import StreamPaused
from offloader.monitor import idle_document
from offloader.runtime.clock import Clock
from offloader.runtime.workers import SerialTask, Timer, Workers
from offloader.service.providers.base import ProviderProblem
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.stream_names import name_clash, require_stream_name
from offloader.write.hot_release import HotRelease
from offloader.write.ledger_method import LedgerTrigger
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.status import Mode, StreamStatus

__all__ = ["LOOK_S", "RESTART_S_MIN", "ServedStreams", "StreamSupervisor"]

_log = logging.getLogger("offloader.service")

#: First wait before a stream that failed is restarted; it doubles.
RESTART_S_MIN = 1.0
#: A stream that ran this long before it failed restarts with the first wait.
RAN_WELL_S = 600.0


class StreamSupervisor:
    """See ``offloader.service.providers.base.StreamControl``. Thread-safe.

    Args:
        name, feed: the stream's name, and its provider.
        source: its hot tier.
        settings: its own.
        adjust: the provider's changes to its settings, these and later ones.
        offloader: of the process.
        workers: start and stop streams; not those that offload.
        restart_s_max: longest wait before a restart.
        active: whether it is offloaded at once; ``None``: the leader isn't known yet, so it waits.
    """

    def __init__(
        self,
        name: str,
        source: LedgerSource,
        *,
        feed: str,
        settings: Settings,
        adjust: Callable[[Settings], Settings],
        offloader: LedgerOffloader,
        workers: Workers,
        clock: Clock,
        restart_s_max: float,
        active: bool | None,
    ) -> None:
        self.name, self.feed, self.source = name, feed, source
        self._adjust = adjust
        self._settings = adjust(settings)
        self._offloader, self._workers, self._clock = offloader, workers, clock
        self._restart_s_max = restart_s_max
        self._task = SerialTask(workers, self._settle)
        #: Set after the first attempt to start.
        self._begun = threading.Event()
        # Guards the wanted and the actual state; no start or stop while it is held.
        self._lock = threading.Lock()
        self._wanted = bool(active)
        self._is_decided = active is not None
        self._ended = False
        self._reclaim = False
        self._restart_s = RESTART_S_MIN
        self._started_s = 0.0
        self._timer: Timer | None = None
        self._error: OffloaderError | None = None
        # Written by the task only.
        self._offload: StreamOffload | None = None
        self._trigger: LedgerTrigger | None = None
        self._hot_release: HotRelease | None = None
        self._running: Settings | None = None

    # --- calls of the provider -----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._wanted and not self._ended

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def committed(self) -> Position | None:
        status = self.status()
        return None if status is None else status.committed

    def status(self) -> StreamStatus | None:
        offload = self._offload
        return None if offload is None else offload.status()

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Offloads everything in the hot tier, or up to ``until``, and waits for the commit, also of a stream that is
        still starting. Includes entries that the source hasn't notified yet.

        Raises:
            InvalidCall: its method is none; Fenced: another process is the leader.
            StoreUnavailable: not started, the leader isn't known yet, or not committed within ``timeout_s``; the hot
                tier's entries are unknown.
            As ``ManagedLedger.offload``.
        """
        if self.is_active and timeout_s is not None:
            deadline_s = self._clock.monotonic_s() + timeout_s
            self._clock.wait(self._begun, timeout_s)
            timeout_s = max(deadline_s - self._clock.monotonic_s(), 0.0)
        offload, trigger = self._offload, self._trigger
        if offload is not None:
            return self._offload_all(offload, until, timeout_s)
        if trigger is not None:
            result = trigger.offload()
            if result.errors:
                raise result.errors[0]
            return result.committed
        if not self._is_decided:
            raise StoreUnavailable(
                f"stream {self.name}: it isn't known yet which process has the turn to offload it",
                hint="ask again in a moment; if it stays so, look at the problems in /readyz",
            )
        if not self.is_active:
            raise Fenced(f"stream {self.name} stands by here: another process offloads it", hint="ask that one")
        if self._settings.offload.method == "none":
            raise InvalidCall(f"stream {self.name} isn't offloaded: its method is none", hint="set another method")
        raise self._error or StoreUnavailable(f"stream {self.name} is being started", hint="ask again")

    def _offload_all(self, offload: StreamOffload, until: Position | None, timeout_s: float | None) -> Position | None:
        wait_s = self._settings.offload.drain_seconds_max if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + wait_s
        # Offload the notified entries at once, even if the others fail.
        offload.request_offload(until)
        newest = newest_given(self.source.ledgers())
        wanted = newest if until is None or newest is None else min(until, newest)
        if wanted is not None and not offload.hears_of(
            wanted, within_s=max(deadline_s - self._clock.monotonic_s(), 0.0)
        ):
            raise StoreUnavailable(
                f"stream {self.name}: the hot tier has {wanted}, and hasn't given it within {wait_s:g} s",
                hint="nothing is lost: it is offloaded as soon as it comes; look at the stream's problems",
            )
        return offload.offload(until, timeout_s=max(deadline_s - self._clock.monotonic_s(), 0.0))

    def look_again(self) -> None:
        """Wakes it to check for a pause in the manifest."""
        for each in (self._offload, self._trigger):
            if each is not None:
                each.look_again()

    @property
    def error(self) -> OffloaderError | None:
        """Why it isn't offloaded although it should be."""
        return self._error

    def begin(self) -> None:
        """Schedules the transition to the wanted state."""
        self._task.schedule()

    def activate(self) -> None:
        with self._lock:
            self._wanted = self._reclaim = self._is_decided = True
        self._task.schedule()

    def stand_by(self) -> None:
        with self._lock:
            self._wanted, self._is_decided = False, True
        self._task.schedule()

    def use(self, settings: Settings) -> None:
        """Applies other settings; a running stream restarts if they concern it."""
        with self._lock:
            self._settings = self._adjust(settings)
        self._task.schedule()

    def look(self) -> None:
        """Restarts it after an error; for a periodic check of all streams."""
        if self._stopped_error() is not None:
            self._task.schedule()

    # --- ending --------------------------------------------------------------------------------------------------

    @property
    def has_to_drain(self) -> bool:
        """Whether it may have entries to complete before it ends."""
        return self.is_active and self._settings.offload.method == "streaming"

    def request_drain(self) -> None:
        """Requests a flush up to the newest entry, if it is running."""
        offload = self._offload
        if offload is not None:
            offload.request_offload()

    def drain(self, within_s: float) -> None:
        """Completes the current segment; waits for a current start.

        Raises:
            OffloaderError: it couldn't be completed.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        self._clock.wait(self._begun, within_s)
        # Read in this order: ``end`` sets its flag before it clears the offload.
        offload = self._offload
        if self._ended:
            raise Closed(f"stream {self.name} was stopped")
        if offload is None:
            raise self._error or StoreUnavailable(f"stream {self.name} wasn't started in time")
        offload.offload(timeout_s=max(deadline_s - self._clock.monotonic_s(), 0.0))

    def end(self) -> None:
        """Stops offloading for good, without waiting for the store. Idempotent."""
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
        self._begun.set()
        # Not through the task: after this returns, a closed source gets no calls.
        self._stop()
        self._task.schedule()

    # --- status --------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any] | None:
        """Its row in the status document, if ``StreamOffload`` has none."""
        if self._offload is not None:
            return None
        mode = "standby" if not self._wanted else self._settings.offload.method if self._running else "starting"
        return idle_document(self.name, mode, error=None if self._error is None else str(self._error))

    # --- the task ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        with self._lock:
            wanted = self._settings if self._wanted and not self._ended else None
            reclaim, self._reclaim = self._reclaim, False
        stopped = self._stopped_error()
        if stopped is not None and self._running is not None:
            self._after_failure(stopped)
            self._stop()
            return
        if self._running is not None and (wanted is None or _differs(wanted, self._running)):
            self._stop()
        if wanted is None:
            self._error = None
            return
        if self._running is None:
            if self._timer is None:
                self._start(wanted)
                self._begun.set()
        elif reclaim and self._offload is not None:
            self._offload.reopen()

    def _start(self, settings: Settings) -> None:
        try:
            method = settings.offload.method
            if method == "streaming":
                self._offload = self._offloader.offload_stream(self.source, self.name, settings=settings.offload)
            elif method == "ledger":
                self._trigger = self._offloader.offload_closed_ledgers(
                    self.source, self.name, settings=settings.offload
                )
            if method != "none":
                self._hot_release = self._offloader.runs_of(settings.offload).hot_release(self.source, self.name)
                self._hot_release.start()
        except OffloaderError as error:
            self._after_failure(error)
            self._stop()
            return
        except Exception as error:
            _log.exception("stream %s can't be started", self.name, extra={"stream": self.name})
            self._after_failure(StoreUnavailable(f"stream {self.name}: {type(error).__name__}: {error}"))
            self._stop()
            return
        self._running, self._error = settings, None
        self._started_s = self._clock.monotonic_s()
        if self._ended:  # ended during the start
            self._stop()

    def _stop(self) -> None:
        for each in (self._offload, self._trigger, self._hot_release):
            if each is not None:
                each.stop()
        self._offload = self._trigger = self._hot_release = self._running = None

    def _stopped_error(self) -> OffloaderError | None:
        """The error that stopped a running stream. A fenced streaming offload isn't restarted: it polls for its
        successor itself, and its provider activates it."""
        offload, trigger = self._offload, self._trigger
        if offload is None:
            return None if trigger is None else trigger.stopped_by
        status = offload.status()
        if status.mode is not Mode.STOPPED or status.error_kind in (Closed.__name__, Fenced.__name__):
            return None
        kind = SourceMismatch if status.error_kind == SourceMismatch.__name__ else StoreUnavailable
        return kind(status.error)

    def _after_failure(self, error: OffloaderError) -> None:
        with self._lock:
            if self._started_s and self._clock.monotonic_s() - self._started_s > RAN_WELL_S:
                self._restart_s = RESTART_S_MIN
            wait_s, self._restart_s = self._restart_s, min(2 * self._restart_s, self._restart_s_max)
            if isinstance(error, Fenced):
                wait_s = max(wait_s, self._settings.offload.takeover_after_seconds)
            self._error = error
            if not self._ended:
                self._timer = self._workers.call_after(wait_s, self._again)
        extra = {"event": "stream_restarts", "stream": self.name}
        _log.warning("stream %s isn't offloaded: %s; again in %.0f s", self.name, error, wait_s, extra=extra)

    def _again(self) -> None:
        with self._lock:
            self._timer = None
        self._task.schedule()


def _differs(one: Settings, other: Settings) -> bool:
    """Whether a running stream must restart to apply the settings."""
    return one.offload != other.offload


#: Interval of the check for streams that stopped on an error.
LOOK_S = 5.0
#: Threads that start and stop streams; a source may take long to list its ledgers.
STARTERS = 4
#: Problems of streams listed one by one; of further ones only the number.
PROBLEMS_NAMED_MAX = 20


class ServedStreams:
    """See ``offloader.service.providers.base.Streams``. Thread-safe.

    Args:
        offloader: of the process.
        file: the settings in force; replaced by ``use``.
        clock: for deadlines and waits.
    """

    def __init__(self, offloader: LedgerOffloader, file: SettingsFile, clock: Clock) -> None:
        self._offloader, self._clock = offloader, clock
        self._file = file
        self._serve = file.settings_of("").serve
        self._workers = Workers(STARTERS, clock)
        # Guards the table.
        self._lock = threading.Lock()
        self._streams: dict[str, StreamSupervisor] = {}
        #: Prefixes of the streams' names, with the number of streams below each.
        self._levels = Counter[str]()
        self._closed = False
        self._aborted = threading.Event()

    def start(self) -> None:
        """Starts the periodic check of the streams."""
        self._workers.call_after(LOOK_S, self._look)

    # --- calls of providers --------------------------------------------------------------------------------------

    @property
    def file(self) -> SettingsFile:
        """The settings in force."""
        return self._file

    def settings_of(self, name: str) -> Settings:
        return self._file.settings_of(name)

    def add(
        self,
        name: str,
        source: LedgerSource,
        *,
        feed: str,
        adjust: Callable[[Settings], Settings] = lambda settings: settings,
        active: bool | None = True,
    ) -> StreamSupervisor:
        require_stream_name(name)
        stream = StreamSupervisor(
            name,
            source,
            feed=feed,
            settings=self.settings_of(name),
            adjust=adjust,
            offloader=self._offloader,
            workers=self._workers,
            clock=self._clock,
            restart_s_max=self._serve.restart_seconds_max,
            active=active,
        )
        with self._lock:
            if self._closed:
                raise Closed("the process is stopping")
            there = self._streams.get(name)
            if there is not None:
                raise InvalidCall(f"stream {name} is there already: feed {there.feed} brought it", hint="name it once")
            self._require_own_level(name)
            if len(self._streams) >= self._serve.streams_max:
                raise LimitReached(
                    f"stream {name} isn't offloaded: there are {len(self._streams)} already",
                    hint="raise serve.streams_max, or spread the streams over several processes",
                )
            self._streams[name] = stream
            self._levels.update(levels_above(name))
        stream.begin()
        return stream

    def remove(self, name: str, *, drain: bool = True, within_s: float | None = None) -> bool:
        stream = self.get(name)
        if stream is None:
            return False
        if drain and stream.has_to_drain:
            self._drain(stream, stream.settings.offload.drain_seconds_max if within_s is None else within_s)
        stream.end()
        with self._lock:
            if self._streams.get(name) is stream:
                del self._streams[name]
                self._levels.subtract(levels_above(name))
        return True

    def _require_own_level(self, name: str) -> None:
        """Refuses a name that is a prefix of another or the reverse; the store may know neither yet."""
        clash = next((each for each in levels_above(name) if each in self._streams), None)
        if clash is None and self._levels[name] > 0:
            clash = next(each for each in self._streams if each.startswith(f"{name}/"))
        if clash is not None:
            raise name_clash(name, clash)

    # --- calls of the process ------------------------------------------------------------------------------------

    def get(self, name: str) -> StreamSupervisor | None:
        """The stream of that name."""
        with self._lock:
            return self._streams.get(name)

    def require(self, name: str) -> StreamSupervisor:
        """The stream of that name.

        Raises:
            NotFound: it isn't served here.
        """
        found = self.get(name)
        if found is None:
            raise NotFound(f"stream {name} isn't offloaded by this process", hint="ask the process that offloads it")
        return found

    def all(self) -> list[StreamSupervisor]:
        """Every stream."""
        with self._lock:
            return list(self._streams.values())

    def source_of(self, name: str) -> LedgerSource | None:
        """The hot tier of a stream that is served here, if it is."""
        stream = self.get(name)
        return None if stream is None else stream.source

    def use(self, file: SettingsFile) -> None:
        """Replaces the settings; streams with changes of their own apply them soon."""
        with self._lock:
            self._file, self._serve = file, file.settings_of("").serve
        for stream in self.all():
            stream.use(file.settings_of(stream.name))

    def documents(self) -> list[dict[str, Any]]:
        """Rows of the streams without one of a ``StreamOffload``."""
        return [row for stream in self.all() if (row := stream.document()) is not None]

    def labels(self) -> dict[str, dict[str, Any]]:
        """Each stream's labels in the status document."""
        return {
            each.name: {"feed": each.feed, "active": each.is_active, "method": each.settings.offload.method}
            for each in self.all()
        }

    def problems(self) -> list[ProviderProblem]:
        """Streams that aren't offloaded although they should be; they don't block readiness: others are."""
        failing = [(each.name, each.error) for each in self.all() if each.error is not None]
        found = [
            ProviderProblem(where=f"stream {name}", what=error.message, hint=error.hint)
            for name, error in failing[:PROBLEMS_NAMED_MAX]
            if error is not None
        ]
        if len(failing) > PROBLEMS_NAMED_MAX:
            rest = len(failing) - PROBLEMS_NAMED_MAX
            found.append(ProviderProblem(where="streams", what=f"{rest} more aren't offloaded although they should be"))
        return found

    # --- the end -------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Ends a drain early, and prevents further ones."""
        self._aborted.set()
        for stream in self.all():
            stream.end()

    def close(self, *, drain: bool, on_drained: Callable[[int], object] = lambda _: None) -> int:
        """Accepts no further stream, completes all current segments within the longest of their ``drain_seconds_max``,
        and ends every stream. Idempotent.

        Args:
            on_drained: called periodically with the number of streams still to drain.

        Returns:
            The number of streams that weren't drained; the next start offloads their rest.
        """
        with self._lock:
            self._closed = True
        streams, left = self.all(), 0
        if drain:
            draining = [stream for stream in streams if stream.has_to_drain]
            for stream in draining:
                stream.request_drain()
            deadline_s = self._clock.monotonic_s()
            deadline_s += max((each.settings.offload.drain_seconds_max for each in draining), default=0.0)
            for number, stream in enumerate(draining):
                left += not self._drain(stream, max(deadline_s - self._clock.monotonic_s(), 0.0))
                on_drained(len(draining) - number - 1)
        for stream in streams:
            stream.end()
        self._workers.close()
        return left

    def _drain(self, stream: StreamSupervisor, within_s: float) -> bool:
        if self._aborted.is_set():
            return False
        try:
            stream.drain(within_s)
        except (StreamPaused, Fenced):
            pass  # ended on request or by another process; the hot tier keeps the rest
        except OffloaderError as error:
            extra = {"event": "drain_failed", "stream": stream.name}
            _log.warning("stream %s isn't drained: %s", stream.name, error, extra=extra)
            return False
        return True

    def _look(self) -> None:
        for stream in self.all():
            stream.look()
        if not self._closed:
            self._workers.call_after(LOOK_S, self._look)
