"""Calls to the operating system: process tuning, durable directories, and plain files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from offloader.errors import CorruptError

#: Time after which a computing thread releases the interpreter. Python's default of 5 ms is longer than twenty appends
#: take. An append releases the interpreter at each statement, so a thread that encodes at the same time would delay it
#: by 5 ms each time. Likewise a Spark task that decodes would delay the pipe to the JVM.
THREAD_SWITCH_S = 0.0002
#: Makes Arrow's allocator return freed memory immediately, so that a process does not exceed its memory budget. Arrow
#: reads it when it is loaded.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "0"}
#: Prevents NumPy from starting a thread per core for linear algebra, which this package doesn't use. The threads would
#: cost 50 ms of processor time. NumPy reads it when it is loaded.
NO_IDLE_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
#: Parameters of ``mallopt``, by their numbers in <malloc.h>: two heaps for all threads; blocks of 256 KiB or more are
#: mapped from the system and unmapped when freed; free memory at the end of a heap is returned above 4 MiB.
HEAP = ((-8, 2), (-3, 256 * 1024), (-1, 4 * 1024 * 1024))


def cache_folder() -> Path:
    """Directory for cached results of this user's commands. It may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offloader"


def set_up(*, has_budget: bool) -> None:
    """Applies the settings to this process. Call it before NumPy and Arrow are loaded: it has no effect on them later.
    Variables that are set in the environment take precedence.

    Args:
        has_budget: whether the process has a memory budget for entries. In a process that only reads, Arrow keeps freed
            memory briefly and reuses it for the next block: returning it would cost a quarter of the read speed.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    for name, value in (NO_IDLE_THREADS | (ALLOCATOR if has_budget else {})).items():
        os.environ.setdefault(name, value)


def keep_heap_small() -> bool:
    """Limits unused memory of a long-running process. Call it before threads start and before Arrow is loaded. The
    environment's allocator settings take precedence.

    By default the C library's allocator has one heap per computing thread and takes increasingly large blocks from it.
    A heap whose end is in use returns no memory, and parts of segments and gRPC responses fragment it. Arrow's
    allocator accumulates unused memory (200 MiB for 50 in use after half an hour) when threads start and end often, as
    with gRPC. Therefore Arrow is set to use the C library's allocator, which returns large blocks immediately.

    Returns:
        Whether the limits were applied; only glibc supports them.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is None or not all(tell(number, value) == 1 for number, value in HEAP):
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return True


#: Attempts of a step that a concurrent removal of empty directories can undo.
RACES_MAX = 20


def make_directories(path: Path) -> None:
    """Creates ``path`` and its parents; all their names are durable on return.

    The name of an existing directory may not be durable yet, if its creator hasn't synced it or was killed before.
    Therefore the name is synced before anything is created in the directory. Syncing this one name is enough: the
    creator synced the parents' names before it created the directory.
    """
    if path.is_dir():
        with contextlib.suppress(PermissionError):  # the parent isn't readable: not created by this user
            sync_name(path)
        return
    for tries_left in reversed(range(RACES_MAX)):
        make_directories(path.parent)
        try:
            path.mkdir()
        except FileNotFoundError:
            if not tries_left:
                raise  # not a race: the parent accepts no new names, like /proc
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


_SPECIAL: Mapping[str, Callable[[int], bool]] = {
    "FIFO": stat.S_ISFIFO,
    "socket": stat.S_ISSOCK,
    "character device": stat.S_ISCHR,
    "block device": stat.S_ISBLK,
}


def is_plain_file(path: Path, mode: int) -> bool:
    """Whether ``mode`` denotes a plain file; False: a directory.

    Raises:
        CorruptError: a FIFO, socket or device, on which a read can block.
    """
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return stat.S_ISREG(mode)
    kind = next((name for name, is_one in _SPECIAL.items() if is_one(mode)), "special file")
    raise CorruptError(f"{path} is a {kind}, not a plain file", hint="remove it and restore the file from a copy")


def open_plain_file(path: Path) -> int | None:
    """Opens a plain file for reading without blocking; ``None``: it doesn't exist, or is a directory.

    Raises:
        CorruptError: like ``is_plain_file``.
    """
    try:
        # Opening a device can have side effects, so check the path first, and the opened file again.
        if not is_plain_file(path, path.stat().st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, descriptor)
        if is_plain_file(path, os.fstat(descriptor).st_mode):
            closing.pop_all()
            return descriptor
    return None


def directory_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a directory; ``None``: it doesn't exist or isn't accessible."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        status = path.stat()
        return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None
    return None
