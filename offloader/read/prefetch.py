"""Reader threads, and parallel reads with results in request order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

#: Growth of the window whenever the consumer waits. A request takes about as long alone as beside others, so each step
#: takes effect a whole request later: few large steps.
GROWTH = 4

_T = TypeVar("_T")


class PrefetchWindow:
    """Number of tasks to run ahead of the consumer: starts small, grows while the consumer waits, shrinks when it
    doesn't. Pure.

    A consumer that reads once costs one extra task, not ``tasks_max``; once it waits again, four run ahead.
    """

    def __init__(self, tasks_max: int) -> None:
        self._tasks_max = tasks_max
        self._unwaited = 0
        self.tasks = 1

    def asked(self, *, waits: bool) -> None:
        """Record a request for another result that ``waits`` or finds it ready."""
        if waits:
            self._unwaited = 0
            self.tasks = min(self.tasks * GROWTH, self._tasks_max)
            return
        self._unwaited += 1
        # Tasks started together end together: shrink only after two rounds without a wait.
        if self._unwaited > 2 * (self.tasks + 1):
            self._unwaited = 0
            self.tasks = max(self.tasks - 1, 1)


class ReaderThreads:
    """Bounded thread pool of one reader.

    Own threads start with the first parallel read in progress and end with the last one: an idle reader holds none, and
    needs no closing.

    Args:
        in_flight_max: tasks that run at once, over all users of this object.
        executor: a pool to use instead of own threads; it stays the caller's, and its size is the bound.
    """

    def __init__(self, in_flight_max: int, executor: Executor | None = None) -> None:
        self.in_flight_max = in_flight_max
        self._given = executor
        self._lock = threading.Lock()
        self._own: ThreadPoolExecutor | None = None
        self._users = 0

    def in_order(self, tasks: Iterable[Callable[[], _T]]) -> Generator[_T, None, None]:
        """Run ``tasks`` in parallel and yield their results in order.

        ``tasks`` is read lazily in the consumer's thread, ahead of the yielded result by ``PrefetchWindow``:
        ``in_flight_max`` + 1 results at most are held. An error raised by ``tasks`` itself follows all results of the
        tasks before it. Closing the generator cancels unstarted tasks and waits for running ones.
        """
        pending: deque[Future[_T]] = deque()
        source = iter(tasks)
        ahead = PrefetchWindow(self.in_flight_max)
        failure: Exception | None = None
        exhausted = False
        with self._threads() as executor:
            try:
                while True:
                    if pending:
                        ahead.asked(waits=not pending[0].done())
                    while not exhausted and len(pending) <= ahead.tasks:
                        try:
                            pending.append(executor.submit(next(source)))
                        except StopIteration:
                            exhausted = True
                        except Exception as error:
                            exhausted, failure = True, error
                    if not pending:
                        break
                    yield pending.popleft().result()
                if failure is not None:
                    raise failure
            finally:
                for future in pending:
                    future.cancel()
                wait(pending)
                if isinstance(source, Generator):
                    source.close()

    @contextmanager
    def _threads(self) -> Iterator[Executor]:
        if self._given is not None:
            yield self._given
            return
        with self._lock:
            if self._own is None:
                self._own = ThreadPoolExecutor(self.in_flight_max, thread_name_prefix="offloader-read")
            self._users += 1
            executor = self._own
        try:
            yield executor
        finally:
            with self._lock:
                self._users -= 1
                last = self._users == 0
                if last:
                    self._own = None
            if last:
                # No task runs any more: idle threads end without a wait.
                executor.shutdown(wait=False)
