"""The run of entries inside a block: ``[entry_len int32][entry_id int64][payload]``, many at once.

Owns the conversion between columns and that run. Must never know about headers, padding or checksums
of blocks.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from formats.buffers import Bytes, byte_array
from formats.entries import ENTRY_HEADER_BYTES, EntryBatch
from formats.errors import Inconsistent, LimitExceeded, Truncated

__all__ = [
    "BLOCK_MAGICS",
    "PADDING",
    "RUN_BYTES_MAX",
    "check_entry_headers",
    "entry_ids_at",
    "interleave",
    "split_payloads",
    "walk",
]

#: First four bytes of a block: V1's, V2's.
BLOCK_MAGICS = (bytes.fromhex("fbdbabcb"), bytes.fromhex("26a66d32"))
#: What the end of a block is filled with, over and over.
PADDING = bytes.fromhex("fedcdead")
#: Bytes of one run: Arrow counts offsets in 32 bits. An entry's own limit follows: 12 bytes less.
RUN_BYTES_MAX = 2**31 - 1

_HEADER = np.dtype([("length", ">i4"), ("entry_id", ">i8")])
#: Flipped bits with which padding still counts as padding. A length whose sign was flipped differs in at least 11.
_PADDING_BITS_MAX = 4
#: Below this many entries, building Arrow arrays costs more than a loop.
_FEW_ENTRIES = 8
_PACK_HEADER = struct.Struct(">iq").pack
_UNPACK_LENGTH = struct.Struct(">i").unpack_from


def interleave(batch: EntryBatch, out: Bytes | None = None) -> Bytes:
    """The entries as they stand in a block: uint8, shape (``batch.wire_bytes``,).

    Args:
        batch: the entries.
        out: where to write them, exactly as long; ``None``: new memory.

    Raises:
        LimitExceeded: more than ``RUN_BYTES_MAX`` bytes.
    """
    wire_bytes = batch.wire_bytes
    if wire_bytes > RUN_BYTES_MAX:
        raise LimitExceeded("entries of one block", expected=f"at most {RUN_BYTES_MAX} bytes", found=wire_bytes)
    if len(batch) < _FEW_ENTRIES:
        return _interleave_few(batch, np.empty(wire_bytes, dtype=np.uint8) if out is None else out)
    count, lengths = len(batch), batch.lengths
    headers = np.empty(count, dtype=_HEADER)
    headers["length"] = lengths
    headers["entry_id"] = batch.entry_ids
    first = int(lengths[0])
    if (lengths == first).all():
        return _interleave_equal(batch, headers, first, np.empty(wire_bytes, dtype=np.uint8) if out is None else out)
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


def _interleave_equal(batch: EntryBatch, headers: NDArray[np.void], length: int, run: Bytes) -> Bytes:
    """All payloads have one length: header and payload are the columns of a table."""
    rows = run.reshape(len(batch), ENTRY_HEADER_BYTES + length)
    rows[:, :ENTRY_HEADER_BYTES] = headers.view(np.uint8).reshape(len(batch), ENTRY_HEADER_BYTES)
    if length:
        start = int(batch.offsets[0])
        data = np.frombuffer(batch.data, dtype=np.uint8, count=length * len(batch), offset=start)
        rows[:, ENTRY_HEADER_BYTES:] = data.reshape(len(batch), length)
    return run


def _interleave_few(batch: EntryBatch, run: Bytes) -> Bytes:
    data = np.frombuffer(batch.data, dtype=np.uint8) if batch.payload_bytes else np.empty(0, dtype=np.uint8)
    bounds = batch.offsets.tolist()
    end = 0
    for entry_id, start, stop in zip(batch.entry_ids.tolist(), bounds[:-1], bounds[1:], strict=True):
        begin, end = end, end + ENTRY_HEADER_BYTES + stop - start
        header = _PACK_HEADER(stop - start, entry_id)
        run[begin : begin + ENTRY_HEADER_BYTES] = np.frombuffer(header, dtype=np.uint8)
        run[begin + ENTRY_HEADER_BYTES : end] = data[start:stop]
    return run


def split_payloads(run: Bytes, lengths: NDArray[np.int64]) -> pa.BinaryArray:
    """The payloads of a run whose entry lengths are known; one copy.

    Args:
        run: exactly the run's bytes.
        lengths: int64, shape (n,): payload bytes of each entry; with 12 bytes each they fill ``run``.
    """
    count = len(lengths)
    if count == 0:
        return pa.array([], type=pa.binary())
    step = _equal_step(lengths)
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
    """All payloads have one length: a column of a table."""
    length = step - ENTRY_HEADER_BYTES
    data = pa.allocate_buffer(length * count)
    if length:
        byte_array(data).reshape(count, length)[:] = run.reshape(count, step)[:, ENTRY_HEADER_BYTES:]
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data], null_count=0)


def _equal_step(lengths: NDArray[np.int64]) -> int:
    """From one header to the next where all entries have one length; 0 where they differ."""
    first = int(lengths[0])
    return first + ENTRY_HEADER_BYTES if (lengths == first).all() else 0


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each entry's header begins in its run."""
    starts = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1] + ENTRY_HEADER_BYTES, out=starts[1:])
    return starts


def _gather(run: Bytes, at: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Big-endian integers that begin at the byte positions ``at``, wherever those are aligned."""
    dtype = np.dtype(kind)
    # One overlapping value per byte of the run; NumPy reads unaligned memory correctly.
    windows: NDArray[np.int64] = np.ndarray(
        (len(run) - dtype.itemsize + 1,), dtype=dtype.newbyteorder("="), buffer=run, strides=(1,)
    )
    values = windows[at]
    return (values.byteswap() if np.little_endian else values).astype(np.int64, copy=False)


def entry_ids_at(run: Bytes, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids in the entry headers of a run: int64, shape (n,)."""
    if len(lengths) == 0:
        return np.empty(0, dtype=np.int64)
    return _gather(run, _starts(lengths) + 4, "i8")


def check_entry_headers(
    run: Bytes, lengths: NDArray[np.int64], first_entry_id: int, *, object_name: str = "", offset: int = 0
) -> None:
    """Checks that the entry headers in a run say what the entry table says.

    Args:
        run: exactly the run's bytes; the lengths, with 12 bytes each, fill it.
        lengths: int64, shape (n,), n > 0.
        first_entry_id: the ids are this one and the following ones.
        object_name: for error messages.
        offset: of the run in its object, for error messages.

    Raises:
        Inconsistent: naming the first entry that differs.
    """
    count, step = len(lengths), _equal_step(lengths)
    expected = np.empty(count, dtype=_HEADER)
    expected["length"] = lengths
    expected["entry_id"] = np.arange(first_entry_id, first_entry_id + count, dtype=np.int64)
    if step:
        found = np.ndarray((count,), dtype="V12", buffer=run, strides=(step,)).copy()
    else:
        windows = np.ndarray((len(run) - ENTRY_HEADER_BYTES + 1,), dtype="V12", buffer=run, strides=(1,))
        found = windows[_starts(lengths)]
    if np.array_equal(found.view(np.uint8), expected.view(np.uint8)):
        return
    headers = found.view(_HEADER)
    at = int(np.argmax(headers != expected))
    raise Inconsistent(
        "entry header",
        object_name=object_name,
        offset=offset + int(_starts(lengths)[at]),
        expected=f"entry {int(expected['entry_id'][at])} of {int(lengths[at])} bytes",
        found=f"entry {int(headers['entry_id'][at])} of {int(headers['length'][at])} bytes",
    )


def walk(
    data: Bytes, start: int, stop: int, barrier: int, *, object_name: str = "", offset: int = 0
) -> tuple[NDArray[np.int64], int]:
    """Finds the entries of a run from their headers alone.

    The run ends at ``stop``, at a negative length (padding), or at ``barrier`` when a block's magic stands there.

    Args:
        data: bytes that hold the run.
        start: where the first entry header is, in ``data``.
        stop: no entry goes past this; ``stop <= len(data)``.
        barrier: where a block header may stand, in ``data``; -1 for nowhere.
        object_name: for error messages.
        offset: of ``data`` in its object, for error messages.

    Returns:
        The lengths, int64, shape (n,), and where the run ends in ``data``.

    Raises:
        Truncated: an entry goes past ``stop``.
        Inconsistent: a negative length that isn't padding.
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
            _check_padding(view[position : barrier if position < barrier else stop], object_name, offset + position)
            break
        following = position + ENTRY_HEADER_BYTES + length
        if following > stop:
            raise Truncated(
                "entry goes past the end of its block",
                object_name=object_name,
                offset=offset + position,
                expected=f"at most {stop - position - ENTRY_HEADER_BYTES} bytes",
                found=length,
            )
        append(length)
        position = following
    if stop - position in (1, 2, 3) and not data[position] & 0x80:
        raise Truncated(
            "entry header is cut", object_name=object_name, offset=offset + position, expected=12, found=stop - position
        )
    return np.array(lengths, dtype=np.int64), position


def _check_padding(end: memoryview, object_name: str, offset: int) -> None:
    """A damaged length may be negative, and would hide the entries after it."""
    found = bytes(end[: len(PADDING)])
    differing = int.from_bytes(found, "big") ^ int.from_bytes(PADDING[: len(found)], "big")
    if differing.bit_count() > _PADDING_BITS_MAX:
        raise Inconsistent(
            "entry length", object_name=object_name, offset=offset, expected="a length or padding", found=found.hex()
        )


def _equal_lengths(data: Bytes, start: int, stop: int, barrier: int) -> list[int]:
    """Lengths of the leading entries that are all as long as the first one, found without a walk."""
    if barrier >= 0:
        stop = min(stop, barrier)
    if stop - start < 2 * ENTRY_HEADER_BYTES:
        return []
    first = int.from_bytes(data[start : start + 4].tobytes(), "big", signed=True)
    step = first + ENTRY_HEADER_BYTES
    count = (stop - start) // step if first >= 0 else 0
    if count < 2:
        return []
    same = _gather(data, np.arange(start, start + count * step, step, dtype=np.int64), "i4") == first
    return [first] * (count if same.all() else int(np.argmin(same)))
