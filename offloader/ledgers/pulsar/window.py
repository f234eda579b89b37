"""Entries that arrived live and that their listener didn't take: kept until it has read them; pure.

Owns which of them are here and how many bytes wait. Must never answer across a hole, nor keep more than it may.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from formats.entries import EntryBatch, Position

__all__ = ["LiveWindow", "leading_bytes"]


class LiveWindow:
    """The newest entries of a topic, without a hole between the first and the last of them. Not thread-safe.

    What was read once may be asked for again, until newer entries need its place; only what wasn't read yet counts as
    waiting.
    """

    def __init__(self) -> None:
        self._batches: deque[EntryBatch] = deque()
        #: Everything up to here was read or taken; entries after it wait.
        self._read: Position | None = None
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches)

    @property
    def held_bytes(self) -> int:
        """Payload bytes of all that is here."""
        return sum(batch.payload_bytes for batch in self._batches)

    def add(self, batch: EntryBatch) -> None:
        """Entries that come after all there are."""
        self._batches.append(batch)
        self.waiting_bytes += batch.wire_bytes

    def taken(self) -> None:
        """The listener has them all: nobody reads them here."""
        self._batches.clear()
        self.waiting_bytes = 0

    def read(self, start: Position, max_bytes: int, bytes_max: int) -> EntryBatch | None:
        """Entries from ``start`` on, of one ledger, as ``LedgerSource.read``; ``None``: they aren't here.

        Args:
            start: who asks for it has read everything before it, here or elsewhere.
            max_bytes: of payload; at least one entry.
            bytes_max: of what was read already and stays.
        """
        self._mark_read(Position(start.ledger_id, start.entry_id - 1), bytes_max)
        if not self._batches or start < self._batches[0].first:
            return None
        found = next((batch for batch in self._batches if batch.last >= start), None)
        if found is None:
            return None
        rest = found.between(start, found.last)
        answer = rest.slice(0, leading_bytes(rest, max_bytes))
        self._mark_read(answer.last, bytes_max)
        return answer

    def _mark_read(self, position: Position, bytes_max: int) -> None:
        if self._read is not None and position <= self._read:
            return
        self._read = position
        self.waiting_bytes = sum(
            batch.between(Position(self._read.ledger_id, self._read.entry_id + 1), batch.last).wire_bytes
            for batch in self._batches
            if batch.last > self._read
        )
        # The oldest go first; whoever asks for them again gets them from the broker.
        while len(self._batches) > 1 and self._batches[0].last <= self._read and self.held_bytes > bytes_max:
            self._batches.popleft()


def leading_bytes(batch: EntryBatch, max_bytes: int) -> int:
    """How many leading entries have at most ``max_bytes`` of payload together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(batch.lengths, dtype=np.int64), max_bytes, side="right")))
