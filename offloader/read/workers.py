"""Threads that exist while somebody reads, and results of parallel work in the order it was asked for.

Owns how many storage calls of one reader run at once. Must never leave a call running after the
iterator that asked for it is closed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["Workers"]

_T = TypeVar("_T")


class Workers:
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

        ``tasks`` is read lazily and in the consumer's thread, ``in_flight_max`` + 1 tasks ahead of the result that is
        yielded: that is also the most results that are held. What ``tasks`` itself raises comes after all results
        of the tasks before it. Closing the generator cancels what hasn't begun and waits for what has.
        """
        pending: deque[Future[_T]] = deque()
        source = iter(tasks)
        with self._threads() as executor:
            try:
                failure = None
                while failure is None:
                    try:
                        pending.append(executor.submit(next(source)))
                    except StopIteration:
                        break
                    except Exception as error:
                        failure = error
                    if len(pending) > self.in_flight_max:
                        yield pending.popleft().result()
                while pending:
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
