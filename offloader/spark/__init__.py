"""Spark: the data source ``offloader``, and a local session to try it with.

Owns the names users need, each loaded when it is first used. Must never load Spark by being imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offloader.spark.session import find_java, local_session

__all__ = ["find_java", "local_session", "register"]

_HOMES = {"find_java": "offloader.spark.session", "local_session": "offloader.spark.session"}


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("offloader")`` take pushed filters, which the option ``pruneByFilters`` makes use of.

    Without it Spark finds the data source by itself (module ``pyspark_offloader``), which can't push filters: a source
    that defines them fails unless ``spark.sql.python.filterPushdown.enabled`` is on. This switches it on.
    """
    from offloader.spark.source import OffloaderDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(OffloaderDataSource)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'offloader.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
