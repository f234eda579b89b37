"""The producer against the fake broker: order, receipts, limits, refusals, and lost connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

import pytest

from formats.pulsar.entry import decode_frame, resent
from offloader.errors import ClosedError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar.producer import Producer, ProducerLimits
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import PATIENCE_S, eventually

TOPIC = "persistent://t/n/target"


@dataclass
class Place:
    broker: FakeBroker
    topic: FakeTopic
    producers: FakeProducers
    client: PulsarClient

    def open(self, name: str = "p", limits: ProducerLimits | None = None) -> Producer:
        return Producer(self.client, TOPIC, name, limits=limits)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number, _ in self.producers.stored]


@pytest.fixture
def place() -> Iterator[Place]:
    with FakeBroker(max_message_bytes=4096) as broker:
        topic = FakeTopic(broker, TOPIC)
        with PulsarClient(broker.url, limits=ClientLimits(retry_s=PATIENCE_S)) as client:
            yield Place(broker, topic, FakeProducers(broker, topic, deduplicates=True), client)


def entry_of(number: int, name: str = "p") -> bytes:
    return resent(single_entry(Sent(value=b"value %d" % number, key="k")), name, number).entry


def send(producer: Producer, *numbers: int) -> None:
    for number in numbers:
        producer.send(number, entry_of(number), 1)


def test_entries_are_stored_in_order_and_receipts_have_positions(place: Place) -> None:
    producer = place.open()
    assert producer.last_sequence_id == -1
    send(producer, *range(0, 600, 3))
    producer.flush()
    assert place.numbers == list(range(0, 600, 3))
    newest = producer.newest
    assert newest is not None
    assert (newest.sequence_id, newest.position) == (597, place.topic.entries[-1][0])
    assert [decode_frame(entry).metadata.sequence_id for _, entry, _ in place.topic.entries] == place.numbers
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        send(producer, 600)


def test_next_producer_of_a_name_continues_after_the_last_sequence_id(place: Place) -> None:
    first = place.open()
    send(first, 4, 7)
    first.flush()
    with pytest.raises(StoreUnavailableError, match="a producer of that name is connected"):
        Producer(PulsarClient(place.broker.url, limits=ClientLimits(retry_s=0)), TOPIC, "p")
    first.close()
    second = place.open()
    assert second.last_sequence_id == 7
    send(second, 7, 8)
    second.flush()
    assert place.numbers == [4, 7, 8]
    assert second.newest is not None
    second.close()


def test_unacknowledged_entries_are_bounded(place: Place) -> None:
    place.producers.is_held = True
    producer = place.open(limits=ProducerLimits(entries_max=5))
    errors: list[OffloaderError] = []

    def send_all() -> None:
        try:
            send(producer, *range(8))
        except OffloaderError as error:
            errors.append(error)

    thread = Thread(target=send_all)
    thread.start()
    eventually(lambda: len(place.numbers) == 5)
    assert len(producer._waiting) == 5
    assert thread.is_alive()
    place.broker.cut()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [StoreUnavailableError]


def test_unacknowledged_bytes_are_bounded_but_one_entry_is_always_sent(place: Place) -> None:
    producer = place.open(limits=ProducerLimits(bytes_max=1))
    send(producer, 1, 2, 3)
    producer.flush()
    assert place.numbers == [1, 2, 3]
    assert len(producer._waiting) == 0


def test_a_broker_that_stores_nothing_has_a_deadline(place: Place) -> None:
    place.producers.is_held = True
    producer = place.open(limits=ProducerLimits(store_s=0.05))
    send(producer, 1)
    with pytest.raises(StoreUnavailableError, match="stored nothing"):
        producer.flush()
    with pytest.raises(StoreUnavailableError, match="stored nothing"):
        send(producer, 2)


def test_a_lost_connection_ends_it_and_the_name_is_free_again(place: Place) -> None:
    place.producers.cut_after = 3
    producer = place.open()
    send(producer, 1, 2, 3)
    with pytest.raises(StoreUnavailableError):
        producer.flush()
    again = place.open()
    assert again.last_sequence_id == 3
    again.close()


def test_a_broker_that_gives_the_topic_up_ends_it(place: Place) -> None:
    producer = place.open()
    place.producers.give_up()
    eventually(lambda: _error_of(producer) is not None)
    assert isinstance(_error_of(producer), StoreUnavailableError)


def _error_of(producer: Producer) -> OffloaderError | None:
    try:
        producer.flush()
    except OffloaderError as error:
        return error
    return None


def test_refusals_are_named(place: Place) -> None:
    with pytest.raises(NotFoundError, match="no such topic"):
        Producer(place.client, "persistent://t/n/none", "p")
    producer = place.open()
    place.producers.refuse = 15
    send(producer, 1)
    with pytest.raises(InvalidCallError, match="the topic was terminated"):
        producer.flush()


def test_an_entry_above_the_brokers_limit_is_refused_here(place: Place) -> None:
    producer = place.open()
    with pytest.raises(InvalidCallError, match="accepts at most 8192"):
        producer.send(1, b"x" * 8193, 1)
    send(producer, 1)
    producer.flush()
    assert place.numbers == [1]
