"""Avro values without Spark: types, versions, and invalid values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import InvalidCallError, UnsupportedError
from offloader.read.values import AvroDecoder, VersionedDecoders, arrow_type


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


def encoded(schema: dict[str, Any], value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


ALL = record(
    ("flag", "boolean"),
    ("small", "int"),
    ("big", ["null", "long"]),
    ("ratio", "float"),
    ("exact", "double"),
    ("raw", "bytes"),
    ("text", {"type": "string", "avro.java.string": "String"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    ("hash", {"type": "fixed", "name": "Hash", "size": 4}),
    ("tags", {"type": "array", "items": "string"}),
    ("counts", {"type": "map", "values": "long"}),
    ("inner", ["null", record(("x", "long"), ("kind", "Kind"), name="Inner")]),
    ("again", "Inner"),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("clock", {"type": "int", "logicalType": "time-millis"}),
)
VALUE = {
    "flag": True,
    "small": -5,
    "big": None,
    "ratio": 0.5,
    "exact": 0.1,
    "raw": b"\x00\xff",
    "text": "größer",
    "day": date(2026, 3, 1),
    "at": datetime(2026, 3, 1, 12, 0, 0, 5000, tzinfo=UTC),
    "local": datetime(2026, 3, 1, 12, 0, 0, 7, tzinfo=UTC).replace(tzinfo=None),
    "price": Decimal("12.34"),
    "kind": "B",
    "hash": b"abcd",
    "tags": ["a", ""],
    "counts": {"n": 2**62},
    "inner": {"x": 1, "kind": "A"},
    "again": {"x": 2, "kind": "B"},
    "id": "a UUID stays text",
    "clock": 5,
}


def test_every_avro_type_maps_to_a_column_and_its_values_convert() -> None:
    plain = json.loads(
        json.dumps(ALL).replace(', "logicalType": "uuid"', "").replace(', "logicalType": "time-millis"', "")
    )
    decoder = AvroDecoder(json.dumps(ALL))
    found = decoder.decode(encoded(plain, VALUE))
    (back,) = pa.array([found], decoder.arrow_type).to_pylist()
    assert back == {**VALUE, "counts": [("n", 2**62)]}
    assert decoder.arrow_type.field("price").type == pa.decimal128(10, 2)
    assert decoder.arrow_type.field("at").type == pa.timestamp("us", tz="UTC")


def test_logical_type_of_another_stored_type_is_ignored() -> None:
    fields = {
        "millis": ("int", "timestamp-millis", 1000),
        "day": ("string", "date", "x"),
        "price": ("int", "decimal", 5),
    }
    of_schema = [(name, {"type": kind, "logicalType": logical}) for name, (kind, logical, _) in fields.items()]
    decoder = AvroDecoder(json.dumps(record(*of_schema)))
    assert [field.type for field in decoder.arrow_type] == [pa.int32(), pa.string(), pa.int32()]
    values = {name: value for name, (_, _, value) in fields.items()}
    found = decoder.decode(encoded(record(*((name, kind) for name, (kind, _, _) in fields.items())), values))
    assert pa.array([found], decoder.arrow_type).to_pylist() == [values]


OLD = record(("id", "long"), ("name", "string"))
NEW = {
    **record(("id", "long"), ("title", "string")),
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "title", "type": "string", "aliases": ["name"]},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
}


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_each_value_is_read_by_the_schema_it_was_written_with() -> None:
    decoders = VersionedDecoders(
        {0: AvroDecoder(json.dumps(OLD), json.dumps(NEW)), 3: AvroDecoder(json.dumps(NEW), json.dumps(NEW))}
    )
    old, new = encoded(OLD, {"id": 1, "name": "a"}), encoded(NEW, {"id": 2, "title": "b", "price": 1.5})
    assert decoders.of(version(0)).decode(old) == {"id": 1, "title": "a", "price": None}
    assert decoders.of(version(3)).decode(new) == {"id": 2, "title": "b", "price": 1.5}
    for number, said in ((version(2), "its schema version is 2"), (None, "its schema version is None")):
        with pytest.raises(ValueError, match=rf"{said}, but schemas were given only for 0, 3"):
            decoders.of(number)


def test_values_of_before_a_logical_type_was_added_or_left_out_are_read_as_their_columns() -> None:
    at = {"type": "long", "logicalType": "timestamp-millis"}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

    def schema(at: Any, price: Any) -> dict[str, Any]:
        step = record(("at", at), name="Step")
        steps = ("steps", {"type": "array", "items": ["null", step]})
        return record(("at", ["null", at]), steps, ("last", "Step"), ("prices", {"type": "map", "values": price}))

    when, number, digits = datetime(2026, 3, 1, tzinfo=UTC), 1_772_323_200_000, b"\x04\xd2"
    logical = {"at": when, "steps": [{"at": when}], "last": {"at": when}, "prices": {"pen": Decimal("12.34")}}
    stored = {"at": number, "steps": [{"at": number}], "last": {"at": number}, "prices": {"pen": digits}}
    plain, typed = schema("long", "bytes"), schema(at, price)
    for writer, reader, sent, found in ((plain, typed, stored, logical), (typed, plain, logical, stored)):
        assert AvroDecoder(json.dumps(writer), json.dumps(reader)).decode(encoded(writer, sent)) == found


@pytest.mark.parametrize(
    "kind", [{"type": "bytes"}, {"type": "fixed", "name": "Price", "size": 6}], ids=["bytes", "fixed"]
)
def test_decimal_with_more_digits_than_its_schema_says_is_not_rounded(kind: dict[str, Any]) -> None:
    def schema(digits: int) -> dict[str, Any]:
        price = {**kind, "logicalType": "decimal", "precision": digits, "scale": 2}
        return record(("price", price), ("again", "Price" if "name" in kind else price))

    sent = (123_456).to_bytes(6)
    value = encoded(
        record(("price", kind), ("again", "Price" if "name" in kind else kind)), dict.fromkeys(("price", "again"), sent)
    )
    narrow, wide = json.dumps(schema(4)), json.dumps(schema(12))
    for decoder in (AvroDecoder(narrow), AvroDecoder(narrow, wide)):
        assert set(decoder.decode(value).values()) == {Decimal("1234.56")}
    assert AvroDecoder(narrow).arrow_type.field("price").type == pa.decimal128(4, 2)


def test_schema_response_of_the_admin_interface_is_accepted() -> None:
    answer = {"version": 0, "type": "AVRO", "timestamp": 0, "data": json.dumps(OLD), "properties": {}}
    assert AvroDecoder(json.dumps(answer)).decode(encoded(OLD, {"id": 1, "name": "a"}))["name"] == "a"


@given(st.binary(max_size=60))
def test_any_bytes_decode_to_the_record_they_encode_or_fail(data: bytes) -> None:
    decoder = AvroDecoder(json.dumps(OLD))
    try:
        found = decoder.decode(data)
    except ValueError:
        return
    assert decoder.decode(encoded(OLD, found)) == found


@given(st.integers(0, 40), st.integers(1, 5))
def test_truncated_or_overlong_value_is_refused(cut: int, more: int) -> None:
    whole = encoded(OLD, {"id": 2**40, "name": "x" * 30})
    decoder = AvroDecoder(json.dumps(OLD))
    if cut < len(whole):
        with pytest.raises(ValueError, match="the value does not match the Avro schema"):
            decoder.decode(whole[:cut])
    with pytest.raises(ValueError, match=rf"{more} of {len(whole) + more} bytes are left over"):
        decoder.decode(whole + bytes(more))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("string", "is not a record"),
        (record(), "a record without fields at the record"),
        (record(("u", ["int", "string"])), "a union of 2 types at the record.u"),
        (record(("u", ["null"])), "a union of 0 types at the record.u"),
        (record(("n", "null")), "has a type 'null' at the record.n"),
        (record(("next", ["null", "Order"])), "refers to itself at the record.next"),
        (record(("a", {"type": "array", "items": record(name="Empty")})), r"without fields at the record.a\[\]"),
        (
            record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 50})),
            "a decimal of 50 digits at the record.d",
        ),
    ],
)
def test_schemas_that_no_column_has_are_refused(schema: Any, expected: str) -> None:
    with pytest.raises(UnsupportedError, match=expected):
        arrow_type(schema)


@pytest.mark.parametrize("text", ["", "{", "5", '{"type": "record"}', '{"type": "nope", "name": "x"}', "null"])
def test_invalid_schema_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        AvroDecoder(text)
    assert "\n" not in caught.value.message
