"""Directories whose names survive a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["RACES_MAX", "make_directories", "sync_directory", "sync_name"]

#: Tries of a step that a concurrent removal of empty directories can undo.
RACES_MAX = 20


def make_directories(path: Path) -> None:
    """Makes ``path`` and what is above it. All of their names are on the disk when this returns.

    The name of a directory that is there may not be on the disk yet, when another process is about to sync it or was
    killed before. So it is synced here too, and before anything is made in it: whoever finds a directory needs to sync
    one name only, because those above were synced before it was made.
    """
    if path.is_dir():
        with contextlib.suppress(PermissionError):  # not ours to read, nor made by us
            sync_name(path)
        return
    for tries_left in reversed(range(RACES_MAX)):
        make_directories(path.parent)
        try:
            path.mkdir()
        except FileNotFoundError:
            if not tries_left:
                raise  # no race: nothing can be made there, as in /proc
            continue
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        with contextlib.suppress(FileNotFoundError):
            sync_name(path)
        return


def sync_name(path: Path) -> None:
    """Makes the name of ``path`` in its directory durable."""
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
