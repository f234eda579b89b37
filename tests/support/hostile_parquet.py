"""Parquet files of a few kilobytes whose rows would take hundreds of megabytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from formats.checkpoint_parquet import NUMBER_COLUMNS

__all__ = ["hostile_ledgers", "hostile_segments"]

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


def hostile_ledgers(rows: int, *, group_rows: int) -> bytes:
    """A run of ``rows`` ledgers, one after the other."""
    ids = np.arange(rows, dtype=np.int64)
    arrays = [pa.array(ids), pa.array(np.zeros(rows, np.int64)), pa.array(np.zeros(rows, np.uint8))]
    table = pa.Table.from_arrays(arrays, schema=_LEDGERS.with_metadata({b"offloader.format": b"1"}))
    encoding = {"ledger_id": "DELTA_BINARY_PACKED", "last_entry_id": "DELTA_BINARY_PACKED"}
    return _written(table, group_rows, use_dictionary=["flags"], column_encoding=encoding)


def _segments(arrays: list[pa.Array], group_rows: int, metadata: Mapping[bytes, bytes] | None) -> bytes:
    own = {
        b"offloader.format": b"1",
        b"offloader.drivers": b"[{},{}]",
        b"offloader.ranges": json.dumps({name: [0, 1] for name in NUMBER_COLUMNS}).encode(),
    }
    table = pa.Table.from_arrays(arrays, schema=_SEGMENTS.with_metadata({**own, **(metadata or {})}))
    return _written(table, group_rows, use_dictionary=True)


def _written(table: pa.Table, group_rows: int, **ways: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=group_rows,
        compression="ZSTD",
        data_page_size=2**30,
        write_statistics=False,
        **ways,
    )
    return cast(bytes, sink.getvalue().to_pybytes())
