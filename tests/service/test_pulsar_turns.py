"""A process whose turn it is and that can't reach the store: it leaves its topics to one that waits, or to nobody.

The two processes reach one store over layers of their own, of which one can be told to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from offloader.errors import AccessDenied, StoreUnavailable, Throttled
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled
from offloader.service.host import StoreReach
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, whats
from tests.support.waiting import eventually

#: Everything that is asked of the store from now on.
CUT = Fault(call=1, calls=10**9)
LEFT = "are left to another process"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


def is_active(assembled: Assembled) -> list[bool]:
    return [row["active"] for row in assembled.process.document()["streams"]]


@contextmanager
def second_to(cluster: Cluster, first: Assembled, store: FaultyStore | None = None) -> Iterator[Assembled]:
    """Another process, which waits behind ``first`` when the block begins."""
    eventually(lambda: is_active(first) == [True] and cluster.is_offloaded("one"))
    with cluster.serve(store=store, hand_over_seconds=0.3) as second:
        eventually(lambda: len(cluster.topics["one"].stats()["subscriptions"]["offloader"]["consumers"]) == 2)
        eventually(lambda: is_active(second) == [False])
        yield second


def looks_of(store: FaultyStore) -> int:
    return sum(key.endswith("is-anybody-there") for _, key in store.calls)


@pytest.mark.slow
def test_who_cannot_reach_the_store_leaves_its_turn_once_and_comes_back_when_it_can(cluster: Cluster) -> None:
    cluster.make("one")
    near, far = FaultyStore(cluster.store), FaultyStore(cluster.store)
    with cluster.serve(store=near, hand_over_seconds=0.3) as first, second_to(cluster, first, far) as second:
        epoch = load_manifest(cluster.store, f"{S}one").epoch

        near.set_faults([CUT])
        cluster.fill("one")
        eventually(lambda: cluster.is_offloaded("one"))
        assert load_manifest(cluster.store, f"{S}one").epoch == epoch + 1
        eventually(lambda: is_active(first) == [False] and is_active(second) == [True])
        assert LEFT in whats(first)
        assert LEFT not in whats(second)

        # Nobody is left to hand it to: it stays, however long nothing answers.
        far.set_faults([CUT])
        cluster.fill("one")
        looks = looks_of(far)
        eventually(lambda: looks_of(far) > looks + 10)
        assert is_active(second) == [True]
        assert LEFT not in whats(second)

        # The first one comes back because it can, as a candidate; then the second one can give it up.
        near.set_faults([])
        eventually(lambda: is_active(first) == [True])
        eventually(lambda: cluster.is_offloaded("one"))
        assert LEFT not in whats(first)
        far.set_faults([])
        eventually(lambda: LEFT not in whats(second))
        cluster.fill("one")
        eventually(lambda: cluster.is_offloaded("one"))
        assert is_active(first) == [True]
        # Each turn is an epoch, and there were three.
        assert load_manifest(cluster.store, f"{S}one").epoch == epoch + 2
    assert cluster.cold("one") == [(position, entry) for position, entry, _ in cluster.topics["one"].entries]


def test_who_works_alone_keeps_its_turn_while_the_store_is_silent(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, hand_over_seconds=0.1) as alone:
        eventually(lambda: cluster.is_offloaded("one"))
        store.set_faults([CUT])
        cluster.fill("one")
        looks = looks_of(store)
        eventually(lambda: looks_of(store) > looks + 10)
        assert is_active(alone) == [True]
        assert cluster.topics["one"].active("offloader") is not None
        store.set_faults([])
        eventually(lambda: cluster.is_offloaded("one"))


def test_a_broker_that_does_not_say_who_waits_keeps_the_turn_where_it_is(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, hand_over_seconds=0.1) as first, second_to(cluster, first):
        path = "/admin/v2/persistent/t/n/one/stats"
        cluster.admin.answers[path] = 500, b"a bug"
        store.set_faults([CUT])
        eventually(lambda: "feed pulsar: turns: " in whats(first))
        assert is_active(first) == [True]
        cluster.admin.answers.clear()
        eventually(lambda: is_active(first) == [False])
        cluster.fill("one")
        eventually(lambda: cluster.is_offloaded("one"))


def test_nothing_is_left_where_that_is_switched_off(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, hand_over_seconds=0.0) as first, second_to(cluster, first):
        store.set_faults([CUT])
        looks = looks_of(store)
        eventually(lambda: looks_of(store) > looks + 10)
        assert is_active(first) == [True]


def test_silence_is_counted_from_the_first_request_without_an_answer_and_a_refusal_is_an_answer() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore("store-reach", "", SystemClock()))
    reach = StoreReach(store, clock)

    def look(after_s: float, *faults: Fault) -> tuple[float, float]:
        store.set_faults(faults)
        clock.advance(after_s)
        reach.look()
        return reach.answering_s, reach.silent_s

    assert look(10.0) == (10.0, 0.0)
    for refusal in (AccessDenied, Throttled):
        assert look(5.0, Fault(call=1, error=refusal))[1] == 0.0
    assert look(1.0, Fault(call=1, error=StoreUnavailable)) == (0.0, 0.0)
    assert look(30.0, CUT) == (0.0, 30.0)
    assert look(30.0, CUT) == (0.0, 60.0)
    assert look(1.0) == (0.0, 0.0)
    assert look(7.0) == (7.0, 0.0)
