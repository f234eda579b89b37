"""Streams of a serving process, each offloaded here or on standby, and the protocol of their providers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from formats.entries import Position
from formats.keys import levels_above
from offloader.errors import (
    ClosedError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    SourceMismatchError,
    StoreMismatchError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerSource, newest_given
from offloader.manifest.state import StreamPaused
from offloader.monitor import idle_document
from offloader.runtime.clock import Clock
from offloader.runtime.workers import SerialTask, Workers
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.stream_names import name_clash, require_stream_name
from offloader.write.hot_release import CommitAck, HotRelease
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader, LedgerTrigger
from offloader.write.stream import Mode
from offloader.write.stream_state import StreamStatus

_log = logging.getLogger("offloader.service")

#: First delay before a failed stream is restarted; doubles.
RESTART_S_MIN = 1.0
#: Running time after which a failed stream restarts with the first delay.
RAN_WELL_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderProblem:
    """A current problem of the process, a provider or a stream; over when no component reports it.

    Attributes:
        where: ``feed pulsar``, ``stream a/b/persistent/c``, ``store s3://bucket/root``.
        what: the problem in one line, without secrets.
        hint: the remedy, one line; may be empty.
        since_ms: its start, ms since 1970 UTC; ``None``: unknown.
        blocks_ready: whether the process isn't ready while it lasts.
    """

    where: str
    what: str
    hint: str = ""
    since_ms: int | None = None
    blocks_ready: bool = False

    @classmethod
    def of(
        cls, where: str, error: OffloaderError, since_ms: int | None = None, *, blocks_ready: bool = False
    ) -> ProviderProblem:
        """The problem that an error describes."""
        return cls(where=where, what=error.message, hint=error.hint, since_ms=since_ms, blocks_ready=blocks_ready)


#: Maximum number of stream problems listed individually; further ones are only counted.
PROBLEMS_NAMED_MAX = 20


def stream_problems(failing: Sequence[tuple[str, OffloaderError]], where: str, rest: str) -> list[ProviderProblem]:
    """The problems of streams, by name; above ``PROBLEMS_NAMED_MAX`` the number of further ones, then ``rest``."""
    found = [ProviderProblem.of(f"stream {name}", error) for name, error in failing[:PROBLEMS_NAMED_MAX]]
    if len(failing) > PROBLEMS_NAMED_MAX:
        found.append(ProviderProblem(where=where, what=f"{len(failing) - PROBLEMS_NAMED_MAX} more {rest}"))
    return found


def error_of(run: Callable[[], object], what: str, **facts: str) -> OffloaderError | None:
    """Runs a step for one provider or stream, and returns its error. A bug is logged as the failure of ``what``, with
    ``facts``, because it must not affect the others."""
    try:
        run()
    except OffloaderError as error:
        return error
    except Exception as error:
        _log.exception("%s failed", what, extra=facts)
        return StoreUnavailableError(f"{what} failed: {type(error).__name__}: {error}")
    return None


class StreamSupervisor:
    """One stream: the state wanted by its provider, and the actual state. Thread-safe; of the provider's calls only
    ``offload`` waits for the store.

    Args:
        adjust: the provider's changes to its settings, also after a reload.
        workers: start and stop streams; separate from the workers that offload.
        restart_s_max: maximum delay before a restart.
        active: whether it is offloaded immediately; ``None``: the leader isn't known yet, so it waits.

    Attributes:
        settings: the effective ones.
        error: the reason why it isn't offloaded although it should be.
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
        self.settings = adjust(settings)
        self._offloader, self._workers, self._clock = offloader, workers, clock
        self._restart_s_max = restart_s_max
        self._task = SerialTask(workers, self._settle)
        #: Set after the first attempt to start.
        self._begun = threading.Event()
        # Guards the wanted and the actual state; no start or stop while it is held.
        self._lock = threading.Lock()
        #: ``None``: the leader isn't known yet.
        self._wanted = active
        self._ended = False
        self._reclaim = False
        self._restart_s = RESTART_S_MIN
        self._started_s = 0.0
        #: No start before this, by the monotonic clock.
        self._retry_s = 0.0
        self.error: OffloaderError | None = None
        # Written by the task only.
        self._offload: StreamOffload | None = None
        self._trigger: LedgerTrigger | None = None
        self._hot_release: HotRelease | CommitAck | None = None
        self._running: Settings | None = None

    @property
    def is_active(self) -> bool:
        """Whether it is offloaded here, or will be as soon as possible."""
        return bool(self._wanted) and not self._ended

    @property
    def source_outage(self) -> str:
        """The reason why its source is unreachable; empty: reachable, or the source has no connection."""
        problem = getattr(self.source, "problem", None)
        return problem.message if isinstance(problem, StoreUnavailableError) else ""

    @property
    def trouble(self) -> str:
        """The reason why it makes no progress, as text for the log; empty: no known problem."""
        status = self.status()
        error = self.error or getattr(self.source, "problem", None)
        if error is not None:
            return str(error.message)
        return "" if status is None or status.was_closed else status.error

    def status(self) -> StreamStatus | None:
        """Cached status of its streaming offload; ``None``: not offloaded that way here, or not yet."""
        offload = self._offload
        return None if offload is None else offload.status()

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Offloads everything in the hot tier, or up to ``until``, and waits for the commit, also of a stream that is
        still starting. Includes entries that the source hasn't notified yet.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises:
            InvalidCallError: its method is none; FencedError: another process is the leader.
            StoreUnavailableError: not started, the leader isn't known yet, or not committed within ``timeout_s``; the
                hot tier's entries are unknown.
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
            result = trigger.offload(timeout_s=timeout_s)
            if result.errors:
                raise result.errors[0]
            return result.committed
        if self._wanted is None:
            raise StoreUnavailableError(
                f"stream {self.name}: it isn't known yet which process is the leader for it",
                hint="retry later; if it persists, check the problems in /readyz",
            )
        if not self.is_active:
            raise FencedError(
                f"stream {self.name} is on standby here: another process offloads it",
                hint="send the request to that process",
            )
        if self.settings.offload.method == "none":
            raise InvalidCallError(f"stream {self.name} isn't offloaded: its method is none", hint="set another method")
        raise self.error or StoreUnavailableError(f"stream {self.name} is being started", hint="retry later")

    def _offload_all(self, offload: StreamOffload, until: Position | None, timeout_s: float | None) -> Position | None:
        wait_s = self.settings.offload.drain_timeout if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + wait_s
        # Offload the notified entries immediately, even if the others fail.
        offload.request_offload(until)
        newest = newest_given(self.source.ledgers())
        wanted = newest if until is None or newest is None else min(until, newest)
        if wanted is not None and not offload.wait_until_seen(
            wanted, within_s=max(deadline_s - self._clock.monotonic_s(), 0.0)
        ):
            raise StoreUnavailableError(
                f"stream {self.name}: the hot tier has {wanted} but didn't deliver it within {wait_s:g} s",
                hint="nothing is lost: it is offloaded once it is delivered; check the stream's problems",
            )
        return offload.offload(until, timeout_s=max(deadline_s - self._clock.monotonic_s(), 0.0))

    def wake(self) -> None:
        """Wakes it to check for a pause in the manifest."""
        for each in (self._offload, self._trigger):
            if each is not None:
                each.wake()

    def begin(self) -> None:
        """Schedules the transition to the wanted state."""
        self._task.schedule()

    def activate(self) -> None:
        """Makes this process the leader: takes over the stream (fences the owner's epoch) and offloads it. A repeated
        call takes it back after another process fenced it."""
        with self._lock:
            self._wanted = self._reclaim = True
        self._task.schedule()

    def stand_by(self) -> None:
        """Makes this process a standby: offers and uploads nothing further; the next owner commits the rest."""
        with self._lock:
            self._wanted = False
        self._task.schedule()

    def use(self, settings: Settings) -> None:
        """Applies other settings; a running stream restarts if they concern it."""
        with self._lock:
            self.settings = self._adjust(settings)
        self._task.schedule()

    def look(self) -> None:
        """Restarts it after an error; for a periodic check of all streams."""
        if self._stopped_error() is not None:
            self._task.schedule()

    @property
    def has_to_drain(self) -> bool:
        """Whether it may have entries to complete before it ends."""
        return self.is_active and self.settings.offload.method == "streaming"

    def request_drain(self) -> None:
        """Requests a flush up to the newest entry, if it is running."""
        if (offload := self._offload) is not None:
            offload.request_offload()

    def drain(self, within_s: float) -> None:
        """Completes the current segment; waits for a current start. Raises ``OffloaderError``: it couldn't be
        completed."""
        deadline_s = self._clock.monotonic_s() + within_s
        self._clock.wait(self._begun, within_s)
        # Read in this order: ``end`` sets its flag before it clears the offload.
        offload = self._offload
        if self._ended:
            raise ClosedError(f"stream {self.name} was stopped")
        if offload is None:
            raise self.error or StoreUnavailableError(f"stream {self.name} wasn't started in time")
        offload.offload(timeout_s=max(deadline_s - self._clock.monotonic_s(), 0.0))

    def end(self) -> None:
        """Stops offloading for good, without waiting for the store. Idempotent."""
        with self._lock:
            self._ended = True
        self._begun.set()
        # Not through the task: after this returns, a closed source gets no calls.
        self._stop()
        self._task.schedule()

    def document(self) -> dict[str, Any] | None:
        """Its row in the status document, if ``StreamOffload`` has none."""
        if self._offload is not None:
            return None
        mode = "standby" if not self._wanted else self.settings.offload.method if self._running else "starting"
        mode = Mode.STOPPED.value if self._ended else mode
        return idle_document(self.name, mode, error=None if self.error is None else str(self.error))

    # --- the task ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        with self._lock:
            wanted = self.settings if self.is_active else None
            reclaim, self._reclaim = self._reclaim, False
        stopped = self._stopped_error()
        if stopped is not None and self._running is not None:
            self._after_failure(stopped)
            self._stop()
            return
        if self._running is not None and (wanted is None or wanted.offload != self._running.offload):
            self._stop()
        if wanted is None:
            self.error = None
        elif self._running is None and self._clock.monotonic_s() >= self._retry_s:
            self._start(wanted)
            self._begun.set()
        elif self._running is not None and reclaim and self._offload is not None:
            self._offload.reopen()

    def _start(self, settings: Settings) -> None:
        def open_offload() -> None:
            offload = settings.offload
            if offload.method == "streaming":
                self._offload = self._offloader.offload_stream(self.source, self.name, settings=offload)
            elif offload.method == "ledger":
                self._trigger = self._offloader.offload_closed_ledgers(self.source, self.name, settings=offload)
            if offload.method != "none":
                self._hot_release = self._offloader.runs_of(offload).release(self.source, self.name)
                self._hot_release.start()

        if (failure := error_of(open_offload, f"stream {self.name}: its start", stream=self.name)) is not None:
            self._after_failure(failure)
            self._stop()
            return
        self._running, self.error = settings, None
        self._started_s = self._clock.monotonic_s()
        if self._ended:  # ended during the start
            self._stop()

    def _stop(self) -> None:
        for each in (self._offload, self._trigger, self._hot_release):
            if each is not None:
                each.stop()
        # ``end`` and the task may stop it concurrently.
        if (offload := self._offload) is not None:
            self._offloader.observation.remove(offload)
        self._offload = self._trigger = self._hot_release = self._running = None

    def _stopped_error(self) -> OffloaderError | None:
        """The error that stopped a running stream. A fenced streaming offload isn't restarted: it polls for its
        successor itself, and its provider activates it."""
        offload, trigger = self._offload, self._trigger
        if offload is None:
            return None if trigger is None else trigger.stopped_by
        status = offload.status()
        if status.mode is not Mode.STOPPED or status.error_kind in (ClosedError.__name__, FencedError.__name__):
            return None
        kinds = {kind.__name__: kind for kind in (SourceMismatchError, StoreMismatchError)}
        return kinds.get(status.error_kind, StoreUnavailableError)(status.error)

    def _after_failure(self, error: OffloaderError) -> None:
        with self._lock:
            if self._started_s and self._clock.monotonic_s() - self._started_s > RAN_WELL_S:
                self._restart_s = RESTART_S_MIN
            wait_s, self._restart_s = self._restart_s, min(2 * self._restart_s, self._restart_s_max)
            if isinstance(error, FencedError):
                wait_s = max(wait_s, self.settings.offload.takeover_after)
            self.error, self._retry_s = error, self._clock.monotonic_s() + wait_s
        if not self._ended:
            self._workers.call_after(wait_s, self._task.schedule)
        _log.warning(
            "stream %s isn't offloaded: %s; retrying in %.0f s",
            self.name,
            error,
            wait_s,
            extra={"event": "stream_restarts", "stream": self.name},
        )


#: Interval of the check for streams that stopped on an error.
LOOK_S = 5.0
#: Threads that start and stop streams; a source may take long to list its ledgers.
STARTERS = 4


class ServedStreams:
    """The process's streams, for its providers. Thread-safe.

    Attributes:
        file: the settings in force; replaced by ``use``.
    """

    def __init__(self, offloader: LedgerOffloader, file: SettingsFile, clock: Clock) -> None:
        self._offloader, self.file, self._clock = offloader, file, clock
        self._workers = Workers(STARTERS, clock)
        # Guards the table.
        self._lock = threading.Lock()
        self._streams: dict[str, StreamSupervisor] = {}
        #: Prefixes of the streams' names, with the number of streams below each.
        self._levels = Counter[str]()
        self._closed = False

    def start(self) -> None:
        """Starts the periodic check of the streams."""
        self._workers.call_after(LOOK_S, self._look)

    def settings_of(self, name: str) -> Settings:
        """The effective settings of a stream, or of a topic; of the process for ``""``."""
        return self.file.settings_of(name)

    def add(
        self,
        name: str,
        source: LedgerSource,
        *,
        feed: str,
        adjust: Callable[[Settings], Settings] = lambda settings: settings,
        active: bool | None = True,
    ) -> StreamSupervisor:
        """Starts offloading a stream by its method, without waiting; errors are retried and reported.

        Args:
            source: its hot tier; the provider owns it, and closes it after ``remove``.
            feed: the provider's name, for messages.
            adjust: the provider's changes to ``settings_of(name)``, now and after a reload.
            active: False: stands by until ``StreamSupervisor.activate``; ``None``: likewise, and reports that the
                leader isn't known yet, until ``activate`` or ``stand_by``.

        Raises:
            InvalidCallError: not a stream's name, or a duplicate (it names the first one's provider).
            LimitReachedError: more streams than ``serve.streams_max``.
            ClosedError: the process is stopping.
        """
        require_stream_name(name)
        serve = self.settings_of("").serve
        stream = StreamSupervisor(
            name,
            source,
            feed=feed,
            settings=self.settings_of(name),
            adjust=adjust,
            offloader=self._offloader,
            workers=self._workers,
            clock=self._clock,
            restart_s_max=serve.restart_delay_max,
            active=active,
        )
        with self._lock:
            if self._closed:
                raise ClosedError("the process is stopping")
            if (there := self._streams.get(name)) is not None:
                raise InvalidCallError(
                    f"stream {name} already exists: added by feed {there.feed}", hint="configure it in one feed only"
                )
            self._require_own_level(name)
            if len(self._streams) >= serve.streams_max:
                raise LimitReachedError(
                    f"stream {name} isn't offloaded: the process has {len(self._streams)} streams already",
                    hint="raise serve.streams_max, or spread the streams over several processes",
                )
            self._streams[name] = stream
            self._levels.update(levels_above(name))
        stream.begin()
        return stream

    def remove(self, name: str, *, drain: bool = True) -> bool:
        """Stops offloading a stream and removes it; deletes nothing. False: no such stream.

        A failure to drain is logged, not raised; the next start offloads the uncommitted entries.

        Args:
            drain: first complete the current segment, within ``offload.drain_timeout``.
        """
        if (stream := self.get(name)) is None:
            return False
        if drain and stream.has_to_drain:
            self._drain(stream, stream.settings.offload.drain_timeout)
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

    def get(self, name: str) -> StreamSupervisor | None:
        """The stream of that name."""
        return self._streams.get(name)

    def require(self, name: str) -> StreamSupervisor:
        """The stream of that name. Raises ``NotFoundError``: it isn't served here."""
        if (found := self.get(name)) is None:
            raise NotFoundError(
                f"stream {name} isn't offloaded by this process",
                hint="send the request to the process that offloads it",
            )
        return found

    def all(self) -> list[StreamSupervisor]:
        """Every stream."""
        with self._lock:
            return list(self._streams.values())

    def source_of(self, name: str) -> LedgerSource | None:
        """The hot tier of a stream that is served here; ``None``: it isn't."""
        stream = self.get(name)
        return None if stream is None else stream.source

    def use(self, file: SettingsFile) -> None:
        """Replaces the settings; streams whose settings changed apply them soon."""
        self.file = file
        for stream in self.all():
            stream.use(file.settings_of(stream.name))

    def documents(self) -> list[dict[str, Any]]:
        """Status rows of the streams without a ``StreamOffload``."""
        return [row for stream in self.all() if (row := stream.document()) is not None]

    def troubles(self) -> dict[str, str]:
        """Stream -> its current problem."""
        return {each.name: each.trouble for each in self.all() if each.trouble}

    def problems(self) -> list[ProviderProblem]:
        """Streams that aren't offloaded although they should be; they don't block readiness, because other streams
        are."""
        failing = [(each.name, error) for each in self.all() if (error := each.error) is not None]
        return stream_problems(failing, "streams", "aren't offloaded although they should be")

    def close(self, *, drain: bool) -> int:
        """Accepts no further streams, completes all current segments within the maximum of their ``drain_timeout``,
        and ends every stream. Idempotent.

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
            drain_s = max((each.settings.offload.drain_timeout for each in draining), default=0.0)
            deadline_s = self._clock.monotonic_s() + drain_s
            for stream in draining:
                left += not self._drain(stream, max(deadline_s - self._clock.monotonic_s(), 0.0))
        for stream in streams:
            stream.end()
        self._workers.close()
        return left

    def _drain(self, stream: StreamSupervisor, within_s: float) -> bool:
        try:
            stream.drain(within_s)
        except (StreamPaused, FencedError):
            pass  # ended on request or by another process; the hot tier keeps the rest
        except OffloaderError as error:
            _log.warning(
                "stream %s isn't drained: %s",
                stream.name,
                error,
                extra={"event": "drain_failed", "stream": stream.name},
            )
            return False
        return True

    def _look(self) -> None:
        for stream in self.all():
            stream.look()
        if not self._closed:
            self.start()


class StreamProvider(Protocol):
    """A provider of streams. Its failure doesn't affect other providers."""

    #: ``ledgers``, ``pulsar``, ``flight``: for people and metrics.
    name: str

    def start(self, streams: ServedStreams) -> None:
        """Starts to add streams, on separate threads or timers, without waiting. Transient errors are retried and
        reported by ``problems``; only permanent errors (settings) are raised, and end the start."""

    def stop(self, within_s: float) -> None:
        """Adds and removes no further streams. The process stops the added streams next. Never raises.

        Args:
            within_s: time limit in seconds.
        """

    def close(self) -> None:
        """Closes everything it opened, including the sources, after all streams have stopped. Never raises."""

    def problems(self) -> Sequence[ProviderProblem]:
        """Current problems; fast, without I/O."""
