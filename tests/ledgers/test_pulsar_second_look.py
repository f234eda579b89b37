"""Entries that a broker lists and didn't give: nobody gets them, they are lost, or the reader was passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.commands import CommandType, position_of
from offloader.errors import StoreUnavailable
from offloader.ledgers.pulsar.entry_fate import EntryFate, fate_of
from offloader.ledgers.pulsar.second_look import ENTRIES_ASKED_MAX, PassedOver
from offloader.ledgers.pulsar.source import PulsarSource
from tests.ledgers.pulsar_bench import PulsarBench, entries_of
from tests.support.waiting import eventually

#: Names of headers and bodies are those of a broker 4.0.7.
SAYS = {"x-pulsar-txn-uncommitted": "false"}
NO_ENTRY = b'{"reason":"Message id not found"}'
NOT_RECOVERABLE = (
    b'{"reason":"org.apache.bookkeeper.mledger.ManagedLedgerException$NonRecoverableLedgerException: none"}'
)
BEYOND = b'{"reason":"ManagedLedgerException: LastConfirmedEntry is 3:13 when reading entry 14"}'


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    made = PulsarBench()
    yield made
    made.close()


def told_to(source: PulsarSource) -> list[tuple[Position, bytes]]:
    """What a listener hears."""
    heard: list[tuple[Position, bytes]] = []

    def hear(batch: EntryBatch) -> bool:
        heard.extend(entries_of(batch))
        return True

    source.subscribe(hear)
    return heard


def read_all(source: PulsarSource) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    at = Position(0, 0)
    while (batch := source.read(at, 10**6)) is not None:
        found += entries_of(batch)
        at = Position(batch.ledger_id, batch.last.entry_id + 1)
    return found


def runs(source: PulsarSource) -> list[tuple[Any, Any]]:
    return [(info.holes, info.lost) for info in source.ledgers()]


def asked(bench: PulsarBench) -> int:
    return sum("/ledger/" in path for _, path in bench.admin.asked)


def readers_from(bench: PulsarBench, position: Position) -> int:
    asked_for = [each for each in bench.broker.of(CommandType.SUBSCRIBE) if not each.durable]
    return sum(position_of(each.start_message_id) == position for each in asked_for)


@pytest.mark.parametrize(
    ("status", "headers", "body", "fate"),
    [
        (200, SAYS, b"", EntryFate.READABLE),
        (200, {**SAYS, "x-pulsar-txn-aborted": "false"}, b"", EntryFate.READABLE),
        (200, {**SAYS, "x-pulsar-txn-aborted": "true"}, b"", EntryFate.UNDELIVERED),
        (200, {**SAYS, "x-pulsar-marker-type": "10"}, b"", EntryFate.UNDELIVERED),
        (200, {}, b"", EntryFate.UNKNOWN),
        (404, {}, NO_ENTRY, EntryFate.LOST),
        (500, {}, NOT_RECOVERABLE, EntryFate.LOST),
        (404, {}, b'{"reason":"Topic not found"}', EntryFate.UNKNOWN),
        (403, {}, b"", EntryFate.UNKNOWN),
        (500, {}, BEYOND, None),
        (503, {}, NO_ENTRY, None),
    ],
)
def test_what_a_broker_says_of_an_entry(status: int, headers: dict[str, str], body: bytes, fate: EntryFate) -> None:
    assert fate_of(status, headers, body) is fate


def test_entries_that_a_broker_passed_over_once_are_brought(bench: PulsarBench) -> None:
    source = bench.open()
    heard = told_to(source)
    bench.topic.skips |= {Position(1, 2): 1, Position(1, 3): 1}
    bench.fill(6)
    eventually(lambda: heard == bench.stored())
    eventually(lambda: source.problem is None)
    assert runs(source) == [((), ())]


def test_a_ledger_that_was_passed_over_once_is_read(bench: PulsarBench) -> None:
    for _ in range(3):
        bench.fill(3)
        bench.topic.roll()
    bench.fill(1)
    source = bench.open()
    bench.topic.skips = {Position(2, number): 1 for number in range(3)}
    with pytest.raises(PassedOver, match=r"went on at 3:0 after it was asked for 2:0, and the second time at 2:0"):
        read_all(source)
    assert read_all(source) == bench.stored()
    assert runs(source) == [((), ())] * 4


def test_what_the_bookies_lost_is_no_marker(bench: PulsarBench) -> None:
    source = bench.open()
    heard = told_to(source)
    bench.topic.lost = {Position(1, 1), *(Position(2, number) for number in range(3))}
    bench.fill(2)
    bench.topic.append_marker()
    bench.fill(1)
    bench.topic.roll()
    bench.fill(3)
    bench.topic.roll()
    bench.fill(1)
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: heard == given)
    # A run that isn't all markers counts as lost.
    assert runs(source) == [((), ((1, 2),)), ((), ((0, 2),)), ((), ())]
    assert read_all(bench.open()) == given


def test_what_is_there_and_is_given_to_nobody_stops_the_topic_until_it_comes(bench: PulsarBench) -> None:
    bench.fill(1)
    source = bench.open()
    heard = told_to(source)
    bench.topic.skips[Position(1, 3)] = 10**9
    bench.fill(5)
    said = "the broker has 1:3, which is neither a marker nor part of an aborted transaction"
    eventually(lambda: isinstance(source.problem, StoreUnavailable) and said in str(source.problem))
    assert [position.entry_id for position, _ in heard] == [1, 2]
    assert runs(source) == [((), ())]
    bench.topic.skips.clear()
    eventually(lambda: heard == bench.stored()[1:])
    eventually(lambda: source.problem is None)


def test_who_may_not_ask_for_entries_reads_twice(bench: PulsarBench) -> None:
    path = "/admin/v2/persistent/public/default/orders/ledger/1/entry/1"
    bench.admin.answers[path] = 403, b""
    source = bench.open()
    heard = told_to(source)
    bench.fill(1)
    bench.topic.append_marker()
    bench.fill(1)
    eventually(lambda: heard == bench.stored())
    assert runs(source) == [(((1, 1),), ())]
    assert readers_from(bench, Position(1, 1)) == 1
    # A broker that can't say just now isn't taken for one that has nothing.
    bench.admin.answers[path.replace("entry/1", "entry/3")] = 500, BEYOND
    bench.topic.append_marker()
    bench.fill(1)
    eventually(lambda: source.problem is not None)
    assert len(heard) == 2
    bench.admin.answers.clear()
    eventually(lambda: heard == bench.stored())


@pytest.mark.parametrize(("count", "questions"), [(5, 5), (ENTRIES_ASKED_MAX, 16), (500, 16)])
def test_long_runs_are_looked_at_here_and_there_and_once(bench: PulsarBench, count: int, questions: int) -> None:
    bench.fill(1)
    for _ in range(count):
        bench.topic.append_marker()
    bench.fill(1)
    source = bench.open()
    for _ in range(2):
        assert read_all(source) == bench.stored()
    assert runs(source) == [(((1, count),), ())]
    assert asked(bench) == questions
    # Proven one by one, or else by a second reader.
    assert readers_from(bench, Position(1, 1)) == (count > ENTRIES_ASKED_MAX)
