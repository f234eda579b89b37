"""Events of the demo's input: columns of them, their digest, and tables as JSON.

Owns the shape of input events. Must never read a file.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS

__all__ = ["EVENTS_PER_BATCH", "EventDigest", "Events", "no_times", "table_to_json"]

#: Events that are read, appended and hashed at once.
EVENTS_PER_BATCH = 8192

# everything that JSON wants escaped, except the two that are replaced
_CONTROL = "[\\x00-\\x1f]"


class Events(NamedTuple):
    """Consecutive events: payloads (Arrow binary, n), publish times (int64 ms, n; -1 when the input has none)."""

    payloads: pa.BinaryArray
    times_ms: NDArray[np.int64]


class EventDigest:
    """SHA-256 over events in order: of each its length (4 bytes), its time (8 bytes) if counted, its bytes.

    The lengths make sure that the same bytes cut differently give another digest.
    """

    def __init__(self, *, with_times: bool) -> None:
        self._with_times = with_times
        self._sha = hashlib.sha256()
        self.events = 0
        self.payload_bytes = 0

    def add(self, events: Events) -> None:
        """Counts and hashes ``events``."""
        count = len(events.payloads)
        if count == 0:
            return
        lengths = pc.binary_length(events.payloads).to_numpy(zero_copy_only=False)
        header = np.empty(
            count, dtype=[("length", "<i4"), ("time", "<i8")] if self._with_times else [("length", "<i4")]
        )
        header["length"] = lengths
        if self._with_times:
            header["time"] = events.times_ms
        width = header.dtype.itemsize
        heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(header.tobytes())])
        joined = pc.binary_join_element_wise(heads.cast(pa.binary()), events.payloads, b"")
        self._sha.update(memoryview(joined.buffers()[2])[: count * width + int(lengths.sum(dtype=np.int64))])
        self.events += count
        self.payload_bytes += int(lengths.sum(dtype=np.int64))

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def table_to_json(table: pa.RecordBatch) -> pa.BinaryArray:
    """Each row as one compact JSON object, columns in order, missing values left out.

    Args:
        table: n rows; NaN counts as missing.

    Returns:
        Arrow binary, n. Whole columns are worked on, one at a time.

    Raises:
        ValueError: a value that JSON can't say; names the column and the row (from 0).
    """
    pieces = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        text = _column_to_json(name, column)
        piece = pc.binary_join_element_wise("," + json.dumps(name, ensure_ascii=False) + ":", text, "")
        # a missing value made its piece null; Arrow's own skipping of nulls loses rows that have nothing else
        pieces.append(pc.fill_null(piece, ""))
    if not pieces:
        return pa.array([b"{}"] * table.num_rows, pa.binary())
    joined = pc.binary_join_element_wise(*pieces, "")
    # without the first comma
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "").cast(pa.binary())


def _column_to_json(name: str, column: pa.Array) -> pa.StringArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.string())
        if not pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
            escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
            return pc.binary_join_element_wise('"', escaped, '"', "")
    return pa.array([_value_to_json(name, row, value) for row, value in enumerate(column.to_pylist())], pa.string())


def _value_to_json(name: str, row: int, value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_other_to_json)
    except (ValueError, TypeError) as error:
        raise ValueError(f"row {row}, column {name}: {error}") from error


def _other_to_json(value: Any) -> str:
    """Times, decimals and bytes, as text."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def no_times(count: int) -> NDArray[np.int64]:
    """Times of ``count`` events that have none."""
    return np.full(count, TIME_UNKNOWN_MS, dtype=np.int64)
