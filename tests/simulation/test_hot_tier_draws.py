"""Random draws of a lost, restored or doubled ledger database: no acknowledged entry is lost without a word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.hot_tier_draws import CLASSES, class_of, play

#: 200 draws in blocks that run beside each other; every class has its share of each block.
BLOCKS, DRAWS = 10, 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_acknowledged_entry_is_lost_silently_whatever_happens_to_the_database(block: int, tmp_path: Path) -> None:
    drawn: Counter[str] = Counter()
    for seed in range(block * DRAWS, (block + 1) * DRAWS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        draw = play(seed, folder)
        assert not draw.findings, f"seed {seed} ({class_of(seed)}): {draw.findings[:3]}; {'; '.join(draw.trace)}"
        drawn[class_of(seed)] += 1
    assert min(drawn[each] for each in CLASSES) * BLOCKS >= 20
