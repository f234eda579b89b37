"""A short round on each real server: kills and faults on the real path, and the oracle's word at its end.

``./dev chaos`` plays many, longer ones.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.toxiproxy import Toxiproxy
from tests.chaos.__main__ import table
from tests.chaos.chaos_round import Outcome, play
from tests.chaos.chaos_schedule import Fault, Kill, Round, Step

ROOT = Path(__file__).resolve().parents[2]

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
def test_what_is_killed_and_broken_off_loses_repeats_and_leaks_nothing(
    server: str, tmp_path: Path, toxiproxy: Toxiproxy, exercises: Any
) -> None:
    exercises(server)
    outcome = play(Round(1, server, STEPS[server]), tmp_path, toxiproxy)
    assert outcome.findings == []
    assert sum(outcome.killed.values()) + sum(outcome.by_time.values()) == len(STEPS[server])
    assert sum(outcome.injected.values()) == sum(len(step.faults) for step in STEPS[server])
    assert outcome.acknowledged > 300
    assert outcome.segments >= 3


def test_the_table_adds_rounds_up() -> None:
    one = Outcome(1, "minio", killed=Counter(sidecar=2), injected=Counter(latency=1), acknowledged=10)
    one.exits["sidecar 4"] = 2
    other = Outcome(2, "versitygw", by_time=Counter(sidecar=1), skipped=Counter(latency=1), findings=["lost"])
    assert list(table([one, other], 12.3)) == [
        "KILLED                AT ITS REQUEST  BY TIME",
        "sidecar                            2        1",
        "FAULT                          BEGUN      NOT",
        "latency                            1        1",
        "ended by themselves: 2 x sidecar 4",
        "10 acknowledged, 0 entries, 0 segments, 0 purged, 0 records, 0 epochs, 0 refused",
        "3 kills in 2 rounds, 12 s: 1 findings",
    ]


def test_options_are_told() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(option in said for option in ("--seed", "--kills", "--round", "--server", "--no-spark", "--keep"))
