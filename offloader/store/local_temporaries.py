"""Files of the local store while they are written, and those that killed processes left.

A file is locked as long as its process works with it. So what isn't locked belongs to nobody, and is removed when it is
old as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from offloader.directories import RACES_MAX
from offloader.errors import OutcomeUnknown, StoreUnavailable

__all__ = ["LEFT_AGE_MS", "Temporaries"]

#: Age at which a file that nobody has locked is removed.
LEFT_AGE_MS = 3_600_000


class Temporaries:
    """The hidden folder ``directory``. Neither it nor what is in it has to survive a power cut."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def new(self) -> Iterator[tuple[Path, int]]:
        """A new locked file and its descriptor; it is removed with the context, unless it was moved away."""
        with self._locked(is_directory=False) as found:
            yield found

    @contextlib.contextmanager
    def new_directory(self) -> Iterator[Path]:
        """The same for a directory."""
        with self._locked(is_directory=True) as (path, _):
            yield path

    @contextlib.contextmanager
    def _locked(self, *, is_directory: bool) -> Iterator[tuple[Path, int]]:
        self._directory.mkdir(parents=True, exist_ok=True)
        for _ in range(RACES_MAX):
            path = self._directory / secrets.token_hex(16)
            if is_directory:
                path.mkdir()
            flags = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            is_kept = False
            try:
                _lock(descriptor)
                if os.fstat(descriptor).st_nlink:  # else it was swept before the lock, by a clock that is ahead
                    yield path, descriptor
                    return
            except OutcomeUnknown:
                is_kept = True  # the second link of an object whose name may not be on the disk
                raise
            finally:
                if not is_kept:
                    _remove(path, is_directory=is_directory)
                os.close(descriptor)
        raise StoreUnavailable(f"{self._directory}: each new file was removed at once", hint="check the clocks")

    def sweep(self, now_ms: int) -> None:
        """Removes what killed processes left: old, and locked by nobody."""
        if not self._directory.is_dir():
            return
        with os.scandir(self._directory) as entries:
            left = [Path(entry.path) for entry in entries if _is_old(entry, now_ms)]
        unlocked = [path for path in left if _is_unlocked(path)]
        if any(path.is_file() and path.stat().st_nlink > 1 for path in unlocked):
            # A second link says that an object's name isn't on the disk. Now it is, wherever it may be.
            os.sync()
        for path in unlocked:
            _remove(path, is_directory=path.is_dir())


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # without locks nothing is ever swept either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_old(entry: os.DirEntry[str], now_ms: int) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 <= now_ms - LEFT_AGE_MS
    except FileNotFoundError:
        return False


def _is_unlocked(path: Path) -> bool:
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
        descriptor = os.open(path, (os.O_RDONLY if is_directory else os.O_WRONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(path: Path, *, is_directory: bool) -> None:
    if is_directory:
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
