"""Publish, truncate, retire, purge, reconcile, delete the stream: the N-th storage call fails, for every N.

Each run is the same but for one call, and the kinds of failure alternate. A failed step is repeated, as the next round
would; every invariant is checked after each step, and at the end the bucket is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from formats.entries import Position
from offloader.errors import NotFoundError, OffloaderError, OutcomeUnknownError, StoreUnavailableError, ThrottledError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.reconcile import Reconciliation, StoreReconciliation
from offloader.gc.sweep import cleanup_stream
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import read_entry
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.proof.simulation.maintained_checks import what_is_left
from tests.proof.simulation.maintained_world import FOREIGN, MaintainedWorld
from tests.proof.simulation.quiet_log import quiet_log
from tests.proof.simulation.simulated_world import STREAM

pytestmark = pytest.mark.slow

FAULTS = {
    "refused": Fault(call=0, error=StoreUnavailableError),
    "throttled": Fault(call=0, error=ThrottledError),
    "lost before": Fault(call=0, error=OutcomeUnknownError),
    "lost after": Fault(call=0, error=OutcomeUnknownError, after=True),
    "torn": Fault(call=0, error=OutcomeUnknownError, torn=True),
    "out of reach from then on": Fault(call=0, error=StoreUnavailableError, calls=10**6),
    "lost, and out of reach from then on": Fault(call=0, error=OutcomeUnknownError, after=True, calls=10**6),
}
READ_UP_TO = Position(2, 3)
SETTINGS = Settings.of(
    {
        "offload": {"block_size": 512, "segment_size_max": "2KiB", "deletion_lag": "0m"},
        "manifest": {"checkpoint_records": 5, "record_requests_max": 1},
        "cleanup": {"grace_period": "0h", "allow_large_delete": True},
        "retention": {"policy": "consumption", "record_interval": "0.01m"},
    }
)
_names = count()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet_log():
        yield


class Run:
    """One run with one fault."""

    def __init__(self, fault: Fault) -> None:
        self.world = MaintainedWorld(f"tended-sweep-{next(_names)}", Random(1), lambda _: SETTINGS)
        self.store = FaultyStore(self.world.quiet("tend"), [fault])

    def go(self) -> int:
        """Everything; how many calls there were."""
        world = self.world
        world.start()
        for _ in range(3):
            world.ledgers.append([bytes([number]) * 700 for number in range(5)])
            world.ledgers.close_ledger()
        world.come_to_rest()
        for act in (self._add, self._publish, self._retain, self._clean, self._clean, self._reconcile):
            self._done(act)
            world.check_now()
        assert world.view is not None
        assert world.view.head == READ_UP_TO
        world.check()
        self._done(self._delete)
        assert world.is_deleted
        world.leave()
        world.clock.advance(30 * 3600)
        self._done(self._delete)
        calls = len(self.store.calls)
        self.store.set_faults([])
        for _ in range(3):
            world.clock.advance(30 * 3600)
            with contextlib.suppress(NotFoundError):
                self._clean(self.store)
            self._reconcile_everything()
        assert read_entry(world.store, STREAM) is None
        assert what_is_left(world.store, STREAM, None, FOREIGN) == ""
        assert {info.key for info in listed(world.store, "")} == world.others
        world.erase()
        return calls

    def _done(self, act: Callable[[ObjectStore], object]) -> None:
        """Tries again once, the weather fine again: as the next round does."""
        try:
            act(self.store)
        except OffloaderError:
            self.store.set_faults([])
            with contextlib.suppress(NotFoundError):
                act(self.store)

    def _add(self, store: ObjectStore) -> None:
        self._retention(store).add("ann")

    def _publish(self, store: ObjectStore) -> None:
        self._retention(store).publish("ann", READ_UP_TO)

    def _retention(self, store: ObjectStore) -> StreamRetention:
        return open_retention(store, STREAM, source_of=lambda _: self.world.ledgers, clock=self.world.clock)

    def _retain(self, store: ObjectStore) -> None:
        ledgers = self.world.ledgers
        cycle = RetentionCycle(
            store, clock=self.world.clock, settings_of=lambda _: SETTINGS, source_of=lambda _: ledgers
        )
        cycle.run(STREAM)

    def _clean(self, store: ObjectStore) -> None:
        self.world.clock.advance(3700)
        cleanup_stream(store, STREAM, clock=self.world.clock, settings=SETTINGS)

    def _reconcile(self, store: ObjectStore) -> None:
        run = Reconciliation(
            store, STREAM, clock=self.world.clock, settings=SETTINGS.manifest, delete=True, finds_by_prefix=True
        )
        assert [each.outcome for each in run.leftovers() if each.problem] == []

    def _reconcile_everything(self) -> None:
        failures: list[OffloaderError] = []
        run = StoreReconciliation(
            self.store,
            clock=self.world.clock,
            settings_of=lambda _: SETTINGS.manifest,
            failed=lambda _, error: failures.append(error),
            delete=True,
        )
        assert [each.outcome for each in run.leftovers() if each.problem] == []
        assert failures == []

    def _delete(self, store: ObjectStore) -> None:
        remove_stream(store, STREAM, clock=self.world.clock, settings=SETTINGS.manifest)


@pytest.mark.parametrize("turn", range(len(FAULTS)), ids=FAULTS)
def test_any_failing_maintenance_call_deletes_nothing_needed_and_leaks_nothing(turn: int) -> None:
    fault = list(FAULTS.values())[turn]
    for call in count(turn + 1, len(FAULTS)):
        if Run(replace(fault, call=call)).go() < call:
            break
    assert call > 60, "a run has that many calls"
