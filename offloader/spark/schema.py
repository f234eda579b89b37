"""Columns of each content, their Spark and Arrow types, and schemas of message values."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from offloader.errors import InvalidCall

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


class Needs(enum.IntEnum):
    """Data to fetch for a row; each includes the previous ones."""

    INDEXES = 0
    ENTRY_TABLES = 1
    PAYLOADS = 2


_PROPERTIES = pa.map_(pa.string(), pa.string())
_KEY = pa.struct([("name", pa.string()), ("value", pa.binary()), ("metadata", _PROPERTIES)])
_SPAN = ("ledger_id", "first_entry_id", "last_entry_id", "entries", "payload_bytes")
_SPANS = f"array<struct<{','.join(f'{name}:bigint' for name in _SPAN)}>>"

#: Spark's type -> Arrow's.
_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": _PROPERTIES,
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "array<struct<name:string,value:binary,metadata:map<string,string>>>": pa.list_(pa.field("element", _KEY)),
    _SPANS: pa.list_(pa.field("element", pa.struct([(name, pa.int64()) for name in _SPAN]))),
}

#: Columns of each content, as Spark's DDL. A schema must not declare NOT NULL for others.
_DDL = {
    "entries": """
        stream string NOT NULL, ledger_id bigint NOT NULL, entry_id bigint NOT NULL, publish_time timestamp,
        payload binary NOT NULL""",
    # Names, meanings and order of the values: formats.pulsar.messages.
    "messages": """
        stream string NOT NULL, ledger_id bigint NOT NULL, entry_id bigint NOT NULL, batch_index int NOT NULL,
        publish_time timestamp, key string, key_is_base64 boolean, null_key boolean, ordering_key binary,
        event_time timestamp, producer_name string, sequence_id bigint, schema_version binary,
        properties map<string,string>, value binary, error string, compacted_out boolean, batch_size int,
        replicated_from string, deliver_at timestamp, marker_type int, txn_most_bits bigint, txn_least_bits bigint,
        chunk_uuid string, chunk_id int, chunk_count int, chunk_total_bytes int, compression string,
        uncompressed_bytes bigint, encryption_algorithm string, encryption_parameter binary,
        encryption_keys array<struct<name:string,value:binary,metadata:map<string,string>>>,
        broker_time timestamp, broker_index bigint""",
    "segments": f"""
        stream string NOT NULL, uuid string NOT NULL, status string NOT NULL, format int NOT NULL,
        epoch bigint NOT NULL, first_ledger_id bigint NOT NULL, first_entry_id bigint NOT NULL,
        last_ledger_id bigint, last_entry_id bigint, entries bigint, payload_bytes bigint, data_bytes bigint,
        index_bytes bigint, blocks bigint, compressed boolean, publish_time_min timestamp, publish_time_max timestamp,
        assigned_time timestamp NOT NULL, offloaded_time timestamp, ledgers {_SPANS}""",
    "ledgers": """
        stream string NOT NULL, ledger_id bigint NOT NULL, closed boolean NOT NULL, closed_at_entry_id bigint,
        deleted boolean NOT NULL, hot_released boolean NOT NULL, segments bigint NOT NULL, entries bigint NOT NULL,
        payload_bytes bigint NOT NULL, first_entry_id bigint, last_entry_id bigint""",
    "manifest": """
        stream string NOT NULL, incarnation string NOT NULL, record_id bigint NOT NULL, time timestamp NOT NULL,
        epoch bigint NOT NULL, writer string NOT NULL, edits array<string> NOT NULL, json string NOT NULL""",
    "anomalies": """
        stream string NOT NULL, problem string NOT NULL, damage boolean NOT NULL, segment string, object string,
        start bigint, stop bigint, expected string, found string, message string NOT NULL, advice string""",
}
_COLUMN = re.compile(r"(\w+) (\S+?)( NOT NULL)?(?:, |$)")
_PARSED = {content: _COLUMN.findall(" ".join(text.split())) for content, text in _DDL.items()}
#: content -> column -> (Spark's type, Arrow's type)
_COLUMNS = {content: {name: (kind, _ARROW[kind]) for name, kind, _ in rows} for content, rows in _PARSED.items()}
_NEVER_NULL = {content: {name for name, _, never in rows if never} for content, rows in _PARSED.items()}


@dataclass(frozen=True, slots=True)
class Projection:
    """The wanted columns, in order, as an Arrow schema as Spark expects it, and the data to fetch; picklable."""

    schema: pa.Schema
    needs: Needs


def ddl(content: str, names: Iterable[str] = ()) -> str:
    """Columns of a content as Spark's DDL: ``names``, or all; ``InvalidCall`` for an unknown or duplicate one."""
    columns, wanted = _COLUMNS[content], tuple(names)
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        raise InvalidCall(
            f"option columns: content={content} has no {', '.join(unknown)}", hint=f"columns: {', '.join(columns)}"
        )
    if len(set(wanted)) < len(wanted):
        raise InvalidCall(f"option columns names a column twice: {','.join(wanted)}", hint="name each once")
    return ", ".join(f"{name} {columns[name][0]}" for name in wanted or columns)


def projection(fields: Iterable[StructField], content: str) -> Projection:
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
