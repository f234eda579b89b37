"""Reader threads, and results of parallel reads in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["GROWTH", "PrefetchWindow", "ReaderThreads"]

#: Times as many tasks ahead whenever the consumer has to wait. A request takes about as long whether it runs alone or
#: beside others, so each step up comes a whole request later than the one before: few large ones.
GROWTH = 4

_T = TypeVar("_T")


class PrefetchWindow:
    """How many tasks to run ahead of the result that the consumer has: few at first, more while it waits, fewer again
    when it doesn't.

    A consumer that comes once costs one task too many, not ``tasks_max``; of one that comes again and has to wait,
    four run ahead from then on. Pure.

    Args:
        tasks_max: the most.

    Attributes:
        tasks: how many now.
    """

    def __init__(self, tasks_max: int) -> None:
        self._tasks_max = tasks_max
        self._unwaited = 0
        self.tasks = 1

    def asked(self, *, waits: bool) -> None:
        """The consumer came for another result and ``waits`` for it, or finds it ready."""
        if waits:
            self._unwaited = 0
            self.tasks = min(self.tasks * GROWTH, self._tasks_max)
            return
        self._unwaited += 1
        # Tasks that began together end together: only after two rounds without a wait there were too many of them.
        if self._unwaited > 2 * (self.tasks + 1):
            self._unwaited = 0
            self.tasks = max(self.tasks - 1, 1)


class ReaderThreads:
    """A bounded pool for one reader.

    Its own threads are started with the first parallel read in progress and end with the last one: a reader that
    nobody reads from holds none, and needs no closing.

    Args:
        in_flight_max: tasks that run at once, over everything that uses this object.
        executor: a pool to use instead of own threads; it stays the caller's, and its size is the bound.
    """

    def __init__(self, in_flight_max: int, executor: Executor | None = None) -> None:
        self.in_flight_max = in_flight_max
        self._given = executor
        self._lock = threading.Lock()
        self._own: ThreadPoolExecutor | None = None
        self._users = 0

    def in_order(self, tasks: Iterable[Callable[[], _T]]) -> Generator[_T, None, None]:
        """Runs ``tasks`` in parallel and yields their results in the tasks' order.

        ``tasks`` is read lazily and in the consumer's thread, ahead of the result that is yielded as far as
        ``PrefetchWindow`` says: ``in_flight_max`` + 1 results at most are held. What ``tasks`` itself raises comes
        after all results of the tasks before it. Closing the generator cancels what hasn't begun and waits for what
        has.
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
                _close(source)

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
                # Nothing runs any more: idle threads only have to be told to go, which needs no waiting.
                executor.shutdown(wait=False)


def _close(source: Iterator[object]) -> None:
    if isinstance(source, Generator):
        source.close()
