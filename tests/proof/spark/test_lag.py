"""Lag of streaming queries: numbers in the progress, by stream, and the listener that reports them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloader.spark import LagListener, lag_of
from offloader.spark.lag import StreamLag
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.test_lag import SIZE
from tests.spark.test_lag import writer as writer


def run(spark: SparkSession, writer: StreamWriter, folder: Path, **options: str) -> StreamingQuery:
    """A query until nothing is left that was there when it began."""
    frame = spark.readStream.format("offloader").options(store=writer.store.url, **options).load()
    stream = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = stream.queryName("lagging").trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.java
def test_listener_reports_the_lag_of_each_stream_after_each_batch(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.add([batch_of(1, 0, 200, size=SIZE)])
    StreamWriter(writer.store, "shop/prices").add([batch_of(1, 0, 30, size=SIZE)])
    heard: list[tuple[int, dict[str, StreamLag]]] = []

    def report(progress: Mapping[str, Any], lag: dict[str, StreamLag]) -> None:
        if progress["numInputRows"]:
            heard.append((progress["numInputRows"], lag))

    listener = LagListener(report)
    spark.streams.addListener(listener)
    try:
        query = run(spark, writer, tmp_path, stream="shop/*", maxEntriesPerTrigger="80")
        eventually(lambda: sum(rows for rows, _ in heard) == 230, within_s=60)
    finally:
        spark.streams.removeListener(listener)
    left = 230
    for rows, lag in heard:
        left -= rows
        assert sum(each.entries for each in lag.values()) == left
        assert all(each.bytes == SIZE * each.entries for each in lag.values())
    assert [rows for rows, _ in heard] == [80, 80, 70]
    assert heard[0][1] == {"shop/orders": StreamLag(150, 3000), "shop/prices": StreamLag(0, 0)}
    assert query.lastProgress is not None
    assert lag_of(query.lastProgress) == {"shop/orders": StreamLag(0, 0), "shop/prices": StreamLag(0, 0)}


@pytest.mark.java
def test_spark_gives_a_python_source_no_metrics_of_its_own(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path
) -> None:
    """When this fails Spark has learnt to, and the lag belongs there."""
    writer.add([batch_of(1, 0, 20)])
    query = run(spark, writer, tmp_path, stream="shop/orders")
    assert [dict(source["metrics"]) for progress in query.recentProgress for source in progress["sources"]] == [
        {} for _ in query.recentProgress
    ]
