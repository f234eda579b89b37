"""Truncation of a stream: in the manifest, in the hot tier, for readers, and for an active writer."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.testing.faulty_store import Fault
from tests.retention.test_truncate import STREAM, Bench


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_truncation_failing_at_any_request_is_finished_by_the_next(after: bool, force: bool) -> None:
    for call in range(1, 60):
        bench = Bench(offloaded=[1] if force else [1, 2])
        bench.store.set_faults([Fault(call=call, after=after)])
        for _ in range(2):
            try:
                bench.truncate(3, 0, force=force, take_over=True)
            except (StoreUnavailableError, OutcomeUnknownError):
                continue
        state = load_manifest(bench.memory, STREAM)
        assert (state.head, set(state.deleted_ledgers), bench.hot_ids) == (Position(3, 0), {1, 2}, [3])
        assert len(state.gaps) == force
        if len(bench.store.calls) < call:
            return
    raise AssertionError("no run was without a fault")
