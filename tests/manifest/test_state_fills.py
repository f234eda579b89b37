"""Fills in the manifest: what is refused, what a checkpoint keeps, and when one leaves."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import manifest
from formats.checkpoint import decode_checkpoint
from formats.entries import Position
from formats.errors import UnsupportedVersionError
from formats.manifest import (
    EDIT_KINDS,
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    GapFilled,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    Purged,
    Record,
    Release,
    Restore,
    Retire,
    StreamDeleted,
    Truncate,
    UndoRetire,
    Writer,
    decode_record,
    encode_record,
)
from offloader.coverage import count_of, gap_runs, joined
from offloader.manifest.apply import apply_edits, fold
from offloader.manifest.compaction import plan_checkpoint, restored
from offloader.manifest.ledger_table import fills_in
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentStatus
from tests.support.manifests import DRIVER, summary_of, uuid_of

EMPTY = ManifestState(stream="s", incarnation=UUID(int=7))


def applied(state: ManifestState, *edits: Edit) -> ManifestState:
    return apply_edits(state, edits, record_id=state.record_id + 1)


def segment(number: int, ledger_id: int, first: int, last: int) -> list[Edit]:
    begin, end = Position(ledger_id, first), Position(ledger_id, last)
    return [
        Assign(uuid_of(number), 2, begin, end, 5, DRIVER),
        Offloaded(uuid_of(number), summary_of(begin, end), 6),
    ]


def gap(ledger_id: int, first: int, last: int) -> Gap:
    return Gap(Position(ledger_id, first), Position(ledger_id, last), "not delivered")


def fill(number: int, ledger_id: int, first: int, last: int, entries: int) -> GapFilled:
    return GapFilled(uuid_of(number), Position(ledger_id, first), Position(ledger_id, last), entries, 50, 500, 7)


def one_ledger() -> ManifestState:
    """Ledger 7: entries 0..9, gap 10..11, 12..19, gap 20, 21..29, gap 30..31 at its end; ledger 8: 0..9."""
    edits = [*segment(1, 7, 0, 9), gap(7, 10, 11), *segment(2, 7, 12, 19), gap(7, 20, 20), *segment(3, 7, 21, 29)]
    edits += [gap(7, 30, 31), LedgerClosed(7, 31), *segment(4, 8, 0, 9)]
    return applied(EMPTY, *edits)


def test_a_fill_changes_nothing_that_readers_see() -> None:
    before = one_ledger()
    after = applied(before, fill(50, 7, 10, 31, 5))
    assert after.fills == (fill(50, 7, 10, 31, 5),)
    assert (after.committed, after.totals(), list(after.offloaded())) == (
        before.committed,
        before.totals(),
        list(before.offloaded()),
    )
    assert after.committed == Position(8, 9)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (fill(50, 7, 10, 31, 4), "the gaps in this range have 5 from 10 to 31"),
        (fill(50, 7, 10, 31, 6), "the gaps in this range have 5"),
        (fill(50, 7, 9, 11, 2), "the gaps in this range have 2 from 10 to 11"),
        (fill(50, 7, 10, 12, 2), "the gaps in this range have 2 from 10 to 11"),
        (fill(50, 7, 12, 14, 3), "the gaps in this range have 0"),
        (fill(50, 7, 11, 10, 0), "isn't a part of one ledger"),
        (replace(fill(50, 7, 10, 31, 5), last=Position(8, 0)), "isn't a part of one ledger"),
        (fill(50, 7, 30, 32, 3), "ledger 7 ends at 31"),
        (fill(1, 7, 10, 31, 5), "exists already"),
    ],
)
def test_a_fill_of_other_entries_than_those_of_its_gaps_is_refused(wrong: GapFilled, why: str) -> None:
    with pytest.raises(EditRefusedError, match=why):
        applied(one_ledger(), wrong)


def test_fills_are_of_different_entries_and_uuids() -> None:
    state = applied(one_ledger(), fill(50, 7, 20, 20, 1))
    with pytest.raises(EditRefusedError, match=r"7:10\.\.7:31 overlaps fill"):
        applied(state, fill(51, 7, 10, 31, 5))
    with pytest.raises(EditRefusedError, match="exists already"):
        applied(state, fill(50, 7, 10, 11, 2))
    with pytest.raises(EditRefusedError, match="exists already"):
        applied(state, Assign(uuid_of(50), 2, Position(8, 10), None, 5, DRIVER))
    state = applied(state, fill(51, 7, 30, 31, 2), fill(52, 7, 10, 11, 2))
    assert [each.first.entry_id for each in state.fills] == [10, 20, 30]


def test_a_range_in_which_something_is_still_on_its_way_is_refused() -> None:
    """That segment may fail, and its entries become a gap that the fill lacks."""
    edits = [*segment(1, 7, 0, 9), gap(7, 10, 11), gap(7, 20, 20), *segment(3, 7, 21, 29)]
    state = applied(EMPTY, *edits)
    whole = fill(50, 7, 10, 20, 3)
    with pytest.raises(EditRefusedError, match="not everything between 7:10 and 7:20"):
        applied(state, whole)
    state = applied(state, Assign(uuid_of(2), 2, Position(7, 12), Position(7, 19), 5, DRIVER))
    with pytest.raises(EditRefusedError, match="not everything between"):
        applied(state, whole)
    assert applied(state, Failed(uuid_of(2), ""), gap(7, 12, 19), fill(50, 7, 10, 20, 11)).fills
    assert applied(state, Offloaded(uuid_of(2), summary_of(Position(7, 12), Position(7, 19)), 6), whole).fills


def test_a_gap_over_several_ledgers_counts_as_far_as_it_goes_in_the_ledger() -> None:
    edits = [*segment(1, 7, 0, 9), Gap(Position(7, 10), Position(9, -1), "lost"), *segment(2, 9, 0, 9)]
    state = applied(EMPTY, *edits)
    assert applied(state, fill(50, 7, 10, 12, 3), fill(51, 8, 0, 4, 5)).fills
    with pytest.raises(EditRefusedError, match="ends at 11"):
        applied(applied(state, LedgerClosed(7, 11)), fill(50, 7, 10, 12, 3))


def test_no_fill_is_taken_for_a_ledger_or_a_stream_that_is_gone() -> None:
    state = applied(one_ledger(), LedgersDeleted((7,)))
    with pytest.raises(EditRefusedError, match="ledger 7 is deleted from the stream"):
        applied(state, fill(50, 7, 20, 20, 1))
    state = applied(one_ledger(), Truncate(Position(8, 0)))
    with pytest.raises(EditRefusedError, match="ledger 7 is deleted from the stream"):
        applied(state, fill(50, 7, 20, 20, 1))
    assert applied(applied(one_ledger(), Truncate(Position(7, 31))), fill(50, 7, 20, 20, 1)).fills
    with pytest.raises(EditRefusedError, match="the stream is deleted"):
        applied(applied(one_ledger(), StreamDeleted()), fill(50, 7, 20, 20, 1))


def test_a_fill_stays_until_the_last_segment_of_its_ledger_is_purged() -> None:
    state = applied(one_ledger(), fill(50, 7, 10, 31, 5))
    uuids = tuple(map(uuid_of, (1, 2, 3)))
    state = applied(state, Truncate(Position(8, 0)), Retire(uuids))
    retired = state.record_id
    assert applied(state, UndoRetire(uuids, retired), Restore(Position(7, 0), ())).fills
    state = applied(state, Purged(uuids[:2], retired))
    assert state.fills, "segment 3 may still come back"
    assert applied(state, Purged(uuids[2:], retired)).fills == ()


def test_a_fill_of_a_ledger_in_which_the_stream_begins_stays() -> None:
    state = applied(one_ledger(), fill(50, 7, 10, 11, 2))
    state = applied(state, Truncate(Position(7, 21)), Retire((uuid_of(1), uuid_of(2))))
    assert applied(state, Purged((uuid_of(1), uuid_of(2)), state.record_id)).fills, "the broker still lists ledger 7"


def test_a_fill_of_a_ledger_marked_as_deleted_goes_with_its_segments() -> None:
    state = applied(one_ledger(), fill(50, 7, 10, 31, 5))
    uuids = tuple(map(uuid_of, (1, 2, 3)))
    state = applied(state, LedgersDeleted((7,)), Retire(uuids))
    assert applied(state, Purged(uuids, state.record_id)).fills == ()


def test_a_fill_goes_with_adopted_segments_that_are_released() -> None:
    summary = summary_of(Position(7, 0), Position(7, 9))
    edits = [Adopt(uuid_of(1), summary, DRIVER, False), gap(7, 10, 11), LedgerClosed(7, 11), fill(50, 7, 10, 11, 2)]
    state = applied(EMPTY, *edits)
    assert applied(state, Release((uuid_of(1),))).fills, "the ledger is still in the stream"
    assert applied(state, LedgersDeleted((7,)), Release((uuid_of(1),))).fills == ()


def test_a_checkpoint_keeps_fills_and_says_nothing_of_them_where_there_are_none() -> None:
    state = replace(applied(one_ledger(), fill(50, 7, 20, 20, 1), fill(51, 7, 30, 31, 2)), record_id=9)
    plan = plan_checkpoint(state, lambda: 1)
    header, own = decode_checkpoint(plan.body)
    assert restored("s", header, own, [], []).fills == state.fills
    assert b'"fills"' in header.encode()
    bare, _ = decode_checkpoint(plan_checkpoint(replace(one_ledger(), record_id=9), lambda: 1).body)
    assert b'"fills"' not in bare.encode()


def test_a_fold_of_records_is_the_same_as_of_their_edits() -> None:
    before = one_ledger()
    edit = fill(50, 7, 10, 31, 5)
    after = applied(before, edit)
    record = Record(2, before.incarnation, 0, Writer("w", "", "00"), 5, (edit,), after.totals())
    assert fold(before, record).fills == (edit,)
    assert b'"edit":"gap_filled"' in encode_record(record)


def test_an_earlier_release_refuses_what_names_a_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    state = applied(one_ledger(), fill(50, 7, 20, 20, 1))
    record = Record(2, EMPTY.incarnation, 0, Writer("w", "", "00"), 5, (*state.fills,), state.totals())
    body = encode_record(record)
    known = {name: kind for name, kind in EDIT_KINDS.items() if name != "gap_filled"}
    monkeypatch.setattr(manifest, "EDIT_KINDS", known)
    with pytest.raises(UnsupportedVersionError, match=r"unknown edit, written by a later release.*gap_filled"):
        decode_record(body)


RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8).map(
    lambda pairs: joined((low, low + length) for low, length in pairs)
)


def ids_in(runs: list[tuple[int, int]]) -> set[int]:
    return {each for low, high in runs for each in range(low, high + 1)}


@given(RUNS, st.integers(0, 45), st.integers(0, 45))
def test_gap_runs_and_fills_of_a_range_are_those_that_touch_it(
    runs: list[tuple[int, int]], first: int, last: int
) -> None:
    gaps = [gap(7, low, high) for low, high in runs]
    others = [gap(6, 0, 99), *gaps, gap(8, 0, 99)]
    assert ids_in(gap_runs(others, 7, first, last)) == {each for each in ids_in(runs) if first <= each <= last}
    fills = tuple(fill(50 + at, 7, low, high, 1) for at, (low, high) in enumerate(runs))
    touching = [each for each in fills if each.first.entry_id <= last and each.last.entry_id >= first]
    if first <= last:
        assert list(fills_in(fills, 7, first, last)) == touching


LEDGERS = range(1, 5)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_needed_fill_is_dropped_and_no_unneeded_one_stays(data: st.DataObject) -> None:
    """Random gaps, fills, truncations, deletions, retirements, purges and restores.

    A fill of a ledger that a readable or restorable segment covers is never dropped. In the end, with everything
    deleted and purged, none is left.
    """
    state = _drawn_stream(data)
    for _ in range(data.draw(st.integers(5, 25), label="steps")):
        before = state
        state = _stepped(state, data)
        covered = {span for each in state.segments.values() for span in _ledgers_of(each.begin, each.end)}
        dropped = {each for each in before.fills if each not in state.fills}
        assert not [each for each in dropped if each.first.ledger_id in covered]
        known = {each.uuid for each in state.fills}
        assert len(known) == len(state.fills)
    state = _tried(state, LedgersDeleted(tuple(LEDGERS)))
    offloaded = tuple(each.uuid for each in state.segments.values() if each.status is SegmentStatus.OFFLOADED)
    state = _tried(state, Retire(offloaded)) if offloaded else state
    for each in (purged := list(state.segments.values())):
        assert each.retire_record is not None
        state = _tried(state, Purged((each.uuid,), each.retire_record))
    assert not state.segments
    assert state.fills == () or not purged


def _ledgers_of(begin: Position, end: Position | None) -> range:
    return range(begin.ledger_id, (end or begin).ledger_id + 1)


def _drawn_stream(data: st.DataObject) -> ManifestState:
    """Four ledgers of segments and gaps in turn."""
    edits: list[Edit] = []
    number = 0
    for ledger_id in LEDGERS:
        at = 0
        is_gap = data.draw(st.booleans(), label="begins with a gap")
        for length in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5), label="ranges"):
            number += 1
            last = at + length - 1
            edits += [gap(ledger_id, at, last)] if is_gap else segment(number, ledger_id, at, last)
            at, is_gap = last + 1, not is_gap
        edits.append(LedgerClosed(ledger_id, at - 1))
    return replace(applied(EMPTY, *edits), record_id=1)


def _tried(state: ManifestState, *edits: Edit) -> ManifestState:
    """The state after a record; the same if it is refused."""
    try:
        return applied(state, *edits)
    except EditRefusedError:
        return state


def _stepped(state: ManifestState, data: st.DataObject) -> ManifestState:
    ledger_id = data.draw(st.sampled_from(LEDGERS), label="ledger")
    segments = list(state.segments.values())
    retired = [each for each in segments if each.status is SegmentStatus.RETIRED]
    offloaded = [each for each in segments if each.status is SegmentStatus.OFFLOADED]
    match data.draw(
        st.sampled_from(["fill", "truncate", "delete", "retire", "purge", "undo", "restore"]), label="step"
    ):
        case "fill":
            runs = gap_runs(state.gaps, ledger_id, 0, 100)
            if runs:
                some = sorted(data.draw(st.sets(st.sampled_from(runs), min_size=1, max_size=2), label="runs"))
                between = gap_runs(state.gaps, ledger_id, some[0][0], some[-1][1])
                edit = fill(1000 + state.record_id, ledger_id, some[0][0], some[-1][1], count_of(between))
                return _tried(state, edit)
        case "truncate":
            return _tried(state, Truncate(Position(ledger_id, data.draw(st.integers(0, 12), label="entry"))))
        case "delete":
            return _tried(state, LedgersDeleted((ledger_id,)))
        case "retire" if offloaded:
            return _tried(state, Retire((data.draw(st.sampled_from(offloaded), label="retired").uuid,)))
        case "purge" if retired:
            each = data.draw(st.sampled_from(retired), label="purged")
            return _tried(state, Purged((each.uuid,), each.retire_record or 0))
        case "undo" if retired:
            each = data.draw(st.sampled_from(retired), label="undone")
            head = each.begin if state.head is not None and each.begin < state.head else None
            edits = [UndoRetire((each.uuid,), each.retire_record or 0), Restore(head, ())]
            return _tried(_tried(state, *edits), edits[0])
        case "restore":
            return _tried(state, Restore(state.head, (ledger_id,)))
        case _:
            pass
    return state
