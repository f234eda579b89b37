"""Spark: the data source ``offloader``, and a local session to try it with.

The public names, each loaded at first use. Importing this doesn't load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offloader.spark.session import find_java, local_session

__all__ = ["find_java", "local_session", "register"]


def register(spark: SparkSession) -> None:
    """Enables pushed filters for ``spark.read.format("offloader")``, which the option ``pruneByFilters`` uses.

    Without it Spark finds the data source by itself (module ``pyspark_offloader``), without filter pushdown: a source
    that defines it fails unless ``spark.sql.python.filterPushdown.enabled`` is on. This switches it on.

    Raises:
        Unsupported: the session's workers run a Python on this machine that doesn't have this package.
    """
    from offloader.spark.session import require_interpreter
    from offloader.spark.source import OffloaderDataSource

    require_interpreter(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(OffloaderDataSource)


def __getattr__(name: str) -> Any:
    if name not in ("find_java", "local_session"):
        raise AttributeError(f"module 'offloader.spark' has no attribute {name!r}")
    return getattr(importlib.import_module("offloader.spark.session"), name)
