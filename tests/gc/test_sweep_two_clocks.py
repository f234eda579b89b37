"""Two clocks: age is measured by the earlier one, and beginnings by the later one."""

from __future__ import annotations

import pytest

from offloader.gc.sweep import CleanupReport, cleanup_stream
from offloader.manifest.protection import DeletionClock
from offloader.testing.manual_clock import ManualClock
from tests.gc.cleaning import STREAM, Bench


@pytest.mark.parametrize("off_ms", [-50_000, 50_000])
def test_grace_period_begins_at_the_later_of_writer_and_store_clock(off_ms: int) -> None:
    bench = Bench(grace_period="1h")
    bench.truncate(3)
    # A record is never older than the one before it.
    bench.clock.advance(120)

    def run(off_ms: int) -> CleanupReport:
        clock = ManualClock(bench.clock.now_ms() + off_ms)
        return cleanup_stream(bench.memory, STREAM, clock=clock, settings=bench.settings)

    assert run(off_ms).swept.retired == 2
    later_ms = bench.clock.now_ms() + max(off_ms, 0)
    bench.clock.set_now_ms(later_ms + 3_600_000 - 1)
    assert run(0).swept.purged == 0
    bench.clock.set_now_ms(later_ms + 3_600_000)
    assert run(0).swept.purged == 2


@pytest.mark.parametrize("off_ms", [-30_000, 30_000])
def test_deletion_clock_advances_between_store_checks_by_the_earlier_clock(off_ms: int) -> None:
    bench = Bench()
    ours = ManualClock(bench.clock.now_ms() + off_ms)
    times = DeletionClock(bench.store, ours, skew_ms_max=60_000)
    began_ms = bench.clock.now_ms() + min(off_ms, 0)
    assert times.now_ms() == began_ms
    asked = len(bench.store.calls)
    for clock in (bench.clock, ours):
        clock.advance(5)
    assert times.now_ms() == began_ms + 5_000
    assert len(bench.store.calls) == asked
