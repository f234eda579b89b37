"""A short chaos round on each real server: kills and faults on the real path, then the oracle.

``./dev chaos`` plays many, longer ones.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from services.toxiproxy import Toxiproxy
from tests.proof.chaos.chaos_outcome import Kept, NotKept, Outcome, table
from tests.proof.chaos.chaos_round import play
from tests.proof.chaos.chaos_schedule import Fault, Kill, Round, Step

ROOT = Path(__file__).resolve().parents[3]

#: One of each kind that is over quickly; the sidecar, and whoever writes beside it.
STEPS = {
    "minio": (
        Step(Kill("sidecar", "PUT", "record", 1, "answered"), (Fault("503 storm", (), 2, {"share": 0.3}),)),
        Step(Kill("backfill", "PUT", "part", 0, "half"), ()),
        Step(Kill("appender", "", "ack", 3, "before"), (Fault("server killed", (), 1, {}),)),
    ),
    "versitygw": (
        Step(
            Kill("sidecar", "PUT", "index", 0, "before"),
            (Fault("lost answers", (), 2, {"timeout": 300, "share": 0.3}), Fault("clock jump", (), 3, {"hours": -30})),
        ),
        Step(Kill("cleaner", "", "", 3, "answered"), (Fault("cut requests", (), 1, {"bytes": 3000, "share": 0.3}),)),
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", list(STEPS))
def test_kills_and_faults_lose_repeat_and_leak_nothing(server: str, tmp_path: Path, toxiproxy: Toxiproxy) -> None:
    outcome = play(Round(1, server, STEPS[server]), tmp_path, toxiproxy)
    assert outcome.findings == []
    assert sum(outcome.killed.values()) == len(STEPS[server])
    assert sum(outcome.injected.values()) == sum(len(step.faults) for step in STEPS[server])
    assert outcome.acknowledged >= 200
    assert outcome.segments >= 3


def outcomes() -> list[Outcome]:
    one = Outcome(1, "minio", killed=Counter({"sidecar half": 2}), injected=Counter(latency=1), acknowledged=10)
    one.exits["sidecar 4"] = 2
    one.beside["reader"] = 1
    other = Outcome(2, "versitygw", killed=Counter({"sidecar time": 1}), skipped=Counter(latency=1), findings=["lost"])
    other.touched.update({"requests": 1200, "answers lost": 3})
    return [one, other]


def test_the_table_adds_rounds_up() -> None:
    assert list(table(outcomes())) == [
        "KILLED               BEFORE     HALF ANSWERED  BY TIME   a request that the seed chose",
        "sidecar                   0        2        0        1",
        "FAULT                 BEGUN      NOT",
        "latency                   1        1",
        "3 answers lost, 1,200 requests",
        "ran beside: 1 reader",
        "ended by themselves: 2 sidecar 4",
        "10 acknowledged, 0 entries, 0 segments, 0 purged, 0 records, 0 epochs",
        "3 kills in 2 rounds: 1 findings",
    ]


def test_interrupted_run_is_continued(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "runs" / "chaos.jsonl", {"seed": 1, "version": "a"})
    kept.begin()
    for outcome in outcomes():
        kept.add(outcome)
    assert kept.first(2) == outcomes()
    assert kept.first(1) == outcomes()[:1]
    with pytest.raises(NotKept, match="has 1 rounds"):
        kept.first(2)
    with pytest.raises(NotKept, match="isn't of this run"):
        Kept(kept.path, {"seed": 1, "version": "b"}).first(1)
    with pytest.raises(NotKept):
        Kept(tmp_path / "none", {"seed": 1}).first(0)


@pytest.mark.process
def test_options_are_in_the_help() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.proof.chaos", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    options = ("--seed", "--kills", "--round", "--server", "--no-spark", "--keep", "--from")
    assert all(option in said for option in options)
