"""Answers of the store that are used again for a while: people look again and again, and each look costs requests.

Owns how long an answer is good for and how many are kept. Must never keep a failure.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from offloader.clock import Clock

__all__ = ["KeptAnswers"]

_Answer = TypeVar("_Answer")


class KeptAnswers(Generic[_Answer]):
    """Thread-safe; two that ask for the same at once may both make it.

    Args:
        clock: for ages.
        age_s_max: how old an answer may be.
        kept_max: above it the oldest one goes.
    """

    def __init__(self, clock: Clock, *, age_s_max: float, kept_max: int = 1) -> None:
        self._clock, self._age_s_max, self._kept_max = clock, age_s_max, kept_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, _Answer]] = OrderedDict()

    def get(self, name: str, make: Callable[[], _Answer], *, age_s_max: float | None = None) -> _Answer:
        """The answer to ``name``, made now where none is kept that is young enough.

        Args:
            age_s_max: how old this one may be, when that is less.

        Raises: what ``make`` raises.
        """
        now_s = self._clock.monotonic_s()
        oldest_s = now_s - min(self._age_s_max, self._age_s_max if age_s_max is None else age_s_max)
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None and kept[0] > oldest_s:
            return kept[1]
        answer = make()
        with self._lock:
            self._kept.pop(name, None)
            # As old as the question: what changed while it was answered may not be in it.
            self._kept[name] = now_s, answer
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        return answer
