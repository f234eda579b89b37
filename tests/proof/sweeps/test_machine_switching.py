"""Switching methods in both directions, off and on: nothing is re-sent or lost, and no ledger is mixed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloader.errors import OffloaderError
from offloader.testing.faulty_store import Fault
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S
from tests.write.test_machine_switching import STREAM, Bench
from tests.write.test_machine_switching import bench as bench


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("streaming", "ledger"), ("ledger", "streaming")])
def test_process_killed_during_a_switch_loses_and_repeats_nothing(tmp_path: Path, before: str, after: str) -> None:
    """The store is unreachable from the n-th call of the switch on, for every n; then it is opened by either method."""
    number = 0
    while True:
        number += 1
        bench = Bench(tmp_path)
        bench.drain_seconds_max = 0.05
        topic = bench.open(before)
        bench.append(topic, 40)
        if before == "ledger":
            topic.close_ledger()
        before_switch = len(bench.store.calls)
        bench.store.set_faults([Fault(call=number, calls=10**6)])
        with contextlib.suppress(OffloaderError):
            topic.set_method(after)
            topic.close_ledger()
            topic.offload(timeout_s=0.05)
        topic.close(drain=False)
        calls = len(bench.store.calls) - before_switch
        bench.store.set_faults([])
        bench.require_whole()

        topic = bench.open(before if number % 2 else after)
        bench.append(topic, 20)
        topic.close_ledger()
        topic.offload(timeout_s=PATIENCE_S)
        assert stored_entries(bench.memory, STREAM) == bench.expected
        bench.require_whole()
        topic.close()
        if calls < number:
            break
    assert number > 10


METHODS = ["streaming", "ledger", "none"]


REOPEN = ["reopen", *(f"reopen {method}" for method in METHODS)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.sampled_from(["append", "append", "close_ledger", "offload", *METHODS, *REOPEN]),
        min_size=3,
        max_size=14,
    )
)
def test_offloaded_entries_are_a_prefix_of_the_stream_after_any_switches(tmp_path: Path, steps: list[str]) -> None:
    bench = Bench(tmp_path)
    topic = bench.open("streaming")
    for step in steps:
        if step == "append":
            bench.append(topic, 35)
        elif step == "close_ledger":
            topic.close_ledger()
        elif step == "offload":
            if topic.method != "none":
                topic.offload(timeout_s=PATIENCE_S)
        elif step.startswith("reopen"):
            topic.close(drain=False)
            topic = bench.open(step.partition(" ")[2] or topic.method)
        else:
            topic.set_method(step)
        bench.require_whole()
    bench.append(topic, 1)
    topic.set_method("streaming")
    topic.offload(timeout_s=PATIENCE_S)
    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.require_whole()
    topic.close()
