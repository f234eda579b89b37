"""Locates the blocks of a data object for a range of entries; summary and checksums from an index alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGICS,
    END_MARKER_BYTES,
    decode_block,
    decode_block_header,
    decode_run,
    padding,
)
from formats.checksum import crc32c, crc32c_combine_many
from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, Buffer, Bytes, EntryBatch, Position, byte_array
from formats.errors import InconsistentError, located, require_at_most, require_bytes
from formats.extension import (
    EXTENSION_MAGIC,
    EXTENSION_VERSION,
    FLAG_INDEXED,
    ROW,
    BlockExtension,
    Codec,
    EntryTable,
    decode_entry_table,
    encode_index_rows,
)
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
from formats.summary import Layout, LedgerSpan, SegmentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """The source's facts of a ledger, beyond what the builder saw, for an index.

    Attributes:
        closed: whether the ledger takes no more entries.
        size_bytes: payload bytes of the whole ledger; 0: use those of this segment.
        created_ms, closed_ms: when it was opened and closed, ms since 1970 UTC.
    """

    ledger_id: int
    closed: bool = False
    size_bytes: int = 0
    closed_ms: int = 0
    created_ms: int = 0


class BlockFacts(NamedTuple):
    """A finished block, as an index describes it; ``extension`` is its header's, ``None`` in a plain block."""

    ledger_id: int
    first_entry_id: int
    publish_time_min_ms: int
    publish_time_max_ms: int
    extension: BlockExtension | None


class SegmentOutline:
    """The ledgers and blocks of a segment, collected while it is written or read, for its index and its summary.

    Args:
        part_bytes: length of the upload's parts, whose numbers are in an index.

    Attributes:
        spans: ledger id -> its entries.
    """

    def __init__(self, layout: Layout, part_bytes: int, *, extension: bool) -> None:
        self._layout = layout
        self._part_bytes = part_bytes
        self._extension = extension
        self.spans: dict[int, LedgerSpan] = {}
        self._blocks: dict[int, list[tuple[int, BlockFacts]]] = {}

    @property
    def blocks(self) -> list[BlockFacts]:
        """The blocks that were added."""
        return [block for blocks in self._blocks.values() for _, block in blocks]

    @property
    def last(self) -> Position | None:
        """Position of the last entry."""
        span = next(reversed(self.spans.values()), None)
        return None if span is None else Position(span.ledger_id, span.last_entry_id)

    def add_entries(self, batch: EntryBatch) -> None:
        """Adds entries that follow the last ones; at least one."""
        span = self.spans.get(batch.ledger_id)
        self.spans[batch.ledger_id] = LedgerSpan(
            batch.ledger_id,
            batch.first.entry_id if span is None else span.first_entry_id,
            batch.last.entry_id,
            len(batch) + (0 if span is None else span.entries),
            batch.payload_bytes + (0 if span is None else span.payload_bytes),
        )

    def add_block(self, offset: int, block: BlockFacts) -> None:
        """Adds the next block, which begins at ``offset`` of the data object."""
        self._blocks.setdefault(block.ledger_id, []).append((offset, block))

    def describe(
        self, data_bytes: int, data_crc32c: int, facts: Mapping[int, LedgerFacts]
    ) -> tuple[bytes, SegmentSummary]:
        """The index object and the summary; ledgers missing in ``facts``, the source's, count as open."""
        spans, blocks = tuple(self.spans.values()), self.blocks
        decoded = ObjectIndex(
            self._layout,
            data_bytes,
            BLOCK_HEADER_BYTES,
            tuple(self._group(span, facts.get(span.ledger_id)) for span in spans),
        )
        index = seal_index(decoded) if self._extension else encode_index(decoded)
        known = [block for block in blocks if block.publish_time_max_ms != TIME_UNKNOWN_MS]
        return index, SegmentSummary.of_spans(
            spans,
            layout=self._layout,
            data_bytes=data_bytes,
            index_bytes=len(index),
            data_crc32c=data_crc32c,
            index_crc32c=crc32c(index),
            publish_time_min_ms=min((block.publish_time_min_ms for block in known), default=TIME_UNKNOWN_MS),
            publish_time_max_ms=max((block.publish_time_max_ms for block in known), default=TIME_UNKNOWN_MS),
            blocks=len(blocks),
            compressed=any(block.extension is not None and block.extension.codec != Codec.NONE for block in blocks),
        )

    def _group(self, span: LedgerSpan, facts: LedgerFacts | None) -> IndexGroup:
        blocks = self._blocks[span.ledger_id]
        places = [(block.first_entry_id, 1 + offset // self._part_bytes, offset) for offset, block in blocks]
        own = [block.extension.row() for _, block in blocks if block.extension is not None]
        rows = encode_index_rows(span.ledger_id, np.array(own, dtype=ROW)) if self._extension else None
        facts = facts or LedgerFacts(ledger_id=span.ledger_id)
        metadata: BookKeeperLedger | PulsarLedger
        if self._layout is Layout.V1:
            metadata = BookKeeperLedger(
                length_bytes=span.payload_bytes,
                last_entry_id=span.last_entry_id,
                closed=True,
                created_ms=facts.created_ms,
                custom={} if rows is None else {BLOCKS_KEY: rows, INDEX_CRC_KEY: bytes(4)},
            )
        else:
            # Pulsar takes a ledger's last readable entry from the metadata of its last segment: so this is where the
            # segment ends, not the ledger.
            metadata = PulsarLedger(
                ledger_id=span.ledger_id,
                entries=span.last_entry_id + 1,
                size_bytes=facts.size_bytes or span.payload_bytes,
                closed_ms=facts.closed_ms if facts.closed else None,
                blocks=rows,
                index_crc32c=None if rows is None else 0,
            )
        return IndexGroup(span.ledger_id, metadata.encode(), np.array(places, dtype=INDEX_ENTRY))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMap:
    """An index, parsed and checked.

    Attributes:
        ledgers: in the order of the index.
        index_crc32c: CRC-32C of the whole index, as the manifest keeps it.
    """

    layout: Layout
    data_bytes: int
    header_bytes: int
    ledgers: tuple[LedgerGroup, ...]
    blocks: BlockTable
    has_extension: bool
    index_crc32c: int
    object_name: str
    #: Largest entry id that each block may hold.
    _upper: Int64s
    #: Numbers of the blocks in the order of their positions.
    _by_position: Int64s
    #: The same for binary search; ``None`` where blocks overlap, which only damage causes.
    _in_order: InOrder | None

    @classmethod
    def parse(cls, index: Buffer, *, object_name: str = "", ledger_id: int | None = None) -> SegmentMap:
        """Parses an index object; ignores bytes after the index's own length.

        ``ledger_id`` is of a V1 index without our extension, which doesn't contain it.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        with located(object_name):
            decoded = decode_index(index, ledger_id=ledger_id)
            groups, rows = rows_of(decoded, ledger_id)
            blocks = build_block_table(decoded, groups, rows)
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
            index_crc32c=crc32c(encode_index(decoded)),
            object_name=object_name,
            _upper=upper,
            _by_position=by_position,
            _in_order=InOrder.of(blocks, by_position, upper),
        )

    def summary(self, data_crc32c: int) -> SegmentSummary:
        """The summary from an index with our extension; the index object's own length and checksum are 0 in it.

        ``data_crc32c``, of the data object, isn't in the index.
        """
        blocks = self.blocks
        payload = blocks.uncompressed_bytes - ENTRY_HEADER_BYTES * blocks.entries
        spans = []
        for ledger_id in np.unique(blocks.ledger_id).tolist():
            of = blocks.ledger_id == ledger_id
            first, last = int(blocks.first_entry_id[of].min()), int(blocks.last_entry_id[of].max())
            spans.append(LedgerSpan(ledger_id, first, last, int(blocks.entries[of].sum()), int(payload[of].sum())))
        known = blocks.publish_time_max_ms != TIME_UNKNOWN_MS
        has_times = known.any()
        return SegmentSummary.of_spans(
            spans,
            layout=self.layout,
            data_bytes=self.data_bytes,
            data_crc32c=data_crc32c,
            publish_time_min_ms=int(blocks.publish_time_min_ms[known].min()) if has_times else TIME_UNKNOWN_MS,
            publish_time_max_ms=int(blocks.publish_time_max_ms[known].max()) if has_times else TIME_UNKNOWN_MS,
            blocks=len(blocks),
            compressed=bool((blocks.codec != int(Codec.NONE)).any()),
        )

    def find(self, first: Position, last: Position) -> Int64s:
        """Numbers of the blocks that may hold entries with ``first <= position <= last``, in the order of positions."""
        if self._in_order is not None:
            return self._in_order.between(first, last)
        blocks = self.blocks
        ledger = blocks.ledger_id
        not_before = (ledger > first.ledger_id) | ((ledger == first.ledger_id) & (self._upper >= first.entry_id))
        not_after = (ledger < last.ledger_id) | ((ledger == last.ledger_id) & (blocks.first_entry_id <= last.entry_id))
        found: Int64s = self._by_position[(not_before & not_after)[self._by_position]]
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

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        blocks = self.blocks
        view = byte_array(data)[: int(blocks.read_bytes[number])]
        offset, length = int(blocks.offset[number]), int(blocks.length[number])
        ledger_id = int(blocks.ledger_id[number])
        with located(self.object_name, offset):
            require_at_most("block is too large", length, block_bytes_max)
            require_bytes("block", len(view), length)
            if self.has_extension or self._begins_extended(number, view):
                self._check_header(number, view)
                return decode_block(
                    view,
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
            )
            self._check_complete(number, batch)
        return batch

    def decode_entry_table(self, number: int, data: Buffer, *, decompressed_bytes_max: int) -> EntryTable:
        """Lengths and publish times of block ``number``, whose ``table_bytes`` isn't -1, from its entry table alone.

        Args:
            data: exactly the ``table_bytes`` bytes at ``table_offset``.
            decompressed_bytes_max: limit of the block's entries; it bounds their number, which those bytes don't.
        """
        entries, table_crc32c = int(self.blocks.entries[number]), int(self.blocks.table_crc32c[number])
        with located(self.object_name, int(self.blocks.table_offset[number])):
            require_at_most(
                "entries are too large", int(self.blocks.uncompressed_bytes[number]), decompressed_bytes_max
            )
            return decode_entry_table(data, entries=entries, table_crc32c=table_crc32c)

    def _begins_extended(self, number: int, view: Bytes) -> bool:
        """Whether a block header with our extension is where this plain index points."""
        if len(view) < BLOCK_HEADER_BYTES or view[:4].tobytes() not in BLOCK_MAGICS:
            return False
        if int.from_bytes(view[20:28].tobytes(), "big", signed=True) != int(self.blocks.first_entry_id[number]):
            return False
        extension = decode_block_header(view).extension
        if extension is not None and extension.flags & FLAG_INDEXED:
            raise InconsistentError(
                "index has lost its extension",
                expected="an extended index, as the block header says",
                found="a plain one",
            )
        return extension is not None

    def _check_header(self, number: int, view: Bytes) -> None:
        blocks, header = self.blocks, decode_block_header(view)
        expected, found = [int(blocks.first_entry_id[number])], [header.first_entry_id]
        if self.has_extension:
            columns = (blocks.entries, blocks.payload_crc32c, blocks.table_crc32c, blocks.stored_bytes, blocks.codec)
            expected += [int(column[number]) for column in columns]
            if (e := header.extension) is not None:
                found += [e.entries, e.payload_crc32c, e.table_crc32c, e.stored_bytes, int(e.codec)]
        if header.layout is not self.layout or found != expected:
            raise InconsistentError(
                "block header contradicts the index",
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
            raise InconsistentError(
                "entries of a block",
                expected=f"{first} to {upper if is_short else min(last, upper)} without a gap",
                found=f"{len(batch)} entries, the last one {last}",
            )


#: In a result: the index can't tell.
CRC_UNKNOWN = -1

#: A block header with our extension, encoded again from an index (docs/reference/format.md, sections 2.1 and 4.1).
_HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("header_bytes", ">i8"),
        ("block_bytes", ">i8"),
        ("first_entry_id", ">i8"),
        ("ledger_id", ">i8"),
        ("extension_magic", "S4"),
        ("version", "u1"),
        ("codec", "u1"),
        ("flags", ">u2"),
        ("entries", ">u4"),
        ("last_entry_id", ">i8"),
        ("stored_bytes", ">u4"),
        ("uncompressed_bytes", ">u4"),
        ("payload_crc32c", ">u4"),
        ("table_bytes", ">u4"),
        ("table_crc32c", ">u4"),
        ("publish_time_min_ms", ">i8"),
        ("publish_time_max_ms", ">i8"),
        ("zero", "V32"),
        ("crc32c", ">u4"),
    ]
)
assert _HEADER.itemsize == BLOCK_HEADER_BYTES
_CHECKED_BYTES = BLOCK_HEADER_BYTES - 4
#: Fields that the block table has under the same name.
_SAME = (
    *("first_entry_id", "codec", "flags", "entries", "last_entry_id", "stored_bytes", "uncompressed_bytes"),
    *("payload_crc32c", "table_bytes", "table_crc32c", "publish_time_min_ms", "publish_time_max_ms"),
)


def block_checksums(segment_map: SegmentMap, numbers: Int64s) -> Int64s:
    """CRC-32C of each of some blocks, from its header's first byte to its last, int64, shape (n,).

    Computed from the index's own checksums, without the data object. ``CRC_UNKNOWN`` for all where the index is a plain
    one, and for a block that has bytes after its entry table.

    Args:
        numbers: of the blocks, int64, shape (n,).
    """
    if not segment_map.has_extension or not len(numbers):
        return np.full(len(numbers), CRC_UNKNOWN, dtype=np.int64)
    blocks = segment_map.blocks
    stored, table = blocks.stored_bytes[numbers], blocks.table_bytes[numbers]
    tail = END_MARKER_BYTES + table
    marker = np.full(len(numbers), crc32c(padding(END_MARKER_BYTES)), dtype=np.int64)
    whole = crc32c_combine_many(_header_checksums(segment_map, numbers), blocks.payload_crc32c[numbers], stored)
    found = crc32c_combine_many(whole, crc32c_combine_many(marker, blocks.table_crc32c[numbers], table), tail)
    return np.where(blocks.length[numbers] == BLOCK_HEADER_BYTES + stored + tail, found, CRC_UNKNOWN)


def _header_checksums(segment_map: SegmentMap, numbers: Int64s) -> Int64s:
    """CRC-32C of the blocks' headers, each of which ends with the checksum of the bytes before."""
    blocks = segment_map.blocks
    headers: NDArray[np.void] = np.zeros(len(numbers), dtype=_HEADER)
    headers["magic"] = BLOCK_MAGICS[segment_map.layout - 1]
    headers["header_bytes"], headers["block_bytes"] = BLOCK_HEADER_BYTES, blocks.length[numbers]
    if segment_map.layout is Layout.V2:
        headers["ledger_id"] = blocks.ledger_id[numbers]
    headers["extension_magic"], headers["version"] = EXTENSION_MAGIC, EXTENSION_VERSION
    for name in _SAME:
        headers[name] = getattr(blocks, name)[numbers]
    raw = headers.tobytes()
    checked = [crc32c(raw[start : start + _CHECKED_BYTES]) for start in range(0, len(raw), BLOCK_HEADER_BYTES)]
    return np.array([crc32c(each.to_bytes(4, "big"), each) for each in checked], dtype=np.int64)
