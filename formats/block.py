"""Blocks of a data object: header, run of entries, padding; V1 and V2, with and without the extension."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.checksum import check_crc32c
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, Buffer, Bytes, EntryBatch, byte_array
from formats.errors import (
    BadMagicError,
    InconsistentError,
    TruncatedError,
    located,
    require_at_most,
    require_bytes,
    require_equal,
)
from formats.extension import BlockExtension, Codec, decode_block_extension, decode_entry_table, decompress
from formats.summary import Layout

#: First four bytes of a block: V1's, V2's.
BLOCK_MAGICS = (bytes.fromhex("fbdbabcb"), bytes.fromhex("26a66d32"))
#: Repeated to fill the end of a block.
PADDING = bytes.fromhex("fedcdead")
#: Bytes of one run: Arrow counts offsets in 32 bits. An entry's own limit follows: 12 bytes less.
RUN_BYTES_MAX = 2**31 - 1

_HEADER = np.dtype([("length", ">i4"), ("entry_id", ">i8")])
#: Flipped bits with which padding still counts as padding. A length with a flipped sign differs in at least 11.
_PADDING_BITS_MAX = 4
#: Below this many entries, building Arrow arrays costs more than a loop.
_FEW_ENTRIES = 8
_PACK_HEADER = struct.Struct(">iq").pack
_UNPACK_LENGTH = struct.Struct(">i").unpack_from


def interleave(batch: EntryBatch, out: Bytes | None = None) -> Bytes:
    """The entries as encoded in a block: uint8, shape (``batch.wire_bytes``,), in ``out`` or in new memory.

    Raises:
        LimitExceededError: more than ``RUN_BYTES_MAX`` bytes.
    """
    wire_bytes = require_at_most("entries of one block", batch.wire_bytes, RUN_BYTES_MAX, unit="bytes")
    if len(batch) < _FEW_ENTRIES:
        return _interleave_few(batch, np.empty(wire_bytes, dtype=np.uint8) if out is None else out)
    count, lengths = len(batch), batch.lengths
    headers, first = _headers(lengths, batch.entry_ids), int(lengths[0])
    if (lengths == first).all():
        return _interleave_equal(batch, headers, first, np.empty(wire_bytes, dtype=np.uint8) if out is None else out)
    # Loaded with its first use: it takes 40 ms, which a listing would wait for.
    import pyarrow.compute as pc

    offsets = np.arange(0, ENTRY_HEADER_BYTES * count + 1, ENTRY_HEADER_BYTES, dtype=np.int32)
    column = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(headers)], null_count=0
    )
    joined = pc.binary_join_element_wise(column, batch.payloads, b"")
    run = np.frombuffer(joined.buffers()[2], dtype=np.uint8, count=wire_bytes)
    if out is None:
        return run
    out[:] = run
    return out


def _headers(lengths: NDArray[np.int64] | NDArray[np.int32], entry_ids: NDArray[np.int64]) -> NDArray[np.void]:
    headers = np.empty(len(lengths), dtype=_HEADER)
    headers["length"], headers["entry_id"] = lengths, entry_ids
    return headers


def _interleave_equal(batch: EntryBatch, headers: NDArray[np.void], length: int, run: Bytes) -> Bytes:
    """For payloads of one length: header and payload are the columns of a table."""
    rows = run.reshape(len(batch), ENTRY_HEADER_BYTES + length)
    rows[:, :ENTRY_HEADER_BYTES] = headers.view(np.uint8).reshape(len(batch), ENTRY_HEADER_BYTES)
    if length:
        data = np.frombuffer(batch.data, dtype=np.uint8, count=length * len(batch), offset=int(batch.offsets[0]))
        rows[:, ENTRY_HEADER_BYTES:] = data.reshape(len(batch), length)
    return run


def _interleave_few(batch: EntryBatch, run: Bytes) -> Bytes:
    data = np.frombuffer(batch.data, dtype=np.uint8) if batch.payload_bytes else np.empty(0, dtype=np.uint8)
    bounds = batch.offsets.tolist()
    end = 0
    for entry_id, start, stop in zip(batch.entry_ids.tolist(), bounds[:-1], bounds[1:], strict=True):
        begin, end = end, end + ENTRY_HEADER_BYTES + stop - start
        run[begin : begin + ENTRY_HEADER_BYTES] = np.frombuffer(_PACK_HEADER(stop - start, entry_id), dtype=np.uint8)
        run[begin + ENTRY_HEADER_BYTES : end] = data[start:stop]
    return run


def split_payloads(run: Bytes, lengths: NDArray[np.int64]) -> pa.BinaryArray:
    """The payloads of a run whose entry lengths are known, int64, shape (n,), n > 0; one copy.

    With 12 bytes each they fill ``run`` exactly.
    """
    count, step = len(lengths), _equal_step(lengths)
    if step:
        return _split_equal(run, count, step)
    # Every second value of (header, payload, header, payload, ...) over the same bytes.
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    ends = np.cumsum(lengths + ENTRY_HEADER_BYTES)
    bounds[0] = 0
    bounds[2::2] = ends
    bounds[1::2] = ends - lengths
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(run)], null_count=0
    )
    # 32 bits are enough, and twice as fast as 64.
    return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def _split_equal(run: Bytes, count: int, step: int) -> pa.BinaryArray:
    """For payloads of one length: a column of a table."""
    length = step - ENTRY_HEADER_BYTES
    data = pa.allocate_buffer(length * count)
    if length:
        byte_array(data).reshape(count, length)[:] = run.reshape(count, step)[:, ENTRY_HEADER_BYTES:]
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data], null_count=0)


def _equal_step(lengths: NDArray[np.int64]) -> int:
    """Distance between headers if all entries have one length; 0 if they differ."""
    first = int(lengths[0])
    return first + ENTRY_HEADER_BYTES if (lengths == first).all() else 0


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each entry's header begins in its run."""
    starts = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1] + ENTRY_HEADER_BYTES, out=starts[1:])
    return starts


def _gather(run: Bytes, at: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Big-endian integers at the byte positions ``at``, whatever their alignment."""
    dtype = np.dtype(kind)
    # One overlapping value per byte of the run; NumPy reads unaligned memory correctly.
    windows: NDArray[np.int64] = np.ndarray(
        (len(run) - dtype.itemsize + 1,), dtype=dtype.newbyteorder("="), buffer=run, strides=(1,)
    )
    values = windows[at]
    return (values.byteswap() if np.little_endian else values).astype(np.int64, copy=False)


def check_entry_headers(run: Bytes, lengths: NDArray[np.int64], first_entry_id: int) -> None:
    """Checks that the entry headers in a run match the entry table, with ids from ``first_entry_id`` on.

    ``lengths``, int64, shape (n,), n > 0, fill ``run`` exactly with 12 bytes each.

    Raises:
        InconsistentError: naming the first entry that differs.
    """
    count, step = len(lengths), _equal_step(lengths)
    expected = _headers(lengths, np.arange(first_entry_id, first_entry_id + count, dtype=np.int64))
    if step:
        found = np.ndarray((count,), dtype="V12", buffer=run, strides=(step,)).copy()
    else:
        windows = np.ndarray((len(run) - ENTRY_HEADER_BYTES + 1,), dtype="V12", buffer=run, strides=(1,))
        found = windows[_starts(lengths)]
    if np.array_equal(found.view(np.uint8), expected.view(np.uint8)):
        return
    headers = found.view(_HEADER)
    at = int(np.argmax(headers != expected))
    raise InconsistentError(
        "entry header",
        offset=int(_starts(lengths)[at]),
        expected=f"entry {int(expected['entry_id'][at])} of {int(lengths[at])} bytes",
        found=f"entry {int(headers['entry_id'][at])} of {int(headers['length'][at])} bytes",
    )


def walk(data: Bytes, start: int, stop: int, barrier: int) -> tuple[NDArray[np.int64], int]:
    """Finds the entries of a run from their headers alone: their lengths, int64, shape (n,), and where the run ends.

    The run begins at ``start`` and ends at ``stop`` (at most ``len(data)``), at a negative length (padding), or at a
    block's magic at ``barrier`` (-1: none is there). All are offsets in ``data``.

    Raises:
        TruncatedError: an entry exceeds ``stop``.
        InconsistentError: a negative length that isn't padding.
    """
    lengths = _equal_lengths(data, start, stop, barrier)
    position = start + (0 if not lengths else len(lengths) * (lengths[0] + ENTRY_HEADER_BYTES))
    view = data.data
    append, length_at = lengths.append, _UNPACK_LENGTH
    while position + 4 <= stop:
        if position == barrier and bytes(view[position : position + 4]) in BLOCK_MAGICS:
            break
        length = length_at(view, position)[0]
        if length < 0:
            _check_padding(view[position : barrier if position < barrier else stop], position)
            break
        following = position + ENTRY_HEADER_BYTES + length
        if following > stop:
            raise TruncatedError(
                "entry goes past the end of its block",
                offset=position,
                expected=f"at most {stop - position - ENTRY_HEADER_BYTES} bytes",
                found=length,
            )
        append(length)
        position = following
    if stop - position in (1, 2, 3) and not data[position] & 0x80:
        raise TruncatedError("entry header is cut", offset=position, expected=12, found=stop - position)
    return np.array(lengths, dtype=np.int64), position


def _check_padding(end: memoryview, offset: int) -> None:
    """Checks the padding: a damaged negative length would hide the entries after it."""
    found = bytes(end[: len(PADDING)])
    differing = int.from_bytes(found, "big") ^ int.from_bytes(PADDING[: len(found)], "big")
    if differing.bit_count() > _PADDING_BITS_MAX:
        raise InconsistentError("entry length", offset=offset, expected="a length or padding", found=found.hex())


def _equal_lengths(data: Bytes, start: int, stop: int, barrier: int) -> list[int]:
    """Lengths of the leading entries that are as long as the first one, found without a walk."""
    stop = min(stop, barrier) if barrier >= 0 else stop
    if stop - start < 2 * ENTRY_HEADER_BYTES:
        return []
    first = int.from_bytes(data[start : start + 4].tobytes(), "big", signed=True)
    step = first + ENTRY_HEADER_BYTES
    count = (stop - start) // step if first >= 0 else 0
    if count < 2:
        return []
    same = _gather(data, np.arange(start, start + count * step, step, dtype=np.int64), "i4") == first
    return [first] * (count if same.all() else int(np.argmin(same)))


#: Length of the block headers of all known writers; readers use the length in the header.
BLOCK_HEADER_BYTES = 128
#: Bytes after the last entry of a V2 block, where Pulsar's reader expects a negative length.
END_MARKER_BYTES = 4

#: Prefix of a compressed payload, before its one zstd frame: to Pulsar's readers the end of the entries.
COMPRESSED_PREFIX = PADDING
_FIXED = struct.Struct(">4sQQqq")


_MAGIC = dict(zip(Layout, BLOCK_MAGICS, strict=True))
_LAYOUT = {magic: layout for layout, magic in _MAGIC.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """A decoded block header.

    Attributes:
        header_bytes: where the payload begins.
        block_bytes: of the whole block, header and padding included.
        ledger_id: the ledger; ``None`` in V1, whose headers don't contain it.
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
    """``length`` bytes of end padding: repeated ``FE DC DE AD``, cut at the end."""
    return (PADDING * (length // 4 + 1))[:length]


def decode_block_header(data: Buffer, *, object_name: str = "", offset: int = 0) -> BlockHeader:
    """Decodes the header at the start of ``data``; ignores what follows.

    Raises:
        TruncatedError: fewer bytes than the header has.
        BadMagicError: no block begins here.
        InconsistentError: lengths that contradict each other.
        ChecksumMismatchError, UnsupportedVersionError: our extension in it is damaged or newer.
    """
    with located(object_name, offset):
        view = byte_array(data)
        require_bytes("block header", len(view), BLOCK_HEADER_BYTES)
        magic, header_bytes, block_bytes, first_entry_id, ledger_id = _FIXED.unpack_from(view.data)
        layout = _LAYOUT.get(magic)
        if layout is None:
            raise BadMagicError(
                "data block header magic word not match",
                expected=" or ".join(each.hex() for each in _LAYOUT),
                found=magic.hex(),
            )
        extension = decode_block_extension(view[:BLOCK_HEADER_BYTES])
        if not _FIXED.size <= header_bytes <= block_bytes or block_bytes >= 2**63 or first_entry_id < 0:
            raise InconsistentError(
                "block header",
                expected="36 <= header length <= block length, first entry >= 0",
                found=f"header length {header_bytes}, block length {block_bytes}, first entry {first_entry_id}",
            )
        header = BlockHeader(
            layout=layout,
            header_bytes=header_bytes,
            block_bytes=block_bytes,
            first_entry_id=first_entry_id,
            ledger_id=ledger_id if layout is Layout.V2 else None,
            extension=extension,
        )
        if extension is not None:
            _check_extended(header, extension)
        return header


def _check_extended(header: BlockHeader, extension: BlockExtension) -> None:
    needed = BLOCK_HEADER_BYTES + extension.stored_bytes + END_MARKER_BYTES + extension.table_bytes
    last_entry_id = header.first_entry_id + extension.entries - 1
    same_size = extension.codec is not Codec.NONE or extension.stored_bytes == extension.uncompressed_bytes
    if (
        header.header_bytes != BLOCK_HEADER_BYTES
        or needed > header.block_bytes
        or last_entry_id != extension.last_entry_id
        or not same_size
    ):
        raise InconsistentError(
            "block header",
            expected=f"a block of at least {needed} bytes, last entry {last_entry_id}",
            found=f"{header.block_bytes} bytes, last entry {extension.last_entry_id}",
        )


def decode_block(
    data: Buffer,
    *,
    header_bytes: int = BLOCK_HEADER_BYTES,
    block_bytes_max: int,
    decompressed_bytes_max: int,
    ledger_id: int | None = None,
) -> EntryBatch:
    """The entries of the whole block at the start of ``data``; bytes after the block are ignored.

    With our extension, verifies every checksum and takes lengths from the entry table; without it, scans the entries.
    The header's own length applies; ``header_bytes`` is the index's.

    Args:
        header_bytes: the data header length in the object's index; a header with another length is damaged.
        block_bytes_max, decompressed_bytes_max: limits of the block and of its run of entries.
        ledger_id: the expected ledger; needed for V1, whose blocks don't contain it (-1 when absent).

    Raises:
        FormatError: of every kind; nothing else, whatever the bytes are.
    """
    view = byte_array(data)
    header = decode_block_header(view)
    require_at_most("block is too large", header.block_bytes, block_bytes_max)
    require_bytes("block", len(view), header.block_bytes)
    of_ledger = header.ledger_id
    if of_ledger is None:
        of_ledger = -1 if ledger_id is None else ledger_id
    elif ledger_id not in (None, of_ledger):
        raise InconsistentError("ledger of the block", expected=ledger_id, found=of_ledger)
    require_equal("header length", header.header_bytes, header_bytes)
    if header.extension is not None:
        return _decode_extended(view, header, header.extension, of_ledger, decompressed_bytes_max)
    return decode_run(
        view[: header.block_bytes],
        header_bytes=header.header_bytes,
        length=header.block_bytes,
        first_entry_id=header.first_entry_id,
        ledger_id=of_ledger,
        run_bytes_max=decompressed_bytes_max,
    )


def _decode_extended(
    view: Bytes, header: BlockHeader, extension: BlockExtension, ledger_id: int, decompressed_bytes_max: int
) -> EntryBatch:
    limit = min(decompressed_bytes_max, RUN_BYTES_MAX)
    require_at_most("entries of a block are too large", extension.uncompressed_bytes, limit)
    stored_end = header.header_bytes + extension.stored_bytes
    table_at = stored_end + END_MARKER_BYTES
    with located("", table_at):
        table = decode_entry_table(
            view[table_at : table_at + extension.table_bytes],
            entries=extension.entries,
            table_crc32c=extension.table_crc32c,
        )
        run_bytes = int(table.lengths.sum()) + ENTRY_HEADER_BYTES * extension.entries
        if run_bytes != extension.uncompressed_bytes:
            raise InconsistentError(
                "entry table", expected=f"lengths that make {extension.uncompressed_bytes} bytes", found=run_bytes
            )
    with located("", header.header_bytes):
        run = _stored_run(view[header.header_bytes : stored_end], extension, limit)
        check_entry_headers(run, table.lengths, header.first_entry_id)
    return EntryBatch(
        ledger_id,
        np.arange(header.first_entry_id, extension.last_entry_id + 1, dtype=np.int64),
        split_payloads(run, table.lengths),
        table.publish_times_ms,
    )


def _stored_run(stored: Bytes, extension: BlockExtension, limit: int) -> Bytes:
    check_crc32c("block payload", stored, extension.payload_crc32c)
    if extension.codec is Codec.NONE:
        return stored
    prefix = stored[: len(COMPRESSED_PREFIX)].tobytes()
    if prefix != COMPRESSED_PREFIX:
        raise BadMagicError("compressed payload", expected=COMPRESSED_PREFIX.hex(), found=prefix.hex())
    return byte_array(
        decompress(extension.codec, stored[len(COMPRESSED_PREFIX) :], extension.uncompressed_bytes, limit)
    )


def decode_run(
    data: Buffer, *, header_bytes: int, length: int, first_entry_id: int, ledger_id: int, run_bytes_max: int
) -> EntryBatch:
    """The entries from one index entry of a plain Pulsar object to the next.

    An index entry may point 128 bytes before any entry, not only at block headers. So the entries begin at
    ``header_bytes`` and end where those of the next index entry begin, at ``length + header_bytes``; or earlier, at
    padding or at a block header at ``length``.

    Args:
        data: the object's bytes from the index entry's offset on; up to ``length + header_bytes`` are used.
        header_bytes, first_entry_id: the data header length in the index, and the id in the index entry.
        length: from this index entry's offset to the next one's, or to the end of the object.
        run_bytes_max: limit of the entries' bytes.

    Raises:
        FormatError: entries that exceed the range, or whose ids don't ascend from ``first_entry_id``.
    """
    view = byte_array(data)
    stop = min(len(view), length + header_bytes)
    start = min(header_bytes, stop)
    lengths, end = walk(view, start, stop, length if length > header_bytes else -1)
    require_at_most("entries are too large", end - start, min(run_bytes_max, RUN_BYTES_MAX))
    if len(lengths) == 0:
        return EntryBatch.build(ledger_id, first_entry_id, [])
    run = view[start:end]
    ids = _gather(run, _starts(lengths) + 4, "i8")
    require_equal("first entry", int(ids[0]), first_entry_id)
    falling = ids[1:] <= ids[:-1]
    if falling.any():
        at = int(np.argmax(falling))
        raise InconsistentError("entry ids don't ascend", expected=f"more than {int(ids[at])}", found=int(ids[at + 1]))
    return EntryBatch(ledger_id, ids, split_payloads(run, lengths), np.full(len(ids), TIME_UNKNOWN_MS, dtype=np.int64))
