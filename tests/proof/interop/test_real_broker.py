"""A real Pulsar broker offloads to MinIO; we adopt its bucket, and it reads what we wrote in its place.

Every entry is compared with the bookie's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pulsar
import pytest

from formats.entries import EntryBatch, Position
from formats.keys import data_key, index_key, new_segment_uuid, parse_object_key
from formats.pulsar.messages import messages
from formats.segment_map import SegmentMap
from offloader.adopt import adopt
from offloader.errors import NotFoundError
from offloader.gc.orphans import Outcome
from offloader.gc.reconcile import StoreReconciliation
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.protocol import PulsarClient
from offloader.ledgers.pulsar.topics import TopicLedgers
from offloader.manifest.protection import store_time_ms
from offloader.read.reader import Reader, open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, ManifestSettings, OffloadSettings, Settings, Size
from offloader.store.base import ObjectStore, StoreOptions
from offloader.store.open import ObjectsPlace, create_catalogue, open_store
from offloader.write.offloader import LedgerOffloader
from services.pulsar.asked import Refused
from services.pulsar.broker import Broker, offload_settings, running_broker
from services.servers import make_bucket
from tests.proof.interop.broker_topics import KINDS, NAMESPACE, Produced, command, offloaded, produce, topic_of
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

BUCKET = "pulsar-offloads"
#: Of the topic whose objects are replaced by ours.
OURS = "replaced"
BLOCK_BYTES = 5 * 1024 * 1024


@dataclass
class Place:
    """A broker, its client, the bucket it offloads to, and what was produced."""

    broker: Broker
    client: pulsar.Client
    admin: AdminClient
    store: ObjectStore
    options: dict[str, str]
    produced: dict[str, Produced]
    ours: Produced
    ledgers: dict[str, TopicLedgers]

    def closed(self, kind: str) -> list[tuple[int, int]]:
        """Ledger and last entry of a topic's closed ledgers that have entries."""
        return [(ledger_id, last) for ledger_id, last in self.ledgers[kind].closed.items() if last >= 0]

    def hot(self, kind: str) -> list[tuple[Position, bytes]]:
        """Every entry of the closed ledgers, from the bookie."""
        return [
            (Position(ledger_id, entry_id), payload)
            for ledger_id, last in self.closed(kind)
            for entry_id, payload in enumerate(hot_entries(self.broker, ledger_id, last))
        ]


def hot_entries(broker: Broker, ledger_id: int, last: int) -> Iterator[bytes]:
    """A ledger's entries from the bookie, in answers of bounded length."""
    for first in range(0, last + 1, 100):
        yield from broker.hot(ledger_id, first, min(first + 99, last))


def cold_entries(broker: Broker, ledger_id: int, uuid: str, last: int) -> Iterator[bytes]:
    """The same from the broker's offloader."""
    for first in range(0, last + 1, 100):
        yield from broker.cold(ledger_id, uuid, first, min(first + 99, last))


def read_entries(reader: Reader) -> list[tuple[Position, bytes]]:
    return [(entry.position, bytes(entry.payload)) for batch in reader.scan() for entry in batch.entries()]


@pytest.fixture(scope="module")
def place(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One broker for all tests, with every kind of topic written and offloaded."""
    endpoint = servers["minio"]
    make_bucket(endpoint, BUCKET)
    settings = {
        **offload_settings(endpoint.url, BUCKET),
        "managedLedgerOffloadMaxBlockSizeInBytes": str(BLOCK_BYTES),
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
    }
    keys = {"ACCESS_KEY_ID": endpoint.access_key, "ACCESS_KEY_SECRET": endpoint.secret_key}
    options = {"endpoint_url": endpoint.url, "access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
    store = open_store(f"s3://{BUCKET}", region="us-east-1", **options)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with running_broker(tmp_path_factory.mktemp("broker"), settings, keys) as broker:
        client = pulsar.Client(broker.service_url, logger=quiet)
        with AdminClient(broker.admin_url) as admin:
            produced = {kind: produce(client, kind) for kind in KINDS}
            ours = produce(client, "batched-lz4", name=OURS)
            ledgers = {kind: offloaded(admin.ledgers, each) for kind, each in [*produced.items(), (OURS, ours)]}
            yield Place(broker, client, admin, store, options, produced, ours, ledgers)
        client.close()
    store.close()


@pytest.fixture
def catalogue(place: Place, tmp_path: Path) -> ObjectStore:
    """The bucket, with manifests in a directory."""
    url = f"catalogue://{tmp_path}/notes"
    create_catalogue(url, ObjectsPlace(place.store.url, place.options["endpoint_url"], "us-east-1"), StoreOptions())
    return open_store(url, access_key=place.options["access_key"], secret_key=place.options["secret_key"])


def versions_in(store: ObjectStore) -> dict[str, str]:
    """ETag of every object."""
    found: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        page = store.list("", after=after)
        found |= {info.key: info.etag for info in page.objects}
        after = page.next_after
    return found


def keys_in(store: ObjectStore) -> list[str]:
    return list(versions_in(store))


def test_every_entry_of_an_adopted_bucket_is_the_bookies(place: Place, catalogue: ObjectStore) -> None:
    before = versions_in(place.store)

    done = adopt(catalogue, clock=SystemClock(), deep=True)

    assert (done.problems, done.unmatched.count, done.foreign.count) == ([], 0, 0)
    written = [*place.produced.values(), place.ours]
    assert sorted(each.stream for each in done.streams) == sorted(each.stream for each in written)
    for kind, produced in place.produced.items():
        assert len(place.closed(kind)) >= (1 if kind == "unbatched-zstd" else 2)
        assert read_entries(open_stream_reader(catalogue, produced.stream)) == place.hot(kind), kind
    # The broker may have offloaded more meanwhile. Of ours there is nothing in its bucket.
    after = versions_in(place.store)
    assert before.items() <= after.items()
    assert [key for key in after if "/" in key] == []


def test_without_reading_entries_the_same_is_recorded(place: Place, catalogue: ObjectStore) -> None:
    deep = adopt(catalogue, clock=SystemClock(), deep=True, dry_run=True)
    quick = adopt(catalogue, clock=SystemClock(), dry_run=True)

    assert quick.problems == []
    for each, other in zip(quick.streams, deep.streams, strict=True):
        assert each == other


def test_topic_listing_decides_ownership_without_metadata(place: Place, tmp_path: Path) -> None:
    copy = open_store(f"file://{tmp_path}/copy")
    for key in keys_in(place.store):
        body, info = place.store.get(key)
        kept = {name: value for name, value in info.metadata.items() if "formatversion" in name}
        copy.put(key, body, metadata=kept)
    topics = [place.admin.ledgers(topic) for topic in place.admin.topics(NAMESPACE)]

    done = adopt(copy, clock=SystemClock(), topics=topics)

    assert done.unmatched.count == 0
    found = {each.stream: each for each in done.streams}
    for kind, produced in place.produced.items():
        each = found[produced.stream]
        assert (each.left_out, each.missing, each.unreadable) == ([], [], 0)
        assert read_entries(open_stream_reader(copy, produced.stream)) == place.hot(kind)


def taken(consumer: Consumer, last: Position) -> list[tuple[Position, bytes]]:
    """What a consumer gives until ``last``, without what follows."""
    found: list[tuple[Position, bytes]] = []

    def is_done() -> bool:
        found.extend((each.position, each.entry) for each in consumer.take(1.0))
        return bool(found) and found[-1][0] >= last

    eventually(is_done)
    return [each for each in found if each[0] <= last]


def test_raw_entries_of_our_client_are_the_bookies(place: Place) -> None:
    with PulsarClient(place.broker.service_url) as client:
        for kind, produced in place.produced.items():
            hot = place.hot(kind)
            for begin in (0, len(hot) // 2):
                reader = Consumer(client, produced.topic, "reader", start=hot[begin][0])
                assert taken(reader, hot[-1][0]) == hot[begin:], kind
                reader.close()
            assert client.partitions(produced.topic) == 0
        with pytest.raises(NotFoundError, match="no such topic"):
            Consumer(client, topic_of("nobody wrote this"), "reader").take()
        with pytest.raises(NotFoundError, match="no such topic"):
            client.connection("persistent://public/nowhere/topic")


def test_subscription_continues_after_the_acknowledged_position(place: Place) -> None:
    topic, hot = place.produced["batched-lz4"].topic, place.hot("batched-lz4")
    half = len(hot) // 2
    with PulsarClient(place.broker.service_url) as client:
        first = Consumer(client, topic, "offloader")
        assert taken(first, hot[-1][0]) == hot
        assert first.is_active
        first.acknowledge(hot[half][0])
        standby = Consumer(client, topic, "offloader")
        assert standby.take() == []
        first.close()
        assert taken(standby, hot[-1][0]) == hot[half + 1 :]
        standby.close()


def test_indexes_are_parsed_as_by_the_broker(place: Place) -> None:
    indexes = [key for key in keys_in(place.store) if key.endswith("-index")]
    assert len(indexes) >= 10
    for key in indexes:
        parsed = parse_object_key(key, "")
        assert parsed is not None
        body, _ = place.store.get(key)
        ours = SegmentMap.parse(body, ledger_id=parsed.ledger_id)
        blocks, [group] = ours.blocks, ours.ledgers
        first = blocks.first_entry_id.tolist()
        between = [(a + b) // 2 for a, b in zip(first, [*first[1:], group.last_entry_id + 1], strict=True)]
        theirs = place.broker.index(body, [*first, *between])

        assert (theirs["data_bytes"], theirs["header_bytes"]) == (ours.data_bytes, ours.header_bytes)
        assert (theirs["count"], theirs["last"], theirs["closed"]) == (len(blocks), group.last_entry_id, group.closed)
        # A reader of theirs goes to the block's entries, past its header.
        expected = [[entry, offset] for entry, offset in zip(first, blocks.offset.tolist(), strict=True)] * 2
        assert [[entry, offset] for entry, _, offset in theirs["blocks"]] == expected


def test_adopted_messages_are_the_produced_ones(place: Place, catalogue: ObjectStore) -> None:
    adopt(catalogue, clock=SystemClock())
    for kind, produced in place.produced.items():
        found = [
            (row["key"], row["value"], dict(row["properties"] or []))
            for batch in open_stream_reader(catalogue, produced.stream).scan()
            for row in messages(batch).to_pylist()
        ]
        require_produced(found, produced, kind)


def require_produced(found: list[Any], produced: Produced, kind: str) -> None:
    """Messages are the first ones that were sent; the last ones lie in the open ledger, which isn't offloaded yet.

    A producer that batches by key sends only the messages of one key in order.
    """
    assert len(found) >= 300, kind
    keys = {key for key, _, _ in produced.messages} if "keyed" in kind else {None}
    for key in keys:
        sent, of_key = ([m for m in some if m[0] == key] for some in (produced.messages, found))
        assert of_key, kind
        assert of_key == sent[: len(of_key)], kind
    assert {key for key, _, _ in found} == keys


def test_spark_reads_the_same_entries_and_messages(place: Place, catalogue: ObjectStore, spark: SparkSession) -> None:
    adopt(catalogue, clock=SystemClock())
    reader = spark.read.format("offloader").option("store", catalogue.url)
    for name in ("accessKey", "secretKey"):
        reader = reader.option(name, place.options["access_key" if name == "accessKey" else "secret_key"])
    reader = reader.option("stream", f"{NAMESPACE}/persistent/*")

    entries = reader.load().select("stream", "ledger_id", "entry_id", "payload").collect()
    columns = ("stream", "ledger_id", "entry_id", "batch_index", "key", "value", "properties")
    rows = reader.option("content", "messages").load().select(*columns).collect()

    for kind, produced in place.produced.items():
        of_topic = [row for row in entries if row.stream == produced.stream]
        found = sorted((Position(row.ledger_id, row.entry_id), bytes(row.payload)) for row in of_topic)
        assert found == place.hot(kind), kind
        of_topic = sorted(
            (row for row in rows if row.stream == produced.stream),
            key=lambda row: (row.ledger_id, row.entry_id, row.batch_index),
        )
        require_produced([(row.key, bytes(row.value), row.properties or {}) for row in of_topic], produced, kind)


def test_cleaning_up_in_the_brokers_own_bucket_takes_nothing_of_the_brokers(place: Place) -> None:
    writer = StreamWriter(place.store, "ours/beside/persistent/theirs")
    writer.add([batch_of(1, 0, 10)])
    theirs = {key: etag for key, etag in versions_in(place.store).items() if "/" not in key}
    assert len(theirs) >= 20
    late = new_segment_uuid(writer.log.state.incarnation, 5)
    orphans = {data_key(writer.stream, late), index_key(writer.stream, late)}
    unclear = {f"{writer.stream}/{key}" for key in list(theirs)[:4]}
    testimony = writer.log.testimony()
    assert testimony is not None
    # As a write that came late: it tells of a record that the manifest has.
    place.store.put(data_key(writer.stream, late), b"some bytes", metadata=testimony.as_metadata())
    for key in {index_key(writer.stream, late)} | unclear:
        place.store.put(key, b"some bytes")
    upload = place.store.begin_upload(data_key("", uuid_of(min(theirs)), 1))
    now_ms = SystemClock().now_ms()
    eventually(lambda: store_time_ms(place.store) > now_ms)
    failures: list[object] = []
    try:
        run = StoreReconciliation(
            place.store,
            clock=SystemClock(),
            settings_of=lambda _: ManifestSettings(orphan_age_min=Duration("0h")),
            failed=lambda *failure: failures.append(failure),
            delete=True,
        )
        found = list(run.leftovers())

        assert failures == []
        assert {each.key for each in found if each.outcome is not Outcome.KEPT} == orphans
        after = versions_in(place.store)
        # The broker may have offloaded more meanwhile.
        assert theirs.items() <= after.items()
        assert unclear <= after.keys()
        assert not orphans & after.keys()
        assert read_entries(open_stream_reader(place.store, writer.stream)) == [
            (entry.position, bytes(entry.payload)) for entry in writer.entries
        ]
        uuids = {p.ledger_id: p.uuid for key in theirs if (p := parse_object_key(key, "")) and p.is_index}
        for ledger_id, last in place.closed("batched-lz4"):
            cold = list(cold_entries(place.broker, ledger_id, str(uuids[ledger_id]), last))
            assert cold == list(hot_entries(place.broker, ledger_id, last))
    finally:
        place.store.abort_upload(data_key("", uuid_of(min(theirs)), 1), upload)
        place.store.delete([key for key in keys_in(place.store) if "/" in key])


def uuid_of(key: str) -> UUID:
    parsed = parse_object_key(key, "")
    assert parsed is not None
    return parsed.uuid


@dataclass(frozen=True)
class HotLedger:
    """A closed ledger of the bookie, as our writer wants it."""

    broker: Broker
    info: LedgerInfo

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:
        last = min(first_entry_id + 99, self.info.last_entry_id)
        if first_entry_id > last:
            return None
        payloads = self.broker.hot(self.info.ledger_id, first_entry_id, last)
        return EntryBatch.build(self.info.ledger_id, first_entry_id, payloads)


def test_broker_reads_objects_that_our_writer_put_in_place_of_its_own(place: Place) -> None:
    broker, produced = place.broker, place.ours
    ledgers = {ledger.ledger_id: ledger for ledger in place.ledgers[OURS].ledgers}
    closed = place.closed(OURS)
    uuids = {p.ledger_id: p.uuid for key in keys_in(place.store) if (p := parse_object_key(key, "")) and p.is_index}
    settings = Settings(offload=OffloadSettings(block_size=Size(64 * 1024)))
    offloader = LedgerOffloader(place.store, settings)
    named = {"managedledgername": produced.stream, "pulsarclustername": "standalone"}
    for ledger_id, last in closed:
        uuid = uuids[ledger_id]
        old = place.store.get(index_key("", uuid, ledger_id))[0]
        assert not place.store.delete([data_key("", uuid, ledger_id), index_key("", uuid, ledger_id)])
        info = LedgerInfo(
            ledger_id=ledger_id,
            closed=True,
            entries=last + 1,
            size_bytes=ledgers[ledger_id].size_bytes,
            created_ms=0,
            closed_ms=1,
        )
        offloader.offload(HotLedger(broker, info), uuid, named).result(timeout=PATIENCE_S)
        ours = SegmentMap.parse(place.store.get(index_key("", uuid, ledger_id))[0])
        assert ours.has_extension
        assert len(ours.blocks) > len(SegmentMap.parse(old, ledger_id=ledger_id).blocks)
    offloader.close()

    for ledger_id, last in closed:
        wanted = list(hot_entries(broker, ledger_id, last))
        assert list(cold_entries(broker, ledger_id, str(uuids[ledger_id]), last)) == wanted

    # Now the bookie's copies go, and what the broker has open; a client reads the topic from its first message on.
    for ledger_id, _ in closed:
        broker.forget(ledger_id)
        with pytest.raises(Refused, match="NoSuchLedger"):
            broker.ledger(ledger_id)
    command(broker, "PUT", f"persistent/{NAMESPACE}/{OURS}/unload")
    reader = place.client.create_reader(produced.topic, pulsar.MessageId.earliest)
    found = [reader.read_next(60_000).data() for _ in produced.messages]
    reader.close()
    assert found == [value for _, value, _ in produced.messages]
