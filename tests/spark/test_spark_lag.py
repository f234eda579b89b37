"""Lag of streaming queries: numbers in the progress, by stream, and the listener that reports them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import Position
from offloader.spark import LagListener, lag_of
from offloader.spark.lag import StreamLag
from offloader.spark.stream import behind
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZE = 20


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")


def test_what_is_behind_a_position_is_what_was_committed_after_it(writer: StreamWriter) -> None:
    assert behind(writer.log.state, None) == (0, 0)
    writer.add([batch_of(1, 0, 100, size=SIZE)], closes=[1])
    writer.add([batch_of(4, 0, 50, size=SIZE)])
    writer.add([batch_of(4, 50, 30, size=SIZE)])
    state = writer.log.state
    places = [None, *(entry.position for entry in writer.entries), Position(2, 0), Position(9, 0)]
    for place in places:
        after = [entry for entry in writer.entries if place is None or entry.position > place]
        assert behind(state, place) == (len(after), SIZE * len(after)), place


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


def test_listener_logs_what_is_behind_and_passes_over_other_sources(caplog: pytest.LogCaptureFixture) -> None:
    own = '{"a/b": {"entriesBehind": 7, "bytesBehind": 140}, "c": {"entriesBehind": 0, "bytesBehind": 0}}'
    others = [{"latestOffset": text} for text in ("12", "null", "no JSON", None, '{"topic": {"0": 5}}')]
    progress: Any = {"id": "x", "name": "index", "batchId": 4, "sources": [*others, {"latestOffset": own}]}
    event: Any = type("Event", (), {"progress": progress})()
    with caplog.at_level(logging.INFO, "offloader.spark"):
        LagListener().onQueryProgress(event)
    assert caplog.messages == ["query index, batch 4: stream a/b has 7 entries, 140 bytes that aren't read"]
    assert lag_of({"sources": others}) == {}
