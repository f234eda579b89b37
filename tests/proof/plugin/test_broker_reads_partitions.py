"""Pulsar's own consumers read messages whose ledgers only the cold tier has: every message, once, in order."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from tests.plugin.plugin_world import PluginWorld, path_of, topic_of
from tests.plugin.test_broker_reads_cold import LEDGERS_MIN_LONG, LONG
from tests.plugin.test_broker_reads_cold import client as client
from tests.plugin.topic_history import TopicHistory, plain, receive

pytestmark = pytest.mark.java


def test_partitioned_topic_of_every_kind_is_received_once_and_in_the_order_of_each_partition(
    world: PluginWorld, client: pulsar.Client, count: int, tmp_path: Path
) -> None:
    topic, partitions = topic_of("partitioned"), 3
    before = world.bytes_read()  # a broker 5.0 may read the ledgers as soon as it loads the topics again
    world.admin("PUT", f"{path_of(topic)}/partitions", partitions)
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send_all(count if count >= LONG else 600)
    for number in range(partitions):
        each = f"{topic}-partition-{number}"
        world.await_committed(each)
        ledgers = world.offload(each)
        world.forget(each, ledgers)
        assert ledgers
        assert len(ledgers) * partitions >= LEDGERS_MIN_LONG or count < LONG
        assert [ledger for ledger in ledgers if world.bookie_has(ledger)] == []
    consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    found = receive(consumer, len(history.sent))
    assert sorted(plain(found)) == sorted(history.sent)
    numbered = [(each.message_id().partition(), *each.data().split(b" ", 2)[:2]) for each in found]
    for number in range(partitions):
        own = [int(place) for partition, kind, place in numbered if partition == number and kind != b"commit"]
        assert own == sorted(own)
    assert world.bytes_read() > before + sum(len(message.value) for message in history.sent) // 4
