"""Avro values: which Arrow type a schema becomes, and decoding one value at a time with fastavro.

Owns what is refused of a schema. Must never take a value for decoded when bytes of it are left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa

from offloader.errors import InvalidCall, Unsupported, install_hint

__all__ = ["AvroDecoder", "arrow_type"]

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: Others are read as what they are stored as.
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL = "decimal"
#: Most digits that Spark's decimals have.
DIGITS_MAX = 38


def arrow_type(schema: Any) -> pa.DataType:
    """The Arrow type of a record's values.

    Args:
        schema: of a record, decoded from JSON.

    Raises:
        Unsupported: it isn't a record, refers to itself, or has a part that is no column: a union of several types, a
            record without fields, nothing but null.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Unsupported("the Avro schema isn't that of a record", hint="columns need names: wrap it in a record")
    return _type_of(schema, {}, "the record")


def _type_of(schema: Any, known: dict[str, pa.DataType | None], place: str) -> pa.DataType:
    if isinstance(schema, list):
        return _type_of(_only_one(schema, place), known, place)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        return _known(schema, known, place)
    kind = schema.get("type")
    logical = schema.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record" | "error":
            return _record(schema, known, place)
        case "enum":
            return _named(schema, known, pa.string())
        case "fixed" | "bytes" if logical == _DECIMAL:
            return _named(schema, known, _decimal(schema, place))
        case "fixed":
            return _named(schema, known, pa.binary())
        case "array":
            return pa.list_(_type_of(schema["items"], known, f"{place}[]"))
        case "map":
            return pa.map_(pa.string(), _type_of(schema["values"], known, f"{place}{{}}"))
        case _:
            return _type_of(kind, known, place)


def _record(schema: Mapping[str, Any], known: dict[str, pa.DataType | None], place: str) -> pa.DataType:
    name = _full_name(schema)
    known[name] = None  # until it is whole, whoever names it refers to itself
    fields = [
        pa.field(field["name"], _type_of(field["type"], known, f"{place}.{field['name']}"))
        for field in schema.get("fields", [])
    ]
    if not fields:
        raise Unsupported(f"the Avro schema has a record without fields at {place}", hint="leave that field out")
    known[name] = pa.struct(fields)
    return known[name]


def _only_one(schema: list[Any], place: str) -> Any:
    others = [each for each in schema if each != "null"]
    if len(others) != 1:
        raise Unsupported(
            f"the Avro schema has a union of {len(others)} types at {place}", hint="a column has one: null and another"
        )
    return others[0]


def _decimal(schema: Mapping[str, Any], place: str) -> pa.DataType:
    digits = schema.get("precision", 0)
    if not isinstance(digits, int) or not 1 <= digits <= DIGITS_MAX:
        raise Unsupported(f"the Avro schema has a decimal of {digits} digits at {place}", hint=f"1 to {DIGITS_MAX}")
    return pa.decimal128(digits, schema.get("scale", 0))


def _named(schema: Mapping[str, Any], known: dict[str, pa.DataType | None], found: pa.DataType) -> pa.DataType:
    if "name" in schema:
        known[_full_name(schema)] = found
    return found


def _known(name: Any, known: Mapping[str, pa.DataType | None], place: str) -> pa.DataType:
    if name not in known:
        raise Unsupported(f"the Avro schema names a type {name!r} at {place}, which is none or no column's")
    found = known[name]
    if found is None:
        raise Unsupported(f"the Avro schema's {name} refers to itself at {place}", hint="a column can't be endless")
    return found


def _full_name(schema: Mapping[str, Any]) -> str:
    """As fastavro's parsed schemas spell all names: with the namespace."""
    return str(schema.get("name", ""))


class AvroDecoder:
    """Decodes values by the schema they were written with, into the shape of one reader's schema.

    Args:
        reader: the schema that columns come from, as JSON.
        versions: of the writers: version -> schema as JSON; none: all values were written with ``reader``.

    Raises:
        InvalidCall: a schema isn't one.
        Unsupported: fastavro isn't installed, or ``arrow_type`` refuses the reader's.
    """

    def __init__(self, reader: str, versions: Mapping[int, str]) -> None:
        self._read, parse = _fastavro()
        self._reader = _parsed(reader, "the Avro schema", parse)
        self._writers = {
            version: _parsed(text, f"the Avro schema of version {version}", parse) for version, text in versions.items()
        }
        self.arrow_type = arrow_type(self._reader)

    def decode(self, value: bytes, version: bytes | None) -> Any:
        """The record as a dictionary.

        Args:
            value: as the message has it.
            version: as the message names it: 8 bytes, big-endian.

        Raises:
            ValueError: in words, what is wrong.
        """
        writer = self._reader
        if self._writers:
            number = int.from_bytes(version or b"", "big") if version else None
            found = None if number is None else self._writers.get(number)
            if found is None:
                known = ", ".join(map(str, sorted(self._writers)))
                raise ValueError(f"its schema version is {number}, and schemas were given for {known}")
            writer = found
        data = BytesIO(value)
        try:
            record = self._read(data, writer, self._reader if writer is not self._reader else None)
        except Exception as error:  # fastavro raises whatever the bytes lead it to
            raise ValueError(f"it isn't Avro of the schema: {type(error).__name__}: {error}") from error
        left = len(value) - data.tell()
        if left:
            raise ValueError(f"it isn't Avro of the schema: {left} of {len(value)} bytes are left over")
        return record


def _fastavro() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError as error:
        raise Unsupported("fastavro isn't installed", hint=install_hint("avro")) from error
    return schemaless_reader, parse_schema


def _parsed(text: str, what: str, parse: Callable[..., Any]) -> Any:
    """A schema, also out of what Pulsar's admin interface answers, whose ``data`` is the schema's text."""
    try:
        given = json.loads(text)
        if isinstance(given, dict) and isinstance(given.get("data"), str) and "fields" not in given:
            given = json.loads(given["data"])
        return parse(_without_unknown(given))
    except Exception as error:  # of JSON and of fastavro, which has no base for its own
        raise InvalidCall(f"{what} isn't one: {type(error).__name__}: {error}") from error


def _without_unknown(schema: Any) -> Any:
    """The schema without the logical types that no column has: their values are left as they are stored."""
    if isinstance(schema, list):
        return [_without_unknown(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = schema.get("logicalType") in {*_LOGICAL, _DECIMAL}
    return {
        name: value if name in ("default", "symbols", "aliases") else _without_unknown(value)
        for name, value in schema.items()
        if name != "logicalType" or known
    }
