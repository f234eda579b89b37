"""Message values as columns: JSON by Spark, Avro by fastavro on the executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offloader.errors import InvalidCall, Unsupported, install_hint
from offloader.spark.options import AvroValues, JsonValues, Values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: Other logical types are read as their stored type.
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL = "decimal"
#: Maximum precision of Spark's decimals.
DIGITS_MAX = 38


def arrow_type(schema: Any) -> pa.DataType:
    """The Arrow type of a record's values, of its schema decoded from JSON.

    Raises:
        Unsupported: not a record, recursive, or with a part that can't be a column: a union of several types, a record
            without fields, only null.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Unsupported("the Avro schema isn't that of a record", hint="columns need names: wrap it in a record")
    return _type_of(schema, {}, "the record")


def _type_of(schema: Any, known: dict[str, pa.DataType | None], place: str) -> pa.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise Unsupported(
                f"the Avro schema has a union of {len(others)} types at {place}",
                hint="a column has one: null and another",
            )
        return _type_of(others[0], known, place)
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _known(schema, known, place)
    kind, logical = schema.get("type"), schema.get("logicalType")
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
    name = str(schema.get("name", ""))  # with namespace, as in fastavro's parsed schemas
    known[name] = None  # a reference before its completion is recursive
    fields = [
        pa.field(field["name"], _type_of(field["type"], known, f"{place}.{field['name']}"))
        for field in schema.get("fields", [])
    ]
    if not fields:
        raise Unsupported(f"the Avro schema has a record without fields at {place}", hint="leave that field out")
    return _named(schema, known, pa.struct(fields))


def _decimal(schema: Mapping[str, Any], place: str) -> pa.DataType:
    digits = schema.get("precision", 0)
    if not isinstance(digits, int) or not 1 <= digits <= DIGITS_MAX:
        raise Unsupported(f"the Avro schema has a decimal of {digits} digits at {place}", hint=f"1 to {DIGITS_MAX}")
    return pa.decimal128(digits, schema.get("scale", 0))


def _named(schema: Mapping[str, Any], known: dict[str, pa.DataType | None], found: pa.DataType) -> pa.DataType:
    if "name" in schema:
        known[str(schema["name"])] = found
    return found


def _known(name: Any, known: Mapping[str, pa.DataType | None], place: str) -> pa.DataType:
    if name not in known:
        raise Unsupported(f"the Avro schema names a type {name!r} at {place}, which is none or no column's")
    found = known[name]
    if found is None:
        raise Unsupported(f"the Avro schema's {name} refers to itself at {place}", hint="a column can't be endless")
    return found


class AvroDecoder:
    """Decodes values by their writer's schema, into one reader's schema.

    Args:
        reader: the schema of the columns, as JSON.
        versions: of the writers: version -> schema as JSON; empty: all values were written with ``reader``.

    Raises:
        InvalidCall: an invalid schema.
        Unsupported: fastavro isn't installed, or ``arrow_type`` refuses the reader's.
    """

    def __init__(self, reader: str, versions: Mapping[int, str]) -> None:
        try:
            from fastavro import parse_schema, schemaless_reader
        except ImportError as error:
            raise Unsupported("fastavro isn't installed", hint=install_hint("avro")) from error
        self._read = schemaless_reader
        self._reader = _parsed(reader, "the Avro schema", parse_schema)
        self._writers = {
            version: _parsed(text, f"the Avro schema of version {version}", parse_schema)
            for version, text in versions.items()
        }
        self.arrow_type = arrow_type(self._reader)

    def decode(self, value: bytes, version: bytes | None) -> Any:
        """The record in a message's value, of its schema's version (8 bytes, big-endian), as a dictionary.

        Raises ``ValueError`` with the reason in words.
        """
        writer = self._reader
        if self._writers:
            number = int.from_bytes(version, "big") if version else None
            if number not in self._writers:
                known = ", ".join(map(str, sorted(self._writers)))
                raise ValueError(f"its schema version is {number}, and schemas were given for {known}")
            writer = self._writers[number]
        data = BytesIO(value)
        try:
            record = self._read(data, writer, self._reader if writer is not self._reader else None)
        except Exception as error:  # damaged bytes make fastavro raise any error
            raise ValueError(f"it isn't Avro of the schema: {type(error).__name__}: {error}") from error
        if left := len(value) - data.tell():
            raise ValueError(f"it isn't Avro of the schema: {left} of {len(value)} bytes are left over")
        return record


def _parsed(text: str, what: str, parse: Callable[..., Any]) -> Any:
    """A schema, or a response of Pulsar's admin interface with the schema in ``data``."""
    try:
        given = json.loads(text)
        if isinstance(given, dict) and isinstance(given.get("data"), str) and "fields" not in given:
            given = json.loads(given["data"])
        return parse(_without_unknown(given))
    except Exception as error:  # JSON's errors and fastavro's, which have no common base
        raise InvalidCall(f"{what} isn't one: {type(error).__name__}: {error}") from error


def _without_unknown(schema: Any) -> Any:
    """The schema without unsupported logical types: their values keep the stored type."""
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


#: The added column.
DECODED = "decoded"
#: Columns that decide whether and how a value is decoded.
NEEDED = ("value", "error", "schema_version", "marker_type", "chunk_uuid", "encryption_keys")
#: Spark's JSON puts unparsable text there.
_REST = "_offloader_rest"
_WHY = "_offloader_why"
_BOTH = "_offloader_decoded"


def with_decoded(frame: DataFrame, values: Values) -> DataFrame:
    """``frame`` with the column ``decoded``; ``error`` has the reason if decoding fails.

    Null without a value to decode: no value, a part of a chunked message, an encrypted one, a server's marker.

    Args:
        frame: messages, with all columns of ``NEEDED``.

    Raises:
        InvalidCall, Unsupported: the schema.
    """
    from pyspark.sql import functions as f

    decoded = _json(frame, values) if isinstance(values, JsonValues) else _avro(frame, values)
    return decoded.withColumn("error", f.coalesce("error", _WHY)).drop(_WHY)


def _has_value() -> Column:
    from pyspark.sql import functions as f

    return f.expr(
        "value IS NOT NULL AND error IS NULL AND marker_type IS NULL AND chunk_uuid IS NULL "
        "AND (encryption_keys IS NULL OR size(encryption_keys) = 0)"
    )


def _json(frame: DataFrame, values: JsonValues) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(f"{values.fields}, {_REST} STRING")
    except PySparkException as error:
        line = str(error).strip().splitlines()[0]
        raise InvalidCall(
            f"{values.fields!r} isn't a schema of Spark: {line}", hint="id BIGINT, name STRING"
        ) from error
    assert isinstance(schema, StructType), "several columns"
    text = f.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _REST}
    parsed = f.from_json(text, schema, options)
    found = frame.withColumn(_WHY, _has_value()).withColumn(DECODED, f.when(f.col(_WHY), parsed))
    fits = (
        f.col(f"{DECODED}.{_REST}").isNull()
        & f.col(DECODED).isNotNull()
        & f.expr("is_valid_utf8(CAST(value AS STRING))")
    )
    said = f.lit("the value isn't JSON of the schema")
    return found.withColumn(_WHY, f.when(f.col(_WHY) & ~fits, said)).withColumn(
        DECODED, f.when(f.col(_WHY).isNull(), f.col(DECODED).dropFields(_REST))
    )


def _avro(frame: DataFrame, values: AvroValues) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructType

    # Checked on the driver too, before a job runs.
    here = AvroDecoder(values.schema, dict(values.versions))
    answer = StructType().add(DECODED, from_arrow_type(here.arrow_type)).add(_WHY, StringType())

    def decode(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        decoder = AvroDecoder(values.schema, dict(values.versions))
        for columns in batches:
            yield _decoded(columns, decoder)

    # Spark's only Python columns without pandas. Its stubs lack struct results.
    decoded = arrow_udf(decode, answer)  # type: ignore[call-overload]
    both = frame.withColumn(_BOTH, decoded(_has_value(), f.col("value"), f.col("schema_version")))
    return both.withColumns({name: f.col(_BOTH)[name] for name in (DECODED, _WHY)}).drop(_BOTH)


def _decoded(columns: tuple[pa.Array, ...], decoder: AvroDecoder) -> pa.Array:
    """Records and errors of the messages with a value; runs on an executor."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    found = [_one(decoder, value, version) if has_value else (None, None) for has_value, value, version in rows]
    records, reasons = [record for record, _ in found], [reason for _, reason in found]
    try:
        decoded = pa.array(records, decoder.arrow_type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        # A record that Arrow can't hold (a date too far away, too many digits) must not fail other rows.
        for number, record in enumerate(records):
            reasons[number] = reasons[number] or _unfit(decoder, record)
            records[number] = None if reasons[number] else record
        decoded = pa.array(records, decoder.arrow_type)
    return pa.StructArray.from_arrays([decoded, pa.array(reasons, pa.string())], names=[DECODED, _WHY])


def _one(decoder: AvroDecoder, value: bytes, version: bytes | None) -> tuple[Any, str | None]:
    try:
        return decoder.decode(value, version), None
    except ValueError as error:
        return None, f"the value can't be decoded: {error}"


def _unfit(decoder: AvroDecoder, record: Any) -> str | None:
    try:
        pa.scalar(record, decoder.arrow_type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        return f"the value can't be a column: {error}"
    return None
