"""A stream offloaded while it is written: order, restarts, owners, and a failure at every storage call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.testing.faulty_store import Fault
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S
from tests.write.streaming_bench import KIB, STREAM, Bench, settings
from tests.write.test_machine_streaming import new_bench as new_bench

FAULTS = [
    pytest.param(StoreUnavailableError, False, id="refused"),
    pytest.param(OutcomeUnknownError, False, id="lost-before"),
    pytest.param(OutcomeUnknownError, True, id="lost-after"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "after"), FAULTS)
def test_any_failing_storage_call_loses_and_repeats_no_entry(
    new_bench: Callable[..., Bench], error: type[OffloaderError], after: bool
) -> None:
    """Fails call 1, 2, 3, ... of append -> upload -> commit, until a run has no failure left to hit."""
    for call in count(1):
        bench = new_bench()
        source = bench.open()
        bench.append(source, 8)
        bench.store.set_faults([Fault(call=call, after=after, error=error)])
        try:
            stream = bench.start(source)
        except OffloaderError:
            bench.store.set_faults([])  # the first load failed: starting is the caller's to repeat
            stream = bench.start(source)
        bench.append(source, 12)
        stream.offload()

        assert stored_entries(bench.memory, STREAM) == bench.expected, f"call {call}"
        assert bench.memory.list_uploads("") == [], f"call {call}"
        if len(bench.store.calls) < call:
            break
    assert call > 15


@pytest.mark.slow
@pytest.mark.parametrize(("error", "after"), FAULTS)
def test_a_crash_at_any_storage_call_loses_and_repeats_nothing(
    new_bench: Callable[..., Bench], error: type[OffloaderError], after: bool
) -> None:
    """From call N on the process is as good as dead; another one starts over what is durable."""
    for call in count(1):
        bench = new_bench(settings=settings(drain_timeout=0.0))
        source = bench.open()
        bench.append(source, 8)
        bench.store.set_faults(
            [Fault(call=call, after=after, error=error), Fault(call=call + 1, calls=10**9, error=StoreUnavailableError)]
        )
        try:
            stream = bench.start(source)
            bench.append(source, 6)
            stream.offload(timeout_s=0.05 if call < 40 else PATIENCE_S)
            finished = True
        except OffloaderError:
            finished = False
        bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])

        successor = bench.start(again := bench.open(), store=bench.memory)
        bench.append(again, 4)
        successor.offload(timeout_s=PATIENCE_S)
        assert stored_entries(bench.memory, STREAM) == bench.expected, f"call {call}"
        if finished:
            break
    assert call > 10


@pytest.mark.slow
@pytest.mark.parametrize(("entries", "size"), [(10, 600), (2, 60_000), (1, 40_000), (7, 1)])
def test_a_buffer_smaller_than_a_part_makes_smaller_segments_not_a_stall(
    new_bench: Callable[..., Bench], entries: int, size: int
) -> None:
    bench = new_bench(settings=settings(offload_buffer_size_max=64 * KIB, segment_size_max="100MiB"))
    source = bench.open()
    bench.append(source, 50, entries=entries, size=size)
    stream = bench.start(source)
    bench.append(source, 50, entries=entries, size=size)

    stream.offload()

    assert stored_entries(bench.memory, STREAM) == bench.expected
