"""Backfill in segments of about the segment size, in any order; an interrupted run continues."""

from __future__ import annotations

import contextlib

import pytest

from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.testing.faulty_store import Fault
from tests.support.readback import stored_entries
from tests.write.test_backfill import STREAM, Bench
from tests.write.test_backfill import bench as bench


@pytest.mark.slow
@pytest.mark.parametrize("call", range(1, 40, 3))
@pytest.mark.parametrize(("error", "after"), [(StoreUnavailableError, False), (OutcomeUnknownError, True)])
def test_later_run_completes_a_backfill_failing_at_any_call(
    bench: Bench, call: int, error: type[StoreUnavailableError], after: bool
) -> None:
    bench.append(300)
    bench.store.set_faults([Fault(call=call, calls=2, error=error, after=after)])
    with contextlib.suppress(StoreUnavailableError, OutcomeUnknownError):
        bench.offloader.history.backfill(bench.source, STREAM)
    bench.store.set_faults([])
    stored = list(bench.expected)
    result = bench.offloader.history.backfill(bench.source, STREAM)
    assert result.errors == []
    assert stored_entries(bench.memory, STREAM) == stored
