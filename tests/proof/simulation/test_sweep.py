"""Append, upload, commit, release: the N-th storage call fails in every way there is, for every N.

Each run is the same but for one call. After it the process continues, or dies and another starts; at the end all work
is completed, and every invariant is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from offloader.errors import OutcomeUnknownError, StoreUnavailableError, ThrottledError
from offloader.runtime.clock import Clock
from offloader.settings import Settings, Size
from offloader.store.base import ObjectStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.proof.simulation.simulated_world import World

pytestmark = pytest.mark.slow

KIB = 1024
#: What a call may do, but for what it is asked to.
FAULTS = {
    "refused": Fault(call=0, error=StoreUnavailableError),
    "throttled": Fault(call=0, error=ThrottledError),
    "lost before": Fault(call=0, error=OutcomeUnknownError),
    "lost after": Fault(call=0, error=OutcomeUnknownError, after=True),
    "torn": Fault(call=0, error=OutcomeUnknownError, torn=True),
    "three in a row lost": Fault(call=0, error=OutcomeUnknownError, calls=3),
    "late": Fault(call=0, error=None, latency_s=700),
    "late and lost": Fault(call=0, error=OutcomeUnknownError, after=True, latency_s=700),
}
_names = count()


class Run:
    """One run with one fault."""

    def __init__(self, fault: Fault, *, dies: bool, whole_parts: bool) -> None:
        limits = {
            "block_size": 512,
            "segment_size_max": "8KiB",
            "offload_buffer_size_max": 64 * KIB,
            "retry_delay_max": 1.0,
            "deletion_lag": "0m",
        }
        drawn = Settings.of({"offload": limits, "manifest": {"checkpoint_records": 5, "record_requests_max": 1}})
        if not whole_parts:
            drawn = replace(drawn, offload=replace(drawn.offload, part_size=Size(2 * KIB)))
        self._dies, self._calls_seen = dies, fault.call
        self.world = World(f"sweep-{next(_names)}", Random(1), lambda _: drawn, way_in=self._way_in)
        self.store.set_faults([fault])

    def _way_in(self, bucket: ObjectStore, clock: Clock) -> ObjectStore:
        self.store = FaultyStore(bucket, clock=clock)
        return self.store

    def go(self) -> int:
        """Everything once; how many calls there were before the rest."""
        world = self.world
        world.start()
        self._append(5, 900)
        world.ledgers.close_ledger()
        self._append(6, 300)
        self._work(30)
        world.ledgers.close_ledger()
        self._append(3, 10)
        world.request()
        self._work(30)
        world.processes[-1].release_hot()
        self._append(2, 500)
        self._work(5)
        calls = len(self.store.calls)
        self.store.set_faults([])
        world.come_to_rest()
        world.check()
        assert not world.lost
        world.erase()
        return calls

    def _append(self, entries: int, size: int) -> None:
        self.world.ledgers.append([bytes([number]) * size for number in range(entries)])

    def _work(self, turns: int) -> None:
        for _ in range(turns):
            self.world.work()
            if self._dies and len(self.store.calls) >= self._calls_seen:
                self.world.processes[-1].store.dead = True
                self._dies = False
            self.world.bury()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of expected warnings."""
    log = logging.getLogger("offloader")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


CASES = [pytest.param(fault, False, id=name) for name, fault in FAULTS.items()]
CASES += [pytest.param(FAULTS[name], True, id=f"{name}, and dies") for name in ("refused", "lost before", "lost after")]


@pytest.mark.parametrize(("fault", "dies"), CASES)
def test_any_failing_storage_call_loses_repeats_and_leaks_nothing(fault: Fault, dies: bool) -> None:
    for call in count(1):
        calls = Run(replace(fault, call=call), dies=dies, whole_parts=call % 2 == 0).go()
        if calls < call:
            break
    assert call > 25, "a run has that many calls"
