"""A hot tier that costs next to nothing: entries of one ledger from a small pool of random bytes, over and over.

It doesn't copy a payload: what is measured is the way into the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
import pyarrow as pa

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription

__all__ = ["BATCH_BYTES", "EndlessLedger"]

_LEDGER_ID = 1
_TIME_MS = 1_700_000_000_000
#: What a source answers at once, in a buffer of its own.
BATCH_BYTES = 2 * 1024 * 1024


class _Subscription:
    """A listener's place in the list."""

    def __init__(self, listeners: list[Listener], listener: Listener | None) -> None:
        self._listeners, self._listener = listeners, listener

    def cancel(self) -> None:
        if self._listener is not None and self._listener in self._listeners:
            self._listeners.remove(self._listener)


class EndlessLedger:
    """See ``LedgerSource``: one open ledger of equal entries.

    Args:
        entry_bytes: payload of each.
        entries: how many there are.
        pool_bytes: distinct bytes; more than the processor caches, or the first copy would cost nothing.
        copies: answer reads in memory of their own, as a source on a disk does; else they cost nothing.
        bodies: the bytes, batches of ``BATCH_BYTES`` each; default: ``pool_bytes`` of random ones.

    Attributes:
        bodies: the bytes themselves, one batch each.
        on_release: called with each acknowledged position.
        listeners: who hears of ``append``.
    """

    def __init__(
        self,
        entry_bytes: int,
        entries: int,
        *,
        pool_bytes: int = 128 * 1024 * 1024,
        copies: bool = False,
        bodies: Sequence[bytes | memoryview] = (),
    ) -> None:
        self._copies = copies
        self.entry_bytes = entry_bytes
        self.entries = entries
        per_batch = max(1, BATCH_BYTES // entry_bytes)
        offsets = pa.py_buffer(np.arange(0, per_batch * entry_bytes + 1, entry_bytes, dtype=np.int32))
        pieces = max(1, pool_bytes // BATCH_BYTES)
        self.bodies = bodies or [os.urandom(per_batch * entry_bytes) for _ in range(pieces)]
        self._batch_entries = per_batch
        self._batches = [
            pa.BinaryArray.from_buffers(pa.binary(), per_batch, [None, offsets, pa.py_buffer(body)], null_count=0)
            for body in self.bodies
        ]
        self.on_release: Callable[[Position], None] = lambda _: None
        self.listeners: list[Listener] = []

    def another(self) -> EndlessLedger:
        """One of the same pool, without entries."""
        other = copy(self)
        other.entries = 0
        other.listeners = []
        return other

    def append(self, count: int) -> None:
        """More entries; listeners hear of them."""
        start = Position(_LEDGER_ID, self.entries)
        self.entries += count
        batch = self.read(start, count * self.entry_bytes)
        assert batch is not None, "an entry was added"
        for listener in self.listeners:
            listener(batch)

    @property
    def last(self) -> Position:
        return Position(_LEDGER_ID, self.entries - 1)

    def ledgers(self) -> list[LedgerInfo]:
        size_bytes = self.entries * self.entry_bytes
        if not self.entries:
            return []
        return [
            LedgerInfo(ledger_id=_LEDGER_ID, closed=False, entries=self.entries, size_bytes=size_bytes, created_ms=0)
        ]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        first = start.entry_id if start.ledger_id == _LEDGER_ID else 0
        if first >= self.entries:
            return None
        number, at = divmod(first, self._batch_entries)
        count = min(max(1, max_bytes // self.entry_bytes), self._batch_entries - at, self.entries - first)
        ids = np.arange(first, first + count, dtype=np.int64)
        payloads = self._batches[number % len(self._batches)].slice(at, count)
        batch = EntryBatch(_LEDGER_ID, ids, payloads, np.full(count, _TIME_MS, dtype=np.int64))
        return batch.copy() if self._copies else batch

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:  # noqa: ARG002
        if listener is not None:
            self.listeners.append(listener)
        return _Subscription(self.listeners, listener)

    def release(self, position: Position) -> None:
        self.on_release(position)

    def delete(self, ledger_id: int) -> None:
        """Keeps it."""
