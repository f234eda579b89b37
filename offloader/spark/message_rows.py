"""Rows of ``content=messages``: how entries are decoded for Spark, and the messages' columns as Spark wants them.

Owns the differences between Spark's columns and those of ``formats.pulsar``: the stream's name, microseconds, which may
be null. Must never fetch or decode by itself.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from formats.pulsar.messages import BadEntry, MessageOptions
from offloader.spark.options import SourceOptions

__all__ = ["for_spark", "message_options"]

_US_PER_MS = 1000


def message_options(options: SourceOptions, schema: pa.Schema, *, rows_max: int, bytes_max: int) -> MessageOptions:
    """How to decode for these columns; the stream's name isn't one that entries hold."""
    names = tuple(name for name in schema.names if name != "stream")
    return MessageOptions(
        columns=names or ("batch_index",),
        bad_entries=BadEntry.NULL if options.bad_messages_are_rows else BadEntry.ERROR,
        markers=options.markers,
        payload_bytes_max=options.message_bytes_max,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )


def for_spark(messages: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """The columns of ``schema``, in its order."""
    return pa.RecordBatch.from_arrays([_column(field, messages, stream) for field in schema], schema=schema)


def _column(field: pa.Field, messages: pa.RecordBatch, stream: str) -> pa.Array:
    if field.name == "stream":
        return pa.repeat(pa.scalar(stream), messages.num_rows)
    column = messages.column(field.name)
    if pa.types.is_timestamp(field.type):  # ms; the decoder lets no time through that overflows as us
        return pc.multiply(column.view(pa.int64()), _US_PER_MS).view(field.type)
    return column
