"""Segments that take their range out of a gap: what is before and after it stays joined. Pure."""

from __future__ import annotations

from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Edit, Gap, GapFilled, Hold, LedgerClosed, OpenEpoch, Recover, Rewrite, Rewritten
from formats.summary import SegmentSummary
from offloader.manifest.state import EditRefusedError, ManifestState
from tests.manifest.test_apply_replacement import after, offloaded, summary

A, B, NEW, FILL = UUID(int=1), UUID(int=2), UUID(int=11), UUID(int=12)
#: The segments are 1:0..1:9 and 4:0..4:9; between them is a gap over ledgers 1, 2 and 3.
GAP = Gap(Position(1, 10), Position(4, -1), "lost")
STATE = after(
    OpenEpoch(1),
    *offloaded(A, (1, 0, 9)),
    GAP,
    *offloaded(B, (4, 0, 9)),
    LedgerClosed(2, 7),
    state=ManifestState(stream="s", incarnation=UUID(int=99)),
)


def recovery(made: SegmentSummary) -> list[Edit]:
    return [Rewrite(NEW, 2, made.begin, made.end, 3, {}), Recover((Rewritten(NEW, made),), 4)]


@pytest.mark.parametrize(
    ("span", "left"),
    [
        ((2, 0, 7), [((1, 10), (2, -1)), ((2, 8), (4, -1))]),
        ((1, 10, 12), [((1, 13), (4, -1))]),
        ((3, 2, 5), [((1, 10), (3, 1)), ((3, 6), (4, -1))]),
    ],
)
def test_gap_shrinks_by_the_segment_and_the_committed_end_stays(
    span: tuple[int, int, int], left: list[tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    state = after(*recovery(summary(span)), state=STATE)
    assert [((g.first.ledger_id, g.first.entry_id), (g.last.ledger_id, g.last.entry_id)) for g in state.gaps] == left
    assert {gap.reason for gap in state.gaps} == {"lost"}
    assert state.committed_end() == STATE.committed_end() == Position(4, 9)
    assert [segment.uuid for segment in state.offloaded()] == [A, NEW, B]
    assert state.rewrites == ()
    assert state.totals().entries == STATE.totals().entries + span[2] - span[1] + 1


def test_gap_that_is_recovered_whole_is_gone() -> None:
    gap = Gap(Position(4, 10), Position(4, 12), "lost")
    state = after(gap, *recovery(summary((4, 10, 12))), state=STATE)
    assert state.gaps == (GAP,)
    assert state.committed_end() == Position(4, 12)


@pytest.mark.parametrize("span", [(1, 9, 10), (4, 0, 3), (4, 10, 11)])
def test_entries_outside_of_one_gap_are_refused(span: tuple[int, int, int]) -> None:
    with pytest.raises(EditRefusedError, match="isn't in one gap"):
        after(*recovery(summary(span)), state=STATE)


def test_segment_that_was_not_promised_is_refused() -> None:
    with pytest.raises(EditRefusedError, match="wasn't announced"):
        after(recovery(summary((2, 0, 7)))[1], state=STATE)


def test_entries_of_a_fill_and_of_a_held_stream_stay_a_gap() -> None:
    fill = GapFilled(FILL, Position(2, 3), Position(2, 4), 2, 20, 100, 1)
    with pytest.raises(EditRefusedError, match="a fill has entries"):
        after(fill, *recovery(summary((2, 0, 7))), state=STATE)
    with pytest.raises(EditRefusedError, match="on hold"):
        after(Hold(True, "x"), *recovery(summary((2, 0, 7))), state=STATE)
