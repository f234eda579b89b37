"""Spark's daemon of Python workers, ``spark.python.daemon.module``: loads what a task needs before it forks them.

NumPy, Arrow, pandas (which Arrow loads if it is installed) and the data source take 0.5 to 1 s of processor in each
worker otherwise. Nothing here may start a thread of Python's: a fork wouldn't have it.
"""

from __future__ import annotations

import gc
import os

import numpy.random
import pyarrow.compute
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import offloader.spark.source  # noqa: F401
from formats.checksum import crc32c
from formats.metadata import pulsar_ledger_pb2  # noqa: F401
from formats.pulsar import messages  # noqa: F401

crc32c(b"loads the library")
pyarrow.array([], pyarrow.int64())
# Otherwise all workers would draw the same numbers.
os.register_at_fork(after_in_child=numpy.random.seed)

if __name__ == "__main__":
    gc.freeze()
    manager()
