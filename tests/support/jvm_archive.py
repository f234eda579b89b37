"""Starts of Spark's and brokers' JVMs at half their cost: compiled once, and classes from an archive (Java's AppCDS).

A Spark that a test starts lives for seconds, so the optimising compiler costs more than it brings. The archive lies in
the environment whose jars it was made of, the broker's beside its jars. ``python -m tests.support.jvm_archive`` makes
them where they are missing, before all tests run. A JVM without one, or with other jars, reads its classes from the
jars as always.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from services.binaries import Unavailable
from services.pulsar.broker import make_class_archive

__all__ = ["ARCHIVE", "JVM_VARIABLES", "make", "speed_up"]

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
#: Read by Spark's scripts: for the JVM that finds a command's class path, for drivers, for masters and workers.
JVM_VARIABLES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def speed_up() -> None:
    """Sets the options for every JVM that Spark's scripts start from now on, unless the environment has them."""
    for name in JVM_VARIABLES:
        archive = "" if name == "SPARK_LAUNCHER_OPTS" else f" -XX:SharedArchiveFile={ARCHIVE}"
        os.environ.setdefault(name, _OPTIONS + archive)


def make() -> None:
    """Does what most tests of Spark do, in a JVM that writes down the classes it loaded when it ends."""
    from offloader.spark import local_session
    from offloader.store.open import open_store
    from tests.support.streams import StreamWriter, batch_of

    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / "classes.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_OPTIONS} -XX:ArchiveClassesAtExit={made}"
        writer = StreamWriter(open_store(f"file://{folder}/store"))
        writer.add([batch_of(1, 0, 300)])
        spark = local_session(cores=1)
        source = {"store": writer.store.url, "stream": writer.stream}
        frame = spark.read.format("offloader").options(**source).load()
        frame.groupBy("ledger_id").count().collect()
        frame.write.parquet(f"{folder}/scanned")
        spark.read.parquet(f"{folder}/scanned").orderBy("entry_id").collect()
        streamed = spark.readStream.format("offloader").options(**source).load().writeStream.format("parquet")
        streamed = streamed.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        streamed.start(f"{folder}/streamed").awaitTermination()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        spark.stop()
        process.stdin.close()  # its end ends the JVM, which then writes the archive
        process.wait(120)
        made.rename(ARCHIVE)


if __name__ == "__main__":
    if not ARCHIVE.exists():
        make()
    with contextlib.suppress(Unavailable):
        make_class_archive()
