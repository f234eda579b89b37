"""``offloader.spark.entries`` reads what a condition asks for, and every row for which it is true."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.errors import InvalidCallError, NotFoundError
from offloader.spark import entries
from offloader.spark.options import Needs, SourceOptions
from offloader.store.open import open_store
from tests.spark.reading import failure_of, load, planned
from tests.support.streams import BASE_MS, StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.proof.spark.test_where_conditions import CONDITIONS, Positions
from tests.proof.spark.test_where_conditions import unfiltered as unfiltered


@pytest.mark.java
def test_frame_of_a_condition_has_the_rows_of_a_filtered_scan(
    spark: SparkSession, orders: StreamWriter, unfiltered: dict[str, Positions]
) -> None:
    """All in one query, of which each condition is a part: relations of their own don't disturb each other."""
    place, columns = (orders.store.url, orders.stream), ["ledger_id", "entry_id"]
    frames = [entries(spark, *place, columns=columns, where=condition) for condition in CONDITIONS]
    assert all(frame.columns == columns for frame in frames)
    numbered = [frame.selectExpr(f"{number} AS number", *columns) for number, frame in enumerate(frames)]
    rows = functools.reduce(lambda one, other: one.union(other), numbered).collect()
    for number, condition in enumerate(CONDITIONS):
        found = sorted((row.ledger_id, row.entry_id) for row in rows if row.number == number)
        assert found == unfiltered[condition], condition
        known = "<lambda>" in frames[number].count.__qualname__
        assert not known or frames[number].count() == len(found), condition


@pytest.mark.java
def test_times_without_a_zone_are_in_the_sessions_zone(spark: SparkSession, orders: StreamWriter) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        when = datetime.fromtimestamp(BASE_MS / 1000 + 3100, timezone(timedelta(hours=9))).strftime("%Y-%m-%d %H:%M:%S")
        expected = sum(entry.publish_time_ms >= BASE_MS + 1000 * 3100 for entry in orders.entries)
        for literal in (f"'{when}'", f"TIMESTAMP '{when}'"):
            where = f"publish_time >= {literal}"
            assert entries(spark, orders.store.url, orders.stream, where=where).count() == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.java
def test_count_is_the_manifests_where_that_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    """Without the data objects, so that every read of them fails."""
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")
    uuids = [writer.add([batch_of(1, 100 * number, 100)]) for number in range(3)]
    writer.store.delete([key for uuid in uuids for key in writer.keys(uuid)])
    for where, expected in (
        ("", 300),
        ("ledger_id = 1 AND entry_id BETWEEN 50 AND 249", 200),
        ("ledger_id > 1", 0),
        ("stream = 'shop/orders'", 300),
    ):
        assert entries(spark, writer.store.url, "shop/*", where=where).count() == expected
    assert entries(spark, writer.store.url, "shop/*", limit=30).count() == 30
    for where in ("publish_time >= '2020-01-01'", "entry_id % 2 = 0"):
        assert "ObjectMissingError" in failure_of(entries(spark, writer.store.url, "shop/*", where=where).count)


@pytest.mark.java
def test_refused_arguments_are_named(spark: SparkSession, orders: StreamWriter) -> None:
    place = orders.store.url, orders.stream
    with pytest.raises(InvalidCallError, match="option columns: content=entries has no key"):
        entries(spark, *place, columns=["key"])
    with pytest.raises(InvalidCallError, match="entries doesn't accept store as an option"):
        entries(spark, *place, options={"store": "x"})
    with pytest.raises(InvalidCallError, match="limit is -1"):
        entries(spark, *place, limit=-1)
    with pytest.raises(NotFoundError, match=r"stream shop/nothing isn't in"):
        entries(spark, place[0], "shop/nothing")
    said = failure_of(lambda: load(spark, orders, pruneByFilters="true"))
    assert "unknown option prunebyfilters" in said.lower()


def test_many_small_streams_are_read_by_many_tasks(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    for number in range(300):
        StreamWriter(store, f"shop/s{number}").add([batch_of(1, 0, 1)])
    partitions = planned(SourceOptions.of({"store": store.url, "stream": "shop/*"}), Needs.PAYLOADS, store)
    assert len(partitions) == 5
    assert sum(len(slices) for slices in partitions) == 300
    assert max(len(slices) for slices in partitions) <= 65
