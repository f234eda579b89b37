"""Validation of appended payloads; encoding of runs of entries as database rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.checksum import crc32c
from formats.entries import ENTRY_HEADER_BYTES, TIME_MS_MAX, TIME_MS_MIN, EntryBatch, Position
from formats.errors import ChecksumMismatchError, FormatError, InconsistentError, LimitExceededError
from offloader.errors import InvalidCallError, LimitReachedError
from offloader.ledgers.base import LedgerInfo
from offloader.settings import LedgerSettings

#: Payload bytes at which a chunk is cut; only a single entry makes a larger one.
CHUNK_BYTES = 1024 * 1024
#: Entries of one chunk, which bounds chunks of empty entries.
CHUNK_ENTRIES_MAX = 65_536

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_IDENTITY = struct.Struct("<qqqqq")


class Chunk(NamedTuple):
    """One row: ``entries`` consecutive entries of a ledger.

    ``lengths`` (int32 each) is ``None`` when all payloads are equally long, ``times`` (int64 each) when all publish
    times are ``first_time_ms``. ``crc`` covers every other field. Before it is written, it is a view of its batch.
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
    chunk = Chunk(*batch.first, len(batch), first_time_ms, 0, lengths, times, payload)
    return chunk._replace(crc=_checksum(chunk))


def decode_chunk(chunk: Chunk, *, object_name: str = "") -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Payload lengths and publish times of a row's entries; raises as ``join_chunks``."""
    count, crc = chunk.entries, _checksum(chunk)
    where = f"{object_name} ledger {chunk.ledger_id} chunk {chunk.first_entry_id}".strip()
    if crc != chunk.crc:
        raise ChecksumMismatchError(
            "stored entries are damaged", object_name=where, expected=f"{chunk.crc:#010x}", found=f"{crc:#010x}"
        )
    if count == 1 and chunk.lengths is None and chunk.times is None:  # most rows of a stream appended one by one
        return np.array([len(chunk.payload)], dtype=np.int32), np.array([chunk.first_time_ms], dtype=np.int64)
    lengths = _column("lengths", chunk.lengths, _INT32, len(chunk.payload) // max(count, 1), count, where)
    times = _column("times", chunk.times, _INT64, chunk.first_time_ms, count, where)
    total_bytes = int(lengths.sum(dtype=np.int64))
    if total_bytes != len(chunk.payload):
        raise InconsistentError(
            "stored entries don't add up",
            object_name=where,
            expected=f"{len(chunk.payload)} bytes",
            found=f"{total_bytes} bytes",
        )
    return lengths, times


def join_chunks(chunks: Sequence[Chunk], wanted: Position, *, object_name: str = "") -> EntryBatch:
    """Joins the entries of consecutive rows of one ledger, among them ``wanted``, into one batch.

    Raises:
        ChecksumMismatchError: a row differs from the written one.
        InconsistentError: a row's columns contradict each other, rows aren't consecutive, or ``wanted`` isn't in them.
    """
    where = f"{object_name} ledger {wanted.ledger_id}".strip()
    expected = min(chunks[0].first_entry_id, wanted.entry_id) if chunks else wanted.entry_id
    columns = []
    for chunk in chunks:
        if chunk.first_entry_id != expected:
            raise InconsistentError(
                "stored entries are missing", object_name=where, expected=expected, found=chunk.first_entry_id
            )
        columns.append(decode_chunk(chunk, object_name=object_name))
        expected += chunk.entries
    if expected <= wanted.entry_id:
        raise InconsistentError("stored entries are missing", object_name=where, expected=wanted.entry_id, found="none")
    lengths, times = columns[0] if len(columns) == 1 else map(np.concatenate, zip(*columns, strict=True))
    payload = chunks[0].payload if len(chunks) == 1 else b"".join([chunk.payload for chunk in chunks])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    array = pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(payload)], null_count=0
    )
    first = chunks[0].first_entry_id
    return EntryBatch(chunks[0].ledger_id, np.arange(first, first + len(lengths), dtype=np.int64), array, times)


def _column(name: str, blob: bytes | None, kind: np.dtype[Any], value: int, count: int, where: str) -> NDArray[Any]:
    """``count`` stored values; all are ``value`` without a blob."""
    if blob is None:
        return np.full(count, value, dtype=kind)
    if len(blob) != count * kind.itemsize:
        raise InconsistentError(
            "stored entries don't add up",
            object_name=where,
            expected=f"{count} {name} of {kind.itemsize} bytes",
            found=f"{len(blob)} bytes",
        )
    return np.frombuffer(blob, dtype=kind)


def _checksum(chunk: Chunk) -> int:
    """Of all fields but ``crc``."""
    present = (chunk.lengths is not None) | (chunk.times is not None) << 1
    crc = crc32c(_IDENTITY.pack(chunk.ledger_id, chunk.first_entry_id, chunk.entries, chunk.first_time_ms, present))
    return crc32c(chunk.payload, crc32c(chunk.times or b"", crc32c(chunk.lengths or b"", crc)))


#: Largest entry: SQLite's limit for a row is just below 1 GB.
ENTRY_BYTES_MAX = 512 * 1024 * 1024
_HINT = "pass a list of bytes or an Arrow binary array, and as many integers of milliseconds, or one"


def given_entries(
    payloads: pa.Array | Sequence[bytes], publish_times_ms: Sequence[int] | NDArray[np.int64] | int, *, where: str
) -> EntryBatch:
    """Copies the caller's entries into an immutable batch: the one copy that is written, buffered and offloaded.

    Args:
        where: the operation, for errors.

    Raises:
        InvalidCallError: not byte strings, another number of times, or times that can't be stored.
        LimitReachedError: too many bytes.
    """
    require_payloads(payloads, where=where)
    if isinstance(payloads, pa.ChunkedArray):
        try:
            payloads = payloads.combine_chunks()
        except pa.ArrowException as error:  # its offsets overflow
            raise LimitReachedError(f"{where}: {error}", hint="append it in several calls") from error
    times = np.array(publish_times_ms)
    if times.size and times.dtype.kind not in "iu":
        raise InvalidCallError(f"{where}: publish times of type {times.dtype}", hint=_HINT)
    require_times(times, where=where)
    try:
        batch = EntryBatch.build(0, 0, payloads, np.full(len(payloads), times) if times.ndim == 0 else times)
    except LimitExceededError as error:
        raise LimitReachedError(f"{where}: {error}", hint="append it in several calls") from error
    except (FormatError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidCallError(f"{where}: {error}", hint=_HINT) from error
    if len(batch) and int(batch.lengths.max()) > ENTRY_BYTES_MAX:
        raise LimitReachedError(
            f"{where}: an entry of {int(batch.lengths.max())} bytes, the limit is {ENTRY_BYTES_MAX}"
        )
    return batch.copy() if isinstance(payloads, pa.Array) else batch


def require_payloads(payloads: object, *, where: str) -> None:
    """Raises ``InvalidCallError`` unless it is a sequence of byte strings, or an Arrow array of them or of strings."""
    if isinstance(payloads, (pa.Array, pa.ChunkedArray)):
        if not _is_binary(payloads.type) or payloads.null_count:
            found = f"{payloads.null_count} nulls" if payloads.null_count else str(payloads.type)
            raise InvalidCallError(f"{where}: payloads are byte strings, not {found}", hint=_HINT)
        return
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise InvalidCallError(f"{where}: one payload instead of several", hint=_HINT)
    if not isinstance(payloads, (Sequence, np.ndarray)):
        raise InvalidCallError(f"{where}: payloads are a sequence, not {type(payloads).__name__}", hint=_HINT)
    kinds = set(map(type, payloads))
    for kind in kinds:
        if not issubclass(kind, (bytes, bytearray, memoryview)):
            raise InvalidCallError(f"{where}: a payload is a byte string, not {kind.__name__}", hint=_HINT)
    # The length of such a view is no number of bytes, which every limit is.
    if memoryview in kinds and any(isinstance(each, memoryview) and each.nbytes != len(each) for each in payloads):
        raise InvalidCallError(f"{where}: a payload is a byte string, not a view of larger items", hint=_HINT)


def require_small(payloads: pa.Array | Sequence[bytes], limit_bytes: int, *, where: str) -> None:
    """Refuses oversized entries before the write: an entry that can't be offloaded would stop the stream for good.

    Raises:
        InvalidCallError: as ``require_payloads``.
        LimitReachedError: an entry and its header are above the limit.
    """
    require_payloads(payloads, where=where)
    if isinstance(payloads, (pa.Array, pa.ChunkedArray)):
        # Loaded with its first use: it takes 40 ms, which each command with a ledger database would wait for.
        import pyarrow.compute as pc

        largest = pc.max(pc.binary_length(payloads)).as_py() or 0
    else:
        largest = max(map(len, payloads), default=0)
    if largest + ENTRY_HEADER_BYTES > limit_bytes:
        raise LimitReachedError(
            f"an entry of {largest} bytes is above entry_size_max or offload_buffer_size_max ({limit_bytes})",
            hint="nothing of the batch was appended",
        )


def require_times(times_ms: NDArray[Any], *, where: str) -> None:
    """Raises ``InvalidCallError`` for a time that the formats can't store."""
    if not times_ms.size:
        return
    for found in (int(times_ms.min()), int(times_ms.max())):
        if not TIME_MS_MIN <= found <= TIME_MS_MAX:
            raise InvalidCallError(
                f"{where}: a publish time of {found} ms is outside {TIME_MS_MIN} to {TIME_MS_MAX}",
                hint="use milliseconds since 1970 UTC; omit an unknown time",
            )


def _is_binary(kind: pa.DataType) -> bool:
    """Whether a type is binary; strings are stored as UTF-8."""
    is_one = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(each(kind) for each in (*is_one, pa.types.is_string, pa.types.is_large_string))


def is_full(ledger: LedgerInfo, settings: LedgerSettings) -> bool:
    """Whether a ledger has reached a size at which it closes immediately."""
    return ledger.size_bytes >= settings.ledger_size_max or ledger.entries >= settings.ledger_entries_max


def must_roll(ledger: LedgerInfo, now_ms: int, settings: LedgerSettings) -> bool:
    """Whether the open ledger takes no more entries: full, or old. An empty one takes some, whatever its age."""
    return ledger.entries > 0 and (
        now_ms - ledger.created_ms >= settings.ledger_age_max * 1000 or is_full(ledger, settings)
    )


def room(ledger: LedgerInfo, batch: EntryBatch, settings: LedgerSettings) -> int:
    """How many leading entries of ``batch`` a ledger that isn't full takes, including the one that fills it."""
    offsets = batch.offsets
    target = int(offsets[0]) + settings.ledger_size_max - ledger.size_bytes
    filling = int(np.searchsorted(offsets[1:], target, side="left")) + 1
    return min(filling, settings.ledger_entries_max - ledger.entries, len(batch))
