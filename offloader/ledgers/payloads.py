"""What a caller appends, as a batch of entries, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import ENTRY_HEADER_BYTES, TIME_MS_MAX, TIME_MS_MIN, EntryBatch
from formats.errors import FormatError, LimitExceeded
from offloader.errors import InvalidCall, LimitReached

__all__ = ["ENTRY_BYTES_MAX", "given_entries", "require_payloads", "require_small", "require_times"]

#: Largest entry: SQLite's limit for a row is just below 1 GB.
ENTRY_BYTES_MAX = 512 * 1024 * 1024
_HINT = "give a list of bytes or an Arrow binary array, and as many whole numbers of milliseconds, or one"


def given_entries(
    payloads: pa.Array | Sequence[bytes], publish_times_ms: Sequence[int] | NDArray[np.int64] | int, *, where: str
) -> EntryBatch:
    """The caller's entries as a batch that nobody else can change: the one copy that is written, kept for readers that
    follow, and offered to the cold tier.

    Args:
        where: what is being done, for errors.

    Raises:
        InvalidCall: not byte strings, another number of times, or times that can't be kept.
        LimitReached: too many bytes.
    """
    require_payloads(payloads, where=where)
    if isinstance(payloads, pa.ChunkedArray):
        payloads = payloads.combine_chunks()
    times = np.array(publish_times_ms)
    if times.size and times.dtype.kind not in "iu":
        raise InvalidCall(f"{where}: publish times of type {times.dtype}", hint=_HINT)
    require_times(times, where=where)
    try:
        count = len(payloads)
        batch = EntryBatch.build(0, 0, payloads, np.full(count, times) if times.ndim == 0 else times)
    except LimitExceeded as error:
        raise LimitReached(f"{where}: {error}", hint="append it in several calls") from error
    except (FormatError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidCall(f"{where}: {error}", hint=_HINT) from error
    if len(batch) and int(batch.lengths.max()) > ENTRY_BYTES_MAX:
        raise LimitReached(f"{where}: an entry of {int(batch.lengths.max())} bytes, the limit is {ENTRY_BYTES_MAX}")
    return batch.copy() if isinstance(payloads, pa.Array) else batch


def require_payloads(payloads: object, *, where: str) -> None:
    """Raises ``InvalidCall`` unless it is a sequence of byte strings, or an Arrow array of them or of texts."""
    if isinstance(payloads, (pa.Array, pa.ChunkedArray)):
        if not _is_binary(payloads.type) or payloads.null_count:
            found = f"{payloads.null_count} nulls" if payloads.null_count else str(payloads.type)
            raise InvalidCall(f"{where}: payloads are byte strings, not {found}", hint=_HINT)
        return
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise InvalidCall(f"{where}: one payload instead of several", hint=_HINT)
    if not isinstance(payloads, (Sequence, np.ndarray)):
        raise InvalidCall(f"{where}: payloads are a sequence, not {type(payloads).__name__}", hint=_HINT)
    for kind in set(map(type, payloads)):
        if not issubclass(kind, (bytes, bytearray, memoryview)):
            raise InvalidCall(f"{where}: a payload is a byte string, not {kind.__name__}", hint=_HINT)


def require_small(payloads: pa.Array | Sequence[bytes], limit_bytes: int, *, where: str) -> None:
    """Refuses before anything is written: an entry that could never be offloaded would stop the stream for good.

    Raises:
        InvalidCall: as ``require_payloads``.
        LimitReached: an entry and its header are above the limit.
    """
    require_payloads(payloads, where=where)
    if isinstance(payloads, (pa.Array, pa.ChunkedArray)):
        largest = pa.compute.max(pa.compute.binary_length(payloads)).as_py() or 0
    else:
        largest = max(map(len, payloads), default=0)
    if largest + ENTRY_HEADER_BYTES > limit_bytes:
        raise LimitReached(
            f"an entry of {largest} bytes is above entry_bytes_max or offload_buffer_bytes_max ({limit_bytes})",
            hint="nothing of the batch was appended",
        )


def require_times(times_ms: NDArray[Any], *, where: str) -> None:
    """Raises ``InvalidCall`` for a time that the formats can't keep."""
    if not times_ms.size:
        return
    for found in (int(times_ms.min()), int(times_ms.max())):
        if not TIME_MS_MIN <= found <= TIME_MS_MAX:
            raise InvalidCall(
                f"{where}: a publish time of {found} ms; it can be from {TIME_MS_MIN} to {TIME_MS_MAX}",
                hint="milliseconds since 1970 UTC; leave the time out where nobody knows it",
            )


def _is_binary(kind: pa.DataType) -> bool:
    """Strings are their UTF-8."""
    is_one = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(each(kind) for each in (*is_one, pa.types.is_string, pa.types.is_large_string))
