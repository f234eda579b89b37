"""Entries that Pulsar stored -> messages in Arrow columns.

Owns which rows an entry becomes and what happens to entries that can't be read. Must never make another number of
rows of an entry because other columns are wanted, nor hold more than a batch and one entry in memory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.errors import FormatError, Inconsistent, LimitExceeded
from formats.pulsar.batch import MESSAGE_BYTES_MIN, split_batch
from formats.pulsar.columns import COLUMNS, ROW_COLUMNS, TIME_MS_MAX, schema_of
from formats.pulsar.compression import PayloadCodec, decompress_payload
from formats.pulsar.frame import Frame, decode_frame
from formats.pulsar.rows import MessageRows, Piece
from formats.pulsar.table import record_batch

__all__ = [
    "BATCH_MESSAGES_MAX",
    "BYTES_MAX",
    "PAYLOAD_BYTES_LIMIT",
    "PAYLOAD_BYTES_MAX",
    "ROWS_MAX",
    "BadEntry",
    "MessageDecoder",
    "MessageOptions",
    "messages",
    "publish_times_ms",
]

#: Default for the most bytes that one payload may have once it is decompressed. Pulsar's brokers take 5 MiB.
PAYLOAD_BYTES_MAX = 128 * 1024 * 1024
#: Messages that one entry may claim. Pulsar's producers send 1,000 unless told otherwise.
BATCH_MESSAGES_MAX = 1_000_000
#: Defaults of a record batch's size.
ROWS_MAX = 16_384
BYTES_MAX = 4 * 1024 * 1024
#: Most that may be allowed: one entry's bytes come on top of a batch's, and Arrow counts both in 31 bits.
PAYLOAD_BYTES_LIMIT = 1 << 30


class BadEntry(enum.Enum):
    """What to do about an entry that isn't a message, or is damaged."""

    ERROR = "error"
    NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """How to decode.

    Attributes:
        columns: the wanted ones of ``COLUMNS``, in that order, at least one. Without one of ``ROW_COLUMNS`` nothing is
            decompressed.
        bad_entries: ``ERROR`` raises; ``NULL`` makes a row whose columns are null as far as they couldn't be read, with
            the reason in the column ``error``.
        markers: whether entries that Pulsar's servers wrote for themselves are rows too.
        payload_bytes_max: most bytes of one entry's payload after decompression; at most 1 GiB.
        batch_messages_max: most messages of one entry.
        rows_max, bytes_max: a record batch ends with the entry, or the ``rows_max`` messages of a batch, that reach one
            of them.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    bad_entries: BadEntry = BadEntry.ERROR
    markers: bool = True
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
            raise ValueError(f"no such columns of messages: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if not 0 < self.payload_bytes_max <= PAYLOAD_BYTES_LIMIT:
            raise ValueError(f"payload_bytes_max is between 1 and {PAYLOAD_BYTES_LIMIT}, not {self.payload_bytes_max}")

    @property
    def needs_payloads(self) -> bool:
        return any(name in ROW_COLUMNS for name in self.columns)


class MessageDecoder:
    """Decodes the entries of one stream.

    Args:
        options: what is wanted.
        source: where the entries come from, for error messages: ``"orders"`` gives "orders entry 7:12".
    """

    def __init__(self, options: MessageOptions, *, source: str = "") -> None:
        self._options = options
        self._source = source
        self._needs_payloads = options.needs_payloads

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
                entry = bytes(data[bounds[number] : bounds[number + 1]])
                for piece in self._pieces(batch.ledger_id, entry_id, entry):
                    rows.add(piece)
                    if rows.count >= options.rows_max or rows.size_bytes >= options.bytes_max:
                        yield record_batch(rows, options.columns)
                        rows = MessageRows(batch.ledger_id)
        except FormatError:
            if rows.count:  # what comes before the damage is whole
                yield record_batch(rows, options.columns)
            raise
        if rows.count:
            yield record_batch(rows, options.columns)

    def _pieces(self, ledger_id: int, entry_id: int, entry: bytes) -> Iterable[Piece]:
        """The rows of one entry; bad ones too, unless they raise."""
        try:
            frame = decode_frame(entry)
            metadata = frame.metadata
            if not self._options.markers and metadata.HasField("marker_type"):
                return ()
            # Part of a message, or encrypted: such a payload can be neither decompressed nor taken apart.
            opaque = metadata.num_chunks_from_msg > 1 or len(metadata.encryption_keys) > 0
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

    def _batch_pieces(self, ledger_id: int, whole: Piece, count: int, payload: bytes) -> Iterator[Piece]:
        """A batch, at most ``rows_max`` messages at a time: parsed, a message takes a hundred times its bytes."""
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
        """Messages of a batch from ``first`` on whose payload can't be read, or isn't wanted (no reason)."""
        repeated = _repeated_bytes(whole.metadata)
        for begin in range(first, count, self._options.rows_max):
            rows = min(self._options.rows_max, count - begin)
            yield whole._replace(first=begin, rows=rows, error=reason, more_bytes=whole.more_bytes + rows * repeated)

    def _batch_count(self, frame: Frame, entry_bytes: int) -> int:
        """How many messages a batch holds, if that is possible."""
        options, metadata = self._options, frame.metadata
        count = int(metadata.num_messages_in_batch)
        stored = entry_bytes - frame.payload_start
        size = stored if metadata.compression == PayloadCodec.NONE else metadata.uncompressed_size
        if count < 1 or count * MESSAGE_BYTES_MIN > size:
            raise Inconsistent("messages of a batch", expected=f"1 to {size // MESSAGE_BYTES_MIN}", found=count)
        if count > options.batch_messages_max:
            raise LimitExceeded("messages of a batch", expected=f"at most {options.batch_messages_max}", found=count)
        repeated = count * _repeated_bytes(metadata)
        if repeated > options.payload_bytes_max:
            raise LimitExceeded(
                "metadata of a batch, once per message",
                expected=f"at most {options.payload_bytes_max} bytes",
                found=repeated,
            )
        return count

    def _payload(self, frame: Frame, entry: bytes) -> bytes:
        metadata, stored = frame.metadata, entry[frame.payload_start :]
        if metadata.compression == PayloadCodec.NONE:
            return stored
        try:
            return decompress_payload(
                metadata.compression, stored, metadata.uncompressed_size, self._options.payload_bytes_max
            )
        except FormatError as error:
            error.offset = frame.payload_start
            raise

    def _refused(self, ledger_id: int, entry_id: int, error: FormatError) -> str:
        """What is wrong, and where, for rows; raised unless bad entries are rows."""
        where = f"entry {ledger_id}:{entry_id}"
        error.object_name = f"{self._source} {where}" if self._source else where
        if self._options.bad_entries is BadEntry.ERROR:
            raise error
        return str(error)


def _repeated_bytes(metadata: Any) -> int:
    """Bytes of a batch's metadata that each of its rows has a copy of."""
    return len(metadata.producer_name) + len(metadata.replicated_from) + len(metadata.schema_version)


def messages(batch: EntryBatch, options: MessageOptions | None = None, *, source: str = "") -> pa.Table:
    """All messages of ``batch`` as one table; what ``MessageDecoder.decode`` says of errors holds here too.

    The whole of it is in memory, decompressed: for a long scan use a decoder, and batch after batch.
    """
    options = options or MessageOptions()
    return pa.Table.from_batches(MessageDecoder(options, source=source).decode(batch), schema_of(options.columns))


def publish_times_ms(batch: EntryBatch) -> NDArray[np.int64]:
    """When each entry was published, by its own metadata where the batch doesn't know.

    Returns:
        int64, shape (n,): milliseconds since 1970 UTC, ``TIME_UNKNOWN_MS`` where the metadata can't be read either.
    """
    times, data, bounds = batch.publish_times_ms.copy(), batch.data, batch.offsets.tolist()
    for number in np.flatnonzero(times == TIME_UNKNOWN_MS).tolist():
        try:
            time_ms = decode_frame(bytes(data[bounds[number] : bounds[number + 1]])).metadata.publish_time
        except FormatError:
            continue
        if 0 < time_ms <= TIME_MS_MAX:
            times[number] = time_ms
    return times
