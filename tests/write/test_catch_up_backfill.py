"""A stream far behind backfills several segments at once; then the live segment begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import index_key
from formats.manifest import Assign, Edit, Failed, Gap, Offloaded
from offloader.errors import CorruptError, StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault
from offloader.write.catch_up import BEHIND_SEGMENTS_MIN
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
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


def edits_of(bench: Bench) -> list[Edit]:
    return [edit for record in bench.records() for edit in record]


def under_way_max(bench: Bench) -> int:
    """The most segments that were assigned and not ended at one time."""
    open_now, most = set(), 0
    for record in bench.records():
        for edit in record:
            if isinstance(edit, Assign):
                open_now.add(edit.uuid)
            elif isinstance(edit, (Offloaded, Failed)):
                open_now.discard(edit.uuid)
        most = max(most, len(open_now))
    return most


@pytest.mark.slow
def test_history_is_sent_in_parallel_segments_and_live_begins_at_its_end(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench()
    source = bench.open()
    bench.append(source, 100)
    history_end = bench.expected[-1][0]

    stream = bench.start(source)
    eventually(lambda: stream.status().committed == history_end)
    bench.append(source, 3)
    stream.offload()

    assigned = [edit for edit in edits_of(bench) if isinstance(edit, Assign)]
    historical = [edit for edit in assigned if edit.end is not None]
    assert len(historical) > BEHIND_SEGMENTS_MIN
    assert under_way_max(bench) >= bench.settings.offload.backfill_segments_in_flight_max
    assert max(edit.end for edit in historical if edit.end) == history_end
    [live] = [edit for edit in assigned if edit.end is None]
    assert load_manifest(bench.memory, STREAM).follows(history_end, live.begin)
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert stream.status().entries_committed == len(bench.expected)
    # Whoever waited for the commit may hear of it before the stream's next step, and before the source does.
    eventually(lambda: stream.status().mode is Mode.LIVE)
    eventually(lambda: source.released_position() == bench.expected[-1][0])


def test_small_backlog_is_read_into_the_live_segment(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench()
    source = bench.open()
    bench.append(source, 10)
    bench.start(source).offload()
    assert all(edit.end is None for edit in edits_of(bench) if isinstance(edit, Assign))


@pytest.mark.slow
def test_stream_far_behind_after_an_outage_catches_up_in_parallel(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 3)
    stream.offload()
    bench.store.set_faults([Fault(call=1, calls=10**9, error=StoreUnavailableError)])
    bench.append(source, 100)
    eventually(lambda: stream.status().error)
    bench.store.set_faults([])
    stream.offload()
    assert [edit for edit in edits_of(bench) if isinstance(edit, Assign) and edit.end is not None]
    assert stored_entries(bench.memory, STREAM) == bench.expected


class _FirstFails(StoreWrapper):
    """Takes no index of the oldest segment that is under way, whichever comes first."""

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if request.verb == "put" and request.key.endswith("-index"):
            under_way = load_manifest(self.inner, STREAM).assigned()
            if request.key == index_key(STREAM, min(under_way, key=lambda each: each.begin).uuid):
                raise CorruptError("a fault")
        return call()


def leave_failed_range(bench: Bench) -> tuple[Position, Position]:
    """A backfill that couldn't offload one segment while later ones went up; the gap it left."""
    source = bench.open()
    bench.append(source, 60)
    offloader = LedgerOffloader(_FirstFails(bench.store), bench.settings, clock=bench.clock)
    result = offloader.history.backfill(source, STREAM)
    offloader.close()
    assert [type(error) for error in result.errors] == [CorruptError]
    state = load_manifest(bench.memory, STREAM)
    gaps = [segment for segment in state.assigned() if segment.end is not None]
    assert gaps
    assert any(segment.begin > gaps[0].begin for segment in state.offloaded()), "a later range is there"
    assert gaps[0].end is not None
    return gaps[0].begin, gaps[0].end


@pytest.mark.slow
def test_failed_historical_range_before_later_ones_is_offloaded_again(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench()
    begin, _ = leave_failed_range(bench)
    bench.store.set_faults([Fault(call=1, verb="head", key_part=STREAM, error=StoreUnavailableError)])

    second = bench.start(bench.open())
    second.offload()

    assert stored_entries(bench.memory, STREAM) == bench.expected
    state = load_manifest(bench.memory, STREAM)
    assert state.find(begin) is not None
    assert state.assigned() == []
    assert state.committed_end() == state.newest_end


@pytest.mark.slow
def test_historical_range_lost_by_the_hot_tier_becomes_a_gap(
    new_bench: Callable[..., Bench],
) -> None:
    """The promised range is recorded as a gap, and the live segment continues after the newest range."""
    bench = new_bench(settings=settings(on_gap="record"))
    begin, end = leave_failed_range(bench)
    # Its objects came up whole, so it would be adopted: they are lost too.
    bench.memory.delete([info.key for info in bench.memory.list("").objects if is_of_assigned(bench, info.key)])
    source = bench.open()
    lost = [info for info in source.ledgers() if info.entries and info.ledger_id <= end.ledger_id]
    for info in lost:
        source.delete(info.ledger_id)
    bench.store.set_faults([])

    second = bench.start(source)
    bench.append(source, 3)
    assert second.offload() == bench.expected[-1][0]

    state = load_manifest(bench.memory, STREAM)
    assert state.gaps
    assert all(
        not (segment.begin <= gap.first <= (segment.end or gap.first))
        for gap in state.gaps
        for segment in state.offloaded()
    )
    assert state.committed_end() == state.newest_end == bench.expected[-1][0]
    assert second.status().gaps_recorded == len(state.gaps)
    kept = [each for each in bench.expected if state.find(each[0]) is not None]
    assert stored_entries(bench.memory, STREAM) == kept
    assert [each for each in bench.expected if each[0] < begin] == [each for each in kept if each[0] < begin]


def is_of_assigned(bench: Bench, key: str) -> bool:
    return any(str(segment.uuid) in key for segment in load_manifest(bench.memory, STREAM).assigned())


def test_hot_released_and_deleted_ledger_is_no_gap(new_bench: Callable[..., Bench]) -> None:
    """Its end is in the manifest: the next ledger follows it, though the hot tier has it no more."""
    bench = new_bench(settings=settings(deletion_lag="0m"))
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 3)
    stream.offload()
    closed = source.close_ledger()
    assert closed is not None
    offloader = bench.offloaders[-1]
    assert offloader.history.hot_release(source, STREAM).look().deleted == [closed.ledger_id]
    stream.stop()

    again = bench.open()
    bench.append(again, 3)
    stream = bench.start(again)
    assert stream.offload() == bench.expected[-1][0]

    assert load_manifest(bench.memory, STREAM).gaps == ()
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_owner_fenced_during_its_backfill_commits_nothing_more(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench(settings=settings(backfill_segments_in_flight_max=1))
    source = bench.open()
    bench.append(source, 100)
    first = bench.start(source)
    eventually(lambda: first.status().committed)
    ManifestLog(bench.memory, STREAM, clock=bench.clock).open_epoch()
    eventually(lambda: first.status().mode is Mode.STOPPED or first.status().committed == bench.expected[-1][0])
    second = bench.start(source)
    second.offload()
    assert not any(verb == "abort_upload" for verb, _ in bench.store.calls)
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert not [edit for edit in edits_of(bench) if isinstance(edit, Gap)]
