"""An active process that can't reach the store hands its topics to a standby, if there is one.

The two processes reach one store through separate layers, one of which can be made to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from formats.documents import STORE_IDENTITY_KEY
from offloader.errors import AccessDeniedError, StoreUnavailableError, ThrottledError
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled
from offloader.service.providers.pulsar import StoreReach
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, whats
from tests.support.waiting import eventually

#: Everything that is asked of the store from now on.
CUT = Fault(call=1, calls=10**9)
LEFT = "were handed over to a standby process"


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
    with cluster.serve(store=store, store_outage_handover=0.3) as second:
        eventually(lambda: len(cluster.topics["one"].stats()["subscriptions"]["offloader"]["consumers"]) == 2)
        eventually(lambda: is_active(second) == [False])
        yield second


def looks_of(store: FaultyStore) -> int:
    return sum(key == STORE_IDENTITY_KEY for _, key in store.calls)


@pytest.mark.slow
def test_process_without_its_store_hands_over_once_and_returns_as_candidate(cluster: Cluster) -> None:
    cluster.make("one")
    near, far = FaultyStore(cluster.store), FaultyStore(cluster.store)
    with cluster.serve(store=near, store_outage_handover=0.3) as first, second_to(cluster, first, far) as second:
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


@pytest.mark.slow
def test_sole_process_stays_active_while_the_store_is_silent(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, store_outage_handover=0.1) as alone:
        eventually(lambda: cluster.is_offloaded("one"))
        store.set_faults([CUT])
        cluster.fill("one")
        looks = looks_of(store)
        eventually(lambda: looks_of(store) > looks + 10)
        assert is_active(alone) == [True]
        assert cluster.topics["one"].active("offloader") is not None
        store.set_faults([])
        eventually(lambda: cluster.is_offloaded("one"))


@pytest.mark.slow
def test_process_stays_active_while_the_broker_names_no_standby(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, store_outage_handover=0.1) as first, second_to(cluster, first):
        path = "/admin/v2/persistent/t/n/one/stats"
        cluster.admin.answers[path] = 500, b"a bug"
        store.set_faults([CUT])
        eventually(lambda: "feed pulsar: turns: " in whats(first))
        assert is_active(first) == [True]
        cluster.admin.answers.clear()
        eventually(lambda: is_active(first) == [False])
        cluster.fill("one")
        eventually(lambda: cluster.is_offloaded("one"))


@pytest.mark.slow
def test_no_handover_happens_when_it_is_switched_off(cluster: Cluster) -> None:
    cluster.make("one")
    store = FaultyStore(cluster.store)
    with cluster.serve(store=store, store_outage_handover=0.0) as first, second_to(cluster, first):
        store.set_faults([CUT])
        looks = looks_of(store)
        eventually(lambda: looks_of(store) > looks + 10)
        assert is_active(first) == [True]


def test_outage_counts_from_first_unanswered_request_and_refusals_end_it() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore("store-reach", "", SystemClock()))
    reach = StoreReach(store, clock)

    def look(after_s: float, *faults: Fault) -> tuple[float, float]:
        store.set_faults(faults)
        clock.advance(after_s)
        reach.look()
        return reach.answering_s, reach.silent_s

    assert look(10.0) == (10.0, 0.0)
    for refusal in (AccessDeniedError, ThrottledError):
        assert look(5.0, Fault(call=1, error=refusal))[1] == 0.0
    assert look(1.0, Fault(call=1, error=StoreUnavailableError)) == (0.0, 0.0)
    assert look(30.0, CUT) == (0.0, 30.0)
    assert look(30.0, CUT) == (0.0, 60.0)
    assert look(1.0) == (0.0, 0.0)
    assert look(7.0) == (7.0, 0.0)
