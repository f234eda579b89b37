"""What the operating system is asked for: a process's own settings, directories that survive a power loss, files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from offloader.errors import Corrupt

#: Time after which a computing thread releases the interpreter. Python's default of 5 ms is longer than twenty appends
#: take, and an append releases the interpreter at each of its statements: a command that encodes and sends meanwhile
#: would queue them. A Spark task that decodes would delay the pipe to the JVM as long.
THREAD_SWITCH_S = 0.0002
#: Makes Arrow's allocator return freed memory at once, so that a process stays within its budget; read when Arrow is
#: loaded.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "0"}
#: Keeps NumPy from starting a thread for each core when it is loaded. They wait for linear algebra, which nothing here
#: does, and take 50 ms of processor before they sleep. Read when NumPy is loaded.
NO_IDLE_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
#: Parameters of ``mallopt``, by their numbers in <malloc.h>: two heaps for all threads; blocks from 256 KiB come from
#: the system and return to it at once; a heap's free end returns from 4 MiB.
HEAP = ((-8, 2), (-3, 256 * 1024), (-1, 4 * 1024 * 1024))


def cache_folder() -> Path:
    """Where commands of this user keep what they would otherwise find out again; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offloader"


def set_up(*, has_budget: bool) -> None:
    """Applies the settings to this process. Call it before NumPy and Arrow are loaded: theirs have no effect later. The
    environment's own settings take precedence.

    Args:
        has_budget: whether the process holds entries up to a budget. A process that only reads lets Arrow keep freed
            memory briefly: it needs the next block at once, and returned pages would cost a quarter of its speed.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    for name, value in (NO_IDLE_THREADS | (ALLOCATOR if has_budget else {})).items():
        os.environ.setdefault(name, value)


def keep_heap_small() -> bool:
    """Limits unused memory of a long-running process. Call it before threads start and before Arrow is loaded. The
    environment's allocator settings take precedence.

    By default the C library's allocator takes larger and larger blocks from its heaps, one for each computing thread,
    and a heap whose end is in use returns nothing: parts of segments and gRPC responses fragment it. Arrow's own
    allocator keeps more and more unused memory (200 MiB for 50 after half an hour) where threads start and end as
    gRPC's do. So Arrow uses the C library's, which returns large blocks at once.

    Returns:
        Whether it was applied: other C libraries differ.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is None or not all(tell(number, value) == 1 for number, value in HEAP):
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return True


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


_SPECIAL: Mapping[str, Callable[[int], bool]] = {
    "FIFO": stat.S_ISFIFO,
    "socket": stat.S_ISSOCK,
    "character device": stat.S_ISCHR,
    "block device": stat.S_ISBLK,
}


def is_plain_file(path: Path, mode: int) -> bool:
    """Whether ``mode`` is that of a plain file; False: a directory.

    Raises:
        Corrupt: it is a FIFO, a socket or a device, which a read can block on.
    """
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return stat.S_ISREG(mode)
    kind = next((name for name, is_one in _SPECIAL.items() if is_one(mode)), "special file")
    raise Corrupt(f"{path} is a {kind}, not a plain file", hint="remove it, and restore the file from a copy")


def open_plain_file(path: Path) -> int | None:
    """Open a plain file for reading, and wait for nothing; ``None``: a directory or nothing is there.

    Raises:
        Corrupt: as ``is_plain_file``.
    """
    try:
        # Opening a device can have an effect, so it is looked at first, and what was opened once more.
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
    """Device and inode of a directory; ``None``: there is none, or it can't be looked at."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        status = path.stat()
        return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None
    return None
