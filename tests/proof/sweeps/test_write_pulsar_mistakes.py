"""Mistakes of Pulsar's own streaming offloader, point by point, through public interfaces.

Each test names the mistake that running or reading Pulsar 4.0.8 showed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.keys import is_segment_uuid_of, parse_object_key
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.reader import open_stream_reader
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.write.test_write_pulsar_mistakes import STREAM, entries_of
from tests.write.test_write_pulsar_mistakes import store as store


@pytest.mark.slow
def test_failure_after_the_data_upload_leaves_only_provably_own_objects(store: FaultyStore, tmp_path: Path) -> None:
    """Pulsar leaves an unreferenced object. Here a key proves its owner, so that a sweep may delete it."""
    store.set_faults([Fault(call=1, calls=6, verb="put", key_part="-index")])
    with open_managed_ledger(STREAM, ledgers=f"sqlite:///{tmp_path}/l.db", store=store) as topic:
        for number in range(50):
            topic.append(b"%d" % number)
        topic.offload()
        state = load_manifest(store, STREAM)
        with open_stream_reader(store, STREAM) as reader:
            assert [entry.payload for entry in entries_of(reader.scan())] == [b"%d" % number for number in range(50)]
    keys = [parse_object_key(info.key, STREAM) for info in store.inner.list("").objects]
    uuids = {key.uuid for key in keys if key}
    assert len(uuids) > 1, "attempts failed after their data was there"
    assert all(is_segment_uuid_of(uuid, state.incarnation) for uuid in uuids)
