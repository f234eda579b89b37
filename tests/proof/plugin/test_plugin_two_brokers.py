"""Two brokers of one cluster, each with the plugin: a topic that moves between them is read whole, and offloaded."""

from __future__ import annotations

import contextlib
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from services.broker_plugin import built_nar
from services.pulsar.broker import ZOOKEEPER, Broker, plugin_settings, start_broker
from services.servers import free_port
from tests.plugin.plugin_world import NAMESPACE, PluginWorld, asked, eventually_some, path_of, topic_of
from tests.plugin.topic_history import Message, TopicHistory, client_of, plain, receive
from tests.support.quick import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

COUNT = 700


class TwoBrokers:
    """A world whose cluster has a further broker."""

    def __init__(self, world: PluginWorld) -> None:
        self.world = world
        ports = free_port(), free_port()
        settings = {
            **world.settings_of_broker(),
            **plugin_settings(built_nar(), world.url_of("sidecar"), *ports),
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "-1",
            "joins": world.broker.metadata_url,
        }
        self.second: Broker = start_broker(
            world.folder / "second", settings, release=world.release, java_options=world.options_of_java()
        )

    @property
    def brokers(self) -> tuple[Broker, Broker]:
        return self.world.broker, self.second

    def owner(self, topic: str) -> str:
        """Who has the topic; the first broker decides about it if nobody has."""
        return str(json.loads(asked(f"{self.world.admin_url}/lookup/v2/topic/{path_of(topic)}"))["brokerUrl"])

    def move(self, topic: str, to: Broker) -> None:
        """Returns when that broker has it; a client that asks while it is let go may bring it back."""
        bundle = asked(f"{self.world.admin_url}/lookup/v2/topic/{path_of(topic)}/bundle").decode().strip('"')
        wanted = to.admin_url.removeprefix("http://")

        def has_moved() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):
                self.world.admin("PUT", f"namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={wanted}")
                return self.owner(topic) == to.service_url
            return False

        eventually(has_moved)

    def bytes_read(self, broker: Broker) -> int:
        """That the plugin of that broker gave it."""
        return sum(int(each.get("ReadBytes", 0)) for each in broker.beans("offloader:*").values())


@pytest.fixture(scope="module")
@needs("java")
def two(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    settings = {"transactionCoordinatorEnabled": "false"}
    folder = tmp_path_factory.mktemp("two")
    with PluginWorld(
        folder, servers["minio"], release=release, broker_settings=settings, environment=ZOOKEEPER
    ) as world:
        made = TwoBrokers(world)
        try:
            yield made
        finally:
            made.second.end()


@pytest.mark.timeout(600)  # two brokers start, half a minute on a machine with nothing else to do
def test_topic_that_moves_while_it_is_read_and_offloaded_is_received_once_in_order(
    two: TwoBrokers, tmp_path: Path
) -> None:
    world, topic = two.world, topic_of("moving")
    first, second = two.brokers
    sent = send(world, topic, tmp_path, [])
    world.await_committed(topic)
    world.forget(topic, world.offload(topic))
    before = [two.bytes_read(each) for each in two.brokers]
    with contextlib.closing(client_of(world.service_url, is_quiet=True)) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
        found = receive(reader, 100, and_no_more=False)
        for to in (second, first, second):
            two.move(topic, to)
            found += receive(reader, 100, and_no_more=False)
        # What one broker began the other one ends: an unload forgets an offload that is under way.
        sent = send(world, topic, tmp_path, sent)
        *_, last = eventually_some(lambda: world.ledgers(topic))
        world.ask_to_offload(topic, last)
        two.move(topic, first)
        eventually(lambda: is_cold(world, topic))
        found += receive(reader, len(sent) - len(found))
        assert plain(found) == sent
        two.move(topic, second)
        consumer = client.subscribe(topic, "new", initial_position=pulsar.InitialPosition.Earliest)
        assert plain(receive(consumer, len(sent))) == sent
    assert all(two.bytes_read(each) > read for each, read in zip(two.brokers, before, strict=True))


def send(world: PluginWorld, topic: str, folder: Path, sent: list[Message]) -> list[Message]:
    with TopicHistory(world.broker, topic, folder) as history:
        history.sent = [*sent]
        history.send("rich", COUNT)
    return history.sent


def is_cold(world: PluginWorld, topic: str) -> bool:
    """Whether the bookie has none of the closed ledgers."""
    with contextlib.suppress(urllib.error.HTTPError):
        return world.try_offload(topic)
    return False
