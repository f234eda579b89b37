"""Upkeep of an exported table: joins small data files, and expires snapshots of what retention took from the stream.

Neither changes a row of the table, nor what the table proves: joined files have the same rows, and what expired
snapshots said of a stream's ranges stays in a property of the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import ExpireSnapshots, _OverwriteFiles
from sqlalchemy.exc import SQLAlchemyError

from formats.entries import Position
from offloader.errors import Corrupt, NotFound, OutcomeUnknown, StoreUnavailable, Unsupported
from offloader.iceberg import (
    ExportedRange,
    exported_ranges,
    history,
    range_of,
    repeated_never,
    sync_local_files,
    translated,
)
from offloader.iceberg import files as data_files
from offloader.iceberg.files import RangeFiles, delete_files
from offloader.read.ranges import grouped
from offloader.read.reader import load_stream
from offloader.store.base import ObjectStore

#: Size of a data file up to which it is small.
SMALL_BYTES_MAX = 64 * 1024**2
#: Small files of one stream and day from which on they are joined.
SMALL_FILES_MIN = 8
#: Bytes of the files that one commit joins: the most that a killed run has to repeat.
JOINED_BYTES_MAX = 1024**3
#: Commits that others may get in front of, before the upkeep gives up.
UPKEEP_ATTEMPTS_MAX = 20

#: Of the table: what expired snapshots said of a stream's ranges, as one range.
EXPIRED = "offloader.expired."
#: Of a snapshot: the number of files that it joined, and of snapshots that expired with it.
JOINED_FILES = "offloader.joined-files"
EXPIRED_SNAPSHOTS = "offloader.expired-snapshots"
_HINT = "run it again: nothing is lost by a half"
_Result = TypeVar("_Result")
_log = logging.getLogger("offloader.iceberg")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedFiles:
    """Small files of one day of a stream that became larger ones, or would.

    Attributes:
        files, bytes: number and size of the small ones.
        rows: in them.
    """

    stream: str
    files: int
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSnapshots:
    """Number of snapshots that expired, or would, and of the files that only they had; 0 in a dry run."""

    snapshots: int
    files: int


# -- joining small files


def join_files(table: Table, stream: str, *, dry_run: bool = False) -> list[JoinedFiles]:
    """Joins the small data files of each day of a stream, one commit for up to ``JOINED_BYTES_MAX``.

    Left alone are files with deleted rows, files that were written with other columns than the table has now, and days
    with fewer than ``SMALL_FILES_MIN`` small ones. The small files stay for the snapshots that name them.

    Args:
        table: of ``open_table``; it is refreshed.
        stream: whose files are joined.
        dry_run: change nothing.

    Raises:
        Unsupported: the table is of a format that this doesn't write.
        Corrupt: a file hasn't as many rows as the table says; nothing was committed.
        StoreUnavailable: catalogue or warehouse gave no usable response, or others always committed first.
        OutcomeUnknown: a commit may have happened.
    """
    if table.metadata.format_version > 2:
        raise Unsupported(
            f"table {_name(table)} is of format {table.metadata.format_version}: its files aren't joined here",
            hint="Spark's rewrite_data_files does it",
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
    """The result of work on the refreshed table; it begins again where another program's commit came first."""
    with translated(f"table {_name(table)}", hint=_HINT):
        for _ in range(UPKEEP_ATTEMPTS_MAX):
            table.refresh()
            with suppress(CommitFailedException):  # nothing was committed
                return work()
    raise StoreUnavailable(
        f"table {_name(table)}: {UPKEEP_ATTEMPTS_MAX} times another program committed to it first",
        hint="run fewer programs that change the table",
    )


def _small_groups(table: Table, stream: str) -> list[tuple[Sequence[str], list[DataFile]]]:
    """The files to join, each list of one day and with the same columns, which come first."""
    try:
        tasks = list(table.scan(row_filter=EqualTo(term=Reference(name="stream"), value=literal(stream))).plan_files())
    except ValueError as error:
        raise Unsupported(
            f"table {_name(table)}: its files can't be planned: {error}", hint="Spark's rewrite_data_files joins them"
        ) from error
    days: dict[Any, list[DataFile]] = {}
    for each in tasks:
        if _may_be_joined(table, each, stream):
            days.setdefault(_partition(each.file), []).append(each.file)
    groups = list[tuple[Sequence[str], list[DataFile]]]()
    for files in days.values():
        if len(files) < SMALL_FILES_MIN:  # before their footers are read
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
    """The names of a file's columns; none if one isn't as the table has it now, or if it is only small by compression.

    Joining such files would make no larger ones.
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
            raise Corrupt(
                f"table {_name(table)}: {len(group)} files of stream {stream} have {found} rows, the table says "
                f"{expected}; nothing was committed",
                hint="check the warehouse, or export to a new table",
            )
    except BaseException:
        output.discard()
        raise
    try:
        _exchange(table, group, written)
    except CommitFailedException:
        output.discard()
        raise
    except (OSError, SQLAlchemyError, RESTError) as error:
        raise OutcomeUnknown(
            f"table {_name(table)}: the commit of joined files may have happened: {error}", hint=_HINT
        ) from error
    sync_local_files(table, written)


class _ReplaceFiles(_OverwriteFiles):
    """Other files with the same rows: what follows a table's changes has nothing to read in it."""

    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(dict(snapshot_properties)).additional_properties)


def _replacement(transaction: Transaction, properties: dict[str, str]) -> _ReplaceFiles:
    table = transaction._table  # noqa: SLF001 - as pyiceberg's own operations
    return _ReplaceFiles(Operation.OVERWRITE, transaction, table.io, snapshot_properties=properties)


def _exchange(table: Table, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    """One commit; raises ``CommitFailedException`` if the table was changed since its load."""
    repeated_never(table)
    transaction, old = table.transaction(), list(old)
    with _replacement(transaction, {JOINED_FILES: str(len(old))}) as exchange:
        for each in old:
            exchange.delete_data_file(each)
        for each in new:
            exchange.append_data_file(each)
    transaction.commit_transaction()


# -- expiring snapshots


def expire(store: ObjectStore, table: Table, *, before_ms: int, dry_run: bool = False) -> ExpiredSnapshots:
    """Expires the oldest snapshots, as far as their ranges are deleted from the streams, and deletes their files.

    What they said of each stream's ranges is kept as the table's property ``offloader.expired.STREAM``, by the same
    commit. Files that another snapshot has are kept.

    Args:
        store: of the streams.
        table: of ``open_table``; it is refreshed.
        before_ms: keep snapshots from this time on, milliseconds since 1970: queries may still read them.
        dry_run: change nothing.

    Raises:
        Unsupported: the table's property ``gc.enabled`` forbids to delete files.
        Corrupt: a snapshot's or the table's properties were changed.
        StoreUnavailable: store, catalogue or warehouse gave no usable response, or others always committed first.
        OutcomeUnknown: the commit may have happened; its files weren't deleted.
    """
    if table.properties.get("gc.enabled", "true").lower() == "false":
        raise Unsupported(
            f"table {_name(table)} has the property gc.enabled=false", hint="its files may be other tables' too"
        )

    def forget() -> ExpiredSnapshots:
        streams = {each.stream for each in exported_ranges(table.metadata)}
        begins = {name: begin for name in streams if (begin := _begin_of(store, name)) is not None}
        old = expirable(table.metadata, begins, before_ms)
        if dry_run or not old:
            return ExpiredSnapshots(snapshots=len(old), files=0)
        try:
            _forget(table, old)
        except (OSError, SQLAlchemyError, RESTError) as error:
            raise OutcomeUnknown(f"table {_name(table)}: the expiry may have happened: {error}", hint=_HINT) from error
        sync_local_files(table, [])
        return ExpiredSnapshots(snapshots=len(old), files=delete_files(table, _files_only_of(table, old)))

    return _undisturbed(table, forget)


def expirable(metadata: TableMetadata, begins: Mapping[str, tuple[str, Position]], before_ms: int) -> list[Snapshot]:
    """The oldest snapshots of the table's history that may expire, the oldest first.

    Args:
        metadata: of the table.
        begins: stream -> its id and its first readable position; one that isn't there keeps its snapshots.
        before_ms: snapshots from this time on are kept; so is the current one, and a branch's or tag's.
    """
    kept = {each.snapshot_id for each in metadata.refs.values()} | {metadata.current_snapshot_id}
    found = list[Snapshot]()
    for each in reversed(history(metadata)):
        added = range_of(each)
        if each.snapshot_id in kept or each.timestamp_ms >= before_ms:
            break
        if added is not None:
            begin = begins.get(added.stream)
            if begin is None or begin[0] != added.incarnation or added.last >= begin[1]:
                break
        found.append(each)
    # A snapshot that only says that others expired isn't worth another one.
    facts = (each.summary.additional_properties if each.summary else {} for each in found)
    return found if any(EXPIRED_SNAPSHOTS not in each for each in facts) else []


def _begin_of(store: ObjectStore, stream: str) -> tuple[str, Position] | None:
    """The stream's id and first readable position; ``None``: it is deleted, or empty."""
    with suppress(NotFound):
        state = load_stream(store, stream)
        first = state.first_position()
        return None if first is None else (str(state.incarnation), first)
    return None


def expired_ranges(properties: Mapping[str, str], old: Iterable[ExportedRange]) -> dict[str, str]:
    """The table's properties that say what its expired snapshots said; ``old`` are further ones, the oldest first.

    Raises ``Corrupt``: a property was changed.
    """
    known: dict[str, ExportedRange] = {}
    for each in old:
        before = known.get(each.stream) or _expired_range(properties, each.stream)
        follows = before is not None and before.last == each.after and before.incarnation == each.incarnation
        known[each.stream] = each if before is None or not follows else _joined(before, each)
    return {EXPIRED + name: json.dumps(each.encode()) for name, each in known.items()}


def _joined(one: ExportedRange, two: ExportedRange) -> ExportedRange:
    return replace(
        two,
        first=one.first,
        after=one.after,
        entries=one.entries + two.entries,
        rows=one.rows + two.rows,
        lost=one.lost or two.lost,
    )


def _expired_range(properties: Mapping[str, str], stream: str) -> ExportedRange | None:
    try:
        return ExportedRange.decode(dict(json.loads(properties.get(EXPIRED + stream, "{}"))))
    except (ValueError, TypeError) as cause:
        raise Corrupt(
            f"the table's property {EXPIRED}{stream} was changed: {cause}", hint="expire snapshots with another program"
        ) from cause


def _forget(table: Table, old: Sequence[Snapshot]) -> None:
    """One commit: the snapshots go, and what they said of ranges stays.

    It has a snapshot of its own, without a change: only so it fails if another expiry came first.
    """
    repeated_never(table)
    transaction = table.transaction()
    ranges = [each for each in map(range_of, old) if each is not None]
    transaction.set_properties(expired_ranges(table.properties, ranges))
    ExpireSnapshots(transaction).by_ids([each.snapshot_id for each in old]).commit()
    with _replacement(transaction, {EXPIRED_SNAPSHOTS: str(len(old))}):
        pass
    transaction.commit_transaction()


def _files_only_of(table: Table, old: Sequence[Snapshot]) -> set[str]:
    """Manifest lists, manifests and data files that expired snapshots name, and none of the table's."""
    kept_lists, kept_manifests = _manifests_of(table, table.metadata.snapshots)
    old_lists, old_manifests = _manifests_of(table, old)
    only_old = {path: each for path, each in old_manifests.items() if path not in kept_manifests}
    if data := _data_files_of(table, only_old.values()):
        data -= _data_files_of(table, kept_manifests.values())
    return (old_lists - kept_lists) | only_old.keys() | data


def _manifests_of(table: Table, snapshots: Sequence[Snapshot]) -> tuple[set[str], dict[str, ManifestFile]]:
    manifests = (manifest for each in snapshots for manifest in each.manifests(table.io))
    return {each.manifest_list for each in snapshots}, {each.manifest_path: each for each in manifests}


def _data_files_of(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    return {entry.data_file.file_path for each in manifests for entry in each.fetch_manifest_entry(table.io)}


def _name(table: Table) -> str:
    return ".".join(table.name())
