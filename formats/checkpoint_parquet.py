"""Segments in columns, their Parquet files, and the check of decoded sizes before decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.errors import (
    BadMagicError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
    located,
    require_at_most,
    require_equal,
)

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


_MAGIC = b"PAR1"
_TAIL_BYTES = 4 + len(_MAGIC)
#: Nesting limit of structures; Parquet's own have no more than eight.
_DEPTH_MAX = 16
#: Longest varint: 64 bits, 7 in each byte.
_VARINT_BYTES_MAX = 10

#: Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE = frozenset({_I16, _I32, _I64})
_SKIPPED_BYTES = {_BYTE: 1, _TRUE: 1, _FALSE: 1, _DOUBLE: 8}


def _key(number: int, kind: int) -> int:
    """Key of a field in ``_Fields``: includes its type, because Thrift skips a field of an unexpected type."""
    return kind << 16 | number


#: Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, PageHeader and the headers in it.
_NUM_ROWS, _ROW_GROUPS, _ENCRYPTION = _key(3, _I64), _key(4, _LIST), _key(8, _STRUCT)
_GROUP_COLUMNS, _GROUP_ROWS = _key(1, _LIST), _key(3, _I64)
_CHUNK_FILE, _CHUNK_METADATA = _key(1, _BINARY), _key(3, _STRUCT)
_CHUNK_CRYPTO, _CHUNK_ENCRYPTED = _key(8, _STRUCT), _key(9, _BINARY)
_VALUES, _COMPRESSED_BYTES, _DATA_AT, _DICTIONARY_AT = (_key(number, _I64) for number in (5, 7, 9, 11))
_PAGE_TYPE, _PAGE_BYTES, _PAGE_COMPRESSED_BYTES = (_key(number, _I32) for number in (1, 2, 3))
#: Type of a page -> the field of its header.
_PAGE_HEADERS = {0: _key(5, _STRUCT), 2: _key(7, _STRUCT), 3: _key(8, _STRUCT)}
_PAGE_VALUES = _key(1, _I32)
_DICTIONARY = 2
_FIELD_NUMBER_MAX = 2**15 - 1

_Fields = Mapping[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLimits:
    """Limits of a file's columns.

    Attributes:
        columns: maximum number, leaves counted.
        group_rows_max: maximum rows of a row group, which is decoded as a whole.
        list_values_max: values of all lists; columns that are no lists have as many values as there are rows.
        page_bytes_max: bytes of a page after decompression.
        lists: which of the columns are lists, by their numbers.
    """

    columns: tuple[int, ...]
    rows_max: int
    group_rows_max: int
    page_bytes_max: int
    list_values_max: int = 0
    lists: frozenset[int] = frozenset()


def require_sizes(data: bytes, limits: ColumnLimits) -> int:
    """Refuses a file whose decoded size exceeds ``limits``; returns its number of rows.

    Raises:
        LimitExceededError: it does.
        FormatError: it isn't Parquet, or its footer and its page headers contradict each other.
    """
    try:
        return _Sizes(data, limits).rows()
    except (LookupError, TypeError, AttributeError) as error:  # a missing field, or one of another type
        raise InconsistentError("a Parquet header lacks a field") from error


class _Sizes:
    def __init__(self, data: bytes, limits: ColumnLimits) -> None:
        self._data, self._limits = data, limits
        if len(data) < len(_MAGIC) + _TAIL_BYTES:
            raise TruncatedError("too short for a Parquet file", found=len(data))
        for at in (0, len(data) - len(_MAGIC)):
            found = bytes(data[at : at + len(_MAGIC)])
            if found != _MAGIC:
                raise BadMagicError("not a Parquet file", offset=at, expected=_MAGIC, found=found)
        footer_bytes = int.from_bytes(data[-_TAIL_BYTES : -len(_MAGIC)], "little")
        self._footer_at = len(data) - _TAIL_BYTES - footer_bytes
        if self._footer_at < len(_MAGIC):
            raise TruncatedError("Parquet footer", expected=footer_bytes, found=len(data))
        self._list_values = 0

    def rows(self) -> int:
        footer = self._fields(self._footer_at, len(self._data) - _TAIL_BYTES)[0]
        if _ENCRYPTION in footer:
            raise InconsistentError("the Parquet file is encrypted")
        rows, groups = footer[_NUM_ROWS], footer[_ROW_GROUPS]
        require_at_most("rows", rows, self._limits.rows_max)
        for group in groups:
            self._group(group)
        require_equal("rows of the row groups", sum(group[_GROUP_ROWS] for group in groups), rows)
        return cast(int, rows)

    def _group(self, group: _Fields) -> None:
        rows, columns = group[_GROUP_ROWS], group[_GROUP_COLUMNS]
        require_at_most("rows of a row group", rows, self._limits.group_rows_max)
        if len(columns) not in self._limits.columns:
            raise InconsistentError("columns of a row group", expected=self._limits.columns, found=len(columns))
        for number, chunk in enumerate(columns):
            if any(field in chunk for field in (_CHUNK_FILE, _CHUNK_CRYPTO, _CHUNK_ENCRYPTED)):
                raise InconsistentError("a Parquet column is elsewhere, or encrypted")
            self._column(chunk[_CHUNK_METADATA], rows, is_list=number in self._limits.lists)

    def _column(self, column: _Fields, rows: int, *, is_list: bool) -> None:
        values = column[_VALUES]
        if values < rows or (values > rows and not is_list):
            raise InconsistentError("values of a column", expected=rows, found=values)
        # A row without a list is a value too.
        self._list_values += values - rows
        require_at_most("values of lists", self._list_values, self._limits.list_values_max)
        require_equal("values of a column's pages", sum(self._pages(column, values)), values)

    def _pages(self, column: _Fields, values: int) -> Iterator[int]:
        """Number of values in each data page."""
        if not values:
            return
        at, dictionary_at = column[_DATA_AT], column.get(_DICTIONARY_AT, 0)
        at = dictionary_at if 0 < dictionary_at < at else at
        stop = at + column[_COMPRESSED_BYTES]
        if not len(_MAGIC) <= at <= stop <= self._footer_at:
            raise InconsistentError("place of a column", found=f"{at} to {stop}")
        seen = 0
        while seen < values:
            header, at = self._fields(at, stop)
            kind = header[_PAGE_TYPE]
            require_at_most("bytes of a page", header[_PAGE_BYTES], self._limits.page_bytes_max)
            at += require_at_most("compressed bytes of a page", header[_PAGE_COMPRESSED_BYTES], stop - at)
            count = require_at_most("values of a page", header[_PAGE_HEADERS[kind]][_PAGE_VALUES], values)
            if kind != _DICTIONARY:
                seen += count
                yield count

    def _fields(self, at: int, stop: int) -> tuple[_Fields, int]:
        """A structure that begins at ``at`` and ends before ``stop``, and where it ends."""
        try:
            return _struct(self._data, at, stop, _DEPTH_MAX)
        except IndexError:
            raise TruncatedError("a Parquet header", offset=at) from None
        except ValueError as error:
            raise InconsistentError(f"a Parquet header: {error}", offset=at) from None


def _struct(data: bytes, at: int, stop: int, depth: int) -> tuple[_Fields, int]:
    """A structure's fields by key: numbers, structures and lists of them; ``None`` for other types.

    Raises:
        IndexError: it doesn't end before ``stop``.
        ValueError: it isn't a structure.
    """
    if not depth:
        raise ValueError("too deep")
    fields: dict[int, Any] = {}
    number = highest = 0
    seen: set[int] | None = None  # of the fields so far, once their numbers don't ascend
    while True:
        if at >= stop:
            raise IndexError
        head = data[at]
        at += 1
        if not head:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at, stop)
        # Thrift truncates numbers, and merges two structures of one number. Most ascend.
        if number <= highest or seen is not None:
            seen = {key & _FIELD_NUMBER_MAX for key in fields} if seen is None else seen
            if number in seen:
                raise ValueError(f"field {number}")
            seen.add(number)
        else:
            highest = number
        if not 0 <= number <= _FIELD_NUMBER_MAX:
            raise ValueError(f"field {number}")
        kind = head & 15
        if kind in _WHOLE and at < stop and data[at] < 128:  # most of them
            value: Any = (data[at] >> 1) ^ -(data[at] & 1)
            at += 1
        elif kind == _BINARY and at < stop and data[at] < 128:
            value, at = None, at + 1 + data[at]
            if at > stop:
                raise IndexError
        elif kind == _STRUCT:
            value, at = _struct(data, at, stop, depth - 1)
        elif kind in (_TRUE, _FALSE):
            value = kind == _TRUE
        else:
            value, at = _value(data, at, stop, kind, depth)
        fields[kind << 16 | number] = value


def _value(data: bytes, at: int, stop: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _WHOLE:
        return _zigzag(data, at, stop)
    if kind == _STRUCT:
        return _struct(data, at, stop, depth - 1)
    if kind in (_LIST, _SET):
        return _items(data, at, stop, depth)
    if kind == _BINARY:
        size, at = _varint(data, at, stop)
    elif kind in _SKIPPED_BYTES:
        size = _SKIPPED_BYTES[kind]
    else:
        raise ValueError(f"a field of type {kind}")
    if at + size > stop:
        raise IndexError
    return None, at + size


def _items(data: bytes, at: int, stop: int, depth: int) -> tuple[Sequence[Any], int]:
    if at >= stop:
        raise IndexError
    head = data[at]
    size, at = (head >> 4, at + 1) if head >> 4 < 15 else _varint(data, at + 1, stop)
    if size > stop - at:  # each takes at least a byte
        raise IndexError
    found = []
    for _ in range(size):
        item, at = _value(data, at, stop, head & 15, depth - 1)
        found.append(item)
    return found, at


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    found = 0
    for place in range(_VARINT_BYTES_MAX):
        if at + place >= stop:
            raise IndexError
        byte = data[at + place]
        found |= (byte & 127) << 7 * place
        if byte < 128:
            return found, at + place + 1
    raise ValueError("a number of more than 64 bits")


def _zigzag(data: bytes, at: int, stop: int) -> tuple[int, int]:
    found, at = _varint(data, at, stop)
    return (found >> 1) ^ -(found & 1), at


#: Version of the Parquet files' columns; a reader refuses any other.
RUN_FORMAT = 1
#: Rows of a Parquet row group, which a load decodes as a whole.
ROW_GROUP_ROWS = 16_384
#: Files of fewer rows aren't compressed: setting up a compressor per column costs more than it saves.
COMPRESSED_ROWS_MIN = 256
#: Most rows of one file.
FILE_ROWS_MAX = 4_194_304
#: Least bytes of a row: its uuid, which no encoding shortens.
ROW_BYTES_MIN = 16
#: Limit of numbers in all ledger spans: a base, and more for each byte of the file. Zstandard needs more than two bytes
#: for a ledger (five numbers) even if ledgers differ by id only.
SPAN_VALUES_MIN, SPAN_VALUES_PER_BYTE = 65_536, 16
#: A page ends at 1 MiB, plus the last values added to it; a page of lists may hold all of a row's.
PAGE_BYTES_MIN = 2 * 1024 * 1024
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
    require_sizes(body, _limits_of(body))
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

    Decodes one row group at a time into columns as narrow as the recorded ranges allow.
    """
    try:
        drivers = json.loads(metadata[_DRIVERS_KEY])
        if not isinstance(drivers, list) or not all(isinstance(driver, dict) for driver in drivers):
            raise InconsistentError("drivers", expected="a list of objects", found=drivers)
        return _filled(file, metadata, tuple(drivers))
    except _UNREADABLE as error:
        raise InconsistentError(f"not a table of segments: {error}") from error


def _limits_of(data: bytes) -> ColumnLimits:
    span_values_max = SPAN_VALUES_MIN + SPAN_VALUES_PER_BYTE * len(data)
    return ColumnLimits(
        columns=(len(_SCHEMA),),
        rows_max=min(FILE_ROWS_MAX, len(data) // ROW_BYTES_MIN),
        group_rows_max=ROW_GROUP_ROWS,
        page_bytes_max=PAGE_BYTES_MIN + 8 * span_values_max,
        list_values_max=span_values_max,
        lists=frozenset({_SCHEMA.get_field_index("ledgers")}),
    )


def _require_texts(metadata: Mapping[bytes, bytes]) -> None:
    """Refuses JSON metadata of the file that is too long to parse."""
    for key, most in ((_DRIVERS_KEY, DRIVERS_BYTES_MAX), (_RANGES_KEY, RANGES_BYTES_MAX)):
        require_at_most(f"bytes of {key.decode()}", len(metadata.get(key, b"")), most)


def open_parquet(data: bytes, limits: ColumnLimits, version: bytes, schemas: Sequence[pa.Schema]) -> pq.ParquetFile:
    """A file of one of the schemas; its sizes are checked before Arrow opens it.

    Raises:
        FormatError: any problem.
    """
    import pyarrow.parquet as pq

    require_sizes(data, limits)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
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
    return file


def open_columns(data: bytes) -> tuple[pq.ParquetFile, Mapping[bytes, bytes]]:
    """A file of ``encode_columns``, and its metadata with those given there; raises ``FormatError``."""
    file = open_parquet(data, _limits_of(data), b"%d" % RUN_FORMAT, [_SCHEMA])
    metadata = file.schema_arrow.metadata
    _require_texts(metadata)
    return file, metadata


def _filled(
    file: pq.ParquetFile, metadata: Mapping[bytes, bytes], drivers: tuple[Mapping[str, str], ...]
) -> SegmentColumns:
    count = file.metadata.num_rows
    ranges = _ranges(file, metadata, count)
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
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=["uuid", *varying, "ledgers"], use_threads=False)
        stop = start + table.num_rows
        for name in varying:
            values, (low, high) = table.column(name).to_numpy(), ranges[name]
            if len(values) and not low <= int(values.min()) <= int(values.max()) <= high:
                raise ValueError(f"a number outside of {low} to {high}")
            np.copyto(columns[name][start:stop], values, casting="unsafe")
        halves = _uuid_halves(table.column("uuid"))
        columns["uuid_high"][start:stop], columns["uuid_low"][start:stop] = halves[:, 0], halves[:, 1]
        span_parts.append(_spans_in(table.column("ledgers"), start))
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


def _ranges(file: pq.ParquetFile, metadata: Mapping[bytes, bytes], count: int) -> Mapping[str, tuple[int, int]]:
    """Smallest and largest value of each column, as recorded; computed from the columns if that is missing.

    Parquet's own statistics aren't used: reading them from a damaged file ends the process, because Arrow's metadata
    classes throw what Python can't catch, while reading columns reports it.
    """
    if not count:
        return dict.fromkeys(NUMBER_COLUMNS, (0, 0))
    if _RANGES_KEY not in metadata:  # an earlier release wrote it
        import pyarrow.compute as pc

        columns = ((name, file.read(columns=[name], use_threads=False).column(name)) for name in NUMBER_COLUMNS)
        return {name: (pc.min(column).as_py(), pc.max(column).as_py()) for name, column in columns}
    found = {name: (int(low), int(high)) for name, (low, high) in dict(json.loads(metadata[_RANGES_KEY])).items()}
    if found.keys() != NUMBER_COLUMNS.keys():
        raise ValueError("ranges of other columns")
    return found


def _uuid_halves(column: pa.ChunkedArray) -> Numbers:
    """uint64, shape (n, 2)."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=">u8", count=2 * len(chunk), offset=16 * chunk.offset)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, ">u8"), *chunks]).reshape(-1, 2)


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


def _spans_in(column: pa.ChunkedArray, first_row: int) -> tuple[Numbers, Numbers, Numbers]:
    """Rows with spans, how many each has, and the spans."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], type=column.type)
    lengths = np.diff(lists.offsets.to_numpy())
    rows = np.flatnonzero(lengths)
    values = lists.flatten().to_numpy()
    if (lengths % SPAN_NUMBERS).any() or len(values) != lengths.sum():
        raise InconsistentError("ledgers of segments", expected="five numbers each")
    return (rows + first_row, (lengths[rows] // SPAN_NUMBERS).astype(np.int64), values.reshape(-1, SPAN_NUMBERS))
