"""Our extension of Pulsar's blocks and indexes, in bytes that Pulsar ignores.

Three layouts: the block header's bytes 36..127, the entry table after a payload's end marker, and the rows with which
an index describes its blocks. Plain Pulsar objects are readable without it. Byte by byte in docs/reference/format.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.checksum import check_crc32c, crc32c
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, Buffer, Bytes, byte_array
from formats.errors import (
    BadMagicError,
    InconsistentError,
    UnsupportedVersionError,
    require_at_most,
    require_bytes,
    require_equal,
)

#: zstd's own default: the best ratio that still keeps up with an upload.
ZSTD_LEVEL = 3
_FRAME_MAGIC = bytes.fromhex("28b52ffd")
#: By two bits of a frame's descriptor: bytes of the dictionary's id, and of the content size.
_DICTIONARY_ID_BYTES, _CONTENT_SIZE_BYTES = (0, 1, 2, 4), (0, 2, 4, 8)


class Codec(IntEnum):
    """How a block's payload is stored; the number is in the block header."""

    NONE = 0
    ZSTD = 1


def codec_of(number: int) -> Codec:
    """The codec with this number; ``UnsupportedVersionError`` for an unknown one."""
    try:
        return Codec(number)
    except ValueError as cause:
        raise UnsupportedVersionError("unknown codec", expected="0 (none) or 1 (zstd)", found=number) from cause


def compress(codec: Codec, data: Buffer) -> bytes:
    """``data`` in the codec's form; zstd gives one frame that states its content size."""
    if codec is Codec.NONE:
        return bytes(data)
    packed: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(byte_array(data), asbytes=True)
    return packed


def decompress(codec: Codec, data: Buffer, length: int, limit: int) -> bytes:
    """The bytes that ``compress`` was given; allocates no more than ``limit``.

    ``data`` is exactly the stored bytes; ``length`` the decompressed length, as declared in the block header.

    Raises:
        LimitExceededError: ``length`` is above ``limit``.
        InconsistentError: the bytes don't decompress to exactly ``length`` bytes.
    """
    require_at_most("decompressed size is too large", length, limit)
    plain = bytes(data) if codec is Codec.NONE else _unzstd(data, length)
    require_equal("decompressed size", len(plain), length)
    return plain


def _unzstd(data: Buffer, length: int) -> bytes:
    try:
        require_equal("zstd frame's content size", _content_size(bytes(data[:18])), length)
        # Fails unless exactly so many bytes come out.
        plain: bytes = pa.Codec("zstd").decompress(byte_array(data), length, asbytes=True)
        return plain
    except (OSError, ValueError, pa.ArrowException) as cause:
        raise InconsistentError("zstd frame", expected="a whole frame", found=str(cause)) from cause


def _content_size(head: bytes) -> int | str:
    """The content size in a frame's first 18 bytes (RFC 8878, 3.1.1.1), or the reason why it is missing."""
    if head[:4] != _FRAME_MAGIC or len(head) < 6:
        return "no frame"
    descriptor = head[4]
    is_single_segment = bool(descriptor & 0x20)
    start = 5 + (not is_single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3]
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(is_single_segment)
    if size_bytes == 0 or len(head) < start + size_bytes:
        return "none"
    return int.from_bytes(head[start : start + size_bytes], "little") + (256 if size_bytes == 2 else 0)


EXTENSION_VERSION = 1
#: A header with the extension is exactly this long.
EXTENDED_HEADER_BYTES = 128
#: Bit of the flags: the object's index has the extension too, so an index without it is damaged.
FLAG_INDEXED = 1
#: Bit of the flags: some entries have no publish time.
FLAG_TIMES_INCOMPLETE = 2

EXTENSION_MAGIC = b"OFFL"
_MAGIC_AT = 36
_PLAIN = bytes(4)
_KNOWN_FLAGS = FLAG_INDEXED | FLAG_TIMES_INCOMPLETE
#: magic, version, codec, flags, entries, last entry id, stored bytes, uncompressed bytes, payload CRC, table bytes,
#: table CRC, first and last publish time, reserved zeros; then the CRC of all bytes before it.
_HEADER = struct.Struct(">4sBBHIqIIIIIqq32s")
_HEADER_CRC_AT = 124
assert _MAGIC_AT + _HEADER.size == _HEADER_CRC_AT

#: width of a length, width of a time, zero, smallest length, earliest time.
_TABLE_HEADER = struct.Struct(">BBHIq")
ENTRY_TABLE_HEADER_BYTES = _TABLE_HEADER.size
#: Largest size of an entry in an entry table: four bytes for its length, eight for its time.
TABLE_ENTRY_BYTES_MAX = 12
_WIDTHS = (0, 1, 2, 4, 8)
_UNSIGNED: dict[int, Any] = {1: np.dtype(">u1"), 2: np.dtype(">u2"), 4: np.dtype(">u4"), 8: np.dtype(">u8")}

#: version, zeros, number of rows, ledger id.
_ROWS_HEADER = struct.Struct(">B3sIq")
#: One block in the index extension, 52 bytes.
ROW = np.dtype(
    [
        ("entries", ">u4"),
        ("last_entry_id", ">i8"),
        ("stored_bytes", ">u4"),
        ("uncompressed_bytes", ">u4"),
        ("payload_crc32c", ">u4"),
        ("table_bytes", ">u4"),
        ("table_crc32c", ">u4"),
        ("publish_time_min_ms", ">i8"),
        ("publish_time_max_ms", ">i8"),
        ("codec", "u1"),
        ("reserved", "u1"),
        ("flags", ">u2"),
    ]
)


class BlockExtension(NamedTuple):
    """The extension of a block header.

    Attributes:
        flags: ``FLAG_INDEXED``, ``FLAG_TIMES_INCOMPLETE``.
        entries: how many; their ids are consecutive.
        stored_bytes: bytes between the block header and the end marker.
        uncompressed_bytes: of the run of entries, entry headers included.
        payload_crc32c: of the stored bytes.
        table_bytes, table_crc32c: of the entry table, which follows the four bytes of the end marker.
        publish_time_min_ms, publish_time_max_ms: earliest and latest known time, ``TIME_UNKNOWN_MS`` if none is known.
    """

    codec: Codec
    flags: int
    entries: int
    last_entry_id: int
    stored_bytes: int
    uncompressed_bytes: int
    payload_crc32c: int
    table_bytes: int
    table_crc32c: int
    publish_time_min_ms: int
    publish_time_max_ms: int

    def row(self) -> tuple[int, ...]:
        """The same facts as a ``ROW`` of the index extension."""
        return (*self[2:], int(self.codec), 0, self.flags)


def encode_block_extension(plain_header: bytes, extension: BlockExtension) -> bytes:
    """A block header, 128 bytes, with its extension; ``plain_header``: at least the first 36 bytes."""
    covered = plain_header[:_MAGIC_AT] + _HEADER.pack(EXTENSION_MAGIC, EXTENSION_VERSION, *extension, bytes(32))
    return covered + crc32c(covered).to_bytes(4, "big")


def decode_block_extension(header: Bytes) -> BlockExtension | None:
    """The extension in a block header of 128 bytes; ``None`` when the header is a plain Pulsar one.

    Raises:
        TruncatedError, BadMagicError, ChecksumMismatchError, UnsupportedVersionError, InconsistentError: the header is
            damaged or newer.
    """
    require_bytes("block header", len(header), EXTENDED_HEADER_BYTES)
    magic, version, codec, flags, *numbers, reserved = _HEADER.unpack_from(header.data, _MAGIC_AT)
    if magic == _PLAIN:
        return None
    if magic != EXTENSION_MAGIC:
        raise BadMagicError(
            "block header extension",
            offset=_MAGIC_AT,
            expected=f"{_PLAIN.hex()} or {EXTENSION_MAGIC.hex()}",
            found=magic.hex(),
        )
    check_crc32c("block header", header[:_HEADER_CRC_AT], int.from_bytes(header[_HEADER_CRC_AT:].tobytes(), "big"))
    if version != EXTENSION_VERSION or flags & ~_KNOWN_FLAGS or any(reserved):
        raise UnsupportedVersionError(
            "block header extension",
            offset=_MAGIC_AT,
            expected=f"version {EXTENSION_VERSION}, flags 0..{_KNOWN_FLAGS}",
            found=f"version {version}, flags {flags}",
        )
    extension = BlockExtension(codec_of(codec), flags, *numbers)
    entries_max = extension.uncompressed_bytes // ENTRY_HEADER_BYTES
    if not 1 <= extension.entries <= entries_max:
        raise InconsistentError("entries of a block", expected=f"1 to {entries_max}", found=extension.entries)
    return extension


@dataclass(frozen=True, slots=True, eq=False)
class EntryTable:
    """The columns of an entry table.

    Attributes:
        lengths: int64, shape (n,): payload bytes of each entry.
        publish_times_ms: int64, shape (n,), ``TIME_UNKNOWN_MS`` where unknown.
    """

    lengths: NDArray[np.int64]
    publish_times_ms: NDArray[np.int64]


def _width(span: int) -> int:
    return next(width for width in _WIDTHS if span < 1 << 8 * width)


def encode_entry_table(lengths: NDArray[np.int64], publish_times_ms: NDArray[np.int64]) -> bytes:
    """The entry table of a block: both columns as differences to their smallest value, in as few bytes as possible.

    Args:
        lengths: int64, shape (n,), n > 0, each 0 <= length < 2**32.
        publish_times_ms: int64, shape (n,).
    """
    smallest, earliest = int(lengths.min()), int(publish_times_ms.min())
    length_width = _width(int(lengths.max()) - smallest)
    time_width = _width(int(publish_times_ms.max()) - earliest)
    table = _TABLE_HEADER.pack(length_width, time_width, 0, smallest, earliest)
    if length_width:
        table += (lengths - smallest).astype(_UNSIGNED[length_width]).tobytes()
    if time_width:
        # Modulo 2**64, so that no span of times overflows.
        spans = publish_times_ms.view(np.uint64) - np.uint64(earliest % 2**64)
        table += spans.astype(_UNSIGNED[time_width]).tobytes()
    return table


def decode_entry_table(data: Buffer, *, entries: int, table_crc32c: int) -> EntryTable:
    """Lengths and publish times of a block's entries, from exactly the ``table_bytes`` bytes of its table.

    The number of entries and the table's CRC-32C are those of the header or the index.

    Raises:
        TruncatedError, ChecksumMismatchError, InconsistentError: the table is damaged, or isn't one of that many
            entries.
    """
    table = byte_array(data)
    check_crc32c("entry table", table, table_crc32c)
    require_bytes("entry table", len(table), ENTRY_TABLE_HEADER_BYTES)
    length_width, time_width, zero, smallest, earliest = _TABLE_HEADER.unpack_from(table.data)
    expected_bytes = ENTRY_TABLE_HEADER_BYTES + entries * (length_width + time_width)
    if length_width not in _WIDTHS[:4] or time_width not in _WIDTHS or zero or len(table) != expected_bytes:
        raise InconsistentError(
            "entry table",
            expected=f"{expected_bytes} bytes for {entries} entries",
            found=f"{len(table)} bytes, widths {length_width} and {time_width}",
        )
    split = ENTRY_TABLE_HEADER_BYTES + entries * length_width
    return EntryTable(
        _column(table[ENTRY_TABLE_HEADER_BYTES:split], length_width, entries, smallest),
        _column(table[split:], time_width, entries, earliest),
    )


def _column(data: Bytes, width: int, count: int, base: int) -> NDArray[np.int64]:
    if width == 0:
        return np.full(count, base, dtype=np.int64)
    spans: NDArray[np.uint64] = data.view(_UNSIGNED[width]).astype(np.uint64)
    return (spans + np.uint64(base % 2**64)).view(np.int64)


def time_range(publish_times_ms: NDArray[np.int64]) -> tuple[int, int, int]:
    """Earliest and latest known time, ``TIME_UNKNOWN_MS`` twice if none is known, and the flag for unknown ones."""
    known = publish_times_ms[publish_times_ms != TIME_UNKNOWN_MS]
    flag = 0 if len(known) == len(publish_times_ms) else FLAG_TIMES_INCOMPLETE
    if len(known) == 0:
        return TIME_UNKNOWN_MS, TIME_UNKNOWN_MS, flag
    return int(known.min()), int(known.max()), flag


def encode_index_rows(ledger_id: int, rows: NDArray[np.void]) -> bytes:
    """The index extension of one group: a header of 16 bytes and one ``ROW`` per block."""
    return _ROWS_HEADER.pack(EXTENSION_VERSION, bytes(3), len(rows), ledger_id) + rows.tobytes()


def decode_index_rows(data: bytes, *, ledger_id: int | None, rows: int) -> tuple[int, NDArray[np.void]]:
    """The ledger and the rows in the index extension of a group with ``rows`` index entries.

    ``ledger_id`` is ``None`` in V1, whose index doesn't contain it.

    Raises:
        UnsupportedVersionError, InconsistentError: the extension is newer, or contradicts the index it is in.
    """
    require_bytes("index extension", len(data), _ROWS_HEADER.size)
    version, zeros, count, of_ledger = _ROWS_HEADER.unpack_from(data)
    if version != EXTENSION_VERSION or any(zeros):
        raise UnsupportedVersionError("index extension", expected=f"version {EXTENSION_VERSION}", found=version)
    expected_bytes = _ROWS_HEADER.size + rows * ROW.itemsize
    if count != rows or len(data) != expected_bytes or (ledger_id is not None and of_ledger != ledger_id):
        raise InconsistentError(
            "index extension",
            expected=f"{rows} blocks of ledger {ledger_id} in {expected_bytes} bytes",
            found=f"{count} blocks of ledger {of_ledger} in {len(data)} bytes",
        )
    return of_ledger, np.frombuffer(data, dtype=ROW, offset=_ROWS_HEADER.size)
