"""A hot tier that costs next to nothing: entries of one ledger from a small pool of random bytes, over and over.

Owns what the benchmarks offload. Must never copy a payload: what is measured is the way into the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription

__all__ = ["EndlessLedger"]

_LEDGER_ID = 1
_TIME_MS = 1_700_000_000_000


class _Subscription:
    def cancel(self) -> None:
        """Nothing was ever going to be told."""


class EndlessLedger:
    """See ``LedgerSource``: one open ledger of equal entries.

    Args:
        entry_bytes: payload of each.
        entries: how many there are.
        pool_bytes: distinct bytes; more than the processor caches, or the first copy would cost nothing.

    Attributes:
        pool: the bytes themselves.
        on_release: called with each acknowledged position.
    """

    def __init__(self, entry_bytes: int, entries: int, pool_bytes: int = 128 * 1024 * 1024) -> None:
        self.entry_bytes = entry_bytes
        self.entries = entries
        self._pool_entries = max(1, pool_bytes // entry_bytes)
        self.pool = os.urandom(self._pool_entries * entry_bytes)
        offsets = np.arange(0, len(self.pool) + 1, entry_bytes, dtype=np.int32)
        self._payloads = pa.BinaryArray.from_buffers(
            pa.binary(), self._pool_entries, [None, pa.py_buffer(offsets), pa.py_buffer(self.pool)], null_count=0
        )
        self.on_release: Callable[[Position], None] = lambda _: None

    @property
    def last(self) -> Position:
        return Position(_LEDGER_ID, self.entries - 1)

    def ledgers(self) -> list[LedgerInfo]:
        size_bytes = self.entries * self.entry_bytes
        return [
            LedgerInfo(ledger_id=_LEDGER_ID, closed=False, entries=self.entries, size_bytes=size_bytes, created_ms=0)
        ]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        first = start.entry_id if start.ledger_id == _LEDGER_ID else 0
        at = first % self._pool_entries
        count = min(max(1, max_bytes // self.entry_bytes), self._pool_entries - at, self.entries - first)
        if count <= 0:
            return None
        ids = np.arange(first, first + count, dtype=np.int64)
        return EntryBatch(_LEDGER_ID, ids, self._payloads.slice(at, count), np.full(count, _TIME_MS, dtype=np.int64))

    def subscribe(self, listener: Listener, closed: ClosedListener | None = None) -> Subscription:  # noqa: ARG002
        return _Subscription()

    def release(self, position: Position) -> None:
        self.on_release(position)

    def delete(self, ledger_id: int) -> None:
        """Keeps it."""
