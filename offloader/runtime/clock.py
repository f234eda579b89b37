"""Time, as a component that is handed in.

Owns the only reads of the wall clock and of the monotonic clock in the package. Must never be
needed for correctness: clocks decide when, never whether.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the package asks of time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Blocks until ``event`` is set or ``timeout_s`` passed; whether it is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
