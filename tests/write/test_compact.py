"""Merging small neighbouring segments: every entry is readable exactly once, whatever fails meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import data_key, parse_object_key, record_key
from formats.manifest import Gap, Hold, LedgerClosed, LedgersDeleted, Truncate
from formats.segment import Codec
from formats.summary import Layout
from offloader.errors import CorruptError, FencedError, StoreUnavailableError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import OffloadSettings, Settings
from offloader.store.base import OVERWRITE, Body, ObjectInfo, PutMode
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.compact import CompactionResult, plan_compaction
from offloader.write.offloader import LedgerOffloader
from offloader.write.replacement import PROMISE_AGE_MS_MAX
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
#: One task at a time, so that the n-th storage call is the same one each time.
OFFLOAD = {"block_size": 1024, "backfill_segments_in_flight_max": 1}
SETTINGS = Settings.of({"offload": OFFLOAD})
_names = count()


def sized(size_bytes: int, **more: object) -> Settings:
    """Settings with segments of so many bytes."""
    return Settings.of({"offload": {**OFFLOAD, "segment_size_max": size_bytes, **more}})


class FaultStore(FaultyStore):
    """... whose puts can be looked at and changed on the way."""

    on_put: Callable[[str, bytes], bytes] = staticmethod(lambda _, body: body)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        given = bytes(body)
        sent = self.on_put(key, given)
        return super().put(key, sent, mode=mode, metadata=metadata, crc32c=crc32c if sent == given else None)


class CompactionBench:
    """A stream of small V2 segments over many ledgers; the last ledger is open."""

    def __init__(self, *, settings: Settings = SETTINGS) -> None:
        self.memory = MemoryStore(f"compaction-{next(_names)}", "", SystemClock())
        self.store = FaultStore(self.memory)
        self.settings = settings
        self.writer = StreamWriter(self.memory, STREAM)

    def add_segments(self) -> None:
        add = self.writer.add
        add([batch_of(2, 0, 7)], closes=[2])
        add([batch_of(3, 0, 5)])
        add([batch_of(3, 5, 5)], closes=[3])
        self.writer.log.commit([LedgerClosed(4, -1)])
        add([batch_of(5, 0, 3), batch_of(6, 0, 2)], closes=[5])
        add([batch_of(6, 2, 9)], closes=[6])
        add([batch_of(9, 0, 4)])

    @property
    def expected(self) -> list[tuple[Position, bytes]]:
        return [(entry.position, entry.payload) for entry in self.writer.entries]

    def require_whole(self) -> None:
        """Every entry exactly once and in order, by an independent reader and by ours."""
        assert stored_entries(self.memory, STREAM) == self.expected
        with open_stream_reader(self.memory, STREAM) as reader:
            assert [entry for batch in reader.scan() for entry in batch.entries()] == self.writer.entries

    def compact(
        self, *, settings: Settings | None = None, recode: bool = False, beside_owner: bool = True
    ) -> CompactionResult:
        with contextlib.closing(LedgerOffloader(self.store, settings or self.settings)) as offloader:
            return offloader.history.compact(STREAM, recode=recode, beside_owner=beside_owner)

    def ends(self) -> list[tuple[Position, Position]]:
        return [(each.begin, each.content.end) for each in load_manifest(self.memory, STREAM).offloaded()]


@pytest.fixture
def bench() -> CompactionBench:
    made = CompactionBench()
    made.add_segments()
    return made


def planned(state: ManifestState, settings: OffloadSettings | None = None) -> list[tuple[Position, Position]]:
    return [(each.begin, each.end) for each in plan_compaction(state, settings or OffloadSettings()).merges]


@pytest.mark.slow
def test_small_segments_of_many_ledgers_become_one(bench: CompactionBench) -> None:
    before = load_manifest(bench.memory, STREAM)
    done = bench.compact()

    bench.require_whole()
    state = load_manifest(bench.memory, STREAM)
    assert bench.ends() == [(Position(2, 0), Position(9, 3))]
    assert (done.replaced, len(done.merged), len(state.replaced), state.rewrites) == (6, 1, 6, ())
    assert (state.committed_end(), state.newest_end) == (before.committed_end(), before.newest_end)
    assert (state.totals().entries, state.totals().payload_bytes) == (35, 700)
    assert state.method == before.method


@pytest.mark.slow
def test_second_compaction_has_nothing_to_do_and_opens_no_epoch(bench: CompactionBench) -> None:
    bench.compact()
    record = load_manifest(bench.memory, STREAM).record_id
    done = bench.compact()
    assert (done.merged, done.replaced) == ([], 0)
    assert load_manifest(bench.memory, STREAM).record_id == record


@pytest.mark.slow
def test_half_a_days_segments_of_a_quiet_topic_become_one() -> None:
    bench = CompactionBench()
    for number in range(72):
        bench.writer.add([batch_of(1 + number // 10, number % 10, 1)], closes=[1 + number // 10] * (number % 10 == 9))
    done = bench.compact()
    assert done.replaced == 72
    assert bench.ends() == [(Position(1, 0), Position(8, 1))]
    bench.require_whole()


@pytest.mark.slow
def test_an_entry_is_rewritten_a_logarithmic_number_of_times() -> None:
    """Compaction after each new segment, as a careless operator might run it."""
    bench = CompactionBench()
    written = 0
    for number in range(16):
        bench.writer = StreamWriter(bench.memory, STREAM, entries=bench.writer.entries)
        bench.writer.add([batch_of(1, number, 1)])
        written += sum(summary.entries for _, summary in bench.compact().merged)
    bench.require_whole()
    assert written <= 16 * 4
    assert len(bench.ends()) <= 5


@pytest.mark.slow
def test_results_are_at_most_a_segment_large() -> None:
    """An entry of 100 bytes takes 112 in a segment: ten fit."""
    bench = CompactionBench(settings=sized(1150))
    for number in range(25):
        bench.writer.add([batch_of(1, number, 1, size=100)])
    bench.compact()
    assert bench.ends() == [
        (Position(1, 0), Position(1, 9)),
        (Position(1, 10), Position(1, 19)),
        (Position(1, 20), Position(1, 24)),
    ]
    bench.require_whole()


def test_large_segments_are_left_alone() -> None:
    bench = CompactionBench(settings=sized(1150))
    for first, entries in ((0, 8), (8, 1), (9, 1), (10, 9), (19, 1)):
        bench.writer.add([batch_of(1, first, entries, size=100)])
    bench.compact()
    assert bench.ends() == [
        (Position(1, 0), Position(1, 7)),
        (Position(1, 8), Position(1, 9)),
        (Position(1, 10), Position(1, 18)),
        (Position(1, 19), Position(1, 19)),
    ]


@pytest.mark.slow
def test_gaps_end_a_run_of_neighbours() -> None:
    bench = CompactionBench()
    bench.writer.add([batch_of(1, 0, 3)])
    bench.writer.add([batch_of(1, 3, 3)])
    bench.writer.log.commit([Gap(Position(1, 6), Position(1, 6), "expired")])
    bench.writer.add([batch_of(1, 7, 2)])
    bench.writer.add([batch_of(1, 9, 2)], closes=[1])
    assert bench.compact().errors == []
    assert bench.ends() == [(Position(1, 0), Position(1, 5)), (Position(1, 7), Position(1, 10))]
    bench.require_whole()


def test_a_ledger_whose_end_is_unknown_ends_a_run() -> None:
    bench = CompactionBench()
    bench.writer.add([batch_of(1, 0, 3)])
    bench.writer.add([batch_of(2, 0, 3)])
    assert planned(load_manifest(bench.memory, STREAM)) == []
    bench.writer.log.commit([LedgerClosed(1, 4)])  # two entries are missing
    assert planned(load_manifest(bench.memory, STREAM)) == []


def test_v1_deleted_and_truncated_segments_are_left_alone(bench: CompactionBench) -> None:
    bench.writer.add([batch_of(9, 4, 6)], closes=[9])
    bench.writer.add([batch_of(10, 0, 5)], layout=Layout.V1, closes=[10])
    bench.writer.add([batch_of(11, 0, 5)], layout=Layout.V1, closes=[11])
    bench.writer.log.commit([Truncate(Position(3, 2)), LedgersDeleted((5,))])
    state = load_manifest(bench.memory, STREAM)
    assert planned(state) == [(Position(6, 2), Position(9, 9))]


@pytest.mark.slow
def test_the_owner_continues_beside_compactions(tmp_path: Path) -> None:
    """It appends, offloads and is restarted; no compaction stops it."""
    made = Settings.of({"offload": {**OFFLOAD, "drain_timeout": 0}, "ledgers": {"ledger_entries_max": 25}})
    memory = MemoryStore("compact-owner", "", SystemClock())
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    expected, replaced = [], 0
    for _ in range(2):
        with open_managed_ledger(STREAM, ledgers=ledgers, store=memory, settings=made) as topic:
            for number in range(12):
                for batch in topic.append_batch([b"%d" % n for n in range(10)]):
                    expected += [(entry.position, entry.payload) for entry in batch.entries()]
                topic.offload(timeout_s=PATIENCE_S)
                if number % 5 == 4:
                    with contextlib.closing(LedgerOffloader(memory, SETTINGS)) as offloader:
                        replaced += offloader.history.compact(STREAM).replaced
                    assert stored_entries(memory, STREAM) == expected
    assert stored_entries(memory, STREAM) == expected
    assert replaced > 10
    assert load_manifest(memory, STREAM).epoch == 2


def test_adopted_segments_are_named_and_stay() -> None:
    bench = CompactionBench()
    bench.writer.add([batch_of(1, 0, 3)])
    bench.writer.add([batch_of(1, 3, 3)])
    log = bench.writer.log
    bench.writer.add([batch_of(1, 6, 3)])
    state = log.state
    third = state.offloaded()[-1]
    adopted = adopted_view(state, third.uuid)
    plan = plan_compaction(adopted, OffloadSettings())
    assert [(each.begin, each.end) for each in plan.merges] == [(Position(1, 0), Position(1, 5))]
    assert [each.uuid for each in plan.adopted] == [third.uuid]


def adopted_view(state: ManifestState, uuid: UUID) -> ManifestState:
    """The same view, with one segment adopted."""
    from dataclasses import replace

    segments = state.segments
    records = [replace(each, owned=each.uuid != uuid) for each in segments.in_order()]
    return replace(state, segments=type(segments)((), {each.uuid: each for each in records}))


@pytest.mark.slow
def test_compression_of_the_result_is_the_settings(bench: CompactionBench) -> None:
    done = bench.compact(settings=Settings.of({"offload": {**OFFLOAD, "codec": "zstd", "block_size": 4096}}))
    assert [(summary.compressed, summary.blocks) for _, summary in done.merged] == [(True, 5)]
    bench.require_whole()


@pytest.mark.slow
def test_recoding_rewrites_single_segments_once() -> None:
    bench = CompactionBench(settings=sized(64 * 1024, codec="zstd"))
    bench.writer.add([batch_of(1, 0, 1500)])
    bench.writer.add([batch_of(1, 1500, 1500)], codec=Codec.ZSTD)
    assert bench.compact().merged == []
    done = bench.compact(recode=True)
    assert [(summary.begin, summary.end) for _, summary in done.merged] == [(Position(1, 0), Position(1, 1499))]
    bench.require_whole()
    assert bench.compact(recode=True).merged == []


def test_pinned_reader_continues_and_replaced_objects_stay(bench: CompactionBench) -> None:
    """A reader's segments are deleted only after the grace period."""
    before = open_stream_reader(bench.memory, STREAM)
    batches = before.scan(batch_bytes=1)
    read = [next(batches)]
    keys = {info.key for info in bench.memory.list("").objects if parse_object_key(info.key, STREAM)}
    bench.compact()
    assert keys <= {info.key for info in bench.memory.list("").objects}
    read += batches
    assert [entry for batch in read for entry in batch.entries()] == bench.writer.entries
    assert "delete" not in [verb for verb, _ in bench.store.calls]


def test_a_following_reader_sees_neither_a_hole_nor_a_duplicate(bench: CompactionBench) -> None:
    """It refreshes its view at each step of the compaction."""
    seen: list[list[tuple[Position, bytes]]] = []

    def look(_key: str, body: bytes) -> bytes:
        with open_stream_reader(bench.memory, STREAM) as reader:
            seen.append([(entry.position, entry.payload) for batch in reader.scan() for entry in batch.entries()])
        return body

    bench.store.on_put = look
    bench.compact()
    assert len(seen) >= 4, "promise, data, index and replacement"
    assert all(each == bench.expected for each in seen)


@pytest.mark.slow
def test_an_active_owner_is_asked_for_and_never_fenced(bench: CompactionBench) -> None:
    record = load_manifest(bench.memory, STREAM).record_id
    with pytest.raises(FencedError, match="is owned by"):
        bench.compact(beside_owner=False)
    assert load_manifest(bench.memory, STREAM).record_id == record
    bench.compact()
    bench.writer.add([batch_of(9, 4, 5)])
    bench.require_whole()
    assert bench.ends() == [(Position(2, 0), Position(9, 3)), (Position(9, 4), Position(9, 8))]


@pytest.mark.slow
@pytest.mark.parametrize("edit", ["rewrite", "replace"])
def test_writer_taking_the_stream_fences_the_compaction(bench: CompactionBench, edit: str) -> None:
    def taken(key: str, body: bytes) -> bytes:
        if "/manifest/" in key and f'"edit":"{edit}"'.encode() in body and not takers:
            takers.append(StreamWriter(bench.memory, STREAM))
        return body

    takers: list[StreamWriter] = []
    bench.store.on_put = taken
    with pytest.raises(FencedError):
        bench.compact()
    assert len(takers) == 1
    bench.require_whole()


@pytest.mark.slow
def test_of_two_concurrent_compactions_one_replaces(bench: CompactionBench) -> None:
    def other(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None and not others:
            with contextlib.closing(LedgerOffloader(bench.memory, bench.settings)) as second:
                others.append(second.history.compact(STREAM))
        return body

    others: list[CompactionResult] = []
    bench.store.on_put = other
    done = bench.compact()
    assert (others[0].replaced, done.replaced) == (6, 0)
    assert load_manifest(bench.memory, STREAM).rewrites == ()
    bench.require_whole()


@pytest.mark.slow
def test_owner_that_commits_meanwhile_delays_nothing(bench: CompactionBench) -> None:
    """Its segments come between the promise and the replacement."""

    def adding(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None and key not in seen:
            seen.append(key)
            bench.writer.add([batch_of(9, 3 + len(seen), 1)])
        return body

    seen: list[str] = []
    bench.store.on_put = adding
    assert bench.compact().replaced == 6
    assert len(seen) == 2
    bench.require_whole()


def test_promise_of_a_run_that_ended_is_given_up_after_a_day(bench: CompactionBench) -> None:
    clock = ManualClock(SystemClock().now_ms())
    bench.store.set_faults([Fault(call=1, verb="put", but="/manifest/", error=StoreUnavailableError, calls=100)])
    with pytest.raises(StoreUnavailableError):
        bench.compact()
    [promise] = load_manifest(bench.memory, STREAM).rewrites
    bench.store.set_faults([])
    with contextlib.closing(LedgerOffloader(bench.store, bench.settings, clock=clock)) as offloader:
        bench.writer.add([batch_of(9, 4, 30)])
        assert offloader.history.compact(STREAM).replaced == 7
        assert load_manifest(bench.memory, STREAM).rewrites == (promise,)
        clock.advance(PROMISE_AGE_MS_MAX / 1000 + 1)
        bench.writer.add([batch_of(9, 34, 80)])
        offloader.history.compact(STREAM)
        bench.writer.add([batch_of(9, 114, 80)])
        offloader.history.compact(STREAM)
    assert load_manifest(bench.memory, STREAM).rewrites == ()
    bench.require_whole()


def test_held_stream_is_not_compacted_and_keeps_its_owner(bench: CompactionBench) -> None:
    epoch = bench.writer.log.commit([Hold(True, "court")]).epoch
    with pytest.raises(EditRefusedError, match="on hold"):
        bench.compact()
    assert load_manifest(bench.memory, STREAM).epoch == epoch
    bench.require_whole()


@pytest.mark.slow
def test_damaged_segment_is_left_and_the_other_merges_are_done() -> None:
    bench = CompactionBench(settings=sized(1150))
    uuids = [bench.writer.add([batch_of(1, 5 * number, 5, size=100)]) for number in range(6)]
    key = data_key(STREAM, uuids[2])
    data = bytearray(bench.memory.get(key)[0])
    data[300] ^= 1
    bench.memory.put(key, bytes(data))
    done = bench.compact()
    assert [type(error) for error in done.errors] == [CorruptError]
    assert key in str(done.errors[0])
    assert bench.ends() == [
        (Position(1, 0), Position(1, 9)),
        (Position(1, 10), Position(1, 14)),
        (Position(1, 15), Position(1, 19)),
        (Position(1, 20), Position(1, 29)),
    ]
    assert load_manifest(bench.memory, STREAM).rewrites == ()


@pytest.mark.slow
def test_results_that_read_back_wrong_replace_nothing(bench: CompactionBench) -> None:
    """The store confirms the upload and keeps other bytes."""

    def damaged(key: str, body: bytes) -> bytes:
        parsed = parse_object_key(key, STREAM)
        if parsed is None or parsed.is_index:
            return body
        return body[:400] + bytes([body[400] ^ 1]) + body[401:]

    before = bench.ends()
    bench.store.on_put = damaged
    done = bench.compact()
    assert (len(done.errors), done.merged, bench.ends()) == (1, [], before)
    bench.require_whole()


@pytest.mark.slow
def test_retention_during_a_compaction_is_planned_again(bench: CompactionBench) -> None:
    """It moves the start past a segment that was being merged."""

    def truncating(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None and not amended:
            amended.append(key)
            log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
            log.load()
            log.commit_as_maintainer([LedgersDeleted((2,)), Truncate(Position(3, 0))])
        return body

    amended: list[str] = []
    bench.store.on_put = truncating
    bench.compact()
    with open_stream_reader(bench.memory, STREAM) as reader:
        found = [entry for batch in reader.scan() for entry in batch.entries()]
    assert found == [entry for entry in bench.writer.entries if entry.ledger_id > 2]
    assert load_manifest(bench.memory, STREAM).rewrites == ()


@pytest.mark.slow
def test_full_store_leaves_the_stream_as_it_was(bench: CompactionBench) -> None:
    before = bench.ends()
    bench.store.set_faults([Fault(call=1, verb="put", but="/manifest/", error=StoreUnavailableError, calls=100)])
    with pytest.raises(StoreUnavailableError):
        bench.compact()
    assert bench.ends() == before
    bench.require_whole()
    bench.store.set_faults([])
    assert bench.compact().replaced == 6
    bench.require_whole()


@pytest.mark.slow
def test_a_manifest_rebuilt_afterwards_holds_the_merged_segments(bench: CompactionBench) -> None:
    """Old and new objects are both in the bucket, all written in one epoch."""
    bench.writer.log.commit([LedgerClosed(9, 3)])
    bench.compact()
    key = record_key(STREAM, load_manifest(bench.memory, STREAM).incarnation, 1)
    bench.memory.put(key, b"damaged")
    done = rebuild_manifest(bench.memory, STREAM, head=None, clock=SystemClock())
    assert [(each.summary.begin, each.summary.end) for each in done.chosen.recorded] == [
        (Position(2, 0), Position(9, 3))
    ]
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_only_half_of_the_old_objects_left_does_not_matter_to_a_rebuild(bench: CompactionBench) -> None:
    bench.compact()
    for uuid in bench.writer.uuids[::2]:
        bench.memory.delete([data_key(STREAM, uuid)])
    key = record_key(STREAM, load_manifest(bench.memory, STREAM).incarnation, 1)
    bench.memory.put(key, b"damaged")
    rebuild_manifest(bench.memory, STREAM, head=None, clock=SystemClock())
    assert stored_entries(bench.memory, STREAM) == bench.expected
