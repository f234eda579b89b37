"""Upkeep of an exported table: files are joined and snapshots expire, and every row and the proof stay."""

from __future__ import annotations

import itertools
import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from offloader.errors import OutcomeUnknownError
from offloader.iceberg import upkeep
from offloader.iceberg.history import EXPIRED
from offloader.iceberg.upkeep import JOINED_FILES, join_files
from tests.cli.reading_verbs import Offloader
from tests.iceberg.lake import Lake, named_files, rows_by_pyiceberg, sent
from tests.iceberg.test_iceberg_export import (
    ended,
    history,
    order,
    require_proven,
    victims,
)
from tests.iceberg.test_upkeep import expire_oldest, files_in, grow, offload, trim
from tests.iceberg.test_upkeep import lake as lake
from tests.iceberg.test_upkeep import writer as writer
from tests.iceberg.victim import UPKEEP_POINTS
from tests.support.streams import StreamWriter

pytestmark = pytest.mark.slow


@pytest.mark.process
def test_every_entry_is_there_once_after_twenty_kills_of_exports_with_upkeep(lake: Lake, writer: StreamWriter) -> None:
    chance, kills, tried = random.Random(21), 0, 0
    with victims() as nursery:
        while kills < 20:
            tried += 1
            assert tried <= 60
            ledger = len(writer.uuids) + 1
            offload(writer, ledger)
            if ledger % 5 == 0:
                trim(writer, ledger - 3)
            point = list(UPKEEP_POINTS)[tried % len(UPKEEP_POINTS)]
            end = ended(
                nursery,
                order(lake, [writer], f"{'upkeep' if tried % 4 else 'evolve'}-{point}", str(chance.randint(1, 4))),
            )
            assert end in (0, -signal.SIGKILL)
            kills += end != 0
        assert ended(nursery, order(lake, [writer], "upkeep", "0")) == 0
    require_proven(lake, writer)
    table = lake.foreign_table()
    assert EXPIRED + writer.stream in table.properties
    assert any(JOINED_FILES in each.summary.additional_properties for each in history(table))
    assert len(table.metadata.schemas) > 3


@pytest.mark.process
def test_two_exporters_with_upkeep_at_once_keep_every_entry_once(lake: Lake) -> None:
    writers = [lake.writer(f"t/{name}") for name in ("a", "b")]
    for each, ledger in itertools.product(writers, range(1, 7)):
        offload(each, ledger)
    for each in writers:
        trim(each, 2)
    orders = [order(lake, each, "upkeep", "0") for each in (writers, writers[::-1])]
    with victims() as one, victims() as two, ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            assert list(threads.map(ended, (one, two), orders)) == [0, 0]
            for each in writers:
                ledger = len(each.uuids) + 1
                offload(each, ledger)
        assert ended(one, orders[0]) == 0
    for each in writers:
        each.entries[:] = [entry for entry in each.entries if entry.ledger_id > 2]
    require_proven(lake, *writers)


def test_small_files_of_a_day_become_one_with_the_same_rows(lake: Lake, writer: StreamWriter) -> None:
    other = lake.writer("t/other")
    grow(lake, writer, 9)
    grow(lake, other, 3)
    small = named_files(lake.foreign_table())
    [joined] = join_files(lake.table(), writer.stream)
    assert (joined.stream, joined.files, joined.rows) == (writer.stream, 9, 90)
    assert len(named_files(lake.foreign_table())) == 1 + 3
    assert set(small) <= {str(path) for path in lake.data_files()}, "earlier snapshots still have them"
    assert history(lake.foreign_table())[-1].summary["operation"].value == "replace"
    require_proven(lake, writer, other)
    assert join_files(lake.table(), writer.stream) == [], "nothing is small twice"
    grow(lake, writer, 1)
    require_proven(lake, writer, other)


def test_one_commit_joins_a_bounded_number_of_bytes(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(lake, writer, 9)
    monkeypatch.setattr(upkeep, "SMALL_FILES_MIN", 2)
    monkeypatch.setattr(upkeep, "JOINED_BYTES_MAX", 3 * max(each.stat().st_size for each in lake.data_files()))
    assert [each.files for each in join_files(lake.table(), writer.stream)] == [3, 3, 3]
    require_proven(lake, writer)


def test_files_with_deleted_rows_are_left_alone_and_another_column_does_not_matter(
    lake: Lake, writer: StreamWriter
) -> None:
    grow(lake, writer, 8)
    table = lake.table()
    [*_, task] = table.scan().plan_files()
    assert upkeep._may_be_joined(table, task, writer.stream)
    task.delete_files.add(task.file)
    assert not upkeep._may_be_joined(table, task, writer.stream)
    with table.update_schema() as update:
        update.add_column("note", StringType())
    grow(lake, writer, 9)
    [joined] = join_files(lake.table(), writer.stream)
    assert joined.files == 17
    require_proven(lake, writer)
    assert lake.foreign_table().scan().to_arrow()["note"].null_count == 170


def test_joining_that_comes_second_plans_again(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another program deletes meanwhile don't come back."""
    grow(lake, writer, 9)
    exchange, turns = upkeep._exchange, itertools.count()

    def overtaken(table: Table, old: Any, new: Any) -> None:
        if not next(turns):
            lake.table().delete("ledger_id = 3")
        exchange(table, old, new)

    monkeypatch.setattr(upkeep, "_exchange", overtaken)
    [joined] = join_files(lake.table(), writer.stream)
    assert joined.rows == 80
    assert rows_by_pyiceberg(lake.foreign_table()) == [row for row in sent(writer) if row[1] != 3]
    assert len(named_files(lake.foreign_table())) == 1


def test_answer_of_an_exchange_that_was_lost_is_named(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(lake, writer, 8)
    commit = SqlCatalog.commit_table

    def deaf(*arguments: Any) -> Any:
        commit(*arguments)
        raise OSError("the connection was cut")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", deaf)
        with pytest.raises(OutcomeUnknownError, match="the commit of joined files may have happened"):
            join_files(lake.table(), writer.stream)
    require_proven(lake, writer)


def test_snapshots_expire_and_the_proof_stays(lake: Lake, writer: StreamWriter) -> None:
    other = lake.writer("t/other")
    grow(lake, writer, 9)
    join_files(lake.table(), writer.stream)
    grow(lake, other, 1)
    before = files_in(lake)
    assert expire_oldest(lake, 5).snapshots == 5
    facts = json.loads(lake.foreign_table().properties[EXPIRED + writer.stream])
    names = ("first", "last", "after", "entries", "rows", "lost")
    assert [facts[f"offloader.{name}"] for name in names] == ["1:0", "5:9", "", "50", "50", "false"]
    require_proven(lake, writer, other)
    grow(lake, writer, 1)
    assert expire_oldest(lake, 2).snapshots == 2
    require_proven(lake, writer, other)
    assert before - files_in(lake), "metadata of those that expired"
    assert len(lake.data_files()) == 9 + 1 + 1 + 1, "the small files are named by what is kept"


def test_files_go_with_the_last_snapshot_that_names_them(lake: Lake, writer: StreamWriter) -> None:
    grow(lake, writer, 8)
    join_files(lake.table(), writer.stream)
    grow(lake, writer, 1)
    assert expire_oldest(lake, 7).snapshots == 7
    assert len(lake.data_files()) == 8 + 1 + 1, "the eighth range's snapshot has them too"
    done = expire_oldest(lake, 2)
    assert done.snapshots == 2, "the eighth range's, and that of the exchange"
    assert {str(path) for path in lake.data_files()} == set(named_files(lake.foreign_table()))
    assert done.files > 8
    require_proven(lake, writer)


def test_command_joins_and_expires(lake: Lake, writer: StreamWriter, capsys: pytest.CaptureFixture[str]) -> None:
    offloader = Offloader(capsys)
    place = ["--store", lake.store_url, "--table", "lake.entries", "--catalog", lake.catalog]
    arguments = ["export", "iceberg", writer.stream, *place, "--warehouse", lake.warehouse, "--range-size", "1"]
    code, said, _ = offloader.refuses(*arguments, "--dry-run")
    assert (code, said) == (2, "--dry-run requires --join-files or --expire-snapshots")
    assert not (lake.folder / "catalog.db").exists()
    for ledger in range(1, 9):
        offload(writer, ledger)
    assert offloader(*arguments).code == 0
    upkept = [*arguments, "--join-files", "--expire-snapshots", "0s"]
    size = sum(each.stat().st_size for each in lake.data_files())
    assert offloader(*upkept, "--dry-run").out.splitlines() == [
        f"{writer.stream}: would join 8 files of {size:,} bytes",
        "lake.entries: would expire 7 snapshots",
    ]
    assert offloader(*upkept).out.splitlines()[1] == f"{writer.stream}: joined 8 files of {size:,} bytes"
    assert len(named_files(lake.foreign_table())) == 1
    assert len(history(lake.foreign_table())) == 2, "the exchange, the expiry"
    require_proven(lake, writer)
    assert offloader(*upkept).out.splitlines()[1:] == ["lake.entries: expired 1 snapshot, deleted 1 files"]
    rows = offloader(*upkept, "--json").rows
    assert rows == [{"stream": writer.stream, "ranges": 0, "entries": 0, "rows": 0, "end": "8:9"}]
