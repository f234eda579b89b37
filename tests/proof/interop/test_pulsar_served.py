"""Topics of a real broker, served: found by pattern, kept for their subscriptions, dropped, deleted."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from formats.entries import Position
from offloader.doctor import check_pulsar
from offloader.errors import NotFoundError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.consumer import first_entries
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.manifest.log import load_manifest
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled
from offloader.service.providers.pulsar import PulsarProvider
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.pulsar.broker import Broker
from tests.proof.interop.broker_topics import command
from tests.support.served import serving, settings_file
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.java

NAMESPACE = "public/served"
TOPIC, STREAM = f"persistent://{NAMESPACE}/orders", f"{NAMESPACE}/persistent/orders"
#: Ledgers of that broker end after 300 entries.
COUNT = 700


def produce(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def served(assembled: Assembled) -> list[str]:
    return [row["stream"] for row in assembled.view.streams().items if row.get("feed") == "pulsar"]


def cut_of(retention: StreamRetention, name: str) -> Position | None:
    found = retention.registry().subscribers.get(name)
    if found is None or found.cut is None:
        return None
    [position] = found.cut.offsets.values()
    assert isinstance(position, Position)
    return position


def test_topics_of_a_real_broker_are_served(plain_broker: Broker, tmp_path: Path) -> None:
    broker = plain_broker
    with AdminClient(broker.admin_url) as admin:
        command(broker, "PUT", f"namespaces/{NAMESPACE}")
        # What nobody needs goes at once.
        keep_nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        command(broker, "POST", f"namespaces/{NAMESPACE}/retention", keep_nothing)
        command(broker, "POST", f"namespaces/{NAMESPACE}/messageTTL", 86_400)
        file = settings(broker)
        store = open_store(f"file://{tmp_path}/store")
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        feed = PulsarProvider(file.settings_of("").pulsar, store, clock=SystemClock())
        with serving(store, file, feed) as assembled:
            subscription = client.subscribe(TOPIC, "billing", initial_position=pulsar.InitialPosition.Earliest)
            eventually(lambda: served(assembled) == [STREAM])
            produce(client, TOPIC, COUNT)
            eventually(lambda: cold(store, STREAM) == COUNT)
            command(broker, "PUT", f"persistent/{NAMESPACE}/parts/partitions", 2)
            parts = [f"{NAMESPACE}/persistent/parts-partition-{number}" for number in range(3)]
            eventually(lambda: served(assembled) == [STREAM, *parts[:2]])
            command(broker, "POST", f"persistent/{NAMESPACE}/parts/partitions", 3)
            eventually(lambda: served(assembled) == [STREAM, *parts])

            check_doctor(file)
            check_sample(file, admin)
            give_up(assembled, store, admin, subscription)

            client.close()
            command(broker, "DELETE", f"persistent/{NAMESPACE}/orders?force=true")
            eventually(lambda: served(assembled) == parts)
        assert load_manifest(store, STREAM).head is not None
        assert cold(store, STREAM)


def settings(broker: Broker) -> SettingsFile:
    return settings_file(
        pulsar__service_url=broker.service_url,
        pulsar__admin_url=broker.admin_url,
        pulsar__topics=(NAMESPACE,),
        pulsar__discovery_interval=0.5,
        pulsar__subscribers_interval=0.5,
        retention__policy="consumption",
        offload__deletion_lag="0.0m",
        offload__segment_age_max="0.02m",
        offload__segment_size_max="1MiB",
    )


def cold(store: ObjectStore, stream: str) -> int:
    """Entries that are committed."""
    try:
        found = load_manifest(store, stream).offloaded()
    except NotFoundError:
        return 0
    return sum(each.summary.entries for each in found if each.summary is not None)


def give_up(assembled: Assembled, store: ObjectStore, admin: AdminClient, subscription: pulsar.Consumer) -> None:
    """What the subscription has consumed goes, in both tiers; what it hasn't stays."""
    first = admin.ledgers(TOPIC).ledgers[0].ledger_id
    for _ in range(400):
        message = subscription.receive(int(1000 * PATIENCE_S))
        subscription.acknowledge(message)
    last = Position(message.message_id().ledger_id(), message.message_id().entry_id())
    assert last.ledger_id > first
    retention = open_retention(store, STREAM)
    # All of it: what the broker hears of later would be behind the head.
    eventually(lambda: (cut_of(retention, "pulsar:billing") or Position(0, 0)) > last)
    cycle = RetentionCycle(
        store,
        clock=SystemClock(),
        settings_of=assembled.process.streams.settings_of,
        source_of=assembled.process.streams.source_of,
    )
    at = cut_of(retention, "pulsar:billing")
    cycle.run(STREAM)
    head = load_manifest(store, STREAM).head
    assert at is not None
    assert head is not None
    assert head >= at
    eventually(lambda: admin.ledgers(TOPIC).ledgers[0].ledger_id > first)
    left = admin.internals(TOPIC)
    assert left.ledgers.ledgers[0].ledger_id <= head.ledger_id
    assert left.cursors["billing"] < head


def check_sample(file: SettingsFile, admin: AdminClient) -> None:
    """What ``doctor`` measures compression on: the oldest entries, by a reader that leaves nothing behind."""
    before = admin.stats(TOPIC).subscriptions.keys()
    with PulsarCluster(file.settings_of("").pulsar) as cluster:
        sample = first_entries(cluster.client, TOPIC, bytes_max=4096, wait_s=PATIENCE_S, clock=SystemClock())
    assert sum(each.payload_bytes for each in sample) >= 4096
    assert sample[0].first == Position(admin.ledgers(TOPIC).ledgers[0].ledger_id, 0)
    eventually(lambda: admin.stats(TOPIC).subscriptions.keys() == before)


def check_doctor(file: SettingsFile) -> None:
    found = {each.check: each for each in check_pulsar(file.settings_of("").pulsar, SystemClock())}
    assert {name: each.outcome.value for name, each in found.items()} == {
        "pulsar broker": "ok",
        "pulsar admin": "ok",
        "pulsar entries": "ok",
        "pulsar topics": "ok",
        "pulsar subscriptions": "ok",
        f"pulsar namespace {NAMESPACE}": "warning",
    }
    assert "message TTL is 86400 s" in found[f"pulsar namespace {NAMESPACE}"].what
