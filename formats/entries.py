"""Positions, entries, columnar batches of entries, and the byte types that decoders accept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.errors import InconsistentError, require_at_most, require_equal

#: Any contiguous byte buffer.
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8] | pa.Buffer
#: uint8, shape (n,).
Bytes: TypeAlias = NDArray[np.uint8]


def byte_array(data: Buffer) -> Bytes:
    """A uint8 view of ``data``, shape (n,); shares the memory."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        return data
    return np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)


class Pieces:
    """A body of several byte pieces, sent without a copy into one.

    Its length is that of all bytes; ``bytes(pieces)`` copies them into one. Compares with any bytes.

    Args:
        pieces: in order; immutable from here on.
    """

    __slots__ = ("_size_bytes", "views")

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self.views: Sequence[memoryview] = tuple(byte_array(piece).data for piece in pieces if len(piece))
        self._size_bytes = sum(map(len, self.views))

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.views)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, bytes | bytearray | memoryview | Pieces):
            return NotImplemented
        return len(self) == len(other) and bytes(self) == bytes(other)


def views_of(body: Buffer | Pieces) -> Sequence[memoryview]:
    """The pieces of ``body`` in order, without a copy."""
    if isinstance(body, Pieces):
        return body.views
    return (byte_array(body).data,) if len(body) else ()


#: Publish time of an entry without a recorded one.
TIME_UNKNOWN_MS = -1
#: Lower limit of publish times in every format: the least int64 means "none" in Arrow, NumPy and Java.
TIME_MS_MIN = -(2**63) + 1
TIME_MS_MAX = 2**63 - 1
#: ``[entry_len int32][entry_id int64]`` before each payload in a block (PIP-17, PIP-76).
ENTRY_HEADER_BYTES = 12
#: Payload bytes of one batch: Arrow's ``binary`` type counts its offsets in 32 bits.
BATCH_BYTES_MAX = 2**31 - 1

_POSITION = re.compile(r"(-?\d{1,19}):(-?\d{1,19})")
_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("publish_time", pa.timestamp("ms", tz="UTC")),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


class Position(NamedTuple):
    """A position in a stream: (ledger id, entry id). Ordered as in the stream."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    def next(self) -> Position:
        """The position after this one in its ledger, whether or not there is an entry."""
        return Position(self.ledger_id, self.entry_id + 1)

    def previous(self) -> Position:
        """The position before this one in its ledger; entry id -1 before the first entry."""
        return Position(self.ledger_id, self.entry_id - 1)

    @classmethod
    def parse(cls, text: str) -> Position:
        """``"7:12"`` -> ``Position(7, 12)``; raises ``ValueError`` for anything else."""
        match = _POSITION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"a position is written LEDGER:ENTRY, for example 7:12, not {text!r}")
        return cls(int(match[1]), int(match[2]))


class Entry(NamedTuple):
    """One opaque entry of a stream.

    ``publish_time_ms`` is milliseconds since 1970 UTC, or ``TIME_UNKNOWN_MS``.
    """

    ledger_id: int
    entry_id: int
    payload: bytes
    publish_time_ms: int = TIME_UNKNOWN_MS

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


@dataclass(frozen=True, slots=True, eq=False)
class EntryBatch:
    """Entries of one ledger, in columns.

    Attributes:
        entry_ids: int64, shape (n,), strictly ascending.
        payloads: Arrow ``binary`` array of n non-null values over one contiguous buffer.
        publish_times_ms: int64, shape (n,), ``TIME_UNKNOWN_MS`` where unknown.
    """

    ledger_id: int
    entry_ids: NDArray[np.int64]
    payloads: pa.BinaryArray
    publish_times_ms: NDArray[np.int64]

    @classmethod
    def build(
        cls,
        ledger_id: int,
        first_entry_id: int,
        payloads: Sequence[bytes] | pa.Array,
        publish_times_ms: Sequence[int] | NDArray[np.int64] | int = TIME_UNKNOWN_MS,
    ) -> EntryBatch:
        """A batch of consecutive entries.

        Args:
            first_entry_id: id of the first entry; the others follow without gaps.
            payloads: n byte strings, or an Arrow binary array without nulls.
            publish_times_ms: n times in ms, or one time for all.

        Raises:
            LimitExceededError: more than ``BATCH_BYTES_MAX`` payload bytes.
            InconsistentError: nulls among the payloads, not as many times as payloads, or a time that int64 can't hold.
        """
        array = _binary_array(payloads)
        count = len(array)
        if isinstance(publish_times_ms, int):
            times = np.full(count, publish_times_ms, dtype=np.int64)
        else:
            given = np.asarray(publish_times_ms)
            if given.dtype.kind == "u" and given.size and int(given.max()) > TIME_MS_MAX:
                raise InconsistentError("publish time", expected=f"at most {TIME_MS_MAX}", found=int(given.max()))
            times = np.asarray(given, dtype=np.int64)
        require_equal("publish times and payloads differ in number", times.shape, (count,))
        return cls(ledger_id, np.arange(first_entry_id, first_entry_id + count, dtype=np.int64), array, times)

    def __len__(self) -> int:
        return len(self.entry_ids)

    @property
    def first(self) -> Position:
        """Position of the first entry; the batch must not be empty."""
        return Position(self.ledger_id, int(self.entry_ids[0]))

    @property
    def last(self) -> Position:
        """Position of the last entry; the batch must not be empty."""
        return Position(self.ledger_id, int(self.entry_ids[-1]))

    @property
    def offsets(self) -> NDArray[np.int32]:
        """int32, shape (n + 1,): where each payload begins and ends in ``data``."""
        if len(self.payloads) == 0:
            return np.zeros(1, dtype=np.int32)
        buffer = self.payloads.buffers()[1]
        start = self.payloads.offset
        return np.frombuffer(buffer, dtype=np.int32)[start : start + len(self) + 1]

    @property
    def data(self) -> memoryview:
        """The buffer that ``offsets`` point into."""
        buffer = self.payloads.buffers()[2] if len(self.payloads) else None
        return memoryview(b"" if buffer is None else buffer)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32, shape (n,): payload bytes of each entry."""
        return np.diff(self.offsets)

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of all entries together."""
        offsets = self.offsets
        return int(offsets[-1]) - int(offsets[0])

    @property
    def wire_bytes(self) -> int:
        """Bytes the entries take in a block: payloads and a 12-byte header each."""
        return self.payload_bytes + ENTRY_HEADER_BYTES * len(self)

    def slice(self, start: int, stop: int) -> EntryBatch:
        """Entries ``start`` (included) to ``stop`` (excluded), by index; shares the memory."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return self._part(start, max(start, stop))

    def _part(self, start: int, stop: int) -> EntryBatch:
        return EntryBatch(
            self.ledger_id,
            self.entry_ids[start:stop],
            self.payloads.slice(start, stop - start),
            self.publish_times_ms[start:stop],
        )

    def between(self, first: Position, last: Position) -> EntryBatch:
        """The entries with ``first <= position <= last``; shares the memory."""
        ids, count = self.entry_ids, len(self.entry_ids)
        low = 0 if first.ledger_id < self.ledger_id else count
        if first.ledger_id == self.ledger_id:
            low = int(ids.searchsorted(first.entry_id))
        high = count if last.ledger_id > self.ledger_id else 0
        if last.ledger_id == self.ledger_id:
            # A read of one entry: the next one is either it, or outside the range.
            is_one = first == last and low < count
            high = low + int(ids[low] == last.entry_id) if is_one else int(ids.searchsorted(last.entry_id, "right"))
        return self if high - low == count else self._part(low, max(low, high))

    def copy(self) -> EntryBatch:
        """A copy of the entries in separate memory, as small as possible."""
        offsets = self.offsets
        held = byte_array(self.data)[int(offsets[0]) : int(offsets[-1])]
        # Arrow's memory, because freed large batches would fragment the heap.
        data = pa.allocate_buffer(len(held))
        byte_array(data)[:] = held
        own = pa.py_buffer((offsets - offsets[0]).astype(np.int32))
        payloads = pa.BinaryArray.from_buffers(pa.binary(), len(self), [None, own, data], null_count=0)
        return EntryBatch(self.ledger_id, self.entry_ids.copy(), payloads, self.publish_times_ms.copy())

    def compact(self) -> EntryBatch:
        """This batch if it fills at least four fifths of its buffer, else a copy. Its memory must be immutable."""
        buffer = self.payloads.buffers()[2] if len(self) else None
        shared = buffer is not None and buffer.size > self.payload_bytes + self.payload_bytes // 4
        return self.copy() if shared else self

    def entries(self) -> Iterator[Entry]:
        """Iterates over the entries (a convenience; hot paths use the columns)."""
        for entry_id, payload, time_ms in zip(
            self.entry_ids.tolist(), self.payloads.to_pylist(), self.publish_times_ms.tolist(), strict=True
        ):
            yield Entry(self.ledger_id, entry_id, payload, time_ms)

    def to_arrow(self) -> pa.RecordBatch:
        """Columns ledger_id, entry_id, publish_time (ms, UTC, null = unknown), payload; payload zero-copy."""
        unknown = self.publish_times_ms == TIME_UNKNOWN_MS
        times = pa.array(self.publish_times_ms, type=pa.int64(), mask=unknown if unknown.any() else None)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(len(self), self.ledger_id, dtype=np.int64)),
                pa.array(self.entry_ids),
                times.cast(_SCHEMA.field("publish_time").type),
                self.payloads,
            ],
            schema=_SCHEMA,
        )

    @classmethod
    def concat(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """One batch of all entries of ``batches`` (one ledger, ascending, at least one batch).

        Raises:
            InconsistentError: batches of several ledgers, or out of order.
            LimitExceededError: together more than ``BATCH_BYTES_MAX`` payload bytes.
        """
        if len(batches) == 1:
            return batches[0]
        ledger_id = batches[0].ledger_id
        for before, after in itertools.pairwise(batch for batch in batches if len(batch)):
            if before.last >= after.first or after.ledger_id != ledger_id:
                raise InconsistentError(
                    "batches don't follow each other", expected=f"after {before.last}", found=after.first
                )
        require_at_most("a batch holds too many bytes", sum(each.payload_bytes for each in batches), BATCH_BYTES_MAX)
        return cls(
            ledger_id,
            np.concatenate([batch.entry_ids for batch in batches]),
            pa.concat_arrays([batch.payloads for batch in batches]),
            np.concatenate([batch.publish_times_ms for batch in batches]),
        )


def _binary_array(payloads: Sequence[bytes] | pa.Array) -> pa.BinaryArray:
    if isinstance(payloads, pa.Array):
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
    else:
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        require_at_most("a batch holds too many bytes", int(lengths.sum()), BATCH_BYTES_MAX)
        array = _joined(payloads, lengths)
    if array.null_count:
        raise InconsistentError("an entry's payload is null", expected="bytes", found="null")
    return array


def _joined(payloads: Sequence[bytes], lengths: NDArray[np.int64]) -> pa.BinaryArray:
    """The array of byte strings; ``pyarrow.array`` of a list imports pandas first, which can take seconds."""
    try:
        data = b"".join(payloads)
    except TypeError:
        data = None
    if data is None or len(data) != lengths.sum():  # not only bytes: None, for example, or what Arrow refuses
        return pa.array(payloads, type=pa.binary())
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def repeated_text(text: str, count: int) -> pa.StringArray:
    """A column of ``count`` equal texts, for instance the stream of each row. Together at most 2 GiB.

    ``pyarrow.repeat`` appends texts one by one: 0.1 us each, with small entries as much as everything else of a scan.

    Raises:
        LimitExceededError: the texts are longer together.
    """
    encoded = text.encode()
    require_at_most("a column of texts holds too many bytes", len(encoded) * count, BATCH_BYTES_MAX)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(encoded * count))
