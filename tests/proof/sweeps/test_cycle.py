"""Retention cycles over real manifests: records, decisions, truncations, and failures at any request."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import open_retention
from offloader.testing.faulty_store import Fault
from tests.retention.retained_streams import KIB, STREAM, TOPIC, Bench


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_losing_subscriber_is_recorded_although_the_cycle_dies_anywhere(after: bool) -> None:
    died_after_truncation = False
    for call in range(1, 100):
        bench = Bench(policy="consumption", min_size="10KiB", max_size="30KiB")
        bench.grow()
        bench.subscribe("slow")
        bench.publish("slow", Position(1, 2))
        bench.grow_and_run(1)
        bench.grow(ledgers=3)
        assert bench.head() == Position(1, 2)
        bench.store.set_faults([Fault(call=call, after=after), Fault(call=call + 1, calls=10**6)])
        died = False
        try:
            bench.run()
        except OffloaderError:
            died = True
        if bench.head() != Position(1, 2):
            died_after_truncation |= died
            retention = open_retention(bench.memory, STREAM, clock=bench.clock)
            named = [each["name"] for one in read_decisions(retention, retention.scope()) for each in one["overridden"]]
            assert named == ["slow"]
        if len(bench.store.calls) < call:
            break
    assert died_after_truncation


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_cycle_failing_at_any_request_is_completed_by_the_next(after: bool) -> None:
    failed = 0
    for call in range(1, 100):
        bench = Bench(policy="size", min_size="20KiB")
        for is_last in (False, False, True):
            for number in range(2):
                bench.grow(f"{TOPIC}-partition-{number}")
            if not is_last:
                bench.run(TOPIC)
        heads = [bench.head(f"{TOPIC}-partition-{number}") for number in range(2)]
        bench.store.set_faults([Fault(call=call, after=after)])
        try:
            bench.run(TOPIC)
        except OffloaderError:
            failed += 1
        was_called = len(bench.store.calls) >= call
        bench.store.set_faults([])
        for number, before in enumerate(heads):
            now = bench.head(f"{TOPIC}-partition-{number}")
            assert before is None or (now is not None and now >= before)
        bench.run(TOPIC)
        assert [bench.head(f"{TOPIC}-partition-{number}") for number in range(2)] == [Position(3, 0)] * 2
        past = bench.remembered(TOPIC)
        assert past.records.newest.size_bytes == 60 * KIB
        if not was_called:
            break
    assert failed > 10
