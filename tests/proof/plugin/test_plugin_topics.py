"""Topics of other kinds whose ledgers only the cold tier has: partitioned, encrypted, compacted, deleted."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pulsar
import pytest

from offloader import Settings, Stream
from offloader.ledgers.pulsar.topic_facts import SINCE_PROPERTY
from tests.plugin.plugin_world import NAMESPACE, TRIMMED, PluginWorld, eventually_some, path_of, stream_of, topic_of
from tests.plugin.topic_history import Message, TopicHistory, client_of, keys_in, plain, receive
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def client(world: PluginWorld) -> Iterator[pulsar.Client]:
    made = client_of(world.service_url)
    yield made
    made.close()


def make_cold(world: PluginWorld, topic: str) -> int:
    """Bytes that the plugin had read, once the bookie has none of the topic's messages."""
    world.await_committed(topic)
    ledgers = world.offload(topic)
    assert ledgers
    world.forget(topic, ledgers)
    return world.bytes_read()


def subscription(world: PluginWorld, topic: str) -> Mapping[str, Any]:
    """What the broker says of the sidecar's subscription; nothing of a topic that is being loaded."""
    try:
        found = world.admin("GET", f"{path_of(topic)}/stats")["subscriptions"]
    except urllib.error.HTTPError:
        return {}
    return dict(found.get("offloader", {}))


def is_subscribed(world: PluginWorld, topic: str) -> bool:
    """Whether the sidecar's subscription is connected, so that the topic is loaded."""
    return bool(subscription(world, topic).get("consumers"))


def is_followed(world: PluginWorld, topic: str) -> bool:
    """Whether the subscription says since when the broker's list is followed: what was trimmed before is kept."""
    return SINCE_PROPERTY in (subscription(world, topic).get("subscriptionProperties") or {})


def test_partitioned_topic_is_read_whole(world: PluginWorld, client: pulsar.Client) -> None:
    topic, partitions = topic_of("parts"), 3
    world.admin("PUT", f"{path_of(topic)}/partitions", partitions)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000
    )
    sent = [b"%d" % number for number in range(600)]
    for value in sent:
        producer.send_async(value, lambda *_: None, partition_key=f"key {int(value) % 11}")
    producer.flush()
    before = 0
    for number in range(partitions):
        before = make_cold(world, f"{topic}-partition-{number}")
    consumer = client.subscribe(topic, "all", initial_position=EARLIEST)
    found = receive(consumer, len(sent))
    assert sorted(message.data() for message in found) == sorted(sent)
    for key in {message.partition_key() for message in found}:
        numbers = [int(message.data()) for message in found if message.partition_key() == key]
        assert numbers == sorted(numbers)
    assert world.bytes_read() > before


#: Topics whose managed ledgers have other names.
ENCODED = (
    "with:colon",
    "with%2Fslash",
    "with#hash",
    "with?mark",
    "with=sign",
    "with blank",
    "with+plus",
    "with-\u00e4\u00f6\u00fc",
)


@pytest.mark.parametrize("name", ENCODED)
def test_topic_with_an_encoded_name_is_read_whole(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path, name: str
) -> None:
    topic = topic_of(name)
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("plain", 250)
    before = make_cold(world, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert plain(receive(reader, 250)) == history.sent
    assert world.bytes_read() > before


def test_encrypted_messages_are_read_by_who_has_the_key(
    world: PluginWorld, client: pulsar.Client, count: int, tmp_path: Path
) -> None:
    topic = topic_of("encrypted")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("encrypted", max(120, count // 20))
    before = make_cold(world, topic)
    consumer = client.subscribe(topic, "all", initial_position=EARLIEST, crypto_key_reader=keys_in(tmp_path))
    assert plain(receive(consumer, len(history.sent))) == history.sent
    assert world.bytes_read() > before


def test_compaction_reads_the_cold_tier(world: PluginWorld, client: pulsar.Client, tmp_path: Path) -> None:
    topic = topic_of("compacted")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("keyed", 300)
        before = make_cold(world, topic)
        # Without an entry of its own, a broker of 5.0.0-M1 may skip the compaction of a topic that it has just loaded:
        # it takes the topic for empty, and reads nothing.
        history.send("keyed", 10)
    world.admin("PUT", f"{path_of(topic)}/compaction")
    eventually(lambda: world.admin("GET", f"{path_of(topic)}/compaction")["status"] == "SUCCESS")
    # The broker serves the compacted ledger when it has processed the compactor's acknowledgement, a little later.
    eventually(lambda: world.admin("GET", f"{path_of(topic)}/internalStats")["compactedLedger"]["ledgerId"] >= 0)
    assert world.bytes_read() > before
    newest: dict[str, Message] = {message.key: message for message in history.sent}
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = plain(receive(reader, len(newest)))
    assert found == [message for message in history.sent if newest[message.key] == message]


def test_consumers_read_a_stream_whose_segments_are_merged_meanwhile(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("merged")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        for _ in range(4):  # a segment each: it is closed by its age
            history.send("plain", 150)
            world.await_committed(topic)
    make_cold(world, topic)
    stream = Stream(world.store, unquote(stream_of(topic)))
    small = stream.segments()
    assert len(small) >= 4
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = plain(receive(reader, 200, and_no_more=False))
    assert stream.compact() == len(small)
    assert len(stream.segments()) == 1
    at_once = Settings.of({"cleanup": {"grace_period": "0h"}})
    purged = 0

    def are_purged() -> bool:  # the store's clock has whole seconds
        nonlocal purged
        purged += sum(each.swept.purged for each in stream.cleanup(settings=at_once))
        return purged == len(small)

    eventually(are_purged)
    assert found + plain(receive(reader, 400)) == history.sent
    world.restart_broker()  # without all that it has read
    eventually_some(lambda: world.ledgers(topic))
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), 600)) == history.sent
    assert world.bytes_fetched() > 0


def test_topic_that_is_deleted_begins_anew(world: PluginWorld, client: pulsar.Client, tmp_path: Path) -> None:
    topic = topic_of("again")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("plain", 250)
    make_cold(world, topic)
    # The broker doesn't lock a topic that isn't loaded: a consumer that comes back during the deletion opens what goes,
    # and messages sent to that are lost with it.
    eventually(lambda: is_subscribed(world, topic))
    hints = world.counters()["DeleteHints"]
    world.admin("DELETE", f"{path_of(topic)}?force=true")
    eventually(lambda: world.counters()["DeleteHints"] > hints)
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("rich", 250)
    before = make_cold(world, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert plain(receive(reader, 250)) == history.sent
    assert world.bytes_read() > before


def test_broker_lists_the_ledgers_as_offloaded(world: PluginWorld, tmp_path: Path) -> None:
    topic = topic_of("listed")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("plain", 450)
    make_cold(world, topic)
    *closed, last = world.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"]
    assert [each["offloaded"] for each in closed] == [True] * len(closed)
    assert not last["offloaded"]
    assert sum(each["entries"] for each in closed) == 450
    assert f"persistent://{NAMESPACE}/listed" in world.admin("GET", f"persistent/{NAMESPACE}")


def test_ledgers_that_the_broker_trimmed_are_gone_on_purpose(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = f"persistent://{TRIMMED}/expired"
    # It keeps the ledgers. One that is connected would have messages in its memory, and get them again after an unload.
    client.subscribe(topic, "billing", initial_position=EARLIEST).close()
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("rich", 450)
    before = make_cold(world, topic)
    *closed, last = world.ledgers(topic)
    assert [world.ask("GET", plan_of(topic, each))[0] for each in closed] == [200] * len(closed)
    eventually(lambda: is_followed(world, topic))
    consumer = client.subscribe(topic, "billing")
    assert plain(receive(consumer, 450)) == history.sent
    assert world.bytes_read() > before

    def is_trimmed() -> bool:
        world.admin("POST", f"{path_of(topic)}/trim")
        return not set(closed) & set(world.ledgers(topic))

    eventually(is_trimmed)
    eventually(lambda: all(world.ask("GET", plan_of(topic, each))[0] == 410 for each in closed))
    # A ledger that nobody trimmed isn't: it doesn't exist, or not yet.
    assert world.ask("GET", plan_of(topic, last + 1_000))[0] == 404
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("plain", 30)
    assert plain(receive(consumer, 30)) == history.sent


def plan_of(topic: str, ledger_id: int) -> str:
    return f"/v1/streams/{stream_of(topic)}/ledgers/{ledger_id}"
