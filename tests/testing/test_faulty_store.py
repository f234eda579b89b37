"""Faults as data: where, when and how a call fails."""

from __future__ import annotations

from itertools import count

import pytest

from offloader.errors import NotFoundError, OutcomeUnknownError, StoreUnavailableError
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock

_names = count()


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(f"faulty-{next(_names)}", "", SystemClock())


def keys_of(memory: MemoryStore) -> list[str]:
    return [info.key for info in memory.list("").objects]


def test_a_fault_before_has_no_effect_and_one_after_has(memory: MemoryStore) -> None:
    faults = [Fault(call=1, verb="put"), Fault(call=2, verb="put", after=True, error=OutcomeUnknownError)]
    store = FaultyStore(memory, faults)
    with pytest.raises(StoreUnavailableError, match="fault before put of a"):
        store.put("a", b"1")
    with pytest.raises(OutcomeUnknownError, match="fault after put of b"):
        store.put("b", b"2")
    store.put("c", b"3")

    assert keys_of(memory) == ["b", "c"]
    assert store.calls == [("put", "a"), ("put", "b"), ("put", "c")]


@pytest.mark.slow
def test_torn_delete_removes_half_and_torn_uploads_and_reads_do_nothing(memory: MemoryStore) -> None:
    for key in "abcd":
        memory.put(key, key.encode())
    store = FaultyStore(memory, [Fault(call=1, calls=99, torn=True, error=OutcomeUnknownError)])
    with pytest.raises(OutcomeUnknownError, match="delete of a broke off"):
        store.delete(["a", "b", "c", "d"])
    with pytest.raises(OutcomeUnknownError, match="put of e broke off"):
        store.put("e", b"5")
    with pytest.raises(OutcomeUnknownError, match="get of c broke off"):
        store.get("c")
    with pytest.raises(NotFoundError):
        store.get("a")

    assert keys_of(memory) == ["c", "d"]


def test_late_call_advances_the_clock_and_may_succeed(memory: MemoryStore) -> None:
    clock = ManualClock()
    faults = [Fault(call=2, latency_s=40, error=None), Fault(call=3, latency_s=70)]
    store = FaultyStore(memory, faults, clock=clock)
    store.put("a", b"1")
    assert clock.monotonic_s() == 0
    store.put("b", b"2")
    assert clock.monotonic_s() == 40
    with pytest.raises(StoreUnavailableError):
        store.put("c", b"3")
    assert clock.monotonic_s() == 110
    assert keys_of(memory) == ["a", "b"]
