"""A user's file as events: NDJSON, CSV, Parquet or lines.

Owns what a good line is, in each format, and how a broken one is named. Must never hold the whole file: it is
gone through in batches, as often as asked.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS
from offloader.demo.events import EVENTS_PER_BATCH, Events, no_times, table_to_json
from offloader.errors import AccessDenied, InvalidCall, NotFound

__all__ = ["FORMATS", "LINE_BYTES_MAX", "EventFile", "time_ms_of"]

FORMATS = ("ndjson", "csv", "parquet", "lines")
#: Longest line, so that a file without line ends isn't read into memory.
LINE_BYTES_MAX = 16 * 1024 * 1024
#: Payload bytes at which a batch is full before it has ``EVENTS_PER_BATCH`` events.
_BATCH_BYTES = 4 * 1024 * 1024
#: A number below this is taken as seconds since 1970, from here on as milliseconds (as seconds: the year 5138).
_MILLISECONDS_FROM = 100_000_000_000

_SUFFIXES = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".csv": "csv", ".parquet": "parquet"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNCHANGED = "correct the file; nothing was imported"


class EventFile:
    """A file's events in its order.

    Args:
        path: a regular file.
        file_format: one of ``FORMATS``; empty: by the file's suffix, lines when that says nothing.
        time_field: the field that holds an event's publish time (a number of seconds or milliseconds since 1970, or
            ISO 8601 text, UTC when it names no zone); empty: events have no time of their own.

    Raises:
        InvalidCall: not a regular file, or a format without fields together with ``time_field``.
        NotFound: no such file.
    """

    def __init__(self, path: str, *, file_format: str = "", time_field: str = "") -> None:
        self._path = Path(path)
        self._format = file_format or _SUFFIXES.get(self._path.suffix.lower(), "lines")
        self._time_field = time_field
        self.name = path
        self.has_times = bool(time_field)
        if self._format not in FORMATS:
            raise InvalidCall(f"input format {self._format!r} is unknown", hint=f"give {', '.join(FORMATS)}")
        if self._format == "lines" and time_field:
            raise InvalidCall(
                f"{path} is read as lines, which have no field {time_field!r}", hint="leave --time-field out"
            )
        if not self._path.exists():
            raise NotFound(f"input file {path} doesn't exist", hint="check the path")
        if not self._path.is_file():
            raise InvalidCall(
                f"input {path} is not a regular file, and it is read twice", hint="write it to a file first"
            )

    def events(self) -> Iterator[Events]:
        """All events, in batches; checks each line on its way.

        Raises:
            InvalidCall: a broken line, with its number (Parquet: row), counted from 1.
            AccessDenied: the file can't be read.
        """
        try:
            if self._format == "parquet":
                yield from self._parquet()
                return
            with self._path.open("rb") as file:
                rows = {"lines": self._plain, "ndjson": self._ndjson, "csv": self._csv}[self._format](file)
                yield from _batches(rows)
        except OSError as error:
            raise AccessDenied(f"input file {self.name} can't be read: {error.strerror or error}") from error

    def _broken(self, number: int, problem: str, *, unit: str = "line", cause: Exception | None = None) -> NoReturn:
        raise InvalidCall(f"{self.name} {unit} {number}: {problem}", hint=_UNCHANGED) from cause

    # -- lines, and what is made of them

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Lines with their ends, numbered from 1."""
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

    def _plain(self, file: BinaryIO) -> Iterator[tuple[bytes, int | None]]:
        for _, line in self._lines(file):
            yield line.removesuffix(b"\n").removesuffix(b"\r"), None

    def _ndjson(self, file: BinaryIO) -> Iterator[tuple[bytes, int | None]]:
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        for number, line in self._texts(file):
            text = line.strip()
            if not text:
                continue
            try:
                value = decoder.decode(text)
            except json.JSONDecodeError as error:
                self._broken(number, f"not JSON: {error.msg} at column {error.colno}", cause=error)
            except (ValueError, RecursionError) as error:
                self._broken(number, f"not JSON: {error}", cause=error)
            time_ms = self._time_of(value, number) if self._time_field else None
            yield text.encode(), time_ms

    def _csv(self, file: BinaryIO) -> Iterator[tuple[bytes, int | None]]:
        """Rows as JSON objects: what is written like a JSON number stays that, empty fields are left out."""
        reader = csv.reader((text for _, text in self._texts(file)), strict=True)
        keys: list[str] = []
        header: list[str] | None = None
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                self._broken(reader.line_num, f"not CSV: {error}", cause=error)
            if row is None:
                return
            if header is None:
                header = row
                keys = [json.dumps(name, ensure_ascii=False) + ":" for name in header]
                self._check_header(header, reader.line_num)
                continue
            if not row:
                continue
            if len(row) != len(header):
                self._broken(reader.line_num, f"{len(row)} fields, the first line has {len(header)}")
            fields = [key + _csv_value(value) for key, value in zip(keys, row, strict=True) if value]
            time_ms = None
            if self._time_field:
                time_ms = self._time_of(dict(zip(header, map(_number_or_text, row), strict=True)), reader.line_num)
            yield f"{{{','.join(fields)}}}".encode(), time_ms

    def _check_header(self, header: list[str], number: int) -> None:
        if "" in header or len(set(header)) != len(header):
            self._broken(number, "the names of the fields must differ and must not be empty")
        if self._time_field and self._time_field not in header:
            self._broken(number, f"no field {self._time_field!r}; there are {', '.join(header)}")

    # -- Parquet

    def _parquet(self) -> Iterator[Events]:
        import pyarrow.parquet

        done = 0
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                if self._time_field and self._time_field not in file.schema_arrow.names:
                    raise InvalidCall(f"{self.name} has no column {self._time_field!r}", hint=_UNCHANGED)
                for batch in file.iter_batches(batch_size=EVENTS_PER_BATCH):
                    payloads = table_to_json(batch)
                    yield Events(payloads, self._column_times(batch, done))
                    done += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InvalidCall(
                f"{self.name} is not readable Parquet after row {done}: {error}".splitlines()[0], hint=_UNCHANGED
            ) from error
        except ValueError as error:
            raise InvalidCall(f"{self.name} after row {done}: {error}", hint=_UNCHANGED) from error

    def _column_times(self, batch: pa.RecordBatch, done: int) -> NDArray[np.int64]:
        if not self._time_field:
            return no_times(batch.num_rows)
        column = batch.column(self._time_field)
        if pa.types.is_timestamp(column.type) and column.null_count == 0:
            in_ms = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
            return np.asarray(in_ms.to_numpy(zero_copy_only=False), dtype=np.int64)
        values = column.to_pylist()
        return np.array(
            [self._time_of({self._time_field: v}, done + i + 1, unit="row") for i, v in enumerate(values)],
            dtype=np.int64,
        )

    # -- time

    def _time_of(self, value: Any, number: int, *, unit: str = "line") -> int:
        found = value.get(self._time_field) if isinstance(value, dict) else None
        if found is None or found == "":
            self._broken(number, f"no field {self._time_field!r}", unit=unit)
        try:
            return time_ms_of(found)
        except (ValueError, OverflowError) as error:
            self._broken(number, f"field {self._time_field!r} is no time: {error}", unit=unit, cause=error)


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


def _batches(rows: Iterator[tuple[bytes, int | None]]) -> Iterator[Events]:
    payloads: list[bytes] = []
    times: list[int] = []
    size_bytes = 0
    for payload, time_ms in rows:
        payloads.append(payload)
        times.append(TIME_UNKNOWN_MS if time_ms is None else time_ms)
        size_bytes += len(payload)
        if len(payloads) == EVENTS_PER_BATCH or size_bytes >= _BATCH_BYTES:
            yield Events(pa.array(payloads, pa.binary()), np.array(times, dtype=np.int64))
            payloads, times, size_bytes = [], [], 0
    if payloads:
        yield Events(pa.array(payloads, pa.binary()), np.array(times, dtype=np.int64))


def _csv_value(text: str) -> str:
    return text if _JSON_NUMBER.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _number_or_text(text: str) -> Any:
    return json.loads(text) if _JSON_NUMBER.fullmatch(text) else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
