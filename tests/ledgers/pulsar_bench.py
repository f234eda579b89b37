"""A fake broker with its admin interface, topics in it, and a cluster over them: what tests of Pulsar sources share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from formats.entries import EntryBatch, Position
from offloader.ledgers.pulsar.source import PulsarCluster, PulsarSource
from offloader.settings import Duration, PulsarSettings
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

__all__ = ["NAME", "TOPIC", "PulsarBench", "entries_of", "message"]

TOPIC = "persistent://public/default/orders"
#: Of our subscription.
NAME = "offloader"


class PulsarBench:
    """One broker; closing it closes everything."""

    def __init__(self, *topics: str, **changes: Any) -> None:
        names = topics or (TOPIC,)
        self.broker = FakeBroker(dict.fromkeys(names, 0))
        self.topics = {name: FakeTopic(self.broker, name) for name in names}
        self.topic = self.topics[names[0]]
        self.admin = FakeAdmin(*self.topics.values())
        self.settings = replace(
            PulsarSettings(service_url=self.broker.url, admin_url=self.admin.url, retry_delay_max=Duration(0.05)),
            **changes,
        )
        self._clusters: list[PulsarCluster] = []

    def cluster(self) -> PulsarCluster:
        """Another process's, as far as the broker knows."""
        self._clusters.append(PulsarCluster(self.settings))
        return self._clusters[-1]

    def open(self, topic: str = "", cluster: PulsarCluster | None = None) -> PulsarSource:
        """Of a process of its own unless it is said which one; it is known whether it is active."""
        source = (cluster or self.cluster()).open_topic(topic or self.topic.name)
        eventually(lambda: source.active is not None)
        return source

    def fill(self, count: int, topic: FakeTopic | None = None) -> None:
        topic = topic or self.topic
        for _ in range(count):
            topic.append(message(len(topic.entries)))

    def stored(self, topic: FakeTopic | None = None) -> list[tuple[Position, bytes]]:
        """What anybody can get."""
        return [(position, entry) for position, entry, messages in (topic or self.topic).entries if messages]

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self.admin.__exit__(None, None, None)
        self.broker.stop()


def message(number: int) -> bytes:
    return single_entry(Sent(value=b"message %d" % number))


def entries_of(batch: EntryBatch) -> list[tuple[Position, bytes]]:
    return [(entry.position, entry.payload) for entry in batch.entries()]
