"""Consumers of a topic: every entry once and in order, although the broker repeats, cuts, moves or sends wrong ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import Position
from formats.pulsar.commands import CommandType
from offloader.errors import BeyondEndError, ClosedError, InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.ledgers.pulsar.consumer import FIRST_ESTIMATE_BYTES, Consumer, Delivery, FlowWindow
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

TOPIC = "persistent://public/default/orders"
NAME = "offloader"
EAGER = ClientLimits(delay_first_s=0.001, delay_s_max=0.01)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({TOPIC: 0}) as running:
        yield running


@pytest.fixture
def topic(broker: FakeBroker) -> FakeTopic:
    return FakeTopic(broker, TOPIC)


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.url, limits=EAGER) as opened:
        yield opened


@pytest.fixture
def consumer(topic: FakeTopic, client: PulsarClient) -> Iterator[Consumer]:
    made = Consumer(client, TOPIC, NAME)
    yield made
    made.close()


def entry(number: int) -> bytes:
    return single_entry(Sent(value=b"message %d" % number))


def fill(topic: FakeTopic, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        topic.append(entry(number))


def stored(topic: FakeTopic) -> list[tuple[Position, bytes]]:
    return [(position, data) for position, data, _ in topic.entries]


def take(consumer: Consumer, count: int) -> list[Delivery]:
    """Exactly ``count`` entries, however they come."""
    found: list[Delivery] = []
    eventually(lambda: len(found) >= count, first=lambda: found.extend(consumer.take(0.05)))
    assert len(found) == count
    return found


def seen(deliveries: list[Delivery]) -> list[tuple[Position, bytes]]:
    return [(each.position, each.entry) for each in deliveries]


def test_the_subscription_is_a_durable_one_from_the_beginning(
    broker: FakeBroker, topic: FakeTopic, consumer: Consumer
) -> None:
    fill(topic, 3)
    topic.roll()
    topic.append(batch_entry([Sent(value=b"a"), Sent(value=b"b")]), messages=2)
    found = take(consumer, 4)
    assert seen(found) == stored(topic)
    assert [each.messages for each in found] == [1, 1, 1, 2]
    assert all(each.publish_time_ms > 0 for each in found)
    [asked] = broker.of(CommandType.SUBSCRIBE)
    assert (asked.subscription, asked.type, asked.durable, asked.initial_position) == (NAME, 2, True, 1)
    assert not asked.force_topic_creation
    assert consumer.is_active
    fill(topic, 1)
    assert seen(take(consumer, 1)) == stored(topic)[4:]


def test_only_what_was_taken_can_be_acknowledged_and_once(
    broker: FakeBroker, topic: FakeTopic, consumer: Consumer
) -> None:
    fill(topic, 5)
    with pytest.raises(InvalidCallError, match="can't acknowledge"):
        consumer.acknowledge(Position(1, 0))
    take(consumer, 5)
    for position in (Position(1, 2), Position(1, 2), Position(1, 1)):
        consumer.acknowledge(position)
    assert topic.mark_delete(NAME) == Position(1, 2)
    assert [(ack.type, len(ack.message_id)) for ack in broker.of(CommandType.ACK)] == [(1, 1)]
    with pytest.raises(InvalidCallError, match="can't acknowledge 1:5"):
        consumer.acknowledge(Position(1, 5))


def test_redelivered_entries_are_dropped(topic: FakeTopic, consumer: Consumer) -> None:
    fill(topic, 5)
    take(consumer, 5)
    consumer.acknowledge(Position(1, 1))
    topic.redeliver(NAME)
    fill(topic, 2, first=5)
    assert seen(take(consumer, 2)) == stored(topic)[5:]


@pytest.mark.slow
def test_after_a_cut_nothing_is_missing_or_twice(broker: FakeBroker, topic: FakeTopic, consumer: Consumer) -> None:
    fill(topic, 3)
    found = take(consumer, 3)
    for number in range(3):
        broker.cut()
        eventually(lambda: not broker.clients)
        fill(topic, 3, first=3 + 3 * number)
        found += take(consumer, 3)
    assert seen(found) == stored(topic)
    assert len(broker.of(CommandType.SUBSCRIBE)) == 4


@pytest.mark.slow
def test_after_a_restart_and_an_unload_nothing_is_missing(
    broker: FakeBroker, topic: FakeTopic, consumer: Consumer
) -> None:
    fill(topic, 3)
    found = take(consumer, 3)
    topic.unload()
    fill(topic, 3, first=3)
    found += take(consumer, 3)
    assert len(broker.of(CommandType.CONNECT)) == 1
    broker.stop()
    broker.start()
    fill(topic, 3, first=6)
    found += take(consumer, 3)
    assert seen(found) == stored(topic)


@pytest.mark.slow
def test_broker_decides_which_consumer_is_active(topic: FakeTopic, client: PulsarClient, consumer: Consumer) -> None:
    fill(topic, 2)
    take(consumer, 2)
    standby = Consumer(client, TOPIC, NAME, after=Position(1, 0))
    assert standby.take() == []
    eventually(lambda: (consumer.is_active, standby.is_active) == (True, False))
    consumer.acknowledge(Position(1, 0))
    topic.switch(NAME)
    assert seen(take(standby, 1)) == stored(topic)[1:]
    eventually(lambda: standby.is_active and not consumer.is_active)
    fill(topic, 1, first=2)
    assert seen(take(standby, 1)) == stored(topic)[2:]
    assert consumer.take() == []
    standby.close()
    assert seen(take(consumer, 1)) == stored(topic)[2:]


def test_a_new_process_drops_what_is_committed(topic: FakeTopic, client: PulsarClient, consumer: Consumer) -> None:
    fill(topic, 5)
    take(consumer, 5)
    consumer.close()
    again = Consumer(client, TOPIC, NAME, after=Position(1, 2))
    assert seen(take(again, 2)) == stored(topic)[3:]
    again.acknowledge(Position(1, 2))
    assert topic.mark_delete(NAME) == Position(1, 2)


@pytest.mark.slow
def test_permits_follow_what_was_taken(broker: FakeBroker, topic: FakeTopic, client: PulsarClient) -> None:
    consumer = Consumer(client, TOPIC, NAME, messages_max=10, bytes_max=lambda: 10 * FIRST_ESTIMATE_BYTES)
    for number in range(0, 100, 2):
        topic.append(batch_entry([Sent(value=b"%d" % number), Sent(value=b"b")]), messages=2)
    assert [flow.permits for flow in broker.of(CommandType.FLOW)] == []
    sizes = []
    found: list[Delivery] = []

    def taken() -> bool:
        batch = consumer.take(0.05)
        sizes.append(sum(each.messages for each in batch))
        found.extend(batch)
        return len(found) >= 50

    eventually(taken)
    assert seen(found) == stored(topic)
    assert max(sizes) <= 10
    consumer.close()


def test_reader_has_no_subscription_and_begins_at_its_start(
    broker: FakeBroker, topic: FakeTopic, client: PulsarClient
) -> None:
    fill(topic, 5)
    reader = Consumer(client, TOPIC, "reader", start=Position(1, 2))
    found = take(reader, 3)
    broker.cut()
    eventually(lambda: not broker.clients)
    fill(topic, 2, first=5)
    found += take(reader, 2)
    assert seen(found) == stored(topic)[2:]
    assert [body.durable for body in broker.of(CommandType.SUBSCRIBE)] == [False, False]
    with pytest.raises(InvalidCallError, match="can't acknowledge"):
        reader.acknowledge(Position(1, 2))
    reader.close()


def test_a_reader_beyond_the_end_isnt_given_the_beginning(topic: FakeTopic, client: PulsarClient) -> None:
    fill(topic, 5)
    reader = Consumer(client, TOPIC, "reader", start=Position(9, 0))
    with pytest.raises(BeyondEndError, match=r"requested 9:0, the broker began at 1:0"):
        eventually(lambda: reader.take(0.05))
    reader.close()


@pytest.mark.slow
def test_damaged_entry_is_an_error_and_never_delivered(topic: FakeTopic, consumer: Consumer) -> None:
    fill(topic, 2)
    damaged = bytearray(entry(2))
    damaged[-1] ^= 1
    topic.append(bytes(damaged))
    fill(topic, 1, first=3)
    assert seen(take(consumer, 2)) == stored(topic)[:2]
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="damaged entry: message at byte"):
            eventually(lambda: consumer.take(0.05))
    topic.entries[2] = (topic.entries[2][0], entry(2), 1)
    assert seen(take(consumer, 2)) == stored(topic)[2:]


def test_a_broker_that_repeats_an_id_is_not_believed(topic: FakeTopic, consumer: Consumer) -> None:
    topic.lies = {Position(1, 2): Position(1, 1), Position(1, 3): Position(0, 7)}
    fill(topic, 5)
    found = [each.position for each in take(consumer, 3)]
    assert found == [Position(1, 0), Position(1, 1), Position(1, 4)]
    assert all(a < b for a, b in pairwise(found))


def test_missing_topic_is_an_error(client: PulsarClient, topic: FakeTopic) -> None:
    consumer = Consumer(client, TOPIC + "-none", NAME)
    with pytest.raises(NotFoundError, match="no such topic"):
        consumer.take()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.take()


def test_consumer_calls_ready_when_entries_arrive(topic: FakeTopic, client: PulsarClient) -> None:
    called: list[None] = []
    consumer = Consumer(client, TOPIC, NAME, ready=lambda: called.append(None))
    assert consumer.take() == []
    before = len(called)
    fill(topic, 1)
    eventually(lambda: len(called) > before)
    assert len(take(consumer, 1)) == 1
    consumer.close()


def test_closing_makes_room_for_the_next(topic: FakeTopic, client: PulsarClient, consumer: Consumer) -> None:
    consumer.take()
    assert topic.active(NAME) is not None
    consumer.close()
    consumer.close()
    assert topic.active(NAME) is None


@pytest.mark.slow
@given(
    st.integers(1, 50),
    st.integers(1, 2**22),
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 2**20), st.booleans(), st.booleans()), max_size=40),
)
def test_flow_window_grants_at_most_its_limit_and_never_stalls(
    messages_max: int, bytes_max: int, events: list[tuple[int, int, bool, bool]]
) -> None:
    window = FlowWindow(messages_max, bytes_max)
    permitted = window.grant()
    for messages, size_bytes, kept, take_all in events:
        if permitted > 0:
            window.arrived(messages, size_bytes, kept=kept)
            permitted -= messages
        if take_all:
            window.messages = window.bytes = 0
        permitted += window.grant()
        assert permitted + window.messages <= max(messages_max, window.messages)
        if not window.messages:
            assert permitted >= 1
