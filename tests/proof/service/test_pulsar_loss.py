"""Entries that a broker skips without an explanation: recorded by policy, with a warning, and the hot copy stays."""

from __future__ import annotations

import logging

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.service.bootstrap import Assembled
from tests.service.providers.test_pulsar_loss import (
    AT_ONCE,
    MISSING,
    hot_ledgers,
    is_stored,
    with_a_missing_entry,
)
from tests.service.providers.test_pulsar_loss import cluster as cluster
from tests.support.pulsar_cluster import Cluster, S
from tests.support.served import settings_file
from tests.support.waiting import eventually

OURS = "offloader"


def errors_of(assembled: Assembled) -> str:
    return "\n".join(each["message"] for each in assembled.view.errors(stream=f"{S}one"))


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 404, 405, 412, 200])
def test_unconfirmed_loss_is_recorded_with_its_own_reason_and_a_warning(
    cluster: Cluster, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_missing_entry(cluster, (status, b""))
    with cluster.serve():
        eventually(lambda: is_stored(cluster))
    [gap] = load_manifest(cluster.store, f"{S}one").gaps
    assert (gap.first, gap.last) == (MISSING, MISSING)
    assert gap.reason.startswith("unconfirmed: ")
    [said] = [each for each in caplog.records if "recording a gap" in each.getMessage()]
    assert said.levelno == logging.WARNING
    assert "unconfirmed" in said.getMessage()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "reason"), [((403, b""), "unconfirmed: "), (None, "lost by the source: ")])
def test_policy_block_stops_at_a_loss_until_it_is_changed(
    cluster: Cluster, answer: tuple[int, bytes] | None, reason: str
) -> None:
    with_a_missing_entry(cluster, answer)
    with cluster.serve(on_gap="block", offload=AT_ONCE) as assembled:
        eventually(lambda: cluster.cold("one")[-1:] and reason in errors_of(assembled))
        assert cluster.cold("one")[-1][0] == Position(2, 3)
        assert load_manifest(cluster.store, f"{S}one").gaps == ()
        names = {f"pulsar__{name}": value for name, value in cluster.names(on_gap="record").items()}
        assembled.process.reload(settings_file(**names, **AT_ONCE))
        eventually(lambda: is_stored(cluster))


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "reason"), [((403, b""), "unconfirmed: "), (None, "lost by the source: ")])
def test_the_hot_copy_of_a_ledger_with_a_loss_stays(
    cluster: Cluster, answer: tuple[int, bytes] | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_missing_entry(cluster, answer)
    with cluster.serve(offload=AT_ONCE):
        eventually(lambda: is_stored(cluster))
        eventually(lambda: "hot copies are kept for now: ledger 2" in caplog.text)
        eventually(lambda: hot_ledgers(cluster) == [2, 3, 4])
        # A second look changes nothing.
        caplog.clear()
        eventually(lambda: "hot copies are kept for now: ledger 2" in caplog.text)
    assert reason in caplog.text
    assert "offload.release_with_gaps" in caplog.text
    assert hot_ledgers(cluster) == [2, 3, 4]
    assert cluster.topics["one"].mark_delete(OURS) is None, "nothing behind the first ledger is acknowledged"
