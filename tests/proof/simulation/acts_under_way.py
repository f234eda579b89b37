"""Acts in a simulated world: calls that stop before each of their requests, some of them at once.

It doesn't decide which act begins, nor look at what one does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from offloader.store.base import ObjectStore
from tests.proof.simulation.interleaving import Strand
from tests.proof.simulation.simulated_store import FaultModel, FaultPlan

__all__ = ["ACTS_MAX", "Act", "ActsUnderWay"]

#: Acts under way at once.
ACTS_MAX = 4

#: What an act is: it gets its way to the store.
Act = Callable[[ObjectStore], object]


class ActsUnderWay:
    """See the module.

    Args:
        random: chooses which of them goes on.
        weather: of their ways to the store; its trace takes their beginnings and ends.
        way_to: the bucket as an act of some name sees it, before any weather.
    """

    def __init__(self, random: Random, weather: FaultModel, way_to: Callable[[str], ObjectStore]) -> None:
        self._random, self._weather, self._way_to = random, weather, way_to
        self._strands: list[Strand] = []
        self._began: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._strands)

    def begin(
        self,
        what: str,
        act: Act,
        plan: FaultPlan,
        done: Callable[[Strand], object] = lambda _: None,
        named: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Another one begins, unless enough are under way.

        Args:
            done: gets the strand when it is over.
            named: hears its name, before it takes its first step.
        """
        if len(self._strands) >= ACTS_MAX:
            return
        name = f"{what}{len(self._began) + 1}"
        named(name)
        strand = Strand(name, act, self._way_to(name), self._weather, plan, done)
        self._began[name] = len(self._weather.trace)
        self._weather.trace.append(f"begin {name}")
        self._strands.append(strand)
        self._step(strand)

    def began(self, name: str, default: int) -> int:
        """When an act began, as a number of the trace's line; ``default`` for what isn't one."""
        return self._began.get(name, default)

    def go_on(self, steps: int = 1) -> None:
        """One of them goes on."""
        if self._strands:
            strand = self._random.choice(self._strands)
            for _ in range(steps):
                self._step(strand)

    def finish(self) -> None:
        """All come to their end, without any more weather."""
        for strand in list(self._strands):
            strand.store.plan = FaultPlan()
            while strand in self._strands:
                self._step(strand)

    def end(self) -> None:
        """Their processes are gone."""
        for strand in self._strands:
            strand.end()
        self._strands.clear()

    def _step(self, strand: Strand) -> None:
        if strand not in self._strands:
            return
        strand.advance()
        trace = self._weather.trace
        if strand.store.dead:
            trace.append(f"crash {strand.name}")
            strand.end()
        if strand.is_over:
            trace.append(f"end {strand.name} {type(strand.error).__name__ if strand.error else ''}")
            self._strands.remove(strand)
            strand.done(strand)
