"""Finding a working Java, and a session that runs this Python."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from offloader.runtime.system import THREAD_SWITCH_S
from tests.spark.reading import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from tests.support.streams import StreamWriter


def state_of_workers(spark: SparkSession) -> tuple[int, float]:
    """The most objects that a worker of data sources has declared permanent, and the shortest turn of its threads."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class FrozenReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(8)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, float]]:
            yield gc.get_freeze_count(), sys.getswitchinterval()

    class Frozen(DataSource):
        @classmethod
        def name(cls) -> str:
            return "frozen"

        def schema(self) -> str:
            return "objects BIGINT, turn_s DOUBLE"

        def reader(self, schema: StructType) -> DataSourceReader:
            return FrozenReader()

    spark.dataSource.register(Frozen)
    rows = spark.read.format("frozen").load().collect()
    return max(int(row.objects) for row in rows), min(float(row.turn_s) for row in rows)


def test_reused_worker_freezes_imports_and_lowers_the_switch_interval(
    spark: SparkSession, orders: StreamWriter
) -> None:
    for _ in range(3):
        assert load(spark, orders, splitBytes="40000").count()
    frozen, turn_s = state_of_workers(spark)
    assert frozen > 10_000
    assert abs(turn_s - THREAD_SWITCH_S) < 1e-6
