"""Details of deleting parts of a manifest: the boundary, and a hold set during the deletion."""

from __future__ import annotations

from contextlib import suppress

import pytest

from offloader.errors import OffloaderError
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream, expire_records
from offloader.manifest.protection import DeletionStoppedError, set_global_hold
from offloader.manifest.state import ManifestState
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits

STREAM = "a/stream"


def written(store: MemoryStore, clock: ManualClock, segments: int = 6) -> ManifestLog:
    log = ManifestLog(store, STREAM, clock=clock)
    log.open_epoch()
    for number in range(segments):
        log.commit(segment_edits(number))
    return log


def test_records_stay_while_their_checkpoint_is_not_in_the_boundary() -> None:
    clock = ManualClock()
    memory = MemoryStore("deleting-details-1", "", clock)
    log = written(memory, clock)
    checkpoint_now(memory, load_manifest(memory, STREAM), lambda count: bytes(count))
    for number in range(6, 9):
        log.commit(segment_edits(number))
    before = load_manifest(memory, STREAM)
    # Its writer died before it said so.
    dying = FaultyStore(memory)
    dying.set_faults([Fault(call=1, verb="put", key_part="/boundary", calls=1000)])
    with suppress(OffloaderError):
        checkpoint_now(dying, before, lambda count: bytes([7]) * count)
    clock.advance(30 * 3600)
    expired = expire_records(memory, before, clock=clock)
    assert expired.records == 7
    assert load_manifest(memory, STREAM) == before


def test_global_hold_during_stream_deletion_keeps_the_records() -> None:
    clock = ManualClock()
    memory = MemoryStore("deleting-details-2", "", clock)
    written(memory, clock)
    kept = {info.key for info in memory.list(f"{STREAM}/manifest/").objects}

    def stopped(_: ManifestState) -> None:
        set_global_hold(memory, by="ana", reason="a test", now_ms=0)

    with pytest.raises(DeletionStoppedError):
        delete_stream(memory, STREAM, clock=clock, delete_objects=stopped)
    assert kept <= {info.key for info in memory.list(f"{STREAM}/manifest/").objects}
