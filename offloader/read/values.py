"""Decode message values by their schema: Avro, JSON, protobuf, Pulsar's primitive types, and pairs of these."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from io import BytesIO
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from offloader.errors import InvalidCallError, UnsupportedError, install_hint

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: Logical type -> the type that stores it, and its column type. Others are read as their stored type.
_LOGICAL: dict[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "timestamp-millis": ("long", pa.timestamp("us", tz="UTC")),
    "timestamp-micros": ("long", pa.timestamp("us", tz="UTC")),
    "local-timestamp-millis": ("long", pa.timestamp("us")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
}
_DECIMAL = "decimal"
#: Maximum precision of Spark's decimals.
DIGITS_MAX = 38


def arrow_type(schema: Any) -> pa.DataType:
    """The Arrow type of a record's values, from its schema decoded from JSON.

    Raises:
        UnsupportedError: not a record, recursive, or with a part that can't be a column: a union of several types, a
            record without fields, only null.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UnsupportedError("the Avro schema is not a record", hint="columns need names: wrap it in a record")
    return _type_of(schema, {}, "the record")


def _type_of(schema: Any, known: dict[str, pa.DataType | None], place: str) -> pa.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise UnsupportedError(
                f"the Avro schema has a union of {len(others)} types at {place}",
                hint="a column has one type: use a union of null and one other type",
            )
        return _type_of(others[0], known, place)
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _known(schema, known, place)
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical][1]
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
    name = str(schema.get("name", ""))  # with namespace, as in fastavro's parsed schemas
    known[name] = None  # a reference before its completion is recursive
    fields = [
        pa.field(field["name"], _type_of(field["type"], known, f"{place}.{field['name']}"))
        for field in schema.get("fields", [])
    ]
    if not fields:
        raise UnsupportedError(f"the Avro schema has a record without fields at {place}", hint="leave that field out")
    return _named(schema, known, pa.struct(fields))


def _decimal(schema: Mapping[str, Any], place: str) -> pa.DataType:
    digits = schema.get("precision", 0)
    if not isinstance(digits, int) or not 1 <= digits <= DIGITS_MAX:
        raise UnsupportedError(
            f"the Avro schema has a decimal of {digits} digits at {place}", hint=f"use 1 to {DIGITS_MAX} digits"
        )
    return pa.decimal128(digits, schema.get("scale", 0))


def _named(schema: Mapping[str, Any], known: dict[str, pa.DataType | None], found: pa.DataType) -> pa.DataType:
    if "name" in schema:
        known[str(schema["name"])] = found
    return found


def _known(name: Any, known: Mapping[str, pa.DataType | None], place: str) -> pa.DataType:
    if name not in known:
        raise UnsupportedError(
            f"the Avro schema has a type {name!r} at {place}, which is unknown or has no column type"
        )
    if (found := known[name]) is None:
        raise UnsupportedError(
            f"the Avro schema's {name} refers to itself at {place}", hint="a column can't have a recursive type"
        )
    return found


class AvroDecoder:
    """Decodes values that were written with one schema.

    Args:
        writer: the schema of the values, as JSON.
        reader: the schema of the columns; default: the same one.
        what: the name of the writer's schema in errors.

    Raises:
        InvalidCallError: an invalid schema.
        UnsupportedError: fastavro isn't installed.
    """

    def __init__(self, writer: str, reader: str | None = None, *, what: str = "the Avro schema") -> None:
        try:
            from fastavro import parse_schema, schemaless_reader
        except ImportError as error:
            raise UnsupportedError("fastavro isn't installed", hint=install_hint("avro")) from error
        self._read = schemaless_reader
        self._reader = None if reader is None else _parsed(reader, "the Avro schema", parse_schema)
        self._writer = _parsed(writer, what, parse_schema, reader)
        self._unrounded = _unrounded(self._writer)

    @cached_property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the records. Raises ``UnsupportedError``: as the function ``arrow_type``."""
        return arrow_type(self._writer if self._reader is None else self._reader)

    def decode(self, value: bytes) -> Any:
        """The record in a message's value, as a dictionary. Raises ``ValueError`` with the reason."""
        data = BytesIO(value)
        try:
            record = self._read(data, self._unrounded, self._reader)
        except Exception as error:  # damaged bytes make fastavro raise any error
            raise ValueError(f"the value does not match the Avro schema: {type(error).__name__}: {error}") from error
        if left := len(value) - data.tell():
            raise ValueError(f"the value does not match the Avro schema: {left} of {len(value)} bytes are left over")
        return record


def _parsed(text: str, what: str, parse: Callable[..., Any], reader: str | None = None) -> Any:
    """Parse a schema; if a reader's schema is given, with the logical types of the reader's."""
    try:
        schema = _schema_in(text)
        return parse(schema if reader is None else _with_logical_types(schema, _schema_in(reader), {}))
    except Exception as error:  # errors of JSON and fastavro have no common base
        raise InvalidCallError(f"{what} is invalid: {type(error).__name__}: {error}") from error


def _schema_in(text: str) -> Any:
    """A schema, or the schema in ``data`` of a response of Pulsar's admin interface."""
    given = json.loads(text)
    if isinstance(given, dict) and isinstance(given.get("data"), str) and "fields" not in given:
        given = json.loads(given["data"])
    return _without_unknown(given)


def _unrounded(schema: Any) -> Any:
    """The parsed schema, with enough decimal digits to avoid rounding.

    fastavro keeps the digits of the schema, and writers may exceed them."""
    if isinstance(schema, list):
        return [_unrounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    digits = {"precision": 2 * DIGITS_MAX} if schema.get("logicalType") == _DECIMAL else {}
    return {name: value if name == "default" else _unrounded(value) for name, value in schema.items()} | digits


def _without_unknown(schema: Any) -> Any:
    """The schema without logical types that are unsupported or of another stored type: values keep the stored type."""
    if isinstance(schema, list):
        return [_without_unknown(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    logical, kind = schema.get("logicalType"), schema.get("type")
    known = kind in ("bytes", "fixed") if logical == _DECIMAL else logical in _LOGICAL and _LOGICAL[logical][0] == kind
    return {
        name: value if name in ("default", "symbols", "aliases") else _without_unknown(value)
        for name, value in schema.items()
        if name != "logicalType" or known
    }


_LOGICAL_FACTS = ("logicalType", "precision", "scale")


def _with_logical_types(writer: Any, reader: Any, named: dict[str, Any]) -> Any:
    """The writer's schema with the reader's logical types, where the stored types are equal and only one is logical.

    fastavro converts by the writer's schema, and the columns have the reader's types.

    ``named``: the reader's named types.
    """
    if isinstance(writer, list):
        return [_with_logical_types(each, reader, named) for each in writer]
    if isinstance(reader, list):
        reader = next((each for each in reader if each != "null"), "null")
    if isinstance(reader, str):
        reader = named.get(reader.rpartition(".")[2], {"type": reader})
    if "name" in reader:
        named[reader["name"].rpartition(".")[2]] = reader
    own: dict[str, Any] = {"type": writer} if isinstance(writer, str) else writer
    match kind := own["type"]:
        case _ if kind != reader["type"]:
            return writer
        case "record":
            theirs = {name: each for each in reader["fields"] for name in (each["name"], *each.get("aliases", ()))}
            fields = [
                {**each, "type": _with_logical_types(each["type"], theirs[each["name"]]["type"], named)}
                if each["name"] in theirs
                else each
                for each in own["fields"]
            ]
            return {**own, "fields": fields}
        case "array" | "map":
            part = "items" if kind == "array" else "values"
            return {**own, part: _with_logical_types(own[part], reader[part], named)}
    if ("logicalType" in own) == ("logicalType" in reader):
        return writer
    plain = {name: value for name, value in own.items() if name not in _LOGICAL_FACTS}
    return plain | {name: reader[name] for name in _LOGICAL_FACTS if name in reader}


class ValueDecoder(Protocol):
    """Decodes values of one schema."""

    def decode(self, value: bytes) -> Any:
        """Decode a value. Raises ``ValueError`` with the reason."""


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A schema of Pulsar's schema registry.

    Attributes:
        kind: ``AVRO``, ``JSON``, ``PROTOBUF_NATIVE``, ``KEY_VALUE``, ``STRING``, ...
        data: its definition, empty for primitive types.
        properties: of ``KEY_VALUE``: types of key and value, and where the key is stored.
    """

    kind: str
    data: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def schema_of(document: bytes, *, what: str, message_type: str = "") -> MessageSchema:
    """The schema in a file, or in a response of Pulsar's admin interface.

    Args:
        document: an Avro schema as JSON; ``{"type": "AVRO", "data": ...}`` from Pulsar's admin interface; or a set of
            descriptors, written by ``protoc --descriptor_set_out``.
        what: its name in errors.
        message_type: of a set of descriptors: the message's full name.

    Raises:
        InvalidCallError: none of these formats, or a set of descriptors without ``message_type``.
    """
    try:
        given = json.loads(document)
    except (ValueError, RecursionError):
        return _descriptors(document, what, message_type)
    if isinstance(given, dict) and isinstance(given.get("data"), str) and "fields" not in given:
        properties = given.get("properties")
        known = properties if isinstance(properties, dict) else {}
        return MessageSchema(str(given.get("type", "AVRO")).upper(), given["data"], known)
    return MessageSchema("AVRO", json.dumps(given))


def _descriptors(document: bytes, what: str, message_type: str) -> MessageSchema:
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(document)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    if not found.file:
        raise InvalidCallError(
            f"{what} is not a schema: neither JSON nor a set of protobuf descriptors",
            hint="give an Avro schema, the output of `pulsar-admin schemas get`, or the file that protoc "
            "--descriptor_set_out writes",
        )
    if not message_type:
        names = [f"{file.package}.{each.name}".lstrip(".") for file in found.file for each in file.message_type]
        raise InvalidCallError(
            f"{what} is a set of protobuf descriptors, but the message type of the values is missing",
            hint=f"give --message-type, one of {', '.join(names[:_NAMES_SHOWN_MAX])}",
        )
    told = {
        "fileDescriptorSet": base64.b64encode(document).decode(),
        "rootMessageTypeName": message_type,
    }
    return MessageSchema("PROTOBUF_NATIVE", json.dumps(told))


#: Number of message names in a hint.
_NAMES_SHOWN_MAX = 5


def value_decoder(schema: MessageSchema, *, what: str) -> ValueDecoder:
    """The decoder of one schema.

    Raises:
        InvalidCallError: its definition is invalid.
        UnsupportedError: the schema's kind has no decoder, or fastavro isn't installed.
    """
    if schema.kind in _UNPACKED:
        return _Primitive(schema.kind, *_UNPACKED[schema.kind])
    match schema.kind:
        case "KEY_VALUE":
            key, value = (value_decoder(each, what=f"{what} {name}") for name, each in key_value_parts(schema, what))
            return KeyValueDecoder(key, value, is_separated=schema.properties.get("kv.encoding.type") == "SEPARATED")
        case "AVRO":
            return AvroDecoder(schema.data)
        case "JSON":
            return JsonDecoder()
        case "PROTOBUF_NATIVE":
            return ProtobufDecoder(schema.data, what)
        case "PROTOBUF":
            hint = "give the descriptors that protoc --descriptor_set_out writes, and --message-type"
        case _:
            hint = "without a schema, the values are printed undecoded"
    raise UnsupportedError(f"{what} has type {schema.kind}, which can't be decoded", hint=hint)


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decodes JSON; ``parse_float`` converts the text of a number with a fraction or an exponent."""

    parse_float: Callable[[str], Any] = float

    def decode(self, value: bytes) -> Any:
        """The value in JSON's types. Raises ``ValueError``."""
        try:
            return json.loads(value, parse_float=self.parse_float)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the value isn't JSON: {error}") from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 10**9


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _day(days: int) -> date:
    return _EPOCH.date() + timedelta(days=days)


def _time_of_day(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, _NANOS)
    if not 0 <= seconds < 86400:
        raise ValueError(f"a day doesn't have {seconds} seconds")
    return f"{(_EPOCH + timedelta(seconds=seconds)).time()}{_fraction(fraction)}"


def _instant(seconds: int, nanoseconds: int) -> str:
    return f"{(_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}{_fraction(nanoseconds)}+00:00"


def _fraction(nanoseconds: int) -> str:
    """Nanoseconds as digits after a dot; Python's times don't have nanoseconds."""
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""


def as_it_is(value: Any) -> Any:
    return value


#: Pulsar's primitive types, as its Java client writes them: format of ``struct``, and the conversion of the unpacked
#: value. "" is UTF-8 text; "s" are bytes.
_UNPACKED: dict[str, tuple[str, Callable[..., Any]]] = {
    "STRING": ("", as_it_is),
    "BYTES": ("s", as_it_is),
    "BOOLEAN": (">?", as_it_is),
    "INT8": (">b", as_it_is),
    "INT16": (">h", as_it_is),
    "INT32": (">i", as_it_is),
    "INT64": (">q", as_it_is),
    "FLOAT": (">f", as_it_is),
    "DOUBLE": (">d", as_it_is),
    "DATE": (">q", _moment),
    "TIMESTAMP": (">q", _moment),
    "TIME": (">q", lambda milliseconds: _time_of_day(milliseconds * 1_000_000)),
    "INSTANT": (">qi", _instant),
    "LOCAL_DATE": (">q", _day),
    "LOCAL_TIME": (">q", _time_of_day),
    "LOCAL_DATE_TIME": (">qq", lambda days, nanoseconds: f"{_day(days)}T{_time_of_day(nanoseconds)}"),
}


@dataclass(frozen=True, slots=True)
class _Primitive:
    kind: str
    form: str
    value_of: Callable[..., Any]

    def decode(self, value: bytes) -> Any:
        try:
            if self.form == "s":
                return value
            return self.value_of(*struct.unpack(self.form, value)) if self.form else value.decode()
        except (struct.error, ValueError, OverflowError) as error:
            raise ValueError(f"the value isn't {self.kind}: {error}") from error


@dataclass(frozen=True, slots=True)
class KeyValueDecoder:
    """Pairs of a key and a value, each with its own schema.

    Attributes:
        is_separated: the key is the message's key; otherwise both are in the value, each with a length prefix.
    """

    key: ValueDecoder
    value: ValueDecoder
    is_separated: bool

    def decode(self, value: bytes | None, key: bytes | None = None) -> Any:
        """``{"key": ..., "value": ...}``; ``None`` is a part that is null. Raises ``ValueError``.

        Args:
            key: the message's.
        """
        if not self.is_separated:
            if value is None:
                return None
            key, value = _split_pair(value)
        parts = {"key": (self.key, key), "value": (self.value, value)}
        found: dict[str, Any] = {}
        for name, (decoder, data) in parts.items():
            try:
                found[name] = None if data is None else decoder.decode(data)
            except ValueError as error:
                raise ValueError(f"the {name} of the pair: {error}") from error
        return found


def _split_pair(data: bytes) -> tuple[bytes | None, bytes | None]:
    parts: list[bytes | None] = []
    at = 0
    for _ in range(2):
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if at > len(data) or length < -1 or at + length > len(data):
            raise ValueError(f"the value isn't a pair of key and value: it ends at byte {len(data)}")
        parts.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    if at < len(data):
        raise ValueError(f"the value isn't a pair of key and value: {len(data) - at} bytes are left over")
    return parts[0], parts[1]


def key_value_parts(schema: MessageSchema, what: str) -> list[tuple[str, MessageSchema]]:
    """The schemas of ``key`` and ``value`` of a pair. Raises ``InvalidCallError`` if it is not a schema of pairs."""
    try:
        parts = json.loads(schema.data)
        kinds = {name: schema.properties[f"{name}.schema.type"] for name in ("key", "value")}
        texts = {name: each if isinstance(each := parts[name], str) else json.dumps(each) for name in kinds}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidCallError(
            f"{what} isn't a schema of pairs: {type(error).__name__}: {error}",
            hint='give the response of the admin interface, with its "properties"',
        ) from error
    return [(name, MessageSchema(kinds[name], texts[name])) for name in kinds]


class ProtobufDecoder:
    """Decodes values of one protobuf message type, by its descriptors.

    Raises ``InvalidCallError``: invalid descriptors, or descriptors without that type.
    """

    def __init__(self, data: str, what: str) -> None:
        try:
            told = json.loads(data)
            files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(told["fileDescriptorSet"]))
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
            self._name = told["rootMessageTypeName"]
            #: Class of the message type.
            self.descriptor: Any = pool.FindMessageTypeByName(self._name)
            self._type = message_factory.GetMessageClass(self.descriptor)
        except KeyError as error:
            raise InvalidCallError(
                f"{what} has no protobuf message {error}", hint="give --message-type PACKAGE.MESSAGE"
            ) from error
        except (TypeError, ValueError, DecodeError) as error:
            raise InvalidCallError(f"{what} is not a protobuf schema: {error}") from error
        self._pool = pool

    def parsed(self, value: bytes) -> Any:
        """The message in a value. Raises ``ValueError``."""
        try:
            return self._type.FromString(value)
        except DecodeError as error:
            raise ValueError(f"the value isn't protobuf {self._name}: {error}") from error

    def decode(self, value: bytes) -> Any:
        """The message in JSON's types. Raises ``ValueError``."""
        found = self.parsed(value)
        try:
            return json_format.MessageToDict(found, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (json_format.Error, TypeError) as error:  # a time out of range; an Any of an unknown type
            raise ValueError(f"the value has no JSON form: {error}") from error


#: The format of a schema's number in Pulsar's registry; messages of other registries may have another format.
_VERSION_BYTES = 8

_Decoder = TypeVar("_Decoder")


class VersionedDecoders(Generic[_Decoder]):
    """The decoder of each version of a schema.

    Args:
        given: decoders by version; key ``None``: for every version without a separate decoder.
        ask: returns the decoder of an unknown version; ``None``: unknown versions are errors.
    """

    def __init__(
        self, given: Mapping[int | None, _Decoder], ask: Callable[[int | None], _Decoder] | None = None
    ) -> None:
        self._given, self._ask = dict(given), ask
        #: Separate: the answer for messages without a version isn't the decoder of all other versions.
        self._asked: dict[int | None, _Decoder] = {}

    @property
    def known(self) -> list[_Decoder]:
        """The given decoders, and those requested so far."""
        return [*self._given.values(), *self._asked.values()]

    def of(self, version: bytes | None) -> _Decoder:
        """The decoder of a message's version. Raises ``ValueError`` if it is unknown."""
        number = int.from_bytes(version, "big") if version and len(version) == _VERSION_BYTES else None
        decoder = self._given.get(number) or self._given.get(None) or self._asked.get(number)
        if decoder is None and self._ask is not None:
            decoder = self._asked[number] = self._ask(number)
        if decoder is None:
            known = ", ".join(map(str, sorted(each for each in self._given if each is not None)))
            raise ValueError(f"its schema version is {number}, but schemas were given only for {known}")
        return decoder


class VersionedDecoder(VersionedDecoders[ValueDecoder]):
    """Decodes each value by the schema of its version."""

    def is_of_pairs(self, version: bytes | None) -> bool:
        """Whether messages of that version are pairs of a key and a value. Raises ``ValueError`` as ``decode``."""
        return isinstance(self.of(version), KeyValueDecoder)

    def decode(self, value: bytes, version: bytes | None, key: bytes | None = None) -> Any:
        """Decode a value. Raises ``ValueError`` if it does not match its schema, or its schema is unknown.

        Args:
            key: the message's, which may be one half of a pair.
        """
        decoder = self.of(version)
        return decoder.decode(value, key) if isinstance(decoder, KeyValueDecoder) else decoder.decode(value)
