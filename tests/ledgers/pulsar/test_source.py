"""A Pulsar topic as a hot tier: its ledgers, new and older entries, and what the broker may delete."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.commands import Command, CommandType, position_of
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.ledgers.pulsar.tail_reader import READERS_MAX, ReaderPool
from offloader.runtime.clock import SystemClock
from offloader.runtime.workers import Workers
from tests.formats.pulsar_entries import Sent, single_entry
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench, entries_of, message
from tests.support.pulsar_broker import BrokerClient
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

OTHER = "persistent://public/default/others"
ENTRY_BYTES = len(message(0))


@pytest.fixture
def new_bench() -> Iterator[Callable[..., PulsarBench]]:
    made: list[PulsarBench] = []

    def make(*topics: str, **changes: Any) -> PulsarBench:
        made.append(PulsarBench(*topics, **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(new_bench: Callable[..., PulsarBench]) -> PulsarBench:
    return new_bench()


class Listening:
    """Hears of entries and ends of ledgers; takes them unless told not to."""

    def __init__(self, source: PulsarSource) -> None:
        self.heard: list[tuple[Position, bytes]] = []
        self.order: list[object] = []
        self.takes = True
        self.subscription = source.subscribe(self._hear, self._hear_end)

    def _hear(self, batch: EntryBatch) -> bool:
        self.order.append(batch.ledger_id)
        self.heard += entries_of(batch)  # last: this is what the tests wait for
        return self.takes

    def _hear_end(self, info: LedgerInfo) -> None:
        assert info.closed
        self.order.append((info.ledger_id, info.last_entry_id))


def shape(source: PulsarSource) -> list[tuple[int, bool, int]]:
    return [(info.ledger_id, info.closed, info.entries) for info in source.ledgers()]


def read_all(source: PulsarSource, start: Position, max_bytes: int = 10**6) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    while (batch := source.read(start, max_bytes)) is not None:
        found += entries_of(batch)
        assert len(batch) == 1 or batch.payload_bytes <= max_bytes
        start = Position(batch.ledger_id, batch.last.entry_id + 1)
    return found


def test_subscription_is_created_first_and_requests_no_entries(bench: PulsarBench) -> None:
    bench.fill(3)
    source = bench.open()
    assert source.active
    assert source.problem is None
    assert source.stream == "public/default/persistent/orders"
    [asked] = bench.broker.of(CommandType.SUBSCRIBE)
    assert (asked.subscription, asked.type, asked.durable, asked.initial_position) == (NAME, 2, True, 1)
    assert bench.broker.of(CommandType.FLOW) == []
    assert bench.topic.mark_delete(NAME) is None


@pytest.mark.slow
def test_ledgers_are_what_the_broker_lists(bench: PulsarBench) -> None:
    source = bench.open()
    assert shape(source) == [(1, False, 0)]
    bench.fill(3)
    bench.topic.roll()
    bench.fill(2)
    other = bench.open()
    assert shape(other) == [(1, True, 3), (2, False, 2)]
    first, second = other.ledgers()
    assert first.size_bytes == sum(len(entry) for position, entry in bench.stored() if position.ledger_id == 1)
    assert first.closed_ms is not None
    assert second.closed_ms is None


def test_ledgers_that_begin_while_the_broker_is_asked_are_listed_at_the_next_look(
    bench: PulsarBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two answers that make a list the second may know newer ledgers than the first."""
    source, answer = bench.open(), bench.topic.internals

    def answer_late() -> Mapping[str, Any]:
        monkeypatch.setattr(bench.topic, "internals", answer)
        before = answer()
        bench.fill(3)
        bench.topic.roll()
        bench.fill(2)
        return before

    monkeypatch.setattr(bench.topic, "internals", answer_late)
    source.ledgers()
    assert [(info.ledger_id, info.entries) for info in source.ledgers()] == [(1, 3), (2, 2)]


@pytest.mark.slow
def test_new_entries_are_delivered_and_ledger_ends_precede_the_next_ledger(bench: PulsarBench) -> None:
    bench.fill(2)
    source = bench.open()
    listening = Listening(source)
    bench.fill(3)
    bench.topic.roll()
    bench.fill(2)
    eventually(lambda: len(listening.heard) == 5)
    assert listening.heard == bench.stored()[2:]
    at = listening.order.index((1, 4))
    assert set(listening.order[:at]) == {1}
    assert set(listening.order[at + 1 :]) == {2}
    assert shape(source) == [(1, True, 5), (2, False, 2)]
    listening.subscription.cancel()
    bench.fill(1)
    eventually(lambda: len(bench.topic._subscriptions) == 1)
    assert len(listening.heard) == 5


def test_entries_of_an_empty_topic_are_delivered_from_the_first(bench: PulsarBench) -> None:
    source = bench.open()
    listening = Listening(source)
    bench.fill(3)
    eventually(lambda: listening.heard == bench.stored())


def test_subscription_without_entries_requests_none(bench: PulsarBench) -> None:
    source = bench.open()
    subscription = source.subscribe(None, lambda _: None)
    bench.fill(3)
    bench.topic.roll()
    bench.fill(1)
    assert shape(source) == [(1, True, 3), (2, False, 1)]
    subscription.cancel()
    assert bench.broker.of(CommandType.FLOW) == []


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1, 3 * ENTRY_BYTES, 10**6])
def test_every_entry_can_be_read_from_anywhere(bench: PulsarBench, max_bytes: int) -> None:
    for _ in range(3):
        bench.fill(5)
        bench.topic.roll()
    source = bench.open()
    stored = bench.stored()
    assert read_all(source, Position(0, 0), max_bytes) == stored
    for number, (position, _) in enumerate(stored):
        assert read_all(source, position, max_bytes) == stored[number:]
    # One reader went on from ledger to ledger; and readers leave no trace.
    assert source.read(Position(3, 5), 1) is None
    assert [asked.durable for asked in bench.broker.of(CommandType.SUBSCRIBE)].count(True) == 1
    assert bench.topic.mark_delete(NAME) is None


@pytest.mark.slow
def test_refused_entries_hold_back_the_broker_and_are_read_later(new_bench: Callable[..., PulsarBench]) -> None:
    bench = new_bench(receive_buffer_size_max=2**20)
    large = single_entry(Sent(value=bytes(50_000)))
    source = bench.open()
    listening = Listening(source)
    listening.takes = False
    for number in range(400):
        bench.topic.append(message(number) if number % 2 else large)
    eventually(lambda: listening.heard)
    seen = 0

    def settled() -> bool:
        nonlocal seen
        before, seen = seen, len(listening.heard)
        return before == seen

    eventually(settled)
    assert len(listening.heard) < 400
    assert source._live._window.held_bytes < 2 * 2**20
    assert read_all(source, Position(1, 0), 10**5) == bench.stored()
    eventually(lambda: listening.heard == bench.stored())
    listening.takes = True
    bench.fill(3)
    eventually(lambda: listening.heard == bench.stored())


@pytest.mark.slow
def test_undelivered_entries_are_a_gap_and_delay_nothing(bench: PulsarBench) -> None:
    topic = bench.topic
    topic.append_marker()
    bench.fill(2)
    topic.append_marker()
    topic.append_marker()
    bench.fill(1)
    topic.append_marker()
    source = bench.open()
    # The last one may be given yet, as far as anybody knows.
    assert [(info.closed, info.entries) for info in source.ledgers()] == [(False, 6)]
    topic.roll()
    assert source.read(Position(1, 6), 1) is None
    bench.fill(1)
    assert read_all(source, Position(0, 0)) == bench.stored()
    [first, second] = source.ledgers()
    assert first.undelivered == ((0, 0), (3, 4), (6, 6))
    assert (first.closed, first.entries, second.entries) == (True, 7, 1)


@pytest.mark.slow
def test_the_live_end_knows_of_gaps_too(bench: PulsarBench) -> None:
    source = bench.open()
    listening = Listening(source)
    bench.fill(2)
    bench.topic.append_marker()
    bench.fill(1)
    bench.topic.roll()
    bench.topic.append_marker()
    bench.fill(1)
    eventually(lambda: listening.heard == bench.stored())
    assert [info.undelivered for info in source.ledgers()] == [((2, 2),), ((0, 0),)]
    assert listening.order.count((1, 3)) == 1


@pytest.mark.slow
def test_only_leading_ledgers_that_were_given_up_are_acknowledged(bench: PulsarBench) -> None:
    for _ in range(3):
        bench.fill(2)
        bench.topic.roll()
    bench.fill(1)
    source = bench.open()
    source.release(Position(4, 0))
    assert bench.topic.mark_delete(NAME) is None
    source.delete(2)
    assert bench.broker.of(CommandType.ACK) == []
    assert [info.ledger_id for info in source.ledgers()] == [1, 2, 3, 4]
    source.delete(1)
    [ack] = bench.broker.of(CommandType.ACK)
    assert (ack.type, [position_of(each) for each in ack.message_id]) == (1, [Position(2, 1)])
    assert [info.ledger_id for info in source.ledgers()] == [3, 4]
    assert bench.admin.of("POST", "/trim")
    assert bench.stored()[0][0] == Position(3, 0)
    source.delete(17)
    source.delete(4)  # open: never
    assert len(bench.broker.of(CommandType.ACK)) == 1
    # Another process lists what the broker has, and may say it again.
    again = bench.open()
    assert [info.ledger_id for info in again.ledgers()] == [3, 4]


@pytest.mark.slow
def test_subscription_moved_by_another_client_is_logged(bench: PulsarBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fill(4)
    source = bench.open()
    source.release(Position(1, 1))
    source.ledgers()
    assert "acknowledged for it" not in caplog.text
    bench.topic.acknowledge(NAME, Position(1, 3))
    source.read(Position(1, 9), 1)
    source._ledgers.doubt()
    source.ledgers()
    assert "is at 1:3, but only entries before 1:1 are committed" in caplog.text
    # It is lost to the subscription, and not to us while it is there.
    assert read_all(source, Position(1, 0)) == bench.stored()


def test_moved_subscription_is_logged_once_committed_end_is_known(
    bench: PulsarBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(4)
    bench.topic.subscribe(NAME)
    bench.topic.acknowledge(NAME, Position(1, 3))
    source = bench.open()
    source.ledgers()
    assert "acknowledged for it" not in caplog.text
    source.release(Position(1, 1))
    assert "is at 1:3, but only entries before 1:1 are committed" in caplog.text
    source.release(Position(1, 3))
    assert caplog.text.count("acknowledged for it") == 1


def answers(source: PulsarSource) -> bool:
    """Whether it is subscribed again."""
    with suppress(StoreUnavailableError):
        source.ledgers()
        return True
    return False


@pytest.mark.slow
def test_takeovers_log_no_moved_subscription(bench: PulsarBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fill(9)
    first, second = bench.open(), bench.open()
    first.release(Position(1, 1))
    first.subscription.step_aside()
    eventually(lambda: second.active)
    second.release(Position(1, 1))
    second.acknowledge(Position(1, 5))
    first.subscription.step_back()
    first._ledgers.doubt()
    eventually(lambda: answers(first))  # it stands by, and the owner acknowledged more than it knows of
    second.close()
    eventually(lambda: first.active)
    first._ledgers.doubt()
    first.ledgers()
    first.release(Position(1, 5))  # from the manifest that it has loaded now
    first._ledgers.doubt()
    first.ledgers()
    assert "acknowledged for it" not in caplog.text
    bench.topic.acknowledge(NAME, Position(1, 7))
    first._ledgers.doubt()
    first.ledgers()
    assert "is at 1:7, but only entries before 1:5 are committed" in caplog.text


def test_subscription_that_was_moved_before_a_takeover_is_logged_after_it(
    bench: PulsarBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(9)
    first, second = bench.open(), bench.open()
    first.release(Position(1, 1))
    first.close()
    eventually(lambda: second.active)
    bench.topic.acknowledge(NAME, Position(1, 7))
    second.ledgers()
    assert "acknowledged for it" not in caplog.text
    second.release(Position(1, 1))
    assert "is at 1:7, but only entries before 1:1 are committed" in caplog.text


@pytest.mark.slow
def test_broker_decides_which_source_is_active(bench: PulsarBench) -> None:
    bench.fill(1)
    first, second = bench.open(), bench.open()
    assert (first.active, second.active) == (True, False)
    with pytest.raises(FencedError, match="another consumer"):
        second.release(Position(1, 0))
    first.release(Position(1, 0))
    first.close()
    eventually(lambda: second.active)
    second.release(Position(1, 0))
    bench.topic.unload()
    eventually(lambda: second.active)
    assert bench.topic.mark_delete(NAME) is None


@pytest.mark.slow
def test_a_lost_broker_is_no_end_of_anything(bench: PulsarBench) -> None:
    source = bench.open()
    listening = Listening(source)
    bench.fill(3)
    eventually(lambda: len(listening.heard) == 3)
    bench.broker.stop()
    eventually(lambda: source.active is None)
    with pytest.raises(StoreUnavailableError):
        source.read(Position(1, 0), 1)
    eventually(lambda: source.problem is not None and source.problem.retryable)
    bench.broker.start()
    bench.fill(3)
    eventually(lambda: listening.heard == bench.stored())
    eventually(lambda: source.active and source.problem is None)
    bench.admin.is_up = False
    bench.topic.roll()
    bench.fill(2)
    eventually(lambda: source.problem is not None)
    assert len(listening.heard) == 6
    bench.admin.is_up = True
    eventually(lambda: listening.heard == bench.stored())
    assert listening.order.count((1, 5)) == 1


@pytest.mark.slow
def test_a_broker_that_lists_no_ledger_for_a_while_stops_nothing_for_good(bench: PulsarBench) -> None:
    """A topic has a ledger as long as it exists: the answer says nothing about its entries."""
    source = bench.open()
    listening = Listening(source)
    bench.fill(3)
    eventually(lambda: len(listening.heard) == 3)
    bench.admin.answers["/admin/v2/persistent/public/default/orders/internalStats"] = 200, b'{"ledgers": []}'
    bench.topic.roll()
    bench.fill(2)
    eventually(lambda: source.problem is not None)
    assert isinstance(source.problem, StoreUnavailableError)
    with pytest.raises(StoreUnavailableError, match="lists no ledger"):
        source.ledgers()
    bench.admin.answers.clear()
    eventually(lambda: listening.heard == bench.stored())
    eventually(lambda: source.problem is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "lie"),
    [
        pytest.param(Position(1, 3), Position(1, 1), id="descending"),
        pytest.param(Position(1, 3), Position(1, 2), id="twice"),
        pytest.param(Position(1, 3), Position(7, 0), id="a ledger that isn't listed"),
        pytest.param(Position(1, 3), Position(1, 900), id="beyond the last"),
        pytest.param(Position(2, 0), Position(1, 5), id="beyond the end of a closed ledger"),
        pytest.param(Position(2, 0), Position(0, 4), id="an earlier ledger"),
    ],
)
@pytest.mark.parametrize("how", ["live", "read"])
def test_a_broker_that_lies_about_ids_stops_only_that_topic(
    new_bench: Callable[..., PulsarBench], where: Position, lie: Position, how: str
) -> None:
    bench = new_bench(TOPIC, OTHER)
    cluster = bench.cluster()
    lied, other = bench.open(TOPIC, cluster), bench.open(OTHER, cluster)
    bench.topic.lies[where] = lie
    heard = Listening(lied) if how == "live" else None
    bench.fill(5)
    bench.topic.roll()
    bench.fill(3)
    if how == "read":
        with pytest.raises(OffloaderError, match=r"are inconsistent|began at|does not list|ends at"):
            read_all(lied, Position(0, 0))
    eventually(lambda: isinstance(lied.problem, CorruptError))
    with pytest.raises(CorruptError):
        lied.ledgers()
    if heard is not None:
        before = [each for each in bench.stored() if each[0] < where]
        # A lie that is just the next entry of its ledger is seen through when that one's end is known.
        told = heard.heard[:-1] if heard.heard[-1:] and heard.heard[-1][0] == lie == Position(1, 5) else heard.heard
        assert told == before[: len(told)]
    fine = Listening(other)
    bench.fill(3, bench.topics[OTHER])
    eventually(lambda: fine.heard == bench.stored(bench.topics[OTHER]))
    assert other.problem is None


@pytest.mark.slow
def test_temporarily_refused_token_stops_nothing_for_good(
    new_bench: Callable[..., PulsarBench], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("the right one")
    bench = new_bench(token=f"file:{token}")
    bench.broker.token = bench.admin.token = "the right one"
    source = bench.open()
    listening = Listening(source)
    bench.fill(2)
    eventually(lambda: len(listening.heard) == 2)
    bench.broker.token = bench.admin.token = "a new one"
    bench.broker.cut()
    eventually(lambda: isinstance(source.problem, AccessDeniedError))
    assert "the right one" not in str(source.problem)
    with pytest.raises(AccessDeniedError):
        source.read(Position(1, 0), 1)
    token.write_text("a new one")
    bench.fill(2)
    eventually(lambda: listening.heard == bench.stored())
    eventually(lambda: source.active and source.problem is None)


@pytest.mark.slow
def test_attempts_in_an_outage_come_after_waits_that_double_up_to_the_setting(
    new_bench: Callable[..., PulsarBench],
) -> None:
    bench = new_bench(retry_delay_max=0.6)
    bench.open()
    known, attempts_s = bench.broker.answer, list[float]()

    def answer(client: BrokerClient, command: Command) -> bool:
        if command.type is CommandType.CONNECT:
            attempts_s.append(time.monotonic())
        return known(client, command)

    bench.broker.answer = answer
    bench.broker.token = "refused without one"
    bench.broker.cut()
    eventually(lambda: len(attempts_s) >= 6)
    # Each wait begins with an answer that comes after the attempt was noted: it is never shorter than the time between.
    waits_s = [after - before for before, after in itertools.pairwise(attempts_s[:6])]
    assert all(found >= wanted for found, wanted in zip(waits_s, [0.2, 0.4, 0.6, 0.6, 0.6], strict=True)), waits_s


@pytest.mark.slow
def test_topics_share_a_connection_and_have_limits(new_bench: Callable[..., PulsarBench]) -> None:
    bench = new_bench(TOPIC, OTHER, topics_max=2)
    cluster = bench.cluster()
    sources = [bench.open(topic, cluster) for topic in (TOPIC, OTHER)]
    assert len(bench.broker.of(CommandType.CONNECT)) == 1
    with pytest.raises(InvalidCallError, match="open already"):
        cluster.open_topic(TOPIC)
    with pytest.raises(LimitReachedError, match=r"pulsar\.topics_max"):
        cluster.open_topic("persistent://public/default/third")
    sources[0].close()
    sources[0].close()
    assert list(cluster._sources) == [OTHER]
    with pytest.raises(StoreUnavailableError, match="was closed here"):
        sources[0].ledgers()


def test_missing_topic_is_an_error(bench: PulsarBench) -> None:
    source = bench.cluster().open_topic("persistent://public/default/nowhere")
    eventually(lambda: isinstance(source.problem, NotFoundError))
    assert source.active is None
    FakeTopic(bench.broker, "persistent://public/default/nowhere")
    eventually(lambda: source.active)


def test_readers_that_cannot_be_opened_take_no_place_in_the_pool() -> None:
    """Else a broker that is away for a while would leave every later read throttled."""
    clock = SystemClock()
    workers = Workers(1, clock)

    def refuse(topic: str, start: Position, _: int) -> Consumer:
        raise StoreUnavailableError(f"{topic}: no broker has it at {start}")

    pool = ReaderPool(refuse, workers=workers, clock=clock)
    ledgers: Any = SimpleNamespace(topic=TOPIC, were_skipped=lambda _: False)
    try:
        for _ in range(READERS_MAX + 1):
            with pytest.raises(StoreUnavailableError, match="no broker has it"):
                pool.read(ledgers, [], Position(1, 0), 100)
    finally:
        pool.close()
        workers.close()
