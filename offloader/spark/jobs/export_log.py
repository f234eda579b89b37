"""What has been exported of one stream: numbered JSON files beside the data, the highest of which says how far it is.

Owns those files and every call to the file system that the export writes to (Hadoop's, as Spark's own writers use).
Must never change or delete one of them: a file is written under another name, then renamed to the next free number.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from formats.entries import Position
from offloader.errors import Corrupt, OutcomeUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExportLog", "ExportedRange"]

#: Beginning with an underscore: readers of Parquet pass it over.
LOG_FOLDER = "_export"
_NUMBERED = re.compile(r"^(\d{8})\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """One range of a stream, exported whole.

    Attributes:
        number: 1, 2, 3, ...; also in the name of the range's folder.
        stream, incarnation: whose entries.
        manifest: record that the range was planned from.
        first, last: positions, both included.
        entries: in the range, as the manifest says; ``None`` when it begins or ends inside a segment.
        rows: written as data.
        bad_rows: written to the side folder.
        lost: whether retention took entries between the range before and this one.
    """

    number: int
    stream: str
    incarnation: str
    manifest: int
    first: Position
    last: Position
    entries: int | None
    rows: int
    bad_rows: int
    lost: bool = False

    def encode(self) -> str:
        """As JSON."""
        return json.dumps({**asdict(self), "first": str(self.first), "last": str(self.last)}, indent=1) + "\n"

    @classmethod
    def decode(cls, text: str) -> ExportedRange:
        """From JSON.

        Raises:
            ValueError, TypeError, KeyError: it isn't such a text.
        """
        given = json.loads(text)
        ends = {name: Position.parse(given[name]) for name in ("first", "last")}
        return cls(**{**given, **ends})


class ExportLog:
    """The ranges of one stream in one export.

    Args:
        spark: whose file systems and credentials are used.
        to: the export's folder.
        content: entries or messages.
        stream: its name.
    """

    def __init__(self, spark: SparkSession, to: str, content: str, stream: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's file systems have no other door in Python
        self._jvm = jvm
        self._to = to.rstrip("/")
        self._own = f"{content}/stream={quote(stream, safe='')}"
        self.folder = f"{self._to}/{LOG_FOLDER}/{self._own}"
        settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        self._files = self._path(self.folder).getFileSystem(settings)

    def data_folder(self, number: int) -> str:
        """Where a range's rows are; partitioned by date below."""
        return f"{self._to}/{self._own}/range={number:08d}"

    def bad_folder(self, number: int) -> str:
        """Where a range's bad rows are."""
        return f"{self._to}/bad/{self._own}/range={number:08d}"

    def newest(self) -> ExportedRange | None:
        """The range that was exported last.

        Raises:
            Corrupt: its file isn't what this class writes.
        """
        folder = self._path(self.folder)
        if not self._files.exists(folder):
            return None
        names = [status.getPath().getName() for status in self._files.listStatus(folder)]
        numbers = [int(match[1]) for match in map(_NUMBERED.match, names) if match is not None]
        if not numbers:
            return None
        name = f"{self.folder}/{max(numbers):08d}.json"
        try:
            found = ExportedRange.decode(self._read(name))
        except (ValueError, TypeError, KeyError) as cause:
            raise Corrupt(
                f"{name} isn't the log of an export: {cause}", hint="restore it, or export to a new folder"
            ) from cause
        if found.number != max(numbers):
            raise Corrupt(f"{name} says that it is number {found.number}", hint="restore it, or export to a new folder")
        return found

    def add(self, done: ExportedRange) -> None:
        """Records a range whose files are written.

        Raises:
            OutcomeUnknown: the number is taken: another export to this folder ran meanwhile.
        """
        name = f"{self.folder}/{done.number:08d}.json"
        target, waiting = self._path(name), self._path(f"{name}.tmp")
        out = self._files.create(waiting, True)
        try:
            out.write(done.encode().encode())
        finally:
            out.close()
        if self._files.exists(target) or not self._files.rename(waiting, target):
            raise OutcomeUnknown(
                f"{name} is there already: another export wrote range {done.number} of {done.stream} meanwhile",
                hint=f"compare {self.data_folder(done.number)} with that file; one export at a time for a folder",
            )

    def delete_folder(self, folder: str) -> None:
        """What a run that died left there, if it did."""
        self._files.delete(self._path(folder), True)

    def _read(self, name: str) -> str:
        source = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(source, "UTF-8"))
        finally:
            source.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)
