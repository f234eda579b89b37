"""A recreated Pulsar cluster, or one restored from an older copy, over a bucket of the previous one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_cluster import Cluster, P, S, fake_cluster, whats
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

NAME = "offloader"
AT_ONCE: dict[str, Any] = {"offload__deletion_lag": "0.0m"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


def offloaded(cluster: Cluster, *ledgers: int) -> list[tuple[Position, bytes]]:
    """A topic whose ledgers of ten entries are in the cold tier only, but for the newest one; what is there."""
    topic = cluster.topics["one"] = FakeTopic(cluster.broker, f"{P}one")
    fill(cluster, topic, *ledgers)
    cluster.admin.add(topic)
    with cluster.serve(offload=AT_ONCE):
        eventually(lambda: {position.ledger_id for position, _, _ in topic.entries} == {ledgers[-1]})
        eventually(lambda: cluster.is_offloaded("one"))
    return cluster.cold("one")


def made_anew(cluster: Cluster, *ledgers: int) -> FakeTopic:
    """The same topic of a cluster that knows nothing of the one before."""
    topic = cluster.topics["one"] = FakeTopic(cluster.broker, f"{P}one")
    cluster.admin.add(topic)
    fill(cluster, topic, *ledgers)
    return topic


def fill(cluster: Cluster, topic: FakeTopic, *ledgers: int) -> None:
    at = 1
    for ledger_id in ledgers:
        while at < ledger_id:
            topic.roll()
            at += 1
        for number in range(10):
            topic.append(single_entry(Sent(value=b"%d of %d, %d" % (number, ledger_id, id(topic)))))


def stays_as_it_is(cluster: Cluster, topic: FakeTopic, before: list[tuple[Position, bytes]]) -> None:
    """Nothing was acknowledged, deleted or taken for what the manifest has."""
    assert not is_acknowledged(topic)
    assert len({position.ledger_id for position, _, _ in topic.entries}) > 1
    assert cluster.cold("one") == before
    assert set(load_manifest(cluster.store, f"{S}one").hot_released_ledgers) == {1, 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ledgers", "said"),
    [
        # The same ids, the same lengths: what is there passes for offloaded, and its ledgers would be given up.
        ((1, 4, 6), "its newest ledger is 6, and the manifest has entries up to 9:9"),
        # Its ids have gone beyond the newest known one.
        ((5, 6, 11), "ledger 5 has 10 entries, but the manifest has no such ledger"),
    ],
)
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_recreated_cluster_is_refused_and_none_of_its_ledgers_deleted(
    cluster: Cluster, ledgers: tuple[int, ...], said: str, method: str
) -> None:
    before = offloaded(cluster, 1, 4, 9)
    topic = made_anew(cluster, *ledgers)
    with cluster.serve(offload={**AT_ONCE, "offload__method": method}) as assembled:
        eventually(lambda: said in whats(assembled) or is_acknowledged(topic))
        stays_as_it_is(cluster, topic, before)
        assert said in whats(assembled)


@pytest.mark.slow
def test_cluster_replaced_while_served_loses_no_ledger(cluster: Cluster) -> None:
    topic = cluster.topics["one"] = FakeTopic(cluster.broker, f"{P}one")
    fill(cluster, topic, 1, 4, 9)
    cluster.admin.add(topic)
    with cluster.serve(offload=AT_ONCE) as assembled:
        eventually(lambda: {position.ledger_id for position, _, _ in topic.entries} == {9})
        eventually(lambda: cluster.is_offloaded("one"))
        before = cluster.cold("one")
        cluster.broker.stop()
        new = made_anew(cluster, 1, 4, 6)
        cluster.broker.start()
        said = "its newest ledger is 6, and the manifest has entries up to 9:9"
        eventually(lambda: said in whats(assembled) or is_acknowledged(new))
        stays_as_it_is(cluster, new, before)
        assert said in whats(assembled)


def is_acknowledged(topic: FakeTopic) -> bool:
    try:
        return topic.mark_delete(NAME) is not None
    except KeyError:  # not subscribed yet
        return False


@pytest.mark.slow
def test_topic_with_skipped_and_trimmed_ledgers_continues(cluster: Cluster) -> None:
    before = offloaded(cluster, 1, 4, 9)
    topic = made_anew(cluster, 12, 15)
    with cluster.serve(offload=AT_ONCE) as assembled:
        eventually(lambda: cluster.cold("one")[-1][0] == Position(15, 9))
        eventually(lambda: {position.ledger_id for position, _, _ in topic.entries} == {15})
        assert whats(assembled) == ""
    assert len(cluster.cold("one")) == len(before) + 20
