"""Encodes a segment: batches of entries into parts of a data object, and its index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES, RUN_BYTES_MAX, Layout
from formats.block_builder import BlockBuilder, EncodedBlock, Stretch
from formats.block_memory import BlockMemory
from formats.checksum import crc32c, crc32c_combine
from formats.compression import Codec
from formats.entries import ENTRY_HEADER_BYTES, Bytes, EntryBatch, Pieces, Position
from formats.errors import Inconsistent, LimitExceeded
from formats.extension import ENTRY_TABLE_HEADER_BYTES, TABLE_ENTRY_BYTES_MAX
from formats.segment_map import (
    BlockTable,
    LedgerFacts,
    LedgerGroup,
    LedgerSpan,
    SegmentMap,
    SegmentSummary,
    describe_segment,
)

__all__ = [
    "ENTRY_BYTES_MAX",
    "BlockTable",
    "Codec",
    "FinishedSegment",
    "Layout",
    "LedgerFacts",
    "LedgerGroup",
    "LedgerSpan",
    "Part",
    "SegmentBuilder",
    "SegmentMap",
    "SegmentSummary",
]

#: An entry's block, with header, marker and the longest entry table, must stay below 2 GiB.
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


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the data object, ready to be uploaded.

    Attributes:
        number: from 1.
        offset: in the data object.
        body: the bytes, immutable.
        crc32c: their CRC-32C.
    """

    number: int
    offset: int
    body: Pieces
    crc32c: int

    @property
    def size_bytes(self) -> int:
        return len(self.body)

    @property
    def data(self) -> bytes:
        """A contiguous copy of the bytes."""
        return bytes(self.body)


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
    single entry longer than ``block_bytes`` gets a block of its own. Cuts depend only on the entries, not on their
    batches.

    Not thread-safe. Copies what is appended.

    Args:
        layout: V2, or V1 for one whole ledger (from entry 0, without gaps).
        block_bytes: target length of a block, header and tail included.
        part_bytes: length of every part but the last.
        codec: tried on each block; a block that doesn't get 10 % smaller stays as it is.
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
            raise Inconsistent("compression needs the extension", expected="extension=True", found="extension=False")
        if block_bytes <= BLOCK_HEADER_BYTES + END_MARKER_BYTES + ENTRY_HEADER_BYTES or part_bytes < 1:
            raise Inconsistent("sizes of blocks and parts", found=f"{block_bytes} and {part_bytes}")
        self._block = BlockBuilder(
            layout=layout, block_bytes=block_bytes, codec=codec, extension=extension, memory=memory
        )
        self._layout = layout
        self._extension = extension
        self._parts = _PartCutter(part_bytes)
        self._spans: dict[int, LedgerSpan] = {}
        self._blocks: list[tuple[int, EncodedBlock]] = []
        self._first: Position | None = None
        self._last: Position | None = None
        self._entries = 0
        self._finished = False

    @property
    def first(self) -> Position | None:
        """Position of the first entry."""
        return self._first

    @property
    def last(self) -> Position | None:
        """Position of the last entry."""
        return self._last

    @property
    def entries(self) -> int:
        """How many entries were appended."""
        return self._entries

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
            Inconsistent: entries that don't follow the last one, or in V1 not directly; nothing is appended.
            LimitExceeded: an entry above ``ENTRY_BYTES_MAX``; nothing is appended.
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
                taken = self._block.take(run)
                run = run.slice(taken, len(run))
                if len(run):
                    full += self._cut_block()
        self._count(batch)
        return full

    def finish(self, ledgers: Mapping[int, LedgerFacts] | None = None) -> FinishedSegment:
        """Ends the segment.

        Args:
            ledgers: the source's facts by ledger id; missing ledgers count as open.

        Raises:
            Inconsistent: nothing was appended, or the segment is finished already.
        """
        if self._first is None or self._last is None or self._finished:
            raise Inconsistent("a segment can't be finished", expected="entries", found="none, or finished already")
        parts = self._cut_block(is_last=True)
        self._finished = True
        parts += self._parts.finish()
        index, summary = describe_segment(
            layout=self._layout,
            part_bytes=self._parts.part_bytes,
            data_bytes=self._parts.total_bytes,
            data_crc32c=self._parts.crc32c,
            spans=tuple(self._spans.values()),
            blocks=self._blocks,
            facts=ledgers or {},
            extension=self._extension,
        )
        return FinishedSegment(parts, index, summary)

    def _check(self, batch: EntryBatch) -> None:
        if self._finished:
            raise Inconsistent("the segment is finished", expected="no more entries", found=f"{len(batch)} entries")
        if len(batch) == 0:
            return
        ids = batch.entry_ids
        if ids[0] < 0 or (ids[1:] <= ids[:-1]).any() or (self._last is not None and batch.first <= self._last):
            raise Inconsistent("entries out of order", expected=f"ascending, after {self._last}", found=batch.first)
        if self._layout is Layout.V1:
            ledger_id = batch.ledger_id if self._last is None else self._last.ledger_id
            expected = Position(ledger_id, 0 if self._last is None else self._last.entry_id + 1)
            if batch.first != expected or int(ids[-1]) - int(ids[0]) != len(ids) - 1:
                raise Inconsistent("a V1 object holds one whole ledger", expected=expected, found=batch.first)
        largest = int(batch.lengths.max())
        if largest > ENTRY_BYTES_MAX:
            raise LimitExceeded("entry is too large", expected=f"at most {ENTRY_BYTES_MAX} bytes", found=largest)

    def _count(self, batch: EntryBatch) -> None:
        span = self._spans.get(batch.ledger_id)
        self._spans[batch.ledger_id] = LedgerSpan(
            batch.ledger_id,
            batch.first.entry_id if span is None else span.first_entry_id,
            batch.last.entry_id,
            len(batch) + (0 if span is None else span.entries),
            batch.payload_bytes + (0 if span is None else span.payload_bytes),
        )
        self._entries += len(batch)
        self._first = self._first or batch.first
        self._last = batch.last

    def _cut_block(self, *, is_last: bool = False) -> list[Part]:
        if self._block.entries == 0:
            return []
        block = self._block.finish(is_last=is_last)
        self._blocks.append((self._parts.total_bytes, block))
        full: list[Part] = []
        for stretch in block.take_stretches():
            full += self._parts.write(stretch)
        return full


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

    def write(self, stretch: Stretch) -> list[Part]:
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
