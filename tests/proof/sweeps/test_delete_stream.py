"""Deleting a stream leaves nothing of it in the bucket, whatever kind of store it is."""

from __future__ import annotations

from typing import Any

import pytest

from offloader.errors import StoreUnavailableError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import cleanup_all
from offloader.testing.faulty_store import Fault
from tests.gc.cleaning import STREAM, Bench
from tests.gc.test_delete_stream import leaves_nothing, remaining


def test_removal_leaves_nothing_in_a_bucket(s3_place: Any) -> None:
    leaves_nothing(s3_place.open())


@pytest.mark.slow
def test_a_deletion_that_stopped_is_finished_by_the_rounds_of_cleanup() -> None:
    for call in range(1, 100):
        bench = Bench(ledgers=2)
        bench.store.set_faults([Fault(call=call, calls=10**6)])
        try:
            remove_stream(bench.store, STREAM, clock=bench.clock)
        except StoreUnavailableError:
            pass
        except Exception as error:  # the outcome of its record may be unknown
            assert "may be committed" in str(error) or "fault" in str(error)  # noqa: PT017
        made = len(bench.store.calls)
        bench.store.set_faults([])
        deleted = bench.state.stream_deleted if made >= call else True
        for _ in range(2):
            reports = list(cleanup_all(bench.store, clock=bench.clock))
            assert all(report.error is None for report in reports)
            bench.hours(25)
        left = remaining(bench.memory)
        assert left == [] if deleted else bench.named() <= set(left)
        if made < call:
            return
    raise AssertionError("no deletion was without a fault")
