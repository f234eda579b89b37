"""Cleanup from a moved head to deleted objects, step by step, with every way to stop it."""

from __future__ import annotations

import contextlib

import pytest

from formats.keys import parse_object_key, record_number
from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.gc.sweep import cleanup_stream, read_batches
from offloader.manifest.protection import (
    DeletionStoppedError,
    set_global_hold,
    take_lease,
)
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.gc.cleaning import STREAM, Bench

pytestmark = pytest.mark.slow


def test_global_hold_stops_a_round_between_any_two_steps() -> None:
    """The hold is set before each request in turn; at most the step that was checked just before is still taken."""
    for call in range(2, 80):
        bench = Bench(ledgers=6)
        for ledger in (2, 3, 4):
            bench.truncate(ledger)
            bench.run()
        bench.hours(25)
        bench.truncate(5)

        class Stopping(FaultyStore):
            def _next(self, verb: str, key: str, at: int = call, bench: Bench = bench) -> Fault | None:
                if len(self.calls) + 1 == at:
                    set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
                return super()._next(verb, key)

        before, objects = bench.state, bench.stored()
        store = Stopping(bench.memory)
        try:
            cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)
        except DeletionStoppedError:
            late = store.calls[call - 1 :]
            records = [key for verb, key in late if verb == "put" and record_number(key) is not None]
            deletes = [key for verb, key in late if verb == "delete" and parse_object_key(key, STREAM)]
            assert len(records) + len(deletes) <= 1, f"{call}: {records} {deletes}"
        else:
            assert len(bench.state.segments) == len(before.segments) - 3
            assert len(bench.stored() & objects) == len(objects) - 6
        bench.check()
        if call > len(store.calls):
            assert call > 30
            return
    raise AssertionError("no round was over before it was stopped")


@pytest.mark.parametrize(("after", "error"), [(False, StoreUnavailableError), (True, OutcomeUnknownError)])
def test_round_failing_at_any_request_loses_and_leaks_nothing(after: bool, error: type[OffloaderError]) -> None:
    call = 0
    while True:
        call += 1
        bench = Bench(ledgers=3)
        take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="somebody")
        bench.truncate(3)
        bench.store.set_faults([Fault(call=call, after=after, error=error)])
        for _ in range(4):
            with contextlib.suppress(OffloaderError):
                bench.run()
            bench.check()
            bench.hours(25)
        if len(bench.store.calls) < call:
            break
        assert len(bench.state.segments) == 1, call
        leases = {key for key in bench.stored() if "/leases/" in key}
        assert bench.stored() - leases == bench.named(), call
        rows = [(b.action, len(b.segments)) for b in read_batches(bench.memory, STREAM, done=True)]
        assert rows == [("purge", 2)], call
    assert call > 30
