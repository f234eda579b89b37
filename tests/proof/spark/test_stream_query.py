"""Streaming queries with a real Spark: exactly once into Parquet, across restarts and kills."""

from __future__ import annotations

import json
import random
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import EntryBatch, Position
from formats.manifest import Retire, Truncate
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.spark.victim import Victim
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.test_stream_query import stream_into_parquet
from tests.spark.test_stream_query import writer as writer

pytestmark = pytest.mark.java


def positions_in(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    """The positions in the files that the sink committed, sorted."""
    rows = spark.read.parquet(str(folder / "out")).select("ledger_id", "entry_id").collect()
    return sorted((row.ledger_id, row.entry_id) for row in rows)


def test_streamed_messages_equal_scanned_ones(spark: SparkSession, writer: StreamWriter, tmp_path: Path) -> None:
    entries = [single_entry(Sent(value=f"single {n}".encode())) for n in range(20)]
    entries += [batch_entry([Sent(value=b"one"), Sent(value=b"two"), Sent(value=b"three")]) for _ in range(20)]
    writer.add([EntryBatch.build(1, 0, entries)])
    _, counts = stream_into_parquet(spark, writer, tmp_path, content="messages", maxEntriesPerTrigger="25")
    assert [count for count in counts if count] == [20 + 5 * 3, 15 * 3]
    scan = spark.read.format("offloader").options(store=writer.store.url, stream=writer.stream, content="messages")
    columns = ["entry_id", "batch_index", "value", "sequence_id"]
    found, expected = (
        sorted(map(str, frame.select(*columns).collect()))
        for frame in (spark.read.parquet(str(tmp_path / "out")), scan.load())
    )
    assert found == expected
    assert len(found) == 80


def test_lost_entries_fail_the_query_or_are_skipped_by_option(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    first = writer.add([batch_of(1, 0, 100)])
    start = {"start": "1:0", "maxEntriesPerTrigger": "60"}
    stream_into_parquet(spark, writer, tmp_path, **start)
    writer.add([batch_of(1, 100, 100)])
    second = writer.add([batch_of(1, 200, 100)])
    writer.log.commit([Truncate(Position(1, 250)), Retire((first,))])
    assert second in writer.log.state.segments
    with pytest.raises(StreamingQueryException, match=r"now begins at 1:250, but the query has read it up to 1:99"):
        stream_into_parquet(spark, writer, tmp_path, **start)
    stream_into_parquet(spark, writer, tmp_path, failOnDataLoss="false", **start)
    assert positions_in(spark, tmp_path) == [(1, n) for n in [*range(100), *range(250, 300)]]


class Appending:
    """Commits small segments one after another, in a thread, until there are ``count`` of them."""

    def __init__(self, writer: StreamWriter, count: int) -> None:
        self._writer, self._count, self._chance = writer, count, random.Random(3)
        self._more = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def let(self, count: int) -> None:
        """Allows so many more segments."""
        self._more.release(count)

    def join(self) -> None:
        self._more.release(self._count)
        self._thread.join()

    def _run(self) -> None:
        ledger_id, entry_id = 1, 0
        for number in range(self._count):
            self._more.acquire()
            count = self._chance.randint(20, 120)
            closes = number % 5 == 4
            self._writer.add([batch_of(ledger_id, entry_id, count)], closes=[ledger_id] if closes else [])
            ledger_id, entry_id = (ledger_id + 3, 0) if closes else (ledger_id, entry_id + count)


@pytest.mark.timeout(900)
def test_repeatedly_killed_query_writes_every_entry_exactly_once(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path
) -> None:
    """Killed four times: when a batch is planned, while its files are written, between the sink's commit and the
    query's, and while a batch that was cut short is done again."""
    appending = Appending(writer, 40)
    appending.let(10)
    options: dict[str, Any] = {"maxEntriesPerTrigger": "70", "splitBytes": "1500"}

    def newest(folder: str) -> int:
        names = [path.name for path in (tmp_path / folder).glob("[0-9]*")]
        return max((int(name.split(".")[0]) for name in names if name.split(".")[0].isdigit()), default=-1)

    def files() -> int:
        return len(list((tmp_path / "out").glob("part-*")))

    def planned(batch: int, _: int) -> bool:
        return newest("checkpoint/offsets") >= batch

    def sunk_but_not_committed(batch: int, _: int) -> bool:
        sunk = newest("out/_spark_metadata")
        # So short a time may be missed; later batches are as good as any.
        return sunk >= batch + 5 or (sunk >= batch and newest("checkpoint/commits") < sunk)

    def being_written(_: int, before: int) -> bool:
        return files() >= before + 2

    # The last one is killed while it does a batch again that was cut short before.
    for moment in (planned, sunk_but_not_committed, being_written, being_written):
        given = json.dumps({"store": writer.store.url, "stream": writer.stream, **options})
        victim = Victim("stream_to_parquet.py", tmp_path, given, tmp_path / "checkpoint", tmp_path / "out")
        try:
            # The batch after the one that has to be done again.
            state = newest("checkpoint/offsets") + 2, files()
            appending.let(10)
            victim.await_that(partial(moment, *state))
        finally:
            victim.kill()
    appending.join()
    stream_into_parquet(spark, writer, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    rows = sorted((Position(row.ledger_id, row.entry_id), bytes(row.payload)) for row in found)
    assert rows == [(entry.position, entry.payload) for entry in writer.entries]
    assert newest("checkpoint/commits") == newest("checkpoint/offsets")
