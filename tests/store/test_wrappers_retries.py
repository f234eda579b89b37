"""Retries: their number, waits, causes, and requests that are never retried."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.settings import Duration, LimitSettings, StoreSettings
from offloader.store.base import CREATE, IfMatch, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.store.rate_limit import Limiter
from offloader.store.wrappers import AttemptStore, RetryingStore, VerbCount, requests_of, retry_delay_s
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock

SETTINGS = StoreSettings(
    retries_max=3, retry_delay_first=Duration(1.0), retry_delay_max=Duration(4.0), retry_total=Duration(60.0)
)


def stores(
    *faults: Fault, settings: StoreSettings = SETTINGS, seed: int = 1
) -> tuple[RetryingStore, FaultyStore, ManualClock]:
    clock = ManualClock()
    faulty = FaultyStore(open_store(f"memory://{uuid.uuid4().hex}", clock=clock), faults)
    return RetryingStore(faulty, settings, clock, random.Random(seed)), faulty, clock


CALLS = {
    "head": lambda store: store.head("k"),
    "get": lambda store: store.get("k"),
    "put": lambda store: store.put("k", b"body"),
    "list": lambda store: store.list(""),
    "delete": lambda store: store.delete(["k"]),
    "begin_upload": lambda store: store.begin_upload("k"),
    "list_uploads": lambda store: store.list_uploads("k"),
    "abort_upload": lambda store: store.abort_upload("k", "none"),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("error", [StoreUnavailableError, ThrottledError, OutcomeUnknownError])
def test_a_verb_that_can_be_repeated_is_repeated(verb: str, error: type[OffloaderError]) -> None:
    store, faulty, clock = stores(Fault(verb=verb, call=1, calls=2, error=error))
    faulty.inner.put("k", b"there")
    CALLS[verb](store)
    assert [called for called, _ in faulty.calls] == [verb] * 3
    assert len(clock.waits_s) == 2


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("error", [AccessDeniedError, NotFoundError, PreconditionFailedError])
def test_permanent_error_is_not_retried(verb: str, error: type[OffloaderError]) -> None:
    store, faulty, clock = stores(Fault(verb=verb, call=1, error=error))
    with pytest.raises(error):
        CALLS[verb](store)
    assert len(faulty.calls) == 1
    assert clock.waits_s == []


@pytest.mark.parametrize("retries_max", [0, 1, 5])
def test_number_of_attempts_is_bounded_and_reported(retries_max: int) -> None:
    settings = StoreSettings(retries_max=retries_max, retry_delay_first=Duration(0.1))
    store, faulty, _ = stores(Fault(verb="get", call=1, calls=1000), settings=settings)
    with pytest.raises(StoreUnavailableError) as caught:
        store.get("k")
    assert len(faulty.calls) == 1 + retries_max
    assert caught.value.__notes__ == [f"gave up after attempt {1 + retries_max}"]


def test_no_attempt_starts_after_the_total_time() -> None:
    settings = StoreSettings(
        retries_max=100, retry_delay_first=Duration(1.0), retry_delay_max=Duration(10.0), retry_total=Duration(30.0)
    )
    store, faulty, clock = stores(Fault(verb="get", call=1, calls=1000), settings=settings)
    with pytest.raises(StoreUnavailableError):
        store.get("k")
    assert clock.monotonic_s() <= 30.0
    assert 3 < len(faulty.calls) < 100


@given(attempt=st.integers(1, 200), fraction=st.floats(0, 1))
def test_a_wait_is_a_fraction_of_a_doubling_ceiling(attempt: int, fraction: float) -> None:
    delay_s = retry_delay_s(SETTINGS, attempt, fraction)
    assert 0 <= delay_s <= min(4.0, 2.0 ** (attempt - 1)) + 1e-9
    assert retry_delay_s(SETTINGS, attempt, 1.0) == min(4.0, 2.0 ** min(attempt - 1, 60))


def test_waits_differ_between_clients() -> None:
    waits = set()
    for seed in range(5):
        store, _, clock = stores(Fault(verb="get", call=1, calls=9), seed=seed)
        with pytest.raises(StoreUnavailableError):
            store.get("k")
        waits.add(tuple(clock.waits_s))
    assert len(waits) == 5


def test_closed_store_does_not_retry() -> None:
    store, faulty, _ = stores(Fault(verb="get", call=1, calls=9))
    store.close()
    with pytest.raises(StoreUnavailableError):
        store.get("k")
    assert len(faulty.calls) == 1


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_create_recognises_its_own_earlier_put(lost: int) -> None:
    store, faulty, _ = stores(Fault(verb="put", call=1, calls=lost, after=True, error=OutcomeUnknownError))
    info = store.put("k", b"mine", mode=CREATE)
    assert info.etag == faulty.inner.head("k").etag
    assert [verb for verb, _ in faulty.calls].count("get") == 1


def test_create_refused_at_once_sends_no_read() -> None:
    store, faulty, _ = stores()
    faulty.inner.put("k", b"mine")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"mine", mode=CREATE)
    assert [verb for verb, _ in faulty.calls] == ["put"]


def test_a_create_refused_after_an_attempt_that_changed_nothing_is_refused() -> None:
    """Only an unknown outcome makes equal bytes a proof of our own put."""
    store, faulty, _ = stores(Fault(verb="put", call=1, error=ThrottledError))
    faulty.inner.put("k", b"mine")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"mine", mode=CREATE)


def test_a_create_that_another_won_is_refused_after_an_unknown_outcome() -> None:
    store, faulty, _ = stores(Fault(verb="put", call=1, error=OutcomeUnknownError))
    faulty.inner.put("k", b"another's")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"mine", mode=CREATE)


def test_an_if_match_recognises_its_own_earlier_put() -> None:
    store, faulty, _ = stores(Fault(verb="put", call=1, after=True, error=OutcomeUnknownError))
    etag = faulty.inner.put("k", b"old").etag
    assert store.put("k", b"mine", mode=IfMatch(etag)).size_bytes == 4
    assert faulty.inner.get("k")[0] == b"mine"


def test_an_if_match_that_may_have_been_replaced_stays_unknown() -> None:
    store, faulty, _ = stores(Fault(verb="put", call=1, error=OutcomeUnknownError))
    etag = faulty.inner.put("k", b"old").etag
    faulty.inner.put("k", b"newer")
    with pytest.raises(OutcomeUnknownError):
        store.put("k", b"mine", mode=IfMatch(etag))


@pytest.mark.parametrize("then", [StoreUnavailableError, ThrottledError, AccessDeniedError])
def test_an_unknown_outcome_is_never_forgotten(then: type[OffloaderError]) -> None:
    """The last attempt changed nothing, but the first may have: "nothing was changed" would be false."""
    store, _, _ = stores(
        Fault(verb="put", call=1, error=OutcomeUnknownError), Fault(verb="put", call=2, calls=100, error=then)
    )
    with pytest.raises(OutcomeUnknownError):
        store.put("k", b"mine", mode=CREATE)


def test_unknown_outcome_stays_unknown_when_its_verification_fails() -> None:
    store, _, _ = stores(
        Fault(verb="put", call=1, after=True, error=OutcomeUnknownError), Fault(verb="get", call=1, calls=100)
    )
    with pytest.raises(OutcomeUnknownError):
        store.put("k", b"mine", mode=CREATE)


def test_a_part_of_unknown_outcome_is_sent_again() -> None:
    store, _, _ = stores(Fault(verb="upload_part", call=1, after=True, error=OutcomeUnknownError))
    upload_id = store.begin_upload("k")
    part = store.upload_part("k", upload_id, 1, b"part")
    assert store.complete_upload("k", upload_id, [part]).size_bytes == 4


def test_a_completion_that_did_not_happen_is_repeated() -> None:
    store, faulty, _ = stores(Fault(verb="complete_upload", call=1, error=OutcomeUnknownError))
    upload_id = store.begin_upload("k")
    part = store.upload_part("k", upload_id, 1, b"part")
    assert store.complete_upload("k", upload_id, [part]).size_bytes == 4
    assert [verb for verb, _ in faulty.calls][-3:] == ["complete_upload", "list_parts", "complete_upload"]


def test_completion_with_a_lost_response_is_not_repeated() -> None:
    store, faulty, _ = stores(Fault(verb="complete_upload", call=1, after=True, error=OutcomeUnknownError))
    upload_id = store.begin_upload("k")
    part = store.upload_part("k", upload_id, 1, b"part")
    with pytest.raises(OutcomeUnknownError):
        store.complete_upload("k", upload_id, [part])
    assert store.get("k")[0] == b"part"
    assert [verb for verb, _ in faulty.calls].count("complete_upload") == 1


@pytest.mark.parametrize("then", [None, StoreUnavailableError, AccessDeniedError, InvalidCallError])
def test_completion_of_unknown_outcome_is_never_reported_as_unavailable(then: type[OffloaderError] | None) -> None:
    """The upload is still listed, but a completion that was sent may still arrive."""
    faults = [Fault(verb="complete_upload", call=1, calls=1 if then else 100, error=OutcomeUnknownError)]
    faults += [Fault(verb="complete_upload", call=2, calls=100, error=then)] if then else []
    store, _, _ = stores(*faults)
    upload_id = store.begin_upload("k")
    part = store.upload_part("k", upload_id, 1, b"part")
    with pytest.raises(OffloaderError) as caught:
        store.complete_upload("k", upload_id, [part])
    assert type(caught.value) is OutcomeUnknownError


def test_every_attempt_is_counted() -> None:
    clock = ManualClock()
    memory: ObjectStore = open_store(f"memory://{uuid.uuid4().hex}")
    faulty = FaultyStore(memory, [Fault(verb="put", call=1, calls=2)])
    store = RetryingStore(AttemptStore(faulty, Limiter(LimitSettings(), clock)), SETTINGS, clock, random.Random(1))
    store.put("k", b"12345")
    store.get("k")
    with pytest.raises(NotFoundError):
        store.get("absent")
    counts = requests_of(store)
    assert counts == {
        "put": VerbCount(requests=3, errors=2, bytes_sent=15),
        "get": VerbCount(requests=2, errors=1, bytes_received=5),
    }
    store.head("k")
    assert "head" not in counts


def test_a_store_that_does_not_count_has_no_requests() -> None:
    assert requests_of(MemoryStore("uncounted", "", ManualClock())) == {}


def test_the_nth_call_fails_and_no_other() -> None:
    store = FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"), [Fault(verb="put", key_part="b", call=2)])
    store.put("a", b"")
    store.put("b", b"")
    store.put("a", b"")
    with pytest.raises(StoreUnavailableError):
        store.put("b", b"new")
    assert store.get("b")[0] == b""
    store.put("b", b"new")
    assert store.calls[-1] == ("put", "b")
    store.set_faults([Fault(verb="get", call=1, after=True, error=OutcomeUnknownError)])
    with pytest.raises(OutcomeUnknownError):
        store.get("b")
