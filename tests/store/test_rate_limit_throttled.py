"""Rate-limited stores: what counts against which limit, and 503 SlowDown slowing the whole process down."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offloader.errors import InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError, ThrottledError
from offloader.settings import Duration, LimitSettings, Settings, StoreSettings
from offloader.store.base import Body, ByteRange, ObjectInfo, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.store.rate_limit import Limiter, Priority, working_at
from offloader.store.wrappers import AttemptStore, RetryingStore, limits_of
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.offloader import LedgerOffloader
from tests.support.misbehaving_servers import Answer, ScriptedServer
from tests.support.waiting import PATIENCE_S, eventually


def opened(clock: ManualClock, limiter: Limiter) -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}", clock=clock, limits=limiter)


def test_bodies_and_answers_count_against_the_bandwidth() -> None:
    clock = ManualClock()
    store = opened(clock, Limiter(LimitSettings(bytes_per_s=100.0), clock))
    for number in range(6):
        store.put(f"k{number}", bytes(50))
    assert clock.monotonic_s() == pytest.approx(2.0, abs=0.1)
    before_s = clock.monotonic_s()
    store.get("k0")  # nobody knows how long it is: the next one pays
    assert clock.monotonic_s() == before_s
    store.get("k0", ByteRange(0, 50))
    assert clock.monotonic_s() - before_s == pytest.approx(1.0, abs=0.1)


def test_short_range_is_charged_its_actual_length() -> None:
    clock = ManualClock()
    store = opened(clock, Limiter(LimitSettings(bytes_per_s=100.0), clock))
    store.put("k", b"abc")
    for _ in range(20):
        store.get("k", ByteRange(0, 100))
    assert clock.monotonic_s() < 20


@pytest.mark.parametrize("error", [NotFoundError, ThrottledError])
def test_range_of_which_nothing_came_is_not_charged(error: type[OffloaderError]) -> None:
    clock = ManualClock()
    faulty = FaultyStore(
        MemoryStore(uuid.uuid4().hex, "", clock=clock), [Fault(verb="get", call=1, calls=20, error=error)]
    )
    # A refusal for the pace counts against the requests, so these have no limit here.
    limiter = Limiter(LimitSettings(bytes_per_s=100.0, slowdown_requests_per_s_min=1000.0), clock)
    store = AttemptStore(faulty, limiter)
    for _ in range(20):
        with pytest.raises(error):
            store.get("k", ByteRange(0, 100))
    assert clock.monotonic_s() < 10


def test_parts_count_too_and_a_delete_of_nothing_is_no_request() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(bytes_per_s=100.0, requests_per_s=1.0), clock)
    store = opened(clock, limiter)
    upload = store.begin_upload("k")
    store.upload_part("k", upload, 1, bytes(100))
    store.upload_part("k", upload, 2, bytes(400))
    assert clock.monotonic_s() == pytest.approx(2.0, abs=0.1)
    store.upload_part("k", upload, 3, bytes(1))
    assert clock.monotonic_s() == pytest.approx(5.0, abs=0.1)
    store.abort_upload("k", upload)
    store.delete(["k"])
    assert clock.monotonic_s() == pytest.approx(7.0, abs=0.1)
    store.delete([])
    assert clock.monotonic_s() == pytest.approx(7.0, abs=0.1)


def test_each_attempt_is_rate_limited_and_waiting_uses_no_retry_time() -> None:
    clock = ManualClock()
    faulty = FaultyStore(
        MemoryStore(uuid.uuid4().hex, "", clock=clock),
        [Fault(verb="put", call=1, calls=2, error=StoreUnavailableError)],
    )
    limiter = Limiter(LimitSettings(bytes_per_s=1.0), clock)
    settings = StoreSettings(retry_total=Duration(5.0), retry_delay_first=Duration(0.1))
    store = RetryingStore(AttemptStore(faulty, limiter), settings, clock, random.Random(1))
    store.put("k", bytes(50))
    assert len(faulty.calls) == 3
    assert clock.monotonic_s() > 90


def test_throttled_store_slows_all_stores_of_its_limiter() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(recovery_requests_per_s=0.001), clock)
    refused = AttemptStore(
        FaultyStore(MemoryStore(uuid.uuid4().hex, "", clock=clock), [Fault(verb="put", call=1, error=ThrottledError)]),
        limiter,
    )
    other = opened(clock, limiter)
    with pytest.raises(ThrottledError):
        refused.put("k", b"x")
    before_s = clock.monotonic_s()
    for _ in range(5):
        other.list("")
    assert clock.monotonic_s() - before_s == pytest.approx(5.0, abs=0.2)
    status = limits_of(other)
    assert status is not None
    assert status.slowdowns == 1


def test_after_slowing_down_the_store_recovers_and_everything_arrives() -> None:
    clock = ManualClock()
    faults = [Fault(verb="put", call=call, error=ThrottledError) for call in (10, 11, 12, 30)]
    faulty = FaultyStore(MemoryStore(uuid.uuid4().hex, "", clock=clock), faults)
    limiter = Limiter(LimitSettings(), clock)
    store = RetryingStore(AttemptStore(faulty, limiter), StoreSettings(), clock, random.Random(1))
    for number in range(60):
        store.put(f"k{number:02}", b"x")
    assert len(store.list("").objects) == 60
    assert len(faulty.calls) == 60 + 4 + 1
    assert limiter.status().slowdowns >= 2
    clock.advance(60)
    assert limiter.status().pace_requests_per_s is None


def test_other_failures_leave_the_rate_unchanged() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(), clock)
    faulty = FaultyStore(
        MemoryStore(uuid.uuid4().hex, "", clock=clock), [Fault(verb="put", call=1, error=StoreUnavailableError)]
    )
    with pytest.raises(StoreUnavailableError):
        AttemptStore(faulty, limiter).put("k", b"x")
    assert limiter.status().slowdowns == 0


def test_backfill_requests_wait_behind_live_uploads() -> None:
    clock = ManualClock(waits_pass=False)
    limiter = Limiter(LimitSettings(requests_per_s=0.5), clock)
    store = opened(clock, limiter)
    store.put("first", b"x")
    order: list[str] = []

    def put(key: str, priority: Priority) -> None:
        with working_at(priority):
            store.put(key, b"x")
        order.append(key)

    with ThreadPoolExecutor(2) as pool:
        backfill = pool.submit(put, "old", Priority.BACKFILL)
        eventually(lambda: limiter.status().waiting["backfill"] == 1)
        live = pool.submit(put, "new", Priority.LIVE)
        eventually(lambda: limiter.status().waiting["live"] == 1)
        clock.advance(2.0)
        live.result(timeout=PATIENCE_S)
        assert order == ["new"]
        clock.advance(2.0)
        backfill.result(timeout=PATIENCE_S)
    assert order == ["new", "old"]


def test_closing_a_store_ends_only_its_own_waits() -> None:
    clock = ManualClock(waits_pass=False)
    limiter = Limiter(LimitSettings(requests_per_s=0.001), clock)
    store, other = opened(clock, limiter), opened(clock, limiter)
    store.put("first", b"x")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(store.put, "second", b"x")
        staying = pool.submit(other.put, "second", b"x")
        eventually(lambda: limiter.status().waiting["live"] == 2)
        store.close()
        with pytest.raises(StoreUnavailableError, match="was closed while the request waited"):
            waiting.result(timeout=PATIENCE_S)
        assert limiter.status().waiting["live"] == 1
        other.close()
        with pytest.raises(StoreUnavailableError):
            staying.result(timeout=PATIENCE_S)


def test_store_without_a_given_limiter_has_its_own() -> None:
    one, other = open_store(f"memory://{uuid.uuid4().hex}"), open_store(f"memory://{uuid.uuid4().hex}")
    status = limits_of(one)
    assert status is not None
    assert status.limits == {}
    assert limits_of(MemoryStore(uuid.uuid4().hex, "", clock=ManualClock())) is None
    assert one is not other


def test_concurrently_refused_threads_slow_down_once() -> None:
    clock = ManualClock()
    limiter = Limiter(LimitSettings(), clock)
    gate = threading.Barrier(4)

    class Refusing(MemoryStore):
        """Answers 503 to all four at once, as a server does that has had enough."""

        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            gate.wait(timeout=PATIENCE_S)
            raise ThrottledError("SlowDown")

    store = AttemptStore(Refusing(uuid.uuid4().hex, "", clock=clock), limiter)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(store.put, f"k{number}", b"x") for number in range(4)]
        assert all(isinstance(result.exception(timeout=PATIENCE_S), ThrottledError) for result in results)
    assert limiter.status().slowdowns == 1


def test_a_store_with_a_capacity_is_used_without_being_stormed() -> None:
    """A server that takes 20 requests a second: all arrive, few are refused, and most of the capacity is used."""
    clock = ManualClock()

    class Limited(MemoryStore):
        """Refuses what is above its capacity in a second of the clock."""

        second, taken, refused = -1, 0, 0

        def head(self, key: str) -> ObjectInfo:
            # a request takes a millisecond
            clock.advance(0.001)
            if int(clock.monotonic_s()) != self.second:
                self.second, self.taken = int(clock.monotonic_s()), 0
            self.taken += 1
            if self.taken > 20:
                self.refused += 1
                raise ThrottledError("SlowDown")
            return super().head(key)

    inner = Limited(uuid.uuid4().hex, "", clock=clock)
    inner.put("k", b"x")
    store = AttemptStore(inner, Limiter(LimitSettings(), clock))
    done = 0
    while done < 1000:
        with contextlib.suppress(ThrottledError):
            store.head("k")
            done += 1
    assert inner.refused < 200
    assert 1000 / clock.monotonic_s() > 10


@pytest.mark.slow
def test_a_503_of_a_server_slows_down_and_what_was_refused_is_sent_again() -> None:
    slow_down = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>'
    clock = ManualClock()
    answers = [Answer(503, slow_down), Answer(503, slow_down), Answer(200, b"<DeleteResult/>")]
    with ScriptedServer(answers) as server:
        keys: dict[str, Any] = {"region": "us-east-1", "access_key": "a", "secret_key": "s"}
        store = open_store("s3://bucket/root", endpoint_url=server.url, clock=clock, **keys)
        assert store.delete(["k"]) in ([], ())
        status = limits_of(store)
        store.close()
        assert len(server.requests) == 3
    assert status is not None
    assert status.slowdowns == 2


def test_limits_that_the_store_doesnt_obey_are_refused() -> None:
    """A limit that is set and has no effect would be worse than none."""
    settings = Settings.of({"limits": {"bytes_per_s": 1000.0}})
    name = uuid.uuid4().hex
    with pytest.raises(InvalidCallError, match="the settings `limits` have no effect on memory://"):
        LedgerOffloader(open_store(f"memory://{name}"), settings)
    store = open_store(f"memory://{name}", limits=settings.limits)
    LedgerOffloader(store, settings).close()
    LedgerOffloader(store, Settings()).close()
    status = limits_of(store)
    assert status is not None
    assert status.limits == {"bytes_per_s": 1000.0}
