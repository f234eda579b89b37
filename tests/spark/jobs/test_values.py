"""The job ``export`` with values decoded: columns, bad values by policy, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import EntryBatch
from offloader.errors import InvalidCallError, OffloaderError
from offloader.spark.jobs import AvroValues, JsonValues, export
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.streams import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

FIELDS = "id BIGINT, name STRING, tags ARRAY<STRING>"


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "export")


def sent(writer: StreamWriter, *entries: bytes) -> None:
    ledger_id = len(writer.uuids) + 1
    writer.add([EntryBatch.build(ledger_id, 0, list(entries))], closes=[ledger_id])


def as_json(value: Any) -> Sent:
    return Sent(value=json.dumps(value).encode())


@pytest.mark.parametrize(
    ("more", "kind", "expected"),
    [
        ({"values": JsonValues("id NOTHING")}, InvalidCallError, "is not a schema of Spark"),
        ({"values": JsonValues("")}, InvalidCallError, "is not a schema of Spark"),
        ({"values": AvroValues("{")}, InvalidCallError, "the Avro schema is invalid"),
        ({"values": JsonValues(FIELDS), "content": "entries"}, InvalidCallError, "only messages have values"),
        (
            {"values": JsonValues(FIELDS), "columns": "ledger_id,entry_id,batch_index,publish_time,value"},
            InvalidCallError,
            "export needs the columns error, schema_version, marker_type, chunk_uuid, encryption_keys too",
        ),
    ],
)
def test_schemas_that_make_no_sense_write_nothing(
    spark: SparkSession, writer: StreamWriter, to: str, more: dict[str, Any], kind: type[OffloaderError], expected: str
) -> None:
    sent(writer, single_entry(as_json({"id": 1})))
    columns = more.pop("columns", "")
    options = {"store": writer.store.url, **({"columns": columns} if columns else {})}
    with pytest.raises(kind, match=expected) as caught:
        export(spark, [writer.stream], options, to=to, **{"content": "messages", **more})
    assert "\n" not in caught.value.message
    assert not Path(to).exists()
