"""``content=messages`` with a real Spark, over entries that a real broker stored and over damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.pulsar.messages import COLUMNS, messages
from offloader import spark as offloader_spark
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, batch_entry, entry_of, metadata_of, recorded, single_entry
from tests.spark.reading import failure_of, load
from tests.support.streams import BASE_MS, StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java

#: A payload that nobody can decompress, under a right checksum.
GARBAGE = entry_of(metadata_of(compression=3, uncompressed_size=300, batch=3, publish_time=BASE_MS), b"garbage")


def load_messages(spark: SparkSession, writer: StreamWriter, **options: str) -> DataFrame:
    return load(spark, writer, content="messages", **options)


def in_order(frame: DataFrame) -> list[Any]:
    return frame.orderBy("ledger_id", "entry_id", "batch_index").collect()


@pytest.fixture(scope="module")
def topics() -> list[EntryBatch]:
    """A ledger per recorded topic."""
    found = [*recorded("plain").values(), *recorded("broker-metadata").values()]
    return [EntryBatch.build(10 + n, 0, [data for _, _, data in topic.entries]) for n, topic in enumerate(found)]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, topics: list[EntryBatch]) -> StreamWriter:
    """Segments of both kinds: as Pulsar writes them, and with our extension."""
    writer = StreamWriter(open_store(f"file://{tmp_path_factory.mktemp('store')}"))
    for number in range(0, len(topics), 5):
        part = topics[number : number + 5]
        writer.add(part, closes=[batch.ledger_id for batch in part], extension=number % 2 == 0)
    return writer


@pytest.fixture
def small(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


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


def test_columns_can_be_chosen_by_name_alone(spark: SparkSession, small: StreamWriter) -> None:
    """Otherwise every column is decoded and sent: Spark passes no projection to a Python source."""
    small.add([EntryBatch.build(3, 0, [single_entry(Sent(value=b"a")), GARBAGE])])
    frame = load_messages(spark, small, columns="compression, entry_id")
    assert frame.schema.simpleString() == "struct<compression:string,entry_id:bigint>"
    assert sorted(tuple(row) for row in frame.collect()) == [("none", 0)] + [("zstd", 1)] * 3


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
    for part in ("Corrupt", "compressed payload", place, "expected 300 bytes of zstd", "found"):
        assert part in said


def test_bad_entries_become_rows_with_an_error(spark: SparkSession, small: StreamWriter) -> None:
    good = batch_entry([Sent(value=b"a"), Sent(value=b"b")])
    small.add([EntryBatch.build(3, 0, [good, b"no message at all", GARBAGE, good])])
    rows = in_order(load_messages(spark, small, onBadMessage="null"))
    assert [(row.entry_id, row.batch_index) for row in rows] == [
        (0, 0), (0, 1), (1, -1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1),
    ]  # fmt: skip
    assert [row.value and bytes(row.value) for row in rows] == [b"a", b"b", None, None, None, None, b"a", b"b"]
    assert "entry 3:1 at byte" in rows[2].error
    assert {row.error is None for row in rows[3:6]} == {False}
    assert {row.error for row in (rows[0], rows[-1])} == {None}


def test_stream_of_other_entries_is_refused_for_messages(spark: SparkSession, small: StreamWriter) -> None:
    small.add([batch_of(1, 0, 10)])
    said = failure_of(load_messages(spark, small).count)
    assert "entry 1:0 at byte" in said
    assert "are these entries that Pulsar wrote?" in said


@pytest.mark.parametrize("extension", [True, False])
def test_time_bounds_select_messages_exactly_by_recorded_or_own_time(
    spark: SparkSession, small: StreamWriter, extension: bool
) -> None:
    times = [BASE_MS + 1000 * number for number in range(50)]
    entries = [single_entry(Sent(value=b"%d" % number), publish_time=time) for number, time in enumerate(times)]
    recorded_times = times if extension else TIME_UNKNOWN_MS
    small.add([EntryBatch.build(3, 0, entries, recorded_times)], extension=extension)
    frame = load_messages(spark, small, startTime=str(times[10]), endTime=str(times[20]), schema="value BINARY")
    assert sorted(int(row.value) for row in frame.collect()) == list(range(10, 20))


def test_damaged_metadata_is_not_passed_over_by_bounds(spark: SparkSession, small: StreamWriter) -> None:
    entries = [single_entry(Sent(value=b"a"), publish_time=BASE_MS), b"bad"]
    small.add([EntryBatch.build(3, 0, entries)], extension=False)
    assert "entry 3:1" in failure_of(load_messages(spark, small, startTime=str(BASE_MS)).count)
    assert load_messages(spark, small, startTime=str(BASE_MS), onBadMessage="null").count() == 2


def test_publish_time_filter_keeps_messages_recorded_at_another_time(spark: SparkSession, small: StreamWriter) -> None:
    for number in range(4):
        entry = single_entry(Sent(value=b"%d" % number), publish_time=BASE_MS + 86_400_000 * number)
        small.add([EntryBatch.build(3, number, [entry], BASE_MS)])
    where = "publish_time >= TIMESTAMP '2023-11-16 00:00:00'"
    assert offloader_spark.messages(spark, small.store.url, small.stream, where=where).count() == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"onBadMessage": "skip"}, "option onBadMessage: 'skip' is none of error, null"),
        ({"markers": "no"}, "option markers: 'no' is none of true, false"),
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


def test_a_payload_above_the_limit_fails_and_names_it(spark: SparkSession, small: StreamWriter) -> None:
    small.add([EntryBatch.build(3, 0, [single_entry(Sent(value=bytes(2000)), codec=1)])])
    said = failure_of(load_messages(spark, small, messageBytesMax="1999").collect)
    assert "expected at most 1999 bytes, found 2000" in said
    assert len(load_messages(spark, small, messageBytesMax="2000").collect()[0].value) == 2000
