"""Undo of a truncation: allowed where everything is restored, refused where anything would be missing."""

from __future__ import annotations

from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Edit, Gap, LedgerClosed, LedgersDeleted, Purged, Restore, Retire, Truncate, UndoRetire
from offloader.manifest.apply import apply_edits
from offloader.manifest.state import EditRefusedError, ManifestState
from tests.support.manifests import segment_edits, uuid_of

EMPTY = ManifestState(stream="s", incarnation=UUID(int=1))
#: Ledgers 1 to 3, two segments of ten entries each.
WHOLE: list[Edit] = [
    edit
    for ledger in (1, 2, 3)
    for edit in (
        *segment_edits(0, ledger_id=ledger),
        *segment_edits(1, ledger_id=ledger),
        LedgerClosed(ledger, 19),
    )
]


def name(ledger: int, number: int) -> UUID:
    return uuid_of(ledger << 32 | number)


def after(*records: list[Edit], state: ManifestState = EMPTY) -> ManifestState:
    for edits in records:
        state = apply_edits(state, edits, record_id=state.record_id + 1)
    return state


TRUNCATED: list[list[Edit]] = [
    WHOLE,
    [LedgersDeleted((1, 2)), Truncate(Position(3, 4))],
    [Retire((name(1, 0), name(1, 1), name(2, 0), name(2, 1)))],
]


def test_full_undo_of_a_truncation_restores_the_previous_state() -> None:
    before, truncated = after(WHOLE), after(*TRUNCATED)
    everything = (name(1, 0), name(1, 1), name(2, 0), name(2, 1))
    back = after([UndoRetire(everything, 3), Restore(Position(1, 0), (1, 2))], state=truncated)
    assert back.first_position() == before.first_position() == Position(1, 0)
    assert (set(back.deleted_ledgers), back.totals()) == (set(), before.totals())
    assert back.committed_end() == before.committed_end()


def test_a_part_can_be_taken_back_and_the_head_may_lie_within_a_segment() -> None:
    truncated = after(*TRUNCATED)
    back = after([UndoRetire((name(2, 0), name(2, 1)), 3), Restore(Position(2, 7), (2,))], state=truncated)
    assert (back.first_position(), set(back.deleted_ledgers)) == (Position(2, 7), {1})


@pytest.mark.parametrize(
    ("edits", "because"),
    [
        ([Restore(Position(1, 0), (1, 2))], "is retired"),
        ([UndoRetire((name(2, 1),), 3), Restore(Position(2, 0), (2,))], "is retired"),
        ([Restore(Position(3, 5), ())], "isn't before the head"),
        ([Restore(None, (1,))], None),
        ([UndoRetire((name(2, 0), name(2, 1)), 3), Restore(Position(2, 0), (1, 2))], None),
    ],
)
def test_restore_with_a_gap_is_refused(edits: list[Edit], because: str | None) -> None:
    truncated = after(*TRUNCATED)
    if because is None:
        # A ledger before the head: that nothing of it is held doesn't matter, none of it is readable.
        assert set(after(edits, state=truncated).deleted_ledgers) == {1, 2} - set(edits[-1].ledger_ids)  # type: ignore[attr-defined]
        return
    with pytest.raises(EditRefusedError, match=because):
        after(edits, state=truncated)


def test_purged_segments_and_everything_before_them_cannot_be_restored() -> None:
    purged = after(*TRUNCATED, [Purged((name(2, 0),), 3)])
    rest = UndoRetire((name(1, 0), name(1, 1), name(2, 1)), 3)
    for head in (Position(1, 0), Position(2, 0), Position(2, 9)):
        with pytest.raises(EditRefusedError, match="the head remains at 3:4"):
            after([rest, Restore(head, (1, 2))], state=purged)
    assert after([rest, Restore(Position(2, 10), (2,))], state=purged).first_position() == Position(2, 10)


def test_ledger_in_the_middle_is_restored_only_as_a_whole() -> None:
    gone = after(WHOLE, [LedgersDeleted((2,))], [Retire((name(2, 0), name(2, 1)))])
    assert (
        after([UndoRetire((name(2, 0), name(2, 1)), 3), Restore(None, (2,))], state=gone).totals()
        == after(WHOLE).totals()
    )
    with pytest.raises(EditRefusedError, match="entry 2:10 isn't in any offloaded segment"):
        after([UndoRetire((name(2, 0),), 3), Restore(None, (2,))], state=gone)
    with pytest.raises(EditRefusedError, match="isn't recorded as closed"):
        after([Restore(None, (9,))], state=gone)


def test_a_recorded_gap_leaves_nothing_missing() -> None:
    state = after(
        [*segment_edits(0, ledger_id=1), Gap(Position(1, 10), Position(2, -1), "lost"), *segment_edits(0, ledger_id=2)],
        [Truncate(Position(2, 0))],
        [Retire((name(1, 0),))],
    )
    back = after([UndoRetire((name(1, 0),), 3), Restore(Position(1, 0), ())], state=state)
    assert back.first_position() == Position(1, 0)
