"""Exported tables as Iceberg's own Java library reads them: the same rows, also after evolution and compaction."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from services.iceberg_reader import FoundTable, read_table
from tests.iceberg.lake import COLUMNS, Lake, Row, sent
from tests.support.streams import random_batch

pytestmark = pytest.mark.java


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def read(lake: Lake, snapshot_id: int | None = None) -> FoundTable:
    return read_table(str(lake.folder / "catalog.db"), lake.warehouse, "lake", "entries", snapshot_id)


def rows_of(found: FoundTable) -> list[Row]:
    rows = [{**row, "payload": base64.b64decode(row["payload"])} for row in found.rows]
    return sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=lambda row: row[:3])


def test_java_finds_the_entries_that_were_sent_and_the_proof(lake: Lake) -> None:
    chance, writers = random.Random(6), [lake.writer(f"t/{name}") for name in ("a", "ü b")]
    for each in writers:
        each.add([random_batch(chance, 1, 0, 300, 200)], closes=[1])
        each.add([random_batch(chance, 2, 0, 50, 5000)], closes=[2])
        lake.export(each, range_bytes=1)
    found = read(lake)
    assert rows_of(found) == sent(*writers)
    facts = [each["summary"] for each in found.snapshots if each["summary"]["offloader.stream"] == "t/ü b"]
    assert [(each["offloader.after"], each["offloader.last"]) for each in facts] == [("", "1:299"), ("1:299", "2:49")]
    assert sum(int(each["offloader.rows"]) for each in facts) == len(writers[1].entries)
    ids = [each["id"] for each in found.snapshots]
    assert rows_of(read(lake, ids[0])) == [row for row in sent(writers[0]) if row[1] == 1], "a whole range"
