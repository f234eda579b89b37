"""Scalable topics of a real broker, offloaded by sidecars that are killed while segments split, merge and disappear."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

import offloader
from formats.pulsar.messages import MessageOptions
from offloader.errors import NotFoundError
from offloader.manifest.topic_layouts import in_order, read_layout
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.pulsar.broker import Broker, running_broker
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import ScalableClient, running_scalable_client
from tests.proof.interop.record_scalable_layouts import Admin
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

NAMESPACE = "public/served"
KEYS = 20
#: Columns that tell the messages of one producer apart.
IDENTITY = ("producer_name", "sequence_id", "batch_index")
_Sent = dict[str, list[str]]


@dataclass
class World:
    """A broker of Pulsar 5 with short ledgers, a client of it, and the store and settings of sidecars."""

    broker: Broker
    client: ScalableClient
    admin: Admin
    config: Path
    url: str

    def store(self) -> ObjectStore:
        return open_store(self.url)

    def layout(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.admin.get(f"scalable/{NAMESPACE}/{name}")["segments"]
        return found

    def active(self, name: str) -> list[int]:
        """The active segments, ascending by hash."""
        rows = [row for row in self.layout(name).values() if row["active"]]
        return [row["segmentId"] for row in sorted(rows, key=lambda row: row["hashRange"]["start"])]

    def change(self, name: str, what: str) -> None:
        self.admin.do("POST", f"scalable/{NAMESPACE}/{name}/{what}")

    def read(self, name: str) -> _Sent:
        """Key -> the values in the store, in the order in which the topic is read."""
        return self.values(f"topic://{NAMESPACE}/{name}")

    def of_segments(self, name: str) -> _Sent:
        """The same as the broker stored them: each segment by its own name, parents first."""
        layout = read_layout(self.store(), f"{NAMESPACE}/topic/{name}")
        assert layout is not None
        found: _Sent = {}
        for row in (row for group in in_order(layout) for row in group):
            added(found, self.values(row.stream))
        return found

    def has_all(self, name: str, sent: _Sent) -> bool:
        """Whether every message can be read, once, and those of a key in the order of the segments.

        That isn't always the order of sending: after a split or a merge, a producer of 5.0.0-M1 that sends again what
        wasn't acknowledged may send it behind later messages of the key.
        """
        found = self.read(name)
        return {key: sorted(values) for key, values in found.items()} == {
            key: sorted(values) for key, values in sent.items()
        } and found == self.of_segments(name)

    def values(self, name: str) -> _Sent:
        """The same without what a producer sent twice: after a lost connection it repeats batches, which this broker
        doesn't recognise."""
        found, seen = _Sent(), set[tuple[object, ...]]()
        stream = offloader.open_store(self.url).stream(name)
        try:
            scan = stream.scan()
        except NotFoundError:
            return found
        for batch in scan.messages(MessageOptions(columns=(*IDENTITY, "key", "value"), join_chunks=True)):
            for *identity, key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if tuple(identity) not in seen:
                    seen.add(tuple(identity))
                    found.setdefault(key, []).append(value.decode())
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("served")
    settings = {
        "managedLedgerMaxEntriesPerLedger": "20",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        # "A sealed segment that is never complete" in docs/how-to/scalable-topics.md says why.
        "topicFencingTimeoutSeconds": "2",
    }
    with (
        running_broker(folder / "broker", settings, release=SCALABLE) as broker,
        running_scalable_client(folder / "client", broker.service_url) as client,
    ):
        admin = Admin(broker)
        admin.do("PUT", f"namespaces/{NAMESPACE}")
        config, url = folder / "offloader.toml", f"file://{folder}/store"
        config.write_text(
            f'streaming_offload = true\n[serve]\nstore = "{url}"\nmaintenance = false\n'
            f'[pulsar]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
            f'topics = ["{NAMESPACE}"]\ndiscovery_interval = "500ms"\n'
            "[offload]\nsegment_age_max = '600ms'\ntakeover_after = '2s'\ndeletion_lag = '0s'\n"
        )
        yield World(broker, client, admin, config, url)


def added(sent: _Sent, more: Mapping[str, Sequence[str]]) -> None:
    for key, values in more.items():
        sent.setdefault(key, []).extend(values)


@pytest.mark.timeout(900)
def test_every_message_is_kept_in_order_through_splits_merges_and_kills(world: World) -> None:
    """100,000 messages, three splits and two merges while they are sent; of two sidecars one is killed, 20 times."""
    name, sent = "orders", _Sent()
    topic = f"topic://{NAMESPACE}/{name}"
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=2")
    changes = ["split/0", "split/1", "merge", "split", "merge"]
    with ThreadPoolExecutor(1) as producer, ExitStack() as stack:
        sidecars = deque([stack.enter_context(Serving(world.config))])
        for part, change in enumerate(changes):
            produced: Future[Mapping[str, Sequence[str]]] = producer.submit(
                world.client.produce, topic, count=20_000, keys=KEYS, prefix=f"part{part}", rate=4000
            )
            for kill in range(4):
                sidecars.append(stack.enter_context(Serving(world.config)))
                if kill == 1:
                    active = world.active(name)
                    if change == "merge":
                        change = f"merge/{active[0]}/{active[1]}"
                    elif change == "split":
                        change = f"split/{active[-1]}"
                    world.change(name, change)
                sidecars.popleft().process.kill()
            added(sent, produced.result())
        eventually(lambda: world.has_all(name, sent), within_s=300)
    assert sum(map(len, sent.values())) == 100_000
    recorded = read_layout(world.store(), f"{NAMESPACE}/topic/{name}")
    assert recorded is not None
    assert len(recorded.segments) == 10
    assert all((row.end is not None) == row.is_sealed for row in recorded.segments)


@pytest.mark.timeout(900)
def test_sealed_segment_is_kept_by_the_broker_until_it_is_offloaded(world: World) -> None:
    name, sent = "held", _Sent()
    topic = f"topic://{NAMESPACE}/{name}"
    world.admin.do("PUT", f"scalable/{NAMESPACE}/{name}?numInitialSegments=1")
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    world.admin.do("POST", f"namespaces/{NAMESPACE}/retention", retention)
    added(sent, world.client.produce(topic, count=200, keys=KEYS, prefix="before"))
    with Serving(world.config):
        eventually(lambda: world.has_all(name, sent))
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
    recorded = read_layout(world.store(), f"{NAMESPACE}/topic/{name}")
    assert recorded is not None
    assert [row.parents for row in recorded.segments] == [(), (0,), (0,)]


def test_regular_topic_is_migrated_while_it_is_offloaded(world: World) -> None:
    name, sent = "plain", _Sent()
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
    name, sent = "told", _Sent()
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
        recorded = read_layout(world.store(), f"{NAMESPACE}/topic/{name}")
        assert recorded is not None
        end = recorded.by_id[0].end
        assert end is not None
        assert cut()["0.0"] == str(end.next())


def is_there(stream: offloader.Stream) -> bool:
    try:
        stream.segments()
    except NotFoundError:
        return False
    return True
