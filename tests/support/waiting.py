"""Waiting for what other threads do: until it is so, or the test fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "eventually", "settled"]

#: How long a test waits for what must come. Only a test that fails waits so long, and a machine that is busy with much
#: else may need a good part of it.
PATIENCE_S = 120.0
_LOOK_S = 0.002
_LOOK_S_MAX = 0.25
_Seen = TypeVar("_Seen")


def eventually(
    is_so: Callable[[], object], *, first: Callable[[], object] | None = None, within_s: float = PATIENCE_S
) -> None:
    """Returns as soon as ``is_so()`` is true; fails when it isn't within ``within_s``. ``first`` is called before each
    look: to turn a clock, for one."""
    deadline_s = time.monotonic() + within_s
    never = threading.Event()
    while True:
        began_s = time.monotonic()
        if first is not None:
            first()
        if is_so():
            return
        ended_s = time.monotonic()
        assert ended_s < deadline_s, f"not so within {within_s} s"
        # Looks that read a store leave the processor to what is waited for.
        never.wait(min(_LOOK_S_MAX, max(_LOOK_S, 3 * (ended_s - began_s))))


def settled(look: Callable[[], _Seen], is_done: Callable[[_Seen], object], *, still_s: float, look_s: float) -> bool:
    """Looks until what is seen is done, as long as it changes.

    Args:
        still_s: false after so long without a change. Counted in looks and not by a clock: a machine that is slow, or
            stands still for a while, looks less often.
        look_s: between two looks.
    """
    never = threading.Event()
    seen, left = look(), still_s / look_s
    while not is_done(seen):
        never.wait(look_s)
        before, seen = seen, look()
        left = left - 1 if seen == before else still_s / look_s
        if left <= 0:
            return False
    return True
