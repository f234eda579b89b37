"""Segments: batches of entries -> parts of a data object -> its index.

Owns where blocks and parts are cut and what a finished segment is. Must never upload, buffer more than the part
and the block being filled, or know why a segment ends. The way back is ``SegmentMap``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES, Layout
from formats.block_builder import BlockBuilder, EncodedBlock
from formats.buffers import Bytes
from formats.checksum import crc32c, crc32c_combine
from formats.compression import Codec
from formats.entries import ENTRY_HEADER_BYTES, EntryBatch, Position
from formats.errors import Inconsistent, LimitExceeded
from formats.extension import ENTRY_TABLE_HEADER_BYTES, ROW, TABLE_ENTRY_BYTES_MAX, encode_index_rows
from formats.index import BLOCKS_KEY, INDEX_CRC_KEY, INDEX_ENTRY, IndexGroup, ObjectIndex, encode_index, seal_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.payload import RUN_BYTES_MAX
from formats.segment_map import BlockTable, LedgerGroup, SegmentMap

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


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the data object, ready to be sent.

    Attributes:
        number: from 1.
        offset: in the data object.
        data: the bytes; the builder has no use for them any more.
        crc32c: their CRC-32C.
    """

    number: int
    offset: int
    data: bytearray
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the source knows of a ledger and an index says beyond what the builder saw.

    Attributes:
        ledger_id: the ledger.
        closed: whether no entry will be added to it.
        size_bytes: payload bytes of the whole ledger; 0 = say those of this segment.
        closed_ms: when it was closed, ms since 1970 UTC.
        created_ms: when it was opened, ms since 1970 UTC.
    """

    ledger_id: int
    closed: bool = False
    size_bytes: int = 0
    closed_ms: int = 0
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """The entries of one ledger in a segment. ``entries`` is less than the span of ids where there are gaps."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """What is known of a finished segment.

    Attributes:
        layout: V1 or V2.
        begin: position of the first entry.
        end: position of the last entry.
        data_bytes: length of the data object.
        index_bytes: length of the index object.
        data_crc32c: CRC-32C of the data object.
        index_crc32c: CRC-32C of the index object.
        entries: how many.
        payload_bytes: their payloads together.
        publish_time_min_ms: earliest known publish time, -1 when none is known.
        publish_time_max_ms: latest known publish time, -1 when none is known.
        blocks: how many.
        compressed: whether any block is: the object then needs format version 2.
        ledgers: ascending.
    """

    layout: Layout
    begin: Position
    end: Position
    data_bytes: int
    index_bytes: int
    data_crc32c: int
    index_crc32c: int
    entries: int
    payload_bytes: int
    publish_time_min_ms: int
    publish_time_max_ms: int
    blocks: int
    compressed: bool
    ledgers: tuple[LedgerSpan, ...]


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """The end of a segment: parts not handed out yet (the last may be short), the index object, the summary."""

    parts: list[Part]
    index: bytes
    summary: SegmentSummary


class SegmentBuilder:
    """Turns batches into parts of exactly ``part_bytes`` bytes and, at the end, an index.

    Blocks are cut before the entry that would make one longer than ``block_bytes``, at a change of ledger, and at a
    gap in the entry ids: so the ids in a block are consecutive, and a table of blocks says exactly which entries an
    object has. An entry that alone is longer than ``block_bytes`` gets a block of its own. Where blocks are cut
    depends only on the entries, not on the batches they come in.

    Not thread-safe. What is appended is copied.

    Args:
        layout: V2, or V1 for one whole ledger (from entry 0, without gaps).
        block_bytes: target length of a block, header and tail included.
        part_bytes: length of every part but the last.
        codec: tried on each block; a block that doesn't get 10 % smaller stays as it is.
        extension: whether to write our extension; without it, objects are exactly Pulsar's (and V1 blocks are
            padded to ``block_bytes``, as Pulsar does).
    """

    def __init__(
        self,
        *,
        layout: Layout = Layout.V2,
        block_bytes: int,
        part_bytes: int,
        codec: Codec = Codec.NONE,
        extension: bool = True,
    ) -> None:
        if codec is not Codec.NONE and not extension:
            raise Inconsistent("compression needs the extension", expected="extension=True", found="extension=False")
        if block_bytes <= BLOCK_HEADER_BYTES + END_MARKER_BYTES + ENTRY_HEADER_BYTES or part_bytes < 1:
            raise Inconsistent("sizes of blocks and parts", found=f"{block_bytes} and {part_bytes}")
        self._block = BlockBuilder(layout=layout, block_bytes=block_bytes, codec=codec, extension=extension)
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
        """Length of the data object if it ended here; the block being filled is counted with its longest tail."""
        return self._parts.total_bytes + self._block.bytes_max

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: what is filled of the current part, and the block being filled."""
        return self._parts.held_bytes + self._block.held_bytes

    def append(self, batch: EntryBatch) -> list[Part]:
        """Takes the entries of a batch; answers the parts that became full.

        Raises:
            Inconsistent: entries that don't come after the last one, or in V1 not directly after it; nothing is taken.
            LimitExceeded: an entry above ``ENTRY_BYTES_MAX``; nothing is taken.
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
            ledgers: what the source knows of the ledgers, by ledger id; ledgers that are missing count as open.

        Raises:
            Inconsistent: nothing was appended, or the segment is finished already.
        """
        if self._first is None or self._last is None or self._finished:
            raise Inconsistent("a segment can't be finished", expected="entries", found="none, or finished already")
        parts = self._cut_block(is_last=True)
        self._finished = True
        parts += self._parts.finish()
        index = self._index(ledgers or {})
        return FinishedSegment(parts, index, self._summary(self._first, self._last, index))

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
        for chunk in block.take_chunks():
            full += self._parts.write(chunk)
        return full

    def _index(self, facts: Mapping[int, LedgerFacts]) -> bytes:
        of_ledger: dict[int, list[tuple[int, EncodedBlock]]] = {ledger_id: [] for ledger_id in self._spans}
        for offset, block in self._blocks:
            of_ledger[block.ledger_id].append((offset, block))
        groups = tuple(
            self._group(span, facts.get(span.ledger_id, LedgerFacts(ledger_id=span.ledger_id)), of_ledger[ledger_id])
            for ledger_id, span in self._spans.items()
        )
        index = ObjectIndex(self._layout, self._parts.total_bytes, BLOCK_HEADER_BYTES, groups)
        return seal_index(index) if self._extension else encode_index(index)

    def _group(self, span: LedgerSpan, facts: LedgerFacts, blocks: Sequence[tuple[int, EncodedBlock]]) -> IndexGroup:
        entries = np.array(
            [(block.first_entry_id, 1 + offset // self._parts.part_bytes, offset) for offset, block in blocks],
            dtype=INDEX_ENTRY,
        )
        rows = None
        if self._extension:
            rows = encode_index_rows(span.ledger_id, np.array([block.row for _, block in blocks], dtype=ROW))
        encode = _v1_metadata if self._layout is Layout.V1 else _v2_metadata
        return IndexGroup(span.ledger_id, encode(span, facts, rows), entries)

    def _summary(self, begin: Position, end: Position, index: bytes) -> SegmentSummary:
        spans = tuple(self._spans.values())
        known = [block for _, block in self._blocks if block.publish_time_max_ms != -1]
        return SegmentSummary(
            layout=self._layout,
            begin=begin,
            end=end,
            data_bytes=self._parts.total_bytes,
            index_bytes=len(index),
            data_crc32c=self._parts.crc32c,
            index_crc32c=crc32c(index),
            entries=self.entries,
            payload_bytes=sum(span.payload_bytes for span in spans),
            publish_time_min_ms=min((block.publish_time_min_ms for block in known), default=-1),
            publish_time_max_ms=max((block.publish_time_max_ms for block in known), default=-1),
            blocks=len(self._blocks),
            compressed=any(block.compressed for _, block in self._blocks),
            ledgers=spans,
        )


def _v1_metadata(span: LedgerSpan, facts: LedgerFacts, rows: bytes | None) -> bytes:
    return BookKeeperLedger(
        length_bytes=span.payload_bytes,
        last_entry_id=span.last_entry_id,
        closed=True,
        created_ms=facts.created_ms,
        custom={} if rows is None else {BLOCKS_KEY: rows, INDEX_CRC_KEY: bytes(4)},
    ).encode()


def _v2_metadata(span: LedgerSpan, facts: LedgerFacts, rows: bytes | None) -> bytes:
    # Pulsar takes a ledger's last readable entry from the metadata of its last segment: so this says where
    # the segment ends, not where the ledger does.
    return PulsarLedger(
        ledger_id=span.ledger_id,
        entries=span.last_entry_id + 1,
        size_bytes=facts.size_bytes or span.payload_bytes,
        closed_ms=facts.closed_ms if facts.closed else None,
        blocks=rows,
        index_crc32c=None if rows is None else 0,
    ).encode()


class _PartCutter:
    """Bytes in, parts of one length out."""

    def __init__(self, part_bytes: int) -> None:
        self.part_bytes = part_bytes
        self.crc32c = 0
        self._closed_bytes = 0
        self._number = 0
        self._data = bytearray()

    @property
    def total_bytes(self) -> int:
        return self._closed_bytes + len(self._data)

    @property
    def held_bytes(self) -> int:
        return len(self._data)

    def write(self, chunk: Bytes) -> list[Part]:
        full: list[Part] = []
        start = 0
        while start < len(chunk):
            stop = min(len(chunk), start + self.part_bytes - len(self._data))
            self._data += chunk[start:stop].data
            start = stop
            if len(self._data) == self.part_bytes:
                full.append(self._close())
        return full

    def finish(self) -> list[Part]:
        return [self._close()] if self._data else []

    def _close(self) -> Part:
        data, self._data = self._data, bytearray()
        self._number += 1
        part = Part(self._number, self._closed_bytes, data, crc32c(data))
        self._closed_bytes += len(data)
        self.crc32c = crc32c_combine(self.crc32c, part.crc32c, len(data))
        return part
