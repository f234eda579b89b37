"""The columns of messages: names, Arrow types, and how each is made of decoded metadata.

Owns what a column means. Must never parse: it is given protobuf messages that somebody decoded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.pulsar.compression import codec_name
from formats.pulsar.frame import signed64

__all__ = [
    "COLUMNS",
    "ENTRY_COLUMNS",
    "ROW_COLUMNS",
    "TIME_MS_MAX",
    "binary_column",
    "entry_column",
    "key_column",
    "properties_column",
    "schema_of",
    "text_column",
    "time_column",
]

#: Last millisecond of the year 9999: later "times" are something else, and Python and Spark can't show them.
TIME_MS_MAX: Final = 253_402_300_799_999

_TIME = pa.timestamp("ms", tz="UTC")
_PROPERTIES = pa.map_(pa.string(), pa.string())
_ENCRYPTION_KEY = pa.struct(
    [pa.field("name", pa.string()), pa.field("value", pa.binary()), pa.field("metadata", _PROPERTIES)]
)

#: Column -> type, in the order of ``COLUMNS``. These are known without looking into the payload.
ENTRY_COLUMNS: Final[dict[str, pa.DataType]] = {
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "batch_index": pa.int32(),
    "batch_size": pa.int32(),
    "publish_time": _TIME,
    "producer_name": pa.string(),
    "schema_version": pa.binary(),
    "replicated_from": pa.string(),
    "deliver_at": _TIME,
    "marker_type": pa.int32(),
    "txn_most_bits": pa.int64(),
    "txn_least_bits": pa.int64(),
    "chunk_uuid": pa.string(),
    "chunk_id": pa.int32(),
    "chunk_count": pa.int32(),
    "chunk_total_bytes": pa.int32(),
    "compression": pa.string(),
    "uncompressed_bytes": pa.int64(),
    "encryption_algorithm": pa.string(),
    "encryption_parameter": pa.binary(),
    "encryption_keys": pa.list_(_ENCRYPTION_KEY),
    "broker_time": _TIME,
    "broker_index": pa.int64(),
}
#: These come from each message of a batch, so the payload has to be decompressed and taken apart.
ROW_COLUMNS: Final[dict[str, pa.DataType]] = {
    "key": pa.string(),
    "key_is_base64": pa.bool_(),
    "null_key": pa.bool_(),
    "ordering_key": pa.binary(),
    "event_time": _TIME,
    "sequence_id": pa.int64(),
    "properties": _PROPERTIES,
    "value": pa.binary(),
    "compacted_out": pa.bool_(),
    "error": pa.string(),
}
#: All columns that a decoder can make.
COLUMNS: Final[dict[str, pa.DataType]] = ENTRY_COLUMNS | ROW_COLUMNS


def schema_of(names: Iterable[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order."""
    return pa.schema([pa.field(name, COLUMNS[name]) for name in names])


def _optional(name: str) -> Callable[[Any], object]:
    return lambda m: getattr(m, name) if m.HasField(name) else None


def _bits(name: str) -> Callable[[Any], object]:
    return lambda m: signed64(getattr(m, name)) if m.HasField(name) else None


def _chunk(name: str) -> Callable[[Any], object]:
    return lambda m: getattr(m, name) if m.num_chunks_from_msg > 1 else None


def _time(name: str) -> Callable[[Any], object]:
    return lambda m: _time_or_none(getattr(m, name))


def _time_or_none(value_ms: int) -> int | None:
    return value_ms if 0 < value_ms <= TIME_MS_MAX else None


def _encryption_keys(m: Any) -> object:
    if not m.encryption_keys:
        return None
    return [
        {
            "name": _text(key.key),
            "value": key.value,
            "metadata": [(_text(item.key), _text(item.value)) for item in key.metadata],
        }
        for key in m.encryption_keys
    ]


#: How a column is made of an entry's ``MessageMetadata``.
_OF_METADATA: Final[dict[str, Callable[[Any], object]]] = {
    "batch_size": _optional("num_messages_in_batch"),
    "producer_name": lambda m: m.producer_name,
    "schema_version": _optional("schema_version"),
    "replicated_from": _optional("replicated_from"),
    "deliver_at": _time("deliver_at_time"),
    "marker_type": _optional("marker_type"),
    "txn_most_bits": _bits("txnid_most_bits"),
    "txn_least_bits": _bits("txnid_least_bits"),
    "chunk_uuid": _chunk("uuid"),
    "chunk_id": _chunk("chunk_id"),
    "chunk_count": _chunk("num_chunks_from_msg"),
    "chunk_total_bytes": _chunk("total_chunk_msg_size"),
    "compression": lambda m: codec_name(m.compression),
    "uncompressed_bytes": _optional("uncompressed_size"),
    "encryption_algorithm": _optional("encryption_algo"),
    "encryption_parameter": _optional("encryption_param"),
    "encryption_keys": _encryption_keys,
}


def entry_column(name: str, metadata: Iterable[Any], brokers: Iterable[Any]) -> pa.Array:
    """One value per entry; null where the metadata is ``None`` (couldn't be read) or doesn't say."""
    if name == "broker_time":
        return pa.array([None if b is None else _time_or_none(b.broker_timestamp) for b in brokers], _TIME)
    make = _OF_METADATA[name]
    values = [None if m is None else make(m) for m in metadata]
    kind = COLUMNS[name]
    return text_column(values) if kind == pa.string() else pa.array(values, kind)


def text_column(values: Sequence[Any]) -> pa.Array:
    """Text fields; a byte that isn't UTF-8 becomes ``\\xff``: Pulsar's producers need not send UTF-8."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: str | bytes) -> str:
    """protobuf hands out bytes where a text field isn't UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def key_column(keys: list[Any], is_base64: list[bool], is_null: NDArray[np.bool_] | None) -> tuple[pa.Array, pa.Array]:
    """Keys and whether each is base64 of the real key: those that aren't UTF-8 become so, and lose nothing."""
    try:
        return pa.array(keys, pa.string()), pa.array(is_base64, pa.bool_(), mask=is_null)
    except pa.ArrowInvalid:
        for index, key in enumerate(keys):
            if isinstance(key, bytes):
                keys[index], is_base64[index] = base64.b64encode(key).decode("ascii"), True
        return pa.array(keys, pa.string()), pa.array(is_base64, pa.bool_(), mask=is_null)


def properties_column(messages: Iterable[Any], is_null: NDArray[np.bool_] | None) -> pa.MapArray:
    """Each message's properties; of several with one name the last counts, as in Pulsar."""
    offsets = [0]
    keys: list[Any] = []
    values: list[Any] = []
    for message in messages:
        found = message.properties
        if len(found) == 1:  # by far the most frequent number above 0
            keys.append(found[0].key)
            values.append(found[0].value)
        elif found:
            unique = {item.key: item.value for item in found}
            keys += unique.keys()
            values += unique.values()
        offsets.append(len(keys))
    bounds = pa.array(offsets, pa.int32(), mask=None if is_null is None else np.append(is_null, [False]))
    return pa.MapArray.from_arrays(bounds, text_column(keys), text_column(values))


def time_column(values_ms: NDArray[np.uint64]) -> pa.Array:
    """Times, null where 0 (none given) or beyond the year 9999."""
    known = (values_ms > 0) & (values_ms <= TIME_MS_MAX)
    return pa.array(values_ms.astype(np.int64), pa.int64(), mask=~known).cast(_TIME)


def binary_column(
    data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], is_null: NDArray[np.bool_]
) -> pa.BinaryArray:
    """Slices of ``data`` as one column; one copy, none where the slices fill ``data``.

    Args:
        data: fewer than 2^31 bytes.
        starts, ends: int64, shape (n,), ascending, none overlapping.
        is_null: bool, shape (n,).
    """
    count = len(starts)
    valid = None
    if is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    if count == 0:
        return pa.array([], pa.binary())
    if starts[0] == 0 and ends[-1] == len(data) and (starts[1:] == ends[:-1]).all():
        bounds = np.concatenate([starts, ends[-1:]]).astype(np.int32)
        return pa.BinaryArray.from_buffers(pa.binary(), count, [valid, pa.py_buffer(bounds), pa.py_buffer(data)])
    # Every second value of (slice, what is between, slice, ...) over the same bytes.
    both = np.empty(2 * count, dtype=np.int32)
    both[0::2], both[1::2] = starts, ends
    column = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(both), pa.py_buffer(data)], null_count=0
    )
    indices = pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=is_null if valid is not None else None)
    return column.take(indices)
