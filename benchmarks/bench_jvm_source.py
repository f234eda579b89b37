"""A trial of a Spark source in the JVM that reads blocks planned in Python, against today's source and Parquet.

    python benchmarks/bench_jvm_source.py [--store file|minio] [--mib 1024] [--entry-bytes 1024,100] [--rounds 3]
                                          [--json]

The trial is ``jvm_source/BlockSource.java``: uncompressed blocks with our extension, all of a stream. Each round scans
the same stream by the trial, by the data source and from uncompressed Parquet, in turns, into the ``noop`` sink with
``local[2]``. Before the rounds, all rows of the trial are compared with those of the data source.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyspark

from benchmarks.bench_read import opened_store, seconds, write_stream
from benchmarks.bench_spark import CORES, SCHEMA, SPLIT_BYTES, WARMING_ROUNDS, cpu_s, scan_of, to_nowhere
from offloader.read.fetch import Fetcher
from offloader.settings import ReadSettings
from offloader.spark.options import Needs, SourceOptions
from offloader.spark.scan import pinned_states, plan_slices
from offloader.spark.session import local_session
from offloader.store.base import ObjectStore
from services.broker_plugin import compile_java

SOURCE = Path(__file__).parent / "jvm_source" / "BlockSource.java"
EXPIRES_S = 3600.0


def plan(store: ObjectStore, folder: Path, stream: str, file: Path) -> None:
    """Writes the partitions of a whole stream, as the trial reads them."""
    options = SourceOptions.of({"store": store.url, "stream": stream, "splitBytes": str(SPLIT_BYTES)})
    fetcher = Fetcher(store, ReadSettings())
    lines = []
    for part in plan_slices(options, pinned_states(options, store), Needs.PAYLOADS, store):
        fields = [stream]
        for each in part:
            place = store.signed_url(each.objects.data_key, EXPIRES_S) or str(folder / "store" / each.objects.data_key)
            blocks = fetcher.index(each.objects).blocks
            for start, stop in each.blocks:
                begin, end = int(blocks.offset[start]), int(blocks.offset[stop - 1] + blocks.length[stop - 1])
                fields += [place, str(begin), str(end - begin)]
        lines.append("\t".join(fields))
    file.write_text("".join(f"{line}\n" for line in lines))


def check(trial: Any, scan: Any) -> None:
    """Both give the same rows."""

    def summary(frame: Any) -> Any:
        rows = frame.selectExpr("xxhash64(*) AS hash", "ledger_id * 1000000000 + entry_id AS place")
        return rows.selectExpr("count(*)", "bit_xor(hash)", "sum(CAST(hash AS DECIMAL(38)))", "sum(place)").collect()

    found, expected = summary(trial), summary(scan)
    if found != expected:
        raise SystemExit(f"the trial gives other rows: {found} instead of {expected}")


def measure(ways: dict[str, Callable[[], Any]], rounds: int, gb: float) -> dict[str, Any]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + WARMING_ROUNDS):
        for name, way in ways.items():
            before, taken_s = cpu_s(), seconds(partial(to_nowhere, way))
            after = cpu_s()
            if turn >= WARMING_ROUNDS:
                taken[name].append(taken_s)
                costs[name].append((after["jvm"] + after["python"] - before["jvm"] - before["python"]) / gb)
    found: dict[str, Any] = {f"{name}_mb_s": round(gb * 1000 / statistics.median(taken[name]), 1) for name in ways}
    found |= {f"{name}_cpu_s_per_gb": round(statistics.median(costs[name]), 2) for name in ways}
    for name in ("scan", "parquet"):
        ratios = [one / trial for one, trial in zip(taken[name], taken["trial"], strict=True)]
        found[f"trial_to_{name}_of_each_round"] = " ".join(f"{ratio:.2f}" for ratio in ratios)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["file", "minio"], default="file")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--entry-bytes", default="1024,100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jars = Path(pyspark.__file__).parent / "jars"
        compile_java([SOURCE], folder / "classes", sorted(jars.glob("*.jar")))
        spark = local_session("trial", cores=CORES, config={"spark.driver.extraClassPath": str(folder / "classes")})
        with opened_store(arguments.store, name) as (store, options):
            for entry_bytes in map(int, arguments.entry_bytes.split(",")):
                stream = f"bench-{entry_bytes}"
                write_stream(store, stream, entry_bytes, arguments.mib << 20)
                file = folder / f"{stream}.plan"
                plan(store, folder, stream, file)
                parquet = f"{name}/{stream}.parquet"

                def trial(file: Path = file) -> Any:
                    return spark.read.format("offloader.trial.BlockSource").option("plan", str(file)).load()

                def scan(stream: str = stream) -> Any:
                    return scan_of(spark, store, options, stream, SCHEMA)

                check(trial(), scan())
                scan().write.option("compression", "none").parquet(parquet)
                ways: dict[str, Callable[[], Any]] = {
                    "trial": trial,
                    "scan": scan,
                    "parquet": partial(spark.read.parquet, parquet),
                }
                rows = trial().count()
                found = {"store": arguments.store, "entry_bytes": entry_bytes, "rows": rows}
                found |= measure(ways, arguments.rounds, rows * entry_bytes / 1e9)
                lines = "".join(f"{key:32} {value}\n" for key, value in found.items())
                print(json.dumps(found) if arguments.json else lines, flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
