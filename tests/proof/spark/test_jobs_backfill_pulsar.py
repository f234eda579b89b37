"""The job ``backfill`` over Pulsar topics: a real broker, before and beside a process that offloads; killed tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

import offloader
from formats.entries import Position
from formats.manifest import Failed
from formats.pulsar.entry import decode_frame
from offloader.coverage import GapReason
from offloader.errors import FencedError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.views import PulsarTopics
from offloader.manifest.log import list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.service.providers.pulsar import PulsarProvider
from offloader.settings import PulsarSettings
from offloader.spark.jobs import Backfilled, backfill
from offloader.store.base import ObjectStore
from services.pulsar.broker import Broker
from tests.proof.interop.broker_topics import command
from tests.spark.hot_tier import MisbehavingLedgers, edits_of, settings_of
from tests.spark.jobs.test_backfill_pulsar import STREAMS, TOPICS, require_whole
from tests.spark.jobs.test_backfill_pulsar import bench as bench
from tests.spark.jobs.test_backfill_pulsar import run as run
from tests.spark.jobs.test_backfill_pulsar import store as store
from tests.support.readback import stored_entries
from tests.support.served import serving, settings_file
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.ledgers.pulsar_bench import PulsarBench

pytestmark = pytest.mark.java

NAMESPACE = "public/backfilled"
P, S = f"persistent://{NAMESPACE}/", f"{NAMESPACE}/persistent/"
PARTITIONS = [f"{S}clicks-partition-{number}" for number in range(3)]
#: Ledgers of that broker end after 300 entries.
COUNTS = {"orders": 1000, "clicks": 2000, "payments": 310}


@pytest.fixture
def client(plain_broker: Broker) -> Iterator[pulsar.Client]:
    """Of a namespace that keeps everything, with a topic, a partitioned one, and one with transactions."""
    command(plain_broker, "PUT", f"namespaces/{NAMESPACE}")
    keep_all = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    command(plain_broker, "POST", f"namespaces/{NAMESPACE}/retention", keep_all)
    command(plain_broker, "PUT", f"persistent/{NAMESPACE}/clicks/partitions", 3)
    made = pulsar.Client(
        plain_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
    )
    for name, count in COUNTS.items():
        send(made, name, 0, count // 2)
        if name == "payments":
            plain_broker.transaction(P + name, 3, "commit")
            plain_broker.transaction(P + name, 2, "abort")
        send(made, name, count // 2, count)
    yield made
    made.close()


def send(client: pulsar.Client, name: str, begin: int, end: int) -> None:
    mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    producer = client.create_producer(
        P + name, batching_enabled=False, block_if_queue_full=True, message_routing_mode=mode
    )
    for number in range(begin, end):
        producer.send_async(b"%s %d" % (name.encode(), number), None)
    producer.flush()
    producer.close()


def values(store: ObjectStore, name: str) -> dict[str, list[bytes]]:
    """Of each stream of a topic, its messages' values in order."""
    found: dict[str, list[bytes]] = {}
    with closing(offloader.open_store(store.url)) as opened:
        table = opened.stream(P + name).scan(columns=["stream", "payload"]).to_table()
    for stream, entry in zip(table["stream"].to_pylist(), table["payload"].to_pylist(), strict=True):
        found.setdefault(stream, []).append(entry[decode_frame(entry).payload_start :])
    return found


def numbers(found: list[bytes], name: str) -> list[int]:
    return [int(each.split()[1]) for each in found if each.startswith(name.encode() + b" ")]


def require_messages(store: ObjectStore, **counts: int) -> None:
    """Each message of the topics once, and in each stream in the order in which it was sent."""
    for name, count in counts.items():
        by_stream = {stream: numbers(each, name) for stream, each in values(store, name).items()}
        assert all(each == sorted(each) for each in by_stream.values())
        assert sorted(number for each in by_stream.values() for number in each) == list(range(count))


def test_history_of_a_real_broker_is_backfilled_once_and_then_served(
    spark: SparkSession, plain_broker: Broker, client: pulsar.Client, store: ObjectStore
) -> None:
    cluster = PulsarSettings(service_url=plain_broker.service_url, admin_url=plain_broker.admin_url)

    def run(*topics: str, **more: Any) -> dict[str, Backfilled]:
        done = backfill(spark, topics, {"store": store.url}, ledgers=cluster, config=settings_of(), **more)
        return {each.stream: each for each in done}

    done = run(f"{P}*")
    assert {stream: each.error for stream, each in done.items()} == dict.fromkeys(
        [*PARTITIONS, f"{S}orders", f"{S}payments"]
    )
    require_messages(store, **COUNTS)
    assert len(done[f"{S}orders"].offloaded) > 1
    payments = load_manifest(store, f"{S}payments")
    assert {gap.reason for gap in payments.gaps} == {GapReason.UNDELIVERED}
    assert len(values(store, "payments")[f"{S}payments"]) == COUNTS["payments"] + 3
    with AdminClient(plain_broker.admin_url) as admin:
        eventually(lambda: not admin.stats(f"{P}orders").subscriptions)
        ledgers = [(each.ledger_id, each.entries) for each in admin.ledgers(f"{P}orders").ledgers[:-1]]
        assert len(ledgers) >= 3
        require_same_bytes(plain_broker, store, ledgers)

        objects = {info.key for info in store.list("").objects}
        again = run(f"{P}*", take_over=True)
        assert [(each.offloaded, each.error) for each in again.values()] == [((), None)] * 5
        assert {info.key for info in store.list("").objects} == objects

        file = settings_file(
            pulsar__service_url=plain_broker.service_url,
            pulsar__admin_url=plain_broker.admin_url,
            pulsar__topics=(NAMESPACE,),
            offload__deletion_lag="0.0m",
            offload__segment_age_max="0.02m",
        )
        feed = PulsarProvider(file.settings_of("").pulsar, store, clock=SystemClock())
        with serving(store, file, feed):
            eventually(lambda: consumers(admin) == 1)
            refused = run(f"{P}orders")[f"{S}orders"]
            assert isinstance(refused.error, FencedError)
            send(client, "orders", COUNTS["orders"], COUNTS["orders"] + 400)
            eventually(lambda: len(stored_entries(store, f"{S}orders")) == COUNTS["orders"] + 400)
            require_messages(store, **{**COUNTS, "orders": COUNTS["orders"] + 400})
            # What the job has offloaded is acknowledged by the process.
            end = Position(ledgers[2][0], ledgers[2][1] - 1)
            eventually(lambda: admin.internals(f"{P}orders").cursors["offloader"] >= end)
    assert load_manifest(store, f"{S}orders").gaps == ()


def consumers(admin: AdminClient) -> int:
    found = admin.stats(f"{P}orders").subscriptions.get("offloader")
    return 0 if found is None else found.consumers


def require_same_bytes(broker: Broker, store: ObjectStore, ledgers: list[tuple[int, int]]) -> None:
    """Closed ledgers of the orders are in the store as the bookie has them."""
    cold = dict(stored_entries(store, f"{S}orders"))
    for ledger_id, entries in ledgers:
        hot = broker.hot(ledger_id, 0, entries - 1)
        assert [cold[Position(ledger_id, each)] for each in range(entries)] == hot


@pytest.mark.parametrize("moment", ["die_reading", "die_done"])
def test_killed_task_of_a_topic_is_retried_under_another_uuid(
    run: Any, bench: PulsarBench, store: ObjectStore, tmp_path: Path, moment: str
) -> None:
    (tmp_path / "tasks").mkdir()
    misbehaviour: dict[str, Any] = {moment: [1]}
    opened = partial(PulsarTopics, replace(bench.settings, topics=("public/default",)))
    open_hot = partial(MisbehavingLedgers, folder=tmp_path / "tasks", opened=opened, **misbehaviour)
    done = run("public/default/persistent/clicks-partition-0", ledgers=bench.broker.url, open_hot=open_hot)
    assert done[STREAMS[0]].error is None
    require_whole(store, bench, TOPICS[0])
    assert list_streams(store) == [STREAMS[0]]
    (failed,) = [edit for edit in edits_of(store, STREAMS[0]) if isinstance(edit, Failed)]
    assert "an executor's process ended" in failed.reason
