"""The metric of unread messages: batches count as what they hold, where brokers number messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import StoreUnavailableError
from offloader.read.message_counts import messages_from
from offloader.retention.cycle import RetentionCycle, RetentionService
from offloader.retention.subscribers import open_retention
from offloader.settings import Settings, TelemetrySettings
from offloader.store.memory import MemoryStore
from offloader.telemetry.prometheus import Metrics
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.support.streams import StreamWriter

STREAM = "a/b/persistent/orders"
#: Messages in each entry; an entry with one is not a batch.
BATCHES = (3, 1, 5, 2, 4)
_names = itertools.count()


def entries(counts: Sequence[int], *, is_numbered: bool = True, before: int = 0) -> list[bytes]:
    """Entries as a broker stores them. ``before``: messages of the topic before the first one."""
    found = []
    for count, end in zip(counts, itertools.accumulate(counts, initial=before - 1), strict=False):
        more: dict[str, Any] = {"broker": (1_700_000_000_000, end + count if is_numbered else None)}
        sent = [Sent(value=b"message %d" % number) for number in range(count)]
        found.append(batch_entry(sent, **more) if count > 1 else single_entry(sent[0], **more))
    return found


class Bench:
    def __init__(self, *partitions: Sequence[bytes], policy: str = "consumption") -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"messages-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.metrics = Metrics(TelemetrySettings(labels="topic"), clock=self.clock)
        for number, payloads in enumerate(partitions):
            stream = STREAM if len(partitions) == 1 else f"{STREAM}-partition-{number}"
            StreamWriter(self.memory, stream, clock=self.clock).add([EntryBatch.build(1, 0, payloads)])
        settings = Settings.of({"retention": {"policy": policy}})
        cycle = RetentionCycle(
            self.store, clock=self.clock, settings_of=lambda _: settings, messages_from=messages_from
        )
        self.service = RetentionService(cycle, clock=self.clock, period_s=60, recorder=self.metrics)

    def read_up_to(self, position: Position) -> None:
        """A subscriber has read everything before it."""
        subscribers = open_retention(self.memory, STREAM, clock=self.clock)
        subscribers.add("billing")
        subscribers.publish("billing", position)

    def value(self, name: str = "unconsumed_messages") -> float | None:
        """Of a metric, after one more cycle."""
        for _ in range(2):  # the first time it finds the streams
            self.clock.advance(3600)
            self.service.run_due()
        return self.metrics.registry.get_sample_value(f"offloader_{name}", {"namespace": "a/b", "topic": STREAM})


def test_messages_of_batches_are_counted_by_the_brokers_numbers() -> None:
    bench = Bench(entries(BATCHES, before=100))
    assert bench.value() == sum(BATCHES)
    bench.read_up_to(Position(1, 2))
    assert bench.value() == sum(BATCHES[2:])
    assert bench.value("unconsumed_entries") == 3
    bench.read_up_to(Position(1, 5))
    assert bench.value() == 0


def test_messages_of_all_partitions_are_added() -> None:
    assert Bench(entries(BATCHES), entries((7, 7))).value() == sum(BATCHES) + 14


@pytest.mark.parametrize(
    "payloads",
    [entries(BATCHES, is_numbered=False), [single_entry(Sent(value=b"x"))], [b"no message of Pulsar's"]],
    ids=["without numbers", "without broker metadata", "foreign"],
)
def test_without_numbers_only_entries_are_counted(payloads: Sequence[bytes]) -> None:
    bench = Bench(payloads)
    assert bench.value() is None
    assert bench.value("unconsumed_entries") == len(payloads)


def test_no_object_is_read_for_a_stream_without_the_policy() -> None:
    bench = Bench(entries(BATCHES), policy="keep")
    assert bench.value() is None
    assert bench.value("unconsumed_entries") == len(BATCHES)
    assert not [key for _, key in bench.store.calls if key.endswith("-index")]


def test_unreadable_object_fails_no_cycle() -> None:
    bench = Bench(entries(BATCHES))
    bench.store.set_faults([Fault(call=1, calls=10**6, key_part="-index", error=StoreUnavailableError)])
    assert bench.value() is None
    assert bench.value("streams_retention_failing") == 0
