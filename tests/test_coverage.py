"""Operations on ranges of positions, compared with sets of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import Position
from formats.manifest import Gap
from offloader.coverage import (
    GapReason,
    KnownEnds,
    Range,
    Run,
    SortedRanges,
    contiguous_end,
    count_of,
    first_begin,
    first_missing,
    follows,
    holes,
    joined,
    missing,
    outside,
    runs_of,
    unheld,
    without,
)

LEDGERS, ENTRIES = range(1, 5), range(5)
UNIVERSE = [Position(ledger, entry) for ledger in LEDGERS for entry in ENTRIES]

POSITIONS = st.sampled_from(UNIVERSE)
#: Ranges that lie anywhere, also over several ledgers.
RANGES = st.lists(st.tuples(POSITIONS, POSITIONS).map(lambda ends: (min(ends), max(ends))), max_size=6)
RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8).map(
    lambda pairs: joined((low, low + length) for low, length in pairs)
)
#: Ledger id -> last entry id; a ledger that isn't there may have any end.
LENGTHS = st.fixed_dictionaries(dict.fromkeys(LEDGERS, st.integers(-1, 4)))


def positions_in(ranges: Iterable[Range]) -> set[Position]:
    return {each for each in UNIVERSE for first, last in ranges if first <= each <= last}


def ids_in(runs: Iterable[Run]) -> set[int]:
    return {each for low, high in runs for each in range(low, high + 1)}


def ledgers_of(lengths: dict[int, int]) -> list[Range]:
    return [(Position(ledger, 0), Position(ledger, last)) for ledger, last in sorted(lengths.items()) if last >= 0]


@pytest.mark.slow
@given(RUNS, RUNS)
def test_runs_are_sets_of_ids(one: list[Run], other: list[Run]) -> None:
    assert ids_in(without(one, other)) == ids_in(one) - ids_in(other)
    assert count_of(one) == len(ids_in(one))
    assert runs_of(np.array(sorted(ids_in(one)), dtype=np.int64)) == one
    assert joined([*one, *other]) == runs_of(np.array(sorted(ids_in(one) | ids_in(other)), dtype=np.int64))


@pytest.mark.slow
@given(RANGES, RANGES)
def test_ranges_are_sets_of_positions(one: list[Range], other: list[Range]) -> None:
    together = joined(one)
    assert positions_in(together) == positions_in(one)
    assert all(before[1].next() < after[0] for before, after in pairwise(together))
    assert positions_in(without(together, joined(other))) == positions_in(one) - positions_in(other)


@pytest.mark.slow
@given(RANGES, RANGES, st.none() | POSITIONS)
def test_unheld_is_what_is_named_and_held_by_nobody(
    named: list[Range], held: list[Range], after: Position | None
) -> None:
    found = unheld(named, held, after)
    wanted = {each for each in positions_in(named) - positions_in(held) if after is None or each >= after}
    assert positions_in(found) == wanted
    assert all(before[1] < later[0] for before, later in pairwise(found))


@given(RANGES, POSITIONS, st.integers(0, 4))
def test_first_missing_is_the_lowest_position_that_no_range_holds(
    held: list[Range], first: Position, last_entry: int
) -> None:
    own = [(begin, end) for begin, end in held if begin.ledger_id == end.ledger_id]
    last = Position(first.ledger_id, last_entry)
    wanted = (each for each in UNIVERSE if first <= each <= last and each not in positions_in(own))
    assert first_missing(own, first, last) == next(wanted, None)


@given(LENGTHS, st.sets(POSITIONS), st.none() | POSITIONS, st.lists(st.integers(0, 2), min_size=20, max_size=20))
def test_contiguous_end_is_the_last_entry_before_the_first_that_no_range_holds(
    lengths: dict[int, int], left_out: set[Position], reached: Position | None, places: list[int]
) -> None:
    entries = [each for each in UNIVERSE if each.entry_id <= lengths[each.ledger_id]]
    held = [each for each in entries if each not in left_out]
    reached = None if reached not in held else reached
    # Each entry is a range; of three sequences, as of compacted segments, newer ones and gaps.
    sequences = [
        SortedRanges([Gap(each, each, "lost") for each, place in zip(held, places, strict=False) if place == number])
        for number in range(3)
    ]
    begin = held[0] if held and reached is None else reached
    ahead = [each for each in entries if begin is not None and each >= begin]
    stop = next((number for number, each in enumerate(ahead) if each not in held), len(ahead))
    assert contiguous_end(reached, sequences, KnownEnds(lengths)) == (ahead[stop - 1] if ahead else None)
    assert first_begin(sequences) == (held[0] if held else None)


@pytest.mark.parametrize(
    ("end", "begin", "closed", "expected"),
    [
        (Position(1, 4), Position(1, 5), {}, True),
        (Position(1, 4), Position(1, 6), {}, False),
        (Position(1, 4), Position(1, 4), {}, False),
        (Position(1, 4), Position(2, 0), {}, False),
        (Position(1, 4), Position(2, 0), {1: 4}, True),
        (Position(1, 4), Position(2, 0), {1: 5}, False),
        (Position(1, 4), Position(2, 1), {1: 4}, False),
        (Position(1, 4), Position(4, 0), {1: 4, 2: -1, 3: -1}, True),
        (Position(1, 4), Position(4, 0), {1: 4, 2: 7}, False),
        (Position(2, 4), Position(1, 0), {2: 4}, False),
    ],
)
def test_a_range_in_a_later_ledger_follows_only_a_known_ledger_end(
    end: Position, begin: Position, closed: dict[int, int], expected: bool
) -> None:
    assert follows(end, begin, KnownEnds(closed)) is expected


@given(LENGTHS, POSITIONS, POSITIONS)
def test_a_position_follows_another_if_no_entry_lies_between(
    lengths: dict[int, int], one: Position, other: Position
) -> None:
    """With all ends known, of two entries that exist."""
    existing = positions_in(ledgers_of(lengths))
    if {one, other} <= existing and one < other:
        assert follows(one, other, KnownEnds(lengths)) is not any(one < each < other for each in existing)


@pytest.mark.slow
@given(LENGTHS, st.data())
def test_holes_hold_every_entry_that_no_range_holds(lengths: dict[int, int], data: st.DataObject) -> None:
    """With all ends known."""
    entries = sorted(positions_in(ledgers_of(lengths)))
    kept = [each for each in entries if data.draw(st.booleans())]
    held = [(each, each) for each in kept]
    until = Position(len(LEDGERS) + 1, 0)
    found = list(holes(Position(0, 0), held, KnownEnds({0: 0, **lengths}), until=until))
    assert [each for each in entries if any(first <= each <= last for first, last in found)] == [
        each for each in entries if each not in kept
    ]


def test_a_hole_extends_to_the_next_range_and_ends_before_until() -> None:
    held = [(Position(1, 0), Position(1, 4)), (Position(3, 2), None), (Position(5, 0), Position(5, 9))]
    first, second = (Position(1, 5), Position(3, 1)), (Position(3, 3), Position(4, -1))
    assert list(holes(Position(1, -1), held, KnownEnds(), until=Position(4, 0))) == [first, second]
    assert next(holes(Position(1, -1), held, KnownEnds({1: 4})), None) == first
    assert list(holes(Position(5, 9), held, KnownEnds())) == []


@pytest.mark.slow
@given(LENGTHS, RANGES, st.none() | POSITIONS, st.none() | POSITIONS, st.booleans())
def test_missing_is_what_is_listed_and_not_covered(
    lengths: dict[int, int], ranges: list[Range], first: Position | None, last: Position | None, by_ledger: bool
) -> None:
    listed, covered = ledgers_of(lengths), sorted(ranges)
    found = missing(listed, covered, first=first, last=last, by_ledger=by_ledger)
    entries = positions_in(listed)
    wanted = {
        each
        for each in entries - positions_in(covered)
        if (first is None or each >= first) and (last is None or each <= last)
    }
    assert entries & positions_in(found) == wanted
    assert all(before[1] < after[0] for before, after in pairwise(found))
    for begin, end in found:
        assert {begin, end} <= wanted
        assert not by_ledger or begin.ledger_id == end.ledger_id
        assert not any(low <= end and high >= begin for low, high in covered)


def test_a_run_does_not_cross_what_is_covered_between_two_ledgers() -> None:
    ledgers = [(Position(1, 0), Position(1, 9)), (Position(3, 0), Position(3, 9))]
    assert missing(ledgers, []) == [(Position(1, 0), Position(3, 9))]
    assert missing(ledgers, [(Position(2, 0), Position(2, 9))]) == ledgers
    assert missing(ledgers, [(Position(1, 5), None)]) == [(Position(1, 0), Position(1, 4))]


def test_parts_name_the_range_that_they_are_of() -> None:
    whole: Sequence[Range] = [(Position(1, 0), Position(1, 9))]
    parts = list(outside(whole, [(Position(1, 3), Position(1, 4))]))
    assert [(part.whole, part.first, part.last, part.is_apart) for part in parts] == [
        (whole[0], Position(1, 0), Position(1, 2), False),
        (whole[0], Position(1, 5), Position(1, 9), True),
    ]


def test_a_gap_reason_says_whether_entries_are_lost_and_where_they_may_still_be() -> None:
    def reasons(kept: Callable[[GapReason], bool]) -> set[GapReason]:
        return {each for each in GapReason if kept(each)}

    assert reasons(lambda each: not each.is_loss) == {
        GapReason.BEFORE_HEAD,
        GapReason.TRUNCATED,
        GapReason.UNDELIVERED,
        GapReason.FILLED,
    }
    assert reasons(lambda each: each.keeps_hot_copy) == {
        GapReason.LOST,
        GapReason.UNCONFIRMED,
        GapReason.UNRECOVERED,
    }
    assert reasons(lambda each: each.is_listed) == {
        GapReason.LOST,
        GapReason.ACCEPTED,
        GapReason.UNCONFIRMED,
        GapReason.UNDELIVERED,
    }
    assert reasons(lambda each: each.is_loss and not each.may_block) == {GapReason.ACCEPTED}
    assert reasons(lambda each: each.may_be_filled) == {GapReason.UNRECOVERED}


def test_an_unknown_gap_reason_counts_as_a_loss() -> None:
    first, last = Position(1, 0), Position(1, 4)
    assert GapReason.of(Gap(first, last, str(GapReason.UNDELIVERED))) is GapReason.UNDELIVERED
    assert GapReason.of(Gap(first, last, "written by another version")).is_loss
