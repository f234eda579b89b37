"""A program for ``spark-submit`` over interpreters that have the core packages only: reads, counts, streams.

Arguments: URL of a store in a directory, a folder for what it found.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import offloader
from offloader.spark import entries

STREAM = "shop/orders"
MESSAGES = "shop/messages"
#: Of the extras: none may be there.
OTHERS = ("boto3", "crcmod", "fsspec", "lz4", "pandas", "rich", "typer", "urllib3", "zstandard")


def _digest(rows: list[Any]) -> list[Any]:
    return sorted([row.ledger_id, row.entry_id, hashlib.sha256(bytes(row.payload)).hexdigest()] for row in rows)


def main(store: str, place: str) -> None:
    spark = SparkSession.builder.appName("bare").getOrCreate()

    def seen(_: object) -> Any:
        yield [str(Path(offloader.__file__).absolute()), [name for name in OTHERS if importlib.util.find_spec(name)]]

    plain = {"store": store, "splitBytes": "20000"}
    frame = spark.read.format("offloader").options(**plain, stream=STREAM).load()
    messages = spark.read.format("offloader").options(**plain, stream=MESSAGES, content="messages").load()
    stream = spark.readStream.format("offloader").options(**plain, stream=STREAM, maxEntriesPerTrigger="300").load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"file://{place}/bare-checkpoint")
        .trigger(availableNow=True)
        .start(f"file://{place}/bare-out")
    )
    query.awaitTermination()
    found = {
        "executor": spark.sparkContext.parallelize([0], 1).mapPartitions(seen).collect()[0],
        "rows": _digest(frame.select("ledger_id", "entry_id", "payload").collect()),
        "count": entries(spark, store, STREAM, where="ledger_id = 2").count(),
        "messages": sorted([row.compression, bytes(row.value).decode()] for row in messages.collect()),
        "streamed": _digest(spark.read.parquet(f"file://{place}/bare-out").collect()),
    }
    (Path(place) / "bare.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
