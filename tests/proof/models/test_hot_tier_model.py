"""The model of rules M17 to M22 of docs/explanation/manifest.md: no counterexample with all rules, one without each."""

from __future__ import annotations

import pytest

from tests.proof.models.model_hot_tier import RULES, Bucket, File, Host, Ledger, Model, World
from tests.proof.models.model_search import Found, search


def world(**events: int) -> World:
    """A new database at one host; what may happen to it, and how often."""
    return World(Bucket(), (File(1),), (Host("A", 0),), events=tuple(sorted(events.items())))


def accepted() -> World:
    """After an operator accepted a source: its ledger 1 lies before the committed end, and was never offloaded."""
    cold = frozenset({((5, 0), 2)})
    file = File(1, (1,), (Ledger(1, (1,), False),), 6, (5, 0))
    bucket = Bucket(records=3, epoch=1, uuid=1, token=1, reserved=9, reach=(5, 0), cold=cold)
    acknowledged = (((1, 0), 1), ((5, 0), 2))
    return world(crash=2, truncate=1)._replace(bucket=bucket, files=(file,), acknowledged=acknowledged, tokens=1)


#: Name -> world, and entries that are appended at most.
SCENARIOS = {
    "ordinary": (world(crash=3), 3),
    "lost": (world(crash=2, lose=1, accept=1), 3),
    "restored": (world(crash=2, backup=1, restore=1, accept=1), 3),
    "restarted": (world(crash=2, backup=1, restore=1), 1),
    "copied": (world(crash=1, copy=1), 1),
    "accepted": (accepted(), 5),
}
#: Rule -> scenario that needs it, and the invariant that breaks without it.
NEEDED = {
    "identity": ("lost", "H3"),
    "token": ("restarted", "H3"),
    "random": ("copied", "H3"),
    "database-first": ("ordinary", "H4"),
    "recheck": ("copied", "H3"),
    "reach": ("restored", "H3"),
    "reserve": ("restored", "H2"),
    "new-ledger": ("restored", "H2"),
    "truncate-held": ("accepted", "H1"),
}


def explored(scenario: str, off: str = "", checks: str = "H1 H2 H3 H4") -> Found:
    first, appends = SCENARIOS[scenario]
    model = Model(appends, frozenset(off.split()), frozenset(checks.split()))
    return search(first, model.successors)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_acknowledged_entry_is_lost_with_all_rules(scenario: str) -> None:
    found = explored(scenario)
    assert found.broken == "", "; ".join(found.steps)
    assert found.states > 100, "the scenario ends before anything can happen"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_counterexample_without_the_rule(rule: str) -> None:
    scenario, invariant = NEEDED[rule]
    found = explored(scenario, rule)
    assert found.broken == invariant, f"{scenario} doesn't need {rule}: {'; '.join(found.steps)}"


def test_missing_identity_rules_let_new_entries_pass_for_offloaded_ones() -> None:
    found = explored("lost", "identity reserve reach", "H1")
    assert found.broken == "H1"
    assert "A: deletes ledger 1" in found.steps
