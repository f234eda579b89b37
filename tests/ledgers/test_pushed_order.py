"""New entries of a broker's push, and reasons to refuse it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError
from offloader.ledgers.pushed import LedgerEnd, OutOfOrderError, new_pieces
from tests.ledgers.pushing_broker import Broker

STREAM = "a/b"


def batch(ledger_id: int, first: int, count: int) -> EntryBatch:
    return EntryBatch.build(ledger_id, first, [b"x"] * count)


def spans(pieces: list[EntryBatch | LedgerEnd]) -> list[str]:
    return [
        f"{each.first}-{each.last}"
        if isinstance(each, EntryBatch)
        else f"{each.ledger_id} ends at {each.last_entry_id}"
        for each in pieces
    ]


@pytest.mark.parametrize(
    ("end", "closed", "batches", "ends", "expected"),
    [
        (None, {}, [batch(3, 0, 5)], [], ["3:0-3:4"]),
        (Position(3, 4), {}, [batch(3, 5, 2)], [], ["3:5-3:6"]),
        (Position(3, 4), {}, [batch(3, 0, 5)], [], []),
        (Position(3, 4), {}, [batch(3, 2, 6)], [], ["3:5-3:7"]),
        (Position(3, 4), {}, [batch(3, 3, 2), batch(5, 0, 1)], [LedgerEnd(3, 4)], ["3 ends at 4", "5:0-5:0"]),
        (Position(3, 4), {3: 4}, [batch(5, 0, 1)], [], ["5:0-5:0"]),
        (Position(3, 4), {}, [batch(3, 5, 1)], [LedgerEnd(3, 5)], ["3:5-3:5", "3 ends at 5"]),
        (Position(3, 4), {}, [], [LedgerEnd(3, 4)], ["3 ends at 4"]),
        (Position(3, 4), {3: 4}, [], [LedgerEnd(3, 4)], []),
        (Position(3, 4), {}, [batch(6, 0, 1)], [LedgerEnd(3, 4), LedgerEnd(5, -1)], ["3 ends at 4", "6:0-6:0"]),
        (Position(3, 4), {}, [batch(1, 0, 9), batch(3, 0, 6)], [LedgerEnd(1, 8)], ["3:5-3:5"]),
        (None, {}, [], [], []),
    ],
)
def test_new_entries_are_taken_and_known_ones_skipped(
    end: Position | None,
    closed: dict[int, int],
    batches: list[EntryBatch],
    ends: list[LedgerEnd],
    expected: list[str],
) -> None:
    assert spans(new_pieces(STREAM, end, closed, batches, ends)) == expected


@pytest.mark.parametrize(
    ("end", "closed", "batches", "ends", "message"),
    [
        (None, {}, [batch(3, 1, 5)], [], "a ledger begins with entry 0"),
        (Position(3, 4), {}, [batch(3, 6, 2)], [], "3:6 was pushed after 3:4"),
        (Position(3, 4), {}, [batch(4, 0, 2)], [], "the end of ledger 3 wasn't reported"),
        (Position(3, 4), {}, [batch(4, 0, 2)], [LedgerEnd(3, 9)], "ledger 3 ends at entry 9"),
        (Position(3, 4), {3: 4}, [batch(4, 1, 2)], [], "a ledger begins with entry 0"),
        (Position(3, 4), {}, [batch(6, 0, 1)], [LedgerEnd(3, 4), LedgerEnd(5, 2)], "ledger 5 between them has entries"),
        (Position(3, 4), {}, [], [LedgerEnd(3, 7)], "the newest pushed entry is 3:4"),
        (Position(3, 4), {}, [], [LedgerEnd(9, 7)], "none of its entries was pushed"),
    ],
)
def test_missing_entries_are_reported_and_nothing_is_taken(
    end: Position | None, closed: dict[int, int], batches: list[EntryBatch], ends: list[LedgerEnd], message: str
) -> None:
    with pytest.raises(OutOfOrderError, match=message):
        new_pieces(STREAM, end, closed, batches, ends)


@pytest.mark.parametrize(
    ("end", "closed", "batches", "ends", "message"),
    [
        (Position(3, 4), {}, [batch(3, 5, 2), batch(3, 4, 2)], [], "3:4 was pushed after 3:6"),
        (Position(3, 4), {}, [batch(3, 5, 1), batch(2, 0, 1)], [], "2:0 was pushed after 3:5"),
        (None, {}, [batch(-1, 0, 1)], [], "-1:0 is not a position"),
        (Position(3, 4), {3: 4}, [batch(3, 5, 1)], [], "ledger 3 ends at entry 4"),
        (Position(3, 4), {3: 4}, [], [LedgerEnd(3, 5)], "it reported 4 earlier"),
        (Position(3, 4), {}, [], [LedgerEnd(3, 2)], "but 3:4 was pushed"),
        (Position(3, 4), {}, [], [LedgerEnd(3, -1)], "but 3:4 was pushed"),
        (Position(3, 4), {}, [], [LedgerEnd(3, -2)], "can't end at -2"),
    ],
)
def test_contradicting_push_is_refused(
    end: Position | None, closed: dict[int, int], batches: list[EntryBatch], ends: list[LedgerEnd], message: str
) -> None:
    with pytest.raises(InvalidCallError, match=message) as caught:
        new_pieces(STREAM, end, closed, batches, ends)
    assert not isinstance(caught.value, OutOfOrderError), "waiting wouldn't mend it"


def test_gaps_and_disorder_inside_a_batch_are_found() -> None:
    whole = batch(3, 0, 6)
    holed = EntryBatch(3, whole.entry_ids[[0, 1, 4, 5]], whole.payloads.take([0, 1, 4, 5]), whole.publish_times_ms[:4])
    twice = EntryBatch(3, whole.entry_ids[[0, 1, 1, 3]], whole.payloads.take([0, 1, 1, 3]), whole.publish_times_ms[:4])
    with pytest.raises(OutOfOrderError, match="3:4 was pushed right after 3:1"):
        new_pieces(STREAM, None, {}, [holed], [])
    with pytest.raises(InvalidCallError, match="3:1 was pushed right after 3:1"):
        new_pieces(STREAM, None, {}, [twice], [])


def test_ids_that_wrap_around_do_not_pass_for_consecutive() -> None:
    two = batch(1, 0, 2)
    wrapped = EntryBatch(1, np.array([2**63 - 1, -(2**63)]), two.payloads, two.publish_times_ms)
    with pytest.raises(InvalidCallError, match="one after the other"):
        new_pieces(STREAM, Position(1, 2**63 - 2), {}, [wrapped], [])


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), repeats=st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_repeated_pushes_are_taken_once_and_in_order(seed: int, repeats: list[int]) -> None:
    broker = Broker(seed)
    for back in repeats:
        broker.append(back % 7)
        if back % 3 == 0:
            broker.close_ledger()
    end: Position | None = None
    closed: dict[int, int] = {}
    taken: list[Position] = []
    order = [position for position, _ in broker.entries]
    for back in [*repeats, 0, 0]:
        again = max(0, len(taken) - back)  # a broker that lost its place begins earlier
        pushed = broker.next_after(order[again - 1] if again else None, 10_000 if back == 0 else back)
        pieces = new_pieces(STREAM, end, closed, pushed.batches, pushed.ends)
        new = [piece for piece in pieces if isinstance(piece, EntryBatch)]
        assert sum(map(len, new)) <= sum(map(len, pushed.batches))
        for piece in pieces:
            if isinstance(piece, LedgerEnd):
                assert closed.setdefault(piece.ledger_id, piece.last_entry_id) == end.entry_id  # type: ignore[union-attr]
            else:
                taken += [entry.position for entry in piece.entries()]
                end = taken[-1]
    assert taken == order
    assert set(closed) == {each for each in broker.closed if broker.ledgers[each]}
