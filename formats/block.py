"""Blocks: header, payload, padding; V1 and V2, with and without our extension.

Owns the bytes of one block of a data object. Must never know which blocks an object has: that is the index.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from formats.buffers import Buffer, Bytes, byte_array
from formats.checksum import crc32c
from formats.compression import Codec, decompress
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, EntryBatch
from formats.errors import BadMagic, ChecksumMismatch, Inconsistent, LimitExceeded, Truncated
from formats.extension import BlockExtension, decode_block_extension, decode_entry_table
from formats.payload import (
    BLOCK_MAGICS,
    PADDING,
    RUN_BYTES_MAX,
    check_entry_headers,
    entry_ids_at,
    split_payloads,
    walk,
)

__all__ = [
    "BLOCK_HEADER_BYTES",
    "COMPRESSED_PREFIX",
    "END_MARKER_BYTES",
    "BlockHeader",
    "Layout",
    "decode_block",
    "decode_block_header",
    "decode_run",
    "encode_plain_header",
    "padding",
]

#: Length of every block header that anyone writes; readers go by the length in the header.
BLOCK_HEADER_BYTES = 128
#: What must follow the last entry of a V2 block, so that Pulsar's reader sees a negative length there.
END_MARKER_BYTES = 4

#: What a compressed payload begins with, before its one zstd frame: to Pulsar's readers the end of the entries.
COMPRESSED_PREFIX = PADDING
_FIXED = struct.Struct(">4sQQqq")
_FIXED_BYTES = 36


class Layout(IntEnum):
    """Which of Pulsar's layouts: V1 has one ledger per object, V2 runs of any ledgers."""

    V1 = 1
    V2 = 2


_MAGIC = dict(zip(Layout, BLOCK_MAGICS, strict=True))
_LAYOUT = {magic: layout for layout, magic in _MAGIC.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What a block's header says.

    Attributes:
        layout: V1 or V2.
        header_bytes: where the payload begins.
        block_bytes: of the whole block, header and padding included.
        first_entry_id: id of the first entry.
        ledger_id: the ledger; ``None`` in V1, whose headers don't say it.
        extension: ours; ``None`` in a plain Pulsar block.
    """

    layout: Layout
    header_bytes: int
    block_bytes: int
    first_entry_id: int
    ledger_id: int | None
    extension: BlockExtension | None = None


def encode_plain_header(layout: Layout, block_bytes: int, first_entry_id: int, ledger_id: int) -> bytes:
    """A Pulsar block header, 128 bytes. ``ledger_id`` isn't written in V1."""
    of_ledger = ledger_id if layout is Layout.V2 else 0
    fixed = _FIXED.pack(_MAGIC[layout], BLOCK_HEADER_BYTES, block_bytes, first_entry_id, of_ledger)
    return fixed.ljust(BLOCK_HEADER_BYTES, b"\0")


def padding(length: int) -> bytes:
    """``length`` bytes of end padding: ``FE DC DE AD`` over and over, cut at the end."""
    return (PADDING * (length // 4 + 1))[:length]


def decode_block_header(data: Buffer, *, object_name: str = "", offset: int = 0) -> BlockHeader:
    """The header at the start of ``data``; what follows it isn't looked at.

    Raises:
        Truncated: fewer bytes than the header has.
        BadMagic: no block begins here.
        Inconsistent: lengths that contradict each other.
        ChecksumMismatch, UnsupportedVersion: our extension in it is damaged or newer.
    """
    view = byte_array(data)
    if len(view) < BLOCK_HEADER_BYTES:
        raise Truncated(
            "block header", object_name=object_name, offset=offset, expected=BLOCK_HEADER_BYTES, found=len(view)
        )
    magic, header_bytes, block_bytes, first_entry_id, ledger_id = _FIXED.unpack_from(view.data)
    if magic not in _LAYOUT:
        raise BadMagic(
            "data block header magic word not match",
            object_name=object_name,
            offset=offset,
            expected=" or ".join(each.hex() for each in _LAYOUT),
            found=magic.hex(),
        )
    extension = decode_block_extension(view[:BLOCK_HEADER_BYTES], object_name=object_name, offset=offset)
    if not _FIXED_BYTES <= header_bytes <= block_bytes or block_bytes >= 2**63 or first_entry_id < 0:
        raise Inconsistent(
            "block header",
            object_name=object_name,
            offset=offset,
            expected="36 <= header length <= block length, first entry >= 0",
            found=f"header length {header_bytes}, block length {block_bytes}, first entry {first_entry_id}",
        )
    layout = _LAYOUT[magic]
    of_ledger = ledger_id if layout is Layout.V2 else None
    header = BlockHeader(
        layout=layout,
        header_bytes=header_bytes,
        block_bytes=block_bytes,
        first_entry_id=first_entry_id,
        ledger_id=of_ledger,
        extension=extension,
    )
    if extension is not None:
        _check_extended(header, extension, object_name, offset)
    return header


def _check_extended(header: BlockHeader, extension: BlockExtension, object_name: str, offset: int) -> None:
    needed = BLOCK_HEADER_BYTES + extension.stored_bytes + END_MARKER_BYTES + extension.table_bytes
    last_entry_id = header.first_entry_id + extension.entries - 1
    same_size = extension.codec is not Codec.NONE or extension.stored_bytes == extension.uncompressed_bytes
    if (
        header.header_bytes != BLOCK_HEADER_BYTES
        or needed > header.block_bytes
        or last_entry_id != extension.last_entry_id
        or not same_size
    ):
        raise Inconsistent(
            "block header",
            object_name=object_name,
            offset=offset,
            expected=f"a block of at least {needed} bytes, last entry {last_entry_id}",
            found=f"{header.block_bytes} bytes, last entry {extension.last_entry_id}",
        )


def decode_block(
    data: Buffer,
    *,
    object_name: str = "",
    offset: int = 0,
    header_bytes: int = BLOCK_HEADER_BYTES,
    block_bytes_max: int,
    decompressed_bytes_max: int,
    ledger_id: int | None = None,
) -> EntryBatch:
    """The entries of the whole block at the start of ``data``; bytes after the block are ignored.

    With our extension every checksum is checked and the entry table gives the lengths; without it the entries
    are found one after the other. The header's own length is honoured; ``header_bytes`` is what the index says.

    Args:
        data: the block, and whatever follows it.
        object_name: for error messages.
        offset: of the block in its object, for error messages.
        header_bytes: the data header length in the object's index; a header that says otherwise is damaged.
        block_bytes_max: largest block the caller takes.
        decompressed_bytes_max: largest run of entries the caller takes.
        ledger_id: the ledger the block should be of; needed for V1, whose blocks don't say it (-1 when absent).

    Raises:
        FormatError: of every kind; nothing else, whatever the bytes are.
    """
    view = byte_array(data)
    header = decode_block_header(view, object_name=object_name, offset=offset)
    if header.block_bytes > block_bytes_max:
        raise LimitExceeded(
            "block is too large",
            object_name=object_name,
            offset=offset,
            expected=f"at most {block_bytes_max}",
            found=header.block_bytes,
        )
    if header.block_bytes > len(view):
        raise Truncated("block", object_name=object_name, offset=offset, expected=header.block_bytes, found=len(view))
    of_ledger = _ledger_of(header, ledger_id, object_name, offset)
    if header.header_bytes != header_bytes:
        raise Inconsistent(
            "header length", object_name=object_name, offset=offset, expected=header_bytes, found=header.header_bytes
        )
    if header.extension is not None:
        return _decode_extended(view, header, header.extension, of_ledger, decompressed_bytes_max, object_name, offset)
    return decode_run(
        view[: header.block_bytes],
        header_bytes=header.header_bytes,
        length=header.block_bytes,
        first_entry_id=header.first_entry_id,
        ledger_id=of_ledger,
        run_bytes_max=decompressed_bytes_max,
        object_name=object_name,
        offset=offset,
    )


def _ledger_of(header: BlockHeader, ledger_id: int | None, object_name: str, offset: int) -> int:
    if header.ledger_id is None:
        return -1 if ledger_id is None else ledger_id
    if ledger_id is not None and ledger_id != header.ledger_id:
        raise Inconsistent(
            "ledger of the block", object_name=object_name, offset=offset, expected=ledger_id, found=header.ledger_id
        )
    return header.ledger_id


def _decode_extended(
    view: Bytes,
    header: BlockHeader,
    extension: BlockExtension,
    ledger_id: int,
    decompressed_bytes_max: int,
    object_name: str,
    offset: int,
) -> EntryBatch:
    limit = min(decompressed_bytes_max, RUN_BYTES_MAX)
    if extension.uncompressed_bytes > limit:
        raise LimitExceeded(
            "entries of a block are too large",
            object_name=object_name,
            offset=offset,
            expected=f"at most {limit}",
            found=extension.uncompressed_bytes,
        )
    stored_end = header.header_bytes + extension.stored_bytes
    table_at = stored_end + END_MARKER_BYTES
    table = decode_entry_table(
        view[table_at : table_at + extension.table_bytes],
        entries=extension.entries,
        table_crc32c=extension.table_crc32c,
        object_name=object_name,
        offset=offset + table_at,
    )
    if int(table.lengths.sum()) + ENTRY_HEADER_BYTES * extension.entries != extension.uncompressed_bytes:
        raise Inconsistent(
            "entry table",
            object_name=object_name,
            offset=offset + table_at,
            expected=f"lengths that make {extension.uncompressed_bytes} bytes",
            found=int(table.lengths.sum()) + ENTRY_HEADER_BYTES * extension.entries,
        )
    run = _stored_run(view[header.header_bytes : stored_end], extension, limit, object_name, offset)
    check_entry_headers(
        run,
        table.lengths,
        header.first_entry_id,
        object_name=object_name,
        offset=offset + header.header_bytes,
    )
    ids = np.arange(header.first_entry_id, extension.last_entry_id + 1, dtype=np.int64)
    return EntryBatch(ledger_id, ids, split_payloads(run, table.lengths), table.publish_times_ms)


def _stored_run(stored: Bytes, extension: BlockExtension, limit: int, object_name: str, offset: int) -> Bytes:
    at = offset + BLOCK_HEADER_BYTES
    found = crc32c(stored)
    if found != extension.payload_crc32c:
        raise ChecksumMismatch(
            "block payload",
            object_name=object_name,
            offset=at,
            expected=f"{extension.payload_crc32c:08x}",
            found=f"{found:08x}",
        )
    if extension.codec is Codec.NONE:
        return stored
    prefix = stored[: len(COMPRESSED_PREFIX)].tobytes()
    if prefix != COMPRESSED_PREFIX:
        raise BadMagic(
            "compressed payload",
            object_name=object_name,
            offset=at,
            expected=COMPRESSED_PREFIX.hex(),
            found=prefix.hex(),
        )
    frame = stored[len(COMPRESSED_PREFIX) :]
    length = extension.uncompressed_bytes
    return byte_array(decompress(extension.codec, frame, length, limit, object_name=object_name, offset=at))


def decode_run(
    data: Buffer,
    *,
    header_bytes: int,
    length: int,
    first_entry_id: int,
    ledger_id: int,
    run_bytes_max: int,
    object_name: str = "",
    offset: int = 0,
) -> EntryBatch:
    """The entries from one index entry of a plain Pulsar object to the next.

    An index entry may point 128 bytes before any entry, not only at block headers. So the entries begin at
    ``header_bytes`` and end where those of the next index entry begin, at ``length + header_bytes``; or earlier,
    at padding or at a block header that stands at ``length``.

    Args:
        data: the object's bytes from the index entry's offset on; up to ``length + header_bytes`` are used.
        header_bytes: the data header length in the index.
        length: from this index entry's offset to the next one's, or to the end of the object.
        first_entry_id: id in the index entry.
        ledger_id: the ledger.
        run_bytes_max: most bytes the entries may take.
        object_name: for error messages.
        offset: of the index entry, for error messages.

    Raises:
        FormatError: entries that go too far, or whose ids don't ascend from ``first_entry_id``.
    """
    view = byte_array(data)
    stop = min(len(view), length + header_bytes)
    start = min(header_bytes, stop)
    limit = min(run_bytes_max, RUN_BYTES_MAX)
    barrier = length if length > header_bytes else -1
    lengths, end = walk(view, start, stop, barrier, object_name=object_name, offset=offset)
    if end - start > limit:
        raise LimitExceeded(
            "entries are too large", object_name=object_name, offset=offset, expected=f"at most {limit}"
        )
    run = view[start:end]
    ids = entry_ids_at(run, lengths)
    _check_ids(ids, first_entry_id, object_name, offset)
    times = np.full(len(ids), TIME_UNKNOWN_MS, dtype=np.int64)
    return EntryBatch(ledger_id, ids, split_payloads(run, lengths), times)


def _check_ids(ids: NDArray[np.int64], first_entry_id: int, object_name: str, offset: int) -> None:
    if len(ids) == 0:
        return
    if int(ids[0]) != first_entry_id:
        raise Inconsistent(
            "first entry", object_name=object_name, offset=offset, expected=first_entry_id, found=int(ids[0])
        )
    falling = ids[1:] <= ids[:-1]
    if falling.any():
        at = int(np.argmax(falling))
        raise Inconsistent(
            "entry ids don't ascend",
            object_name=object_name,
            offset=offset,
            expected=f"more than {int(ids[at])}",
            found=int(ids[at + 1]),
        )
