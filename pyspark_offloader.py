"""Spark's entry point: Spark imports modules named ``pyspark_*`` and takes their ``DefaultSource``."""

from __future__ import annotations

from typing import cast

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``spark.read.format("offloader")``: loads the data source when Spark makes one, not when Spark lists the names.

    Its instances are those of ``OffloaderDataSource``.
    """

    def __new__(cls, options: dict[str, str]) -> DefaultSource:
        from offloader.spark.source import OffloaderDataSource

        return cast("DefaultSource", OffloaderDataSource(options))

    @classmethod
    def name(cls) -> str:
        return "offloader"
