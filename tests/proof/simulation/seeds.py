"""Which seeds the tests of simulations run: other ones each day, and always those that once found something."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime

__all__ = ["BROKEN_ONCE", "SEEDS_OF_A_DAY_MAX", "VARIABLE", "first_seed", "seeds_of_part"]

#: Names the first seed, so that a day's run can be repeated on another day.
VARIABLE = "OFFLOADER_SEEDS_FIRST"
#: How far the first seeds of two days are apart.
SEEDS_OF_A_DAY_MAX = 10_000

#: Kind of world -> seeds that broke an invariant, in the product or in the simulation itself.
BROKEN_ONCE: Mapping[str, tuple[int, ...]] = {
    "written": (31_000_672, 7_399_431_764),
    "tended": (4796, 7696, 1_000_696, 1_004_356, 1_014_964, 31_100_281, 33_101_271),
    "topic": (
        501,
        2504,
        7168,
        1_000_772,
        1_007_721,
        1_011_049,
        6_000_962,
        6_001_239,
        7_002_480,
        7_003_508,
        7_201_323,
        7_204_488,
        7_204_566,
        7_301_016,
        35_001_855,
        35_011_118,
        35_011_320,
        35_012_156,
        35_021_165,
        35_036_270,
        36_019_232,
        37_004_992,
    ),
}


def first_seed(environment: Mapping[str, str] = os.environ, today: date | None = None) -> int:
    """The first seed of a run: as the environment says, else of the day (UTC)."""
    chosen = environment.get(VARIABLE)
    if chosen:
        return int(chosen)
    day = today or datetime.now(UTC).date()
    return day.toordinal() * SEEDS_OF_A_DAY_MAX


def seeds_of_part(part: int, parts: int, seeds: int) -> range:
    """The seeds of one of ``parts`` equal parts of a run."""
    length = seeds // parts
    start = first_seed() + part * length
    return range(start, start + length)
