"""A real broker's topic, offloaded and replayed into other topics: consumers get the original messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from formats.entries import EntryBatch, Position
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.consumer import Consumer, Delivery
from offloader.ledgers.pulsar.protocol import PulsarClient
from offloader.replay import ProgressFile
from offloader.store.open import open_store
from services.pulsar.broker import Broker
from tests.proof.interop.broker_topics import NAMESPACE, command, topic_of
from tests.support.streams import StreamWriter
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.java

MESSAGES = 900
SOURCE = topic_of("replayed")
STREAM = f"{NAMESPACE}/persistent/replayed"


@dataclass
class Place:
    broker: Broker
    client: pulsar.Client
    admin: AdminClient
    store_url: str

    def command(self, target: str, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "offloader.cli.main", "export", "pulsar", STREAM, "--dest", target),
            *("--store", self.store_url, "--service-url", self.broker.service_url, *more),
        ]

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Everything a reader gets, until there is nothing more."""
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            each = reader.read_next(30_000)
            found.append(
                {
                    "value": each.data(),
                    "key": each.partition_key(),
                    "ordering_key": each.ordering_key(),
                    "properties": each.properties(),
                    "event_time": each.event_timestamp(),
                    "publish_time": each.publish_timestamp(),
                }
            )
        reader.close()
        return found


@pytest.fixture(scope="module")
def place(plain_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(plain_broker.service_url, logger=quiet)
    produce(client)
    with AdminClient(plain_broker.admin_url) as admin:
        place = Place(plain_broker, client, admin, f"file://{tmp_path_factory.mktemp('replay')}/store")
        offload(place)
        yield place
    client.close()


def produce(client: pulsar.Client) -> None:
    """Batches, single messages, two codecs, keys of the client's kinds, all in one topic."""
    options: list[dict[str, Any]] = [
        {"batching_enabled": False},
        {
            "batching_enabled": True,
            "batching_max_messages": 7,
            "batching_max_publish_delay_ms": 60_000,
            "compression_type": pulsar.CompressionType.LZ4,
        },
        {
            "batching_enabled": True,
            "batching_type": pulsar.BatchingType.KeyBased,
            "batching_max_messages": 20,
            "compression_type": pulsar.CompressionType.ZSTD,
        },
    ]
    for kind, each in enumerate(options):
        producer = client.create_producer(SOURCE, block_if_queue_full=True, **each)
        for number in range(MESSAGES // len(options)):
            producer.send_async(
                f"{kind} {number} ".encode() * (number % 40),
                None,
                partition_key=f"key {number % 5}",
                ordering_key=f"o{number % 3}",
                properties={"number": str(number), "kind": str(kind)},
                event_timestamp=1_600_000_000_000 + number,
            )
        producer.flush()
        producer.close()


def offload(place: Place) -> None:
    """The topic's entries as they are stored, in segments."""
    writer = StreamWriter(open_store(place.store_url), STREAM, block_bytes=64 * 1024)
    with PulsarClient(place.broker.service_url) as client:
        reader = Consumer(client, SOURCE, "offload", start=Position(0, 0))
        end, taken = reader.last_position(), list[Delivery]()
        eventually(lambda: taken and taken[-1].position == end, first=lambda: taken.extend(reader.take(1.0)))
        reader.close()
    for ledger_id in sorted({each.position.ledger_id for each in taken}):
        own = [each for each in taken if each.position.ledger_id == ledger_id]
        batch = EntryBatch.build(
            ledger_id, own[0].position.entry_id, [each.entry for each in own], [each.publish_time_ms for each in own]
        )
        writer.add([batch], closes=[ledger_id])


@pytest.mark.parametrize("deduplicates", [True, False])
def test_after_every_kill_consumers_get_every_message_once(place: Place, tmp_path: Path, deduplicates: bool) -> None:
    name = f"target-{'once' if deduplicates else 'plain'}"
    target = topic_of(name)
    command(place.broker, "PUT", f"persistent/{NAMESPACE}/{name}")
    if deduplicates:
        command(place.broker, "POST", f"persistent/{NAMESPACE}/{name}/deduplicationEnabled", True)
        eventually(lambda: place.admin.stats(target).deduplicates)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def has_noted() -> bool:
        return any(ProgressFile(path).read() for path in tmp_path.rglob("*.json"))

    def is_far(upto: int) -> bool:
        # The first is killed before it notes how far it is, or after; the second after.
        return stored(place, target) >= upto and (upto == 80 or has_noted())

    for upto in (80, 250):
        words = place.command(target, "--rate", "200")
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment) as process:
            eventually(partial(is_far, upto))
            process.send_signal(signal.SIGKILL)
        if upto > 80:
            command(place.broker, "PUT", f"persistent/{NAMESPACE}/{name}/unload")
    done = subprocess.run(place.command(target), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "an earlier run sent up to" in done.stdout
    assert "twice" not in done.stdout

    origin, found = place.messages(SOURCE), place.messages(target)
    assert len(origin) == MESSAGES
    assert found == origin


def test_of_two_replays_at_once_on_two_machines_one_sends(place: Place, tmp_path: Path) -> None:
    target = topic_of("target-twice")
    command(place.broker, "PUT", f"persistent/{NAMESPACE}/target-twice")
    first, second = ({**os.environ, "XDG_STATE_HOME": str(tmp_path / name)} for name in ("one", "two"))
    with subprocess.Popen(place.command(target, "--rate", "10"), stdout=subprocess.DEVNULL, env=first) as process:
        eventually(lambda: stored(place, target) >= 20)
        with subprocess.Popen(place.command(target), stderr=subprocess.PIPE, text=True, env=second) as late:
            assert late.stderr is not None
            # The broker lets one producer of a name in.
            assert any("a producer of that name is connected" in line for line in late.stderr)
            assert process.poll() is None
            process.terminate()
            late.communicate(timeout=PATIENCE_S)
        assert late.returncode == 0
    assert place.messages(target) == place.messages(SOURCE)


def stored(place: Place, topic: str) -> int:
    internals = place.admin.internals(topic)
    return internals.open_entries + sum(ledger.entries for ledger in internals.ledgers.ledgers)


def test_the_admin_interface_of_a_real_broker(place: Place) -> None:
    # No slash: with transactions a broker makes a topic's name of a subscription's, and waits for that one for ever.
    subscription = place.client.subscribe(SOURCE, "sub a+b=c", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(10):
        subscription.acknowledge(subscription.receive(int(1000 * PATIENCE_S)))
    assert NAMESPACE in place.admin.namespaces()
    assert SOURCE in place.admin.topics(NAMESPACE)
    assert place.admin.policies(NAMESPACE)["replication_clusters"]
    assert place.admin.stats(SOURCE).subscriptions["sub a+b=c"].is_durable
    eventually(lambda: place.admin.internals(SOURCE).cursors["sub a+b=c"].entry_id >= 9)
    place.admin.trim(SOURCE)
    subscription.close()
