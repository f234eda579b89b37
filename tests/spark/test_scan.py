"""Scans with a real Spark: every entry once, whatever the splits; projections; bounds; damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from formats.keys import new_segment_uuid
from formats.segment import SegmentMap
from offloader.manifest.protection import leases_of
from offloader.retention.cuts import StreamCut
from offloader.retention.cycle import RetentionCycle
from offloader.retention.scope import find_scope
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import RetentionSettings, Settings, Size
from offloader.store.open import open_store
from tests.spark.reading import entries_in, failure_of, load
from tests.support.streams import BASE_MS, StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


@pytest.mark.parametrize("split_bytes", ["1500", "10000", "67108864"])
def test_every_entry_of_every_layout_is_a_row_exactly_once(
    spark: SparkSession, orders: StreamWriter, split_bytes: str
) -> None:
    assert entries_in(load(spark, orders, splitBytes=split_bytes)) == sorted(orders.entries)


def test_the_columns_are_those_of_the_document_in_utc(spark: SparkSession, orders: StreamWriter) -> None:
    frame = load(spark, orders)
    assert frame.schema.simpleString() == (
        "struct<stream:string,ledger_id:bigint,entry_id:bigint,publish_time:timestamp,payload:binary>"
    )
    row = frame.where("ledger_id = 3 AND entry_id = 5").collect()[0]
    assert row.stream == orders.stream
    seconds = frame.where("ledger_id = 3 AND entry_id = 5").selectExpr("unix_millis(publish_time) AS t").collect()[0].t
    assert seconds == BASE_MS + 1000 * 3005


def test_small_segments_are_packed_into_one_partition(spark: SparkSession, writer: StreamWriter) -> None:
    for number in range(10):
        writer.add([batch_of(1, 10 * number, 10)])
    frame = load(spark, writer)
    assert frame.rdd.getNumPartitions() == 1
    assert entries_in(frame) == writer.entries


def test_publish_times_without_payloads_read_only_entry_tables(spark: SparkSession, writer: StreamWriter) -> None:
    """The payloads are destroyed: reading them would fail."""
    data, index = writer.keys(writer.add([batch_of(1, 0, 500)]))
    whole, info = writer.store.get(data)
    blocks = SegmentMap.parse(writer.store.get(index)[0]).blocks
    broken = bytearray(whole)
    for offset, stored in zip(blocks.offset.tolist(), blocks.stored_bytes.tolist(), strict=True):
        broken[offset : offset + 128 + stored] = bytes(128 + stored)
    writer.store.put(data, bytes(broken), metadata=info.metadata)
    frame = load(spark, writer, schema="entry_id BIGINT, publish_time TIMESTAMP")
    found = frame.selectExpr("entry_id", "unix_millis(publish_time) AS t").collect()
    assert sorted((row.entry_id, row.t) for row in found) == [(e.entry_id, e.publish_time_ms) for e in writer.entries]
    assert "CorruptError" in failure_of(load(spark, writer).count)


# Bounds


def test_positions_bound_a_scan_exactly_both_included(spark: SparkSession, orders: StreamWriter) -> None:
    first, last = Position(3, 77), Position(9, 3)
    frame = load(spark, orders, start=str(first), stop=str(last.next()), splitBytes="9000")
    assert entries_in(frame) == sorted(orders.between(first, last))


def test_times_bound_a_scan_exactly_the_end_excluded(spark: SparkSession, orders: StreamWriter) -> None:
    start, end = BASE_MS + 1000 * 3100, BASE_MS + 1000 * 3220
    expected = sorted(entry for entry in orders.entries if start <= entry.publish_time_ms < end)
    assert len(expected) == 120
    iso = datetime.fromtimestamp(start / 1000, UTC).isoformat().replace("+00:00", "Z")
    assert entries_in(load(spark, orders, since=iso, until=str(end))) == expected
    positions = load(spark, orders, since=iso, until=str(end), schema="ledger_id BIGINT, entry_id BIGINT")
    assert sorted(tuple(row) for row in positions.collect()) == [(e.ledger_id, e.entry_id) for e in expected]


# Streams


# Pinning


# Damage


@pytest.fixture
def damaged(writer: StreamWriter) -> StreamWriter:
    """Segment 1 has one damaged block, segment 2 no data object, segment 3 no index; 0 and 4 are whole."""
    uuids = [writer.add([batch_of(1, 100 * number, 100)]) for number in range(5)]
    data, index = writer.keys(uuids[1])
    whole, info = writer.store.get(data)
    offset = int(SegmentMap.parse(writer.store.get(index)[0]).blocks.offset[1])
    broken = bytearray(whole)
    broken[offset + 150] ^= 1
    writer.store.put(data, bytes(broken), metadata=info.metadata)
    writer.store.delete([writer.keys(uuids[2])[0], writer.keys(uuids[3])[1]])
    return writer


def test_damage_fails_the_query_naming_stream_object_and_range(spark: SparkSession, damaged: StreamWriter) -> None:
    said = failure_of(load(spark, damaged, stop="1:200").count)
    for part in ("CorruptError", damaged.stream, damaged.keys(damaged.uuids[1])[0], "bytes", "expected", "found"):
        assert part in said
    said = failure_of(load(spark, damaged, start="1:200").count)
    for part in ("ObjectMissingError", damaged.stream, str(damaged.uuids[2]), "1:200..1:299"):
        assert part in said


# Options


# Contents


def test_segments_content_has_the_facts_of_the_manifest(spark: SparkSession, orders: StreamWriter) -> None:
    rows = load(spark, orders, content="segments").collect()
    records = orders.log.state.offloaded()
    assert [row.uuid for row in rows] == [str(record.uuid) for record in records]
    for row, record in zip(rows, records, strict=True):
        summary = record.summary
        assert summary is not None
        assert (row.stream, row.status, row.format) == (orders.stream, "offloaded", record.layout)
        assert (row.first_ledger_id, row.first_entry_id) == record.begin
        assert (row.last_ledger_id, row.last_entry_id) == record.end
        assert (row.entries, row.payload_bytes, row.blocks) == (summary.entries, summary.payload_bytes, summary.blocks)
        assert (row.data_bytes, row.index_bytes, row.compressed) == (
            summary.data_bytes,
            summary.index_bytes,
            summary.compressed,
        )
        assert [span.ledger_id for span in row.ledgers] == [span.ledger_id for span in summary.ledgers]
        assert (row.publish_time_min is None) == (summary.publish_time_min_ms == -1)
    assert rows[0].offloaded_time - rows[0].assigned_time == timedelta(0)


def test_segments_take_a_projection_too(spark: SparkSession, orders: StreamWriter) -> None:
    frame = load(spark, orders, content="segments", schema="entries BIGINT, uuid STRING")
    assert sum(row.entries for row in frame.collect()) == len(orders.entries)


def test_ledgers_content_has_facts_of_source_and_segments(spark: SparkSession, orders: StreamWriter) -> None:
    rows = {row.ledger_id: row for row in load(spark, orders, content="ledgers").collect()}
    assert sorted(rows) == [3, 4, 7, 9, 10, 12, 14]
    third = rows[3]
    assert (third.closed, third.closed_at_entry_id, third.segments, third.entries) == (True, 249, 2, 250)
    assert (third.first_entry_id, third.last_entry_id) == (0, 249)
    assert third.payload_bytes == sum(len(e.payload) for e in orders.entries if e.ledger_id == 3)
    assert not any(row.deleted or row.hot_released for row in rows.values())


def test_the_manifests_records_are_rows(spark: SparkSession, orders: StreamWriter) -> None:
    rows = load(spark, orders, content="manifest").collect()
    assert [row.record_id for row in rows] == list(range(1, orders.log.state.record_id + 1))
    assert rows[0].edits == ["open_epoch"]
    assert rows[1].edits == ["assign", "offloaded"]
    assert json.loads(rows[1].json)["edits"][0]["uuid"] == str(orders.uuids[0])
    assert {row.incarnation for row in rows} == {str(orders.log.state.incarnation)}


# Leases, moved buckets


def test_a_lease_is_written_when_a_query_is_planned(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 50)])
    assert load(spark, writer, leaseSeconds="3600").count() == 50
    leases = leases_of(writer.store, writer.stream)
    assert leases
    assert {lease.reader for lease in leases} == {"Spark"}


# Discovery


def test_importing_the_package_does_not_load_spark() -> None:
    code = "import sys, offloader, offloader.spark; offloader.spark.register; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "False"


def test_subscribers_of_streams_and_topics_are_rows(spark: SparkSession, writer: StreamWriter) -> None:
    """Those of a topic with partitions come once."""
    writer.add([batch_of(1, 0, 50)])
    partitions = [StreamWriter(writer.store, f"shop/eu/persistent/sales-partition-{number}") for number in (0, 1)]
    for each in partitions:
        each.add([batch_of(1, 0, 10)])
    own = open_retention(writer.store, writer.stream)
    own.add("reports")
    own.publish("reports", Position(1, 20), generation=0)
    own.add("silent")
    open_retention(writer.store, "shop/eu/persistent/sales").add("both")
    rows = load(spark, writer, content="subscribers", stream="*").orderBy("stream", "subscriber").collect()
    assert [(row.stream, row.subscriber, row.cut, row.lag_entries) for row in rows] == [
        (writer.stream, "reports", "0.0=1:20", 30),
        (writer.stream, "silent", None, 50),
        ("shop/eu/persistent/sales", "both", None, 20),
    ]
    assert all(row.updated_time is not None for row in rows)


def test_orphans_are_rows_and_nothing_is_deleted(spark: SparkSession, writer: StreamWriter) -> None:
    uuid = writer.add([batch_of(1, 0, 50)])
    data, _ = writer.keys(uuid)
    orphan, _ = writer.keys(new_segment_uuid(writer.log.state.incarnation, 77))
    writer.store.put(orphan, writer.store.get(data)[0])
    writer.store.put(f"{writer.stream}/notes.txt", b"mine")
    keys = [info.key for info in writer.store.list("").objects]
    rows = load(spark, writer, content="orphans").orderBy("object").collect()
    assert [(row.object, row.ours, row.deletable) for row in rows] == sorted(
        [(orphan, True, False), (f"{writer.stream}/notes.txt", False, False)]
    ), "it is too young to be deleted"
    sizes = load(spark, writer, content="orphans", schema="bytes BIGINT").collect()
    assert 4 in [row.bytes for row in sizes]
    assert [info.key for info in writer.store.list("").objects] == keys


def test_retention_decisions_and_their_candidates_are_rows(spark: SparkSession, writer: StreamWriter) -> None:
    """As `offloader retention explain --decisions` prints them; those of a topic with partitions come once."""
    sales = "shop/eu/persistent/sales"
    for each in (writer, *(StreamWriter(writer.store, f"{sales}-partition-{number}") for number in (0, 1))):
        for ledger in (1, 2, 3):
            each.add([batch_of(ledger, 0, 50)], closes=[ledger])
    open_retention(writer.store, writer.stream).add("reports")
    open_retention(writer.store, writer.stream).publish("reports", Position(1, 20), generation=0)
    keep = Settings(retention=RetentionSettings(keep_size=Size(1000)))
    cycle = RetentionCycle(writer.store, clock=SystemClock(), settings_of=lambda _: keep)
    for name in (writer.stream, sales):
        cycle.run(name)
    rows = load(spark, writer, content="retention", stream="*").collect()
    decisions = {row.stream: row for row in rows if row.kind == "decision"}
    assert sorted(decisions) == [writer.stream, sales]
    own, topic = decisions[writer.stream], decisions[sales]
    [stored] = read_decisions(open_retention(writer.store, writer.stream), find_scope(writer.store, writer.stream))
    assert (own.rule, own.why, own.removed_entries, own.removed_bytes, own.overridden, own.held) == (
        *(stored["rule"], stored["why"], 100, 2000, ["reports"], False),
    )
    assert (own.cut, own.head, own.bound, own.role, own.fallback) == ("0.0=3:0", "0.0=1:0", "0.0=1:20", None, False)
    assert own.time.timestamp() * 1000 == pytest.approx(stored["at_ms"], abs=1)
    assert topic.cut == "0.0=3:0,1.0=3:0"
    chosen = [row for row in rows if row.kind == "candidate" and row.stream == writer.stream]
    assert [(row.role, row.cut, row.keeps_bytes, row.segment_end, row.time) for row in chosen] == [
        (each["role"], str(StreamCut.of(each["cut"])), each["keeps_bytes"], each["is_boundary"], own.time)
        for each in stored["candidates"]
    ]
    assert ("chosen", "0.0=3:0", 1000) in [(row.role, row.cut, row.keeps_bytes) for row in chosen]
    assert {row.rule for row in chosen} == {None}
    names = load(spark, writer, content="retention", stream=f"{sales}-partition-1", columns="kind").collect()
    assert names == [], "they are listed with the first partition"


def test_stream_beside_one_whose_partition_it_could_be_has_its_own_subscribers(
    spark: SparkSession, writer: StreamWriter
) -> None:
    beside = StreamWriter(writer.store, f"{writer.stream}-partition-0")
    for each, name in ((writer, "one"), (beside, "other")):
        each.add([batch_of(1, 0, 10)])
        open_retention(writer.store, each.stream).add(name)
    rows = load(spark, writer, content="subscribers", stream="*").orderBy("stream").collect()
    assert [(row.stream, row.subscriber) for row in rows] == [(writer.stream, "one"), (beside.stream, "other")]
