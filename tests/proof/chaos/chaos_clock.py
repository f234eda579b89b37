"""``offloader ...`` with a wall clock that can be moved while it runs, as a machine's clock is.

Moved is what the product calls the time (offloader/runtime/clock.py, its only place); the SDK signs with the machine's
own, as a store refuses requests that are far off. The environment variable ``CHAOS_CLOCK`` names a file with eight
bytes: by how many milliseconds the clock is off, little-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path

__all__ = ["OFFSET", "VARIABLE", "set_clock"]

VARIABLE = "CHAOS_CLOCK"
OFFSET = struct.Struct("<q")


def set_clock(path: Path, offset_ms: int) -> None:
    """Moves the clock of all processes that look at ``path``."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(OFFSET.pack(offset_ms))


def move_clock(path: str) -> None:
    """From now on this process's clock is off by what the file says at each moment."""
    from offloader.runtime.clock import SystemClock

    with Path(path).open("rb") as file:
        shared = mmap.mmap(file.fileno(), OFFSET.size, prot=mmap.PROT_READ)
    right = SystemClock.now_ms

    def now_ms(clock: SystemClock) -> int:
        return right(clock) + int(OFFSET.unpack(shared[: OFFSET.size])[0])

    SystemClock.now_ms = now_ms  # type: ignore[method-assign,assignment]


def main() -> int:
    move_clock(os.environ[VARIABLE])
    from offloader.cli.main import main as offloader

    return offloader(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
