"""Builder of one block's bytes from entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.block import (
    BLOCK_HEADER_BYTES,
    COMPRESSED_PREFIX,
    END_MARKER_BYTES,
    Layout,
    encode_plain_header,
    interleave,
    padding,
)
from formats.block_memory import BlockMemory
from formats.checksum import crc32c
from formats.compression import Codec, compress
from formats.entries import ENTRY_HEADER_BYTES, Bytes, EntryBatch, Position, byte_array
from formats.extension import (
    ENTRY_TABLE_HEADER_BYTES,
    FLAG_INDEXED,
    TABLE_ENTRY_BYTES_MAX,
    BlockExtension,
    encode_block_extension,
    encode_entry_table,
    time_range,
)

__all__ = ["BlockBuilder", "EncodedBlock", "Stretch"]

#: Compression that saves less than a tenth costs readers more than it saves.
_COMPRESSED_SHARE_MAX = 0.9
#: The content of a less filled buffer is copied and the buffer released.
_FILLED_SHARE_MIN = 7 / 8


class Stretch(NamedTuple):
    """Contiguous bytes of a block, and their CRC-32C (``None`` if not computed yet)."""

    pieces: list[Bytes]
    crc32c: int | None = None


@dataclass(slots=True, kw_only=True)
class EncodedBlock:
    """A finished block. ``row`` is its ``formats.extension.ROW``, ``None`` without the extension."""

    ledger_id: int
    first_entry_id: int
    publish_time_min_ms: int
    publish_time_max_ms: int
    compressed: bool
    row: tuple[Any, ...] | None
    stretches: list[Stretch] = field(repr=False)

    def take_stretches(self) -> list[Stretch]:
        """The block's bytes, in order; callable once, so that a finished block holds no payload."""
        stretches, self.stretches = self.stretches, []
        return stretches


class BlockBuilder:
    """Builds one block after the other; see ``SegmentBuilder`` for the arguments."""

    def __init__(
        self, *, layout: Layout, block_bytes: int, codec: Codec, extension: bool, memory: BlockMemory | None
    ) -> None:
        self._layout = layout
        self._codec = codec
        self._extension = extension
        marker = END_MARKER_BYTES if extension or layout is Layout.V2 else 0
        self._tail_bytes = marker + (ENTRY_TABLE_HEADER_BYTES if extension else 0)
        self._entry_bytes = ENTRY_HEADER_BYTES + (TABLE_ENTRY_BYTES_MAX if extension else 0)
        self._block_bytes = block_bytes
        self._pads = layout is Layout.V1 and not extension
        self._memory = memory
        self._clear()

    def _clear(self) -> None:
        self._ledger_id = self._first_entry_id = -1
        self.entries = 0
        self._runs: list[Bytes] = []
        self._buffer: Bytes | None = None
        self._run_bytes = 0
        self._run_crc32c = 0
        self._lengths: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []

    @property
    def bytes_max(self) -> int:
        """Length of the block if it ended here, with the longest tail it may get; 0 while it is empty."""
        if self.entries == 0:
            return 0
        table_bytes = self.entries * (self._entry_bytes - ENTRY_HEADER_BYTES)
        return BLOCK_HEADER_BYTES + self._run_bytes + table_bytes + self._tail_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes in memory for this block: its entries, and 16 bytes of columns for each."""
        return self._run_bytes + 16 * self.entries

    def continues(self, position: Position) -> bool:
        """Whether the entry id continues this block."""
        return self.entries == 0 or position == (self._ledger_id, self._first_entry_id + self.entries)

    def take(self, batch: EntryBatch) -> int:
        """Adds as many leading entries as fit, at least one to an empty block; returns their number.

        Args:
            batch: not empty, ids consecutive, continuing this block.
        """
        room = max(self._block_bytes - (self.bytes_max or BLOCK_HEADER_BYTES + self._tail_bytes), 0)
        # No more than these can fit; a batch may be many blocks long.
        lengths = batch.slice(0, room // self._entry_bytes + 1).lengths.astype(np.int64)
        count = int(np.searchsorted(np.cumsum(lengths + self._entry_bytes), room, side="right"))
        if count == 0 and self.entries == 0:
            count = 1
        if count == 0:
            return 0
        if self.entries == 0:
            self._ledger_id, self._first_entry_id = batch.first
        taken = batch.slice(0, count)
        out = self._room_for(taken.wire_bytes)
        run = interleave(taken, out)
        if out is None:
            self._runs.append(run)
        self._run_bytes += len(run)
        if self._extension and self._codec is Codec.NONE:
            self._run_crc32c = crc32c(run, self._run_crc32c)
        self._lengths.append(lengths[:count])
        self._times.append(np.array(taken.publish_times_ms, dtype=np.int64))
        self.entries += count
        return count

    def _room_for(self, size_bytes: int) -> Bytes | None:
        """Where to write the next entries; ``None``: into memory of their own.

        A full-size buffer is used only once the block will fill it, so that slow streams hold little memory.
        """
        filled = self._run_bytes + size_bytes
        if self._memory is None or filled > self._memory.buffer_bytes:
            return None
        if self._buffer is None:
            if filled < self._memory.buffer_bytes // 2:
                return None
            self._buffer = self._memory.take()
            if self._runs:
                np.concatenate(self._runs, out=self._buffer[: self._run_bytes])
                self._runs = []
        return self._buffer[self._run_bytes : filled]

    def _run(self) -> list[Bytes]:
        """The entries so far, as encoded in the block."""
        if self._buffer is None:
            return self._runs
        run = self._buffer[: self._run_bytes]
        # Small entries, whose table takes room in the block: the rest of the buffer would be held uncounted.
        return [run if self._run_bytes >= _FILLED_SHARE_MIN * len(self._buffer) else run.copy()]

    def finish(self, *, is_last: bool) -> EncodedBlock:
        """Returns the block and empties the builder."""
        times = np.concatenate(self._times)
        earliest, latest, flags = time_range(times)
        block = EncodedBlock(
            ledger_id=self._ledger_id,
            first_entry_id=self._first_entry_id,
            publish_time_min_ms=earliest,
            publish_time_max_ms=latest,
            compressed=False,
            row=None,
            stretches=[],
        )
        if self._extension:
            self._extend(block, times, flags | FLAG_INDEXED)
        else:
            self._frame(block, is_last)
        self._clear()
        return block

    def _frame(self, block: EncodedBlock, is_last: bool) -> None:
        """Header and padding of a plain Pulsar block."""
        length = BLOCK_HEADER_BYTES + self._run_bytes + self._tail_bytes
        if self._pads and not is_last:
            length = max(length, self._block_bytes)
        header = encode_plain_header(self._layout, length, self._first_entry_id, self._ledger_id)
        tail = padding(length - BLOCK_HEADER_BYTES - self._run_bytes)
        block.stretches = [Stretch([byte_array(header), *self._run(), byte_array(tail)])]

    def _extend(self, block: EncodedBlock, times: NDArray[np.int64], flags: int) -> None:
        """Header, end marker and entry table of a block with our extension."""
        stored, codec, payload_crc32c = self._stored()
        stored_bytes = sum(map(len, stored))
        table = encode_entry_table(np.concatenate(self._lengths), times)
        length = BLOCK_HEADER_BYTES + stored_bytes + END_MARKER_BYTES + len(table)
        extension = BlockExtension(
            codec=codec,
            flags=flags,
            entries=self.entries,
            last_entry_id=self._first_entry_id + self.entries - 1,
            stored_bytes=stored_bytes,
            uncompressed_bytes=self._run_bytes,
            payload_crc32c=payload_crc32c,
            table_bytes=len(table),
            table_crc32c=crc32c(table),
            publish_time_min_ms=block.publish_time_min_ms,
            publish_time_max_ms=block.publish_time_max_ms,
        )
        plain = encode_plain_header(self._layout, length, self._first_entry_id, self._ledger_id)
        header = encode_block_extension(plain, extension)
        tail = byte_array(padding(END_MARKER_BYTES) + table)
        block.stretches = [Stretch([byte_array(header)]), Stretch(stored, payload_crc32c), Stretch([tail])]
        block.compressed = codec is not Codec.NONE
        block.row = extension.row()

    def _stored(self) -> tuple[list[Bytes], Codec, int]:
        """The payload as it is stored, its codec, its CRC-32C."""
        if self._codec is Codec.NONE:
            return self._run(), Codec.NONE, self._run_crc32c
        runs = self._run()
        run = runs[0] if len(runs) == 1 else np.concatenate(runs)
        # Begins like padding: a reader without the extension finds no entries instead of wrong ones.
        stored = byte_array(COMPRESSED_PREFIX + compress(self._codec, run))
        if len(stored) > _COMPRESSED_SHARE_MAX * len(run):
            return [run], Codec.NONE, crc32c(run)
        return [stored], self._codec, crc32c(stored)
