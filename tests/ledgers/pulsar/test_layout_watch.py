"""Watches of scalable topics tell when a survey would see something new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from formats.pulsar.commands import Command, CommandType
from offloader.ledgers.pulsar import layout_watch
from offloader.ledgers.pulsar.layout_watch import LayoutWatch, Seen
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from offloader.runtime.clock import SystemClock
from offloader.testing.manual_clock import ManualClock
from tests.support.pulsar_broker import BrokerClient, FakeBroker
from tests.support.pulsar_topics import Switchboard
from tests.support.waiting import eventually

TOPIC, NAMESPACE = "topic://t/n/orders", "t/n"
SEEN: Seen = {NAMESPACE: frozenset({TOPIC}), TOPIC: 3}


class Bench:
    """A broker with one scalable topic, and what a watch tells; ``told`` counts."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.layouts = Switchboard.of(self.broker)
        self.layouts.change_layout(TOPIC, 3)
        self.told = 0
        self.clock = ManualClock()
        self.client = PulsarClient(self.broker.url, limits=ClientLimits(retry_s=0.0), clock=SystemClock())
        self.watch = LayoutWatch(self.client, self.clock, self._changed)

    def _changed(self) -> None:
        self.told += 1

    def sync(self) -> None:
        """Everything that the broker sent before was received."""
        self.client.ping()

    def count(self, kind: CommandType) -> int:
        return len(self.broker.of(kind))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.client.close()
    made.broker.stop()


def test_later_epochs_and_new_topics_are_told(bench: Bench) -> None:
    bench.watch.follow(SEEN)
    bench.sync()
    assert bench.told == 0
    bench.layouts.change_layout(TOPIC, 3)
    bench.layouts.change_layout(TOPIC, 2)
    bench.sync()
    assert bench.told == 0
    bench.layouts.change_layout(TOPIC, 4)
    bench.sync()
    assert bench.told == 1
    bench.layouts.change_layout("topic://t/n/other", 0)
    bench.layouts.change_layout("topic://t/elsewhere/other", 0)
    bench.sync()
    assert bench.told == 2
    bench.watch.follow({NAMESPACE: frozenset({TOPIC, "topic://t/n/other"}), TOPIC: 4})
    bench.layouts.change_layout(TOPIC, 4)
    bench.sync()
    assert bench.told == 2


def test_first_update_is_told_if_the_survey_saw_less(bench: Bench) -> None:
    bench.watch.follow({NAMESPACE: frozenset(), TOPIC: 2})
    bench.sync()
    assert bench.told == 2


def test_removed_topic_is_told(bench: Bench) -> None:
    bench.watch.follow(SEEN)
    bench.sync()
    [(client, _, number)] = [each for each in bench.layouts.watches if each[1] == NAMESPACE]
    client.send(CommandType.SCALABLE_TOPICS_UPDATE, watch_id=number, diff={"removed": [TOPIC]})
    bench.sync()
    assert bench.told == 1


def test_watches_that_nobody_needs_are_ended(bench: Bench) -> None:
    bench.watch.follow(SEEN)
    bench.watch.follow({})
    bench.sync()
    numbers = {watched: number for _, watched, number in bench.layouts.watches}
    assert [body.session_id for body in bench.broker.of(CommandType.SCALABLE_TOPIC_CLOSE)] == [numbers[TOPIC]]
    assert [body.watch_id for body in bench.broker.of(CommandType.SCALABLE_TOPICS_CLOSE)] == [numbers[NAMESPACE]]
    bench.layouts.change_layout(TOPIC, 9)
    bench.sync()
    assert bench.told == 0


def test_lost_watch_is_opened_again_by_the_next_survey(bench: Bench) -> None:
    bench.watch.follow(SEEN)
    bench.sync()
    bench.broker.cut()
    bench.layouts.change_layout(TOPIC, 4)

    def is_told() -> bool:
        bench.watch.follow(SEEN)
        return bench.told > 0

    eventually(is_told)


def test_refused_watch_is_tried_again_by_the_next_survey(bench: Bench) -> None:
    seen: Seen = {"topic://t/n/unknown": 1}
    bench.watch.follow(seen)
    bench.sync()
    bench.watch.follow(seen)
    bench.sync()
    assert (bench.told, bench.count(CommandType.SCALABLE_TOPIC_LOOKUP)) == (0, 2)


def test_proxy_that_closes_the_connection_is_left_alone_for_a_while(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    known = bench.broker.answer

    def refuse(client: BrokerClient, command: Command) -> bool:
        if command.type is CommandType.SCALABLE_TOPIC_LOOKUP:
            bench.broker.cut()
            return True
        return known(client, command)

    bench.broker.answer = refuse

    def is_noticed() -> bool:
        bench.watch.follow({TOPIC: 3})
        return "close connections that watch scalable topics" in caplog.text

    eventually(is_noticed)
    asked = bench.count(CommandType.SCALABLE_TOPIC_LOOKUP)
    bench.broker.answer = known
    bench.watch.follow({TOPIC: 3})
    bench.sync()
    assert bench.count(CommandType.SCALABLE_TOPIC_LOOKUP) == asked
    bench.clock.advance(layout_watch.REFUSED_S)
    bench.watch.follow({TOPIC: 3})
    bench.sync()
    assert bench.count(CommandType.SCALABLE_TOPIC_LOOKUP) == asked + 1


def test_watches_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_watch, "WATCHES_MAX", 1)
    bench.watch.follow(SEEN)
    bench.sync()
    assert [watched for _, watched, _ in bench.layouts.watches] == [NAMESPACE]


def test_unreachable_brokers_are_no_error(bench: Bench) -> None:
    bench.broker.stop()
    bench.watch.follow(SEEN)
    assert bench.told == 0
