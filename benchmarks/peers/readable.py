"""From an append to its entry being readable in the tier: a trickle of entries, and a second's worth closes a segment.

It doesn't ask the two tiers in different ways: each product says what is offloaded, and is asked as often.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.s3_rig import BUCKET, Rig, rig, through
from formats.entries import Position
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.managed_ledger import open_managed_ledger
from offloader.read.reader import open_stream_reader
from offloader.settings import Settings
from offloader.store.open import open_store
from services.pulsar.broker import offload_settings, running_broker

__all__ = ["PER_S", "TIERS", "readable"]

#: Entries a second, and as many are a ledger of Pulsar's, or a second closes a segment of ours.
PER_S = 40
ENTRY_BYTES = 1024
LOOK_S = 0.02
#: For the last ones to come.
WAIT_S_MAX = 60.0


class Tier(Protocol):
    """A product under a trickle."""

    def append(self, payload: bytes) -> Position:
        """Durable in the hot tier when it returns."""

    def offloaded(self) -> Position | None:
        """The last entry that the product says is readable in the cold tier."""


class _Ours:
    def __init__(self, stack: ExitStack, server: Rig, url: str) -> None:
        endpoint = server.endpoint
        self.store = open_store(
            f"s3://{BUCKET}/readable", endpoint_url=url, access_key=endpoint.access_key, secret_key=endpoint.secret_key
        )
        stack.callback(self.store.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.topic = stack.enter_context(
            open_managed_ledger(
                "peers/readable",
                ledgers=f"sqlite:///{folder}/ledgers.db",
                store=self.store,
                settings=Settings.of({"offload": {"segment_age_max": 1}}),
            )
        )

    def append(self, payload: bytes) -> Position:
        return self.topic.append(payload)

    def offloaded(self) -> Position | None:
        status = self.topic.status()
        return None if status is None else status.committed

    def check(self, last: Position) -> None:
        with open_stream_reader(self.store, "peers/readable") as reader:
            assert reader.last_position is not None
            assert reader.last_position >= last


class _Pulsar:
    """A ledger is closed by number: its shortest time is a minute."""

    topic = "persistent://public/default/readable"

    def __init__(self, stack: ExitStack, server: Rig, url: str) -> None:
        import pulsar

        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {
            **offload_settings(url, BUCKET),
            "managedLedgerMaxEntriesPerLedger": str(PER_S),
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
        }
        keys = {"ACCESS_KEY_ID": server.endpoint.access_key, "ACCESS_KEY_SECRET": server.endpoint.secret_key}
        broker = stack.enter_context(running_broker(Path(folder), settings, keys))
        self.admin = stack.enter_context(AdminClient(broker.admin_url))
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        self.producer = client.create_producer(self.topic, batching_enabled=False)

    def append(self, payload: bytes) -> Position:
        stored = self.producer.send(payload)
        return Position(stored.ledger_id(), stored.entry_id())

    def offloaded(self) -> Position | None:
        ledgers = self.admin.ledgers(self.topic).ledgers
        done = [ledger for ledger in ledgers if ledger.offloaded]
        return Position(done[-1].ledger_id, done[-1].entries - 1) if done else None

    def check(self, last: Position) -> None:
        """That the broker reads what it offloaded is what tests/proof/interop shows."""


TIERS: Mapping[str, Callable[[ExitStack, Rig, str], Any]] = {"ours": _Ours, "pulsar": _Pulsar}


@contextmanager
def _looking(tier: Tier, seen: list[tuple[Position, float]]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            found = tier.offloaded()
            if found is not None and (not seen or found > seen[-1][0]):
                seen.append((found, time.perf_counter()))

    thread = threading.Thread(target=look, name="looking")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def readable(name: str, delay_ms: float, seconds: float) -> dict[str, Any]:
    """Seconds from an append's return to its entry being readable in the tier, beyond which the waiting for the rest of
    its segment is the most of it."""
    with rig("minio") as server, ExitStack() as stack:
        tier = TIERS[name](stack, server, stack.enter_context(through(server, delay_ms)))
        payload = os.urandom(ENTRY_BYTES)
        sent: list[tuple[Position, float]] = []
        seen: list[tuple[Position, float]] = []
        for _ in range(PER_S):  # the first segment: connections and classes are there afterwards
            tier.append(payload)
        with _looking(tier, seen):
            due = time.perf_counter()
            until = due + seconds
            while due < until:
                sent.append((tier.append(payload), time.perf_counter()))
                due += 1 / PER_S
                time.sleep(max(0.0, due - time.perf_counter()))
            for _ in range(PER_S):  # closes the ledger of the last one that counts
                tier.append(payload)
            until = time.perf_counter() + WAIT_S_MAX
            while not seen or seen[-1][0] < sent[-1][0]:
                if time.perf_counter() > until:
                    raise TimeoutError(f"{name}: {sent[-1][0]} isn't offloaded within {WAIT_S_MAX:g} s")
                time.sleep(LOOK_S)
        tier.check(sent[-1][0])
    taken = sorted(next(at for end, at in seen if end >= position) - when for position, when in sent)
    return {
        "entries": len(taken),
        "median_s": statistics.median(taken),
        "p99_s": taken[int(len(taken) * 0.99)],
    }
