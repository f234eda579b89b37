"""Columns of each content, their Spark and Arrow types, and schemas of message values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from offloader.errors import InvalidCall

__all__ = ["AvroValues", "JsonValues", "Needs", "Projection", "SchemaField", "Values", "ddl", "projection"]


class Needs(enum.IntEnum):
    """Data to fetch for a row; each includes the previous ones."""

    INDEXES = 0
    ENTRY_TABLES = 1
    PAYLOADS = 2


class _Type(Protocol):
    def simpleString(self) -> str: ...  # noqa: N802 - Spark's name


class SchemaField(Protocol):
    """The part of Spark's ``StructField`` in use."""

    name: str
    nullable: bool

    @property
    def dataType(self) -> _Type: ...  # noqa: N802 - Spark's name


_UTC = pa.timestamp("us", tz="UTC")
_LEDGER = pa.struct(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("first_entry_id", pa.int64()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("payload_bytes", pa.int64()),
    ]
)
_LEDGERS = (
    "array<struct<ledger_id:bigint,first_entry_id:bigint,last_entry_id:bigint,entries:bigint,payload_bytes:bigint>>"
)

_PROPERTIES = pa.map_(pa.string(), pa.string())
_ENCRYPTION_KEY = pa.struct(
    [pa.field("name", pa.string()), pa.field("value", pa.binary()), pa.field("metadata", _PROPERTIES)]
)

#: content -> column -> (Spark's type, Arrow's type)
_COLUMNS: dict[str, dict[str, tuple[str, pa.DataType]]] = {
    "entries": {
        "stream": ("string", pa.string()),
        "ledger_id": ("bigint", pa.int64()),
        "entry_id": ("bigint", pa.int64()),
        "publish_time": ("timestamp", _UTC),
        "payload": ("binary", pa.binary()),
    },
    # Names, meanings and order of the values: formats.pulsar.messages.
    "messages": {
        "stream": ("string", pa.string()),
        "ledger_id": ("bigint", pa.int64()),
        "entry_id": ("bigint", pa.int64()),
        "batch_index": ("int", pa.int32()),
        "publish_time": ("timestamp", _UTC),
        "key": ("string", pa.string()),
        "key_is_base64": ("boolean", pa.bool_()),
        "null_key": ("boolean", pa.bool_()),
        "ordering_key": ("binary", pa.binary()),
        "event_time": ("timestamp", _UTC),
        "producer_name": ("string", pa.string()),
        "sequence_id": ("bigint", pa.int64()),
        "schema_version": ("binary", pa.binary()),
        "properties": ("map<string,string>", _PROPERTIES),
        "value": ("binary", pa.binary()),
        "error": ("string", pa.string()),
        "compacted_out": ("boolean", pa.bool_()),
        "batch_size": ("int", pa.int32()),
        "replicated_from": ("string", pa.string()),
        "deliver_at": ("timestamp", _UTC),
        "marker_type": ("int", pa.int32()),
        "txn_most_bits": ("bigint", pa.int64()),
        "txn_least_bits": ("bigint", pa.int64()),
        "chunk_uuid": ("string", pa.string()),
        "chunk_id": ("int", pa.int32()),
        "chunk_count": ("int", pa.int32()),
        "chunk_total_bytes": ("int", pa.int32()),
        "compression": ("string", pa.string()),
        "uncompressed_bytes": ("bigint", pa.int64()),
        "encryption_algorithm": ("string", pa.string()),
        "encryption_parameter": ("binary", pa.binary()),
        "encryption_keys": (
            "array<struct<name:string,value:binary,metadata:map<string,string>>>",
            pa.list_(pa.field("element", _ENCRYPTION_KEY)),
        ),
        "broker_time": ("timestamp", _UTC),
        "broker_index": ("bigint", pa.int64()),
    },
    "segments": {
        "stream": ("string", pa.string()),
        "uuid": ("string", pa.string()),
        "status": ("string", pa.string()),
        "format": ("int", pa.int32()),
        "epoch": ("bigint", pa.int64()),
        "first_ledger_id": ("bigint", pa.int64()),
        "first_entry_id": ("bigint", pa.int64()),
        "last_ledger_id": ("bigint", pa.int64()),
        "last_entry_id": ("bigint", pa.int64()),
        "entries": ("bigint", pa.int64()),
        "payload_bytes": ("bigint", pa.int64()),
        "data_bytes": ("bigint", pa.int64()),
        "index_bytes": ("bigint", pa.int64()),
        "blocks": ("bigint", pa.int64()),
        "compressed": ("boolean", pa.bool_()),
        "publish_time_min": ("timestamp", _UTC),
        "publish_time_max": ("timestamp", _UTC),
        "assigned_time": ("timestamp", _UTC),
        "offloaded_time": ("timestamp", _UTC),
        "ledgers": (_LEDGERS, pa.list_(pa.field("element", _LEDGER))),
    },
    "ledgers": {
        "stream": ("string", pa.string()),
        "ledger_id": ("bigint", pa.int64()),
        "closed": ("boolean", pa.bool_()),
        "closed_at_entry_id": ("bigint", pa.int64()),
        "deleted": ("boolean", pa.bool_()),
        "hot_released": ("boolean", pa.bool_()),
        "segments": ("bigint", pa.int64()),
        "entries": ("bigint", pa.int64()),
        "payload_bytes": ("bigint", pa.int64()),
        "first_entry_id": ("bigint", pa.int64()),
        "last_entry_id": ("bigint", pa.int64()),
    },
    "manifest": {
        "stream": ("string", pa.string()),
        "incarnation": ("string", pa.string()),
        "record_id": ("bigint", pa.int64()),
        "time": ("timestamp", _UTC),
        "epoch": ("bigint", pa.int64()),
        "writer": ("string", pa.string()),
        "edits": ("array<string>", pa.list_(pa.field("element", pa.string()))),
        "json": ("string", pa.string()),
    },
    "anomalies": {
        "stream": ("string", pa.string()),
        "problem": ("string", pa.string()),
        "damage": ("boolean", pa.bool_()),
        "segment": ("string", pa.string()),
        "object": ("string", pa.string()),
        "start": ("bigint", pa.int64()),
        "stop": ("bigint", pa.int64()),
        "expected": ("string", pa.string()),
        "found": ("string", pa.string()),
        "message": ("string", pa.string()),
        "advice": ("string", pa.string()),
    },
}
#: Columns that are never null; for others a schema must not declare ``NOT NULL``.
_NEVER_NULL = {
    "entries": {"stream", "ledger_id", "entry_id", "payload"},
    "messages": {"stream", "ledger_id", "entry_id", "batch_index"},
    "segments": {"stream", "uuid", "status", "format", "epoch", "first_ledger_id", "first_entry_id", "assigned_time"},
    "ledgers": {"stream", "ledger_id", "closed", "deleted", "hot_released", "segments", "entries", "payload_bytes"},
    "manifest": {"stream", "incarnation", "record_id", "time", "epoch", "writer", "edits", "json"},
    "anomalies": {"stream", "problem", "damage", "message"},
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The wanted columns, in order, as an Arrow schema; picklable.

    Attributes:
        schema: names, types and nullability exactly as Spark expects the batches.
        needs: data to fetch for them.
    """

    schema: pa.Schema
    needs: Needs


def ddl(content: str, names: Iterable[str] = ()) -> str:
    """Columns of a content as Spark's DDL: those of ``names`` in that order, or all.

    Raises:
        InvalidCall: an unknown or duplicate column.
    """
    columns, wanted = _COLUMNS[content], tuple(names)
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        raise InvalidCall(
            f"option columns: content={content} has no {', '.join(unknown)}", hint=f"columns: {', '.join(columns)}"
        )
    if len(set(wanted)) < len(wanted):
        raise InvalidCall(f"option columns names a column twice: {','.join(wanted)}", hint="name each once")
    return ", ".join(f"{name} {columns[name][0]}" for name in wanted or columns)


def projection(fields: Iterable[SchemaField], content: str) -> Projection:
    """The columns of a schema: Spark passes a Python data source no other projection than the user's schema.

    Raises:
        InvalidCall: a column that doesn't exist, of another type, or declared ``NOT NULL`` though it may be null.
    """
    columns = _COLUMNS[content]
    wanted = []
    for field in fields:
        if field.name not in columns:
            raise InvalidCall(
                f"the schema has a column {field.name}, which content={content} doesn't",
                hint=f"columns: {ddl(content)}",
            )
        spark, arrow = columns[field.name]
        found = field.dataType.simpleString().lower()
        if found != spark:
            raise InvalidCall(f"column {field.name} is of type {spark}, the schema says {found}", hint="cast it later")
        if not field.nullable and field.name not in _NEVER_NULL[content]:
            raise InvalidCall(f"column {field.name} may be null, the schema says NOT NULL", hint="leave NOT NULL out")
        wanted.append(pa.field(field.name, arrow, nullable=field.nullable))
    names = {field.name for field in wanted}
    # Only the entry itself has its number of messages.
    whole = "payload" in names or content == "messages"
    needs = Needs.PAYLOADS if whole else Needs.ENTRY_TABLES if "publish_time" in names else Needs.INDEXES
    return Projection(pa.schema(wanted), needs)


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Values are JSON objects with these fields, as Spark's DDL: ``id BIGINT, name STRING``.

    A field missing in a value is null; one missing in the schema is left out.
    """

    fields: str


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Values are Avro records, without a header.

    Attributes:
        schema: of the columns, as JSON, or a response of Pulsar's admin interface.
        versions: schemas of the values, by Pulsar's number; empty: all with ``schema``.
    """

    schema: str
    versions: tuple[tuple[int, str], ...] = ()


Values = JsonValues | AvroValues
