"""A stream far behind backfills several segments at once; then the live segment begins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.testing.faulty_store import Fault
from offloader.write.machine import StreamOffload
from offloader.write.stream_state import StreamStatus
from tests.support.readback import stored_entries
from tests.support.waiting import eventually
from tests.write.streaming_bench import STREAM, Bench
from tests.write.test_catch_up_backfill import new_bench as new_bench


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "after"), [(StoreUnavailableError, False), (OutcomeUnknownError, False), (OutcomeUnknownError, True)]
)
def test_backfill_killed_at_any_call_resumes_and_resends_no_offloaded_segment(
    new_bench: Callable[..., Bench], error: type[OffloaderError], after: bool
) -> None:
    """From call N on the first process reaches nothing any more; in steps that meet every kind of call."""
    for call in count(1, 3):
        bench = new_bench()
        source = bench.open()
        bench.append(source, 40)
        bench.store.set_faults(
            [Fault(call=call, after=after, error=error), Fault(call=call + 1, calls=10**9, error=StoreUnavailableError)]
        )
        first = bench.start(source)
        seen: list[StreamStatus] = []

        def came_to_an_end(stream: StreamOffload = first, seen: list[StreamStatus] = seen) -> bool:
            seen.append(stream.status())
            return bool(seen[-1].error) or seen[-1].committed == bench.expected[-1][0]  # noqa: B023

        eventually(came_to_an_end)
        finished = not seen[-1].error
        bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])
        first.stop()
        state = load_manifest(bench.memory, STREAM) if bench.records() else None
        done = {segment.uuid for segment in state.offloaded()} if state else set()
        bench.store.set_faults([])
        sent = len(bench.store.calls)

        second = bench.start(bench.open())
        second.offload()

        assert stored_entries(bench.memory, STREAM) == bench.expected, f"call {call}"
        again = [key for verb, key in bench.store.calls[sent:] if verb == "put" and any(str(u) in key for u in done)]
        assert again == [], f"call {call}"
        assert done <= {segment.uuid for segment in load_manifest(bench.memory, STREAM).offloaded()}
        if finished:
            break
    assert call > 10
