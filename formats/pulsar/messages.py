"""Decodes stored Pulsar entries into Arrow columns of messages."""

from __future__ import annotations

import base64
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.errors import FormatError, InconsistentError, require_at_most
from formats.metadata import pulsar_message_pb2
from formats.pulsar import PAYLOAD_BYTES_LIMIT, PAYLOAD_BYTES_MAX
from formats.pulsar.chunks import ChunkJoiner
from formats.pulsar.entry import (
    MESSAGE_BYTES_MIN,
    Frame,
    PayloadCodec,
    codec_name,
    decode_frame,
    decompress_payload,
    signed64,
    split_batch,
)

#: ``batch_index`` of a message that is a whole entry, as in Pulsar's message ids.
NOT_IN_A_BATCH: Final = -1

_PROTOCOL: Any = pulsar_message_pb2
#: Placeholder for the metadata of an unreadable message.
NOTHING: Final[Any] = _PROTOCOL.SingleMessageMetadata()


class Piece(NamedTuple):
    """Rows of one entry: all of them, or a section of a large batch.

    Attributes:
        metadata, broker: protobuf; ``None`` where it couldn't be read, the broker's also where there is none.
        first: index in the batch of the first row, or ``NOT_IN_A_BATCH``.
        singles: the messages' own metadata (protobuf), of as many rows as could be read; none if not requested.
        payload: bytes that hold them all; of a message that isn't in a batch, its own.
        starts, ends: where the bytes of messages of a batch are in ``payload``, before ``shift`` is subtracted.
        error: why the other rows, or if there is no other something in the last row, couldn't be read.
        more_bytes: about how much memory the rows take besides their payload.
    """

    entry_id: int
    metadata: Any
    broker: Any
    first: int = NOT_IN_A_BATCH
    rows: int = 1
    singles: Sequence[Any] = ()
    payload: bytes = b""
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    shift: int = 0
    error: str | None = None
    more_bytes: int = 0


class MessageRows:
    """Rows of one ledger.

    Attributes:
        payload_bytes: bytes of the payloads of pieces with readable messages.
        size_bytes: about how much memory the rows take.
        singles, starts, ends: a value per row, none when only columns of entries are wanted: the message's own metadata
            (``NOTHING`` where it couldn't be read) and where its bytes are in those payloads, joined.
        errors: row -> why it, or something in its entry, couldn't be read.
    """

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.count = self.payload_bytes = self.size_bytes = 0
        self.pieces: list[Piece] = []
        self.singles: list[Any] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.errors: dict[int, str] = {}

    def add(self, piece: Piece) -> None:
        """Appends the rows of ``piece``."""
        self.pieces.append(piece)
        self.count += piece.rows
        self.size_bytes += piece.more_bytes
        if piece.singles:
            size = len(piece.payload)
            self.singles += piece.singles
            if piece.first == NOT_IN_A_BATCH:
                self.starts.append(self.payload_bytes)
                self.ends.append(self.payload_bytes + size)
            else:
                shift = self.payload_bytes - piece.shift
                self.starts += [shift + start for start in piece.starts]
                self.ends += [shift + end for end in piece.ends]
            self.payload_bytes += size
            self.size_bytes += size
        if piece.error is not None:
            self._add_unread(piece.rows - len(piece.singles), piece.error)

    def _add_unread(self, unread: int, reason: str) -> None:
        """Marks the last ``unread`` rows as without content; the reason goes to them, or to the last row."""
        self.singles += [NOTHING] * unread
        self.starts += [self.payload_bytes] * unread
        self.ends += [self.payload_bytes] * unread
        self.errors.update(dict.fromkeys(range(self.count - max(unread, 1), self.count), reason))


#: Last millisecond of the year 9999: later values aren't times, and Python and Spark can't show them.
TIME_MS_MAX: Final = 253_402_300_799_999

_TIME = pa.timestamp("ms", tz="UTC")
_PROPERTIES = pa.map_(pa.string(), pa.string())
_ENCRYPTION_KEY = pa.struct(
    [pa.field("name", pa.string()), pa.field("value", pa.binary()), pa.field("metadata", _PROPERTIES)]
)

#: Column -> type, in the order of ``COLUMNS``. Available without reading the payload.
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
#: Columns of each message of a batch: the payload has to be decompressed and split.
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
#: All columns of a decoder.
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
    return [
        {
            "name": _text(key.key),
            "value": key.value,
            "metadata": [(_text(item.key), _text(item.value)) for item in key.metadata],
        }
        for key in m.encryption_keys
    ] or None


#: How each column is derived from an entry's ``MessageMetadata``.
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
    """One value per entry; null where the metadata is ``None`` (couldn't be read) or lacks the field."""
    if name == "broker_time":
        return pa.array([None if b is None else _time_or_none(b.broker_timestamp) for b in brokers], _TIME)
    make = _OF_METADATA[name]
    values = [None if m is None else make(m) for m in metadata]
    kind = COLUMNS[name]
    return text_column(values) if kind == pa.string() else pa.array(values, kind)


def text_column(values: Sequence[Any]) -> pa.Array:
    """Text fields; a byte that isn't UTF-8 becomes ``\\xff``: Pulsar doesn't enforce UTF-8."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: str | bytes) -> str:
    """A text field; protobuf returns bytes if it isn't UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def key_column(keys: list[Any], is_base64: list[bool], is_null: NDArray[np.bool_] | None) -> tuple[pa.Array, pa.Array]:
    """Keys, and whether each is base64 of the real key; keys that aren't UTF-8 are base64-encoded without loss."""
    try:
        texts = pa.array(keys, pa.string())
    except pa.ArrowInvalid:
        is_base64 = [isinstance(key, bytes) or given for key, given in zip(keys, is_base64, strict=True)]
        plain = [base64.b64encode(key).decode() if isinstance(key, bytes) else key for key in keys]
        texts = pa.array(plain, pa.string())
    return texts, pa.array(is_base64, pa.bool_(), mask=is_null)


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
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    if count == 0:
        return pa.array([], pa.binary())
    if starts[0] == 0 and ends[-1] == len(data) and (starts[1:] == ends[:-1]).all():
        bounds = np.concatenate([starts, ends[-1:]]).astype(np.int32)
        return pa.BinaryArray.from_buffers(pa.binary(), count, [valid, pa.py_buffer(bounds), pa.py_buffer(data)])
    # Every second value of (slice, gap, slice, ...) over the same bytes.
    both = np.empty(2 * count, dtype=np.int32)
    both[0::2], both[1::2] = starts, ends
    column = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(both), pa.py_buffer(data)], null_count=0
    )
    return column.take(
        pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=is_null if valid is not None else None)
    )


def record_batch(rows: MessageRows, names: Sequence[str]) -> pa.RecordBatch:
    """All of ``rows`` as one record batch of the columns ``names``."""
    table = _Table(rows)
    return pa.RecordBatch.from_arrays([table.column(name) for name in names], schema=schema_of(names))


class _Table:
    """Builds the columns of collected rows; ``owners`` is each row's piece."""

    def __init__(self, rows: MessageRows) -> None:
        self.rows = rows
        self.metadata = [piece.metadata for piece in rows.pieces]
        self.brokers = [piece.broker for piece in rows.pieces]
        self.counts = np.array([piece.rows for piece in rows.pieces], dtype=np.int64)
        self.firsts = np.array([piece.first for piece in rows.pieces], dtype=np.int64)
        self.is_batch = self.firsts != NOT_IN_A_BATCH
        self.owners = np.repeat(np.arange(len(self.counts)), self.counts)
        self.unread: NDArray[np.bool_] | None = None
        if rows.errors and rows.singles:
            unread = np.array([single is NOTHING for single in rows.singles], dtype=bool)
            self.unread = unread if unread.any() else None

    def column(self, name: str) -> pa.Array:
        if name in _MAKERS:
            return _MAKERS[name](self)
        return self.expanded(entry_column(name, self.metadata, self.brokers))

    def expanded(self, of_entries: pa.Array) -> pa.Array:
        """Expands a value per entry to a value per row."""
        return of_entries if len(of_entries) == len(self.owners) else of_entries.take(pa.array(self.owners))

    @functools.cached_property
    def batch_indices(self) -> NDArray[np.int64]:
        before = np.cumsum(self.counts) - self.counts
        indices = np.arange(self.rows.count, dtype=np.int64) + (self.firsts - before)[self.owners]
        return np.where(self.is_batch[self.owners], indices, NOT_IN_A_BATCH)

    @functools.cached_property
    def event_times_ms(self) -> NDArray[np.uint64]:
        """Event time of each message, else of its batch; 0 if not set."""
        own = np.array([single.event_time for single in self.rows.singles], dtype=np.uint64)
        return np.where(own == 0, self.of_entries("event_time")[self.owners], own)

    @functools.cached_property
    def keys(self) -> tuple[pa.Array, pa.Array]:
        singles = self.rows.singles
        keys = [single.partition_key or ("" if single.HasField("partition_key") else None) for single in singles]
        return key_column(keys, [single.partition_key_b64_encoded for single in singles], self.unread)

    @functools.cached_property
    def compacted_out(self) -> list[bool]:
        """Only for messages of a batch: the field isn't one of an entry's metadata."""
        is_batch = self.is_batch[self.owners].tolist()
        return [inside and single.compacted_out for single, inside in zip(self.rows.singles, is_batch, strict=True)]

    def of_entries(self, name: str) -> NDArray[np.uint64]:
        """A numeric field of each entry's metadata, 0 where that couldn't be read."""
        return np.array([0 if m is None else getattr(m, name) for m in self.metadata], dtype=np.uint64)

    def masked(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """A value per row, null in rows that couldn't be read."""
        return pa.array(values, kind, mask=self.unread)


def _broker_index(table: _Table) -> pa.Array:
    """Computed from the broker's index of the entry, which is that of its last message."""
    brokers = table.brokers
    known = np.array([broker is not None and broker.HasField("index") for broker in brokers], dtype=bool)
    last = np.array([broker.index if there else 0 for broker, there in zip(brokers, known, strict=True)], np.uint64)
    is_batch = table.is_batch
    sizes = [m.num_messages_in_batch if batch else 0 for m, batch in zip(table.metadata, is_batch, strict=True)]
    sizes_of_rows = np.array(sizes, dtype=np.int64)[table.owners]
    behind = np.where(is_batch[table.owners], sizes_of_rows - 1 - table.batch_indices, 0)
    return pa.array(last.view(np.int64)[table.owners] - behind, mask=~known[table.owners])


def _sequence_id(table: _Table) -> pa.Array:
    """Sequence id of each message, else of its batch, as in Pulsar."""
    singles, metadata = table.rows.singles, table.metadata
    ids = [single.sequence_id for single in singles]
    for row, number in enumerate(ids):
        if number == 0 and not singles[row].HasField("sequence_id") and singles[row] is not NOTHING:
            ids[row] = metadata[table.owners[row]].sequence_id
    if ids and max(ids) >= 2**63:
        ids = [signed64(number) for number in ids]
    return table.masked(ids, pa.int64())


def _ordering_key(table: _Table) -> pa.Array:
    keys = [each.ordering_key or (b"" if each.HasField("ordering_key") else None) for each in table.rows.singles]
    return pa.array(keys, pa.binary())


def _value(table: _Table) -> pa.Array:
    rows = table.rows
    is_null = np.array([single.null_value for single in rows.singles], dtype=bool)
    is_null |= np.array(table.compacted_out, dtype=bool)
    if table.unread is not None:
        is_null |= table.unread
    return binary_column(
        b"".join(piece.payload for piece in rows.pieces if piece.singles),
        np.array(rows.starts, dtype=np.int64),
        np.array(rows.ends, dtype=np.int64),
        is_null,
    )


def _error(table: _Table) -> pa.Array:
    """Why a row couldn't be read, or which of its times is invalid."""
    reasons = dict(table.rows.errors)
    beyond = {"publish_time": table.of_entries("publish_time")[table.owners], "event_time": table.event_times_ms}
    for name, times_ms in beyond.items():
        for row in np.flatnonzero(times_ms > TIME_MS_MAX).tolist():
            reasons.setdefault(row, f"{name} {times_ms[row]} ms is beyond the year 9999")
    if not reasons:
        return pa.nulls(table.rows.count, pa.string())
    return pa.array([reasons.get(row) for row in range(table.rows.count)], pa.string())


_MAKERS: Final[dict[str, Callable[[_Table], pa.Array]]] = {
    "ledger_id": lambda table: pa.array(np.full(table.rows.count, table.rows.ledger_id, dtype=np.int64)),
    "entry_id": lambda table: pa.array(
        np.array([piece.entry_id for piece in table.rows.pieces], dtype=np.int64)[table.owners]
    ),
    "batch_index": lambda table: pa.array(table.batch_indices.astype(np.int32)),
    "broker_index": _broker_index,
    "publish_time": lambda table: table.expanded(time_column(table.of_entries("publish_time"))),
    "key": lambda table: table.keys[0],
    "key_is_base64": lambda table: table.keys[1],
    "null_key": lambda table: table.masked([single.null_partition_key for single in table.rows.singles], pa.bool_()),
    "ordering_key": _ordering_key,
    "event_time": lambda table: time_column(table.event_times_ms),
    "sequence_id": _sequence_id,
    "properties": lambda table: properties_column(table.rows.singles, table.unread),
    "value": _value,
    "compacted_out": lambda table: table.masked(table.compacted_out, pa.bool_()),
    "error": _error,
}
assert set(_MAKERS) <= set(COLUMNS)


#: Limit of the declared messages of an entry. Pulsar's producers send 1,000 by default.
BATCH_MESSAGES_MAX = 1_000_000
#: Defaults of a record batch's size.
ROWS_MAX = 16_384
BYTES_MAX = 4 * 1024 * 1024


class BadEntry(enum.Enum):
    """How to handle an entry that isn't a message, or is damaged."""

    ERROR = "error"
    NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """Decoder options.

    Attributes:
        columns: the wanted ones of ``COLUMNS``, in that order, at least one. Without one of ``ROW_COLUMNS`` nothing is
            decompressed.
        bad_entries: ``ERROR`` raises; ``NULL`` makes a row whose unreadable columns are null, with the reason in the
            column ``error``.
        markers: whether to return entries that Pulsar's servers wrote for themselves.
        join_chunks: a large message that was cut into entries is one row, of its last chunk's entry and without columns
            of chunks; one of which a chunk is missing is none (``MessageDecoder.incomplete``).
        decrypt: opens an encrypted payload, given the entry's metadata; ``None`` leaves it encrypted.
        payload_bytes_max: limit of one entry's decompressed payload; at most 1 GiB.
        rows_max, bytes_max: a record batch ends with the entry, or the ``rows_max`` messages of a batch, that reach one
            of them.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    bad_entries: BadEntry = BadEntry.ERROR
    markers: bool = True
    join_chunks: bool = False
    decrypt: Callable[[Any, bytes], bytes | None] | None = None
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    batch_messages_max: int = BATCH_MESSAGES_MAX
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        if self.rows_max < 1:
            raise ValueError(f"rows_max is at least 1, not {self.rows_max}")
        if not self.columns:
            raise ValueError("no columns of messages: rows of nothing can't be counted")
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise ValueError(f"unknown columns of messages: {', '.join(unknown)}; use {', '.join(COLUMNS)}")
        if not 0 < self.payload_bytes_max <= PAYLOAD_BYTES_LIMIT:
            raise ValueError(f"payload_bytes_max is between 1 and {PAYLOAD_BYTES_LIMIT}, not {self.payload_bytes_max}")

    @property
    def needs_payloads(self) -> bool:
        return any(name in ROW_COLUMNS for name in self.columns)


class MessageDecoder:
    """Decodes the entries of one stream.

    Args:
        source: where the entries come from, for error messages: ``"orders"`` gives "orders entry 7:12".
    """

    def __init__(self, options: MessageOptions, *, source: str = "") -> None:
        self._options = options
        self._source = source
        self._needs_payloads = options.needs_payloads
        self._chunks = ChunkJoiner(options.payload_bytes_max)

    @property
    def incomplete(self) -> int:
        """Chunked messages of which not all chunks came so far, with ``join_chunks``."""
        return self._chunks.incomplete

    def decode(self, batch: EntryBatch) -> Iterator[pa.RecordBatch]:
        """The messages of ``batch``, in order, in record batches of about the wanted size (none is empty).

        Raises:
            FormatError: one of its kinds, unless ``bad_entries`` is ``NULL``; it names source and position, and the
                offset in the entry or, after "of a batch", in the decompressed payload.
        """
        options, data, bounds = self._options, batch.data, batch.offsets.tolist()
        rows = MessageRows(batch.ledger_id)
        try:
            for number, entry_id in enumerate(batch.entry_ids.tolist()):
                for piece in self._pieces(batch.ledger_id, entry_id, bytes(data[bounds[number] : bounds[number + 1]])):
                    rows.add(piece)
                    if rows.count >= options.rows_max or rows.size_bytes >= options.bytes_max:
                        yield record_batch(rows, options.columns)
                        rows = MessageRows(batch.ledger_id)
        except FormatError:
            if rows.count:  # rows before the damage are valid
                yield record_batch(rows, options.columns)
            raise
        if rows.count:
            yield record_batch(rows, options.columns)

    def _pieces(self, ledger_id: int, entry_id: int, entry: bytes) -> Iterable[Piece]:
        """The rows of one entry; bad entries too, unless they raise."""
        try:
            frame = decode_frame(entry)
            metadata = frame.metadata
            if not self._options.markers and metadata.HasField("marker_type"):
                return ()
            if self._options.decrypt is not None:
                entry = self._opened(entry, frame, self._options.decrypt)
            is_sealed = len(metadata.encryption_keys) > 0
            is_chunk = metadata.num_chunks_from_msg > 1
            if is_chunk and self._options.join_chunks and not is_sealed:
                joined = self._chunks.add(metadata, entry[frame.payload_start :] if self._needs_payloads else b"")
                if joined is None:
                    return ()
                entry = entry[: frame.payload_start] + joined
                metadata.ClearField("num_chunks_from_msg")
                is_chunk = False
            # A chunk of a message, or encrypted: such a payload can be neither decompressed nor split.
            opaque = is_chunk or is_sealed
            is_batch = not opaque and metadata.HasField("num_messages_in_batch")
            count = self._batch_count(frame, len(entry)) if is_batch else 0
        except FormatError as error:
            return (Piece(entry_id, None, None, error=self._refused(ledger_id, entry_id, error)),)
        reason, payload = None, b""
        if self._needs_payloads:
            try:
                payload = entry[frame.payload_start :] if opaque else self._payload(frame, entry)
            except FormatError as error:
                reason = self._refused(ledger_id, entry_id, error)
        if is_batch:
            whole = Piece(entry_id, metadata, frame.broker, more_bytes=frame.payload_start)
            if self._needs_payloads and reason is None:
                return self._batch_pieces(ledger_id, whole, count, payload)
            return self._rows_without_content(whole, 0, count, reason)
        singles = (metadata,) if self._needs_payloads and reason is None else ()
        broker, more = frame.broker, frame.payload_start
        return (Piece(entry_id, metadata, broker, singles=singles, payload=payload, error=reason, more_bytes=more),)

    def _opened(self, entry: bytes, frame: Frame, decrypt: Callable[[Any, bytes], bytes | None]) -> bytes:
        """The entry with its payload decrypted, if there is a key; its metadata then has no encryption."""
        metadata = frame.metadata
        plain = decrypt(metadata, entry[frame.payload_start :]) if metadata.encryption_keys else None
        if plain is None:
            return entry
        for name in ("encryption_keys", "encryption_algo", "encryption_param"):
            metadata.ClearField(name)
        return entry[: frame.payload_start] + plain

    def _batch_pieces(self, ledger_id: int, whole: Piece, count: int, payload: bytes) -> Iterator[Piece]:
        """A batch, at most ``rows_max`` messages at a time: a parsed message takes a hundred times its bytes."""
        repeated, start = _repeated_bytes(whole.metadata), 0
        for first in range(0, count, self._options.rows_max):
            stop = min(first + self._options.rows_max, count)
            part = split_batch(payload, start, first, stop, count)
            reason = None if part.error is None else self._refused(ledger_id, whole.entry_id, part.error)
            yield whole._replace(
                first=first,
                rows=stop - first,
                singles=part.singles,
                starts=part.starts,
                ends=part.ends,
                payload=payload if stop - first == count else payload[start : part.end],
                shift=start,
                error=reason,
                more_bytes=whole.more_bytes + (stop - first) * repeated,
            )
            if reason is not None:
                yield from self._rows_without_content(whole, stop, count, reason)
                return
            start = part.end

    def _rows_without_content(self, whole: Piece, first: int, count: int, reason: str | None) -> Iterator[Piece]:
        """Messages of a batch from ``first`` on whose payload is unreadable, or not requested (no reason)."""
        repeated = _repeated_bytes(whole.metadata)
        for begin in range(first, count, self._options.rows_max):
            rows = min(self._options.rows_max, count - begin)
            yield whole._replace(first=begin, rows=rows, error=reason, more_bytes=whole.more_bytes + rows * repeated)

    def _batch_count(self, frame: Frame, entry_bytes: int) -> int:
        options, metadata = self._options, frame.metadata
        count = int(metadata.num_messages_in_batch)
        stored = entry_bytes - frame.payload_start
        size = stored if metadata.compression == PayloadCodec.NONE else metadata.uncompressed_size
        if count < 1 or count * MESSAGE_BYTES_MIN > size:
            raise InconsistentError("messages of a batch", expected=f"1 to {size // MESSAGE_BYTES_MIN}", found=count)
        require_at_most("messages of a batch", count, options.batch_messages_max)
        repeated = count * _repeated_bytes(metadata)
        require_at_most("metadata of a batch, once per message", repeated, options.payload_bytes_max, unit="bytes")
        return count

    def _payload(self, frame: Frame, entry: bytes) -> bytes:
        metadata, stored = frame.metadata, entry[frame.payload_start :]
        try:  # once for each entry: a context manager would take a tenth of the time
            return decompress_payload(
                metadata.compression, stored, metadata.uncompressed_size, self._options.payload_bytes_max
            )
        except FormatError as error:
            error.offset = frame.payload_start
            raise

    def _refused(self, ledger_id: int, entry_id: int, error: FormatError) -> str:
        """The error and its place, for rows; raises it unless bad entries become rows."""
        where = f"entry {ledger_id}:{entry_id}"
        error.object_name = f"{self._source} {where}" if self._source else where
        if self._options.bad_entries is BadEntry.ERROR:
            raise error
        return str(error)


def _repeated_bytes(metadata: Any) -> int:
    """Bytes of a batch's metadata that each of its rows copies."""
    return len(metadata.producer_name) + len(metadata.replicated_from) + len(metadata.schema_version)


def messages(batch: EntryBatch, options: MessageOptions | None = None, *, source: str = "") -> pa.Table:
    """All messages of ``batch`` as one table; raises as ``MessageDecoder.decode``.

    Holds the whole decompressed table in memory: for a long scan use a decoder, batch by batch.
    """
    options = options or MessageOptions()
    return pa.Table.from_batches(MessageDecoder(options, source=source).decode(batch), schema_of(options.columns))


def publish_times_ms(batch: EntryBatch) -> NDArray[np.int64]:
    """When each entry was published, from its own metadata if the batch has no time.

    Returns:
        int64, shape (n,): milliseconds since 1970 UTC, ``TIME_UNKNOWN_MS`` where the metadata can't be read either.
    """
    times, data, bounds = batch.publish_times_ms.copy(), batch.data, batch.offsets.tolist()
    for number in np.flatnonzero(times == TIME_UNKNOWN_MS).tolist():
        with suppress(FormatError):
            time_ms = decode_frame(bytes(data[bounds[number] : bounds[number + 1]])).metadata.publish_time
            if 0 < time_ms <= TIME_MS_MAX:
                times[number] = time_ms
    return times
