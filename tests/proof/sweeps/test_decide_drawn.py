"""Many random decisions: equal to an independent model's, and unchanged to the byte; and other ones each day."""

from __future__ import annotations

import pytest

from offloader.retention.state import Rule
from tests.proof.simulation.seeds import first_seed
from tests.retention.drawn_situations import checked, digest

PART = 5000
#: Of each part. They change only together with a rule.
DIGESTS = ["b0d175af4753f661", "96dcdf03fe1a015b", "23e89ac55ae567ab", "521358e8ba16ca2f"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(len(DIGESTS)))
def test_decisions_about_drawn_situations_are_unchanged(part: int) -> None:
    decisions = [checked(seed) for seed in range(part * PART, (part + 1) * PART)]
    assert {decision.rule for decision in decisions} == {*Rule}
    assert digest(decisions) == DIGESTS[part]


@pytest.mark.slow
def test_decisions_about_new_situations_are_those_of_an_independent_model() -> None:
    start = first_seed()
    for seed in range(start, start + PART):
        checked(seed)
        checked(seed, is_migrated=True)
