"""A fake Pulsar cluster, a store, and serving processes between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from formats.entries import Position
from offloader.errors import NotFoundError
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled
from offloader.service.providers.pulsar import PulsarProvider
from offloader.settings import PulsarSettings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic
from tests.support.readback import stored_entries
from tests.support.scalable_topic import FakeScalable
from tests.support.served import serving, settings_file

__all__ = ["Cluster", "P", "S", "fake_cluster", "streams_of", "whats"]

P = "persistent://t/n/"
S = "t/n/persistent/"
_names = itertools.count()


@dataclass
class Cluster:
    """A broker with its admin interface, and a store."""

    broker: FakeBroker
    admin: FakeAdmin
    store: ObjectStore
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    ledger_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1000, 1000))

    def make_scalable(self, name: str) -> FakeScalable:
        """A scalable topic with one segment, of a broker that has such topics."""
        self.broker.has_scalable_topics = True
        topic = FakeScalable(self.broker, f"topic://t/n/{name}", first_ledger=self.ledger_ids.__next__)
        self.admin.scalable[topic.name] = topic
        self.admin.policies.setdefault("t/n", {})
        return topic

    def make(self, *names: str, entries: int = 10) -> FakeTopic:
        """Topics with a closed ledger."""
        for name in names:
            topic = self.topics[name] = FakeTopic(self.broker, P + name)
            self.fill(name, entries)
            topic.roll()
            self.admin.add(topic)
        return self.topics[names[0]]

    def fill(self, name: str, entries: int = 10) -> None:
        for _ in range(entries):
            topic = self.topics[name]
            topic.append(single_entry(Sent(value=b"%s %d" % (name.encode(), len(topic.entries)))))

    def newest(self, name: str) -> Position:
        """The last entry that is stored."""
        return self.topics[name].entries[-1][0]

    def settings(self, *topics: str, **more: Any) -> PulsarSettings:
        return PulsarSettings(**self.names(*topics, **more))

    def names(self, *topics: str, **more: Any) -> dict[str, Any]:
        return {
            "service_url": self.broker.url,
            "admin_url": self.admin.url,
            "topics": topics or ("t/n",),
            "discovery_interval": 0.1,
            "subscribers_interval": 0.1,
            "retry_delay_max": 0.05,
            **more,
        }

    @contextmanager
    def serve(
        self,
        *topics: str,
        offload: dict[str, Any] | None = None,
        store: ObjectStore | None = None,
        **more: Any,
    ) -> Iterator[Assembled]:
        """A process; ``store``: the cluster's, as that process reaches it."""
        store = store or self.store
        names = {f"pulsar__{name}": value for name, value in self.names(*topics, **more).items()}
        file = settings_file(**names, **(offload or {}))
        feed = PulsarProvider(file.settings_of("").pulsar, store, clock=SystemClock())
        with serving(store, file, feed) as assembled:
            yield assembled

    def is_offloaded(self, name: str) -> bool:
        """Whether everything that was stored by now is in the cold tier, in order."""
        wanted = [(position, entry) for position, entry, _ in self.topics[name].entries]
        return self.cold(name)[-len(wanted) :] == wanted

    def cold(self, name: str) -> list[tuple[Position, bytes]]:
        try:
            return stored_entries(self.store, S + name)
        except NotFoundError:
            return []


@contextmanager
def fake_cluster() -> Iterator[Cluster]:
    with FakeBroker() as broker, FakeAdmin() as admin:
        yield Cluster(broker, admin, MemoryStore(f"pulsar-feed-{next(_names)}", "", SystemClock()))


def streams_of(assembled: Assembled) -> list[str]:
    """Those that the feed brought; of others the store knows."""
    return [row["stream"] for row in assembled.view.streams().items if row.get("feed") == "pulsar"]


def whats(assembled: Assembled) -> str:
    return "\n".join(f"{each.where}: {each.what}" for each in assembled.view.readiness().problems)
