"""Upkeep of an exported table: files are joined and snapshots expire, and every row and the proof stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from formats.entries import Position
from formats.manifest import Retire, Truncate
from offloader.errors import StoreUnavailableError, UnsupportedError
from offloader.iceberg import files as data_files
from offloader.iceberg import upkeep
from offloader.iceberg.history import EXPIRED, ExportedRange, expired_ranges
from offloader.iceberg.upkeep import ExpiredSnapshots, expire, join_files
from tests.cli.reading_verbs import Offloader
from tests.iceberg.lake import Lake
from tests.iceberg.test_iceberg_export import (
    DAY_MS,
    commit_something,
    history,
)
from tests.support.streams import BASE_MS, StreamWriter, batch_of

pytestmark = pytest.mark.slow
#: After every snapshot of these tests.
LATER_MS = 10**14


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def writer(lake: Lake) -> StreamWriter:
    return lake.writer()


def grow(lake: Lake, writer: StreamWriter, count: int, day: int = 0) -> None:
    """As many ranges, each a file of that day and a commit."""
    first = len(writer.uuids) + 1
    for ledger in range(first, first + count):
        offload(writer, ledger, day)
    lake.export(writer, range_bytes=1)


def offload(writer: StreamWriter, ledger: int, day: int = 0) -> None:
    writer.add([batch_of(ledger, 0, 10, times=[BASE_MS + DAY_MS * day] * 10)], closes=[ledger])


def trim(writer: StreamWriter, ledgers: int) -> None:
    """As retention does: the stream begins after so many ledgers."""
    writer.log.commit([Truncate(Position(ledgers + 1, 0))])
    there = {each.uuid for each in writer.log.state.offloaded()}
    writer.log.commit([Retire(tuple(each for each in writer.uuids[:ledgers] if each in there))])


def files_in(lake: Lake) -> set[str]:
    return {str(path) for path in (lake.folder / "warehouse").rglob("*") if path.is_file()}


# Joining


def test_dry_run_joins_and_expires_nothing(lake: Lake, writer: StreamWriter) -> None:
    grow(lake, writer, 8)
    before, table = files_in(lake), lake.table()
    [joined] = join_files(table, writer.stream, dry_run=True)
    assert (joined.files, joined.rows, joined.bytes) == (8, 80, sum(each.stat().st_size for each in lake.data_files()))
    assert expire(table, before_ms=LATER_MS, dry_run=True) == ExpiredSnapshots(snapshots=7, files=0)
    assert files_in(lake) == before


def test_few_or_large_files_and_those_of_other_days_are_left_alone(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(lake, writer, 7)
    grow(lake, writer, 1, day=40)
    assert join_files(lake.table(), writer.stream) == []
    grow(lake, writer, 1)
    monkeypatch.setattr(upkeep, "SMALL_BYTES_MAX", 100)
    assert join_files(lake.table(), writer.stream) == []
    monkeypatch.undo()
    monkeypatch.setattr(data_files, "FILE_BYTES_MAX", 100)
    assert join_files(lake.table(), writer.stream) == [], "they are only small by compression"


def test_upkeep_that_always_comes_second_gives_up(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(lake, writer, 8)
    exchange, forget = upkeep._exchange, upkeep._forget

    def overtaken(table: Table, *more: Any) -> None:
        commit_something(lake.table(), {})
        (exchange if len(more) == 2 else forget)(table, *more)

    before = lake.data_files()
    monkeypatch.setattr(upkeep, "_exchange", overtaken)
    monkeypatch.setattr(upkeep, "_forget", overtaken)
    monkeypatch.setattr(upkeep, "UPKEEP_ATTEMPTS_MAX", 2)
    for work in (lambda: join_files(lake.table(), writer.stream), lambda: expire_all(lake)):
        with pytest.raises(StoreUnavailableError, match="2 commits failed because other programs committed first"):
            work()
    assert lake.data_files() == before


# Expiring


def expire_all(lake: Lake) -> ExpiredSnapshots:
    return expire(lake.table(), before_ms=LATER_MS)


def expire_oldest(lake: Lake, count: int) -> ExpiredSnapshots:
    table = lake.table()
    return expire(table, before_ms=history(table)[count].timestamp_ms)


def test_young_current_and_tagged_snapshots_are_kept(lake: Lake, writer: StreamWriter) -> None:
    grow(lake, writer, 4)
    table = lake.table()
    young = history(table)[1].timestamp_ms
    assert expire(table, before_ms=young, dry_run=True).snapshots == 1
    assert expire(table, before_ms=LATER_MS, dry_run=True).snapshots == 3
    table.manage_snapshots().create_tag(history(table)[2].snapshot_id, "audit").commit()
    assert expire(table, before_ms=LATER_MS, dry_run=True).snapshots == 2
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    with pytest.raises(UnsupportedError, match=r"gc\.enabled=false"):
        expire_all(lake)


def test_ranges_that_do_not_follow_each_other_are_not_told_as_one() -> None:
    one, two, three = (
        ExportedRange(
            stream="s",
            incarnation="i",
            manifest=number,
            first=Position(number, 0),
            last=Position(number, 9),
            after=Position(number - 1, 9) if number > 1 else None,
            entries=10,
            rows=20,
            lost=number == 2,
        )
        for number in (1, 2, 3)
    )
    both = expired_ranges({}, [one, two])
    facts = json.loads(both[EXPIRED + "s"])
    assert (facts["offloader.first"], facts["offloader.last"], facts["offloader.rows"]) == ("1:0", "2:9", "40")
    assert facts["offloader.lost"] == "true"
    assert json.loads(expired_ranges(both, [three])[EXPIRED + "s"])["offloader.entries"] == "30"
    assert json.loads(expired_ranges({}, [one, three])[EXPIRED + "s"])["offloader.after"] == "2:9", "not from the first"


# Kills, and several at once


def test_dry_run_for_a_subscriber_writes_nothing_into_the_store(
    lake: Lake, writer: StreamWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    offload(writer, 1)
    place = ["--store", lake.store_url, "--table", "lake.entries", "--catalog", lake.catalog]
    arguments = ["export", "iceberg", writer.stream, *place, "--warehouse", lake.warehouse, "--subscriber", "lake"]
    assert Offloader(capsys)(*arguments).code == 0

    def written() -> dict[Path, int]:
        return {each: each.stat().st_mtime_ns for each in (lake.folder / "store").rglob("*")}

    before = written()
    assert Offloader(capsys)(*arguments, "--join-files", "--dry-run").code == 0
    assert written() == before
