"""Positions: neighbours in a ledger, and their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import Position


@pytest.mark.slow
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**62))
def test_next_and_previous_are_inverse_and_adjacent(ledger_id: int, entry_id: int) -> None:
    position = Position(ledger_id, entry_id)
    assert position.next().previous() == position == position.previous().next()
    assert position.previous() < position < position.next() < Position(ledger_id + 1, 0)


def test_before_the_first_entry_of_a_ledger_is_entry_minus_one() -> None:
    assert Position(7, 0).previous() == (7, -1)
