"""What a Parquet file makes of its bytes when it is decoded, by its footer and its page headers; nothing is decoded.

Parquet's encodings and compressors turn a few bytes into as many values as a header names, and Arrow allocates room for
them before it looks at the bytes. The footer alone doesn't bound that: Arrow believes the page headers too, which may
name more. Both are Thrift structures in the compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from formats.errors import BadMagic, Inconsistent, LimitExceeded, Truncated

__all__ = ["ColumnLimits", "require_sizes"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 4 + len(_MAGIC)
#: Structures within structures; Parquet's own have no more than eight.
_DEPTH_MAX = 16
#: Bytes of the longest number: 64 bits, 7 in each byte.
_VARINT_BYTES_MAX = 10

#: Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE = frozenset({_I16, _I32, _I64})


def _key(number: int, kind: int) -> int:
    """Of a field in ``_Fields``: with its type, because Thrift passes over a field of another type than it expects."""
    return kind << 16 | number


#: Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, PageHeader and the headers in it.
_NUM_ROWS, _ROW_GROUPS, _ENCRYPTION = _key(3, _I64), _key(4, _LIST), _key(8, _STRUCT)
_GROUP_COLUMNS, _GROUP_ROWS = _key(1, _LIST), _key(3, _I64)
_CHUNK_FILE, _CHUNK_METADATA = _key(1, _BINARY), _key(3, _STRUCT)
_CHUNK_CRYPTO, _CHUNK_ENCRYPTED = _key(8, _STRUCT), _key(9, _BINARY)
_VALUES, _COMPRESSED_BYTES, _DATA_AT, _DICTIONARY_AT = (_key(number, _I64) for number in (5, 7, 9, 11))
_PAGE_TYPE, _PAGE_BYTES, _PAGE_COMPRESSED_BYTES = (_key(number, _I32) for number in (1, 2, 3))
#: Type of a page -> the field of its own header.
_PAGE_HEADERS = {0: _key(5, _STRUCT), 2: _key(7, _STRUCT), 3: _key(8, _STRUCT)}
_PAGE_VALUES = _key(1, _I32)
_DICTIONARY = 2
_FIELD_NUMBER_MAX = 2**15 - 1

_Fields = Mapping[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLimits:
    """What the columns of a file may be.

    Attributes:
        columns: how many there may be, leaves counted.
        rows_max: rows of the file.
        group_rows_max: rows of a row group, which is what is decoded at once.
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


def require_sizes(data: bytes, limits: ColumnLimits, *, object_name: str = "") -> int:
    """Refuses a file that would become more than ``limits`` say; how many rows it has.

    Raises:
        LimitExceeded: it would.
        FormatError: it isn't Parquet, or its footer and its page headers contradict each other.
    """
    try:
        return _Sizes(data, limits, object_name).rows()
    except (LookupError, TypeError, AttributeError) as error:  # a field that isn't there, or is of another type
        raise Inconsistent("a Parquet header lacks a field", object_name=object_name) from error


class _Sizes:
    """One file."""

    def __init__(self, data: bytes, limits: ColumnLimits, object_name: str) -> None:
        self._data, self._limits, self._name = data, limits, object_name
        if len(data) < len(_MAGIC) + _TAIL_BYTES:
            raise Truncated("too short for a Parquet file", object_name=object_name, found=len(data))
        for at in (0, len(data) - len(_MAGIC)):
            found = bytes(data[at : at + len(_MAGIC)])
            if found != _MAGIC:
                raise BadMagic("not a Parquet file", object_name=object_name, offset=at, expected=_MAGIC, found=found)
        footer_bytes = int.from_bytes(data[-_TAIL_BYTES : -len(_MAGIC)], "little")
        self._footer_at = len(data) - _TAIL_BYTES - footer_bytes
        if self._footer_at < len(_MAGIC):
            raise Truncated("Parquet footer", object_name=object_name, expected=footer_bytes, found=len(data))
        self._list_values = 0

    def rows(self) -> int:
        footer = self._fields(self._footer_at, len(self._data) - _TAIL_BYTES)[0]
        if _ENCRYPTION in footer:
            raise Inconsistent("the Parquet file is encrypted", object_name=self._name)
        rows, groups = footer[_NUM_ROWS], footer[_ROW_GROUPS]
        self._bounded("rows", rows, self._limits.rows_max)
        for group in groups:
            self._group(group)
        if sum(group[_GROUP_ROWS] for group in groups) != rows:
            raise Inconsistent("rows of the row groups", object_name=self._name, expected=rows)
        return cast(int, rows)

    def _group(self, group: _Fields) -> None:
        rows, columns = group[_GROUP_ROWS], group[_GROUP_COLUMNS]
        self._bounded("rows of a row group", rows, self._limits.group_rows_max)
        if len(columns) not in self._limits.columns:
            raise Inconsistent(
                "columns of a row group", object_name=self._name, expected=self._limits.columns, found=len(columns)
            )
        for number, chunk in enumerate(columns):
            if any(field in chunk for field in (_CHUNK_FILE, _CHUNK_CRYPTO, _CHUNK_ENCRYPTED)):
                raise Inconsistent("a Parquet column is elsewhere, or encrypted", object_name=self._name)
            self._column(chunk[_CHUNK_METADATA], rows, is_list=number in self._limits.lists)

    def _column(self, column: _Fields, rows: int, *, is_list: bool) -> None:
        values = column[_VALUES]
        if values < rows or (values > rows and not is_list):
            raise Inconsistent("values of a column", object_name=self._name, expected=rows, found=values)
        # A row without a list is a value too.
        self._list_values += values - rows
        self._bounded("values of lists", self._list_values, self._limits.list_values_max)
        if (found := sum(self._pages(column, values))) != values:
            raise Inconsistent("values of a column's pages", object_name=self._name, expected=values, found=found)

    def _pages(self, column: _Fields, values: int) -> Iterator[int]:
        """How many values each page of data has."""
        if not values:
            return
        at = column[_DATA_AT]
        dictionary_at = column.get(_DICTIONARY_AT, 0)
        at = dictionary_at if 0 < dictionary_at < at else at
        stop = at + column[_COMPRESSED_BYTES]
        if not len(_MAGIC) <= at <= stop <= self._footer_at:
            raise Inconsistent("place of a column", object_name=self._name, found=f"{at} to {stop}")
        seen = 0
        while seen < values:
            header, at = self._fields(at, stop)
            kind = header[_PAGE_TYPE]
            self._bounded("bytes of a page", header[_PAGE_BYTES], self._limits.page_bytes_max)
            at += self._bounded("compressed bytes of a page", header[_PAGE_COMPRESSED_BYTES], stop - at)
            count = self._bounded("values of a page", header[_PAGE_HEADERS[kind]][_PAGE_VALUES], values)
            if kind != _DICTIONARY:
                seen += count
                yield count

    def _bounded(self, what: str, found: int, most: int) -> int:
        if not 0 <= found <= most:
            raise LimitExceeded(what, object_name=self._name, expected=f"at most {most}", found=found)
        return found

    def _fields(self, at: int, stop: int) -> tuple[_Fields, int]:
        """A structure that begins at ``at`` and ends before ``stop``, and where it ends."""
        try:
            return _struct(self._data, at, stop, _DEPTH_MAX)
        except IndexError:
            raise Truncated("a Parquet header", object_name=self._name, offset=at) from None
        except ValueError as error:
            raise Inconsistent(f"a Parquet header: {error}", object_name=self._name, offset=at) from None


def _struct(data: bytes, at: int, stop: int, depth: int) -> tuple[_Fields, int]:
    """A structure's fields by their keys: numbers, and structures and lists of them; ``None`` for what is neither.

    Raises:
        IndexError: it doesn't end before ``stop``.
        ValueError: it is none.
    """
    if not depth:
        raise ValueError("too deep")
    fields: dict[int, Any] = {}
    numbers = set()
    number = 0
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
        # Thrift cuts numbers off, and puts two structures of one number into each other.
        if number in numbers or not 0 <= number <= _FIELD_NUMBER_MAX:
            raise ValueError(f"field {number}")
        numbers.add(number)
        kind = head & 15
        if kind in _WHOLE and at < stop and data[at] < 128:  # most of them
            value: Any = (data[at] >> 1) ^ -(data[at] & 1)
            at += 1
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
        return None, _within(at + size, stop)
    if kind in (_BYTE, _TRUE, _FALSE):
        return None, _within(at + 1, stop)
    if kind == _DOUBLE:
        return None, _within(at + 8, stop)
    raise ValueError(f"a field of type {kind}")


def _items(data: bytes, at: int, stop: int, depth: int) -> tuple[Sequence[Any], int]:
    if at >= stop:
        raise IndexError
    head = data[at]
    size, at = (head >> 4, at + 1) if head >> 4 < 15 else _varint(data, at + 1, stop)
    if size > stop - at:  # none takes less than a byte
        raise IndexError
    found = []
    for _ in range(size):
        item, at = _value(data, at, stop, head & 15, depth - 1)
        found.append(item)
    return found, at


def _within(at: int, stop: int) -> int:
    if at > stop:
        raise IndexError
    return at


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
