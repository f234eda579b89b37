"""``content=messages`` with a real Spark, over entries that a real broker stored and over damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import EntryBatch
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


def test_columns_can_be_chosen_by_name_alone(spark: SparkSession, small: StreamWriter) -> None:
    """Otherwise every column is decoded and sent: Spark passes no projection to a Python source."""
    small.add([EntryBatch.build(3, 0, [single_entry(Sent(value=b"a")), GARBAGE])])
    frame = load_messages(spark, small, columns="compression, entry_id")
    assert frame.schema.simpleString() == "struct<compression:string,entry_id:bigint>"
    assert sorted(tuple(row) for row in frame.collect()) == [("none", 0)] + [("zstd", 1)] * 3


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
    assert "InvalidCallError" in said
    assert "entry 1:0 isn't a message of Pulsar's" in said
    assert "CorruptError" not in said


def test_publish_time_filter_keeps_messages_recorded_at_another_time(spark: SparkSession, small: StreamWriter) -> None:
    for number in range(4):
        entry = single_entry(Sent(value=b"%d" % number), publish_time=BASE_MS + 86_400_000 * number)
        small.add([EntryBatch.build(3, number, [entry], BASE_MS)])
    where = "publish_time >= TIMESTAMP '2023-11-16 00:00:00'"
    assert offloader_spark.messages(spark, small.store.url, small.stream, where=where).count() == 2


def test_a_payload_above_the_limit_fails_and_names_it(spark: SparkSession, small: StreamWriter) -> None:
    small.add([EntryBatch.build(3, 0, [single_entry(Sent(value=bytes(2000)), codec=1)])])
    said = failure_of(load_messages(spark, small, messageBytesMax="1999").collect)
    assert "expected at most 1999 bytes, found 2000" in said
    assert len(load_messages(spark, small, messageBytesMax="2000").collect()[0].value) == 2000
