"""A Spark scan against a Python data source that emits the same rows from memory, and against Spark's own Parquet.

    python benchmarks/bench_spark.py [--store file|minio|versitygw] [--mib 1024] [--entry-bytes 100,1024] [--rounds 5]
                                     [--million 10] [--segments 100000] [--events 1000000] [--s3a-jars FOLDER]
                                     [--conf NAME=VALUE] [--json]

Prints for each entry size, with ``local[2]`` and the ``noop`` sink: MB/s of payload of the scan, of the ceiling (the
source that emits from memory) and of Parquet (the same rows, uncompressed, in local files), each way in turns, medians;
the ratios, each of them the median of the rounds' own (a machine that grows slower in between changes both ways of one
round, but not one way of another); and the processor seconds for a GB that the JVM, its Python workers and the server
took. The ceiling's rows come in batches of 4 MiB, one made once in each task, from Python workers of its own that
never load anything of ours: what the pipe to the JVM allows. Then a table of questions about ``--events`` JSON
events, beside the same rows as zstd Parquet: in local files, or with ``--s3a-jars`` in the S3 server, read with
Hadoop's s3a out of that folder's jars (hadoop-aws of Spark's Hadoop version, the AWS SDK's bundle,
analyticsaccelerator-s3). Then the time until a first small query answers; positions only (stream, ledger id, entry
id) of ``--million`` million entries, after their data objects were deleted, so that none can have been asked for; and
the time to plan a scan of a stream of ``--segments`` segments. Compare the ratios: Spark, Python and a server share
the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks import bench_manifest, spark_questions
from benchmarks.bench_read import BUCKET, opened_store, seconds, write_stream
from offloader.read.reader import open_stream_reader
from offloader.spark.options import Needs, SourceOptions
from offloader.spark.scan import pinned_states, plan_slices
from offloader.spark.session import local_session
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of

CORES = 2
WARMING_ROUNDS = 2
BATCH_ROWS = 10_000
SPLIT_BYTES = 64 << 20
SCHEMA = "stream STRING, ledger_id BIGINT, entry_id BIGINT, publish_time TIMESTAMP, payload BINARY"
POSITIONS = "stream STRING, ledger_id BIGINT, entry_id BIGINT"
ARROW = pa.schema(
    [
        ("stream", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
    ]
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


def register_ceiling(spark: Any) -> None:
    """Python workers are shared by what has the same environment: an own one keeps those of the ceiling apart."""
    environment = spark.sparkContext.environment
    environment["OFFLOADER_BENCH"] = "ceiling"
    spark.dataSource.register(FromMemory)
    del environment["OFFLOADER_BENCH"]


def cpu_s() -> Mapping[str, float]:
    """Processor seconds so far of this process's descendants, children that ended included."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:
            continue  # it ended meanwhile
        fields = tail.split()
        pid = int(head.split()[0])
        parents[pid] = int(fields[1])
        used[pid] = head.partition("(")[2], sum(map(int, fields[11:15])) / TICKS_PER_S
    sums = {"jvm": 0.0, "python": 0.0, "server": 0.0}
    for pid, (name, spent_s) in used.items():
        above = parents[pid]
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid():
            sums["jvm" if name == "java" else "python" if name.startswith("python") else "server"] += spent_s
    return sums


def to_nowhere(frame: Callable[[], Any]) -> None:
    frame().write.format("noop").mode("overwrite").save()


def in_turns(ways: Mapping[str, Callable[[], Any]], rounds: int, gb: float) -> dict[str, Any]:
    """MB/s and processor seconds per GB of each way to make rows, and how the scan is to the others in each round;
    medians. Two rounds that don't count go before: the JVM is still compiling then."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[Mapping[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds + WARMING_ROUNDS):
        for name, way in ways.items():
            before, taken_s = cpu_s(), seconds(partial(to_nowhere, way))
            after = cpu_s()
            if turn >= WARMING_ROUNDS:
                taken[name].append(taken_s)
                costs[name].append({kind: (after[kind] - before[kind]) / gb for kind in after})
    found: dict[str, Any] = {}
    for name in ways:
        found[f"{name}_mb_s"] = round(gb * 1000 / statistics.median(taken[name]), 1)
        for kind in ("jvm", "python", "server"):
            found[f"{name}_{kind}_cpu_s_per_gb"] = round(statistics.median(cost[kind] for cost in costs[name]), 2)
        found[f"{name}_cpu_s_per_gb"] = round(statistics.median(sum(cost.values()) for cost in costs[name]), 2)
    for name in ("ceiling", "parquet"):
        ratios = [one / scan for one, scan in zip(taken[name], taken["scan"], strict=True)]
        found[f"scan_to_{name}"] = round(statistics.median(ratios), 2)
        found[f"scan_to_{name}_of_each_round"] = " ".join(f"{ratio:.2f}" for ratio in ratios)
    by_cpu = [sum(one.values()) / sum(scan.values()) for one, scan in zip(costs["ceiling"], costs["scan"], strict=True)]
    found["scan_to_ceiling_by_cpu"] = round(statistics.median(by_cpu), 2)
    return found


def scan_of(spark: Any, store: ObjectStore, options: Mapping[str, str], stream: str, schema: str) -> Any:
    reader = spark.read.format("offloader").option("store", store.url).option("stream", stream)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("splitBytes", str(SPLIT_BYTES)).schema(schema).load()


def measure(
    spark: Any, store: ObjectStore, options: dict[str, str], stream: str, entry_bytes: int, rounds: int
) -> dict[str, Any]:
    rows = open_stream_reader(store, stream).count()
    parts = max(1, -(-rows * (entry_bytes + 12) // SPLIT_BYTES))

    def scan() -> Any:
        return scan_of(spark, store, options, stream, SCHEMA)

    def ceiling() -> Any:
        made = spark.read.format("from_memory").option("rows", str(rows)).option("entryBytes", str(entry_bytes))
        return made.option("parts", str(parts)).load()

    first_answer_s = seconds(
        lambda: scan_of(spark, store, options, stream, POSITIONS).where("ledger_id = 1 AND entry_id = 7").count()
    )
    with tempfile.TemporaryDirectory() as folder:
        scan().write.option("compression", "none").parquet(f"{folder}/parquet")
        ways = {"scan": scan, "ceiling": ceiling, "parquet": lambda: spark.read.parquet(f"{folder}/parquet")}
        found = in_turns(ways, rounds, rows * entry_bytes / 1e9)
    return {
        "rows": rows,
        "partitions": scan().rdd.getNumPartitions(),
        **found,
        "scan_rows_s": round(found["scan_mb_s"] * 1e6 / entry_bytes),
        "first_answer_s": round(first_answer_s, 2),
    }


def positions(spark: Any, store: ObjectStore, options: dict[str, str], million: int) -> dict[str, float]:
    """Positions of many entries that have no data objects any more."""
    entries, entry_bytes = million * 1_000_000, 8
    write_stream(store, "bench-positions", entry_bytes, entries * (entry_bytes + 12))
    reader = open_stream_reader(store, "bench-positions")
    rows = reader.count()
    store.delete([record.object_keys("bench-positions")[0] for record in reader.segments()])
    taken_s = min(
        seconds(lambda: to_nowhere(lambda: scan_of(spark, store, options, "bench-positions", POSITIONS)))
        for _ in range(2)
    )
    return {"positions_rows": rows, "positions_s": round(taken_s, 2), "positions_rows_s": round(rows / taken_s)}


def questions(
    spark: Any, store: ObjectStore, options: dict[str, str], folder: str, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """The table of questions, of a stream that is written first."""
    parquet = f"file://{folder}/events-parquet"
    if arguments.s3a_jars:
        parquet = f"s3a://{BUCKET}/events-parquet"
        names = {"endpoint": "endpointUrl", "access.key": "accessKey", "secret.key": "secretKey"}
        settings = {name: options[option] for name, option in names.items()}
        settings |= {"path.style.access": "true", "endpoint.region": options["region"]}
        for name, value in settings.items():
            spark.conf.set(f"fs.s3a.{name}", value)
    spark_questions.write_events(store, arguments.events)
    return spark_questions.table(
        spark, store, options, parquet, rounds=arguments.rounds, cpu_s=lambda: sum(cpu_s().values())
    )


def plans(segments: int) -> dict[str, float]:
    """Plans over many segments, whose manifest is in a local directory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(open_store(f"file://{folder}")) as store:
        bench_manifest.build(store, "bench-plan", segments, 0, driver=dict(store.driver_metadata))
        # No segment is larger than a partition; else planning reads indexes, and there are none.
        options = SourceOptions.of({"store": store.url, "stream": "bench-plan", "splitBytes": str(65 << 20)})
        before = requests_of(store).get("get")
        cpu_before_s = time.process_time()
        whole_s = seconds(lambda: plan_slices(options, pinned_states(options, store), Needs.PAYLOADS, store))
        whole_cpu_s = time.process_time() - cpu_before_s
        requests = requests_of(store)["get"].requests - (before.requests if before else 0)
        positions_s = seconds(lambda: plan_slices(options, pinned_states(options, store), Needs.INDEXES, store))
    return {
        "plan_segments": segments,
        "plan_s": round(whole_s, 2),
        "plan_cpu_s": round(whole_cpu_s, 2),
        "plan_gets": requests,
        "plan_of_positions_s": round(positions_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["file", "minio", "versitygw"], default="file")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--entry-bytes", default="100,1024")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--million", type=int, default=10, help="entries of the scan of positions; 0: none")
    parser.add_argument("--segments", type=int, default=100_000, help="of the stream to plan a scan of; 0: none")
    parser.add_argument("--events", type=int, default=1_000_000, help="of the stream that is asked questions; 0: none")
    parser.add_argument("--s3a-jars", default="", metavar="FOLDER", help="jars to read Parquet from the S3 server with")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings = [each.partition("=") for each in arguments.conf]
    for name, sign, _ in settings:
        if not name or not sign:
            parser.error(f"--conf {name}: a setting is NAME=VALUE")
    config = {name: value for name, _, value in settings}

    def show(found: Mapping[str, object]) -> None:
        text = "\n".join(f"{name:24} {value}" for name, value in found.items()) + "\n"
        print(json.dumps(found) if arguments.json else text, flush=True)

    if arguments.s3a_jars:
        if arguments.store == "file":
            parser.error("--s3a-jars needs --store minio or versitygw")
        config["spark.jars"] = ",".join(map(str, sorted(Path(arguments.s3a_jars).glob("*.jar"))))
    if arguments.segments:
        show(plans(arguments.segments))
    started = time.perf_counter()
    spark = local_session("bench", cores=CORES, config=config)
    register_ceiling(spark)
    session_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder, opened_store(arguments.store, folder) as (store, options):
        for entry_bytes in map(int, filter(None, arguments.entry_bytes.split(","))):
            stream = f"bench-{entry_bytes}"
            write_stream(store, stream, entry_bytes, arguments.mib << 20)
            found: dict[str, Any] = {"store": arguments.store, "entry_bytes": entry_bytes}
            found["session_s"] = round(session_s, 2)
            show(found | measure(spark, store, options, stream, entry_bytes, arguments.rounds))
        if arguments.events:
            rows = questions(spark, store, options, folder, arguments)
            print(json.dumps(rows) if arguments.json else spark_questions.printed(rows), flush=True)
        if arguments.million:
            show({"store": arguments.store, **positions(spark, store, options, arguments.million)})
    spark.stop()


if __name__ == "__main__":
    main()
