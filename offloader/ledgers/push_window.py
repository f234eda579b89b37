"""Pushed entries that no segment took yet, and the memory of all streams that have some.

Owns the count of their bytes. Must never refuse what a stream has to be given so that it can go on.
"""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa
import pyarrow.compute as pc

from formats.entries import EntryBatch, Position
from offloader.ledgers.tailing import CHUNK_BYTES, kept_bytes

__all__ = ["PushMemory", "PushWindow", "first_difference"]


class PushMemory:
    """Bytes in the windows of a process. Thread-safe.

    Args:
        limit_bytes: more is taken only by streams that have nothing else to go on with, one push each.

    Attributes:
        held_bytes: counted now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int, *, must: bool) -> bool:
        """Counts ``size_bytes`` more; False: there is no room, and the stream can wait (``must`` is off)."""
        with self._lock:
            if not must and self.held_bytes + size_bytes > self.limit_bytes:
                return False
            self.held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Counts ``size_bytes`` less."""
        with self._lock:
            self.held_bytes -= size_bytes
            assert self.held_bytes >= 0, "more bytes given back than were held"


class PushWindow:
    """The window of one stream: batches in order. Its caller holds the stream's lock.

    Args:
        limit_bytes: of this stream.
        memory: of the process.

    Attributes:
        held_bytes: taken of the memory now.
    """

    def __init__(self, limit_bytes: int, memory: PushMemory) -> None:
        self._limit_bytes, self._memory = limit_bytes, memory
        self._batches: deque[EntryBatch] = deque()
        self.held_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def take(self, size_bytes: int, *, must: bool) -> bool:
        """Takes the bytes of what is added next; False: no room.

        Args:
            size_bytes: as ``kept_bytes`` says.
            must: whether there is room in any case.
        """
        if not must and self.held_bytes + size_bytes > self._limit_bytes:
            return False
        if not self._memory.take(size_bytes, must=must):
            return False
        self.held_bytes += size_bytes
        return True

    def add(self, batch: EntryBatch) -> None:
        """Adds what room was taken for. Small batches are joined: each costs more than what is in it."""
        newest = self._batches[-1] if self._batches else None
        apart_bytes = kept_bytes(batch) + (0 if newest is None else kept_bytes(newest))
        if newest is None or newest.ledger_id != batch.ledger_id or apart_bytes > CHUNK_BYTES:
            self._batches.append(batch)
            return
        self._batches[-1] = joined = EntryBatch.concat([newest, batch])
        self._give_back(apart_bytes - kept_bytes(joined))

    def find(self, start: Position) -> EntryBatch | None:
        """The batch that holds the first entry at or after ``start``."""
        return next((batch for batch in self._batches if batch.last >= start), None)

    def other_entry(self, batch: EntryBatch) -> Position | None:
        """The first entry of ``batch`` that is held with other bytes."""
        for held in self._batches:
            first = max(held.first.entry_id, batch.first.entry_id)
            count = min(held.last.entry_id, batch.last.entry_id) + 1 - first
            if held.ledger_id != batch.ledger_id or count <= 0:
                continue
            ours, theirs = (each.payloads.slice(first - each.first.entry_id, count) for each in (held, batch))
            at = first_difference(ours, theirs)
            if at is not None:
                return Position(held.ledger_id, first + at)
        return None

    def drop_up_to(self, position: Position) -> Position | None:
        """Lets go of whole batches up to ``position``; the newest entry of them, ``None``: there were none."""
        last: Position | None = None
        while self._batches and self._batches[0].last <= position:
            last = self._batches[0].last
            self._give_back(kept_bytes(self._batches.popleft()))
        return last

    def clear(self) -> None:
        """Lets go of everything."""
        self._batches.clear()
        self._give_back(self.held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._memory.give_back(size_bytes)


def first_difference(one: pa.BinaryArray, other: pa.BinaryArray) -> int | None:
    """The number of the first value that isn't the same in two arrays of one length."""
    if one.equals(other):
        return None
    return int(pc.index(pc.not_equal(one, other), True).as_py())
