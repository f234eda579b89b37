"""Workers without threads: every task runs when, and in the order in which, a seed says.

It doesn't start a thread or read the machine's clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import TypeVar

from offloader.runtime.workers import Timer, Workers
from offloader.testing.manual_clock import ManualClock

__all__ = ["SimulatedWorkers"]

#: Turns within which what somebody waits for has to come.
TURNS_MAX = 20_000
_Result = TypeVar("_Result")


class SimulatedWorkers(Workers):
    """``Workers`` whose tasks the caller runs, one by one.

    Args:
        clock: moved on when only timers are left.
        random: chooses the next task.
    """

    def __init__(self, clock: ManualClock, random: Random) -> None:
        # Not Workers.__init__: that makes a pool of threads.
        self._time = clock
        self._random = random
        self._tasks: list[Callable[[], object]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._over = False
        #: What lets the world go on while somebody waits for a result: a task of these workers, or a timer.
        self.turn: Callable[[], object] = self._turn

    @property
    def ready(self) -> int:
        """Tasks that may run now."""
        self._collect()
        return len(self._tasks)

    @property
    def next_timer_s(self) -> float | None:
        """When the next timer is due, on the monotonic clock."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def submit(self, run: Callable[[], object]) -> None:
        if not self._over:
            self._tasks.append(run)

    def call_after(self, delay_s: float, run: Callable[[], object]) -> Timer:
        timer = Timer(run)
        if not self._over:
            heapq.heappush(self._timers, (self._time.monotonic_s() + delay_s, next(self._numbers), timer))
        return timer

    def run_one(self) -> bool:
        """Runs one of the ready tasks; False when there is none."""
        self._collect()
        if not self._tasks:
            return False
        number = self._random.randrange(len(self._tasks))
        self._tasks[number], self._tasks[-1] = self._tasks[-1], self._tasks[number]
        self._tasks.pop()()
        return True

    def result_of(self, done: Future[_Result]) -> _Result:
        """Lets the world go on until the result is there, at most ``TURNS_MAX`` turns."""
        for _ in range(TURNS_MAX):
            if done.done():
                return done.result()
            self.turn()
        raise AssertionError("what somebody waits for never comes")

    def close(self) -> None:
        """The process is gone: nothing of it runs any more."""
        self._over = True
        self._tasks.clear()
        self._timers.clear()

    def _turn(self) -> None:
        if not self.run_one():
            next_s = self.next_timer_s
            assert next_s is not None, "somebody waits, and nothing is left to do"
            self._time.advance(max(0.0, next_s - self._time.monotonic_s()))

    def _collect(self) -> None:
        now_s = self._time.monotonic_s()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                self._tasks.append(timer.run)
