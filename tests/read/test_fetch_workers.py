"""Results are in order and bounded in number, and no call outlives its iterator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from offloader.read.fetch import ReaderThreads, Sized
from tests.support.waiting import PATIENCE_S


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("offloader-read")]


class Now(Executor):
    """Runs each task when it is submitted."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **more))
        return future


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    yield
    for thread in reading_threads():
        thread.join(PATIENCE_S)
    assert reading_threads() == []


def test_results_are_in_task_order_whatever_order_they_finish_in() -> None:
    last_first = [threading.Event() for _ in range(5)]

    def task(number: int) -> int:
        if 0 < number < 4:  # more than one is ahead only of the second
            assert last_first[number + 1].wait(PATIENCE_S)
        last_first[number].set()
        return number

    workers = ReaderThreads(4)
    assert list(workers.in_order(partial(task, n) for n in range(5))) == [0, 1, 2, 3, 4]


def test_limit_of_running_tasks_covers_all_iterators_of_one_object() -> None:
    lock = threading.Lock()
    running = most = 0
    full = threading.Event()

    def task() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
        assert full.wait(PATIENCE_S)  # nobody ends before three run: with fewer this would time out
        with lock:
            running -= 1

    workers = ReaderThreads(3)
    both = [workers.in_order([task] * 6), workers.in_order([task] * 6)]
    threads = [threading.Thread(target=list, args=(each,)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == 3


def test_started_tasks_hold_bounded_bytes_until_their_results_are_taken() -> None:
    started = list[int]()

    def task(number: int) -> int:
        started.append(number)
        return number

    def taken(*sizes: int) -> list[int]:
        """Number of tasks that were started by the time each result is taken."""
        started.clear()
        tasks = (Sized(partial(task, number), size) for number, size in enumerate(sizes))
        results = ReaderThreads(8, Now(), held_bytes_max=100).in_order(tasks)
        found = [len(started) - number for number in results]
        assert started == list(range(len(sizes)))
        return found

    assert taken(*[50] * 6) == [2, 2, 2, 2, 2, 1]
    assert taken(*[51] * 4) == [1] * 4
    assert taken(300, 300, 10, 10) == [1, 1, 2, 1], "one larger than the bound at a time"


def test_error_is_raised_at_its_place_and_ends_the_iterator() -> None:
    def fails() -> int:
        raise ValueError("here")

    results = ReaderThreads(2).in_order([lambda: 1, lambda: 2, fails, lambda: 4])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="here"):
        next(results)
    assert list(results) == []


def test_error_of_the_task_iterator_is_raised_after_earlier_results() -> None:
    def tasks() -> Iterator[Callable[[], int]]:
        yield lambda: 1
        yield lambda: 2
        raise ValueError("no third")

    results = ReaderThreads(8).in_order(tasks())
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="no third"):
        next(results)


def test_closing_waits_for_running_tasks_and_drops_pending_ones() -> None:
    begun, go_on = threading.Event(), threading.Event()
    finished: list[str] = []
    closed = threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        finished.append("slow")

    def tasks() -> Iterator[Callable[[], None]]:
        try:
            yield lambda: None
            yield slow
            yield lambda: finished.append("never begun")
            yield lambda: None
        finally:
            closed.set()

    results = ReaderThreads(1).in_order(tasks())
    next(results)
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=results.close)
    closing.start()
    go_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert finished == ["slow"]
    assert closed.is_set()


def test_threads_exist_only_while_an_iterator_is_in_progress() -> None:
    workers = ReaderThreads(4)
    results = workers.in_order([lambda: 1, lambda: 2, lambda: 3])
    assert reading_threads() == []
    next(results)
    assert reading_threads() != []
    results.close()
    for thread in reading_threads():
        thread.join(PATIENCE_S)
    assert reading_threads() == []
    assert list(workers.in_order([lambda: 5])) == [5]  # and it can be used again


def test_given_pool_is_used_and_left_running() -> None:
    with ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
        names = list(ReaderThreads(2, pool).in_order([lambda: threading.current_thread().name] * 5))
        assert all(name.startswith("mine") for name in names)
        assert pool.submit(lambda: "still here").result(PATIENCE_S) == "still here"
