"""Spark's daemon of Python workers, ``spark.python.daemon.module``: loads a task's modules before it forks workers.

NumPy, Arrow, pandas (which Arrow loads if it is installed) and the data source take 0.5 to 1 s of processor in each
worker otherwise, the S3 SDK and its descriptions another 0.1 to 0.3 s. Nothing here may start a thread of Python's: a
fork wouldn't have it.
"""

from __future__ import annotations

import contextlib
import gc
import os

import numpy.random
import pyarrow.compute
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import offloader.spark.source  # noqa: F401
from formats.checksum import crc32c
from formats.metadata import pulsar_ledger_pb2  # noqa: F401
from formats.pulsar import messages  # noqa: F401
from offloader.spark.session import forget_sparks_jar

forget_sparks_jar()
crc32c(b"loads the library")
pyarrow.array([], pyarrow.int64())
# The SDK may be missing, or refuse the environment's settings; a worker that needs it reports that at the read.
with contextlib.suppress(Exception):
    from offloader.store import s3, s3_client  # noqa: F401

    s3_client.preload()
# Otherwise all workers would draw the same numbers.
os.register_at_fork(after_in_child=numpy.random.seed)

if __name__ == "__main__":
    gc.freeze()
    manager()
