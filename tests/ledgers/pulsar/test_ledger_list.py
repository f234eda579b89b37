"""What a list of ledgers accounts for, without a broker."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.ledgers.pulsar.ledger_list import LedgerList
from offloader.ledgers.pulsar.topics import TopicInternals, TopicLedger, TopicLedgers
from offloader.testing.manual_clock import ManualClock

TOPIC = "persistent://public/default/orders"


def ledgers_of(*entries: int) -> LedgerList:
    """Ledgers 1, 2, ... with so many entries; the last one is open. No entry may be looked for."""
    *closed, newest = enumerate(entries, 1)
    rows = [TopicLedger(ledger_id, count, 0, False) for ledger_id, count in closed]
    last = Position(newest[0], newest[1] - 1)
    internals = TopicInternals(
        ledgers=TopicLedgers(TOPIC, (*rows, TopicLedger(newest[0], 0, 0, False))),
        open_entries=newest[1],
        open_size_bytes=0,
        last_confirmed=last,
        is_terminated=False,
        cursors={},
    )
    return LedgerList(
        TOPIC,
        ask=lambda: internals,
        ask_last=lambda: last,
        look=lambda *_: pytest.fail("looks for entries"),
        clock=ManualClock(),
    )


def test_released_ledger_holds_no_reader_back_that_is_behind() -> None:
    """It begins with the next ledger: another process uploaded the rest of this one."""
    ledgers = ledgers_of(5, 3)
    ledgers.gave_up(1)
    assert ledgers.follow(Position(1, 2), Position(2, 0)) == []
    assert [info.ledger_id for info in ledgers.infos()] == [2]
