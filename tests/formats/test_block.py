"""Blocks: headers, padding, and decoding whole, cut, with trailing bytes, with and without the extension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from formats.block import decode_block, decode_block_header, decode_run, encode_plain_header, padding
from formats.entries import EntryBatch
from formats.errors import BadMagicError, FormatError, InconsistentError, LimitExceededError, TruncatedError, located
from formats.extension import Codec
from formats.index import INDEX_ENTRY, IndexGroup, ObjectIndex, encode_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.segment import SegmentMap
from formats.summary import Layout
from tests.formats.segments import LIMITS, batch, block_bytes, build, decode, entries_of
from tests.independent_reader import read_segment

V1_HEADER = bytes.fromhex("fbdbabcb 0000000000000080 0000000000100000 0000000000000d05") + bytes(100)
V2_HEADER = bytes.fromhex("26a66d32 0000000000000080 0000000000100000 0000000000000d05 0000000000000007") + bytes(92)

BATCHES = [batch(7, 0, [b"first", b"", b"x" * 300, b"last"], [5, 6, 7, 9])]
#: layout, codec, extension: every way in which a block can be written.
KINDS = [
    pytest.param(Layout.V1, Codec.NONE, False, id="V1 plain"),
    pytest.param(Layout.V2, Codec.NONE, False, id="V2 plain"),
    pytest.param(Layout.V1, Codec.NONE, True, id="V1"),
    pytest.param(Layout.V2, Codec.NONE, True, id="V2"),
    pytest.param(Layout.V1, Codec.ZSTD, True, id="V1 zstd"),
    pytest.param(Layout.V2, Codec.ZSTD, True, id="V2 zstd"),
]


def one_block(layout: Layout, codec: Codec, extension: bool) -> bytes:
    data, finished = build(BATCHES, layout=layout, codec=codec, extension=extension)
    assert finished.summary.blocks == 1
    assert finished.summary.compressed == (codec is Codec.ZSTD)
    return data


@pytest.mark.parametrize(
    ("layout", "ledger_id", "header"), [(Layout.V1, None, V1_HEADER), (Layout.V2, 7, V2_HEADER)], ids=["V1", "V2"]
)
def test_golden_headers_in_both_directions(layout: Layout, ledger_id: int | None, header: bytes) -> None:
    assert len(header) == 128
    assert encode_plain_header(layout, 1_048_576, 3333, 7) == header
    for data in (header, header + b"anything"):
        decoded = decode_block_header(data)
        assert (decoded.layout, decoded.header_bytes, decoded.block_bytes) == (layout, 128, 1_048_576)
        assert (decoded.first_entry_id, decoded.ledger_id, decoded.extension) == (3333, ledger_id, None)
    for length in range(128):
        with pytest.raises(TruncatedError):
            decode_block_header(header[:length])


def test_zero_bytes_are_no_header() -> None:
    with pytest.raises(BadMagicError, match="data block header magic word not match"):
        decode_block_header(bytes(128))


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 35), (4, 2**20 + 1), (12, 127), (12, 2**63), (20, 2**63)],
    ids=["short header", "header past block", "block inside header", "huge block", "negative entry"],
)
def test_contradicting_lengths_are_inconsistent(at: int, value: int) -> None:
    header = bytearray(V2_HEADER)
    header[at : at + 8] = value.to_bytes(8, "big")
    with pytest.raises(InconsistentError, match="block header in thing at byte 9"):
        decode_block_header(header, object_name="thing", offset=9)


@pytest.mark.parametrize(
    ("length", "expected"), [(0, ""), (1, "fe"), (4, "fedcdead"), (5, "fedcdeadfe"), (8, "fedcdeadfedcdead")]
)
def test_padding_repeats_from_where_it_starts(length: int, expected: str) -> None:
    assert padding(length).hex() == expected


@pytest.mark.parametrize(("layout", "codec", "extension"), KINDS)
def test_a_block_decodes_from_every_kind_of_buffer_and_with_trailing_bytes(
    layout: Layout, codec: Codec, extension: bool
) -> None:
    block = one_block(layout, codec, extension)
    expected = entries_of(BATCHES)
    for tail in (b"", b"\0", bytes(200), block):
        for kind in (bytes, bytearray, memoryview, lambda b: np.frombuffer(b, dtype=np.uint8)):
            found = decode_block(kind(block + tail), ledger_id=7, **LIMITS)
            assert entries_of([found]) == expected
            assert found.publish_times_ms.tolist() == ([5, 6, 7, 9] if extension else [-1] * 4)


@pytest.mark.parametrize(("layout", "codec", "extension"), KINDS)
def test_a_block_cut_at_any_byte_is_truncated(layout: Layout, codec: Codec, extension: bool) -> None:
    block = one_block(layout, codec, extension)
    for length in range(len(block)):
        with pytest.raises(TruncatedError):
            decode_block(block[:length], ledger_id=7, **LIMITS)


@pytest.mark.parametrize(("layout", "codec", "extension"), KINDS)
def test_limits_are_checked(layout: Layout, codec: Codec, extension: bool) -> None:
    block = one_block(layout, codec, extension)
    with pytest.raises(LimitExceededError):
        decode_block(block, block_bytes_max=len(block) - 1, decompressed_bytes_max=1 << 20)
    run_bytes = BATCHES[0].wire_bytes
    with pytest.raises(LimitExceededError):
        decode_block(block, block_bytes_max=1 << 20, decompressed_bytes_max=run_bytes - 1)
    assert len(decode_block(block, block_bytes_max=len(block), decompressed_bytes_max=run_bytes)) == 4


def test_a_block_of_another_ledger_or_header_length_is_inconsistent() -> None:
    block = one_block(Layout.V2, Codec.NONE, True)
    assert decode_block(block, **LIMITS).ledger_id == 7
    with pytest.raises(InconsistentError, match="ledger of the block"):
        decode_block(block, ledger_id=8, **LIMITS)
    with pytest.raises(InconsistentError, match="header length"):
        decode_block(block, header_bytes=256, **LIMITS)
    assert decode_block(one_block(Layout.V1, Codec.NONE, True), **LIMITS).ledger_id == -1


def test_a_longer_header_is_honoured() -> None:
    plain = one_block(Layout.V2, Codec.NONE, False)
    longer = plain[:4] + (200).to_bytes(8, "big") + (len(plain) + 72).to_bytes(8, "big") + plain[20:128] + bytes(72)
    found = decode_block(longer + plain[128:], header_bytes=200, **LIMITS)
    assert entries_of([found]) == entries_of(BATCHES)


def plain_run(first: int, payloads: list[bytes]) -> bytes:
    parts = [len(p).to_bytes(4, "big") + (first + at).to_bytes(8, "big") + p for at, p in enumerate(payloads)]
    return b"".join(parts)


def dense_object(layout: Layout, tail_padding: int) -> tuple[bytes, list[tuple[int, int]], int]:
    """Two plain blocks; an index entry for each block and for every entry in between (first entry id, offset)."""
    rng = np.random.default_rng(1)
    data = b""
    index: list[tuple[int, int]] = []
    entry_id = 0
    for count in (40, 25):
        payloads = [bytes(int(size)) for size in rng.integers(0, 200, count)]
        run = plain_run(entry_id, payloads)
        length = 128 + len(run) + tail_padding
        block = encode_plain_header(layout, length, entry_id, 7) + run + padding(tail_padding)
        position = len(data) + 128
        for at, payload in enumerate(payloads):
            # Every third entry, besides the block itself: so that runs cross the next offset in all ways.
            if at % 3 == 0:
                index.append((entry_id + at, position - 128))
            position += 12 + len(payload)
        data += block
        entry_id += count
    return data, index, entry_id


TAILS = [(Layout.V1, 0), (Layout.V1, 1), (Layout.V1, 3), *[(Layout.V2, tail) for tail in (0, 4, 5, 300)]]


@pytest.mark.parametrize(("layout", "tail"), TAILS)
def test_denser_index_yields_each_entry_once(layout: Layout, tail: int) -> None:
    data, index, count = dense_object(layout, tail)
    found: list[int] = []
    for (first, offset), following in zip(index, [*(at for _, at in index[1:]), len(data)], strict=True):
        length = following - offset
        arguments: dict[str, Any] = {"header_bytes": 128, "length": length, "first_entry_id": first, "ledger_id": 7}
        exact = decode_run(data[offset : following + 128], run_bytes_max=1 << 20, **arguments)
        longer = decode_run(data[offset:], run_bytes_max=1 << 20, **arguments)
        assert longer.entry_ids.tolist() == exact.entry_ids.tolist()
        found += exact.entry_ids.tolist()
    assert found == list(range(count))


@pytest.mark.parametrize(("layout", "tail"), TAILS)
def test_a_denser_index_reads_through_its_map(layout: Layout, tail: int) -> None:
    data, index, count = dense_object(layout, tail)
    entries = np.array([(first, 1, offset) for first, offset in index], dtype=INDEX_ENTRY)
    if layout is Layout.V1:
        metadata = BookKeeperLedger(length_bytes=1, last_entry_id=count - 1).encode()
    else:
        metadata = PulsarLedger(ledger_id=7, entries=count, closed_ms=1).encode()
    encoded = encode_index(ObjectIndex(layout, len(data), 128, (IndexGroup(7, metadata, entries),)))
    found = decode(SegmentMap.parse(encoded, ledger_id=7), data)
    assert [entry_id for each in found for entry_id in each.entry_ids.tolist()] == list(range(count))
    if layout is Layout.V1 or tail:
        assert read_segment(data, encoded, 7) == entries_of(found)


@pytest.mark.parametrize("layout", Layout)
def test_a_damaged_length_is_not_taken_for_padding(layout: Layout) -> None:
    data, _ = build(BATCHES, layout=layout, extension=False)
    for at in (128, 128 + 17):
        damaged = bytearray(data)
        damaged[at] ^= 0x80
        with pytest.raises(InconsistentError, match="entry length"):
            decode_block(damaged, ledger_id=7, **LIMITS)


def test_plain_entries_must_begin_at_the_header_and_ascend() -> None:
    header = encode_plain_header(Layout.V2, 128 + 39 + 4, 5, 7)
    for ids, problem in (((6, 7, 8), "first entry"), ((5, 5, 6), "don't ascend"), ((5, 7, 6), "don't ascend")):
        run = b"".join(plain_run(entry_id, [b"x"]) for entry_id in ids)
        with pytest.raises(InconsistentError, match=problem):
            decode_block(header + run + padding(4), **LIMITS)
    run = b"".join(plain_run(entry_id, [b"x"]) for entry_id in (5, 7, 9))
    assert decode_block(header + run + padding(4), **LIMITS).entry_ids.tolist() == [5, 7, 9]


def test_an_empty_plain_block_has_no_entries() -> None:
    """Pulsar's V1 writer makes one before an entry that doesn't fit."""
    block = encode_plain_header(Layout.V1, 256, 0, 0) + padding(128)
    assert len(decode_block(block, **LIMITS)) == 0


@pytest.mark.parametrize("sizes", [[10] * 50, [10] * 49 + [11], [11] + [10] * 49, [0] * 50, [10, 0] * 25, [1]])
def test_plain_entries_of_equal_and_mixed_lengths(sizes: list[int]) -> None:
    wanted = [batch(7, 3, [bytes([at % 251]) * size for at, size in enumerate(sizes)])]
    data, finished = build(wanted, extension=False, block_bytes=1 << 20)
    assert entries_of([decode_block(data, **LIMITS)]) == entries_of(wanted)
    segment_map = SegmentMap.parse(finished.index)
    found = segment_map.decode(0, block_bytes(segment_map, data, 0), **LIMITS)
    assert isinstance(found, EntryBatch)
    assert entries_of([found]) == entries_of(wanted)


def test_errors_name_object_place_expected_and_found() -> None:
    block = bytearray(one_block(Layout.V2, Codec.NONE, True))
    block[140] ^= 1
    with pytest.raises(FormatError) as caught, located("s/uuid", 4096):
        decode_block(block, **LIMITS)
    error = caught.value
    assert (error.object_name, error.offset) == ("s/uuid", 4096 + 128)
    assert len(str(error.expected)) == len(str(error.found)) == 8
    assert "s/uuid at byte 4224" in str(error)
