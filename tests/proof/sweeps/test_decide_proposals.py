"""Many random decisions compared with the proposals' texts, other ones each day."""

from __future__ import annotations

import pytest

from tests.proof.simulation.seeds import first_seed
from tests.retention.proposal_text import Named
from tests.retention.test_decide_proposals import relations

CASES = 36_000
PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_decisions_are_those_of_the_texts(part: int) -> None:
    length = CASES // PARTS
    start = first_seed() + part * length
    found = relations(range(start, start + length))
    assert {*found} == {*Named}
