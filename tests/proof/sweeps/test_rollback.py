"""Rewriting ledgers of V2 segments into V1 objects: every entry is readable exactly once after any failure."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import OffloaderError, OutcomeUnknown, StoreUnavailable
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.testing.faulty_store import Fault
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.write.test_rollback import STREAM, Bench
from tests.write.test_rollback import bench as bench


@pytest.mark.slow
@pytest.mark.parametrize("error", [StoreUnavailable, OutcomeUnknown], ids=lambda error: error.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rollback_failing_at_any_call_is_continued_by_the_next(after: bool, error: type[OffloaderError]) -> None:
    settings = Settings.of(
        {"offload": {"max_size_per_offload_segment_mbytes": 0.001, "backfill_segments_in_flight_max": 1}}
    )
    number, failed = 0, 0
    while True:
        number += 1
        bench = Bench(settings=settings)
        bench.writer.add([batch_of(1, 0, 60), batch_of(2, 0, 5)], closes=[1])
        bench.writer.add([batch_of(2, 5, 60), batch_of(3, 0, 5)], closes=[2])
        bench.store.set_faults([Fault(call=number, after=after, error=error)])
        try:
            bench.rollback()
        except OffloaderError:
            failed += 1
        bench.require_whole()
        calls = len(bench.store.calls)
        bench.store.set_faults([])
        bench.rollback()
        bench.require_whole()
        assert bench.layouts() == {1: {1}, 2: {1}, 3: {2}}
        assert load_manifest(bench.memory, STREAM).rewrites == ()
        if calls < number:
            break
    assert failed > 25, "most calls matter"


def test_large_ledgers_are_uploaded_in_parts_to_real_servers(s3_place: Any) -> None:
    store = s3_place.open()
    writer = StreamWriter(store, STREAM, block_bytes=64 * 1024)
    writer.add([batch_of(1, 0, 700, size=10_000)])
    writer.add([batch_of(1, 700, 500, size=10_000), batch_of(2, 0, 100, size=10_000)], closes=[1])
    settings = Settings.of({"offload": {"part_bytes": 5 * 1024 * 1024, "takeover_after_seconds": 0.01}})
    with contextlib.closing(LedgerOffloader(store, settings)) as offloader:
        done = offloader.history.rollback(STREAM)
    assert [(s.begin, s.end, s.data_bytes > 10 * 2**20) for _, s in done.rewritten] == [
        (Position(1, 0), Position(1, 1199), True)
    ]
    assert [(position, payload) for position, payload in stored_entries(store, STREAM)] == [
        (entry.position, entry.payload) for entry in writer.entries
    ]
    assert list(store.list_uploads("")) == []
    store.close()
