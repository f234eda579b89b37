"""Parquet files of segments: sealed runs and checkpoints.

Owns how the columns are laid out in a file. Must never decode more than one row group at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from formats.checkpoint_columns import NUMBER_COLUMNS, SPAN_NUMBERS, Numbers, SegmentColumns, narrow_dtype
from formats.errors import Inconsistent, LimitExceeded, UnsupportedVersion
from formats.parquet_sizes import ColumnLimits, require_sizes

__all__ = [
    "FILE_ROWS_MAX",
    "ROW_BYTES_MIN",
    "RUN_FORMAT",
    "decode_columns",
    "decode_file",
    "decode_names",
    "encode_columns",
]

#: Version of the Parquet files' columns; a reader refuses any other.
RUN_FORMAT = 1
#: Rows of a Parquet row group: what is decoded at once while a file is loaded.
ROW_GROUP_ROWS = 16_384
#: Files of fewer rows aren't compressed: setting up a compressor for each column takes longer than it saves bytes.
COMPRESSED_ROWS_MIN = 256
#: Most rows of one file.
FILE_ROWS_MAX = 4_194_304
#: A row has at least the bytes of its uuid in the file, which no encoding makes fewer.
ROW_BYTES_MIN = 16
#: Numbers in the ledgers of all segments: so many whatever the file's size, and so many more for each byte of it. Of
#: ledgers that are all alike but for their ids, Zstandard keeps more than two bytes each, for five numbers.
SPAN_VALUES_MIN, SPAN_VALUES_PER_BYTE = 65_536, 16
#: A page ends at 1 MiB, but for the last numbers put into it; one of lists may hold all of a row's.
PAGE_BYTES_MIN = 2 * 1024 * 1024
#: JSON texts beside the columns: where objects are, and the smallest and largest numbers of the columns.
DRIVERS_BYTES_MAX, RANGES_BYTES_MAX = 1024 * 1024, 16 * 1024
_FORMAT_KEY = b"offloader.format"
_DRIVERS_KEY = b"offloader.drivers"
_RANGES_KEY = b"offloader.ranges"

_SCHEMA = pa.schema(
    [
        pa.field("uuid", pa.binary(16), nullable=False),
        *(pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in NUMBER_COLUMNS.items()),
        pa.field("ledgers", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)


def encode_columns(columns: SegmentColumns, metadata: Mapping[bytes, bytes]) -> bytes:
    """A Parquet file of the segments; ``metadata`` goes into the file's own.

    Raises:
        LimitExceeded: nobody could read it.
    """
    count = len(columns)
    uuids = np.empty((count, 2), dtype=">u8")
    uuids[:, 0], uuids[:, 1] = columns.uuid_high, columns.uuid_low
    arrays = [pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(uuids.tobytes())])]
    arrays += [pa.array(getattr(columns, name).astype(dtype)) for name, dtype in NUMBER_COLUMNS.items()]
    arrays.append(_span_lists(columns))
    own = {
        _FORMAT_KEY: b"%d" % RUN_FORMAT,
        _DRIVERS_KEY: json.dumps([dict(driver) for driver in columns.drivers], sort_keys=True).encode(),
        _RANGES_KEY: json.dumps(_ranges_of(columns) if count else {}).encode(),
    }
    table = pa.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata({**own, **metadata}))
    sink = pa.BufferOutputStream()
    ways = _SMALL if count < COMPRESSED_ROWS_MIN else _LARGE
    pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, write_statistics=list(NUMBER_COLUMNS), **ways)
    body = cast(bytes, sink.getvalue().to_pybytes())
    require_sizes(body, _limits_of(body))
    _require_texts(own, "")
    return body


_PATHS = [*(field.name for field in _SCHEMA if field.name != "ledgers"), "ledgers.list.element"]
_SMALL: Mapping[str, Any] = {"use_dictionary": False, "compression": "NONE"}
_LARGE: Mapping[str, Any] = {
    # Positions, times and sizes grow slowly or hardly vary: differences are small. Checksums and uuids are noise.
    "use_dictionary": ["status", "layout", "owned", "compressed", "driver"],
    "column_encoding": {name: "DELTA_BINARY_PACKED" for name, dtype in NUMBER_COLUMNS.items() if dtype == np.int64},
    "compression": {name: "NONE" if name in ("uuid", "data_crc32c", "index_crc32c") else "ZSTD" for name in _PATHS},
}


def decode_columns(data: bytes, *, object_name: str = "") -> SegmentColumns:
    """The segments in a Parquet file of ``encode_columns``; as ``decode_file``."""
    return decode_file(data, object_name=object_name)[1]()


def decode_file(data: bytes, *, object_name: str = "") -> tuple[Mapping[bytes, bytes], Callable[[], SegmentColumns]]:
    """The metadata that ``encode_columns`` was given, with its own, and what decodes the segments.

    Decodes one row group at a time into columns that are as narrow as what the file says of its numbers allows.

    Raises:
        FormatError: anything else, from either; what a caller knows the checksum of, it checks before.
    """
    file, metadata = _opened(data, object_name)
    return metadata, lambda: _columns(file, metadata, object_name)


def _columns(file: pq.ParquetFile, metadata: Mapping[bytes, bytes], object_name: str) -> SegmentColumns:
    try:
        drivers = json.loads(metadata[_DRIVERS_KEY])
        if not isinstance(drivers, list) or not all(isinstance(driver, dict) for driver in drivers):
            raise Inconsistent("drivers", object_name=object_name, expected="a list of objects", found=drivers)
        return _filled(file, metadata, tuple(drivers), object_name)
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Inconsistent(f"not a table of segments: {error}", object_name=object_name) from error


def decode_names(data: bytes, *, object_name: str = "") -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Only ``uuid_high``, ``uuid_low`` and ``status`` of the segments in a file of ``encode_columns``, one row group
    after the other.

    Raises:
        FormatError: anything else.
    """
    file, _ = _opened(data, object_name)
    try:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["uuid", "status"], use_threads=False)
            halves = _uuid_halves(table.column("uuid"))
            yield halves[:, 0], halves[:, 1], table.column("status").to_numpy()
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Inconsistent(f"not a table of segments: {error}", object_name=object_name) from error


def _limits_of(data: bytes) -> ColumnLimits:
    """What a file of these bytes may become."""
    span_values_max = SPAN_VALUES_MIN + SPAN_VALUES_PER_BYTE * len(data)
    return ColumnLimits(
        columns=(len(_SCHEMA),),
        rows_max=min(FILE_ROWS_MAX, len(data) // ROW_BYTES_MIN),
        group_rows_max=ROW_GROUP_ROWS,
        page_bytes_max=PAGE_BYTES_MIN + 8 * span_values_max,
        list_values_max=span_values_max,
        lists=frozenset({_SCHEMA.get_field_index("ledgers")}),
    )


def _require_texts(metadata: Mapping[bytes, bytes], object_name: str) -> None:
    """Refuses JSON of the file's metadata that is too long to be parsed."""
    for key, most in ((_DRIVERS_KEY, DRIVERS_BYTES_MAX), (_RANGES_KEY, RANGES_BYTES_MAX)):
        found = len(metadata.get(key, b""))
        if found > most:
            raise LimitExceeded(
                f"bytes of {key.decode()}", object_name=object_name, expected=f"at most {most}", found=found
            )


def _opened(data: bytes, object_name: str) -> tuple[pq.ParquetFile, Mapping[bytes, bytes]]:
    """The file and its metadata; refused by its sizes before Arrow sees it."""
    require_sizes(data, _limits_of(data), object_name=object_name)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Inconsistent(f"not a Parquet file: {error}", object_name=object_name) from error
    metadata = schema.metadata or {}
    found = metadata.get(_FORMAT_KEY)
    if found != b"%d" % RUN_FORMAT:
        raise UnsupportedVersion("format", object_name=object_name, expected=RUN_FORMAT, found=found)
    if not schema.equals(_SCHEMA):
        raise Inconsistent("columns", object_name=object_name, expected=_SCHEMA.names, found=schema.names)
    _require_texts(metadata, object_name)
    return file, metadata


def _filled(
    file: pq.ParquetFile, metadata: Mapping[bytes, bytes], drivers: tuple[Mapping[str, str], ...], object_name: str
) -> SegmentColumns:
    count = file.metadata.num_rows
    ranges = _ranges(file, metadata, count)
    columns: dict[str, Numbers] = {}
    for name, dtype in NUMBER_COLUMNS.items():
        low, high = ranges[name]
        if low == high and count:
            columns[name] = np.broadcast_to(np.array(low, dtype=dtype), (count,))
        else:
            columns[name] = np.empty(count, dtype=narrow_dtype(low, high, dtype))
    columns["uuid_high"], columns["uuid_low"] = np.empty(count, np.uint64), np.empty(count, np.uint64)
    varying = [name for name in NUMBER_COLUMNS if columns[name].flags.writeable]
    none = np.empty(0, np.int64)
    span_parts: list[tuple[Numbers, Numbers, Numbers]] = [(none, none, np.empty((0, SPAN_NUMBERS), np.int64))]
    start = 0
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=["uuid", *varying, "ledgers"], use_threads=False)
        stop = start + table.num_rows
        for name in varying:
            _copy(table.column(name).to_numpy(), columns[name][start:stop], ranges[name])
        halves = _uuid_halves(table.column("uuid"))
        columns["uuid_high"][start:stop], columns["uuid_low"][start:stop] = halves[:, 0], halves[:, 1]
        span_parts.append(_spans_in(table.column("ledgers"), start, object_name))
        start = stop
    low, high = ranges["driver"]
    if start != count or low < 0 or high >= max(len(drivers), 1):
        raise Inconsistent("rows", object_name=object_name, expected=count, found=start)
    span_rows, span_counts, spans = (np.concatenate(part) for part in zip(*span_parts, strict=True))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(span_counts, dtype=np.int64)])
    return SegmentColumns(**columns, span_rows=span_rows, span_offsets=offsets, spans=spans, drivers=drivers)


def _ranges_of(columns: SegmentColumns) -> dict[str, list[int]]:
    """Smallest and largest value of each column of numbers."""
    return {name: [int(values.min()), int(values.max())] for name, values in _numbers(columns)}


def _numbers(columns: SegmentColumns) -> Iterator[tuple[str, Numbers]]:
    return ((name, getattr(columns, name)) for name in NUMBER_COLUMNS)


def _ranges(file: pq.ParquetFile, metadata: Mapping[bytes, bytes], count: int) -> Mapping[str, tuple[int, int]]:
    """What ``_ranges_of`` said when the file was written; read from the columns where it didn't say.

    Parquet's own statistics say it too, but asking a damaged file for them ends the process: Arrow's metadata classes
    throw what Python can't catch, while reading columns reports it.
    """
    given = metadata.get(_RANGES_KEY)
    if not count:
        return dict.fromkeys(NUMBER_COLUMNS, (0, 0))
    if given is None:  # an earlier release wrote it
        columns = ((name, file.read(columns=[name], use_threads=False).column(name)) for name in NUMBER_COLUMNS)
        return {name: (pc.min(column).as_py(), pc.max(column).as_py()) for name, column in columns}
    found = {name: (int(low), int(high)) for name, (low, high) in dict(json.loads(given)).items()}
    if found.keys() != NUMBER_COLUMNS.keys():
        raise ValueError("ranges of other columns")
    return found


def _copy(values: Numbers, into: Numbers, limits: tuple[int, int]) -> None:
    """Into a column that is only as wide as ``limits`` need."""
    if len(values) and not limits[0] <= int(values.min()) <= int(values.max()) <= limits[1]:
        raise ValueError(f"a number outside of {limits}")
    np.copyto(into, values, casting="unsafe")


def _uuid_halves(column: pa.ChunkedArray) -> Numbers:
    """uint64, shape (n, 2)."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=">u8", count=2 * len(chunk), offset=16 * chunk.offset)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, ">u8"), *chunks]).reshape(-1, 2)


def _span_lists(columns: SegmentColumns) -> pa.Array:
    """One list of span numbers for each segment; null where the other columns say the same."""
    count = len(columns)
    lengths = np.zeros(count, dtype=np.int64)
    lengths[columns.span_rows] = np.diff(columns.span_offsets) * SPAN_NUMBERS
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    has_spans = np.zeros(count, dtype=bool)
    has_spans[columns.span_rows] = True
    values = pa.array(columns.spans.reshape(-1), type=pa.int64())
    mask = pa.array(~has_spans) if count else None
    lists = pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)
    return lists.cast(_SCHEMA.field("ledgers").type)


def _spans_in(column: pa.ChunkedArray, first_row: int, object_name: str) -> tuple[Numbers, Numbers, Numbers]:
    """Rows with spans, how many each has, and the spans."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], type=column.type)
    lengths = np.diff(lists.offsets.to_numpy())
    rows = np.flatnonzero(lengths)
    values = lists.flatten().to_numpy()
    if (lengths % SPAN_NUMBERS).any() or len(values) != lengths.sum():
        raise Inconsistent("ledgers of segments", object_name=object_name, expected="five numbers each")
    return (
        rows + first_row,
        (lengths[rows] // SPAN_NUMBERS).astype(np.int64),
        values.reshape(-1, SPAN_NUMBERS),
    )
