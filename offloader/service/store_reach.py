"""Whether this process reaches the store, and for how long it has or hasn't.

Owns one small request, made again at each look, and what became of it. Must never take a refusal for silence: who is
refused was heard, and another process would be refused as well.
"""

from __future__ import annotations

import threading

from formats.keys import catalog_key
from offloader.clock import Clock
from offloader.errors import OffloaderError, StoreUnavailable, Throttled
from offloader.store.base import ObjectStore
from offloader.store.retrying import impatient

__all__ = ["StoreReach"]

#: What is asked for; that it isn't there is an answer.
_KEY = catalog_key("is-anybody-there")


class StoreReach:
    """Thread-safe; one look at a time.

    Args:
        store: the one that is asked.
        clock: of times.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store, self._clock = impatient(store), clock
        self._lock = threading.Lock()
        self._answers = True
        self._since_s = clock.monotonic_s()
        self._looked_s = self._since_s

    def look(self) -> None:
        """Asks once; takes as long as the store's deadlines allow."""
        asked_s = self._clock.monotonic_s()
        answers = True
        try:
            self._store.head(_KEY)
        except Throttled:
            pass
        except StoreUnavailable:
            answers = False
        except OffloaderError:
            pass
        with self._lock:
            self._looked_s = self._clock.monotonic_s()
            if answers is not self._answers:
                # A request that got no answer counts from when it was sent, one that got one from then on.
                self._answers, self._since_s = answers, self._looked_s if answers else asked_s

    @property
    def answering_s(self) -> float:
        """For how long every look had an answer; 0: the newest one had none."""
        with self._lock:
            return self._looked_s - self._since_s if self._answers else 0.0

    @property
    def silent_s(self) -> float:
        """For how long no look had an answer; 0: the newest one had one."""
        with self._lock:
            return 0.0 if self._answers else self._looked_s - self._since_s
