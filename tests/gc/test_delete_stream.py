"""Deleting a stream leaves nothing of it in the bucket, whatever kind of store it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import data_key, new_segment_uuid
from formats.manifest import Assign, Failed, Hold
from offloader.errors import InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.gc import delete_stream as removal
from offloader.gc.delete_stream import removal_of, remove_stream
from offloader.gc.sweep import cleanup_all, cleanup_stream
from offloader.manifest.boundary import listed
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import expire_records
from offloader.manifest.protection import TIME_KEY, ClockSkewError, DeletionStoppedError, set_global_hold, take_lease
from offloader.manifest.state import EditRefusedError
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore, UploadInfo
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

AT_ONCE = Settings.of(
    {"manifest": {"orphan_age_min": "0h"}, "cleanup": {"grace_period": "0h", "allow_large_delete": True}}
)
_names = count()


def remaining(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in listed(store, "") if info.key != TIME_KEY)


def lived(store: ObjectStore) -> StreamWriter:
    """A stream with segments of every fate: live, retired, purged, assigned, with an upload, leftovers and a lease."""
    writer = StreamWriter(store, STREAM)
    for ledger in range(1, 6):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    log = ManifestLog(store, STREAM, clock=SystemClock())
    truncate_stream(log, Position(2, 0), clock=SystemClock())
    # Stores that cut times to whole seconds say a moment later that a second is over.
    eventually(lambda: cleanup_stream(store, STREAM, clock=SystemClock(), settings=AT_ONCE).swept.purged)
    truncate_stream(log, Position(3, 0), clock=SystemClock())
    cleanup_stream(store, STREAM, clock=SystemClock(), settings=Settings.of({"cleanup": {"allow_large_delete": True}}))
    incarnation = writer.log.state.incarnation
    going, failed = new_segment_uuid(incarnation, 1), new_segment_uuid(incarnation, 2)
    writer.log.load()
    writer.log.commit([Assign(going, 2, Position(6, 0), None, 1, {})])
    store.put(data_key(STREAM, failed), b"late")
    store.begin_upload(data_key(STREAM, going))
    return writer


def cleanup_rest(store: ObjectStore) -> bool:
    """A round over all streams; whether one is still being deleted."""
    return any(report.is_deleted for report in cleanup_all(store, clock=SystemClock(), settings_of=lambda _: AT_ONCE))


def leaves_nothing(store: ObjectStore) -> None:
    other = StreamWriter(store, "other")
    other.add([batch_of(1, 0, 10)])
    kept = set(remaining(store))
    lived(store)
    planned = removal_of(store, STREAM, now_ms=0)
    assert (planned.objects, planned.uploads, planned.foreign) == (8 + 1 + 1, 1, []), remaining(store)
    done = remove_stream(store, STREAM, clock=SystemClock(), settings=AT_ONCE.manifest)
    assert (done.objects, done.uploads) == (planned.objects, 1)
    eventually(lambda: not cleanup_rest(store))
    assert set(remaining(store)) == kept
    assert store.list_uploads(f"{STREAM}/") == []
    assert len(load_manifest(store, "other").offloaded()) == 1
    with pytest.raises(NotFoundError):
        removal_of(store, STREAM, now_ms=0)


def test_removal_leaves_nothing_in_memory() -> None:
    leaves_nothing(MemoryStore(f"removal-{next(_names)}", "", SystemClock()))


@pytest.mark.slow
def test_removal_leaves_nothing_in_a_directory(tmp_path: Path) -> None:
    leaves_nothing(open_store(f"file://{tmp_path}/store"))
    left = [str(path) for path in (tmp_path / "store").rglob("*") if STREAM.rpartition("/")[2] in path.name]
    assert left == []


def test_foreign_objects_stay_and_are_named() -> None:
    bench = Bench()
    foreign = [f"{STREAM}/notes.txt", f"{STREAM}/11111111-2222-4333-8444-555555555555"]
    for key in foreign:
        bench.memory.put(key, b"somebody else's")
    done = remove_stream(bench.store, STREAM, clock=bench.clock)
    assert sorted(done.foreign) == sorted(foreign)
    assert {info.key for info in bench.memory.list(f"{STREAM}/").objects if "/manifest/" not in info.key} == set(
        foreign
    )


@pytest.mark.parametrize("verb", ["list", "list_uploads"])
def test_objects_that_a_gateway_denies_for_a_moment_keep_their_manifest(verb: str) -> None:
    """A 404 without a reason, in answer to a listing, is no word of another process that deletes the same stream."""
    bench = Bench()
    before = 1 if verb == "list" else 0  # of the leases
    fault = Fault(call=before + 1, verb=verb, key_part=f"{STREAM}/", but="/manifest/", error=NotFoundError)
    bench.store.set_faults([fault])
    for _ in range(3):
        with contextlib.suppress(StoreUnavailableError, NotFoundError):
            remove_stream(bench.store, STREAM, clock=bench.clock, settings=AT_ONCE.manifest)
        bench.clock.advance(60)
    assert remaining(bench.memory) == []


def test_stream_under_a_lease_or_hold_is_not_deleted() -> None:
    bench = Bench()
    lease = take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="ana@host")
    with pytest.raises(InvalidCallError, match="read by ana@host"):
        remove_stream(bench.store, STREAM, clock=bench.clock)
    lease.end()
    log = bench.log()
    log.commit_as_maintainer([Hold(True, "court")])
    with pytest.raises(EditRefusedError, match="on hold"):
        remove_stream(bench.store, STREAM, clock=bench.clock)
    log.commit_as_maintainer([Hold(False, "")])
    set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
    with pytest.raises(DeletionStoppedError):
        remove_stream(bench.store, STREAM, clock=bench.clock)
    assert len(bench.state.offloaded()) == 4
    assert not bench.state.stream_deleted


@pytest.mark.slow
def test_stalled_deleter_takes_nothing_of_recreated_stream() -> None:
    """It stalls before any of its requests; leases and what retention keeps have the same keys in both."""
    stalled_in_time = 0
    for stalls_at in range(1, 80):
        bench = Bench(ledgers=1)
        remove_stream(bench.memory, STREAM, clock=bench.clock)
        bench.memory.put(f"{STREAM}/retention/left", b"of the old one")
        again: list[set[str]] = []

        def recreate(bench: Bench = bench, again: list[set[str]] = again) -> None:
            bench.hours(25)
            remove_stream(bench.memory, STREAM, clock=bench.clock)
            writer = StreamWriter(bench.memory, STREAM, clock=bench.clock)
            writer.add([batch_of(1, 0, 10)])
            take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="new")
            bench.memory.put(f"{STREAM}/retention/subscribers", b"of the new one")
            again.append(bench.stored())

        class Stalled(FaultyStore):
            def _next(
                self, verb: str, key: str, at: int = stalls_at, recreate: Callable[[], None] = recreate
            ) -> Fault | None:
                if len(self.calls) + 1 == at:
                    recreate()
                return super()._next(verb, key)

        store = Stalled(bench.memory)
        with contextlib.suppress(NotFoundError, StoreUnavailableError, InvalidCallError, ClockSkewError):
            remove_stream(store, STREAM, clock=bench.clock, ignore_leases=True)
        if not again:
            assert stalled_in_time > 5
            return
        # It looks whether there is such a stream, reads its readers, and then its entry.
        entry_reads = [number for number, call in enumerate(store.calls, 1) if call[1].startswith("_catalog/")]
        if stalls_at <= entry_reads[1]:
            continue  # it read the new stream's entry: then it deletes that one, as it is told
        stalled_in_time += 1
        assert again[0] <= bench.stored(), stalls_at
    raise AssertionError("the second deleter never came to an end")


class ExactUploads(FaultyStore):
    """Finds an upload by its whole key only."""

    def list_uploads(self, prefix: str) -> list[UploadInfo]:
        return [upload for upload in super().list_uploads(prefix) if upload.key == prefix]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [1, 2])
def test_upload_recorded_only_in_checkpoint_is_aborted_on_removal(layout: int) -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    uuid = new_segment_uuid(log.state.incarnation, 1)
    log.commit([Assign(uuid, layout, Position(99, 0), None, 1, {})])
    bench.memory.begin_upload(data_key(STREAM, uuid, 99 if layout == 1 else None))
    checkpoint_now(bench.memory, bench.state, lambda count: bytes(count))
    bench.hours(30)
    assert expire_records(bench.memory, bench.state, clock=bench.clock).records
    store = ExactUploads(bench.memory)
    assert removal_of(store, STREAM, now_ms=0).uploads == 1
    assert remove_stream(store, STREAM, clock=bench.clock).uploads == 1
    assert bench.memory.list_uploads("") == []


def test_uploads_of_failed_attempts_are_aborted_by_their_whole_key() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    uuids = [new_segment_uuid(log.state.incarnation, number) for number in range(3)]
    begin = Position(99, 0)
    log.commit([Assign(uuids[0], 2, begin, None, 1, {}), Failed(uuids[0], "for a test")])
    log.commit([Assign(uuids[1], 1, begin, None, 1, {}), Failed(uuids[1], "for a test")])
    keys = [data_key(STREAM, uuids[0]), data_key(STREAM, uuids[1], 99)]
    foreign = data_key(STREAM, UUID(int=7, version=4))
    for key in (*keys, foreign):
        bench.memory.begin_upload(key)

    done = remove_stream(ExactUploads(bench.memory), STREAM, clock=bench.clock)

    assert done.uploads == 2
    assert [upload.key for upload in bench.memory.list_uploads("")] == [foreign]


@pytest.mark.slow
def test_global_hold_stops_a_running_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold is set before each request in turn; at most the objects of the following request are still deleted."""
    monkeypatch.setattr(removal, "DELETE_KEYS_MAX", 3)
    for call in range(2, 60):
        bench = Bench(ledgers=4)

        class Stopping(FaultyStore):
            def _next(self, verb: str, key: str, at: int = call, bench: Bench = bench) -> Fault | None:
                if len(self.calls) + 1 == at:
                    set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
                return super()._next(verb, key)

        store = Stopping(bench.memory)
        stopped = False
        try:
            remove_stream(store, STREAM, clock=bench.clock)
        except DeletionStoppedError:
            stopped = True
        deletes = [key for verb, key in store.calls[call - 1 :] if verb == "delete" and key != TIME_KEY]
        assert len(deletes) <= 1, f"{call}: {deletes}"
        if not stopped and call > len(store.calls):
            assert call > 20
            return
    raise AssertionError("no deletion was over before it was stopped")
