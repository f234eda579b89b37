"""Rate limits: rates over any time, priorities, slowing down once and recovering, ended waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.errors import StoreUnavailableError, ThrottledError
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, LimitSettings
from offloader.store.rate_limit import (
    AdaptiveRate,
    Bucket,
    Limiter,
    Priority,
    RequestScheduler,
    Traffic,
    current_priority,
    throttled_s,
    working_at,
)
from offloader.testing.manual_clock import ManualClock
from tests.support.waiting import PATIENCE_S, eventually

NEVER = threading.Event()


def test_requests_are_admitted_at_once_without_limits() -> None:
    turns = RequestScheduler(LimitSettings())
    asked = [turns.ask(Priority.DELETION, 0) for _ in range(100)]
    assert turns.admit(0.0) == asked
    assert turns.waiting == []


def test_bucket_allows_its_burst_and_then_its_rate() -> None:
    bucket = Bucket("b", 10.0, 20.0)
    bucket.take(20, 100.0)
    assert bucket.ready_in_s(5, 100.0) == pytest.approx(0.5)
    assert bucket.ready_in_s(5, 100.5) == 0
    assert bucket.ready_in_s(20, 1000.0) == 0
    bucket.take(20, 1000.0)
    assert bucket.ready_in_s(1, 1000.0) == pytest.approx(0.1)


def test_request_above_the_burst_drives_a_full_bucket_negative() -> None:
    bucket = Bucket("b", 10.0, 20.0)
    bucket.take(100, 0.0)
    assert bucket.ready_in_s(1, 0.0) == pytest.approx(8.1)
    assert bucket.ready_in_s(100, 0.0) == pytest.approx(10.0)


@settings(max_examples=100, deadline=None)
@given(
    rate=st.floats(1, 1000),
    burst_s=st.floats(0.01, 5),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3000)), max_size=60),
)
def test_admitted_bytes_never_exceed_rate_burst_and_one_request(
    rate: float, burst_s: float, steps: list[tuple[float, int]]
) -> None:
    turns = RequestScheduler(LimitSettings(bytes_per_s=rate, burst=Duration(burst_s)))
    burst = max(1.0, rate * burst_s)
    now_s, gone = 0.0, []
    for passed_s, size_bytes in steps:
        now_s += passed_s
        turns.ask(Priority.LIVE, size_bytes)
        gone += [(now_s, turn.size_bytes) for turn in turns.admit(now_s)]
    largest = max((size for _, size in gone), default=0)
    for first in range(len(gone)):
        moved = 0
        for at_s, size in gone[first:]:
            moved += size
            assert moved <= rate * (at_s - gone[first][0]) + burst + largest + 1e-3


def test_live_requests_precede_reads_backfill_and_deletion_then_by_arrival() -> None:
    turns = RequestScheduler(LimitSettings(requests_per_s=1.0, burst=Duration(1.0)))
    turns.ask(Priority.LIVE, 0)
    turns.admit(0.0)
    order = [Priority.DELETION, Priority.BACKFILL, Priority.READ, Priority.LIVE, Priority.READ, Priority.LIVE]
    asked = [turns.ask(priority, 0) for priority in order]
    went = [turn for second in range(1, 7) for turn in turns.admit(float(second))]
    assert [asked.index(turn) for turn in went] == [3, 5, 2, 4, 1, 0]


def test_lower_priority_takes_no_tokens_a_higher_one_waits_for() -> None:
    turns = RequestScheduler(LimitSettings(bytes_per_s=100.0, burst=Duration(1.0)))
    turns.ask(Priority.LIVE, 100)
    turns.admit(0.0)
    large = turns.ask(Priority.LIVE, 90)
    small = turns.ask(Priority.BACKFILL, 5)
    assert turns.admit(0.5) == []
    assert turns.admit(0.9) == [large]
    assert turns.admit(0.95) == [small]


def test_request_behind_a_large_one_polls_again_when_that_is_admitted() -> None:
    turns = RequestScheduler(LimitSettings(bytes_per_s=100.0, burst=Duration(1.0)))
    turns.ask(Priority.LIVE, 95)
    turns.admit(0.0)
    large = turns.ask(Priority.LIVE, 95)
    small = turns.ask(Priority.BACKFILL, 5)
    assert turns.ready_in_s(large, 0.0) == pytest.approx(0.9)
    assert turns.ready_in_s(small, 0.0) == pytest.approx(0.9)
    turns.waiting.remove(large)
    assert turns.ready_in_s(small, 0.0) == pytest.approx(0.001)


def test_withdrawn_request_unblocks_those_behind_it() -> None:
    clock = ManualClock(waits_pass=False)
    limiter = Limiter(LimitSettings(bytes_per_s=1.0, burst=Duration(100.0)), clock)
    limiter.acquire(Traffic.UPLOAD, 90, NEVER, what="first")
    closing = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(limiter.acquire, Traffic.UPLOAD, 100, closing, what="large")
        eventually(lambda: limiter.status().waiting["live"] == 1)
        small = pool.submit(limiter.acquire, Traffic.READ, 5, NEVER, what="small")
        eventually(lambda: limiter.status().waiting["read"] == 1)
        closing.set()
        limiter.wake()
        assert small.result(timeout=PATIENCE_S).admitted == 2
        with pytest.raises(StoreUnavailableError):
            large.result(timeout=PATIENCE_S)


def test_request_waiting_for_bytes_blocks_those_behind_it() -> None:
    turns = RequestScheduler(LimitSettings(bytes_per_s=100.0, requests_per_s=2.0))
    turns.ask(Priority.LIVE, 100)
    turns.admit(0.0)
    upload = turns.ask(Priority.LIVE, 50)
    listing = turns.ask(Priority.READ, 0)
    assert turns.admit(0.1) == []
    assert turns.ready_in_s(listing, 0.1) == pytest.approx(0.4)
    assert turns.admit(0.5) == [upload, listing]


@pytest.mark.parametrize("traffic", Traffic)
@pytest.mark.parametrize(("rate", "size_bytes"), [("bytes_per_s", 1), ("requests_per_s", 0)])
def test_a_rate_counts_every_kind_of_request(rate: str, size_bytes: int, traffic: Traffic) -> None:
    given: dict[str, Any] = {rate: 1.0}
    clock = ManualClock()
    limiter = Limiter(LimitSettings(**given), clock)
    limiter.acquire(Traffic.UPLOAD, size_bytes, NEVER, what="put k")
    assert clock.monotonic_s() == 0
    limiter.acquire(traffic, size_bytes, NEVER, what="next")
    assert clock.monotonic_s() == pytest.approx(1.0)


def test_bytes_that_werent_moved_are_given_back_and_others_charged() -> None:
    turns = RequestScheduler(LimitSettings(bytes_per_s=100.0))
    turn = turns.ask(Priority.READ, 100)
    turns.admit(0.0)
    turns.settle(turn, 20)
    following = turns.ask(Priority.READ, 80)
    assert turns.admit(0.0) == [following]
    turns.settle(following, 180)
    turns.ask(Priority.READ, 100)
    assert turns.admit(1.9) == []
    assert len(turns.admit(2.0)) == 1


# -- slowing down


def test_a_refusal_halves_the_rate_of_the_last_second() -> None:
    pace = AdaptiveRate(LimitSettings())
    for _ in range(40):
        pace.admitted(0.5)
    pace.slow_down(0.9)
    assert pace.rate_per_s == pytest.approx(20.0)
    pace.slow_down(0.9)
    assert pace.rate_per_s == pytest.approx(10.0)


def test_each_second_without_a_refusal_adds_the_same_until_the_pace_is_free() -> None:
    pace = AdaptiveRate(LimitSettings(recovery_requests_per_s=5.0))
    for _ in range(40):
        pace.admitted(0.5)
    pace.slow_down(0.9)
    for second in range(1, 12):
        bucket = pace.bucket(0.9 + second)
        assert bucket is not None
        assert bucket.rate_per_s == pytest.approx(20.0 + 5.0 * second)
    assert pace.bucket(0.9 + 12) is None
    assert pace.rate_per_s is None


def test_the_rate_never_falls_below_its_minimum() -> None:
    pace = AdaptiveRate(LimitSettings(slowdown_requests_per_s_min=2.0))
    for _ in range(50):
        pace.slow_down(0.0)
    assert pace.rate_per_s == 2.0
    assert pace.slowdowns == 50


def test_refusals_of_concurrent_requests_count_once() -> None:
    turns = RequestScheduler(LimitSettings())
    together = [turns.ask(Priority.LIVE, 0) for _ in range(32)]
    turns.admit(0.0)
    assert [turns.slow_down(turn, 0.0) for turn in together] == [True] + [False] * 31
    assert turns.pace.rate_per_s == pytest.approx(16.0)
    later = turns.ask(Priority.LIVE, 0)
    assert turns.admit(10.0) == [later]
    assert turns.slow_down(later, 10.0)
    assert turns.pace.slowdowns == 2


def test_slow_down_applies_to_reads_and_deletes_too() -> None:
    turns = RequestScheduler(LimitSettings(recovery_requests_per_s=0.001))
    for _ in range(4):
        turns.ask(Priority.LIVE, 0)
    going = turns.admit(0.0)
    turns.slow_down(going[0], 0.0)
    for priority in (Priority.LIVE, Priority.READ, Priority.DELETION):
        turns.ask(priority, 0)
    assert turns.admit(0.1) == []
    assert len([turn for tenth in range(1, 17) for turn in turns.admit(tenth / 10)]) == 3


# -- threads


def test_priority_is_set_by_the_work_or_follows_from_the_traffic() -> None:
    assert [current_priority(traffic) for traffic in Traffic] == [Priority.LIVE, Priority.READ, Priority.DELETION]
    with working_at(Priority.BACKFILL):
        assert {current_priority(traffic) for traffic in Traffic} == {Priority.BACKFILL}
        with working_at(Priority.LIVE):
            assert current_priority(Traffic.DELETE) is Priority.LIVE
    assert current_priority(Traffic.READ) is Priority.READ


def test_throttled_request_waits_by_the_clock_and_the_wait_is_counted() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(bytes_per_s=100.0), clock)
    before_s = throttled_s()
    for _ in range(5):
        limiter.acquire(Traffic.UPLOAD, 100, NEVER, what="put k")
    assert clock.monotonic_s() == pytest.approx(4.0, abs=0.1)
    assert limiter.status().waited_s == pytest.approx(4.0, abs=0.1)
    assert throttled_s() - before_s == pytest.approx(4.0, abs=0.1)


def test_request_waiting_too_long_is_refused_naming_the_limit() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(bytes_per_s=1.0, throttle_wait_max=Duration(10.0)), clock)
    limiter.acquire(Traffic.UPLOAD, 1000, NEVER, what="put a")
    with pytest.raises(
        ThrottledError, match=r"put b: not sent within throttle_wait_max = 10 s because of limits.bytes_per_s"
    ):
        limiter.acquire(Traffic.UPLOAD, 1, NEVER, what="put b")
    assert set(limiter.status().waiting.values()) == {0}


def test_throttle_queue_is_bounded() -> None:
    clock = ManualClock(waits_pass=False)
    limiter = Limiter(LimitSettings(requests_per_s=0.001, throttle_queue_max=1), clock)
    limiter.acquire(Traffic.READ, 0, NEVER, what="get a")
    closing = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limiter.acquire, Traffic.READ, 0, closing, what="get b")
        eventually(lambda: limiter.status().waiting["read"] == 1)
        with pytest.raises(ThrottledError, match="get c: not queued: 1 requests are already waiting for a rate limit"):
            limiter.acquire(Traffic.READ, 0, NEVER, what="get c")
        closing.set()
        limiter.wake()
        with pytest.raises(StoreUnavailableError, match="get b: the store was closed"):
            waiting.result(timeout=PATIENCE_S)
    assert limiter.status().waiting["read"] == 0


@pytest.mark.slow
def test_threads_share_a_rate_and_all_are_admitted() -> None:
    limiter = Limiter(LimitSettings(requests_per_s=2000.0, burst=Duration(0.001)), SystemClock())
    with ThreadPoolExecutor(8) as pool:
        turns = list(pool.map(lambda _: limiter.acquire(Traffic.READ, 0, NEVER, what="get"), range(200)))
    assert sorted(turn.admitted or 0 for turn in turns) == list(range(1, 201))


def test_configured_limits_are_in_the_status() -> None:
    limiter = Limiter(LimitSettings(bytes_per_s=5.0, requests_per_s=2.0), ManualClock())
    status = limiter.status()
    assert status.limits == {"bytes_per_s": 5.0, "requests_per_s": 2.0}
    assert status.pace_requests_per_s is None
    turn = limiter.acquire(Traffic.READ, 0, NEVER, what="get")
    limiter.slow_down(turn)
    assert limiter.status().pace_requests_per_s == 1.0
    assert limiter.status().slowdowns == 1
