"""Reading a stream with Spark in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from formats.entries import TIME_UNKNOWN_MS, Entry
from tests.support.streams import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, writer: StreamWriter, *, schema: str = "", **options: str) -> DataFrame:
    """A data frame on the writer's stream; keyword arguments are options."""
    reader: Any = spark.read.format("offloader")
    for name, value in {"store": writer.store.url, "stream": writer.stream, **options}.items():
        reader = reader.option(name, value)
    return (reader.schema(schema) if schema else reader).load()  # type: ignore[no-any-return]


def entries_in(frame: DataFrame) -> list[Entry]:
    """The rows as entries, sorted by position."""
    rows = frame.selectExpr("ledger_id", "entry_id", "payload", "unix_millis(publish_time) AS time_ms").collect()
    found = [
        Entry(
            row.ledger_id,
            row.entry_id,
            bytes(row.payload),
            TIME_UNKNOWN_MS if row.time_ms is None else row.time_ms,
        )
        for row in rows
    ]
    return sorted(found)
