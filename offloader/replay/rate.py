"""So many messages and bytes a second, and no more.

Owns when the next entry may go. Must never let a pause be made up for by a burst of more than a second's worth.
"""

from __future__ import annotations

import threading

from offloader.clock import Clock

__all__ = ["Rate"]

_BURST_S = 1.0


class Rate:
    """One thread's.

    Args:
        messages: a second; 0: any.
        size_bytes: a second; 0: any.
        clock: measures and waits.
    """

    def __init__(self, messages: float, size_bytes: float, clock: Clock) -> None:
        self._limits = tuple(limit for limit in (messages, size_bytes))
        self._clock = clock
        self._due_s = [clock.monotonic_s() - _BURST_S] * 2

    def take(self, messages: int, size_bytes: int, stopping: threading.Event) -> None:
        """Returns when so much may go, or when it is time to stop."""
        now_s = self._clock.monotonic_s()
        for number, amount in enumerate((messages, size_bytes)):
            if self._limits[number]:
                begin_s = max(self._due_s[number], now_s - _BURST_S)
                self._due_s[number] = begin_s + amount / self._limits[number]
        wait_s = max(due_s for due_s in self._due_s) - now_s
        if wait_s > 0:
            self._clock.wait(stopping, wait_s)
