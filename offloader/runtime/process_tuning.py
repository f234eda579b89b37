"""Settings of the interpreter and the allocator for processes of our own."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["ALLOCATOR", "HEAP", "THREAD_SWITCH_S", "keep_heap_small", "set_up"]

#: After how long a thread that computes lets another one go on that waits for the interpreter. Python's own 5 ms are
#: longer than twenty appends take, and an append hands the interpreter over at each of its statements: a command that
#: encodes and sends meanwhile would make a queue of them. A Spark task that decodes would keep what is decoded from the
#: pipe to the JVM as long.
THREAD_SWITCH_S = 0.0002
#: Arrow's allocator gives freed memory back at once, so that a process has what its budget says and no more; it reads
#: this when Arrow is loaded.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "0"}
#: What ``mallopt`` is told, by its numbers in <malloc.h>: two heaps for all threads; blocks from 256 KiB on come from
#: the system and go back to it at once; a heap's free end goes back from 4 MiB on.
HEAP = ((-8, 2), (-3, 256 * 1024), (-1, 4 * 1024 * 1024))


def set_up(*, has_budget: bool) -> None:
    """Makes the choices for this process; before Arrow is loaded, or the allocator's aren't heard. What the environment
    says of the allocator stays.

    Args:
        has_budget: whether it holds entries up to a budget. One that only reads lets Arrow keep freed memory for a
            moment: it needs the next piece at once, and pages that went back cost a quarter of its speed.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    if not has_budget:
        return
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)


def keep_heap_small() -> bool:
    """Lets this process hold little memory that nobody uses, for as long as it lives: for one that goes on for weeks.
    Before there are threads and before Arrow is loaded. What the environment says of either allocator stays.

    Left to itself the C library's allocator takes larger and larger blocks from its heaps, one for each thread that
    computes, and a heap whose end is in use gives nothing back: parts of segments and answers of gRPC leave holes
    there. Arrow's own keeps more and more beside what is in use (200 MiB for 50 after half an hour), where threads come
    and go as gRPC's do. So Arrow uses the C library's, which gives large blocks back at once.

    Returns:
        Whether it was done: another C library has its own ways.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is None or not all(tell(number, value) == 1 for number, value in HEAP):
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return True
