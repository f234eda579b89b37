"""``content=messages`` with a real Spark, over entries that a real broker stored and over damaged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.pulsar.messages import COLUMNS, messages
from tests.formats.pulsar_entries import Sent, single_entry
from tests.spark.reading import failure_of
from tests.support.streams import BASE_MS, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.test_scan_messages import GARBAGE, in_order, load_messages
from tests.spark.test_scan_messages import small as small
from tests.spark.test_scan_messages import topics as topics
from tests.spark.test_scan_messages import writer as writer

pytestmark = pytest.mark.java


@pytest.mark.parametrize("split_bytes", ["3000", "67108864"])
def test_message_columns_equal_those_of_the_library(
    spark: SparkSession, writer: StreamWriter, topics: list[EntryBatch], split_bytes: str
) -> None:
    expected = [row for batch in topics for row in messages(batch).to_pylist()]
    # Spark hands out times without a zone, in that of this machine: compare them as numbers.
    times = [name for name, kind in COLUMNS.items() if str(kind).startswith("timestamp")]
    frame = load_messages(spark, writer, splitBytes=split_bytes)
    frame = frame.withColumns({name: _millis(name) for name in times})
    rows = [row.asDict(recursive=True) for row in in_order(frame)]
    assert [row.pop("stream") for row in rows] == [writer.stream] * len(expected)
    for row, want in zip(rows, expected, strict=True):
        for name in COLUMNS:
            value, found = want[name], row[name]
            if name in times:
                value = None if value is None else round(value.timestamp() * 1000)
            elif name == "properties":
                value = dict(value)
            elif name == "encryption_keys" and value is not None:
                value = [{**key, "metadata": dict(key["metadata"])} for key in value]
            found = bytes(found) if isinstance(found, bytearray) else found
            assert _plain(found) == value, name


def _millis(name: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(f"unix_millis({name})")


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def test_the_columns_are_those_of_the_document(spark: SparkSession, writer: StreamWriter) -> None:
    frame = load_messages(spark, writer)
    assert set(frame.columns) == {"stream", *COLUMNS}
    assert frame.schema.simpleString().startswith(
        "struct<stream:string,ledger_id:bigint,entry_id:bigint,batch_index:int,publish_time:timestamp,key:string,"
    )
    assert frame.where("key = 'key-1'").count() > 10
    assert frame.selectExpr("properties['n'] AS n").where("n = '1'").count() > 10
    # A schema of the stream's name alone still has a row per message.
    assert load_messages(spark, writer, schema="stream STRING").count() == frame.count()


def test_markers_can_be_left_out(spark: SparkSession, writer: StreamWriter) -> None:
    assert load_messages(spark, writer).where("marker_type IS NOT NULL").count() == 2
    assert load_messages(spark, writer, markers="false").where("marker_type IS NOT NULL").count() == 0


def test_entry_columns_need_no_payload_and_value_columns_report_damage(
    spark: SparkSession, small: StreamWriter
) -> None:
    uuid = small.add([EntryBatch.build(3, 0, [single_entry(Sent(value=b"a")), GARBAGE])])
    few = "ledger_id BIGINT, entry_id BIGINT, batch_index INT, compression STRING, publish_time TIMESTAMP"
    rows = in_order(load_messages(spark, small, schema=few))
    assert [(row.entry_id, row.batch_index) for row in rows] == [(0, -1), (1, 0), (1, 1), (1, 2)]
    said = failure_of(load_messages(spark, small, schema="value BINARY").collect)
    place = f"stream {small.stream}, object {small.keys(uuid)[0]}, entry 3:1 at byte"
    for part in ("CorruptError", "compressed payload", place, "expected 300 bytes of zstd", "found"):
        assert part in said


@pytest.mark.parametrize("extension", [True, False])
def test_time_bounds_select_messages_exactly_by_recorded_or_own_time(
    spark: SparkSession, small: StreamWriter, extension: bool
) -> None:
    times = [BASE_MS + 1000 * number for number in range(50)]
    entries = [single_entry(Sent(value=b"%d" % number), publish_time=time) for number, time in enumerate(times)]
    recorded_times = times if extension else TIME_UNKNOWN_MS
    small.add([EntryBatch.build(3, 0, entries, recorded_times)], extension=extension)
    frame = load_messages(spark, small, since=str(times[10]), until=str(times[20]), schema="value BINARY")
    assert sorted(int(row.value) for row in frame.collect()) == list(range(10, 20))


def test_damaged_metadata_is_not_passed_over_by_bounds(spark: SparkSession, small: StreamWriter) -> None:
    entries = [single_entry(Sent(value=b"a"), publish_time=BASE_MS), b"bad"]
    small.add([EntryBatch.build(3, 0, entries)], extension=False)
    assert "entry 3:1" in failure_of(load_messages(spark, small, since=str(BASE_MS)).count)
    assert load_messages(spark, small, since=str(BASE_MS), onBadMessage="null").count() == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"onBadMessage": "skip"}, "option onBadMessage: 'skip' is not one of error, null"),
        ({"markers": "no"}, "option markers: 'no' is not one of true, false"),
        ({"messageBytesMax": "9999999999"}, "option messageBytesMax is at most 1073741824, not 9999999999"),
        ({"columns": "key,payload"}, "option columns: content=messages has no payload"),
        ({"columns": "key,key"}, "option columns names a column twice: key,key"),
        ({"schema": "payload BINARY"}, "the schema has a column payload, which content=messages doesn't"),
    ],
)
def test_bad_options_are_refused_by_name(
    spark: SparkSession, writer: StreamWriter, options: dict[str, str], expected: str
) -> None:
    assert expected in failure_of(lambda: load_messages(spark, writer, **options).count())
