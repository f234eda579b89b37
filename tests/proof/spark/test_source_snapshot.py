"""What a data frame, a view and a new load see of a stream that grows, shrinks and is queried with filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from formats.manifest import Retire, Truncate
from tests.spark.reading import failure_of, load
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
from tests.spark.test_source_snapshot import writer as writer

pytestmark = pytest.mark.java


@pytest.fixture(params=["pushed", "not pushed"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Where filters are pushed Spark plans every filtered query anew, elsewhere a data frame once."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(request.param == "pushed").lower())
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def counts(frame: DataFrame) -> list[int]:
    """Of a query with a filter, of one without, and of a union of both."""
    filtered = frame.where("ledger_id = 1")
    return [filtered.count(), frame.count(), filtered.union(frame).count()]


def test_frame_sees_the_version_of_its_load_in_every_query(session: SparkSession, writer: StreamWriter) -> None:
    frame = load(session, writer)
    writer.add([batch_of(1, 10, 20)])
    assert counts(frame) == [10, 10, 20]
    writer.add([batch_of(1, 30, 5)])
    assert counts(frame) == [10, 10, 20]
    assert counts(load(session, writer)) == [35, 35, 70]


def test_view_sees_the_version_of_its_creation_in_every_query(session: SparkSession, writer: StreamWriter) -> None:
    options = f"store '{writer.store.url}', stream '{writer.stream}'"
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW snapshot USING offloader OPTIONS ({options})")
    writer.add([batch_of(1, 10, 20)])
    assert counts(session.table("snapshot")) == [10, 10, 20]
    assert session.sql("SELECT count(*) AS n FROM snapshot WHERE entry_id >= 5").collect()[0].n == 5


def test_frame_with_a_schema_sees_the_version_of_its_first_query(session: SparkSession, writer: StreamWriter) -> None:
    """Spark calls the source for such a frame at its first query."""
    frame = load(session, writer, schema="ledger_id BIGINT, entry_id BIGINT")
    writer.add([batch_of(1, 10, 20)])
    assert counts(frame) == [30, 30, 60]
    writer.add([batch_of(1, 30, 5)])
    assert counts(frame) == [30, 30, 60]


def test_frame_of_a_pattern_sees_one_version_of_each_stream(session: SparkSession, writer: StreamWriter) -> None:
    prices = StreamWriter(writer.store, "shop/prices")
    prices.add([batch_of(1, 0, 3)])
    frame = load(session, writer, stream="shop/*")
    prices.add([batch_of(1, 3, 3)])
    StreamWriter(writer.store, "shop/later").add([batch_of(1, 0, 100)])
    assert counts(frame) == [13, 13, 26]
    assert load(session, writer, stream="shop/*").count() == 116


def test_records_of_several_streams_are_pinned_under_a_pattern(spark: SparkSession, writer: StreamWriter) -> None:
    prices = StreamWriter(writer.store, "shop/prices")
    prices.add([batch_of(1, 0, 3)])
    StreamWriter(writer.store, "shop/without").add([batch_of(1, 0, 100)])
    records = spark.read.format("offloader").options(store=writer.store.url, stream="shop/*", content="manifest").load()
    newest = {
        row.stream: row.newest
        for row in records.groupBy("stream").agg({"record_id": "max"}).toDF("stream", "newest").collect()
    }
    writer.add([batch_of(1, 10, 20)])
    prices.add([batch_of(1, 3, 3)])
    pinned = ", ".join(f"{name}={newest[name]}" for name in ("shop/orders", "shop/prices"))
    found = load(spark, writer, stream="shop/*", asOfManifest=pinned).groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in found} == {"shop/orders": 10, "shop/prices": 3}
    said = failure_of(load(spark, writer, stream="shop/*", asOfManifest="2").count)
    assert "option asOfManifest needs one record per stream here: shop/orders=..., shop/prices=..." in said
    said = failure_of(load(spark, writer, stream="shop/o*", asOfManifest=pinned).count)
    assert "option asOfManifest names shop/prices, which shop/o* doesn't" in said


def test_deleted_segment_fails_every_query_by_name(session: SparkSession, writer: StreamWriter) -> None:
    old = writer.uuids[0]
    frame = load(session, writer)
    assert frame.count() == 10
    writer.add([batch_of(1, 10, 20)])
    writer.log.commit([Truncate(Position(1, 10)), Retire((old,))])
    assert counts(frame) == [10, 10, 20], "retired, and not deleted yet"
    writer.store.delete(list(writer.keys(old)))
    for query in (frame, frame.where("entry_id >= 3")):
        said = failure_of(query.collect)
        assert "TrimmedError" in said
        assert f"stream shop/orders, object {writer.keys(old)[0].rpartition('/')[0]}" in said
        assert f"retention deleted segment {old}" in said
    assert load(session, writer).count() == 20
