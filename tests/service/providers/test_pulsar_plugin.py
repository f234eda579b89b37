"""Topics whose brokers read the cold tier through the plugin: acknowledged at once, triggered, kept while listed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from formats.entries import Position
from formats.pulsar.commands import CommandType
from offloader.coverage import GapReason
from offloader.ledgers.pulsar.topic_facts import SINCE_PROPERTY
from offloader.manifest.log import load_manifest
from offloader.retention.cycle import RetentionCycle
from offloader.service.bootstrap import Assembled
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, whats
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually

NAME = "offloader"
#: The lag never passes in a test: what is acknowledged is acknowledged because it is committed.
LAG: dict[str, Any] = {"offload__deletion_lag": "1000.0m"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


def offload(cluster: Cluster, assembled: Assembled, name: str) -> None:
    """Returns when everything that is stored is in the cold tier."""
    eventually(lambda: assembled.process.streams.get(S + name) is not None)
    eventually(lambda: assembled.process.streams.require(S + name).is_active)
    assembled.process.streams.require(S + name).offload(cluster.newest(name), timeout_s=100)
    assert cluster.is_offloaded(name)


def acknowledged(topic: FakeTopic) -> Position | None:
    try:
        return topic.mark_delete(NAME)
    except KeyError:  # not subscribed yet
        return None


def is_acknowledged(topic: FakeTopic, position: Position) -> bool:
    return acknowledged(topic) == position


@pytest.mark.slow
def test_each_commit_is_acknowledged_at_once_inside_an_open_ledger_too(cluster: Cluster) -> None:
    topic = cluster.make("one")
    cluster.fill("one", 5)
    with cluster.serve(offload=LAG, broker_plugin=True) as assembled:
        offload(cluster, assembled, "one")
        eventually(lambda: acknowledged(topic) == Position(2, 4))
        cluster.fill("one", 3)
        assert acknowledged(topic) == Position(2, 4)
        offload(cluster, assembled, "one")
        eventually(lambda: acknowledged(topic) == Position(2, 7))
    # Nothing else of the deletion lag applies: no ledger counts as released, and the broker trims when it likes.
    assert not load_manifest(cluster.store, S + "one").hot_released_ledgers
    assert cluster.admin.of("POST", "/trim") == []


@pytest.mark.slow
def test_without_the_plugin_a_commit_acknowledges_nothing_and_triggers_nothing(cluster: Cluster) -> None:
    topic = cluster.make("one")
    with cluster.serve(offload=LAG) as assembled:
        offload(cluster, assembled, "one")
        cluster.fill("one", 3)
        offload(cluster, assembled, "one")
    assert acknowledged(topic) is None
    assert cluster.broker.of(CommandType.ACK) == []
    assert topic.offloads == []


@pytest.mark.slow
def test_broker_is_asked_to_offload_closed_ledgers_once_they_are_committed(cluster: Cluster) -> None:
    topic = cluster.make("one")
    cluster.fill("one", 5)
    with cluster.serve(offload=LAG, broker_plugin=True) as assembled:
        offload(cluster, assembled, "one")
        eventually(lambda: topic.offloaded == {1})
        topic.roll()
        cluster.fill("one", 1)
        offload(cluster, assembled, "one")
        eventually(lambda: topic.offloaded == {1, 2})
        # Lost by an unload, or by a broker that was started again.
        topic.offloaded.clear()
        topic.unload()
        eventually(lambda: topic.offloaded == {1, 2})
    assert max(topic.offloads) == Position(3, 0)


@pytest.mark.slow
def test_refused_trigger_is_a_problem_by_name_and_offloading_goes_on(cluster: Cluster) -> None:
    cluster.make("one")
    cluster.admin.answers["/admin/v2/persistent/t/n/one/offload"] = 403, b"no"
    with cluster.serve(offload=LAG, broker_plugin=True) as assembled:
        offload(cluster, assembled, "one")
        eventually(lambda: "/persistent/t/n/one/offload returned status 403" in whats(assembled))
        assert assembled.view.readiness().ready
        cluster.fill("one", 3)
        offload(cluster, assembled, "one")


@pytest.mark.slow
def test_ledger_trimmed_as_soon_as_it_was_closed_leaves_no_gap(cluster: Cluster) -> None:
    """The broker closes a ledger that is acknowledged as a whole, and trims it at once: nobody ever lists its end."""
    topic = cluster.make("one")
    with cluster.serve(offload=LAG, broker_plugin=True) as assembled:
        for number in range(2, 6):
            cluster.fill("one", 4)
            offload(cluster, assembled, "one")
            eventually(partial(is_acknowledged, topic, Position(number, 3)))
            topic.roll()
            topic.trim()
        cluster.fill("one", 4)
        offload(cluster, assembled, "one")
        state = load_manifest(cluster.store, S + "one")
        assert list(state.gaps) == []
        assert {each: state.closed_ledgers.get(each) for each in range(1, 6)} == {1: 9, 2: 3, 3: 3, 4: 3, 5: 3}
        assert whats(assembled) == ""
    assert {position.ledger_id for position, _, _ in topic.entries} == {6}


@pytest.mark.slow
def test_entries_that_another_client_acknowledged_are_offloaded_while_they_are_there(cluster: Cluster) -> None:
    topic = cluster.make("one")
    with cluster.serve(offload=LAG, broker_plugin=True) as assembled:
        cluster.fill("one", 4)
        offload(cluster, assembled, "one")
        eventually(lambda: acknowledged(topic) == Position(2, 3))
        cluster.broker.is_silent = True
        cluster.fill("one", 4)
        topic.acknowledge(NAME, Position(2, 7))
        cluster.broker.is_silent = False
        offload(cluster, assembled, "one")
    # Whatever was delivered in time is there; nothing is taken for complete that isn't.
    assert cluster.cold("one")[-1][0] == Position(2, 7)


@pytest.mark.slow
def test_doubtful_gap_holds_the_acknowledgement(cluster: Cluster) -> None:
    topic = cluster.make("one")
    cluster.fill("one", 6)
    topic.lost.add(Position(2, 2))
    topic.roll()
    cluster.fill("one", 2)
    with cluster.serve(offload=LAG, broker_plugin=True):
        eventually(lambda: acknowledged(topic) == Position(2, 1))
        eventually(lambda: load_manifest(cluster.store, S + "one").committed_end() is not None)
        eventually(lambda: any(gap.reason == GapReason.LOST for gap in load_manifest(cluster.store, S + "one").gaps))
        assert acknowledged(topic) == Position(2, 1)
    with cluster.serve(offload={**LAG, "offload__release_with_gaps": True}, broker_plugin=True):
        eventually(lambda: (acknowledged(topic) or Position(0, 0)) >= Position(2, 5))


@pytest.mark.slow
def test_retention_keeps_what_the_broker_lists_and_follows_its_trim(cluster: Cluster) -> None:
    topic = cluster.make("one")
    for _ in range(3):
        cluster.fill("one")
        topic.roll()
    cluster.fill("one", 3)
    more = {"retention__policy": "consumption", "retention__record_interval": "0.001m"}
    with cluster.serve(offload={**LAG, **more}, broker_plugin=True, follow_broker_trim=True) as assembled:
        offload(cluster, assembled, "one")
        eventually(lambda: acknowledged(topic) == Position(5, 2))
        eventually(lambda: SINCE_PROPERTY in (topic.subscription_properties(NAME) or {}))
        streams = assembled.process.streams
        cycle = RetentionCycle(
            cluster.store, clock=assembled.clock, settings_of=streams.settings_of, source_of=streams.source_of
        )
        plan = assembled.view.retention(S + "one")
        assert plan["broker"] == ["the broker still lists ledger 1"]
        assert cycle.run(S + "one").truncations == {}
        assert (topic.subscription_properties(NAME) or {})[SINCE_PROPERTY] == "1"
        topic.trim()
        first = topic.entries[0][0].ledger_id
        assert first > 1
        cycle.run(S + "one")
        assert load_manifest(cluster.store, S + "one").head == Position(first, 0)
        # A topic that is deleted and created again lists nothing of what is here.
        cluster.admin.remove(topic.name)
        assert "does not exist, so nothing is deleted" in assembled.view.retention(S + "one")["broker"][0]
        assert cycle.run(S + "one").truncations == {}
