"""A clock that a test moves.

Owns time as a number. Must never read the machine's.
"""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """``Clock`` whose waits end at once and move it on by the time that was waited for.

    Args:
        now_ms: wall clock at the beginning, milliseconds since 1970 UTC.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_s = 0.0
        self._waits_s: list[float] = []

    @property
    def waits_s(self) -> list[float]:
        """How long was waited so far, in seconds, wait by wait."""
        with self._lock:
            return list(self._waits_s)

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms + int(self._monotonic_s * 1000)

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        with self._lock:
            self._monotonic_s += timeout_s
            self._waits_s.append(timeout_s)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Lets ``seconds`` pass on both clocks."""
        with self._lock:
            self._monotonic_s += seconds

    def set_now_ms(self, now_ms: int) -> None:
        """Sets the wall clock alone, also back."""
        with self._lock:
            self._now_ms = now_ms - int(self._monotonic_s * 1000)
