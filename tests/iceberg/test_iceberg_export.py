"""Export to an Iceberg table: every entry once after kills and beside other exporters, proven from the table alone."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.types import StringType

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.manifest import Retire, Truncate
from offloader import iceberg
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TrimmedError,
    UnsupportedError,
)
from offloader.iceberg import commits
from offloader.iceberg import history as ranges
from offloader.iceberg.columns import COLUMNS
from offloader.iceberg.commits import EXPIRED_SNAPSHOTS
from offloader.iceberg.history import EXPIRED, ExportedRange, exported_ranges, newest_range
from offloader.iceberg.upkeep import JOINED_FILES
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.iceberg.lake import Lake, named_files, rows_by_duckdb, rows_by_polars, rows_by_pyiceberg, rows_of, sent
from tests.support.streams import StreamWriter, batch_of, random_batch

ROOT = Path(__file__).resolve().parents[2]
DAY_MS = 86_400_000
pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def writer(lake: Lake) -> StreamWriter:
    return lake.writer()


def history(table: Table) -> list[Any]:
    """Snapshots of the table's current state, the oldest first."""
    return list(ancestors_of(table.metadata.current_snapshot(), table.metadata))[::-1]


def commit_something(table: Table, properties: dict[str, str]) -> None:
    """As another program does."""
    with table.transaction() as transaction, transaction.update_snapshot(properties).fast_append():
        pass


def require_proven(lake: Lake, *writers: StreamWriter) -> None:
    """The table, read without our code, has what was sent, each entry once, and says so itself.

    Of each stream the ranges follow each other without a gap, and have as many entries as the table has rows; a reader
    of an earlier snapshot sees whole ranges.
    """
    table = lake.foreign_table()
    rows = rows_by_duckdb(table)
    assert len({row[:3] for row in rows}) == len(rows), "an entry is there twice"
    assert rows == sent(*writers)
    expired = {name: json.loads(text) for name, text in table.properties.items() if name.startswith(EXPIRED)}
    ranges: dict[str, list[dict[str, str]]] = {each["offloader.stream"]: [each] for each in expired.values()}
    snapshots = history(table)
    read = snapshots[:: len(snapshots) // 10 + 1]
    for snapshot in snapshots:
        facts = {name: snapshot.summary[name] for name in snapshot.summary.additional_properties}
        if {JOINED_FILES, EXPIRED_SNAPSHOTS} & facts.keys():
            continue
        own = ranges.setdefault(facts["offloader.stream"], [])
        assert facts["offloader.after"] == (own[-1]["offloader.last"] if own else "")
        own.append(facts)
        if snapshot not in read:
            continue
        seen = rows_by_pyiceberg(table, snapshot.snapshot_id)
        ends = {name: Position.parse(each[-1]["offloader.last"]) for name, each in ranges.items()}
        assert seen == [row for row in rows if row[0] in ends and Position(row[1], row[2]) <= ends[row[0]]]
    for each in writers:
        counted = sum(int(facts["offloader.entries"]) for facts in ranges[each.stream])
        assert counted == len(each.entries)


# Rows


def test_other_readers_find_the_entries_that_were_sent(lake: Lake, writer: StreamWriter) -> None:
    chance = random.Random(5)
    writer.add([random_batch(chance, 1, 0, 500, 200), random_batch(chance, 2, 0, 100, 5000)], closes=[1])
    [added] = lake.export(writer).ranges
    assert (added.first, added.last, added.after, added.entries) == (Position(1, 0), Position(2, 99), None, 600)
    table = lake.foreign_table()
    for rows in (rows_by_duckdb(table), rows_by_polars(table), rows_by_pyiceberg(table)):
        assert rows == sent(writer)


def test_rows_are_partitioned_by_utc_day_and_stream(lake: Lake) -> None:
    midnight = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    times = [midnight - 1, midnight, midnight + DAY_MS - 1, midnight + DAY_MS, TIME_UNKNOWN_MS, -1000, 0]
    writers = [lake.writer(name) for name in ("t/a", "t/ü b")]
    for each in writers:
        each.add([EntryBatch.build(1, 0, [b"x"] * len(times), times)])
        lake.export(each)
    found = {
        (each["partition"]["publish_day"], each["partition"]["stream"]): each["record_count"]
        for each in lake.foreign_table().inspect.files().to_pylist()
    }
    days = {date(2026, 2, 28): 1, date(2026, 3, 1): 2, date(2026, 3, 2): 1, None: 1, date(1969, 12, 31): 1}
    days[date(1970, 1, 1)] = 1
    assert found == {(day, name): count for day, count in days.items() for name in ("t/a", "t/ü b")}
    table = lake.foreign_table()
    assert rows_of(table.scan("publish_time >= '2026-03-02T00:00:00+00:00'").to_arrow()) == [
        row for row in sent(*writers) if row[3] == midnight + DAY_MS
    ]


def test_stream_without_entries_commits_nothing(lake: Lake, writer: StreamWriter) -> None:
    assert lake.export(writer) == iceberg.Exported(writer.stream, (), None)
    assert history(lake.foreign_table()) == []


def test_recorded_gap_is_no_loss(lake: Lake, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)], closes=[1])
    lake.export(writer)
    writer.add([batch_of(5, 0, 10)], closes=[5])
    [second] = lake.export(writer).ranges
    assert (second.first, second.lost) == (Position(5, 0), False)


# Kills


def victims() -> subprocess.Popen[str]:
    """A process that forks another one for each line."""
    command = [sys.executable, "-m", "tests.iceberg.victim"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def order(lake: Lake, writers: list[StreamWriter], *more: str) -> str:
    streams = ",".join(each.stream for each in writers)
    return " ".join([lake.store_url, lake.catalog, lake.warehouse, streams, *more]) + "\n"


def ended(nursery: subprocess.Popen[str], line: str) -> int:
    """The exit code of the process that did what the line says."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(line)
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


# Several exporters


@pytest.mark.parametrize("same", [True, False])
def test_commit_that_comes_second_reads_the_positions_again(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Of another stream only the commit is repeated; of the same one nothing is added, and the files are deleted."""
    other = writer if same else lake.writer("t/other")
    for each in {id(each): each for each in (writer, other)}.values():
        each.add([batch_of(1, 0, 10)], closes=[1])
        each.add([batch_of(2, 0, 10)], closes=[2])
    commit, written = commits.commit_range, list[list[str]]()

    def overtaken(table: Table, files: Any, added: ExportedRange) -> None:
        written.append([each.file_path for each in files])
        if len(written) == 1:
            lake.export(other, range_bytes=10**9)
        commit(table, files, added)

    monkeypatch.setattr(commits, "commit_range", overtaken)
    done = lake.export(writer, range_bytes=1)
    require_proven(lake, writer, *([] if same else [other]))
    if same:
        assert (done.ranges, done.end) == ((), Position(2, 9))
    else:
        assert [each.entries for each in done.ranges] == [10, 10]
        assert written[2] == written[0], "the same files"
    assert {str(each) for each in lake.data_files()} == set(named_files(lake.foreign_table()))


def test_exporter_that_always_comes_second_gives_up(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add([batch_of(1, 0, 10)])
    others = lake.table()
    commit, turns = commits.commit_range, itertools.count()

    def overtaken(table: Table, files: Any, added: ExportedRange) -> None:
        commit_something(others.refresh(), {"turn": str(next(turns))})
        commit(table, files, added)

    monkeypatch.setattr(commits, "commit_range", overtaken)
    monkeypatch.setattr(iceberg, "COMMIT_ATTEMPTS_MAX", 3)
    with pytest.raises(StoreUnavailableError, match="3 commits failed because other programs committed first"):
        lake.export(writer)
    assert lake.data_files() == []


def test_commit_whose_answer_was_lost_is_not_repeated(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add([batch_of(1, 0, 10)])
    table, commit = lake.table(), SqlCatalog.commit_table

    def deaf(*arguments: Any) -> Any:
        commit(*arguments)
        raise OSError("the connection was cut")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", deaf)
        with pytest.raises(OutcomeUnknownError, match=r"the commit of 1:0\.\.1:9 of stream .* may have happened"):
            lake.export(writer, table)
    assert lake.export(writer).ranges == ()
    require_proven(lake, writer)


def test_files_of_a_local_warehouse_are_synced_before_a_range_is_told(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add([batch_of(1, 0, 10)])
    synced, sync = set[Path](), os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    table = lake.table()
    monkeypatch.setattr(os, "fsync", noted)
    assert lake.export(writer, table).ranges
    snapshot = table.current_snapshot()
    assert snapshot is not None
    named = [table.metadata_location, snapshot.manifest_list, *named_files(table)]
    named += [each.manifest_path for each in snapshot.manifests(table.io)]
    files = {Path(urlsplit(each).path) for each in named}
    assert files | {each.parent for each in files} <= synced


# The table's own life


def test_export_goes_on_from_where_the_table_was_rolled_back_to(lake: Lake, writer: StreamWriter) -> None:
    for ledger in (1, 2, 3):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    table = lake.table()
    lake.export(writer, table, range_bytes=1)
    first = history(table)[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert [each.first for each in lake.export(writer).ranges] == [Position(2, 0)]
    require_proven(lake, writer)


def test_positions_outlive_the_snapshots_that_had_them(lake: Lake, writer: StreamWriter) -> None:
    other = lake.writer("t/other")
    for each in (writer, other):
        each.add([batch_of(1, 0, 10)], closes=[1])
        lake.export(each)
    table = lake.table()
    commit_something(table, {})
    old = [each.snapshot_id for each in history(table)[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert exported_ranges(lake.table().metadata) == []
    for each in (writer, other):
        assert lake.export(each).end == Position(1, 9)
        each.add([batch_of(2, 0, 10)], closes=[2])
        [added] = lake.export(each).ranges
        assert (added.first, added.after) == (Position(2, 0), Position(1, 9))
    assert rows_by_duckdb(lake.foreign_table()) == sent(writer, other)


def test_rollback_whose_snapshots_expired_is_refused(lake: Lake, writer: StreamWriter) -> None:
    other = lake.writer("t/other")
    other.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(1, 0, 10)], closes=[1])
    lake.export(other)
    table = lake.table()
    commit_something(table, {})
    base = table.metadata.current_snapshot_id
    assert base is not None
    lake.export(writer)
    table = lake.table()
    table.manage_snapshots().set_current_snapshot(base).commit()
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != base]
    ).commit()
    assert lake.export(other).end == Position(1, 9)
    kept = r"was rolled back, and the snapshots that record the export of stream .* have expired"
    with pytest.raises(CorruptError, match=kept):
        lake.export(writer)


def test_table_may_have_further_optional_columns(lake: Lake, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)], closes=[1])
    table = lake.table()
    lake.export(writer, table)
    with table.update_schema() as update:
        update.add_column("note", StringType())
        update.move_first("note")
    writer.add([batch_of(2, 0, 10)], closes=[2])
    lake.export(writer)
    assert rows_by_pyiceberg(lake.foreign_table()) == sent(writer)
    assert lake.foreign_table().scan().to_arrow()["note"].null_count == 20


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (COLUMNS["entries"], "is not partitioned by day of publish_time and by stream"),
        (pa.schema([("id", pa.int64())]), "exists without stream string, ledger_id int64"),
        (COLUMNS["entries"].append(pa.field("note", pa.string(), False)), "with the required columns note"),
    ],
)
def test_table_of_another_shape_is_refused(lake: Lake, schema: pa.Schema, text: str) -> None:
    catalog = iceberg._catalog(lake.catalog, lake.warehouse, {})
    catalog.create_namespace("lake")
    catalog.create_table("lake.entries", schema)
    with pytest.raises(UnsupportedError, match=text):
        lake.table()


# The stream's life


def test_entries_deleted_before_their_export_are_named(lake: Lake, writer: StreamWriter) -> None:
    for ledger in (1, 2, 3):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
        if ledger == 1:
            lake.export(writer)
    writer.log.commit([Truncate(Position(3, 0))])
    writer.log.commit([Retire(tuple(writer.uuids[:2]))])
    with pytest.raises(
        TrimmedError, match=r"exported up to 1:9, but the following entries were deleted: the stream now begins at 3:0"
    ) as caught:
        lake.export(writer)
    assert "--skip-lost" in caught.value.hint
    [added] = lake.export(writer, skip_lost=True).ranges
    assert (added.first, added.after, added.lost) == (Position(3, 0), Position(1, 9), True)
    assert history(lake.foreign_table())[-1].summary["offloader.lost"] == "true"


def test_table_keeps_what_the_stream_has_deleted(lake: Lake, writer: StreamWriter) -> None:
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    lake.export(writer)
    writer.log.commit([Truncate(Position(2, 0))])
    writer.log.commit([Retire((writer.uuids[0],))])
    assert lake.export(writer).ranges == ()
    require_proven(lake, writer)


def test_stream_that_was_made_anew_is_refused(lake: Lake, writer: StreamWriter, tmp_path: Path) -> None:
    writer.add([batch_of(1, 0, 10)])
    lake.export(writer)
    again = Lake(tmp_path / "again").writer(writer.stream)
    again.add([batch_of(1, 0, 10)])
    with pytest.raises(InvalidCallError, match=r"was deleted and recreated since its export to table lake\.entries"):
        lake.export(again)


class CountedList(list[Any]):
    """Counts what is looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.looked_at += 1
            yield each


def test_long_history_is_walked_once(lake: Lake) -> None:
    count = 500
    snapshots = CountedList(
        Snapshot.model_construct(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            summary=Summary(operation=Operation.APPEND),
        )
        for number in range(1, count + 1)
    )
    made = {"snapshots": snapshots, "current_snapshot_id": count}
    metadata = lake.table().metadata.model_copy(update=made)
    assert newest_range(metadata, "s") is None
    assert [each.snapshot_id for each in ranges.history(metadata)] == list(range(count, 0, -1))
    assert snapshots.looked_at <= 4 * count


# Damage and wrong calls


def test_changed_properties_are_named(lake: Lake, writer: StreamWriter) -> None:
    facts = ExportedRange(
        stream="s",
        incarnation="i",
        manifest=7,
        first=Position(1, 2),
        last=Position(3, 4),
        after=None,
        entries=5,
        rows=6,
        lost=True,
    )
    assert ExportedRange.decode({"owner": "me", **facts.encode()}) == facts
    assert ExportedRange.decode({"owner": "me"}) is None
    table = lake.table()
    commit_something(table, {**facts.encode(), "offloader.last": "9"})
    with pytest.raises(CorruptError, match="a snapshot's summary wasn't written by an export"):
        lake.export(writer)


def test_damaged_stream_commits_nothing(lake: Lake, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    (data,) = (each for each in (lake.folder / "store").rglob(f"*{writer.uuids[0]}") if each.is_file())
    body = bytearray(data.read_bytes())
    body[len(body) // 2] ^= 0xFF
    data.write_bytes(bytes(body))
    with pytest.raises(CorruptError):
        lake.export(writer)
    assert history(lake.foreign_table()) == []
    assert lake.data_files() == []


def test_store_that_denies_reading_is_not_an_unavailable_table(lake: Lake, writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)])
    denying = FaultyStore(writer.store, [Fault(call=1, key_part=str(writer.uuids[0]), error=AccessDeniedError)])
    with pytest.raises(AccessDeniedError) as caught:
        iceberg.export(denying, writer.stream, lake.table())
    assert "lake.entries" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "kind", "text", "hint"),
    [
        ({"name": "entries"}, InvalidCallError, "table 'entries' has no namespace", "NAMESPACE.TABLE"),
        ({"content": "values"}, InvalidCallError, "unknown table content 'values'", "entries, messages"),
        ({"catalog": "prod"}, NotFoundError, "no catalogue prod is configured", "pyiceberg.yaml"),
        ({"catalog": "postgresql://me:hidden@db/x"}, InvalidCallError, "URL contains a password", "pyiceberg.yaml"),
        (
            {"options": {"s3.secret-access-key": "hidden"}},
            InvalidCallError,
            "catalogue option s3.secret-access-key is a secret",
            "PYICEBERG_CATALOG__OFFLOADER__S3__SECRET_ACCESS_KEY",
        ),
        ({"warehouse": ""}, InvalidCallError, "no warehouse was given", "--warehouse"),
        ({"catalog": "sqlite:////nowhere/at/all.db"}, StoreUnavailableError, "unable to open database file", "runs"),
        ({"catalog": "http://127.0.0.1:1"}, StoreUnavailableError, r"can't be used: connection refused \(", "runs"),
        ({"catalog": "nothing://x"}, InvalidCallError, "can't be opened: Can't load plugin", "iceberg.md"),
        (
            {"warehouse": "s4://x"},
            InvalidCallError,
            "can't be opened: Unrecognized filesystem type in URI: s4",
            "iceberg.md",
        ),
    ],
)
def test_wrong_places_are_refused_with_a_hint(
    lake: Lake, more: dict[str, Any], kind: type[Exception], text: str, hint: str
) -> None:
    given = {"name": "lake.entries", "catalog": lake.catalog, "warehouse": lake.warehouse, **more}
    with pytest.raises(kind, match=text) as caught:
        iceberg.open_table(given.pop("name"), **given)
    assert hint in json.dumps(str(caught.value))
    assert "hidden" not in str(caught.value)


def test_catalogue_is_found_by_its_name_in_the_configuration(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", lake.catalog)
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__S3__REQUEST_TIMEOUT", "7")
    writer.add([batch_of(1, 0, 10)])
    table = iceberg.open_table("lake.entries", catalog="prod", warehouse=lake.warehouse, options={"s3.region": "eu"})
    assert lake.export(writer, table).end == Position(1, 9)
    assert {name: table.catalog.properties[name] for name in ("s3.region", "s3.request-timeout")} == {
        "s3.region": "eu",
        "s3.request-timeout": "7",
    }
