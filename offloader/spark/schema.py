"""Columns of each content: their Spark and Arrow types, and what a user's schema asks for.

Owns the columns' names and types. Must never read data.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from offloader.errors import InvalidCall

__all__ = ["Needs", "Projection", "SchemaField", "ddl", "projection"]


class Needs(enum.IntEnum):
    """What has to be fetched for a row; each includes the ones before."""

    INDEXES = 0
    ENTRY_TABLES = 1
    PAYLOADS = 2


class _Type(Protocol):
    def simpleString(self) -> str: ...  # noqa: N802 - Spark's name


class SchemaField(Protocol):
    """What is needed of Spark's ``StructField``."""

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

#: content -> column -> (Spark's type, Arrow's type)
_COLUMNS: dict[str, dict[str, tuple[str, pa.DataType]]] = {
    "entries": {
        "stream": ("string", pa.string()),
        "ledger_id": ("bigint", pa.int64()),
        "entry_id": ("bigint", pa.int64()),
        "publish_time": ("timestamp", _UTC),
        "payload": ("binary", pa.binary()),
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
}
#: Columns that are null in some rows; a schema mustn't promise otherwise.
_NEVER_NULL = {
    "entries": {"stream", "ledger_id", "entry_id", "payload"},
    "segments": {"stream", "uuid", "status", "format", "epoch", "first_ledger_id", "first_entry_id", "assigned_time"},
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The wanted columns, in order, as an Arrow schema; picklable.

    Attributes:
        schema: names, types and nullability exactly as Spark expects the batches.
        needs: what has to be fetched for them.
    """

    schema: pa.Schema
    needs: Needs


def ddl(content: str) -> str:
    """All columns of a content as Spark's DDL."""
    return ", ".join(f"{name} {spark}" for name, (spark, _) in _COLUMNS[content].items())


def projection(fields: Iterable[SchemaField], content: str) -> Projection:
    """What a schema asks for: Spark tells a Python data source of no other projection than the user's schema.

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
    needs = Needs.PAYLOADS if "payload" in names else Needs.ENTRY_TABLES if "publish_time" in names else Needs.INDEXES
    return Projection(pa.schema(wanted), needs)
