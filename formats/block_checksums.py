"""CRC-32C of whole blocks, computed from an index with our extension, without the data object.

An index has the checksums of a block's payload and entry table, and every field of its header: so the block's header is
encoded anew, and the checksums are joined. For readers that fetch whole blocks by themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, BLOCK_MAGICS, END_MARKER_BYTES, Layout, padding
from formats.checksum import crc32c, crc32c_combine_many
from formats.extension import EXTENSION_MAGIC, EXTENSION_VERSION
from formats.index import Int64s
from formats.segment_map import SegmentMap

#: In a result: the index can't tell.
CRC_UNKNOWN = -1

#: A block header with our extension (docs/reference/format.md, sections 2.1 and 4.1).
_HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("header_bytes", ">i8"),
        ("block_bytes", ">i8"),
        ("first_entry_id", ">i8"),
        ("ledger_id", ">i8"),
        ("extension_magic", "S4"),
        ("version", "u1"),
        ("codec", "u1"),
        ("flags", ">u2"),
        ("entries", ">u4"),
        ("last_entry_id", ">i8"),
        ("stored_bytes", ">u4"),
        ("uncompressed_bytes", ">u4"),
        ("payload_crc32c", ">u4"),
        ("table_bytes", ">u4"),
        ("table_crc32c", ">u4"),
        ("publish_time_min_ms", ">i8"),
        ("publish_time_max_ms", ">i8"),
        ("zero", "V32"),
        ("crc32c", ">u4"),
    ]
)
assert _HEADER.itemsize == BLOCK_HEADER_BYTES
_CHECKED_BYTES = BLOCK_HEADER_BYTES - 4
#: Fields that the block table has under the same name.
_SAME = (
    *("first_entry_id", "codec", "flags", "entries", "last_entry_id", "stored_bytes", "uncompressed_bytes"),
    *("payload_crc32c", "table_bytes", "table_crc32c", "publish_time_min_ms", "publish_time_max_ms"),
)


def block_checksums(segment_map: SegmentMap, numbers: Int64s) -> Int64s:
    """CRC-32C of each of some blocks, from its header's first byte to its last, int64, shape (n,).

    ``CRC_UNKNOWN`` for all where the index is a plain one, and for a block that has bytes after its entry table.

    Args:
        numbers: of the blocks, int64, shape (n,).
    """
    if not segment_map.has_extension or not len(numbers):
        return np.full(len(numbers), CRC_UNKNOWN, dtype=np.int64)
    blocks = segment_map.blocks
    stored, table = blocks.stored_bytes[numbers], blocks.table_bytes[numbers]
    tail = END_MARKER_BYTES + table
    marker = np.full(len(numbers), crc32c(padding(END_MARKER_BYTES)), dtype=np.int64)
    whole = crc32c_combine_many(_header_checksums(segment_map, numbers), blocks.payload_crc32c[numbers], stored)
    tails = crc32c_combine_many(marker, blocks.table_crc32c[numbers], table)
    found = crc32c_combine_many(whole, tails, tail)
    return np.where(blocks.length[numbers] == BLOCK_HEADER_BYTES + stored + tail, found, CRC_UNKNOWN)


def _header_checksums(segment_map: SegmentMap, numbers: Int64s) -> Int64s:
    """CRC-32C of the blocks' headers, each of which ends with the checksum of what is before."""
    blocks = segment_map.blocks
    headers: NDArray[np.void] = np.zeros(len(numbers), dtype=_HEADER)
    headers["magic"] = BLOCK_MAGICS[segment_map.layout - 1]
    headers["header_bytes"], headers["block_bytes"] = BLOCK_HEADER_BYTES, blocks.length[numbers]
    if segment_map.layout is Layout.V2:
        headers["ledger_id"] = blocks.ledger_id[numbers]
    headers["extension_magic"], headers["version"] = EXTENSION_MAGIC, EXTENSION_VERSION
    for name in _SAME:
        headers[name] = getattr(blocks, name)[numbers]
    raw = headers.tobytes()
    found = []
    for start in range(0, len(raw), BLOCK_HEADER_BYTES):
        checked = crc32c(raw[start : start + _CHECKED_BYTES])
        found.append(crc32c(checked.to_bytes(4, "big"), checked))
    return np.array(found, dtype=np.int64)
