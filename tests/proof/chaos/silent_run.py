"""A sidecar that accepts connections and never answers, while many topics want to be read and offloaded through it.

    ./dev chaos --plugin --silent              # 200 topics
    ./dev chaos --plugin --silent 20

A real broker with the plugin. The topics' first ledgers are in the cold tier alone, further ones wait to be offloaded.
Then the sidecar ends, and its port belongs to a server that says nothing. Readers of all topics and offloads of all of
them begin; meanwhile messages are sent to other topics. Their latency, the broker's threads, its heap and its admin
interface must be as before. At the end the sidecar is back, and each reader receives every message once, in order.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from services.servers import free_port, start
from tests.plugin.plugin_world import PluginWorld, path_of, topic_of
from tests.plugin.topic_history import client_of
from tests.support.waiting import eventually

__all__ = ["SilentOutcome", "run"]

MESSAGES, MORE, LEDGER = 40, 15, 10
OTHERS, LATENCIES = 8, 400
#: Of the latency of the same messages before: a bit more is what the readers themselves cost.
TIMES_MAX, MS_MORE = 3.0, 30.0
THREADS_MORE, HEAP_MORE = 64, 160 * 1024 * 1024
WITHIN_S = 900.0


@dataclass(slots=True)
class SilentOutcome:
    """What was measured: before, and while the sidecar was silent; latencies in ms.

    Attributes:
        medians, tails: of messages to other topics, the median and the 99th percentile.
        admin_ms: longest answer of the broker's admin interface.
        connections: that the silent server took.
    """

    topics: int
    medians: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    heap_bytes: list[int] = field(default_factory=list)
    admin_ms: list[float] = field(default_factory=list)
    connections: int = 0
    received: int = 0
    problems: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Notes what is worse than it may be."""
        for what, (before, meanwhile) in {"median": self.medians, "99th percentile": self.tails}.items():
            if meanwhile > max(TIMES_MAX * before, before + MS_MORE):
                self.problems.append(f"the {what} of sending went from {before:.1f} to {meanwhile:.1f} ms")
        if self.threads[1] > self.threads[0] + THREADS_MORE:
            self.problems.append(f"the broker went from {self.threads[0]} to {self.threads[1]} threads")
        if self.heap_bytes[1] > self.heap_bytes[0] + HEAP_MORE:
            self.problems.append(f"the heap went from {self.heap_bytes[0] >> 20} to {self.heap_bytes[1] >> 20} MiB")
        if self.connections < self.topics // 2:
            self.problems.append(f"only {self.connections} connections came to the silent server")

    def lines(self) -> list[str]:
        """What was measured."""
        pairs = {"median, ms": self.medians, "99th percentile, ms": self.tails, "admin interface, ms": self.admin_ms}
        told = [f"{what:24} {before:8.1f} -> {after:8.1f}" for what, (before, after) in pairs.items()]
        heap = " -> ".join(str(each >> 20) for each in self.heap_bytes)
        told.append(f"threads {self.threads[0]} -> {self.threads[1]}, heap {heap} MiB")
        return [*told, f"{self.connections} silent connections, {self.received:,} messages received at the end"]


@contextlib.contextmanager
def silence(port: int) -> Iterator[list[socket.socket]]:
    """A server that accepts connections and never answers; the connections."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", port), backlog=1024) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(server.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield accepted
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in accepted:
                each.close()


class Topics:
    """Topics of a world, what was sent to them, and others to which messages are sent meanwhile."""

    def __init__(self, world: PluginWorld, client: pulsar.Client, count: int) -> None:
        self.world, self.client = world, client
        self.names = [topic_of(f"cold-{number}") for number in range(count)]
        self.others = [
            client.create_producer(f"persistent://public/default/other-{number}", batching_enabled=False)
            for number in range(OTHERS)
        ]

    def send(self, first: int, count: int) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self._send(name, first, count), self.names))

    def _send(self, name: str, first: int, count: int) -> None:
        producer = self.client.create_producer(name, batching_enabled=False)
        for number in range(first, first + count):
            producer.send(b"%d" % number + b"." * 1000)
        producer.close()

    def make_cold(self, name: str) -> None:
        """Returns when the bookie has none of the topic's closed ledgers."""
        self.world.admin("PUT", f"{path_of(name)}/unload")
        eventually(lambda: self._is_cold(name), within_s=WITHIN_S)
        self.world.admin("PUT", f"{path_of(name)}/unload")

    def _is_cold(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return self.world.try_offload(name)
        return False

    def begin_offload(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self.world.ask_to_offload(name, self.world.ledgers(name)[-1])

    def measure(self, outcome: SilentOutcome) -> None:
        """Sends to the other topics, one message after the other."""
        took_ms, admin_ms = [], 0.0
        for number in range(LATENCIES):
            began = time.perf_counter()
            self.others[number % OTHERS].send(b"." * 1000)
            took_ms.append((time.perf_counter() - began) * 1000)
            if number % 40 == 0:
                began = time.perf_counter()
                self.world.admin("GET", f"persistent/public/default/other-{number % OTHERS}/stats")
                admin_ms = max(admin_ms, (time.perf_counter() - began) * 1000)
        broker = self.world.broker
        outcome.medians.append(statistics.median(took_ms))
        outcome.tails.append(statistics.quantiles(took_ms, n=100)[98])
        outcome.admin_ms.append(admin_ms)
        outcome.threads.append(int(broker.beans("java.lang:type=Threading")["java.lang:type=Threading"]["ThreadCount"]))
        outcome.heap_bytes.append(broker.heap_bytes())


def run(
    count: int, folder: Path, say: Callable[[str], object] = lambda _: None, outcome: SilentOutcome | None = None
) -> SilentOutcome:
    """All of it, with so many topics, in an empty folder."""
    outcome = outcome or SilentOutcome(count)
    server = start("minio", folder / "data", port=free_port())
    settings = {"managedLedgerMaxEntriesPerLedger": str(LEDGER), "managedLedgerOffloadMaxThreads": "16"}
    try:
        with (
            PluginWorld(folder / "world", server.endpoint, broker_settings=settings) as world,
            contextlib.closing(client_of(world.service_url, is_quiet=True)) as client,
        ):
            _run(Topics(world, client, count), outcome, say)
    finally:
        server.stop()
    outcome.judge()
    return outcome


def _run(topics: Topics, outcome: SilentOutcome, say: Callable[[str], object]) -> None:
    world = topics.world
    topics.send(0, MESSAGES)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(topics.make_cold, topics.names))
    topics.send(MESSAGES, MORE)
    topics.measure(SilentOutcome(0))  # what runs for the first time is slow
    topics.measure(outcome)
    say(f"{outcome.topics} topics are cold; the sidecar ends, and its port is silent")
    world.kill_sidecar()
    with silence(world.ports["sidecar"]) as connections:
        readers = _readers(topics)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(topics.begin_offload, topics.names))
        eventually(lambda: len(connections) >= outcome.topics // 2, within_s=WITHIN_S)
        topics.measure(outcome)
        outcome.connections = len(connections)
    say("the sidecar is back")
    world.start_sidecar()
    wanted = [b"%d" % number for number in range(MESSAGES + MORE)]
    for name, reader in zip(topics.names, readers, strict=True):
        found = [reader.read_next(int(WITHIN_S * 1000)).data().rstrip(b".") for _ in wanted]
        outcome.received += len(found)
        if found != wanted:
            outcome.problems.append(f"{name}: received {found}")


def _readers(topics: Topics) -> Sequence[pulsar.Reader]:
    """One for each topic, from its first message on; they are connected, and wait for the cold tier."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda name: topics.client.create_reader(name, pulsar.MessageId.earliest), topics.names))
