"""The uuids that cleanup compares a listing with are exactly those of the manifest, however it was read."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.checksum import crc32c
from formats.entries import Position
from formats.keys import boundary_key, checkpoint_key, manifest_prefix, record_key
from formats.manifest import (
    Assign,
    Boundary,
    Edit,
    Failed,
    Hold,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Purged,
    Record,
    Replace,
    Retire,
    Rewrite,
    Rewritten,
    StreamDeleted,
    UndoRetire,
    Writer,
    encode_record,
)
from offloader.errors import Corrupt, NotFound
from offloader.manifest import live_uuids as named_uuids
from offloader.manifest.apply import apply_edits, fold
from offloader.manifest.boundary import GIVEN_UP_ID
from offloader.manifest.compaction import plan_checkpoint
from offloader.manifest.live_uuids import LiveUuids, load_live_uuids, refreshed_live_uuids
from offloader.manifest.state import EditRefused, ManifestState, SegmentStatus
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import DRIVER, summary_of, uuid_of

STREAM = "s"
INCARNATION = UUID(int=7)
UUIDS = [uuid_of(number) for number in range(24)]
_names = count()


class Written:
    """A manifest in a store, with runs of four rows and more."""

    def __init__(self) -> None:
        self.store = MemoryStore(f"named-{next(_names)}", "", ManualClock())
        self.state = ManifestState(stream=STREAM, incarnation=INCARNATION)
        self.boundary = Boundary(first_kept_id=1, checkpoint_id=0, checkpoint_crc32c=0)
        self.nonces = count()
        self.put_boundary()

    def put_boundary(self) -> None:
        self.store.put(boundary_key(STREAM, INCARNATION), self.boundary.encode())

    def commit(self, *edits: Edit) -> Record | None:
        """The record, ``None`` where the manifest refuses it."""
        try:
            after = apply_edits(self.state, edits, record_id=self.state.record_id + 1)
        except EditRefused:
            return None
        record = Record(
            record_id=self.state.record_id + 1,
            incarnation=INCARNATION,
            epoch=after.epoch,
            writer=Writer("w", "", "00"),
            time_ms=5,
            edits=tuple(edits),
            totals=after.totals(),
        )
        self.state = fold(self.state, record)
        self.store.put(record_key(STREAM, INCARNATION, record.record_id), encode_record(record))
        return record

    def fitting(self, step: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """A step of that kind for a segment that there is."""
        last, segments = step[-1], list(self.state.segments.values())
        retired = [segment for segment in segments if segment.retire_record is not None]
        if isinstance(last, Purged | UndoRetire) and retired:
            return (type(last)((retired[0].uuid,), retired[0].retire_record or 0),)
        offloaded = [s for s in segments if s.status is SegmentStatus.OFFLOADED]
        if isinstance(last, Retire) and offloaded:
            return LedgersDeleted((offloaded[-1].begin.ledger_id,)), Retire((offloaded[-1].uuid,))
        return step

    def checkpoint(self) -> None:
        plan = plan_checkpoint(self.state, lambda: next(self.nonces), run_rows_min=4)
        for name, body in plan.runs:
            self.store.put(f"{manifest_prefix(STREAM, INCARNATION)}{name}", body)
        self.store.put(checkpoint_key(STREAM, INCARNATION, plan.state.record_id), plan.body)
        self.state = plan.state
        first = self.state.record_id + 1
        self.boundary = Boundary(
            first_kept_id=first, checkpoint_id=self.state.record_id, checkpoint_crc32c=crc32c(plan.body)
        )
        self.put_boundary()
        self.store.delete([record_key(STREAM, INCARNATION, number) for number in range(1, first)])

    def names(self) -> tuple[list[bool], list[bool]]:
        """Of each uuid whether it is named, and whether objects of it may still be on their way."""
        promised = {each.uuid for each in self.state.rewrites} | {each.uuid for each in self.state.assigned()}
        named = set(self.state.segments) | promised | {each.uuid for each in self.state.replaced}
        return [uuid in named for uuid in UUIDS], [uuid in promised for uuid in UUIDS]


def halves(uuids: list[UUID]) -> tuple[np.ndarray, np.ndarray]:
    high = np.array([uuid.int >> 64 for uuid in uuids], dtype=np.uint64)
    return high, np.array([uuid.int & 2**64 - 1 for uuid in uuids], dtype=np.uint64)


def said(names: LiveUuids) -> tuple[list[bool], list[bool]]:
    found = names.named(*halves(UUIDS)).tolist()
    assert found == [uuid in names for uuid in UUIDS]
    return found, [names.is_open(uuid) for uuid in UUIDS]


@st.composite
def steps(draw: st.DrawFn) -> tuple[Edit, ...]:
    uuid, other = draw(st.sampled_from(UUIDS)), draw(st.sampled_from(UUIDS))
    begin = Position(draw(st.integers(0, 5)), 10 * draw(st.integers(0, 2)))
    end = Position(begin.ledger_id, begin.entry_id + 9)
    record = draw(st.integers(1, 40))
    summary = summary_of(begin, end)
    made: dict[str, tuple[Edit, ...]] = {
        "whole": (Assign(uuid, 2, begin, end, 5, DRIVER), Offloaded(uuid, summary, 6)),
        "assign": (Assign(uuid, 2, begin, end, 5, DRIVER),),
        "offloaded": (Offloaded(uuid, summary, 6),),
        "fail": (Failed(uuid, "x"),),
        "rewrite": (Rewrite(uuid, 2, begin, end, 5, DRIVER),),
        "replace": (Replace((other,), (Rewritten(uuid, summary),), 6),),
        "rewritten": (Rewrite(uuid, 2, begin, end, 5, DRIVER), Replace((other,), (Rewritten(uuid, summary),), 6)),
        "delete": (LedgersDeleted((begin.ledger_id,)),),
        "retire": (LedgersDeleted((begin.ledger_id,)), Retire((uuid,))),
        "undo": (UndoRetire((uuid,), record),),
        "purge": (Purged((uuid,), record),),
        "retire all": (Retire((uuid, other)),),
    }
    return made[draw(st.sampled_from(["whole", "whole", *made]))]


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.lists(steps(), min_size=10, max_size=60), st.lists(st.sampled_from(["", "", "", "checkpoint"]), min_size=60))
def test_the_names_are_those_of_the_whole_view(drawn: list[tuple[Edit, ...]], interludes: list[str]) -> None:
    written = Written()
    folded = LiveUuids(STREAM, INCARNATION)
    kept = load_live_uuids(written.store, STREAM, INCARNATION)
    for step, interlude in zip(drawn, interludes, strict=False):
        record = written.commit(*step) or written.commit(*written.fitting(step))
        if record is None:
            continue
        assert said(folded.fold(record)) == written.names()
        if interlude:
            written.checkpoint()
            assert said(load_live_uuids(written.store, STREAM, INCARNATION)) == written.names()
            kept = refreshed_live_uuids(written.store, kept)
            assert said(kept) == written.names()
    assert said(refreshed_live_uuids(written.store, kept)) == written.names()


def test_invalid_record_removes_no_live_name() -> None:
    """Records like these don't exist, because commits are checked. They must not lose data nevertheless."""
    written = Written()
    begin, end = Position(1, 0), Position(1, 9)
    written.commit(Assign(UUIDS[0], 2, begin, end, 5, DRIVER), Offloaded(UUIDS[0], summary_of(begin, end), 6))
    written.commit(LedgersDeleted((1,)), Retire((UUIDS[0],)))
    for sealed in (False, True):
        if sealed:
            written.commit(UndoRetire((UUIDS[0],), 2))
            written.checkpoint()
        for edit in (Failed(UUIDS[0], "x"), Purged((UUIDS[0],), 99)):
            names = load_live_uuids(written.store, STREAM, INCARNATION)
            record = Record(
                names.record_id + 1, INCARNATION, 0, Writer("w", "", "00"), 5, (edit,), written.state.totals()
            )
            assert UUIDS[0] in names.fold(record)


def test_purged_names_beyond_the_memory_limit_stay_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_uuids, "GONE_MAX", 2)
    written = Written()
    for number, uuid in enumerate(UUIDS[:5]):
        begin, end = Position(number, 0), Position(number, 9)
        written.commit(Assign(uuid, 2, begin, end, 5, DRIVER), Offloaded(uuid, summary_of(begin, end), 6))
    written.commit(LedgersDeleted((0, 1, 2, 3, 4)), Retire(tuple(UUIDS[:5])))
    written.checkpoint()
    written.commit(Purged(tuple(UUIDS[:5]), 6))

    assert sum(said(load_live_uuids(written.store, STREAM, INCARNATION))[0]) == 3
    written.checkpoint()
    assert sum(said(load_live_uuids(written.store, STREAM, INCARNATION))[0]) == 0


def test_uuids_with_equal_upper_halves_are_distinguished() -> None:
    written = Written()
    shared = [UUID(int=5 << 64 | low) for low in (9, 3, 7, 1)]
    for number, uuid in enumerate(shared):
        begin, end = Position(number, 0), Position(number, 9)
        written.commit(Assign(uuid, 2, begin, end, 5, DRIVER), Offloaded(uuid, summary_of(begin, end), 6))
    written.checkpoint()
    names = load_live_uuids(written.store, STREAM, INCARNATION)
    asked = [*shared, UUID(int=5 << 64 | 8), UUID(int=6 << 64 | 9), UUID(int=2**128 - 1)]
    assert names.named(*halves(asked)).tolist() == [True] * 4 + [False] * 3


def test_a_hold_and_a_deletion_are_seen() -> None:
    written = Written()
    written.commit(Hold(True, "wait"))
    names = load_live_uuids(written.store, STREAM, INCARNATION)
    assert (names.held, names.stream_deleted) == (True, False)
    written.commit(Hold(False, ""))
    written.commit(OpenEpoch(1), StreamDeleted())
    names = refreshed_live_uuids(written.store, names)
    assert (names.held, names.stream_deleted) == (False, True)
    written.checkpoint()
    assert load_live_uuids(written.store, STREAM, INCARNATION).stream_deleted


def test_unreadable_or_missing_manifest_names_no_uuids_and_raises() -> None:
    written = Written()
    written.commit(Hold(False, ""))
    names = load_live_uuids(written.store, STREAM, INCARNATION)
    written.boundary = Boundary(first_kept_id=GIVEN_UP_ID, checkpoint_id=0, checkpoint_crc32c=0)
    written.put_boundary()
    with pytest.raises(Corrupt, match="given up"):
        refreshed_live_uuids(written.store, names)
    written.store.delete([info.key for info in written.store.list("").objects])
    with pytest.raises(NotFound):
        load_live_uuids(written.store, STREAM, INCARNATION)
    with pytest.raises(NotFound):
        refreshed_live_uuids(written.store, names)


def test_a_record_that_doesn_t_follow_is_refused() -> None:
    written = Written()
    record = written.commit(Hold(False, ""))
    assert record is not None
    names = LiveUuids(STREAM, INCARNATION).fold(record)
    with pytest.raises(EditRefused):
        names.fold(record)
