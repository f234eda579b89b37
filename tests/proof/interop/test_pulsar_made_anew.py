"""A recreated Pulsar cluster over a bucket of the previous one: its ledger ids begin again."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.entries import Position
from offloader.errors import SourceMismatchError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.pulsar.broker import Broker, running_broker
from tests.proof.interop.broker_topics import topic_of
from tests.proof.interop.pulsar_offloading import OffloadingProcess
from tests.proof.interop.test_pulsar_gaps import Topic
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

pytestmark = pytest.mark.java


def offloading(broker: Broker, store: ObjectStore, topic: Topic) -> OffloadingProcess:
    return OffloadingProcess(broker.service_url, broker.admin_url, store, [topic.name])


def test_recreated_cluster_is_refused_and_keeps_its_ledgers(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    name = topic_of("anew")
    with running_broker(tmp_path / "first", {}) as broker:
        topic = Topic(broker, name, tmp_path)
        topic.send(1000)
        process = offloading(broker, store, topic)
        eventually(lambda: process.offload(name))
        process.close()
        topic.close()
    before = stored_entries(store, topic.stream)
    newest = before[-1][0]
    assert len(before) == 1000
    with running_broker(tmp_path / "second", {}) as broker:
        topic = Topic(broker, name, tmp_path)
        topic.send(400)
        ledgers = topic.ledgers()
        assert ledgers[-1] < newest.ledger_id, "the second cluster gives ids again"
        process = offloading(broker, store, topic)
        try:
            source = process.sources[name]
            eventually(lambda: source.problem is not None)
            said = f"its newest ledger is {ledgers[-1]}, and the manifest has entries up to {newest}"
            assert isinstance(source.problem, SourceMismatchError)
            assert said in str(source.problem)
            with pytest.raises(SourceMismatchError):
                process.offloader.history.hot_release(source, source.stream).look()
            with AdminClient(broker.admin_url) as admin:
                assert admin.internals(name).cursors["offloader"] < Position(ledgers[0], 0)
            assert topic.ledgers() == ledgers
        finally:
            process.close()
            topic.close()
    assert stored_entries(store, topic.stream) == before
    assert load_manifest(store, topic.stream).hot_released_ledgers == set()
