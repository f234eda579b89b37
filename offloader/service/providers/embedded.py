"""Streams of an embedded ledger database, for the serving process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from offloader.errors import AccessDeniedError, ClosedError, CorruptError, ErrorKind, InvalidCallError, OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, FollowedStream
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Workers
from offloader.service.streams import ProviderProblem, ServedStreams, StreamSupervisor, error_of
from offloader.stream_names import matches

_log = logging.getLogger("offloader.service")

#: Maximum delay after a failed poll.
RETRY_S_MAX = 30.0


_HOLDER_BYTES_MAX = 1000


class ProcessLock:
    """The lock at ``path``; the file is created if missing, and is never deleted.

    The file's content names the holder, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Takes the lock if it is free; doesn't wait.

        Raises ``AccessDeniedError``: the file can't be created or opened.
        """
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise AccessDeniedError(
                f"{self.path}: {cause.strerror}",
                hint="give the process write access to the ledger database's directory",
            ) from cause
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as cause:
            os.close(descriptor)
            raise AccessDeniedError(
                f"{self.path} can't be locked: {cause.strerror}", hint="use a local disk"
            ) from cause
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the lock doesn't depend on the text: the disk may be full
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{socket.gethostname()}/{os.getpid()}\n".encode(), 0)
        return True

    def holder(self) -> str:
        """The holder, from the file."""
        with contextlib.suppress(OSError):
            return self.path.read_bytes()[:_HOLDER_BYTES_MAX].decode("utf-8", "replace").strip()
        return ""

    def give(self) -> None:
        """Releases the lock, if held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class EmbeddedProvider:
    """See ``offloader.service.streams.StreamProvider``.

    Each poll reads which streams (``serve.streams``) and how often (``ledgers.poll_interval``): a settings reload
    applies immediately. A stream that no longer matches is drained and removed.

    Args:
        url: of the database; created if missing.
    """

    name = "ledgers"

    def __init__(self, url: str, *, clock: Clock) -> None:
        self._url, self._clock = url, clock
        self._workers = Workers(1, clock)
        # Separate threads, because a stream may take minutes to complete its last segment.
        self._enders = Workers(2, clock)
        # Guards the state behind ``problems``.
        self._lock = threading.Lock()
        self._problem: ProviderProblem | None = None
        self._failures = 0
        self._stopped = False
        #: Whether the streams of the database aren't known yet.
        self._is_starting = False
        # Used by polls only.
        self._database: EmbeddedLedgers | None = None
        self._turn: ProcessLock | None = None
        self._version: object = None
        self._followed: dict[str, tuple[FollowedStream, StreamSupervisor]] = {}
        self._refused: dict[str, str] = {}
        self._damaged: dict[str, str] = {}

    def start(self, streams: ServedStreams) -> None:
        try:
            self._open()
        except OffloaderError as error:
            if error.kind is ErrorKind.INVALID_REQUEST:
                raise
            self._failed(error)
        self._is_starting = True
        self._workers.call_after(0.0, lambda: self._again(streams))

    def stop(self, within_s: float) -> None:
        self._stopped = True
        self._workers.close()
        # A stream that ends may be waiting for the store.
        ending = threading.Thread(target=self._enders.close, name="offloader-ledgers-stop", daemon=True)
        ending.start()
        # Entries appended until now are drained too.
        deadline_s = self._clock.monotonic_s() + within_s
        if self._is_leader:
            for name, (source, _) in self._followed.items():
                try:
                    while source.look() and self._clock.monotonic_s() < deadline_s:
                        pass
                except OffloaderError as error:
                    _log.warning("stream %s: its newest entries remain in the hot tier: %s", name, error)
        ending.join(max(deadline_s - self._clock.monotonic_s(), 0.0))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._turn is not None:
            self._turn.give()

    def problems(self) -> Sequence[ProviderProblem]:
        with self._lock:
            stopped = [*self._refused.items(), *self._damaged.items()]
            found = [] if self._problem is None else [self._problem]
            if self._is_starting and not any(each.blocks_ready for each in found):
                what = "the database wasn't read yet"
                found.append(ProviderProblem(where=f"feed {self.name}", what=what, blocks_ready=True))
            return found + [ProviderProblem(where=f"stream {name}", what=what) for name, what in stopped]

    def look(self, streams: ServedStreams) -> None:
        """Polls once. Raises ``OffloaderError``: the database can't be used; the next poll retries."""
        database = self._open()
        if self._turn is not None and not self._is_leader:
            if self._turn.take():
                for _, control in self._followed.values():
                    control.activate()
                _log.info("feed %s: this process is the leader", self.name, extra={"event": "active"})
            else:
                self._say(
                    ProviderProblem(
                        where=f"feed {self.name}",
                        what=f"on standby: {self._turn.holder() or 'another process'} holds {self._turn.path}",
                    )
                )
        patterns = streams.settings_of("").serve.streams
        # Read the version first: later changes give another one.
        version = (database.version(), patterns)
        is_same = version == self._version
        if is_same and not self._refused:
            return
        self._bring(database, streams, patterns)
        if is_same:
            return
        more, damaged = False, dict[str, str]()
        for name in sorted(self._followed):
            if self._stopped:
                return
            try:
                more |= self._followed[name][0].look()
            except CorruptError as error:  # of this stream; it is read again when the database has changed
                damaged[name] = str(error)
                if name not in self._damaged:
                    _log.warning("stream %s can't be read: %s", name, error, extra={"stream": name})
        self._version = None if more else version
        with self._lock:
            self._damaged = damaged

    def _bring(self, database: EmbeddedLedgers, streams: ServedStreams, patterns: Sequence[str]) -> None:
        wanted = [name for name in database.streams() if not patterns or any(matches(name, each) for each in patterns)]
        for name in self._followed.keys() - set(wanted):
            self._enders.submit(partial(streams.remove, name))
            del self._followed[name]
        refused = {}
        for name in wanted:
            if name in self._followed:
                continue
            try:
                source = FollowedStream(database.view_stream(name, may_delete=True))
                control = streams.add(name, source, feed=self.name, active=self._is_leader)
            except ClosedError:
                return
            except (InvalidCallError, CorruptError) as error:
                refused[name] = str(error)
                if name not in self._refused:
                    _log.warning("stream %s isn't followed: %s", name, error, extra={"stream": name})
                continue
            self._followed[name] = source, control
        with self._lock:
            self._refused = refused

    @property
    def _is_leader(self) -> bool:
        return self._turn is None or self._turn.is_held

    def _open(self) -> EmbeddedLedgers:
        if self._database is None:
            database = EmbeddedLedgers(self._url, clock=self._clock)
            if database.path != ":memory:":
                self._turn = ProcessLock(Path(f"{database.path}.serve"))
            self._database = database
        return self._database

    def _again(self, streams: ServedStreams) -> None:
        wait_s: float = streams.settings_of("").ledgers.poll_interval
        if (error := error_of(partial(self.look, streams), f"feed {self.name}: a look")) is not None:
            wait_s = self._failed(error)
        else:
            self._failures = 0
            if self._is_leader:
                self._say(None)
        self._is_starting = False
        if not self._stopped:
            self._workers.call_after(wait_s, lambda: self._again(streams))

    def _failed(self, error: OffloaderError) -> float:
        self._version = None
        self._failures += 1
        if self._failures == 1:
            _log.warning("feed %s: %s", self.name, error, extra={"event": "feed_failed", "feed": self.name})
        self._say(ProviderProblem.of(f"feed {self.name}", error, self._clock.now_ms(), blocks_ready=True))
        return min(2.0 ** min(self._failures - 1, 10), RETRY_S_MAX)

    def _say(self, problem: ProviderProblem | None) -> None:
        with self._lock:
            before = self._problem
            if problem is None or before is None or before.what != problem.what:  # else it keeps its start time
                self._problem = problem
