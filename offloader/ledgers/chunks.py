"""Runs of entries as rows of a database: columns in, blobs out, and back.

Owns the bytes of one stored chunk and its checksum. Must never run a query or know which database a
chunk is in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import ChecksumMismatch, Inconsistent

__all__ = ["CHUNK_BYTES", "CHUNK_ENTRIES_MAX", "Chunk", "cut_chunks", "decode_chunk", "encode_chunk", "join_chunks"]

#: Payload bytes at which a chunk is cut; only a lone entry makes a larger one.
CHUNK_BYTES = 1024 * 1024
#: Entries of one chunk, so that many empty ones stay bounded too.
CHUNK_ENTRIES_MAX = 65_536

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_IDENTITY = struct.Struct("<qqqqq")


class Chunk(NamedTuple):
    """One row: ``entries`` consecutive entries of a ledger.

    ``lengths`` (int32 each) is ``None`` when all payloads are equally long, ``times`` (int64 each) when all
    publish times are ``first_time_ms``. ``crc`` covers every other field. One that isn't written yet is a view of the
    batch it was made of.
    """

    ledger_id: int
    first_entry_id: int
    entries: int
    first_time_ms: int
    crc: int
    lengths: bytes | None
    times: bytes | None
    payload: bytes | memoryview


def cut_chunks(batch: EntryBatch) -> Iterator[EntryBatch]:
    """Slices of ``batch``, each at most ``CHUNK_BYTES`` and ``CHUNK_ENTRIES_MAX`` unless it is a single entry."""
    ends = batch.offsets[1:]
    start, done_bytes = 0, int(batch.offsets[0])
    while start < len(batch):
        fitting = int(np.searchsorted(ends, done_bytes + CHUNK_BYTES, side="right"))
        stop = min(max(fitting, start + 1), start + CHUNK_ENTRIES_MAX, len(batch))
        yield batch.slice(start, stop)
        start, done_bytes = stop, int(ends[stop - 1])


def encode_chunk(batch: EntryBatch) -> Chunk:
    """The row that holds ``batch`` (not empty, consecutive ids)."""
    offsets = batch.offsets
    payload = batch.data[int(offsets[0]) : int(offsets[-1])]
    lengths = times = None
    first_time_ms = int(batch.publish_times_ms[0])
    if len(batch) > 1:
        every_length = np.diff(offsets)
        if (every_length != every_length[0]).any():
            lengths = every_length.astype(_INT32).tobytes()
        if (batch.publish_times_ms != first_time_ms).any():
            times = batch.publish_times_ms.astype(_INT64).tobytes()
    first = batch.first
    crc = _checksum(first.ledger_id, first.entry_id, len(batch), first_time_ms, lengths, times, payload)
    return Chunk(first.ledger_id, first.entry_id, len(batch), first_time_ms, crc, lengths, times, payload)


def decode_chunk(chunk: Chunk, *, object_name: str = "") -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Payload lengths and publish times of a row's entries, checked.

    Raises:
        ChecksumMismatch: the row isn't what was written.
        Inconsistent: its columns contradict each other (written so, not damaged).
    """
    count = chunk.entries
    crc = _checksum(
        chunk.ledger_id, chunk.first_entry_id, count, chunk.first_time_ms, chunk.lengths, chunk.times, chunk.payload
    )
    where = f"{object_name} ledger {chunk.ledger_id} chunk {chunk.first_entry_id}".strip()
    if crc != chunk.crc:
        raise ChecksumMismatch(
            "stored entries are damaged", object_name=where, expected=f"{chunk.crc:#010x}", found=f"{crc:#010x}"
        )
    if count == 1 and chunk.lengths is None and chunk.times is None:
        return np.array([len(chunk.payload)], dtype=np.int32), np.array([chunk.first_time_ms], dtype=np.int64)
    if chunk.lengths is None:
        lengths = np.full(count, len(chunk.payload) // max(count, 1), dtype=np.int32)
    else:
        lengths = np.frombuffer(_whole(chunk.lengths, 4, where), dtype=_INT32)
    if chunk.times is None:
        times = np.full(count, chunk.first_time_ms, dtype=np.int64)
    else:
        times = np.frombuffer(_whole(chunk.times, 8, where), dtype=_INT64)
    if len(lengths) != count or len(times) != count or int(lengths.sum(dtype=np.int64)) != len(chunk.payload):
        raise Inconsistent(
            "stored entries don't add up",
            object_name=where,
            expected=f"{count} entries, {len(chunk.payload)} bytes",
            found=f"{len(lengths)} lengths, {len(times)} times, {int(lengths.sum(dtype=np.int64))} bytes",
        )
    return lengths, times


def join_chunks(chunks: Sequence[Chunk], wanted: Position, *, object_name: str = "") -> EntryBatch:
    """One batch of the entries of consecutive rows of one ledger, among them ``wanted``.

    Raises:
        ChecksumMismatch: a row isn't what was written.
        Inconsistent: a row contradicts itself, rows don't follow each other, or ``wanted`` isn't in them.
    """
    where = f"{object_name} ledger {wanted.ledger_id}".strip()
    expected = min(chunks[0].first_entry_id, wanted.entry_id) if chunks else wanted.entry_id
    columns = []
    for chunk in chunks:
        if chunk.first_entry_id != expected:
            raise Inconsistent(
                "stored entries are missing", object_name=where, expected=expected, found=chunk.first_entry_id
            )
        columns.append(decode_chunk(chunk, object_name=object_name))
        expected += chunk.entries
    if expected <= wanted.entry_id:
        raise Inconsistent("stored entries are missing", object_name=where, expected=wanted.entry_id, found="none")
    lengths = np.concatenate([length for length, _ in columns]) if len(columns) > 1 else columns[0][0]
    times = np.concatenate([time for _, time in columns]) if len(columns) > 1 else columns[0][1]
    payload = chunks[0].payload if len(chunks) == 1 else b"".join([chunk.payload for chunk in chunks])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    array = pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(payload)], null_count=0
    )
    first = chunks[0].first_entry_id
    return EntryBatch(chunks[0].ledger_id, np.arange(first, first + len(lengths), dtype=np.int64), array, times)


def _whole(blob: bytes, item_bytes: int, where: str) -> bytes:
    if len(blob) % item_bytes:
        raise Inconsistent(
            "a stored column is cut", object_name=where, expected=f"a multiple of {item_bytes} bytes", found=len(blob)
        )
    return blob


def _checksum(
    ledger_id: int,
    first_entry_id: int,
    entries: int,
    first_time_ms: int,
    lengths: bytes | None,
    times: bytes | None,
    payload: bytes | memoryview,
) -> int:
    present = (lengths is not None) | (times is not None) << 1
    crc = crc32c(_IDENTITY.pack(ledger_id, first_entry_id, entries, first_time_ms, present))
    return crc32c(payload, crc32c(times or b"", crc32c(lengths or b"", crc)))
