"""Clock that tests set. Never reads the machine's time."""

from __future__ import annotations

import threading

#: Polling interval of a wait that doesn't move the clock, in real seconds.
_LOOK_S = 0.001


class ManualClock:
    """``Clock`` that only ``advance`` and, by default, waits move.

    Args:
        now_ms: initial wall clock, milliseconds since 1970 UTC.
        waits_pass: a wait ends at once and advances the clock by its length, as retries need. Otherwise it ends when
            its event is set or another thread has advanced the clock far enough, as timers need.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, *, waits_pass: bool = True) -> None:
        self._lock = threading.Lock()
        self._waits_pass = waits_pass
        self._now_ms = now_ms
        self._monotonic_s = 0.0
        self._waits_s: list[float] = []

    @property
    def waits_s(self) -> list[float]:
        """All waits so far, in seconds."""
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
            self._waits_s.append(timeout_s)
            deadline_s = self._monotonic_s + timeout_s
            if self._waits_pass:
                self._monotonic_s = deadline_s
        while self.monotonic_s() < deadline_s:
            if event.wait(_LOOK_S):
                return True
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Advances both clocks by ``seconds``."""
        with self._lock:
            self._monotonic_s += seconds

    def set_now_ms(self, now_ms: int) -> None:
        """Sets the wall clock alone, also backwards."""
        with self._lock:
            self._now_ms = now_ms - int(self._monotonic_s * 1000)
