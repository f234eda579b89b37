"""Scalable topics of a real broker: Java's V5 client, and our protocol client on their segments.

Entries are compared with the bookie's bytes, messages with those that the producer's broker acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from formats.entries import Position
from formats.pulsar.ledger_record import decode_ledger_record
from formats.pulsar.messages import messages
from offloader.errors import NotFoundError
from offloader.ledgers.pulsar.consumer import Consumer, Delivery, batches_of
from offloader.ledgers.pulsar.protocol import PulsarClient
from services.pulsar.broker import Broker, running_broker
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import ScalableClient, SegmentMessage, running_scalable_client
from tests.proof.interop.record_scalable_layouts import FOLDER, Admin
from tests.support.quick import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

TOPIC, PATH = "topic://public/default/orders", "scalable/public/default/orders"
KEYS = 20


@dataclass
class Orders:
    """A topic with messages before and after a split and a merge."""

    broker: Broker
    client: ScalableClient
    admin: Admin
    layout: Mapping[str, Any]
    #: Key -> values in the order of sending.
    sent: Mapping[str, Sequence[str]]

    @property
    def count(self) -> int:
        return sum(map(len, self.sent.values()))

    def segments(self) -> Iterator[tuple[str, bool]]:
        """Name and whether it is sealed."""
        for each in self.layout["segments"].values():
            span = each["hashRange"]
            name = f"{span['start']:04x}-{span['end']:04x}-{each['segmentId']}"
            yield f"segment://public/default/orders/{name}", each["sealed"]

    def ledgers(self, segment: str) -> list[int]:
        stream = f"public/default/segment/{segment.removeprefix('segment://public/default/')}"
        return [each.ledger_id for each in decode_ledger_record(self.broker.record(stream))]

    def hot(self, segment: str) -> list[tuple[Position, bytes]]:
        """A segment's entries from the bookie."""
        return [
            (Position(ledger_id, entry_id), entry)
            for ledger_id in self.ledgers(segment)
            if (last := self.broker.ledger(ledger_id)["last"]) >= 0
            for entry_id, entry in enumerate(self.broker.hot(ledger_id, 0, last))
        ]


@pytest.fixture(scope="module")
@needs("java")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    folder = tmp_path_factory.mktemp("scalable")
    with (
        running_broker(folder / "broker", {"managedLedgerMaxEntriesPerLedger": "2"}, release=SCALABLE) as broker,
        running_scalable_client(folder / "client", broker.service_url) as client,
    ):
        admin = Admin(broker)
        admin.do("PUT", f"{PATH}?numInitialSegments=2")
        sent: dict[str, list[str]] = {}
        for part in range(9):  # a batch at least of each for every segment, so that all have several ledgers
            if change := {3: "split/0", 6: "merge/2/3"}.get(part):
                admin.do("POST", f"{PATH}/{change}")
            for key, values in client.produce(TOPIC, count=100, keys=KEYS, prefix=f"part{part}", rate=300).items():
                sent.setdefault(key, []).extend(values)
        yield Orders(broker, client, admin, admin.get(PATH), sent)


def test_producer_is_acknowledged_every_message(orders: Orders) -> None:
    assert orders.count == 900
    assert orders.sent["k3"][:2] == ["part0-3", "part0-23"]
    assert {each["state"] for each in orders.layout["segments"].values()} == {"SEALED", "ACTIVE"}


def slices(found: Sequence[SegmentMessage]) -> dict[tuple[int, str], list[str]]:
    """By segment and key the values as they came."""
    values: dict[tuple[int, str], list[str]] = {}
    for each in found:
        values.setdefault((each.segment, each.key), []).append(each.value)
    return values


def test_consumers_receive_every_message_once_in_the_order_of_each_segment(orders: Orders) -> None:
    """No more is true of 5.0.0-M1: a StreamConsumer may get messages of a child before those of its parent."""
    sent = sorted((key, value) for key, values in orders.sent.items() for value in values)
    for found in (
        orders.client.stream(TOPIC, "in-order", count=orders.count),
        orders.client.queue(TOPIC, "workers", count=orders.count),
        orders.client.checkpoint(TOPIC, count=orders.count),
    ):
        assert sorted((each.key, each.value) for each in found) == sent
        assert {each.segment for each in found} == {0, 1, 2, 3, 4}
        for (_, key), values in slices(found).items():
            assert values == [value for value in orders.sent[key] if value in values]


def taken(consumer: Consumer, last: Position) -> list[tuple[Position, bytes]]:
    """What a consumer gives until ``last``, without what follows."""
    found: list[tuple[Position, bytes]] = []

    def is_done() -> bool:
        found.extend((each.position, each.entry) for each in consumer.take(1.0))
        return bool(found) and found[-1][0] >= last

    eventually(is_done)
    return [each for each in found if each[0] <= last]


def test_segments_entries_are_the_bookies(orders: Orders) -> None:
    with PulsarClient(orders.broker.service_url) as client:
        for segment, is_sealed in orders.segments():
            hot = orders.hot(segment)
            assert len(orders.ledgers(segment)) >= 2
            assert client.partitions(segment) == 0
            for begin in (0, len(hot) // 2):
                reader = Consumer(client, segment, "reader", start=hot[begin][0])
                assert taken(reader, hot[-1][0]) == hot[begin:]
                # The bookie tells of an open ledger's last entry only with the next one.
                last = reader.last_position()
                assert last == hot[-1][0] if is_sealed else last is not None and last >= hot[-1][0]
                reader.close()


def test_segments_together_have_every_message_once(orders: Orders) -> None:
    found: list[str] = []
    with PulsarClient(orders.broker.service_url) as client:
        for segment, _ in orders.segments():
            last = orders.hot(segment)[-1][0]
            reader = Consumer(client, segment, "decoded", start=Position(0, 0))
            deliveries: list[Delivery] = []
            while not deliveries or deliveries[-1].position < last:
                deliveries += reader.take(1.0)
            reader.close()
            for batch in batches_of(deliveries):
                rows = messages(batch).to_pylist()
                found += [row["value"].decode() for row in rows]
                assert all(row["value"].decode() in orders.sent[row["key"]] for row in rows)
    assert sorted(found) == sorted(value for values in orders.sent.values() for value in values)


def test_subscription_on_a_segment_continues_after_the_acknowledged_position(orders: Orders) -> None:
    with PulsarClient(orders.broker.service_url) as client:
        for segment, _ in orders.segments():
            hot = orders.hot(segment)
            half = len(hot) // 2
            first = Consumer(client, segment, "offloader")
            assert taken(first, hot[-1][0]) == hot
            assert first.is_active
            first.acknowledge(hot[half][0])
            standby = Consumer(client, segment, "offloader")
            assert standby.take() == []
            first.close()
            assert taken(standby, hot[-1][0]) == hot[half + 1 :]
            standby.close()


def test_missing_segment_and_the_topic_itself_cannot_be_subscribed_to(orders: Orders) -> None:
    with PulsarClient(orders.broker.service_url) as client:
        for name in ("segment://public/default/orders/0000-7fff-99", TOPIC):
            with pytest.raises(NotFoundError, match="no such topic"):
                Consumer(client, name, "reader").take()


def test_recorded_layouts_have_the_brokers_fields(orders: Orders) -> None:
    recorded = json.loads((FOLDER / "layout-merge.json").read_text())
    assert recorded.keys() - {"properties"} == orders.layout.keys() - {"properties"}
    for number, each in orders.layout["segments"].items():
        theirs = recorded["segments"][number]
        timeless = {name for name in each if not name.endswith("Ms")}
        assert {name: each[name] for name in timeless} == {name: theirs[name] for name in theirs if name in timeless}
