"""Answers of the store that are kept for a while, and asked for on threads of their own, so that nobody waits long."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from offloader.errors import StoreUnavailable
from offloader.runtime.clock import Clock

_Answer = TypeVar("_Answer")


#: Longest wait of an overview for the store; what is known without it is shown after that.
STORE_WAIT_S_MAX = 2.0
#: Threads that ask the store for overviews.
ASKERS_MAX = 8


class KeptAnswers(Generic[_Answer]):
    """TTL cache. Thread-safe; concurrent requests for the same key may both compute it.

    Args:
        age_s_max: maximum age of an answer.
        kept_max: number of answers; above it the oldest is evicted.
    """

    def __init__(self, clock: Clock, *, age_s_max: float, kept_max: int = 1) -> None:
        self._clock, self._age_s_max, self._kept_max = clock, age_s_max, kept_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, _Answer]] = OrderedDict()

    def get(self, name: str, make: Callable[[], _Answer], *, age_s_max: float | None = None) -> _Answer:
        """The answer to ``name``, cached or computed.

        Args:
            age_s_max: maximum age of this one, if lower.

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
            # Its age counts from the request: later changes may be missing in it.
            self._kept[name] = now_s, answer
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        return answer

    def kept(self, name: str) -> _Answer | None:
        """The newest answer of any age; ``None``: there is none."""
        with self._lock:
            found = self._kept.get(name)
        return None if found is None else found[1]


class SoonAnswers(Generic[_Answer]):
    """``KeptAnswers`` that are asked for on other threads, so that nobody waits long for a store that hangs.
    Thread-safe.

    Args:
        is_away: says that the store doesn't answer; empty: it does, or that isn't known.
    """

    def __init__(
        self, kept: KeptAnswers[_Answer], threads: ThreadPoolExecutor, is_away: Callable[[], str], clock: Clock
    ) -> None:
        self._kept, self._threads, self._is_away, self._clock = kept, threads, is_away, clock
        self._lock = threading.Lock()
        self._asked: dict[str, Future[_Answer]] = {}

    def get(
        self, name: str, make: Callable[[], _Answer], *, deadline_s: float, age_s_max: float | None = None
    ) -> _Answer:
        """The answer to ``name``; an older one if the store hasn't answered by the deadline, or doesn't answer at all.

        Args:
            deadline_s: by the monotonic clock; the same for all that one request asks for.
            age_s_max: maximum age, as of ``KeptAnswers``.

        Raises:
            StoreUnavailable: nor is there an older one. Else what ``make`` raises.
        """
        away = self._is_away()
        if not away:
            left_s = max(deadline_s - self._clock.monotonic_s(), 0.0)
            try:
                return self._begun(name, partial(self._kept.get, name, make, age_s_max=age_s_max)).result(left_s)
            except TimeoutError:
                away = f"the store hasn't answered within {STORE_WAIT_S_MAX:g} s"
        found = self._kept.kept(name)
        if found is None:
            raise StoreUnavailable(away, hint="what this process knows itself is shown; /readyz says what is wrong")
        return found

    def _begun(self, name: str, ask: Callable[[], _Answer]) -> Future[_Answer]:
        with self._lock:
            found = self._asked.get(name)
            if found is None or found.done():
                self._asked = {key: each for key, each in self._asked.items() if not each.done()}
                found = self._asked[name] = self._threads.submit(ask)
        return found
