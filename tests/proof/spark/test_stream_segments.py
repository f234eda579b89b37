"""A streaming query over a scalable topic that splits and merges meanwhile, through restarts and kills."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from offloader.store.open import open_store
from tests.spark.victim import Victim
from tests.support.segmented_topic import SegmentedTopic
from tests.support.streams import batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

SEGMENTS_MAX = 30


class Sink:
    """The files that a query committed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest(self, of: str) -> int:
        """Number of the newest batch in a folder of the query; -1: none."""
        names = [path.name.split(".")[0] for path in (self._folder / of).glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def batches(self) -> list[list[Path]]:
        """The files of each batch. Each tenth list of the sink has all earlier files too."""
        listed = {path.name.removesuffix(".compact"): path for path in (self._folder / "out/_spark_metadata").iterdir()}
        seen, found = set[Path](), list[list[Path]]()
        for number in sorted(int(name) for name in listed if name.isdigit()):
            lines = listed[str(number)].read_text().splitlines()[1:]
            own = [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]
            found.append([path for path in own if path not in seen])
            seen |= {*own}
        return found


def refill(topic: SegmentedTopic) -> None:
    """Everything that the topic has can be read, and new entries in each active segment."""
    for number in topic.active:
        topic.send(number, 40)
    topic.finish()


def follow(spark: SparkSession, topic: SegmentedTopic, folder: Path, **options: str) -> None:
    """Runs the query until nothing is left that could be read when it began."""
    given = {"store": topic.store.url, "stream": topic.topic, **options}
    stream = spark.readStream.format("offloader").options(**given)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()


@pytest.mark.timeout(900)
def test_every_entry_is_written_once_and_after_those_of_its_ancestors(spark: SparkSession, tmp_path: Path) -> None:
    """Killed twice: while a batch is read, and between the commits of the sink and of the query."""
    rng = random.Random(11)
    topic = SegmentedTopic(open_store(f"file://{tmp_path}/store"))
    sink = Sink(tmp_path)
    for _ in range(60):
        topic.step(rng, segments_max=SEGMENTS_MAX)
    follow(spark, topic, tmp_path, maxEntriesPerTrigger="30")
    options = json.dumps({"store": topic.store.url, "stream": topic.topic, "maxEntriesPerTrigger": "25"})
    for is_unconfirmed in (False, True):
        refill(topic)
        victim = Victim("stream_to_parquet.py", tmp_path, options, tmp_path / "checkpoint", tmp_path / "out")
        begun = sink.newest("checkpoint/offsets")

        def is_so(begun: int = begun, is_unconfirmed: bool = is_unconfirmed) -> bool:
            if sink.newest("checkpoint/offsets") <= begun:
                return False
            topic.step(rng, segments_max=SEGMENTS_MAX)
            planned, sunk = sink.newest("checkpoint/offsets"), sink.newest("out/_spark_metadata")
            if planned <= begun + 3:  # some batches, between which the topic changes
                return False
            # So short a time may be missed; later batches are as good as any.
            late = sunk >= begun + 9
            return late or (sunk > sink.newest("checkpoint/commits") if is_unconfirmed else planned > sunk)

        try:
            victim.await_that(is_so)
        finally:
            victim.kill()
    refill(topic)
    follow(spark, topic, tmp_path)

    found: list[tuple[str, int, int, bytes]] = []
    places: dict[int, list[tuple[int, int]]] = {number: [] for number in topic.rows}
    for place, paths in enumerate(sink.batches()):
        for path in paths:
            table = pq.read_table(path, columns=["stream", "ledger_id", "entry_id", "payload"])
            rows = [*zip(*(column.to_pylist() for column in table.columns), strict=True)]
            found += rows
            for _, number, entry_id, _ in rows:
                places[number].append((entry_id, place))
    assert sorted(found) == sorted(
        (topic.rows[number].stream, number, entry.entry_id, entry.payload)
        for number, count in topic.sent.items()
        if count
        for entry in batch_of(number, 0, count).entries()
    )
    assert any(len(row.parents) == 2 for row in topic.rows.values()), "nothing was merged"
    for number, own in places.items():
        order = [place for _, place in sorted(own)]
        assert order == sorted(order), number
        before = [place for parent in topic.parents_of(number) for _, place in places[parent]]
        assert not own or max(before, default=-1) < order[0], number


def test_query_of_a_regular_topic_continues_after_its_migration(spark: SparkSession, tmp_path: Path) -> None:
    former = "public/default/persistent/orders"
    topic = SegmentedTopic(open_store(f"file://{tmp_path}/store"), former=former)
    topic.send(0, 50)
    topic.offload(0)
    follow(spark, topic, tmp_path, stream=former)
    topic.send(0, 20)
    for child in topic.split(0):
        topic.send(child, 30)
    topic.finish()
    follow(spark, topic, tmp_path)
    batches = [
        sorted({row for path in paths for row in pq.read_table(path, columns=["ledger_id"])["ledger_id"].to_pylist()})
        for paths in Sink(tmp_path).batches()
    ]
    assert batches == [[0], [0], [1, 2]]
    rows = spark.read.parquet(str(tmp_path / "out")).select("ledger_id", "entry_id").collect()
    assert sorted((row.ledger_id, row.entry_id) for row in rows) == sorted(topic.entries)
