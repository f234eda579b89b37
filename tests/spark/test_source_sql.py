"""SQL: views and tables of streams, options of a query, and what Spark refuses for a Python data source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.spark.options import ddl
from offloader.store.open import open_store
from tests.spark.reading import failure_of
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = open_store(f"file://{tmp_path_factory.mktemp('sql')}")
    for name, count in (("shop/orders", 40), ("shop/prices", 15)):
        StreamWriter(store, name).add([batch_of(1, 0, count)])
    return store.url


@pytest.fixture
def table(spark: SparkSession) -> Iterator[None]:
    """A table without options, as the document makes it once for a catalogue."""
    spark.sql("CREATE TABLE offloader USING offloader")
    yield
    spark.sql("DROP TABLE offloader")


def first(spark: SparkSession, query: str) -> object:
    return spark.sql(query).collect()[0][0]


def test_query_gives_options_to_a_table_without_any(spark: SparkSession, url: str, table: None) -> None:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in spark.table("offloader").schema)
    assert columns == ddl("entries")
    orders, prices = (f"offloader WITH (store '{url}', stream '{name}')" for name in ("shop/orders", "shop/prices"))
    assert first(spark, f"SELECT count(*) FROM {orders}") == 40
    assert first(spark, f"SELECT count(*) FROM {prices} WHERE entry_id >= 10") == 5
    ending = f"offloader WITH (store '{url}', stream 'shop/orders', stop '1:5')"
    assert first(spark, f"SELECT sum(entry_id) FROM {ending}") == 10
    said = failure_of(lambda: first(spark, "SELECT count(*) FROM offloader"))
    assert "option store is missing" in said or "option stream is missing" in said


def test_one_query_of_a_table_has_the_options_that_come_first(spark: SparkSession, url: str, table: None) -> None:
    """What Spark does: when this fails, take the warning out of the document."""
    orders, prices = (f"offloader WITH (store '{url}', stream '{name}')" for name in ("shop/orders", "shop/prices"))
    query = f"SELECT count(*) FROM (SELECT * FROM {orders} UNION ALL SELECT * FROM {prices})"
    assert first(spark, query) == 80


def test_a_view_of_a_table_with_options_is_kept_and_is_read_anew(
    spark: SparkSession, tmp_path: Path, table: None
) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")
    writer.add([batch_of(1, 0, 10)])
    place = f"store '{writer.store.url}', stream 'shop/orders'"
    spark.sql(f"CREATE VIEW orders_now AS SELECT entry_id FROM offloader WITH ({place})")
    try:
        assert first(spark, "SELECT count(*) FROM orders_now") == 10
        writer.add([batch_of(1, 10, 10)])
        assert first(spark, "SELECT count(*) FROM orders_now") == 20
    finally:
        spark.sql("DROP VIEW orders_now")


def test_table_of_messages_has_their_columns(spark: SparkSession, url: str) -> None:
    spark.sql("CREATE TABLE pulsar_messages USING offloader OPTIONS (content 'messages')")
    try:
        assert "batch_index" in spark.table("pulsar_messages").columns
        place = f"content 'messages', store '{url}', stream 'shop/orders', onBadMessage 'null'"
        assert first(spark, f"SELECT count(*) FROM pulsar_messages WITH ({place})") == 40
    finally:
        spark.sql("DROP TABLE pulsar_messages")


def test_table_with_options_is_refused_with_what_to_do(spark: SparkSession, url: str) -> None:
    said = failure_of(lambda: spark.sql(f"CREATE TABLE t USING offloader OPTIONS (store '{url}', stream 'shop/*')"))
    assert "Spark keeps no options of a table with the format offloader: store, stream would be lost" in said


def test_sql_reads_an_older_record_by_an_option(spark: SparkSession, tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")
    writer.add([batch_of(1, 0, 10)])
    record = writer.log.state.record_id
    writer.add([batch_of(1, 10, 10)])
    place = f"store '{writer.store.url}', stream 'shop/*', asOfManifest 'shop/orders={record}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW before USING offloader OPTIONS ({place})")
    assert first(spark, "SELECT count(*) FROM before") == 10
    said = failure_of(lambda: spark.sql(f"SELECT * FROM before VERSION AS OF {record}"))
    assert "Time travel on the relation: `before`" in said
