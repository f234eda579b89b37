"""The candidates for min and max are those that looking at every cut would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offloader.retention.decide import window
from offloader.retention.policy import Limits, Unit

amounts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=8)


@given(amounts, st.integers(0, 35), st.none() | st.integers(0, 35), st.booleans())
def test_window_is_what_a_look_at_every_cut_finds(
    drawn: list[tuple[int, int]], minimum: int, span: int | None, has_doubt: bool
) -> None:
    kept = sorted((amount for amount, _ in drawn), reverse=True)
    doubted = [max(amount - doubt, 0) for amount, (_, doubt) in zip(kept, drawn, strict=True)]
    # Neither amount increases from one cut to the next.
    surely = [max(doubted[row:]) for row in range(len(doubted))] if has_doubt else kept
    limits = Limits(Unit.SIZE, minimum, None if span is None else minimum + span)
    found = window(len(kept), kept.__getitem__, limits, surely=surely.__getitem__ if has_doubt else None)
    enough = [row for row in range(len(kept)) if surely[row] >= minimum]
    if not enough:
        assert found == (None, None)
        return
    fitting = [row for row in enough if limits.max is None or kept[row] <= limits.max]
    assert found == (enough[-1], fitting[0] if fitting else enough[-1])
