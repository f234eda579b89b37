"""Entries that a broker lists and doesn't deliver: undelivered to every consumer, lost, or skipped for one reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.commands import CommandType, position_of
from offloader.errors import StoreUnavailableError
from offloader.ledgers.pulsar import tail_reader
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.ledgers.pulsar.topics import fate_of
from tests.ledgers.pulsar_bench import PulsarBench, entries_of, message
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


def read_again_and_again(source: PulsarSource) -> list[tuple[Position, bytes]]:
    """As ``read_all``, and again from where it failed."""
    found: list[tuple[Position, bytes]] = []
    at = Position(0, 0)
    while True:
        try:
            batch = source.read(at, 10**6)
        except StoreUnavailableError:
            continue
        if batch is None:
            return found
        found += entries_of(batch)
        at = Position(batch.ledger_id, batch.last.entry_id + 1)


def runs(source: PulsarSource) -> list[tuple[Any, Any]]:
    return [(info.undelivered, info.lost) for info in source.ledgers()]


def unconfirmed(source: PulsarSource) -> list[Any]:
    return [info.unconfirmed for info in source.ledgers()]


def path_of(position: Position) -> str:
    return f"/admin/v2/persistent/public/default/orders/ledger/{position.ledger_id}/entry/{position.entry_id}"


def asked(bench: PulsarBench) -> int:
    return sum("/ledger/" in path for _, path in bench.admin.asked)


def readers_from(bench: PulsarBench, position: Position) -> int:
    asked_for = [each for each in bench.broker.of(CommandType.SUBSCRIBE) if not each.durable]
    return sum(position_of(each.start_message_id) == position for each in asked_for)


@pytest.mark.parametrize(
    ("status", "headers", "body", "fate"),
    [
        (200, SAYS, b"", "READABLE"),
        (200, {**SAYS, "x-pulsar-txn-aborted": "false"}, b"", "READABLE"),
        (200, {**SAYS, "x-pulsar-txn-aborted": "true"}, b"", "UNDELIVERED"),
        (200, {**SAYS, "x-pulsar-marker-type": "10"}, b"", "UNDELIVERED"),
        (200, {}, b"", "UNKNOWN"),
        (404, {}, NO_ENTRY, "LOST"),
        (500, {}, NOT_RECOVERABLE, "LOST"),
        (404, {}, b'{"reason":"Topic not found"}', "UNKNOWN"),
        (401, {}, b"", "DENIED"),
        (403, {}, b"", "DENIED"),
        (405, {}, b"", "UNKNOWN"),
        (412, {}, b"", "UNKNOWN"),
        (500, {}, BEYOND, ""),
        (503, {}, NO_ENTRY, ""),
    ],
)
def test_fate_of_an_entry_follows_from_the_admin_response(
    status: int, headers: dict[str, str], body: bytes, fate: str
) -> None:
    found = fate_of(status, headers, body)
    assert (found.name if found else "") == fate


@pytest.mark.slow
def test_entries_that_a_broker_passed_over_once_are_brought(bench: PulsarBench) -> None:
    source = bench.open()
    heard = told_to(source)
    bench.topic.skips |= {Position(1, 2): 1, Position(1, 3): 1}
    bench.fill(6)
    eventually(lambda: heard == bench.stored())
    eventually(lambda: source.problem is None)
    assert runs(source) == [((), ())]


@pytest.mark.slow
def test_ledger_skipped_once_by_the_broker_is_read(bench: PulsarBench) -> None:
    for _ in range(3):
        bench.fill(3)
        bench.topic.roll()
    bench.fill(1)
    source = bench.open()
    bench.topic.skips = {Position(2, number): 1 for number in range(3)}
    assert read_all(source) == bench.stored()
    assert runs(source) == [((), ())] * 4


@pytest.mark.slow
def test_entries_lost_by_bookies_are_no_markers(bench: PulsarBench) -> None:
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
    assert runs(source) == [(((2, 2),), ((1, 1),)), ((), ((0, 2),)), ((), ())]
    assert read_all(bench.open()) == given


@pytest.mark.slow
def test_entries_skipped_together_with_a_lost_one_are_delivered(bench: PulsarBench) -> None:
    """A broker passes over all that it wanted to read at once, and the size of that depends on the reader's permits."""
    bench.topic.read_batch = 4
    bench.topic.lost = {Position(1, 2), Position(1, 7)}
    bench.fill(10)
    bench.topic.roll()
    bench.fill(10)
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    assert read_again_and_again(bench.open()) == given
    source = bench.open()
    heard = told_to(source)
    bench.topic.lost.add(Position(2, 13))
    bench.topic.append_all([message(number) for number in range(10)])
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: heard == given[-9:])
    assert runs(source)[1] == ((), ((13, 13),))


@pytest.mark.slow
def test_entries_before_and_after_a_lost_one_in_the_same_read_are_delivered(bench: PulsarBench) -> None:
    bench.topic.read_batch = 100
    source = bench.open()
    heard = told_to(source)
    bench.topic.append_all([message(number) for number in range(3)])
    eventually(lambda: len(heard) == 3)
    bench.topic.lost = {Position(1, 5), Position(2, 0), Position(2, 4)}
    bench.topic.append_all([message(number) for number in range(7)])
    bench.topic.roll()
    bench.topic.append_all([message(number) for number in range(9)])
    bench.fill(1)
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: heard == given)
    assert runs(source) == [((), ((5, 5),)), ((), ((0, 0), (4, 4)))]
    assert read_again_and_again(bench.open()) == given


@pytest.mark.slow
def test_reader_goes_on_after_a_delivered_entry_that_was_lost_since(bench: PulsarBench) -> None:
    bench.topic.read_batch = 5
    source = bench.open()
    heard = told_to(source)
    bench.fill(4)
    eventually(lambda: len(heard) == 4)
    given = list(bench.stored())
    bench.topic.lost = {Position(1, 3)}
    bench.broker.cut()
    bench.fill(10)
    given += [each for each in bench.stored() if each not in given]
    eventually(lambda: heard == given)
    assert runs(source) == [((), ())]


@pytest.mark.slow
def test_last_entries_that_were_skipped_with_a_lost_one_are_read(
    bench: PulsarBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later entry comes that would tell a reader that it missed some."""
    monkeypatch.setattr(tail_reader, "READ_S_MAX", 0.2)
    bench.topic.read_batch = 100
    bench.fill(10)
    bench.topic.lost = {Position(1, 4)}
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    assert read_again_and_again(bench.open()) == given


@pytest.mark.slow
def test_reads_that_begin_again_before_a_lost_entry_get_past_it(
    bench: PulsarBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_reader, "READ_S_MAX", 0.2)
    bench.topic.read_batch = 100
    bench.fill(5)
    bench.topic.roll()
    bench.fill(10)
    bench.topic.lost = {Position(2, 4)}
    source = bench.open()

    def read_from_the_beginning() -> list[tuple[Position, bytes]]:
        with suppress(StoreUnavailableError):
            return read_all(source)
        return []

    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: read_from_the_beginning() == given)


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 3])
def test_last_entries_that_were_skipped_with_a_lost_one_are_delivered(
    bench: PulsarBench, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Nothing but the list tells that they exist."""
    monkeypatch.setattr(tail_reader, "READ_S_MAX", 0.05)
    bench.topic.read_batch = 100
    source = bench.open()
    heard = told_to(source)
    bench.fill(before)
    eventually(lambda: len(heard) == before)
    bench.topic.lost = {Position(1, before + 4)}
    bench.topic.append_all([message(number) for number in range(10)])
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: source.ledgers() and heard == given)
    bench.fill(1)  # by the reader that follows the one of single entries
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: heard == given)
    readers = sum(not body.durable for body in bench.broker.of(CommandType.SUBSCRIBE))
    for _ in range(5):
        source.ledgers()
    assert sum(not body.durable for body in bench.broker.of(CommandType.SUBSCRIBE)) == readers


@pytest.mark.slow
def test_entries_that_both_readers_passed_over_behind_a_lost_one_are_brought(bench: PulsarBench) -> None:
    source = bench.open()
    heard = told_to(source)
    bench.topic.lost = {Position(1, 2)}
    bench.topic.skips = {Position(1, 3): 2, Position(1, 4): 2}
    bench.fill(10)
    given = [each for each in bench.stored() if each[0] not in bench.topic.lost]
    eventually(lambda: heard == given)
    assert runs(source) == [((), ((2, 2),))]


@pytest.mark.slow
def test_undelivered_stored_entry_stops_the_topic_until_it_arrives(bench: PulsarBench) -> None:
    bench.fill(1)
    source = bench.open()
    heard = told_to(source)
    bench.topic.skips[Position(1, 3)] = 10**9
    bench.fill(5)
    said = "the broker stores 1:3, which is neither a marker nor part of an aborted transaction"
    eventually(lambda: isinstance(source.problem, StoreUnavailableError) and said in str(source.problem))
    assert [position.entry_id for position, _ in heard] == [1, 2]
    assert runs(source) == [((), ())]
    bench.topic.skips.clear()
    eventually(lambda: heard == bench.stored()[1:])
    eventually(lambda: source.problem is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        (401, b""),
        (403, b""),
        (404, b'{"reason":"Topic not found"}'),
        (405, b""),
        (412, b""),
        (200, b"an entry, and none of the headers that tell a marker"),
    ],
)
@pytest.mark.parametrize("is_lost", [True, False])
def test_entries_that_the_admin_interface_does_not_explain_are_unconfirmed(
    bench: PulsarBench, answer: tuple[int, bytes], is_lost: bool
) -> None:
    """The broker passes over a lost entry and over a marker alike, for every reader."""
    missing = Position(1, 1)
    bench.admin.answers[path_of(missing)] = answer
    source = bench.open()
    heard = told_to(source)
    bench.fill(1)
    if is_lost:
        bench.topic.lost = {missing}
        bench.fill(1)
    else:
        bench.topic.append_marker()
    bench.fill(1)
    given = [each for each in bench.stored() if each[0] != missing]
    eventually(lambda: heard == given)
    assert runs(source) == [((), ())]
    assert unconfirmed(source) == [((1, 1),)]
    assert read_all(source) == given
    assert readers_from(bench, missing) == 1


@pytest.mark.slow
def test_an_admin_interface_that_fails_decides_nothing(bench: PulsarBench) -> None:
    source = bench.open()
    heard = told_to(source)
    bench.admin.answers[path_of(Position(1, 1))] = 500, BEYOND
    bench.fill(1)
    bench.topic.append_marker()
    bench.fill(1)
    eventually(lambda: source.problem is not None)
    assert [position.entry_id for position, _ in heard] == [0]
    bench.admin.answers.clear()
    eventually(lambda: heard == bench.stored())
    assert runs(source) == [(((1, 1),), ())]


@pytest.mark.slow
def test_each_entry_of_a_long_run_is_asked_about(bench: PulsarBench) -> None:
    bench.fill(1)
    for _ in range(200):
        bench.topic.append_marker()
    bench.fill(1)
    lost = Position(1, 77)
    bench.topic.lost = {lost}
    source = bench.open()
    for _ in range(2):
        assert read_all(source) == bench.stored()
    assert runs(source) == [(((1, 76), (78, 200)), ((77, 77),))]
    assert asked(bench) == 200
    assert readers_from(bench, Position(1, 1)) == 1


@pytest.mark.slow
def test_entries_beyond_the_limit_of_questions_are_unconfirmed(bench: PulsarBench) -> None:
    most = 1000
    bench.fill(1)
    for _ in range(most + 3):
        bench.topic.append_marker()
    bench.fill(1)
    source = bench.open()
    assert read_all(source) == bench.stored()
    assert runs(source) == [(((1, most),), ())]
    assert unconfirmed(source) == [((most + 1, most + 3),)]
    assert asked(bench) == most


@pytest.mark.slow
def test_the_limit_of_questions_is_a_setting() -> None:
    bench = PulsarBench(entries_asked_max=2)
    try:
        bench.fill(1)
        for _ in range(3):
            bench.topic.append_marker()
        bench.fill(1)
        source = bench.open()
        assert read_all(source) == bench.stored()
        assert (runs(source), unconfirmed(source)) == ([(((1, 2),), ())], [((3, 3),)])
    finally:
        bench.close()


@pytest.mark.slow
def test_markers_that_the_broker_confirms_need_no_second_reader(bench: PulsarBench) -> None:
    bench.fill(1)
    for _ in range(20):
        bench.topic.append_marker()
    bench.fill(1)
    source = bench.open()
    for _ in range(2):
        assert read_all(source) == bench.stored()
    assert runs(source) == [(((1, 20),), ())]
    assert asked(bench) == 20
    assert readers_from(bench, Position(1, 1)) == 0
