"""A streaming query as a subscriber: data that it needs stays, and publishing errors never end it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.documents import Subscribers, document_key
from offloader.retention.subscribers import open_retention
from offloader.store.open import open_store
from tests.spark.test_stream_query import stream_into_parquet
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_subscribed_query_holds_data_back_until_it_is_committed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(1, 0, 100)])
    options = {"subscriber": "query", "maxEntriesPerTrigger": "60"}
    retention = open_retention(writer.store, "orders")

    stream_into_parquet(spark, writer, tmp_path, **options)

    (found,) = retention.subscribers()
    assert (found.subscriber.name, str(found.subscriber.cut), found.lag_entries) == ("query", "0.0=1:100", 0)
    writer.add([batch_of(1, 100, 30)])
    assert retention.subscribers()[0].lag_entries == 30
    place = retention.scope()
    assert place.incarnation is not None
    # Its registry is damaged: the query goes on, what it read stays held back.
    writer.store.put(document_key(Subscribers, "orders", place.incarnation), b"damaged")
    _, counts = stream_into_parquet(spark, writer, tmp_path, **options)
    assert sum(counts) == 30
