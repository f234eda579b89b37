"""Segments in columns, and their Parquet files.

Callers compare a known checksum before they decode. A file that declares more rows than its bytes can hold is refused
before memory is allocated for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.errors import InconsistentError, UnsupportedVersionError, located, require_at_most

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Numbers of one ledger span: ledger id, first and last entry id, entries, payload bytes.
SPAN_NUMBERS = 5
#: The columns that imply the span of a segment with a single one.
PLAIN_SPAN_COLUMNS = ("begin_ledger_id", "begin_entry_id", "end_entry_id", "entries", "payload_bytes")

Numbers = NDArray[Any]

_NARROW = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32"))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SegmentColumns:
    """n offloaded or retired segments, ascending by begin, their ranges disjoint; every column has shape (n,).

    Attributes:
        uuid_high, uuid_low: the two halves of the uuids, uint64.
        status: 1 offloaded, 2 retired.
        owned, compressed: 0 or 1.
        driver: index into ``drivers``.
        epoch: which assigned it.
        retire_record: which retired it, -1 none.
        assigned_ms, offloaded_ms: ms since 1970 UTC.
        publish_time_min_ms, publish_time_max_ms: -1 where none is known.
        span_rows: int64, ascending: rows whose ledgers the other columns don't imply.
        span_offsets: int64, shape (len(span_rows) + 1,): where the spans of each such row begin in ``spans``.
        spans: int64, shape (m, 5): ledger id, first and last entry id, entries, payload bytes.
        drivers: where the objects are.
    """

    uuid_high: Numbers
    uuid_low: Numbers
    status: Numbers
    layout: Numbers
    owned: Numbers
    compressed: Numbers
    driver: Numbers
    epoch: Numbers
    retire_record: Numbers
    begin_ledger_id: Numbers
    begin_entry_id: Numbers
    end_ledger_id: Numbers
    end_entry_id: Numbers
    assigned_ms: Numbers
    offloaded_ms: Numbers
    data_bytes: Numbers
    index_bytes: Numbers
    data_crc32c: Numbers
    index_crc32c: Numbers
    entries: Numbers
    payload_bytes: Numbers
    publish_time_min_ms: Numbers
    publish_time_max_ms: Numbers
    blocks: Numbers
    span_rows: Numbers
    span_offsets: Numbers
    spans: Numbers
    drivers: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.begin_ledger_id)

    def spans_of(self, row: int) -> list[list[int]]:
        """The ledger spans of one segment, each as five numbers."""
        at = int(np.searchsorted(self.span_rows, row))
        if at < len(self.span_rows) and self.span_rows[at] == row:
            found = self.spans[int(self.span_offsets[at]) : int(self.span_offsets[at + 1])].tolist()
            return cast("list[list[int]]", found)
        return [[int(getattr(self, name)[row]) for name in PLAIN_SPAN_COLUMNS]]

    def ledger_spans(self, rows: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ledger spans of some rows, in their order: the spans, int64, shape (m, 5), and how many each row has."""
        has_spans, starts, own = self._recorded_spans(rows)
        counts = np.ones(len(rows), np.int64)
        counts[has_spans] = own
        is_recorded = np.repeat(has_spans, counts)
        found = np.empty((len(is_recorded), SPAN_NUMBERS), np.int64)
        plain = [getattr(self, name)[rows[~has_spans]].astype(np.int64) for name in PLAIN_SPAN_COLUMNS]
        found[~is_recorded] = np.stack(plain, axis=1)
        found[is_recorded] = self._spans_at(starts, own)
        return found, counts

    def take(self, rows: Numbers) -> SegmentColumns:
        """Those rows, in that order."""
        has_spans, starts, counts = self._recorded_spans(rows)
        return SegmentColumns(
            uuid_high=self.uuid_high[rows],
            uuid_low=self.uuid_low[rows],
            **{name: _narrowed(getattr(self, name)[rows]) for name in NUMBER_COLUMNS},
            span_rows=np.flatnonzero(has_spans).astype(np.int64),
            span_offsets=np.append(0, np.cumsum(counts, dtype=np.int64)),
            spans=self._spans_at(starts, counts),
            drivers=self.drivers,
        )

    def _recorded_spans(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Which of some rows have recorded spans; of those, where they begin in ``spans`` and how many they are."""
        at = np.searchsorted(self.span_rows, rows)
        has_spans = np.append(self.span_rows, -1)[at] == rows
        starts = self.span_offsets[at[has_spans]]
        return has_spans, starts, self.span_offsets[at[has_spans] + 1] - starts

    def _spans_at(self, starts: Numbers, counts: Numbers) -> Numbers:
        """So many spans from each of these places on, one after the other."""
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        found: Numbers = self.spans[np.repeat(starts, counts) + within]
        return found

    @classmethod
    def concatenated(cls, parts: Sequence[SegmentColumns]) -> SegmentColumns:
        """The rows of ``parts`` in the order of their begins."""
        drivers: list[Mapping[str, str]] = []
        numbers = {name: [getattr(part, name) for part in parts] for name in NUMBER_COLUMNS}
        for position, part in enumerate(parts):
            drivers += [driver for driver in part.drivers if driver not in drivers]
            renumbered = np.array([drivers.index(driver) for driver in part.drivers] or [0], dtype=np.int32)
            numbers["driver"][position] = renumbered[part.driver]
        first_row = np.cumsum([0, *map(len, parts)])
        first_span = np.cumsum([0, *(len(part.spans) for part in parts)])
        joined = cls(
            uuid_high=np.concatenate([part.uuid_high for part in parts]),
            uuid_low=np.concatenate([part.uuid_low for part in parts]),
            **{name: np.concatenate(columns) for name, columns in numbers.items()},
            span_rows=np.concatenate([part.span_rows + first_row[i] for i, part in enumerate(parts)]),
            span_offsets=np.concatenate(
                [np.zeros(1, np.int64), *(part.span_offsets[1:] + first_span[i] for i, part in enumerate(parts))]
            ),
            spans=np.concatenate([part.spans for part in parts]),
            drivers=tuple(drivers),
        )
        order = np.lexsort((joined.begin_entry_id, joined.begin_ledger_id))
        if (order[1:] > order[:-1]).all():
            values: dict[str, Any] = {name: _narrowed(getattr(joined, name)) for name in NUMBER_COLUMNS}
            return replace(joined, **values)
        return joined.take(order)


_NARROW_COLUMNS = {
    **dict.fromkeys(("status", "layout", "owned", "compressed"), np.uint8),
    "driver": np.int32,
    **dict.fromkeys(("data_crc32c", "index_crc32c"), np.uint32),
}
#: Columns of one number per segment, in the order of the file. In memory they are as narrow as their values allow.
NUMBER_COLUMNS: Mapping[str, np.dtype[Any]] = {
    each.name: np.dtype(_NARROW_COLUMNS.get(each.name, np.int64))
    for each in fields(SegmentColumns)
    if not each.name.startswith(("uuid_", "span")) and each.name != "drivers"
}


def narrow_dtype(low: int, high: int, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The smallest unsigned type that holds ``low`` to ``high``, or ``dtype`` where none is smaller."""
    fitting = (each for each in _NARROW if low >= 0 and high < 1 << 8 * each.itemsize)
    return next((each for each in fitting if each.itemsize < dtype.itemsize), dtype)


def _narrowed(values: Numbers) -> Numbers:
    if not len(values) or values.strides == (0,):
        return values
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.broadcast_to(values[:1].copy()[0], (len(values),))
    return values.astype(narrow_dtype(low, high, values.dtype), copy=False)


#: Version of the Parquet files' columns; a reader refuses any other.
RUN_FORMAT = 1
#: Rows of a Parquet row group, and rows that a load decodes together.
ROW_GROUP_ROWS = 16_384
#: Files of fewer rows aren't compressed: setting up a compressor per column costs more than it saves.
COMPRESSED_ROWS_MIN = 256
#: Most rows of one file.
FILE_ROWS_MAX = 4_194_304
#: Least bytes of a row: its uuid, which no encoding shortens.
ROW_BYTES_MIN = 16
#: JSON texts beside the columns: where objects are, and the smallest and largest numbers of the columns.
DRIVERS_BYTES_MAX, RANGES_BYTES_MAX = 1024 * 1024, 16 * 1024
#: Metadata of a Parquet file: the version of its columns.
FORMAT_KEY = b"offloader.format"
_DRIVERS_KEY = b"offloader.drivers"
_RANGES_KEY = b"offloader.ranges"
#: What Arrow and JSON raise for damaged files.
_UNREADABLE = (pa.ArrowException, OSError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError)

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
        LimitExceededError: it is too large to be read.
    """
    count = len(columns)
    uuids = np.empty((count, 2), dtype=">u8")
    uuids[:, 0], uuids[:, 1] = columns.uuid_high, columns.uuid_low
    arrays = [pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(uuids.tobytes())])]
    numbers = {name: getattr(columns, name) for name in NUMBER_COLUMNS}
    ranges = {name: [int(values.min()), int(values.max())] for name, values in numbers.items()} if count else {}
    arrays += [pa.array(numbers[name].astype(dtype)) for name, dtype in NUMBER_COLUMNS.items()]
    arrays.append(_span_lists(columns))
    own = {
        FORMAT_KEY: b"%d" % RUN_FORMAT,
        _DRIVERS_KEY: json.dumps([dict(driver) for driver in columns.drivers], sort_keys=True).encode(),
        _RANGES_KEY: json.dumps(ranges).encode(),
    }
    # Loaded with its first use, here and below: most streams have no checkpoint, and a listing would wait for it.
    import pyarrow.parquet as pq

    table = pa.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata({**own, **metadata}))
    sink = pa.BufferOutputStream()
    ways = _SMALL if count < COMPRESSED_ROWS_MIN else _LARGE
    pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, write_statistics=list(NUMBER_COLUMNS), **ways)
    body = cast(bytes, sink.getvalue().to_pybytes())
    require_at_most("rows", count, _rows_max(body))
    _require_texts(own)
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
    """The segments in a Parquet file of ``encode_columns``; raises ``FormatError``: check known checksums before."""
    with located(object_name):
        return columns_in(*open_columns(data))


def columns_in(file: pq.ParquetFile, metadata: Mapping[bytes, bytes]) -> SegmentColumns:
    """The segments in a file of ``open_columns``; raises ``FormatError``.

    Decodes some rows at a time into columns as narrow as the recorded ranges allow.
    """
    try:
        drivers = json.loads(metadata[_DRIVERS_KEY])
        if not isinstance(drivers, list) or not all(isinstance(driver, dict) for driver in drivers):
            raise InconsistentError("drivers", expected="a list of objects", found=drivers)
        return _filled(file, metadata, tuple(drivers))
    except _UNREADABLE as error:
        raise InconsistentError(f"not a table of segments: {error}") from error


def _rows_max(data: bytes) -> int:
    return min(FILE_ROWS_MAX, len(data) // ROW_BYTES_MIN)


def _require_texts(metadata: Mapping[bytes, bytes]) -> None:
    """Refuses JSON metadata of the file that is too long to parse."""
    for key, most in ((_DRIVERS_KEY, DRIVERS_BYTES_MAX), (_RANGES_KEY, RANGES_BYTES_MAX)):
        require_at_most(f"bytes of {key.decode()}", len(metadata.get(key, b"")), most)


def open_parquet(data: bytes, rows_max: int, version: bytes, schemas: Sequence[pa.Schema]) -> pq.ParquetFile:
    """A file of one of the schemas that declares at most so many rows.

    Raises:
        FormatError: any problem.
    """
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        rows, schema = file.metadata.num_rows, file.schema_arrow
    except _UNREADABLE as error:
        raise InconsistentError(f"not a Parquet file: {error}") from error
    found = (schema.metadata or {}).get(FORMAT_KEY)
    if found != version:
        raise UnsupportedVersionError("format", expected=version, found=found)
    if not any(map(schema.equals, schemas)):
        expected, shown = (
            each.to_string(show_field_metadata=False, show_schema_metadata=False) for each in (schemas[0], schema)
        )
        raise InconsistentError("columns", expected=expected, found=shown)
    require_at_most("rows", rows, rows_max)
    return file


def open_columns(data: bytes) -> tuple[pq.ParquetFile, Mapping[bytes, bytes]]:
    """A file of ``encode_columns``, and its metadata with those given there; raises ``FormatError``."""
    file = open_parquet(data, _rows_max(data), b"%d" % RUN_FORMAT, [_SCHEMA])
    metadata = file.schema_arrow.metadata
    _require_texts(metadata)
    return file, metadata


def _filled(
    file: pq.ParquetFile, metadata: Mapping[bytes, bytes], drivers: tuple[Mapping[str, str], ...]
) -> SegmentColumns:
    count = file.metadata.num_rows
    ranges = _ranges(metadata) if count else dict.fromkeys(NUMBER_COLUMNS, (0, 0))
    columns: dict[str, Numbers] = {}
    for name, dtype in NUMBER_COLUMNS.items():
        low, high = ranges[name]
        columns[name] = (
            np.broadcast_to(np.array(low, dtype=dtype), (count,))
            if low == high and count
            else np.empty(count, dtype=narrow_dtype(low, high, dtype))
        )
    columns["uuid_high"], columns["uuid_low"] = np.empty(count, np.uint64), np.empty(count, np.uint64)
    varying = [name for name in NUMBER_COLUMNS if columns[name].flags.writeable]
    none = np.empty(0, np.int64)
    span_parts: list[tuple[Numbers, Numbers, Numbers]] = [(none, none, np.empty((0, SPAN_NUMBERS), np.int64))]
    start = 0
    wanted = ["uuid", *varying, "ledgers"]
    for batch in file.iter_batches(ROW_GROUP_ROWS, columns=wanted, use_threads=False):
        stop = start + batch.num_rows
        for name in varying:
            values, (low, high) = batch.column(name).to_numpy(), ranges[name]
            if len(values) and not low <= int(values.min()) <= int(values.max()) <= high:
                raise ValueError(f"a number outside of {low} to {high}")
            np.copyto(columns[name][start:stop], values, casting="unsafe")
        halves = _uuid_halves(batch.column("uuid"))
        columns["uuid_high"][start:stop], columns["uuid_low"][start:stop] = halves[:, 0], halves[:, 1]
        span_parts.append(_spans_in(batch.column("ledgers"), start))
        start = stop
    low, high = ranges["driver"]
    if start != count or low < 0 or high >= max(len(drivers), 1):
        raise InconsistentError("rows", expected=count, found=start)
    span_rows, span_counts, spans = (np.concatenate(part) for part in zip(*span_parts, strict=True))
    return SegmentColumns(
        **columns,
        span_rows=span_rows,
        span_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(span_counts, dtype=np.int64)]),
        spans=spans,
        drivers=drivers,
    )


def _ranges(metadata: Mapping[bytes, bytes]) -> Mapping[str, tuple[int, int]]:
    """Smallest and largest value of each column, as recorded.

    Parquet's own statistics aren't used: reading them from a damaged file ends the process, because Arrow's metadata
    classes throw what Python can't catch, while reading columns reports it.
    """
    found = {name: (int(low), int(high)) for name, (low, high) in dict(json.loads(metadata[_RANGES_KEY])).items()}
    if found.keys() != NUMBER_COLUMNS.keys():
        raise ValueError("ranges of other columns")
    return found


def _uuid_halves(column: pa.Array) -> Numbers:
    """uint64, shape (n, 2)."""
    start = 2 * column.offset
    return np.frombuffer(column.buffers()[1], dtype=">u8")[start : start + 2 * len(column)].reshape(-1, 2)


def _span_lists(columns: SegmentColumns) -> pa.Array:
    """One list of span numbers for each segment; null where the other columns imply it."""
    count = len(columns)
    lengths = np.zeros(count, dtype=np.int64)
    lengths[columns.span_rows] = np.diff(columns.span_offsets) * SPAN_NUMBERS
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    has_spans = np.zeros(count, dtype=bool)
    has_spans[columns.span_rows] = True
    values = pa.array(columns.spans.reshape(-1), type=pa.int64())
    mask = pa.array(~has_spans) if count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask).cast(_SCHEMA.field("ledgers").type)


def _spans_in(lists: pa.Array, first_row: int) -> tuple[Numbers, Numbers, Numbers]:
    """Rows with spans, how many each has, and the spans."""
    lengths = np.diff(lists.offsets.to_numpy())
    rows = np.flatnonzero(lengths)
    values = lists.flatten().to_numpy()
    if (lengths % SPAN_NUMBERS).any() or len(values) != lengths.sum():
        raise InconsistentError("ledgers of segments", expected="five numbers each")
    return (rows + first_row, (lengths[rows] // SPAN_NUMBERS).astype(np.int64), values.reshape(-1, SPAN_NUMBERS))
