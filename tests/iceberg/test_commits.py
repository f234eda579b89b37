"""Commits of an export that follows a stream: the many-th costs as much as the tenth, and what expired stays known."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table, TableProperties

from formats.entries import Position
from offloader.errors import CorruptError, InvalidCallError
from offloader.iceberg import commits
from offloader.iceberg.commits import MERGED_AT_ONCE, UPKEEP_PROPERTIES
from offloader.iceberg.history import EXPIRED, EXPIRED_BEFORE, is_whole, newest_range
from offloader.iceberg.upkeep import join_files
from tests.iceberg.lake import Lake, named_files, rows_by_duckdb, rows_by_pyiceberg, sent
from tests.iceberg.test_iceberg_export import commit_something, history, require_proven
from tests.support.streams import BASE_MS, StreamWriter, batch_of

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def writer(lake: Lake) -> StreamWriter:
    return lake.writer()


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few commits show what many do."""
    monkeypatch.setattr(commits, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(commits, "EXPIRED_AT_ONCE", 2)


def grow(lake: Lake, writer: StreamWriter, count: int) -> None:
    """As many ranges, each a file and a commit."""
    first = len(writer.uuids) + 1
    for ledger in range(first, first + count):
        writer.add([batch_of(ledger, 0, 3, times=[BASE_MS] * 3)], closes=[ledger])
    lake.export(writer, range_bytes=1)


def metadata_files(lake: Lake) -> list[Path]:
    """Files of the warehouse that aren't data."""
    return [each for each in (lake.folder / "warehouse").rglob("*") if each.is_file() and each.suffix != ".parquet"]


def each_commit(monkeypatch: pytest.MonkeyPatch, look: Callable[[Table], None]) -> None:
    """Calls it after each commit of a range."""
    commit = commits.commit_range

    def looked_at(table: Table, *more: Any) -> None:
        commit(table, *more)
        look(table)

    monkeypatch.setattr(commits, "commit_range", looked_at)


def require_steady(lake: Lake, writer: StreamWriter, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports as many ranges: requires that syncs, files and bytes of a commit stop to grow after the first dozens."""
    syncs, files, sizes = list[int](), list[int](), list[int]()
    sync, synced = os.fsync, [0]

    def counted(descriptor: int) -> None:
        synced[0] += 1
        sync(descriptor)

    def look(table: Table) -> None:
        syncs.append(synced[0])
        synced[0] = 0
        there = metadata_files(lake)
        files.append(len(there))
        sizes.append(sum(each.stat().st_size for each in there))
        newest = Path(urlsplit(table.metadata_location).path).stat().st_size
        tables = [each for each in there if each.name.endswith(".metadata.json")]
        assert sum(each.stat().st_size for each in tables) <= 20 * newest
        snapshot = table.current_snapshot()
        assert snapshot is not None
        powers = 1 + len(f"{len(files):o}")  # MERGED_AT_ONCE is 8
        assert len(snapshot.manifests(table.io)) <= (MERGED_AT_ONCE - 1) * powers + 1
        assert len(table.snapshots()) <= commits.SNAPSHOTS_KEPT + commits.EXPIRED_AT_ONCE

    each_commit(monkeypatch, look)
    monkeypatch.setattr(os, "fsync", counted)
    grow(lake, writer, count)
    steady = commits.SNAPSHOTS_KEPT + 2 * commits.EXPIRED_AT_ONCE
    assert max(syncs[1:]) <= syncs[1] + 1, "a merged manifest"
    assert max(files[steady:]) <= 1.3 * max(files[:steady])
    assert max(sizes[steady:]) <= 1.5 * max(sizes[:steady])


def test_commit_of_a_long_history_costs_as_much_as_an_early_one(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "SNAPSHOTS_KEPT", 8)
    monkeypatch.setattr(commits, "EXPIRED_AT_ONCE", 4)
    require_steady(lake, writer, 40, monkeypatch)
    require_proven(lake, writer)


def test_warehouse_has_only_files_that_the_table_names(lake: Lake, writer: StreamWriter, few_kept: None) -> None:
    grow(lake, writer, 20)
    table = lake.table()
    named = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        named |= {snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))}
    assert {each.name for each in metadata_files(lake)} == {Path(each).name for each in named}
    assert {str(each) for each in lake.data_files()} == set(named_files(table))


def test_metadata_files_of_an_existing_table_are_deleted_unless_its_owner_keeps_them(
    lake: Lake, writer: StreamWriter
) -> None:
    table = lake.table()
    with table.transaction() as transaction:
        transaction.set_properties({TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "3"})
    grow(lake, writer, 8)
    assert lake.table().properties[TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED] == "true"
    assert len([each for each in metadata_files(lake) if each.name.endswith(".metadata.json")]) == 1 + 3
    with lake.table().transaction() as transaction:
        transaction.set_properties(
            dict.fromkeys(UPKEEP_PROPERTIES, "false") | {"write.metadata.previous-versions-max": "3"}
        )
    grow(lake, writer, 4)
    assert len([each for each in metadata_files(lake) if each.name.endswith(".metadata.json")]) == 1 + 3 + 1 + 4


def test_export_goes_on_after_a_rollback_to_before_everything_that_is_kept_of_a_stream(
    lake: Lake, writer: StreamWriter, few_kept: None
) -> None:
    """The ranges that the rollback took back are exported again, though another stream's commits hid the rollback."""
    other = lake.writer("t/other")
    grow(lake, writer, 2)
    grow(lake, other, 6)
    assert newest_range(lake.table().metadata, writer.stream) is not None
    before = history(lake.table())[-1].snapshot_id
    grow(lake, writer, 2)
    lake.table().manage_snapshots().rollback_to_snapshot(before).commit()
    grow(lake, other, 12)
    table = lake.table()
    assert table.snapshot_by_id(before) is None, "expired"
    newest = newest_range(table.metadata, writer.stream)
    assert newest is not None
    assert newest.last == Position(2, 2)
    assert [each.first for each in lake.export(writer, range_bytes=1).ranges] == [Position(3, 0), Position(4, 0)]
    require_proven(lake, writer, other)


def test_snapshots_that_a_query_may_read_or_a_tag_names_are_kept(
    lake: Lake, writer: StreamWriter, few_kept: None
) -> None:
    grow(lake, writer, 8)
    join_files(lake.table(), writer.stream)
    small = named_files(lake.table(), history(lake.table())[-2].snapshot_id)
    grow(lake, writer, 8)
    table = lake.table()
    assert history(table)[1].summary["operation"].value == "replace", "that before it has files which this one hasn't"
    assert set(small) <= {str(each) for each in lake.data_files()}
    with table.transaction() as transaction:
        transaction.set_properties({TableProperties.MAX_SNAPSHOT_AGE_MS: "1"})
    tagged = history(table)[5].snapshot_id
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    grow(lake, writer, 4)
    assert history(lake.table())[0].snapshot_id == tagged
    assert not set(small) & {str(each) for each in lake.data_files()}
    assert rows_by_pyiceberg(lake.table(), tagged)
    require_proven(lake, writer)


def test_table_says_how_many_snapshots_stay(lake: Lake, writer: StreamWriter, few_kept: None) -> None:
    with lake.table().transaction() as transaction:
        transaction.set_properties({TableProperties.MIN_SNAPSHOTS_TO_KEEP: "9"})
    grow(lake, writer, 12)
    assert 9 <= len(history(lake.table())) <= 11
    with lake.table().transaction() as transaction:
        transaction.set_properties({TableProperties.MIN_SNAPSHOTS_TO_KEEP: "many"})
    with pytest.raises(InvalidCallError, match=r"property history\.expire\.min-snapshots-to-keep is 'many'"):
        grow(lake, writer, 1)


def test_table_whose_snapshots_another_program_expires_is_left_to_it(
    lake: Lake, writer: StreamWriter, few_kept: None
) -> None:
    grow(lake, writer, 4)
    table = lake.table()
    table.maintenance.expire_snapshots().by_ids([history(table)[0].snapshot_id]).commit()
    assert not is_whole(lake.table().metadata)
    grow(lake, writer, 8)
    assert len(history(lake.table())) == 3 + 8
    assert EXPIRED_BEFORE not in lake.table().properties
    assert rows_by_duckdb(lake.foreign_table()) == sent(writer)


def test_changed_property_about_expired_ranges_is_named(lake: Lake, writer: StreamWriter, few_kept: None) -> None:
    other = lake.writer("t/other")
    grow(lake, writer, 2)
    grow(lake, other, 8)
    table = lake.table()
    facts = json.loads(table.properties[EXPIRED + writer.stream])
    with table.transaction() as transaction:
        transaction.set_properties({EXPIRED + writer.stream: json.dumps({**facts, "offloader.last": "x"})})
    commit_something(lake.table(), {})
    with pytest.raises(CorruptError, match="wasn't written by an export"):
        lake.export(writer)
