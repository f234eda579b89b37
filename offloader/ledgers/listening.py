"""Who hears of appended entries.

Owns the list of listeners of one stream and the promise that none is called after its cancellation.
Must never let a listener's failure reach the one who appends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from formats.entries import EntryBatch
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener

__all__ = ["ListenerSubscription", "Listeners"]

_log = logging.getLogger(__name__)


class Listeners:
    """Listeners in the order of their subscription."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._subscriptions: tuple[ListenerSubscription, ...] = ()

    def add(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        """``listener`` hears of each ``tell``, ``closed`` of each ``tell_closed``, that begins after this returns."""
        subscription = ListenerSubscription(self, listener, closed)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    @property
    def want_entries(self) -> bool:
        """Whether anybody wants to hear of entries."""
        return any(subscription.wants_entries for subscription in self._subscriptions)

    def tell(self, batch: EntryBatch) -> bool:
        """Calls every listener; whether all of them took it. What one raises is logged: the entries are durable
        whatever it does."""
        taken = True
        for subscription in self._subscriptions:
            taken = subscription.call(batch) and taken
        return taken

    def tell_all(self, batches: Sequence[EntryBatch], closed: Sequence[LedgerInfo]) -> None:
        """Tells everybody of what one append wrote, and of each ledger it closed before the next one's first batch."""
        waiting = list(closed)
        for batch in batches:
            while waiting and waiting[0].ledger_id < batch.ledger_id:
                self.tell_closed(waiting.pop(0))
            self.tell(batch)
        for info in waiting:
            self.tell_closed(info)

    def tell_closed(self, info: LedgerInfo) -> None:
        """Tells everybody who wants to know that a ledger was closed."""
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

        Waits for a call that is running, so hold no lock here that the listener takes.
        """
        with self._calling:
            self._listener = self._closed = None
        self._listeners.remove(self)

    def call(self, batch: EntryBatch) -> bool:
        """False: the listener will read it."""
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
