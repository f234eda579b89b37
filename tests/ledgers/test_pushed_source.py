"""Pushed ledgers against a reset broker: their content is compared, and a named log is an identity."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import OffloaderError, SourceMismatch
from offloader.ledgers.base import IdentifiedSource
from offloader.ledgers.pushed import IdentifiedLedgers, OutOfOrder, PushedLedgers, PushMemory
from offloader.runtime.clock import SystemClock
from tests.ledgers.pushing_broker import Broker


def held_here() -> PushedLedgers:
    return PushedLedgers(
        "shop/orders",
        committed=None,
        closed={},
        promised=None,
        window_bytes_max=1 << 20,
        push_bytes_max=1 << 20,
        memory=PushMemory(1 << 20),
        clock=SystemClock(),
    )


def test_entries_that_no_segment_took_yet_are_compared_too() -> None:
    broker, other = Broker(), Broker(seed=2)
    broker.ledgers[1], other.ledgers[1] = [], []
    broker.append(30)
    other.append(30)
    other.ledgers[1][:12] = broker.ledgers[1][:12]
    ledgers = held_here()
    for taken, count in ((None, 10), (Position(1, 9), 10)):
        ledgers.push(broker.next_after(taken, count).batches, [], within_s=1.0)
    assert ledgers.push(broker.next_after(None, 15).batches, [], within_s=1.0).repeated == 15
    with pytest.raises(SourceMismatch, match="1:12 was pushed again with other bytes"):
        ledgers.push(other.next_after(Position(1, 4), 20).batches, [], within_s=1.0)
    assert ledgers.news().taken == Position(1, 19)


@pytest.mark.parametrize("entry_ids", [[8, 10], [0, 5], [0, 2**62]])
def test_gap_among_entries_that_are_held_is_no_other_log(entry_ids: list[int]) -> None:
    """Else a broker that left out an entry is told to push to another stream."""
    ledgers = held_here()
    ledgers.push([EntryBatch.build(1, 0, [b"%d" % each for each in range(10)], 0)], [], within_s=1.0)
    payloads = pa.array([b"%d" % each for each in entry_ids], pa.binary())
    pushed = EntryBatch(1, np.array(entry_ids, np.int64), payloads, np.zeros(len(entry_ids), np.int64))
    found: BaseException | None = None
    try:
        ledgers.push([pushed], [], within_s=1.0)
    except (OffloaderError, pa.ArrowException) as error:
        found = error
    assert type(found) is OutOfOrder
    assert "entries are missing between them" in found.hint
    assert ledgers.news().taken == Position(1, 9)


def test_pushed_ledgers_with_a_source_have_an_identity() -> None:
    assert issubclass(IdentifiedLedgers, IdentifiedSource)
    assert not issubclass(PushedLedgers, IdentifiedSource)
