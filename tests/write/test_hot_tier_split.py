"""History is cut into segments by bytes, without the parts that are already offloaded."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.manifest import Assign, Edit, Gap, LedgerClosed, LedgersDeleted, Offloaded, OpenEpoch
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.apply import apply_edits
from offloader.manifest.state import ManifestState
from offloader.write.backfill_service import ledgers_of_method
from offloader.write.hot_tier import (
    HistoryRange,
    LedgerSizeEstimator,
    acknowledged_end,
    partly_offloaded,
    position_leaving,
    uncovered,
)

EMPTY = ManifestState(stream="a/b", incarnation=UUID(int=7))


def ledger(ledger_id: int, entries: int, size_bytes: int, *, closed: bool = True) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=size_bytes, created_ms=0)


def span(first: Position, last: Position) -> HistoryRange:
    return HistoryRange(first, last)


def summary(begin: Position, end: Position, layout: Layout = Layout.V2) -> SegmentSummary:
    return SegmentSummary(
        layout=layout,
        begin=begin,
        end=end,
        data_bytes=1,
        index_bytes=1,
        data_crc32c=0,
        index_crc32c=0,
        entries=1,
        payload_bytes=1,
        publish_time_min_ms=-1,
        publish_time_max_ms=-1,
        blocks=1,
        compressed=False,
        ledgers=(),
    )


def state_with(*edits: Edit) -> ManifestState:
    return apply_edits(EMPTY, [OpenEpoch(1), *edits], record_id=1)


def held(number: int, begin: Position, end: Position, layout: Layout = Layout.V2) -> list[Edit]:
    uuid = UUID(int=number)
    return [Assign(uuid, int(layout), begin, end, 0, {}), Offloaded(uuid, summary(begin, end, layout), 0)]


def test_large_ledger_is_cut_into_equal_shares_within_the_segment_size() -> None:
    sizes = LedgerSizeEstimator([ledger(1, 1000, 1000 * (100 - ENTRY_HEADER_BYTES))])
    rest, lengths = span(Position(1, 0), Position(1, 999)), []
    while True:
        cut = sizes.cut(rest, 30_000)
        lengths.append(cut.end.entry_id - cut.begin.entry_id + 1)
        if cut.end == rest.end:
            break
        rest = span(Position(1, cut.end.entry_id + 1), rest.end)
    assert lengths == [250, 250, 250, 250]


def test_small_ledgers_share_a_segment() -> None:
    ledgers = [ledger(number, 10, 10 * (100 - ENTRY_HEADER_BYTES)) for number in (3, 7, 8, 20)]
    whole = span(Position(3, 0), Position(20, 9))
    assert LedgerSizeEstimator(ledgers).cut(whole, 2000) == span(Position(3, 0), Position(7, 9))
    assert LedgerSizeEstimator(ledgers).cut(whole, 10_000) == whole


def test_bytes_read_so_far_correct_the_estimate_of_the_rest() -> None:
    """The first half of the ledger turned out to hold nearly all of its bytes: the rest is one small segment."""
    info = ledger(1, 200, 100 * 900 + 100 * 10)
    rest = span(Position(1, 100), Position(1, 199))
    assert LedgerSizeEstimator([info]).segments(rest, 10_000) == 5
    known = {1: [LedgerSpan(1, 0, 99, 100, 100 * 900)]}
    assert LedgerSizeEstimator([info], known).cut(rest, 10_000) == rest


def test_a_recorded_size_of_zero_is_replaced_by_what_was_read() -> None:
    known = {1: [LedgerSpan(1, 0, 99, 100, 100 * 988)]}
    assert LedgerSizeEstimator([ledger(1, 200, 0)], known).between(Position(1, 100), Position(1, 199)) == 100_000


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=8),
    st.integers(20, 4000),
    st.data(),
)
def test_cuts_cover_the_range_in_order_and_exceed_the_size_by_at_most_an_entry(
    drawn: list[tuple[int, int]], segment_bytes: int, data: st.DataObject
) -> None:
    ledgers = [ledger(3 * n + 1, entries, size if entries else 0) for n, (entries, size) in enumerate(drawn)]
    places = [Position(info.ledger_id, entry) for info in ledgers for entry in range(info.entries)]
    if not places:
        return
    start = data.draw(st.integers(0, len(places) - 1))
    stop = data.draw(st.integers(start, len(places) - 1))
    sizes = LedgerSizeEstimator(ledgers)
    largest = max(info.size_bytes / info.entries + ENTRY_HEADER_BYTES for info in ledgers if info.entries)
    at = start
    while at <= stop:
        cut = sizes.cut(span(places[at], places[stop]), segment_bytes)
        assert cut.begin == places[at]
        assert places[at] <= cut.end <= places[stop]
        assert sizes.between(cut.begin, cut.end) <= segment_bytes + largest + 1e-6
        at = places.index(cut.end) + 1
    assert at == stop + 1


def test_uncovered_ranges_exclude_held_and_promised_entries() -> None:
    ledgers = [ledger(1, 10, 100), ledger(2, 0, 0), ledger(4, 10, 100), ledger(6, 10, 100, closed=False)]
    whole = span(Position(1, 0), Position(6, 9))
    assert uncovered(EMPTY, ledgers) == [whole]
    assert uncovered(EMPTY, ledgers, last=Position(4, 3)) == [span(Position(1, 0), Position(4, 3))]

    in_the_middle = state_with(*held(1, Position(1, 5), Position(4, 2)))
    assert uncovered(in_the_middle, ledgers) == [
        span(Position(1, 0), Position(1, 4)),
        span(Position(4, 3), Position(6, 9)),
    ]
    promised = state_with(Assign(UUID(int=1), 2, Position(1, 0), None, 0, {}))
    assert uncovered(promised, ledgers) == []
    assert uncovered(promised, ledgers, given_up={UUID(int=1)}) == [whole]


def test_gaps_deleted_ledgers_and_entries_before_the_head_are_not_offloaded() -> None:
    ledgers = [ledger(1, 10, 100), ledger(2, 10, 100), ledger(3, 10, 100)]
    gap = state_with(*held(1, Position(1, 0), Position(1, 3)), Gap(Position(1, 4), Position(1, 6), "gone"))
    assert uncovered(gap, ledgers) == [span(Position(1, 7), Position(3, 9))]
    assert uncovered(state_with(LedgersDeleted((1, 2))), ledgers) == [span(Position(3, 0), Position(3, 9))]
    # No range spans it: the segment would count as holding it, should the deletion be undone.
    assert uncovered(state_with(LedgersDeleted((2,))), ledgers) == [
        span(Position(1, 0), Position(1, 9)),
        span(Position(3, 0), Position(3, 9)),
    ]


def test_the_ledger_method_skips_a_deleted_ledger_between_two_live_ones() -> None:
    live = [ledger(1, 10, 100), ledger(3, 10, 100)]
    for listed in ([*live, ledger(2, 10, 100)], live):
        in_order = sorted(listed, key=lambda info: info.ledger_id)
        plan = ledgers_of_method(state_with(LedgersDeleted((2,))), in_order, now_ms=0)
        assert [(each.layout, each.begin, each.end) for each in plan.segments] == [
            (Layout.V1, Position(1, 0), Position(1, 9)),
            (Layout.V1, Position(3, 0), Position(3, 9)),
        ]
        assert plan.refused == []


def test_nothing_before_a_missing_entry_is_called_safe() -> None:
    """The committed end starts with the first range; the source is acknowledged less when it has earlier entries."""
    ledgers = [ledger(1, 10, 100), ledger(2, 10, 100), ledger(3, 10, 100)]
    late = state_with(LedgerClosed(1, 9), *held(1, Position(2, 0), Position(2, 9)))
    assert late.committed_end() == Position(2, 9)
    assert acknowledged_end(late, ledgers) is None
    both = [*held(1, Position(1, 0), Position(1, 9)), *held(2, Position(2, 0), Position(2, 9))]
    whole = state_with(LedgerClosed(1, 9), *both)
    assert acknowledged_end(whole, ledgers) == Position(2, 9)


def test_a_ledger_with_a_v2_part_is_known_as_such() -> None:
    state = state_with(
        LedgerClosed(1, 9),
        *held(1, Position(1, 0), Position(1, 9), Layout.V1),
        *held(2, Position(2, 0), Position(2, 3)),
    )
    assert [partly_offloaded(state, ledger(number, 10, 100)) for number in (1, 2, 3)] == [False, True, False]


def test_the_size_threshold_keeps_the_newest_bytes_behind() -> None:
    ledgers = [ledger(1, 10, 1000), ledger(2, 10, 1000), ledger(3, 5, 500, closed=False)]
    assert position_leaving(ledgers, 2500) is None
    assert position_leaving(ledgers, 2499) == Position(1, 0)
    assert position_leaving(ledgers, 1500) == Position(1, 9)
    assert position_leaving(ledgers, 700) == Position(2, 7)
    assert position_leaving(ledgers, 0) == Position(3, 4)
