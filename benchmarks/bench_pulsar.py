"""Pulsar topics into committed segments: how fast beside reading and dropping them, how late, how many.

    python benchmarks/bench_pulsar.py [--part speed|whole|late|many] [--messages 200000] [--topics 1000] [--json]

speed: unbatched 1 KiB messages of a real broker; reading their raw frames and dropping them, and offloading them into a
store in memory, in turns in the same run. whole: a quarter of ``--messages`` from each of four producers (unbatched,
batched, compressed, keyed) while they are offloaded and their topics are unloaded; then every message is compared.
late: from a message's confirmation to its entry being readable, with segments that close after a second. many: topics
of a fake broker, live, in a process of their own; its memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from offloader.ledgers.pulsar.source import PulsarSource

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.bench_streams import ForgetfulStore
from formats.entries import Position
from formats.pulsar.messages import messages
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.protocol import PulsarClient
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import PulsarSettings, Settings
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.write.offloader import LedgerOffloader

KIB, MIB = 1024, 1024 * 1024
NAMESPACE = "persistent://public/default"
MESSAGE_BYTES = 1024
TURNS = 3
WAIT_S_MAX = 60.0
LATE_S, LATE_PER_S, AGE_S = 15.0, 40, 1.0


def is_active(source: PulsarSource) -> bool | None:
    return source.active


def wait_for(is_so: Callable[[], object]) -> None:
    until = time.perf_counter() + WAIT_S_MAX
    while not is_so():
        if time.perf_counter() > until:
            raise TimeoutError("not so within the time limit")
        time.sleep(0.002)


@contextmanager
def real_broker() -> Iterator[Any]:
    from services.pulsar.broker import running_broker

    with tempfile.TemporaryDirectory() as folder:
        more = {"managedLedgerMaxEntriesPerLedger": "40000", "managedLedgerCacheSizeMB": "128"}
        with running_broker(Path(folder), more) as broker:
            yield broker


def producer_of(broker: Any, topic: str, **options: Any) -> Any:
    import pulsar

    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    return client, client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=120_000, **options)


def produce(broker: Any, topic: str, values: list[bytes], keys: bool = False, **options: Any) -> None:
    client, producer = producer_of(broker, topic, **options)
    for number, value in enumerate(values):
        more = {"partition_key": str(number % 7)} if keys else {}
        producer.send_async(value, lambda _result, _id: None, **more)
    producer.flush()
    client.close()


def cluster_of(broker: Any, subscription: str) -> PulsarCluster:
    return PulsarCluster(
        PulsarSettings(service_url=broker.service_url, admin_url=broker.admin_url, subscription=subscription)
    )


def dropped(broker: Any, topic: str, last: Position) -> float:
    """Entries a second, read as raw frames and dropped."""
    with PulsarClient(broker.service_url) as client:
        reader = Consumer(client, topic, "drop", start=Position(-1, -1), messages_max=100_000)
        started, count = time.perf_counter(), 0
        while True:
            taken = reader.take(5.0)
            count += len(taken)
            if taken and taken[-1].position >= last:
                break
        seconds = time.perf_counter() - started
        reader.close()
    return count / seconds


def offloaded(broker: Any, topic: str, last: Position, entries: int, number: int) -> tuple[float, dict[str, float]]:
    """Entries a second into committed segments."""
    settings = Settings.of({"offload": {"on_gap": "record", "segment_size_max": "16MiB"}})
    offloader = LedgerOffloader(MemoryStore(f"bench-pulsar-{number}", "", SystemClock()), settings)
    with cluster_of(broker, f"bench-{number}") as cluster:
        source = cluster.open_topic(topic)
        wait_for(lambda: source.active)
        started, cpu = time.perf_counter(), time.process_time()
        stream = offloader.offload_stream(source, source.stream)
        wait_for(lambda: last in (stream.status().offered, stream.status().committed))
        stream.offload(timeout_s=WAIT_S_MAX)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        status = stream.status()
        stream.stop()
    offloader.close()
    return entries / seconds, {"cpu_us_per_entry": cpu / entries * 1e6, "refused": float(status.offers_refused)}


def speed(count: int) -> dict[str, float]:
    with real_broker() as broker:
        topic = f"{NAMESPACE}/speed"
        produce(broker, topic, [os.urandom(MESSAGE_BYTES)] * count, batching_enabled=False)
        with cluster_of(broker, "look") as cluster:
            source = cluster.open_topic(topic)
            wait_for(lambda: source.active)
            [*_, newest] = (info for info in source.ledgers() if info.entries)
        last = Position(newest.ledger_id, newest.last_entry_id)
        dropped(broker, topic, last)  # the first reads after a start are several times slower
        reads, offloads, more = list[float](), list[float](), dict[str, float]()
        for number in range(TURNS):
            reads.append(dropped(broker, topic, last))
            rate, more = offloaded(broker, topic, last, count, number)
            offloads.append(rate)
        return {
            "entries": count,
            "dropped_per_s_best": max(reads),
            "dropped_per_s": sorted(reads)[TURNS // 2],
            "offloaded_per_s": sorted(offloads)[TURNS // 2],
            "offloaded_of_best_dropped": sorted(offloads)[TURNS // 2] / max(reads),
            **more,
        }


def whole(count: int) -> dict[str, float]:
    """All messages of four producers, offloaded while they are sent, are in the cold tier once; so Spark says too."""
    with ExitStack() as stack:
        return whole_in(count, stack)


def whole_in(count: int, stack: ExitStack) -> dict[str, float]:
    import pulsar

    from tests.proof.interop.broker_topics import command

    kinds: dict[str, dict[str, Any]] = {
        "unbatched": {"batching_enabled": False},
        "batched": {"batching_enabled": True},
        "compressed": {"batching_enabled": True, "compression_type": pulsar.CompressionType.ZSTD},
        "keyed": {"batching_enabled": True, "batching_type": pulsar.BatchingType.KeyBased, "keys": True},
    }
    share = count // len(kinds)
    values = [(b"%d " % number).ljust(200, b"x") for number in range(share)]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    store = open_store(f"file://{folder}/store")
    offloader = LedgerOffloader(store, Settings.of({"offload": {"on_gap": "record"}}))
    started = time.perf_counter()
    with real_broker() as broker, cluster_of(broker, "offloader") as cluster:
        writing = [threading.Thread(target=produce, args=(broker, f"{NAMESPACE}/{kind}", values), kwargs=options)
                   for kind, options in kinds.items()]  # fmt: skip
        for thread in writing:
            thread.start()
        sources = {kind: cluster.open_topic(f"{NAMESPACE}/{kind}") for kind in kinds}
        for source in sources.values():
            wait_for(partial(is_active, source))
        streams = {kind: offloader.offload_stream(source, source.stream) for kind, source in sources.items()}
        while any(thread.is_alive() for thread in writing):
            for kind in kinds:
                command(broker, "PUT", f"persistent/public/default/{kind}/unload")
            time.sleep(3)
        wrong = 0
        for kind, stream in streams.items():
            stream.offload(timeout_s=WAIT_S_MAX)
            found: dict[bytes, None] = {}
            with open_stream_reader(offloader.store, sources[kind].stream) as reader:
                for batch in reader.scan():
                    found |= dict.fromkeys(messages(batch)["value"].to_pylist())
            # A producer that loses its broker sends again what wasn't confirmed.
            same = sorted(found) == sorted(values) if kind == "keyed" else list(found) == values
            wrong += not same
            stream.stop()
    offloader.close()
    seconds = time.perf_counter() - started
    differ = differ_in_spark(store.url, {kind: source.stream for kind, source in sources.items()}, values)
    figures: dict[str, float] = {"messages": share * len(kinds), "seconds": seconds, "topics_that_differ": wrong}
    return {**figures, "topics_that_differ_in_spark": differ}


def differ_in_spark(url: str, streams: dict[str, str], values: list[bytes]) -> int:
    """Topics whose messages, read by Spark, aren't what was sent."""
    from offloader.spark.session import local_session

    session = local_session("bench pulsar", cores=2)
    wrong = 0
    for kind, stream in streams.items():
        reader = session.read.format("offloader").option("store", url).option("stream", stream)
        rows = reader.option("content", "messages").load().select("ledger_id", "entry_id", "batch_index", "value")
        found = dict.fromkeys(bytes(row.value) for row in sorted(rows.collect()))
        wrong += sorted(found) != sorted(values) if kind == "keyed" else list(found) != values
    session.stop()
    return wrong


def late() -> dict[str, float]:
    with real_broker() as broker, cluster_of(broker, "offloader") as cluster:
        topic = f"{NAMESPACE}/late"
        client, producer = producer_of(broker, topic, batching_enabled=False)
        producer.send(b"first")
        settings = Settings.of({"offload": {"segment_age_max": AGE_S}})
        offloader = LedgerOffloader(MemoryStore("bench-late", "", SystemClock()), settings)
        source = cluster.open_topic(topic)
        wait_for(lambda: source.active)
        stream = offloader.offload_stream(source, source.stream)
        stream.offload()
        sent: list[tuple[Position, float]] = []
        seen: list[tuple[Position, float]] = []
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                committed = stream.status().committed
                if committed is not None and (not seen or committed > seen[-1][0]):
                    seen.append((committed, time.perf_counter()))
                time.sleep(0.005)

        watching = threading.Thread(target=watch)
        watching.start()
        until = time.perf_counter() + LATE_S
        while time.perf_counter() < until:
            stored = producer.send(b"x" * MESSAGE_BYTES)
            sent.append((Position(stored.ledger_id(), stored.entry_id()), time.perf_counter()))
            time.sleep(1 / LATE_PER_S)
        wait_for(lambda: seen and seen[-1][0] >= sent[-1][0])
        over.set()
        watching.join()
        delays = sorted(next(at for end, at in seen if end >= position) - when for position, when in sent)
        stream.stop()
        offloader.close()
        client.close()
    return {
        "messages": len(delays),
        "segment_age_s": AGE_S,
        "p50_s": delays[len(delays) // 2],
        "p99_s": delays[int(len(delays) * 0.99)],
        "p99_s_beyond_the_age": delays[int(len(delays) * 0.99)] - AGE_S,
    }


def many(topics: int) -> dict[str, float]:
    from tests.formats.pulsar_entries import Sent, single_entry
    from tests.support.pulsar_admin import FakeAdmin
    from tests.support.pulsar_broker import FakeBroker
    from tests.support.pulsar_topics import FakeTopic

    names = [f"{NAMESPACE}/topic-{number}" for number in range(topics)]
    entry = single_entry(Sent(value=os.urandom(MESSAGE_BYTES)))
    with FakeBroker(dict.fromkeys(names, 0)) as broker:
        made = [FakeTopic(broker, name) for name in names]
        with FakeAdmin(*made) as admin:
            for topic in made:
                for _ in range(20):
                    topic.append(entry)
            command = [sys.executable, __file__, "--child", broker.url, admin.url, "--topics", str(topics)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert child.stdin is not None
            assert child.stdout is not None
            rows = [json.loads(child.stdout.readline())]
            for _ in range(200):
                for topic in made:
                    topic.append(entry)
            child.stdin.write("filled\n")
            child.stdin.flush()
            rows.append(json.loads(child.stdout.readline()))
            child.communicate()
    return {"topics": topics, "mib_idle": rows[0]["mib"], "open_s": rows[0]["seconds"], "mib_filled": rows[1]["mib"],
            "committed_entries": rows[1]["entries"]}  # fmt: skip


def child(service_url: str, admin_url: str, topics: int) -> None:
    """What ``many`` measures: says its memory when all topics are live, and when all their entries are committed."""
    settings = Settings.of({"offload": {"segment_age_max": "0.1m"}})
    offloader = LedgerOffloader(ForgetfulStore("bench-many", "", SystemClock()), settings)
    started = time.perf_counter()
    with PulsarCluster(PulsarSettings(service_url=service_url, admin_url=admin_url)) as cluster:
        sources = [cluster.open_topic(f"{NAMESPACE}/topic-{number}") for number in range(topics)]
        for source in sources:
            wait_for(partial(is_active, source))
        streams = [offloader.offload_stream(source, source.stream) for source in sources]
        wait_for(lambda: all(stream.status().offered == Position(1, 19) for stream in streams))
        print(json.dumps({"mib": rss_mib(), "seconds": time.perf_counter() - started}), flush=True)
        peak = 0.0
        sys.stdin.readline()
        until = time.perf_counter() + WAIT_S_MAX
        while any(stream.status().committed != Position(1, 219) for stream in streams):
            peak = max(peak, rss_mib())
            if time.perf_counter() > until:
                break
            time.sleep(0.2)
        entries = sum(stream.status().entries_committed for stream in streams)
        print(json.dumps({"mib": max(peak, rss_mib()), "entries": entries}), flush=True)
        for stream in streams:
            stream.stop()
    offloader.close()


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("speed", "whole", "late", "many"), action="append")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--speed-messages", type=int, default=60_000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.child:
        service_url, admin_url = options.child
        child(service_url, admin_url, options.topics)
        return
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "speed": lambda: speed(options.speed_messages),
        "whole": lambda: whole(options.messages),
        "late": late,
        "many": lambda: many(options.topics),
    }
    for name in options.part or parts:
        row = parts[name]()
        if options.json:
            print(json.dumps({"part": name, **row}), flush=True)
        else:
            for field, value in row.items():
                print(
                    f"{name} {field:28} {value:,.3f}" if value < 100 else f"{name} {field:28} {value:,.0f}", flush=True
                )


if __name__ == "__main__":
    main()
