"""Locates the blocks of a data object for a range of entries; summary of a finished segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, BLOCK_MAGICS, Layout, decode_block, decode_block_header, decode_run
from formats.block_builder import EncodedBlock
from formats.checksum import crc32c
from formats.compression import Codec
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, Buffer, EntryBatch, Position, byte_array
from formats.errors import Inconsistent, LimitExceeded, Truncated
from formats.extension import FLAG_INDEXED, ROW, EntryTable, decode_entry_table, encode_index_rows
from formats.index import (
    BLOCKS_KEY,
    ENTRY_ID_UNKNOWN_MAX,
    INDEX_CRC_KEY,
    INDEX_ENTRY,
    BlockTable,
    IndexGroup,
    InOrder,
    Int64s,
    LedgerGroup,
    ObjectIndex,
    build_block_table,
    decode_index,
    encode_index,
    rows_of,
    seal_index,
    upper_bounds,
)
from formats.metadata.messages import BookKeeperLedger, PulsarLedger

__all__ = ["BlockTable", "LedgerFacts", "LedgerGroup", "LedgerSpan", "SegmentMap", "SegmentSummary", "describe_segment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """The source's facts of a ledger, beyond what the builder saw, for an index.

    Attributes:
        ledger_id: the ledger.
        closed: whether it takes no more entries.
        size_bytes: payload bytes of the whole ledger; 0: use those of this segment.
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
    """Summary of a finished segment.

    Attributes:
        layout: V1 or V2.
        begin: position of the first entry.
        end: position of the last entry.
        data_bytes: length of the data object.
        index_bytes: length of the index object.
        data_crc32c: CRC-32C of the data object; 0 if it was never read (adopted by its index alone).
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


def describe_segment(
    *,
    layout: Layout,
    part_bytes: int,
    data_bytes: int,
    data_crc32c: int,
    spans: Sequence[LedgerSpan],
    blocks: Sequence[tuple[int, EncodedBlock]],
    facts: Mapping[int, LedgerFacts],
    extension: bool,
) -> tuple[bytes, SegmentSummary]:
    """The index object and the summary of a segment.

    Args:
        layout: V1 or V2.
        part_bytes: length of the upload's parts, whose numbers are in an index.
        data_bytes, data_crc32c: length and CRC-32C of the data object.
        spans: the segment's ledgers, ascending; at least one.
        blocks: offset in the data object and description of each block, in order.
        facts: the source's facts of the ledgers; missing ledgers count as open.
        extension: whether blocks and index have our extension.
    """
    of_ledger: dict[int, list[tuple[int, EncodedBlock]]] = {span.ledger_id: [] for span in spans}
    for offset, block in blocks:
        of_ledger[block.ledger_id].append((offset, block))
    groups = tuple(
        _group(
            layout,
            part_bytes,
            span,
            facts.get(span.ledger_id, LedgerFacts(ledger_id=span.ledger_id)),
            of_ledger[span.ledger_id],
            extension,
        )
        for span in spans
    )
    decoded = ObjectIndex(layout, data_bytes, BLOCK_HEADER_BYTES, groups)
    index = seal_index(decoded) if extension else encode_index(decoded)
    known = [block for _, block in blocks if block.publish_time_max_ms != -1]
    summary = SegmentSummary(
        layout=layout,
        begin=Position(spans[0].ledger_id, spans[0].first_entry_id),
        end=Position(spans[-1].ledger_id, spans[-1].last_entry_id),
        data_bytes=data_bytes,
        index_bytes=len(index),
        data_crc32c=data_crc32c,
        index_crc32c=crc32c(index),
        entries=sum(span.entries for span in spans),
        payload_bytes=sum(span.payload_bytes for span in spans),
        publish_time_min_ms=min((block.publish_time_min_ms for block in known), default=-1),
        publish_time_max_ms=max((block.publish_time_max_ms for block in known), default=-1),
        blocks=len(blocks),
        compressed=any(block.compressed for _, block in blocks),
        ledgers=tuple(spans),
    )
    return index, summary


def _group(
    layout: Layout,
    part_bytes: int,
    span: LedgerSpan,
    facts: LedgerFacts,
    blocks: Sequence[tuple[int, EncodedBlock]],
    extension: bool,
) -> IndexGroup:
    entries = np.array(
        [(block.first_entry_id, 1 + offset // part_bytes, offset) for offset, block in blocks], dtype=INDEX_ENTRY
    )
    rows = None
    if extension:
        rows = encode_index_rows(span.ledger_id, np.array([block.row for _, block in blocks], dtype=ROW))
    encode = _v1_metadata if layout is Layout.V1 else _v2_metadata
    return IndexGroup(span.ledger_id, encode(span, facts, rows), entries)


def _v1_metadata(span: LedgerSpan, facts: LedgerFacts, rows: bytes | None) -> bytes:
    return BookKeeperLedger(
        length_bytes=span.payload_bytes,
        last_entry_id=span.last_entry_id,
        closed=True,
        created_ms=facts.created_ms,
        custom={} if rows is None else {BLOCKS_KEY: rows, INDEX_CRC_KEY: bytes(4)},
    ).encode()


def _v2_metadata(span: LedgerSpan, facts: LedgerFacts, rows: bytes | None) -> bytes:
    # Pulsar takes a ledger's last readable entry from the metadata of its last segment: so this is where the segment
    # ends, not the ledger.
    return PulsarLedger(
        ledger_id=span.ledger_id,
        entries=span.last_entry_id + 1,
        size_bytes=facts.size_bytes or span.payload_bytes,
        closed_ms=facts.closed_ms if facts.closed else None,
        blocks=rows,
        index_crc32c=None if rows is None else 0,
    ).encode()


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMap:
    """An index, parsed and checked.

    Attributes:
        layout: V1 or V2.
        data_bytes: length of the data object.
        header_bytes: length of its block headers.
        ledgers: in the order of the index.
        blocks: in the order of their offsets.
        has_extension: whether the index has our extension.
        index_crc32c: CRC-32C of the whole index, as the manifest keeps it.
        object_name: for error messages.
    """

    layout: Layout
    data_bytes: int
    header_bytes: int
    ledgers: tuple[LedgerGroup, ...]
    blocks: BlockTable
    has_extension: bool
    index_crc32c: int
    object_name: str
    _index: ObjectIndex
    #: Largest entry id that each block may hold.
    _upper: Int64s
    #: Numbers of the blocks in the order of their positions.
    _by_position: Int64s
    #: The same for binary search; ``None`` where blocks overlap, which only damage causes.
    _in_order: InOrder | None

    @classmethod
    def parse(cls, index: Buffer, *, object_name: str = "", ledger_id: int | None = None) -> SegmentMap:
        """Parses an index object; ignores bytes after the index's own length.

        Args:
            index: the index object.
            object_name: for error messages.
            ledger_id: the ledger of a V1 index without our extension, which doesn't contain it.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        decoded = decode_index(index, object_name=object_name, ledger_id=ledger_id)
        encoded = encode_index(decoded)
        groups, rows = rows_of(decoded, ledger_id, object_name)
        blocks = build_block_table(decoded, groups, rows, object_name)
        ledgers = tuple(
            LedgerGroup(
                of_ledger,
                group.metadata,
                int(group.entries["first_entry_id"][0]) if len(group.entries) else -1,
                group.last_entry_id,
                group.closed,
            )
            for of_ledger, group in zip(groups, decoded.groups, strict=True)
        )
        by_position = np.lexsort((blocks.offset, blocks.first_entry_id, blocks.ledger_id)).astype(np.int64)
        upper = upper_bounds(blocks, by_position, ledgers, rows is not None)
        return cls(
            layout=decoded.layout,
            data_bytes=decoded.data_bytes,
            header_bytes=decoded.header_bytes,
            ledgers=ledgers,
            blocks=blocks,
            has_extension=rows is not None,
            index_crc32c=crc32c(encoded),
            object_name=object_name,
            _index=decoded,
            _upper=upper,
            _by_position=by_position,
            _in_order=InOrder.of(blocks, by_position, upper),
        )

    def encode(self) -> bytes:
        """Rebuilds the parsed index object from its values, byte for byte."""
        return encode_index(self._index)

    def summary(self, data_crc32c: int) -> SegmentSummary:
        """The summary from an index with our extension; the index object's own length and checksum are 0 in it.

        Args:
            data_crc32c: CRC-32C of the data object, which isn't in the index.
        """
        blocks = self.blocks
        payload = blocks.uncompressed_bytes - ENTRY_HEADER_BYTES * blocks.entries
        spans = []
        for ledger_id in np.unique(blocks.ledger_id).tolist():
            of = blocks.ledger_id == ledger_id
            first, last = int(blocks.first_entry_id[of].min()), int(blocks.last_entry_id[of].max())
            spans.append(LedgerSpan(ledger_id, first, last, int(blocks.entries[of].sum()), int(payload[of].sum())))
        known = blocks.publish_time_max_ms != TIME_UNKNOWN_MS
        return SegmentSummary(
            layout=self.layout,
            begin=Position(spans[0].ledger_id, spans[0].first_entry_id),
            end=Position(spans[-1].ledger_id, spans[-1].last_entry_id),
            data_bytes=self.data_bytes,
            index_bytes=0,
            data_crc32c=data_crc32c,
            index_crc32c=0,
            entries=sum(span.entries for span in spans),
            payload_bytes=sum(span.payload_bytes for span in spans),
            publish_time_min_ms=int(blocks.publish_time_min_ms[known].min()) if known.any() else TIME_UNKNOWN_MS,
            publish_time_max_ms=int(blocks.publish_time_max_ms[known].max()) if known.any() else TIME_UNKNOWN_MS,
            blocks=len(blocks),
            compressed=bool((blocks.codec != int(Codec.NONE)).any()),
            ledgers=tuple(spans),
        )

    def find(self, first: Position, last: Position) -> Int64s:
        """Numbers of the blocks that may hold entries with ``first <= position <= last``, in the order of positions."""
        if self._in_order is not None:
            return self._in_order.between(first, last)
        blocks = self.blocks
        ledger = blocks.ledger_id
        not_before = (ledger > first.ledger_id) | ((ledger == first.ledger_id) & (self._upper >= first.entry_id))
        not_after = (ledger < last.ledger_id) | ((ledger == last.ledger_id) & (blocks.first_entry_id <= last.entry_id))
        wanted = not_before & not_after
        found: Int64s = self._by_position[wanted[self._by_position]]
        return found

    def stored_bytes(self, numbers: Int64s) -> int:
        """Bytes of the data object that the blocks ``numbers`` take."""
        length = self.blocks.length
        # NumPy's sum of one number takes longer than the rest of a single-entry lookup.
        return int(length[numbers[0]]) if len(numbers) == 1 else int(length[numbers].sum())

    def decode(self, number: int, data: Buffer, *, block_bytes_max: int, decompressed_bytes_max: int) -> EntryBatch:
        """The entries of block ``number``, checked against the index.

        Args:
            number: index into ``blocks``.
            data: the data object's bytes from the block's offset on, at least ``read_bytes`` of them; for a block that
                is followed by a block header, ``length`` of them are enough.
            block_bytes_max: limit of a block's size.
            decompressed_bytes_max: limit of a run of entries.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        blocks = self.blocks
        view = byte_array(data)[: int(blocks.read_bytes[number])]
        offset, length = int(blocks.offset[number]), int(blocks.length[number])
        if length > block_bytes_max:
            raise LimitExceeded(
                "block is too large",
                object_name=self.object_name,
                offset=offset,
                expected=f"at most {block_bytes_max}",
                found=length,
            )
        if len(view) < length:
            raise Truncated("block", object_name=self.object_name, offset=offset, expected=length, found=len(view))
        ledger_id = int(blocks.ledger_id[number])
        if self.has_extension or self._begins_extended(number, view):
            self._check_header(number, view)
            return decode_block(
                view,
                object_name=self.object_name,
                offset=offset,
                header_bytes=self.header_bytes,
                block_bytes_max=block_bytes_max,
                decompressed_bytes_max=decompressed_bytes_max,
                ledger_id=ledger_id,
            )
        batch = decode_run(
            view,
            header_bytes=self.header_bytes,
            length=length,
            first_entry_id=int(blocks.first_entry_id[number]),
            ledger_id=ledger_id,
            run_bytes_max=decompressed_bytes_max,
            object_name=self.object_name,
            offset=offset,
        )
        self._check_complete(number, batch)
        return batch

    def decode_entry_table(self, number: int, data: Buffer) -> EntryTable:
        """Lengths and publish times of block ``number``, from the entry table's bytes alone.

        Args:
            number: index into ``blocks``, whose ``table_bytes`` isn't -1.
            data: exactly the ``table_bytes`` bytes at ``table_offset``.
        """
        blocks = self.blocks
        return decode_entry_table(
            data,
            entries=int(blocks.entries[number]),
            table_crc32c=int(blocks.table_crc32c[number]),
            object_name=self.object_name,
            offset=int(blocks.table_offset[number]),
        )

    def _begins_extended(self, number: int, view: NDArray[np.uint8]) -> bool:
        """Whether a block header with our extension is where this plain index points."""
        magic = view[:4].tobytes()
        if len(view) < BLOCK_HEADER_BYTES or magic not in BLOCK_MAGICS:
            return False
        if int.from_bytes(view[20:28].tobytes(), "big", signed=True) != int(self.blocks.first_entry_id[number]):
            return False
        offset = int(self.blocks.offset[number])
        extension = decode_block_header(view, object_name=self.object_name, offset=offset).extension
        if extension is not None and extension.flags & FLAG_INDEXED:
            raise Inconsistent(
                "index has lost its extension",
                object_name=self.object_name,
                offset=offset,
                expected="an extended index, as the block header says",
                found="a plain one",
            )
        return extension is not None

    def _check_header(self, number: int, view: NDArray[np.uint8]) -> None:
        blocks = self.blocks
        offset = int(blocks.offset[number])
        header = decode_block_header(view, object_name=self.object_name, offset=offset)
        extension = header.extension
        expected = [int(blocks.first_entry_id[number])]
        found = [header.first_entry_id]
        if self.has_extension:
            columns = (blocks.entries, blocks.payload_crc32c, blocks.table_crc32c, blocks.stored_bytes, blocks.codec)
            expected += [int(column[number]) for column in columns]
            if extension is not None:
                e = extension
                found += [e.entries, e.payload_crc32c, e.table_crc32c, e.stored_bytes, int(e.codec)]
        if header.layout is not self.layout or found != expected:
            raise Inconsistent(
                "block header contradicts the index",
                object_name=self.object_name,
                offset=offset,
                expected=f"{self.layout.name} {expected}",
                found=f"{header.layout.name} {found}",
            )

    def _check_complete(self, number: int, batch: EntryBatch) -> None:
        """Checks the structure of a plain block, which has no checksum: a damaged length could hide entries.

        No known writer leaves a gap inside a block or lets a block reach into the next one; and a V1 object, which
        holds a whole ledger, has no gap at all.
        """
        first = int(self.blocks.first_entry_id[number])
        last = int(batch.entry_ids[-1]) if len(batch) else first - 1
        upper = int(self._upper[number])
        is_short = last < upper < ENTRY_ID_UNKNOWN_MAX and self.layout is Layout.V1
        if len(batch) != last - first + 1 or last > upper or is_short:
            raise Inconsistent(
                "entries of a block",
                object_name=self.object_name,
                offset=int(self.blocks.offset[number]),
                expected=f"{first} to {upper if is_short else min(last, upper)} without a gap",
                found=f"{len(batch)} entries, the last one {last}",
            )
