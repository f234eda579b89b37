"""Interpreter and allocator settings of the package's own processes."""

from __future__ import annotations

import ctypes
import os
import sys

#: Time after which a computing thread releases the interpreter. Python's default of 5 ms is longer than twenty appends
#: take, and an append releases the interpreter at each of its statements: a command that encodes and sends meanwhile
#: would queue them. A Spark task that decodes would delay the pipe to the JVM as long.
THREAD_SWITCH_S = 0.0002
#: Makes Arrow's allocator return freed memory at once, so that a process stays within its budget; read when Arrow is
#: loaded.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "0"}
#: Parameters of ``mallopt``, by their numbers in <malloc.h>: two heaps for all threads; blocks from 256 KiB come from
#: the system and return to it at once; a heap's free end returns from 4 MiB.
HEAP = ((-8, 2), (-3, 256 * 1024), (-1, 4 * 1024 * 1024))


def set_up(*, has_budget: bool) -> None:
    """Applies the settings to this process. Call it before Arrow is loaded: the allocator's have no effect later. The
    environment's allocator settings take precedence.

    Args:
        has_budget: whether the process holds entries up to a budget. A process that only reads lets Arrow keep freed
            memory briefly: it needs the next block at once, and returned pages would cost a quarter of its speed.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    if not has_budget:
        return
    for name, value in ALLOCATOR.items():
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
