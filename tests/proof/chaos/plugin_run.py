"""Consumers of a real broker read the cold tier while broker, sidecars, read server and S3 server are killed.

    ./dev chaos --plugin                       # 40 kills
    ./dev chaos --plugin --seed 7 --kills 10
    ./dev chaos --plugin --silent              # a sidecar that never answers (silent_run.py)

One world: a broker with the plugin that gives up its own copies as soon as they are offloaded, two processes of
``offloader serve``, a read server and an S3 server. In each step messages are sent, ledgers are offloaded, readers read
from the beginning and a topic is deleted, while one of the processes, or all of them together, is killed (``kill -9``)
and started again. After each step a new reader must receive every message that was sent, once, in order; at the end the
bookie has none of the closed ledgers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pulsar

from services.servers import RunningServer, Unavailable, free_port, start
from tests.plugin.plugin_world import PluginWorld, path_of, topic_of
from tests.plugin.topic_history import client_of
from tests.proof.chaos import silent_run
from tests.support.waiting import eventually

__all__ = ["ACTIONS", "EVERYTHING", "PROCESSES", "ROLES", "Outcome", "Step", "plan", "run"]

PROCESSES = ("store", "broker", "sidecar", "standby", "reader")
EVERYTHING = "everything"
ROLES = (*PROCESSES, EVERYTHING)
ACTIONS = ("offload", "read", "delete")
#: The sidecar takes some time to notice a broker that comes back, and the broker to notice a sidecar.
WITHIN_S = 240.0
MESSAGES, BATCH = 300, 5
TOPICS = ("orders", "invoices")


@dataclass(frozen=True, slots=True)
class Step:
    """One kill.

    Attributes:
        role: what is killed, ``after_s`` after the action has begun, and started again ``down_s`` later.
        action: what is under way.
    """

    role: str
    action: str
    after_s: float
    down_s: float

    def __str__(self) -> str:
        return f"{self.role} killed {self.after_s:.2f} s into {self.action}, down for {self.down_s:.1f} s"


def plan(seed: int, kills: int) -> list[Step]:
    """The same for the same arguments; every role is killed in every action as soon as there are enough kills."""
    dice = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < kills:
        every = [(role, action) for role in ROLES for action in ACTIONS]
        pairs += dice.sample(every, len(every))
    return [
        Step(role, action, after_s=dice.choice((0.0, 0.05, 0.2, 0.5, 1.0)), down_s=dice.uniform(0, 1.5))
        for role, action in pairs[:kills]
    ]


@dataclass(slots=True)
class Outcome:
    """What came of a run; no problem: every message was received once, in order, after each kill.

    Attributes:
        read: messages that readers received from the beginning on.
        cold_bytes: that the plugin read, as far as broker processes lived to say it.
    """

    kills: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    read: int = 0
    cold_bytes: int = 0
    problems: list[str] = field(default_factory=list)


class Chaos:
    """A world, its producers, and what they sent."""

    def __init__(self, world: PluginWorld, server: RunningServer, outcome: Outcome, data: Path) -> None:
        self._world, self._store, self._outcome, self._data = world, server, outcome, data
        self._client: pulsar.Client = client_of(world.service_url, is_quiet=True)
        self._producers: dict[str, pulsar.Producer] = {}
        self._sent: dict[str, list[bytes]] = {}
        self._deleted = 0

    def begin(self) -> None:
        for topic in map(topic_of, TOPICS):
            # By its name and numbers the broker knows what it has already, also after it was killed.
            self._producers[topic] = self._client.create_producer(
                topic,
                producer_name=f"producer of {topic}",
                send_timeout_millis=0,
                block_if_queue_full=True,
                batching_enabled=True,
                batching_max_messages=BATCH,
                batching_max_publish_delay_ms=1000,
            )
            self._sent[topic] = []
        for _ in range(2):
            self.send()
        for topic in self._sent:
            self._offload(topic)

    def do(self, step: Step) -> None:
        """One step: what was sent is there when it returns, and everything runs."""
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(self.send)
            acting = pool.submit(getattr(self, f"_{step.action}_topics"))
            threading.Event().wait(step.after_s)
            killed = PROCESSES if step.role == EVERYTHING else (step.role,)
            for role in killed:
                self._kill(role)
            threading.Event().wait(step.down_s)
            for role in killed:
                self._start(role)
            for future in (sending, acting):
                self._note(future, step)
        self._outcome.kills[f"{step.role} in {step.action}"] += 1
        for topic in self._sent:
            self.require_whole(topic, str(step))

    def _note(self, future: Future[None], step: Step) -> None:
        try:
            future.result(WITHIN_S)
        except (AssertionError, TimeoutError, OSError, pulsar.PulsarException) as error:
            self._outcome.problems.append(f"{step}: {type(error).__name__}: {error}")

    def send(self) -> None:
        """So many messages to each topic; the broker has them when it returns."""
        for topic, producer in self._producers.items():
            results: Counter[object] = Counter()
            for _ in range(MESSAGES):
                value = b"%d of " % len(self._sent[topic]) + topic.encode() + b"." * 200
                producer.send_async(value, lambda result, _, results=results: results.update([result]))
                self._sent[topic].append(value)
            producer.flush()
            assert set(results) == {pulsar.Result.Ok}, results
            self._outcome.sent += MESSAGES

    def _offload_topics(self) -> None:
        for topic in self._sent:
            self._offload(topic)

    def _offload(self, topic: str) -> None:
        """Until the broker says that what was closed is offloaded, and the bookie has none of it."""

        def is_offloaded() -> bool:
            with _while_down():
                return self._world.try_offload(topic)
            return False

        eventually(is_offloaded, within_s=WITHIN_S)

    def _read_topics(self) -> None:
        for topic in self._sent:
            self.require_whole(topic, "in the middle")

    def _delete_topics(self) -> None:
        """A topic with cold ledgers is deleted, and made anew by the next one who writes to it."""
        self._deleted += 1
        topic = topic_of(f"doomed-{self._deleted % 2}")
        client = client_of(self._world.service_url, is_quiet=True)
        with contextlib.closing(client), _while_down():
            producer = client.create_producer(topic, send_timeout_millis=20_000, batching_enabled=False)
            for number in range(50):
                producer.send_async(b"%d" % number, lambda *_: None)
            producer.flush()
        self._offload(topic)

        def is_deleted() -> bool:
            with _while_down():
                try:
                    self._world.admin("DELETE", f"{path_of(topic)}?force=true")
                except urllib.error.HTTPError as error:
                    return error.code == 404
            return False

        eventually(is_deleted, within_s=WITHIN_S)

    def require_whole(self, topic: str, when: str) -> None:
        """A new reader receives every message that was sent before it began, once, in order."""
        wanted = list(self._sent[topic]) if when != "in the middle" else self._sent[topic][: -MESSAGES or None]
        found = self._received(topic, len(wanted))
        self._outcome.read += len(found)
        if found[: len(wanted)] != wanted:
            place = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), len(found))
            self._outcome.problems.append(
                f"{when}: {topic}: of {len(wanted)} messages {len(found)} came; the first wrong one is number {place}"
            )

    def _received(self, topic: str, count: int) -> list[bytes]:
        found: list[bytes] = []
        until_s = time.monotonic() + WITHIN_S
        client = client_of(self._world.service_url, is_quiet=True)
        with contextlib.closing(client):
            reader = None
            while len(found) < count and time.monotonic() < until_s:
                try:
                    reader = reader or client.create_reader(topic, pulsar.MessageId.earliest)
                    found.append(reader.read_next(20_000).data())
                except pulsar.PulsarException:  # it is down: the client connects again by itself
                    continue
        return found

    def _kill(self, role: str) -> None:
        if role == "broker":
            with contextlib.suppress(Exception):
                self._outcome.cold_bytes += self._world.bytes_read()
            self._world.broker.kill()
        elif role == "store":
            os.killpg(self._store.process.pid, signal.SIGKILL)
            self._store.process.wait()
        else:
            self._world.kill_sidecar(role)

    def _start(self, role: str) -> None:
        if role == "broker":
            self._world.broker.close()
            self._world.start_broker()
        elif role == "store":
            self._store.stop()
            self._store = start("minio", self._data, port=urlsplit(self._store.endpoint.url).port)
        else:
            self._world.start_sidecar(role)

    def judge(self) -> None:
        """At the end, with everything up: what isn't in a topic's open ledger is in the cold tier alone."""
        for topic in self._sent:
            self._offload(topic)
            *closed, _ = self._world.ledgers(topic)
            kept = [each for each in closed if self._world.bookie_has(each)]
            if kept:
                self._outcome.problems.append(f"{topic}: the bookie still has ledgers {kept}")
            self.require_whole(topic, "at the end")
        self._outcome.cold_bytes += self._world.bytes_read()
        if not self._outcome.cold_bytes:
            self._outcome.problems.append("nothing was read from the cold tier")

    def close(self) -> None:
        """Closes the client, while there is a broker to say so to."""
        self._client.close()

    def stop(self) -> None:
        """Ends the S3 server."""
        self._store.stop()


@contextlib.contextmanager
def _while_down() -> Iterator[None]:
    """Passes over what a request to a process that is down ends with."""
    with contextlib.suppress(OSError, Unavailable, pulsar.PulsarException):
        yield


def run(
    steps: Sequence[Step], folder: Path, say: Callable[[str], object] = lambda _: None, outcome: Outcome | None = None
) -> Outcome:
    """All steps in one world, in an empty folder.

    Args:
        say: hears of each step, and of what is wrong after it.
        outcome: is filled, also where the run is broken off.
    """
    outcome, data = outcome or Outcome(), folder / "data"
    server = start("minio", data, port=free_port())
    settings = {"brokerDeduplicationEnabled": "true", "managedLedgerMaxEntriesPerLedger": "40"}
    world = PluginWorld(
        folder / "world", server.endpoint, broker_settings=settings, endpoints=("reader", "sidecar", "standby")
    )
    chaos = Chaos(world, server, outcome, data)
    try:
        with world:
            for name in ("standby", "reader"):
                world.start_sidecar(name)
            chaos.begin()
            for number, step in enumerate(steps, 1):
                say(f"kill {number} of {len(steps)}: {step}")
                known = len(outcome.problems)
                chaos.do(step)
                for problem in outcome.problems[known:]:
                    say(f"  {problem}")
            chaos.judge()
            chaos.close()
    finally:
        chaos.stop()
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev chaos --plugin", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--silent", type=int, nargs="?", const=200, default=0, metavar="TOPICS", help="200")
    parser.add_argument("--keep", metavar="FOLDER", default="", help="an empty folder for everything that it writes")
    options = parser.parse_args(arguments)
    if options.kills < 1:
        parser.error("--kills: at least 1, or nothing is tried")
    # Ended in good order, so that no server is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.silent:
        return _silent(options.silent, options.keep)
    outcome = Outcome()
    try:
        with contextlib.ExitStack() as stack:
            folder = options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="plugin-chaos-"))
            steps = plan(options.seed, options.kills)
            run(steps, Path(folder), lambda line: print(line, flush=True), outcome)
    except Unavailable as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    finally:
        for line in table(outcome):
            print(line, flush=True)
    if outcome.problems:
        print(f"again: ./dev chaos --plugin --seed {options.seed} --kills {options.kills}")
    return 1 if outcome.problems else 0


def _silent(topics: int, keep: str) -> int:
    outcome = silent_run.SilentOutcome(topics)
    try:
        with contextlib.ExitStack() as stack:
            folder = keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="plugin-silent-"))
            silent_run.run(topics, Path(folder), lambda line: print(line, flush=True), outcome)
    except Unavailable as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    for line in (*outcome.lines(), *outcome.problems):
        print(line, flush=True)
    return 1 if outcome.problems else 0


def table(outcome: Outcome) -> list[str]:
    """What was done and what came of it."""
    kills = [f"{count:4} {what}" for what, count in sorted(outcome.kills.items())]
    sums = (
        f"{outcome.kills.total()} kills, {outcome.sent:,} messages sent, {outcome.read:,} received by new readers, "
        f"{outcome.cold_bytes / 1e6:,.1f} MB from the cold tier: {len(outcome.problems) or 'no'} problems"
    )
    return [*kills, sums, *(f"  {problem}" for problem in outcome.problems)]


if __name__ == "__main__":
    sys.exit(main())
