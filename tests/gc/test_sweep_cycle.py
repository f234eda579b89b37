"""Cleanup from a moved head to deleted objects, step by step, with every way to stop it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from uuid import UUID

import pytest

from formats.documents import awaited_key
from formats.entries import Position
from formats.manifest import Adopt, Hold, LedgersDeleted
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError, TrimmedError
from offloader.gc.plan import Action, CleanupPlan
from offloader.gc.sweep import LargeDeleteError, cleanup_all, cleanup_stream, read_batches
from offloader.manifest.protection import (
    ClockSkewError,
    DeletionClock,
    DeletionStoppedError,
    lift_global_hold,
    set_global_hold,
    take_lease,
)
from offloader.manifest.segment_table import AT_ROOT
from offloader.manifest.state import SegmentStatus
from offloader.read.reader import open_stream_reader
from offloader.store.base import MAY_NOT_DELETE, DeleteFailure
from offloader.testing.faulty_store import Fault
from offloader.testing.manual_clock import ManualClock
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow


def test_segment_before_the_head_is_retired_then_purged() -> None:
    bench = Bench()
    everything = bench.stored()
    bench.truncate(2, 5)
    assert bench.run().swept.retired == 1
    assert [s.status for s in bench.state.segments.values()] == [SegmentStatus.RETIRED, *[SegmentStatus.OFFLOADED] * 3]
    assert bench.stored() == everything
    bench.hours(23.9)
    assert bench.run().swept.purged == 0
    bench.hours(0.2)
    done = bench.run()
    assert (done.swept.purged, done.swept.deleted_objects, done.pending) == (1, 2, [])
    assert bench.stored() == bench.named() == everything - set(bench.writer.keys(bench.writer.uuids[0]))
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(2, 5), Position(4, 9))) == 25
    again = bench.run()
    assert (again.swept.retired, again.swept.purged) == (0, 0)


def test_segment_across_head_or_with_live_ledger_is_kept() -> None:
    bench = Bench(ledgers=1)
    bench.writer.add([batch_of(2, 0, 5), batch_of(3, 0, 5)], closes=[2])
    log = bench.log()
    log.commit_as_maintainer([LedgersDeleted((2,))])
    assert bench.run().swept.retired == 0
    log.commit_as_maintainer([LedgersDeleted((3,))])
    planned = bench.run(dry_run=True).plan
    assert planned is not None
    assert [(line.uuid, line.rule) for line in planned.lines()] == [
        (bench.writer.uuids[1], "all its ledgers are gone from the stream")
    ]
    assert bench.run().swept.retired == 1
    bench.truncate(1, 9)
    assert bench.run().swept.retired == 0


def test_the_dry_run_lists_what_the_run_does_and_writes_nothing() -> None:
    bench = Bench()
    bench.truncate(3)
    before = {info.key: info.etag for info in bench.memory.list("").objects}
    planned = bench.run(dry_run=True).plan
    assert planned is not None
    lines = list(planned.lines())
    assert [(line.action, line.first, line.rule) for line in lines] == [
        (Action.RETIRE, Position(1, 0), "it lies before the stream's head 3:0"),
        (Action.RETIRE, Position(2, 0), "it lies before the stream's head 3:0"),
    ]
    assert {info.key: info.etag for info in bench.memory.list("").objects} == before
    seen: list[object] = []
    bench.run(on_plan=lambda plan: seen.extend(plan.lines()))
    assert seen == lines
    waiting = bench.run(dry_run=True).plan
    assert waiting is not None
    [first, _] = waiting.lines()
    assert (first.action, first.waits_for, first.until_ms) == (
        Action.PURGE, "the grace period", bench.clock.now_ms() + 24 * 3600 * 1000,
    )  # fmt: skip


def test_deleting_more_than_half_of_a_stream_needs_confirmation() -> None:
    bench = Bench(ledgers=4, allow_large_delete=False)
    bench.truncate(3)  # exactly half
    assert bench.run().swept.retired == 2
    bench.truncate(4)  # half of what is left
    assert bench.run().swept.retired == 1
    bench.truncate(4, 10)
    with pytest.raises(LargeDeleteError, match="more than half") as raised:
        bench.run()
    assert "--allow-large" in raised.value.hint
    assert len(bench.state.offloaded()) == 1
    assert bench.run(allow_large=True).swept.retired == 1


def test_due_segments_are_purged_although_next_step_is_too_large() -> None:
    bench = Bench(ledgers=4, allow_large_delete=False)
    bench.truncate(2)
    bench.run()
    bench.truncate(4)
    bench.hours(25)
    with pytest.raises(LargeDeleteError):
        bench.run()
    assert bench.stored() == bench.named()
    assert len(bench.state.offloaded()) == 3


def test_reader_with_a_lease_reads_everything_until_it_ends() -> None:
    bench = Bench()
    reader = open_stream_reader(bench.memory, STREAM, lease_seconds=7 * 24 * 3600, clock=bench.clock)
    bench.truncate(4)
    bench.run()
    for _ in range(3):
        bench.hours(25)
        assert bench.run().swept.purged == 0
        assert len(reader.read(Position(1, 0), Position(3, 9))) == 30
    reader.close()
    assert bench.run().swept.purged == 3
    assert bench.stored() == bench.named()


def test_later_readers_are_not_awaited() -> None:
    bench = Bench()
    early = take_lease(bench.memory, STREAM, 40 * 3600, clock=bench.clock, reader="early")
    bench.truncate(2)
    bench.run()
    bench.hours(25)
    take_lease(bench.memory, STREAM, 40 * 3600, clock=bench.clock, reader="late")
    plan = bench.run(dry_run=True).plan
    assert plan is not None
    assert [why for _, why, _ in plan.waiting] == ["readers: early"]
    early.end()
    assert bench.run().swept.purged == 1
    assert not any("/retention/awaited/" in key for key in bench.stored())


def test_a_lease_ends_by_the_clocks_and_one_that_can_t_be_read_never_does() -> None:
    bench = Bench()
    take_lease(bench.memory, STREAM, 30 * 3600, clock=bench.clock, reader="gone")
    bench.truncate(2)
    bench.run()
    bench.hours(29)
    assert bench.run().swept.purged == 0
    bench.hours(2)
    key = f"{STREAM}/leases/{UUID(int=5)}"
    bench.memory.put(key, b"damaged")
    assert bench.run().swept.purged == 1, "it came later than the retirement"
    bench.truncate(3)
    bench.run()
    bench.hours(10_000)
    assert bench.run().swept.purged == 0
    bench.memory.delete([key])
    assert bench.run().swept.purged == 1


def test_lost_reader_list_makes_purge_wait_for_current_leases() -> None:
    """The round that retired them was killed before it listed the leases."""
    bench = Bench()
    lease = take_lease(bench.memory, STREAM, 100 * 3600, clock=bench.clock, reader="early")
    bench.truncate(2)
    bench.run()
    number = next(s.retire_record for s in bench.state.segments.retired())
    assert number is not None
    bench.memory.delete([awaited_key(STREAM, number)])
    bench.hours(25)
    assert bench.run().swept.purged == 0
    lease.end()
    assert bench.run().swept.purged == 1


def test_held_stream_is_kept_at_every_step() -> None:
    bench = Bench()
    bench.truncate(3)
    log = bench.log()
    log.commit_as_maintainer([Hold(True, "court")])
    held = bench.run()
    assert (held.held, held.swept.retired) == (True, 0)
    log.commit_as_maintainer([Hold(False, "")])
    bench.run()
    log.load()
    log.commit_as_maintainer([Hold(True, "court")])
    bench.hours(100)
    assert bench.run().swept.purged == 0
    assert len(bench.stored()) == 8
    log.load()
    log.commit_as_maintainer([Hold(False, "")])
    assert bench.run().swept.purged == 2


def test_global_hold_keeps_everything() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    bench.hours(25)
    set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
    with pytest.raises(DeletionStoppedError):
        bench.run()
    with pytest.raises(DeletionStoppedError):
        list(cleanup_all(bench.store, clock=bench.clock))
    assert bench.run(dry_run=True).plan is not None
    bench.memory.put("_hold", b"not ours to read")
    with pytest.raises(DeletionStoppedError, match="can't be read"):
        bench.run()
    lift_global_hold(bench.memory)
    assert bench.run().swept.purged == 2


def test_clocks_that_can_t_be_trusted_stop_deletion() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    bench.hours(25)
    for skew_ms in (-100_000, 100_000, 48 * 3600 * 1000, -48 * 3600 * 1000):
        wrong = ManualClock(bench.clock.now_ms() + skew_ms)
        with pytest.raises(ClockSkewError, match="nothing is deleted"):
            cleanup_stream(bench.memory, STREAM, clock=wrong, settings=bench.settings)
    assert len(bench.stored()) == 8


@pytest.mark.parametrize("jump_s", [3 * 24 * 3600, -3 * 24 * 3600, 90, -90])
def test_clock_jump_stops_deletion_although_store_clock_agrees(jump_s: int) -> None:
    bench = Bench()
    times = DeletionClock(bench.memory, bench.clock, skew_ms_max=60_000)
    bench.truncate(3)
    bench.run(deletion_clock=times)
    bench.hours(1)
    bench.run(deletion_clock=times)
    bench.clock.set_now_ms(bench.clock.now_ms() + jump_s * 1000)  # the store's clock is the same one
    for _ in range(2):
        with pytest.raises(ClockSkewError, match="jumped by"):
            bench.run(deletion_clock=times)
    assert len(bench.stored()) == 8


def test_backward_clock_is_detected_by_earlier_records() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.clock.set_now_ms(bench.clock.now_ms() - 120_000)
    with pytest.raises(ClockSkewError, match="behind existing records"):
        bench.run()


class Stubborn:
    """Answers that a delete worked, and names a key that it didn't delete."""

    def __init__(self, bench: Bench) -> None:
        self._delete = bench.store.delete
        self.kept: set[str] = set()
        bench.store.delete = self.delete  # type: ignore[method-assign]

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        failed = [DeleteFailure(key, "AccessDenied", False, True) for key in keys if key in self.kept]
        return [*self._delete([key for key in keys if key not in self.kept]), *failed]


def test_key_kept_by_a_multi_delete_is_retried_forever_and_reported() -> None:
    bench = Bench(retry_delay_max="60m")
    stubborn = Stubborn(bench)
    data, index = bench.writer.keys(bench.writer.uuids[0])
    stubborn.kept = {index}
    bench.truncate(2)
    bench.run()
    bench.hours(25)
    done = bench.run()
    assert (done.swept.purged, done.swept.deleted_objects, len(done.swept.failed)) == (1, 0, 1)
    assert (data in bench.stored(), index in bench.stored()) == (False, True)
    [pending] = done.pending
    assert pending.attempts == 1
    assert pending.problem == f"1 of 2 objects, first {index}: AccessDenied ({MAY_NOT_DELETE})"
    assert bench.run().pending[0].attempts == 1, "it waits before it tries again"
    attempts = []
    for _ in range(12):
        bench.hours(0.25)
        attempts.append(bench.run().pending[0].attempts)
    assert attempts[0] == 2
    assert attempts[-1] < 12, "it waits longer each time"
    bench.hours(1.1)
    assert bench.run(dry_run=True).pending[0].attempts == attempts[-1]
    stubborn.kept = set()
    assert bench.run().pending == []
    assert bench.stored() == bench.named()
    [over] = read_batches(bench.memory, STREAM, done=True)
    assert (over.done_ms is not None, over.problem) == (True, ""), "it went in the end"


def test_purged_objects_left_by_a_crash_are_found_by_name() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    bench.hours(25)
    bench.store.set_faults([Fault(call=1, verb="delete", key_part=str(bench.writer.uuids[0]), calls=10**6)])
    bench.run()
    assert len(bench.named()) == 4
    assert len(bench.stored() - bench.named()) == 5, "four objects and the batch"
    bench.store.set_faults([])
    bench.hours(2)
    bench.run()
    assert bench.stored() == bench.named()


def adopted(bench: Bench, *, owned: bool) -> tuple[str, str]:
    """Segment 5:0..9 as somebody else's, at the store's root."""
    other = StreamWriter(bench.memory, "other", clock=bench.clock)
    uuid = other.add([batch_of(5, 0, 10)])
    summary = other.log.state.segments[uuid].summary
    assert summary is not None
    foreign = UUID(int=0xABCDEF)
    keys = str(foreign), f"{foreign}-index"
    for source, key in zip(other.keys(uuid), keys, strict=True):
        bench.memory.put(key, bench.memory.get(source)[0])
        bench.memory.delete([source])
    bench.log().commit_as_maintainer([Adopt(foreign, summary, {**bench.memory.driver_metadata, **AT_ROOT}, owned)])
    return keys


def test_adopted_segment_without_ownership_is_released_and_its_objects_stay() -> None:
    bench = Bench()
    keys = adopted(bench, owned=False)
    bench.truncate(5, 10)
    done = bench.run()
    assert (done.swept.retired, done.swept.released) == (4, 1)
    bench.hours(25)
    bench.run()
    assert {key for key in bench.stored() if not key.startswith("other/")} == set(keys)
    actions = [(b.action, b.segments[0].keys != ()) for b in read_batches(bench.memory, STREAM, done=True)]
    assert sorted(actions) == [("purge", True), ("release", False)]


def test_owned_adopted_objects_are_deleted_without_uuid_proof() -> None:
    bench = Bench()
    keys = adopted(bench, owned=True)
    bench.truncate(5, 10)
    bench.run()
    bench.hours(25)
    bench.store.set_faults([Fault(call=1, verb="delete", key_part="", calls=10**6, but="retention")])
    with contextlib.suppress(OffloaderError):
        bench.run()
    bench.store.set_faults([])
    assert set(keys) <= bench.stored()
    for _ in range(2):
        bench.hours(2)
        bench.run()
    assert not {key for key in bench.stored() if not key.startswith("other/")}


def test_a_reader_of_a_plan_with_a_retired_segment_is_refused() -> None:
    from offloader.read.reader import load_manifest_at

    bench = Bench()
    record = bench.state.record_id
    bench.truncate(3)
    bench.run()
    with pytest.raises(TrimmedError, match="2 segments of manifest record"):
        load_manifest_at(bench.memory, STREAM, record)


def test_next_process_repairs_crash_at_any_request() -> None:
    """From one call on nothing is answered any more: not even the way out of an error can repair anything."""
    for call in range(1, 200):
        bench = Bench(ledgers=3)
        bench.truncate(3)
        bench.run()
        bench.hours(25)
        before = len(bench.store.calls)
        bench.store.set_faults([Fault(call=call, calls=10**6)])
        with contextlib.suppress(OffloaderError):
            bench.run()
        bench.check()
        made = len(bench.store.calls) - before
        bench.store.set_faults([])
        bench.hours(2)
        bench.run()
        bench.check()
        assert bench.stored() == bench.named()
        if made < call:
            return
    raise AssertionError("no round was without a fault")


def test_concurrent_undo_keeps_its_segments_from_purging() -> None:
    from formats.manifest import Restore, UndoRetire

    bench = Bench()
    bench.truncate(3)
    bench.run()
    bench.hours(25)
    retired = list(bench.state.segments.retired())
    inner = bench.store.put

    def put(key: str, body: object, **more: object) -> object:
        if "/retention/deleting/" in key:
            bench.store.put = inner  # type: ignore[method-assign]
            number = retired[0].retire_record
            assert number is not None
            bench.log().commit_as_maintainer(
                [UndoRetire(tuple(s.uuid for s in retired), number), Restore(Position(1, 0), (1, 2))]
            )
        return inner(key, body, **more)  # type: ignore[arg-type]

    bench.store.put = put  # type: ignore[method-assign,assignment]
    plans: list[CleanupPlan] = []
    report = bench.run(on_plan=plans.append)
    assert [len(plan.due) for plan in plans] == [1, 0]
    assert (report.swept.purged, report.swept.deleted_objects) == (0, 0)
    assert bench.named() <= bench.stored()
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(1, 0), Position(4, 9))) == 40
    bench.hours(25)
    bench.run()  # forgets the batch that never came about
    assert bench.stored() == bench.named()
    assert len(bench.named()) == 8


def test_audit_is_bounded_by_age_and_number() -> None:
    bench = Bench(ledgers=6, audit_period="30d", audit_records_max=2, grace_period="0h")
    for ledger in (2, 3, 4):
        bench.truncate(ledger)
        bench.run()
        bench.clock.advance(1)
        bench.run()
    kept = list(read_batches(bench.memory, STREAM, done=True))
    assert [batch.segments[0].first for batch in kept] == [Position(2, 0), Position(3, 0)]
    bench.hours(31 * 24)
    bench.run()
    assert list(read_batches(bench.memory, STREAM, done=True)) == []


def test_audit_records_operator_time_rule_and_segment() -> None:
    bench = Bench()
    bench.truncate(2)
    bench.run(by="ana@host")
    bench.hours(25)
    bench.run(by="ana@host")
    [batch] = read_batches(bench.memory, STREAM, done=True)
    [segment] = batch.segments
    assert (batch.action, batch.by, batch.rule) == ("purge", "ana@host", "it lies before the stream's head 2:0")
    assert segment.keys == bench.writer.keys(bench.writer.uuids[0])
    assert (segment.first, segment.last, segment.entries) == (Position(1, 0), Position(1, 9), 10)
    assert segment.object_bytes > 0
    assert batch.done_ms == bench.clock.now_ms()


def test_failing_stream_does_not_block_cleanup_of_others() -> None:
    bench = Bench(ledgers=2)
    for name in ("a", "z"):
        writer = StreamWriter(bench.memory, name, clock=bench.clock)
        for ledger in (1, 2, 3):
            writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
        from offloader.retention.truncate import truncate_stream

        truncate_stream(writer.log, Position(2, 0), clock=bench.clock)
    bench.store.set_faults([Fault(call=1, key_part="a/manifest", calls=10**6)])
    reports = {report.stream: report for report in cleanup_all(bench.store, clock=bench.clock)}
    assert sorted(reports) == ["a", STREAM, "z"]
    assert isinstance(reports["a"].error, StoreUnavailableError)
    assert (reports["z"].error, reports["z"].swept.retired) == (None, 1)


def test_cleanup_of_an_unknown_stream_raises_not_found() -> None:
    bench = Bench(ledgers=1)
    with pytest.raises(NotFoundError):
        cleanup_stream(bench.memory, "nobody", clock=bench.clock)
