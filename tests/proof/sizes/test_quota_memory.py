"""The process's memory budget: exact, first come first served, and free of deadlocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.testing.faulty_store import Fault
from tests.support.readback import stored_entries
from tests.write.test_quota_memory import KIB, World
from tests.write.test_quota_memory import worlds as worlds


@pytest.mark.slow
def test_two_thousand_streams_with_half_a_block_each_make_progress(worlds: list[World]) -> None:
    """Half a block of 2,000 streams is 4 MiB; the budget is one: every waiting stream gets memory in time."""
    world = World(2000, 1, offload_memory_size_max=1024 * KIB)
    worlds.append(world)
    for source in world.ledgers.values():
        source.append([world.random.randbytes(2 * KIB)])

    world.settle()

    assert world.offloader.memory_bytes <= 1024 * KIB + 64 * KIB
    done = [name for name in world.streams if world.streams[name].status().committed is not None]
    assert len(done) >= 1000, "what didn't fit was moved into the store"
    world.commit_all()
    for name in [*world.streams][::200]:
        assert stored_entries(world.store, name) == world.ledgers[name].appended


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    streams=st.integers(1, 30),
    seed=st.integers(0, 2**32),
    budget_kib=st.sampled_from([64, 100, 300]),
    buffer_kib=st.sampled_from([64, 200]),
    refused=st.sampled_from([0, 0, 30, 150]),
)
def test_full_memory_budget_never_deadlocks_streams(
    streams: int, seed: int, budget_kib: int, buffer_kib: int, refused: int
) -> None:
    """Also while the store refuses writes for a time: what is held then moves, or is given back and read again."""
    world = World(
        *(streams, seed, [Fault(call=seed % 40 + 1, calls=refused, verb="put")]),
        offload_memory_size_max=budget_kib * KIB,
        offload_buffer_size_max=buffer_kib * KIB,
    )
    for _ in range(5):
        for source in world.ledgers.values():
            sizes = [world.random.choice([1, 200, 5_000, 40_000]) for _ in range(world.random.randint(0, 5))]
            if sizes:
                source.append([bytes(size) for size in sizes])
            if world.random.random() < 0.3:
                source.close_ledger()
            for _ in range(world.random.randint(0, 5)):
                world.workers.run_one()

    world.settle()
    world.commit_all()
    for name, source in world.ledgers.items():
        if source.appended:
            assert stored_entries(world.store, name) == source.appended
    world.offloader.close()
