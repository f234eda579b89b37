"""Consumers of scalable topics read ledgers of segments that only the cold tier has: every message, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from formats.metadata.messages import PulsarLedger
from formats.pulsar.ledger_record import decode_ledger_record
from offloader.ledgers.pulsar.scalable import segment_topic
from offloader.ledgers.pulsar.topics import managed_ledger_of_topic
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import ScalableClient, SegmentMessage, running_scalable_client
from tests.plugin.plugin_world import NAMESPACE, PluginWorld
from tests.support.quick import needs
from tests.support.waiting import settled

pytestmark = pytest.mark.java

KEYS = 20
#: Changes of a topic that begins with the segments 0 and 1.
CHANGES = ("split/0", "merge/2/3")
SEGMENTS = 5
#: Offloaded ledgers of each segment, and how often messages are sent for them.
LEDGERS_MIN, ROUNDS_MAX = 3, 20
#: Without an offloaded ledger for so long, the broker waits for the next ledger.
STILL_S = 10


@dataclass
class ColdTopic:
    """A scalable topic of which the bookie has the last ledger of each segment only.

    Attributes:
        sent: key -> the values in the order of sending.
        ledgers: of each segment, ascending; the last one isn't offloaded.
    """

    world: PluginWorld
    client: ScalableClient
    topic: str
    sent: Mapping[str, Sequence[str]]
    ledgers: Mapping[str, Sequence[PulsarLedger]]

    @property
    def messages(self) -> list[tuple[str, str]]:
        return sorted((key, value) for key, values in self.sent.items() for value in values)

    @property
    def cold(self) -> list[PulsarLedger]:
        return [ledger for ledgers in self.ledgers.values() for ledger in ledgers[:-1]]

    @property
    def cold_bytes(self) -> int:
        return sum(ledger.size_bytes or 0 for ledger in self.cold)


@pytest.fixture(scope="module")
@needs("java")
def scalable_world(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginWorld]:
    settings = {
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
        "managedLedgerCacheSizeMB": "0",  # else it would answer for the plugin
        # The broker deletes its copies when it opens another ledger, which it doesn't in sealed segments: the test
        # deletes them, and the broker must not look for them.
        "managedLedgerDataReadPriority": "tiered-storage-first",
    }
    with PluginWorld(
        tmp_path_factory.mktemp("plugin"),
        servers["minio"],
        release=SCALABLE,
        ledger_entries=10,
        broker_settings=settings,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def cold(scalable_world: PluginWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdTopic]:
    world, topic = scalable_world, f"topic://{NAMESPACE}/orders"
    with running_scalable_client(tmp_path_factory.mktemp("client"), world.service_url) as client:
        world.admin("PUT", f"{path_of_scalable(topic)}?numInitialSegments=2")
        sent: dict[str, list[str]] = {}
        for part, change in enumerate((*CHANGES, "")):
            send_until_offloaded(world, client, topic, sent, f"part{part}")
            if change:
                world.admin("POST", f"{path_of_scalable(topic)}/{change}")
        ledgers = {segment: ledgers_of(world, segment) for segment in segments(world, topic)}
        made = ColdTopic(world, client, topic, sent, ledgers)
        for each in made.cold:
            if world.bookie_has(each.ledger_id):
                world.broker.forget(each.ledger_id)
        world.admin("PUT", f"namespaces/{NAMESPACE}/unload")  # handles of deleted ledgers
        yield made


def send_until_offloaded(
    world: PluginWorld,
    client: ScalableClient,
    topic: str,
    sent: dict[str, list[str]],
    prefix: str,
    *,
    count: int = 100,
    keys: int = KEYS,
    part_min: float = 1.0,
) -> None:
    """Sends messages until the broker has offloaded this part of the ledgers before the last one of each segment.

    At least some of each: it looks for ledgers to offload only when it opens another one.
    """

    def look() -> list[tuple[int, int]]:
        """Offloaded ledgers, and all before the last one, of each segment."""
        found = [ledgers_of(world, segment)[:-1] for segment in segments(world, topic, only_active=True)]
        return [(sum(map(is_offloaded, ledgers)), len(ledgers)) for ledgers in found]

    def are_offloaded(found: list[tuple[int, int]]) -> bool:
        return all(count >= LEDGERS_MIN and offloaded >= part_min * count for offloaded, count in found)

    for number in range(ROUNDS_MAX):
        more = client.produce(topic, count=count, keys=keys, prefix=f"{prefix}-{number}", rate=200)
        for key, values in more.items():
            sent.setdefault(key, []).extend(values)
        # While the broker offloads, more messages would only open more ledgers.
        if settled(look, are_offloaded, still_s=STILL_S, look_s=1):
            return
    pytest.fail(f"not offloaded after {ROUNDS_MAX} rounds")


def path_of_scalable(topic: str) -> str:
    return f"scalable/{topic.removeprefix('topic://')}"


def segments(world: PluginWorld, topic: str, *, only_active: bool = False) -> list[str]:
    """The topics of its segments."""
    rows = world.admin("GET", path_of_scalable(topic))["segments"].values()
    return [
        segment_topic(topic, row["segmentId"], row["hashRange"]["start"], row["hashRange"]["end"] + 1)
        for row in rows
        if row["active"] or not only_active
    ]


def ledgers_of(world: PluginWorld, segment: str) -> list[PulsarLedger]:
    found = decode_ledger_record(world.broker.record(managed_ledger_of_topic(segment)))
    return sorted(found, key=lambda ledger: ledger.ledger_id)  # Pulsar 5 writes them in any order


def is_offloaded(ledger: PulsarLedger) -> bool:
    return ledger.context is not None and ledger.context.complete


def test_all_but_the_last_ledger_of_each_segment_are_cold(cold: ColdTopic) -> None:
    assert len(cold.ledgers) == SEGMENTS
    assert min(map(len, cold.ledgers.values())) > LEDGERS_MIN
    assert all(is_offloaded(each) for each in cold.cold)
    assert not any(cold.world.bookie_has(each.ledger_id) for each in cold.cold)


@pytest.mark.parametrize("kind", ["checkpoint", "stream", "queue"])
def test_consumer_receives_every_message_once(cold: ColdTopic, kind: str) -> None:
    topic, count, before = cold.topic, len(cold.messages), cold.world.bytes_read()
    consume: Callable[[], list[SegmentMessage]] = {
        "checkpoint": lambda: cold.client.checkpoint(topic, count=count),
        "stream": lambda: cold.client.stream(topic, "in-order", count=count),
        "queue": lambda: cold.client.queue(topic, "workers", count=count),
    }[kind]
    found = consume()
    assert sorted((each.key, each.value) for each in found) == cold.messages
    assert {each.segment for each in found} == set(range(SEGMENTS))
    values: dict[tuple[int, str], list[str]] = {}
    for each in found:
        values.setdefault((each.segment, each.key), []).append(each.value)
    for (_, key), received in values.items():
        assert received == [value for value in cold.sent[key] if value in received]
    assert cold.world.bytes_read() >= before + cold.cold_bytes
