"""Pulsar's own consumers read messages whose ledgers only the cold tier has: every message, once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import pulsar
import pytest

from tests.plugin.plugin_world import PluginWorld, path_of, topic_of
from tests.plugin.topic_history import Message, TopicHistory, checksum, client_of, plain, receive

pytestmark = pytest.mark.java

#: Ledgers of a topic of 2,000 messages, and of a long run's.
LEDGERS_MIN, LEDGERS_MIN_LONG = 5, 20
#: Messages from which a run is a long one.
LONG = 100_000


@dataclass(frozen=True, slots=True)
class Cold:
    """A topic whose ledgers the bookie no longer has.

    Attributes:
        ledgers: their ids.
        added: objects that came while the broker offloaded.
        before: those that were there.
    """

    world: PluginWorld
    topic: str
    sent: list[Message]
    ledgers: list[int]
    before: dict[str, int]
    added: dict[str, int]

    @property
    def count(self) -> int:
        return len(self.sent)


@pytest.fixture(scope="module")
def cold(world: PluginWorld, tmp_path_factory: pytest.TempPathFactory, count: int) -> Cold:
    topic = topic_of("every:thing#1")  # a name that the broker encodes
    with TopicHistory(world.broker, topic, tmp_path_factory.mktemp("keys")) as history:
        history.send_all(count)
    return made_cold(world, topic, history.sent)


def made_cold(world: PluginWorld, topic: str, sent: list[Message]) -> Cold:
    world.await_committed(topic)
    before = world.objects()
    ledgers = world.offload(topic)
    after = world.objects()
    world.forget(topic, ledgers)
    return Cold(world, topic, sent, ledgers, before, {key: after[key] for key in set(after) - set(before)})


@pytest.fixture
def client(world: PluginWorld) -> Iterator[pulsar.Client]:
    made = client_of(world.service_url)
    yield made
    made.close()


@pytest.fixture
def from_cold(cold: Cold) -> Iterator[Cold]:
    """The topic, and that the broker got its messages from the plugin while the bookie had none of them."""
    assert len(cold.ledgers) >= (LEDGERS_MIN if cold.count < LONG else LEDGERS_MIN_LONG)
    assert [each for each in cold.ledgers if cold.world.bookie_has(each)] == []
    # What the broker keeps in memory would answer for the plugin.
    cold.world.admin("PUT", f"{path_of(cold.topic)}/unload")
    before = cold.world.bytes_read()
    yield cold
    assert cold.world.bytes_read() > before + sum(len(message.value) for message in cold.sent) // 4
    assert cold.world.bytes_fetched() > 0


def test_offload_uploads_nothing_a_second_time(cold: Cold) -> None:
    stored, added = (sum(size for key, size in each.items() if is_data(key)) for each in (cold.before, cold.added))
    assert stored > sum(len(message.value) for message in cold.sent) / 4
    # What readers of the topic didn't get, and the broker sent: markers and aborted messages.
    assert added < stored / 20


def is_data(key: str) -> bool:
    return "/manifest/" not in key and not key.startswith("_catalog/")


def test_new_subscription_receives_every_message_once_in_order(from_cold: Cold, client: pulsar.Client) -> None:
    consumer = client.subscribe(from_cold.topic, "new", initial_position=pulsar.InitialPosition.Earliest)
    assert plain(receive(consumer, from_cold.count)) == from_cold.sent


def test_reader_receives_every_message_once_in_order(from_cold: Cold, client: pulsar.Client) -> None:
    reader = client.create_reader(from_cold.topic, pulsar.MessageId.earliest)
    assert plain(receive(reader, from_cold.count)) == from_cold.sent


def test_java_reader_receives_every_message_once_in_order(from_cold: Cold) -> None:
    found = from_cold.world.broker.drain(from_cold.topic, from_cold.count)
    assert (found.messages, found.crc32) == (from_cold.count, checksum(from_cold.sent))


def test_seek_by_id_goes_on_with_that_message(from_cold: Cold, client: pulsar.Client) -> None:
    consumer, messages = whole(from_cold, client, "by id")
    for place in places_in(from_cold):
        consumer.seek(messages[place].message_id())
        assert plain(receive(consumer, 1, and_no_more=False)) == from_cold.sent[place : place + 1]


def test_seek_by_time_goes_on_with_the_first_message_since_then(from_cold: Cold, client: pulsar.Client) -> None:
    consumer, messages = whole(from_cold, client, "by time")
    times_ms = [message.publish_timestamp() for message in messages]
    for place in places_in(from_cold):
        consumer.seek(times_ms[place])
        first = next(number for number, time_ms in enumerate(times_ms) if time_ms >= times_ms[place])
        wanted = from_cold.sent[first : first + 3]
        assert plain(receive(consumer, len(wanted), and_no_more=False)) == wanted


def places_in(cold: Cold) -> list[int]:
    """Numbers of messages, back and forth."""
    return [3, cold.count - 1, 0, *range(cold.count - 50, 100, -(cold.count // 9))]


def whole(cold: Cold, client: pulsar.Client, name: str) -> tuple[pulsar.Consumer, list[pulsar.Message]]:
    """A consumer that seeks to the message itself, and all messages."""
    consumer = client.subscribe(
        cold.topic, name, initial_position=pulsar.InitialPosition.Earliest, start_message_id_inclusive=True
    )
    return consumer, receive(consumer, cold.count)


def test_subscription_is_reset_to_the_first_message(from_cold: Cold, client: pulsar.Client) -> None:
    consumer = client.subscribe(from_cold.topic, "reset", initial_position=pulsar.InitialPosition.Earliest)
    receive(consumer, 300, and_no_more=False)
    consumer.close()
    from_cold.world.admin("POST", f"{path_of(from_cold.topic)}/subscription/reset/resetcursor/0")
    consumer = client.subscribe(from_cold.topic, "reset", initial_position=pulsar.InitialPosition.Earliest)
    assert plain(receive(consumer, from_cold.count)) == from_cold.sent


def test_subscription_is_reset_to_a_message_by_its_id(from_cold: Cold, client: pulsar.Client) -> None:
    consumer = client.subscribe(from_cold.topic, "reset by id", initial_position=pulsar.InitialPosition.Earliest)
    messages = receive(consumer, from_cold.count)
    consumer.close()
    single = [number for number, message in enumerate(from_cold.sent) if message.value.startswith((b"plain", b"rich"))]
    for number in (single[0], single[len(single) // 2], single[-1]):
        at = messages[number].message_id()
        position = {"ledgerId": at.ledger_id(), "entryId": at.entry_id(), "partitionIndex": -1}
        from_cold.world.admin("POST", f"{path_of(from_cold.topic)}/subscription/reset%20by%20id/resetcursor", position)
        consumer = client.subscribe(from_cold.topic, "reset by id")
        assert plain(receive(consumer, 1, and_no_more=False)) == from_cold.sent[number : number + 1]
        consumer.close()


def test_key_shared_consumers_receive_every_key_in_order(from_cold: Cold, client: pulsar.Client) -> None:
    consumers = [
        client.subscribe(
            from_cold.topic,
            "shared",
            consumer_type=pulsar.ConsumerType.KeyShared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for _ in range(2)
    ]
    found: list[Message] = []
    while len(found) < from_cold.count:
        for consumer in consumers:
            found += until_nothing(consumer)
    assert sorted(found) == sorted(from_cold.sent)
    for key in {message.key for message in from_cold.sent if message.key}:
        assert [each for each in found if each.key == key] == [each for each in from_cold.sent if each.key == key]


def until_nothing(consumer: pulsar.Consumer) -> list[Message]:
    found: list[pulsar.Message] = []
    while True:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return plain(found)
        consumer.acknowledge(message)
        found.append(message)


def test_broker_keeps_which_store_the_topic_was_committed_to(cold: Cold) -> None:
    """Noted before the first acknowledgement, and kept over an unload of the topic."""
    noted = cold.world.admin("GET", f"{path_of(cold.topic)}/subscription/offloader/properties")
    incarnation, _, record_id = noted["offloader-manifests"].partition(":")
    assert str(UUID(incarnation)) == incarnation
    assert int(record_id) > 0
