"""What neither the manifest nor the hot tier has: compared as values."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Assign, Edit, Gap, LedgerClosed, LedgersDeleted, Offloaded, OpenEpoch, SetMethod, Truncate
from offloader.errors import Corrupt
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.apply import apply_edits
from offloader.manifest.state import ManifestState
from offloader.settings import OffloadSettings
from offloader.write.backfill_plan import start_of_history
from offloader.write.gaps import BEFORE_HEAD, find_holes
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
    return [(gap.first, gap.last) for gap in find_holes(state, ledgers, **options).gaps]  # type: ignore[arg-type]


def test_a_stream_that_was_never_offloaded_begins_with_the_first_entry_that_is_there() -> None:
    """Ledgers 1 and 2 were trimmed before anybody looked: nobody promised them."""
    state, ledgers = state_of([]), [ledger(3, 5), ledger(4, 5)]
    start = start_of_history(state, ledgers, OffloadSettings())
    assert (start.gaps, start.blocked) == ([], None)
    assert start.plan.begin == Position(3, 0)


def test_ledgers_trimmed_after_the_newest_range_are_a_gap_up_to_what_is_there() -> None:
    state = state_of([*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 12)])
    assert gaps(state, [ledger(5, 5)]) == [(Position(1, 10), Position(5, -1))]


def test_a_ledger_whose_recorded_end_is_offloaded_may_be_gone() -> None:
    state = state_of([*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 9)])
    assert gaps(state, [ledger(5, 5)]) == []


def test_an_end_that_only_the_source_knows_is_to_be_recorded() -> None:
    """Else the ranges around it never count as consecutive, though nothing is missing."""
    state = state_of([*offloaded(1, (1, 0), (1, 9)), *offloaded(2, (2, 0), (2, 9))])
    holes = find_holes(state, [ledger(1, 10), ledger(2, 10)])
    assert (holes.gaps, holes.ends) == ([], [LedgerClosed(1, 9)])
    assert state.committed_end() == Position(1, 9)


def test_a_hole_between_ranges_of_the_manifest_lies_between_them_and_nowhere_else() -> None:
    state = state_of(
        [*offloaded(1, (1, 0), (1, 9)), *offloaded(2, (4, 0), (4, 9)), LedgerClosed(1, 9), LedgerClosed(2, 3)]
    )
    assert gaps(state, [ledger(4, 20)]) == [(Position(1, 10), Position(4, -1))]


def test_what_a_failed_segment_promised_is_missed_when_it_is_gone() -> None:
    edits = [
        *offloaded(1, (1, 0), (1, 9)),
        LedgerClosed(1, 9),
        assigned(2, (2, 0), (2, 7)),
        *offloaded(3, (3, 0), (3, 4)),
    ]
    state = state_of(edits)
    assert gaps(state, [ledger(1, 10), ledger(3, 9)], given_up={uuid_of(2)}) == [(Position(2, 0), Position(3, -1))]
    assert gaps(state, [ledger(1, 10), ledger(2, 8), ledger(3, 9)], given_up={uuid_of(2)}) == []


def test_what_the_first_segment_promised_is_missed_too() -> None:
    state = state_of([assigned(1, (1, 0), None)])
    assert gaps(state, [ledger(3, 9)], given_up={uuid_of(1)}) == [(Position(1, 0), Position(3, -1))]


def test_a_ledger_that_was_listed_once_is_missed_between_two_that_are() -> None:
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


def test_what_lies_before_the_head_is_recorded_whatever_the_policy() -> None:
    """The stream was truncated while it wasn't offloaded: nobody lost anything."""
    edits = [*offloaded(1, (1, 0), (1, 9)), SetMethod("none"), Truncate(Position(4, 0)), SetMethod("streaming")]
    start = start_of_history(state_of(edits), [ledger(4, 5)], OffloadSettings(on_gap="block"))
    assert start.gaps == [Gap(Position(1, 10), Position(4, -1), BEFORE_HEAD)]
    assert start.blocked is None


def test_a_ledger_that_may_still_grow_is_never_followed_by_a_gap() -> None:
    """A source that contradicts itself: nothing is decided."""
    state = state_of(offloaded(1, (2, 0), (2, 9)))
    with pytest.raises(Corrupt, match="ledger 2 is still listed"):
        find_holes(state, [ledger(2, 10, closed=False), ledger(4, 5)])


def test_ledgers_that_left_the_stream_by_right_are_not_missed() -> None:
    edits = [*offloaded(1, (1, 0), (1, 9)), LedgerClosed(1, 9), *offloaded(2, (2, 0), (2, 9)), LedgerClosed(2, 9)]
    state = state_of([*edits, LedgersDeleted((1, 2)), Truncate(Position(2, 9))])
    assert gaps(state, [ledger(3, 4)], seen={1: 9, 2: 9}) == []
