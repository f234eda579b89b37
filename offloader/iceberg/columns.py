"""Columns of an exported table: those of entries or messages, and their values decoded by a schema."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from formats.entries import EntryBatch, repeated_text
from formats.pulsar.messages import COLUMNS as MESSAGE_COLUMNS
from formats.pulsar.messages import BadEntry, MessageDecoder, MessageOptions
from offloader.errors import CorruptError, InvalidCallError, OffloaderError, StoreUnavailableError
from offloader.read.messages import decode_messages
from offloader.read.typed_values import TypedDecoder, fitting_column, merged_type, plain_type
from offloader.read.values import VersionedDecoders
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN

#: Attempts to change a table's columns before the export fails because other programs change them first.
COLUMN_ATTEMPTS_MAX = 20
#: Table property: kind of row.
CONTENT = "offloader.content"
#: Columns with a value decoded by a schema, and with the reason if decoding failed.
DECODED, ERROR = "decoded", "error"
#: Schemas of one stream's values by version.
Values = VersionedDecoders[TypedDecoder]

TIME = pa.timestamp("us", tz="UTC")
_NEVER_NULL = ("stream", "ledger_id", "entry_id")
#: Columns of a table by its content, equal to the columns that Spark exports.
COLUMNS = {
    "entries": pa.schema(
        [
            pa.field("stream", pa.string(), nullable=False),
            pa.field("ledger_id", pa.int64(), nullable=False),
            pa.field("entry_id", pa.int64(), nullable=False),
            pa.field("publish_time", TIME),
            pa.field("payload", pa.binary(), nullable=False),
        ]
    ),
    "messages": pa.schema(
        [
            pa.field("stream", pa.string(), nullable=False),
            *(
                pa.field(name, TIME if pa.types.is_timestamp(kind) else kind, name not in _NEVER_NULL)
                for name, kind in MESSAGE_COLUMNS.items()
            ),
        ]
    ),
}
_US_PER_MS, US_PER_DAY = 1000, 86_400_000_000
#: Day of entries without a publish time.
NO_DAY = -(10**7)
_REMEDY = "--on-bad-message null (bad_messages=BadEntry.NULL) adds rows with the reason"
#: Columns that mark a message with a separate value, and columns with its schema and key.
_NEEDED = (
    *("value", "schema_version", "key", "key_is_base64", "error"),
    *("marker_type", "chunk_uuid", "encryption_keys", "compacted_out"),
)


def content_of(table: Table) -> str:
    """Kind of row in the table: ``entries`` or ``messages``."""
    return table.properties.get(CONTENT, "entries")


class MissingColumns(Exception):
    """A schema has fields that the table's columns lack; ``columns`` has the needed columns."""

    def __init__(self, columns: pa.Schema) -> None:
        super().__init__(f"the table needs {columns}")
        self.columns = columns


def missing_columns(table: pa.Schema, content: str, types: Iterable[pa.DataType]) -> pa.Schema | None:
    """Columns that values of these types need in the table; ``None``: the table has them already.

    Args:
        table: current columns.
        content: content of the table.
        types: types of the values, from their schemas.

    Raises:
        UnsupportedError: a field has types that don't fit into one column.
    """
    wanted = [(DECODED, plain_type(each)) for each in types]
    if wanted and content == "entries":
        wanted.append((ERROR, pa.string()))
    known = {name: plain_type(table.field(name).type) for name, _ in wanted if name in table.names}
    found = dict(known)
    for name, kind in wanted:
        found[name] = merged_type(found.get(name, kind), kind, name)
    return None if found == known else pa.schema(list(found.items()))


def require_columns(table: Table, values: Values | None) -> None:
    """Adds and widens the columns that the schemas need; refreshes ``table`` if other programs change it.

    Raises:
        InvalidCallError: the table has decoded values, but no schemas were given.
        UnsupportedError: a field has types that don't fit into one column; nothing was changed.
        StoreUnavailableError: other programs always changed the table first.
    """
    for _ in range(COLUMN_ATTEMPTS_MAX):
        found = _arrow_schema(table)
        if values is None:
            if DECODED in found.names:
                raise InvalidCallError(
                    f"table {'.'.join(table.name())} has decoded values, but no schema was given",
                    hint="give --schema FILE or --admin-url URL, or export to a separate table",
                )
            return
        missing = missing_columns(found, content_of(table), [each.type for each in values.known])
        if missing is None:
            return
        try:
            with table.update_schema() as update:
                update.union_by_name(missing)
            return
        except CommitFailedException:  # nothing was changed
            table.refresh()
    raise StoreUnavailableError(
        f"table {'.'.join(table.name())}: {COLUMN_ATTEMPTS_MAX} changes failed because other programs came first",
        hint="run fewer exporters for one table",
    )


def _arrow_schema(table: Table) -> pa.Schema:
    return schema_to_pyarrow(table.schema(), include_field_ids=False)


# -- rows


class RowMaker:
    """Makes rows of a table from a stream's entries; times are in microseconds, and null outside the years 1 to 9999.

    Args:
        table: table that gets the rows, with its current columns.
        stream: name of the stream.
        bad_messages: how to handle an entry that isn't a message, or a value that doesn't match its schema: raise
            ``CorruptError``, or make a row with the reason.
        values: schemas of the values; ``None``: values remain bytes.
    """

    def __init__(self, table: Table, stream: str, bad_messages: BadEntry, values: Values | None) -> None:
        self._content, self._stream, self._bad, self._values = content_of(table), stream, bad_messages, values
        self._columns = COLUMNS[self._content]
        self._table = _arrow_schema(table)
        self._fitting = set[int]()
        self._decoder = MessageDecoder(MessageOptions(bad_entries=bad_messages), source=f"stream {stream},")

    @functools.cached_property
    def names(self) -> list[str]:
        """The columns of the rows, in the table's order."""
        own = {*self._columns.names, *(() if self._values is None else (DECODED, ERROR))}
        return [name for name in self._table.names if name in own]

    def rows(self, batch: EntryBatch) -> Iterator[pa.RecordBatch]:
        """Makes the rows of entries.

        Raises:
            MissingColumns: the table lacks columns for a value's fields.
            CorruptError: an entry isn't a message or a value doesn't match its schema, and ``bad_messages`` demands an
                error.
        """
        found = (
            [batch.to_arrow()] if self._content == "entries" else decode_messages(batch, self._decoder, remedy=_REMEDY)
        )
        for rows in found:
            columns: dict[str, Any] = {
                each.name: micros(rows[each.name]) if each.type == TIME else rows[each.name]
                for each in self._columns
                if each.name != "stream"
            }
            columns["stream"] = repeated_text(self._stream, rows.num_rows)
            if self._values is not None:
                columns[DECODED], columns[ERROR] = self._decoded(rows, self._values)
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in self.names})

    def _decoded(self, rows: pa.RecordBatch, values: Values) -> tuple[pa.Array, pa.Array]:
        """Decodes values by their schemas; the second array has reasons for undecodable values and messages."""
        records, errors = list[Any](), list[str | None]()
        to_decode = self._to_decode(rows)
        for row in to_decode:
            error, record = row["error"], None
            if error is None and _has_value(row):
                try:
                    decoder = values.of(row["schema_version"])
                    self._require_fitting(decoder, values)
                    record = decoder.decode(row["value"], _key_bytes(row))
                except OffloaderError:  # the schema can't be used, for any value
                    raise
                except ValueError as cause:
                    error = self._refused(row, f"the value can't be decoded: {cause}", cause)
            records.append(record)
            errors.append(error)
        if DECODED not in self._table.names:  # nothing had a value
            return pa.nulls(rows.num_rows), pa.array(errors, pa.string())
        decoded, unfit = fitting_column(records, self._table.field(DECODED).type)
        for number, why in unfit.items():
            errors[number] = self._refused(to_decode[number], f"the value doesn't fit the column: {why}", why)
        return decoded, pa.array(errors, pa.string())

    def _to_decode(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        places = rows.select([name for name in ("ledger_id", "entry_id", "batch_index") if name in rows.schema.names])
        nothing = dict.fromkeys(_NEEDED)
        messages = (
            rows.select(_NEEDED).to_pylist()
            if self._content == "messages"
            else [{**nothing, "value": each} for each in rows["payload"].to_pylist()]
        )
        return [place | message for place, message in zip(places.to_pylist(), messages, strict=True)]

    def _require_fitting(self, decoder: TypedDecoder, values: Values) -> None:
        if id(decoder) in self._fitting:
            return
        missing = missing_columns(self._table, self._content, [each.type for each in values.known])
        if missing is not None:
            raise MissingColumns(missing)
        self._fitting.add(id(decoder))

    def _refused(self, row: dict[str, Any], why: str, cause: Exception) -> str:
        """The reason for the row, or ``CorruptError`` unless bad entries become rows."""
        if self._bad is BadEntry.ERROR:
            place = f"{row['ledger_id']}:{row['entry_id']}"
            place += f":{row['batch_index']}" if row.get("batch_index", -1) >= 0 else ""
            raise CorruptError(
                f"stream {self._stream}, {place}: {why}", hint=f"check the schema, or note that {_REMEDY}"
            ) from cause
        return why


def _has_value(row: dict[str, Any]) -> bool:
    """Whether its producer's schema describes the row: no part of a message, no server marker, not encrypted."""
    is_whole = row["marker_type"] is None and row["chunk_uuid"] is None
    return is_whole and not (row["encryption_keys"] or row["compacted_out"])


def _key_bytes(row: dict[str, Any]) -> bytes | None:
    key: str | None = row["key"]
    if key is None:
        return None
    return base64.b64decode(key) if row["key_is_base64"] else key.encode()


def micros(times: pa.Array) -> pa.Array:
    """Converts milliseconds to a table's microseconds; null outside of the years 1 to 9999."""
    values = times.view(pa.int64())
    shown = pc.and_(pc.greater_equal(values, TABLE_TIME_MS_MIN), pc.less_equal(values, TABLE_TIME_MS_MAX))
    return pc.multiply(pc.if_else(shown, values, None), _US_PER_MS).view(TIME)
