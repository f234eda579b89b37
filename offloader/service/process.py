"""The serving process: its store, streams, providers, maintenance and listeners, and the reload of its settings."""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from offloader.errors import ErrorKind, InvalidCallError, OffloaderError
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.maintenance import JOBS_AT_ONCE_MAX, Maintenance
from offloader.monitor import Outage, mode_of
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Workers
from offloader.service.answers import KeptAnswers
from offloader.service.auth import Credentials
from offloader.service.health import Probe, Reach, TroubleLog
from offloader.service.streams import ProviderProblem, ServedStreams, StreamProvider, error_of
from offloader.settings.layered import PROCESS_SECTIONS, PROCESS_SETTINGS, SettingsFile, conflicts
from offloader.telemetry.recorder import LastHour, Reading
from offloader.write.offloader import LedgerOffloader

#: Process settings that are read at every use, so that a reload applies them.
ASKED_EACH_TIME = frozenset(
    {
        "ledgers.poll_interval",
        "pulsar.discovery_interval",
        "pulsar.exclude",
        "pulsar.on_gap",
        "pulsar.subscribers_interval",
        "pulsar.topics",
        "serve.log_level",
        "serve.restart_delay_max",
        "serve.stop_timeout",
        "serve.streams",
        "serve.streams_max",
    }
)
#: Sections of stream settings that are read only when a long-lived resource is opened.
FIXED_SECTIONS = frozenset({"ledgers"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Result of a reload.

    Attributes:
        file: the settings in force: the new settings, except those that need a restart.
        changed: the changes, ``[topic a/b/c] offload.codec``.
        needs_restart: changes that need a restart, in the same form.
    """

    file: SettingsFile
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(old: SettingsFile, new: SettingsFile) -> Reloaded:
    """The result of applying ``new`` to a process that runs with ``old``.

    Raises:
        InvalidCallError: the changes contradict old values that need a restart.
    """
    changed: list[str] = []
    fixed: list[str] = []
    layers: dict[str, dict[str, Any]] = {}
    for scope in sorted({*old.layers, *new.layers}):
        before: Mapping[str, Any] = old.layers.get(scope, {})
        after: Mapping[str, Any] = new.layers.get(scope, {})
        same = {name for name in before.keys() & after.keys() if before[name] == after[name]}
        differing = sorted({*before, *after} - same)
        kept = {name for name in differing if not is_live(name)}
        changed += [_place(scope, name) for name in differing if name not in kept]
        fixed += [_place(scope, name) for name in differing if name in kept]
        layers[scope] = {name: value for name, value in after.items() if name not in kept}
        layers[scope] |= {name: value for name, value in before.items() if name in kept}
    mixed = SettingsFile(new.name, layers)
    if problems := "; ".join(conflicts(mixed)):
        raise InvalidCallError(
            f"{new.name}: {problems}: not in force before a restart: {', '.join(fixed)}",
            hint="nothing was changed; restart the process, or set values that are valid with the old ones",
        )
    return Reloaded(mixed, tuple(changed), tuple(fixed))


def is_live(name: str) -> bool:
    """Whether a running process applies a change of a setting."""
    is_fixed = name.partition(".")[0] in PROCESS_SECTIONS | FIXED_SECTIONS or name in PROCESS_SETTINGS
    return name in ASKED_EACH_TIME or not is_fixed


def _place(scope: str, name: str) -> str:
    kind, _, inner = scope.partition(".")
    return f"[{kind[:-1]} {inner}] {name}" if kind else name


_log = logging.getLogger("offloader.service")

#: Maximum number of distinct messages; above it the least recent is evicted.
ERRORS_KEPT = 200
#: Maximum length of a message.
TEXT_CHARS_MAX = 2000
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleSeen:
    """One distinct message.

    Attributes:
        first_ms, last_ms: first and last occurrence, ms since 1970 UTC.
        level: ``warning`` or ``error``.
        stream: its stream; empty: of the process.
        event: short name for programs (docs/reference/log-events.md); may be empty.
        hint: the remedy, if the message has none; may be empty.
    """

    first_ms: int
    last_ms: int
    count: int
    level: str
    stream: str
    event: str
    message: str
    hint: str = ""


class RecentErrors(logging.Handler):
    """Log handler for the logger ``offloader``. Thread-safe.

    Args:
        kept_max: distinct messages kept.
    """

    def __init__(self, kept_max: int = ERRORS_KEPT) -> None:
        super().__init__(logging.WARNING)
        self._kept_max = kept_max
        self._seen: OrderedDict[tuple[str, str], TroubleSeen] = OrderedDict()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Records one log record; never raises."""
        try:
            self._keep(record)
        except Exception:
            self.handleError(record)

    def _keep(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {error.message if isinstance(error, OffloaderError) else f'{type(error).__name__}: {error}'}"
        message = " ".join(text.split())[:TEXT_CHARS_MAX]
        stream = str(getattr(record, "stream", ""))
        now_ms = int(record.created * 1000)
        # Numbers vary between repetitions of a message.
        key = stream, _NUMBER.sub("#", message)
        with self._guard:
            before = self._seen.pop(key, None)
            self._seen[key] = TroubleSeen(
                first_ms=now_ms if before is None else before.first_ms,
                last_ms=now_ms,
                count=1 if before is None else before.count + 1,
                level=record.levelname.lower(),
                stream=stream,
                event=str(getattr(record, "event", "")),
                message=message,
                hint=error.hint if isinstance(error, OffloaderError) else "",
            )
            while len(self._seen) > self._kept_max:
                self._seen.popitem(last=False)

    def newest(self, limit: int = ERRORS_KEPT, *, stream: str | None = None) -> list[TroubleSeen]:
        """The messages, the newest first; ``stream``: only those of this stream."""
        with self._guard:
            found = [each for each in reversed(self._seen.values()) if stream is None or each.stream == stream]
        return found[:limit]


#: Maximum age of the status document in a response.
DOCUMENT_AGE_S_MAX = 1.0
#: Maximum wait of a request for a newer status document.
LOOK_WAIT_S_MAX = 2.0
#: Seconds for a provider or listener to end.
CLOSE_S = 5.0
#: First and maximum delay before a failed start of a provider is retried; doubles.
FEED_RETRY_S, FEED_RETRY_S_MAX = 1.0, 60.0
#: Interval between two checks of stream problems for the log.
TROUBLES_S = 5.0
#: Warning of a process without a feed: often a configuration error.
NO_FEED = (
    "no feed of streams is set: this process offloads nothing and only applies retention and cleanup to the store; set "
    "pulsar.topics, serve.ledgers or flight.listen to add a feed"
)
#: Stalled streams listed one by one among the problems.
STALLED_NAMED_MAX = 20


class HttpListener(Protocol):
    """A listener of the HTTP interface."""

    def start(self) -> None:
        """Starts serving. Raises ``OffloaderError``: the address can't be listened on."""

    def stop(self, within_s: float) -> None:
        """Stops serving; requests in progress have ``within_s`` seconds to end. Never raises."""

    def prepare_reload(self) -> Callable[[], None]:
        """Reads the certificates again; the returned function puts them in force and can't fail. Raises
        ``OffloaderError``: invalid certificates; the old ones remain in force."""


class ServingProcess:
    """The process; started and stopped once. Thread-safe.

    Serves the view and the commands of ``offloader.service.queries``.

    Args:
        offloader: writes to the store, which the caller opens and closes.
        upkeep: maintenance; ``None``: done by another process.
        last_hour: bytes offloaded, by stream.
        recent: log handler for recent errors.

    Attributes:
        doors: listeners, started and stopped with the process; complete before ``start``.
        more_problems: problems of other components, computed without I/O.
        looks: functions of other components, called every ``TROUBLES_S``.
        probes: by the feed that needs the target, ``""`` for the store; started and closed with the process.
        history: records pauses in the manifest.
        started_ms: creation time, ms since 1970 UTC.
    """

    def __init__(
        self,
        offloader: LedgerOffloader,
        streams: ServedStreams,
        upkeep: Maintenance | None,
        recent: RecentErrors,
        credentials: Credentials,
        clock: Clock,
        last_hour: LastHour,
    ) -> None:
        self.streams, self.upkeep, self.recent, self.started_ms = streams, upkeep, recent, clock.now_ms()
        self._offloader, self._credentials, self._clock, self._last_hour = offloader, credentials, clock, last_hour
        self.history = offloader.history
        self._feeds: list[StreamProvider] = []
        self.doors: list[HttpListener] = []
        self.probes: dict[str, Probe] = {}
        self.more_problems: list[Callable[[], Sequence[ProviderProblem]]] = []
        self.looks: list[Callable[[], object]] = []
        self._troubles = TroubleLog()
        # For maintenance, whose runs are long, and one more for retries.
        self._workers = Workers(JOBS_AT_ONCE_MAX + 1, clock)
        # Observes the streams on request: an unresponsive source blocks only this thread.
        self._lookers = ThreadPoolExecutor(1, thread_name_prefix="offloader-status")
        self._documents = KeptAnswers[Mapping[str, Any]](self._lookers, clock, is_away=lambda: self._ended)
        self._ended = ""
        # Guards the problems.
        self._lock = threading.Lock()
        self._waiting: dict[str, ProviderProblem] = {}
        self._reload_problem: ProviderProblem | None = None
        self._stopping = False
        # Held while a provider starts, so that none starts after ``stop`` has begun and is never stopped.
        self._starting = threading.RLock()
        offloader.observation.complete_with(self._complete, self._outage_of)

    def add_feed(self, feed: StreamProvider) -> None:
        """Adds a provider, started and stopped with the process; before ``start``."""
        self._feeds.append(feed)
        self._waiting[feed.name] = ProviderProblem(where=f"feed {feed.name}", what="not started yet", blocks_ready=True)

    def start(self) -> None:
        """Starts the listeners, then maintenance and the providers. Raises ``OffloaderError``: a listener can't start,
        or a provider's settings are wrong; call ``stop`` then."""
        for door in self.doors:
            door.start()
        for probe in self.probes.values():
            probe.start()
        self.streams.start()
        self._offloader.observe()
        self._workers.call_after(TROUBLES_S, self._tell_troubles)
        if self.upkeep is not None:
            self.upkeep.start(self._workers.call_after)
        for feed in self._feeds:
            self._start(feed, FEED_RETRY_S, must=True)
        _log.info(
            "serving %s",
            self._offloader.store.url,
            extra={"event": "started", "feeds": [feed.name for feed in self._feeds]},
        )
        if not self._feeds and self.upkeep is not None:
            _log.warning("%s", NO_FEED, extra={"event": "no_feed"})

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
        with self._starting:
            pass
        for feed in self._feeds:
            self._quietly(f"feed {feed.name}", partial(feed.stop, CLOSE_S))
        left = self.streams.close(drain=drain)
        if self.upkeep is not None:
            self._quietly("upkeep", self.upkeep.close)
        self._offloader.observation.look()  # the final state, while it can still be queried
        for door in reversed(self.doors):
            self._quietly(type(door).__name__, partial(door.stop, CLOSE_S))
        for feed in self._feeds:
            self._quietly(f"feed {feed.name}", feed.close)
        for probe in self.probes.values():
            self._quietly(probe.where, probe.close)
        self._workers.close()
        self._ended = "the process has ended"
        self._lookers.shutdown()
        self._offloader.close()
        _log.info("stopped, %d streams not drained", left, extra={"event": "stopped", "left": left})
        return left

    def reload(self, new: SettingsFile) -> Reloaded:
        """Applies other settings as far as possible; tokens and the listeners' certificates are read again. Raises
        ``OffloaderError``: tokens, a certificate, a pattern or the mixture of settings are invalid; nothing was
        changed."""
        found = reloaded(self.streams.file, new)
        # Validate everything before any change takes effect.
        pulsar = found.file.settings_of("").pulsar
        TopicPatterns.of(pulsar.topics, pulsar.exclude)
        for put_in_force in [self._credentials.read(), *(door.prepare_reload() for door in self.doors)]:
            put_in_force()
        self.streams.use(found.file)
        problem = ProviderProblem(
            where=f"settings {new.name}",
            what=f"not in force before a restart: {', '.join(found.needs_restart)}",
            hint="restart the process, or restore the old values",
            since_ms=self._clock.now_ms(),
        )
        with self._lock:
            self._reload_problem = problem if found.needs_restart else None
        return found

    def refused_reload(self, error: OffloaderError) -> None:
        """Reports an invalid settings file; the old settings remain in force."""
        with self._lock:
            self._reload_problem = ProviderProblem.of("settings", error, self._clock.now_ms())

    def _start(self, feed: StreamProvider, wait_s: float, *, must: bool = False) -> None:
        with self._starting:
            if self._stopping:
                return
            error = error_of(partial(feed.start, self.streams), f"feed {feed.name}: its start")
        if error is None:
            with self._lock:
                self._waiting.pop(feed.name, None)
            return
        if must and error.kind is ErrorKind.INVALID_REQUEST:
            raise error
        _log.warning(
            "feed %s can't be started: %s; retrying in %.0f s",
            feed.name,
            error,
            wait_s,
            extra={"event": "feed_failed", "feed": feed.name},
        )
        with self._lock:
            self._waiting[feed.name] = ProviderProblem.of(
                f"feed {feed.name}", error, self._clock.now_ms(), blocks_ready=True
            )
            if self._stopping:
                return
        self._workers.call_after(wait_s, partial(self._start, feed, min(2 * wait_s, FEED_RETRY_S_MAX)))

    def _quietly(self, what: str, end: Callable[[], object]) -> None:
        try:
            end()
        except Exception:
            # Continue with the next component.
            _log.exception("%s failed to stop", what)

    def document(self) -> Mapping[str, Any]:
        """The status document, at most ``DOCUMENT_AGE_S_MAX`` old; older if a source doesn't respond soon. Its stream
        rows also have ``feed``, ``active`` and ``method``."""
        # Wait without a deadline for the first document.
        deadline_s = None if self._documents.kept("") is None else self._clock.monotonic_s() + LOOK_WAIT_S_MAX
        return self._documents.get("", self._offloader.status, age_s_max=DOCUMENT_AGE_S_MAX, deadline_s=deadline_s)

    def problems(self) -> Sequence[ProviderProblem]:
        """Current problems of the process, its providers and streams; fast, without I/O."""
        with self._lock:
            found = [*self._waiting.values(), *filter(None, [self._reload_problem])]
            if self._stopping:
                found.append(ProviderProblem(where="process", what="is stopping", blocks_ready=True))
        found += [problem for probe in self.probes.values() if (problem := probe.problem()) is not None]
        found += [problem for feed in self._feeds for problem in feed.problems()]
        found += self.streams.problems()
        found += [
            ProviderProblem(where=f"stream {name}", what=reason)
            for name, reason in sorted(self._offloader.observation.stalled.items())[:STALLED_NAMED_MAX]
        ]
        found += [problem for problems in self.more_problems for problem in problems()]
        runs = {} if self.upkeep is None else self.upkeep.latest
        found += [ProviderProblem.of(name, run.error, run.at_ms) for name, run in runs.items() if run.error is not None]
        return found

    def health(self) -> Mapping[str, Any]:
        """Reachability of the store and the feeds' sources: ``{"store": {"up", "why", "since_ms"}, "sources": {FEED:
        the same}}``; ``up`` is ``None`` if not known, ``store`` is ``None`` without a probe."""
        store = self.probes.get("")
        return {
            "store": None if store is None else store.reach.as_json(),
            "sources": {feed.name: self._reach_of(feed).as_json() for feed in self._feeds},
        }

    def _reach_of(self, feed: StreamProvider) -> Reach:
        """Reachability of a feed's source; without a probe it is derived from the feed's blocking problem."""
        if feed.name in self.probes:
            return self.probes[feed.name].reach
        blocking = next((each for each in feed.problems() if each.blocks_ready), None)
        return Reach(True) if blocking is None else Reach(False, blocking.what, blocking.since_ms)

    def readings(self) -> Iterator[Reading]:
        """Gauges of the reachability of store and sources, and of streams without a ``StreamOffload`` (standbys)."""
        store = self.probes.get("")
        if store is not None and store.reach.is_up is not None:
            yield Reading("store_up", float(store.reach.is_up))
        for feed in self._feeds:
            reach = self._reach_of(feed)
            if reach.is_up is not None:
                yield Reading("source_up", float(reach.is_up), label=feed.name)
        waiting = set()
        for row in map(self._with_outage, self.streams.documents()):
            yield Reading("streams", 1.0, row["stream"], row["mode"])
            if row["mode"] == "standby":
                waiting.add(row["stream"])
        for each in self.streams.all():
            yield Reading("standby", float(each.name in waiting), each.name)

    @property
    def is_out(self) -> bool:
        """Whether the store or a source is known to be unreachable."""
        return any(probe.reach.is_up is False for probe in self.probes.values())

    def _outage_of(self, name: str) -> Outage:
        """The outages that affect a stream."""
        stream, store = self.streams.get(name), self.probes.get("")
        source = ""
        if stream is not None:
            probe = self.probes.get(stream.feed)
            source = ("" if probe is None else probe.outage) or stream.source_outage
        return Outage(source=source, store="" if store is None else store.outage)

    def _with_outage(self, row: dict[str, Any]) -> dict[str, Any]:
        """The status row of a stream without a ``StreamOffload``, with its source's outage."""
        away = self._outage_of(row["stream"]).source
        return {**row, "mode": mode_of(row["mode"], disconnected=away), "disconnected": away or None}

    def _tell_troubles(self) -> None:
        """Logs lasting problems of streams that no outage explains; an outage is logged separately."""
        if self.is_out:
            self._troubles.wait()
        else:
            for line in self._troubles.look(self._clock.monotonic_s(), self.streams.troubles()):
                _log.warning("%s", line, extra={"event": "trouble"})
        for look in self.looks:
            self._quietly("look", look)
        if not self._stopping:
            self._workers.call_after(TROUBLES_S, self._tell_troubles)

    def _complete(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of the status document, with each stream's provider, and the streams that aren't being offloaded."""
        labels: dict[str, dict[str, Any]] = {
            each.name: {
                "feed": each.feed,
                "active": each.is_active,
                "method": each.settings.offload.method,
                "bytes_per_second": self._last_hour.rate_of(each.name),
            }
            for each in self.streams.all()
        }
        found = {row["stream"]: row for row in [*map(self._with_outage, self.streams.documents()), *rows]}
        # A removed stream may still be listed for a short time.
        return [{**row, **labels[name]} for name, row in sorted(found.items()) if name in labels]
