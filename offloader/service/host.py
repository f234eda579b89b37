"""Lock file, service manager and store health of a serving process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from formats.keys import catalog_key
from offloader.errors import AccessDenied, OffloaderError, StoreUnavailable, Throttled
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from offloader.store.retrying import with_short_retries

__all__ = ["Notifier", "ProcessLock", "StoreReach"]

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
        """Takes the lock if it is free; doesn't wait.

        Raises:
            AccessDenied: the file can't be created or opened.
        """
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
            with self.path.open("rb") as file:
                return file.read(_HOLDER_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def give(self) -> None:
        """Releases the lock, if held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_log = logging.getLogger("offloader.service")


class Notifier:
    """systemd notifications to the socket in the environment; does nothing without one.

    Args:
        environ: of the process.
    """

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
    """Reachability of the store. Thread-safe; one check at a time.

    Args:
        store: to check.
        clock: for times.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store, self._clock = with_short_retries(store), clock
        self._lock = threading.Lock()
        self._answers = True
        self._since_s = clock.monotonic_s()
        self._looked_s = self._since_s

    def look(self) -> None:
        """Sends one request; takes as long as the store's deadlines allow."""
        asked_s = self._clock.monotonic_s()
        answers = True
        try:
            self._store.head(_KEY)
        except Throttled:
            pass
        except StoreUnavailable:
            answers = False
        except OffloaderError:
            pass
        with self._lock:
            self._looked_s = self._clock.monotonic_s()
            if answers is not self._answers:
                # A failed request counts from when it was sent, an answered one from its response.
                self._answers, self._since_s = answers, self._looked_s if answers else asked_s

    @property
    def answering_s(self) -> float:
        """Seconds for which every check succeeded; 0: the newest one failed."""
        with self._lock:
            return self._looked_s - self._since_s if self._answers else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds for which every check failed; 0: the newest one succeeded."""
        with self._lock:
            return 0.0 if self._answers else self._looked_s - self._since_s
