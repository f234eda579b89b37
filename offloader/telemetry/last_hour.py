"""What a process offloaded in each minute of the last hour, and how fast each stream is."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

from offloader.runtime.clock import Clock

#: Minutes kept.
MINUTES_MAX = 60
#: Minutes of the mean rate: segments are committed in bursts.
RATE_MINUTES = 5
_MINUTE_S = 60.0


class LastHour:
    """Bytes by minute, since the process began or for ``MINUTES_MAX`` minutes; by stream for ``RATE_MINUTES``.
    Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._started_s = clock, clock.monotonic_s()
        self._lock = threading.Lock()
        self._newest = 0
        self._bytes: deque[int] = deque([0], maxlen=MINUTES_MAX)
        #: By stream, of the newest minutes: only streams that offloaded something.
        self._streams: deque[Counter[str]] = deque([Counter()], maxlen=RATE_MINUTES)

    def add(self, size_bytes: float, stream: str = "") -> None:
        """Counts bytes of a stream that became readable from the cold tier now."""
        with self._lock:
            self._turn()
            self._bytes[-1] += int(size_bytes)
            self._streams[-1][stream] += int(size_bytes)

    def rate_of(self, stream: str) -> float:
        """Bytes a second of one stream, the mean of the last ``RATE_MINUTES``; 0.0: it offloaded nothing."""
        with self._lock:
            seconds = self._seconds()
            return sum(minute[stream] for minute in self._streams) / seconds

    def document(self) -> dict[str, Any]:
        """``{"minute_bytes", "bytes_per_second"}``: bytes by minute, the oldest first, the last one not over yet; and
        the mean of the last ``RATE_MINUTES``."""
        with self._lock:
            seconds = self._seconds()
            found = list(self._bytes)
        return {"minute_bytes": found, "bytes_per_second": sum(found[-RATE_MINUTES:]) / seconds}

    def _seconds(self) -> float:
        """How long the minutes of the mean rate have lasted. The lock is held."""
        into_s = self._turn()
        return max(into_s + _MINUTE_S * (len(self._streams) - 1), 1.0)

    def _turn(self) -> float:
        """Begins the minutes that have come since; returns the seconds of the current one. The lock is held."""
        minute, into_s = divmod(self._clock.monotonic_s() - self._started_s, _MINUTE_S)
        passed = int(minute) - self._newest
        self._bytes.extend([0] * min(passed, MINUTES_MAX))
        self._streams.extend(Counter[str]() for _ in range(min(passed, RATE_MINUTES)))
        self._newest = int(minute)
        return into_s
