"""Data files of an exported table: one open file per day, written in row groups, deleted if the commit fails."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table

from offloader.iceberg.columns import NO_DAY, US_PER_DAY

#: Maximum bytes of a data file before compression.
FILE_BYTES_MAX = 512 * 1024**2
#: Maximum buffered bytes of entries in all open files together.
BUFFERED_BYTES_MAX = 64 * 1024**2
#: Maximum data files of one range that are open together: one per day.
OPEN_FILES_MAX = 8

_log = logging.getLogger("offloader.iceberg")


@dataclass(slots=True)
class _DayFile:
    """The open data file of one day, and the rows buffered for it."""

    location: str
    key: PartitionKey
    output: Any
    writer: FileFormatWriter
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    written_bytes: int = 0


def delete_files(table: Table, paths: Iterable[str]) -> int:
    """Tries to delete files that no snapshot names; returns the number of deleted files."""
    deleted = 0
    for path in sorted(paths):
        try:
            table.io.delete(path)
            deleted += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.info("%s couldn't be deleted: %s", path, error)
    return deleted


class RangeFiles:
    """Writes the data files of a range: one per day until it is full. Buffers up to ``BUFFERED_BYTES_MAX`` of entries.

    Args:
        table: table that gets the files.
        stream: stream of all rows.
        names: names of the rows' columns.
    """

    def __init__(self, table: Table, stream: str, names: Sequence[str]) -> None:
        self._table = table
        self._stream = stream
        self._schema = table.schema().select(*names)
        self._arrow = schema_to_pyarrow(self._schema)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self._locations = table.location_provider()
        self._uuid = uuid4()
        #: Day -> its file, least recently used first.
        self._open = OrderedDict[int, _DayFile]()
        self._started: list[str] = []
        self._finished: list[DataFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the following rows."""
        micros = pc.fill_null(rows["publish_time"].view(pa.int64()), NO_DAY * US_PER_DAY)
        days = micros.to_numpy() // US_PER_DAY
        rows = rows.select(self._arrow.names).cast(self._arrow)
        for day in np.unique(days).tolist():
            chosen = days == day
            self._wait(day, rows if chosen.all() else rows.filter(pa.array(chosen)))

    def close(self) -> list[DataFile]:
        """Closes all files of the range and returns them."""
        while self._open:
            self._finish(next(iter(self._open)))
        return self._finished

    def discard(self) -> None:
        """Tries to delete the written files. Files that no snapshot names do no harm."""
        for each in self._open.values():
            try:
                each.writer.close()
            except (OSError, ValueError, pa.ArrowException) as error:
                _log.debug("%s couldn't be closed: %s", each.location, error)
        self._open.clear()
        delete_files(self._table, self._started)

    def _wait(self, day: int, rows: pa.RecordBatch) -> None:
        if day not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(next(iter(self._open)))
            self._open[day] = self._new_file(day)
        self._open.move_to_end(day)
        file = self._open[day]
        file.waiting.append(rows)
        file.waiting_bytes += rows.nbytes
        if sum(each.waiting_bytes for each in self._open.values()) >= BUFFERED_BYTES_MAX:
            largest = max(self._open, key=lambda each: self._open[each].waiting_bytes)
            self._write(self._open[largest])
            if self._open[largest].written_bytes >= FILE_BYTES_MAX:
                self._finish(largest)

    def _new_file(self, day: int) -> _DayFile:
        spec, schema = self._table.spec(), self._table.schema()
        values = {"stream": self._stream, "publish_time": None if day == NO_DAY else day}
        fields = [
            PartitionFieldValue(each, values[schema.find_column_name(each.source_id) or ""]) for each in spec.fields
        ]
        key = PartitionKey(fields, spec, schema)
        name = f"{self._uuid}-{len(self._started):05d}.{self._model.file_extension()}"
        location = self._locations.new_data_location(name, key)
        output = self._table.io.new_output(location)
        self._started.append(location)
        return _DayFile(location, key, output, self._model.create_writer(output, self._schema, self._table.properties))

    def _write(self, file: _DayFile) -> None:
        """Writes the buffered rows as a row group."""
        file.writer.write(pa.Table.from_batches(file.waiting, schema=self._arrow))
        file.written_bytes += file.waiting_bytes
        file.waiting, file.waiting_bytes = [], 0

    def _finish(self, day: int) -> None:
        file = self._open[day]
        if file.waiting:
            self._write(file)
        statistics = file.writer.close()
        del self._open[day]
        self._finished.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=file.location,
                file_format=FileFormat.PARQUET,
                partition=file.key.partition,
                file_size_in_bytes=len(file.output),
                sort_order_id=None,
                spec_id=self._table.spec().spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
