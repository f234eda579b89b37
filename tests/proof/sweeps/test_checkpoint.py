"""Checkpoints: written by any committer, opened in few requests, never lowered, refused when damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from formats.checkpoint import decode_checkpoint
from formats.keys import checkpoint_key, manifest_prefix
from formats.manifest import (
    LedgerClosed,
    LedgersDeleted,
    Purged,
    Retire,
)
from offloader.errors import CorruptError, FencedError, OutcomeUnknownError
from offloader.manifest.boundary import read_boundary
from offloader.manifest.checkpoint import write_checkpoint
from offloader.manifest.compaction import RUN_ROWS_MIN
from offloader.manifest.load import load_manifest_view_at
from offloader.manifest.log import load_manifest
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.segment_table import SegmentTable
from offloader.manifest.state import ManifestState
from offloader.store.base import OVERWRITE
from offloader.testing.faulty_store import Fault
from tests.manifest.test_checkpoint import (
    HOURS_24_S,
    STREAM,
    aside_log,
    close,
    keys_in,
    with_a_full_run,
)
from tests.support.manifests import segment_edits, uuid_of


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("key_part", ["segments", "checkpoint", "boundary"])
def test_lost_response_anywhere_in_a_checkpoint_is_harmless(key_part: str, fault: str) -> None:
    bench, log = with_a_full_run()
    expected = load_manifest(bench.memory, STREAM)
    bench.store.set_faults(
        [Fault(call=1, verb="put", key_part=key_part, after=fault == "after", error=OutcomeUnknownError)]
    )
    try:
        log.checkpoint()
    except OutcomeUnknownError:
        assert load_manifest(bench.memory, STREAM).totals() == expected.totals()
        log.checkpoint()

    assert load_manifest(bench.memory, STREAM) == expected
    log.commit(segment_edits(RUN_ROWS_MIN))
    assert load_manifest(bench.memory, STREAM).totals() == log.state.totals()
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == expected.record_id


@pytest.mark.slow
@pytest.mark.parametrize("target", ["boundary", "checkpoint", "segments", "ledgers"])
def test_a_flipped_bit_anywhere_in_a_manifest_is_named(target: str) -> None:
    bench, log = with_a_full_run()
    log.commit([LedgerClosed(100 + n, 9) for n in range(RUN_ROWS_MIN)])
    log.checkpoint()
    [key] = [key for key in keys_in(bench, log) if target in key]
    full = f"{manifest_prefix(STREAM, log.state.incarnation)}{key}"
    body = bench.memory.get(full)[0]
    for at in {0, 4, len(body) // 3, len(body) // 2, len(body) - 9, len(body) - 1}:
        damaged = bytearray(body)
        damaged[at] ^= 0x10
        bench.memory.put(full, damaged, mode=OVERWRITE)
        with pytest.raises(CorruptError):
            load_manifest(bench.memory, STREAM)
    bench.memory.delete([full])
    if target != "boundary":
        with pytest.raises(CorruptError, match="missing"):
            load_manifest(bench.memory, STREAM)
    bench.memory.put(full, body)
    assert load_manifest(bench.memory, STREAM) == log.state


@pytest.mark.slow
def test_checkpoint_of_stalled_writer_is_not_named_if_its_runs_may_be_deleted() -> None:
    """The boundary has moved to a checkpoint that merged those runs into others: they are garbage by now."""
    bench, log = with_a_full_run()
    log.checkpoint()
    base = log.state
    [run] = [part.run for part in base.segments.sealed if part.run is not None]
    # The stalled one: it had read the boundary at `base`, and writes the checkpoint of a record that comes later.
    gone = [LedgersDeleted((1,)), Retire(tuple(uuid_of(1 << 32 | n) for n in range(RUN_ROWS_MIN * 3 // 4)))]
    log.commit(gone)
    log.checkpoint()  # more than half of the run is dead: its rows are written anew
    assert run.name not in {part.run.name for part in log.state.segments.sealed if part.run is not None}
    close(log, 5)
    stalled = base
    for number in (base.record_id + 1, base.record_id + 2):
        stalled = load_manifest_view_at(bench.memory, log.state, number)
    stalled = replace(
        stalled, segments=replace_runs(stalled, base), checkpoint_id=base.checkpoint_id, record_id=log.state.record_id
    )
    stored = read_boundary(bench.memory, STREAM, base.incarnation)
    old = stored._replace(boundary=replace(stored.boundary, checkpoint_id=base.checkpoint_id), etag='"stale"')
    assert write_checkpoint(bench.memory, stalled, old, os.urandom) is None
    key = checkpoint_key(STREAM, base.incarnation, log.state.record_id)
    assert run.name in [r.name for r in decode_checkpoint(bench.memory.get(key)[0])[0].runs]

    log.checkpoint()

    named = [r.name for r in decode_checkpoint(bench.memory.get(key)[0])[0].runs]
    assert run.name not in named
    bench.memory.delete([f"{manifest_prefix(STREAM, base.incarnation)}{run.name}"])
    assert load_manifest(bench.memory, STREAM) == log.state


def replace_runs(state: ManifestState, base: ManifestState) -> SegmentTable:
    return base.segments if state.segments is not base.segments else state.segments


@pytest.mark.slow
def test_segments_compacted_in_background_are_not_compacted_again() -> None:
    bench, log = with_a_full_run()
    later: list[Callable[[], object]] = []
    aside = aside_log(bench, later, checkpoint_records=1)
    aside.open_epoch()
    [write] = later
    aside.commit(segment_edits(RUN_ROWS_MIN))
    write()
    aside.commit(segment_edits(RUN_ROWS_MIN + 1))
    [run] = [part.run for part in aside.state.segments.sealed if part.run is not None]
    assert len(aside.state.offloaded()) == RUN_ROWS_MIN + 2
    assert aside.state == load_manifest(bench.memory, STREAM)
    later[-1]()
    named = decode_checkpoint(bench.memory.get(checkpoint_key(STREAM, log.state.incarnation, aside.state.record_id))[0])
    assert [each.name for each in named[0].runs] == [run.name]


@pytest.mark.slow
def test_unreferenced_runs_are_deleted_and_those_of_kept_checkpoints_stay() -> None:
    bench, log = with_a_full_run()
    log.checkpoint()
    gone = tuple(uuid_of(1 << 32 | n) for n in range(RUN_ROWS_MIN * 3 // 4))
    retired = log.commit([LedgersDeleted((1,)), Retire(gone)])
    log.checkpoint()
    bench.clock.advance(HOURS_24_S + 1)
    log.commit([LedgerClosed(9, 9)])
    log.checkpoint()
    assert len([key for key in keys_in(bench, log) if key.endswith(".segments.parquet")]) == 2
    log.commit([Purged(gone, retired.record_id)])

    bench.expire()

    left = [key for key in keys_in(bench, log) if key.endswith(".segments.parquet")]
    assert len(left) == 1
    assert load_manifest(bench.memory, STREAM) == log.state


@pytest.mark.slow
def test_runs_named_only_by_the_oldest_kept_checkpoint_stay() -> None:
    """A view of a day ago can still be pinned, though the newest checkpoint has rewritten its rows."""
    bench, log = with_a_full_run()
    log.checkpoint()
    pinned = log.state
    [run] = [part.run for part in pinned.segments.sealed if part.run is not None]
    bench.clock.advance(HOURS_24_S + 1)
    log.commit([LedgersDeleted((1,)), Retire(tuple(uuid_of(1 << 32 | n) for n in range(RUN_ROWS_MIN * 3 // 4)))])
    log.checkpoint()
    assert run.name not in {part.run.name for part in log.state.segments.sealed if part.run is not None}

    bench.expire()

    assert run.name in keys_in(bench, log)
    assert load_manifest_view_at(bench.memory, log.state, pinned.record_id) == pinned


@pytest.mark.slow
def test_stream_being_deleted_is_deleted_and_not_damaged() -> None:
    """What is left of it, the tombstone's checkpoint and its runs, can be read."""
    bench, log = with_a_full_run()
    delete_stream(bench.memory, STREAM, clock=bench.clock, delete_objects=lambda _: None, settings=bench.settings)
    state = load_manifest(bench.memory, STREAM)
    assert state.stream_deleted
    assert any(key.endswith(".segments.parquet") for key in keys_in(bench, log))
    with pytest.raises(FencedError):
        close(log, 1)
