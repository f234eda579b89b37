"""Decisions are those of the proposals' texts, except where a named difference says otherwise.

``docs/explanation/pravega.md`` has the differences with an example each. ``tests/proof`` runs many more cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from offloader.retention.decide import decide
from tests.retention.proposal_text import Named, Texts, drawn_case


def relations(seeds: Iterable[int]) -> Counter[Named]:
    found: Counter[Named] = Counter()
    for seed in seeds:
        case = drawn_case(seed)
        decision = decide(case.situation)
        found[Texts(case).relation(None if decision.cut is None else case.row(decision.cut))] += 1
    return found


@pytest.mark.slow
def test_decisions_are_those_of_the_texts() -> None:
    found = relations(range(3000))
    assert {*found} == {*Named}
    assert found[Named.EQUAL] > 2400
