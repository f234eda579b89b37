"""Entries of gaps that the broker sends: stored once, recorded and read back, whatever others write meanwhile."""

from __future__ import annotations

from itertools import count

import pytest

from offloader.errors import (
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.manifest.load import load_manifest
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import SystemClock
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.backfill_service import fill_gaps, missing_runs
from tests.write.test_backfill_service_gap_fill import filled, given, new_store, pairs, written


@pytest.mark.slow
@pytest.mark.parametrize("error", [StoreUnavailableError, OutcomeUnknownError, ThrottledError])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("by_another", [False, True])
def test_whatever_call_fails_the_entries_are_recorded_once_when_they_come_again(
    error: type[OffloaderError], after: bool, by_another: bool
) -> None:
    for call in count(1):
        store = new_store()
        writer = written(store)
        faulty = FaultyStore(store, [Fault(call=call, error=error, after=after, calls=2)])
        log = ManifestLog(faulty, writer.stream, clock=SystemClock())
        try:
            fill_gaps(log, given(5, 9, 10), 0, 10)
        except OffloaderError:
            pass
        else:
            assert filled(store, writer) == [pairs(given(5, 9, 10))]
        is_over = len(faulty.calls) < call
        faulty.set_faults([])
        again = ManifestLog(store, writer.stream, clock=SystemClock()) if by_another else log
        assert fill_gaps(again, given(5, 9, 10, 15), 0, 15) == 4
        found = dict(pair for some in filled(store, writer) for pair in some)
        assert found == dict(pairs(given(5, 9, 10, 15)))
        assert sum(map(len, filled(store, writer))) == 4
        assert missing_runs(load_manifest(store, writer.stream), 7, 15) == []
        if is_over:
            return
