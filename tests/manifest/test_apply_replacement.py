"""Replacement of segments by rewritten ones: refusals and results. Pure."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.checkpoint import decode_checkpoint
from formats.entries import Position
from formats.manifest import (
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    Hold,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Purged,
    Replace,
    Retire,
    Rewrite,
    Rewritten,
    UndoRetire,
)
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.manifest.apply import apply_edits
from offloader.manifest.compaction import compacted, plan_checkpoint, restored
from offloader.manifest.state import EditRefusedError, ManifestState

ENTRY_BYTES = 10
#: The V2 segments are 1:0..1:9, 1:10..3:4 (all of ledger 2 too), 3:5..3:7.
A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
#: What takes their place.
ONE, TWO, THREE, REST = UUID(int=11), UUID(int=12), UUID(int=13), UUID(int=14)


def summary(*spans: tuple[int, int, int], layout: Layout = Layout.V2) -> SegmentSummary:
    """Of a segment with the entries (ledger, first, last)."""
    ledgers = tuple(LedgerSpan(n, a, b, b - a + 1, (b - a + 1) * ENTRY_BYTES) for n, a, b in spans)
    return SegmentSummary(
        layout=layout,
        begin=Position(ledgers[0].ledger_id, ledgers[0].first_entry_id),
        end=Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id),
        data_bytes=1000,
        index_bytes=100,
        data_crc32c=0,
        index_crc32c=0,
        entries=sum(span.entries for span in ledgers),
        payload_bytes=sum(span.payload_bytes for span in ledgers),
        publish_time_min_ms=-1,
        publish_time_max_ms=-1,
        blocks=1,
        compressed=False,
        ledgers=ledgers,
    )


def after(*edits: Edit, state: ManifestState) -> ManifestState:
    return apply_edits(state, edits, record_id=state.record_id + 1)


def refused(*edits: Edit, state: ManifestState, because: str) -> None:
    with pytest.raises(EditRefusedError, match=because):
        after(*edits, state=state)


def offloaded(uuid: UUID, *spans: tuple[int, int, int]) -> list[Edit]:
    made = summary(*spans)
    return [Assign(uuid, 2, made.begin, made.end, 1, {}), Offloaded(uuid, made, 2)]


def promised(uuid: UUID, made: SegmentSummary) -> Rewrite:
    return Rewrite(uuid, int(made.layout), made.begin, made.end, 3, {"bucket": "b"})


LEDGER_1 = summary((1, 0, 19), layout=Layout.V1)
LEDGER_2 = summary((2, 0, 4), layout=Layout.V1)
PART_OF_3 = summary((3, 0, 4))
NEW = {ONE: LEDGER_1, TWO: LEDGER_2, REST: PART_OF_3}
BEFORE = after(
    OpenEpoch(1),
    LedgerClosed(1, 19),
    LedgerClosed(2, 4),
    *offloaded(A, (1, 0, 9)),
    *offloaded(B, (1, 10, 19), (2, 0, 4), (3, 0, 4)),
    *offloaded(C, (3, 5, 7)),
    state=ManifestState(stream="s", incarnation=UUID(int=7)),
)
READY = after(*(promised(uuid, made) for uuid, made in NEW.items()), state=BEFORE)
ALL = tuple(Rewritten(uuid, made) for uuid, made in NEW.items())
DONE = after(Replace((A, B), ALL, 9), state=READY)


def test_shared_segments_become_v1_ledgers_and_a_segment_of_the_rest() -> None:
    assert [(s.uuid, s.layout, s.begin, s.end) for s in DONE.offloaded()] == [
        (ONE, 1, Position(1, 0), Position(1, 19)),
        (TWO, 1, Position(2, 0), Position(2, 4)),
        (REST, 2, Position(3, 0), Position(3, 4)),
        (C, 2, Position(3, 5), Position(3, 7)),
    ]
    assert DONE.committed_end() == BEFORE.committed_end() == Position(3, 7)
    assert DONE.newest_end == BEFORE.newest_end
    assert DONE.first_position() == BEFORE.first_position()
    assert (DONE.totals().entries, DONE.totals().payload_bytes) == (33, 330)
    assert DONE.totals().segments == 4
    assert DONE.rewrites == ()


def test_promised_rewrite_changes_no_reads_and_a_failed_one_is_forgotten() -> None:
    assert READY.offloaded() == BEFORE.offloaded()
    assert READY.assigned() == []
    assert (READY.committed_end(), READY.newest_end) == (BEFORE.committed_end(), BEFORE.newest_end)
    failed = after(Failed(ONE, "its writer was replaced"), state=READY)
    assert {each.uuid for each in failed.rewrites} == {TWO, REST}
    refused(Replace((A, B), ALL, 9), state=failed, because="wasn't announced by a rewrite, or has failed")


def test_replaced_segments_await_deletion_and_cannot_be_restored() -> None:
    assert [(each.uuid, each.retire_record, each.object_bytes) for each in DONE.replaced] == [
        (A, DONE.record_id, 1100),
        (B, DONE.record_id, 1100),
    ]
    refused(UndoRetire((A,), DONE.record_id), state=DONE, because="unknown, not retired")
    refused(*offloaded(A, (5, 0, 1)), state=DONE, because="exists already")
    refused(Adopt(B, summary((5, 0, 1)), {}, True), state=DONE, because="exists already")
    refused(Purged((A,), DONE.record_id - 1), state=DONE, because="unknown, not retired")
    refused(Hold(True, "court"), Purged((A,), DONE.record_id), state=DONE, because="on hold")
    purged = after(Purged((A, B), DONE.record_id), state=DONE)
    assert purged.replaced == ()
    assert purged.offloaded() == DONE.offloaded()


def test_an_entry_more_or_less_is_refused() -> None:
    short = summary((3, 0, 3))
    state = after(Failed(REST, "x"), promised(REST, short), state=READY)
    refused(
        Replace((A, B), (*ALL[:2], Rewritten(REST, short)), 9),
        state=state,
        because=r"ledger 3: the new segments hold 0..3 \(4 entries, 40 bytes\), the old ones 0..4 \(5 entries",
    )
    refused(Replace((A, B), ALL[:2], 9), state=READY, because="ledger 3: the new segments hold nothing")
    refused(Replace((B,), ALL, 9), state=READY, because="ledger 1: .* the old ones 10..19")
    refused(Replace((A, B, C), ALL, 9), state=READY, because="ledger 3: .* the old ones 0..7")


def test_other_bytes_are_refused() -> None:
    """The same positions, but not the same payload."""
    spans = (replace(LEDGER_1.ledgers[0], payload_bytes=199),)
    other = replace(LEDGER_1, payload_bytes=199, ledgers=spans)
    refused(Replace((A, B), (Rewritten(ONE, other), *ALL[1:]), 9), state=READY, because="ledger 1: .*199 bytes")


def test_a_v1_segment_is_a_whole_closed_ledger() -> None:
    part = summary((3, 0, 4), layout=Layout.V1)
    state = after(Failed(REST, "x"), promised(REST, part), state=READY)
    again = (*ALL[:2], Rewritten(REST, part))
    refused(Replace((A, B), again, 9), state=state, because="isn't the whole of a closed ledger")
    closed_later = after(LedgerClosed(3, 7), state=state)
    refused(Replace((A, B), again, 9), state=closed_later, because="isn't the whole of a closed ledger")


def test_rewritten_segment_must_match_its_promise() -> None:
    refused(
        Replace((A, B), (Rewritten(ONE, LEDGER_2), *ALL[1:]), 9), state=READY, because="holds 2:0..2:4, announced was"
    )
    refused(Replace((A, B), (Rewritten(THREE, LEDGER_1), *ALL[1:]), 9), state=READY, because="wasn't announced")
    refused(promised(A, LEDGER_1), state=BEFORE, because="exists already")
    refused(promised(ONE, LEDGER_1), state=READY, because="exists already")
    refused(Rewrite(THREE, 2, Position(2, 4), Position(1, 5), 3, {}), state=BEFORE, because="ends before it begins")


def test_segment_claiming_more_than_it_holds_is_refused() -> None:
    claiming = replace(PART_OF_3, end=Position(3, 6))
    state = after(Failed(REST, "x"), promised(REST, claiming), state=READY)
    refused(Replace((A, B), (*ALL[:2], Rewritten(REST, claiming)), 9), state=state, because="overlaps segment")


def test_only_own_offloaded_segments_are_replaced() -> None:
    refused(Replace((UUID(int=99),), ALL, 9), state=READY, because="unknown, not offloaded")
    gone = after(LedgersDeleted((1,)), Retire((A,)), state=READY)
    refused(Replace((A, B), ALL, 9), state=gone, because="is retired, not offloaded")
    theirs = after(Adopt(UUID(int=5), summary((7, 0, 4)), {}, False), LedgerClosed(7, 4), state=READY)
    whole = summary((7, 0, 4), layout=Layout.V1)
    refused(
        promised(THREE, whole),
        Replace((UUID(int=5),), (Rewritten(THREE, whole),), 9),
        state=theirs,
        because="doesn't belong to this project",
    )
    refused(promised(THREE, LEDGER_1), state=after(Hold(True, "court"), state=BEFORE), because="on hold")
    refused(Replace((A, B), ALL, 9), state=after(Hold(True, "court"), state=READY), because="on hold")


def test_rewrite_may_omit_a_deleted_ledger() -> None:
    state = after(LedgersDeleted((2,)), state=READY)
    done = after(Replace((A, B), (ALL[0], ALL[2]), 9), state=state)
    assert [s.uuid for s in done.offloaded()] == [ONE, REST, C]
    assert done.committed_end() == BEFORE.committed_end(), "what retention takes away doesn't take it back"


def test_ledgers_meet_only_where_the_manifest_knows_the_end() -> None:
    """A foreign segment may cross a ledger's end without recording it."""
    state = after(
        OpenEpoch(1),
        Adopt(A, summary((1, 0, 9), (2, 0, 4)), {}, True),
        state=ManifestState(stream="s", incarnation=UUID(int=7)),
    )
    parts = {ONE: summary((1, 0, 9)), TWO: summary((2, 0, 4))}
    edits = [*(promised(uuid, made) for uuid, made in parts.items())]
    done = Replace((A,), tuple(Rewritten(uuid, made) for uuid, made in parts.items()), 9)
    refused(*edits, done, state=state, because="ledger 1 isn't recorded as ending at 9")
    told = after(LedgerClosed(1, 9), *edits, done, state=state)
    assert told.committed_end() == Position(2, 4)


def test_segments_of_several_ledgers_become_one() -> None:
    state = after(
        OpenEpoch(1),
        LedgerClosed(1, 9),
        LedgerClosed(2, 4),
        *offloaded(A, (1, 0, 9)),
        *offloaded(B, (2, 0, 4), (3, 0, 4)),
        state=ManifestState(stream="s", incarnation=UUID(int=7)),
    )
    merged = summary((1, 0, 9), (2, 0, 4), (3, 0, 4))
    done = after(promised(ONE, merged), Replace((A, B), (Rewritten(ONE, merged),), 9), state=state)
    assert [(s.uuid, s.begin, s.end) for s in done.offloaded()] == [(ONE, Position(1, 0), Position(3, 4))]
    assert done.committed_end() == state.committed_end() == Position(3, 4)
    assert done.totals().entries == state.totals().entries
    assert {each.uuid for each in done.replaced} == {A, B}


def test_segments_are_joined_only_where_the_manifest_knows_a_ledgers_end() -> None:
    """Else a ledger that lost its last entries would look whole."""
    state = after(
        OpenEpoch(1),
        *offloaded(A, (1, 0, 9)),
        *offloaded(B, (2, 0, 4)),
        state=ManifestState(stream="s", incarnation=UUID(int=7)),
    )
    merged = summary((1, 0, 9), (2, 0, 4))
    edits = (promised(ONE, merged), Replace((A, B), (Rewritten(ONE, merged),), 9))
    refused(*edits, state=state, because="ledger 1 isn't recorded as ending at 9")
    refused(LedgerClosed(1, 11), *edits, state=state, because="ledger 1 isn't recorded as ending at 9")
    between = (LedgerClosed(1, 9), LedgerClosed(2, 4))
    apart = summary((1, 0, 9), (3, 0, 4))
    others = after(*between, *offloaded(C, (3, 0, 4)), state=state)
    skipping = (promised(ONE, apart), Replace((A, C), (Rewritten(ONE, apart),), 9))
    refused(*skipping, state=others, because="isn't recorded as ending at 9, followed by 3:0")
    told = after(LedgerClosed(1, 9), state=state)
    assert after(*edits, state=told).committed_end() == told.committed_end() == Position(2, 4)


def test_segments_with_a_gap_between_are_not_joined() -> None:
    state = after(
        OpenEpoch(1),
        *offloaded(A, (1, 0, 3)),
        Gap(Position(1, 4), Position(1, 5), "lost"),
        *offloaded(B, (1, 6, 9)),
        state=ManifestState(stream="s", incarnation=UUID(int=7)),
    )
    merged = summary((1, 0, 9))
    edits = (promised(ONE, merged), Replace((A, B), (Rewritten(ONE, merged),), 9))
    refused(*edits, state=state, because="ledger 1: the new segments hold 0..9")


def test_a_gap_stays_a_gap() -> None:
    """A ledger with a gap is kept in parts, and its neighbours are rewritten all the same."""
    state = after(
        OpenEpoch(1),
        LedgerClosed(1, 9),
        LedgerClosed(2, 9),
        LedgerClosed(3, 9),
        *offloaded(A, (1, 0, 9), (2, 0, 3)),
        Gap(Position(2, 4), Position(2, 5), "lost"),
        *offloaded(B, (2, 6, 9), (3, 0, 9)),
        state=ManifestState(stream="s", incarnation=UUID(int=7)),
    )
    parts = {
        ONE: summary((1, 0, 9), layout=Layout.V1),
        UUID(int=21): summary((2, 0, 3)),
        UUID(int=22): summary((2, 6, 9)),
        THREE: summary((3, 0, 9), layout=Layout.V1),
    }
    by = tuple(Rewritten(uuid, made) for uuid, made in parts.items())
    done = after(*(promised(uuid, made) for uuid, made in parts.items()), Replace((A, B), by, 9), state=state)
    assert [s.layout for s in done.offloaded()] == [1, 2, 2, 1]
    assert done.committed_end() == Position(3, 9)
    whole = summary((2, 0, 9), layout=Layout.V1)
    refused(
        promised(TWO, whole),
        Replace((A,), (Rewritten(TWO, whole),), 9),
        state=state,
        because="ledger 1: the new segments hold nothing",
    )


@pytest.mark.parametrize("state", [READY, DONE, after(Purged((A,), DONE.record_id), state=DONE)])
def test_promises_and_what_was_replaced_are_in_a_checkpoint(state: ManifestState) -> None:
    nonces = count()
    plan = plan_checkpoint(state, lambda: next(nonces))
    header, own = decode_checkpoint(plan.body)
    assert restored("s", header, own, [], []) == state


@pytest.mark.slow
@given(st.sets(st.sampled_from([0, 1, 2, 3]), min_size=1), st.booleans())
def test_replacing_is_the_same_for_tail_and_compacted_segments(at: set[int], dropped: bool) -> None:
    """Many ledgers of two segments each, some rewritten, from a view in columns and from a view of records."""
    state = ManifestState(stream="s", incarnation=UUID(int=7))
    edits: list[Edit] = [OpenEpoch(1)]
    for ledger in range(4):
        edits += [
            *offloaded(UUID(int=100 + ledger), (ledger, 0, 4)),
            *offloaded(UUID(int=200 + ledger), (ledger, 5, 9)),
        ]
        edits.append(LedgerClosed(ledger, 9))
    plain = after(*edits, state=state)
    sealed = compacted(plain, run_rows_min=2)
    steps: list[Edit] = [LedgersDeleted((0,))] if dropped else []
    for ledger in sorted(at):
        made = summary((ledger, 0, 9), layout=Layout.V1)
        uuid = UUID(int=300 + ledger)
        steps.append(promised(uuid, made))
        steps.append(Replace((UUID(int=100 + ledger), UUID(int=200 + ledger)), (Rewritten(uuid, made),), 9))
    one, two = after(*steps, state=plain), after(*steps, state=sealed)
    assert one == two
    assert [s.layout for s in one.offloaded()] == [
        layout for ledger in range(4) for layout in ([1] if ledger in at else [2, 2])
    ]
    assert one.committed_end() == plain.committed_end()
