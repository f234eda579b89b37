"""Deleting and recreating a stream: nothing is left, and no client of the old one touches the new one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import boundary_key, catalog_key, manifest_prefix, record_key
from formats.manifest import Assign, Hold, LedgerClosed
from offloader.errors import FencedError, InvalidCallError, NotFoundError, OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.boundary import FIRST_BOUNDARY, read_boundary
from offloader.manifest.catalog import forget_name, is_released
from offloader.manifest.load import load_manifest_view
from offloader.manifest.log import ManifestLog, list_streams, load_manifest
from offloader.manifest.maintenance import DeadIncarnation, StreamDeletion, delete_stream, sweep_dead_incarnations
from offloader.manifest.protection import (
    TIME_KEY,
    ClockSkewError,
    DeletionStoppedError,
    lift_global_hold,
    set_global_hold,
    time_for_deletion_ms,
)
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.store.base import Body, ObjectInfo, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits

STREAM = "public/default/persistent/orders"
HOURS_24_S = 24 * 3600.0
_Answer = TypeVar("_Answer")
_names = count()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"deletion-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.swept: list[ManifestState] = []

    def log(self) -> ManifestLog:
        return ManifestLog(self.store, STREAM, clock=self.clock)

    def delete(self, *, objects: Callable[[ManifestState], None] | None = None) -> StreamDeletion:
        return delete_stream(self.store, STREAM, clock=self.clock, delete_objects=objects or self.swept.append)

    def all_keys(self) -> list[str]:
        return [info.key for info in self.memory.list("").objects if info.key != TIME_KEY]


def test_deletion_proceeds_in_order_and_leaves_nothing() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    log.commit(segment_edits(0))

    first = bench.delete()

    assert not first.is_finished
    assert [(s.stream_deleted, s.epoch, len(s.offloaded())) for s in bench.swept] == [(True, 2, 1)]
    puts = [key.rpartition("/")[2] for verb, key in bench.store.calls if verb == "put" and "_time" not in key][-4:]
    assert puts == [f"{3:020d}.json", f"{3:020d}.checkpoint.parquet", "boundary", "boundary"]
    prefix = manifest_prefix(STREAM, first.incarnation)
    left = {key[len(prefix) :] for key in bench.all_keys() if key.startswith(prefix)}
    assert left == {"boundary", f"{3:020d}.json", f"{3:020d}.checkpoint.parquet"}
    with pytest.raises(NotFoundError, match="was deleted"):
        bench.log().open_epoch()

    bench.clock.advance(HOURS_24_S + 1)
    second = bench.delete()

    assert second.is_finished
    assert bench.all_keys() == []
    assert list_streams(bench.memory) == []
    with pytest.raises(NotFoundError):
        load_manifest(bench.memory, STREAM)


def test_a_stream_can_be_created_again_under_keys_of_its_own() -> None:
    bench = Bench()
    old = bench.log()
    old.open_epoch()
    bench.delete()
    bench.clock.advance(HOURS_24_S + 1)
    bench.delete()

    new = bench.log()
    assert new.open_epoch() == 1

    assert new.state.incarnation != old.state.incarnation
    assert list_streams(bench.memory) == [STREAM]
    with pytest.raises(FencedError, match="was deleted"):
        old.commit([LedgerClosed(1, 9)])
    assert load_manifest(bench.memory, STREAM) == new.state


def test_a_stalled_writer_of_a_deleted_stream_stops_at_every_stage() -> None:
    bench = Bench()
    stalled = bench.log()
    stalled.open_epoch()
    early = bench.log()
    early.load()
    for later_s in (0.0, HOURS_24_S + 1):
        bench.clock.advance(later_s)
        bench.delete()
        with pytest.raises(FencedError):
            stalled.commit([Assign(UUID(int=1), 2, Position(1, 0), None, 1, {})])
        with pytest.raises((NotFoundError, FencedError)):
            early.open_epoch()


@pytest.mark.slow
def test_a_second_deleter_that_wakes_up_late_takes_nothing_of_the_new_stream() -> None:
    """It stalls before its last requests; then the first one finishes and the stream is created again."""
    for stalls_at in range(1, 40):
        bench = Bench()
        bench.log().open_epoch()
        bench.delete()
        bench.clock.advance(HOURS_24_S + 1)
        again: list[ManifestLog] = []

        class Stalled(FaultyStore):
            def _next(
                self,
                verb: str,
                key: str,
                bench: Bench = bench,
                again: list[ManifestLog] = again,
                at: int = stalls_at,
            ) -> Fault | None:
                if len(self.calls) + 1 == at:
                    delete_stream(bench.memory, STREAM, clock=bench.clock, delete_objects=lambda _: None)
                    again.append(ManifestLog(bench.memory, STREAM, clock=bench.clock))
                    again[0].open_epoch()
                    again[0].commit(segment_edits(0))
                return super()._next(verb, key)

        store = Stalled(bench.memory)
        with contextlib.suppress(NotFoundError, StoreUnavailableError):  # gone, or somebody else deletes: look again
            delete_stream(store, STREAM, clock=bench.clock, delete_objects=lambda _: None)
        if not again:
            assert stalls_at > 10, "every request of the second deleter was one to stall at"
            return
        if stalls_at == 1:
            continue  # it read the new stream's entry: then it deletes that one, as it is told
        assert load_manifest(bench.memory, STREAM) == again[0].state
        assert not again[0].state.stream_deleted
        again[0].commit([LedgerClosed(1, 9)])
        assert load_manifest(bench.memory, STREAM) == again[0].state
    raise AssertionError("the second deleter never came to an end")


def test_creator_stalled_over_a_deletion_does_not_revive_the_incarnation() -> None:
    bench = Bench()
    bench.log().load(create=True)
    [key] = [k for k in bench.all_keys() if k.endswith("boundary")]
    bench.memory.delete([key])  # a stream whose creator got no further than its entry

    class Stalled(FaultyStore):
        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            if key.endswith("boundary"):
                bench.delete()
                bench.clock.advance(HOURS_24_S + 1)
                bench.delete()
            return super().put(key, body, **more)

    late = ManifestLog(Stalled(bench.memory), STREAM, clock=bench.clock)
    with pytest.raises(NotFoundError, match="was deleted while"):
        late.open_epoch()


class _Interrupted(StoreWrapper):
    """Calls ``meanwhile`` once, after a request of that key: the first, or the ``call``-th."""

    def __init__(self, inner: ObjectStore, key: str, meanwhile: Callable[[], object], *, call: int = 1) -> None:
        super().__init__(inner)
        self._key, self._meanwhile, self._calls_left = key, meanwhile, call

    @property
    def is_waiting(self) -> bool:
        return self._calls_left > 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        answer = call()
        if request.key == self._key:
            self._calls_left -= 1
            if self._calls_left == 0:
                self._meanwhile()
        return answer


def test_view_read_during_a_deletion_is_never_partial() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    for number in range(4):
        log.commit(segment_edits(number))

    def delete() -> None:
        bench.delete()
        bench.clock.advance(HOURS_24_S + 1)
        bench.delete()

    incarnation = log.state.incarnation
    store = _Interrupted(bench.memory, record_key(STREAM, incarnation, 2), delete)
    state = load_manifest_view(store, STREAM, incarnation).state
    assert (state.record_id, list(state.segments.values())) == (0, []), "records that are left count for nothing"


def test_deleter_stalled_over_a_finished_deletion_writes_nothing() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    for number in range(4):
        log.commit(segment_edits(number))

    def delete() -> None:
        bench.delete()
        bench.clock.advance(HOURS_24_S + 1)
        bench.delete()
        bench.clock.advance(HOURS_24_S + 1)
        assert forget_name(bench.memory, STREAM, clock=bench.clock, now_ms=bench.clock.now_ms())

    store = _Interrupted(bench.memory, record_key(STREAM, log.state.incarnation, 2), delete)
    with pytest.raises(NotFoundError):
        delete_stream(store, STREAM, clock=bench.clock, delete_objects=lambda _: None)
    assert bench.all_keys() == []


@pytest.mark.slow
def test_deleter_stalled_over_a_finished_deletion_raises_no_boundary_that_another_began_anew() -> None:
    stalls = 0
    for call in count(1):
        bench = Bench()
        log = bench.log()
        log.open_epoch()
        log.commit(segment_edits(0))
        bench.delete()
        key = boundary_key(STREAM, log.state.incarnation)

        def delete(bench: Bench = bench, key: str = key) -> None:
            bench.clock.advance(HOURS_24_S + 1)
            bench.delete()
            # By a third one, which found neither it nor a record, and stalled until now.
            bench.memory.put(key, FIRST_BOUNDARY.encode())

        store = _Interrupted(bench.memory, key, delete, call=call)
        with contextlib.suppress(NotFoundError):
            delete_stream(store, STREAM, clock=bench.clock, delete_objects=lambda _: None)
        if store.is_waiting:
            break
        stalls += 1
        # It loads, so that reconciliation can tell what is left and remove it.
        boundary = load_manifest_view(bench.memory, STREAM, log.state.incarnation).boundary
        assert boundary is None or boundary.boundary.first_kept_id <= boundary.boundary.checkpoint_id + 1
    assert stalls >= 4


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_deletion_interrupted_anywhere_is_finished_by_the_next(after: bool) -> None:
    for call in range(1, 60):
        bench = Bench()
        log = bench.log()
        log.open_epoch()
        log.commit(segment_edits(0))
        bench.store.set_faults([Fault(call=call, after=after)])
        before = len(bench.store.calls)
        finished = False
        for _ in range(3):
            try:
                finished |= bench.delete().is_finished
            except NotFoundError:
                finished = True
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                assert "fault" in error.message or "may be committed" in error.message  # noqa: PT017
            bench.clock.advance(HOURS_24_S + 1)
        assert finished
        # Between letting go of the entry and deleting the last objects nobody knows them any more but the sweeper.
        if is_released(bench.memory, STREAM):
            sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock)
            assert forget_name(bench.memory, STREAM, clock=bench.clock, now_ms=bench.clock.now_ms())
        assert bench.all_keys() == []
        if len(bench.store.calls) - before < call:
            return
    raise AssertionError("no run was without a fault")


def test_a_stream_on_hold_is_not_deleted() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    log.commit([Hold(True, "court")])
    with pytest.raises(EditRefusedError, match="on hold"):
        bench.delete()
    assert not load_manifest(bench.memory, STREAM).stream_deleted
    assert bench.swept == []


def test_clocks_that_differ_stop_the_deletion_of_anything_by_age() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    bench.delete()
    fast = ManualClock(bench.clock.now_ms() + 61_000 + 1000)
    with pytest.raises(ClockSkewError, match="differ by 61 s"):
        delete_stream(bench.memory, STREAM, clock=fast, delete_objects=lambda _: None)
    fast.set_now_ms(bench.clock.now_ms() + int(HOURS_24_S * 1000) + 2000)
    with pytest.raises(ClockSkewError):
        delete_stream(bench.memory, STREAM, clock=fast, delete_objects=lambda _: None)
    assert load_manifest(bench.memory, STREAM).stream_deleted


@pytest.mark.parametrize(
    ("ahead_ms", "answer_ms"),
    [
        (-61_001, None),
        (-61_000, 1_000_000 - 61_000),
        (-1000, 1_000_000 - 1000),
        (0, 1_000_000),
        (60_000, 1_000_000),
        (60_001, None),
    ],
)
def test_age_is_measured_by_the_earlier_clock_within_the_skew_limit(ahead_ms: int, answer_ms: int | None) -> None:
    """The store's clock is ahead of or behind ours; one with whole seconds may be a second late."""
    ours, theirs = ManualClock(now_ms=1_000_000), ManualClock(now_ms=1_000_000 + ahead_ms)
    store = MemoryStore(f"deletion-{next(_names)}", "", theirs)
    if answer_ms is not None:
        assert time_for_deletion_ms(store, ours, skew_ms_max=60_000) == answer_ms
        return
    with pytest.raises(ClockSkewError, match="nothing is deleted") as caught:
        time_for_deletion_ms(store, ours, skew_ms_max=60_000)
    assert "clock_skew_max" in caught.value.hint
    assert time_for_deletion_ms(store, ours, skew_ms_max=60_000, ask_store=False) == 1_000_000


def test_boundary_passes_all_records_before_an_object_is_deleted() -> None:
    """A writer that stalled until then would win a number that is kept, over a stream without data."""
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    log.commit(segment_edits(0))
    kept_ids = []

    def delete_objects(state: ManifestState) -> None:
        kept = read_boundary(bench.memory, STREAM, state.incarnation).boundary.first_kept_id
        kept_ids.append((state.record_id, kept))

    bench.delete(objects=delete_objects)

    assert kept_ids == [(3, 4)]


def test_the_earlier_of_the_two_clocks_counts() -> None:
    bench = Bench()
    bench.log().open_epoch()
    bench.delete()
    bench.clock.advance(HOURS_24_S - 30)
    ahead = ManualClock(bench.clock.now_ms() + 50_000)
    assert not delete_stream(bench.memory, STREAM, clock=ahead, delete_objects=lambda _: None).is_finished
    bench.clock.advance(31)
    behind = ManualClock(bench.clock.now_ms() - 50_000)
    assert not delete_stream(bench.memory, STREAM, clock=behind, delete_objects=lambda _: None).is_finished
    assert bench.delete().is_finished


def test_old_dead_incarnations_are_swept_and_the_live_one_never() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    dead = UUID(int=77)
    bench.memory.put(record_key(STREAM, dead, 1), b"{}")
    bench.memory.put(boundary_key(STREAM, dead), FIRST_BOUNDARY.encode())
    foreign = f"{STREAM}/manifest/notes.txt"
    bench.memory.put(foreign, b"not ours")
    stranger = f"{manifest_prefix(STREAM, dead)}copy of 00000000000000000001.json"
    bench.memory.put(stranger, b"{}")
    swept = {dead: DeadIncarnation(objects=2, unknown=(stranger,))}

    assert sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock) == {}
    bench.clock.advance(HOURS_24_S + 1)
    assert sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock, dry_run=True) == swept
    set_global_hold(bench.memory, by="ana", reason="a test", now_ms=5)
    assert sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock, dry_run=True) == swept
    with pytest.raises(DeletionStoppedError):
        sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock)
    assert boundary_key(STREAM, dead) in bench.all_keys()
    lift_global_hold(bench.memory)
    assert sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock) == swept

    assert boundary_key(STREAM, dead) not in bench.all_keys()
    assert foreign in bench.all_keys()
    assert stranger in bench.all_keys()
    assert load_manifest(bench.memory, STREAM) == log.state


def test_nothing_is_swept_while_a_catalogue_entry_is_missing() -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    bench.memory.delete([catalog_key(STREAM)])
    bench.clock.advance(HOURS_24_S + 1)
    with pytest.raises(InvalidCallError, match="no catalogue entry"):
        sweep_dead_incarnations(bench.memory, STREAM, clock=bench.clock)
    assert record_key(STREAM, log.state.incarnation, 1) in bench.all_keys()


@pytest.mark.parametrize("name", ["notes.txt", "old/00000000000000000001.json", "0001.json", "boundary.bak"])
def test_foreign_manifest_objects_are_reported_and_outlive_the_stream(name: str) -> None:
    bench = Bench()
    log = bench.log()
    log.open_epoch()
    stranger = f"{manifest_prefix(STREAM, log.state.incarnation)}{name}"
    bench.memory.put(stranger, b"not ours")
    for _ in range(2):
        deletion = bench.delete()
        assert deletion.unknown == (stranger,)
        bench.clock.advance(HOURS_24_S + 1)
    assert deletion.is_finished
    assert [key for key in bench.all_keys() if key != catalog_key(STREAM)] == [stranger]
