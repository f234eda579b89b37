"""A new owner and the segments of the last one: adopt, give up, refuse; and which owner may take a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import data_key, index_key
from formats.manifest import Assign, Failed, Offloaded
from offloader.errors import FencedError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.state import ManifestState, require_takeable
from offloader.settings import Size
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.epoch import Ownership
from offloader.write.quota import part_bytes_for
from offloader.write.stream import Mode
from tests.support.readback import stored_entries, unaccounted_keys
from tests.support.waiting import eventually
from tests.write.streaming_bench import STREAM, Bench, settings

BIG = settings(segment_size_max="100MiB", part_size=5 * 1024 * 1024)


@pytest.fixture
def new_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**changes: object) -> Bench:
        made.append(Bench(tmp_path, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        bench.close()


class _Dying(StoreWrapper):
    """One process's way to the store: cut off for good at a call, before its effect or after it."""

    def __init__(self, inner: ObjectStore, verb: str, key_part: str, *, after: bool) -> None:
        super().__init__(inner)
        self._at, self._after = (verb, key_part), after
        self._lock = threading.Lock()
        self.is_dead = False

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if request.verb == "put" and request.key.endswith("-index"):
            # It goes up at the same time as its data; where it comes last, both are what is left.
            eventually(lambda: self.is_dead or self._is_there(request.key.removesuffix("-index")))
        with self._lock:
            if not self.is_dead and request.verb == self._at[0] and self._at[1] in request.key:
                self.is_dead = True
                if self._after:
                    call()
            if self.is_dead:
                raise StoreUnavailableError(f"the process died at or before {request.verb} of {request.key}")
        return call()

    def _is_there(self, key: str) -> bool:
        try:
            self.inner.head(key)
        except NotFoundError:
            return False
        return True


def crash_at(bench: Bench, verb: str, key_part: str, *, after: bool = False, size: int = 300) -> ManifestState:
    """A writer that dies at a storage call of its first segment: from there on it reaches nothing any more."""
    source = bench.open()
    store = _Dying(bench.memory, verb, key_part, after=after)
    stream = bench.start(source, store)
    bench.append(source, 40, size=size)
    with pytest.raises(OffloaderError):
        stream.offload(timeout_s=0.0)
    eventually(lambda: store.is_dead and (stream.status().segments_failed or stream.status().error))
    stream.stop()
    return load_manifest(bench.memory, STREAM)


@pytest.mark.slow
def test_a_complete_data_object_is_adopted_and_not_sent_again(new_bench: Callable[..., Bench]) -> None:
    """The owner died before it created the index: the new one makes it from the blocks."""
    bench = new_bench(settings=BIG)
    left = crash_at(bench, "put", "-index").assigned()
    assert len(left) == 1
    with pytest.raises(NotFoundError):
        bench.memory.head(index_key(STREAM, left[0].uuid))
    written = bench.memory.head(data_key(STREAM, left[0].uuid))

    stream = bench.start(bench.open())
    eventually(lambda: stream.status().committed == bench.expected[-1][0])

    assert bench.memory.head(data_key(STREAM, left[0].uuid)) == written, "no byte was sent again"
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert unaccounted_keys(bench.memory, STREAM) == set()
    edits = [edit for record in bench.records() for edit in record]
    assert not [edit for edit in edits if isinstance(edit, Failed)]
    assert [edit.uuid for edit in edits if isinstance(edit, Offloaded)] == [left[0].uuid]


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [BIG.offload.part_size, 4096])
def test_existing_index_is_checked_against_the_data_and_used(new_bench: Callable[..., Bench], part_bytes: int) -> None:
    """The owner died before its commit: its own index stays, byte for byte, also if its parts were longer."""
    bench = new_bench(settings=BIG)
    [left] = crash_at(bench, "put", "-index", after=True).assigned()
    index = bench.memory.get(index_key(STREAM, left.uuid))
    bench.settings = replace(BIG, offload=replace(BIG.offload, part_size=Size(part_bytes)))
    data_bytes = bench.memory.head(data_key(STREAM, left.uuid)).size_bytes
    assert (data_bytes > part_bytes_for(bench.settings.offload)) is (part_bytes == 4096)

    stream = bench.start(bench.open())
    eventually(lambda: stream.status().committed == bench.expected[-1][0])

    assert bench.memory.get(index_key(STREAM, left.uuid)) == index
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["data", "index", "other index"])
def test_damaged_objects_of_the_last_owner_are_given_up_and_left_alone(
    new_bench: Callable[..., Bench], damage: str
) -> None:
    bench = new_bench(settings=BIG)
    [left] = crash_at(bench, "put", "-index", after=True).assigned()
    key = data_key(STREAM, left.uuid) if damage == "data" else index_key(STREAM, left.uuid)
    body = bytearray(bench.memory.get(key)[0])
    body[len(body) // 2] ^= 1
    bench.memory.put(key, b"not an index" if damage == "other index" else bytes(body))

    stream = bench.start(bench.open())
    stream.offload()

    taken_over = next(record for record in bench.records() if any(isinstance(edit, Failed) for edit in record))
    assert [type(edit) for edit in taken_over] == [Failed, Assign], "one record"
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert unaccounted_keys(bench.memory, STREAM) == {data_key(STREAM, left.uuid), index_key(STREAM, left.uuid)}


@pytest.mark.slow
def test_unfinished_upload_of_the_last_epoch_is_aborted_and_not_continued(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench(settings=BIG)
    [left] = crash_at(bench, "complete_upload", "", size=30_000).assigned()
    assert [upload.key for upload in bench.memory.list_uploads("")] == [data_key(STREAM, left.uuid)]

    stream = bench.start(bench.open())
    stream.offload()

    assert bench.memory.list_uploads("") == []
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_an_object_that_its_owner_completes_just_before_the_abort_is_adopted(new_bench: Callable[..., Bench]) -> None:
    """The upload completes between the first check and the abort: the second check finds it."""
    bench = new_bench(settings=BIG)
    [left] = crash_at(bench, "put", "-index").assigned()
    key = data_key(STREAM, left.uuid)
    body, info = bench.memory.get(key)
    bench.memory.delete([key])

    class LateStore:
        """The object lands when uploads are listed: after the first look."""

        def __getattr__(self, name: str) -> object:
            return getattr(bench.memory, name)

        def list_uploads(self, prefix: str) -> object:
            bench.memory.put(key, body, metadata=info.metadata)
            return bench.memory.list_uploads(prefix)

    stream = bench.start(bench.open(), store=LateStore())  # type: ignore[arg-type]
    eventually(lambda: stream.status().committed == bench.expected[-1][0])

    assert [segment.uuid for segment in load_manifest(bench.memory, STREAM).offloaded()] == [left.uuid]
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_stream_of_a_living_owner_is_taken_only_on_request() -> None:
    state = ManifestState(stream="s", incarnation=UUID(int=1), epoch=3, time_ms=100_000)
    with pytest.raises(FencedError, match=r"wrote its last record 59 s ago.*--take-over"):
        require_takeable(state, 159_000, 60.0, take_over=False)
    require_takeable(state, 159_000, 60.0, take_over=True)
    require_takeable(state, 160_000, 60.0, take_over=False)


def test_a_command_is_refused_by_a_living_owner_and_changes_nothing(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    owner = bench.start(source)
    bench.append(source, 10)
    owner.offload()
    bench.append(source, 1)
    written = len(bench.records())

    command = bench.start(source, take_over=False)
    with pytest.raises(FencedError, match="--take-over"):
        command.offload()

    assert load_manifest(bench.memory, STREAM).epoch == 1
    assert len(bench.records()) >= written
    owner.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_fenced_owner_takes_back_a_silent_stream_and_never_a_living_one(new_bench: Callable[..., Bench]) -> None:
    """No ping-pong: two owners that both live don't fence each other for ever."""
    clock = ManualClock(waits_pass=False)
    bench = new_bench(clock=clock)
    source = bench.open()
    first = bench.start(source)
    bench.append(source, 2)
    first.offload()
    second = bench.start(source)
    bench.append(source, 2)
    second.offload()
    bench.append(source, 2)
    with pytest.raises(FencedError):
        first.offload()
    eventually(bench.has_assigned)  # the second gathers

    for _ in range(5):
        clock.advance(61)
    assert load_manifest(bench.memory, STREAM).epoch == 2, "an owner that gathers a segment is silent and alive"

    second.stop()
    bench.append(source, 1)
    eventually(lambda: load_manifest(bench.memory, STREAM).epoch == 3, first=lambda: clock.advance(61))
    eventually(lambda: first.status().mode is Mode.LIVE)
    first.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_fenced_owner_looks_again_after_an_error_of_any_kind(new_bench: Callable[..., Bench]) -> None:
    clock = ManualClock(waits_pass=False)
    bench = new_bench(clock=clock)
    source, store = bench.open(), FaultyStore(bench.memory)
    first = bench.start(source, store)
    bench.append(source, 2)
    first.offload()
    second = bench.start(source)
    bench.append(source, 2)
    second.offload()
    bench.append(source, 2)
    with pytest.raises(FencedError):
        first.offload()
    second.stop()
    store.set_faults([Fault(call=1, error=MemoryError)])  # type: ignore[arg-type]
    calls = len(store.calls)
    eventually(lambda: len(store.calls) > calls, first=lambda: clock.advance(61))
    # The segment that the second one gathered may take its time, too.
    eventually(lambda: first.status().mode is Mode.LIVE, first=lambda: clock.advance(61))
    first.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_owner_that_is_fenced_again_and_again_looks_once_each_time(new_bench: Callable[..., Bench]) -> None:
    clock = ManualClock(waits_pass=False)
    bench = new_bench(clock=clock)
    source, store = bench.open(), FaultyStore(bench.memory)
    first = bench.start(source, store)
    for _ in range(3):
        first.reopen()
        bench.append(source, 2)
        first.offload()
        other = bench.start(source)
        bench.append(source, 2)
        other.offload()
        bench.append(source, 2)
        with pytest.raises(FencedError):
            first.offload()
    eventually(bench.has_assigned)  # without a segment the other owner would be silent, and the stream taken back
    calls = len(store.calls)

    clock.advance(61)
    eventually(lambda: len(store.calls) >= calls + 3)
    threading.Event().wait(0.2)

    asked = [key for _, key in store.calls[calls:] if key.endswith("/boundary")]
    assert len(asked) == 1
    assert first.status().mode is Mode.STOPPED


class _Slow(StoreWrapper):
    """Each request takes an hour, if it is to."""

    def __init__(self, inner: ObjectStore, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.is_slow = False

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        answer = call()
        self._clock.advance(3600 if self.is_slow else 0)
        return answer


def test_duration_of_a_slow_look_does_not_count_as_the_owners_silence() -> None:
    """What it writes while the answer is on its way isn't in that answer."""
    clock = ManualClock()
    memory = MemoryStore("slow-look", "", clock)
    ManifestLog(memory, STREAM, clock=clock).open_epoch()
    store = _Slow(memory, clock)
    log = ManifestLog(store, STREAM, clock=clock)
    log.load()
    ownership = Ownership(log, MemoryLedgers(STREAM, clock), settings().offload, clock, take_over=False)
    ownership.lose()
    store.is_slow = True
    assert not ownership.is_abandoned(Position(1, 0))
    store.is_slow = False
    assert ownership.is_abandoned(Position(1, 0)), "nor since that look"


def test_a_fenced_stream_is_reopened_on_command(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    first = bench.start(source)
    bench.append(source, 2)
    first.offload()
    ManifestLog(bench.memory, STREAM, clock=bench.clock).open_epoch()
    bench.append(source, 2)
    with pytest.raises(FencedError):
        first.offload()

    first.reopen()
    first.offload()

    assert load_manifest(bench.memory, STREAM).epoch == 3
    assert stored_entries(bench.memory, STREAM) == bench.expected
