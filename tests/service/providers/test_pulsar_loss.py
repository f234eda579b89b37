"""Entries that a broker skips without an explanation: recorded by policy, with a warning, and the hot copy stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import Position
from tests.support.pulsar_cluster import Cluster, fake_cluster
from tests.support.waiting import eventually

#: Closed ledgers of the topic, each of ten entries.
LEDGERS = 3
MISSING = Position(2, 4)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


def with_a_missing_entry(cluster: Cluster, answer: tuple[int, bytes] | None) -> None:
    """A topic whose second ledger lacks an entry. The broker passes over it, as with autoSkipNonRecoverableData.

    Args:
        answer: of the admin interface about that entry, instead of the truth.
    """
    topic = cluster.make("one")
    for _ in range(1, LEDGERS):
        cluster.fill("one")
        topic.roll()
    cluster.fill("one", 5)
    topic.lost.add(MISSING)
    if answer is not None:
        path = f"/admin/v2/persistent/t/n/one/ledger/{MISSING.ledger_id}/entry/{MISSING.entry_id}"
        cluster.admin.answers[path] = answer


def is_stored(cluster: Cluster) -> bool:
    """Whether all that the broker gives is in the cold tier."""
    cold = [position for position, _ in cluster.cold("one")]
    return cold[-1:] == [Position(LEDGERS + 1, 4)] and len(cold) == 10 * LEDGERS + 5 - 1


def hot_ledgers(cluster: Cluster) -> list[int]:
    """What the broker hasn't deleted."""
    return sorted({position.ledger_id for position, _, _ in cluster.topics["one"].entries})


AT_ONCE: dict[str, Any] = {"offload__deletion_lag": "0.0m"}


@pytest.mark.slow
def test_ledger_with_a_loss_is_released_only_by_setting(cluster: Cluster) -> None:
    with_a_missing_entry(cluster, (403, b""))
    with cluster.serve(offload={**AT_ONCE, "offload__release_with_gaps": True}):
        eventually(lambda: is_stored(cluster))
        eventually(lambda: hot_ledgers(cluster) == [4])


@pytest.mark.slow
def test_markers_that_the_broker_confirms_keep_no_ledger(cluster: Cluster) -> None:
    topic = cluster.make("one")
    topic.append_marker()
    cluster.fill("one", 3)
    topic.roll()
    cluster.fill("one", 2)
    with cluster.serve(on_gap="block", offload=AT_ONCE):
        eventually(lambda: cluster.cold("one")[-1:] == [(topic.entries[-1][0], topic.entries[-1][1])])
        eventually(lambda: hot_ledgers(cluster) == [3])
