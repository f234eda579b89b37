"""Gaps between the manifest and the hot tier, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.manifest import (
    Assign,
    Edit,
    Failed,
    Gap,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    SetMethod,
    Truncate,
)
from offloader.coverage import GapReason
from offloader.errors import CorruptError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.apply import apply_edits
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.settings import OffloadSettings
from offloader.write.backfill import start_of_history
from offloader.write.hot_tier import HotRead, find_gaps, gap_before
from tests.support.manifests import DRIVER, summary_of, uuid_of


def ledger(ledger_id: int, entries: int, *, closed: bool = True) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=100 * entries, created_ms=0)


def assigned(number: int, begin: tuple[int, int], end: tuple[int, int] | None) -> Assign:
    return Assign(uuid_of(number), 2, Position(*begin), None if end is None else Position(*end), 5, DRIVER)


def offloaded(number: int, begin: tuple[int, int], end: tuple[int, int]) -> list[Edit]:
    return [
        assigned(number, begin, end),
        Offloaded(uuid_of(number), summary_of(Position(*begin), Position(*end)), 6),
    ]


def state_of(edits: Iterable[Edit]) -> ManifestState:
    empty = ManifestState(stream="s", incarnation=UUID(int=1))
    return apply_edits(empty, [OpenEpoch(1), *edits], record_id=1)


def gaps(state: ManifestState, ledgers: list[LedgerInfo], **options: object) -> list[tuple[Position, Position]]:
    return [(gap.first, gap.last) for gap in find_gaps(state, ledgers, **options).gaps]  # type: ignore[arg-type]


def test_stream_never_offloaded_begins_with_the_first_existing_entry() -> None:
    """Ledgers 1 and 2 were trimmed before the first listing: no segment promised them."""
    state, ledgers = state_of([]), [ledger(3, 5), ledger(4, 5)]
    start = start_of_history(state, ledgers, OffloadSettings())
    assert (start.gaps, start.blocked) == ([], None)
    assert start.plan.begin == Position(3, 0)


def test_trimmed_ledgers_after_the_newest_range_are_a_gap() -> None:
    state = state_of([*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 12)])
    assert gaps(state, [ledger(5, 5)]) == [(Position(1, 10), Position(5, -1))]


def test_completely_offloaded_ledger_may_be_deleted_from_the_source() -> None:
    state = state_of([*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 9)])
    assert gaps(state, [ledger(5, 5)]) == []


def test_ledger_end_known_only_to_the_source_is_recorded() -> None:
    """Else the ranges around it never count as consecutive, though nothing is missing."""
    state = state_of([*offloaded(1, (1, 0), (1, 9)), *offloaded(2, (2, 0), (2, 9))])
    found = find_gaps(state, [ledger(1, 10), ledger(2, 10)])
    assert (found.gaps, found.ends) == ([], [LedgerClosed(1, 9)])
    assert state.committed_end() == Position(1, 9)


def test_gap_between_manifest_ranges_lies_exactly_between_them() -> None:
    state = state_of(
        [*offloaded(1, (1, 0), (1, 9)), *offloaded(2, (4, 0), (4, 9)), LedgerClosed(1, 9), LedgerClosed(2, 3)]
    )
    assert gaps(state, [ledger(4, 20)]) == [(Position(1, 10), Position(4, -1))]


def test_range_of_a_failed_segment_is_a_gap_once_its_ledger_is_gone() -> None:
    edits = [
        *offloaded(1, (1, 0), (1, 9)),
        LedgerClosed(1, 9),
        assigned(2, (2, 0), (2, 7)),
        *offloaded(3, (3, 0), (3, 4)),
    ]
    state = state_of(edits)
    assert gaps(state, [ledger(1, 10), ledger(3, 9)], given_up={uuid_of(2)}) == [(Position(2, 0), Position(3, -1))]
    assert gaps(state, [ledger(1, 10), ledger(2, 8), ledger(3, 9)], given_up={uuid_of(2)}) == []


def test_range_of_a_recorded_failed_segment_is_a_gap_too() -> None:
    """It took over the end of ledger 1; nothing but the newest end knows that ledger 2 existed."""
    edits = [
        *offloaded(1, (1, 0), (1, 5)),
        assigned(2, (1, 6), (2, 4)),
        Failed(uuid_of(2), "gone"),
        LedgerClosed(1, 9),
        *offloaded(3, (1, 6), (1, 9)),
    ]
    state, after = state_of(edits), assigned(4, (5, 0), None)
    assert state.newest_end == Position(2, 4)
    with pytest.raises(EditRefusedError, match="a live segment at 5:0 doesn't follow the newest end 2:4"):
        apply_edits(state, [after], record_id=2)
    found = find_gaps(state, [ledger(1, 10), ledger(5, 9)]).gaps
    assert [(gap.first, gap.last) for gap in found] == [(Position(2, 0), Position(5, -1))]
    apply_edits(state, [*found, after], record_id=2)
    assert gaps(state, [ledger(1, 10), ledger(2, 5), ledger(5, 9)]) == []
    read = HotRead(EntryBatch.build(5, 0, [b"e"] * 3), [ledger(1, 10), ledger(5, 9)])
    live = gap_before("s", read, Position(1, 9), state, {1: 9}, is_next=True)
    assert live is not None
    assert (live.first, live.last) == (Position(2, 0), Position(5, -1))


def test_only_unrecorded_parts_of_an_empty_run_are_a_gap() -> None:
    """A source joins runs side by side: 3:16 is recorded when 3:15 is found to be lost; 3:20 was offloaded before."""
    edits = [
        *offloaded(1, (3, 0), (3, 4)),
        assigned(2, (3, 5), (3, 15)),
        Gap(Position(3, 16), Position(3, 16), GapReason.LOST),
        *offloaded(3, (3, 20), (3, 25)),
    ]
    state = state_of(edits)
    listed = replace(ledger(3, 40), lost=((10, 10), (15, 16), (18, 20), (30, 31)), unconfirmed=((17, 17),))
    found = find_gaps(state, [listed], given_up={uuid_of(2)}).gaps
    assert [(gap.first.entry_id, gap.last.entry_id, gap.reason) for gap in found] == [
        (10, 10, GapReason.LOST),
        (15, 15, GapReason.LOST),
        (17, 17, GapReason.UNCONFIRMED),
        (18, 19, GapReason.LOST),
        (30, 31, GapReason.LOST),
    ]
    apply_edits(state, [Failed(uuid_of(2), "gone"), *found], record_id=2)


def test_range_of_the_first_assigned_segment_is_a_gap_too() -> None:
    state = state_of([assigned(1, (1, 0), None)])
    assert gaps(state, [ledger(3, 9)], given_up={uuid_of(1)}) == [(Position(1, 0), Position(3, -1))]


def test_ledger_listed_earlier_and_missing_between_two_others_is_a_gap() -> None:
    state, ledgers = state_of([*offloaded(1, (1, 0), (1, 9))]), [ledger(1, 20), ledger(3, 9)]
    assert gaps(state, ledgers) == []
    assert gaps(state, ledgers, seen={2: None}) == [(Position(1, 20), Position(3, -1))]
    start = start_of_history(state, ledgers, OffloadSettings(on_gap="record"), seen={2: None})
    first = start.plan.next()
    assert first is not None
    assert (first.begin, first.end) == (Position(1, 10), Position(1, 19)), "no segment goes over the gap"


def test_by_default_nothing_is_planned_behind_a_gap() -> None:
    state = state_of([*offloaded(1, (1, 0), (1, 9))])
    start = start_of_history(state, [ledger(1, 20), ledger(3, 9)], OffloadSettings(), seen={2: 5})
    assert start.gaps == []
    assert start.blocked is not None
    assert start.blocked.first == Position(1, 20)
    planned = list(iter(start.plan.next, None))
    assert [each.end for each in planned] == [Position(1, 19)]


def test_gap_before_the_head_is_recorded_under_any_policy() -> None:
    """The stream was truncated while it wasn't offloaded: no entry was lost."""
    edits = [*offloaded(1, (1, 0), (1, 9)), SetMethod("none"), Truncate(Position(4, 0)), SetMethod("streaming")]
    start = start_of_history(state_of(edits), [ledger(4, 5)], OffloadSettings(on_gap="block"))
    assert start.gaps == [Gap(Position(1, 10), Position(4, -1), GapReason.BEFORE_HEAD)]
    assert start.blocked is None


def test_a_ledger_that_may_still_grow_is_never_followed_by_a_gap() -> None:
    """A source that contradicts itself: nothing is decided."""
    state = state_of(offloaded(1, (2, 0), (2, 9)))
    with pytest.raises(CorruptError, match="ledger 2 is still listed"):
        find_gaps(state, [ledger(2, 10, closed=False), ledger(4, 5)])


def test_properly_deleted_ledgers_are_no_gap() -> None:
    edits = [*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 9), *offloaded(2, (2, 0), (2, 9)), LedgerClosed(2, 9)]
    state = state_of([*edits, LedgersDeleted((1, 2)), Truncate(Position(2, 9))])
    assert gaps(state, [ledger(3, 4)], seen={1: 9, 2: 9}) == []
