"""Streaming queries with a real Spark: exactly once into Parquet, across restarts and kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.java


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


def stream_into_parquet(
    spark: SparkSession, writer: StreamWriter, folder: Path, **options: str
) -> tuple[StreamingQuery, list[int]]:
    """Runs a query until nothing is left that was there when it began; the rows of each of its batches."""
    stream = spark.readStream.format("offloader").options(
        store=writer.store.url, **{"stream": writer.stream, **options}
    )
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return query, [progress["numInputRows"] for progress in query.recentProgress]


def test_every_entry_is_read_once_over_several_runs_within_limits(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.add([batch_of(1, 0, 200)])
    _, counts = stream_into_parquet(spark, writer, tmp_path, maxEntriesPerTrigger="90")
    assert [count for count in counts if count] == [90, 90, 20]
    _, counts = stream_into_parquet(spark, writer, tmp_path, maxEntriesPerTrigger="90")
    assert sum(counts) == 0
    writer.add([batch_of(1, 200, 50)], closes=[1])
    writer.add([batch_of(4, 0, 50)])
    other = StreamWriter(writer.store, "public/default/persistent/payments")
    other.add([batch_of(8, 0, 30)])
    query, counts = stream_into_parquet(spark, writer, tmp_path, maxBytesPerTrigger="1000000", stream="public/*")
    assert sum(counts) == 130
    offset = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert {name: each["position"] for name, each in offset.items()} == {writer.stream: "4:49", other.stream: "8:29"}
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    expected = [(writer.stream, e.position, e.payload) for e in writer.entries]
    expected += [(other.stream, e.position, e.payload) for e in other.entries]
    assert sorted((r.stream, Position(r.ledger_id, r.entry_id), bytes(r.payload)) for r in found) == sorted(expected)
