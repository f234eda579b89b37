"""What of a directory tree a power cut leaves: the names that were synced.

Stands between a process and its disk: it takes the place of ``os.fsync`` and ``os.sync``, and remembers what each
directory held when it was synced. File systems may keep more than that; nobody may rely on it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


class PowerCut:
    """Watches the tree below ``base``, whose own name is safe.

    Attributes:
        before_sync: called before a directory is synced, with its path.
    """

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._base = base
        self._names: dict[int, dict[str, int]] = {}
        self._fsync = os.fsync
        self.before_sync: Callable[[Path], object] = lambda _: None
        monkeypatch.setattr(os, "fsync", self._synced)
        monkeypatch.setattr(os, "sync", self._all_synced)

    def survivors(self) -> list[str]:
        """Files that are there after the power came back, relative to ``base``."""
        return sorted(self._surviving(self._base))

    def _surviving(self, directory: Path) -> list[str]:
        found = []
        for name, inode in self._names.get(directory.stat().st_ino, {}).items():
            path = directory / name
            if not path.exists() or path.stat().st_ino != inode:
                continue
            found += self._surviving(path) if path.is_dir() else [str(path.relative_to(self._base))]
        return found

    def _synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.before_sync(Path(f"/proc/self/fd/{descriptor}").readlink())
            self._note(status.st_ino, descriptor)
        self._fsync(descriptor)

    def _note(self, inode: int, directory: int | Path) -> None:
        with os.scandir(directory) as entries:
            self._names[inode] = {entry.name: entry.inode() for entry in entries}

    def _all_synced(self) -> None:
        for path in [self._base, *self._base.rglob("*")]:
            if path.is_dir():
                self._note(path.stat().st_ino, path)
