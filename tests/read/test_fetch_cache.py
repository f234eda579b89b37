"""The cache is bounded in bytes, evicts the least recently used value, and loads a key once at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.read.fetch import Cache
from tests.support.waiting import PATIENCE_S


class Key:
    """A key that knows which threads looked it up; the cache does so under its lock."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __hash__(self) -> int:
        self.threads.add(threading.get_ident())
        return 1


def test_a_value_is_loaded_once_and_then_held() -> None:
    cache, loads = Cache(100), list[int]()

    def load() -> str:
        loads.append(1)
        return "value"

    for _ in range(3):
        assert cache.get("a", load, len) == "value"
    assert loads == [1]


def test_least_recently_used_value_is_evicted_first() -> None:
    cache = Cache(30)
    for key in "abc":
        cache.get(key, lambda: "x" * 10, len)
    cache.get("a", lambda: "never loaded", len)
    cache.get("d", lambda: "x" * 10, len)
    assert [key for key in "abcd" if cache.find(key)] == ["a", "c", "d"]


def test_a_hit_is_use_and_a_miss_leaves_no_trace() -> None:
    cache = Cache(30)
    for key in "abc":
        cache.get(key, lambda: "x" * 10, len)
    assert cache.find("nobody", is_use=True) is None
    assert cache.find("a", is_use=True) == "x" * 10
    cache.get("d", lambda: "x" * 10, len)
    assert [key for key in "abcd" if cache.find(key)] == ["a", "c", "d"]


def test_a_value_larger_than_the_cache_is_answered_but_not_kept() -> None:
    cache = Cache(5)
    cache.get("small", lambda: "xxx", len)
    assert cache.get("large", lambda: "x" * 6, len) == "x" * 6
    assert cache.find("large") is None
    assert cache.find("small") == "xxx"


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = Cache(0)
    assert cache.get("a", lambda: "x", len) == "x"
    assert cache.find("a") is None


def test_concurrent_misses_of_one_key_are_one_load() -> None:
    cache, key, loads = Cache(100), Key(), []
    loading, go_on = threading.Event(), threading.Event()
    answers: list[str] = []

    def load() -> str:
        loads.append(1)
        loading.set()
        assert go_on.wait(PATIENCE_S)
        return "value"

    threads = [threading.Thread(target=lambda: answers.append(cache.get(key, load, len))) for _ in range(5)]
    threads[0].start()
    assert loading.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    while len(key.threads) < 5:  # the others wait for the first one's load
        threads[1].join(0.001)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == ["value"] * 5
    assert loads == [1]


def test_a_failed_load_is_raised_and_tried_again_by_the_next_call() -> None:
    cache = Cache(100)

    def fails() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("a", fails, len)
    assert cache.get("a", lambda: "yes", len) == "yes"


def test_waiters_for_a_failed_load_get_its_error() -> None:
    cache, key = Cache(100), Key()
    loading, go_on = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    def fails() -> str:
        loading.set()
        assert go_on.wait(PATIENCE_S)
        raise ValueError("no")

    def get() -> None:
        try:
            cache.get(key, fails, len)
        except ValueError as error:
            caught.append(error)

    threads = [threading.Thread(target=get) for _ in range(2)]
    threads[0].start()
    assert loading.wait(PATIENCE_S)
    threads[1].start()
    while len(key.threads) < 2:
        threads[1].join(0.001)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [str(error) for error in caught] == ["no", "no"]


def test_overlapping_calls_never_deadlock() -> None:
    cache = Cache(0)

    def many() -> None:
        for turn in range(300):
            keys = [1, 2, 3] if turn % 2 else [3, 2, 1]
            cache.get_many(keys, lambda wanted: dict.fromkeys(wanted, "v"), len)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 50), st.lists(st.tuples(st.lists(st.integers(0, 8), unique=True)), max_size=30))
def test_cache_returns_right_values_and_stays_below_its_limit(limit: int, calls: list[tuple[list[int]]]) -> None:
    cache = Cache(limit)

    def load(keys: list[int]) -> Mapping[int, str]:
        return {key: "x" * key for key in keys}

    for (keys,) in calls:
        assert cache.get_many(keys, load, len)[0] == {key: "x" * key for key in keys}
        held = sum(key for key in range(9) if cache.find(key) is not None)
        assert held <= limit
