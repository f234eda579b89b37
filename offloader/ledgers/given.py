"""What a caller appends, as a batch of entries: checked, and copied once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import EntryBatch
from formats.errors import FormatError, LimitExceeded
from offloader.errors import InvalidCall, LimitReached

__all__ = ["ENTRY_BYTES_MAX", "given_batch"]

#: Largest entry: SQLite's limit for a row is just below 1 GB.
ENTRY_BYTES_MAX = 512 * 1024 * 1024


def given_batch(
    payloads: pa.Array | Sequence[bytes], publish_times_ms: Sequence[int] | NDArray[np.int64] | int, *, where: str
) -> EntryBatch:
    """The caller's entries as a batch that nobody else can change: the one copy that is written, kept for readers
    that follow, and offered to the cold tier.

    Args:
        where: what is being done, for errors.

    Raises:
        InvalidCall: not byte strings, or another number of times.
        LimitReached: too large.
    """
    hint = "give a list of bytes or an Arrow binary array, and as many whole numbers of milliseconds, or one"
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise InvalidCall(f"{where}: one payload instead of several", hint=hint)
    if isinstance(payloads, pa.ChunkedArray):
        payloads = payloads.combine_chunks()
    times = np.array(publish_times_ms)
    if times.size and times.dtype.kind not in "iu":
        raise InvalidCall(f"{where}: publish times of type {times.dtype}", hint=hint)
    try:
        count = len(payloads)
        batch = EntryBatch.build(0, 0, payloads, np.full(count, times) if times.ndim == 0 else times)
    except LimitExceeded as error:
        raise LimitReached(f"{where}: {error}", hint="append it in several calls") from error
    except (FormatError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidCall(f"{where}: {error}", hint=hint) from error
    if len(batch) and int(batch.lengths.max()) > ENTRY_BYTES_MAX:
        raise LimitReached(f"{where}: an entry of {int(batch.lengths.max())} bytes, the limit is {ENTRY_BYTES_MAX}")
    return batch.copy() if isinstance(payloads, pa.Array) else batch
