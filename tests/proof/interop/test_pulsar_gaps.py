"""What a real broker doesn't deliver: markers, aborted transactions, ledgers that its bookies lost or that it deleted.

Each becomes a gap of its kind, or none; the other entries are in the cold tier, equal to the bookie's bytes.
"""

from __future__ import annotations

import logging
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pulsar
import pytest

from formats.entries import Position
from offloader.coverage import GapReason
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.pulsar.broker import Broker
from tests.proof.interop.broker_topics import command, topic_of
from tests.proof.interop.pulsar_offloading import OffloadingProcess
from tests.support.readback import stored_entries
from tests.support.refusing_admin import RefusingAdmin
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

#: Its ledgers are deleted as soon as nobody needs them.
TRIMMED = "public/trimmed"


class Topic:
    """One topic, and its stream in a store of its own."""

    def __init__(self, broker: Broker, name: str, folder: Path) -> None:
        self.name, self.broker = name, broker
        self.stream = stream_of_topic(name)
        self.store: ObjectStore = open_store(f"file://{folder}/store")
        self._client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
        )
        self._producer = self._client.create_producer(name, batching_enabled=False, block_if_queue_full=True)
        self._sent = 0

    def send(self, count: int) -> None:
        for number in range(self._sent, self._sent + count):
            self._producer.send_async(b"plain %d" % number, None)
        self._producer.flush()
        self._sent += count

    def command(self, method: str, verb: str) -> None:
        command(self.broker, method, f"persistent/{self.name.removeprefix('persistent://')}/{verb}")

    def ledgers(self) -> list[int]:
        with AdminClient(self.broker.admin_url) as admin:
            return [each.ledger_id for each in admin.ledgers(self.name).ledgers]

    def hot(self, ledger_id: int, *entries: int) -> list[tuple[Position, bytes]]:
        """Entries as the bookie has them."""
        found = self.broker.hot(ledger_id, 0, max(entries))
        return [(Position(ledger_id, each), found[each]) for each in entries]

    def stored(self) -> list[tuple[Position, bytes]]:
        return stored_entries(self.store, self.stream)

    def gaps(self) -> list[tuple[Position, Position, str]]:
        return [(gap.first, gap.last, gap.reason) for gap in load_manifest(self.store, self.stream).gaps]

    def mark_delete(self) -> Position:
        """Up to where our subscription is acknowledged."""
        with AdminClient(self.broker.admin_url) as admin:
            return admin.internals(self.name).cursors["offloader"]

    def close(self) -> None:
        self._client.close()


@contextmanager
def offloading(topic: Topic, admin_url: str = "") -> Iterator[OffloadingProcess]:
    """A process that works on the topic; it has brought up what there is when the block begins."""
    admin_url = admin_url or topic.broker.admin_url
    process = OffloadingProcess(topic.broker.service_url, admin_url, topic.store, [topic.name])
    try:
        eventually(lambda: process.offload(topic.name))
        yield process
    finally:
        process.close()


@pytest.fixture
def new_topic(plain_broker: Broker, tmp_path: Path) -> Iterator[Callable[[str], Topic]]:
    made: list[Topic] = []

    def make(name: str) -> Topic:
        made.append(Topic(plain_broker, name, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def trimmed(plain_broker: Broker, new_topic: Callable[[str], Topic]) -> Callable[[str], Topic]:
    """Topics of which a broker keeps nothing that nobody needs."""
    with AdminClient(plain_broker.admin_url) as admin:
        if TRIMMED not in admin.namespaces_of("public"):
            command(plain_broker, "PUT", f"namespaces/{TRIMMED}")
    keep_nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    command(plain_broker, "POST", f"namespaces/{TRIMMED}/retention", keep_nothing)
    return lambda name: new_topic(f"persistent://{TRIMMED}/{name}")


def test_transactions_leave_gaps_for_markers_and_aborted_messages(new_topic: Callable[[str], Topic]) -> None:
    topic = new_topic(topic_of("transactions"))
    topic.send(2)
    topic.broker.transaction(topic.name, 3, "commit")
    topic.send(1)
    topic.broker.transaction(topic.name, 2, "abort")
    topic.send(1)
    # Nobody may read further than the first transaction that isn't decided.
    topic.broker.transaction(topic.name, 2, "leave")
    topic.send(1)
    [ledger_id] = topic.ledgers()
    with offloading(topic) as process:
        assert topic.stored() == topic.hot(ledger_id, 0, 1, 2, 3, 4, 6, 10)
        marker, aborted = Position(ledger_id, 5), (Position(ledger_id, 7), Position(ledger_id, 9))
        assert topic.gaps() == [(marker, marker, GapReason.UNDELIVERED), (*aborted, GapReason.UNDELIVERED)]
        assert [info.entries for info in process.sources[topic.name].ledgers()] == [11]
        assert process.sources[topic.name].problem is None


def test_a_ledger_that_the_bookies_lost_is_no_marker(new_topic: Callable[[str], Topic]) -> None:
    topic = new_topic(topic_of("forgotten"))
    topic.send(700)
    first, lost, last = topic.ledgers()
    topic.broker.forget(lost)
    # Moved, the broker has nothing in its memory; it goes on behind what it can't recover, as it is told to.
    topic.command("PUT", "unload")
    left = topic.hot(first, *range(300)) + topic.hot(last, *range(100))
    with offloading(topic):
        assert topic.stored() == left
        assert topic.gaps() == [(Position(lost, 0), Position(lost, 299), GapReason.LOST)]


@pytest.mark.parametrize("status", [403, 405])
def test_lost_ledger_without_permission_to_confirm_is_unconfirmed(
    new_topic: Callable[[str], Topic],
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    topic = new_topic(topic_of(f"unexplained-{status}"))
    topic.send(700)
    first, lost, last = topic.ledgers()
    topic.broker.forget(lost)
    topic.command("PUT", "unload")
    left = topic.hot(first, *range(300)) + topic.hot(last, *range(100))
    with RefusingAdmin(topic.broker.admin_url, "/entry/", status) as admin, offloading(topic, admin.url) as process:
        assert topic.stored() == left
        [(begin, end, reason)] = topic.gaps()
        assert (begin, end) == (Position(lost, 0), Position(lost, 299))
        assert reason.startswith("unconfirmed: ")
        assert admin.refused > 0
        [said] = [each for each in caplog.records if "recording a gap" in each.getMessage()]
        assert said.levelno == logging.WARNING
        # The ledgers behind it wait, too: an acknowledgement counts for everything before it.
        source = process.sources[topic.name]
        released = process.offloader.history.hot_release(source, topic.stream).look()
        assert released.deleted == [first, last]
        assert [f"ledger {lost} has a gap" in str(error) for error in released.errors] == [True]
        # The broker itself moves subscriptions over a ledger that it has lost as a whole.
        assert Position(first, 299) <= topic.mark_delete() < Position(last, 0)


def test_the_hot_copy_of_a_ledger_that_the_bookies_lost_stays(new_topic: Callable[[str], Topic]) -> None:
    topic = new_topic(topic_of("kept"))
    topic.send(700)
    first, lost, last = topic.ledgers()
    topic.broker.forget(lost)
    topic.command("PUT", "unload")
    with offloading(topic) as process:
        source = process.sources[topic.name]
        released = process.offloader.history.hot_release(source, topic.stream).look()
        assert released.deleted == [first, last]
        assert [f"ledger {lost} has a gap" in str(error) for error in released.errors] == [True]
        # The broker itself moves subscriptions over a ledger that it has lost as a whole.
        assert Position(first, 299) <= topic.mark_delete() < Position(last, 0)


def test_entries_acknowledged_by_another_client_are_offloaded_while_stored(
    new_topic: Callable[[str], Topic], caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(topic_of("skipped"))
    topic.send(10)
    with offloading(topic) as process:
        topic.send(390)
        topic.command("POST", "subscription/offloader/skip_all")
        eventually(lambda: process.offload(topic.name))
        assert len(topic.stored()) == 400
        assert topic.gaps() == []
    topic.send(100)
    topic.command("POST", "subscription/offloader/skip_all")
    with offloading(topic):
        assert len(topic.stored()) == 500
    assert "acknowledged for it; the broker may delete entries that aren't offloaded yet" in caplog.text


def test_entries_deleted_before_offloading_are_a_recorded_gap_with_an_error(
    trimmed: Callable[[str], Topic], caplog: pytest.LogCaptureFixture
) -> None:
    topic = trimmed("expired")
    topic.send(310)
    with offloading(topic):
        first, second = topic.ledgers()
        assert len(topic.stored()) == 310
    topic.send(700)
    # As by message TTL: our subscription is moved to the end, and nobody else needs anything.
    end = Position(topic.ledgers()[-1], 109)
    eventually(lambda: is_expired(topic, end))
    topic.command("PUT", "unload")
    eventually(lambda: is_trimmed(topic))
    topic.send(5)
    *_, newest = topic.ledgers()
    with offloading(topic):
        stored = topic.stored()
        [(begin, last, reason)] = topic.gaps()
    assert stored[:310] == [(Position(first, each), stored[each][1]) for each in range(300)] + stored[300:310]
    assert stored[310][0] == last.next()
    assert (begin, stored[-1][0].ledger_id) == (Position(second, 10), newest)
    assert "deleted before they were offloaded" in reason
    assert f"recording a gap from {begin} up to" in caplog.text
    assert len(stored) == 310 + 5


def is_expired(topic: Topic, end: Position) -> bool:
    with suppress(urllib.error.HTTPError):  # nothing is old enough yet
        topic.command("POST", "subscription/offloader/expireMessages/1")
    with AdminClient(topic.broker.admin_url) as admin:
        return admin.internals(topic.name).cursors["offloader"] >= end


def is_trimmed(topic: Topic) -> bool:
    topic.command("POST", "trim")
    return len(topic.ledgers()) == 1
