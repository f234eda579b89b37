"""After writes, kills, takeovers, truncations and deletions a real bucket holds exactly what manifests name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import catalog_key, data_key, index_key, manifest_prefix, new_segment_uuid
from formats.manifest import Assign, Failed, LedgersDeleted, Purged, Retire, Truncate
from offloader.gc.orphans import Outcome, Place
from offloader.gc.reconcile import Reconciliation, StoreReconciliation
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import list_streams
from offloader.manifest.load import kept_records
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import store_time_ms
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import ObjectStore
from tests.proof.kills.killed_writer import SETTINGS, drawn_payloads
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
#: Everything is old enough at once: nothing here leans on a clock.
NOW = ManifestSettings(orphan_age_min=Duration("0h"))
#: Where a writer is killed: stream -> verb, key, before or after.
KILLS = {
    "churn/killed-in-the-index": ("put", "/[0-9a-f-]{36}-index$", "before"),
    "churn/killed-in-a-part": ("upload_part", "", "after"),
    "churn/killed-in-the-completion": ("complete_upload", "", "after"),
}


def killed(place: Any, directory: Path, stream: str) -> None:
    """A writer of that stream in a process of its own, until kill -9."""
    environment = {
        **os.environ,
        "KILLED_STORE": place.url,
        "KILLED_STREAM": stream,
        "AWS_ENDPOINT_URL": place.endpoint.url,
        "AWS_ACCESS_KEY_ID": place.endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": place.endpoint.secret_key,
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "tests.proof.kills.killed_writer", str(directory), *KILLS[stream]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def go_on(store: ObjectStore, directory: Path, stream: str) -> None:
    """The next writer settles what the killed one left, and offloads the rest."""
    with open_managed_ledger(stream, ledgers=f"{directory}/ledgers.db", store=store, settings=SETTINGS) as topic:
        topic.append(b"and on")
        topic.offload()
    parts = 2 if "upload" in KILLS[stream][0] else 1
    expected = [payload for payloads in drawn_payloads()[:parts] for payload in payloads]
    assert [payload for _, payload in stored_entries(store, stream)] == [*expected, b"and on"]


def leave_late_objects(store: ObjectStore, stream: str) -> None:
    """A stalled writer comes back: an attempt that failed long ago arrives whole, another one as an upload."""
    log = ManifestLog(store, stream, clock=SystemClock())
    log.open_epoch()
    for number in (1, 2):
        uuid = new_segment_uuid(log.state.incarnation, number)
        end = log.state.newest_end
        begin = Position(99, 0) if end is None else end.next()
        log.commit([Assign(uuid, 2, begin, None, 5, dict(store.driver_metadata)), Failed(uuid, "for a test")])
        if number == 1:
            testimony = log.testimony()
            assert testimony is not None
            store.put(data_key(stream, uuid), b"late", metadata=testimony.as_metadata())
            store.put(index_key(stream, uuid), b"late")
        else:
            upload = store.begin_upload(data_key(stream, uuid))
            store.upload_part(data_key(stream, uuid), upload, 1, b"late")


def truncate_and_crash(store: ObjectStore) -> StreamWriter:
    """Retention that stops right after it has recorded what it deletes next."""
    writer = StreamWriter(store, "churn/truncated")
    uuids = [writer.add([batch_of(1, first, 10)]) for first in (0, 10, 20)]
    writer.log.commit([LedgersDeleted((1,)), Truncate(Position(1, 20)), Retire(tuple(uuids[:2]))])
    writer.log.commit([Purged(tuple(uuids[:2]), writer.log.state.record_id)])
    writer.entries = writer.entries[20:]
    return writer


def let_it_age(store: ObjectStore) -> None:
    """Waits until the store's clock, which HEAD tells in whole seconds, is past everything that was written."""
    now_ms = SystemClock().now_ms()
    eventually(lambda: store_time_ms(store) > now_ms)


def delete_whole(store: ObjectStore, stream: str) -> None:
    """A stream that is deleted while an object of it is still on its way."""
    writer = StreamWriter(store, stream)
    writer.add([batch_of(1, 0, 10)])
    late = new_segment_uuid(writer.log.state.incarnation, 7)
    store.put(data_key(stream, late), b"late")
    upload = store.begin_upload(data_key(stream, late))
    store.upload_part(data_key(stream, late), upload, 1, b"late")
    writer.log.commit([Assign(late, 2, Position(1, 10), None, 5, {})])

    def sweep(_: ManifestState) -> None:
        let_it_age(store)
        run = Reconciliation(store, stream, clock=SystemClock(), settings=NOW, delete=True)
        assert {each.outcome for each in run.leftovers()} <= {Outcome.DELETED}

    done = delete_stream(store, stream, clock=SystemClock(), delete_objects=sweep, settings=NOW)
    assert done.is_finished


def named_by_manifests(store: ObjectStore) -> set[str]:
    """Every key that some manifest, or the catalogue, gives a reason to be there."""
    named = set()
    for stream in list_streams(store):
        state = load_manifest(store, stream)
        named.add(catalog_key(stream))
        named |= {key for segment in state.offloaded() for key in segment.object_keys(stream)}
        named |= {info.key for info in listed(store, manifest_prefix(stream, state.incarnation))}
        assert state.assigned() == []
    return named


def uploads_of_every_attempt(store: ObjectStore) -> list[str]:
    """Unfinished uploads under any name that was ever assigned; MinIO finds them by the whole key only."""
    found = []
    for stream in list_streams(store):
        for record in kept_records(store, load_manifest(store, stream)):
            for edit in record.edits:
                if isinstance(edit, Assign):
                    found += [upload.key for upload in store.list_uploads(data_key(stream, edit.uuid))]
    return found


@pytest.mark.timeout(600)
def test_a_churn_ends_with_exactly_the_objects_that_manifests_name(servers: Any, tmp_path: Path) -> None:
    place = servers.place("minio")
    store = place.open()
    folders = {stream: tmp_path / str(number) for number, stream in enumerate(KILLS)}
    for folder in folders.values():
        folder.mkdir()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda stream: killed(place, folders[stream], stream), KILLS))
    for stream, folder in folders.items():
        go_on(store, folder, stream)
        leave_late_objects(store, stream)
    truncated = truncate_and_crash(store)
    delete_whole(store, "churn/deleted")
    assert not [info.key for info in listed(store, "") if "churn/deleted" in info.key]
    before = {info.key for info in listed(store, "")}
    named = named_by_manifests(store)
    assert len(before - named) >= 2 * len(KILLS) + 4
    assert len(uploads_of_every_attempt(store)) >= len(KILLS)

    let_it_age(store)
    failures: list[object] = []
    run = StoreReconciliation(
        store,
        clock=SystemClock(),
        settings_of=lambda _: NOW,
        failed=lambda *failure: failures.append(failure),
        delete=True,
    )
    found = list(run.leftovers())
    assert [each for each in found if each.outcome is not Outcome.DELETED] == []
    outcomes = {each.outcome for each in found}

    assert (outcomes, failures) == ({Outcome.DELETED}, [])
    left = {info.key for info in listed(store, "")}
    assert left == named_by_manifests(store) | {"_store"}
    assert uploads_of_every_attempt(store) == []
    # The probe's scratch objects may come and go beside the store's identity; the run counted the rest as needed.
    assert sum(tally.objects for kind, tally in run.needed.items() if kind is not Place.STORE) == len(left) - 1
    assert stored_entries(store, truncated.stream) == [(e.position, e.payload) for e in truncated.entries]
    for stream in KILLS:
        assert stored_entries(store, stream)
    store.close()
