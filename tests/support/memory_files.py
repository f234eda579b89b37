"""Temporary files of tests in memory: SQLite and the local store wait for a disk a hundred thousand times a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["use_memory_for_files"]

#: pytest's own variable for the folder of all its temporary files.
VARIABLE = "PYTEST_DEBUG_TEMPROOT"
MEMORY = Path("/dev/shm")
#: A whole run needs two gibibytes at most; a failed one leaves its files.
FREE_BYTES_MIN = 8 << 30


def use_memory_for_files() -> None:
    """Chooses the folder of ``tmp_path`` where there is plenty of memory, unless the environment names a folder."""
    if VARIABLE not in os.environ and MEMORY.is_dir() and _is_plenty():
        os.environ[VARIABLE] = str(MEMORY)


def _is_plenty() -> bool:
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    available = int(facts["MemAvailable"].split()[0]) << 10
    return min(available, shutil.disk_usage(MEMORY).free) > FREE_BYTES_MIN
