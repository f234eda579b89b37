"""Backfill in segments of about the segment size, in any order; an interrupted run continues."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.keys import new_segment_uuid, parse_object_key
from formats.manifest import Assign, Edit, Failed, LedgerClosed, LedgersDeleted, Offloaded, decode_record
from formats.summary import SegmentSummary
from offloader.errors import CorruptError, FencedError, OffloaderError, StoreUnavailableError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.source_identity import CheckedSource
from offloader.runtime.clock import SystemClock
from offloader.settings import LimitSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.rate_limit import Limiter, Priority, Ticket, Traffic, current_priority
from offloader.store.wrappers import AttemptStore, Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.offloader import LedgerOffloader
from tests.support.presence import there
from tests.support.readback import stored_entries, unaccounted_keys
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "a/b"
SEGMENT_BYTES = 16_384
SETTINGS = Settings.of(
    {
        "offload": {
            "block_size": 1024,
            "segment_size_max": SEGMENT_BYTES,
            "segment_age_max": "60m",
            "takeover_after": 0.01,
        },
        "ledgers": {"ledger_size_max": 25_000},
    }
)
_names = count()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.memory = MemoryStore(f"backfill-{next(_names)}", "", SystemClock())
        self.store = FaultyStore(self.memory)
        self.database = EmbeddedLedgers(str(directory / "ledgers.db"), settings=SETTINGS.ledgers)
        self.source: EmbeddedStream = self.database.open_stream(STREAM)
        self.expected: list[tuple[Position, bytes]] = []
        self._random = Random(3)
        self.offloader = LedgerOffloader(self.store, SETTINGS)

    def append(self, entries: int, *, size_max: int = 300) -> None:
        payloads = [self._random.randbytes(self._random.randint(0, size_max)) for _ in range(entries)]
        for batch in self.source.append(payloads, 0):
            self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def edits(self) -> list[Edit]:
        """Everything that was ever recorded, in order."""
        keys = [info.key for info in self.memory.list("").objects if info.key.endswith(".json")]
        return [edit for key in sorted(keys) for edit in decode_record(self.memory.get(key)[0]).edits]

    def data_puts(self) -> int:
        return sum(verb == "put" and "/manifest/" not in key and "index" not in key for verb, key in self.store.calls)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.offloader.close()
    made.database.close()


@pytest.mark.slow
def test_history_is_offloaded_once_in_segments_near_the_segment_size(bench: Bench) -> None:
    bench.append(1000)

    result = bench.offloader.history.backfill(bench.source, STREAM)

    assert result.errors == []
    state = load_manifest(bench.memory, STREAM)
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert result.committed == state.committed_end() == bench.expected[-1][0] == bench.source.released_position()
    sizes = [s.payload_bytes + ENTRY_HEADER_BYTES * s.entries for _, s in result.offloaded]
    assert len(sizes) >= 9
    assert all(SEGMENT_BYTES / 2 < size < SEGMENT_BYTES * 1.2 for size in sizes)
    assert unaccounted_keys(bench.memory, STREAM) == set()


@pytest.mark.slow
def test_segments_are_assigned_in_order_with_both_ends_before_upload(bench: Bench) -> None:
    bench.append(600)
    bench.offloader.history.backfill(bench.source, STREAM)
    assigned = [edit for edit in bench.edits() if isinstance(edit, Assign)]
    assert all(edit.end is not None for edit in assigned)
    assert [edit.begin for edit in assigned] == sorted(edit.begin for edit in assigned)
    calls = bench.store.calls
    for edit in assigned:
        first_byte = next(i for i, (verb, key) in enumerate(calls) if verb == "put" and str(edit.uuid) in key)
        before = [key for verb, key in calls[:first_byte] if verb == "put" and key.endswith(".json")]
        records = [decode_record(bench.memory.get(key)[0]) for key in before]
        assert any(edit in record.edits for record in records)


def test_until_ends_the_run_exactly_there(bench: Bench) -> None:
    bench.append(500)
    until = bench.expected[321][0]
    result = bench.offloader.history.backfill(bench.source, STREAM, last=until)
    assert result.committed == until
    assert stored_entries(bench.memory, STREAM) == bench.expected[:322]


def test_a_second_run_has_nothing_to_do_and_opens_no_epoch(bench: Bench) -> None:
    bench.append(300)
    bench.offloader.history.backfill(bench.source, STREAM)
    before = load_manifest(bench.memory, STREAM)
    planned: list[int] = []
    result = bench.offloader.history.backfill(bench.source, STREAM, on_plan=lambda plan: planned.append(plan.segments))
    assert (planned, result.offloaded) == ([0], [])
    assert load_manifest(bench.memory, STREAM).record_id == before.record_id


@pytest.mark.slow
def test_failed_attempt_is_retried_under_another_uuid_and_its_objects_deleted(bench: Bench) -> None:
    bench.append(300)
    bench.store.set_faults([Fault(call=2, verb="put", key_part="-index", error=StoreUnavailableError)])

    assert bench.offloader.history.backfill(bench.source, STREAM).errors == []

    assert len([edit for edit in bench.edits() if isinstance(edit, Failed)]) == 1
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert unaccounted_keys(bench.memory, STREAM) == set()


@pytest.mark.slow
def test_interrupted_backfill_commits_the_contiguous_prefix_and_continues(bench: Bench) -> None:
    bench.append(1000)
    planned: list[UUID] = []
    bench.offloader.history.backfill(bench.source, STREAM, last=bench.expected[50][0])
    before = load_manifest(bench.memory, STREAM)
    # The first data object of what follows can't be written, whatever its name.
    bench.store.set_faults([Fault(call=1, calls=1, verb="put", key_part="-index", error=CorruptError)])

    stopped = bench.offloader.history.backfill(bench.source, STREAM)

    assert [type(error) for error in stopped.errors] == [CorruptError]
    half = load_manifest(bench.memory, STREAM)
    planned = [segment.uuid for segment in half.assigned()]
    assert len(planned) == 1
    gap = half.assigned()[0]
    assert gap.end is not None
    assert all(not (gap.begin <= each.begin <= gap.end) for each in half.offloaded())
    assert there(half.committed_end()) < gap.begin
    done = {segment.uuid for segment in half.offloaded()}
    assert len(done) > len(before.offloaded())

    bench.store.set_faults([])
    sent = bench.data_puts()
    result = bench.offloader.history.backfill(bench.source, STREAM)

    whole = load_manifest(bench.memory, STREAM)
    assert done <= {segment.uuid for segment in whole.offloaded()}, "nothing that was there is sent again"
    assert bench.data_puts() - sent < len(whole.offloaded())
    assert result.committed == bench.expected[-1][0]
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_a_run_that_loses_the_stream_ends_fenced_and_commits_nothing_more(bench: Bench) -> None:
    bench.append(1000)
    taken: list[int] = []

    def take(_: SegmentSummary) -> None:
        if not taken:
            taken.append(ManifestLog(bench.memory, STREAM, clock=SystemClock()).open_epoch())

    with pytest.raises(FencedError):
        bench.offloader.history.backfill(bench.source, STREAM, on_progress=take)
    bench.offloader.close()
    edits = bench.edits()
    after = edits[edits.index(next(e for e in edits if getattr(e, "epoch", 0) == taken[0])) :]
    assert [edit for edit in after if isinstance(edit, (Assign, Offloaded))] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key_part", "but", "call"),
    [("/manifest/", "boundary", 2), (f"{STREAM}/", "/manifest/", 1)],
    ids=["record", "data"],
)
def test_a_run_ends_whose_offloader_is_closed_while_it_waits_for_its_next_attempt(
    bench: Bench, key_part: str, but: str, call: int
) -> None:
    bench.append(100)
    bench.store.set_faults([Fault(call=call, calls=10**9, verb="put", key_part=key_part, but=but)])
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(bench.offloader.history.backfill(bench.source, STREAM).errors)
        except OffloaderError as error:
            ended.append(error)

    def is_refused() -> bool:
        puts = [key for verb, key in bench.store.calls if verb == "put" and key_part in key and but not in key]
        return len(puts) >= call and (call == 2 or any(isinstance(edit, Failed) for edit in bench.edits()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(is_refused)
    bench.offloader.close()
    thread.join(10)
    assert ended


@pytest.mark.slow
def test_the_live_segment_starts_exactly_where_the_backfill_ended(bench: Bench) -> None:
    bench.append(400)
    bench.offloader.history.backfill(bench.source, STREAM)
    last = bench.expected[-1][0]
    bench.append(200)

    stream = bench.offloader.offload_stream(bench.source, STREAM)
    stream.offload(timeout_s=PATIENCE_S)
    stream.stop()

    state = load_manifest(bench.memory, STREAM)
    begins = [segment.begin for segment in state.offloaded() if segment.begin > last]
    assert state.follows(last, begins[0])
    assert all(state.follows(a.end, b.begin) for a, b in pairwise(state.offloaded()) if a.end is not None)
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_backfill_works_on_a_view_of_a_stream_with_another_writer(bench: Bench) -> None:
    bench.append(300)
    view = bench.database.view_stream(STREAM, may_delete=True)
    result = bench.offloader.history.backfill(view, STREAM, acknowledges=False)
    assert result.errors == []
    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.append(5)  # the writer wasn't disturbed


def lose_ledger(bench: Bench, ledger_id: int) -> None:
    bench.source.delete(ledger_id)
    bench.expected = [each for each in bench.expected if each[0].ledger_id != ledger_id]


@pytest.mark.slow
def test_ledgers_trimmed_before_the_first_listing_are_no_gap(bench: Bench) -> None:
    """A begin is the first entry that is actually there."""
    bench.append(600)
    first = bench.expected[0][0].ledger_id
    lose_ledger(bench, first)
    result = bench.offloader.history.backfill(bench.source, STREAM)
    state = load_manifest(bench.memory, STREAM)
    assert (result.errors, state.gaps) == ([], ())
    assert state.offloaded()[0].begin == Position(first + 1, 0)
    assert result.committed == bench.expected[-1][0]
    assert stored_entries(bench.memory, STREAM) == bench.expected


def begin_and_lose(bench: Bench) -> Position:
    """Something is offloaded; the ledger that it ends in, and the one after it, are missing before the rest is."""
    bench.append(700)
    end = bench.expected[20][0]
    bench.offloader.history.backfill(bench.source, STREAM, last=end)
    ledger_ids = sorted({position.ledger_id for position, _ in bench.expected})
    bench.expected = [each for each in bench.expected if each[0] <= end or each[0].ledger_id not in ledger_ids[:2]]
    for ledger_id in ledger_ids[:2]:
        bench.source.delete(ledger_id)
    return end


def test_backfill_stops_at_a_gap_with_an_error(bench: Bench) -> None:
    end = begin_and_lose(bench)
    result = bench.offloader.history.backfill(bench.source, STREAM)
    assert [type(error) for error in result.errors] == [CorruptError]
    assert "set on_gap = record" in str(result.errors[0])
    state = load_manifest(bench.memory, STREAM)
    assert (state.committed_end(), state.gaps, state.newest_end) == (end, (), end)


def test_backfill_records_a_gap_by_policy_and_continues_after_it(bench: Bench) -> None:
    end = begin_and_lose(bench)
    offloader = LedgerOffloader(bench.store, Settings.of({"offload": {"on_gap": "record"}}))
    result = offloader.history.backfill(bench.source, STREAM)
    offloader.close()
    state = load_manifest(bench.memory, STREAM)
    [gap] = state.gaps
    assert gap.first == end.next()
    assert state.find(Position(gap.last.ledger_id, 0)) is not None
    assert result.committed == state.committed_end() == bench.expected[-1][0]
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["backfill", "ledgers"])
def test_gap_that_only_a_lost_promise_tells_of_blocks_each_run_until_it_is_recorded(bench: Bench, method: str) -> None:
    """A writer began a segment with a ledger's first entry and died; then the hot tier lost the ledger."""
    bench.append(700)
    end, first = bench.expected[20][0], bench.expected[0][0].ledger_id
    bench.offloader.history.backfill(bench.source, STREAM, last=end)
    before = max(position for position, _ in bench.expected if position.ledger_id == first)
    writer = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    writer.open_epoch()
    one, other = (new_segment_uuid(writer.state.incarnation, number) for number in (7, 8))
    begin, driver = Position(first + 1, 0), dict(bench.memory.driver_metadata)
    rest = Assign(one, 2, end.next(), before, 0, driver)
    writer.commit([LedgerClosed(first, before.entry_id), rest, Assign(other, 2, begin, None, 0, driver)])
    lose_ledger(bench, begin.ledger_id)
    for _ in range(2):
        result = getattr(bench.offloader.history, method)(bench.source, STREAM)
        [error] = result.errors
        assert f"entries {begin} up to" in str(error)
        assert "are missing" in str(error)
        state = load_manifest(bench.memory, STREAM)
        assert (state.committed_end(), state.gaps) == (before, ())
        assert all(segment.end < begin for segment in state.offloaded() if segment.end)
    settings = replace(SETTINGS, offload=replace(SETTINGS.offload, on_gap="record"))
    with contextlib.closing(LedgerOffloader(bench.store, settings)) as offloader:
        assert offloader.history.backfill(bench.source, STREAM).errors == []
    state = load_manifest(bench.memory, STREAM)
    assert [(gap.first, gap.last.ledger_id) for gap in state.gaps] == [(begin, first + 2)]
    assert state.assigned() == []
    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
@pytest.mark.parametrize("segment_mbytes", [SEGMENT_BYTES / 2**20, 5.0])
def test_a_deleted_ledger_between_two_live_ones_is_not_offloaded(bench: Bench, segment_mbytes: float) -> None:
    """The hot tier still lists it."""
    bench.append(700)
    deleted = 2
    assert bench.expected[-1][0].ledger_id > deleted + 1
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    log.load(create=True)
    log.commit_as_maintainer([LedgersDeleted((deleted,))])
    kept = [each for each in bench.expected if each[0].ledger_id != deleted]
    sizes = {"segment_size_max": round(segment_mbytes * 2**20), "takeover_after": 0.01}
    offloader = LedgerOffloader(bench.store, Settings.of({"offload": {"block_size": 1024, **sizes}}))

    result = offloader.history.backfill(bench.source, STREAM)
    offloader.close()

    assert (result.errors, result.trimmed) == ([], [])
    assert stored_entries(bench.memory, STREAM) == kept
    assert result.committed == load_manifest(bench.memory, STREAM).committed_end() == kept[-1][0]
    assert deleted in {info.ledger_id for info in bench.source.ledgers()}


def test_the_end_of_a_ledger_deleted_before_it_was_offloaded_is_never_recorded(bench: Bench) -> None:
    """With its end recorded, its entries would be missing."""
    bench.append(700)
    deleted = 2
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    log.load(create=True)
    log.commit_as_maintainer([LedgersDeleted((deleted,))])
    bench.offloader.history.backfill(bench.source, STREAM)
    bench.source.close_ledger()

    noted = bench.offloader.history.note_ends(bench.source, STREAM)

    assert noted == [bench.expected[-1][0].ledger_id]
    assert deleted not in load_manifest(bench.memory, STREAM).closed_ledgers


def test_deletion_of_an_offloaded_ledger_does_not_end_the_stream(bench: Bench) -> None:
    bench.append(100)
    bench.offloader.history.backfill(bench.source, STREAM)
    offloaded = bench.expected[-1][0]
    bench.source.close_ledger()
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    assert offloaded.ledger_id not in log.load().closed_ledgers
    log.commit_as_maintainer([LedgersDeleted((offloaded.ledger_id,))])
    bench.append(100)

    result = bench.offloader.history.backfill(bench.source, STREAM)

    assert result.errors == []
    assert result.committed == bench.expected[-1][0] > offloaded


class AfterAssignments(StoreWrapper):
    """Somebody does something as soon as the first segment is assigned."""

    def __init__(self, inner: ObjectStore, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self._acts = [act]

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        answer = call()
        if self._acts and request.verb == "put" and request.key.endswith("2.json"):
            self._acts.pop()()
        return answer


class ListsLate(CheckedSource):
    """A hot tier that lists one of its ledgers only after a while."""

    hidden = 0

    def ledgers(self) -> list[LedgerInfo]:
        return [info for info in super().ledgers() if info.ledger_id != self.hidden]


@pytest.mark.slow
def test_a_ledger_listed_only_after_the_range_around_it_was_assigned_is_offloaded_with_it(bench: Bench) -> None:
    bench.append(700)
    source = ListsLate(bench.source, lambda: None)
    source.hidden = 2
    store = AfterAssignments(bench.memory, lambda: setattr(source, "hidden", 0))
    large = {"segment_size_max": "5.0MiB", "takeover_after": 0.01, "block_size": 1024}
    offloader = LedgerOffloader(store, Settings.of({"offload": large}))

    result = offloader.history.backfill(source, STREAM)
    offloader.close()

    assert result.errors == []
    assert source.hidden == 0
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_ledger_lost_inside_an_assigned_range_is_never_skipped(bench: Bench) -> None:
    bench.append(700)
    lost = 2
    assert bench.expected[-1][0].ledger_id > lost + 1
    store = AfterAssignments(bench.store, lambda: lose_ledger(bench, lost))
    whole = {"segment_size_max": "5.0MiB", "on_gap": "record", "takeover_after": 0.01}
    offloader = LedgerOffloader(store, Settings.of({"offload": whole}))

    result = offloader.history.backfill(bench.source, STREAM)
    offloader.close()
    assert result.errors == []
    assert [each.begin.ledger_id for each in result.trimmed] == [1], "planned anew around what is gone"
    state = load_manifest(bench.memory, STREAM)
    [gap] = state.gaps
    assert gap.first.ledger_id <= lost <= gap.last.ledger_id
    assert state.committed_end() == bench.expected[-1][0]
    assert stored_entries(bench.memory, STREAM) == bench.expected


class PrioritiesSeen(StoreWrapper):
    """Notes at which priority each request is made."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.seen: list[tuple[str, str, Priority]] = []

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        self.seen.append((request.verb, request.key, current_priority(request.traffic)))
        return call()


@pytest.mark.slow
def test_backfill_uploads_have_backfill_priority_and_deletes_deletion_priority(bench: Bench) -> None:
    bench.append(300)
    watched = PrioritiesSeen(bench.store)
    bench.store.set_faults([Fault(call=2, verb="put", key_part="-index", error=StoreUnavailableError)])
    offloader = LedgerOffloader(watched, SETTINGS)
    offloader.history.backfill(bench.source, STREAM)
    offloader.close()
    objects = [(verb, seen) for verb, key, seen in watched.seen if parse_object_key(key, STREAM) is not None]
    sent = {seen for verb, seen in objects if verb != "delete"}
    assert sent == {Priority.BACKFILL}
    assert {seen for verb, seen in objects if verb == "delete"} == {Priority.DELETION}


@pytest.mark.slow
def test_live_request_precedes_an_older_backfill_request_at_a_saturated_limit(bench: Bench) -> None:
    bench.append(600)
    clock = ManualClock(waits_pass=False)
    order: list[str] = []

    class Noting(StoreWrapper):
        def around(self, request: Request, call: Callable[[], Any]) -> Any:
            if request.verb == "put" and "/manifest/" not in request.key:
                order.append(request.key)
            return call()

    class UploadsOnly(Limiter):
        """Reads don't wait, so that time stands still when all uploads do."""

        def acquire(self, traffic: Traffic, size_bytes: int, closing: threading.Event, *, what: str) -> Ticket:
            if traffic is Traffic.UPLOAD:
                return super().acquire(traffic, size_bytes, closing, what=what)
            return Ticket(Priority.READ, size_bytes, 0, admitted=0)

    limiter = UploadsOnly(LimitSettings(requests_per_s=1.0), clock)
    throttled = AttemptStore(Noting(bench.memory), limiter)
    offloader = LedgerOffloader(throttled, replace(SETTINGS, limits=limiter.settings))
    backfill = threading.Thread(target=offloader.history.backfill, args=(bench.source, STREAM), daemon=True)
    live = threading.Thread(target=throttled.put, args=("live-object", b"x"), daemon=True)
    backfill.start()
    # Time stands still when all of them wait.
    under_way = SETTINGS.offload.backfill_segments_in_flight_max

    def all_wait() -> bool:
        waiting = limiter.status().waiting
        if waiting["live"]:
            clock.advance(1.0)  # a record of the manifest: it has its turn before them
        return waiting["backfill"] == under_way

    eventually(all_wait)
    before = len(order)
    live.start()
    eventually(lambda: limiter.status().waiting["live"] == 1)

    def live_had_its_turn() -> bool:
        waits = limiter.status().waiting["live"] > 0
        if waits:
            clock.advance(0.25)
        return not waits

    eventually(live_had_its_turn)
    live.join()
    # One of the others may just have had its turn when all were seen waiting.
    assert order.index("live-object") <= before + 1 < before + under_way
    eventually(lambda: not backfill.is_alive(), first=lambda: clock.advance(1.0))
    offloader.close()
    assert stored_entries(bench.memory, STREAM) == bench.expected
