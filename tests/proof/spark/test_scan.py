"""Scans with a real Spark: every entry once, whatever the splits; projections; bounds; damage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from offloader.store.open import open_store
from tests.spark.reading import entries_in, failure_of, load
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from typing import TYPE_CHECKING

from formats.manifest import Retire, Truncate
from tests.spark.test_scan import writer as writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.test_scan import damaged as damaged

pytestmark = pytest.mark.java


def test_a_segment_is_split_inside_into_partitions_of_the_asked_size(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 20_000)])
    summary = writer.log.state.offloaded()[0].summary
    assert summary is not None
    frame = load(spark, writer, splitBytes=str(summary.data_bytes // 8))
    assert frame.rdd.getNumPartitions() in (8, 9)
    sizes = frame.selectExpr("spark_partition_id() AS p").groupBy("p").count()
    counts = [row["count"] for row in sizes.collect()]
    assert sum(counts) == 20_000
    assert max(counts) < 1.2 * 20_000 / len(counts)


def test_a_stream_without_entries_has_no_rows(spark: SparkSession, writer: StreamWriter) -> None:
    assert load(spark, writer).count() == 0


@pytest.mark.parametrize(
    "schema",
    [
        "ledger_id BIGINT, entry_id BIGINT",
        "entry_id BIGINT, stream STRING",
        "publish_time TIMESTAMP",
        "publish_time TIMESTAMP, entry_id BIGINT NOT NULL, ledger_id BIGINT",
        "payload BINARY, ledger_id BIGINT",
        "payload BINARY NOT NULL",
    ],
)
def test_a_users_schema_is_the_projection_in_its_order(spark: SparkSession, orders: StreamWriter, schema: str) -> None:
    whole, part = load(spark, orders), load(spark, orders, schema=schema, splitBytes="5000")
    assert part.columns == [column.split()[0] for column in schema.split(", ")]
    assert sorted(map(str, part.collect())) == sorted(map(str, whole.select(*part.columns).collect()))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("entry_id BIGINT, key STRING", "the schema has a column key, which content=entries doesn't"),
        ("entry_id INT", "column entry_id is of type bigint, but the schema has int"),
        ("publish_time TIMESTAMP NOT NULL", "column publish_time may be null, but the schema has NOT NULL"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: SparkSession, orders: StreamWriter, schema: str, expected: str
) -> None:
    assert expected in failure_of(load(spark, orders, schema=schema).count)


def test_positions_outside_of_the_stream_are_errors_that_name_its_ends(
    spark: SparkSession, orders: StreamWriter
) -> None:
    assert "position 0:0 is before the first entry 3:0" in failure_of(load(spark, orders, start="0:0").count)
    beyond = failure_of(load(spark, orders, stop="99:1").count)
    assert "BeyondEndError" in beyond
    assert "99:0 is beyond the last readable entry 14:29" in beyond


def test_entries_before_the_head_are_no_rows(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    writer.log.commit([Truncate(Position(1, 60))])
    assert entries_in(load(spark, writer)) == writer.entries[60:]
    assert "was deleted: the stream begins at 1:60" in failure_of(load(spark, writer, start="1:0").count)


def test_a_pattern_reads_all_streams_that_fit(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    for name in ("a/orders-0", "a/orders-1", "a/payments", "b/orders-0"):
        StreamWriter(store, name).add([batch_of(1, 0, 10)])
    writer = StreamWriter(store, "a/last")
    counts = load(spark, writer, stream="a/orders-*").groupBy("stream").count().collect()
    assert sorted((row.stream, row["count"]) for row in counts) == [("a/orders-0", 10), ("a/orders-1", 10)]
    assert load(spark, writer, stream="*/orders-0").count() == 20
    assert "no stream in file://" in failure_of(load(spark, writer, stream="c/*").count)
    assert "needs one record per stream here" in failure_of(load(spark, writer, stream="*", asOfManifest="1").count)
    # With a pattern, positions are bounds and no more.
    assert load(spark, writer, stream="*", stop="1:5").count() == 20


def test_an_unknown_stream_is_named_with_similar_ones(spark: SparkSession, orders: StreamWriter) -> None:
    said = failure_of(load(spark, orders, stream="public/default/persistent/order").count)
    assert "did you mean public/default/persistent/orders?" in said


def test_older_manifest_record_can_be_read(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)])
    record = writer.log.state.record_id
    writer.add([batch_of(1, 10, 10)])
    assert entries_in(load(spark, writer, asOfManifest=str(record))) == writer.entries[:10]
    assert load(spark, writer).count() == 20
    said = failure_of(load(spark, writer, asOfManifest="99").count)
    assert f"the manifest ends at record {writer.log.state.record_id}; record 99 does not exist yet" in said


def test_old_record_with_retired_segments_is_refused_by_name(spark: SparkSession, writer: StreamWriter) -> None:
    old = writer.add([batch_of(1, 0, 10)])
    record = writer.log.state.record_id
    writer.add([batch_of(1, 10, 10)])
    writer.log.commit([Truncate(Position(1, 10)), Retire((old,))])
    said = failure_of(load(spark, writer, asOfManifest=str(record)).count)
    assert "were retired since" in said
    assert str(old) in said


def test_damaged_and_missing_pieces_are_skipped_by_option(spark: SparkSession, damaged: StreamWriter) -> None:
    found = entries_in(load(spark, damaged, onCorrupt="skip", onMissing="skip"))
    whole = [entry for entry in damaged.entries if entry.entry_id < 100 or entry.entry_id >= 400]
    rest = [entry for entry in found if entry not in whole]
    assert [entry for entry in found if entry in whole] == whole
    assert 0 < len(rest) < 100  # of the segment with one damaged block all others
    assert all(entry in damaged.entries[100:200] for entry in rest)
    assert "ObjectMissingError" in failure_of(load(spark, damaged, onCorrupt="skip").count)
    assert "CorruptError" in failure_of(load(spark, damaged, onMissing="skip").count)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strem": "x"}, "unknown option strem (did you mean stream?)"),
        (
            {"content": "rows"},
            "option content: 'rows' is not one of entries, messages, segments, ledgers, manifest, anomalies,",
        ),
        ({"start": "7"}, "option start: a position is written LEDGER:ENTRY"),
        ({"since": "soon"}, "option since: 'soon' is not a time"),
        ({"splitBytes": "0"}, "option splitBytes: '0' is not a positive integer"),
        ({"onCorrupt": "ignore"}, "option onCorrupt: 'ignore' is not one of error, skip"),
        ({"start": "7:1", "stop": "7:0"}, "option stop 7:0 is before start 7:1"),
        ({"since": "10", "until": "9"}, "option until is before since"),
        ({"store": ""}, "option store is missing"),
        ({"store": "memory://x"}, "exists in one process only, so Spark's workers can't read it"),
        ({"store": "foo://x"}, "unknown store scheme 'foo'"),
        ({"store": "file:///no/such/folder"}, "no such directory"),
    ],
)
def test_bad_options_are_refused_by_name(
    spark: SparkSession, orders: StreamWriter, options: dict[str, str], expected: str
) -> None:
    # Most are noticed by load() already, when Spark asks for the schema.
    assert expected in failure_of(lambda: load(spark, orders, **options).count())


def test_given_credentials_reach_the_store_and_are_never_shown(
    spark: SparkSession, servers: object, capfd: pytest.CaptureFixture[str]
) -> None:
    """Against a real server over HTTP; a wrong key is refused without being repeated."""
    place = servers.place("moto")  # type: ignore[attr-defined]
    writer = StreamWriter(place.open())
    writer.add([batch_of(1, 0, 300)])
    options = {
        "endpointUrl": place.options["endpoint_url"],
        "region": place.options["region"],
        "accessKey": place.options["access_key"],
        "secretKey": "a-very-secret-key",
    }
    frame = load(spark, writer, splitBytes="4000", **options)
    assert entries_in(frame) == writer.entries
    frame.explain(True)
    said = failure_of(load(spark, writer, **{**options, "stream": "nope"}).count)
    shown = capfd.readouterr()
    assert "a-very-secret-key" not in said + shown.out + shown.err


def test_anomalies_are_the_findings_of_a_shallow_verify(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50)])
    assert load(spark, writer, content="anomalies").collect() == []
    data, _ = writer.keys(writer.uuids[1])
    writer.store.delete([data])
    writer.store.put(f"{writer.stream}/notes.txt", b"mine")
    rows = load(spark, writer, content="anomalies").collect()
    assert [(row.problem, row.damage, row.object) for row in rows] == [
        ("missing", True, data),
        ("foreign", False, f"{writer.stream}/notes.txt"),
    ]
    assert load(spark, writer, content="anomalies", schema="damage BOOLEAN").where("damage").count() == 1


def test_spark_finds_the_source_by_itself(spark: SparkSession, orders: StreamWriter) -> None:
    frame = load(spark.newSession(), orders, splitBytes="20000")
    assert frame.where("ledger_id = 9").count() == 40
    assert entries_in(frame) == sorted(orders.entries)


def test_spark_worker_logging_keeps_task_logs(spark: SparkSession, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 500)])
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        assert load(spark, writer).count() == 500
        logs = spark.tvf.python_worker_logs().where("logger = 'offloader.spark'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    said = [row.msg for row in logs if row.level == "INFO"]
    assert any(line.startswith("read 1 slices: 500 rows with payload columns of ") for line in said), said


def test_positions_need_no_data_object_at_all(spark: SparkSession, writer: StreamWriter) -> None:
    uuids = [writer.add([batch_of(1, 500 * number, 500)]) for number in range(2)]
    writer.store.delete([writer.keys(uuid)[0] for uuid in uuids])
    frame = load(spark, writer, schema="stream STRING, ledger_id BIGINT, entry_id BIGINT")
    assert sorted(row.entry_id for row in frame.collect()) == list(range(1000))
    assert "1:0..1:499" in failure_of(load(spark, writer).count)


def test_moved_bucket_is_read(spark: SparkSession, writer: StreamWriter) -> None:
    old = {"managedLedgerOffloadDriver": "aws-s3", "bucket": "old", "region": "", "serviceEndpoint": "https://a"}
    writer.add([batch_of(1, 0, 50)], driver=old)
    assert "was written to" in failure_of(load(spark, writer).count)
    assert load(spark, writer, relocate=f"old={writer.store.driver_metadata['bucket']}").count() == 50
