"""Prefetching: little for a single read, the limit for a waiting reader, one size of request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from offloader.read.fetch import GROWTH, PrefetchWindow, ReaderThreads
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import Request, StoreWrapper
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "public/default/persistent/orders"
ENTRIES = 10_000
BLOCK_BYTES = 4 * 1024
REQUEST_BYTES = 4 * BLOCK_BYTES
names = itertools.count()


class Spy(StoreWrapper):
    """Notes requests for data and how many were open at once; keeps them back until ``together`` of them are."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self._open = 0
        self.sizes: list[int] = []
        self.most = 0
        self.together = 0

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if request.verb != "get" or any(part in request.key for part in ("-index", "/manifest/", "_catalog/")):
            return call()
        with self._changed:
            self.sizes.append(request.size_bytes)
            self._open += 1
            self.most = max(self.most, self._open)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.most >= self.together, PATIENCE_S)
        try:
            return call()
        finally:
            with self._changed:
                self._open -= 1


class Inline(Executor):
    """Whatever is asked for is there at once: for consumers that are slower than the store."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*given, **more))
        return future


@pytest.fixture
def spy() -> Spy:
    writer = StreamWriter(open_store(f"memory://ahead-{next(names)}"), block_bytes=BLOCK_BYTES)
    writer.add([batch_of(1, 0, ENTRIES)])
    return Spy(writer.store)


def reader_of(spy: Spy, in_flight: int, executor: Executor | None = None) -> Reader:
    settings = ReadSettings(request_size=Size(REQUEST_BYTES), requests_in_flight_max=in_flight)
    return open_stream_reader(spy, STREAM, settings=settings, executor=executor)


def test_reader_stopping_after_one_batch_has_sent_two_requests(spy: Spy) -> None:
    with closing(reader_of(spy, 16).scan()) as batches:
        assert next(batches).first.entry_id == 0
        eventually(lambda: len(spy.sizes) == 2)  # one that hasn't begun when the reader stops is never sent
    assert len(spy.sizes) == 2


def test_waiting_reader_opens_as_many_requests_as_allowed(spy: Spy) -> None:
    reader = reader_of(spy, GROWTH)
    with closing(reader.scan()) as batches:
        taken = len(next(batches))
        assert spy.most <= 2
        spy.together = GROWTH  # nobody is answered any more before so many are open
        for batch in batches:
            taken += len(batch)
    assert taken == ENTRIES
    assert spy.most == GROWTH


def test_the_size_of_a_request_does_not_change(spy: Spy) -> None:
    assert sum(map(len, reader_of(spy, 8).scan())) == ENTRIES
    assert len(spy.sizes) > 8
    assert all(REQUEST_BYTES - BLOCK_BYTES < size <= REQUEST_BYTES for size in spy.sizes[:-1])


def test_reader_slower_than_the_store_prefetches_one_request(spy: Spy) -> None:
    with closing(reader_of(spy, 16, Inline()).scan()) as batches:
        for taken, batch in enumerate(batches, 1):
            fetched_blocks = len(spy.sizes) * (REQUEST_BYTES // BLOCK_BYTES)
            assert fetched_blocks - taken < 2 * (REQUEST_BYTES // BLOCK_BYTES), batch.first


def test_prefetch_window_grows_by_steps_to_its_limit() -> None:
    ahead = PrefetchWindow(10)
    found = []
    for _ in range(4):
        found.append(ahead.tasks)
        ahead.asked(waits=True)
    assert found == [1, GROWTH, 10, 10]


def test_ready_results_within_a_round_do_not_shrink_the_window() -> None:
    """Requests that began together end together, though the consumer waits for each round of them."""
    ahead = PrefetchWindow(4)
    for _ in range(20):
        ahead.asked(waits=True)
        for _ in range(4):
            ahead.asked(waits=False)
    assert ahead.tasks == 4


def test_prefetch_window_shrinks_without_waits_and_grows_again() -> None:
    ahead = PrefetchWindow(4)
    ahead.asked(waits=True)
    steps = 0
    while ahead.tasks > 1:
        ahead.asked(waits=False)
        steps += 1
        assert steps <= 3 * 2 * 6
    for _ in range(100):
        ahead.asked(waits=False)
    assert ahead.tasks == 1
    ahead.asked(waits=True)
    assert ahead.tasks == 4


def test_limit_of_one_prefetches_one_task() -> None:
    taken = 0

    def tasks() -> Iterator[Callable[[], int]]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield partial(int, number)

    results = ReaderThreads(1).in_order(tasks())
    for number in range(10):
        assert next(results) == number
        assert taken == number + 2
    results.close()
