"""A file that one process of a machine holds: who of several does the work.

Owns taking and giving it. Must never be what keeps two writers apart (epochs do): it decides whose turn it is.

The kernel lets go of the lock when its process ends, however it ends: who stands by has it within a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from offloader.errors import AccessDenied

__all__ = ["ProcessLock"]

_HOLDER_BYTES_MAX = 1000


class ProcessLock:
    """The lock at ``path``; the file is made when it isn't there and stays.

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
        """Takes the lock if nobody has it; doesn't wait.

        Raises:
            AccessDenied: the file can't be made or opened.
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
        with contextlib.suppress(OSError):  # a full disk is no reason not to work
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{socket.gethostname()}/{os.getpid()}\n".encode(), 0)
        return True

    def holder(self) -> str:
        """Who has it, as the file says."""
        try:
            with self.path.open("rb") as file:
                return file.read(_HOLDER_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def give(self) -> None:
        """Lets go of it; fine if it isn't held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
