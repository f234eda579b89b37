"""The job ``export``: streams as Parquet by stream and date, incrementally."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from formats.entries import Position
from offloader.errors import CorruptError, InvalidCallError, OutcomeUnknownError, UnsupportedError
from offloader.manifest.state import ManifestState
from offloader.read.ranges import PlannedRange, is_lost_after, planned_ranges
from offloader.spark.jobs.values import NEEDED as VALUE_COLUMNS
from offloader.spark.jobs.values import with_decoded
from offloader.spark.jobs.verify import PLACE_OPTIONS, pinned_streams, require_known
from offloader.spark.options import Values
from offloader.spark.session import translated
from offloader.stream_names import is_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The underscore makes readers of Parquet skip it.
LOG_FOLDER = "_export"
_NUMBERED = re.compile(r"^(\d{8})\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """One completely exported range of a stream.

    Attributes:
        number: 1, 2, 3, ...; also in the name of the range's folder.
        stream, incarnation: of the entries.
        manifest: record that the range was planned from.
        first, last: positions, inclusive.
        entries: in the range, by the manifest; ``None`` when it begins or ends inside a segment.
        rows: written as data.
        bad_rows: written to the side folder.
        lost: whether retention deleted entries between the previous range and this one.
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
        """From JSON; raises ``ValueError``, ``TypeError`` or ``KeyError`` for an invalid text."""
        given = json.loads(text)
        return cls(**{**given, **{name: Position.parse(given[name]) for name in ("first", "last")}})


class ExportLog:
    """The ranges of one stream in one export; ``spark`` provides file systems and credentials."""

    def __init__(self, spark: SparkSession, to: str, content: str, stream: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's file systems have no other door in Python
        self._jvm = jvm
        self._to = to.rstrip("/")
        self._own = f"{content}/stream={quote(stream, safe='')}"
        self.folder = f"{self._to}/{LOG_FOLDER}/{self._own}"
        settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        self._files = self._path(self.folder).getFileSystem(settings)

    def data_folder(self, number: int) -> str:
        """Folder of a range's rows, partitioned by date."""
        return f"{self._to}/{self._own}/range={number:08d}"

    def bad_folder(self, number: int) -> str:
        """Folder of a range's bad rows."""
        return f"{self._to}/bad/{self._own}/range={number:08d}"

    def newest(self) -> ExportedRange | None:
        """The newest exported range; raises ``CorruptError`` if its file wasn't written by this class."""
        folder = self._path(self.folder)
        if not self._files.exists(folder):
            return None
        names = [status.getPath().getName() for status in self._files.listStatus(folder)]
        numbers = [int(match[1]) for match in map(_NUMBERED.match, names) if match is not None]
        if not numbers:
            return None
        name = f"{self.folder}/{max(numbers):08d}.json"
        try:
            with closing(self._files.open(self._path(name))) as source:
                found = ExportedRange.decode(str(self._jvm.org.apache.commons.io.IOUtils.toString(source, "UTF-8")))
        except (ValueError, TypeError, KeyError) as cause:
            raise CorruptError(
                f"{name} is not the log of an export: {cause}", hint="restore it, or export to a new folder"
            ) from cause
        if found.number != max(numbers):
            raise CorruptError(
                f"{name} contains the number {found.number}", hint="restore it, or export to a new folder"
            )
        return found

    def add(self, done: ExportedRange) -> None:
        """Records a range after its files are written; raises ``OutcomeUnknownError`` if another export took its
        number."""
        name = f"{self.folder}/{done.number:08d}.json"
        target, waiting = self._path(name), self._path(f"{name}.tmp")
        with closing(self._files.create(waiting, True)) as out:
            out.write(done.encode().encode())
        if self._files.exists(target) or not self._files.rename(waiting, target):
            raise OutcomeUnknownError(
                f"{name} exists already: another export wrote range {done.number} of {done.stream}",
                hint=f"compare {self.data_folder(done.number)} with that file; run one export at a time for a folder",
            )

    def delete_folder(self, folder: str) -> None:
        """Deletes the remains of a crashed run, if any."""
        self._files.delete(self._path(folder), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)


_log = logging.getLogger("offloader.spark")

CONTENTS = ("entries", "messages")
#: Options of the data source that this job passes on.
OPTIONS = (*PLACE_OPTIONS, "columns", "markers", "messageBytesMax", "onCorrupt", "onMissing")
#: Bytes of data objects in one range: the most that a crashed run has to repeat.
RANGE_BYTES = 16 * 1024**3
#: Columns that the files need: a row's origin and its day.
_NEEDED = {
    "entries": ("ledger_id", "entry_id", "publish_time"),
    "messages": ("ledger_id", "entry_id", "batch_index", "publish_time"),
}
#: The UTC day of the publish time, independent of the session's time zone.
_DAY = "date_from_unix_date(CAST(floor(unix_micros(publish_time) / 86400000000) AS INT))"


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of a run for one stream: its new ranges in order, and the last exported position; ``None``: none."""

    stream: str
    ranges: tuple[ExportedRange, ...]
    end: Position | None


def export(
    spark: SparkSession,
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    to: str,
    content: str = "entries",
    values: Values | None = None,
    dead_letter: bool = False,
    skip_lost: bool = False,
    range_bytes: int = RANGE_BYTES,
) -> list[Exported]:
    """Exports everything that isn't in ``to`` yet.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns.
        options: ``OPTIONS`` of the data source; ``store`` is required.
        to: a folder on any file system that Spark writes to.
        content: entries or messages.
        values: type of the messages' values, decoded in the column ``decoded``; ``None``: values remain bytes.
        dead_letter: write messages that can't be read or decoded, with the reason, to ``<to>/bad``; don't fail.
        skip_lost: skip entries that retention deleted before their export, instead of failing.
        range_bytes: maximum bytes of segments in one range; a larger segment forms one range.

    Returns:
        One value per stream, in the given order.

    Raises:
        InvalidCallError: an option or value is wrong, or the folder holds another stream of that name.
        NotFoundError: no such stream.
        UnsupportedError: a stream's name contains a pattern's character.
        CorruptError: values can't be decoded, and ``dead_letter`` isn't set; the first of them is named.
        TrimmedError: entries were deleted before their export, and ``skip_lost`` isn't set.
        OutcomeUnknownError: another export wrote to the folder, or the files don't hold the rows that were written.
        OffloaderError: a read error, or Spark failed. Recorded ranges are kept; run the export again.
    """
    require_known(streams, options, OPTIONS, job="export")
    columns = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
    _require_sense(content, columns, values, dead_letter=dead_letter, range_bytes=range_bytes)
    done = []
    with translated("Spark's export", hint="run the export again: it continues after the complete ranges"):
        for state, read in pinned_streams(streams, options):
            if is_pattern(state.stream):
                raise UnsupportedError(
                    f"the name of stream {state.stream} is a pattern that also matches other streams",
                    hint="`offloader read` accepts such names",
                )
            own = {**options, "stream": state.stream, "content": content}
            job = _StreamExport(
                spark=spark,
                state=state,
                options={**own, "onBadMessage": "null"} if dead_letter else own,
                log=ExportLog(spark, to, content, state.stream),
                values=values,
                dead_letter=dead_letter,
                is_exact=content == "entries" and not (read.skip_corrupt or read.skip_missing),
            )
            done.append(job.run(skip_lost=skip_lost, range_bytes=range_bytes))
    return done


def _require_sense(
    content: str, columns: Sequence[str], values: Values | None, *, dead_letter: bool, range_bytes: int
) -> None:
    is_other = content != "messages"
    for is_wrong, what, hint in (
        (content not in CONTENTS, f"unknown content {content!r}", f"use one of {', '.join(CONTENTS)}"),
        (
            dead_letter and is_other,
            "only messages can be bad and put aside",
            "use content=messages, or omit dead_letter",
        ),
        (values and is_other, "only messages have values to decode", "use content=messages, or omit the schema"),
        (range_bytes < 1, f"range_bytes is {range_bytes}; it must be positive", ""),
    ):
        if is_wrong:
            raise InvalidCallError(what, hint=hint)
    needed = (*_NEEDED[content], *(("error",) if dead_letter else ()), *(VALUE_COLUMNS if values else ()))
    missing = list(dict.fromkeys(name for name in needed if columns and name not in columns))
    if missing:
        raise InvalidCallError(
            f"export needs the columns {', '.join(missing)} too", hint="add them to the option columns"
        )


@dataclass(frozen=True, kw_only=True)
class _StreamExport:
    """The export of one stream; ``is_exact``: its rows are all entries of the range."""

    spark: SparkSession
    state: ManifestState
    options: Mapping[str, str]
    log: ExportLog
    values: Values | None
    dead_letter: bool
    is_exact: bool

    def run(self, *, skip_lost: bool, range_bytes: int) -> Exported:
        newest = self.log.newest()
        after = None if newest is None else newest.last
        number = 1 if newest is None else newest.number + 1
        lost = newest is not None and is_lost_after(
            self.state, newest.incarnation, newest.last, exported_to=self.log.folder, skip_lost=skip_lost
        )
        if lost:
            _log.warning("stream %s: some entries after %s can no longer be exported", self.state.stream, after)
        done: list[ExportedRange] = []
        for planned in planned_ranges(self.state, after, range_bytes):
            rows, bad_rows = self._write(planned, number)
            written = ExportedRange(
                number=number,
                stream=self.state.stream,
                incarnation=str(self.state.incarnation),
                manifest=self.state.record_id,
                first=planned.first,
                last=planned.last,
                entries=planned.entries,
                rows=rows,
                bad_rows=bad_rows,
                lost=lost,
            )
            self.log.add(written)
            _log.info("exported range %d of %s, %d rows", number, self.state.stream, rows)
            done.append(written)
            number, lost = number + 1, False
        return Exported(self.state.stream, tuple(done), done[-1].last if done else after)

    def _write(self, planned: PlannedRange, number: int) -> tuple[int, int]:
        """Rows written as data, and bad rows."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        reader = self.spark.read.format("offloader").options(**self.options)
        frame = reader.options(start=str(planned.first), stop=str(planned.last.next())).load().drop("stream")
        if self.values is not None:
            frame = with_decoded(frame, self.values)
        seen = Observation()
        may_be_bad = self.dead_letter or self.values is not None
        bad = f.count("error") if may_be_bad else f.count(f.lit(None))
        counts = [f.count(f.lit(1)).alias("rows"), bad.alias("bad_rows")]
        if may_be_bad:
            where = f.when(f.col("error").isNotNull(), f.struct("ledger_id", "entry_id", "batch_index", "error"))
            counts.append(f.min(where).alias("first_bad"))
        observed = frame.observe(seen, *counts)
        good = observed.where("error IS NULL") if self.dead_letter else observed
        folder, aside = self.log.data_folder(number), self.log.bad_folder(number)
        _replace(good.withColumn("date", f.expr(_DAY)), folder, "date")
        bad_rows = int(seen.get["bad_rows"])
        if bad_rows and not self.dead_letter:
            raise self._undecodable(planned, number, bad_rows, seen.get["first_bad"])
        if bad_rows:
            _replace(frame.where("error IS NOT NULL"), aside)
            self._require_rows(frame, aside, bad_rows, planned, number)
        else:
            self.log.delete_folder(aside)
        rows = int(seen.get["rows"]) - bad_rows
        self._require_rows(frame, folder, rows, planned, number)
        if self.is_exact and planned.entries is not None and rows != planned.entries:
            raise self._unequal(planned, number, f"{planned.entries} entries in the manifest", f"{rows} rows")
        return rows, bad_rows

    def _require_rows(self, frame: DataFrame, folder: str, rows: int, planned: PlannedRange, number: int) -> None:
        """Checks the row counts in the files' footers."""
        found = self.spark.read.schema(frame.schema).parquet(folder).count()
        if found != rows:
            raise self._unequal(planned, number, f"{rows} rows", f"{found} in {folder}")

    def _undecodable(self, planned: PlannedRange, number: int, bad_rows: int, first: Any) -> CorruptError:
        at = f"{first.ledger_id}:{first.entry_id}" + (
            f", message {first.batch_index}" if first.batch_index >= 0 else ""
        )
        return CorruptError(
            f"stream {self.state.stream}, range {number}, {planned.first}..{planned.last}: {bad_rows} messages can't "
            f"be decoded, the first at {at}: {first.error}; nothing was recorded",
            hint="use another schema, or --dead-letter (dead_letter=True) to continue without them",
        )

    def _unequal(self, planned: PlannedRange, number: int, expected: str, found: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"stream {self.state.stream}, range {number}, {planned.first}..{planned.last}: expected {expected}, found "
            f"{found}; nothing was recorded",
            hint="check for another export to the same folder, and run the export again alone",
        )


def _replace(frame: DataFrame, folder: str, *partitions: str) -> None:
    """Replaces the whole folder, even where the session replaces single partitions only."""
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy(*partitions) if partitions else writer).parquet(folder)
