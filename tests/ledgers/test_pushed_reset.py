"""Pushed ledgers against a reset broker: their content is compared, and a named log is an identity."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import OffloaderError, SourceMismatchError
from offloader.ledgers.base import IdentifiedSource
from offloader.ledgers.pushed import IdentifiedLedgers, LedgerEnd, OutOfOrderError, PushedLedgers, PushMemory
from offloader.runtime.clock import SystemClock
from offloader.service.flight.messages import pushed_batches
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
    with pytest.raises(SourceMismatchError, match="1:12 was pushed again with other bytes"):
        ledgers.push(other.next_after(Position(1, 4), 20).batches, [], within_s=1.0)
    assert ledgers.news().taken == Position(1, 19)


@pytest.mark.parametrize("entry_ids", [[8, 10], [0, 5], [0, 2**62]])
def test_gap_among_entries_that_are_held_is_no_other_log(entry_ids: list[int]) -> None:
    """A broker that left out an entry is asked for it, not told to push to another stream."""
    ledgers = held_here()
    ledgers.push([EntryBatch.build(1, 0, [b"%d" % each for each in range(10)], 0)], [], within_s=1.0)
    payloads = pa.array([b"%d" % each for each in entry_ids], pa.binary())
    pushed = EntryBatch(1, np.array(entry_ids, np.int64), payloads, np.zeros(len(entry_ids), np.int64))
    found: BaseException | None = None
    try:
        ledgers.push([pushed], [], within_s=1.0)
    except (OffloaderError, pa.ArrowException) as error:
        found = error
    assert type(found) is OutOfOrderError
    assert "entries are missing between them" in found.hint
    assert ledgers.news().taken == Position(1, 9)


@pytest.mark.parametrize("size", [1 << 18, 0])
def test_repeated_entries_are_not_kept_in_memory_with_the_new_ones_behind_them(size: int) -> None:
    """What is held is counted, and the limits of memory are for that."""
    count = 1 if size else 20_000
    old = EntryBatch.build(1, 0, [b"x" * size] * count, 0)
    ledgers = PushedLedgers(
        "shop/orders",
        committed=old.last,
        closed={1: old.last.entry_id},
        promised=None,
        window_bytes_max=1 << 20,
        push_bytes_max=1 << 20,
        memory=PushMemory(1 << 20),
        clock=SystemClock(),
    )
    before = pa.total_allocated_bytes()
    for ledger_id in range(2, 12):
        new = EntryBatch.build(ledger_id, 0, [b"new"], 0)
        whole = pa.Table.from_batches([old.to_arrow(), new.to_arrow()]).combine_chunks().to_batches()[0]
        pushed = pushed_batches(whole, bytes_max=1 << 20, entry_bytes_max=1 << 20)
        ends = [LedgerEnd(ledger_id - 1, 0)] if ledger_id > 2 else []
        assert ledgers.push(pushed, ends, within_s=1.0) == (1, count)
    del whole, pushed, new
    found = pa.total_allocated_bytes() - before
    assert found < 64 * 1024


def test_pushed_ledgers_with_a_source_have_an_identity() -> None:
    assert issubclass(IdentifiedLedgers, IdentifiedSource)
    assert not issubclass(PushedLedgers, IdentifiedSource)
