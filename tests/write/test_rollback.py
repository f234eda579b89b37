"""Rewriting ledgers of V2 segments into V1 objects: every entry is readable exactly once after any failure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.block import decode_block
from formats.entries import EntryBatch, Position
from formats.keys import data_key, index_key, parse_object_key, record_key
from formats.manifest import Adopt, Edit, Gap, Hold, LedgerClosed, LedgersDeleted, Resume, Retire, SetMethod, Truncate
from formats.segment import Codec
from formats.segment_map import SegmentMap
from formats.summary import Layout
from offloader.errors import Fenced, InvalidCall, OffloaderError, StoreUnavailable
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.apply import apply_edits
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.state import EditRefused, ManifestState, offload_context
from offloader.read.reader import open_stream_reader, read_offloaded
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import OVERWRITE, Body, ObjectInfo, PutMode
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.replacement import EntryDigest
from offloader.write.rollback import RewriteResult, next_group, streamed_ledgers
from tests.support.manifests import summary_of
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
#: One task at a time, so that the n-th storage call is the same one each time.
SETTINGS = Settings.of({"offload": {"block_bytes": 1024, "backfill_segments_in_flight_max": 1}})
_names = count()


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


class Bench:
    """A stream of V2 segments that share ledgers; the last ledger is open."""

    def __init__(self, *, settings: Settings = SETTINGS) -> None:
        self.memory = MemoryStore(f"rollback-{next(_names)}", "", SystemClock())
        self.store = FaultStore(self.memory)
        self.settings = settings
        self.writer = StreamWriter(self.memory, STREAM)

    def add_segments(self) -> None:
        add = self.writer.add
        add([batch_of(2, 0, 12)], layout=Layout.V1, closes=[2])
        add([batch_of(3, 0, 10)])
        add([batch_of(3, 10, 20), batch_of(4, 0, 30), batch_of(6, 0, 5)], closes=[3, 4])
        add([batch_of(6, 5, 15), batch_of(7, 0, 9)], closes=[6])
        add([batch_of(7, 9, 3), batch_of(8, 0, 40), batch_of(9, 0, 4)], closes=[7, 8])

    @property
    def expected(self) -> list[tuple[Position, bytes]]:
        return [(entry.position, entry.payload) for entry in self.writer.entries]

    def rollback(self, *, delete: tuple[int, ...] = (), take_over: bool = True) -> RewriteResult:
        offloader = LedgerOffloader(self.store, self.settings)
        try:
            return offloader.history.rollback(STREAM, delete=delete, take_over=take_over)
        finally:
            offloader.close()

    def layouts(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for segment in load_manifest(self.memory, STREAM).offloaded():
            assert segment.summary is not None
            for span in segment.summary.ledgers:
                found.setdefault(span.ledger_id, set()).add(segment.layout)
        return found

    def require_whole(self) -> None:
        """Every entry exactly once and in order, by an independent reader and by ours."""
        assert stored_entries(self.memory, STREAM) == self.expected
        with open_stream_reader(self.memory, STREAM) as reader:
            assert [entry for batch in reader.scan() for entry in batch.entries()] == self.writer.entries


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.add_segments()
    return made


@pytest.mark.slow
def test_every_closed_ledger_becomes_v1_and_the_open_one_stays(bench: Bench) -> None:
    done = bench.rollback()

    bench.require_whole()
    assert bench.layouts() == {2: {1}, 3: {1}, 4: {1}, 6: {1}, 7: {1}, 8: {1}, 9: {2}}
    assert [summary.begin.ledger_id for _, summary in done.rewritten] == [3, 4, 6, 7, 8]
    assert [(each.ledger_id, each.obstacle) for each in done.left] == [(9, "it isn't recorded as closed")]
    state = load_manifest(bench.memory, STREAM)
    assert (state.method, done.replaced, len(state.replaced), state.rewrites) == ("ledger", 4, 4, ())
    assert state.committed_end() == Position(9, 3)


def test_an_old_reader_reads_the_ledger_by_its_context(bench: Bench) -> None:
    """What a broker of before keeps of a ledger: one uuid, complete."""
    bench.rollback()
    context = offload_context(load_manifest(bench.memory, STREAM), 6)
    assert (context.complete, context.segments) == (True, ())
    handle = read_offloaded(bench.memory, 6, context, {}, stream=STREAM)
    assert (handle.last_entry_id, handle.closed_ledger, handle.length) == (19, True, 20 * 20)
    assert [entry.payload for entry in handle.read(0, 19)] == [p for at, p in bench.expected if at.ledger_id == 6]


def test_second_rollback_has_nothing_to_do_and_opens_no_epoch(bench: Bench) -> None:
    bench.rollback()
    record = load_manifest(bench.memory, STREAM).record_id
    done = bench.rollback()
    assert (done.rewritten, done.replaced) == ([], 0)
    assert load_manifest(bench.memory, STREAM).record_id == record


@pytest.mark.slow
def test_ledger_closed_later_is_rewritten_with_what_was_left_over(bench: Bench) -> None:
    bench.rollback()
    writer = StreamWriter(bench.memory, STREAM, entries=bench.writer.entries)
    writer.add([batch_of(9, 4, 6)], closes=[9])
    bench.rollback()
    bench.require_whole()
    assert set(map(tuple, bench.layouts().values())) == {(1,)}


def test_replaced_segments_are_not_deleted_by_the_rollback(bench: Bench) -> None:
    """A reader that pinned the previous view continues; its segments are deleted only after the grace period."""
    before = open_stream_reader(bench.memory, STREAM)
    keys = {info.key for info in bench.memory.list("").objects if parse_object_key(info.key, STREAM)}
    bench.rollback()
    assert keys <= {info.key for info in bench.memory.list("").objects}
    assert [entry for batch in before.scan() for entry in batch.entries()] == bench.writer.entries
    assert "delete" not in [verb for verb, _ in bench.store.calls]


@pytest.mark.slow
def test_rewriting_by_groups_writes_little_twice() -> None:
    """Ledgers as small as a tenth of a segment: only what borders on another group is written more than once."""
    bench = Bench(settings=Settings.of({"offload": {"max_size_per_offload_segment_mbytes": 0.001}}))
    ledger, first = 1, 0
    for _ in range(30):
        batches = []
        for size in (40, 40, 20):
            batches.append(batch_of(ledger, first, size, size=300))
            first += size
            if first >= 60:
                ledger, first = ledger + 1, 0
        bench.writer.add(batches, closes={batch.ledger_id for batch in batches if batch.ledger_id < ledger})
    before = sum(info.size_bytes for info in bench.memory.list("").objects)
    done = bench.rollback()
    bench.require_whole()
    written = sum(info.size_bytes for info in bench.memory.list("").objects) - before
    assert len(done.rewritten) > 30
    assert written < 2 * before


def test_a_compressed_stream_becomes_readable_too(bench: Bench) -> None:
    """An old reader knows no zstd, whatever the layout."""
    compressed = Bench()
    compressed.writer.add([batch_of(1, 0, 100)], layout=Layout.V1, codec=Codec.ZSTD, closes=[1])
    compressed.writer.add([batch_of(2, 0, 100)], codec=Codec.ZSTD, closes=[2])
    compressed.rollback()
    compressed.require_whole()
    state = load_manifest(compressed.memory, STREAM)
    assert [s.summary is not None and s.summary.compressed for s in state.offloaded()] == [False, False]
    assert streamed_ledgers(state) == []
    metadata = compressed.memory.head(data_key(STREAM, state.offloaded()[0].uuid, 1)).metadata
    assert "1" in [value for name, value in (metadata or {}).items() if name.endswith("formatversion")]
    with pytest.raises(InvalidCall, match="can't read codec zstd"):
        LedgerOffloader(bench.store, Settings.of({"offload": {"codec": "zstd"}})).history.rollback(STREAM)


def test_ledgers_with_gaps_are_refused_and_their_neighbours_rewritten() -> None:
    bench = Bench()
    bench.writer.add([batch_of(1, 0, 10), batch_of(2, 0, 4)], closes=[1])
    bench.writer.log.commit([Gap(Position(2, 4), Position(2, 6), "expired")])
    bench.writer.add([batch_of(2, 7, 3), batch_of(3, 0, 10)], closes=[3])
    bench.writer.log.commit([LedgerClosed(2, 9)])
    done = bench.rollback()
    bench.require_whole()
    assert [(each.ledger_id, each.obstacle) for each in done.left] == [(2, "entries 4..6 are a gap (expired)")]
    assert bench.layouts() == {1: {1}, 2: {2}, 3: {1}}


def test_obstacles_to_rewriting_a_ledger_are_named(bench: Bench) -> None:
    log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
    log.load()
    log.commit_as_maintainer([Truncate(Position(3, 15)), LedgersDeleted((7,)), LedgerClosed(9, 5)])
    assert {each.ledger_id: each.obstacle for each in streamed_ledgers(log.state)} == {
        3: "the stream begins at 3:15",
        4: "",
        6: "",
        7: "it is deleted from the stream",
        8: "",
        9: "entries 4..5 aren't offloaded",
    }
    bench.rollback()
    with open_stream_reader(bench.memory, STREAM) as reader:
        found = [entry for batch in reader.scan() for entry in batch.entries()]
    assert [each for each in found if each.ledger_id != 7] == [
        each for each in bench.writer.entries if each.position >= Position(3, 15) and each.ledger_id != 7
    ]


def test_rollback_deletes_exactly_the_named_ledgers(bench: Bench) -> None:
    done = bench.rollback(delete=(4, 9))
    state = load_manifest(bench.memory, STREAM)
    assert done.deleted == [4, 9]
    assert done.retired == 0, "what is deleted isn't written anew first"
    assert set(state.deleted_ledgers) == {4, 9}
    assert done.left == []
    kept = [entry for entry in bench.writer.entries if entry.ledger_id not in (4, 9)]
    with open_stream_reader(bench.memory, STREAM) as reader:
        assert [entry for batch in reader.scan() for entry in batch.entries()] == kept
    with pytest.raises(InvalidCall, match="an old reader reads ledger 2"):
        bench.rollback(delete=(2,))


def test_deleting_all_ledgers_of_a_segment_retires_it() -> None:
    bench = Bench()
    bench.writer.add([batch_of(1, 0, 10), batch_of(2, 0, 4)], closes=[1, 2])
    bench.writer.add([batch_of(3, 0, 10)], closes=[3])
    done = bench.rollback(delete=(1, 2))
    assert (done.retired, len(done.rewritten)) == (1, 1)
    assert [s.status.value for s in load_manifest(bench.memory, STREAM).segments.values()] == ["retired", "offloaded"]


@pytest.mark.slow
def test_a_living_owner_keeps_its_stream_and_a_taken_one_is_fenced(bench: Bench) -> None:
    record = load_manifest(bench.memory, STREAM).record_id
    with pytest.raises(Fenced, match="is owned by"):
        bench.rollback(take_over=False)
    assert load_manifest(bench.memory, STREAM).record_id == record
    bench.rollback()
    with pytest.raises(Fenced):
        bench.writer.log.commit([SetMethod("streaming")])
    bench.require_whole()


@pytest.mark.slow
def test_writer_taking_the_stream_fences_the_rollback(bench: Bench) -> None:
    def taken(key: str, body: bytes) -> bytes:
        if "/manifest/" in key and b'"edit":"replace"' in body and not takers:
            takers.append(StreamWriter(bench.memory, STREAM))
        return body

    takers: list[StreamWriter] = []
    bench.store.on_put = taken
    with pytest.raises(Fenced):
        bench.rollback()
    assert len(takers) == 1
    bench.require_whole()


@pytest.mark.slow
def test_one_of_two_concurrent_rollbacks_continues_and_the_other_is_fenced(bench: Bench) -> None:
    def other(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None and not others:
            with contextlib.closing(LedgerOffloader(bench.memory, bench.settings)) as second:
                others.append(second.history.rollback(STREAM))
        return body

    others: list[RewriteResult] = []
    bench.store.on_put = other
    with pytest.raises(Fenced):
        bench.rollback()
    assert [summary.begin.ledger_id for _, summary in others[0].rewritten] == [3, 4, 6, 7, 8]
    bench.require_whole()


@pytest.mark.slow
def test_next_writer_gives_up_what_an_interrupted_rollback_promised(tmp_path: Path) -> None:
    """Else the objects that it left could never be swept."""
    bench = Bench()
    memory = MemoryStore(f"rollback-{next(_names)}", "", SystemClock())
    offload = {"max_size_per_offload_segment_mbytes": 0.001, "drain_seconds_max": 0}
    made = Settings.of({"offload": offload, "ledgers": {"ledger_entries_max": 50}})
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    expected = []
    for first in (True, False):
        with open_managed_ledger(STREAM, ledgers=ledgers, store=memory, settings=made) as topic:
            for batch in topic.append_batch([b"%d" % n for n in range(120)]):
                expected += [(entry.position, entry.payload) for entry in batch.entries()]
            topic.offload(timeout_s=PATIENCE_S)
        if first:
            bench.store = FaultStore(memory, [Fault(call=1, verb="put", key_part="-ledger-", error=StoreUnavailable)])
            with pytest.raises(StoreUnavailable):
                bench.rollback()
            assert load_manifest(memory, STREAM).rewrites != ()
    state = load_manifest(memory, STREAM)
    assert (state.rewrites, state.method) == ((), "streaming")
    assert stored_entries(memory, STREAM) == expected


def test_held_stream_is_not_rewritten(bench: Bench) -> None:
    bench.writer.log.commit([Hold(True, "court")])
    with pytest.raises(EditRefused, match="on hold"):
        bench.rollback()
    bench.require_whole()


def test_damaged_segment_keeps_its_ledgers_and_others_are_rewritten() -> None:
    bench = Bench(settings=Settings.of({"offload": {"max_size_per_offload_segment_mbytes": 0.001}}))
    bench.writer.add([batch_of(1, 0, 300)], closes=[1])
    damaged = bench.writer.add([batch_of(2, 0, 300)], closes=[2])
    bench.writer.add([batch_of(3, 0, 300)], closes=[3])
    key = data_key(STREAM, damaged)
    data = bytearray(bench.memory.get(key)[0])
    data[300] ^= 1
    bench.memory.put(key, bytes(data))
    done = bench.rollback()
    assert bench.layouts() == {1: {1}, 2: {2}, 3: {1}}
    [left] = done.left
    assert left.ledger_id == 2
    assert key in left.obstacle
    assert len(done.errors) == 1
    assert load_manifest(bench.memory, STREAM).rewrites == ()


@pytest.mark.slow
def test_rewritten_objects_that_read_back_wrong_replace_nothing(bench: Bench) -> None:
    """The store confirms the upload and keeps other bytes."""

    def damaged(key: str, body: bytes) -> bytes:
        parsed = parse_object_key(key, STREAM)
        if parsed is None or parsed.ledger_id != 4 or parsed.is_index:
            return body
        return body[:400] + bytes([body[400] ^ 1]) + body[401:]

    bench.store.on_put = damaged
    done = bench.rollback()
    assert len(done.errors) == 1
    assert bench.layouts()[4] == {2}
    bench.require_whole()


@pytest.mark.slow
def test_a_manifest_rebuilt_afterwards_holds_every_entry_once(bench: Bench) -> None:
    """Old and new objects are both in the bucket: they overlap, and only one of each is recorded."""
    bench.rollback()
    key = record_key(STREAM, load_manifest(bench.memory, STREAM).incarnation, 1)
    bench.memory.put(key, b"damaged")
    ends = {3: 29, 4: 29, 6: 19, 7: 11, 8: 39}
    done = rebuild_manifest(bench.memory, STREAM, head=None, clock=SystemClock(), closed_ledgers=ends)
    assert len(done.chosen.overlapping) == 4
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_rewritten_objects_are_readable_by_an_independent_decoder(bench: Bench) -> None:
    bench.rollback()
    state = load_manifest(bench.memory, STREAM)
    [segment] = state.offloaded(Position(8, 0), Position(8, 0))
    data = bench.memory.get(data_key(STREAM, segment.uuid, 8))[0]
    index = SegmentMap.parse(bench.memory.get(index_key(STREAM, segment.uuid, 8))[0], ledger_id=8)
    assert index.layout is Layout.V1
    found = []
    for offset in index.blocks.offset.tolist():
        batch = decode_block(data[offset:], block_bytes_max=2**30, decompressed_bytes_max=2**30, ledger_id=8)
        found += [(entry.position, entry.payload) for entry in batch.entries()]
    assert found == [each for each in bench.expected if each[0].ledger_id == 8]


def test_a_segment_with_a_hole_inside_is_not_taken_for_a_whole_ledger() -> None:
    """Other writers produce them: the ids at the ends are 0..9, the count shows that two are missing."""
    whole = summary_of(Position(1, 0), Position(1, 9))
    [span] = whole.ledgers
    holed = replace(whole, entries=8, ledgers=(replace(span, entries=8),))
    edits = [LedgerClosed(1, 9), Adopt(UUID(int=1), holed, {}, True)]
    state = apply_edits(ManifestState(stream="s", incarnation=UUID(int=7)), edits, record_id=1)
    assert [each.obstacle for each in streamed_ledgers(state)] == ["entries 0..9 aren't offloaded"]


def test_digest_depends_on_entries_and_not_on_batches() -> None:
    def digest(*batches: EntryBatch) -> bytes:
        made = EntryDigest()
        for each in batches:
            made.add(each)
        return made.value()

    whole = batch_of(1, 0, 10)
    assert digest(whole) == digest(whole.slice(0, 3), whole.slice(3, 4), whole.slice(4, 10)) == digest(whole.copy())
    entries = [entry.payload for entry in whole.entries()]
    others = [
        EntryBatch.build(1, 0, [*entries[:9], b"other"], whole.publish_times_ms),
        EntryBatch.build(1, 0, [entries[0] + entries[1][:1], entries[1][1:], *entries[2:]], whole.publish_times_ms),
        EntryBatch.build(1, 1, entries, whole.publish_times_ms),
        EntryBatch.build(1, 0, entries, whole.publish_times_ms + 1),
        whole.slice(0, 9),
    ]
    assert len({digest(whole), *map(digest, others)}) == 6


def test_a_plan_of_nothing_is_nothing(bench: Bench) -> None:
    assert next_group(load_manifest(bench.memory, STREAM), [], 1) is None


@pytest.mark.slow
def test_ledgers_deleted_during_a_rollback_are_planned_again(bench: Bench) -> None:
    """Ledger 4's entries are marked as deleted, and ledger 3's first segment is retired, during the upload."""

    def deleting(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None and not amended:
            amended.append(key)
            log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
            log.load()
            first = log.state.offloaded(Position(3, 0), Position(3, 0))[0]
            log.commit_as_maintainer([LedgersDeleted((3, 4)), Retire((first.uuid,))])
        return body

    amended: list[str] = []
    bench.store.on_put = deleting
    done = bench.rollback()
    assert [summary.begin.ledger_id for _, summary in done.rewritten] == [6, 7, 8]
    with open_stream_reader(bench.memory, STREAM) as reader:
        found = [entry for batch in reader.scan() for entry in batch.entries() if entry.ledger_id not in (3, 4)]
    assert found == [entry for entry in bench.writer.entries if entry.ledger_id not in (3, 4)]
    assert load_manifest(bench.memory, STREAM).rewrites == ()


@pytest.mark.slow
def test_ledger_completed_during_a_rollback_is_left_to_the_next_run(bench: Bench) -> None:
    def closing(key: str, body: bytes) -> bytes:
        if parse_object_key(key, STREAM) is not None:
            log = ManifestLog(bench.memory, STREAM, clock=SystemClock())
            if 9 not in log.load().closed_ledgers:
                log.commit_as_maintainer([LedgerClosed(9, 3)])
        return body

    bench.store.on_put = closing
    done = bench.rollback()
    assert [(each.ledger_id, each.obstacle) for each in done.left] == [
        (9, "it was completed during the run: the next run rewrites it")
    ]
    assert bench.rollback().left == []
    bench.require_whole()


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, bool]], set[int], set[int]]:
    """Pieces of a stream (ledger, first entry, entries, whether a segment ends there), its closed ledgers, and gaps."""
    pieces: list[tuple[int, int, int, bool]] = []
    ledgers = draw(st.integers(1, 5))
    gaps = draw(st.sets(st.integers(1, ledgers), max_size=2))
    for ledger in range(1, ledgers + 1):
        first = 0
        for size in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
            pieces.append((ledger, first, size, draw(st.booleans())))
            first += size
    closed = set(range(1, ledgers + draw(st.integers(0, 1))))
    return pieces, closed, gaps & closed


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(stream=streams(), at=st.integers(1, 60), small=st.booleans(), deleted=st.sets(st.integers(1, 5), max_size=1))
def test_random_rollback_with_a_fault_keeps_every_entry_readable_once(
    stream: tuple[list[tuple[int, int, int, bool]], set[int], set[int]], at: int, small: bool, deleted: set[int]
) -> None:
    pieces, closed, gaps = stream
    size_mbytes = 0.001 if small else 1
    offload = {"max_size_per_offload_segment_mbytes": size_mbytes, "backfill_segments_in_flight_max": 1}
    bench = Bench(settings=Settings.of({"offload": offload}))
    _write(bench.writer, pieces, closed, gaps)
    before = load_manifest(bench.memory, STREAM)
    delete = tuple(deleted & {each.ledger_id for each in streamed_ledgers(before)})
    expected = [entry for entry in bench.writer.entries if entry.ledger_id not in delete]

    bench.store.set_faults([Fault(call=at, after=bool(at % 2))])
    for _ in range(2):
        with contextlib.suppress(OffloaderError):
            gone = load_manifest(bench.memory, STREAM).deleted_ledgers
            bench.rollback(delete=tuple(each for each in delete if each not in gone))
        with open_stream_reader(bench.memory, STREAM) as reader:
            found = [entry for batch in reader.scan() for entry in batch.entries() if entry.ledger_id not in delete]
        assert found == expected
        state = load_manifest(bench.memory, STREAM)
        assert state.offloaded().sums() == state.sums
        assert (state.committed_end(), state.newest_end) == (before.committed_end(), before.newest_end)
        bench.store.set_faults([])
    assert {each.ledger_id for each in streamed_ledgers(state) if not each.obstacle} == set()
    assert state.rewrites == ()
    assert {ledger for ledger, found in bench.layouts().items() if found == {1}} == closed - gaps - deleted


def _write(writer: StreamWriter, pieces: list[tuple[int, int, int, bool]], closed: set[int], gaps: set[int]) -> None:
    """Segments of the pieces; of a ledger with a gap the first entry is lost."""
    batches: list[EntryBatch] = []
    ends = {ledger: first + size for ledger, first, size, _ in pieces}
    for number, (ledger, first, size, ends_here) in enumerate(pieces):
        lost = first if ledger in gaps and first == 0 else None
        if lost is not None:
            if batches:
                _put(writer, batches, closed, ends)
                batches = []
            writer.log.commit(
                [*_facts(writer, ledger - 1, closed, ends), Gap(Position(ledger, 0), Position(ledger, 0), "lost")]
            )
            first, size = 1, size - 1
        if size:
            batches.append(batch_of(ledger, first, size, size=300))
        if batches and (ends_here or number == len(pieces) - 1):
            _put(writer, batches, closed, ends)
            batches = []
    writer.log.commit(_facts(writer, max(ends), closed, ends) or [Resume()])


def _put(writer: StreamWriter, batches: list[EntryBatch], closed: set[int], ends: dict[int, int]) -> None:
    writer.add(batches, closes=[])
    facts = _facts(writer, batches[-1].ledger_id - 1, closed, ends)
    if facts:
        writer.log.commit(facts)


def _facts(writer: StreamWriter, up_to: int, closed: set[int], ends: dict[int, int]) -> list[Edit]:
    known = writer.log.state.closed_ledgers
    return [LedgerClosed(each, ends[each] - 1) for each in sorted(closed) if each <= up_to and each not in known]
