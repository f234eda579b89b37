"""Our extension of Pulsar's blocks and indexes, in bytes that Pulsar ignores.

Three layouts: the block header's bytes 36..127, the entry table after a payload's end marker, and the rows with which
an index describes its blocks. Plain Pulsar objects are readable without it. Byte by byte in docs/FORMAT.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.checksum import crc32c
from formats.compression import Codec, codec_of
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, Buffer, Bytes, byte_array
from formats.errors import BadMagic, ChecksumMismatch, Inconsistent, Truncated, UnsupportedVersion

__all__ = [
    "ENTRY_TABLE_HEADER_BYTES",
    "EXTENDED_HEADER_BYTES",
    "EXTENSION_VERSION",
    "FLAG_INDEXED",
    "FLAG_TIMES_INCOMPLETE",
    "ROW",
    "TABLE_ENTRY_BYTES_MAX",
    "BlockExtension",
    "EntryTable",
    "decode_block_extension",
    "decode_entry_table",
    "decode_index_rows",
    "encode_block_extension",
    "encode_entry_table",
    "encode_index_rows",
    "time_range",
]

EXTENSION_VERSION = 1
#: A header with the extension is exactly this long.
EXTENDED_HEADER_BYTES = 128
#: Bit of the flags: the object's index has the extension too, so an index without it is damaged.
FLAG_INDEXED = 1
#: Bit of the flags: some entries have no publish time.
FLAG_TIMES_INCOMPLETE = 2

_MAGIC = b"OFFL"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExtension:
    """The extension of a block header.

    Attributes:
        codec: how the payload is stored.
        flags: ``FLAG_INDEXED``, ``FLAG_TIMES_INCOMPLETE``.
        entries: how many; their ids are consecutive.
        last_entry_id: id of the last one.
        stored_bytes: bytes between the block header and the end marker.
        uncompressed_bytes: of the run of entries, entry headers included.
        payload_crc32c: of the stored bytes.
        table_bytes: of the entry table, which follows the four bytes of the end marker.
        table_crc32c: of the entry table.
        publish_time_min_ms: earliest known publish time, ``TIME_UNKNOWN_MS`` when none is known.
        publish_time_max_ms: latest known publish time.
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
        counts = (self.entries, self.last_entry_id, self.stored_bytes, self.uncompressed_bytes, self.payload_crc32c)
        table_and_times = (self.table_bytes, self.table_crc32c, self.publish_time_min_ms, self.publish_time_max_ms)
        return (*counts, *table_and_times, int(self.codec), 0, self.flags)


def encode_block_extension(plain_header: bytes, extension: BlockExtension) -> bytes:
    """A block header, 128 bytes, with its extension.

    Args:
        plain_header: the first 36 bytes.
        extension: its values.
    """
    e = extension
    counts = (e.entries, e.last_entry_id, e.stored_bytes, e.uncompressed_bytes, e.payload_crc32c)
    table_and_times = (e.table_bytes, e.table_crc32c, e.publish_time_min_ms, e.publish_time_max_ms)
    fields = _HEADER.pack(_MAGIC, EXTENSION_VERSION, e.codec, e.flags, *counts, *table_and_times, bytes(32))
    covered = plain_header[:_MAGIC_AT] + fields
    return covered + crc32c(covered).to_bytes(4, "big")


def decode_block_extension(header: Bytes, *, object_name: str = "", offset: int = 0) -> BlockExtension | None:
    """The extension in a block header; ``None`` when the header is a plain Pulsar one.

    Args:
        header: at least the first 40 bytes of the block; 128 are needed when there is an extension.
        object_name: for error messages.
        offset: of the block in its object, for error messages.

    Raises:
        Truncated, BadMagic, ChecksumMismatch, UnsupportedVersion, Inconsistent: the header is damaged or newer.
    """
    magic = header[_MAGIC_AT : _MAGIC_AT + 4].tobytes()
    if magic == _PLAIN:
        return None
    if magic != _MAGIC:
        raise BadMagic(
            "block header extension",
            object_name=object_name,
            offset=offset + _MAGIC_AT,
            expected=f"{_PLAIN.hex()} or {_MAGIC.hex()}",
            found=magic.hex(),
        )
    if len(header) < EXTENDED_HEADER_BYTES:
        raise Truncated(
            "block header", object_name=object_name, offset=offset, expected=EXTENDED_HEADER_BYTES, found=len(header)
        )
    expected = int.from_bytes(header[_HEADER_CRC_AT:EXTENDED_HEADER_BYTES].tobytes(), "big")
    found = crc32c(header[:_HEADER_CRC_AT])
    if found != expected:
        raise ChecksumMismatch(
            "block header", object_name=object_name, offset=offset, expected=f"{expected:08x}", found=f"{found:08x}"
        )
    return _block_extension(header, object_name, offset)


def _block_extension(header: Bytes, object_name: str, offset: int) -> BlockExtension:
    _, version, codec, flags, *numbers, reserved = _HEADER.unpack_from(header.data, _MAGIC_AT)
    if version != EXTENSION_VERSION or flags & ~_KNOWN_FLAGS or any(reserved):
        raise UnsupportedVersion(
            "block header extension",
            object_name=object_name,
            offset=offset + _MAGIC_AT,
            expected=f"version {EXTENSION_VERSION}, flags 0..{_KNOWN_FLAGS}",
            found=f"version {version}, flags {flags}",
        )
    extension = BlockExtension(
        codec=codec_of(codec, object_name=object_name, offset=offset),
        flags=flags,
        entries=numbers[0],
        last_entry_id=numbers[1],
        stored_bytes=numbers[2],
        uncompressed_bytes=numbers[3],
        payload_crc32c=numbers[4],
        table_bytes=numbers[5],
        table_crc32c=numbers[6],
        publish_time_min_ms=numbers[7],
        publish_time_max_ms=numbers[8],
    )
    if not extension.entries or extension.entries * ENTRY_HEADER_BYTES > extension.uncompressed_bytes:
        raise Inconsistent(
            "entries of a block",
            object_name=object_name,
            offset=offset,
            expected=f"1 to {extension.uncompressed_bytes // ENTRY_HEADER_BYTES}",
            found=extension.entries,
        )
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


def decode_entry_table(
    data: Buffer, *, entries: int, table_crc32c: int, object_name: str = "", offset: int = 0
) -> EntryTable:
    """Lengths and publish times of a block's entries, from the table alone.

    Args:
        data: exactly the ``table_bytes`` bytes of the table.
        entries: how many entries the block has.
        table_crc32c: from the header or the index.
        object_name: for error messages.
        offset: of the table in its object, for error messages.

    Raises:
        Truncated, ChecksumMismatch, Inconsistent: the table is damaged, or isn't one of that many entries.
    """
    table = byte_array(data)
    found = crc32c(table)
    if found != table_crc32c:
        raise ChecksumMismatch(
            "entry table", object_name=object_name, offset=offset, expected=f"{table_crc32c:08x}", found=f"{found:08x}"
        )
    if len(table) < ENTRY_TABLE_HEADER_BYTES:
        raise Truncated(
            "entry table",
            object_name=object_name,
            offset=offset,
            expected=ENTRY_TABLE_HEADER_BYTES,
            found=len(table),
        )
    length_width, time_width, zero, smallest, earliest = _TABLE_HEADER.unpack_from(table.data)
    expected_bytes = ENTRY_TABLE_HEADER_BYTES + entries * (length_width + time_width)
    if length_width not in _WIDTHS[:4] or time_width not in _WIDTHS or zero or len(table) != expected_bytes:
        raise Inconsistent(
            "entry table",
            object_name=object_name,
            offset=offset,
            expected=f"{expected_bytes} bytes for {entries} entries",
            found=f"{len(table)} bytes, widths {length_width} and {time_width}",
        )
    split = ENTRY_TABLE_HEADER_BYTES + entries * length_width
    lengths = _column(table[ENTRY_TABLE_HEADER_BYTES:split], length_width, entries, smallest)
    return EntryTable(lengths, _column(table[split:], time_width, entries, earliest))


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


def decode_index_rows(
    data: bytes, *, ledger_id: int | None, rows: int, object_name: str = ""
) -> tuple[int, NDArray[np.void]]:
    """The ledger and the rows in a group's index extension.

    Args:
        data: the extension's bytes.
        ledger_id: of the group; ``None`` in V1, whose index doesn't contain it.
        rows: how many index entries the group has.
        object_name: for error messages.

    Raises:
        UnsupportedVersion, Inconsistent: the extension is newer, or contradicts the index it is in.
    """
    if len(data) < _ROWS_HEADER.size:
        raise Truncated("index extension", object_name=object_name, expected=_ROWS_HEADER.size, found=len(data))
    version, zeros, count, of_ledger = _ROWS_HEADER.unpack_from(data)
    if version != EXTENSION_VERSION or any(zeros):
        raise UnsupportedVersion(
            "index extension", object_name=object_name, expected=f"version {EXTENSION_VERSION}", found=version
        )
    expected_bytes = _ROWS_HEADER.size + rows * ROW.itemsize
    if count != rows or len(data) != expected_bytes or (ledger_id is not None and of_ledger != ledger_id):
        raise Inconsistent(
            "index extension",
            object_name=object_name,
            expected=f"{rows} blocks of ledger {ledger_id} in {expected_bytes} bytes",
            found=f"{count} blocks of ledger {of_ledger} in {len(data)} bytes",
        )
    return of_ledger, np.frombuffer(data, dtype=ROW, offset=_ROWS_HEADER.size)
