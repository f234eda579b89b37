"""Checkpoints: written by any committer, opened in few requests, never lowered, refused when damaged."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from formats.checkpoint import run_name
from formats.entries import Position
from formats.keys import boundary_key, checkpoint_key, checkpoint_number, manifest_prefix, record_key, record_number
from formats.manifest import (
    Assign,
    Boundary,
    Failed,
    Gap,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Retire,
)
from offloader.errors import CorruptError, FencedError, InvalidCallError, OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.boundary import read_boundary
from offloader.manifest.checkpoint import checkpoint_now, write_checkpoint
from offloader.manifest.compaction import RUN_ROWS_MIN
from offloader.manifest.load import load_manifest_view_at
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import ExpiredObjects, expire_records
from offloader.manifest.state import ManifestState, SegmentStatus
from offloader.settings import ManifestSettings
from offloader.store.base import Body, ByteRange, ObjectInfo
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import DRIVER, many_segments, segment_edits, summary_of, uuid_of

STREAM = "public/default/persistent/orders"
HOURS_24_S = 24 * 3600.0
_names = count()


class Bench:
    """A store in memory that counts calls, and logs over it."""

    def __init__(self, **settings: float) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"checkpoints-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.settings = ManifestSettings(**{"checkpoint_records": 10, **settings})  # type: ignore[arg-type]

    def log(self, **settings: float) -> ManifestLog:
        chosen = replace(self.settings, **settings)  # type: ignore[arg-type]
        return ManifestLog(self.store, STREAM, clock=self.clock, settings=chosen)

    def calls_of(self, call: Callable[[], object]) -> list[tuple[str, str]]:
        before = len(self.store.calls)
        call()
        return list(self.store.calls[before:])

    def memory_keys(self) -> list[str]:
        return [info.key for info in self.memory.list("").objects]

    def expire(self) -> ExpiredObjects:
        return expire_records(self.memory, load_manifest(self.memory, STREAM), clock=self.clock, settings=self.settings)


@functools.cache
def _objects_of_a_full_run() -> tuple[tuple[str, bytes], ...]:
    """A manifest whose next checkpoint seals a run of segments; made once."""
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    for edits in many_segments(0, RUN_ROWS_MIN, of_record=1024):
        log.commit(edits)
    return tuple((info.key, bench.memory.get(info.key)[0]) for info in bench.memory.list("").objects)


def with_a_full_run() -> tuple[Bench, ManifestLog]:
    """A bench and its owner's log, ``RUN_ROWS_MIN`` segments in the tail."""
    bench = Bench(checkpoint_records=10**5)
    for key, body in _objects_of_a_full_run():
        bench.memory.put(key, body)
    log = bench.log()
    log.open_epoch()
    return bench, log


def close(log: ManifestLog, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        log.commit([LedgerClosed(ledger_id, 9)])


def keys_in(bench: Bench, log: ManifestLog) -> list[str]:
    prefix = manifest_prefix(STREAM, log.state.incarnation)
    return [info.key[len(prefix) :] for info in bench.memory.list(prefix).objects]


def test_committer_of_the_hundredth_record_writes_a_checkpoint() -> None:
    bench = Bench(checkpoint_records=100)
    log = bench.log()
    log.open_epoch()
    close(log, *range(98))
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 0

    calls = bench.calls_of(lambda: close(log, 98))

    # The commit itself, and then two more PUT-class requests for a hundred records.
    assert [verb for verb, _ in calls] == ["put", "get", "put", "put"]
    assert checkpoint_number(calls[2][1]) == 100
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 100
    assert load_manifest(bench.memory, STREAM) == log.state


def test_checkpoint_equals_the_fold_of_its_records() -> None:
    bench = Bench(checkpoint_records=1000)
    log = bench.log()
    log.open_epoch()
    for number in range(6):
        log.commit(segment_edits(number))
    log.commit([LedgerClosed(1, 59), Gap(Position(2, 0), Position(2, 4), "lost"), LedgerClosed(2, 4)])
    log.commit([LedgersDeleted((7,)), Assign(uuid_of(99), 2, Position(3, 0), None, 9, {})])
    by_records = load_manifest(bench.memory, STREAM)

    log.checkpoint()

    by_checkpoint = load_manifest(bench.memory, STREAM)
    assert by_checkpoint == by_records
    assert by_checkpoint.checkpoint_id == by_checkpoint.record_id
    assert by_checkpoint.committed_end() == Position(2, 4)
    assert [s.uuid for s in by_checkpoint.assigned()] == [uuid_of(99)]
    assert by_checkpoint.totals() == by_records.totals()


@pytest.mark.slow
def test_opening_costs_the_same_few_requests_for_any_history() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    found = []
    for _ in range(3):
        close(log, *range(len(log.state.closed_ledgers), len(log.state.closed_ledgers) + 200))
        log.checkpoint()
        found.append([verb for verb, _ in bench.calls_of(lambda: load_manifest(bench.store, STREAM))])

    # Catalogue entry, boundary, checkpoint, the number after it, what is listed behind it, boundary.
    assert found == [["get", "get", "get", "get", "list", "get"]] * 3


@pytest.mark.slow
def test_the_tail_after_a_checkpoint_is_bounded_and_read_by_number() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    for number in range(200):
        close(log, number)
        boundary = read_boundary(bench.memory, STREAM, log.state.incarnation).boundary
        assert log.state.record_id - boundary.checkpoint_id < bench.settings.checkpoint_records
    calls = bench.calls_of(lambda: load_manifest(bench.store, STREAM))
    assert [verb for verb, _ in calls].count("list") == 1, "only to prove that there is no later one"
    assert load_manifest(bench.memory, STREAM) == log.state


@pytest.mark.slow
def test_a_long_tail_is_read_whole_and_in_order() -> None:
    bench = Bench(checkpoint_records=1000)
    log = bench.log()
    log.open_epoch()
    for length in range(1, 70):
        close(log, length)
        assert load_manifest(bench.memory, STREAM) == log.state


def test_missing_record_in_the_middle_is_reported_and_blocks_commits() -> None:
    for lost in range(2, 9):
        bench = Bench(checkpoint_records=1000)
        log = bench.log()
        log.open_epoch()
        close(log, *range(8))
        bench.memory.delete([record_key(STREAM, log.state.incarnation, lost)])

        with pytest.raises(CorruptError, match=f"record {lost} is missing, but later records exist"):
            load_manifest(bench.memory, STREAM)
        with pytest.raises(CorruptError):
            bench.log().open_epoch()
        assert f"{lost:020d}.json" not in keys_in(bench, log)


@pytest.mark.slow
def test_runs_are_sealed_and_a_checkpoint_costs_only_what_is_new() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    for edits in many_segments(0, RUN_ROWS_MIN + 100, of_record=500):
        log.commit(edits)
    log.checkpoint()
    [run] = [key for key in keys_in(bench, log) if key.endswith(".segments.parquet")]
    log.commit(segment_edits(RUN_ROWS_MIN + 100))

    written = [
        (key, bench.memory.head(key).size_bytes) for verb, key in bench.calls_of(log.checkpoint) if verb == "put"
    ]

    assert [key for key, _ in written] == [
        checkpoint_key(STREAM, log.state.incarnation, log.state.record_id),
        boundary_key(STREAM, log.state.incarnation),
    ]
    size = bench.memory.head(f"{manifest_prefix(STREAM, log.state.incarnation)}{run}").size_bytes
    assert written[0][1] < size / 5
    state = load_manifest(bench.memory, STREAM)
    assert state == log.state
    assert len(state.segments) == RUN_ROWS_MIN + 101


@pytest.mark.slow
def test_retired_segments_of_a_sealed_run_are_overlaid_not_rewritten() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    for edits in many_segments(0, RUN_ROWS_MIN, of_record=512):
        log.commit(edits)
    log.checkpoint()
    log.commit([LedgersDeleted((1,)), Retire((uuid_of(1 << 32), uuid_of(1 << 32 | 77)))])
    puts = [key for verb, key in bench.calls_of(log.checkpoint) if verb == "put"]
    assert len(puts) == 2

    state = load_manifest(bench.memory, STREAM)

    assert state == log.state
    assert state.segments[uuid_of(1 << 32 | 77)].status is SegmentStatus.RETIRED
    assert len(state.offloaded()) == RUN_ROWS_MIN - 2
    assert state.totals().segments == RUN_ROWS_MIN - 2
    assert state.first_position() == Position(1, 10)


def test_failing_checkpoint_leaves_its_commit_and_is_retried_later() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(8))
    bench.store.set_faults([Fault(call=1, verb="put", key_part="checkpoint", error=StoreUnavailableError)])

    close(log, 8)

    assert load_manifest(bench.memory, STREAM).record_id == 10
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 0
    close(log, *range(9, 19))
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 20


@pytest.mark.slow
def test_concurrent_checkpointers_agree_on_one_checkpoint() -> None:
    bench, log = with_a_full_run()
    state = log.state
    stored = read_boundary(bench.memory, STREAM, state.incarnation)

    first = write_checkpoint(bench.memory, state, stored, os.urandom)
    second = write_checkpoint(bench.memory, state, stored, os.urandom)

    assert first is not None
    assert second is not None
    assert second.boundary is not None
    assert first.boundary == second.boundary
    runs = [key for key in keys_in(bench, log) if key.endswith(".segments.parquet")]
    assert len(runs) == 2, "each wrote a run of its own; one is named by nobody"
    assert load_manifest(bench.memory, STREAM) == state


def test_a_stalled_checkpointer_never_lowers_the_boundary() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    stale = log.state
    stored = read_boundary(bench.memory, STREAM, stale.incarnation)
    close(log, 1, 2)
    log.checkpoint()
    after = read_boundary(bench.memory, STREAM, stale.incarnation)

    assert write_checkpoint(bench.memory, stale, stored, os.urandom) is None

    assert read_boundary(bench.memory, STREAM, stale.incarnation) == after
    assert load_manifest(bench.memory, STREAM) == log.state
    assert checkpoint_now(bench.memory, stale, os.urandom).boundary == after


def test_load_overtaken_by_a_checkpoint_and_its_deletions_starts_over() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    close(log, 1, 2, 3)

    class Overtaken(FaultyStore):
        """Once the boundary was read, everything moves on before the next call."""

        def get(self, key: str, byte_range: ByteRange | None = None, **more: Any) -> tuple[bytes, ObjectInfo]:
            answer = super().get(key, byte_range, **more)
            if key.endswith("boundary") and len(self.calls) == 2:
                log.checkpoint()
                bench.clock.advance(HOURS_24_S + 1)
                bench.expire()
            return answer

    overtaken = Overtaken(bench.memory)

    assert load_manifest(overtaken, STREAM) == log.state
    assert [key for verb, key in overtaken.calls if key.endswith("boundary")] == [
        boundary_key(STREAM, log.state.incarnation)
    ] * 4


# -- checkpoints beside the commits


def aside_log(bench: Bench, later: list[Callable[[], object]], **settings: float) -> ManifestLog:
    chosen = replace(bench.settings, **settings)  # type: ignore[arg-type]
    return ManifestLog(bench.store, STREAM, clock=bench.clock, settings=chosen, checkpoint_aside=later.append)


def test_commits_do_not_wait_for_a_background_checkpoint() -> None:
    bench, later = Bench(), list[Callable[[], object]]()
    log = aside_log(bench, later)
    log.open_epoch()
    for number in range(30):
        calls = bench.calls_of(lambda number=number: close(log, number))  # type: ignore[misc]
        assert [verb for verb, _ in calls] == ["put", "get"]
    assert len(later) == 1, "one at a time"
    calls = bench.calls_of(later.pop())
    assert [key.rpartition("/")[2] for verb, key in calls if verb == "put"] == [
        f"{10:020d}.checkpoint.parquet",
        "boundary",
    ]

    close(log, 30)

    assert log.state.checkpoint_id == 10, "the view goes on from its checkpoint"
    assert log.state == load_manifest(bench.memory, STREAM)
    calls = bench.calls_of(later.pop())
    assert [verb for verb, _ in calls] == ["put", "put"], "built on the one before, without reading it"
    close(log, 31)
    assert log.state.checkpoint_id == 32
    assert log.state == load_manifest(bench.memory, STREAM)


def test_concurrent_maintainer_records_are_in_the_next_checkpoint() -> None:
    bench, later = Bench(), list[Callable[[], object]]()
    log = aside_log(bench, later)
    log.open_epoch()
    close(log, *range(9))
    other = bench.log(checkpoint_records=10**5)
    other.load()
    other.commit_as_maintainer([LedgersDeleted((4,))])
    later.pop()()
    close(log, *range(9, 25))

    assert log.state == load_manifest(bench.memory, STREAM)
    assert log.state.deleted_ledgers == {4}
    later.pop()()
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id >= 20
    close(log, 25)
    assert log.state == load_manifest(bench.memory, STREAM)


@pytest.mark.parametrize("error", [StoreUnavailableError, OutcomeUnknownError, MemoryError])
def test_failing_background_checkpoint_changes_nothing_and_is_retried(error: type[Exception]) -> None:
    bench, later = Bench(), list[Callable[[], object]]()
    log = aside_log(bench, later)
    log.open_epoch()
    close(log, *range(9))
    bench.store.set_faults([Fault(call=1, verb="put", key_part="checkpoint", error=error)])  # type: ignore[arg-type]
    later.pop()()
    calls = bench.calls_of(lambda: close(log, *range(9, 18)))
    assert len(calls) == 18, "not with every commit"
    assert later == []
    close(log, 18)
    later.pop()()
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 20
    assert log.state == load_manifest(bench.memory, STREAM)


def test_unwritten_background_checkpoint_costs_only_a_longer_tail() -> None:
    """The process ended before a thread ran it."""
    bench, later = Bench(), list[Callable[[], object]]()
    log = aside_log(bench, later)
    log.open_epoch()
    close(log, *range(40))
    again = bench.log()
    again.open_epoch()
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 42
    assert again.state == load_manifest(bench.memory, STREAM)


# -- deleting old records


def test_old_records_below_the_boundary_are_deleted() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(25))
    assert read_boundary(bench.memory, STREAM, log.state.incarnation).boundary.checkpoint_id == 20
    before = keys_in(bench, log)
    bench.clock.advance(HOURS_24_S - 60)
    bench.expire()
    assert keys_in(bench, log) == before, "younger than orphan_age_min"

    bench.clock.advance(120)
    bench.expire()

    boundary = read_boundary(bench.memory, STREAM, log.state.incarnation).boundary
    assert (boundary.first_kept_id, boundary.checkpoint_id) == (21, 20)
    assert [n for key in keys_in(bench, log) if (n := record_number(key)) is not None] == [21, 22, 23, 24, 25, 26]
    assert [n for key in keys_in(bench, log) if (n := checkpoint_number(key)) is not None] == [20]
    assert load_manifest(bench.memory, STREAM) == log.state
    close(log, 50)
    assert load_manifest(bench.memory, STREAM) == log.state


@pytest.mark.slow
def test_views_stay_readable_from_the_newest_old_checkpoint_on() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    states = {}
    for number in range(15):
        close(log, number)
        states[log.state.record_id] = log.state
    bench.clock.advance(HOURS_24_S + 1)
    for number in range(15, 40):
        close(log, number)
        states[log.state.record_id] = log.state
    bench.expire()

    for record_id in range(10, 41):
        assert load_manifest_view_at(bench.memory, log.state, record_id) == states[record_id]
    with pytest.raises(InvalidCallError, match="records below 11 were deleted"):
        load_manifest_view_at(bench.memory, log.state, 9)


@pytest.mark.slow
def test_views_after_a_checkpoint_that_was_never_named_stay_readable() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    states: dict[int, ManifestState] = {}

    def close_each(*ledger_ids: int) -> None:
        for number in ledger_ids:
            close(log, number)
            states[log.state.record_id] = log.state

    close_each(*range(4))
    log.checkpoint()
    named = log.state.record_id
    close_each(*range(4, 8))
    bench.store.set_faults([Fault(call=1, verb="put", key_part="boundary", calls=100)])
    with suppress(StoreUnavailableError):
        log.checkpoint()
    bench.store.set_faults([])
    assert checkpoint_key(STREAM, log.state.incarnation, log.state.record_id) in bench.memory_keys()
    bench.clock.advance(HOURS_24_S + 1)
    close_each(*range(8, 12))
    log.checkpoint()
    close_each(12)

    first_kept_id = bench.expire().first_kept_id

    readable = {}
    for record_id in range(first_kept_id, log.state.record_id + 1):
        with suppress(InvalidCallError):
            readable[record_id] = load_manifest_view_at(bench.memory, log.state, record_id)
    assert readable == {number: state for number, state in states.items() if number >= first_kept_id}
    assert first_kept_id == named + 1


def test_unreferenced_run_is_deleted_when_old_and_below_the_boundary() -> None:
    """A stalled checkpointer wrote one run; the checkpoint of another run may not be named yet."""
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(9))
    bench.clock.advance(HOURS_24_S + 1)
    passed, coming = run_name(3, 7, "segments"), run_name(99, 7, "segments")
    for name in (passed, coming):
        bench.memory.put(f"{manifest_prefix(STREAM, log.state.incarnation)}{name}", b"half of it")
    assert bench.expire().records == 10
    assert {passed, coming} <= set(keys_in(bench, log)), "young"
    bench.clock.advance(HOURS_24_S + 1)
    assert bench.expire().runs == 1
    assert passed not in keys_in(bench, log)
    assert coming in keys_in(bench, log)


def test_a_deletion_that_breaks_off_leaves_no_gap_in_the_records() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(25))
    bench.clock.advance(HOURS_24_S + 1)
    bench.store.set_faults([Fault(call=2, verb="delete", torn=True)])  # the first one is of the clock's object
    with pytest.raises(StoreUnavailableError):
        expire_records(bench.store, log.state, clock=bench.clock, settings=bench.settings)
    left = [n for key in keys_in(bench, log) if (n := record_number(key)) is not None]
    assert 6 < len(left) < 26
    assert left == list(range(left[0], 27))
    assert load_manifest(bench.memory, STREAM) == log.state


def test_a_dry_run_counts_and_deletes_nothing() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(25))
    bench.clock.advance(HOURS_24_S + 1)
    before = keys_in(bench, log), bench.memory.get(boundary_key(STREAM, log.state.incarnation))[0]

    found = expire_records(bench.memory, log.state, clock=bench.clock, settings=bench.settings, dry_run=True)

    assert (found.first_kept_id, found.records, found.checkpoints) == (21, 20, 1)
    assert (keys_in(bench, log), bench.memory.get(boundary_key(STREAM, log.state.incarnation))[0]) == before
    assert Boundary.decode(before[1]).first_kept_id == 1
    assert Boundary.decode(before[1]).encode() == before[1]


def test_foreign_objects_in_the_manifest_are_reported_and_stay() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    close(log, *range(25))
    prefix = manifest_prefix(STREAM, log.state.incarnation)
    strangers = [f"{prefix}copies/{1:020d}.json", f"{prefix}{1:020d}.json.bak", f"{prefix}{1:020d}-run.parquet"]
    for key in strangers:
        bench.memory.put(key, b"not ours")
    bench.clock.advance(HOURS_24_S + 1)

    found = bench.expire()

    assert (found.records, sorted(found.unknown)) == (20, sorted(strangers))
    assert {f"{prefix}{key}" for key in keys_in(bench, log)} >= set(strangers)


# -- stalled writers


def test_a_stalled_writer_that_wins_a_deleted_number_has_lost() -> None:
    bench = Bench()
    stalled, other = bench.log(), bench.log()
    stalled.open_epoch()
    other.open_epoch()
    close(other, *range(20, 40))
    bench.clock.advance(HOURS_24_S + 1)
    bench.expire()
    assert f"{2:020d}.json" not in keys_in(bench, other)

    with pytest.raises(FencedError, match="owned by epoch 2"):
        close(stalled, 1)

    assert f"{2:020d}.json" in keys_in(bench, other), "it won the number, which means nothing"
    state = load_manifest(bench.memory, STREAM)
    assert state == other.state
    assert 1 not in state.closed_ledgers


@pytest.mark.parametrize("deleted", [False, True], ids=["its number is taken", "its number was deleted"])
def test_epoch_opened_on_a_stale_view_is_unique(deleted: bool) -> None:
    """The epoch is opened without a read before it: the number or the boundary reveals the stale view."""
    bench = Bench()
    first, old, other = bench.log(), bench.log(), bench.log()
    first.open_epoch()
    old.load()
    assert other.open_epoch() == 2
    close(other, *range(20, 40))
    if deleted:
        bench.clock.advance(HOURS_24_S + 1)
        bench.expire()
    assert (f"{2:020d}.json" not in keys_in(bench, other)) == deleted

    assert old.open_epoch() == 3

    close(old, 50)
    with pytest.raises(FencedError, match="owned by epoch 3"):
        close(other, 51)
    state = load_manifest(bench.memory, STREAM)
    assert (state.epoch, set(state.closed_ledgers)) == (3, {*range(20, 40), 50})


def test_record_committed_and_deleted_during_a_stall_is_recognised() -> None:
    """Its number alone doesn't prove it: the writer loads, compares, and doesn't assign the same segment twice."""
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.open_epoch()
    edits = [Assign(uuid_of(1), 2, Position(1, 0), None, 5, {})]
    bench.store.set_faults([Fault(call=1, verb="put", after=True, error=OutcomeUnknownError)])

    class Stalls(FaultyStore):
        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            if record_number(key) == 2 and [k for v, k in self.calls if v == "put" and k == key]:
                # The first answer was lost; before the repeat the record is folded and deleted.
                checkpoint_now(bench.memory, load_manifest(bench.memory, STREAM), os.urandom)
                bench.clock.advance(HOURS_24_S + 1)
                bench.expire()
            return super().put(key, body, **more)

    log.store = Stalls(
        bench.memory, [Fault(call=1, verb="put", key_part=".json", after=True, error=OutcomeUnknownError)]
    )

    state = log.commit(edits)

    assert [s.uuid for s in state.assigned()] == [uuid_of(1)]
    assert state.record_id == 2
    log.commit([Failed(uuid_of(1), "x")])
    assert load_manifest(bench.memory, STREAM) == log.state


def test_epoch_opened_and_deleted_during_a_stall_is_recognised() -> None:
    bench = Bench(checkpoint_records=10**5)
    log = bench.log()
    log.load(create=True)

    class Stalls(FaultyStore):
        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            if record_number(key) == 1 and [k for v, k in self.calls if v == "put" and k == key]:
                checkpoint_now(bench.memory, load_manifest(bench.memory, STREAM), os.urandom)
                bench.clock.advance(HOURS_24_S + 1)
                bench.expire()
            return super().put(key, body, **more)

    log.store = Stalls(
        bench.memory, [Fault(call=1, verb="put", key_part=".json", after=True, error=OutcomeUnknownError)]
    )

    assert log.open_epoch() == 1
    close(log, 1)
    assert load_manifest(bench.memory, STREAM) == log.state
    assert decode_record_edits(bench, log, 2) == (LedgerClosed(1, 9),)


def decode_record_edits(bench: Bench, log: ManifestLog, number: int) -> tuple[object, ...]:
    from formats.manifest import decode_record

    return decode_record(bench.memory.get(record_key(STREAM, log.state.incarnation, number))[0]).edits


def test_maintainer_edit_takes_a_record_number_without_fencing_the_owner() -> None:
    bench = Bench()
    owner, other = bench.log(), bench.log()
    owner.open_epoch()
    other.load()

    other.commit_as_maintainer([LedgersDeleted((4,))])
    close(owner, 1)

    state = load_manifest(bench.memory, STREAM)
    assert (state.epoch, state.record_id) == (1, 3)
    assert set(state.deleted_ledgers) == {4}
    assert OpenEpoch(1) in decode_record_edits(bench, owner, 1)


def test_checkpoint_keeps_the_begin_of_the_committed_run_only_while_needed() -> None:
    """So that checkpoints of before this was known can be read, and earlier releases read those that don't need it."""
    log = ManifestLog(MemoryStore(f"front-{next(_names)}", "", ManualClock()), "s", clock=ManualClock())
    log.open_epoch()
    later, earlier = uuid_of(1), uuid_of(2)
    log.commit([Assign(later, 2, Position(3, 0), None, 5, DRIVER)])
    log.commit([Offloaded(later, summary_of(Position(3, 0), Position(3, 9)), 6)])
    log.checkpoint()
    key = checkpoint_key("s", log.state.incarnation, log.state.record_id)
    assert b"committed_from" not in log.store.get(key)[0]

    log.commit([Assign(earlier, 2, Position(1, 0), Position(1, 4), 5, DRIVER)])
    log.checkpoint()
    key = checkpoint_key("s", log.state.incarnation, log.state.record_id)
    assert b'"committed_from":[3,0]' in log.store.get(key)[0]
    state = load_manifest(log.store, "s")
    assert state == log.state
    assert (state.committed_end(), state.committed_from) == (Position(3, 9), Position(3, 0))
