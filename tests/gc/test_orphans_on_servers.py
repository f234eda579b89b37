"""Orphans and unfinished uploads in real stores, each with its own way of listing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offloader.gc.orphans import Outcome
from offloader.manifest.protection import store_time_ms
from offloader.runtime.clock import SystemClock
from offloader.store.base import PROBE_PREFIX, ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import finds_uploads_by_prefix
from tests.gc.left_behind import Bucket
from tests.support.waiting import eventually


def leave_and_find(store: ObjectStore) -> None:
    """Everything that a stream's failed attempts leave goes in one run, and nothing else."""
    bucket = Bucket(store, SystemClock())
    bucket.offload(2)
    complete = next(iter(bucket.writer.uuids))
    for _ in range(3):
        bucket.failed()
    bucket.begin_upload(complete)
    running = bucket.assign()
    bucket.begin_upload(running)
    foreign = f"{bucket.writer.stream}/notes.txt"
    bucket.put(foreign)
    wrote_ms = SystemClock().now_ms()
    eventually(lambda: store_time_ms(store) > wrote_ms)

    dry = bucket.reconcile(delete=False, age_hours=0)
    found = bucket.reconcile(age_hours=0)

    assert [each.key for each in dry] == [each.key for each in found]
    assert [each.key for each in found if each.outcome is not Outcome.DELETED] == [foreign]
    assert len(found) == 3 * 2 + 1 + 1
    assert bucket.keys() == bucket.named_keys()
    for uuid, left in ((complete, 0), (running, 1)):
        key, _ = bucket.writer.keys(uuid)
        assert len([each for each in store.list_uploads(key) if each.key == key]) == left
    bucket.check_readable()
    assert not store.list(PROBE_PREFIX).objects


def test_on_every_s3_server(s3_place: Any) -> None:
    store = s3_place.open()
    assert finds_uploads_by_prefix(store) == (s3_place.server != "minio")
    leave_and_find(store)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_on_a_store_without_a_server(kind: str, tmp_path: Path) -> None:
    store = open_store(f"memory://orphans-{tmp_path.name}" if kind == "memory" else f"file://{tmp_path}/store")
    assert finds_uploads_by_prefix(store)
    leave_and_find(store)
    store.close()
