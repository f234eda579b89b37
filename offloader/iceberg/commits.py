"""Commits to an exported table, at a cost that doesn't grow with the number of earlier commits.

Order of the durable steps for a warehouse in a local folder (pyiceberg syncs nothing):

1. write and sync the data files, manifests and manifest list of the commit;
2. commit in the catalogue, unless another program has committed since the table was loaded;
3. sync the metadata file, and only then report the range: retention may delete its entries from then on;
4. delete files that only expired snapshots name.

A run killed between steps 2 and 3 has committed. Each run therefore begins by syncing the current metadata file.

Three measures keep a commit small. Many manifests are merged: ``MERGED_AT_ONCE`` manifests of about the same number of
files become one, so a file is rewritten once for each power of that number. The oldest snapshots expire with the commit
(``expirable``), and properties keep their ranges (``offloader.iceberg.history``). Old metadata files are deleted once
enough newer ones exist (``UPKEEP_PROPERTIES``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, _FastAppendFiles, _ManifestMergeManager

from offloader.errors import InvalidCallError
from offloader.iceberg.files import delete_files
from offloader.iceberg.history import ExportedRange, expired_properties, history, is_whole, newest_property
from offloader.read.ranges import grouped
from offloader.runtime.system import sync_directory

#: Number of manifests with about the same number of files that are merged into one.
MERGED_AT_ONCE = 8
#: Maximum files in a merged manifest.
MANIFEST_FILES_MAX = 10_000
#: Snapshots to keep when older ones expire; the table's ``history.expire.min-snapshots-to-keep`` overrides it.
SNAPSHOTS_KEPT = 20
#: Snapshots that expire together, so that one search finds their files.
EXPIRED_AT_ONCE = 10
#: Maximum age of a snapshot with removed data files, which queries may still read; the table's
#: ``history.expire.max-snapshot-age-ms`` overrides it.
REPLACED_KEPT_MS = 3_600_000
#: Properties that the next commit adds to a table that lacks them.
UPKEEP_PROPERTIES = {
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "15",
}
#: Snapshot property: the number of snapshots that expired with this one, which changes no file.
EXPIRED_SNAPSHOTS = "offloader.expired-snapshots"
_log = logging.getLogger("offloader.iceberg")


def commit_range(table: Table, files: Sequence[DataFile], added: ExportedRange) -> None:
    """Commits files and positions and expires old snapshots; then deletes files that only those snapshots have.

    Raises ``CommitFailedException`` if the table was changed since it was loaded.
    """
    metadata = table.metadata
    old = expirable(metadata)
    transaction = Change(table)
    properties = {name: value for name, value in UPKEEP_PROPERTIES.items() if name not in metadata.properties}
    properties |= newest_property(added, metadata.next_sequence_number())
    transaction.set_properties(properties)
    if old:
        forget(transaction, metadata, old)
    with (
        unexpired(table),
        _Append(Operation.APPEND, transaction, table.io, snapshot_properties=added.encode()) as append,
    ):
        for each in files:
            append.append_data_file(each)
    commit(table, transaction, files)
    if old:
        delete_expired(table, old)


def commit(table: Table, transaction: Transaction, files: Sequence[DataFile]) -> None:
    """Commits a snapshot that adds these files, and syncs every file that the commit has written."""
    snapshot = transaction.table_metadata.current_snapshot()
    if snapshot is not None:
        manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        written = [*(each.file_path for each in files), *(each.manifest_path for each in manifests)]
        _sync_files(table, [*written, snapshot.manifest_list])
    transaction.commit_transaction()
    sync_metadata(table)


class Change(Transaction):
    """A transaction that computes metadata once per change; pyiceberg copies all metadata at each access.

    It fails if the table was changed since it was loaded, where pyiceberg would repeat the commit: the other commit may
    have added the same range or deleted rows of a file.
    """

    def __init__(self, table: Table) -> None:
        once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        super().__init__(table)
        self._made: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._made is None or self._made[0] != len(self._updates):
            self._made = len(self._updates), super().table_metadata
        return self._made[1]


@contextmanager
def unexpired(table: Table) -> Iterator[None]:
    """Raises ``CommitFailedException`` if a file is missing because others expired the table's current snapshot.

    The block commits nothing. The table is refreshed in that case.
    """
    current = table.metadata.current_snapshot_id
    try:
        yield
    except FileNotFoundError as error:
        if table.refresh().metadata.current_snapshot_id == current:
            raise
        raise CommitFailedException(f"another program committed in the meantime: {error}") from error


# -- manifests


class _Append(_FastAppendFiles):
    """An append that merges manifests of about the same number of files once there are ``MERGED_AT_ONCE`` of them."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        if self._transaction.table_metadata.format_version > 2:  # a merge would assign new row numbers
            return manifests
        spec = self._transaction.table_metadata.default_spec_id
        alike: dict[int, list[ManifestFile]] = {}
        for each in manifests:
            # Not the commit's current manifest, which would remain in the warehouse.
            is_old = each.content == ManifestContent.DATA and each.added_snapshot_id != self._snapshot_id
            if is_old and each.partition_spec_id == spec and _files_in(each) < MANIFEST_FILES_MAX // MERGED_AT_ONCE:
                alike.setdefault(_power_of(each), []).append(each)
        merged = list[ManifestFile]()
        for power in sorted(alike):
            if len(alike[power]) + bool(merged) >= MERGED_AT_ONCE:
                merged += alike[power]
            elif merged:
                break
        if not merged:
            return manifests
        merged = next(iter(grouped(merged, _files_in, MANIFEST_FILES_MAX)))
        paths = {each.manifest_path for each in merged}
        manager = _ManifestMergeManager(0, 0, merge_enabled=True, snapshot_producer=self)
        one = manager._create_manifest(spec, merged)  # noqa: SLF001 - as pyiceberg's own operations
        return [one, *(each for each in manifests if each.manifest_path not in paths)]


def _files_in(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _power_of(manifest: ManifestFile) -> int:
    """The power of ``MERGED_AT_ONCE`` that a manifest's number of files reaches."""
    files, power = _files_in(manifest), 0
    while files >= MERGED_AT_ONCE ** (power + 1):
        power += 1
    return power


# -- snapshots


def expirable(metadata: TableMetadata) -> list[Snapshot]:
    """The table's oldest snapshots that expire with its next commit, oldest first.

    The list is empty if fewer than ``EXPIRED_AT_ONCE`` snapshots exceed the number to keep, if another program expires
    snapshots, or if files may not be deleted. It ends before the first snapshot that a branch or tag names, and before
    one with removed data files that a query may still read.
    """
    kept = _number(metadata, TableProperties.MIN_SNAPSHOTS_TO_KEEP, SNAPSHOTS_KEPT)
    age_ms = _number(metadata, TableProperties.MAX_SNAPSHOT_AGE_MS, REPLACED_KEPT_MS)
    snapshots = history(metadata)[::-1]
    if len(snapshots) < kept + EXPIRED_AT_ONCE or not is_whole(metadata) or not may_delete_files(metadata):
        return []
    named = {each.snapshot_id for each in metadata.refs.values()}
    found = list[Snapshot]()
    for each, following in pairwise(snapshots[: len(snapshots) - kept + 1]):
        is_read = _removes_files(following) and metadata.last_updated_ms - following.timestamp_ms < age_ms
        if each.snapshot_id in named or is_read:
            break
        found.append(each)
    return found


def may_delete_files(metadata: TableMetadata) -> bool:
    """Whether files that no snapshot names belong to this table only."""
    return metadata.properties.get("gc.enabled", "true").lower() != "false"


def forget(transaction: Transaction, metadata: TableMetadata, old: Sequence[Snapshot]) -> None:
    """Removes the table's oldest snapshots in a transaction and keeps their ranges as properties; raises
    ``CorruptError``."""
    transaction.set_properties(expired_properties(metadata, old))
    ExpireSnapshots(transaction).by_ids([each.snapshot_id for each in old]).commit()


def delete_expired(table: Table, old: Sequence[Snapshot]) -> int:
    """Tries to delete files that only expired snapshots have; returns the number of deleted files."""
    try:
        return delete_files(table, _files_only_of(table, old))
    except OSError as error:  # another program may have expired further snapshots in the meantime
        _log.info("files of %d expired snapshots couldn't be deleted: %s", len(old), error)
        return 0


def _files_only_of(table: Table, old: Sequence[Snapshot]) -> set[str]:
    """Files that these expired snapshots name and the table doesn't; the snapshots are the oldest of the history."""
    kept_lists, kept_manifests = _manifests_of(table, table.metadata.snapshots)
    old_lists, old_manifests = _manifests_of(table, old)
    only_old = {path: each for path, each in old_manifests.items() if path not in kept_manifests}
    data = set[str]()
    if any(map(_removes_files, [*old[1:], history(table.metadata)[-1]])):  # otherwise merged manifests name them
        data = _data_files_of(table, only_old.values())
    if data:
        data -= _data_files_of(table, kept_manifests.values())
    return (old_lists - kept_lists) | only_old.keys() | data


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    text = metadata.properties.get(name, str(default))
    if not text.isdecimal():
        raise InvalidCallError(f"the table's property {name} is {text!r}, not a number", hint="set it to a number")
    return max(int(text), 1)


def _removes_files(snapshot: Snapshot) -> bool:
    """Whether a snapshot may lack data files of its predecessor."""
    summary = snapshot.summary
    return summary is None or (
        summary.operation != Operation.APPEND and EXPIRED_SNAPSHOTS not in summary.additional_properties
    )


def _manifests_of(table: Table, snapshots: Sequence[Snapshot]) -> tuple[set[str], dict[str, ManifestFile]]:
    manifests = (manifest for each in snapshots for manifest in each.manifests(table.io))
    return {each.manifest_list for each in snapshots}, {each.manifest_path: each for each in manifests}


def _data_files_of(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    return {entry.data_file.file_path for each in manifests for entry in each.fetch_manifest_entry(table.io)}


# -- a warehouse in a local folder


def sync_metadata(table: Table) -> None:
    """Makes the table's current metadata file durable."""
    if (path := _local_path(table.metadata_location)) is not None:
        _sync([path], path.parent)


def _sync_files(table: Table, names: Iterable[str]) -> None:
    """Syncs files of the table and the folders of the table, its namespace and the warehouse."""
    location = _local_path(table.location())
    _sync(filter(None, map(_local_path, names)), None if location is None else location.parent.parent)


def _sync(paths: Iterable[Path], top: Path | None) -> None:
    """Syncs files and their parent folders up to ``top``; ``None``: all parents."""
    folders = set[Path]()
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        folders |= {each for each in path.parents if top is None or each == top or top in each.parents}
    for folder in sorted(folders):
        sync_directory(folder)


def _local_path(location: str) -> Path | None:
    parts = urlsplit(location)
    return Path(parts.path) if parts.scheme in ("", "file") else None
