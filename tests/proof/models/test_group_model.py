"""The model of the group protocol: no counterexample with all rules, one without each."""

from __future__ import annotations

import pytest

from tests.proof.models.model_groups import RULES, GroupModel, first_world
from tests.proof.models.model_search import Found, search

#: Name -> readers' names, partitions, entries in each of them, and what may happen how often.
SCENARIOS = {
    "shares": ("abc", 2, 1, {"join": 3}),
    "checkpoints": ("ab", 2, 1, {"join": 2, "checkpoint": 2}),
    "crashes": ("ab", 2, 1, {"join": 2, "crash": 1, "expire": 1, "leave": 1}),
    "expiries": ("ab", 1, 2, {"join": 3, "checkpoint": 1, "expire": 1}),
    "answers": ("ab", 2, 1, {"join": 2, "leave": 1, "lost": 1}),
    "restarts": ("a", 1, 2, {"join": 3, "crash": 1, "checkpoint": 1}),
    "segments": ("ab", 3, 1, {"join": 2, "crash": 1, "expire": 1}),
    "segments left": ("ab", 3, 1, {"join": 2, "leave": 1, "lost": 1, "checkpoint": 1}),
}
#: Of the scenarios with segments: segment -> those that it continues.
PARENTS = {1: frozenset({0}), 2: frozenset({0, 1})}
#: Rule -> scenario that needs it, and the invariant that breaks without it.
NEEDED = {
    "confirm": ("checkpoints", "G3"),
    "together": ("checkpoints", "once"),
    "epoch": ("answers", "once"),
    "repeat": ("answers", "once"),
    "succession": ("segments", "G6"),
}


def explored(scenario: str, off: str = "") -> Found:
    names, partitions, entries, events = SCENARIOS[scenario]
    parents = PARENTS if scenario.startswith("segments") else {}
    model = GroupModel(names, entries, frozenset(off.split()), parents)
    return search(first_world(partitions, **events), model.successors)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_protocol_holds_in_every_order_of_steps(scenario: str) -> None:
    found = explored(scenario)
    assert found.broken == "", "; ".join(found.steps)
    assert found.states > 100, "the scenario ends before anything can happen"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_counterexample_without_the_rule(rule: str) -> None:
    scenario, invariant = NEEDED[rule]
    found = explored(scenario, rule)
    assert found.broken == invariant, f"{scenario} doesn't need {rule}: {'; '.join(found.steps)}"
