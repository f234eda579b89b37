"""Pushed ledgers against a reset broker: their content is compared, and a named log is an identity."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.errors import SourceMismatch
from offloader.ledgers.base import IdentifiedSource
from offloader.ledgers.pushed import IdentifiedLedgers, PushedLedgers, PushMemory
from offloader.runtime.clock import SystemClock
from tests.ledgers.pushing_broker import Broker


def test_entries_that_no_segment_took_yet_are_compared_too() -> None:
    broker, other = Broker(), Broker(seed=2)
    broker.ledgers[1], other.ledgers[1] = [], []
    broker.append(30)
    other.append(30)
    other.ledgers[1][:12] = broker.ledgers[1][:12]
    ledgers = PushedLedgers(
        "shop/orders",
        committed=None,
        closed={},
        promised=None,
        window_bytes_max=1 << 20,
        push_bytes_max=1 << 20,
        memory=PushMemory(1 << 20),
        clock=SystemClock(),
    )
    for taken, count in ((None, 10), (Position(1, 9), 10)):
        ledgers.push(broker.next_after(taken, count).batches, [], within_s=1.0)
    assert ledgers.push(broker.next_after(None, 15).batches, [], within_s=1.0).repeated == 15
    with pytest.raises(SourceMismatch, match="1:12 was pushed again with other bytes"):
        ledgers.push(other.next_after(Position(1, 4), 20).batches, [], within_s=1.0)
    assert ledgers.news().taken == Position(1, 19)


def test_pushed_ledgers_with_a_source_have_an_identity() -> None:
    assert issubclass(IdentifiedLedgers, IdentifiedSource)
    assert not issubclass(PushedLedgers, IdentifiedSource)
