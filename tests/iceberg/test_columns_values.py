"""Decoded values in an exported table: columns by Avro, JSON and protobuf, and schemas that change."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2

from formats.entries import EntryBatch
from formats.pulsar.messages import BadEntry
from offloader import iceberg
from offloader.errors import CorruptError, InvalidCallError, UnsupportedError
from offloader.iceberg import upkeep
from offloader.iceberg.columns import Values
from offloader.read.typed_values import merged_type, typed_decoder
from offloader.read.values import MessageSchema, VersionedDecoders
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.iceberg.lake import Lake, named_files
from tests.read.test_values_avro import ALL, VALUE, encoded, record, version
from tests.support.schema_registry import schema_registry
from tests.support.streams import StreamWriter

pytestmark = pytest.mark.slow
OLD = record(("id", "int"), ("name", "string"))
NEW = record(("id", "long"), ("name", "string"), ("price", ["null", "double"]), ("at", record(("x", "int"), name="At")))
#: The type of ``id`` isn't one that a column changes to.
OTHER = record(("more", "int"), ("id", "string"))

#: With fields of every nested kind.
ALL_OF_NEW = record(
    ("id", "long"),
    ("name", "string"),
    ("tags", {"type": "array", "items": ["null", record(("x", "int"), name="Tag")]}),
    ("counts", {"type": "map", "values": ["null", "long"]}),
)
_FULL = {"name": "ä", "tags": [None, {"x": 1}], "counts": {"a": None, "b": 2}}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def writer(lake: Lake) -> StreamWriter:
    return lake.writer("shop/eu/persistent/orders")


def avro(schema: dict[str, Any]) -> MessageSchema:
    return MessageSchema("AVRO", json.dumps(schema))


def values_of(*versions: MessageSchema) -> Values:
    """One schema for all values, or one a version."""
    made = [typed_decoder(each, what="it") for each in versions]
    return VersionedDecoders({None: made[0]} if len(made) == 1 else dict(enumerate(made)))


def send(writer: StreamWriter, *entries: bytes) -> None:
    ledger_id = len(writer.uuids) + 1
    writer.add([EntryBatch.build(ledger_id, 0, list(entries))], closes=[ledger_id])


def export(lake: Lake, writer: StreamWriter, content: str = "messages", **more: Any) -> None:
    table = iceberg.open_table("lake.entries", catalog=lake.catalog, warehouse=lake.warehouse, content=content)
    iceberg.export(writer.store, writer.stream, table, **more)


def rows(lake: Lake) -> list[dict[str, Any]]:
    """As pyiceberg alone reads them."""
    places = ("ledger_id", "entry_id", "batch_index")
    found = lake.foreign_table().scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in places if name in row])


def decoded(lake: Lake) -> list[Any]:
    return [row["decoded"] for row in rows(lake)]


def test_avro_values_are_columns_of_their_types(lake: Lake, writer: StreamWriter) -> None:
    send(writer, single_entry(Sent(value=encoded(ALL, VALUE))), single_entry(Sent(null_value=True)))
    export(lake, writer, values=values_of(avro(ALL)))
    found, nothing = decoded(lake)
    expected: dict[str, Any] = dict(VALUE)
    assert found["counts"] == list(expected["counts"].items())
    for name in ("flag", "small", "big", "ratio", "exact", "raw", "text", "day", "price", "kind", "hash", "tags"):
        assert found[name] == expected[name], name
    assert nothing is None
    assert rows(lake)[0]["value"] == encoded(ALL, VALUE), "the bytes stay"
    relation = duckdb.connect().read_parquet(named_files(lake.foreign_table()), hive_partitioning=False)
    assert relation.filter("decoded.small = -5").project("decoded.day, decoded.price").fetchall() == [
        (expected["day"], expected["price"])
    ]


def test_json_values_are_columns_and_absent_fields_are_null(lake: Lake, writer: StreamWriter) -> None:
    schema = record(
        ("id", "long"),
        ("name", ["null", "string"]),
        ("ratio", "double"),
        ("raw", "bytes"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("tags", {"type": "array", "items": "string"}),
        ("counts", {"type": "map", "values": "int"}),
    )
    whole = {"id": 1, "name": "ä", "ratio": 2, "raw": "AP8=", "price": 1.25, "at": 5, "tags": ["x"], "counts": {"a": 1}}
    texts = [json.dumps(each).encode() for each in ({**whole, "further": [1]}, {"id": 2})]
    send(writer, batch_entry([Sent(value=each) for each in texts]))
    export(lake, writer, values=values_of(MessageSchema("JSON", json.dumps(schema))))
    kept = {**whole, "raw": b"\x00\xff", "price": Decimal("1.25"), "counts": [("a", 1)]}
    assert decoded(lake) == [kept, {**dict.fromkeys(kept), "id": 2}]


def protobuf() -> MessageSchema:
    """``shop.Order``, with a message of its own, an enum, a map, a list, and numbers without a sign."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="PEN", number=0)
    kind.value.add(name="INK", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="title", number=1, type=kinds.TYPE_STRING, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    order.field.add(name="size", number=2, type=kinds.TYPE_UINT64, label=1)
    order.field.add(name="kind", number=3, type=kinds.TYPE_ENUM, type_name=".shop.Kind", label=1)
    order.field.add(name="item", number=4, type=kinds.TYPE_MESSAGE, type_name=".shop.Item", label=1)
    order.field.add(name="tags", number=5, type=kinds.TYPE_STRING, label=3)
    order.field.add(name="counts", number=6, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=3)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_BOOL, label=1)
    data = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    told = {"fileDescriptorSet": data, "rootMessageTypeName": "shop.Order"}
    return MessageSchema("PROTOBUF_NATIVE", json.dumps(told))


def test_protobuf_values_are_columns_with_numbers_as_numbers(lake: Lake, writer: StreamWriter) -> None:
    full = b"\x08\x05\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\x01\x22\x03\x0a\x01x\x2a\x01a\x2a\x01b"
    send(writer, single_entry(Sent(value=full + b"\x32\x04\x08\x07\x10\x01")), single_entry(Sent(value=b"\x18\x09")))
    export(lake, writer, values=values_of(protobuf()))
    found = {"id": 5, "size": Decimal(2**64 - 1), "kind": "INK", "item": {"title": "x"}, "tags": ["a", "b"]}
    unset = {"id": 0, "size": Decimal(0), "kind": "9", "item": None, "tags": [], "counts": []}
    assert decoded(lake) == [{**found, "counts": [("7", True)]}, unset]


def test_pairs_and_primitive_values_have_columns(lake: Lake, writer: StreamWriter) -> None:
    pairs = MessageSchema(
        "KEY_VALUE",
        json.dumps({"key": "", "value": json.dumps(OLD)}),
        {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"},
    )
    value = encoded(OLD, {"id": 1, "name": "a"})
    send(writer, single_entry(Sent(value=value, key="k")), single_entry(Sent(null_value=True, key="gone")))
    export(lake, writer, values=values_of(pairs))
    assert decoded(lake) == [{"key": "k", "value": {"id": 1, "name": "a"}}, {"key": "gone", "value": None}]
    other = Lake(lake.folder / "other")
    numbers = other.writer("t/numbers")
    send(numbers, single_entry(Sent(value=(7).to_bytes(4, "big"))))
    export(other, numbers, values=values_of(MessageSchema("INT32")))
    assert decoded(other) == [7]


def test_entries_are_decoded_too_and_bad_ones_have_a_reason(lake: Lake, writer: StreamWriter) -> None:
    send(writer, encoded(OLD, {"id": 1, "name": "a"}), b"\x00")
    with pytest.raises(
        CorruptError, match=r"stream shop/eu/persistent/orders, 1:1: the value can't be decoded: .* Avro"
    ):
        export(lake, writer, "entries", values=values_of(avro(OLD)))
    assert lake.data_files() == []
    export(lake, writer, "entries", values=values_of(avro(OLD)), bad_messages=BadEntry.NULL)
    good, bad = rows(lake)
    assert (good["decoded"], good["error"]) == ({"id": 1, "name": "a"}, None)
    assert (bad["decoded"], bad["payload"], "the value does not match the Avro schema" in bad["error"]) == (
        None,
        b"\x00",
        True,
    )


def test_value_that_no_column_holds_does_not_fail_other_rows(lake: Lake, writer: StreamWriter) -> None:
    schema = record(("id", "long"))
    send(writer, *(single_entry(Sent(value=json.dumps({"id": each}).encode())) for each in (1, 2**70, "x", 1.5, True)))
    values = values_of(MessageSchema("JSON", json.dumps(schema)))
    with pytest.raises(CorruptError, match="the value can't be decoded"):
        export(lake, writer, values=values)
    export(lake, writer, values=values, bad_messages=BadEntry.NULL)
    assert decoded(lake) == [{"id": 1}, None, None, None, None]
    assert [row["error"] is None for row in rows(lake)] == [True, False, False, False, False]


def test_whole_number_beyond_doubles_is_a_bad_value(lake: Lake, writer: StreamWriter) -> None:
    texts = (json.dumps({"ratio": each}) for each in (2, 10**400))
    send(writer, *(single_entry(Sent(value=each.encode())) for each in texts))
    values = values_of(MessageSchema("JSON", json.dumps(record(("ratio", "double")))))
    export(lake, writer, values=values, bad_messages=BadEntry.NULL)
    assert decoded(lake) == [{"ratio": 2.0}, None]
    assert rows(lake)[1]["error"] == "the value can't be decoded: the value.ratio is too large for double"


def test_decimal_with_an_exponent_far_below_zero_is_a_bad_value(lake: Lake, writer: StreamWriter) -> None:
    schema = record(("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}))
    decoder = typed_decoder(MessageSchema("JSON", json.dumps(schema)), what="it")
    with pytest.raises(ValueError, match=r"the value\.price isn't a decimal with 2 digits after the point"):
        decoder.decode(b'{"price": "1e-999999999"}')  # before Arrow gets it, which crashes
    texts = (json.dumps({"price": each}) for each in ("1.5", "1.555", "1e999999999", "a"))
    send(writer, *(single_entry(Sent(value=each.encode())) for each in texts))
    values = values_of(MessageSchema("JSON", json.dumps(schema)))
    export(lake, writer, values=values, bad_messages=BadEntry.NULL)
    assert decoded(lake) == [{"price": Decimal("1.50")}, None, None, None]


def test_decimals_in_json_keep_all_their_digits(lake: Lake, writer: StreamWriter) -> None:
    schema = record(("price", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}))
    text = "12345678901234567890.12"
    send(writer, *(single_entry(Sent(value=f'{{"price": {each}}}'.encode())) for each in (text, f'"{text}"')))
    export(lake, writer, values=values_of(MessageSchema("JSON", json.dumps(schema))))
    assert decoded(lake) == [{"price": Decimal(text)}] * 2


# Schemas that change


def test_new_field_and_wider_type_are_added_to_the_table(lake: Lake, writer: StreamWriter) -> None:
    send(writer, single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"})), schema_version=version(0)))
    export(lake, writer, values=values_of(avro(OLD)))
    later = {"id": 2**40, "name": "b", "price": 0.5, "at": {"x": 3}}
    send(writer, single_entry(Sent(value=encoded(NEW, later)), schema_version=version(1)))
    send(writer, single_entry(Sent(value=encoded(OLD, {"id": 3, "name": "c"})), schema_version=version(0)))
    export(lake, writer, values=values_of(avro(OLD), avro(NEW)))
    none = {"price": None, "at": None}
    assert decoded(lake) == [{"id": 1, "name": "a", **none}, later, {"id": 3, "name": "c", **none}]
    export(lake, writer, values=values_of(avro(OLD)))
    assert len(lake.foreign_table().metadata.schemas) == 3, "empty, with OLD, with NEW: a narrower one changes nothing"


def test_files_are_joined_with_their_decoded_values_unless_their_columns_have_changed(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SMALL_FILES_MIN", 2)
    old, new = values_of(avro(OLD)), values_of(avro(OLD), avro(ALL_OF_NEW))
    for number, (schema, values) in enumerate([(OLD, old)] * 2 + [(ALL_OF_NEW, new)] * 3):
        value = encoded(schema, {**_FULL, "id": number})
        send(writer, single_entry(Sent(value=value), schema_version=version(int(schema is ALL_OF_NEW))))
        export(lake, writer, values=values)
    before = rows(lake)
    assert [row["decoded"]["id"] for row in before] == [0, 1, 2, 3, 4]
    assert before[4]["decoded"]["counts"] == [("a", None), ("b", 2)]
    [joined] = upkeep.join_files(lake.foreign_table(), writer.stream)
    assert (joined.files, joined.rows) == (3, 3)
    assert rows(lake) == before
    columns = ["decoded", "encryption_keys", "properties", "value"]
    files = [pq.read_table(path, columns=columns, partitioning=None) for path in named_files(lake.foreign_table())]
    [large] = [each for each in files if each.num_rows == 3]
    assert [each["properties"] for each in large.to_pylist()] == [[]] * 3
    assert large["encryption_keys"].null_count == 3, "null isn't an empty list"


@pytest.mark.parametrize("asked", [False, True])
def test_incompatible_schema_is_refused_by_name_and_changes_nothing(
    lake: Lake, writer: StreamWriter, asked: bool
) -> None:
    """One that is given before anything is read, one that the registry has when its message is met."""
    send(writer, single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"})), schema_version=version(0)))
    export(lake, writer, values=values_of(avro(OLD)))
    send(writer, single_entry(Sent(value=encoded(OTHER, {"id": "x", "more": 1})), schema_version=version(1)))
    before, known = lake.foreign_table().metadata_location, [avro(OLD), avro(OTHER)]
    registry: Values = VersionedDecoders({}, lambda number: typed_decoder(known[number or 0], what="it"))
    with pytest.raises(
        UnsupportedError, match=r"column decoded\.id has type int32, but the schema has string: no column type holds"
    ):
        export(lake, writer, values=registry if asked else values_of(*known))
    assert lake.foreign_table().metadata_location == before
    assert [Path(each) for each in named_files(lake.foreign_table())] == lake.data_files(), "no file is left over"


def test_schema_that_is_met_in_a_range_extends_the_table(lake: Lake, writer: StreamWriter) -> None:
    known, met = [avro(OLD), avro(NEW)], list[int | None]()

    def asked(number: int | None) -> Any:
        met.append(number)
        return typed_decoder(known[number or 0], what="it")

    later = {"id": 2, "name": "b", "price": None, "at": {"x": 3}}
    send(
        writer,
        single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"})), schema_version=version(0)),
        single_entry(Sent(value=encoded(NEW, later)), schema_version=version(1)),
    )
    export(lake, writer, values=VersionedDecoders({}, asked))
    assert met == [0, 1]
    assert decoded(lake) == [{"id": 1, "name": "a", "price": None, "at": None}, later]
    assert [Path(each) for each in named_files(lake.foreign_table())] == lake.data_files(), "no file is left over"


def test_table_with_decoded_values_is_not_exported_to_without_a_schema(lake: Lake, writer: StreamWriter) -> None:
    send(writer, single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"}))))
    export(lake, writer, values=values_of(avro(OLD)))
    with pytest.raises(InvalidCallError, match=r"table lake\.entries has decoded values, but no schema was given"):
        export(lake, writer)


@pytest.mark.parametrize(
    ("known", "new", "found"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.string())]), pa.struct({"a": "int32", "b": "string"})),
        (pa.int64(), pa.float64(), "c has type int64, but the schema has double"),
        (pa.string(), pa.binary(), "c has type string, but the schema has binary"),
        (pa.decimal128(9, 2), pa.decimal128(12, 3), r"c has type decimal128\(9, 2\)"),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.string()), r"c\{\} has type int32"),
        (pa.struct([("a", pa.int32())]), pa.int32(), r"c has type struct<a: int32>, but the schema has int32"),
    ],
)
def test_types_of_two_schemas_have_one_that_holds_both(known: pa.DataType, new: pa.DataType, found: Any) -> None:
    if isinstance(found, str):
        with pytest.raises(UnsupportedError, match=found):
            merged_type(known, new, "c")
    else:
        assert merged_type(known, new, "c") == found


def test_command_takes_schemas_of_files(
    lake: Lake, writer: StreamWriter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    day = record(
        ("day", {"type": "int", "logicalType": "date"}), ("at", {"type": "long", "logicalType": "timestamp-millis"})
    )
    moment = datetime(2026, 3, 1, 5, tzinfo=UTC)
    send(
        writer,
        single_entry(Sent(value=encoded(OLD, {"id": 1, "name": "a"})), schema_version=version(0)),
        single_entry(Sent(value=encoded(day, {"day": date(2026, 3, 1), "at": moment})), schema_version=version(1)),
    )
    (tmp_path / "old.avsc").write_text(json.dumps(OLD))
    (tmp_path / "new.json").write_text(json.dumps({"type": "AVRO", "data": json.dumps(day)}))
    offloader = Offloader(capsys)
    arguments = [
        "export",
        "iceberg",
        writer.stream,
        "--store",
        lake.store_url,
        "--table",
        "lake.entries",
        "--content",
        "messages",
    ]
    arguments += ["--catalog", lake.catalog, "--warehouse", lake.warehouse]
    done = offloader(*arguments, "--schema", f"0={tmp_path}/old.avsc", "--schema", f"1={tmp_path}/new.json")
    assert (done.code, done.err) == (0, "")
    assert decoded(lake) == [
        {"id": 1, "name": "a", "day": None, "at": None},
        {"id": None, "name": None, "day": date(2026, 3, 1), "at": moment},
    ]
    _, said, _ = offloader.refuses(*arguments, "--message-type", "a.B")
    assert said == "--message-type requires --schema"


def test_broker_gives_the_schemas_of_an_exported_topic_by_version(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lake.writer("shop/eu/persistent/orders-partition-1")
    versions = {0: OLD, 1: NEW}
    values = [(0, {"id": 1, "name": "a"}), (1, {"id": 2, "name": "b", "price": 1.5, "at": {"x": 3}})]
    entries = [
        single_entry(Sent(value=encoded(versions[number], value)), schema_version=version(number))
        for number, value in values
    ]
    send(writer, *entries)
    monkeypatch.setenv("OFFLOADER_STORE", lake.store_url)
    offloader = Offloader(capsys)
    arguments = ["export", "iceberg", "persistent://shop/eu/orders", "--table", "lake.entries", "--content", "messages"]
    arguments += ["--catalog", lake.catalog, "--warehouse", lake.warehouse]
    with schema_registry("shop/eu/orders", versions) as registry:
        done = offloader(*arguments, "--admin-url", registry.url)
        assert (done.code, done.err) == (0, "")
        assert decoded(lake) == [{"id": 1, "name": "a", "price": None, "at": None}, values[1][1]]
        send(writer, single_entry(Sent(value=b"?"), schema_version=version(2)))
        code, said, hint = offloader.refuses(*arguments, "--admin-url", registry.url)
    assert said.startswith("the broker does not have the schema of persistent://shop/eu/orders, version 2")
    assert (code, "--schema 2=FILE" in hint) == (3, True)
    assert len(decoded(lake)) == 2
    path = "/admin/v2/schemas/shop/eu/orders/schema/"
    assert registry.asked == [f"{path}{number}" for number in (0, 1, 2)]
