"""Comparison of a topic's ledgers with the manifest: what counts as a contradiction, and its confirmation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from formats.entries import Position
from offloader.errors import SourceMismatchError, StoreUnavailableError
from offloader.ledgers.base import KnownLedger, KnownLedgers
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.ledgers.pulsar.topics import contradiction
from tests.ledgers.pulsar_bench import PulsarBench

INTERNALS = "/admin/v2/persistent/public/default/orders/internalStats"
#: Ledgers 3, 5 and 9 of ten entries; 9 is open, and its newest known entry is the fifth.
LEDGERS = {3: KnownLedger(9, 9), 5: KnownLedger(9, 9), 9: KnownLedger(None, 4)}
KNOWN = KnownLedgers(newest=Position(9, 4), whole=(3, 9), ledgers=LEDGERS)


@pytest.mark.parametrize(
    "listed",
    [
        [(3, 10), (5, 10), (9, 5)],
        [(3, 10), (5, 10), (9, 12), (14, 3)],
        [(9, 5)],  # trimmed
        [(9, 10), (100, 0)],
        [(100, 0)],  # all of it trimmed
        [(5, 10), (7, 0), (9, 5)],  # a ledger that never had an entry
        [(1, 10), (3, 10), (9, 5)],  # history in front, which isn't offloaded yet
        [],
    ],
)
def test_jumps_trimmed_ledgers_and_history_are_no_contradiction(listed: Sequence[tuple[int, int]]) -> None:
    assert contradiction(listed, KNOWN) is None


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([(1, 3)], "its newest ledger is 1, and the manifest has entries up to 9:4"),
        ([(3, 10), (5, 10)], "its newest ledger is 5, and the manifest has entries up to 9:4"),
        ([(3, 10), (5, 11), (9, 5)], "ledger 5 ends at entry 10, but it ended at 9"),
        ([(3, 9), (9, 5)], "ledger 3 ends at entry 8, but it ended at 9"),
        ([(3, 10), (9, 4)], "ledger 9 ends at entry 3, but it had entry 4"),
        ([(9, 0)], "ledger 9 ends at entry -1, but it had entry 4"),
        ([(4, 2), (9, 5)], "ledger 4 has 2 entries, but the manifest has no such ledger"),
        ([(4, 2), (100, 5)], "ledger 4 has 2 entries, but the manifest has no such ledger"),
    ],
)
def test_ledgers_that_differ_are_unknown_or_end_too_early_contradict(
    listed: Sequence[tuple[int, int]], said: str
) -> None:
    assert contradiction(listed, KNOWN) == said


def test_where_ranges_are_missing_an_unknown_ledger_may_be_history() -> None:
    listed = [(3, 10), (4, 2), (9, 5)]
    assert contradiction(listed, KnownLedgers(newest=Position(9, 4), whole=(3, 3), ledgers=LEDGERS)) is None
    assert contradiction(listed, KnownLedgers()) is None


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    made = PulsarBench()
    made.fill(10)
    made.topic.roll()
    made.fill(5)
    yield made
    made.close()


def known(newest: Position) -> KnownLedgers:
    return KnownLedgers(newest=newest, whole=(1, newest.ledger_id), ledgers={1: KnownLedger(9, 9), 2: KnownLedger()})


@pytest.mark.slow
def test_a_contradiction_that_the_owning_broker_confirms_stops_the_topic(bench: PulsarBench) -> None:
    source = bench.open()
    source.require_same(lambda _: known(Position(2, 4)))
    with pytest.raises(SourceMismatchError, match="its newest ledger is 2, and the manifest has entries up to 3:0"):
        source.require_same(lambda _: known(Position(3, 0)))
    assert isinstance(source.problem, SourceMismatchError)
    with pytest.raises(SourceMismatchError):
        source.delete(1)
    with pytest.raises(SourceMismatchError):
        source.ledgers()
    assert bench.topic.mark_delete("offloader") is None


@pytest.mark.slow
def test_listing_older_than_the_owning_broker_decides_nothing(bench: PulsarBench) -> None:
    """As of a broker that doesn't know yet that another one has the topic."""
    source = bench.open()
    old = '{"state": "LedgerOpened", "currentLedgerEntries": 10, "currentLedgerSize": 9, "lastConfirmedEntry": "1:9", '
    old += '"ledgers": [{"ledgerId": 1, "entries": 0, "size": 0, "offloaded": false}], "cursors": {}}'
    bench.admin.answers[INTERNALS] = 200, old.encode()
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="the owning broker has 2:4: the list is older than that"):
            source.require_same(lambda _: known(Position(2, 4)))
    assert source.problem is None
    del bench.admin.answers[INTERNALS]
    source.require_same(lambda _: known(Position(2, 4)))


@pytest.mark.slow
def test_without_an_answer_of_the_owning_broker_nothing_is_decided(bench: PulsarBench) -> None:
    source = bench.open()
    source.ledgers()
    bench.broker.stop()
    with pytest.raises(StoreUnavailableError):
        source.require_same(lambda _: known(Position(3, 0)))
    bench.broker.start()
    with pytest.raises(SourceMismatchError):
        _until_it_answers(source, Position(3, 0))


def _until_it_answers(source: PulsarSource, newest: Position) -> None:
    while True:
        try:
            return source.require_same(lambda _: known(newest))
        except StoreUnavailableError:
            continue


def test_a_ledger_is_compared_again_before_it_is_given_up(bench: PulsarBench) -> None:
    source = bench.open()
    source.require_same(lambda _: known(Position(2, 4)))
    newest = Position(3, 0)
    answers = iter([known(Position(2, 4))])
    source.require_same(lambda _: next(answers, known(newest)))
    with pytest.raises(SourceMismatchError):
        source.delete(1)
    assert bench.topic.mark_delete("offloader") is None
