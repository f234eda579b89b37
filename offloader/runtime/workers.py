"""The process's worker pool, its timer thread, and back-off between attempts."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from offloader.runtime.clock import Clock

_log = logging.getLogger("offloader.runtime.workers")
_Result = TypeVar("_Result")

#: Longest sleep of the timer thread, so that it notices an adjusted clock.
_TIMER_WAIT_S_MAX = 60.0
#: Wait before the next attempt to start a thread that the system refused.
_NO_THREAD_S = 1.0


@dataclass(slots=True, eq=False)
class Timer:
    """A delayed call. ``cancel`` prevents it if it hasn't started."""

    run: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Workers:
    """Threads that encode, upload and commit, for all streams of a process."""

    def __init__(self, threads_max: int, clock: Clock) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="offloader-worker")
        self._lock = threading.Lock()
        self._due: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._wake = threading.Event()
        self._timer_thread: threading.Thread | None = None
        self._closed = False

    def submit(self, run: Callable[[], object]) -> None:
        """Runs ``run`` on a worker as soon as one is free; ignored after ``close`` and at the interpreter's exit."""
        with self._lock:
            if self._closed:
                return
            try:
                self._pool.submit(_guarded, run)
            except RuntimeError as error:
                if "shutdown" in str(error):
                    # The interpreter exits with an open stream; committed data is durable, the rest is dropped.
                    self._closed = True
                    return
                # The system refused a new thread. The pool has queued the task and starts a thread with a later one.
                _log.warning("%s; retrying in %g s", error, _NO_THREAD_S, extra={"event": "retry"})
                self._add_timer(_NO_THREAD_S, Timer(lambda: None))

    def call_after(self, delay_s: float, run: Callable[[], object]) -> Timer:
        """Runs ``run`` on a worker after ``delay_s`` seconds."""
        timer = Timer(run)
        with self._lock:
            if not self._closed:
                self._add_timer(delay_s, timer)
        return timer

    def _add_timer(self, delay_s: float, timer: Timer) -> None:
        """Adds a timer; the lock is held. If no thread can be started, the next added timer tries again."""
        heapq.heappush(self._due, (self._clock.monotonic_s() + delay_s, next(self._order), timer))
        if self._timer_thread is None:
            thread = threading.Thread(target=self._tick, name="offloader-timer", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._timer_thread = thread
        self._wake.set()

    def result_of(self, done: Future[_Result]) -> _Result:
        """Waits for a result that a task of this pool sets, and raises its error. Must not be called on a worker."""
        return done.result()

    def close(self) -> None:
        """Waits for running tasks and drops timers. Idempotent."""
        with self._lock:
            self._closed = True
            self._due.clear()
            thread = self._timer_thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._pool.shutdown(wait=True)

    def _tick(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                if self._closed:
                    return
                now_s = self._clock.monotonic_s()
                due = []
                while self._due and self._due[0][0] <= now_s:
                    due.append(heapq.heappop(self._due)[2])
                wait_s = self._due[0][0] - now_s if self._due else _TIMER_WAIT_S_MAX
            for timer in due:
                if not timer.cancelled:
                    self.submit(timer.run)
            self._clock.wait(self._wake, min(wait_s, _TIMER_WAIT_S_MAX))


class Alarm:
    """Calls ``run`` on a worker once after each ``set``, until ``stop``."""

    def __init__(self, workers: Workers, run: Callable[[], object]) -> None:
        self._workers, self._run = workers, run
        self._lock = threading.Lock()
        self._timer = Timer(run)  # placeholder, never started
        self.is_stopped = False

    def set(self, delay_s: float) -> None:
        """Schedules ``run`` in ``delay_s`` seconds and cancels the previous schedule."""
        with self._lock:
            self._timer.cancel()
            if not self.is_stopped:
                self._timer = self._workers.call_after(delay_s, self._ring)

    def stop(self) -> None:
        """Prevents further calls; a call that has started may still be running."""
        with self._lock:
            self.is_stopped = True
            self._timer.cancel()

    def _ring(self) -> None:
        if not self.is_stopped:  # stopped while it waited for a worker
            self._run()


class SerialTask:
    """A step of a state machine: runs at least once after the last call of ``schedule``, and never concurrently."""

    def __init__(self, workers: Workers, run: Callable[[], object]) -> None:
        self._workers, self._run = workers, run
        self._lock = threading.Lock()
        self._running = self._again = False

    def schedule(self) -> None:
        with self._lock:
            if self._running:
                self._again = True
                return
            self._running = True
        self._workers.submit(self._loop)

    def _loop(self) -> None:
        # Submit each run separately, so that a busy stream can't occupy a worker.
        try:
            self._run()
        finally:
            with self._lock:
                again, self._again = self._again, False
                self._running = again
            if again:
                self._workers.submit(self._loop)


def _guarded(run: Callable[[], object]) -> None:
    # Tasks handle expected errors. Any other one is a bug; without this log it would look like a stall.
    try:
        run()
    except BaseException:
        _log.exception("a worker task failed")
        raise


#: Wait before the first retry of a failed step; doubles up to the limit.
RETRY_DELAY_FIRST_S = 0.2


class Backoff:
    """Calls ``again`` after an exponential delay."""

    def __init__(self, workers: Workers, delay_s_max: float, again: Callable[[], object]) -> None:
        self._workers, self._delay_s_max, self._again = workers, delay_s_max, again
        self._lock = threading.Lock()
        self._delay_s = 0.0
        self.waiting = False

    def wait(self) -> float:
        """Starts a delay and returns it in seconds."""
        with self._lock:
            self.waiting = True
            self._delay_s = delay_s = min(max(self._delay_s * 2, RETRY_DELAY_FIRST_S), self._delay_s_max)
        self._workers.call_after(delay_s, self._over)
        return delay_s

    def reset(self) -> None:
        """Resets the delay after a success."""
        with self._lock:
            self._delay_s = 0.0

    def _over(self) -> None:
        with self._lock:
            self.waiting = False
        self._again()
