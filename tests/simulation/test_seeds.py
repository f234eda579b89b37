"""The seeds of a run differ each day and can be repeated."""

from __future__ import annotations

from datetime import date

import pytest

from tests.simulation.seeds import SEEDS_OF_A_DAY_MAX, VARIABLE, first_seed, seeds_of_part
from tests.simulation.test_simulation import SEEDS


def test_each_day_has_seeds_of_its_own() -> None:
    one, next_one = (first_seed({}, date(2026, 12, day)) for day in (30, 31))
    assert (one, next_one) == (7_399_800_000, 7_399_810_000)
    assert next_one - one == SEEDS_OF_A_DAY_MAX >= SEEDS


def test_the_environment_chooses_the_seeds_of_another_day(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_seed({VARIABLE: "17"}) == 17
    monkeypatch.setenv(VARIABLE, "100")
    assert [seeds_of_part(part, 2, 10) for part in range(2)] == [range(100, 105), range(105, 110)]
