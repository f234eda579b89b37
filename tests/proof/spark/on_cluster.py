"""A program for ``spark-submit``: uses everything of the package on a cluster and writes down what it saw.

Arguments: JSON of the data source's options without a stream, URL of a ledger database, a folder. Nothing but the
package itself is imported: what is defined here travels to the executors by value.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import offloader
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.spark.jobs import backfill, export, verify
from offloader.spark.options import CONTENTS
from offloader.spark.source import OffloaderDataSource

STREAM = "shop/orders"
MESSAGES = "shop/messages"


class KillingLedgers(EmbeddedLedgers):
    """The first task that is done with its segment kills its executor, as if the machine went away.

    Args:
        url: of the database.
        marker: a file that is made then.
    """

    def __init__(self, url: str, *, marker: str) -> None:
        super().__init__(url, create=False)
        self._marker = marker

    def close(self) -> None:
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            try:
                os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(_executor(), signal.SIGKILL)
                time.sleep(60)
        super().close()


class ElsewhereLedgers(EmbeddedLedgers):
    """For executors a database that isn't there."""

    def __init__(self, url: str) -> None:
        from pyspark import TaskContext

        super().__init__(url if TaskContext.get() is None else f"{url}.elsewhere", create=False)


def _executor() -> int:
    """The JVM, whose child is the daemon that this worker was forked from."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])


def _digest(rows: list[Any]) -> list[Any]:
    return sorted([row.ledger_id, row.entry_id, hashlib.sha256(bytes(row.payload)).hexdigest()] for row in rows)


def scans(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Every kind of row; positions alone; what plans and partitions look like."""

    def load(stream: str, **more: str) -> DataFrame:
        return spark.read.format("offloader").options(**{**options, "stream": stream, **more}).load()

    others = [content for content in CONTENTS if content not in ("entries", "messages")]
    found: dict[str, Any] = {content: load(STREAM, content=content).count() for content in others}
    small = {"splitBytes": "20000"}
    frame = load(STREAM, **small)
    found["rows"] = _digest(frame.select("ledger_id", "entry_id", "payload").collect())
    found["partitions"] = frame.rdd.getNumPartitions()
    positions = load(STREAM, columns="ledger_id,entry_id", **small).collect()
    found["positions"] = sorted([row.ledger_id, row.entry_id] for row in positions)
    messages = load(MESSAGES, content="messages").orderBy("ledger_id", "entry_id", "batch_index").collect()
    found["message_values"] = [bytes(row.value).decode() for row in messages]
    frame.explain("extended")
    source = OffloaderDataSource({**options, "stream": STREAM, **small})
    reader = source.reader(frame.schema)
    Path("pickles").write_bytes(cloudpickle.dumps((reader, reader.partitions())))  # type: ignore[no-untyped-call]
    return found


def executors(spark: SparkSession) -> dict[str, Any]:
    """Where executors have the package from, and how many there are: a barrier's tasks run at once."""

    def where(_: object) -> Any:
        yield [os.getppid(), str(Path(offloader.__file__).absolute())]

    seen = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(where).collect()
    return {"executors": len({pid for pid, _ in seen}), "package": sorted({path for _, path in seen})}


def jobs(spark: SparkSession, options: dict[str, str], ledgers: str, folder: Path) -> dict[str, Any]:
    (refused,) = backfill(spark, ["hot/a"], options, ledgers=ledgers, open_hot=ElsewhereLedgers)
    open_hot = partial(KillingLedgers, marker=str(folder / "killed"))
    done = backfill(spark, ["hot/*"], options, ledgers=ledgers, take_over=True, open_hot=open_hot)
    scrub = verify(spark, ["shop/*", "hot/*"], options)
    exported = export(spark, ["shop/*"], options, to=f"file://{folder}/export")
    again = export(spark, ["shop/*"], options, to=f"file://{folder}/export")
    return {
        "refused": f"{type(refused.error).__name__}: {refused.error}",
        "backfilled": {each.stream: [sum(s.entries for _, s in each.offloaded), str(each.error)] for each in done},
        "verified": {each.stream: each.totals.entries for each in scrub.streams},
        "findings": [str(row) for row in scrub.frame.collect()],
        "exported": {each.stream: sum(part.rows for part in each.ranges) for each in exported},
        "exported_again": sum(len(each.ranges) for each in again),
        "in_files": spark.read.parquet(f"file://{folder}/export/entries").count(),
    }


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> dict[str, Any]:
    """A query in many batches, during which a worker is killed."""
    frame = spark.readStream.format("offloader").options(**options, stream=STREAM, maxEntriesPerTrigger="120").load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", f"file://{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"file://{folder}/out")
    )
    query.awaitTermination()
    return {"streamed": _digest(spark.read.parquet(f"file://{folder}/out").collect())}


def main(options_json: str, ledgers: str, place: str) -> None:
    options, folder = json.loads(options_json), Path(place)
    spark = SparkSession.builder.appName("everything").getOrCreate()
    found = executors(spark) | scans(spark, options) | jobs(spark, options, ledgers, folder)
    if spark.sparkContext.uiWebUrl:
        from urllib.request import urlopen

        with urlopen(f"{spark.sparkContext.uiWebUrl}/environment/") as page:
            (folder / "environment.html").write_bytes(page.read())
    found |= stream(spark, options, folder)
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
