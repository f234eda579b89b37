"""Whether this machine has what a serving process needs: ledger database, disk, memory, open files.

Owns these looks. Must never write anything.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from offloader.doctor.findings import Finding, fine, problem, warning
from offloader.errors import AccessDenied
from offloader.ledgers.database import database_path
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.settings import Settings

__all__ = ["LocalChecks"]

#: Free bytes below which a disk is nearly full.
DISK_BYTES_MIN = 1024**3
#: Part of the machine's memory above which buffers leave too little for the rest.
MEMORY_SHARE_MAX = 0.5
#: Open files that a process needs beside the store's connections.
FILES_BESIDE = 256


class LocalChecks:
    """See ``offloader.doctor.findings.Check``."""

    name = "machine"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self) -> Iterator[Finding]:
        if self._settings.serve.ledgers:
            yield from self._ledgers()
        if self._settings.telemetry.status_file:
            yield from self._status_file()
        yield from self._memory()
        yield from self._files()

    def _ledgers(self) -> Iterator[Finding]:
        path = Path(database_path(self._settings.serve.ledgers))
        if str(path) == ":memory:":
            return
        folder = path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            missing = "isn't there" if not folder.is_dir() else "can't be written"
            error = AccessDenied(f"the folder {folder} {missing}")
            yield problem("ledger database", error, "make it, owned by the user of the process")
            return
        if path.exists():
            with closing(EmbeddedLedgers(str(path), create=False)) as database:
                yield fine("ledger database", f"{path} has {len(database.streams())} streams")
        else:
            yield fine("ledger database", f"{path} is made by whoever comes first")
        free_bytes = shutil.disk_usage(folder).free
        text = f"{free_bytes / 1024**3:.1f} GiB are free in {folder}"
        if free_bytes < DISK_BYTES_MIN:
            yield warning("ledger disk", text, "free some: appends fail when it is full")
        else:
            yield fine("ledger disk", text)

    def _status_file(self) -> Iterator[Finding]:
        folder = Path(self._settings.telemetry.status_file).absolute().parent
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield fine("status file", f"can be written in {folder}")
        else:
            error = AccessDenied(f"{folder} isn't there or can't be written")
            yield problem("status file", error, "make the folder, or set another telemetry.status_file")

    def _memory(self) -> Iterator[Finding]:
        wanted_bytes = self._settings.offload.offload_memory_bytes_max
        there_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        text = f"buffers may take {wanted_bytes / 1024**2:.0f} of {there_bytes / 1024**2:.0f} MiB"
        if wanted_bytes > there_bytes * MEMORY_SHARE_MAX:
            yield warning("memory", text, "lower offload.offload_memory_bytes_max, or use a larger machine")
        else:
            yield fine("memory", text)

    def _files(self) -> Iterator[Finding]:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self._settings.store.connections_max + FILES_BESIDE
        if limit != resource.RLIM_INFINITY and limit < wanted:
            yield warning(
                "open files", f"{limit} are allowed, up to {wanted} may be needed", f"ulimit -n {max(wanted, 4096)}"
            )
        else:
            yield fine("open files", "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} are allowed")
