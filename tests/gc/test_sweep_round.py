"""Details of cleanup rounds and deletions: holds, reader lists, deletion batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from formats.documents import AwaitedReaders, DeletionRecord, Subscribers, awaited_key, awaited_prefix, document_key
from formats.entries import Position
from formats.keys import boundary_key, catalog_key, data_key, index_key, new_segment_uuid, record_key, record_number
from formats.manifest import Adopt, LedgerClosed, LedgersDeleted
from offloader.errors import OffloaderError, StoreUnavailableError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.plan import RetiredFacts, retired_facts, retired_groups
from offloader.gc.sweep import (
    SEGMENTS_PER_RECORD_MAX,
    cleanup_all,
    cleanup_stream,
    read_batches,
    retry_at_ms,
    undo_retirements,
)
from offloader.manifest.boundary import DELETE_KEYS_MAX, change_boundary
from offloader.manifest.catalog import VOID
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.maintenance import expire_records
from offloader.manifest.protection import DeletionStoppedError, set_global_hold, take_lease
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.segment_table import AT_ROOT
from offloader.settings import Settings
from offloader.store.rate_limit import Priority, current_priority
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import batch_of, build

_Answer = TypeVar("_Answer")


def stop(bench: Bench) -> None:
    set_global_hold(bench.memory, by="ana", reason="a test", now_ms=0)


def test_idle_round_reports_the_global_hold() -> None:
    bench = Bench()
    stop(bench)
    with pytest.raises(DeletionStoppedError):
        bench.run()


def test_global_hold_after_the_plan_prevents_the_first_step() -> None:
    bench = Bench()
    bench.truncate(3)
    with pytest.raises(DeletionStoppedError):
        bench.run(on_plan=lambda _: stop(bench))
    assert len(bench.state.segments.retired()) == 0


def test_round_over_no_streams_reports_the_global_hold() -> None:
    bench = Bench(ledgers=0)
    stop(bench)
    bench.memory.delete([catalog_key(STREAM)])
    with pytest.raises(DeletionStoppedError):
        list(cleanup_all(bench.memory, clock=bench.clock))


def test_global_hold_ends_a_round_and_is_no_error_of_a_stream() -> None:
    bench = Bench()
    bench.truncate(3)
    with pytest.raises(DeletionStoppedError):
        list(cleanup_all(bench.memory, clock=bench.clock, on_plan=lambda _: stop(bench)))


def void(bench: Bench) -> str:
    """What is left of the name of a stream that was deleted by somebody who didn't come to the end."""
    key = catalog_key("public/default/persistent/gone")
    bench.memory.put(key, VOID)
    bench.hours(25)
    return key


def test_global_hold_after_the_last_stream_keeps_voids_of_names() -> None:
    bench = Bench()
    key = void(bench)
    reports = cleanup_all(bench.memory, clock=bench.clock, on_plan=lambda _: stop(bench))
    assert next(reports).error is None
    with pytest.raises(DeletionStoppedError):
        next(reports)
    assert bench.memory.get(key)[0] == VOID


def test_round_deletes_voids_only_below_its_prefix() -> None:
    bench = Bench()
    key = void(bench)
    for prefix, is_left in ((STREAM, True), ("public/", False)):
        list(cleanup_all(bench.memory, clock=bench.clock, prefix=prefix))
        assert bool(bench.memory.list(key).objects) is is_left


def test_failed_deletion_of_a_void_is_reported_and_retried_next_round() -> None:
    bench = Bench()
    key = void(bench)
    bench.store.set_faults([Fault(call=1, verb="put", key_part=key)])
    errors = [report.error is not None for report in cleanup_all(bench.store, clock=bench.clock)]
    assert errors == [False, True]
    bench.hours(2)
    assert [report.error for report in cleanup_all(bench.store, clock=bench.clock)] == [None]
    assert not bench.memory.list(key).objects


class Noting(StoreWrapper):
    """Whose turn each request is."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.memory)
        self.seen = set[tuple[str, Priority]]()

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.seen.add((request.verb, current_priority(request.traffic)))
        return call()


def test_cleanup_requests_have_deletion_priority() -> None:
    bench = Bench()
    store = Noting(bench)
    bench.truncate(2)
    cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)
    assert {priority for _, priority in store.seen} == {Priority.DELETION}
    bench.truncate(3)
    store.seen.clear()
    list(cleanup_all(store, clock=bench.clock, settings_of=lambda _: bench.settings))
    assert {priority for verb, priority in store.seen if verb == "put"} == {Priority.DELETION}


def test_lease_on_a_deleted_stream_does_not_delay_its_cleanup() -> None:
    bench = Bench()
    remove_stream(bench.memory, STREAM, clock=bench.clock)
    bench.hours(25)
    take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="ana")
    (report,) = cleanup_all(bench.memory, clock=bench.clock)
    assert (report.is_finished, report.error) == (True, None)


def test_dry_round_continues_no_deletion() -> None:
    bench = Bench()
    remove_stream(bench.memory, STREAM, clock=bench.clock)
    bench.hours(25)
    before = {info.key: info.etag for info in bench.memory.list("").objects}
    (report,) = cleanup_all(bench.memory, clock=bench.clock, dry_run=True)
    assert (report.is_deleted, report.is_finished, report.error) == (True, False, None)
    assert {info.key: info.etag for info in bench.memory.list("").objects} == before


def adopted(bench: Bench) -> UUID:
    """A segment of ten entries, before everything else, whose objects are somebody else's."""
    theirs = UUID(int=0xABCDEF)
    finished, _ = build([batch_of(1, 0, 10)], 1024)
    bench.log().commit_as_maintainer(
        [Adopt(theirs, finished.summary, bench.memory.driver_metadata, False), LedgerClosed(1, 9)]
    )
    bench.writer.log.load()
    bench.writer.add([batch_of(2, 0, 10)], closes=[2])
    bench.truncate(2)
    return theirs


def test_global_hold_after_the_plan_prevents_a_release() -> None:
    bench = Bench(ledgers=0)
    theirs = adopted(bench)
    with pytest.raises(DeletionStoppedError):
        bench.run(on_plan=lambda _: stop(bench))
    assert theirs in bench.state.segments
    assert not list(read_batches(bench.memory, STREAM, done=False))


def test_release_of_adopted_segment_is_audited_and_leaves_nothing_pending() -> None:
    bench = Bench(ledgers=0)
    theirs = adopted(bench)
    report = bench.run()
    assert (report.swept.released, report.pending) == (1, [])
    assert theirs not in bench.state.segments
    (batch,) = read_batches(bench.memory, STREAM, done=True)
    assert (batch.action, [(each.uuid, each.keys) for each in batch.segments]) == ("release", [(theirs, ())])


def test_objects_of_one_retire_record_fit_one_delete_request() -> None:
    assert 2 * SEGMENTS_PER_RECORD_MAX == DELETE_KEYS_MAX


def test_segment_after_head_in_a_deleted_ledger_is_retired() -> None:
    bench = Bench()
    bench.truncate(2, 4)
    bench.log().commit_as_maintainer([LedgersDeleted((2,))])
    assert bench.run().swept.retired == 2
    assert [segment.begin for segment in bench.state.offloaded()] == [Position(3, 0), Position(4, 0)]


def test_lease_holds_objects_until_its_exact_end() -> None:
    bench = Bench(grace_period="0h")
    bench.truncate(3)
    take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="ana")
    assert bench.run().swept.retired == 2
    bench.clock.advance(3600)
    assert bench.run().swept.purged == 0
    bench.clock.advance(0.001)
    assert bench.run().swept.purged == 2


def test_a_dry_round_writes_down_no_readers() -> None:
    bench = Bench(grace_period="0h")
    bench.truncate(3)
    bench.run()
    take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="ana")
    before = {info.key: info.etag for info in bench.memory.list("").objects}
    plan = bench.run(dry_run=True).plan
    assert plan is not None
    assert [why for _, why, _ in plan.waiting] == ["readers: ana"]
    assert {info.key: info.etag for info in bench.memory.list("").objects} == before


def test_reader_list_of_an_earlier_incarnation_is_ignored() -> None:
    """Of that name, and retired by a record of the same number."""
    bench = Bench(grace_period="0h")
    bench.truncate(3)
    bench.run()
    number = bench.state.segments.retired()[0].retire_record
    assert number is not None
    lease = take_lease(bench.memory, STREAM, 3600, clock=bench.clock, reader="ana")
    bench.memory.put(awaited_key(STREAM, number), AwaitedReaders(UUID(int=1), number, ()).encode())
    assert bench.run().swept.purged == 0
    lease.end()
    assert bench.run().swept.purged == 2


def test_reader_lists_of_past_records_are_deleted_and_of_future_ones_kept() -> None:
    bench = Bench()
    over, to_come = (awaited_key(STREAM, number) for number in (1, 1000))
    for number, key in ((1, over), (1000, to_come)):
        awaited = AwaitedReaders(bench.state.incarnation, number, ())
        bench.memory.put(key, awaited.encode())
    bench.run()
    assert [info.key for info in bench.memory.list(awaited_prefix(STREAM)).objects] == [to_come]


def test_retirement_of_unknown_time_is_not_old() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    state = bench.state
    groups = retired_groups(state)
    assert len(groups) == 1
    bench.memory.delete([record_key(STREAM, state.incarnation, groups[0].record_id)])
    bench.hours(1000)
    facts = retired_facts(bench.memory, state, groups, now_ms=bench.clock.now_ms(), grace_ms=0, notes=False)
    assert facts == {groups[0].record_id: RetiredFacts(None)}


def test_retirement_in_a_folded_record_is_as_young_as_the_checkpoint() -> None:
    bench = Bench(grace_period="100h")
    bench.truncate(3)
    assert bench.run().swept.retired == 2
    bench.hours(1)
    checkpoint_now(bench.memory, bench.state, lambda count: bytes(count))
    bench.hours(30)
    state = bench.state
    # As an earlier release left it, which kept no record for that.
    change_boundary(
        *(bench.memory, STREAM, state.incarnation), lambda found: replace(found, first_kept_id=found.checkpoint_id + 1)
    )
    bench.memory.delete([record_key(STREAM, state.incarnation, number) for number in range(1, state.record_id + 1)])
    assert bench.run().swept.purged == 0
    bench.hours(40)
    # A later one makes it no younger.
    bench.writer.log.load()
    bench.writer.add([batch_of(5, 0, 10)])
    checkpoint_now(bench.memory, bench.state, lambda count: bytes(count))
    bench.hours(30)
    assert bench.run().swept.purged == 2


@pytest.mark.slow
def test_segments_are_purged_although_records_are_kept_for_less_than_the_grace_period() -> None:
    bench = Bench(grace_period="100h")
    bench.truncate(3)
    assert bench.run().swept.retired == 2
    purged, expired = [], 0
    for number in range(5, 25):
        bench.writer.log.load()
        bench.writer.add([batch_of(number, 0, 10)], closes=[number])
        checkpoint_now(bench.memory, bench.state, lambda count: bytes(count))
        bench.hours(12)
        purged.append(bench.run().swept.purged)
        expired += expire_records(bench.memory, bench.state, clock=bench.clock).records
    assert [number for number, segments in enumerate(purged) if segments] == [8]
    assert expired


class Dying(StoreWrapper):
    """The process dies at the first record that it writes, before or after that."""

    def __init__(self, bench: Bench, *, after: bool) -> None:
        super().__init__(bench.memory)
        self._after, self._is_dead = after, False

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        if request.verb == "put" and record_number(request.key) is not None and not self._is_dead:
            self._is_dead = True
            if self._after:
                call()
        if self._is_dead:
            raise StoreUnavailableError("the process is dead")
        return call()


def test_deletion_batch_is_stored_from_before_its_record_until_done() -> None:
    bench = Bench(grace_period="0h")
    bench.truncate(3)
    bench.run()
    for after in (False, True):
        with pytest.raises(OffloaderError):
            cleanup_stream(Dying(bench, after=after), STREAM, clock=bench.clock, settings=bench.settings)
        assert len(list(read_batches(bench.memory, STREAM, done=False))) == 1
    assert len(bench.state.segments.retired()) == 0
    assert bench.run().swept.deleted_objects == 4


def test_purge_repeated_long_after_its_first_attempt_is_finished_by_the_next_round() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    bench.hours(25)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="/manifest/")])
    with pytest.raises(StoreUnavailableError):
        bench.run()  # noted what it would delete, and ended
    bench.hours(25)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="/boundary")])
    with pytest.raises(StoreUnavailableError):
        bench.run()  # recorded the purge, and ended
    bench.store.set_faults([])
    bench.run()
    assert {key for key in bench.stored() if "/retention/" not in key} == bench.named()


def test_purge_that_was_never_recorded_is_not_done_after_a_rebuild() -> None:
    bench = Bench(ledgers=3)
    bench.truncate(2)
    bench.run()
    bench.hours(25)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="/manifest/")])
    with pytest.raises(StoreUnavailableError):
        bench.run()  # noted what it would delete, and ended
    bench.store.set_faults([])
    undo_retirements(bench.log())
    [first, *_] = bench.state.offloaded()
    data, index = first.object_keys(STREAM)
    bench.memory.put(index, b"damaged")
    bench.memory.put(boundary_key(STREAM, bench.state.incarnation), b"damaged")
    rebuilt = rebuild_manifest(bench.memory, STREAM, head=None, clock=bench.clock)
    assert [key for key, _ in rebuilt.problems] == [data], "kept: without its index it can be recovered"
    for _ in range(3):
        bench.run()
        assert {data, index} <= bench.stored()
        bench.hours(25)
    assert list(read_batches(bench.memory, STREAM, done=False)) == []


def test_deletion_retry_delay_doubles_up_to_its_limit() -> None:
    settings = Settings.of({"cleanup": {"retry_delay_max": "10m"}}).cleanup
    nobodys = DeletionRecord(
        name=f"{0:016d}-{'0' * 16}",
        stream=STREAM,
        incarnation=UUID(int=1),
        action="purge",
        by="ana",
        rule="a test",
        retire_record=1,
        segments=(),
        planned_ms=0,
    )
    tried = [replace(nobodys, attempts=attempts, tried_ms=1_000) for attempts in (1, 2, 3, 4, 5, 6, 1_000_000)]
    assert retry_at_ms(nobodys, settings) == 0
    assert [(retry_at_ms(each, settings) - 1_000) / 60_000 for each in tried] == [1, 2, 4, 8, 10, 10, 10]


def test_documents_of_another_incarnation_outlive_a_late_deletion() -> None:
    bench = Bench()
    theirs, ours = (document_key(Subscribers, STREAM, each) for each in (UUID(int=3), bench.state.incarnation))
    for key in (theirs, ours):
        bench.memory.put(key, b"{}")
    remove_stream(bench.memory, STREAM, clock=bench.clock)
    left = {info.key for info in bench.memory.list("").objects}
    assert theirs in left
    assert ours not in left


@pytest.mark.parametrize("place", [AT_ROOT, {}], ids=["at the root", "below the stream"])
def test_adopted_objects_of_other_owners_outlive_the_stream(place: Mapping[str, str]) -> None:
    bench = Bench()
    theirs, folder = UUID(int=0xABCDEF), "" if place else STREAM
    keys = {data_key(folder, theirs), index_key(folder, theirs)}
    for key in keys:
        bench.memory.put(key, b"somebody else's")
    finished, _ = build([batch_of(5, 0, 10)], 1024)
    bench.log().commit_as_maintainer(
        [Adopt(theirs, finished.summary, {**bench.memory.driver_metadata, **place}, False)]
    )
    assert remove_stream(bench.memory, STREAM, clock=bench.clock).adopted == 1
    assert keys <= {info.key for info in bench.memory.list("").objects}


class Late(StoreWrapper):
    """When the first object is deleted, another one of the stream arrives."""

    def __init__(self, bench: Bench, key: str) -> None:
        super().__init__(bench.memory)
        self._key: str | None = key

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        answer = call()
        if self._key is not None and request.verb == "delete" and request.key.startswith(f"{STREAM}/"):
            key, self._key = self._key, None
            self.inner.put(key, b"late")
        return answer


def test_object_written_during_stream_deletion_is_deleted_too() -> None:
    bench = Bench()
    key = data_key(STREAM, new_segment_uuid(bench.state.incarnation, 77))
    remove_stream(Late(bench, key), STREAM, clock=bench.clock)
    assert key not in {info.key for info in bench.memory.list("").objects}
