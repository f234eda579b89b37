"""A store in whose place another one is, from any request of a cleanup on: no needed object is deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from offloader.errors import CorruptError, OffloaderError
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import cleanup_stream, undo_retirements
from offloader.store.base import ObjectStore
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import batch_of
from tests.support.swapped_store import SwappedStore, memory_store

#: More requests than a round or a search sends.
REQUESTS_MAX = 200


def empty(bench: Bench) -> ObjectStore:
    retire_and_truncate(bench)
    return memory_store(bench.clock)


def older(bench: Bench) -> ObjectStore:
    """From before the truncations."""
    other = memory_store(bench.clock, copied=bench.memory)
    retire_and_truncate(bench)
    return other


def from_before_an_undo(bench: Bench) -> ObjectStore:
    """There, segments are due that the real store has restored."""
    retire_and_truncate(bench)
    other = memory_store(bench.clock, copied=bench.memory)
    undo_retirements(bench.log())
    return other


def retire_and_truncate(bench: Bench) -> None:
    """Ledgers 1 to 3 are retired; ledger 4 is no longer needed."""
    for ledger in (2, 3, 4):
        bench.truncate(ledger)
        bench.run()
    bench.truncate(5)


def clean_up(store: ObjectStore, bench: Bench) -> None:
    cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)


def search_orphans(store: ObjectStore, bench: Bench) -> None:
    list(Reconciliation(store, STREAM, clock=bench.clock, delete=True).leftovers())


#: An empty store may stand there for any time; an older copy for a few requests, or for the rest of the work. One that
#: is there while everything is decided, and gone when the objects are deleted, can't be noticed.
TIMES = [(empty, number) for number in (1, 2, 3, 5, 8, 13, 21, 34, REQUESTS_MAX)]
TIMES += [(other, number) for other in (older, from_before_an_undo) for number in (1, 3, REQUESTS_MAX)]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "number_of"), TIMES)
@pytest.mark.parametrize("work", [clean_up, search_orphans])
def test_no_needed_object_is_deleted_wherever_another_store_takes_the_place(
    work: Callable[[ObjectStore, Bench], None], other: Callable[[Bench], ObjectStore], number_of: int
) -> None:
    """For a few requests in between, a record may be in the other store: readers report that as damage."""
    damaged = 0
    for first in range(1, REQUESTS_MAX):
        bench = Bench(ledgers=6)
        taking_the_place = other(bench)
        bench.hours(1)
        bench.writer.log.load()
        bench.writer.add([batch_of(7, 0, 10)], closes=[7])
        bench.hours(30 * 24)  # the newest objects are old, too
        state = bench.state
        assert state.head is not None
        needed = [each for each in state.segments.values() if each.begin >= state.head]
        assert len(needed) >= 3
        keys = {key for segment in needed for key in segment.object_keys(STREAM)}
        swapped = SwappedStore(bench.memory, taking_the_place, first=first, number_of=number_of)
        with suppress(OffloaderError):
            work(swapped, bench)
        assert keys <= bench.stored(), f"another store from request {first} on"
        try:
            bench.check()
        except CorruptError:
            damaged += 1
        if swapped.requests < first:
            break
    assert first > 20
    assert damaged == 0 or (work is clean_up and number_of < REQUESTS_MAX)
