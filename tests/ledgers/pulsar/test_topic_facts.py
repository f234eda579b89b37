"""Ledgers of a segment as readers observe them: from a manifest, by reading, until it is sealed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.commands import CommandType
from offloader.errors import BeyondEndError, StoreUnavailableError
from offloader.ledgers.base import AskKnown, KnownLedger, KnownLedgers
from offloader.ledgers.pulsar import ledger_list, tail_reader, topic_facts
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.ledgers.pulsar.topic_facts import ObservedFacts
from offloader.ledgers.pulsar.topics import EntryFate
from tests.ledgers.pulsar_bench import NAME, PulsarBench, entries_of
from tests.support.waiting import eventually

TOPIC = "segment://public/default/orders/0000-ffff-0"


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench(TOPIC)
    yield bench
    bench.close()


def facts_of(bench: PulsarBench) -> ObservedFacts:
    """Over the fake broker, without a source around it."""
    cluster = bench.cluster()
    last = Consumer(cluster.client, TOPIC, "last", start=Position(-1, -1))
    return ObservedFacts(TOPIC, ask_last=last.last_position, open_reader=lambda *how: cluster.reader_from(TOPIC, *how))


def known(newest: Position | None, settled: Position | None = None) -> AskKnown:
    return lambda _ids: KnownLedgers(newest=newest, settled=newest if settled is None else settled)


def listed(facts: ObservedFacts) -> Sequence[tuple[int, int]]:
    return facts.internals().stored()


def fill(bench: PulsarBench, *entries: int) -> None:
    """Ledgers 1, 2, ... with so many entries; the last one is open."""
    for count in entries:
        bench.fill(count)
        bench.topic.roll()


def test_without_a_manifest_the_list_begins_with_the_first_entry(bench: PulsarBench) -> None:
    facts = facts_of(bench)
    assert listed(facts) == []
    fill(bench, 3, 2)
    eventually(lambda: listed(facts) == [(1, 3), (2, 2)])


def test_settled_entries_are_not_read_again(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.known(known(Position(2, 1)))
    eventually(lambda: listed(facts) == [(2, 4), (3, 5)])
    starts = [body.start_message_id for body in bench.broker.of(CommandType.SUBSCRIBE) if not body.durable]
    assert all((each.ledger_id, each.entry_id) >= (2, 1) for each in starts if each.ledger_id != 2**64 - 1)


def test_ledgers_after_a_missing_entry_are_all_listed_at_once(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.known(known(Position(3, 1), settled=Position(1, 0)))
    assert listed(facts)[:2] == [(1, 3), (2, 4)]
    assert listed(facts)[2][1] >= 2


@pytest.mark.parametrize("ledger", [KnownLedger(2, 2), KnownLedger(None, 2)], ids=["recorded", "in a segment"])
def test_end_in_the_manifest_counts_where_the_bookies_lost_the_last_entries_since(
    bench: PulsarBench, ledger: KnownLedger
) -> None:
    fill(bench, 3, 4)
    bench.topic.lost = {Position(1, 2)}
    facts = facts_of(bench)
    at = Position(1, 0)
    facts.known(lambda ids: KnownLedgers(newest=at, settled=at, ledgers={1: ledger} if ids else {}))
    eventually(lambda: listed(facts) == [(1, 3), (2, 4)])


def test_another_process_that_committed_more_replaces_what_was_heard(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.heard(None, Position(1, 1))  # and then the broker chose the other one
    facts.known(known(Position(3, 0)))
    eventually(lambda: listed(facts) == [(3, 5)])


def test_ledgers_whose_end_was_received_remain_listed(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.heard(Position(1, 2), Position(2, 0))
    facts.known(known(Position(3, 4)))
    assert listed(facts) == [(1, 3), (3, 5)]


def test_reader_that_is_behind_the_manifest_lists_no_part_of_a_ledger(bench: PulsarBench) -> None:
    """It began before the manifest had the entries: another process had uploaded them."""
    fill(bench, 3, 4, 5, 2)
    facts = facts_of(bench)
    facts.heard(None, Position(1, 0))
    facts.known(known(Position(3, 2)))
    facts.heard(Position(1, 2), Position(2, 0))
    assert listed(facts) == [(1, 3), (3, 3)]
    eventually(lambda: listed(facts) == [(1, 3), (3, 5), (4, 2)])
    facts.heard(Position(2, 0), Position(4, 0))
    assert listed(facts) == [(1, 3), (2, 4), (3, 5), (4, 2)]


def test_nothing_is_read_while_a_reader_receives_entries(bench: PulsarBench) -> None:
    facts = ObservedFacts(TOPIC, ask_last=lambda: Position(1, 9), open_reader=lambda *_: pytest.fail("reads"))
    facts.known(known(Position(1, 0)))
    for entry_id in range(3):
        facts.heard(None, Position(1, entry_id))
        assert listed(facts) == [(1, 10)]


def test_received_entries_count_though_the_broker_names_an_earlier_one(bench: PulsarBench) -> None:
    facts = ObservedFacts(TOPIC, ask_last=lambda: Position(1, 8), open_reader=facts_of(bench)._open_reader)
    fill(bench, 10, 1)
    facts.heard(Position(1, 9), Position(2, 0))
    assert facts.internals().last_confirmed == Position(2, 0)
    assert listed(facts) == [(1, 10), (2, 1)]


def test_end_of_a_ledger_is_looked_at_once(bench: PulsarBench) -> None:
    fill(bench, 3, 4)
    facts = facts_of(bench)
    for _ in range(2):
        facts.heard(Position(1, 2), Position(2, 0))
    assert listed(facts) == [(1, 3), (2, 4)]
    assert sum(not body.durable for body in bench.broker.of(CommandType.SUBSCRIBE)) == 2  # and that for the last entry


def test_entries_that_a_reader_missed_after_a_lost_one_are_listed(bench: PulsarBench) -> None:
    fill(bench, 6, 4)
    bench.topic.lost = {Position(1, 2)}
    bench.topic.read_batch = 5
    facts = facts_of(bench)
    facts.heard(Position(1, 1), Position(2, 0))
    assert listed(facts) == [(1, 6), (2, 4)]


def test_sealed_segment_is_terminated_when_its_last_ledger_is_listed(bench: PulsarBench) -> None:
    fill(bench, 3, 4)
    facts = facts_of(bench)
    facts.heard(None, Position(1, 0))
    facts.end = Position(2, 3)
    assert not facts.internals().is_terminated
    eventually(lambda: listed(facts) == [(1, 3), (2, 4)])
    assert facts.internals().is_terminated


def test_silent_broker_is_asked_again(bench: PulsarBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_facts, "READ_S_MAX", 0.01)
    cluster = bench.cluster()
    facts = ObservedFacts(
        TOPIC, ask_last=lambda: Position(1, 0), open_reader=lambda *how: cluster.reader_from(TOPIC, *how)
    )
    with pytest.raises(StoreUnavailableError, match="the broker has later entries, and delivered nothing"):
        facts.internals()


@pytest.mark.parametrize("lost", [Position(2, 0), Position(2, 1)])
def test_reader_that_begins_again_before_an_open_ledger_does_not_close_it(bench: PulsarBench, lost: Position) -> None:
    """The broker passed over the rest of both ledgers: entries before the lost one would be recorded as deleted."""
    fill(bench, 3, 4, 5)
    bench.topic.lost = {lost}
    facts = facts_of(bench)
    facts.heard(Position(1, 1), Position(2, 2))
    facts.heard(Position(1, 1), Position(3, 0))
    assert listed(facts) == [(1, 3), (2, 4), (3, 5)]


def test_ledger_that_was_passed_over_after_a_settled_one_is_listed(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    bench.topic.lost = {Position(2, 0)}
    facts = facts_of(bench)
    facts.known(lambda _: KnownLedgers(newest=Position(1, 2), settled=Position(1, 2), ledgers={1: KnownLedger(2, 2)}))
    facts.heard(Position(1, 2), Position(3, 0))
    assert listed(facts) == [(1, 3), (2, 4), (3, 5)]


def test_reader_that_begins_after_uploaded_entries_closes_no_open_ledger(bench: PulsarBench) -> None:
    """Another process uploaded newer entries, and older ones are still missing."""
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.known(known(Position(3, 1), settled=Position(1, 0)))
    facts.heard(None, Position(3, 2))
    assert listed(facts) == [(1, 3), (2, 4), (3, 5)]


def test_older_end_in_the_manifest_closes_no_ledger(bench: PulsarBench) -> None:
    fill(bench, 3, 4, 5)
    facts = facts_of(bench)
    facts.known(known(Position(3, 1)))
    facts.known(known(Position(3, 1), settled=Position(1, 0)))
    assert listed(facts)[0] == (1, 3)
    eventually(lambda: listed(facts) == [(1, 3), (2, 4), (3, 5)])


def test_oldest_ledgers_are_forgotten(bench: PulsarBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_facts, "LEDGERS_MAX", 2)
    fill(bench, 5, 5, 5)
    facts = facts_of(bench)
    facts.known(known(Position(1, 4)))
    eventually(lambda: listed(facts) == [(2, 5), (3, 5)])


def test_broker_tells_nothing_else(bench: PulsarBench) -> None:
    facts = facts_of(bench)
    assert facts.fate(Position(1, 0)) is EntryFate.UNKNOWN
    assert facts.properties() == {}


def test_source_of_a_segment_asks_the_admin_interface_nothing(bench: PulsarBench) -> None:
    fill(bench, 3, 4)
    source: PulsarSource = bench.open()
    eventually(lambda: [(info.entries, info.closed) for info in source.ledgers()] == [(3, True), (4, False)])
    source.sealed(Position(2, 3))
    assert [(info.entries, info.closed) for info in source.ledgers()] == [(3, True), (4, True)]
    assert source.noted_manifests() == []
    assert bench.admin.asked == []


def receive_newest(source: PulsarSource, bench: PulsarBench) -> None:
    """Returns when a listener has received the newest entry."""
    got: list[tuple[Position, bytes]] = []

    def receive(batch: EntryBatch) -> bool:
        got.extend(entries_of(batch))
        return True

    source.subscribe(receive)
    eventually(lambda: got[-1:] == bench.stored()[-1:])


@pytest.mark.parametrize("named", [Position(-1, -1), Position(1, 0), Position(2, 1)])
def test_reader_continues_though_the_broker_names_an_earlier_entry(bench: PulsarBench, named: Position) -> None:
    fill(bench, 3, 4, 5)
    bench.topic.named_last = named
    source = bench.open()
    receive_newest(source, bench)
    assert source.problem is None


def test_end_of_a_segment_is_the_entry_that_no_other_follows(bench: PulsarBench) -> None:
    source = bench.open()
    fill(bench, 3, 4)
    with pytest.raises(BeyondEndError, match=r"requested 2:4, the broker began at 1:0"):
        source.sealed_end()
    bench.topic.state = "Terminated"
    assert source.sealed_end() == Position(2, 3)
    for named in (Position(-1, -1), Position(1, 2), Position(2, 2)):
        bench.topic.named_last = named
        with pytest.raises(StoreUnavailableError, match=r"is the last known one, but the broker has \d:\d after"):
            source.sealed_end()
    receive_newest(source, bench)
    assert source.sealed_end() == Position(2, 3)


def test_end_of_a_segment_without_entries_is_none(bench: PulsarBench) -> None:
    bench.topic.state = "Terminated"
    assert bench.open().sealed_end() is None


def test_ledger_is_acknowledged_after_all_earlier_ones_were_released_also_after_a_restart(bench: PulsarBench) -> None:
    """An acknowledgement covers earlier entries: also those of a ledger with a gap, whose hot copy must be kept."""
    fill(bench, 3, 4, 5)
    source = bench.open()
    held = {1: KnownLedger(2, 2), 2: KnownLedger(3, 3)}
    source.require_same(
        lambda ids: KnownLedgers(
            newest=Position(3, 4),
            settled=Position(3, 4),
            ledgers={each: held[each] for each in (held if ids is None else ids) if each in held},
        )
    )
    source.sealed(Position(3, 4))
    eventually(lambda: [info.closed for info in source.ledgers()] == [True] * 3)
    source.delete(3)
    source.delete(2)
    assert bench.topic.mark_delete(NAME) is None
    source.delete(1)
    assert bench.topic.mark_delete(NAME) == Position(3, 4)


def test_older_facts_of_another_thread_are_not_compared_with_newer_ones(bench: PulsarBench) -> None:
    """After a takeover, the facts complete a ledger that this process has received in part."""
    fill(bench, 2)
    source = bench.open()
    assert [info.entries for info in source.ledgers()] == [2]
    is_begun, is_compared, is_over = threading.Event(), threading.Event(), threading.Event()

    def facts(last: int) -> KnownLedgers:
        return KnownLedgers(newest=Position(1, last), ledgers={1: KnownLedger(None, last)})

    def older(ids: Sequence[int] | None) -> KnownLedgers:
        if ids is None:
            is_begun.set()
            is_compared.wait(0.5)  # as long as it can: the other comparison must not begin meanwhile
        return facts(1)

    def newer(ids: Sequence[int] | None) -> KnownLedgers:
        if ids is not None:
            is_compared.set()
            eventually(is_over.is_set)
        return facts(2)

    def compare_older() -> None:
        source.require_same(older)
        is_over.set()

    with ThreadPoolExecutor(1) as threads:
        compared = threads.submit(compare_older)
        eventually(is_begun.is_set)
        source.require_same(newer)
        compared.result()
    assert source.problem is None


def test_recorded_end_counts_though_the_broker_names_an_earlier_entry(bench: PulsarBench) -> None:
    """Else the last ledger would be closed before its end."""
    fill(bench, 10)
    facts = ObservedFacts(TOPIC, ask_last=lambda: Position(1, 4), open_reader=facts_of(bench)._open_reader)
    facts.known(known(Position(1, 4)))
    facts.end = Position(1, 9)
    assert listed(facts) == [(1, 10)]
    assert facts.internals().is_terminated


@pytest.mark.parametrize("lost", [Position(1, 0), Position(2, 0)])
def test_ledger_that_a_reader_passed_over_with_its_first_entry_is_listed(
    bench: PulsarBench, lost: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its other entries, which the broker has, would be recorded as deleted."""
    for module in (ledger_list, tail_reader, topic_facts):
        monkeypatch.setattr(module, "READ_S_MAX", 1.0)
    fill(bench, 3, 4, 5)
    bench.topic.lost, bench.topic.read_batch = {lost}, 100
    source = bench.open()
    found = list[Position]()
    every = {position for position, _, _ in bench.topic.entries}
    at = Position(0, 0)

    def has_read_all() -> bool:
        nonlocal at
        with suppress(StoreUnavailableError):  # it names an entry to read again from
            if (batch := source.read(at, 10_000)) is not None:
                found.extend(entry.position for entry in batch.entries())
                at = batch.last.next()
        return {*found} == every - {lost}

    eventually(has_read_all)
    assert [info.ledger_id for info in source.ledgers()] == [1, 2, 3]
