"""Topics of a fake cluster served: found, offloaded, taken over, drained; their subscriptions hold data back."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from tests.service.providers.test_pulsar import cluster as cluster
from tests.support.pulsar_cluster import Cluster, P, S, streams_of, whats
from tests.support.served import settings_file
from tests.support.waiting import eventually


@pytest.mark.slow
def test_topics_are_found_offloaded_and_drained(cluster: Cluster) -> None:
    cluster.make("one", "two", "__change_events", "left-out")
    with cluster.serve("t/n", exclude=("t/n/left-*",)) as assembled:
        eventually(lambda: cluster.is_offloaded("one") and cluster.is_offloaded("two"))
        assert streams_of(assembled) == [f"{S}one", f"{S}two"]
        assert assembled.view.readiness().ready, whats(assembled)

        cluster.make("three", "parts-partition-0")
        eventually(lambda: cluster.is_offloaded("three") and cluster.is_offloaded("parts-partition-0"))
        cluster.make("parts-partition-1")
        eventually(lambda: cluster.is_offloaded("parts-partition-1"))
        cluster.fill("one", 5)
        eventually(lambda: cluster.is_offloaded("one"))

        before = cluster.cold("two")
        cluster.fill("two", 3)
        eventually(lambda: cluster.is_offloaded("two"))
        cluster.admin.remove(f"{P}two")
        eventually(lambda: f"{S}two" not in streams_of(assembled))
        # Nothing of the cold tier goes with it.
        assert len(cluster.cold("two")) == len(before) + 3
        assert f"{S}one" in streams_of(assembled)
        cluster.admin.add(cluster.topics["two"])
        eventually(lambda: f"{S}two" in streams_of(assembled))
    assert load_manifest(cluster.store, f"{S}one").method == "streaming"


@pytest.mark.slow
def test_reload_changes_topics_and_gap_policy(cluster: Cluster) -> None:
    cluster.make("one", "two")
    with cluster.serve("t/n/one", on_gap="block") as assembled:
        eventually(lambda: cluster.is_offloaded("one"))
        cluster.topics["one"].lost.add(Position(2, 0))
        cluster.fill("one", 3)
        eventually(lambda: any("lost by" in each["message"] for each in assembled.view.errors(stream=f"{S}one")))
        names = {f"pulsar__{name}": value for name, value in cluster.names("t/n", on_gap="record").items()}
        found = assembled.process.reload(settings_file(**names))
        assert (found.changed, found.needs_restart) == (("pulsar.on_gap", "pulsar.topics"), ())
        eventually(lambda: cluster.is_offloaded("two"))
        eventually(lambda: [position for position, _ in cluster.cold("one")][-2:] == [(2, 1), (2, 2)])
        assert [gap.first for gap in load_manifest(cluster.store, f"{S}one").gaps] == [Position(2, 0)]


@pytest.mark.slow
def test_hanging_admin_interface_does_not_delay_stopping(cluster: Cluster) -> None:
    cluster.make("one")
    with cluster.serve() as assembled:
        eventually(lambda: cluster.is_offloaded("one"))
        cluster.admin.hold.clear()
        asked = len(cluster.admin.asked)
        eventually(lambda: len(cluster.admin.asked) > asked)
        assert assembled.process.stop(drain=False) == 0
        cluster.admin.hold.set()
