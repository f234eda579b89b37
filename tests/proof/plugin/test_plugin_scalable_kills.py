"""A scalable topic through kills of its broker and sidecars, then read by everything without the bookie's copies.

After a lost connection a producer may send a batch again, which its broker doesn't recognise: all readers must receive
the same messages, and those include every acknowledged one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import offloader
from formats.pulsar.messages import MessageOptions
from offloader import iceberg
from offloader.errors import NotFoundError
from services.pulsar.broker import ZOOKEEPER
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import running_scalable_client
from tests.plugin.plugin_world import NAMESPACE, PluginWorld
from tests.proof.interop.record_scalable_layouts import Admin
from tests.proof.interop.scalable_world import CHANGES, SETTINGS, Sent, World
from tests.proof.plugin.test_plugin_scalable import is_offloaded, ledgers_of, segments, send_until_offloaded
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

NAME = "killed"
TOPIC = f"topic://{NAMESPACE}/{NAME}"
MESSAGES = 100_000
#: So many that every segment has messages: after its restart, a broker of 5.0.0-M1 refuses readers of a sealed segment
#: without any.
KEYS = 400
LEDGER_ENTRIES = 200
#: Before each change. On a loaded machine, some segment nearly always has a ledger that waits for the next one.
OFFLOADED_PART_MIN = 0.8
#: The bookie keeps the last ledger of each segment, and those that a killed broker didn't offload.
COLD_PART_MIN = 0.7

#: (segment, key) -> values.
Received = Mapping[tuple[int, str], list[str]]


def by_segment_and_key(messages: Iterable[tuple[int, str, str]]) -> Received:
    found: dict[tuple[int, str], list[str]] = {}
    for segment, key, value in messages:
        found.setdefault((segment, key), []).append(value)
    return found


def stored(world: World) -> Received:
    """What the library reads, segment by segment; a segment without messages has no stream."""
    return by_segment_and_key(
        (row.id, key, value)
        for row in world.recorded(NAME).segments
        for key, value in stored_in(offloader.Store(world.store()).stream(row.stream))
    )


def stored_in(stream: offloader.Stream) -> Iterator[tuple[str, str]]:
    options = MessageOptions(columns=("key", "value"), join_chunks=True)
    with suppress(NotFoundError):
        for batch in stream.scan().messages(options):
            for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield key, value.decode()


def forget_cold(plugin: PluginWorld) -> int:
    """Deletes the bookie's copies of offloaded ledgers; their bytes."""
    ledgers = [each for segment in segments(plugin, TOPIC) for each in ledgers_of(plugin, segment)]
    cold = [each for each in ledgers if is_offloaded(each)]
    assert len(cold) > COLD_PART_MIN * len(ledgers)
    for each in cold:
        if plugin.bookie_has(each.ledger_id):
            plugin.broker.forget(each.ledger_id)
    plugin.admin("PUT", f"namespaces/{NAMESPACE}/unload")  # handles of deleted ledgers
    return sum(each.size_bytes or 0 for each in cold)


@pytest.mark.timeout(2400)
def test_every_reader_receives_the_same_messages_after_kills_and_without_hot_copies(
    servers: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """20 kills, of sidecars, of the broker or of both together, while 100,000 messages are sent, through three splits
    and two merges."""
    endpoint = servers["minio"]
    settings = {
        **{name: value for name, value in SETTINGS.items() if name != "managedLedgerMaxEntriesPerLedger"},
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
        "managedLedgerCacheSizeMB": "0",  # else it would answer for the plugin
        # The test deletes the bookie's copies of ledgers in sealed segments, and the broker must not look for them.
        "managedLedgerDataReadPriority": "tiered-storage-first",
    }
    with (
        PluginWorld(
            tmp_path / "plugin",
            endpoint,
            release=SCALABLE,
            ledger_entries=LEDGER_ENTRIES,
            broker_settings=settings,
            endpoints=("sidecar", "standby"),
            # With metadata in RocksDB, a broker couldn't open a ledger once after a kill, for a digest mismatch.
            environment=ZOOKEEPER,
        ) as plugin,
        running_scalable_client(tmp_path / "client", plugin.service_url) as client,
    ):
        plugin.start_sidecar("standby")
        where = {
            "endpoint_url": endpoint.url,
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "region": "us-east-1",
        }
        config = plugin.folder / "sidecar.toml"
        world = World(plugin.broker, client, Admin(plugin.broker), config, plugin.store_url, where, NAMESPACE)
        world.admin.do("PUT", f"scalable/{NAMESPACE}/{NAME}?numInitialSegments=2")

        def kill(number: int) -> None:
            name = "sidecar" if number % 2 else "standby"
            if number % 3 != 1:
                plugin.kill_sidecar(name)
            if number % 3:
                plugin.broker.kill()
                plugin.broker.close()
                plugin.start_broker()
                world.broker = plugin.broker
            if number % 3 != 1:
                plugin.start_sidecar(name)

        rounds = count()

        def settle(sent: Sent) -> None:
            prefix = f"settled{next(rounds)}"
            send_until_offloaded(
                plugin, client, TOPIC, sent, prefix, count=3 * KEYS, keys=KEYS, part_min=OFFLOADED_PART_MIN
            )

        sent = world.sent_through_kills(NAME, kill, count=MESSAGES, keys=KEYS, settle=settle)
        consumed = by_segment_and_key(client.checkpoint(TOPIC, count=10**9))
        eventually(lambda: stored(world) == consumed)
        made = sum({"split": 2, "merge": 1}[each] for each in CHANGES.values())
        assert len(world.recorded(NAME).segments) == 2 + made
        received = Counter((key, value) for (_, key), values in consumed.items() for value in values)
        assert all(received[key, value] for key, values in sent.items() for value in values)

        cold_bytes = forget_cold(plugin)
        for consume in (
            client.checkpoint,
            lambda topic, count: client.stream(topic, "in-order", count=count),
            lambda topic, count: client.queue(topic, "workers", count=count),
        ):
            before = plugin.bytes_read()
            assert by_segment_and_key(consume(TOPIC, count=received.total())) == consumed
            assert plugin.bytes_read() >= before + cold_bytes

        options = {"store": world.url, "stream": TOPIC, "content": "messages", "columns": "key,value"}
        keys = {"endpointUrl": endpoint.url, "accessKey": endpoint.access_key, "secretKey": endpoint.secret_key}
        frame = spark.read.format("offloader").options(**options, **keys, region="us-east-1").load()
        assert Counter((row.key, bytes(row.value).decode()) for row in frame.toLocalIterator()) == received

        catalog, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
        topic = offloader.Store(world.store()).stream(TOPIC)
        topic.export.iceberg("lake.killed", catalog=catalog, warehouse=warehouse, content="messages")
        table = iceberg.open_table("lake.killed", catalog=catalog, content="messages").scan(
            selected_fields=("key", "value")
        )
        exported = zip(*(table.to_arrow()[name].to_pylist() for name in ("key", "value")), strict=True)
        assert Counter((key, value.decode()) for key, value in exported) == received
