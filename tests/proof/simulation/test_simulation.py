"""A stream in a simulated world: faults, crashes, late writes and second owners, from thousands of seeds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import data_key
from formats.manifest import Gap
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import SystemClock
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.seeds import BROKEN_ONCE, seeds_of_part
from tests.proof.simulation.simulated_world import STREAM
from tests.proof.simulation.simulation import InvariantBroken, Simulation, simulate
from tests.proof.simulation.simulation_checks import loaded
from tests.proof.simulation.soak import broken_seeds, main

pytestmark = pytest.mark.slow

SEEDS = 400
PARTS = 5


class _Seeds:
    """A part of the seeds. Each part is a class: workers that run at once share classes, not the tests of one."""

    part: int

    def test_no_seed_breaks_an_invariant(self, simulates: Callable[[str, range], None]) -> None:
        seeds = seeds_of_part(self.part, PARTS, SEEDS)
        simulates("stream", seeds)
        assert list(broken_seeds(seeds)) == []


for _part in range(PARTS):
    globals()[f"TestSeeds{_part}"] = type(f"TestSeeds{_part}", (_Seeds,), {"part": _part})


@pytest.mark.parametrize("seed", BROKEN_ONCE["written"])
def test_a_seed_that_broke_an_invariant_once_breaks_none(seed: int) -> None:
    simulate(seed)


def test_equal_seeds_give_equal_traces_and_others_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    here, start = threading.current_thread(), threading.Thread.start
    started: list[str] = []

    def noted(thread: threading.Thread) -> None:
        if threading.current_thread() is here:
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    traces = {seed: {simulate(seed), simulate(seed)} for seed in range(10)}
    assert [seed for seed, found in traces.items() if len(found) > 1] == []
    assert len(set.union(*traces.values())) == 10
    assert started == [], "what runs on threads comes in any order"


def test_simulation_leftovers_do_not_affect_later_simulations() -> None:
    """One simulation that was not erased, and another of the same seed in the same process."""
    with quiet_log():
        left = Simulation(4)
        digest = left.run()
    assert simulate(4) == digest
    assert left.world.store.list("").objects, "it is still there"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_storage_call_breaks_no_invariant(after: bool) -> None:
    """The N-th call of the first process, for N = 1, 2, 3, ..., and a restart."""
    for call in range(1, 61):
        simulate(7, crash_call=call, crash_after=after)


class TestChecks:
    """The checks see what they are for: each is shown a bucket in which it is wrong."""

    @staticmethod
    def rested() -> Simulation:
        """A world that came to rest, its bucket kept."""
        run = Simulation(11)
        run.run()
        assert len(run.world.ledgers.appended) > 20
        return run

    def test_unreadable_appended_entry_breaks_an_invariant(self) -> None:
        run = self.rested()
        run.world.ledgers.appended.append((Position(10**6, 0), b"never offloaded"))
        with pytest.raises(InvariantBroken, match="entries are readable at rest"):
            run.world.check()

    def test_reordered_entries_break_an_invariant(self) -> None:
        run = self.rested()
        run.world.ledgers.appended.reverse()
        with pytest.raises(InvariantBroken, match="isn't what was appended"):
            run.world.check()

    def test_missing_object_breaks_an_invariant(self) -> None:
        run = self.rested()
        segment = loaded(run.world.store, STREAM).offloaded()[0]  # type: ignore[union-attr]
        run.world.store.delete([data_key(STREAM, segment.uuid)])
        with pytest.raises(InvariantBroken, match="the manifest names what isn't there"):
            run.world.check()

    def test_unassigned_object_breaks_an_invariant(self) -> None:
        run = self.rested()
        run.world.store.put(data_key(STREAM, UUID(int=8)), b"?")
        with pytest.raises(InvariantBroken, match="is unaccounted for"):
            run.world.check()

    def test_upload_of_a_complete_object_breaks_an_invariant(self) -> None:
        run = self.rested()
        segment = loaded(run.world.store, STREAM).offloaded()[0]  # type: ignore[union-attr]
        run.world.store.begin_upload(data_key(STREAM, segment.uuid))
        with pytest.raises(InvariantBroken, match="is left over, which is complete"):
            run.world.check()

    def test_gap_without_a_loss_breaks_an_invariant(self) -> None:
        run = self.rested()
        segment = loaded(run.world.store, STREAM).offloaded()[-1]  # type: ignore[union-attr]
        log = ManifestLog(run.world.store, STREAM, clock=SystemClock())
        log.open_epoch()
        end = segment.end
        assert end is not None
        run.world.ledgers.appended.append((end.next(), b"x"))
        log.commit([Gap(end.next(), Position(end.ledger_id, end.entry_id + 9), "why")])
        with pytest.raises(InvariantBroken, match="is in a gap, and nobody lost it"):
            run.world.check()


def test_every_drawn_behaviour_occurs_in_some_seed() -> None:
    """Every documented step of the simulation occurs."""
    missing = {"crash p", "start p2", "hot release", "trim (", "lose ", "switch to ledger", "ledgers", "late: landed"}
    missing |= {"pause", "resume", " refused", " throttled", " lost before", " torn", " lost after", " late"}
    missing |= {" crash before", " crash after"}
    for seed in range(60):
        seen = "\n".join(_trace(seed))
        missing = {what for what in missing if what not in seen}
        if not missing:
            break
    assert missing == set()


def _trace(seed: int) -> list[str]:
    run = Simulation(seed)
    run.run()
    return run.world.trace


def test_broken_invariant_prints_the_command_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A hot tier that acknowledges what was never committed is noticed."""
    run = Simulation(3)
    run.world.ledgers.release(Position(99, 0))
    with pytest.raises(InvariantBroken, match=r"99:0 was released, .*again: \./dev soak --seed 3$"):
        run.run()
    assert main(["--seed", "3"]) == 0
    assert "seed 3: all invariants hold" in capsys.readouterr().out
    assert main(["--seeds", "3", "--processes", "1"]) == 0
    assert "3 seeds, 0 broken" in capsys.readouterr().out
