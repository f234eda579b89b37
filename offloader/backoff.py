"""Waiting before a failed step is tried again, longer each time.

Owns the delay and whether one is running. Must never give up: whoever waits has a deadline of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from offloader.workers import Workers

__all__ = ["Backoff"]

#: Wait before the first retry of a failed step; doubles up to the limit.
RETRY_DELAY_FIRST_S = 0.2


class Backoff:
    """Calls ``again`` after a wait.

    Args:
        workers: has the timer, and calls.
        delay_s_max: the longest wait (``retry_seconds_max``).
        again: what is tried.
    """

    def __init__(self, workers: Workers, delay_s_max: float, again: Callable[[], object]) -> None:
        self._workers = workers
        self._delay_s_max = delay_s_max
        self._again = again
        self._lock = threading.Lock()
        self._delay_s = 0.0
        self.waiting = False

    def wait(self) -> float:
        """Starts a wait; how long it is, in seconds."""
        with self._lock:
            self.waiting = True
            self._delay_s = delay_s = min(max(self._delay_s * 2, RETRY_DELAY_FIRST_S), self._delay_s_max)
        self._workers.call_after(delay_s, self._over)
        return delay_s

    def reset(self) -> None:
        """Something succeeded: the next wait is a short one."""
        with self._lock:
            self._delay_s = 0.0

    def _over(self) -> None:
        with self._lock:
            self.waiting = False
        self._again()
