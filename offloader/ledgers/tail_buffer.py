"""The newest entries of a hot tier in memory, and the listeners that receive them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription

__all__ = ["ListenerSubscription", "Listeners", "TailingSource", "kept_bytes"]

#: Appended batches are joined into chunks of about this size: thousands of one-entry batches would cost more memory
#: than their payload, and be read one entry at a time.
CHUNK_BYTES = 64 * 1024
#: Batches that wait to be joined.
FRESH_BATCHES_MAX = 256
#: Overhead of a chunk: the batch's objects.
_CHUNK_OVERHEAD_BYTES = 4096
#: Overhead of an entry: its id, time and offset.
_ENTRY_OVERHEAD_BYTES = 8 + 8 + 4


def kept_bytes(batch: EntryBatch) -> int:
    """Memory that a batch with its own buffers takes, overhead included."""
    return batch.payload_bytes + _ENTRY_OVERHEAD_BYTES * len(batch) + _CHUNK_OVERHEAD_BYTES


class TailingSource:
    """A ``LedgerSource`` that reads the newest entries from memory and the rest from ``inner``.

    Requires that the source's only writer appends through ``inner``: then the buffer has every entry after its oldest
    one.

    Args:
        inner: the hot tier.
        bytes_max: memory for entries, payloads and overhead; 0: none.
    """

    def __init__(self, inner: LedgerSource, bytes_max: int) -> None:
        self._inner = inner
        self._bytes_max = bytes_max
        self._chunk_bytes = min(CHUNK_BYTES, bytes_max // 8)  # the oldest are evicted a chunk at a time
        self._lock = threading.Lock()
        self._chunks: deque[EntryBatch] = deque()
        #: Appended after the last chunk, all of one ledger, and their size once joined into a chunk.
        self._fresh: list[EntryBatch] = []
        self._fresh_bytes = 0
        self._held_bytes = 0
        self._subscription = inner.subscribe(self._keep) if bytes_max else None

    @property
    def inner(self) -> LedgerSource:
        """The wrapped hot tier."""
        return self._inner

    @property
    def held_bytes(self) -> int:
        """Bytes that buffered entries take now, at most ``bytes_max``."""
        with self._lock:
            return self._held_bytes

    def close(self) -> None:
        """Drops the buffer; reads are passed to the hot tier. Idempotent."""
        if self._subscription is not None:
            self._subscription.cancel()
        with self._lock:
            self._forget()

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

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self._inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self._inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self._inner.delete(ledger_id)
        with self._lock:
            self._join()
            self._chunks = deque(chunk for chunk in self._chunks if chunk.ledger_id != ledger_id)
            self._held_bytes = sum(map(kept_bytes, self._chunks))

    def _find(self, start: Position) -> EntryBatch | None:
        """The chunk in which a read from ``start`` begins, ``None`` if it isn't buffered."""
        self._join()
        if not self._chunks or start < self._chunks[0].first:
            return None
        return next((chunk for chunk in self._chunks if chunk.last >= start), None)

    def _keep(self, batch: EntryBatch) -> None:
        size_bytes = kept_bytes(batch)
        with self._lock:
            if size_bytes > self._bytes_max:
                self._forget()
                return
            large = size_bytes >= self._chunk_bytes
            if self._fresh and (large or self._fresh[0].ledger_id != batch.ledger_id):
                self._join()
            self._held_bytes += size_bytes
            if large:
                self._chunks.append(batch.compact())
            else:
                self._fresh.append(batch.compact())
                self._fresh_bytes += size_bytes - _CHUNK_OVERHEAD_BYTES
            if (
                self._fresh_bytes >= self._chunk_bytes
                or len(self._fresh) >= FRESH_BATCHES_MAX
                or self._held_bytes > self._bytes_max
            ):
                self._join()
            while self._held_bytes > self._bytes_max:
                self._held_bytes -= kept_bytes(self._chunks.popleft())

    def _join(self) -> None:
        """Joins the fresh batches into one chunk, with the previous chunk if that is small and of the same ledger."""
        if not self._fresh:
            return
        parts, self._fresh, self._fresh_bytes = self._fresh, [], 0
        newest = self._chunks[-1] if self._chunks else None
        if newest is not None and newest.ledger_id == parts[0].ledger_id and kept_bytes(newest) < self._chunk_bytes:
            parts.insert(0, self._chunks.pop())
        joined = EntryBatch.concat(parts)
        self._chunks.append(joined)
        self._held_bytes += kept_bytes(joined) - sum(map(kept_bytes, parts))

    def _forget(self) -> None:
        self._chunks.clear()
        self._fresh, self._fresh_bytes = [], 0
        self._held_bytes = 0


_log = logging.getLogger(__name__)


class Listeners:
    """Listeners in the order of their subscription."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._subscriptions: tuple[ListenerSubscription, ...] = ()

    def add(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        """Subscribes to calls of ``tell`` (``listener``) and ``tell_closed`` (``closed``) from now on."""
        subscription = ListenerSubscription(self, listener, closed)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    @property
    def want_entries(self) -> bool:
        """Whether any listener wants entries."""
        return any(subscription.wants_entries for subscription in self._subscriptions)

    def tell(self, batch: EntryBatch) -> bool:
        """Calls every listener and logs exceptions; returns whether all accepted the batch."""
        taken = True
        for subscription in self._subscriptions:
            taken = subscription.call(batch) and taken
        return taken

    def tell_all(self, batches: Sequence[EntryBatch], closed: Sequence[LedgerInfo]) -> None:
        """Reports what one append wrote, and each ledger it closed before the next one's first batch."""
        waiting = list(closed)
        for batch in batches:
            while waiting and waiting[0].ledger_id < batch.ledger_id:
                self.tell_closed(waiting.pop(0))
            self.tell(batch)
        for info in waiting:
            self.tell_closed(info)

    def tell_closed(self, info: LedgerInfo) -> None:
        """Calls every ``closed`` listener."""
        for subscription in self._subscriptions:
            subscription.call_closed(info)

    def remove(self, subscription: ListenerSubscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)


class ListenerSubscription:
    """One listener's place in the list."""

    def __init__(self, listeners: Listeners, listener: Listener | None, closed: ClosedListener | None) -> None:
        self._listeners = listeners
        self._listener = listener
        self._closed = closed
        # held while the listener runs; reentrant, so that a listener may cancel itself
        self._calling = threading.RLock()

    @property
    def wants_entries(self) -> bool:
        return self._listener is not None

    def cancel(self) -> None:
        """No call of the listener begins after this returns.

        Waits for a running call, so don't hold a lock here that the listener takes.
        """
        with self._calling:
            self._listener = self._closed = None
        self._listeners.remove(self)

    def call(self, batch: EntryBatch) -> bool:
        """False: the listener will read the batch later."""
        with self._calling:
            if self._listener is None:
                return True
            try:
                return self._listener(batch) is not False
            except Exception:
                _log.exception("stream %s: a listener failed at %s", self._listeners.stream, batch.first)
                return False

    def call_closed(self, info: LedgerInfo) -> None:
        with self._calling:
            if self._closed is None:
                return
            try:
                self._closed(info)
            except Exception:
                _log.exception("stream %s: a listener failed at the end of %s", self._listeners.stream, info.ledger_id)
