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
    LedgersDeleted,
    Offloaded,
    Purged,
    Record,
    Replace,
    Retire,
    Rewrite,
    Rewritten,
    UndoRetire,
    Writer,
    encode_record,
)
from offloader.manifest.apply import apply_edits, fold
from offloader.manifest.compaction import plan_checkpoint
from offloader.manifest.load import load_manifest_view, refreshed
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentStatus
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
        except EditRefusedError:
            return None
        record = Record(
            record_id=self.state.record_id + 1,
            incarnation=INCARNATION,
            epoch=after.epoch,
            writer=Writer("w", "", "00"),
            time_ms=5,
            edits=tuple(edits),
            totals=after.totals(),
            previous_nonce=self.state.nonce,
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


def said(state: ManifestState) -> tuple[list[bool], list[bool]]:
    found = state.named(*halves(UUIDS)).tolist()
    return found, [state.is_promised(uuid) for uuid in UUIDS]


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
def test_named_uuids_are_those_of_every_segment_and_object_aside(
    drawn: list[tuple[Edit, ...]], interludes: list[str]
) -> None:
    written = Written()
    kept = load_manifest_view(written.store, STREAM, INCARNATION).state
    for step, interlude in zip(drawn, interludes, strict=False):
        record = written.commit(*step) or written.commit(*written.fitting(step))
        if record is None:
            continue
        assert said(written.state) == written.names()
        if interlude:
            written.checkpoint()
            assert said(load_manifest_view(written.store, STREAM, INCARNATION).state) == written.names()
            kept = refreshed(written.store, kept).state
            assert said(kept) == written.names()
    assert said(refreshed(written.store, kept).state) == written.names()


def test_uuids_with_equal_upper_halves_are_distinguished() -> None:
    written = Written()
    shared = [UUID(int=5 << 64 | low) for low in (9, 3, 7, 1)]
    for number, uuid in enumerate(shared):
        begin, end = Position(number, 0), Position(number, 9)
        written.commit(Assign(uuid, 2, begin, end, 5, DRIVER), Offloaded(uuid, summary_of(begin, end), 6))
    written.checkpoint()
    state = load_manifest_view(written.store, STREAM, INCARNATION).state
    asked = [*shared, UUID(int=5 << 64 | 8), UUID(int=6 << 64 | 9), UUID(int=2**128 - 1)]
    assert state.named(*halves(asked)).tolist() == [True] * 4 + [False] * 3
