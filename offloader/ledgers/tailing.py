"""The newest entries of a hot tier, kept in memory for who falls behind for a moment.

Owns a bounded number of bytes of them. Must never answer what the source wouldn't.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription

__all__ = ["TailingSource"]


class TailingSource:
    """A ``LedgerSource`` that reads from memory what was appended last, and the rest from ``inner``.

    Correct for a source whose only writer appends through ``inner``: then what was heard is everything there is after
    the oldest batch kept.

    Args:
        inner: the hot tier.
        bytes_max: payload bytes kept; 0: none.
    """

    def __init__(self, inner: LedgerSource, bytes_max: int) -> None:
        self._inner = inner
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._batches: deque[EntryBatch] = deque()
        self._held_bytes = 0
        self._subscription = inner.subscribe(self._keep) if bytes_max else None

    @property
    def held_bytes(self) -> int:
        """Payload bytes kept now."""
        return self._held_bytes

    def close(self) -> None:
        """Keeps nothing any more; reads go to the hot tier."""
        if self._subscription is not None:
            self._subscription.cancel()
        with self._lock:
            self._batches.clear()
            self._held_bytes = 0

    def ledgers(self) -> list[LedgerInfo]:
        return self._inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        with self._lock:
            kept = self._find(start)
        if kept is None:
            return self._inner.read(start, max_bytes)
        low = start.entry_id - kept.first.entry_id if kept.ledger_id == start.ledger_id else 0
        rest = kept.slice(max(0, low), len(kept))
        fits = int(np.searchsorted(np.cumsum(rest.lengths, dtype=np.int64), max_bytes, side="right"))
        return rest.slice(0, max(1, fits))

    def subscribe(self, listener: Listener, closed: ClosedListener | None = None) -> Subscription:
        return self._inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self._inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self._inner.delete(ledger_id)

    def _find(self, start: Position) -> EntryBatch | None:
        """The batch that a read from ``start`` on begins in, ``None`` when that isn't known here."""
        if not self._batches or start < self._batches[0].first:
            return None
        return next((batch for batch in self._batches if batch.last >= start), None)

    def _keep(self, batch: EntryBatch) -> None:
        size_bytes = batch.payload_bytes
        with self._lock:
            if size_bytes > self._bytes_max:
                self._batches.clear()
                self._held_bytes = 0
                return
            # A copy: the memory of what was appended is the caller's again when the append returns.
            self._batches.append(batch.copy())
            self._held_bytes += size_bytes
            while self._held_bytes > self._bytes_max:
                self._held_bytes -= self._batches.popleft().payload_bytes
