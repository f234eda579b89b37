"""Decisions about random situations: equal to an independent model's, and unchanged to the byte.

``tests/proof`` runs many more of them.
"""

from __future__ import annotations

import pytest

from offloader.retention.state import Rule
from tests.retention.drawn_situations import checked, digest

SITUATIONS = 600
MIGRATED = 300
#: Change only together with a rule: a decision is stored and printed as this JSON.
DIGEST = "2c8432e7871f528d"
DIGEST_MIGRATED = "23c47f989cd0b5e8"


@pytest.mark.slow
def test_decisions_about_drawn_situations_are_unchanged_and_those_of_an_independent_model() -> None:
    decisions = [checked(seed) for seed in range(SITUATIONS)]
    assert {decision.rule for decision in decisions} >= {*Rule} - {Rule.BOUND_RAISED_KEEPING_MIN}
    assert digest(decisions) == DIGEST


@pytest.mark.slow
def test_decisions_about_migrated_topics_are_those_of_an_independent_model() -> None:
    """Their history is a graph in which epochs and key ranges tell nothing."""
    assert digest(checked(seed, is_migrated=True) for seed in range(MIGRATED)) == DIGEST_MIGRATED
