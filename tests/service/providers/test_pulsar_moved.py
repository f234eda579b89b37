"""Changes to topics while they are served: replication between clusters, an unload, a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.messages import messages
from offloader.coverage import GapReason
from offloader.manifest.log import load_manifest
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled
from offloader.service.http.server import OffloadHttp
from offloader.settings import Settings
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.http_process import Answer, ask, quoted
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, whats
from tests.support.waiting import eventually

#: Markers that brokers write where subscriptions are replicated: request, response, snapshot, update.
SNAPSHOT_REQUEST, SNAPSHOT_RESPONSE, SNAPSHOT, UPDATE = 10, 11, 12, 13


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


@pytest.mark.slow
def test_replicated_entries_are_offloaded_and_replication_markers_are_gaps(
    cluster: Cluster,
) -> None:
    topic = cluster.make("geo", entries=0)
    sent: list[Position] = []

    def replicated(count: int) -> None:
        for _ in range(count):
            number = len(sent)
            sent.append(
                topic.append(single_entry(Sent(value=b"%d" % number, key="k"), replicated_from="west", producer="pw"))
            )

    topic.append_marker(SNAPSHOT_REQUEST)
    replicated(3)
    topic.append_marker(SNAPSHOT_RESPONSE)
    topic.append_marker(SNAPSHOT)
    replicated(2)
    # The broker's own cursor of that replication: nobody's need.
    topic.subscribe("pulsar.repl.west")
    with cluster.serve(offload={"retention__policy": "consumption"}) as assembled:
        eventually(lambda: [position for position, _ in cluster.cold("geo")] == sent)
        topic.append_marker(UPDATE)
        replicated(1)
        eventually(lambda: [position for position, _ in cluster.cold("geo")] == sent)
        assert whats(assembled) == ""
    ledger_id = sent[0].ledger_id
    # The stream begins behind the first one: there is nothing before it.
    assert [(gap.first, gap.last, gap.reason) for gap in load_manifest(cluster.store, f"{S}geo").gaps] == [
        (Position(ledger_id, 4), Position(ledger_id, 5), GapReason.UNDELIVERED),
        (Position(ledger_id, 8), Position(ledger_id, 8), GapReason.UNDELIVERED),
    ]
    assert cluster.cold("geo") == [(at, entry) for at, entry, count in topic.entries if count]
    stored = EntryBatch.build(ledger_id, 0, [entry for _, entry in cluster.cold("geo")])
    assert [row["value"] for row in messages(stored).to_pylist()] == [b"%d" % number for number in range(len(sent))]
    assert open_retention(cluster.store, f"{S}geo").registry().subscribers == {}


class Asked:
    """``POST .../offload`` of the topic ``one``, sent by a thread of its own."""

    def __init__(self, http: OffloadHttp) -> None:
        self._where = f"{http.url}/v1/streams/{quoted(f'{S}one')}/offload"
        self._thread = threading.Thread(target=self._ask)
        self.answer: Answer | None = None
        self._thread.start()

    def _ask(self) -> None:
        self.answer = ask(self._where, method="POST", body={"wait_seconds": 120})

    def result(self) -> Answer:
        self._thread.join(120)
        assert self.answer is not None, "no answer"
        return self.answer


@contextmanager
def over_http(assembled: Assembled) -> Iterator[OffloadHttp]:
    http = OffloadHttp(
        assembled.view,
        assembled.control,
        ledgers=assembled.ledgers,
        settings=Settings.of({"http": {"listen": "127.0.0.1:0", "answer_timeout": 300}}),
        credentials=assembled.credentials,
        clock=SystemClock(),
        exposition=assembled.metrics.exposition,
        recorder=assembled.metrics,
    )
    http.start()
    try:
        yield http
    finally:
        http.stop()


def is_its_turn(assembled: Assembled) -> bool:
    """Until the broker has said so, the stream stands by, and says that."""
    found = assembled.process.streams.get(S + "one")
    return found is not None and found.is_active


@pytest.mark.slow
@pytest.mark.parametrize("what", ["unloaded", "cut", "restarted"])
def test_topic_moved_during_a_requested_offload_only_delays_it(cluster: Cluster, what: str) -> None:
    topic = cluster.make("one")
    # Nothing is committed but by asking: a segment has an hour.
    slow = {
        "offload__segment_age_max": "60.0m",
        "offload__segment_size_max": "64MiB",
    }
    with cluster.serve(offload=slow) as assembled, over_http(assembled) as http:
        eventually(lambda: is_its_turn(assembled))
        assert Asked(http).result().status == 200
        cluster.fill("one", 5)
        asked = Asked(http)
        if what == "unloaded":
            topic.unload()
        elif what == "cut":
            cluster.broker.cut()
        else:
            cluster.broker.stop()
            cluster.broker.start()
        answer = asked.result()
        while answer.status == 503:  # nobody can say what the hot tier has: come again
            answer = Asked(http).result()
        newest = topic.entries[-1][0]
        assert (answer.status, answer.json()["committed"]) == (200, str(newest))
    assert cluster.cold("one") == [(position, entry) for position, entry, _ in topic.entries]
