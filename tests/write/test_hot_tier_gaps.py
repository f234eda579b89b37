"""Entries that the hot tier lost before they were offloaded: proven, then blocked at or recorded; never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from formats.entries import EntryBatch, Position
from formats.manifest import Failed, Gap
from offloader.errors import CorruptError, StoreUnavailableError
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener
from offloader.ledgers.sqlite.embedded import EmbeddedStream
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.hot_tier import proven_gap
from offloader.write.offloader import LedgerOffloader
from tests.proof.simulation.simulated_world import World
from tests.support.readback import stored_entries
from tests.support.waiting import eventually
from tests.write.streaming_bench import STREAM, Bench, settings


@pytest.fixture
def new_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**changes: object) -> Bench:
        made.append(Bench(tmp_path, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def ledger(ledger_id: int, entries: int, *, closed: bool = True) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=0, created_ms=0)


def test_gap_needs_the_absence_of_every_ledger_that_could_hold_entries() -> None:
    gap = proven_gap(Position(3, 4), Position(9, 0), [ledger(1, 5), ledger(9, 2), ledger(11, 0)])
    assert gap is not None
    assert (gap.first, gap.last) == (Position(3, 5), Position(9, -1))


def test_gap_includes_a_following_ledger_that_is_deleted_too() -> None:
    gap = proven_gap(Position(3, 4), Position(9, 0), [ledger(10, 2), ledger(11, 0, closed=False)])
    assert gap is not None
    assert (gap.first, gap.last) == (Position(3, 5), Position(9, -1))


def test_closed_ledger_offered_completely_may_still_be_listed_at_a_gap() -> None:
    gap = proven_gap(Position(3, 4), Position(9, 0), [ledger(3, 5), ledger(9, 2)])
    assert gap is not None
    assert (gap.first, gap.last) == (Position(3, 5), Position(9, -1))


@pytest.mark.parametrize("begin", [Position(3, 7), Position(9, 3)], ids=str)
def test_entries_in_front_of_one_whose_ledger_is_deleted_meanwhile_are_gone(begin: Position) -> None:
    gap = proven_gap(Position(3, 4), begin, [ledger(11, 2), ledger(12, 0, closed=False)])
    assert gap is not None
    assert (gap.first, gap.last) == (Position(3, 5), begin.previous())


@pytest.mark.parametrize(
    ("begin", "ledgers"),
    [
        pytest.param(Position(9, 0), [ledger(3, 8), ledger(9, 2)], id="the ledger is still listed"),
        pytest.param(Position(9, 0), [ledger(3, 5, closed=False), ledger(9, 2)], id="the ledger is open"),
        pytest.param(Position(9, 0), [ledger(5, 1), ledger(9, 2)], id="one between is listed"),
        pytest.param(Position(9, 0), [], id="the list has nothing"),
        pytest.param(Position(9, 0), [ledger(2, 5), ledger(11, 2)], id="the list leaves the next one out"),
        pytest.param(Position(9, 3), [ledger(9, 9)], id="a gap at the beginning of a ledger"),
        pytest.param(Position(3, 7), [ledger(3, 9)], id="a gap inside a ledger"),
        pytest.param(Position(3, 7), [ledger(2, 9), ledger(9, 2)], id="a gap inside a ledger that the list leaves out"),
    ],
)
def test_listed_entries_that_the_source_does_not_return_are_no_gap(begin: Position, ledgers: list[LedgerInfo]) -> None:
    assert proven_gap(Position(3, 4), begin, ledgers) is None


def lose_ledgers(bench: Bench) -> tuple[EmbeddedStream, int]:
    """Three ledgers are written while the store is down, the middle one is deleted before it is offloaded."""
    source = bench.open()
    bench.append(source, 5)
    first = source.close_ledger()
    assert first is not None
    stream = bench.start(source)
    stream.offload()
    kept = len(bench.expected)
    bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])
    bench.append(source, 5)
    lost = source.close_ledger()
    assert lost is not None
    stop = len(bench.expected)
    bench.append(source, 5)
    source.delete(lost.ledger_id)
    del bench.expected[kept:stop]
    # The first ledger is gone too, so that nothing tells any more where it ended.
    source.delete(first.ledger_id)
    stream.stop()  # or it would go on with what it has in memory as soon as the store answers
    return source, first.ledger_id


def test_stream_blocks_at_a_gap_by_default_with_an_error(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    lose_ledgers(bench)
    written = len(bench.records())
    bench.store.set_faults([])
    again = bench.start(bench.open())

    with pytest.raises(CorruptError, match=r"are missing: .*on_gap = record"):
        again.offload()
    assert "are missing" in again.status().error
    assert again.status().gaps_recorded == 0
    assert not [edit for record in bench.records()[written:] for edit in record if isinstance(edit, Gap)]


@pytest.mark.slow
def test_on_gap_record_records_the_gap_and_continues(
    new_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = new_bench(settings=settings(on_gap="record"))
    lose_ledgers(bench)
    bench.store.set_faults([])
    again = bench.start(bench.open())

    assert again.offload() == bench.expected[-1][0]

    [gap] = load_manifest(bench.memory, STREAM).gaps
    assert gap.last == Position(bench.expected[-1][0].ledger_id, -1)
    assert "before they were offloaded" in gap.reason
    assert again.status().gaps_recorded == 1
    assert "recording a gap" in caplog.text
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_entries_read_from_a_ledger_deleted_meanwhile_are_offloaded(
    new_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where messages have a time to live a broker deletes one ledger before it is read, and the next one while its
    entries are on their way."""
    bench = new_bench(settings=settings(on_gap="record"))
    source = bench.open()
    bench.append(source, 2)
    source.close_ledger()
    stream = bench.start(source)
    stream.offload()
    stream.stop()
    kept = len(bench.expected)
    bench.append(source, 2)
    unread = source.close_ledger()
    assert unread is not None
    del bench.expected[kept:]
    bench.append(source, 2)
    held = source.close_ledger()
    assert held is not None
    bench.append(source, 2)
    last = source.ledgers()[-1].ledger_id
    read, listed = source.read, source.ledgers

    def read_after(start: Position, max_bytes: int) -> EntryBatch | None:
        for info in listed():
            if info.ledger_id <= unread.ledger_id:
                source.delete(info.ledger_id)
        monkeypatch.setattr(source, "ledgers", lambda: [info for info in listed() if info.ledger_id >= last])
        return read(start, max_bytes)

    monkeypatch.setattr(source, "read", read_after)
    again = bench.start(source)

    assert again.offload() == bench.expected[-1][0]

    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert [gap.last for gap in load_manifest(bench.memory, STREAM).gaps] == [Position(held.ledger_id, -1)]


def test_segment_assigned_in_a_gap_fails_in_the_gaps_own_record(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(settings=settings(on_gap="record", segment_size_max="100MiB"))
    source = bench.open()
    bench.append(source, 5)
    first = source.close_ledger()
    stream = bench.start(source)
    stream.offload()
    kept = len(bench.expected)
    bench.append(source, 5)
    eventually(bench.has_assigned)
    [left] = load_manifest(bench.memory, STREAM).assigned()
    stream.stop()
    lost = source.close_ledger()
    assert lost is not None
    assert first is not None
    stop = len(bench.expected)
    bench.append(source, 5)
    source.delete(lost.ledger_id)
    source.delete(first.ledger_id)
    del bench.expected[kept:stop]

    bench.start(bench.open()).offload()

    record = next(record for record in bench.records() if any(isinstance(edit, Gap) for edit in record))
    assert [edit.uuid for edit in record if isinstance(edit, Failed)] == [left.uuid]
    assert stored_entries(bench.memory, STREAM) == bench.expected


def lose_what_was_assigned(bench: Bench, *, committed_before: bool) -> None:
    """A ledger that the manifest has promised is deleted; every fact about the ledgers around it is known."""
    source = bench.open()
    stream = bench.start(source)
    if committed_before:
        bench.append(source, 5)
        source.close_ledger()
        stream.offload()
    kept = len(bench.expected)
    bench.append(source, 5)
    eventually(bench.has_assigned)
    stream.stop()
    lost = source.close_ledger()
    assert lost is not None
    del bench.expected[kept:]
    bench.append(source, 5)
    source.delete(lost.ledger_id)


BEFORE = pytest.mark.parametrize("committed_before", [False, True], ids=["the first ledger", "a ledger in the middle"])


@pytest.mark.slow
@BEFORE
def test_stream_does_not_skip_lost_assigned_entries_silently(
    new_bench: Callable[..., Bench], committed_before: bool
) -> None:
    bench = new_bench(settings=settings(segment_size_max="100MiB"))
    lose_what_was_assigned(bench, committed_before=committed_before)
    end = load_manifest(bench.memory, STREAM).committed_end()

    with pytest.raises(CorruptError, match=r"are missing: .*on_gap = record"):
        bench.start(bench.open()).offload()
    assert load_manifest(bench.memory, STREAM).committed_end() == end


@pytest.mark.slow
@BEFORE
def test_lost_assigned_entries_become_a_gap(new_bench: Callable[..., Bench], committed_before: bool) -> None:
    bench = new_bench(settings=settings(on_gap="record", segment_size_max="100MiB"))
    lose_what_was_assigned(bench, committed_before=committed_before)
    [left] = load_manifest(bench.memory, STREAM).assigned()

    bench.start(bench.open()).offload()

    [gap] = load_manifest(bench.memory, STREAM).gaps
    assert (gap.first, gap.last) == (left.begin, Position(bench.expected[-1][0].ledger_id, -1))
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_a_ledger_that_a_stream_saw_and_did_not_offload_is_missed(new_bench: Callable[..., Bench]) -> None:
    """No record names it; the ledger before it is whole and known to be closed."""
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 5)
    source.close_ledger()
    stream.offload()
    bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])
    bench.append(source, 5)
    lost = source.close_ledger()
    assert lost is not None
    stream.stop()
    stream = bench.start(source)
    bench.append(source, 5)
    source.delete(lost.ledger_id)

    bench.store.set_faults([])
    with pytest.raises(CorruptError, match=r"are missing: .*on_gap = record"):
        stream.offload()


def test_after_a_gap_the_stream_continues_behind_ranges_of_another_method(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(settings=settings(on_gap="record"))
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 2)
    stream.offload()
    stream.stop()
    kept = len(bench.expected)
    bench.append(source, 2)
    lost = source.close_ledger()
    assert lost is not None
    del bench.expected[kept:]
    source.delete(lost.ledger_id)
    bench.append(source, 3)
    source.close_ledger()
    offloader = LedgerOffloader(bench.memory, bench.settings)
    offloader.offload_ledgers(source, STREAM)
    offloader.close()
    bench.append(source, 3)

    again = bench.start(source)
    assert again.offload() == bench.expected[-1][0]

    assert len(load_manifest(bench.memory, STREAM).gaps) == 1
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_the_first_ledger_that_a_stream_saw_is_missed_too(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    bench.append(source, 2)
    lost = source.close_ledger()
    assert lost is not None
    bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])
    stream = bench.start(source)
    bench.append(source, 2)
    source.delete(lost.ledger_id)

    bench.store.set_faults([])
    with pytest.raises(CorruptError, match=rf"entries {lost.ledger_id}:0 up to .* are missing"):
        stream.offload()
    assert load_manifest(bench.memory, STREAM).committed_end() is None


@pytest.mark.slow
def test_failed_range_before_a_gap_becomes_part_of_it_when_lost_too() -> None:
    """The entries before the gap are in memory; then their upload fails, and their ledger is deleted."""
    small = {"offload": {"block_size": 1024, "offload_buffer_size_max": 64 * 1024, "on_gap": "record"}}
    found = set()
    for seed in range(20):
        world = World(
            f"before-a-gap-{seed}",
            Random(seed),
            lambda _: Settings.of(small),
            way_in=lambda bucket, _: FaultyStore(bucket, [Fault(call=1, verb="put", key_part="-index")]),
        )
        stream = world.start().stream
        assert stream is not None
        world.ledgers.append([bytes(1024)] * 100)
        world.ledgers.close_ledger()
        world.ledgers.append([b"what is left"])
        while stream.status().offered is None:
            world.work()
        world.lose_ledger()

        world.come_to_rest()
        world.check()
        found |= {str(gap.first) for gap in load_manifest(world.store, world.ledgers.stream).gaps}
        world.erase()
    assert "1:0" in found


def test_a_gap_ends_where_the_manifest_has_entries(new_bench: Callable[..., Bench]) -> None:
    """Entries that the ledger method offloaded after it may be deleted from the hot tier as well."""
    bench = new_bench(settings=settings(on_gap="record"))
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 2)
    stream.offload()
    stream.stop()
    kept = len(bench.expected)
    bench.append(source, 2)
    lost = source.close_ledger()
    assert lost is not None
    del bench.expected[kept:]
    source.delete(lost.ledger_id)
    bench.append(source, 2)
    offloaded = source.close_ledger()
    assert offloaded is not None
    offloader = LedgerOffloader(bench.memory, bench.settings)
    offloader.offload_ledgers(source, STREAM)
    offloader.close()
    source.delete(offloaded.ledger_id)
    bench.append(source, 2)

    bench.start(source).offload()

    [gap] = load_manifest(bench.memory, STREAM).gaps
    assert gap.last == Position(offloaded.ledger_id, -1)
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_released_hot_ledger_is_no_gap(new_bench: Callable[..., Bench]) -> None:
    """Its end is in the manifest, and nowhere else any more."""
    bench = new_bench(settings=settings(deletion_lag="0m"))
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 2)
    info = source.close_ledger()
    assert info is not None
    stream.offload()
    stream.stop()
    offloader = LedgerOffloader(bench.memory, bench.settings)
    assert offloader.history.hot_release(source, STREAM).look().deleted == [info.ledger_id]
    offloader.close()
    bench.append(source, 2)

    bench.start(source).offload()

    assert load_manifest(bench.memory, STREAM).gaps == ()
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_ledger_that_closes_during_a_read_and_is_released_is_no_gap(new_bench: Callable[..., Bench]) -> None:
    """The list that came with the read doesn't make the closed ledger an open one again, whose end nobody knows."""
    bench = new_bench(settings=settings(deletion_lag="0m"))
    source = bench.open()
    bench.append(source, 2)
    closed: list[LedgerInfo | None] = []

    def close() -> None:
        bench.append(source, 1)
        closed.append(source.close_ledger())

    stream = bench.start(LateList(source, close))  # type: ignore[arg-type]
    eventually(lambda: bool(closed))
    [info] = closed
    assert info is not None
    assert stream.offload() == Position(info.ledger_id, info.last_entry_id)
    offloader = LedgerOffloader(bench.memory, bench.settings)
    assert offloader.history.hot_release(source, STREAM).look().deleted == [info.ledger_id]
    offloader.close()

    bench.append(source, 2)
    assert stream.offload() == bench.expected[-1][0]

    assert load_manifest(bench.memory, STREAM).gaps == ()
    assert stored_entries(bench.memory, STREAM) == bench.expected


class PassingSource:
    """A source that passes everything on to another one."""

    def __init__(self, inner: EmbeddedStream) -> None:
        self.inner = inner

    def ledgers(self) -> list[LedgerInfo]:
        return self.inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return self.inner.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> object:
        return self.inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self.inner.release(position)


class SilentSource(PassingSource):
    """A source that says which ledgers it has when a stream starts, and not when a gap was seen."""

    def __init__(self, inner: EmbeddedStream) -> None:
        super().__init__(inner)
        self.silent = True
        self.asked = 0

    def ledgers(self) -> list[LedgerInfo]:
        self.asked += 1
        if self.silent and self.asked > 1:
            raise StoreUnavailableError("the hot tier doesn't answer")
        return super().ledgers()


class LateList(PassingSource):
    """A source whose first list after a read arrives late: ``meanwhile`` happens between the two."""

    def __init__(self, inner: EmbeddedStream, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self.was_read = False
        self.meanwhile: Callable[[], None] | None = meanwhile

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        self.was_read = True
        return super().read(start, max_bytes)

    def ledgers(self) -> list[LedgerInfo]:
        infos, meanwhile = super().ledgers(), self.meanwhile
        if self.was_read and meanwhile is not None:
            self.meanwhile = None
            meanwhile()
        return infos


def test_a_source_that_does_not_answer_is_never_a_gap(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(settings=settings(on_gap="record"))
    lose_ledgers(bench)
    bench.store.set_faults([])
    source = SilentSource(bench.open())
    stream = bench.start(source)  # type: ignore[arg-type]

    eventually(lambda: "doesn't answer" in stream.status().error)
    assert load_manifest(bench.memory, STREAM).gaps == ()

    source.silent = False
    stream.offload()
    assert len(load_manifest(bench.memory, STREAM).gaps) == 1
    assert stored_entries(bench.memory, STREAM) == bench.expected
