"""What a data frame, a view and a new load see of a stream that grows, shrinks and is queried with filters."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.spark.options import SourceOptions
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")
    made.add([batch_of(1, 0, 10)])
    return made


def test_streaming_query_may_be_loaded_before_its_streams_exist(spark: SparkSession, writer: StreamWriter) -> None:
    reader = spark.readStream.format("offloader").options(store=writer.store.url, stream="later/*")
    assert reader.load().columns[0] == "stream"


def test_executors_are_sent_no_manifest(writer: StreamWriter) -> None:
    from pyspark.sql.types import LongType, StructType

    from offloader.spark.source import OffloaderDataSource

    for number in range(1, 50):
        writer.add([batch_of(1, 10 * number, 10)])
    source = OffloaderDataSource({"store": writer.store.url, "stream": writer.stream})
    sent = pickle.loads(pickle.dumps(source))
    reader = sent.reader(StructType().add("entry_id", LongType()))
    assert len(pickle.dumps((sent, reader))) < 3000 < len(pickle.dumps(source))
    writer.add([batch_of(1, 500, 10)])
    [part] = reader.partitions()
    assert sum(batch.num_rows for batch in pickle.loads(pickle.dumps(reader)).read(part)) == 500


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("7", {"": 7}),
        ("a/b=7", {"a/b": 7}),
        ("a=7, b=8", {"a": 7, "b": 8}),
        ("a=1=7,b,c=8", {"a=1": 7, "b,c": 8}),
    ],
)
def test_pinned_records_are_a_number_or_one_for_each_stream(text: str, records: dict[str, int]) -> None:
    options = SourceOptions.of({"store": "file:///x", "stream": "*", "asOfManifest": text})
    assert dict(options.as_of_manifest) == records
