"""Spark's entry point: Spark imports modules named ``pyspark_*`` and takes their ``DefaultSource``.

Defines no filter pushdown, which fails while Spark's setting for it is off.
"""

from __future__ import annotations

from offloader.spark.source import PlainOffloaderDataSource

__all__ = ["DefaultSource"]


class DefaultSource(PlainOffloaderDataSource):
    """``spark.read.format("offloader")`` without registration."""
