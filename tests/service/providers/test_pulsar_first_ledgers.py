"""Topics that begin with entries for nobody: the sidecar finds out, and the broker's offload of each ledger ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from offloader.coverage import GapReason
from offloader.manifest.log import load_manifest
from offloader.service.bootstrap import Assembled
from tests.support.broker_requests import Broker
from tests.support.http_process import http_process
from tests.support.pulsar_cluster import Cluster, P, S, fake_cluster
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

NAME = "one"
#: Entries of closed ledgers without a message; the ledger with the first message begins with further ones.
WHOLE, IN_FRONT = (5, 3), 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("ledgers", [WHOLE, ()])
@pytest.mark.parametrize("is_followed", [True, False])
def test_broker_is_asked_for_what_a_topic_begins_with(
    cluster: Cluster, tmp_path: Path, ledgers: Sequence[int], is_followed: bool
) -> None:
    """Also when the sidecar comes later than the topic's first message."""
    topic = cluster.topics[NAME] = FakeTopic(cluster.broker, P + NAME)
    cluster.admin.add(topic)
    if not is_followed:
        begin(cluster, topic, ledgers)
    with cluster.serve(broker_plugin=True) as assembled:
        await_active(assembled)
        if is_followed:
            begin(cluster, topic, ledgers)
        offload(cluster, assembled)
    with cluster.serve(broker_plugin=True) as assembled:  # as after a restart
        cluster.fill(NAME, 3)
        offload(cluster, assembled)
        topic.roll()
        cluster.fill(NAME, 1)
        offload(cluster, assembled)
    recorded = [(gap.first.ledger_id, gap.last.entry_id + 1) for gap in load_manifest(cluster.store, S + NAME).gaps]
    assert recorded[: len(ledgers)] == list(enumerate(ledgers, 1))
    assert {gap.reason for gap in load_manifest(cluster.store, S + NAME).gaps} <= {GapReason.UNDELIVERED}
    with http_process(tmp_path, streams=(), store=cluster.store) as (http, _):
        broker = Broker(http.url, S + NAME)
        for ledger_id, missing in enumerate([*ledgers, IN_FRONT], 1):
            stored = [(each.entry_id, entry) for each, entry, _ in topic.entries if each.ledger_id == ledger_id]
            length = sum(len(entry) for _, entry in stored)
            asked = {"last": len(stored) - 1, "length": length, "entries": len(stored)}
            assert broker.offload(ledger_id, **asked).json() == {"committed": False, "missing": [[0, missing - 1]]}
            assert broker.fill(ledger_id, 0, missing - 1, stored[:missing]).json() == {"stored": missing}
            assert broker.offload(ledger_id, **asked).json() == {"committed": True, "missing": []}
            assert broker.whole(ledger_id) == stored
    assert load_manifest(cluster.store, S + NAME).committed_end() == cluster.newest(NAME)


def begin(cluster: Cluster, topic: FakeTopic, ledgers: Sequence[int]) -> None:
    for entries in ledgers:
        append_markers(topic, entries)
        topic.roll()
    append_markers(topic, IN_FRONT)
    cluster.fill(NAME, 4)


def append_markers(topic: FakeTopic, count: int) -> None:
    for _ in range(count):
        topic.append_marker()


def await_active(assembled: Assembled) -> None:
    eventually(lambda: assembled.process.streams.get(S + NAME) is not None)
    eventually(lambda: assembled.process.streams.require(S + NAME).is_active)


def offload(cluster: Cluster, assembled: Assembled) -> None:
    await_active(assembled)
    assembled.process.streams.require(S + NAME).offload(cluster.newest(NAME), timeout_s=100)
    assert load_manifest(cluster.store, S + NAME).committed_end() == cluster.newest(NAME)
