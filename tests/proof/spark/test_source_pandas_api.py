"""The pandas API on Spark over a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.store.open import open_store
from tests.spark.reading import load
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore:'PYARROW_IGNORE_TIMEZONE':UserWarning")]


def test_pandas_api_on_spark_reads_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}"), "shop/orders")
    writer.add([batch_of(1, 0, 40)])
    frame = load(spark, writer).select("entry_id", "publish_time").pandas_api()
    assert len(frame) == 40
    assert frame["entry_id"].sum() == sum(range(40))
    assert int(frame[frame["entry_id"] >= 30]["entry_id"].min()) == 30
