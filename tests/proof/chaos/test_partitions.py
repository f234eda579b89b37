"""Two sidecars for one stream behind a network that falls apart: one owner after the other, each entry once.

A longer run: ./dev chaos --partition. The runs here are seeded, over each S3 server there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from services.toxiproxy import Toxiproxy
from tests.independent_manifest import Commit, fold
from tests.proof.chaos.partition_run import owners_problems, run
from tests.proof.chaos.partition_schedule import KINDS, PATTERNS, Cut, Plan, Step, plan

#: Server -> its run. Between them: the owner can't reach the store, the other takes over, and nobody can write.
RUNS: Mapping[str, Plan] = {
    "moto": Plan((Step((Cut("owner", "store", "down"), Cut("other", "store", "mute")), 0.6, 12, heals=True),)),
    "minio": Plan(
        (
            Step((Cut("owner", "store", "mute", is_short=True), Cut("owner", "broker", "silent")), 1.2, 24, heals=True),
            Step((Cut("owner", "broker", "down"),), 0.6, 12, killed="other", heals=True),
        ),
        segment_s=0.3,
        keep_alive_s=2.0,
    ),
    "versitygw": plan(3, 2, seconds=0.9),
}


def test_partitioned_sidecars_own_stream_in_turn_and_store_entries_once(s3_place: Any, toxiproxy: Toxiproxy) -> None:
    outcome = run(RUNS[s3_place.server], s3_place.endpoint, toxiproxy, bucket=s3_place.bucket, root=s3_place.root)
    assert not outcome.problems, "\n".join(outcome.said)
    assert outcome.entries > 5


def test_plan_follows_from_its_seed_and_covers_every_pattern() -> None:
    assert plan(5, 30) == plan(5, 30) != plan(6, 30)
    for seed in range(20):
        steps = plan(seed, len(PATTERNS), seconds=3).steps
        assert sorted(tuple((cut.whose, cut.way) for cut in step.cuts) for step in steps) == sorted(PATTERNS)
        assert all(1 <= step.seconds <= 3 for step in steps)
        assert steps[-1].heals
    assert {cut.kind for step in plan(1, 50).steps for cut in step.cuts} == set(KINDS)


def commit(record_id: int, epoch: int, writer: str, *edits: tuple[str, Mapping[str, Any]]) -> Commit:
    return Commit(record_id, epoch, writer, f"nonce-{record_id}", 1000 + record_id, edits)


def offloaded(uuid: str) -> tuple[str, Mapping[str, Any]]:
    sizes = dict.fromkeys(("entries", "data_bytes", "data_crc32c", "index_bytes", "index_crc32c"), 1)
    return "offloaded", {"uuid": uuid, "summary": {**sizes, "begin": [1, 0], "end": [1, 0]}}


def history() -> list[Commit]:
    """Two owners in order: the second gives up what the first left, and offloads it itself. Others say meanwhile what
    anybody may."""
    return [
        commit(1, 1, "a", ("open_epoch", {"epoch": 1})),
        commit(2, 1, "a", ("assign", {"uuid": "x"})),
        commit(3, 1, "a", offloaded("x"), ("assign", {"uuid": "y"})),
        commit(4, 1, "c", ("pause", {}), ("ledger_closed", {}), ("hot_released", {})),
        commit(5, 2, "b", ("open_epoch", {"epoch": 2})),
        commit(6, 2, "b", ("failed", {"uuid": "y"}), ("assign", {"uuid": "z"})),
        commit(7, 2, "b", offloaded("z")),
    ]


def changed(number: int, **values: Any) -> Callable[[list[Commit]], list[Commit]]:
    return lambda commits: [replace(each, **values) if each.record_id == number else each for each in commits]


def problems_of(commits: list[Commit], *, epochs_max: int) -> list[str]:
    manifest = fold("s", commits)
    return manifest.findings + owners_problems(manifest, epochs_max=epochs_max)


def test_a_history_in_order_has_no_problems() -> None:
    assert problems_of(history(), epochs_max=2) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(6, epoch=1, writer="a"), "s: record 6 of epoch 1 comes after one of epoch 2"),
        (changed(7, writer="a"), "s: record 7 of epoch 2 is by a, its owner is b"),
        (changed(6, epoch=3), "s: record 6: nobody opened epoch 3"),
        (changed(5, epoch=3, edits=(("open_epoch", {"epoch": 3}),)), "s: record 5 opens epoch [3] after 1"),
        (changed(7, edits=(offloaded("y"),)), "s: record 7: offloaded: y wasn't"),
        (changed(7, edits=(offloaded("w"),)), "s: record 7: offloaded: w wasn't"),
        (changed(7, edits=(("assign", {"uuid": "x"}),)), "s: record 7: assign: x once more"),
        (changed(6, edits=(("assign", {"uuid": "z"}),)), "2 segments were assigned at once"),
        (changed(7, nonce="nonce-6"), "s: record 7 is there twice"),
        (changed(7, time_ms=1), "s: record 7 is earlier than the one before it"),
        (lambda commits: commits[:3] + commits[4:], "s: record 4 is missing, record 5 is there"),
    ],
)
def test_history_with_two_owners_at_a_time_is_reported(
    change: Callable[[list[Commit]], list[Commit]], said: str
) -> None:
    assert said in problems_of(change(history()), epochs_max=3)


def test_unexplained_change_of_owner_is_reported() -> None:
    assert problems_of(history(), epochs_max=1) == ["the stream changed hands 2 times, at most 1 are explained"]
