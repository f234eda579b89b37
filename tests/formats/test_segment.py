"""Segments: boundaries of blocks and parts, refused input, and round trips."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.block import decode_block_header, walk
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import InconsistentError, LimitExceededError
from formats.extension import ROW, Codec, encode_entry_table, encode_index_rows
from formats.index import INDEX_ENTRY, IndexGroup, ObjectIndex, decode_index, encode_index, seal_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.segment import LedgerFacts, SegmentBuilder, SegmentMap
from formats.summary import Layout, LedgerSpan
from tests.formats.segments import batch, block_bytes, build, decode, entries_of, read
from tests.independent_reader import check_blocks, read_segment

MIB = 1 << 20


def cuts(data: bytes) -> list[tuple[int, int, int, int]]:
    """Of a plain object: offset, first entry, last entry and padding bytes of each block."""
    found = []
    for _, offset, first, _ in check_blocks(data):
        header = decode_block_header(data[offset:])
        block = np.frombuffer(data[offset : offset + header.block_bytes], dtype=np.uint8)
        lengths, end = walk(block, 128, len(block), -1)
        found.append((offset, first, first + len(lengths) - 1, len(block) - end))
    return found


@pytest.mark.parametrize(
    ("last_entry", "block_bytes", "entries", "padding_bytes", "end"),
    [(160, 3153, 151, 5, 150), (120, 2148, 101, 0, 100), (89, 1928, 90, 0, 89)],
)
def test_v1_blocks_are_cut_where_pulsar_cuts_them(
    last_entry: int, block_bytes: int, entries: int, padding_bytes: int, end: int
) -> None:
    payloads = [b"12345678"] * (last_entry + 1)
    data, finished = build([batch(1, 0, payloads)], layout=Layout.V1, block_bytes=block_bytes, extension=False)
    offset, first, last, padded = cuts(data)[0]
    assert (offset, first, last, padded) == (0, 0, end, padding_bytes)
    assert last - first + 1 == entries
    assert read(data, finished.index, 1) == [(1, at, b"12345678") for at in range(last_entry + 1)]


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_an_entry_above_the_block_target_gets_a_block_of_its_own(layout: Layout, extension: bool) -> None:
    payloads = [b"a" * 10, b"b" * 1000, b"c" * 5000, b"d" * 10]
    data, finished = build([batch(1, 0, payloads)], layout=layout, block_bytes=1128, extension=extension)
    assert [e[2] for e in read_segment(data, finished.index, 1)] == payloads
    assert [first for _, _, first, _ in check_blocks(data)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_half_a_million_small_entries_are_cut_as_by_pulsar() -> None:
    count = 550_747
    digits = np.array([len(str(at)) for at in range(count)], dtype=np.int64)
    text = "".join(f"foobar{at}" for at in range(count)).encode()
    assert len(text) == 6_497_854 == int(digits.sum()) + 6 * count
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(digits + 6, out=offsets[1:])
    payloads = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)], null_count=0
    )
    whole = EntryBatch.build(1, 0, payloads)
    pieces = [whole.slice(at, at + 100_003) for at in range(0, count, 100_003)]
    data, finished = build(pieces, layout=Layout.V1, block_bytes=5_242_880, extension=False)
    found = cuts(data)
    assert [first for _, first, _, _ in found] == [0, 223_077, 441_525]
    assert [padded for _, _, _, padded in found] == [14, 0, 0]
    sizes = np.diff([offset for offset, _, _, _ in found] + [len(data)]).tolist()
    assert sizes == [5_242_880, 5_242_880, 2_621_456]
    ledger = BookKeeperLedger.decode(SegmentMap.parse(finished.index).ledgers[0].metadata)
    assert (ledger.last_entry_id, ledger.length_bytes) == (count - 1, 6_497_854)
    found_map = SegmentMap.parse(finished.index, ledger_id=1)
    back = decode(found_map, data)
    assert sum(map(len, back)) == count
    assert b"".join(bytes(b.data[b.offsets[0] : b.offsets[-1]]) for b in back) == text


@pytest.mark.parametrize("extension", [False, True])
def test_a_change_of_ledger_and_a_gap_cut_the_block(extension: bool) -> None:
    gap = EntryBatch(
        3, np.array([5, 6, 9, 11], dtype=np.int64), pa.array([b"a", b"b", b"c", b"d"], pa.binary()), np.arange(4)
    )
    batches = [batch(1, 127, [b""] * 3), batch(2, 0, [b"x"]), gap, batch(3, 12, [b"e"]), batch(3, 20, [b"f"])]
    data, finished = build(batches, extension=extension)
    starts = [(ledger, first) for _, _, first, ledger in check_blocks(data)]
    assert starts == [(1, 127), (2, 0), (3, 5), (3, 9), (3, 11), (3, 20)]
    assert read(data, finished.index) == read_segment(data, finished.index) == entries_of(batches)
    assert finished.summary.ledgers == (
        LedgerSpan(1, 127, 129, 3, 0),
        LedgerSpan(2, 0, 0, 1, 1),
        LedgerSpan(3, 5, 20, 6, 6),
    )
    metadata = [PulsarLedger.decode(g.metadata) for g in SegmentMap.parse(finished.index).ledgers]
    assert [(ledger.ledger_id, ledger.entries) for ledger in metadata] == [(1, 130), (2, 1), (3, 21)]


@pytest.mark.parametrize("first", [127, 128, 129, 1000])
def test_segments_may_start_at_any_entry(first: int) -> None:
    batches = [batch(7, first, [bytes([at % 256]) * 50 for at in range(300)])]
    data, finished = build(batches)
    assert finished.summary.begin == Position(7, first)
    assert finished.summary.end == Position(7, first + 299)
    assert read(data, finished.index) == read_segment(data, finished.index) == entries_of(batches)


def test_a_block_boundary_at_entry_128() -> None:
    batches = [batch(7, 0, [b"x" * 20] * 128 + [b"y" * 20] * 10)]
    data, _ = build(batches, block_bytes=128 + 4 + 128 * 32, extension=False)
    assert [(first, last, padded) for _, first, last, padded in cuts(data)] == [(0, 127, 4), (128, 137, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1 << 10, 64 << 10, 1 << 20], ids=["1 KiB", "64 KiB", "1 MiB"])
def test_large_entries_over_many_blocks(size: int, codec: Codec) -> None:
    rng = np.random.default_rng(size)
    half = size // 2
    batches = [batch(7, at * 8, [rng.bytes(half) + bytes(size - half) for _ in range(8)]) for at in range(4)]
    data, finished = build(batches, block_bytes=256 << 10, codec=codec)
    assert finished.summary.compressed == (codec is Codec.ZSTD)
    assert read(data, finished.index) == entries_of(batches)
    if codec is Codec.NONE:
        assert read_segment(data, finished.index) == entries_of(batches)


def test_segment_with_one_large_entry_and_many_small_ones_reads_back() -> None:
    batches = [batch(7, 0, [b"x" * MIB]), batch(7, 1, [bytes([at % 256]) * 100 for at in range(5000)])]
    data, finished = build(batches, block_bytes=64 << 10)
    assert read(data, finished.index) == read_segment(data, finished.index) == entries_of(batches)


@pytest.mark.slow
@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_v2_blocks_end_with_the_marker_and_respect_the_block_size(layout: Layout, extension: bool) -> None:
    payloads = [bytes(int(size)) for size in np.random.default_rng(2).integers(0, 500, 400)]
    data, finished = build(
        [batch(7, 0, payloads, list(range(400)))], layout=layout, block_bytes=2000, extension=extension
    )
    for number in range(finished.summary.blocks):
        block = block_bytes(SegmentMap.parse(finished.index, ledger_id=7), data, number)
        header = decode_block_header(block)
        assert header.block_bytes <= 2000
        content = np.frombuffer(block[: header.block_bytes], dtype=np.uint8)
        if extension:
            assert header.extension is not None
            end = 128 + header.extension.stored_bytes
        else:
            _, end = walk(content, 128, len(content), -1)
        if layout is Layout.V2 or extension:
            assert content[end : end + 4].tobytes() == bytes.fromhex("fedcdead")


# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [1, 100, 1000, 4096, 1 << 20])
def test_parts_have_exactly_the_asked_length_and_checksums_fit(part_bytes: int) -> None:
    batches = [batch(7, at * 10, [b"x" * 77] * 10) for at in range(12)]
    builder = SegmentBuilder(block_bytes=1000, part_bytes=part_bytes)
    parts = []
    for each in batches:
        parts += builder.append(each)
        assert builder.held_bytes <= part_bytes + 1000 + 16 * 10
    finished = builder.finish()
    parts += finished.parts
    assert all(len(bytes(part.body)) == part_bytes for part in parts[:-1])
    assert 0 < len(bytes(parts[-1].body)) <= part_bytes
    assert [part.offset for part in parts] == [part_bytes * at for at in range(len(parts))]
    assert all(crc32c(bytes(part.body)) == part.crc32c for part in parts)
    data = b"".join(bytes(part.body) for part in parts)
    summary = finished.summary
    assert (summary.data_bytes, summary.data_crc32c) == (len(data), crc32c(data))
    assert (summary.index_bytes, summary.index_crc32c) == (len(finished.index), crc32c(finished.index))
    found = SegmentMap.parse(finished.index)
    assert (found.data_bytes, found.index_crc32c) == (len(data), summary.index_crc32c)


def test_the_index_names_the_part_in_which_each_block_begins() -> None:
    _, finished = build([batch(7, 0, [b"x" * 900] * 20)], block_bytes=1100, part_bytes=3000)
    offsets = SegmentMap.parse(finished.index).blocks.offset
    group = decode_index(finished.index).groups[0]
    assert group.entries["part"].tolist() == (offsets // 3000 + 1).tolist()
    assert group.entries["part"].tolist()[-1] > 5


def test_data_bytes_estimates_from_above_and_grows_with_each_entry() -> None:
    builder = SegmentBuilder(block_bytes=1000, part_bytes=1 << 20)
    assert (builder.data_bytes, builder.held_bytes) == (0, 0)
    before = 0
    for at in range(100):
        builder.append(batch(7, at, [b"x" * 50]))
        assert builder.data_bytes > before
        before = builder.data_bytes
    summary = builder.finish().summary
    assert (summary.entries, summary.begin, summary.end) == (100, Position(7, 0), Position(7, 99))
    actual = summary.data_bytes
    assert actual <= before <= actual + 1000


@pytest.mark.slow
def test_a_part_never_waits_for_more_than_one_block() -> None:
    """At most a part and a block are held for any batches: 40 MiB in one batch, parts of 1 MiB."""
    builder = SegmentBuilder(block_bytes=1 << 16, part_bytes=MIB)
    parts = builder.append(batch(7, 0, [bytes(10_000)] * 4000))
    assert len(parts) >= 37
    assert builder.held_bytes < MIB + (1 << 16)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_bytes_depend_on_the_entries_not_on_the_batches(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=60))
    whole = batch(7, 0, [bytes([at % 256]) * size for at, size in enumerate(sizes)], list(range(len(sizes))))
    borders = sorted({0, len(sizes), *data.draw(st.lists(st.integers(0, len(sizes)), max_size=10))})
    pieces = [whole.slice(a, b) for a, b in itertools.pairwise(borders)]
    extension = data.draw(st.booleans())
    one, many = (build(each, block_bytes=700, extension=extension) for each in ([whole], pieces))
    assert one[0] == many[0]
    assert one[1].index == many[1].index


# ---------------------------------------------------------------------------------------------------------------


def state(builder: SegmentBuilder) -> tuple[object, ...]:
    return builder.data_bytes, builder.held_bytes, builder._outline.last


UNORDERED = EntryBatch(
    7, np.array([12, 11], dtype=np.int64), pa.array([b"a", b"b"], pa.binary()), np.zeros(2, np.int64)
)


@pytest.mark.parametrize(
    "bad",
    [batch(7, 9, [b"x"]), batch(7, 5, [b"x"] * 20), batch(6, 100, [b"x"]), UNORDERED, batch(8, -1, [b"x"])],
    ids=["last again", "overlapping", "earlier ledger", "falling ids", "negative id"],
)
def test_entries_out_of_order_are_refused_and_change_nothing(bad: EntryBatch) -> None:
    builder = SegmentBuilder(block_bytes=200, part_bytes=100)
    builder.append(batch(7, 0, [b"x" * 30] * 10))
    before = state(builder)
    with pytest.raises(InconsistentError, match="out of order"):
        builder.append(bad)
    assert state(builder) == before
    assert builder.append(batch(7, 10, [])) == []
    builder.append(batch(7, 10, [b"y"]))
    assert builder.finish().summary.entries == 11


@pytest.mark.parametrize("bad", [batch(7, 3, [b"x"]), batch(8, 0, [b"x"])], ids=["gap", "another ledger"])
def test_v1_takes_one_whole_ledger_only(bad: EntryBatch) -> None:
    builder = SegmentBuilder(layout=Layout.V1, block_bytes=200, part_bytes=100)
    with pytest.raises(InconsistentError, match="one whole ledger"):
        builder.append(batch(7, 1, [b"x"]))
    builder.append(batch(7, 0, [b"x"] * 2))
    before = state(builder)
    with pytest.raises(InconsistentError, match="one whole ledger"):
        builder.append(bad)
    assert state(builder) == before


def test_a_segment_without_entries_or_finished_twice_is_refused() -> None:
    builder = SegmentBuilder(block_bytes=200, part_bytes=100)
    with pytest.raises(InconsistentError):
        builder.finish()
    builder.append(batch(7, 0, [b""]))
    builder.finish()
    with pytest.raises(InconsistentError):
        builder.finish()
    with pytest.raises(InconsistentError, match="finished"):
        builder.append(batch(7, 1, [b""]))


def test_builder_copies_appended_memory() -> None:
    memory = bytearray(b"x" * 1000)
    offsets = np.arange(0, 1001, 100, dtype=np.int32)
    times = np.zeros(10, dtype=np.int64)
    payloads = pa.BinaryArray.from_buffers(pa.binary(), 10, [None, pa.py_buffer(offsets), pa.py_buffer(memory)])
    builder = SegmentBuilder(block_bytes=1 << 16, part_bytes=1 << 16)
    builder.append(EntryBatch(7, np.arange(10), payloads, times))
    memory[:] = b"y" * 1000
    times[:] = 5
    finished = builder.finish()
    data = b"".join(bytes(part.body) for part in finished.parts)
    assert read(data, finished.index) == [(7, at, b"x" * 100) for at in range(10)]
    assert finished.summary.publish_time_max_ms == 0


@pytest.mark.parametrize(("block_bytes", "part_bytes"), [(0, 10), (144, 10), (1000, 0)])
def test_impossible_sizes_are_refused(block_bytes: int, part_bytes: int) -> None:
    with pytest.raises(InconsistentError):
        SegmentBuilder(block_bytes=block_bytes, part_bytes=part_bytes)


def test_compression_without_the_extension_is_refused() -> None:
    with pytest.raises(InconsistentError, match="compression needs the extension"):
        SegmentBuilder(block_bytes=1000, part_bytes=1000, codec=Codec.ZSTD, extension=False)


# ---------------------------------------------------------------------------------------------------------------


def test_compression_is_skipped_for_blocks_that_hardly_shrink() -> None:
    noise = np.random.default_rng(3).bytes(3000)
    batches = [batch(7, 0, [noise]), batch(8, 0, [b"z" * 3000])]
    data, finished = build(batches, codec=Codec.ZSTD)
    assert finished.summary.compressed
    found = SegmentMap.parse(finished.index)
    assert found.blocks.codec.tolist() == [0, 1]
    compressed = block_bytes(found, data, 1)
    # What Pulsar would see in place of a length: negative, so no entries.
    assert compressed[128:132] == bytes.fromhex("fedcdead")
    assert read(data, finished.index) == entries_of(batches)
    _, only_noise = build(batches[:1], codec=Codec.ZSTD)
    assert not only_noise.summary.compressed


def test_publish_times_round_trip_and_summary_has_their_range() -> None:
    times = [-1, 5_000_000_000_000, 17, -1, 18]
    data, finished = build([batch(7, 0, [b"x"] * 5, times), batch(7, 5, [b"y"], -1)], block_bytes=2000)
    assert (finished.summary.publish_time_min_ms, finished.summary.publish_time_max_ms) == (17, 5_000_000_000_000)
    found = SegmentMap.parse(finished.index)
    assert decode(found, data)[0].publish_times_ms.tolist() == [*times, -1]
    at, size = int(found.blocks.table_offset[0]), int(found.blocks.table_bytes[0])
    table = found.decode_entry_table(0, data[at : at + size], decompressed_bytes_max=2000)
    assert table.publish_times_ms.tolist() == [*times, -1]
    assert table.lengths.tolist() == [1] * 6


def equal_entries(entries: int, run_bytes: int) -> tuple[bytes, bytes]:
    """An index with one block of empty entries, and its entry table: 16 bytes, whatever their number is."""
    table = encode_entry_table(np.array([0]), np.array([5]))
    row = (entries, entries - 1, 4, run_bytes, 0, len(table), crc32c(table), 5, 5, int(Codec.ZSTD), 0, 1)
    rows = encode_index_rows(7, np.array([row], dtype=ROW))
    ledger = PulsarLedger(ledger_id=7, entries=entries, size_bytes=1, blocks=rows, index_crc32c=0)
    group = IndexGroup(7, ledger.encode(), np.array([(0, 1, 0)], dtype=INDEX_ENTRY))
    return seal_index(ObjectIndex(Layout.V2, 4096, 128, (group,))), table


def test_index_of_more_entries_than_their_bytes_hold_is_refused() -> None:
    """As a block header of that kind: the memory of a decoded entry table follows the number of entries."""
    index, _ = equal_entries(1000, 12 * 1000)
    assert SegmentMap.parse(index).blocks.entries.tolist() == [1000]
    index, _ = equal_entries(2**32 - 1, 12 * 1000)
    with pytest.raises(InconsistentError):
        SegmentMap.parse(index)


def test_entry_table_of_a_block_above_the_limit_is_refused() -> None:
    index, table = equal_entries(1000, 12 * 1000)
    found = SegmentMap.parse(index)
    assert len(found.decode_entry_table(0, table, decompressed_bytes_max=12 * 1000).lengths) == 1000
    with pytest.raises(LimitExceededError):
        found.decode_entry_table(0, table, decompressed_bytes_max=12 * 1000 - 1)


def test_summary_without_times_has_unknown_range() -> None:
    _, finished = build([batch(7, 0, [b"x"])])
    assert (finished.summary.publish_time_min_ms, finished.summary.publish_time_max_ms) == (-1, -1)


def test_ledger_facts_are_written_to_the_v1_metadata() -> None:
    facts = {7: LedgerFacts(ledger_id=7, closed=True, created_ms=123, closed_ms=456)}
    _, finished = build([batch(7, 0, [b"abc"] * 4)], layout=Layout.V1, facts=facts)
    ledger = BookKeeperLedger.decode(SegmentMap.parse(finished.index).ledgers[0].metadata)
    assert (ledger.closed, ledger.last_entry_id, ledger.length_bytes, ledger.created_ms) == (True, 3, 12, 123)


# ---------------------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.just(0), st.integers(0, 40), st.integers(200, 900), st.sampled_from([1127, 1128, 5000]))


@st.composite
def streams(draw: st.DrawFn, *, one_ledger: bool) -> list[EntryBatch]:
    """Batches of ascending ledgers, with gaps in ids, times known and unknown, sizes of all kinds."""
    batches = []
    ledger_id, entry_id = draw(st.integers(0, 2**62)), 0
    for at in range(draw(st.integers(1, 5))):
        if not one_ledger and at:
            jump = draw(st.sampled_from(["next", "gap", "ledger"]))
            if jump == "gap":
                entry_id += draw(st.integers(1, 2**40))
            elif jump == "ledger":
                ledger_id, entry_id = ledger_id + draw(st.integers(1, 3)), draw(st.integers(0, 5))
        sizes = draw(st.lists(SIZES, min_size=1, max_size=25))
        fill = draw(st.binary(min_size=1, max_size=3))
        times = draw(st.one_of(st.just(-1), st.integers(-(2**63), 2**63 - 1)))
        mixed = [times if at % 3 else -1 for at in range(len(sizes))]
        batches.append(batch(ledger_id, entry_id, [(fill * size)[:size] for size in sizes], mixed))
        entry_id += len(sizes)
    return batches


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(Layout), st.sampled_from(Codec), st.booleans())
def test_any_written_segment_reads_back(data: st.DataObject, layout: Layout, codec: Codec, extension: bool) -> None:
    batches = data.draw(streams(one_ledger=layout is Layout.V1))
    codec = codec if extension else Codec.NONE
    content, finished = build(
        batches, layout=layout, codec=codec, extension=extension, block_bytes=1128, part_bytes=1500
    )
    expected = entries_of(batches)
    ledger_id = batches[0].ledger_id if layout is Layout.V1 else None
    assert read(content, finished.index, ledger_id) == expected
    if not finished.summary.compressed:
        assert read_segment(content, finished.index, batches[0].ledger_id) == expected
    if extension:
        found = decode(SegmentMap.parse(finished.index), content)
        times = [time for each in found for time in each.publish_times_ms.tolist()]
        assert times == [time for each in batches for time in each.publish_times_ms.tolist()]
    assert encode_index(decode_index(finished.index, ledger_id=ledger_id)) == finished.index
    assert finished.summary.entries == len(expected)
    assert finished.summary.payload_bytes == sum(len(payload) for _, _, payload in expected)


def test_lookup_of_one_position_finds_its_entry_or_nothing() -> None:
    ids = np.array([1, 3, 4, 9], dtype=np.int64)
    entries = EntryBatch(7, ids, pa.array([b"a", b"bb", b"", b"dddd"], pa.binary()), ids * 10)
    for ledger_id in (6, 7, 8):
        for entry_id in range(12):
            position = Position(ledger_id, entry_id)
            found = list(entries.between(position, position).entries())
            assert found == [entry for entry in entries.entries() if entry.position == position]
    assert entries.between(Position(0, 0), Position(9, 0)) is entries


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_find_and_between_give_exactly_the_asked_range(data: st.DataObject, extension: bool) -> None:
    batches = data.draw(streams(one_ledger=False))
    content, finished = build(batches, extension=extension, block_bytes=600)
    positions = [Position(ledger, entry) for ledger, entry, _ in entries_of(batches)]
    near = [Position(p.ledger_id, p.entry_id + d) for p in positions for d in (-1, 0, 1)]
    first, last = data.draw(st.sampled_from(near)), data.draw(st.sampled_from(near))
    blocks = decode(SegmentMap.parse(finished.index), content, first, last)
    found = [entry.position for each in blocks for entry in each.between(first, last).entries()]
    assert found == [position for position in positions if first <= position <= last]
