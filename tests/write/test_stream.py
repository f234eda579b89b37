"""The table of phases: complete, connected, and the only place that decides."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

import offloader
from offloader.write.stream import ENDED, TABLE, TAKING, Event, Mode, Phase, step
from tests.write.stream_phases import phase_rows, transition_rows

ROOT = Path(offloader.__file__).parent
PAGE = (ROOT.parent / "docs/explanation/stream-phases.md").read_text()


def test_every_pair_of_phase_and_event_has_a_next_phase() -> None:
    assert set(TABLE) == set(Phase)
    assert all(isinstance(step(phase, event), Phase) for phase, event in product(Phase, Event))


def test_every_phase_is_reached_from_the_first_one() -> None:
    reached, left = set[Phase](), [Phase.IDLE]
    while left:
        phase = left.pop()
        reached.add(phase)
        left += {step(phase, event) for event in Event} - reached
    assert reached == set(Phase)


def test_every_event_changes_some_phase() -> None:
    assert all(any(step(phase, event) is not phase for phase in Phase) for event in Event)


def test_a_stopped_stream_stays_stopped_and_a_fenced_one_is_only_reopened() -> None:
    assert {step(Phase.STOPPED, event) for event in Event} == {Phase.STOPPED}
    assert {step(Phase.HALTED, event) for event in Event} == {Phase.HALTED, Phase.STOPPED}
    assert {step(Phase.FENCED, event) for event in Event} == {Phase.FENCED, Phase.STARTING, Phase.STOPPED}
    assert step(Phase.FENCED, Event.REOPENED) is Phase.STARTING


def test_every_running_phase_can_be_paused_fenced_and_stopped() -> None:
    for phase in set(Phase) - ENDED:
        assert step(phase, Event.FENCED) is Phase.FENCED
        assert step(phase, Event.DAMAGED) is Phase.HALTED
        assert step(phase, Event.STOP) is Phase.STOPPED
        assert step(phase, Event.PAUSE_SEEN) is Phase.PAUSED


def test_a_failed_segment_leads_back_to_history_while_the_epoch_is_owned() -> None:
    assert {step(phase, Event.SEGMENT_FAILED) for phase in TAKING} == {Phase.BACKFILLING}
    assert step(Phase.PAUSED, Event.SEGMENT_FAILED) is Phase.PAUSED


def test_modes_are_those_that_users_know() -> None:
    assert {each.mode for each in Phase} == set(Mode)
    assert {each.mode for each in ENDED} == {Mode.STOPPED}


def test_page_has_both_tables() -> None:
    assert "\n".join(phase_rows()) in PAGE
    assert "\n".join(transition_rows()) in PAGE


@pytest.mark.slow
def test_no_other_module_assigns_a_phase() -> None:
    places = set[tuple[str, str]]()
    for path in ROOT.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                targets = [t for node in ast.walk(function) if isinstance(node, ast.Assign) for t in node.targets]
                if any(isinstance(target, ast.Attribute) and target.attr == "phase" for target in targets):
                    places.add((path.relative_to(ROOT).as_posix(), function.name))
    assert places == {("write/stream_state.py", "__init__"), ("write/stream_state.py", "happen")}
