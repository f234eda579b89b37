"""Questions that people ask Spark, of a stream of JSON events and of the same rows as zstd Parquet, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench_read import FIRST_TIME_MS, write_stream
from offloader.spark import entries as entries_of
from offloader.store.base import ObjectStore

STREAM = "bench-events"
FIELDS = "carrier STRING, month INT, dep_delay DOUBLE"
DAY_MS = 86_400_000
#: The hour that is asked for, from the beginning of the stream's day.
HOUR = 13
ROUNDS_BEFORE = 1

FIRST_ANSWER = """
import json, sys
from offloader.spark.session import command_session
given = json.loads(sys.argv[1])
with command_session("bench", is_short=True) as spark:
    if "parquet" in given:
        print(spark.read.parquet(given["parquet"]).count())
    else:
        print(spark.read.format("offloader").options(**given).load().count())
"""


class Used(NamedTuple):
    """Seconds of one call: on the wall, and of all processors."""

    wall_s: float
    cpu_s: float


def payloads(count: int = 10_000) -> list[bytes]:
    """JSON events of about 150 bytes."""
    return [
        b'{"carrier": "%c%c", "month": %d, "dep_delay": %d.5, "flight": %d, "origin": "EWR", "dest": "ORD",'
        b' "tail": "N%05d", "note": "%s"}'
        % (
            65 + n % 5,
            65 + n % 3,
            1 + n % 12,
            n * 7919 % 90 - 10,
            n * 104_729 % 10_000,
            n * 31 % 99_991,
            b"-" * (n % 40),
        )
        for n in range(count)
    ]


def write_events(store: ObjectStore, events: int) -> None:
    """A day of events in four segments, whose times ascend."""
    made = payloads()
    mean = sum(map(len, made)) / len(made)
    write_stream(
        store, STREAM, int(mean), int(events * (int(mean) + 12)), 4, payloads=made, step_us=DAY_MS * 1000 // events
    )


def table(
    spark: Any,
    store: ObjectStore,
    options: Mapping[str, str],
    parquet: str,
    *,
    rounds: int,
    cpu_s: Callable[[], float],
) -> list[dict[str, Any]]:
    """One row for each question: seconds of wall and processor with both, and the ratios; medians of the rounds.

    Args:
        parquet: where the rows as Parquet are written to and read from.
        cpu_s: seconds so far that the processes of Spark and of a server took.
    """
    given = {"store": store.url, "stream": STREAM, **options}
    ours = spark.read.format("offloader").options(**given).load()
    ours.write.option("compression", "zstd").mode("overwrite").parquet(parquet)
    theirs = spark.read.parquet(parquet)
    start = datetime.fromtimestamp(FIRST_TIME_MS / 1000, UTC) + timedelta(hours=HOUR)
    first, last = (f"{each:%Y-%m-%dT%H:%M:%SZ}" for each in (start, start + timedelta(hours=1)))
    hour = f"publish_time >= '{first}' AND publish_time < '{last}'"

    def part(**asked: Any) -> Any:
        return entries_of(spark, store.url, STREAM, options=options, **asked)

    questions: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "scan": (lambda: _scan(ours), lambda: _scan(theirs)),
        "JSON group by": (lambda: _by_carrier(ours), lambda: _by_carrier(theirs)),
        "count": (lambda: part().count(), theirs.count),
        "count of a frame of load()": (ours.count, theirs.count),
        "one hour": (lambda: _scan(part(where=hour)), lambda: _scan(theirs.where(hour))),
        "isEmpty": (ours.isEmpty, theirs.isEmpty),
        "limit(5).count()": (lambda: ours.limit(5).count(), lambda: theirs.limit(5).count()),
    }
    rows = []
    for question, ways in questions.items():
        found = [[_used(way, cpu_s) for way in ways] for _ in range(rounds + ROUNDS_BEFORE)][ROUNDS_BEFORE:]
        rows.append(_row(question, found))
    asked = [given | {}, {"parquet": parquet}]
    if not parquet.startswith("s3a:"):  # a session of a command has no jars of Hadoop's S3 client
        found = [[_first_answer(each) for each in asked] for _ in range(rounds)]
        rows.append(_row("first answer in a new session", found))
    return rows


def printed(rows: list[dict[str, Any]]) -> str:
    """The rows as a table of Markdown."""
    head = "| question | offloader: wall, processor | Parquet: wall, processor | ratio: wall, processor |\n"
    head += "| --- | --- | --- | --- |\n"
    return head + "".join(
        "| {question} | {wall_s:.2f} s, {cpu_s:.2f} s | {parquet_wall_s:.2f} s, {parquet_cpu_s:.2f} s"
        " | {wall_ratio:.2f}, {cpu_ratio:.2f} |\n".format(**row)
        for row in rows
    )


def _row(question: str, found: list[list[Used]]) -> dict[str, Any]:
    def median(number: Callable[[list[Used]], float]) -> float:
        return round(statistics.median(map(number, found)), 3)

    return {
        "question": question,
        "wall_s": median(lambda pair: pair[0].wall_s),
        "cpu_s": median(lambda pair: pair[0].cpu_s),
        "parquet_wall_s": median(lambda pair: pair[1].wall_s),
        "parquet_cpu_s": median(lambda pair: pair[1].cpu_s),
        "wall_ratio": median(lambda pair: pair[0].wall_s / pair[1].wall_s),
        # Processor time is counted in hundredths.
        "cpu_ratio": median(lambda pair: pair[0].cpu_s / max(pair[1].cpu_s, 0.01)),
    }


def _scan(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _by_carrier(frame: Any) -> None:
    from pyspark.sql import functions as f

    event = f.from_json(f.col("payload").cast("string"), FIELDS).alias("event")
    frame.select(event).groupBy("event.carrier").agg(f.avg("event.dep_delay"), f.count("*")).collect()


def _used(call: Callable[[], object], cpu_s: Callable[[], float]) -> Used:
    before_s, started = cpu_s(), time.perf_counter()
    call()
    return Used(time.perf_counter() - started, cpu_s() - before_s)


def _first_answer(given: Mapping[str, str]) -> Used:
    import json

    def children_s() -> float:
        times = os.times()
        return times.children_user + times.children_system

    def ask() -> None:
        command = [sys.executable, "-c", FIRST_ANSWER, json.dumps(given)]
        root = Path(__file__).resolve().parents[1]
        subprocess.run(
            command, check=True, capture_output=True, timeout=300, env={**os.environ, "PYTHONPATH": str(root)}
        )

    return _used(ask, children_s)
