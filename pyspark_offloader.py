"""Spark's entry point: Spark imports modules named ``pyspark_*`` and takes their ``DefaultSource``."""

from __future__ import annotations

from offloader.spark.source import OffloaderDataSource

__all__ = ["DefaultSource"]


class DefaultSource(OffloaderDataSource):
    """``spark.read.format("offloader")`` without registration."""
