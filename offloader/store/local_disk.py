"""A directory on a disk: durable names, whole writes, a lock between processes, and what its errors mean.

Owns the translation of ``OSError`` for the local store. Must never know what an object is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from formats.buffers import views_of
from offloader.clock import Clock
from offloader.directories import make_directories
from offloader.errors import AccessDenied, InvalidCall, NotFound, OffloaderError, StoreUnavailable, Unsupported
from offloader.store.base import Body

__all__ = [
    "DirectoryLock",
    "names_in",
    "remove_empty",
    "translated",
    "write_all",
]

_LOCK_POLL_S = 0.002

_ERRNO_KINDS: Mapping[int, tuple[type[OffloaderError], str]] = {
    errno.EACCES: (AccessDenied, "check the owner and permissions of the directory"),
    errno.EPERM: (AccessDenied, "check the owner and permissions; the file system must allow hard links"),
    errno.EROFS: (AccessDenied, "the file system is mounted read-only"),
    errno.ENOSPC: (StoreUnavailable, "free some space"),
    errno.EDQUOT: (StoreUnavailable, "the quota is used up"),
    errno.ENOENT: (NotFound, "the directory was removed"),
    errno.ENOTDIR: (Unsupported, "a key can't continue the name of an object here: files aren't directories"),
    errno.EISDIR: (Unsupported, "a key can't be the beginning of another one here: files aren't directories"),
    errno.EEXIST: (Unsupported, "a file is where a directory should be, or the other way round"),
    errno.ENAMETOOLONG: (InvalidCall, "shorten the key or the directory's path"),
    errno.EMLINK: (Unsupported, "the file system allows no further link"),
    errno.ENOTSUP: (Unsupported, "the file system has no hard links; use another one"),
    errno.ELOOP: (InvalidCall, "a symbolic link points to itself"),
}


@contextlib.contextmanager
def translated(url: str, what: str) -> Iterator[None]:
    """The one edge where an ``OSError`` of this store becomes one of ``offloader.errors``."""
    try:
        yield
    except OSError as error:
        kind, hint = _ERRNO_KINDS.get(error.errno or 0, (StoreUnavailable, "see the system's log"))
        raise kind(f"{url}: {what} failed: {error.strerror or error}", hint=hint) from error


class DirectoryLock:
    """Exclusive between the threads of this process and between processes; waits ``timeout_s`` at most."""

    def __init__(self, path: Path, timeout_s: float, clock: Clock) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._clock = clock
        self._held = threading.local()

    def __enter__(self) -> None:
        if not self._path.parent.is_dir():
            make_directories(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._acquire(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._held.descriptor = descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._held.descriptor)

    def _acquire(self, descriptor: int) -> None:
        """A lock belongs to the open file, so two threads exclude each other like two processes."""
        never = threading.Event()
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock.monotonic_s() >= deadline_s:
                    raise StoreUnavailable(
                        f"{self._path} is held by somebody else for {self._timeout_s} s", hint="try again"
                    ) from None
            self._clock.wait(never, _LOCK_POLL_S)


def names_in(directory: Path) -> list[str]:
    """Names of the files in ``directory``, in order."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def remove_empty(directory: Path, top: Path) -> None:
    """Removes ``directory`` and those above it, below ``top``, as far as nothing is in them."""
    while directory != top:
        try:
            directory.rmdir()
        except OSError:
            return  # not empty, or gone
        directory = directory.parent


def write_all(descriptor: int, body: Body) -> None:
    """Writes all of ``body``, which one call may not."""
    for rest in views_of(body):
        while rest:
            rest = rest[os.write(descriptor, rest) :]
