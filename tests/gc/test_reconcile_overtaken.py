"""A cleanup or reconciliation paused between two requests while other processes change the stream."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar
from uuid import UUID

import pytest

from formats.documents import awaited_key
from formats.keys import catalog_key, manifest_prefix, record_key
from formats.manifest import LedgersDeleted, Retire
from offloader.errors import OffloaderError, StoreUnavailableError
from offloader.gc.orphans import Outcome, Reason
from offloader.gc.plan import CleanupPlan
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import CleanupReport, cleanup_stream
from offloader.manifest.catalog import VOID
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import set_global_hold, set_hold
from offloader.manifest.state import EditRefusedError
from offloader.settings import Duration, ManifestSettings
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import StreamWriter, batch_of

_Answer = TypeVar("_Answer")


class StandsStill(StoreWrapper):
    """Before the ``call``-th request of a process something happens."""

    def __init__(self, bench: Bench, call: int, happen: Callable[[], None]) -> None:
        super().__init__(bench.memory)
        self._call, self._happen, self.calls = call, happen, 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.calls += 1
        if self.calls == self._call:
            self._happen()
        return call()


@pytest.mark.slow
def test_a_segment_younger_than_the_round_is_never_taken_for_purged() -> None:
    """While a round is paused a segment is written, retired, and nearly purged: another process dies just before."""
    for call in count(1):
        bench = Bench(grace_period="1h")

        def happen(bench: Bench = bench) -> None:
            bench.writer.add([batch_of(5, 0, 10)], closes=[5])
            bench.log().commit_as_maintainer([LedgersDeleted((5,))])
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


@pytest.mark.slow
def test_overtaken_round_plans_again_and_succeeds() -> None:
    """Paused at any request: both rounds retire and purge the same segments, and neither reports an error."""
    for call in count(1):
        bench = Bench(grace_period="1h")
        bench.truncate(3)
        bench.run()
        bench.hours(2)
        bench.truncate(4)
        other: list[CleanupReport] = []
        store = StandsStill(bench, call, lambda bench=bench, other=other: other.append(bench.run()))  # type: ignore[misc]
        report = cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)
        bench.hours(2)
        last = bench.run()
        bench.check()
        assert bench.stored() == bench.named()
        rounds = [report, *other, last]
        assert (sum(each.swept.retired for each in rounds), sum(each.swept.purged for each in rounds)) == (1, 3)
        if store.calls < call:
            break
    assert call > 10


def test_round_overtaken_at_every_plan_fails_with_refused_edit() -> None:
    bench = Bench(ledgers=9)
    bench.truncate(8)
    plans: list[CleanupPlan] = []

    def overtake(plan: CleanupPlan) -> None:
        plans.append(plan)
        bench.log().commit_as_maintainer([Retire((plan.doomed[0].segments[0].uuid,))])

    with pytest.raises(EditRefusedError, match="is retired, not offloaded"):
        bench.run(on_plan=overtake)
    assert [len(plan.doomed[0].segments) for plan in plans] == [7, 6, 5, 4, 3]
    bench.check()


def test_reader_list_of_recreated_stream_is_not_taken_for_garbage() -> None:
    """A list of readers is named by a number only, and a late round of a deleted stream may leave one."""
    bench = Bench()
    left = awaited_key(STREAM, 5)
    for key in (left, f"{STREAM}/notes.txt"):
        bench.memory.put(key, b"the old one's")
    at_once = ManifestSettings(orphan_age_min=Duration("0h"))
    delete_stream(bench.memory, STREAM, clock=bench.clock, delete_objects=lambda _: None, settings=at_once)
    bench.hours(25)
    found = Reconciliation(bench.memory, STREAM, clock=bench.clock, delete=True).leftovers()
    # Everything is judged by now, and nothing was deleted yet.
    assert next(found).reason is Reason.FOREIGN
    StreamWriter(bench.memory, STREAM, clock=bench.clock)
    bench.memory.put(left, b"the new one's")
    with pytest.raises(StoreUnavailableError, match="was deleted or created again during the search"):
        list(found)
    assert bench.memory.get(left)[0] == b"the new one's"


def hold(bench: Bench) -> None:
    set_hold(bench.memory, STREAM, on=True, reason="a test", clock=bench.clock)


def stop(bench: Bench) -> None:
    set_global_hold(bench.memory, by="ana", reason="a test", now_ms=5)


def left_manifest(bench: Bench) -> str:
    """Of an incarnation that no entry names."""
    dead = UUID(int=77)
    for number in (1, 2):
        bench.memory.put(record_key(STREAM, dead, number), b"{}")
        bench.hours(1)
    return manifest_prefix(STREAM, dead)


@pytest.mark.parametrize("happen", [hold, stop])
def test_old_manifest_stays_when_held_after_classification(happen: Callable[[Bench], None]) -> None:
    bench = Bench()
    key = left_manifest(bench)
    notes = f"{STREAM}/notes.txt"
    bench.memory.put(notes, b"somebody else's")
    bench.hours(25)
    found = Reconciliation(bench.memory, STREAM, clock=bench.clock, delete=True).leftovers()
    # Everything is judged by now, and nothing was deleted yet.
    assert next(found).key == notes
    happen(bench)
    assert [(each.key, each.reason, each.outcome) for each in found] == [(key, Reason.HELD, Outcome.KEPT)]
    assert len(bench.memory.list(key).objects) == 2


def test_old_manifest_is_as_young_as_its_youngest_object() -> None:
    bench = Bench()
    key = left_manifest(bench)
    bench.hours(22.5)
    for delete in (False, True):
        found = list(Reconciliation(bench.memory, STREAM, clock=bench.clock, delete=delete).leftovers())
        assert [(each.key, each.reason, each.objects) for each in found] == [(key, Reason.YOUNG, 2)]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_void_of_a_name_stays_when_held_after_classification(is_stopped: bool) -> None:
    bench = Bench(ledgers=0)
    name = "public/default/persistent/gone"
    void, notes = catalog_key(name), f"{name}/notes.txt"
    bench.memory.put(void, VOID)
    bench.memory.put(notes, b"somebody else's")
    bench.hours(25)
    found = Reconciliation(bench.memory, name, clock=bench.clock, delete=True).leftovers()
    assert next(found).key == notes
    if is_stopped:
        stop(bench)
    done = (Reason.HELD, Outcome.KEPT) if is_stopped else (Reason.LET_GO, Outcome.DELETED)
    assert [(each.key, each.reason, each.outcome) for each in found] == [(void, *done)]
    assert bool(bench.memory.list(void).objects) is is_stopped
