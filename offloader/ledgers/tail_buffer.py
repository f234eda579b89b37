"""The newest entries of a hot tier in memory, and the listeners that receive them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription

#: Small batches are joined into chunks of at most this size: thousands of one-entry batches would cost more memory than
#: their payload, and be read one entry at a time.
CHUNK_BYTES = 64 * 1024
#: Small batches after the last chunk at which they are joined: joining each with the chunk would copy that each time.
UNJOINED_MAX = 64
#: Overhead of a chunk: the batch's objects.
_CHUNK_OVERHEAD_BYTES = 4096
#: Overhead of an entry: its id, time and offset.
_ENTRY_OVERHEAD_BYTES = 8 + 8 + 4


def kept_bytes(batch: EntryBatch) -> int:
    """Memory that a batch with its own buffers takes, overhead included."""
    return batch.payload_bytes + _ENTRY_OVERHEAD_BYTES * len(batch) + _CHUNK_OVERHEAD_BYTES


def part_to_read(batch: EntryBatch, start: Position, max_bytes: int) -> EntryBatch:
    """The part of a batch that a read from ``start`` on returns: one entry, and more that fit into ``max_bytes``."""
    rest = batch.between(start, batch.last)
    offsets = rest.offsets
    stop = int(np.searchsorted(offsets, int(offsets[0]) + max_bytes, side="right")) - 1
    return rest.slice(0, max(stop, 1))


class TailingSource:
    """A ``LedgerSource`` that reads the newest entries from memory and the rest from ``inner``.

    Requires that the source's only writer appends through ``inner``.

    Args:
        inner: the hot tier.
        bytes_max: memory for entries, payloads and overhead; 0: none. ``held_bytes`` of it are taken now.
    """

    def __init__(self, inner: LedgerSource, bytes_max: int) -> None:
        self.inner, self._bytes_max = inner, bytes_max
        #: Of joined batches, overhead included; the oldest are evicted a chunk at a time.
        self._chunk_bytes_max = min(CHUNK_BYTES, bytes_max // 8) + _CHUNK_OVERHEAD_BYTES
        self._lock = threading.Lock()
        self._chunks: deque[EntryBatch] = deque()
        #: How many of the newest are to be joined with the one before them, and the size of that chunk then.
        self._unjoined = self._newest_bytes = 0
        self.held_bytes = 0
        self._subscription = inner.subscribe(self._keep) if bytes_max else None

    def close(self) -> None:
        """Drops the buffer; reads are passed to the hot tier. Idempotent."""
        if self._subscription is not None:
            self._subscription.cancel()
        with self._lock:
            self._clear()

    def ledgers(self) -> list[LedgerInfo]:
        return self.inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        with self._lock:
            self._join()
            # If it isn't here, only ``inner`` knows the following entries: an append that was interrupted may be
            # missing between two chunks.
            kept = next((chunk for chunk in self._chunks if chunk.first <= start <= chunk.last), None)
        return self.inner.read(start, max_bytes) if kept is None else part_to_read(kept, start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self.inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self.inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self.inner.delete(ledger_id)
        with self._lock:
            self._join()
            self._chunks = deque(chunk for chunk in self._chunks if chunk.ledger_id != ledger_id)
            self.held_bytes = sum(map(kept_bytes, self._chunks))

    def _keep(self, batch: EntryBatch) -> None:
        size_bytes = kept_bytes(batch)
        with self._lock:
            try:
                own = batch.compact()
            except MemoryError:  # a gap in the buffer would hide these entries from readers
                self._clear()
                raise
            self._newest_bytes += size_bytes - _CHUNK_OVERHEAD_BYTES
            is_next = self._chunks and self._chunks[-1].last.next() == batch.first
            if is_next and self._newest_bytes <= self._chunk_bytes_max:
                self._unjoined += 1
            else:
                self._join()
                self._newest_bytes = size_bytes
            self._chunks.append(own)
            self.held_bytes += size_bytes
            if self._unjoined >= UNJOINED_MAX or self.held_bytes > self._bytes_max:
                self._join()
            while self.held_bytes > self._bytes_max:
                self.held_bytes -= kept_bytes(self._chunks.popleft())

    def _join(self) -> None:
        """Makes one chunk of the newest small batches and the one before them; drops all chunks if it can't."""
        if self._unjoined:
            parts = [self._chunks.pop() for _ in range(self._unjoined + 1)]
            self._unjoined = 0
            try:
                self._chunks.append(EntryBatch.concat(parts[::-1]))
            except Exception:
                _log.exception("tail cache dropped: its batches up to %s can't be joined", parts[0].last)
                self._clear()
            else:
                self.held_bytes += kept_bytes(self._chunks[-1]) - sum(map(kept_bytes, parts))

    def _clear(self) -> None:
        self._chunks.clear()
        self._unjoined = self.held_bytes = 0


_log = logging.getLogger(__name__)

_Told = TypeVar("_Told", EntryBatch, LedgerInfo)


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
        taken = [subscription.call(batch) for subscription in self._subscriptions]
        return all(taken)

    def tell_all(self, batches: Sequence[EntryBatch], closed: Sequence[LedgerInfo]) -> None:
        """Reports what one append wrote, and each ledger it closed before the next one's first batch."""
        told: list[EntryBatch | LedgerInfo] = [*batches, *closed]
        for each in sorted(told, key=lambda each: (each.ledger_id, isinstance(each, LedgerInfo))):
            if isinstance(each, LedgerInfo):
                self.tell_closed(each)
            else:
                self.tell(each)

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
        self._listeners, self._listener, self._closed = listeners, listener, closed
        #: Called when it was cancelled.
        self.ended: Callable[[], object] | None = None
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
        if self.ended is not None:
            self.ended()

    def call(self, batch: EntryBatch) -> bool:
        """False: the listener will read the batch later."""
        with self._calling:
            return self._listener is None or self._guarded(self._listener, batch)

    def call_closed(self, info: LedgerInfo) -> None:
        with self._calling:
            if self._closed is not None:
                self._guarded(self._closed, info)

    def _guarded(self, listener: Callable[[_Told], object], told: _Told) -> bool:
        """Calls a listener and logs its exception; returns whether it accepted."""
        try:
            return listener(told) is not False
        except Exception:
            at = told.first if isinstance(told, EntryBatch) else f"the end of {told.ledger_id}"
            _log.exception("stream %s: a listener failed at %s", self._listeners.stream, at)
            return False
