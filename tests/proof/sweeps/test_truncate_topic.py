"""A partitioned topic is truncated as one stream, whatever fails."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.retention.truncate import resume_topic_truncation
from offloader.testing.faulty_store import Fault
from tests.retention.test_truncate_topic import ONE, TEN, TOPIC, ZERO, Bench


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_truncation_failing_at_any_request_is_all_or_nothing(after: bool) -> None:
    seen = set()
    for call in range(1, 120):
        bench = Bench()
        wanted = {ZERO: Position(2, 0), ONE: Position(1, 5), TEN: Position(2, 3)}
        bench.store.set_faults([Fault(call=call, after=after)])
        try:
            bench.truncate(wanted)
        except (StoreUnavailableError, OutcomeUnknownError):
            pass
        else:
            assert len(bench.store.calls) < call or bench.heads() == list(wanted.values())
        resume_topic_truncation(bench.memory, TOPIC, clock=bench.clock)
        heads = bench.heads()
        assert heads in ([None] * 3, list(wanted.values()))
        seen.add(heads[0])
        if len(bench.store.calls) < call:
            assert seen == {None, Position(2, 0)}
            return
    raise AssertionError("no run was without a fault")
