"""Encodes a segment: batches of entries into parts of a data object, and its index; recovers an index from parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.block import (
    BLOCK_HEADER_BYTES,
    COMPRESSED_PREFIX,
    END_MARKER_BYTES,
    RUN_BYTES_MAX,
    BlockHeader,
    decode_block,
    decode_block_header,
    encode_plain_header,
    interleave,
    padding,
)
from formats.block_memory import BlockMemory
from formats.checksum import crc32c, crc32c_combine
from formats.entries import ENTRY_HEADER_BYTES, Buffer, Bytes, EntryBatch, Pieces, Position, byte_array
from formats.errors import InconsistentError, TruncatedError, located, require_at_most
from formats.extension import (
    ENTRY_TABLE_HEADER_BYTES,
    FLAG_INDEXED,
    TABLE_ENTRY_BYTES_MAX,
    BlockExtension,
    Codec,
    compress,
    encode_block_extension,
    encode_entry_table,
    time_range,
)
from formats.segment_map import BlockFacts, LedgerFacts, SegmentMap, SegmentOutline
from formats.summary import Layout, SegmentSummary

__all__ = [
    "ENTRY_BYTES_MAX",
    "Codec",
    "FinishedSegment",
    "LedgerFacts",
    "Part",
    "SegmentBuilder",
    "SegmentMap",
    "SegmentRecovery",
]

#: An entry's block, with header, marker and the longest entry table, must be smaller than 2 GiB.
ENTRY_BYTES_MAX = (
    RUN_BYTES_MAX
    - BLOCK_HEADER_BYTES
    - END_MARKER_BYTES
    - ENTRY_HEADER_BYTES
    - ENTRY_TABLE_HEADER_BYTES
    - TABLE_ENTRY_BYTES_MAX
)
#: A shorter piece of a part is copied to its neighbours: sending it separately would cost more.
_KEPT_BYTES_MIN = 64 * 1024
#: Compression that saves less than a tenth costs readers more than it saves.
_COMPRESSED_SHARE_MAX = 0.9
#: The content of a less filled buffer is copied and the buffer released.
_FILLED_SHARE_MIN = 7 / 8


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the data object, ready to be uploaded: its number from 1, its offset there, its immutable bytes."""

    number: int
    offset: int
    body: Pieces
    crc32c: int

    @property
    def size_bytes(self) -> int:
        return len(self.body)


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """The end of a segment: remaining parts (the last may be short), the index object, the summary."""

    parts: list[Part]
    index: bytes
    summary: SegmentSummary


class SegmentBuilder:
    """Turns batches into parts of exactly ``part_bytes`` bytes and, at the end, an index.

    Blocks are cut before the entry that would make one longer than ``block_bytes``, at a change of ledger, and at a gap
    in the entry ids. So the ids in a block are consecutive, and a table of blocks lists exactly the object's entries. A
    single entry longer than ``block_bytes`` gets a separate block. Cuts depend only on the entries, not on their
    batches.

    Not thread-safe. Copies appended entries.

    Args:
        layout: V2, or V1 for one whole ledger (from entry 0, without gaps).
        block_bytes: target length of a block, header and tail included.
        part_bytes: length of every part but the last.
        codec: tried on each block; a block that doesn't get 10 % smaller is stored uncompressed.
        extension: whether to write our extension; without it, objects are exactly Pulsar's (and V1 blocks are padded to
            ``block_bytes``, as Pulsar does).
        memory: buffers for blocks, shared with other builders; ``None``: new memory for each.
    """

    def __init__(
        self,
        *,
        layout: Layout = Layout.V2,
        block_bytes: int,
        part_bytes: int,
        codec: Codec = Codec.NONE,
        extension: bool = True,
        memory: BlockMemory | None = None,
    ) -> None:
        if codec is not Codec.NONE and not extension:
            raise InconsistentError(
                "compression needs the extension", expected="extension=True", found="extension=False"
            )
        if block_bytes <= BLOCK_HEADER_BYTES + END_MARKER_BYTES + ENTRY_HEADER_BYTES or part_bytes < 1:
            raise InconsistentError("sizes of blocks and parts", found=f"{block_bytes} and {part_bytes}")
        self._block = _BlockBuilder(
            layout=layout, block_bytes=block_bytes, codec=codec, extension=extension, memory=memory
        )
        self._layout = layout
        self._parts = _PartCutter(part_bytes)
        self._outline = SegmentOutline(layout, part_bytes, extension=extension)
        self._finished = False

    @property
    def data_bytes(self) -> int:
        """Length of the data object if it ended here, with the longest possible tail of the current block."""
        return self._parts.total_bytes + self._block.bytes_max

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: the filled section of the current part, and the block being filled."""
        return self._parts.held_bytes + self._block.held_bytes

    def append(self, batch: EntryBatch) -> list[Part]:
        """Appends the entries of a batch; returns the completed parts.

        Raises:
            InconsistentError: entries that don't follow the last one, or in V1 not directly; nothing is appended.
            LimitExceededError: an entry above ``ENTRY_BYTES_MAX``; nothing is appended.
        """
        self._check(batch)
        if len(batch) == 0:
            return []
        full: list[Part] = []
        gaps = np.flatnonzero(np.diff(batch.entry_ids) != 1) + 1
        for start, stop in zip([0, *gaps.tolist()], [*gaps.tolist(), len(batch)], strict=True):
            run = batch.slice(start, stop) if len(gaps) else batch
            if not self._block.continues(run.first):
                full += self._cut_block()
            while len(run):
                run = run.slice(self._block.take(run), len(run))
                if len(run):
                    full += self._cut_block()
        self._outline.add_entries(batch)
        return full

    def finish(self, ledgers: Mapping[int, LedgerFacts] | None = None) -> FinishedSegment:
        """Ends the segment; ``ledgers``: the source's facts by ledger id, missing ledgers count as open.

        Raises:
            InconsistentError: nothing was appended, or the segment is finished already.
        """
        if self._outline.last is None or self._finished:
            raise InconsistentError(
                "a segment can't be finished", expected="entries", found="none, or finished already"
            )
        parts = self._cut_block(is_last=True)
        self._finished = True
        parts += self._parts.finish()
        index, summary = self._outline.describe(self._parts.total_bytes, self._parts.crc32c, ledgers or {})
        return FinishedSegment(parts, index, summary)

    def _check(self, batch: EntryBatch) -> None:
        if self._finished:
            raise InconsistentError(
                "the segment is finished", expected="no more entries", found=f"{len(batch)} entries"
            )
        if len(batch) == 0:
            return
        ids, last = batch.entry_ids, self._outline.last
        if ids[0] < 0 or (ids[1:] <= ids[:-1]).any() or (last is not None and batch.first <= last):
            raise InconsistentError("entries out of order", expected=f"ascending, after {last}", found=batch.first)
        if self._layout is Layout.V1:
            expected = Position(batch.ledger_id, 0) if last is None else last.next()
            if batch.first != expected or int(ids[-1]) - int(ids[0]) != len(ids) - 1:
                raise InconsistentError("a V1 object holds one whole ledger", expected=expected, found=batch.first)
        require_at_most("entry is too large", int(batch.lengths.max()), ENTRY_BYTES_MAX, unit="bytes")

    def _cut_block(self, *, is_last: bool = False) -> list[Part]:
        if self._block.entries == 0:
            return []
        block, stretches = self._block.finish(is_last=is_last)
        self._outline.add_block(self._parts.total_bytes, block)
        return [part for stretch in stretches for part in self._parts.write(stretch)]


class _Stretch(NamedTuple):
    """Contiguous bytes of a block, and their CRC-32C (``None`` if not computed yet)."""

    pieces: list[Bytes]
    crc32c: int | None = None


class _BlockBuilder:
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
        if count == 0 and self.entries:
            return 0
        count = max(count, 1)
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
        """Memory for the next entries; ``None``: into separate memory.

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

    def finish(self, *, is_last: bool) -> tuple[BlockFacts, list[_Stretch]]:
        """Returns the block and its bytes, in order, and empties the builder."""
        times = np.concatenate(self._times)
        earliest, latest, flags = time_range(times)
        if self._extension:
            extension, stretches = self._extended(times, earliest, latest, flags | FLAG_INDEXED)
        else:
            extension, stretches = None, self._framed(is_last)
        block = BlockFacts(self._ledger_id, self._first_entry_id, earliest, latest, extension)
        self._clear()
        return block, stretches

    def _framed(self, is_last: bool) -> list[_Stretch]:
        """A plain Pulsar block: its header, and its padding."""
        length_min = self._block_bytes if self._pads and not is_last else 0
        length = max(BLOCK_HEADER_BYTES + self._run_bytes + self._tail_bytes, length_min)
        header = encode_plain_header(self._layout, length, self._first_entry_id, self._ledger_id)
        tail = padding(length - BLOCK_HEADER_BYTES - self._run_bytes)
        return [_Stretch([byte_array(header), *self._run(), byte_array(tail)])]

    def _extended(
        self, times: NDArray[np.int64], earliest: int, latest: int, flags: int
    ) -> tuple[BlockExtension, list[_Stretch]]:
        """A block with our extension: its header, end marker and entry table."""
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
            publish_time_min_ms=earliest,
            publish_time_max_ms=latest,
        )
        plain = encode_plain_header(self._layout, length, self._first_entry_id, self._ledger_id)
        header = byte_array(encode_block_extension(plain, extension))
        tail = byte_array(padding(END_MARKER_BYTES) + table)
        return extension, [_Stretch([header]), _Stretch(stored, payload_crc32c), _Stretch([tail])]

    def _stored(self) -> tuple[list[Bytes], Codec, int]:
        """The stored form of the payload, its codec, its CRC-32C."""
        if self._codec is Codec.NONE:
            return self._run(), Codec.NONE, self._run_crc32c
        runs = self._run()
        run = runs[0] if len(runs) == 1 else np.concatenate(runs)
        # Begins like padding: a reader without the extension finds no entries instead of wrong ones.
        stored = byte_array(COMPRESSED_PREFIX + compress(self._codec, run))
        if len(stored) > _COMPRESSED_SHARE_MAX * len(run):
            return [run], Codec.NONE, crc32c(run)
        return [stored], self._codec, crc32c(stored)


class _PartCutter:
    """Cuts bytes into parts of one length. Passes long pieces on without a copy, joins short ones."""

    def __init__(self, part_bytes: int) -> None:
        self.part_bytes = part_bytes
        self.crc32c = 0
        self._closed_bytes = 0
        self._number = 0
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[Bytes | bytearray] = []
        self._part_crc32c = 0
        self.held_bytes = 0

    @property
    def total_bytes(self) -> int:
        return self._closed_bytes + self.held_bytes

    def write(self, stretch: _Stretch) -> list[Part]:
        size_bytes = sum(map(len, stretch.pieces))
        # Hashed already and not cut: no need to read it again.
        if stretch.crc32c is not None and self.held_bytes + size_bytes < self.part_bytes:
            for piece in stretch.pieces:
                self._hold(piece)
            self._part_crc32c = crc32c_combine(self._part_crc32c, stretch.crc32c, size_bytes)
            return []
        full: list[Part] = []
        for piece in stretch.pieces:
            start = 0
            while start < len(piece):
                cut = piece[start : start + self.part_bytes - self.held_bytes]
                self._hold(cut)
                self._part_crc32c = crc32c(cut, self._part_crc32c)
                start += len(cut)
                if self.held_bytes == self.part_bytes:
                    full.append(self._close())
        return full

    def finish(self) -> list[Part]:
        return [self._close()] if self.held_bytes else []

    def _hold(self, piece: Bytes) -> None:
        self.held_bytes += len(piece)
        if len(piece) >= _KEPT_BYTES_MIN:
            self._pieces.append(piece)
            return
        if not self._pieces or not isinstance(self._pieces[-1], bytearray):
            self._pieces.append(bytearray())
        self._pieces[-1] += piece.data  # type: ignore[operator]

    def _close(self) -> Part:
        self._number += 1
        part = Part(self._number, self._closed_bytes, Pieces(self._pieces), self._part_crc32c)
        self._closed_bytes += part.size_bytes
        self.crc32c = crc32c_combine(self.crc32c, part.crc32c, part.size_bytes)
        self._clear()
        return part


class SegmentRecovery:
    """Reads a data object with our extension from its first byte to its last and rebuilds its index.

    Checks every block. Holds at most one block and the last input in memory.
    With the same part size and the same facts the index is the writer's own, byte for byte. Not thread-safe.

    Args:
        part_bytes: length of the uploaded parts, whose numbers are in an index.
        block_bytes_max, decompressed_bytes_max: limits of a block and of its run of entries.
        ledger_id: the ledger of a V1 object, whose blocks don't contain it.
    """

    def __init__(
        self,
        *,
        layout: Layout = Layout.V2,
        part_bytes: int,
        object_name: str = "",
        block_bytes_max: int,
        decompressed_bytes_max: int,
        ledger_id: int | None = None,
    ) -> None:
        self._layout = layout
        self._object_name = object_name
        self._block_bytes_max = block_bytes_max
        self._decompressed_bytes_max = decompressed_bytes_max
        self._ledger_id = ledger_id if layout is Layout.V1 else None
        self._outline = SegmentOutline(layout, part_bytes, extension=True)
        self._pending = bytearray()
        self._offset = 0
        self._crc32c = 0

    def feed(self, data: Buffer) -> None:
        """Reads the object's next bytes and checks the blocks that they complete.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are. The object isn't a whole segment of ours.
        """
        self._crc32c = crc32c(data, self._crc32c)
        self._pending += byte_array(data).data
        start = 0
        while len(self._pending) - start >= BLOCK_HEADER_BYTES:
            with located(self._object_name, self._offset):
                # A copy of the header, so that the bytearray can shrink below.
                header = decode_block_header(bytes(self._pending[start : start + BLOCK_HEADER_BYTES]))
                self._check_header(header)
                if len(self._pending) - start < header.block_bytes:
                    break
                self._take(header, bytes(self._pending[start : start + header.block_bytes]))
            start += header.block_bytes
            self._offset += header.block_bytes
        del self._pending[:start]

    def finish(self, facts: Mapping[int, LedgerFacts] | None = None) -> tuple[bytes, SegmentSummary]:
        """The index object and the summary; ``facts``: the source's, ledgers without any count as open.

        Raises:
            TruncatedError: the object ends within a block, or has none.
        """
        blocks = len(self._outline.blocks)
        if self._pending or not blocks:
            raise TruncatedError(
                "data object",
                object_name=self._object_name,
                offset=self._offset,
                expected="whole blocks, at least one",
                found=f"{blocks} blocks and {len(self._pending)} bytes",
            )
        return self._outline.describe(self._offset, self._crc32c, facts or {})

    def _check_header(self, header: BlockHeader) -> None:
        if header.layout is not self._layout or header.extension is None:
            raise InconsistentError(
                "block of a segment",
                expected=f"{self._layout.name} with our extension",
                found=f"{header.layout.name}{'' if header.extension else ' without it'}",
            )
        require_at_most("block is too large", header.block_bytes, self._block_bytes_max)

    def _take(self, header: BlockHeader, data: bytes) -> None:
        batch = decode_block(
            data,
            block_bytes_max=self._block_bytes_max,
            decompressed_bytes_max=self._decompressed_bytes_max,
            ledger_id=self._ledger_id,
        )
        last, own = self._outline.last, header.extension
        if last is not None and batch.first <= last:
            raise InconsistentError("entries out of order", expected=f"after {last}", found=batch.first)
        assert own is not None, "checked with the header"
        self._outline.add_entries(batch)
        block = BlockFacts(*batch.first, own.publish_time_min_ms, own.publish_time_max_ms, own)
        self._outline.add_block(self._offset, block)
