"""A cluster of two brokers: a topic that moves between them is offloaded, acknowledged and triggered as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from formats.entries import Position
from formats.pulsar.commands import CommandType
from offloader.manifest.log import load_manifest
from offloader.service.bootstrap import Assembled
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, whats
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

NAME, SUBSCRIPTION = "one", "offloader"


@dataclass
class TwoBrokers:
    """A sidecar knows only the first one's addresses."""

    cluster: Cluster
    broker: FakeBroker
    admin: FakeAdmin

    def move(self, topic: FakeTopic, *, to_second: bool) -> None:
        first, second = self.cluster.admin, self.admin
        here, there = (first, second) if to_second else (second, first)
        here.elsewhere[topic.name] = there
        there.elsewhere.pop(topic.name, None)
        topic.move(self.broker if to_second else self.cluster.broker)


@pytest.fixture
def two() -> Iterator[TwoBrokers]:
    with fake_cluster() as cluster, FakeBroker() as broker, FakeAdmin() as admin:
        yield TwoBrokers(cluster, broker, admin)


def offload(cluster: Cluster, assembled: Assembled) -> None:
    eventually(lambda: assembled.process.streams.get(S + NAME) is not None)
    eventually(lambda: assembled.process.streams.require(S + NAME).is_active)
    assembled.process.streams.require(S + NAME).offload(cluster.newest(NAME), timeout_s=100)
    assert cluster.is_offloaded(NAME)


def is_acknowledged(topic: FakeTopic, position: Position) -> bool:
    return topic.mark_delete(SUBSCRIPTION) == position


@pytest.mark.slow
@pytest.mark.parametrize("begins_at_second", [True, False])
def test_topic_that_moves_between_brokers_is_offloaded_on(two: TwoBrokers, begins_at_second: bool) -> None:
    cluster = two.cluster
    topic = cluster.make(NAME)
    two.admin.add(topic)
    if begins_at_second:
        two.move(topic, to_second=True)
    with cluster.serve(broker_plugin=True, follow_broker_trim=True) as assembled:
        offload(cluster, assembled)
        for to_second in (not begins_at_second, begins_at_second):
            cluster.fill(NAME, 3)
            two.move(topic, to_second=to_second)
            cluster.fill(NAME, 2)
            offload(cluster, assembled)
            newest = cluster.newest(NAME)
            eventually(lambda: is_acknowledged(topic, newest))  # noqa: B023
            # The owner's admin interface is asked to offload, with the whole request.
            topic.roll()
            cluster.fill(NAME, 1)
            offload(cluster, assembled)
            eventually(lambda: newest.ledger_id in topic.offloaded)  # noqa: B023
        assert whats(assembled) == ""
    assert list(load_manifest(cluster.store, S + NAME).gaps) == []
    for broker, admin in ((cluster.broker, cluster.admin), (two.broker, two.admin)):
        assert broker.of(CommandType.ACK)
        assert admin.of("PUT", "/offload")
