"""A ledger's standing and its chunks, over real segments and fills: every entry once, in order, or an error."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.manifest import Gap, LedgerClosed, LedgersDeleted, StreamDeleted, Truncate
from formats.segment_map import CRC_UNKNOWN
from formats.summary import Layout
from offloader.coverage import GapReason
from offloader.errors import NotFoundError
from offloader.manifest.segment_table import AT_ROOT
from offloader.read.fetch import Fetcher, SegmentObjects
from offloader.read.ledger_plan import (
    CHUNK_BYTES,
    NO_OBJECT,
    BrokerFacts,
    Chunk,
    LedgerIncompleteError,
    LedgerMismatch,
    LedgerStanding,
    LedgerTrimmed,
    Parts,
    chunks_of,
    ledger_chunks,
    ledger_standing,
    next_ledger,
    require_same_ledger,
    require_same_uuid,
    require_whole,
    split_large,
)
from offloader.settings import ReadSettings
from offloader.store.base import ByteRange
from offloader.store.open import open_store
from offloader.write.backfill_service import fill_gaps
from tests.support.broker_frames import block_entries
from tests.support.streams import StreamWriter, batch_of

_names = itertools.count()


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://plan-{next(_names)}"))


def standing_of(writer: StreamWriter, ledger_id: int, last: int | None = None) -> LedgerStanding:
    return ledger_standing(writer.log.load(), ledger_id, last=last)


def plan(writer: StreamWriter, ledger_id: int) -> tuple[LedgerStanding, list[Chunk]]:
    state = writer.log.load()
    standing = ledger_standing(state, ledger_id)
    require_whole(writer.stream, standing)
    fetcher = Fetcher(writer.store, ReadSettings())
    maps = [fetcher.index(SegmentObjects.of_record(writer.stream, each)) for each in standing.records]
    return standing, ledger_chunks(state, standing, maps, range(len(maps)))


def direct_entries(writer: StreamWriter, standing: LedgerStanding, chunks: Sequence[Chunk]) -> list[tuple[int, bytes]]:
    """What a broker decodes from the objects."""
    found = []
    for chunk in chunks:
        if chunk.object == NO_OBJECT:
            continue
        key, _ = standing.records[chunk.object].object_keys(writer.stream)
        for start, stop, _, _ in chunk.blocks:
            found += block_entries(writer.store.get(key, ByteRange(start, stop))[0])
    return found


def require_ids(chunks: Sequence[Chunk], last: int) -> None:
    assert [chunk.first for chunk in chunks] == [0, *(chunk.last + 1 for chunk in chunks[:-1])]
    assert chunks[-1].last == last


def markers(*ids: int, ledger_id: int = 7) -> EntryBatch:
    made = EntryBatch.build(ledger_id, 0, [f"marker {each}".encode() for each in ids])
    return EntryBatch(ledger_id, np.array(ids, dtype=np.int64), made.payloads, made.publish_times_ms)


def gap(first: int, last: int, ledger_id: int = 7) -> Gap:
    return Gap(Position(ledger_id, first), Position(ledger_id, last), GapReason.UNDELIVERED)


@pytest.mark.slow
def test_ledgers_of_several_segments_and_segments_of_several_ledgers(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 500, size=900)])
    writer.add([batch_of(7, 500, 300), batch_of(8, 0, 40)], closes=(7, 8))
    for ledger_id, entries, objects in ((7, 800, 2), (8, 40, 1)):
        standing, chunks = plan(writer, ledger_id)
        require_ids(chunks, entries - 1)
        wanted = [(each.entry_id, each.payload) for each in writer.entries if each.ledger_id == ledger_id]
        assert direct_entries(writer, standing, chunks) == wanted
        assert (standing.entries, len(standing.records), standing.is_closed) == (entries, objects, True)
        assert standing.payload_bytes == sum(len(payload) for _, payload in wanted)
        assert standing.payload_bytes == sum(chunk.payload_bytes for chunk in chunks)


@pytest.mark.slow
def test_chunks_have_about_four_mebibytes_and_whole_blocks(writer: StreamWriter) -> None:
    writer.block_bytes = 300_000
    writer.add([batch_of(7, 0, 200, size=100_000)], closes=(7,))
    standing, chunks = plan(writer, 7)
    require_ids(chunks, 199)
    assert len(chunks) == 5
    assert all(CHUNK_BYTES - 300_000 < chunk.payload_bytes <= CHUNK_BYTES for chunk in chunks[:-1])
    assert len(direct_entries(writer, standing, chunks)) == 200


def test_next_ledger_is_the_one_after_it_that_is_committed_as_a_whole(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10), batch_of(9, 0, 10)], closes=(7, 9))
    writer.log.commit([LedgerClosed(8, -1), LedgerClosed(12, 20)])
    writer.add([batch_of(12, 0, 20)])
    state = writer.log.load()
    assert [next_ledger(state, each) for each in (3, 7, 8, 9)] == [7, 9, 9, None]
    writer.add([batch_of(12, 20, 1)])
    assert next_ledger(writer.log.load(), 9) == 12
    writer.log.checkpoint()
    assert [next_ledger(writer.log.load(), each) for each in (7, 9, 12)] == [9, 12, None]


@pytest.mark.slow
def test_compressed_blocks_have_no_object(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 500, size=900)], codec=Codec.ZSTD, closes=(7,))
    standing, [chunk] = plan(writer, 7)
    assert (chunk.first, chunk.last, chunk.object, chunk.blocks) == (0, 499, NO_OBJECT, ())
    assert chunk.payload_bytes == standing.payload_bytes == 500 * 900


def test_plain_objects_of_pulsar_are_read_directly_in_v1_only(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 50, size=100)], layout=Layout.V1, extension=False, closes=(7,))
    writer.add([batch_of(8, 0, 50, size=100)], layout=Layout.V2, extension=False, closes=(8,))
    standing, chunks = plan(writer, 7)
    require_ids(chunks, 49)
    assert [entry_id for entry_id, _ in direct_entries(writer, standing, chunks)] == list(range(50))
    assert {checksum for chunk in chunks for _, _, checksum, _ in chunk.blocks} == {None}
    assert sum(chunk.payload_bytes for chunk in chunks) == standing.payload_bytes == 5000
    _, [chunk] = plan(writer, 8)
    assert (chunk.object, chunk.last, chunk.payload_bytes) == (NO_OBJECT, 49, 5000)


def test_large_plain_block_is_cut_by_entry_ids(writer: StreamWriter) -> None:
    writer.block_bytes = 32 * 1024 * 1024
    writer.add([batch_of(7, 0, 90, size=200_000)], layout=Layout.V1, extension=False, closes=(7,))
    _, chunks = plan(writer, 7)
    require_ids(chunks, 89)
    assert {chunk.object for chunk in chunks} == {NO_OBJECT}
    assert all(chunk.payload_bytes <= CHUNK_BYTES for chunk in chunks)
    assert sum(chunk.payload_bytes for chunk in chunks) == 90 * 200_000


def test_filled_gaps_are_part_of_the_ledger(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 2, 100, size=900)])
    writer.log.commit([gap(0, 1), gap(102, 102)])
    writer.add([batch_of(7, 103, 100, size=900)])
    writer.log.commit([gap(203, 203), LedgerClosed(7, 203)])
    standing = standing_of(writer, 7)
    assert (standing.missing, standing.holes, standing.is_whole) == (((0, 1), (102, 102), (203, 203)), (), False)
    with pytest.raises(
        LedgerIncompleteError, match=r"0\.\.1, 102\.\.102, 203\.\.203 are recorded as a gap \(4 in total\)"
    ):
        require_whole(writer.stream, standing)
    sent = markers(0, 1, 102)
    fill_gaps(writer.log, sent, 0, 102)
    assert standing_of(writer, 7).missing == ((203, 203),)
    fill_gaps(writer.log, markers(203), 203, 203)
    standing, chunks = plan(writer, 7)
    require_ids(chunks, 203)
    assert standing.payload_bytes == 200 * 900 + sent.payload_bytes + len(b"marker 203")
    assert sum(chunk.payload_bytes for chunk in chunks) == standing.payload_bytes


@pytest.mark.slow
def test_gap_far_from_a_chunk_leaves_it_direct(writer: StreamWriter) -> None:
    writer.block_bytes = 300_000
    writer.add([batch_of(7, 0, 100, size=100_000)])
    writer.log.commit([gap(100, 100)])
    writer.add([batch_of(7, 101, 100, size=100_000)], closes=(7,))
    fill_gaps(writer.log, markers(100), 100, 100)
    _, chunks = plan(writer, 7)
    require_ids(chunks, 200)
    assert [chunk.object for chunk in chunks] == [0, 0, NO_OBJECT, 1, 1]


def test_hole_is_an_error_and_says_where(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)])
    writer.log.commit([LedgerClosed(7, 19)])
    standing = standing_of(writer, 7)
    assert (standing.holes, standing.last) == (((10, 19),), 19)
    with pytest.raises(LedgerIncompleteError, match=r"entries 10\.\.19 are missing"):
        require_whole(writer.stream, standing)


def test_index_that_lacks_entries_is_an_error(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    state = writer.log.load()
    standing = ledger_standing(state, 7)
    other = StreamWriter(writer.store, "other")
    other.add([batch_of(7, 0, 9)])
    record = other.log.load().segments.get(other.uuids[0])
    assert record is not None
    segment_map = Fetcher(writer.store, ReadSettings()).index(SegmentObjects.of_record("other", record))
    with pytest.raises(LedgerIncompleteError, match="indexes have a hole"):
        ledger_chunks(state, dataclasses.replace(standing, last=10), [segment_map], [0])


def test_only_what_the_manifest_says_was_deleted_is_trimmed(writer: StreamWriter) -> None:
    for ledger_id in (7, 8, 9):
        writer.add([batch_of(ledger_id, 0, 10)], closes=(ledger_id,))
    writer.log.commit([Truncate(Position(8, 0))])
    with pytest.raises(LedgerTrimmed, match="begins at 8:0"):
        standing_of(writer, 7)
    assert standing_of(writer, 8).is_whole
    with pytest.raises(NotFoundError, match="no entry of ledger 10"):
        standing_of(writer, 10)
    with pytest.raises(NotFoundError, match="no entry of ledger 10"):
        standing_of(writer, 10, last=4)
    writer.log.commit([Truncate(Position(8, 10))])
    with pytest.raises(LedgerTrimmed):
        standing_of(writer, 8)
    assert standing_of(writer, 9).is_whole


def test_deleted_ledger_and_deleted_stream_are_trimmed(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    writer.add([batch_of(8, 0, 10)], closes=(8,))
    writer.log.commit([LedgersDeleted((7,))])
    with pytest.raises(LedgerTrimmed, match="deleted from the stream"):
        standing_of(writer, 7)
    writer.log.commit([StreamDeleted()])
    with pytest.raises(LedgerTrimmed, match="the stream was deleted"):
        ledger_standing(writer.log.state, 8)


def test_truncated_part_has_a_chunk_that_nothing_is_read_for(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 100, size=900)], closes=(7,))
    writer.log.commit([Truncate(Position(7, 37))])
    standing, chunks = plan(writer, 7)
    assert (standing.first, standing.is_whole) == (37, True)
    require_ids(chunks, 99)
    assert (chunks[0].object, chunks[0].first) == (NO_OBJECT, 0)
    assert min(entry_id for entry_id, _ in direct_entries(writer, standing, chunks[1:]) or [(37, b"")]) >= 37


def facts(**changed: object) -> BrokerFacts:
    values = {"uuid": None, "last": 99, "length": 2000, "entries": 100, "created_ms": 5000, **changed}
    return BrokerFacts(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"length": 2001}, "have 2001 bytes, those in the cold tier have 2000"),
        ({"last": 98, "entries": 99, "length": 1980}, "ends at entry 98, the manifest's at 99"),
        ({"last": 100, "entries": 101}, "ends at entry 100, the manifest's at 99"),
        ({"entries": 99}, "has 99 entries up to 99"),
        ({"created_ms": 5001}, "opened at 5001 ms, the manifest's at 5000 ms"),
    ],
)
def test_ledger_that_differs_from_the_brokers_is_refused(
    writer: StreamWriter, changed: dict[str, int], why: str
) -> None:
    writer.add([batch_of(7, 0, 100)])
    writer.log.commit([LedgerClosed(7, 99, 2000, 5000)])
    standing = standing_of(writer, 7)
    require_same_ledger(writer.stream, standing, facts())
    require_same_ledger(writer.stream, standing, facts(created_ms=None))
    with pytest.raises(LedgerMismatch, match=why):
        require_same_ledger(writer.stream, standing, facts(**changed))


def test_ledger_that_is_longer_than_the_brokers_is_refused_before_it_is_closed(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 100)])
    standing = standing_of(writer, 7, last=49)
    with pytest.raises(LedgerMismatch, match="ends at entry 49, but the cold tier has entry 99"):
        require_same_ledger(writer.stream, standing, facts(last=49, entries=50, length=1000))


def test_adopted_ledger_has_the_uuid_of_its_attempt(writer: StreamWriter) -> None:
    driver = {**writer.store.driver_metadata, **AT_ROOT}
    own = writer.add([batch_of(7, 0, 10)], layout=Layout.V1, extension=False, closes=(7,), driver=driver)
    standing = standing_of(writer, 7)
    require_same_uuid(writer.stream, standing, own)
    require_same_uuid(writer.stream, standing, None)
    with pytest.raises(LedgerMismatch, match=str(own)):
        require_same_uuid(writer.stream, standing, uuid4())


def test_our_own_ledger_is_shared_by_all_attempts(writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    require_same_uuid(writer.stream, standing_of(writer, 7), UUID(int=1))


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 900), st.integers(-1, 2), st.booleans()), min_size=1, max_size=40
    ),
    st.integers(1, 2000),
)
def test_chunks_cover_every_part_once_within_their_size(
    given_parts: list[tuple[int, int, int, bool]], most: int
) -> None:
    entries, payload, objects, apart = (np.array(each) for each in zip(*given_parts, strict=True))
    last = np.cumsum(entries) - 1
    lengths = np.where(objects >= 0, payload + 128, 0)
    stop = np.cumsum(lengths + apart)
    is_direct = objects >= 0
    parts = Parts(
        first=last - entries + 1,
        last=last,
        payload_bytes=payload,
        object=objects,
        start=np.where(is_direct, stop - lengths, 0),
        stop=np.where(is_direct, stop, 0),
        crc32c=np.where(is_direct, last, CRC_UNKNOWN),
    )
    cut = split_large(parts, most)
    chunks = chunks_of(cut, most)
    require_ids(chunks, int(last[-1]))
    assert sum(chunk.payload_bytes for chunk in chunks) == int(payload.sum())
    for chunk in chunks:
        rows = [row for row in range(len(cut)) if chunk.first <= cut.first[row] and cut.last[row] <= chunk.last]
        assert chunk.payload_bytes <= most or len(rows) == 1
        if chunk.object == NO_OBJECT:
            assert any(cut.object[row] == NO_OBJECT for row in rows)
            continue
        assert {int(cut.object[row]) for row in rows} == {chunk.object}
        starts, stops, checksums, firsts = zip(*chunk.blocks, strict=True)
        assert starts == (chunk.start, *stops[:-1])
        assert list(checksums) == [int(cut.crc32c[row]) for row in rows]
        assert list(firsts) == [int(cut.first[row]) for row in rows]
