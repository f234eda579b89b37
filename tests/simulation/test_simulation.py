"""A stream in a simulated world: faults, crashes, late writes and second owners by the thousand, from seeds."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.testing.simulation import InvariantBroken, Simulation, simulate
from offloader.testing.soak import broken_seeds, main

#: In quarters, so that two workers share them.
SEEDS = 2_000
QUARTERS = [range(start, start + SEEDS // 4) for start in range(0, SEEDS, SEEDS // 4)]


class TestSeedsA:
    @pytest.mark.parametrize("seeds", QUARTERS[:2], ids=str)
    def test_no_seed_breaks_an_invariant(self, seeds: range) -> None:
        assert list(broken_seeds(seeds)) == []


class TestSeedsB:
    @pytest.mark.parametrize("seeds", QUARTERS[2:], ids=str)
    def test_no_seed_breaks_an_invariant(self, seeds: range) -> None:
        assert list(broken_seeds(seeds)) == []


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    traces = {seed: {simulate(seed), simulate(seed)} for seed in range(20)}
    assert all(len(found) == 1 for found in traces.values())
    assert len(set.union(*traces.values())) == 20


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_storage_call_breaks_no_invariant(after: bool) -> None:
    """The N-th call of the first process, for N = 1, 2, 3, ..., and a restart."""
    for call in range(1, 61):
        simulate(7, crash_call=call, crash_after=after)


def test_a_broken_invariant_names_the_command_that_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A hot tier that acknowledges what was never committed is noticed."""
    run = Simulation(3)
    run.ledgers.release(Position(99, 0))
    with pytest.raises(InvariantBroken, match=r"99:0 was released, .*again: \./dev soak --seed 3$"):
        run.run()
    assert main(["--seed", "3"]) == 0
    assert "seed 3: all invariants hold" in capsys.readouterr().out
    assert main(["--seeds", "3", "--processes", "1"]) == 0
    assert "3 seeds, 0 broken" in capsys.readouterr().out
