"""Our extension: the entry table, the block header's bytes 36..127, the index rows, and their versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.block import decode_block, decode_block_header, encode_plain_header
from formats.checksum import crc32c
from formats.errors import (
    BadMagicError,
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
    located,
)
from formats.extension import (
    FLAG_INDEXED,
    FLAG_TIMES_INCOMPLETE,
    ROW,
    BlockExtension,
    Codec,
    decode_block_extension,
    decode_entry_table,
    decode_index_rows,
    encode_block_extension,
    encode_entry_table,
    encode_index_rows,
    time_range,
)
from formats.segment import SegmentMap
from formats.summary import Layout
from tests.formats.segments import LIMITS, batch, build

INT64 = st.integers(-(2**63), 2**63 - 1)

TABLES = [
    pytest.param([5], [-1], "00 00 0000 00000005 ffffffffffffffff", id="one entry, no time"),
    pytest.param([0, 0, 0], [7, 7, 7], "00 00 0000 00000000 0000000000000007", id="all alike"),
    pytest.param([1, 256], [10, 265], "01 01 0000 00000001 000000000000000a 00ff 00ff", id="one byte each"),
    pytest.param([1, 257], [10, 266], "02 02 0000 00000001 000000000000000a 00000100 00000100", id="two bytes each"),
    pytest.param(
        [0, 65536], [0, 2**32 - 1], "04 04 0000 00000000 0000000000000000 00000000 00010000 00000000 ffffffff",
        id="four bytes each",
    ),
    pytest.param(
        [9, 9], [-1, 2**63 - 1], "00 08 0000 00000009 ffffffffffffffff 0000000000000000 8000000000000000",
        id="eight bytes of time",
    ),
    pytest.param(
        [9, 9], [-(2**63), 2**63 - 1], "00 08 0000 00000009 8000000000000000 0000000000000000 ffffffffffffffff",
        id="the whole range of times",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lengths", "times", "encoded"), TABLES)
def test_entry_tables_in_both_directions(lengths: list[int], times: list[int], encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert encode_entry_table(np.array(lengths), np.array(times)) == data
    for kind in (bytes, bytearray, memoryview):
        table = decode_entry_table(kind(data), entries=len(lengths), table_crc32c=crc32c(data))
        assert table.lengths.tolist() == lengths
        assert table.publish_times_ms.tolist() == times
    for cut in (*range(len(data)), len(data) + 1):
        piece = (data + b"\0")[:cut]
        with pytest.raises(ChecksumMismatchError):
            decode_entry_table(piece, entries=len(lengths), table_crc32c=crc32c(data))
        with pytest.raises((TruncatedError, InconsistentError)):
            decode_entry_table(piece, entries=len(lengths), table_crc32c=crc32c(piece))


@pytest.mark.parametrize("start", ["03 00 0000", "08 00 0000", "00 03 0000", "00 10 0000", "00 00 0001"])
def test_widths_that_no_writer_makes_are_refused(start: str) -> None:
    data = bytes.fromhex(start) + bytes(12 + 30)
    with pytest.raises(InconsistentError, match="entry table in thing at byte 5"), located("thing", 5):
        decode_entry_table(data, entries=2, table_crc32c=crc32c(data))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), INT64), min_size=1, max_size=40))
def test_entry_tables_round_trip(columns: list[tuple[int, int]]) -> None:
    lengths, times = np.array(columns, dtype=np.int64).T.copy()
    data = encode_entry_table(lengths, times)
    table = decode_entry_table(data, entries=len(columns), table_crc32c=crc32c(data))
    assert table.lengths.tolist() == lengths.tolist()
    assert table.publish_times_ms.tolist() == times.tolist()
    assert len(data) <= 16 + 12 * len(columns)


@pytest.mark.parametrize(
    ("times", "expected"),
    [([-1, -1], (-1, -1, FLAG_TIMES_INCOMPLETE)), ([5, -1, 3], (3, 5, FLAG_TIMES_INCOMPLETE)), ([5, 9], (5, 9, 0))],
)
def test_time_range_covers_known_times_only(times: list[int], expected: tuple[int, int, int]) -> None:
    assert time_range(np.array(times)) == expected


EXTENSION = BlockExtension(
    codec=Codec.ZSTD,
    flags=FLAG_INDEXED,
    entries=3,
    last_entry_id=12,
    stored_bytes=50,
    uncompressed_bytes=100,
    payload_crc32c=0xDEADBEEF,
    table_bytes=16,
    table_crc32c=0x01020304,
    publish_time_min_ms=-1,
    publish_time_max_ms=2**40,
)
PLAIN = encode_plain_header(Layout.V2, 198, 10, 7)


def header(**changes: Any) -> np.ndarray:
    return np.frombuffer(encode_block_extension(PLAIN, EXTENSION._replace(**changes)), dtype=np.uint8)


def resealed(at: int, value: bytes) -> bytes:
    """A header with other bytes and a checksum that fits."""
    data = bytearray(header().tobytes())
    data[at : at + len(value)] = value
    data[124:] = crc32c(bytes(data[:124])).to_bytes(4, "big")
    return bytes(data)


def test_a_block_header_in_both_directions() -> None:
    data = header()
    assert len(data) == 128
    assert data[:36].tobytes() == PLAIN[:36]
    assert decode_block_extension(data) == EXTENSION
    assert decode_block_extension(np.frombuffer(PLAIN, dtype=np.uint8)) is None
    for length in range(40, 128):
        with pytest.raises(TruncatedError):
            decode_block_extension(data[:length])
    decoded = decode_block_header(data.tobytes() + b"whatever follows")
    assert (decoded.extension, decoded.ledger_id, decoded.first_entry_id) == (EXTENSION, 7, 10)


@pytest.mark.parametrize(
    ("at", "value", "kind"),
    [
        (36, b"XXXX", BadMagicError),
        (40, b"\2", UnsupportedVersionError),
        (41, b"\2", UnsupportedVersionError),
        (42, b"\0\4", UnsupportedVersionError),
        (92, b"\1", UnsupportedVersionError),
        (123, b"\1", UnsupportedVersionError),
        (44, bytes(4), InconsistentError),
        (44, b"\xff\xff\xff\xff", InconsistentError),
        (48, bytes(8), InconsistentError),
        (56, b"\xff\xff\xff\xff", InconsistentError),
        (68, b"\xff\xff\xff\xff", InconsistentError),
        (41, b"\0", InconsistentError),
        (4, (64).to_bytes(8, "big"), InconsistentError),
    ],
    ids=[
        "another magic", "newer version", "unknown codec", "unknown flag", "reserved byte", "last reserved byte",
        "no entries", "more entries than bytes", "last entry", "payload beyond the block", "table beyond the block",
        "stored is not uncompressed", "header length",
    ],
)  # fmt: skip
def test_wrong_headers_with_a_right_checksum_are_refused(at: int, value: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind, match="thing"):
        decode_block_header(resealed(at, value), object_name="thing", offset=4096)


def test_a_table_that_contradicts_the_entry_headers_is_refused() -> None:
    """Everything checksummed and consistent in size, but lengths 2 and 1 where the entries have 1 and 2 bytes."""
    data, finished = build([batch(7, 0, [b"a", b"bb"])])
    at = int(SegmentMap.parse(finished.index).blocks.table_offset[0])
    table = encode_entry_table(np.array([2, 1]), np.array([-1, -1]))
    assert len(table) == len(data) - at
    block = bytearray(data[:at] + table)
    block[72:76] = crc32c(table).to_bytes(4, "big")
    block[124:128] = crc32c(bytes(block[:124])).to_bytes(4, "big")
    with pytest.raises(
        InconsistentError, match="entry header at byte 128: expected entry 0 of 2 bytes, found entry 0 of 1"
    ):
        decode_block(block, **LIMITS)


def test_table_whose_lengths_do_not_fill_the_payload_is_refused() -> None:
    data, finished = build([batch(7, 0, [b"a", b"bb"])])
    at = int(SegmentMap.parse(finished.index).blocks.table_offset[0])
    table = encode_entry_table(np.array([1, 3]), np.array([-1, -1]))
    block = bytearray(data[:at] + table)
    block[72:76] = crc32c(table).to_bytes(4, "big")
    block[124:128] = crc32c(bytes(block[:124])).to_bytes(4, "big")
    with pytest.raises(InconsistentError, match="lengths that make 27 bytes, found 28"):
        decode_block(block, **LIMITS)


def rows(count: int) -> np.ndarray:
    return np.array([EXTENSION.row()] * count, dtype=ROW)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_index_rows_in_both_directions(count: int) -> None:
    data = encode_index_rows(9, rows(count))
    assert len(data) == 16 + 52 * count
    for ledger_id in (9, None):
        found_ledger, found = decode_index_rows(data, ledger_id=ledger_id, rows=count)
        assert found_ledger == 9
        assert found.tolist() == rows(count).tolist()
    for cut in range(len(data)):
        with pytest.raises((TruncatedError, InconsistentError)):
            decode_index_rows(data[:cut], ledger_id=9, rows=count)
    for ledger_id, expected in ((8, count), (9, count + 1)):
        with pytest.raises(InconsistentError):
            decode_index_rows(data, ledger_id=ledger_id, rows=expected)
    with pytest.raises(UnsupportedVersionError):
        decode_index_rows(b"\2" + data[1:], ledger_id=9, rows=count)
