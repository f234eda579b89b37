"""Directories that survive a power loss."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

#: Tries of a step that a concurrent removal of empty directories can undo.
RACES_MAX = 20


def make_directories(path: Path) -> None:
    """Creates ``path`` and its parents; all their names are durable on return.

    The name of an existing directory may not be durable yet, if another process is about to sync it or was killed
    before. So it is synced here too, before anything is created in it: a process that finds a directory needs to sync
    only that name, because the parents' were synced before.
    """
    if path.is_dir():
        with contextlib.suppress(PermissionError):  # no read permission, so not created here
            sync_name(path)
        return
    for tries_left in reversed(range(RACES_MAX)):
        make_directories(path.parent)
        try:
            path.mkdir()
        except FileNotFoundError:
            if not tries_left:
                raise  # no race: the parent refuses new names, as in /proc
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
