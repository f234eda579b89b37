"""Convert message values to Arrow columns: the type of a schema, typed values, and the merged type of schemas."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from offloader.errors import UnsupportedError
from offloader.read.values import (
    DIGITS_MAX,
    AvroDecoder,
    JsonDecoder,
    KeyValueDecoder,
    MessageSchema,
    ProtobufDecoder,
    ValueDecoder,
    as_it_is,
    key_value_parts,
    value_decoder,
)

_TIME = pa.timestamp("us", tz="UTC")
#: Pulsar's primitive types. Times with nanoseconds and without a date are text.
_PRIMITIVES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INT8": pa.int32(),
    "INT16": pa.int32(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": _TIME,
    "TIMESTAMP": _TIME,
    "TIME": pa.string(),
    "INSTANT": pa.string(),
    "LOCAL_DATE": pa.date32(),
    "LOCAL_TIME": pa.string(),
    "LOCAL_DATE_TIME": pa.string(),
}
#: Types of protobuf's fields. Only this column type holds an unsigned number of 64 bits.
_PROTOBUF: dict[str, pa.DataType] = {
    "TYPE_DOUBLE": pa.float64(),
    "TYPE_FLOAT": pa.float32(),
    "TYPE_INT64": pa.int64(),
    "TYPE_SINT64": pa.int64(),
    "TYPE_SFIXED64": pa.int64(),
    "TYPE_UINT64": pa.decimal128(20, 0),
    "TYPE_FIXED64": pa.decimal128(20, 0),
    "TYPE_INT32": pa.int32(),
    "TYPE_SINT32": pa.int32(),
    "TYPE_SFIXED32": pa.int32(),
    "TYPE_UINT32": pa.int64(),
    "TYPE_FIXED32": pa.int64(),
    "TYPE_BOOL": pa.bool_(),
    "TYPE_STRING": pa.string(),
    "TYPE_BYTES": pa.binary(),
    "TYPE_ENUM": pa.string(),
}


@dataclass(frozen=True, slots=True)
class TypedDecoder:
    """Decodes values of one schema as values of one Arrow type.

    Attributes:
        type: of the column.
        decoder: of the bytes.
        fitted: converts a decoded value to the type; raises ``ValueError`` with the reason.
    """

    type: pa.DataType
    decoder: ValueDecoder | KeyValueDecoder
    fitted: Callable[[Any], Any] = as_it_is

    def decode(self, value: bytes | None, key: bytes | None = None) -> Any:
        """Decode a value. Raises ``ValueError`` if it does not match the schema.

        Args:
            key: the message's, which may be one half of a pair.
        """
        if isinstance(self.decoder, KeyValueDecoder):
            return self.fitted(self.decoder.decode(value, key))
        return None if value is None else self.fitted(self.decoder.decode(value))


def typed_decoder(schema: MessageSchema, *, what: str) -> TypedDecoder:
    """The decoder of one schema.

    Raises:
        InvalidCallError: its definition is invalid.
        UnsupportedError: the schema's kind or a part of it has no column type, or fastavro isn't installed.
    """
    decoder = value_decoder(schema, what=what)
    if isinstance(decoder, AvroDecoder):
        return TypedDecoder(decoder.arrow_type, decoder)
    if isinstance(decoder, ProtobufDecoder):
        kind = _message_type(decoder.descriptor, (), what)
        return TypedDecoder(kind, _ProtobufRecords(decoder))
    if isinstance(decoder, KeyValueDecoder):
        parts = {name: typed_decoder(each, what=f"{what} {name}") for name, each in key_value_parts(schema, what)}
        kind = pa.struct([(name, part.type) for name, part in parts.items()])
        pairs = KeyValueDecoder(parts["key"].decoder, parts["value"].decoder, decoder.is_separated)
        return TypedDecoder(
            kind, pairs, lambda pair: pair and {name: part.fitted(pair[name]) for name, part in parts.items()}
        )
    if schema.kind == "JSON":
        kind = AvroDecoder(json.dumps(_stored(_json_schema(schema.data, what)))).arrow_type
        return TypedDecoder(kind, JsonDecoder(_Number), lambda value: _json_value(value, kind, "the value"))
    return TypedDecoder(_PRIMITIVES[schema.kind], decoder)


def fitting_column(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, Exception]]:
    """Decoded values as a column of their type; null for a value that Arrow can't hold, with its number and the reason.

    Too many digits or an out-of-range date in one row must not fail the others.
    """
    try:
        return pa.array(values, kind), {}
    except _UNFIT:
        fitting, unfit = list(values), dict[int, Exception]()
    for number, value in enumerate(values):
        try:
            pa.scalar(value, kind)
        except _UNFIT as cause:
            fitting[number], unfit[number] = None, cause
    return pa.array(fitting, kind), unfit


_UNFIT = (ValueError, TypeError, OverflowError, pa.ArrowException)


# -- JSON


def _json_schema(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(
            f"{what} has no Avro definition of its fields: {error}", hint="columns need an Avro definition"
        ) from error


def _stored(schema: Any) -> Any:
    """The schema without logical types other than decimals: JSON has the stored numbers."""
    if isinstance(schema, list):
        return [_stored(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _stored(each) for name, each in schema.items() if name != "logicalType" or each == "decimal"}


class _Number(float):
    """A number with its text: a double has too few digits for a decimal."""

    def __init__(self, text: str) -> None:
        self.text = text


def _json_value(value: Any, kind: pa.DataType, place: str) -> Any:
    """A value of the type; missing values are null, and fields that the type does not have are omitted."""
    if value is None:
        return None
    match value:
        case dict() if pa.types.is_struct(kind):
            return {each.name: _json_value(value.get(each.name), each.type, f"{place}.{each.name}") for each in kind}
        case dict() if pa.types.is_map(kind):
            return {name: _json_value(each, kind.item_type, f"{place}{{}}") for name, each in value.items()}
        case list() if pa.types.is_list(kind):
            return [_json_value(each, kind.value_type, f"{place}[]") for each in value]
        case bool():
            if pa.types.is_boolean(kind):
                return value
        case int() if pa.types.is_integer(kind):
            return value
        case int() | float() if pa.types.is_floating(kind):
            try:
                return float(value)
            except OverflowError as error:
                raise ValueError(f"{place} is too large for {kind}") from error
        case int() | float() | str() if pa.types.is_decimal(kind):
            return _decimal(value.text if isinstance(value, _Number) else str(value), kind, place)
        case str() if pa.types.is_string(kind):
            return value
        case str() if pa.types.is_binary(kind):
            try:
                return b64decode(value, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{place} isn't base64: {error}") from error
    found = float if isinstance(value, float) else type(value)
    raise ValueError(f"{place} is {found.__name__}, but the schema has {kind}")


#: Refuses to round, and refuses more digits than Arrow's decimals have.
_EXACT = Context(prec=DIGITS_MAX, traps=[Inexact, InvalidOperation])


def _decimal(text: str, kind: pa.DataType, place: str) -> Decimal:
    """A number with the digits of its column; Arrow crashes at a number with an exponent far below zero."""
    try:
        return _EXACT.quantize(Decimal(text), Decimal((0, (1,), -kind.scale)))
    except ArithmeticError as error:
        raise ValueError(f"{place} isn't a decimal with {kind.scale} digits after the point") from error


# -- protobuf


class _ProtobufRecords:
    """Values of a protobuf message type as records: enums by name, unset optional fields as null."""

    def __init__(self, decoder: ProtobufDecoder) -> None:
        self._decoder = decoder

    def decode(self, value: bytes) -> Any:
        return _message_value(self._decoder.parsed(value))


def _message_type(descriptor: Any, around: tuple[str, ...], what: str) -> pa.DataType:
    if descriptor.full_name in around:
        raise UnsupportedError(
            f"{what}: protobuf message {descriptor.full_name} contains itself",
            hint="a column can't have a recursive type",
        )
    if not descriptor.fields:
        raise UnsupportedError(
            f"{what}: protobuf message {descriptor.full_name} has no fields", hint="leave that field out"
        )
    inside = (*around, descriptor.full_name)
    return pa.struct([pa.field(each.name, _field_type(each, inside, what)) for each in descriptor.fields])


def _field_type(field: Any, around: tuple[str, ...], what: str) -> pa.DataType:
    if _is_map(field):
        return pa.map_(pa.string(), _field_type(field.message_type.fields_by_name["value"], around, what))
    own = _KIND_NAMES[field.type]
    kind = _message_type(field.message_type, around, what) if own in _NESTED else _PROTOBUF[own]
    return pa.list_(kind) if _is_repeated(field) else kind


def _message_value(message: Any) -> dict[str, Any]:
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _field_values(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _field_values(field: Any, value: Any) -> Any:
    if _is_map(field):
        part = field.message_type.fields_by_name["value"]
        return {_map_key(name): _field_value(part, value[name]) for name in value}
    return [_field_value(field, each) for each in value] if _is_repeated(field) else _field_value(field, value)


def _field_value(field: Any, value: Any) -> Any:
    name = _KIND_NAMES[field.type]
    if name in _NESTED:
        return _message_value(value)
    if name == "TYPE_ENUM":
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: Any) -> bool:
    # protobuf 6.30 lacks this attribute; later releases warn of the label
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


#: Number of a protobuf type -> its name.
_KIND_NAMES = {number: name for name, number in FieldDescriptorProto.Type.items()}
_NESTED = ("TYPE_MESSAGE", "TYPE_GROUP")


# -- types of several schemas


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without Arrow-specific differences: offset sizes, names within lists, numbers of fields."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def merged_type(known: pa.DataType, new: pa.DataType, place: str) -> pa.DataType:
    """The type of a column with values of both: every field of either, each with the wider type.

    Args:
        known, new: results of ``plain_type``; the fields of the first come first.
        place: the column's name, for the error.

    Raises:
        UnsupportedError: a field has types that no single column can hold.
    """
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        theirs = {each.name: each.type for each in new}
        ours = {each.name: each.type for each in known}
        both = {name: merged_type(kind, theirs.get(name, kind), f"{place}.{name}") for name, kind in ours.items()}
        return pa.struct([*both.items(), *((name, kind) for name, kind in theirs.items() if name not in ours)])
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(merged_type(known.value_type, new.value_type, f"{place}[]"))
    if pa.types.is_map(known) and pa.types.is_map(new) and known.key_type == new.key_type:
        return pa.map_(known.key_type, merged_type(known.item_type, new.item_type, f"{place}{{}}"))
    if known == new:
        return known
    for narrow, wide in ((known, new), (new, known)):
        if _is_wider(narrow, wide):
            return wide
    raise UnsupportedError(
        f"column {place} has type {known}, but the schema has {new}: no column type holds both",
        hint="export to another table, or rename the field",
    )


def _is_wider(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether the type of a column can be changed from one to the other without a rewrite."""
    if (narrow, wide) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    is_decimal = pa.types.is_decimal(narrow) and pa.types.is_decimal(wide)
    return is_decimal and bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
