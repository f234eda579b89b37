"""Injected clock.

The only module that reads the wall clock and the monotonic clock. Clocks determine the time of an action, but
correctness doesn't depend on them.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Time source of the package."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""

    def monotonic_s(self) -> float:
        """Monotonic seconds; only differences are meaningful."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Blocks until ``event`` is set or ``timeout_s`` passed; returns whether it is set."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
