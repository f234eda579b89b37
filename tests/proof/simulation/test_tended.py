"""Worlds in which a stream is also read with leases, truncated, swept, undone, held, deleted and recreated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from formats.entries import Position
from tests.proof.simulation.maintained_simulation import MaintainedSimulation, simulate_maintained
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.seeds import BROKEN_ONCE, seeds_of_part
from tests.proof.simulation.simulated_world import InvariantBroken
from tests.proof.simulation.soak import broken_seeds, main

pytestmark = pytest.mark.slow

SEEDS = 60
PARTS = 3


class _Seeds:
    """A part of the seeds, as in ``test_simulation``."""

    part: int

    def test_no_seed_breaks_an_invariant(self, simulates: Callable[[str, range], None]) -> None:
        seeds = seeds_of_part(self.part, PARTS, SEEDS)
        simulates("tended", seeds)
        assert list(broken_seeds(seeds, world="tended")) == []


for _part in range(PARTS):
    globals()[f"TestTended{_part}"] = type(f"TestTended{_part}", (_Seeds,), {"part": _part})


@pytest.mark.parametrize("seed", BROKEN_ONCE["tended"])
def test_a_seed_that_broke_an_invariant_once_breaks_none(seed: int) -> None:
    simulate_maintained(seed)


def test_equal_seeds_give_equal_traces_and_others_differ() -> None:
    traces = {seed: {simulate_maintained(seed), simulate_maintained(seed)} for seed in range(8)}
    assert all(len(found) == 1 for found in traces.values())
    assert len(set.union(*traces.values())) == 8


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_each_kind_of_act_is_killed_at_each_of_its_first_requests(after: bool) -> None:
    for call in range(1, 31):
        simulate_maintained(call % 4 + 20, crash_call=call, crash_after=after)


def test_broken_invariant_prints_the_command_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = MaintainedSimulation(3)
    run.world.ledgers.release(Position(99, 0))
    with quiet_log(), pytest.raises(InvariantBroken, match=r"released, .*; again: \./dev soak --maintained --seed 3$"):
        run.run()
    run.world.erase()
    assert main(["--maintained", "--seed", "3"]) == 0
    assert "seed 3: all invariants hold" in capsys.readouterr().out
