"""Who hears of appended entries.

Owns the list of listeners of one stream and the promise that none is called after its cancellation.
Must never let a listener's failure reach the one who appends.
"""

from __future__ import annotations

import logging
import threading

from formats.entries import EntryBatch
from offloader.ledgers.base import Listener

__all__ = ["ListenerSubscription", "Listeners"]

_log = logging.getLogger(__name__)


class Listeners:
    """Listeners in the order of their subscription."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._subscriptions: tuple[ListenerSubscription, ...] = ()

    def add(self, listener: Listener) -> ListenerSubscription:
        """``listener`` hears of every call of ``tell`` that begins after this returns."""
        subscription = ListenerSubscription(self, listener)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def tell(self, batch: EntryBatch) -> None:
        """Calls every listener. What one raises is logged: the entries are durable whatever it does."""
        for subscription in self._subscriptions:
            subscription.call(batch)

    def remove(self, subscription: ListenerSubscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)


class ListenerSubscription:
    """One listener's place in the list."""

    def __init__(self, listeners: Listeners, listener: Listener) -> None:
        self._listeners = listeners
        self._listener: Listener | None = listener
        # held while the listener runs; reentrant, so that a listener may cancel itself
        self._calling = threading.RLock()

    def cancel(self) -> None:
        """No call of the listener begins after this returns.

        Waits for a call that is running, so hold no lock here that the listener takes.
        """
        with self._calling:
            self._listener = None
        self._listeners.remove(self)

    def call(self, batch: EntryBatch) -> None:
        with self._calling:
            if self._listener is None:
                return
            try:
                self._listener(batch)
            except Exception:
                _log.exception("stream %s: a listener failed at %s", self._listeners.stream, batch.first)
