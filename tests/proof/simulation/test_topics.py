"""Worlds in which a topic of partitions is scaled, read by subscribers and groups, and truncated as one stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from formats.entries import Position
from formats.manifest import Truncate
from offloader.manifest.log import ManifestLog
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.seeds import BROKEN_ONCE, seeds_of_part
from tests.proof.simulation.simulated_world import InvariantBroken
from tests.proof.simulation.soak import broken_seeds, main
from tests.proof.simulation.topic_simulation import TopicSimulation, simulate_topic

pytestmark = pytest.mark.slow

SEEDS = 16
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_an_invariant_of_topics(part: int, simulates: Callable[[str, range], None]) -> None:
    seeds = seeds_of_part(part, PARTS, SEEDS)
    simulates("topic", seeds)
    assert list(broken_seeds(seeds, world="topic")) == []


@pytest.mark.parametrize("seed", BROKEN_ONCE["topic"])
def test_a_seed_that_broke_an_invariant_of_topics_once_breaks_none(seed: int) -> None:
    simulate_topic(seed)


def test_equal_seeds_give_equal_topic_traces() -> None:
    traces = {seed: {simulate_topic(seed), simulate_topic(seed)} for seed in range(4)}
    assert all(len(found) == 1 for found in traces.values())
    assert len(set.union(*traces.values())) == 4


def test_separately_truncated_partition_breaks_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    run = TopicSimulation(0)
    world = run.world

    def truncated_alone() -> None:
        log = ManifestLog(world.quiet("somebody"), world.partitions[0].stream, clock=world.clock)
        log.load()
        log.commit_as_maintainer([Truncate(Position(1, 1))])

    run.acts.offload = truncated_alone  # type: ignore[method-assign]
    with quiet_log(), pytest.raises(InvariantBroken, match=r"no intent says so; again: \./dev soak --topic --seed 0$"):
        run.run()
    world.erase()
    assert main(["--topic", "--seed", "0"]) == 0
    assert "seed 0: all invariants hold" in capsys.readouterr().out
    assert main(["--topic", "--first", "1", "--seeds", "2", "--processes", "1"]) == 0
    assert "2 seeds, 0 broken" in capsys.readouterr().out
