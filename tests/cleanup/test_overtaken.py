"""A round of cleanup or reconciling that stands still between two requests, while others change what it looked at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

import pytest

from formats.deletion_record import awaited_key
from formats.manifest import LedgersDeleted
from offloader.cleanup.cycle import cleanup_stream
from offloader.cleanup.orphans import Reason
from offloader.cleanup.reconciler import Reconciliation
from offloader.errors import OffloaderError, StoreUnavailable
from offloader.manifest.stream_deletion import delete_stream
from offloader.settings import ManifestSettings
from offloader.store.around import AroundStore, Request
from offloader.testing.faulty_store import Fault
from tests.cleanup.cleaning import STREAM, Bench
from tests.support.streams import StreamWriter, batch_of

_Answer = TypeVar("_Answer")


class StandsStill(AroundStore):
    """Before the ``call``-th request of a process something happens."""

    def __init__(self, bench: Bench, call: int, happen: Callable[[], None]) -> None:
        super().__init__(bench.memory)
        self._call, self._happen, self.calls = call, happen, 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.calls += 1
        if self.calls == self._call:
            self._happen()
        return call()


def test_a_segment_younger_than_the_round_is_never_taken_for_purged() -> None:
    """While a round stands still a segment is written, retired, and nearly purged: another process dies just before."""
    for call in count(1):
        bench = Bench(grace_hours=1)

        def happen(bench: Bench = bench) -> None:
            bench.writer.add([batch_of(5, 0, 10)], closes=[5])
            bench.log().amend([LedgersDeleted((5,))])
            bench.run()
            bench.hours(2)
            bench.store.set_faults([Fault(call=1, verb="put", key_part="/manifest/", calls=1000)])
            with pytest.raises(OffloaderError):
                bench.run()

        store = StandsStill(bench, call, happen)
        cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)
        if store.calls < call:
            break
        bench.check()
    assert call > 5


def test_what_a_new_stream_of_the_name_keeps_isnt_taken_for_what_the_old_one_left() -> None:
    """A list of readers is named by a number only, and a late round of a deleted stream may leave one."""
    bench = Bench()
    left = awaited_key(STREAM, 5)
    for key in (left, f"{STREAM}/notes.txt"):
        bench.memory.put(key, b"the old one's")
    at_once = ManifestSettings(orphan_age_hours_min=0)
    delete_stream(bench.memory, STREAM, clock=bench.clock, delete_objects=lambda _: None, settings=at_once)
    bench.hours(25)
    found = Reconciliation(bench.memory, STREAM, clock=bench.clock, delete=True).leftovers()
    # Everything is judged by now, and nothing was deleted yet.
    assert next(found).reason is Reason.FOREIGN
    StreamWriter(bench.memory, STREAM, clock=bench.clock)
    bench.memory.put(left, b"the new one's")
    with pytest.raises(StoreUnavailable, match="was deleted or created anew meanwhile"):
        list(found)
    assert bench.memory.get(left)[0] == b"the new one's"
