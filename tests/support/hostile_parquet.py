"""Parquet files of a few kilobytes that become hundreds of megabytes: what somebody would write who wants that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from formats.checkpoint_parquet import NUMBER_COLUMNS

__all__ = ["hostile_ledgers", "hostile_lists", "hostile_segments", "lying_footer"]

_SEGMENTS = pa.schema(
    [
        pa.field("uuid", pa.binary(16), nullable=False),
        *(pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in NUMBER_COLUMNS.items()),
        pa.field("ledgers", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)
_LEDGERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
    ]
)


def hostile_segments(
    rows: int, *, group_rows: int | None = None, metadata: Mapping[bytes, bytes] | None = None
) -> bytes:
    """A run of ``rows`` segments that are all alike, which dictionaries make a few bytes; 160 bytes each in memory."""
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([b"x" * 16], pa.binary(16)))
    arrays = [same.cast(pa.binary(16)), *(pa.array(np.zeros(rows, dtype)) for dtype in NUMBER_COLUMNS.values())]
    return _segments([*arrays, pa.nulls(rows, _SEGMENTS.field("ledgers").type)], group_rows or rows, metadata)


def hostile_lists(values: int, *, dictionary: bool) -> bytes:
    """A run of one segment with ``values`` numbers for its ledgers: from a dictionary, or pages of compressed zeros."""
    arrays = [pa.array([b"x" * 16], pa.binary(16)), *(pa.array(np.zeros(1, d)) for d in NUMBER_COLUMNS.values())]
    zeros = pa.array(np.zeros(values, np.int64))
    lists = pa.ListArray.from_arrays(pa.array([0, values], pa.int32()), zeros)
    return _segments([*arrays, lists.cast(_SEGMENTS.field("ledgers").type)], 1, None, dictionary=dictionary)


def hostile_ledgers(rows: int, *, group_rows: int) -> bytes:
    """A run of ``rows`` ledgers, one after the other."""
    ids = np.arange(rows, dtype=np.int64)
    arrays = [pa.array(ids), pa.array(np.zeros(rows, np.int64)), pa.array(np.zeros(rows, np.uint8))]
    table = pa.Table.from_arrays(arrays, schema=_LEDGERS.with_metadata({b"offloader.format": b"1"}))
    encoding = {"ledger_id": "DELTA_BINARY_PACKED", "last_entry_id": "DELTA_BINARY_PACKED"}
    return _written(table, group_rows, use_dictionary=["flags"], column_encoding=encoding)


def lying_footer(data: bytes, values: int, *, said: int) -> bytes:
    """``data``, whose footer names ``said`` values where its pages have ``values``."""
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true = _number(values)
    padded = bytes([*(byte | 128 for byte in _number(said).ljust(len(true) - 1, b"\x00")[: len(true) - 1]), 0])
    footer = data[footer_at:]
    assert footer.count(true)
    assert len(true) > len(_number(said))
    return data[:footer_at] + footer.replace(true, padded)


def _segments(
    arrays: list[pa.Array], group_rows: int, metadata: Mapping[bytes, bytes] | None, *, dictionary: bool = True
) -> bytes:
    own = {
        b"offloader.format": b"1",
        b"offloader.drivers": b"[{},{}]",
        b"offloader.ranges": json.dumps({name: [0, 1] for name in NUMBER_COLUMNS}).encode(),
    }
    table = pa.Table.from_arrays(arrays, schema=_SEGMENTS.with_metadata({**own, **(metadata or {})}))
    return _written(table, group_rows, use_dictionary=dictionary)


def _written(table: pa.Table, group_rows: int, **ways: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=group_rows,
        compression="ZSTD",
        data_page_size=2**30,
        max_rows_per_page=2**40,
        write_statistics=False,
        **ways,
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def _number(value: int) -> bytes:
    """As Thrift's compact protocol writes a positive number."""
    value *= 2
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
