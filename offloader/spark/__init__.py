"""Spark: the data source ``offloader``, and a local session to try it with.

The public names, each loaded at first use. Importing this doesn't load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offloader.spark.frames import entries, messages
    from offloader.spark.lag import LagListener, lag_of
    from offloader.spark.session import find_java, local_session

__all__ = ["LagListener", "entries", "find_java", "lag_of", "local_session", "messages", "register"]


def register(spark: SparkSession) -> None:
    """Registers the data source ``offloader``, and checks that a session's workers can import this package.

    Without it Spark finds the data source by itself (module ``pyspark_offloader``).

    Raises:
        UnsupportedError: the session's workers run a Python on this machine that doesn't have this package.
    """
    from offloader.spark.session import require_interpreter
    from pyspark_offloader import DefaultSource

    require_interpreter(spark)
    spark.dataSource.register(DefaultSource)


#: Public name -> its module.
_PLACES = {
    "LagListener": "offloader.spark.lag",
    "entries": "offloader.spark.frames",
    "find_java": "offloader.spark.session",
    "lag_of": "offloader.spark.lag",
    "local_session": "offloader.spark.session",
    "messages": "offloader.spark.frames",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'offloader.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
