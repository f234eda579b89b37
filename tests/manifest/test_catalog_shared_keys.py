"""Removal of what is left of a deleted name, and never of a stream created since."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest

from formats.keys import boundary_key, catalog_key, manifest_prefix
from formats.manifest import LedgerClosed
from offloader.errors import CorruptError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import (
    MARK_MS_MIN,
    REMOVAL_S_MAX,
    VOID,
    create_entry,
    forget_name,
    is_void_size,
    list_streams,
    read_entry,
    release_entry,
)
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.settings import StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, RetryingStore, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.schedule import Fate, Schedule

STREAM = "public/default/persistent/orders"
KEY = catalog_key(STREAM)
MARK_S = MARK_MS_MIN / 1000
_names = itertools.count()


class Unconditional(MemoryStore):
    """Deletes whatever is there, as MinIO does."""

    def delete_if_match(self, key: str, etag: str) -> None:
        self.delete([key])


class Bench:
    """A name whose stream was deleted: its void is all there is."""

    def __init__(self, kind: Callable[..., MemoryStore] = MemoryStore) -> None:
        self.clock = ManualClock()
        self.memory = kind(f"shared-keys-{next(_names)}", "", self.clock)
        self.schedule = Schedule(self.memory)
        self._incarnations = (UUID(int=number, version=4) for number in itertools.count(1))
        create_entry(self.memory, STREAM, self.incarnation, 1)
        release_entry(self.memory, STREAM, UUID(int=1, version=4))

    def incarnation(self) -> UUID:
        return next(self._incarnations)

    def forget(self, store: ObjectStore | None = None) -> bool:
        return forget_name(store or self.memory, STREAM, clock=self.clock, now_ms=self.clock.now_ms())

    def create(self, store: ObjectStore | None = None) -> ManifestLog:
        """A stream with a record, by somebody who tries again when he is told to."""
        log = ManifestLog(store or self.memory, STREAM, clock=self.clock)
        for _ in range(20):
            try:
                log.open_epoch()
                break
            except StoreUnavailableError as error:
                assert "is being removed after a deletion" in error.message  # noqa: PT017
        log.commit([LedgerClosed(1, 9)])
        return log

    def check_found(self, log: ManifestLog) -> None:
        """Readers find the stream of that log."""
        assert list_streams(self.memory) == [STREAM]
        assert load_manifest(self.memory, STREAM) == log.state
        assert log.state.incarnation == read_entry(self.memory, STREAM).incarnation  # type: ignore[union-attr]

    def keys(self) -> list[str]:
        return [info.key for info in listed(self.memory, "")]


def test_removed_void_leaves_the_name_free() -> None:
    bench = Bench()
    assert bench.keys() == [KEY]
    assert bench.forget()
    assert bench.keys() == []
    assert bench.forget(), "somebody else did it"
    log = bench.create()
    bench.check_found(log)
    assert not bench.forget()
    bench.check_found(log)


@pytest.mark.parametrize("folder", ["manifest", "retention", "leases"])
def test_void_stays_while_objects_of_the_stream_exist(folder: str) -> None:
    bench = Bench()
    bench.memory.put(f"{STREAM}/{folder}/x", b"")
    assert not bench.forget()
    assert bench.memory.get(KEY)[0] == VOID
    bench.memory.delete([f"{STREAM}/{folder}/x"])
    bench.memory.put(f"{STREAM}/notes.txt", b"somebody's")
    assert bench.forget()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MemoryStore, Unconditional])
def test_concurrent_creator_keeps_its_stream_during_a_removal(kind: type[MemoryStore]) -> None:
    """The creator is paused before each request, at each request of a removal; then either of them continues first."""
    tried = 0
    for at, upto, removal_first in itertools.product(range(1, 10), range(1, 14), (False, True)):
        bench = Bench(kind)
        bench.schedule.start("D", bench.forget)
        bench.schedule.start("C", bench.create)
        for name, steps in (("D", at - 1), ("C", upto - 1)):
            for _ in range(steps):
                if bench.schedule.pending(name) is not None:
                    bench.schedule.step(name)
        if removal_first:
            bench.schedule.finish("D")
        while bench.schedule.pending("C") is not None and not removal_first:
            bench.schedule.step("C")
            # Told to come back later: then the removal has its turn.
            if bench.schedule.pending("D") is not None and bench.memory.head(KEY).size_bytes == 16:
                bench.schedule.step("D")
        log = bench.schedule.finish("C")
        bench.schedule.finish("D")
        bench.check_found(log)
        tried += 1
    assert tried == 9 * 13 * 2


@pytest.mark.parametrize("kind", [MemoryStore, Unconditional])
def test_creator_waits_while_a_removal_may_still_arrive(kind: type[MemoryStore]) -> None:
    """Its last request is in flight, and its sender gave up."""
    bench = Bench(kind)
    bench.schedule.start("D", bench.forget)
    bench.schedule.until("D", "delete_if_match")
    bench.schedule.step("D", Fate.IN_FLIGHT)
    with pytest.raises(OffloaderError, match="in flight"):
        bench.schedule.finish("D")
    assert list_streams(bench.memory) == []
    with pytest.raises(StoreUnavailableError, match="is being removed after a deletion"):
        ManifestLog(bench.memory, STREAM, clock=bench.clock).open_epoch()
    bench.clock.advance(MARK_S - 1)
    assert not bench.forget(), "the mark is somebody else's"
    bench.schedule.land()
    bench.check_found(bench.create())


def test_removal_that_never_arrived_is_repeated_and_may_arrive_late() -> None:
    bench = Bench()
    bench.schedule.start("D", bench.forget)
    bench.schedule.until("D", "delete_if_match")
    bench.schedule.step("D", Fate.IN_FLIGHT)
    bench.clock.advance(MARK_S + 1)
    assert bench.forget()
    log = bench.create()
    bench.schedule.land()
    bench.check_found(log)


def test_removal_mark_left_over_later_objects_does_not_block_the_name() -> None:
    """A reader took a lease while the removal was interrupted, and its lease outlives it by days."""
    bench = Bench()
    bench.schedule.start("D", bench.forget)
    bench.schedule.until("D", "delete_if_match")
    bench.schedule.step("D", Fate.IN_FLIGHT)
    bench.memory.put(f"{STREAM}/leases/x", b"")
    assert not bench.forget()
    assert bench.memory.get(KEY)[0] != VOID, "the mark is somebody else's"
    bench.clock.advance(MARK_S + 1)
    assert not bench.forget()
    assert bench.memory.get(KEY)[0] == VOID
    log = bench.create()
    bench.schedule.land()
    bench.check_found(log)


def test_slow_removal_takes_its_mark_back() -> None:
    for number in range(1, 12):
        bench = Bench()
        store = FaultyStore(bench.memory, clock=bench.clock)
        store.set_faults([Fault(call=number, error=None, latency_s=REMOVAL_S_MAX + 1)])
        gone = bench.forget(store)
        verbs = [verb for verb, _ in store.calls]
        marked = verbs.index("put") + 1
        last = verbs.index("delete_if_match") + 1 if gone else len(verbs)
        # Late before the mark is set, or at the very request: only the way between counts.
        assert gone == (number < marked or number >= last)
        assert bench.keys() == ([] if gone else [KEY])
        if not gone:
            assert bench.memory.get(KEY)[0] == VOID
            bench.check_found(bench.create())
        if number > len(verbs):
            return
    raise AssertionError("the removal has more requests than that")


def test_final_delete_of_a_removal_is_sent_once() -> None:
    bench = Bench()
    seen: list[str] = []

    class Counting(StoreWrapper):
        def around(self, request: Request, call: Callable[[], object]) -> object:  # type: ignore[override]
            seen.append(request.verb)
            return call()

    store = Counting(FaultyStore(bench.memory, [Fault(call=1, verb="delete_if_match", calls=3)]))
    with pytest.raises(StoreUnavailableError):
        bench.forget(RetryingStore(store, StoreSettings(), bench.clock))
    assert seen.count("delete_if_match") == 1


def test_creators_overtaken_at_any_request_share_one_stream() -> None:
    for steps in range(1, 20):
        bench = Bench()
        assert bench.forget()
        log = ManifestLog(bench.memory, STREAM, clock=bench.clock)

        def begin(store: ObjectStore, log: ManifestLog = log) -> int:
            log.store = store
            return log.open_epoch()

        bench.schedule.start("C", begin)
        for _ in range(steps):
            bench.schedule.step("C")
            if bench.schedule.pending("C") is None:
                return
        first = ManifestLog(bench.memory, STREAM, clock=bench.clock)
        first.open_epoch()
        bench.schedule.finish("C")
        assert log.state.incarnation == first.state.incarnation
    raise AssertionError("a creation has more requests than that")


def test_stream_with_a_lost_entry_is_not_recreated() -> None:
    bench = Bench()
    log = bench.create()
    bench.memory.delete([KEY])
    with pytest.raises(CorruptError, match="no catalogue entry") as refused:
        ManifestLog(bench.memory, STREAM, clock=bench.clock).open_epoch()
    assert "rebuild" in refused.value.hint
    assert KEY not in set(bench.keys())
    log.commit([LedgerClosed(2, 9)])


def test_leftovers_of_a_dead_incarnation_do_not_block_creation() -> None:
    bench = Bench()
    assert bench.forget()
    late, other = UUID(int=7, version=4), UUID(int=8, version=4)
    bench.memory.put(f"{manifest_prefix(STREAM, late)}{7:020d}.json", b"{}")
    bench.memory.put(boundary_key(STREAM, other), b"{}")
    with pytest.raises(NotFoundError):
        load_manifest(bench.memory, STREAM)
    bench.check_found(bench.create())


def test_damaged_entry_is_not_taken_for_a_void() -> None:
    bench = Bench()
    bench.create()
    for damaged in (b"x" * 15, b"{}", b"gone " + b"x" * 11):
        bench.memory.put(KEY, damaged)
        with pytest.raises(CorruptError):
            read_entry(bench.memory, STREAM)
        assert not is_void_size(len(damaged)) or len(damaged) == 16
