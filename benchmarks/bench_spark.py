"""A Spark scan against a Python data source that emits the same rows from memory: what the pipe to the JVM allows.

    python benchmarks/bench_spark.py [--store file|minio|versitygw] [--mib 256] [--entry-bytes 100,1024] [--json]

Prints for each entry size, with ``local[2]`` and the ``noop`` sink: MB/s of payload and rows/s of the scan and of the
ceiling, their ratio, the scan of positions only, and the time until a first small query answers. The ceiling's rows
come in batches of the same size, one made once in each task. Compare the ratios: Spark, Python and a server share the
cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa
from bench_read import opened_store, seconds, write_stream
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from offloader.read.reader import open_reader
from offloader.spark.session import local_session
from offloader.store.base import ObjectStore

ROUNDS = 3
CORES = 2
BATCH_ROWS = 10_000
SPLIT_BYTES = 64 << 20
SCHEMA = "stream STRING, ledger_id BIGINT, entry_id BIGINT, publish_time TIMESTAMP, payload BINARY"
ARROW = pa.schema(
    [
        ("stream", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
    ]
)


class FromMemory(DataSource):
    """The same number of rows of the same size, without reading or decoding anything."""

    @classmethod
    def name(cls) -> str:
        return "from_memory"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return FromMemoryReader(dict(self.options))


class FromMemoryReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.rows = int(options["rows"])
        self.entry_bytes = int(options["entrybytes"])
        self.parts = int(options["parts"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        count = min(BATCH_ROWS, max(1, (4 << 20) // self.entry_bytes))
        batch = pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar("bench"), count),
                pa.array(range(count), pa.int64()),
                pa.array(range(count), pa.int64()),
                pa.array(range(count), pa.timestamp("us", tz="UTC")),
                pa.array([bytes(self.entry_bytes)] * count, pa.binary()),
            ],
            schema=ARROW,
        )
        left = self.rows // self.parts
        while left > 0:
            yield batch.slice(0, min(count, left))
            left -= count


def rate_of(frame: Callable[[], Any]) -> float:
    """Seconds of a scan into nothing; the median after one round that doesn't count."""
    frame().write.format("noop").mode("overwrite").save()
    return statistics.median(
        seconds(lambda: frame().write.format("noop").mode("overwrite").save()) for _ in range(ROUNDS)
    )


def measure(spark: Any, store: ObjectStore, options: dict[str, str], stream: str, entry_bytes: int) -> dict[str, float]:
    rows = open_reader(store, stream).count()
    parts = max(1, -(-rows * (entry_bytes + 12) // SPLIT_BYTES))

    def scan(schema: str = SCHEMA) -> Any:
        reader = spark.read.format("offloader").option("store", store.url).option("stream", stream)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.option("splitBytes", str(SPLIT_BYTES)).schema(schema).load()

    def ceiling() -> Any:
        made = spark.read.format("from_memory").option("rows", str(rows)).option("entryBytes", str(entry_bytes))
        return made.option("parts", str(parts)).load()

    first_answer_s = seconds(
        lambda: scan("ledger_id BIGINT, entry_id BIGINT").where("ledger_id = 1 AND entry_id = 7").count()
    )
    scan_s, ceiling_s = rate_of(scan), rate_of(ceiling)
    positions_s = rate_of(lambda: scan("ledger_id BIGINT, entry_id BIGINT"))
    return {
        "rows": rows,
        "partitions": scan().rdd.getNumPartitions(),
        "scan_mb_s": round(rows * entry_bytes / 1e6 / scan_s, 1),
        "ceiling_mb_s": round(rows * entry_bytes / 1e6 / ceiling_s, 1),
        "scan_rows_s": round(rows / scan_s),
        "scan_to_ceiling": round(ceiling_s / scan_s, 2),
        "positions_rows_s": round(rows / positions_s),
        "first_answer_s": round(first_answer_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["file", "minio", "versitygw"], default="file")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--entry-bytes", default="100,1024")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started = time.perf_counter()
    spark = local_session("bench", cores=CORES)
    spark.dataSource.register(FromMemory)
    session_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder, opened_store(arguments.store, folder) as (store, options):
        for entry_bytes in map(int, arguments.entry_bytes.split(",")):
            stream = f"bench-{entry_bytes}"
            write_stream(store, stream, entry_bytes, arguments.mib << 20)
            found: dict[str, Any] = {"store": arguments.store, "entry_bytes": entry_bytes}
            found |= {"session_s": round(session_s, 2), **measure(spark, store, options, stream, entry_bytes)}
            if arguments.json:
                print(json.dumps(found))
            else:
                print("\n".join(f"{name:20} {value}" for name, value in found.items()) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
