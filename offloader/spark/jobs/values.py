"""Message values as columns: JSON by Spark, Avro by fastavro on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offloader.errors import InvalidCallError
from offloader.read.typed_values import fitting_column
from offloader.read.values import AvroDecoder, VersionedDecoders
from offloader.spark.options import AvroValues, JsonValues, Values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
        InvalidCallError, UnsupportedError: the schema.
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
        raise InvalidCallError(
            f"{values.fields!r} is not a schema of Spark: {str(error).strip().splitlines()[0]}",
            hint="example: id BIGINT, name STRING",
        ) from error
    assert isinstance(schema, StructType), "several columns"
    text = f.col("value").cast("string")
    parsed = f.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _REST})
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
    _decoders(values)
    kind = AvroDecoder(values.schema).arrow_type
    answer = StructType().add(DECODED, from_arrow_type(kind)).add(_WHY, StringType())

    def decode(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        decoders = _decoders(values)
        for columns in batches:
            yield _decoded(columns, decoders, kind)

    # Spark's only Python columns without pandas. Its stubs lack struct results.
    decoded = arrow_udf(decode, answer)  # type: ignore[call-overload]
    both = frame.withColumn(_BOTH, decoded(_has_value(), f.col("value"), f.col("schema_version")))
    return both.withColumns({name: f.col(_BOTH)[name] for name in (DECODED, _WHY)}).drop(_BOTH)


def _decoders(values: AvroValues) -> VersionedDecoders[AvroDecoder]:
    of_versions: dict[int | None, AvroDecoder] = {
        number: AvroDecoder(text, values.schema, what=f"the Avro schema of version {number}")
        for number, text in values.versions
    }
    return VersionedDecoders(of_versions or {None: AvroDecoder(values.schema)})


def _decoded(columns: tuple[pa.Array, ...], decoders: VersionedDecoders[AvroDecoder], kind: pa.DataType) -> pa.Array:
    """Records and errors of the messages with a value; runs on an executor."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    found = [_one(decoders, value, version) if has_value else (None, None) for has_value, value, version in rows]
    records, reasons = [record for record, _ in found], [reason for _, reason in found]
    decoded, unfit = fitting_column(records, kind)
    for number, cause in unfit.items():
        reasons[number] = f"the value doesn't fit the column: {cause}"
    return pa.StructArray.from_arrays([decoded, pa.array(reasons, pa.string())], names=[DECODED, _WHY])


def _one(decoders: VersionedDecoders[AvroDecoder], value: bytes, version: bytes | None) -> tuple[Any, str | None]:
    try:
        return decoders.of(version).decode(value), None
    except ValueError as error:
        return None, f"the value can't be decoded: {error}"
