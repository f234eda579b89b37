"""The manifest's view: allowed edits and their result. Pure."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import (
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    Hold,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Pause,
    Purged,
    Record,
    Recover,
    Release,
    Replace,
    Resume,
    Retire,
    Rewrite,
    Rewritten,
    SetMethod,
    StreamDeleted,
    Totals,
    Truncate,
    UndoRetire,
    Writer,
)
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.manifest.apply import apply_edits, fold, is_applied
from offloader.manifest.compaction import compacted
from offloader.manifest.source_identity import known_ledgers
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentStatus
from tests.support.manifests import summary_of

INCARNATION = UUID(int=7)
A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
EMPTY = ManifestState(stream="s", incarnation=INCARNATION)


def summary(begin: Position, end: Position) -> SegmentSummary:
    return SegmentSummary(
        layout=Layout.V2,
        begin=begin,
        end=end,
        data_bytes=100,
        index_bytes=10,
        data_crc32c=0,
        index_crc32c=0,
        entries=5,
        payload_bytes=50,
        publish_time_min_ms=-1,
        publish_time_max_ms=-1,
        blocks=1,
        compressed=False,
        ledgers=(LedgerSpan(begin.ledger_id, begin.entry_id, end.entry_id, 5, 50),),
    )


def assign(uuid: UUID, begin: Position, end: Position | None = None) -> Assign:
    return Assign(uuid, 2, begin, end, 1, {})


def offloaded(uuid: UUID, begin: Position, end: Position) -> Offloaded:
    return Offloaded(uuid, summary(begin, end), 2)


def after(*edits: Edit, state: ManifestState = EMPTY) -> ManifestState:
    return apply_edits(state, edits, record_id=state.record_id + 1)


def segment(uuid: UUID, begin: Position, end: Position) -> list[Edit]:
    return [assign(uuid, begin), offloaded(uuid, begin, end)]


def refused(*edits: Edit, state: ManifestState, because: str) -> None:
    with pytest.raises(EditRefusedError, match=because):
        after(*edits, state=state)


ONE = after(OpenEpoch(1), *segment(A, Position(1, 0), Position(1, 9)))


def test_views_are_immutable() -> None:
    before = repr(ONE)

    after(OpenEpoch(2), LedgersDeleted((1,)), Retire((A,)), LedgerClosed(1, 9), state=ONE)

    assert repr(ONE) == before


def test_a_segment_is_assigned_then_offloaded_then_readable() -> None:
    state = after(assign(A, Position(1, 0)))
    assert state.segments[A].status is SegmentStatus.ASSIGNED
    assert state.offloaded() == []
    assert state.committed_end() is None

    state = after(offloaded(A, Position(1, 0), Position(1, 9)), state=state)
    assert [s.uuid for s in state.offloaded()] == [A]
    assert state.committed_end() == Position(1, 9)
    assert state.first_position() == Position(1, 0)
    assert state.totals() == Totals(1, 5, 50, 110, Position(1, 0), Position(1, 9))


@pytest.mark.parametrize("sealed", [False, True], ids=["tail", "sealed"])
def test_segments_do_not_continue_over_a_ledger_with_uncovered_entries(sealed: bool) -> None:
    """Ledger 2 has entries that no segment holds: they would be lost silently at a rollover."""
    state = after(LedgerClosed(1, 9), LedgerClosed(2, 4), LedgerClosed(3, -1), state=ONE)
    if sealed:
        state = compacted(state, run_rows_min=1)
        assert state.ledgers.tail == {}
    refused(assign(B, Position(3, 0)), state=state, because="doesn't follow the newest end 1:9")
    history = [assign(B, Position(3, 0), Position(3, 4)), offloaded(B, Position(3, 0), Position(3, 4))]
    assert after(*history, state=state).committed_end() == Position(1, 9)
    assert after(*segment(B, Position(2, 0), Position(2, 4)), assign(C, Position(4, 0)), state=state).assigned()


def in_front(state: ManifestState) -> ManifestState:
    """With a range before all others, so that everything is walked over again."""
    edits = [assign(C, Position(0, 0), Position(0, 4)), offloaded(C, Position(0, 0), Position(0, 4))]
    return after(*edits, LedgerClosed(0, 4), state=state)


def test_committed_end_stops_at_compacted_segments_with_unknown_ledger_ends() -> None:
    whole = after(LedgerClosed(1, 9), *segment(B, Position(3, 0), Position(3, 9)), state=ONE)
    assert in_front(compacted(whole, run_rows_min=1)).committed_end() == Position(3, 9)
    # As only damage could leave them: no rule lets such segments be assigned one after the other.
    unsaid = replace(whole, ledgers=ONE.ledgers)
    assert in_front(compacted(unsaid, run_rows_min=1)).prefix_end() == Position(1, 9)
    between = replace(whole, ledgers=after(LedgerClosed(1, 9), LedgerClosed(2, 4), state=ONE).ledgers)
    assert in_front(compacted(between, run_rows_min=1)).prefix_end() == Position(1, 9)


def test_a_live_segment_begins_right_after_the_newest_end() -> None:
    refused(assign(B, Position(1, 11)), state=ONE, because="doesn't follow the newest end 1:9")
    refused(assign(B, Position(2, 0)), state=ONE, because="doesn't follow the newest end 1:9")

    state = after(LedgerClosed(1, 9), assign(B, Position(2, 0)), state=ONE)

    assert state.segments[B].begin == Position(2, 0)


def test_the_newest_end_outlives_its_segment() -> None:
    """Otherwise a purge of everything would let the next segment begin anywhere."""
    state = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    state = after(Purged((A,), state.record_id), state=state)

    refused(assign(B, Position(1, 0)), state=state, because="doesn't follow the newest end 1:9")


def test_a_historical_range_doesn_t_take_the_newest_end_back() -> None:
    state = in_front(ONE)
    assert state.newest_end == Position(1, 9)
    assert after(assign(B, Position(1, 10)), state=state).assigned()


def test_ranges_never_overlap() -> None:
    refused(assign(B, Position(1, 5), Position(1, 12)), state=ONE, because="overlaps segment")
    live = after(assign(B, Position(1, 10)), state=ONE)
    refused(assign(C, Position(3, 0), Position(3, 4)), state=live, because="overlaps segment")
    refused(Gap(Position(1, 9), Position(1, 9), "lost"), state=ONE, because="overlaps segment")
    refused(Adopt(B, summary(Position(1, 0), Position(1, 2)), {}, False), state=ONE, because="overlaps segment")
    gap = after(Gap(Position(1, 10), Position(1, 12), "lost"), state=ONE)
    refused(assign(B, Position(1, 12), Position(1, 20)), state=gap, because="overlaps the gap")


def test_a_historical_range_may_be_added_where_it_is_free() -> None:
    state = after(*segment(A, Position(5, 0), Position(5, 9)))

    state = after(assign(B, Position(3, 0), Position(3, 9)), state=state)

    assert state.segments[B].end == Position(3, 9)
    assert state.prefix_end() is None, "an assigned range in front is not committed"


def test_offloaded_needs_an_assigned_segment_with_the_same_range() -> None:
    refused(offloaded(B, Position(1, 10), Position(1, 11)), state=ONE, because="unknown, not assigned")
    refused(offloaded(A, Position(1, 0), Position(1, 9)), state=ONE, because="offloaded, not assigned")
    live = after(assign(B, Position(1, 10)), state=ONE)
    refused(offloaded(B, Position(1, 11), Position(1, 12)), state=live, because="assigned was 1:10")
    failed = after(Failed(B, "x"), state=live)
    refused(offloaded(B, Position(1, 10), Position(1, 12)), state=failed, because="unknown, not assigned")


def test_known_uuid_is_never_assigned_again() -> None:
    """Its objects exist: a second writer would overwrite them."""
    refused(assign(A, Position(1, 10)), state=ONE, because="exists already")
    refused(Adopt(A, summary(Position(5, 0), Position(5, 2)), {}, True), state=ONE, because="exists already")
    live = after(assign(B, Position(1, 10), Position(1, 12)), state=ONE)
    refused(assign(B, Position(2, 0), Position(2, 9)), state=live, because="exists already")


def test_failed_and_assigned_again_in_one_record() -> None:
    live = after(assign(B, Position(1, 10)), state=ONE)

    state = after(Failed(B, "store down"), assign(C, Position(1, 10)), state=live)

    assert set(state.segments) == {A, C}


def test_committed_end_stops_at_an_unrecorded_gap_and_passes_a_recorded_one() -> None:
    state = after(*segment(A, Position(1, 0), Position(1, 9)))
    state = after(assign(B, Position(1, 20), Position(1, 29)), state=state)
    state = after(offloaded(B, Position(1, 20), Position(1, 29)), state=state)
    assert state.committed_end() == Position(1, 9)

    state = after(Gap(Position(1, 10), Position(1, 19), "lost"), state=state)
    assert state.committed_end() == Position(1, 29)


def test_a_closed_ledger_keeps_its_end() -> None:
    state = after(LedgerClosed(1, 9), LedgerClosed(1, 9), state=ONE)
    refused(LedgerClosed(1, 8), state=state, because="ended at 9, now 8")


def test_an_epoch_follows_the_one_before() -> None:
    refused(OpenEpoch(1), state=ONE, because="doesn't follow")
    refused(OpenEpoch(3), state=ONE, because="doesn't follow")
    assert after(OpenEpoch(2), state=ONE).epoch == 2


def test_requirements_name_the_incarnation_and_the_epoch() -> None:
    ONE.check(INCARNATION, 1)
    ONE.check(INCARNATION, None)
    with pytest.raises(EditRefusedError, match="owned by epoch 1"):
        ONE.check(INCARNATION, 2)
    with pytest.raises(EditRefusedError, match="created again"):
        ONE.check(UUID(int=8), 1)
    with pytest.raises(EditRefusedError, match="was deleted"):
        after(StreamDeleted(), state=ONE).check(INCARNATION, 1)


def test_nothing_follows_the_deletion_of_the_stream() -> None:
    refused(LedgerClosed(1, 9), state=after(StreamDeleted(), state=ONE), because="deleted")


def test_head_never_moves_back() -> None:
    state = after(Truncate(Position(1, 5)), state=ONE)

    assert state.first_position() == Position(1, 5)
    refused(Truncate(Position(1, 4)), state=state, because="can't move back")


def test_purging_needs_the_very_record_that_retired() -> None:
    """Else a sweeper with an old list of leases purges what was undone and retired again."""
    retired = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    first = retired.record_id
    undone = after(UndoRetire((A,), first), state=retired)
    assert undone.segments[A].status is SegmentStatus.OFFLOADED
    again = after(Retire((A,)), state=undone)

    refused(Purged((A,), first), state=again, because=f"retired by record {again.record_id}, not {first}")
    refused(UndoRetire((A,), first), state=again, because="retired by record")
    purged = after(Purged((A,), again.record_id), state=again)
    assert A not in purged.segments
    refused(UndoRetire((A,), again.record_id), state=purged, because="unknown, not retired")


def test_a_retired_segment_is_not_readable_but_its_range_stays_taken() -> None:
    state = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)

    assert state.offloaded() == []
    refused(assign(B, Position(1, 0), Position(1, 3)), state=state, because="overlaps segment")


def test_only_adopted_segments_are_released() -> None:
    state = after(Adopt(B, summary(Position(1, 10), Position(1, 14)), {"bucket": "theirs"}, False), state=ONE)

    refused(Release((A,)), state=state, because="belongs to this project")
    assert set(after(Release((B,)), state=state).segments) == {A}


def test_marks_and_method_are_kept() -> None:
    state = after(LedgersDeleted((1,)), LedgersDeleted((2,)), SetMethod("ledger"), state=ONE)

    assert state.deleted_ledgers == {1, 2}
    assert state.method == "ledger"
    refused(SetMethod("magic"), state=ONE, because="unknown method")


def test_a_record_must_be_the_next_one_of_the_same_incarnation_and_epoch() -> None:
    record = Record(ONE.record_id + 1, INCARNATION, 2, Writer("w", "", "n"), 77, (OpenEpoch(2),), ONE.totals())

    folded = fold(ONE, record)

    assert (folded.epoch, folded.time_ms, folded.writer.name) == (2, 77, "w")
    for wrong in (
        replace(record, record_id=ONE.record_id + 2),
        replace(record, incarnation=UUID(int=9)),
        replace(record, epoch=5),
    ):
        with pytest.raises(EditRefusedError):
            fold(ONE, wrong)


# -- what may be truncated, released and deleted


def test_nothing_is_added_before_the_head() -> None:
    """What was before it is purged: the prefix would begin again there, and end at the first gap, for ever."""
    state = after(LedgerClosed(1, 9), *segment(B, Position(2, 0), Position(2, 9)), Truncate(Position(2, 0)), state=ONE)
    state = after(Retire((A,)), state=state)
    state = after(Purged((A,), state.record_id), state=state)
    assert state.committed_end() == Position(2, 9)
    refused(assign(C, Position(0, 0), Position(0, 4)), state=state, because="0:4 lies before the head 2:0")
    refused(Gap(Position(1, 0), Position(1, 9), "lost"), state=state, because="1:9 lies before the head 2:0")
    found = summary(Position(0, 0), Position(0, 2))
    refused(Adopt(C, found, {}, False), state=state, because="0:2 lies before the head 2:0")


def test_the_head_stays_within_what_is_committed() -> None:
    """The only copy of entries past it may be the hot one: it would be deleted before it is offloaded."""
    live = after(assign(B, Position(1, 10)), state=ONE)
    for head in (Position(1, 5), Position(1, 9), Position(1, 10)):
        assert after(Truncate(head), state=live).head == head
    refused(Truncate(Position(1, 11)), state=live, because="past the committed end 1:9")
    refused(Truncate(Position(2, 0)), state=live, because="past the committed end 1:9")
    closed = after(LedgerClosed(1, 9), state=ONE)
    assert after(Truncate(Position(2, 0)), state=closed).head == Position(2, 0)
    refused(Truncate(Position(1, 0)), state=EMPTY, because="past the committed end")
    assert after(SetMethod("none"), Truncate(Position(7, 0)), state=ONE).head == Position(7, 0)


def test_forced_truncation_records_the_loss_and_the_stream_continues_at_head() -> None:
    live = after(assign(B, Position(1, 10)), state=ONE)
    forced = [Failed(B, "truncated"), Gap(Position(1, 10), Position(1, 99), "truncated"), Truncate(Position(1, 100))]

    state = after(*forced, state=live)

    assert (state.head, state.committed_end()) == (Position(1, 100), Position(1, 99))
    assert after(assign(C, Position(1, 100)), state=state).assigned()[0].begin == Position(1, 100)


def test_live_segment_begins_at_the_head_truncated_while_not_offloading() -> None:
    state = after(SetMethod("none"), Truncate(Position(9, 4)), SetMethod("streaming"), state=ONE)
    refused(assign(B, Position(9, 5)), state=state, because="doesn't follow the newest end 1:9")
    assert after(assign(B, Position(9, 4)), state=state).assigned()[0].begin == Position(9, 4)


def test_a_hot_ledger_is_released_only_when_all_of_it_is_committed() -> None:
    refused(HotReleased((1,)), state=ONE, because="isn't recorded as closed")
    longer = after(LedgerClosed(1, 12), state=ONE)
    refused(HotReleased((1,)), state=longer, because="ends at 12, the committed end is 1:9")
    whole = after(LedgerClosed(1, 9), LedgerClosed(2, -1), HotReleased((1, 2)), state=ONE)
    assert whole.hot_released_ledgers == {1, 2}


def test_a_hot_ledger_before_the_first_range_was_never_offloaded() -> None:
    """The committed end is past it, and yet only its hot copy has its entries."""
    later = after(LedgerClosed(1, 4), *segment(A, Position(2, 0), Position(2, 9)))
    assert later.committed_end() == Position(2, 9)
    refused(HotReleased((1,)), state=later, because="entry 1:0 is neither in an offloaded segment")
    history = [assign(B, Position(1, 3), Position(1, 4)), offloaded(B, Position(1, 3), Position(1, 4))]
    half = after(*history, state=later)
    refused(HotReleased((1,)), state=half, because="entry 1:0 is neither")
    assert after(Gap(Position(1, 0), Position(1, 2), "deleted"), HotReleased((1,)), state=half).hot_released_ledgers
    assert after(Truncate(Position(1, 3)), HotReleased((1,)), state=half).hot_released_ledgers
    assert after(LedgersDeleted((1,)), HotReleased((1,)), state=later).hot_released_ledgers


def test_releasing_the_hot_copy_makes_nothing_deletable_in_the_cold_tier() -> None:
    state = after(LedgerClosed(1, 9), HotReleased((1,)), state=ONE)
    refused(Retire((A,)), state=state, because="is not before the head")


def test_segment_with_deleted_ledgers_or_before_the_head_is_deletable() -> None:
    refused(Retire((A,)), state=ONE, because="is not before the head")
    refused(Truncate(Position(1, 9)), Retire((A,)), state=ONE, because="is not before the head")
    before = after(Truncate(Position(1, 10)), Retire((A,)), state=ONE)
    assert before.segments[A].status is SegmentStatus.RETIRED
    gone = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    assert gone.segments[A].status is SegmentStatus.RETIRED


def test_segment_of_two_ledgers_is_deletable_when_both_are_deleted() -> None:
    both = summary_of(Position(1, 10), Position(2, 3), spans=2)
    state = after(LedgerClosed(1, 11), assign(B, Position(1, 10)), Offloaded(B, both, 6), state=ONE)
    for ledger_id in (1, 2):
        refused(LedgersDeleted((ledger_id,)), Retire((B,)), state=state, because="is not before the head")
    assert after(LedgersDeleted((1, 2)), Retire((B,)), state=state).segments[B].status is SegmentStatus.RETIRED


def test_foreign_segment_is_released_and_never_retired() -> None:
    adopted = after(Adopt(B, summary(Position(1, 10), Position(1, 14)), {}, False), LedgersDeleted((1,)), state=ONE)
    refused(Retire((B,)), state=adopted, because="doesn't belong to this project: release it instead")


def test_nothing_is_deleted_while_the_stream_is_on_hold() -> None:
    retired = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    held = after(Hold(True, "court"), state=retired)
    refused(Purged((A,), retired.record_id), state=held, because="on hold")
    refused(StreamDeleted(), state=held, because="on hold")
    adopted = after(Adopt(B, summary(Position(1, 10), Position(1, 14)), {}, False), state=ONE)
    truncated = after(Truncate(Position(1, 10)), state=adopted)
    for edit in (Truncate(Position(1, 11)), LedgersDeleted((1,)), Retire((A,)), Release((B,))):
        refused(Hold(True, "x"), edit, state=truncated, because="on hold")
        after(edit, state=truncated)
    assert after(UndoRetire((A,), retired.record_id), state=held).segments[A].status is SegmentStatus.OFFLOADED
    assert A not in after(Hold(False, ""), Purged((A,), retired.record_id), state=held).segments


def test_retention_doesn_t_take_the_committed_end_back() -> None:
    """Else the next start of a writer would offload from the beginning again."""
    state = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    state = after(Purged((A,), state.record_id), state=state)
    assert (state.committed_end(), state.first_position()) == (Position(1, 9), None)


class TestHistoryInFront:
    """Older ranges that are added to a stream of which something is committed already."""

    LATER = after(OpenEpoch(1), *segment(A, Position(3, 0), Position(3, 9)))
    PROMISED = after(assign(B, Position(1, 0), Position(1, 4)), state=LATER)

    def test_a_promise_doesn_t_take_the_committed_end_back(self) -> None:
        assert self.PROMISED.committed_end() == Position(3, 9)
        assert self.PROMISED.prefix_end() is None
        assert self.PROMISED.first_position() == Position(3, 0)

    def test_history_in_front_is_readable_only_when_it_joins_without_a_gap(self) -> None:
        """Otherwise a scan from the first entry would skip a gap silently."""
        there = after(offloaded(B, Position(1, 0), Position(1, 4)), state=self.PROMISED)
        assert (there.first_position(), there.committed_end()) == (Position(3, 0), Position(3, 9))
        assert there.prefix_end() == Position(1, 4)
        met = after(LedgerClosed(1, 4), state=there)
        assert (met.first_position(), met.committed_end()) == (Position(1, 0), Position(3, 9))
        assert (met.committed_from, met.prefix_end()) == (None, Position(3, 9))

    def test_later_end_advances_while_history_is_promised(self) -> None:
        on = after(*segment(C, Position(3, 10), Position(3, 19)), state=self.PROMISED)
        assert (on.committed_end(), on.prefix_end()) == (Position(3, 19), None)

    def test_failed_promise_of_history_leaves_nothing(self) -> None:
        failed = after(Failed(B, "x"), state=self.PROMISED)
        assert (failed.committed_from, failed.committed_end(), failed.prefix_end()) == (
            None,
            Position(3, 9),
            Position(3, 9),
        )

    def test_head_stays_before_promised_history(self) -> None:
        refused(Truncate(Position(3, 5)), state=self.PROMISED, because="at 1:0 is being offloaded before 3:5")
        done = after(offloaded(B, Position(1, 0), Position(1, 4)), LedgerClosed(1, 4), state=self.PROMISED)
        assert after(Truncate(Position(3, 5)), state=done).head == Position(3, 5)

    def test_head_past_promised_history_removes_the_need_to_join(self) -> None:
        """History before the head needn't join any more."""
        there = after(offloaded(B, Position(1, 0), Position(1, 4)), state=self.PROMISED)
        cut = after(Truncate(Position(3, 5)), state=there)
        assert (cut.committed_from, cut.prefix_end(), cut.first_position()) == (None, Position(3, 9), Position(3, 5))
        assert after(*segment(C, Position(3, 10), Position(3, 12)), state=cut).committed_end() == Position(3, 12)


def test_gap_may_lie_before_the_head_where_it_joins_the_committed_end() -> None:
    """The stream was truncated while its method was none, past what it had offloaded."""
    cut = after(SetMethod("none"), Truncate(Position(4, 0)), SetMethod("streaming"), state=ONE)
    on = after(Gap(Position(1, 10), Position(4, -1), "truncated"), assign(B, Position(4, 0)), state=cut)
    assert on.committed_end() == Position(4, -1)
    refused(Gap(Position(2, 0), Position(2, 5), "lost"), state=cut, because="2:5 lies before the head 4:0")


def test_totals_that_differ_from_the_fold_mean_damage() -> None:
    wrong = replace(ONE.totals(), entries=6)
    record = Record(ONE.record_id + 1, INCARNATION, 2, Writer("w", "", "n"), 77, (OpenEpoch(2),), wrong)
    with pytest.raises(EditRefusedError, match="totals"):
        fold(ONE, record)


def test_owner_is_the_writer_that_opened_the_epoch() -> None:
    opened = Record(2, INCARNATION, 2, Writer("owner", "http://o", "n1"), 5, (OpenEpoch(2),), ONE.totals())
    state = fold(ONE, opened)
    deletion = LedgersDeleted((1,))
    other = Record(
        3, INCARNATION, 2, Writer("cleanup", "", "n2"), 6, (deletion,), ONE.totals(), previous_nonce=state.nonce
    )
    state = fold(state, other)
    assert (state.owner.name, state.owner.url, state.writer.name) == ("owner", "http://o", "cleanup")


ALL_KINDS: list[tuple[list[Edit], list[Edit]]] = [
    ([], [OpenEpoch(2)]),
    ([], [LedgerClosed(1, 9)]),
    ([], [assign(B, Position(1, 10))]),
    ([assign(B, Position(1, 10))], [offloaded(B, Position(1, 10), Position(1, 12))]),
    ([assign(B, Position(1, 10))], [Failed(B, "x")]),
    ([], [Gap(Position(1, 10), Position(1, 12), "lost")]),
    ([], [Adopt(B, summary(Position(1, 10), Position(1, 12)), {}, False)]),
    ([Adopt(B, summary(Position(1, 10), Position(1, 12)), {}, False)], [Release((B,))]),
    ([], [Truncate(Position(1, 3))]),
    ([], [LedgersDeleted((4,))]),
    ([LedgerClosed(1, 9)], [HotReleased((1,))]),
    ([LedgersDeleted((1,))], [Retire((A,))]),
    ([], [Rewrite(B, 2, Position(1, 0), Position(1, 9), 3, {})]),
    ([Rewrite(B, 2, Position(1, 0), Position(1, 9), 3, {})], [Failed(B, "x")]),
    (
        [Rewrite(B, 2, Position(1, 0), Position(1, 9), 3, {})],
        [Replace((A,), (Rewritten(B, summary(Position(1, 0), Position(1, 9))),), 4)],
    ),
    (
        [Gap(Position(1, 10), Position(1, 12), "lost"), Rewrite(B, 2, Position(1, 10), Position(1, 11), 3, {})],
        [Recover((Rewritten(B, summary(Position(1, 10), Position(1, 11))),), 4)],
    ),
    ([], [SetMethod("ledger")]),
    ([], [Pause("x")]),
    ([Pause("x")], [Resume()]),
    ([], [Hold(True, "x")]),
    ([], [StreamDeleted()]),
]


@pytest.mark.parametrize(("first", "edits"), ALL_KINDS, ids=lambda value: value[0].kind if value else "")
def test_is_applied_recognises_every_kind_of_record(first: list[Edit], edits: list[Edit]) -> None:
    """A writer whose number was deleted while it stalled checks this before it commits the same again."""
    before = after(*first, state=ONE)
    epoch = 2 if isinstance(edits[0], OpenEpoch) else 1
    record = Record(3, INCARNATION, epoch, Writer("w", "", "n"), 9, tuple(edits), before.totals())
    folded = apply_edits(before, edits, record_id=3)
    owner = replace(folded, owner=record.writer) if epoch == 2 else folded

    assert is_applied(owner, record)
    assert not is_applied(before, record)
    assert not is_applied(replace(owner, record_id=2), record), "it can't be in a view that doesn't reach its number"
    assert not is_applied(replace(owner, epoch=7), record)
    assert not is_applied(replace(owner, incarnation=UUID(int=8)), record)


def test_epoch_of_another_writer_with_the_same_number_is_not_applied() -> None:
    mine = Record(2, INCARNATION, 2, Writer("w", "", "mine"), 9, (OpenEpoch(2),), ONE.totals())
    theirs = fold(ONE, replace(mine, writer=Writer("w", "", "theirs")))
    assert not is_applied(theirs, mine)
    assert is_applied(fold(ONE, mine), mine)


def test_retirement_is_applied_only_by_its_own_record() -> None:
    retired = after(LedgersDeleted((1,)), Retire((A,)), state=ONE)
    record = Record(retired.record_id, INCARNATION, 1, Writer("w", "", "n"), 9, (Retire((A,)),), retired.totals())
    assert is_applied(retired, record)
    assert not is_applied(replace(retired, record_id=9), replace(record, record_id=9))
    undo = replace(record, edits=(UndoRetire((A,), retired.record_id),))
    assert not is_applied(retired, undo)
    purge = replace(record, edits=(Purged((A,), retired.record_id),))
    assert not is_applied(retired, purge)
    purged = after(Purged((A,), retired.record_id), state=retired)
    assert is_applied(purged, purge)


def test_gap_up_to_the_begin_of_a_ledger_does_not_claim_that_ledger() -> None:
    state = after(assign(A, Position(3, 0)), offloaded(A, Position(3, 0), Position(7, 49)))
    assert known_ledgers(state, [9, 10]).whole == (3, 7)
    state = after(Gap(Position(7, 50), Position(10, -1), "its ledgers were deleted"), state=state)
    assert known_ledgers(state, [9, 10]).whole == (3, 9)
    state = after(assign(B, Position(10, 0)), offloaded(B, Position(10, 0), Position(10, 4)), state=state)
    assert known_ledgers(state, [9, 10]).whole == (3, 10)
