"""The serving process: its store, streams, providers, maintenance and listeners; reloads its settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from formats.entries import Position
from offloader.errors import ErrorKind, OffloaderError
from offloader.ledgers.base import LedgerSource
from offloader.maintenance import JOBS_AT_ONCE_MAX, Upkeep
from offloader.runtime.clock import Clock
from offloader.runtime.workers import SerialTask, Workers
from offloader.service.auth import Credentials
from offloader.service.providers.base import ProviderProblem, StreamProvider
from offloader.service.queries import RecentErrors
from offloader.service.streams import ServedStreams
from offloader.settings.layered import PROCESS_SECTIONS, PROCESS_SETTINGS, STREAMING, SettingsFile
from offloader.telemetry.recorder import Reading
from offloader.write.backfill_service import BackfillService
from offloader.write.offloader import LedgerOffloader

__all__ = ["HttpListener", "Reloaded", "ServingParts", "ServingProcess", "is_live", "reloaded"]

#: Process settings that are read at every use.
ASKED_EACH_TIME = frozenset(
    {
        "pulsar.exclude",
        "pulsar.on_gap",
        "pulsar.subscribers_seconds",
        "pulsar.topics",
        "pulsar.topics_seconds",
        "serve.follow_seconds",
        "serve.log_level",
        "serve.restart_seconds_max",
        "serve.stop_seconds_max",
        "serve.streams",
        "serve.streams_max",
    }
)
#: Stream sections that are read only when a long-lived resource is opened.
FIXED_SECTIONS = frozenset({"ledgers"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Result of a reload.

    Attributes:
        file: the settings in force: the new ones, except those that can't change.
        changed: the changes, ``[topic a/b/c] offload.codec``.
        needs_restart: changes that need a restart, likewise.
    """

    file: SettingsFile
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(old: SettingsFile, new: SettingsFile) -> Reloaded:
    """Applies ``new`` to a process that runs with ``old``."""
    changed: list[str] = []
    fixed: list[str] = []
    layers: dict[str, dict[str, Any]] = {}
    for scope in sorted({*old.layers, *new.layers}):
        before: Mapping[str, Any] = old.layers.get(scope, {})
        after: Mapping[str, Any] = new.layers.get(scope, {})
        kept = dict(after)
        for name in sorted({*before, *after}):
            if name in before and name in after and before[name] == after[name]:
                continue
            if is_live(name):
                changed.append(_place(scope, name))
                continue
            fixed.append(_place(scope, name))
            kept.pop(name, None)
            if name in before:
                kept[name] = before[name]
        layers[scope] = kept
    return Reloaded(SettingsFile(new.name, layers), tuple(changed), tuple(fixed))


def is_live(name: str) -> bool:
    """Whether a running process applies a change of a setting."""
    section = name.partition(".")[0]
    if name == STREAMING or name in ASKED_EACH_TIME:
        return True
    return section not in PROCESS_SECTIONS | FIXED_SECTIONS and name not in PROCESS_SETTINGS


def _place(scope: str, name: str) -> str:
    kind, _, inner = scope.partition(".")
    return f"[{kind[:-1]} {inner}] {name}" if kind else name


_log = logging.getLogger("offloader.service")

#: Maximum age of the status document in a response.
DOCUMENT_AGE_S_MAX = 1.0
#: Maximum wait of a request for a newer one.
LOOK_WAIT_S_MAX = 2.0
#: Seconds for a provider or listener to end.
CLOSE_S = 5.0
#: First and longest wait before a provider that couldn't be started is started again; doubles.
FEED_RETRY_S, FEED_RETRY_S_MAX = 1.0, 60.0
#: Stalled streams listed one by one among the problems.
STALLED_NAMED_MAX = 20


class HttpListener(Protocol):
    """A listener of the HTTP interface."""

    def start(self) -> None:
        """Starts to serve.

        Raises:
            OffloaderError: it can't listen there.
        """
        ...

    def stop(self, within_s: float) -> None:
        """Stops serving; current requests have ``within_s`` seconds. Never raises."""
        ...

    def reload(self) -> None:
        """Reloads its secrets and certificates.

        Raises:
            OffloaderError: invalid ones; the old ones stay.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServingParts:
    """Parts of a process; its maker opens and closes the store.

    Attributes:
        offloader: writes to the store.
        streams: over that offloader.
        feeds: the providers of streams.
        upkeep: ``None``: another process does it.
        recent: log handler for recent errors.
        credentials: accepted tokens and certificates.
    """

    offloader: LedgerOffloader
    streams: ServedStreams
    feeds: Sequence[StreamProvider]
    upkeep: Upkeep | None
    recent: RecentErrors
    clock: Clock
    credentials: Credentials


class ServingProcess:
    """Made once, started once, stopped once. Thread-safe.

    Serves ``offloader.service.queries`` and ``offloader.service.commands``.
    """

    def __init__(self, parts: ServingParts) -> None:
        self._parts, self._clock = parts, parts.clock
        self._streams, self._offloader = parts.streams, parts.offloader
        self._doors: list[HttpListener] = []
        # For maintenance, whose runs are long, and one more for retries.
        self._workers = Workers(JOBS_AT_ONCE_MAX + 1, parts.clock)
        self._started_ms = parts.clock.now_ms()
        # Observes the streams on request: an unresponsive source blocks only this thread.
        self._lookers = Workers(1, parts.clock)
        self._look = SerialTask(self._lookers, self._refresh)
        # Guards the document and the problems.
        self._lock = threading.Lock()
        self._refreshed = threading.Condition(self._lock)
        self._document: tuple[float, Mapping[str, Any]] | None = None
        self._waiting: dict[str, ProviderProblem] = {
            feed.name: ProviderProblem(where=f"feed {feed.name}", what="isn't started yet", blocks_ready=True)
            for feed in parts.feeds
        }
        self._reload_problem: ProviderProblem | None = None
        self._stopping = False
        parts.offloader.observation.complete_with(self._complete)

    def add_door(self, door: HttpListener) -> None:
        """Adds a listener, started and stopped with the process; before ``start``."""
        self._doors.append(door)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the listeners, then maintenance and the providers.

        Raises:
            OffloaderError: a listener can't start, or a provider's settings are wrong; call ``stop`` then.
        """
        for door in self._doors:
            door.start()
        self._streams.start()
        if self._parts.upkeep is not None:
            self._parts.upkeep.start(self._workers.call_after)
        for feed in self._parts.feeds:
            self._start(feed, FEED_RETRY_S, must=True)
        extra = {"event": "started", "feeds": [feed.name for feed in self._parts.feeds]}
        _log.info("serving %s", self._offloader.store.url, extra=extra)

    def stop(self, *, drain: bool = True) -> int:
        """Stops the providers, completes the current segments, ends the streams, then closes listeners, providers and
        the offloader. Idempotent.

        Returns:
            The number of streams that weren't drained within their limits; the next start offloads their rest.
        """
        with self._lock:
            if self._stopping:
                return 0
            self._stopping = True
        _log.info("stopping", extra={"event": "stopping"})
        for feed in self._parts.feeds:
            self._quietly(f"feed {feed.name}", partial(feed.stop, CLOSE_S))
        left = self._streams.close(drain=drain)
        if self._parts.upkeep is not None:
            self._quietly("upkeep", self._parts.upkeep.close)
        self._offloader.observation.look()  # the final state, while it can still be queried
        for door in reversed(self._doors):
            self._quietly(type(door).__name__, partial(door.stop, CLOSE_S))
        for feed in self._parts.feeds:
            self._quietly(f"feed {feed.name}", feed.close)
        self._workers.close()
        self._lookers.close()
        self._offloader.close()
        _log.info("stopped, %d streams not drained", left, extra={"event": "stopped", "left": left})
        return left

    def abort(self) -> None:
        """Ends all waits, so that ``stop`` ends soon. The next start offloads what isn't committed."""
        self._streams.abort()

    def reload(self, new: SettingsFile) -> Reloaded:
        """Applies other settings as far as possible; the listeners reload their secrets.

        Raises:
            OffloaderError: a listener's secrets are invalid; nothing was changed.
        """
        found = reloaded(self._streams.file, new)
        self._parts.credentials.reload()
        for door in self._doors:
            door.reload()
        self._streams.use(found.file)
        with self._lock:
            self._reload_problem = None
            if found.needs_restart:
                self._reload_problem = ProviderProblem(
                    where=f"settings {new.name}",
                    what=f"not in force before a restart: {', '.join(found.needs_restart)}",
                    hint="restart the process, or put the old values back",
                    since_ms=self._clock.now_ms(),
                )
        return found

    def refused_reload(self, error: OffloaderError) -> None:
        """Reports an invalid settings file; the old one stays in force."""
        with self._lock:
            self._reload_problem = ProviderProblem(
                where="settings", what=error.message, hint=error.hint, since_ms=self._clock.now_ms()
            )

    def _start(self, feed: StreamProvider, wait_s: float, *, must: bool = False) -> None:
        try:
            feed.start(self._streams)
        except OffloaderError as error:
            if must and error.kind is ErrorKind.FIX_CALL:
                raise
            extra = {"event": "feed_failed", "feed": feed.name}
            _log.warning("feed %s can't be started: %s; again in %.0f s", feed.name, error, wait_s, extra=extra)
            self._wait_for(feed, error.message, error.hint, wait_s)
        except Exception as error:
            # A bug in one provider must not affect the others.
            _log.exception("feed %s can't be started", feed.name)
            self._wait_for(feed, f"{type(error).__name__}: {error}", "", wait_s)
        else:
            with self._lock:
                self._waiting.pop(feed.name, None)

    def _wait_for(self, feed: StreamProvider, what: str, hint: str, wait_s: float) -> None:
        with self._lock:
            self._waiting[feed.name] = ProviderProblem(
                where=f"feed {feed.name}", what=what, hint=hint, since_ms=self._clock.now_ms(), blocks_ready=True
            )
            if self._stopping:
                return
        again = partial(self._start, feed, min(2 * wait_s, FEED_RETRY_S_MAX))
        self._workers.call_after(wait_s, again)

    def _quietly(self, what: str, end: Callable[[], object]) -> None:
        try:
            end()
        except Exception:
            # The next one has to end too.
            _log.exception("%s didn't end in order", what)

    # --- queries -------------------------------------------------------------------------------------------------

    @property
    def started_ms(self) -> int:
        return self._started_ms

    @property
    def file(self) -> SettingsFile:
        return self._streams.file

    @property
    def upkeep(self) -> Upkeep | None:
        return self._parts.upkeep

    @property
    def recent(self) -> RecentErrors:
        return self._parts.recent

    @property
    def streams(self) -> ServedStreams:
        return self._streams

    @property
    def history(self) -> BackfillService:
        return self._offloader.history

    def source_of(self, stream: str) -> LedgerSource | None:
        return self._streams.source_of(stream)

    def offload(self, stream: str, until: Position | None, *, timeout_s: float) -> Position | None:
        """See ``offloader.service.commands.ControlledProcess``."""
        return self._streams.require(stream).offload(until, timeout_s=timeout_s)

    def look_again(self, stream: str) -> None:
        """See ``offloader.service.commands.ControlledProcess``."""
        found = self._streams.get(stream)
        if found is not None:
            found.look_again()

    def document(self) -> Mapping[str, Any]:
        """The status document, at most ``DOCUMENT_AGE_S_MAX`` old; older if a source doesn't respond soon."""
        asked_s = self._clock.monotonic_s()
        with self._lock:
            before = self._document
            if before is not None and asked_s - before[0] < DOCUMENT_AGE_S_MAX:
                return before[1]
        if before is None:
            self._refresh()
        else:
            self._look.schedule()
        with self._refreshed:
            self._refreshed.wait_for(lambda: self._document is not before, LOOK_WAIT_S_MAX)
            assert self._document is not None, "the first look is waited for"
            return self._document[1]

    def _refresh(self) -> None:
        now_s = self._clock.monotonic_s()
        document = self._offloader.status()
        with self._refreshed:
            self._document = now_s, document
            self._refreshed.notify_all()

    def problems(self) -> Sequence[ProviderProblem]:
        with self._lock:
            found = list(self._waiting.values())
            if self._reload_problem is not None:
                found.append(self._reload_problem)
            if self._stopping:
                found.append(ProviderProblem(where="process", what="is stopping", blocks_ready=True))
        for feed in self._parts.feeds:
            found += feed.problems()
        found += self._streams.problems()
        stalled = sorted(self._offloader.observation.stalled.items())
        found += [ProviderProblem(where=f"stream {name}", what=reason) for name, reason in stalled[:STALLED_NAMED_MAX]]
        if self._parts.upkeep is not None:
            for name, run in self._parts.upkeep.latest.items():
                if run.error is not None:
                    found.append(
                        ProviderProblem(where=name, what=run.error.message, hint=run.error.hint, since_ms=run.at_ms)
                    )
        return found

    def readings(self) -> Iterator[Reading]:
        """Gauges of streams without a ``StreamOffload``, such as standbys."""
        for row in self._streams.documents():
            yield Reading("streams", 1.0, row["stream"], row["mode"])

    def _complete(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of the status document, with each stream's provider, and streams that aren't being offloaded."""
        labels = self._streams.labels()
        seen = {row["stream"] for row in rows}
        idle = [row for row in self._streams.documents() if row["stream"] not in seen]
        # A removed stream may be listed for a while.
        live = [row for row in rows if row["stream"] in labels]
        found = [{**row, **labels.get(row["stream"], {})} for row in [*live, *idle]]
        return sorted(found, key=lambda row: str(row["stream"]))
