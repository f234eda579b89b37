"""Maintenance of an exported table: joins small data files, and expires snapshots by age.

Neither changes rows of the table or the record of its export: joined files have the same rows, and a property of the
table keeps the ranges of expired snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from sqlalchemy.exc import SQLAlchemyError

from offloader.errors import CorruptError, OutcomeUnknownError, StoreUnavailableError, UnsupportedError
from offloader.iceberg import files as data_files
from offloader.iceberg import translated
from offloader.iceberg.commits import (
    EXPIRED_SNAPSHOTS,
    Change,
    commit,
    delete_expired,
    forget,
    may_delete_files,
    unexpired,
)
from offloader.iceberg.files import RangeFiles
from offloader.iceberg.history import history
from offloader.read.ranges import grouped

#: Maximum size of a small data file.
SMALL_BYTES_MAX = 64 * 1024**2
#: Minimum number of small files of one stream and day to join.
SMALL_FILES_MIN = 8
#: Maximum bytes of files that one commit joins: the most that a killed run has to repeat.
JOINED_BYTES_MAX = 1024**3
#: Attempts to commit before the maintenance fails because other programs commit first.
UPKEEP_ATTEMPTS_MAX = 20

#: Snapshot property: the number of files that the snapshot joined.
JOINED_FILES = "offloader.joined-files"
_HINT = "run it again: an incomplete run loses nothing"
_Result = TypeVar("_Result")
_log = logging.getLogger("offloader.iceberg")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedFiles:
    """Small files of one day of a stream that were joined, or would be in a dry run.

    Attributes:
        files, bytes: number and total size of the small files.
        rows: number of rows in them.
    """

    stream: str
    files: int
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSnapshots:
    """Number of snapshots that expired, or would in a dry run, and of deleted files (0 in a dry run)."""

    snapshots: int
    files: int


# -- joining small files


def join_files(table: Table, stream: str, *, dry_run: bool = False) -> list[JoinedFiles]:
    """Joins the small data files of each day of a stream, with one commit per ``JOINED_BYTES_MAX``.

    Skips files with deleted rows, files whose columns differ from the table's current columns, and days with fewer than
    ``SMALL_FILES_MIN`` small files. Snapshots that name the small files keep them.

    Args:
        table: result of ``open_table``; the call refreshes it.
        stream: name of the stream.
        dry_run: change nothing.

    Raises:
        UnsupportedError: this function can't write the table's format.
        CorruptError: the number of rows in a file differs from the table's count; nothing was committed.
        StoreUnavailableError: catalogue or warehouse gave no usable response, or other programs always committed first.
        OutcomeUnknownError: a commit may have happened.
    """
    if table.metadata.format_version > 2:
        raise UnsupportedError(
            f"table {_name(table)} has format {table.metadata.format_version}, whose files can't be joined here",
            hint="use Spark's rewrite_data_files",
        )
    done = list[JoinedFiles]()

    def join() -> list[JoinedFiles]:
        for names, group in _small_groups(table, stream):
            joined = JoinedFiles(
                stream=stream,
                files=len(group),
                bytes=sum(each.file_size_in_bytes for each in group),
                rows=sum(each.record_count for each in group),
            )
            if not dry_run:
                _join(table, stream, names, group)
                _log.info("joined %d files of %s, %d rows", joined.files, stream, joined.rows)
            done.append(joined)
        return done

    return _undisturbed(table, join)


def _undisturbed(table: Table, work: Callable[[], _Result]) -> _Result:
    """Runs work on the refreshed table and returns its result; retries if another program commits first."""
    with translated(f"table {_name(table)}", hint=_HINT):
        for _ in range(UPKEEP_ATTEMPTS_MAX):
            table.refresh()
            with suppress(CommitFailedException), unexpired(table):  # nothing was committed
                return work()
    raise StoreUnavailableError(
        f"table {_name(table)}: {UPKEEP_ATTEMPTS_MAX} commits failed because other programs committed first",
        hint="run fewer programs that change the table",
    )


def _small_groups(table: Table, stream: str) -> list[tuple[Sequence[str], list[DataFile]]]:
    """The files to join: each list has files of one day with the same columns, whose names come first."""
    try:
        tasks = list(table.scan(row_filter=EqualTo(term=Reference(name="stream"), value=literal(stream))).plan_files())
    except ValueError as error:
        raise UnsupportedError(
            f"table {_name(table)}: its files can't be planned: {error}", hint="use Spark's rewrite_data_files"
        ) from error
    days: dict[Any, list[DataFile]] = {}
    for each in tasks:
        if _may_be_joined(table, each, stream):
            days.setdefault(_partition(each.file), []).append(each.file)
    groups = list[tuple[Sequence[str], list[DataFile]]]()
    for files in days.values():
        if len(files) < SMALL_FILES_MIN:  # checked before the footers are read
            continue
        alike: dict[Sequence[str], list[DataFile]] = {}
        for file in sorted(files, key=lambda each: each.file_path):
            alike.setdefault(_columns_to_join(table, file), []).append(file)
        alike.pop((), None)
        groups += (
            (names, group)
            for names, those in alike.items()
            for group in grouped(those, lambda file: file.file_size_in_bytes, JOINED_BYTES_MAX)
            if len(group) >= SMALL_FILES_MIN
        )
    return groups


def _may_be_joined(table: Table, task: FileScanTask, stream: str) -> bool:
    file, spec = task.file, table.spec()
    names = [table.schema().find_column_name(each.source_id) for each in spec.fields]
    return (
        file.file_size_in_bytes <= SMALL_BYTES_MAX
        and not task.delete_files
        and file.file_format == FileFormat.PARQUET
        and file.spec_id == spec.spec_id
        and dict(zip(names, _partition(file), strict=True))["stream"] == stream
    )


def _partition(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[number] for number in range(len(file.partition)))


def _columns_to_join(table: Table, file: DataFile) -> tuple[str, ...]:
    """The names of a file's columns; empty if a column differs from the table's, or if only compression makes it small.

    Joining files that only compression makes small would not produce larger ones.
    """
    with _parquet(table, file) as opened:
        size = sum(opened.metadata.row_group(each).total_byte_size for each in range(opened.num_row_groups))
        columns = pyarrow_to_schema(opened.schema_arrow).fields
    now = {each.field_id: each for each in table.schema().fields}
    is_fitting = size < data_files.FILE_BYTES_MAX // 2 and all(now.get(each.field_id) == each for each in columns)
    return tuple(each.name for each in columns) if is_fitting else ()


@contextmanager
def _parquet(table: Table, file: DataFile) -> Iterator[pq.ParquetFile]:
    with table.io.new_input(file.file_path).open() as source, pq.ParquetFile(source) as opened:
        yield opened


def _join(table: Table, stream: str, names: Sequence[str], group: Sequence[DataFile]) -> None:
    """Writes the rows of files to larger ones, and commits the exchange."""
    output = RangeFiles(table, stream, names)
    try:
        for each in group:
            with _parquet(table, each) as opened:
                for number in range(opened.num_row_groups):
                    for rows in opened.read_row_group(number).to_batches():
                        output.add(rows)
        written = output.close()
        found, expected = (sum(each.record_count for each in files) for files in (written, group))
        if found != expected:
            raise CorruptError(
                f"table {_name(table)}: {len(group)} files of stream {stream} have {found} rows, the table counts "
                f"{expected}; nothing was committed",
                hint="check the warehouse, or export to a new table",
            )
    except BaseException:
        output.discard()
        raise
    try:
        with unexpired(table):
            _exchange(table, group, written)
    except CommitFailedException:
        output.discard()
        raise
    except (OSError, SQLAlchemyError, RESTError) as error:
        raise OutcomeUnknownError(
            f"table {_name(table)}: the commit of joined files may have happened: {error}", hint=_HINT
        ) from error


class _ReplaceFiles(_OverwriteFiles):
    """Replacement by files with the same rows: readers of the table's changes skip it."""

    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(dict(snapshot_properties)).additional_properties)


def _replacement(transaction: Transaction, properties: dict[str, str]) -> _ReplaceFiles:
    table = transaction._table  # noqa: SLF001 - as pyiceberg's own operations
    return _ReplaceFiles(Operation.OVERWRITE, transaction, table.io, snapshot_properties=properties)


def _exchange(table: Table, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    """Commits the exchange; raises ``CommitFailedException`` if the table was changed since it was loaded."""
    transaction, old, new = Change(table), list(old), list(new)
    with _replacement(transaction, {JOINED_FILES: str(len(old))}) as exchange:
        for each in old:
            exchange.delete_data_file(each)
        for each in new:
            exchange.append_data_file(each)
    commit(table, transaction, new)


# -- expiring snapshots


def expire(table: Table, *, before_ms: int, dry_run: bool = False) -> ExpiredSnapshots:
    """Expires the oldest snapshots, and deletes the files that only they have.

    The same commit keeps the ranges of each stream in the table's property ``offloader.expired.STREAM``.

    Args:
        table: result of ``open_table``; the call refreshes it.
        before_ms: keep snapshots from this time on, in milliseconds since 1970, because queries may still read them.
        dry_run: change nothing.

    Raises:
        UnsupportedError: the table's property ``gc.enabled`` forbids deleting files.
        CorruptError: properties of a snapshot or of the table were changed; or the table was rolled back, and another
            program expired the snapshots that record the export of a stream.
        StoreUnavailableError: catalogue or warehouse gave no usable response, or other programs always committed first.
        OutcomeUnknownError: the commit may have happened; its files weren't deleted.
    """
    if not may_delete_files(table.metadata):
        raise UnsupportedError(
            f"table {_name(table)} has the property gc.enabled=false", hint="other tables may use its files"
        )

    def work() -> ExpiredSnapshots:
        old = _older(table.metadata, before_ms)
        if dry_run or not old:
            return ExpiredSnapshots(snapshots=len(old), files=0)
        try:
            with unexpired(table):
                _forget(table, old)
        except (OSError, SQLAlchemyError, RESTError) as error:
            raise OutcomeUnknownError(
                f"table {_name(table)}: the expiry may have happened: {error}", hint=_HINT
            ) from error
        return ExpiredSnapshots(snapshots=len(old), files=delete_expired(table, old))

    return _undisturbed(table, work)


def _older(metadata: TableMetadata, before_ms: int) -> list[Snapshot]:
    """The oldest snapshots of the table's history from before a time, oldest first.

    Keeps the current snapshot, and the snapshots that a branch or tag names, with all their descendants.
    """
    kept = {each.snapshot_id for each in metadata.refs.values()} | {metadata.current_snapshot_id}
    found = list[Snapshot]()
    for each in reversed(history(metadata)):
        if each.snapshot_id in kept or each.timestamp_ms >= before_ms:
            break
        found.append(each)
    # A snapshot that only records an expiry doesn't justify another one.
    facts = (each.summary.additional_properties if each.summary else {} for each in found)
    return found if any(EXPIRED_SNAPSHOTS not in each for each in facts) else []


def _forget(table: Table, old: Sequence[Snapshot]) -> None:
    """Commits the removal of the snapshots, with their ranges as properties of the table.

    The commit adds an empty snapshot, because only a new snapshot makes it fail if another expiry came first.
    """
    transaction = Change(table)
    forget(transaction, table.metadata, old)
    with _replacement(transaction, {EXPIRED_SNAPSHOTS: str(len(old))}):
        pass
    commit(table, transaction, [])


def _name(table: Table) -> str:
    return ".".join(table.name())
