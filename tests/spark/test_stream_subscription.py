"""A streaming query as a subscriber: data that it needs stays, and publishing errors never end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

from formats.entries import Position
from offloader.errors import InvalidCallError, OutcomeUnknownError
from offloader.retention.subscribers import open_retention
from offloader.spark.options import SourceOptions
from offloader.spark.stream import RETRY_S, StreamingReader, Subscription
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    pass

SCHEMA = StructType().add("stream", StringType()).add("ledger_id", LongType()).add("entry_id", LongType())
RENEW_S = 20.0


class Bench:
    def __init__(self, name: str, *streams: str) -> None:
        self.clock = ManualClock(waits_pass=False)
        self.memory = MemoryStore(f"subscription-{name}", "", self.clock)
        self.store = FaultyStore(self.memory)
        for stream in streams:
            StreamWriter(self.memory, stream).add([batch_of(1, 0, 50)])
        self.subscription = Subscription("query", lambda: self.store, RENEW_S, self.clock)

    def cut(self, stream: str) -> str | None:
        found = open_retention(self.memory, stream, clock=self.clock).registry().subscribers.get("query")
        return None if found is None else str(found.cut)

    def active_ms(self, stream: str) -> int:
        return open_retention(self.memory, stream, clock=self.clock).registry().subscribers["query"].active_ms


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*streams: str) -> Bench:
        made.append(Bench(f"{request.node.name}-{len(made)}", *streams))
        return made[-1]

    yield make
    for each in made:
        each.subscription.stop()


def test_needed_position_is_published_before_the_call_returns(bench: Callable[..., Bench]) -> None:
    here = bench("orders", "empty")
    here.subscription.needs({"orders": Position(1, 0), "empty": None})
    assert (here.cut("orders"), here.cut("empty")) == ("0.0=1:0", "None")
    here.subscription.needs({"orders": Position(1, 30), "empty": None})
    assert here.cut("orders") == "0.0=1:30"
    calls = len(here.store.calls)
    here.subscription.needs({"orders": Position(1, 30), "empty": None})
    assert len(here.store.calls) == calls


def test_partitions_of_a_topic_are_published_as_one_cut(bench: Callable[..., Bench]) -> None:
    here = bench("topic-partition-0", "topic-partition-1", "plain", "plain-partition-0")
    here.subscription.needs(
        {"topic-partition-0": Position(1, 5), "topic-partition-1": Position(1, 7), "plain-partition-0": Position(1, 9)}
    )
    assert here.cut("topic") == "0.0=1:5,1.0=1:7"
    assert (here.cut("plain"), here.cut("plain-partition-0")) == (None, "0.0=1:9")


def test_unchanged_position_is_renewed(bench: Callable[..., Bench]) -> None:
    here = bench("orders")
    here.subscription.needs({"orders": Position(1, 10)})
    for _ in range(3):
        before = here.active_ms("orders")

        def is_said(before: int = before) -> bool:
            here.clock.advance(RENEW_S)  # again and again: the query's thread may be about to wait
            return here.active_ms("orders") >= before + RENEW_S * 1000

        eventually(is_said)
    assert here.cut("orders") == "0.0=1:10"


@pytest.mark.parametrize("verb", ["get", "put"])
def test_failing_store_is_logged_and_retried(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    here = bench("orders")
    here.subscription.needs({"orders": Position(1, 10)})
    here.store.set_faults([Fault(call=1, verb=verb, key_part="retention/", calls=10**6, error=OutcomeUnknownError)])
    with caplog.at_level(logging.WARNING, "offloader.spark"):
        here.subscription.needs({"orders": Position(1, 20)})
    assert "retrying" in caplog.text
    assert here.cut("orders") == "0.0=1:10"
    here.store.set_faults([])
    eventually(lambda: here.cut("orders") == "0.0=1:20", first=lambda: here.clock.advance(RETRY_S))


def test_unwritable_store_does_not_end_the_query(bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture) -> None:
    here = bench("orders")
    tries: list[int] = []

    def no_store() -> ObjectStore:
        tries.append(1)
        raise ValueError("no such thing") if len(tries) == 1 else InvalidCallError("read only")

    subscription = Subscription("query", no_store, RENEW_S, here.clock)
    subscription.needs({"orders": Position(1, 10)})
    eventually(lambda: len(tries) >= 2, first=lambda: here.clock.advance(RETRY_S))
    subscription.stop()
    assert caplog.text.count("subscriber query couldn't publish") == len(tries)


def test_query_restarted_before_its_published_position_is_logged_and_renewed(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    here = bench("orders")
    open_retention(here.memory, "orders", clock=here.clock).add("query")
    open_retention(here.memory, "orders", clock=here.clock).publish("query", Position(1, 40))
    here.clock.advance(100)
    here.subscription.needs({"orders": Position(1, 10)})
    assert "it isn't at or after 0.0=1:40" in caplog.text
    assert (here.cut("orders"), here.active_ms("orders")) == ("0.0=1:40", here.clock.now_ms())


def test_reader_subscribes_before_reading_and_releases_committed_batches(tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(1, 0, 50)])
    options = SourceOptions.of({"store": writer.store.url, "stream": "orders", "subscriber": "query"})

    def published() -> str:
        return str(open_retention(writer.store, "orders").registry().subscribers["query"].cut)

    reader = StreamingReader(options, SCHEMA)
    start = reader.initialOffset()
    assert published() == "0.0=1:0"
    end = reader.latestOffset(start, ReadMaxRows(20))
    reader.partitions(start, end)
    assert published() == "0.0=1:0", "a batch that isn't committed is still needed"
    reader.commit(end)
    reached = published()
    assert reached == f"0.0=1:{Position.parse(end['orders']['position']).entry_id + 1}"
    reader.stop()
    # Killed after a batch was planned: the next process subscribes with the batch that it reads again.
    again = StreamingReader(options, SCHEMA)
    last = again.latestOffset(end, ReadAllAvailable())
    assert published() == reached
    again.partitions(end, last)
    assert again.latestOffset(last, ReadAllAvailable()) == last
    assert published() == "0.0=1:50"
    again.stop()


def test_options_of_a_subscriber(tmp_path: Path) -> None:
    given = {"store": f"file://{tmp_path}", "stream": "orders", "subscriber": " "}
    assert SourceOptions.of(given).subscriber == ""
    with pytest.raises(InvalidCallError, match=r"belongs to spark\.readStream"):
        SourceOptions.of({**given, "subscriber": "query"}).require_batch()
    with pytest.raises(InvalidCallError, match="isn't a valid subscriber name"):
        StreamingReader(SourceOptions.of({**given, "subscriber": "a\tb"}), SCHEMA)
