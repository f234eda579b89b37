"""Lock file, service manager, store health and recent errors of a serving process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from formats.keys import catalog_key
from offloader.errors import AccessDenied, OffloaderError, StoreUnavailable, Throttled
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from offloader.store.wrappers import with_short_retries

_HOLDER_BYTES_MAX = 1000


class ProcessLock:
    """The lock at ``path``; the file is created if missing, and stays.

    The file's content names the holder, for people.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Takes the lock if it is free; doesn't wait. Raises ``AccessDenied``: the file can't be created or opened."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise AccessDenied(
                f"{self.path}: {cause.strerror}", hint="the process needs to write beside the ledger database"
            ) from cause
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as cause:
            os.close(descriptor)
            raise AccessDenied(f"{self.path} can't be locked: {cause.strerror}", hint="use a local disk") from cause
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the lock doesn't depend on the text: the disk may be full
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{socket.gethostname()}/{os.getpid()}\n".encode(), 0)
        return True

    def holder(self) -> str:
        """The holder, from the file."""
        try:
            return self.path.read_bytes()[:_HOLDER_BYTES_MAX].decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def give(self) -> None:
        """Releases the lock, if held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_log = logging.getLogger("offloader.service")


class Notifier:
    """systemd notifications to the socket in the environment; does nothing without one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # A leading @ is the zero byte of an abstract address.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def ready(self, status: str) -> None:
        """The service is up; ``status`` is for people."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_s: float) -> None:
        """The service reloads its settings; ``ready`` ends that."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1_000_000)}")

    def stopping(self, status: str) -> None:
        """The service is stopping."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError as error:
                _log.debug("the service manager wasn't told: %s", error)


#: The key requested; a NotFound is a response too.
_KEY = catalog_key("is-anybody-there")


class StoreReach:
    """Reachability of the store, for one thread.

    Attributes:
        answering_s: seconds for which every check succeeded; 0: the newest one failed.
        silent_s: seconds for which every check failed; 0: the newest one succeeded.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store, self._clock = with_short_retries(store), clock
        self._answers, self._since_s = True, clock.monotonic_s()
        self.answering_s = self.silent_s = 0.0

    def look(self) -> None:
        """Sends one request; takes as long as the store's deadlines allow."""
        asked_s, answers = self._clock.monotonic_s(), True
        try:
            self._store.head(_KEY)
        except OffloaderError as error:
            answers = isinstance(error, Throttled) or not isinstance(error, StoreUnavailable)
        now_s = self._clock.monotonic_s()
        if answers is not self._answers:
            # A failed request counts from when it was sent, an answered one from its response.
            self._answers, self._since_s = answers, now_s if answers else asked_s
        lasts_s = now_s - self._since_s
        self.answering_s, self.silent_s = (lasts_s, 0.0) if answers else (0.0, lasts_s)


#: Distinct messages kept; above it the least recent is evicted.
ERRORS_KEPT = 200
#: Longest text of a message.
TEXT_CHARS_MAX = 2000
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleSeen:
    """One message.

    Attributes:
        first_ms, last_ms: first and last occurrence, ms since 1970 UTC.
        level: ``warning`` or ``error``.
        stream: its stream; empty: of the process.
        event: short name for programs (docs/how-to/observing.md); may be empty.
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
        """Takes one record; never raises."""
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
        """The newest first; ``stream``: only of that stream."""
        with self._guard:
            found = [each for each in reversed(self._seen.values()) if stream is None or each.stream == stream]
        return found[:limit]
