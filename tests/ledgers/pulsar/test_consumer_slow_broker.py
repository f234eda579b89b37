"""A broker that answers late after an unload: one wait doesn't add up to several, nor hold up other topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formats.pulsar.commands import Command, CommandType
from offloader.errors import StoreUnavailableError
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench
from tests.support.pulsar_broker import BrokerClient
from tests.support.waiting import eventually

OTHER = "persistent://public/default/others"


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench(TOPIC, OTHER, workers_max=1, request_timeout=600.0)
    yield bench
    bench.close()


def swallow(bench: PulsarBench, wanted: Any) -> list[Command]:
    """The broker doesn't answer what is ``wanted``; those commands."""
    swallowed: list[Command] = []
    known = bench.broker.answer

    def answer(client: BrokerClient, command: Command) -> bool:
        if wanted(command):
            swallowed.append(command)
            return True
        return known(client, command)

    bench.broker.answer = answer
    return swallowed


@pytest.mark.slow
def test_subscription_that_is_not_answered_is_closed_without_a_second_wait(bench: PulsarBench) -> None:
    unanswered = (CommandType.SUBSCRIBE, CommandType.CLOSE_CONSUMER)
    swallowed = swallow(bench, lambda command: command.type in unanswered)
    limits = ClientLimits(request_s=0.2, keep_alive_s=600.0, retry_s=0.0)
    with PulsarClient(bench.broker.url, limits=limits) as client:
        consumer = Consumer(client, TOPIC, NAME)
        with pytest.raises(StoreUnavailableError, match="didn't answer SUBSCRIBE within"):
            consumer.attend()
        eventually(lambda: [command.type for command in swallowed] == list(unanswered))
        # What it closes is what it tried to open, so that the next attempt doesn't stand by behind it.
        subscribe, close = (command.body for command in swallowed)
        assert close.consumer_id == subscribe.consumer_id
        consumer.close()


def test_topic_is_subscribed_while_readers_of_others_wait_for_the_broker(bench: PulsarBench) -> None:
    bench.fill(3)
    cluster = bench.cluster()
    first = bench.open(cluster=cluster)
    swallowed = swallow(bench, lambda command: command.type is CommandType.SUBSCRIBE and not command.body.durable)
    subscription = first.subscribe(lambda _: True)
    eventually(lambda: len(swallowed) == 1)
    second = bench.open(OTHER, cluster=cluster)
    assert second.active
    bench.topic.unload()
    eventually(lambda: bench.topic.active(NAME) is not None)
    bench.broker.stop()
    subscription.cancel()
