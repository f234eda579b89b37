"""Scalable topics of a real broker, offloaded by sidecars that are killed while segments split, merge and disappear."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pulsar
import pytest

import offloader
from offloader.cli.main import main
from offloader.errors import NotFoundError
from offloader.manifest.log import load_manifest
from offloader.manifest.topic_layouts import read_layout
from services.pulsar.broker import running_broker
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import running_scalable_client
from tests.proof.interop.scalable_world import KEYS, NAMESPACE, SETTINGS, Sent, World, added
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("served")
    with (
        running_broker(folder / "broker", SETTINGS, release=SCALABLE) as broker,
        running_scalable_client(folder / "client", broker.service_url) as client,
    ):
        yield World.made(folder, broker, client)


@pytest.mark.timeout(900)
def test_every_message_is_kept_in_order_through_splits_merges_and_kills(world: World) -> None:
    """100,000 messages, three splits and two merges while they are sent; of two sidecars one is killed, 20 times."""
    name, sent = "orders", Sent()
    topic = f"topic://{NAMESPACE}/{name}"
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=2")
    changes = ["split", "split", "merge", "split", "merge"]
    with ThreadPoolExecutor(1) as producer, ExitStack() as stack:
        sidecars = deque([stack.enter_context(Serving(world.config))])
        for part, change in enumerate(changes):
            produced: Future[Mapping[str, Sequence[str]]] = producer.submit(
                world.client.produce, topic, count=20_000, keys=KEYS, prefix=f"part{part}", rate=4000
            )
            for kill in range(4):
                sidecars.append(stack.enter_context(Serving(world.config)))
                if kill == 1:
                    world.change(name, world.named(name, change))
                sidecars.popleft().process.kill()
            added(sent, produced.result())
        eventually(lambda: world.has_all(name, sent), within_s=300)
    assert sum(map(len, sent.values())) == 100_000
    recorded = world.recorded(name)
    assert len(recorded.segments) == 10
    assert all((row.end is not None) == row.is_sealed for row in recorded.segments)


@pytest.mark.timeout(900)
def test_sealed_segment_is_kept_by_the_broker_until_it_is_offloaded(world: World) -> None:
    name, sent = "held", Sent()
    topic = f"topic://{NAMESPACE}/{name}"
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=1")
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    world.admin.do("POST", f"namespaces/{NAMESPACE}/retention", retention)
    with Serving(world.config):
        for part in ("first", "second"):
            added(sent, world.client.produce(topic, count=200, keys=KEYS, prefix=part))
            eventually(lambda: world.has_all(name, sent))
            truncate(world, topic)
    [segment] = world.recorded(name).segments
    assert load_manifest(world.store(), segment.stream).head is None  # the broker has the segment
    added(sent, world.client.produce(topic, count=200, keys=KEYS, prefix="unread"))
    world.change(name, "split/0")
    added(sent, world.client.produce(topic, count=200, keys=KEYS, prefix="after"))
    # Its retention ends after a minute, and the broker looks each minute.
    time.sleep(135)  # an outage that is longer than the retention
    assert "0" in world.layout(name)
    with Serving(world.config):
        eventually(lambda: world.has_all(name, sent))
        eventually(lambda: "0" not in world.layout(name), within_s=200)
        added(sent, world.client.produce(topic, count=200, keys=KEYS, prefix="pruned"))
        eventually(lambda: world.has_all(name, sent))
    recorded = world.recorded(name)
    assert [row.parents for row in recorded.segments] == [(), (0,), (0,)]
    truncate(world, topic)
    assert load_manifest(world.store(), recorded.by_id[0].stream).head is not None


def truncate(world: World, topic: str) -> None:
    """A retention cycle that keeps as little as possible, of a broker that reads the cold tier."""
    config = world.config.with_name("plugin.toml")
    config.write_text(world.config.read_text().replace("[pulsar]", "[pulsar]\nbroker_plugin = true", 1))
    assert main(["retention", "run", topic, "--keep-size", "1", "--config", str(config), "--apply"]) == 0


def test_regular_topic_is_migrated_while_it_is_offloaded(world: World) -> None:
    name, sent = "plain", Sent()
    client = pulsar.Client(world.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(f"persistent://{NAMESPACE}/{name}", batching_enabled=False)
    for number in range(200):
        key = f"k{number % KEYS}"
        producer.send(b"v4-%d" % number, partition_key=key)
        sent.setdefault(key, []).append(f"v4-{number}")
    client.close()
    with Serving(world.config):
        stream = offloader.open_store(world.url).stream(f"persistent://{NAMESPACE}/{name}")
        eventually(lambda: is_there(stream) and stream.scan().count_rows() == 200)
        world.change(name, "migrate")
        added(sent, world.client.produce(f"topic://{NAMESPACE}/{name}", count=200, keys=KEYS, prefix="v5"))
        eventually(lambda: world.has_all(name, sent))
        world.change(name, "split/1")
        added(sent, world.client.produce(f"topic://{NAMESPACE}/{name}", count=200, keys=KEYS, prefix="split"))
        eventually(lambda: world.has_all(name, sent))


def test_segments_are_offloaded_as_soon_as_the_broker_tells_of_them(world: World) -> None:
    name, sent = "told", Sent()
    config = world.config.with_name("told.toml")
    config.write_text(world.config.read_text().replace('"500ms"', '"1h"', 1))
    with Serving(config):
        world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=1")
        for change in ("split/0", "merge/1/2", "split/3"):
            added(sent, world.client.produce(f"topic://{NAMESPACE}/{name}", count=100, keys=KEYS, prefix=change))
            world.change(name, change)
            added(sent, world.client.produce(f"topic://{NAMESPACE}/{name}", count=100, keys=KEYS, prefix=f"{change}+"))
            eventually(lambda: world.has_all(name, sent))


def test_schemas_are_recorded_before_the_broker_deletes_them(world: World) -> None:
    name, avro = "typed", '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
    path = f"schemas/{NAMESPACE}/{name}"

    def recorded() -> list[tuple[int, str]]:
        layout = read_layout(world.store(), f"{NAMESPACE}/topic/{name}")
        return [] if layout is None else [(each.version, each.type) for each in layout.schemas]

    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=1")
    assert world.admin.ask("POST", f"{path}/schema", {"type": "AVRO", "schema": avro, "properties": {}})[0] == 200
    with Serving(world.config):
        eventually(lambda: recorded() == [(0, "AVRO")])
        newer = avro.replace("]}", ',{"name":"at","type":["null","long"],"default":null}]}')
        assert world.admin.ask("POST", f"{path}/schema", {"type": "AVRO", "schema": newer, "properties": {}})[0] == 200
        eventually(lambda: recorded() == [(0, "AVRO"), (1, "AVRO")])
        # The broker begins with version 0 again.
        assert world.admin.ask("DELETE", f"{path}/schema?force=true")[0] == 200
        assert world.admin.ask("POST", f"{path}/schema", {"type": "AVRO", "schema": newer, "properties": {}})[0] == 200
        eventually(lambda: recorded() == [(0, "AVRO"), (0, "AVRO"), (1, "AVRO")])


def test_registered_subscription_holds_entries_until_it_has_read_a_segment(world: World) -> None:
    name = "billed"
    topic = f"topic://{NAMESPACE}/{name}"
    config = world.config.with_name("billed.toml")
    config.write_text(
        world.config.read_text().replace("[offload]", 'subscribers_interval = "500ms"\n[offload]')
        + '[retention]\npolicy = "consumption"\n'
    )
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=1")
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}/subscriptions/billing?type=QUEUE")
    world.client.produce(topic, count=200, keys=KEYS, prefix="before")
    world.change(name, "split/0")
    world.client.produce(topic, count=200, keys=KEYS, prefix="after")

    def cut() -> Mapping[str, Any]:
        found = None
        with suppress(NotFoundError):
            found = (
                offloader.open_store(world.url).stream(topic).retention().registry().subscribers.get("pulsar:billing")
            )
        return {} if found is None or found.cut is None else found.cut.as_json()

    with Serving(config):
        eventually(lambda: cut().keys() == {"0.0", "1.0", "2.0"})
        unread = cut()
        world.admin.do("POST", f"scalable/{NAMESPACE}/{name}/subscriptions/billing/skip-all")
        eventually(lambda: all(cut()[each] != unread[each] for each in unread))
        recorded = world.recorded(name)
        end = recorded.by_id[0].end
        assert end is not None
        assert cut()["0.0"] == str(end.next())


def is_there(stream: offloader.Stream) -> bool:
    try:
        stream.segments()
    except NotFoundError:
        return False
    return True
