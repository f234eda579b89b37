"""Reading a stream with Spark in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, Entry
from offloader.spark.scan import SegmentSlice, pinned_states, plan_slices
from tests.support.streams import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offloader.spark.options import Needs, SourceOptions
    from offloader.store.base import ObjectStore


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


def failure_of(frame_call: object) -> str:
    """What Spark says when the call fails."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        frame_call()  # type: ignore[operator]
    return str(caught.value)


def planned(options: SourceOptions, needs: Needs, store: ObjectStore) -> list[tuple[SegmentSlice, ...]]:
    """The partitions of a scan of the streams as they are now."""
    return plan_slices(options, pinned_states(options, store), needs, store)
