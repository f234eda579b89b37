"""The job ``export`` with values decoded: columns, bad values by policy, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloader.errors import CorruptError, ErrorKind, OffloaderError
from offloader.spark.jobs import AvroValues, JsonValues, export
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, batch_entry, entry_of, metadata_of, single_entry
from tests.read.test_values_avro import NEW, OLD, encoded, version
from tests.support.streams import BASE_MS, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.jobs.test_values import FIELDS, as_json, sent
from tests.spark.jobs.test_values import to as to
from tests.spark.jobs.test_values import writer as writer

pytestmark = pytest.mark.java


#: Not a message at all, under a right checksum.
GARBAGE = entry_of(metadata_of(compression=3, uncompressed_size=300, batch=3, publish_time=BASE_MS), b"garbage")


def run(spark: SparkSession, writer: StreamWriter, to: str, **more: Any) -> tuple[int, int]:
    [done] = export(spark, [writer.stream], {"store": writer.store.url}, to=to, content="messages", **more)
    return sum(each.rows for each in done.ranges), sum(each.bad_rows for each in done.ranges)


def rows(spark: SparkSession, folder: str) -> list[Any]:
    return spark.read.parquet(folder).orderBy("ledger_id", "entry_id", "batch_index").collect()


def test_json_becomes_columns_and_absent_fields_are_null(spark: SparkSession, writer: StreamWriter, to: str) -> None:
    whole = {"id": 1, "name": "ä", "tags": ["x"], "more": {"ignored": True}}
    sent(writer, batch_entry([as_json(whole), as_json({"id": 2})]), single_entry(Sent(null_value=True)))
    assert run(spark, writer, to, values=JsonValues(FIELDS)) == (3, 0)
    found = rows(spark, f"{to}/messages")
    assert [row.decoded and row.decoded.asDict() for row in found] == [
        {"id": 1, "name": "ä", "tags": ["x"]},
        {"id": 2, "name": None, "tags": None},
        None,
    ]
    assert json.loads(bytes(found[0].value)) == whole, "the bytes stay"
    assert [row.error for row in found] == [None] * 3


BAD_JSON = [b"", b"{", b"not JSON", b'{"id": "one"}', b"[1, 2]", b'{"name": "\xff"}', b"5"]


def test_invalid_json_values_fail_the_run_or_go_to_dead_letters(
    spark: SparkSession, writer: StreamWriter, to: str
) -> None:
    good = [as_json({"id": number}) for number in range(3)]
    sent(writer, *(single_entry(each) for each in good))
    sent(writer, batch_entry([good[0], *(Sent(value=each) for each in BAD_JSON)]), GARBAGE)
    one_each = {"range_bytes": 1, "values": JsonValues(FIELDS)}
    with pytest.raises(OffloaderError, match="entry 2:1"):
        run(spark, writer, to, **one_each)  # not even a message: as without a schema
    (first,) = Path(to, "_export", "messages").rglob("*.json")
    assert json.loads(first.read_text())["rows"] == 3
    assert run(spark, writer, to, dead_letter=True, **one_each) == (1, len(BAD_JSON) + 3)
    aside = rows(spark, f"{to}/bad/messages")
    assert [bytes(row.value) for row in aside if row.value is not None] == BAD_JSON
    assert {row.error for row in aside if row.value is not None} == {"the value isn't JSON of the schema"}
    assert [row.decoded.id for row in rows(spark, f"{to}/messages")] == [0, 1, 2, 0]
    sent(writer, single_entry(good[0]), batch_entry([good[0], Sent(value=b"{"), Sent(value=b"[")]))
    with pytest.raises(CorruptError) as caught:
        run(spark, writer, to, **one_each)
    assert caught.value.message == (
        "stream shop/orders, range 3, 3:0..3:1: 2 messages can't be decoded, the first at 3:1, message 1: the value "
        "isn't JSON of the schema; nothing was recorded"
    )
    assert "--dead-letter" in caught.value.hint


def test_avro_is_read_by_the_version_each_message_names(spark: SparkSession, writer: StreamWriter, to: str) -> None:
    values = AvroValues(json.dumps(NEW), ((0, json.dumps(OLD)), (1, json.dumps(NEW))))
    old, new = encoded(OLD, {"id": 1, "name": "a"}), encoded(NEW, {"id": 2, "title": "b", "price": 1.5})
    entries = [
        single_entry(Sent(value=old), schema_version=version(0)),
        batch_entry([Sent(value=new), Sent(value=new[:-1])], schema_version=version(1)),
        single_entry(Sent(value=new), schema_version=version(9)),
    ]
    sent(writer, *entries)
    with pytest.raises(
        CorruptError,
        match=r"2 messages can't be decoded, the first at 1:1, message 1: .*does not match the Avro schema",
    ):
        run(spark, writer, to, values=values)
    assert run(spark, writer, to, values=values, dead_letter=True) == (2, 2)
    assert [row.decoded.asDict() for row in rows(spark, f"{to}/messages")] == [
        {"id": 1, "title": "a", "price": None},
        {"id": 2, "title": "b", "price": 1.5},
    ]
    bad = rows(spark, f"{to}/bad/messages")
    assert "the value does not match the Avro schema" in bad[0].error
    assert "its schema version is 9, but schemas were given only for 0, 1" in bad[1].error


def test_command_exports_avro_and_json_values(
    spark: SparkSession,
    writer: StreamWriter,
    to: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    sent(writer, single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"})), schema_version=version(0)))
    (tmp_path / "new.avsc").write_text(json.dumps(NEW))
    (tmp_path / "old.avsc").write_text(json.dumps(OLD))
    common = ("spark", "export", writer.stream, "--dest", to, "--content", "messages")
    offloader = Offloader(capsys)
    done = offloader(*common, "--avro-values", f"{tmp_path}/new.avsc", "--avro-version", f"0={tmp_path}/old.avsc")
    assert (done.code, done.err) == (0, "")
    assert [row.decoded.title for row in rows(spark, f"{to}/messages")] == ["a"]
    sent(writer, single_entry(as_json({"id": 7})))
    assert offloader(*common, "--json-values", "id BIGINT").code == 0
    assert [row.decoded.id for row in rows(spark, f"{to}/messages/stream=shop%2Forders/range=00000002")] == [7]
    for wrong, expected in (
        (["--json-values", "id INT", "--avro-values", "x"], "--json-values and --avro-values exclude each other"),
        (["--avro-version", "0=x"], "--avro-version requires --avro-values"),
        (["--avro-values", f"{tmp_path}/new.avsc", "--avro-version", "x"], "--avro-version 'x' isn't N=FILE"),
        (["--avro-values", f"{tmp_path}/nowhere"], "nowhere can't be read"),
    ):
        code, line, _ = offloader.refuses(*common, *wrong)
        assert code == ErrorKind.INVALID_REQUEST.value
        assert expected in line
