"""What a process of our own decides for itself before it works: how threads take turns, how memory goes back.

Owns those choices. Must never make them for somebody else's program: that is the library's user's own.
"""

from __future__ import annotations

import os
import sys

__all__ = ["ALLOCATOR", "THREAD_SWITCH_S", "set_up"]

#: After how long a thread that computes lets another one go on that waits for the interpreter. Python's own 5 ms are
#: longer than twenty appends take, and an append hands the interpreter over at each of its statements: a command that
#: encodes and sends meanwhile would make a queue of them. A Spark task that decodes would keep what is decoded from the
#: pipe to the JVM as long.
THREAD_SWITCH_S = 0.0002
#: Arrow's allocator gives freed memory back at once, so that a process has what its budget says and no more; it reads
#: this when Arrow is loaded.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "0"}


def set_up() -> None:
    """Makes the choices for this process; before Arrow is loaded, or the allocator's aren't heard. What the environment
    says of the allocator stays."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
