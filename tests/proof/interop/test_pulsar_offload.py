"""A real broker's topics, offloaded while they are written: every entry the bookie has, byte for byte, once.

Topics are unloaded, the broker restarted and offloading processes killed in the middle. Every entry is compared with
the bookie's bytes.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from formats.entries import Position
from formats.pulsar.messages import messages
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.read.reader import open_stream_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.backfill import HistoryResult
from services.pulsar.broker import Broker, start_broker
from tests.proof.interop.broker_topics import NAMESPACE, command, topic_of
from tests.proof.interop.pulsar_offloading import OffloadingProcess
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

ROOT = Path(__file__).parents[3]
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
#: Name -> options of a producer, messages of one burst, bytes of one message.
PRODUCERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "live-unbatched": ({"batching_enabled": False}, 250, 300),
    "live-batched-lz4": ({"batching_enabled": True, "batching_max_messages": 7, "compression_type": 1}, 1500, 200),
    "live-unbatched-zstd": ({"batching_enabled": False, "compression_type": 3}, 200, 2000),
    "live-keyed": ({"batching_enabled": True, "batching_max_messages": 9, "batching_type": 1}, 1500, 100),
}
COMPRESSION = {1: pulsar.CompressionType.LZ4, 3: pulsar.CompressionType.ZSTD}


class Restartable:
    """A broker that can be stopped and started again at the same addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = {name: str(free_port()) for name in ("brokerServicePort", "webServicePort")}
        self.broker: Broker
        self.start()

    def start(self) -> None:
        self.broker = start_broker(self._folder, self._settings)

    def stop(self) -> None:
        self.broker.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    made = Restartable(tmp_path_factory.mktemp("broker"))
    yield made
    made.broker.end()


class Writer:
    """One topic's producer; what it sent, in order."""

    def __init__(self, broker: Broker, kind: str, name: str) -> None:
        self.topic = topic_of(name)
        options, self.count, self.size = PRODUCERS[kind]
        options = {key: COMPRESSION[value] if key == "compression_type" else value for key, value in options.items()}
        if "batching_type" in options:
            options["batching_type"] = pulsar.BatchingType.KeyBased
        self.is_keyed = "batching_type" in options
        self._client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=60)
        self._producer = self._client.create_producer(
            self.topic, block_if_queue_full=True, send_timeout_millis=120_000, **options
        )
        self.sent: list[bytes] = []

    def burst(self) -> None:
        failed: list[object] = []
        for _ in range(self.count):
            number = len(self.sent)
            value = (b"%d " % number).ljust(self.size, b"%d" % (number % 10))
            more = {"partition_key": str(number % 5)} if self.is_keyed else {}
            self._producer.send_async(
                value, lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None, **more
            )
            self.sent.append(value)
        self._producer.flush()
        assert failed == []

    def close(self) -> None:
        self._client.close()


def stored_by_bookie(broker: Broker, topic: str) -> list[tuple[Position, bytes]]:
    """Every entry of all ledgers; the open one is closed first, as the bookie gives only what is confirmed."""
    unload(broker, topic)
    with AdminClient(broker.admin_url) as admin:
        internals = admin.internals(topic)
    ledgers = internals.ledgers.ledgers
    found: list[tuple[Position, bytes]] = []
    for ledger in ledgers:
        entries = max(ledger.entries, internals.open_entries) if ledger is ledgers[-1] else ledger.entries
        for first in range(0, entries, 100):
            run = broker.hot(ledger.ledger_id, first, min(first + 99, entries - 1))
            found += [(Position(ledger.ledger_id, first + number), entry) for number, entry in enumerate(run)]
    return found


def unload(broker: Broker, topic: str) -> None:
    command(broker, "PUT", f"persistent/{NAMESPACE}/{topic.rpartition('/')[2]}/unload")


def require_whole(store: ObjectStore, broker: Broker, writer: Writer) -> None:
    with open_stream_reader(store, stream_of_topic(writer.topic)) as reader:
        batches = list(reader.scan())
    found = [(entry.position, bytes(entry.payload)) for batch in batches for entry in batch.entries()]
    assert found == stored_by_bookie(broker, writer.topic)
    assert len({position.ledger_id for position, _ in found}) >= 2
    values = [row["value"] for batch in batches for row in messages(batch).to_pylist()]
    require_sent(values, writer)


def require_sent(values: list[bytes], writer: Writer) -> None:
    # A producer that loses its broker sends again what wasn't confirmed: the broker stores that twice, and so do we.
    once = list(dict.fromkeys(values))
    assert (sorted(once) if writer.is_keyed else once) == (sorted(writer.sent) if writer.is_keyed else writer.sent)


def require_sent_in_spark(spark: SparkSession, store: ObjectStore, writers: list[Writer]) -> None:
    """What was sent to each topic is what Spark makes of its stream."""
    reader = spark.read.format("offloader").option("store", store.url).option("stream", f"{NAMESPACE}/persistent/*")
    columns = ("stream", "ledger_id", "entry_id", "batch_index", "value")
    rows = reader.option("content", "messages").load().select(*columns).collect()
    for writer in writers:
        of_topic = [row for row in rows if row.stream == stream_of_topic(writer.topic)]
        of_topic.sort(key=lambda row: (row.ledger_id, row.entry_id, row.batch_index))
        require_sent([bytes(row.value) for row in of_topic], writer)


def test_four_producers_topics_that_move_and_a_broker_that_restarts(
    restartable: Restartable, tmp_path: Path, spark: SparkSession
) -> None:
    store = open_store(f"file://{tmp_path}/store")
    writers = [Writer(restartable.broker, kind, kind) for kind in PRODUCERS]
    for writer in writers:
        writer.burst()  # history, before anybody listens
    broker = restartable.broker
    process = OffloadingProcess(broker.service_url, broker.admin_url, store, [writer.topic for writer in writers])
    try:
        both = [threading.Thread(target=writer.burst) for writer in writers]
        for thread in both:
            thread.start()
        for writer in writers:
            unload(broker, writer.topic)
        for thread in both:
            thread.join()
        for writer in writers:
            writer.close()
        restartable.stop()
        restartable.start()
        writers = [again(writer, restartable.broker, kind) for writer, kind in zip(writers, PRODUCERS, strict=True)]
        for writer in writers:
            writer.burst()
        for writer in writers:
            eventually(lambda writer=writer: process.offload(writer.topic))  # type: ignore[misc]
            require_whole(store, restartable.broker, writer)
        require_sent_in_spark(spark, store, writers)
        released = give_up(process, restartable.broker, writers[0])
        assert len(released) >= 2
    finally:
        process.close()
        for writer in writers:
            writer.close()


def again(writer: Writer, broker: Broker, kind: str) -> Writer:
    """The same topic, as its producer comes back."""
    made = Writer(broker, kind, kind)
    made.sent = writer.sent
    return made


def give_up(process: OffloadingProcess, broker: Broker, writer: Writer) -> list[int]:
    """Gives up the ledgers that are safe: the subscription stands at their end, and not behind it."""
    source = process.sources[writer.topic]
    with AdminClient(broker.admin_url) as admin:
        before = admin.internals(writer.topic)
        assert before.cursors["offloader"] < Position(before.ledgers.ledgers[1].ledger_id, -1)
        closed = [info for info in source.ledgers() if info.closed and info.entries]
        released = process.offloader.history.hot_release(source, source.stream).look()
        assert released.errors == []
        assert released.deleted == [info.ledger_id for info in closed]
        end = Position(closed[-1].ledger_id, closed[-1].last_entry_id)
        # A broker moves a subscription on to the beginning of the next ledger when it deletes one.
        stands = admin.internals(writer.topic).cursors["offloader"]
        assert stands == end or (stands > end and stands.entry_id == -1)
    return released.deleted


class Killable:
    """An offloading process of its own."""

    def __init__(self, broker: Broker, store_url: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.proof.interop.pulsar_offloading"),
                *(broker.service_url, broker.admin_url, store_url, topic),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, question: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE_S)

    def end(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)


def one_works(running: list[Killable]) -> bool:
    return sorted(each.ask("active") for each in running) == ["False", "True"]


def test_killed_processes_lose_and_repeat_nothing(restartable: Restartable, tmp_path: Path) -> None:
    broker, url = restartable.broker, f"file://{tmp_path}/store"
    writer = Writer(broker, "live-unbatched", "killed")
    running = [Killable(broker, url, writer.topic) for _ in range(2)]
    try:
        for round_ in range(3):
            # One works and one stands by, whoever it is.
            eventually(lambda: one_works(running))
            writing = threading.Thread(target=writer.burst)
            writing.start()
            works = next(each for each in running if each.ask("active") == "True")
            works.ask("offload")
            works.kill()
            running.remove(works)
            writing.join()
            eventually(lambda: running[0].ask("offload") == "True")
            if round_ < 2:
                running.append(Killable(broker, url, writer.topic))
        require_whole(open_store(url), broker, writer)
    finally:
        for each in running:
            each.end()
        writer.close()


def test_ledger_method_offloads_closed_ledgers_unchanged(restartable: Restartable, tmp_path: Path) -> None:
    broker = restartable.broker
    store = open_store(f"file://{tmp_path}/store")
    writer = Writer(broker, "live-unbatched-zstd", "ledger-by-ledger")
    writer.burst()
    writer.burst()
    process = OffloadingProcess(broker.service_url, broker.admin_url, store, [])
    try:
        source = process.cluster.open_topic(writer.topic)
        eventually(lambda: source.active)
        closed = {info.ledger_id for info in source.ledgers() if info.closed}
        assert closed
        result: HistoryResult = process.offloader.history.ledgers(source, source.stream)
        assert result.errors == []
        assert {(summary.layout, summary.begin.ledger_id) for _, summary in result.offloaded} == {
            (1, ledger_id) for ledger_id in closed
        }
        with open_stream_reader(store, source.stream) as reader:
            found = [(entry.position, bytes(entry.payload)) for batch in reader.scan() for entry in batch.entries()]
        assert found == [each for each in stored_by_bookie(broker, writer.topic) if each[0].ledger_id in closed]
    finally:
        process.close()
        writer.close()
