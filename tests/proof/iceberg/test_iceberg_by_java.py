"""Exported tables as Iceberg's own Java library reads them: the same rows, also after evolution and compaction."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest

from formats.entries import EntryBatch
from offloader.iceberg import upkeep
from offloader.iceberg.history import EXPIRED
from offloader.read.typed_values import typed_decoder
from offloader.read.values import MessageSchema, VersionedDecoders
from services.iceberg_reader import FoundTable, read_table
from tests.iceberg.lake import COLUMNS, Lake, Row, sent
from tests.iceberg.test_upkeep import expire_oldest
from tests.read.test_values_avro import encoded, record
from tests.support.streams import BASE_MS, random_batch

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


def test_java_reads_joined_files_decoded_values_and_what_expired_snapshots_said(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SMALL_FILES_MIN", 3)
    writer = lake.writer("t/a")
    older, newer = record(("id", "int")), record(("id", "long"), ("tags", {"type": "array", "items": "string"}))
    for ledger in range(1, 7):
        schema = older if ledger < 4 else newer
        payload = encoded(schema, {"id": ledger, "tags": ["x", "y"]} if ledger > 3 else {"id": ledger})
        writer.add([EntryBatch.build(ledger, 0, [payload], [BASE_MS])], closes=[ledger])
        values = VersionedDecoders({None: typed_decoder(MessageSchema("AVRO", json.dumps(schema)), what="it")})
        lake.export(writer, values=values)
    [joined] = upkeep.join_files(lake.table(), writer.stream)
    assert joined.files == 3
    assert expire_oldest(lake, 2).snapshots == 2
    found = read(lake)
    assert rows_of(found) == sent(writer)
    decoded = sorted((row["decoded"] for row in found.rows), key=lambda value: value["id"])
    assert decoded == [{"id": each, "tags": None if each < 4 else ["x", "y"]} for each in range(1, 7)]
    assert [each["operation"] for each in found.snapshots] == ["append"] * 4 + ["replace"] * 2
    facts = [each["summary"]["offloader.after"] for each in found.snapshots[:4]]
    assert facts == ["2:0", "3:0", "4:0", "5:0"]
    expired = json.loads(lake.foreign_table().properties[EXPIRED + "t/a"])
    assert (expired["offloader.last"], expired["offloader.rows"]) == ("2:0", "2")
    assert rows_of(read(lake, found.snapshots[0]["id"])) == sent(writer)[:3], "of a snapshot that is kept"
