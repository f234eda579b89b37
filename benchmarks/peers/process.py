"""A peer's process and everything it started, seen from outside: memory of its own, processor time.

It doesn't ask the peer for it: a Java virtual machine and Python count differently.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ProcessTree"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.02
#: New processes are looked for less often.
_LOOKS_BETWEEN = 10
MIB = 1024 * 1024


class ProcessTree:
    """Process ``pid`` and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pids(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += map(int, task.read_text().split())
        return found

    def memory_mib(self, pids: list[int] | None = None) -> float:
        """Resident memory that no file is behind, of all of them together."""
        pages = 0
        for pid in pids or self.pids():
            with contextlib.suppress(OSError):
                _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                pages += int(resident) - int(shared)
        return pages * _PAGE_BYTES / MIB

    def cpu_s(self) -> float:
        """Processor time so far, of those that ended and were waited for too."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / _TICKS_PER_S

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[float]]:
        """The most memory they had meanwhile, MiB: the only item of the list, when the block is left."""
        most = [0.0]
        over = threading.Event()

        def watch() -> None:
            looks, pids = 0, self.pids()
            while not over.wait(_LOOK_S):
                looks += 1
                if looks % _LOOKS_BETWEEN == 0:
                    pids = self.pids()
                most[0] = max(most[0], self.memory_mib(pids))

        thread = threading.Thread(target=watch, name="memory", daemon=True)
        thread.start()
        try:
            yield most
        finally:
            over.set()
            thread.join()
            most[0] = max(most[0], self.memory_mib())
