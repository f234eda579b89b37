"""The bytes that all peers are offered: entries of one length behind each other in a file.

It doesn't let a peer have others.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Entries", "write_entries"]

_PIECE_BYTES = 4 * 1024 * 1024


def write_entries(path: Path, total_bytes: int) -> None:
    """Random bytes, the same each time: what a producer has compressed or encrypted looks like that."""
    source = np.random.default_rng(8)
    with path.open("wb") as file:
        for start in range(0, total_bytes, _PIECE_BYTES):
            file.write(source.bytes(min(_PIECE_BYTES, total_bytes - start)))


@dataclass(frozen=True, slots=True)
class Entries:
    """A file of entries, mapped: its pages are nobody's own memory."""

    bytes: memoryview
    entry_bytes: int

    @classmethod
    def of(cls, path: Path, entry_bytes: int) -> Entries:
        with path.open("rb") as file:
            return cls(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), entry_bytes)

    def entry(self, number: int) -> memoryview:
        return self.bytes[number * self.entry_bytes : (number + 1) * self.entry_bytes]

    def pieces(self, piece_bytes: int) -> list[memoryview]:
        """All bytes, in pieces of equal length but the last."""
        return [self.bytes[at : at + piece_bytes] for at in range(0, len(self.bytes), piece_bytes)]
