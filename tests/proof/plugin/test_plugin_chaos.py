"""Consumers of a real broker while processes are killed: three kills of what ``./dev chaos --plugin`` does 40 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.chaos import silent_run
from tests.proof.chaos.plugin_run import ACTIONS, EVERYTHING, ROLES, Step, plan, run

pytestmark = pytest.mark.java


def test_plan_kills_every_process_in_every_action() -> None:
    steps = plan(7, len(ROLES) * len(ACTIONS))
    assert {(step.role, step.action) for step in steps} == {(role, action) for role in ROLES for action in ACTIONS}
    assert steps == plan(7, len(steps))


def test_killed_processes_lose_no_message(tmp_path: Path) -> None:
    steps = [
        Step("sidecar", "offload", after_s=0.1, down_s=0.2),
        Step("broker", "read", after_s=0.1, down_s=0.2),
        Step(EVERYTHING, "offload", after_s=0.1, down_s=0.2),
    ]
    outcome = run(steps, tmp_path)
    assert outcome.problems == []
    assert outcome.kills.total() == len(steps)
    assert outcome.cold_bytes > 0


def test_sidecar_that_never_answers_costs_no_thread_and_no_message(tmp_path: Path) -> None:
    """What it costs in latency is measured by ``./dev chaos --plugin --silent``, where nothing else runs."""
    outcome = silent_run.run(4, tmp_path)
    assert [problem for problem in outcome.problems if "of sending" not in problem] == []
    assert outcome.received == 4 * (silent_run.MESSAGES + silent_run.MORE)
