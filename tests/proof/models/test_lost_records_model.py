"""The model of rules M34 to M40 of docs/explanation/manifest.md: none found with all rules, one without each."""

from __future__ import annotations

import pytest

from tests.proof.models.model_lost_records import RULES, LostModel, Process, Record, View, World, folded
from tests.proof.models.model_search import Found, search


def world(names: str, **events: int) -> World:
    """A stream without records, the processes of these names, and what the store may lose, how often."""
    return World(tuple(map(Process, names)), events=tuple(sorted(events.items())))


def retired(names: str, **events: int) -> World:
    """With one segment that is retired."""
    view, log = View(), []
    for number, edit in enumerate([("open", 0), ("assign", 7), ("done", 7), ("retire", 7)], 1):
        record = Record(number, number - 1, edit)
        log.append((number, record))
        after = folded(view, number, record)
        assert after is not None
        view = after
    return world(names, **events)._replace(log=tuple(log), objects=frozenset({(7, 1, 2)}), hot=False, nonces=4)


#: Name -> world.
SCENARIOS = {
    "calm": world("WKL"),
    "search": world("WS", crash=2),
    "one": world("WS", crash=1, record=1),
    "suffix": world("WS", crash=1, suffix=1),
    "plug": world("WX", record=1),
    "folder": world("WS", crash=1, folder=1),
    "undo": retired("UP", record=1),
}
#: Rule -> scenario that needs it, and the invariant that breaks without it.
NEEDED = {
    "list-end": ("one", "N2"),
    "limit": ("one", "N2"),
    "limit-nonce": ("undo", "N2"),
    "name-before": ("one", "N2"),
    "chain": ("plug", "N2"),
    "testimony": ("suffix", "N1"),
    "testimony-nonce": ("suffix", "N1"),
    "no-records": ("folder", "N2"),
    "reread": ("calm", "N4"),
}


def explored(scenario: str, *off: str) -> Found:
    return search(SCENARIOS[scenario], LostModel(frozenset(off)).successors)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_model_reports_every_missing_committed_record_with_all_rules(scenario: str) -> None:
    found = explored(scenario)
    assert found.broken == "", "; ".join(found.steps)
    assert found.states > 100, "the scenario ends before anything can happen"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_counterexample_without_the_rule(rule: str) -> None:
    scenario, invariant = NEEDED[rule]
    found = explored(scenario, rule)
    assert found.broken == invariant, f"{scenario} doesn't need {rule}: {'; '.join(found.steps)}"
