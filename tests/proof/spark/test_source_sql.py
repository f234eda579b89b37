"""SQL: views and tables of streams, options of a query, and what Spark refuses for a Python data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.reading import failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.test_source_sql import url as url

pytestmark = pytest.mark.java


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t USING offloader AS SELECT 1 AS entry_id",
        "INSERT INTO entries_view SELECT * FROM entries_view",
    ],
)
def test_writing_is_refused_with_what_to_do(spark: SparkSession, url: str, statement: str) -> None:
    place = f"store '{url}', stream 'shop/orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW entries_view USING offloader OPTIONS ({place})")
    assert "Spark can't write with the format offloader" in failure_of(lambda: spark.sql(statement))


def test_frame_is_not_written_with_the_format(spark: SparkSession) -> None:
    rows = spark.range(1)
    said = failure_of(lambda: rows.write.format("offloader").mode("append").save())
    assert "Spark can't write with the format offloader" in said
