"""A cleanup plan for very many segments: memory per segment."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from formats.checkpoint_parquet import NUMBER_COLUMNS, SegmentColumns
from formats.entries import Position
from formats.manifest import Retire
from offloader.gc.plan import RetiredFacts, plan_cleanup
from offloader.manifest.apply import apply_edits
from offloader.manifest.segment_table import OFFLOADED, RETIRED, SealedSegments, SegmentSums, SegmentTable
from offloader.manifest.state import ManifestState

SEGMENTS = 200_000
BYTES_PER_SEGMENT_MAX = 32


def state_of(status: int, retired_by: int = -1) -> ManifestState:
    """Segments of ten entries each of ledger 1, all in columns."""
    numbers = {name: np.zeros(SEGMENTS, dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()}
    first = np.arange(SEGMENTS, dtype=np.int64) * 10
    values = {
        "status": status, "layout": 2, "owned": 1, "retire_record": retired_by, "begin_ledger_id": 1,
        "begin_entry_id": first, "end_ledger_id": 1, "end_entry_id": first + 9, "data_bytes": 1000,
        "index_bytes": 50, "entries": 10,
    }  # fmt: skip
    for name, value in values.items():
        numbers[name] = np.broadcast_to(np.asarray(value), SEGMENTS).astype(NUMBER_COLUMNS[name])
    random = np.random.default_rng(7)
    columns = SegmentColumns(
        uuid_high=random.integers(0, 2**63, SEGMENTS, dtype=np.uint64),
        uuid_low=random.integers(0, 2**63, SEGMENTS, dtype=np.uint64),
        **numbers,
        span_rows=np.empty(0, dtype=np.int64),
        span_offsets=np.zeros(1, dtype=np.int64),
        spans=np.empty((0, 5), dtype=np.int64),
        drivers=({"bucket": "b"},),
    )
    return ManifestState(
        stream="s",
        incarnation=UUID(int=1),
        record_id=10,
        segments=SegmentTable((SealedSegments(columns),)),
        sums=SegmentSums(SEGMENTS, SEGMENTS * 10, 0, SEGMENTS * 1050) if status == OFFLOADED else SegmentSums(),
        head=Position(1, SEGMENTS * 10 - 5),
    )


@pytest.mark.parametrize("status", [OFFLOADED, RETIRED])
def test_a_plan_takes_little_memory_for_each_segment(status: int) -> None:
    state = state_of(status, retired_by=3 if status == RETIRED else -1)
    facts = {3: RetiredFacts(0)}
    plan_cleanup(state, facts, now_ms=10, grace_ms=1)  # what is made once and kept
    tracemalloc.start()
    plan = plan_cleanup(state, facts, now_ms=10, grace_ms=1)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / SEGMENTS <= BYTES_PER_SEGMENT_MAX
    assert held / SEGMENTS <= BYTES_PER_SEGMENT_MAX / 2
    planned = sum(len(each.segments) for each in plan.doomed) + sum(len(each.segments) for each in plan.due)
    assert planned == SEGMENTS - (status == OFFLOADED), "the last one reaches over the head"
    assert plan.large == (status == OFFLOADED)


def test_retired_columns_are_grouped_by_record_without_purged_rows() -> None:
    state = state_of(OFFLOADED)
    doomed = plan_cleanup(state, {}, now_ms=0, grace_ms=0).doomed[0].segments
    for number, start in enumerate((0, 5)):
        uuids = tuple(segment.uuid for segment in doomed[start : start + 3])
        state = apply_edits(state, [Retire(uuids)], record_id=20 + number)
        state = replace(state, record_id=20 + number)
    plan = plan_cleanup(state, {20: RetiredFacts(0)}, now_ms=10, grace_ms=1)
    assert [(group.record_id, len(group.segments)) for group in plan.due] == [(20, 3)]
    assert [(group.record_id, len(group.segments), why) for group, why, _ in plan.waiting] == [
        (21, 3, "the grace period")
    ]
    assert sum(len(each.segments) for each in plan.doomed) == SEGMENTS - 7
