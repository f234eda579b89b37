"""Random edits: columns equal a plain list, before and after compaction, merging and a checkpoint."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.checkpoint import decode_checkpoint, decode_ledgers, run_name, run_record_id
from formats.checkpoint_parquet import decode_columns
from formats.entries import Position
from formats.errors import FormatError
from formats.manifest import (
    Assign,
    Edit,
    Failed,
    Gap,
    GapFilled,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    Purged,
    Retire,
    Truncate,
    UndoRetire,
)
from offloader.coverage import KnownEnds, first_begin, follows
from offloader.manifest.apply import apply_edits
from offloader.manifest.compaction import compacted, plan_checkpoint, restored
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentRecord, SegmentStatus
from tests.support.manifests import DRIVER, summary_of, uuid_of

RUN_ROWS = 4
EMPTY = ManifestState(stream="s", incarnation=UUID(int=7))

positions = st.builds(Position, st.integers(0, 3), st.integers(0, 12))
numbers = st.integers(0, 30)


KINDS = [
    "whole",
    "whole",
    "whole",
    "assign",
    "close",
    "gap",
    "fill",
    "delete",
    "retire",
    "undo",
    "purge",
    "fail",
    "head",
    "hot",
]


@st.composite
def edits(draw: st.DrawFn) -> list[Edit]:
    """One or two edits, most of them sensible somewhere."""
    kind = draw(st.sampled_from(KINDS))
    number, first, length = draw(numbers), draw(positions), draw(st.integers(0, 5))
    last, uuid = Position(first.ledger_id, first.entry_id + length), uuid_of(number)
    assign = Assign(uuid, 2, first, last, 5, DRIVER)
    made: dict[str, list[Edit]] = {
        "whole": [assign, Offloaded(uuid, summary_of(first, last, time_ms=first.entry_id), 6)],
        "assign": [replace(assign, end=draw(st.sampled_from([None, last])))],
        "close": [LedgerClosed(first.ledger_id, first.entry_id - 1)],
        "gap": [Gap(first, last, "lost")],
        "fill": [Gap(first, last, "not given"), GapFilled(uuid, first, last, length + 1, 50, 500, number)],
        "delete": [LedgersDeleted((first.ledger_id,))],
        "retire": [Retire((uuid,))],
        "undo": [UndoRetire((uuid,), draw(st.integers(1, 60)))],
        "purge": [Purged((uuid,), draw(st.integers(1, 60)))],
        "fail": [Failed(uuid, "x")],
        "head": [Truncate(first)],
        "hot": [HotReleased((first.ledger_id,))],
    }
    return made[kind]


def applied(state: ManifestState, step: list[Edit]) -> tuple[ManifestState | None, str]:
    """The view after the edits, or why they are refused (of several ranges in the way either may be named)."""
    try:
        return apply_edits(state, step, record_id=state.record_id + 1), ""
    except EditRefusedError as refused:
        return None, refused.message.partition(" overlaps ")[0]


def plain_end(state: ManifestState, begin: Position | None = None) -> Position | None:
    """By its definition: the longest run of offloaded ranges and gaps, from ``begin`` or the first range on."""
    ranges: list[tuple[Position, Position | None]] = [
        (s.begin, None if s.status is SegmentStatus.ASSIGNED else s.end) for s in state.segments.values()
    ]
    ranges += [(gap.first, gap.last) for gap in state.gaps]
    reached: Position | None = None
    closed = KnownEnds(state.closed_ledgers)
    for first, end in sorted(ranges, key=lambda item: item[0]):
        if begin is not None and first < begin:
            continue
        if end is None or (reached is not None and not follows(reached, first, closed)):
            break
        reached = end
    return reached


def is_between(state: ManifestState, step: list[Edit]) -> bool:
    """Whether the step names a range or a ledger between two ranges of the committed run.

    It has no effect on the committed end, which never goes back; no writer does so.
    """
    named = [edit.begin for edit in step if isinstance(edit, Assign)]
    named += [edit.first for edit in step if isinstance(edit, Gap)]
    named += [Position(edit.ledger_id, 0) for edit in step if isinstance(edit, LedgerClosed)]
    first = first_begin(state.ranges())
    return any(first is not None and state.committed is not None and first < each < state.committed for each in named)


def roundtrip(state: ManifestState) -> ManifestState:
    """Through a checkpoint's bytes and back."""
    nonces = count()
    plan = plan_checkpoint(state, lambda: next(nonces), run_rows_min=RUN_ROWS)
    bodies = dict(plan.runs)
    header, own = decode_checkpoint(plan.body)
    known = {p.run.name: p.columns for p in plan.state.segments.sealed if p.run is not None}
    ledgers = {p.run.name: p.columns for p in plan.state.ledgers.sealed if p.run is not None}
    runs = [decode_columns(bodies[r.name]) if r.name in bodies else known[r.name] for r in header.runs]
    facts = [decode_ledgers(bodies[r.name]) if r.name in bodies else ledgers[r.name] for r in header.ledger_runs]
    assert plan.state == state
    return restored(state.stream, header, own, runs, facts)


def check(state: ManifestState, had_purge: bool) -> None:
    records = sorted(state.segments.values(), key=lambda record: record.begin)
    assert len(records) == len(state.segments) == len(list(state.segments))
    assert {record.uuid: record for record in records} == dict(state.segments.items())
    offloaded = [r for r in records if r.status is SegmentStatus.OFFLOADED]
    assert state.offloaded() == offloaded
    assert list(state.offloaded()) == offloaded
    assert state.assigned() == [r for r in records if r.status is SegmentStatus.ASSIGNED]
    assert state.segments.first_offloaded() == (offloaded[0].begin if offloaded else None)
    if not had_purge:  # what retention takes away doesn't take the committed end back
        assert state.committed_end() == plain_end(state, state.committed_from)
        assert state.prefix_end() == plain_end(state)
        assert (state.committed_from is not None) == (state.committed_end() != state.prefix_end())
    whole = state.committed_end()
    if whole is not None and state.first_position() is not None:
        assert state.committed_from is None or state.first_position() >= state.committed_from  # type: ignore[operator]
    totals = state.totals()
    assert (totals.segments, totals.entries) == (len(offloaded), 10 * len(offloaded))
    assert totals.object_bytes == 1050 * len(offloaded)
    for probe in (Position(0, 0), Position(1, 3), Position(2, 7)):
        last = Position(probe.ledger_id, probe.entry_id + 4)
        between = [r for r in offloaded if r.begin <= last and r.end is not None and r.end >= probe]
        assert state.offloaded(probe, last) == between
        assert state.find(probe) == next((r for r in between if r.begin <= probe), None)
    assert state.offloaded().sums() == state.sums
    since = [r for r in offloaded if r.summary is not None and r.summary.publish_time_max_ms >= 6]
    assert state.offloaded().published_from(6) == since
    assert all(a.end is not None and a.end < b.begin for a, b in itertools.pairwise(records))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(edits(), max_size=40),
    st.lists(st.sampled_from(["", "", "compact", "checkpoint"]), min_size=40, max_size=40),
)
def test_compaction_merging_and_checkpoints_leave_views_unchanged(
    steps: list[list[Edit]], interludes: list[str]
) -> None:
    sealed = plain = EMPTY
    had_purge = False
    for step, interlude in zip(steps, interludes, strict=False):
        after, refused = applied(plain, step)
        sealed_after, sealed_refused = applied(sealed, step)
        assert sealed_refused == refused
        if after is None or sealed_after is None:
            continue
        had_purge |= any(isinstance(edit, Purged) for edit in step) or is_between(plain, step)
        # What was added in front and lies before the head now: nobody waits for it to join.
        had_purge |= plain.committed_from is not None and any(isinstance(edit, Truncate) for edit in step)
        if plain.committed is not None:
            assert after.committed is not None, "the committed end is gone"
            assert after.committed >= plain.committed, "the committed end goes back"
        sealed, plain = sealed_after, after
        if interlude == "compact":
            sealed = compacted(sealed, run_rows_min=RUN_ROWS)
        elif interlude == "checkpoint":
            sealed = roundtrip(sealed)
        assert sealed == plain
        check(sealed, had_purge)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 9), st.randoms())
def test_runs_stay_few_however_many_segments_there_are(segments: int, of_record: int, random: object) -> None:
    state = EMPTY
    for number in range(0, segments, of_record):
        step: list[Edit] = []
        for each in range(number, min(number + of_record, segments)):
            begin, last = Position(1, each * 3), Position(1, each * 3 + 2)
            step += [
                Assign(uuid_of(each), 2, begin, None, 5, DRIVER),
                Offloaded(uuid_of(each), summary_of(begin, last), 6),
            ]
        state = compacted(apply_edits(state, step, record_id=state.record_id + 1), run_rows_min=RUN_ROWS)
    assert len(state.segments) == segments
    assert state.committed_end() == Position(1, segments * 3 - 1)
    # Whole runs of the largest size, and less than eight of each smaller one.
    assert len(state.segments.sealed) <= segments // (RUN_ROWS * 64) + 2 * 7 + 1


def _checkpoint_with_runs() -> tuple[ManifestState, list[tuple[str, bytes]], bytes]:
    state = EMPTY
    for number in range(RUN_ROWS + 2):
        begin, last = Position(1, number * 3), Position(1 + number % 2, number * 3 + 2)
        if number % 2:
            begin, last = Position(number, 5), Position(number + 1, 3)
        else:
            begin, last = Position(number, 5), Position(number, 9)
        step: list[Edit] = [
            Assign(uuid_of(number), 2, begin, last, 5, {"bucket": str(number % 2)}),
            Offloaded(uuid_of(number), summary_of(begin, last, spans=1 + number % 2), 6),
        ]
        try:
            state = apply_edits(state, step, record_id=state.record_id + 1)
        except EditRefusedError:
            continue
    state = apply_edits(state, [LedgerClosed(100 + n, n) for n in range(RUN_ROWS)], record_id=state.record_id + 1)
    plan = plan_checkpoint(state, lambda: 5, run_rows_min=2)
    return state, list(plan.runs), plan.body


def test_segments_keep_their_ledgers_and_buckets_in_a_checkpoint() -> None:
    state, _, _ = _checkpoint_with_runs()
    again = roundtrip(state)
    assert dict(again.segments.items()) == dict(state.segments.items())
    assert {record.driver["bucket"] for record in again.segments.values()} == {"0", "1"}
    assert max(len(record.summary.ledgers) for record in again.segments.values() if record.summary) == 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_checkpoints_and_runs_raise_only_format_errors(data: st.DataObject) -> None:
    _, runs, body = _FIXED
    which = data.draw(st.integers(0, len(runs)))
    name, good = ("", body) if which == len(runs) else runs[which]
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    decode = decode_ledgers if "ledgers" in name else decode_columns if name else decode_checkpoint
    try:
        decode(bytes(damaged))
    except FormatError:
        return


_FIXED = _checkpoint_with_runs()


def test_run_names_contain_the_record_they_were_compacted_at() -> None:
    assert run_record_id(run_name(77, 5, "segments")) == 77
    assert run_record_id(run_name(77, 2**64 - 1, "ledgers")) == 77
    for wrong in ("", "77-5.segments.parquet", f"{77:020d}-{5:016x}.other.parquet", f"x/{run_name(1, 1, 'ledgers')}"):
        assert run_record_id(wrong) is None


def test_segment_records_are_built_on_access() -> None:
    state = compacted(_FIXED[0], run_rows_min=2)
    first, second = state.offloaded()[0], state.offloaded()[0]
    assert isinstance(first, SegmentRecord)
    assert first == second
    assert first is not second
