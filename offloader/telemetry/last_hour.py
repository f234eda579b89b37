"""What a process offloaded in each minute of the last hour."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from offloader.runtime.clock import Clock

#: Minutes kept.
MINUTES_MAX = 60
#: Minutes of the mean rate: segments are committed in bursts.
RATE_MINUTES = 5
_MINUTE_S = 60.0


class LastHour:
    """Bytes by minute, since the process began or for ``MINUTES_MAX`` minutes. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._started_s = clock, clock.monotonic_s()
        self._lock = threading.Lock()
        self._newest = 0
        self._bytes: deque[int] = deque([0], maxlen=MINUTES_MAX)

    def add(self, size_bytes: float) -> None:
        """Counts bytes that became readable from the cold tier now."""
        with self._lock:
            self._turn()
            self._bytes[-1] += int(size_bytes)

    def document(self) -> dict[str, Any]:
        """``{"minute_bytes", "bytes_per_second"}``: bytes by minute, the oldest first, the last one not over yet; and
        the mean of the last ``RATE_MINUTES``."""
        with self._lock:
            into_s = self._turn()
            found = list(self._bytes)
        recent = found[-RATE_MINUTES:]
        seconds = max(into_s + _MINUTE_S * (len(recent) - 1), 1.0)
        return {"minute_bytes": found, "bytes_per_second": sum(recent) / seconds}

    def _turn(self) -> float:
        """Begins the minutes that have come since; returns the seconds of the current one. The lock is held."""
        minute, into_s = divmod(self._clock.monotonic_s() - self._started_s, _MINUTE_S)
        self._bytes.extend([0] * min(int(minute) - self._newest, MINUTES_MAX))
        self._newest = int(minute)
        return into_s
