"""An index as a value: which blocks an object has, which of them a range of entries needs, and how to decode them.

Owns the step from index bytes to a table of blocks. Must never fetch anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES, Layout, decode_block, decode_block_header, decode_run
from formats.buffers import Buffer, byte_array
from formats.checksum import crc32c
from formats.compression import codec_of
from formats.entries import EntryBatch, Position
from formats.errors import Inconsistent, LimitExceeded, Truncated
from formats.extension import FLAG_INDEXED, ROW, EntryTable, decode_entry_table, decode_index_rows
from formats.index import IndexGroup, ObjectIndex, decode_index, encode_index

__all__ = ["BlockTable", "LedgerGroup", "SegmentMap"]

Int64s = NDArray[np.int64]
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """What an index says of one ledger.

    Attributes:
        ledger_id: the ledger; -1 in a V1 index parsed without it.
        metadata: the ledger metadata, protobuf, untouched.
        first_entry_id: first entry in the object; -1 when the group has no blocks.
        last_entry_id: last entry that the metadata knows (of the ledger, or of the ledger in this segment); -1 unknown.
        closed: whether the metadata says that the ledger is closed.
    """

    ledger_id: int
    metadata: bytes
    first_entry_id: int
    last_entry_id: int
    closed: bool


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """The blocks of an object in the order of their offsets; int64 columns, shape (n,); -1 where unknown.

    In a plain Pulsar index all columns from ``entries`` on, and ``last_entry_id``, are -1.

    Attributes:
        ledger_id: the ledger.
        first_entry_id: id of the first entry.
        last_entry_id: id of the last entry.
        offset: where the block begins in the data object.
        length: bytes to the next block's offset, or to the end of the object.
        read_bytes: how many bytes from ``offset`` on ``SegmentMap.decode`` needs. More than ``length`` by one block
            header in plain objects, whose index may point between the entries of a block.
        entries: how many entries the block has.
        payload_crc32c: CRC-32C of the stored payload.
        stored_bytes: of the stored payload.
        uncompressed_bytes: of the run of entries, 12-byte entry headers included.
        codec: number of a ``Codec``.
        flags: see ``formats.extension``.
        table_offset: where the entry table begins in the data object.
        table_bytes: how long it is.
        table_crc32c: its CRC-32C.
        publish_time_min_ms: earliest known publish time.
        publish_time_max_ms: latest known publish time.
    """

    ledger_id: Int64s
    first_entry_id: Int64s
    last_entry_id: Int64s
    offset: Int64s
    length: Int64s
    read_bytes: Int64s
    entries: Int64s
    payload_crc32c: Int64s
    stored_bytes: Int64s
    uncompressed_bytes: Int64s
    codec: Int64s
    flags: Int64s
    table_offset: Int64s
    table_bytes: Int64s
    table_crc32c: Int64s
    publish_time_min_ms: Int64s
    publish_time_max_ms: Int64s

    def __len__(self) -> int:
        return len(self.offset)


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

    @classmethod
    def parse(cls, index: Buffer, *, object_name: str = "", ledger_id: int | None = None) -> SegmentMap:
        """The map in an index object; bytes after the index's own length are ignored.

        Args:
            index: the index object.
            object_name: for error messages.
            ledger_id: the ledger of a V1 index without our extension, which doesn't say it.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        decoded = decode_index(index, object_name=object_name, ledger_id=ledger_id)
        encoded = encode_index(decoded)
        known_ledger = None if decoded.layout is Layout.V1 and ledger_id is None else ledger_id
        groups, rows = _rows_of(decoded, known_ledger, object_name)
        blocks = _block_table(decoded, groups, rows, object_name)
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
            _upper=_upper_bounds(blocks, by_position, ledgers, rows is not None),
            _by_position=by_position,
        )

    def encode(self) -> bytes:
        """The index object this was parsed from, byte for byte, built again from its values."""
        return encode_index(self._index)

    def find(self, first: Position, last: Position) -> Int64s:
        """Numbers of the blocks that may hold entries with ``first <= position <= last``, in the order of positions."""
        blocks = self.blocks
        ledger = blocks.ledger_id
        not_before = (ledger > first.ledger_id) | ((ledger == first.ledger_id) & (self._upper >= first.entry_id))
        not_after = (ledger < last.ledger_id) | ((ledger == last.ledger_id) & (blocks.first_entry_id <= last.entry_id))
        wanted = not_before & not_after
        found: Int64s = self._by_position[wanted[self._by_position]]
        return found

    def decode(self, number: int, data: Buffer, *, block_bytes_max: int, decompressed_bytes_max: int) -> EntryBatch:
        """The entries of block ``number``, checked against everything the index says of it.

        Args:
            number: index into ``blocks``.
            data: the data object's bytes from the block's offset on, at least ``read_bytes`` of them; for a
                block that is followed by a block header, ``length`` of them are enough.
            block_bytes_max: largest block the caller takes.
            decompressed_bytes_max: largest run of entries the caller takes.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are.
        """
        blocks = self.blocks
        view = byte_array(data)[: int(blocks.read_bytes[number])]
        offset, length = int(blocks.offset[number]), int(blocks.length[number])
        if len(view) < length:
            raise Truncated("block", object_name=self.object_name, offset=offset, expected=length, found=len(view))
        if length > block_bytes_max:
            raise LimitExceeded(
                "block is too large",
                object_name=self.object_name,
                offset=offset,
                expected=f"at most {block_bytes_max}",
                found=length,
            )
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
        """Whether a block header with our extension stands where this plain index points."""
        magic = view[:4].tobytes()
        if len(view) < BLOCK_HEADER_BYTES or magic not in (b"\xfb\xdb\xab\xcb", b"\x26\xa6\x6d\x32"):
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
        """A plain block must reach to the entry before the next one: a damaged length looks like padding."""
        last = int(batch.entry_ids[-1]) if len(batch) else int(self.blocks.first_entry_id[number]) - 1
        upper = int(self._upper[number])
        ends_ledger = self._ends_ledger(number)
        if (
            last > upper
            or (last < upper and not ends_ledger)
            or (last < upper < _INT64_MAX and self._is_whole_ledger())
        ):
            raise Inconsistent(
                "entries are missing" if last < upper else "entries beyond the index",
                object_name=self.object_name,
                offset=int(self.blocks.offset[number]),
                expected=f"last entry {upper}",
                found=last,
            )

    def _ends_ledger(self, number: int) -> bool:
        at = int(np.flatnonzero(self._by_position == number)[0]) + 1
        if at == len(self._by_position):
            return True
        return bool(self.blocks.ledger_id[self._by_position[at]] != self.blocks.ledger_id[number])

    def _is_whole_ledger(self) -> bool:
        return self.layout is Layout.V1 and self.ledgers[0].closed


def _rows_of(
    index: ObjectIndex, ledger_id: int | None, object_name: str
) -> tuple[list[int], list[NDArray[np.void]] | None]:
    """The ledger of each group, and the rows of our extension if there is one."""
    ledgers = [group.ledger_id for group in index.groups]
    if len(set(ledgers)) != len(ledgers):
        raise Inconsistent("index", object_name=object_name, expected="one group per ledger", found=f"{ledgers[:10]}")
    if not index.groups or index.groups[0].blocks is None:
        return ledgers, None
    rows = []
    for number, group in enumerate(index.groups):
        of_ledger = ledger_id if index.layout is Layout.V1 else group.ledger_id
        data = group.blocks or b""
        found, own = decode_index_rows(data, ledger_id=of_ledger, rows=len(group.entries), object_name=object_name)
        ledgers[number] = found
        rows.append(own)
    return ledgers, rows


def _block_table(
    index: ObjectIndex, ledgers: Sequence[int], rows: list[NDArray[np.void]] | None, object_name: str
) -> BlockTable:
    for group in index.groups:
        _check_ascending(group, object_name)
    counts = [len(group.entries) for group in index.groups]
    ledger_id = np.repeat(np.array(ledgers, dtype=np.int64), counts)
    first = _joined([group.entries["first_entry_id"] for group in index.groups])
    offset = _joined([group.entries["offset"] for group in index.groups])
    order = np.argsort(offset, kind="stable")
    ledger_id, first, offset = ledger_id[order], first[order], offset[order]
    length = np.maximum(np.append(offset[1:], index.data_bytes) - offset, 0)
    if rows is None:
        available = np.maximum(index.data_bytes - offset, 0)
        read_bytes = np.minimum(length + min(index.header_bytes, _INT64_MAX // 2), np.maximum(available, length))
        unknown = np.full(len(offset), -1, dtype=np.int64)
        return BlockTable(ledger_id, first, unknown, offset, length, read_bytes, *[unknown] * 11)
    joined = np.concatenate(rows)[order] if rows else np.empty(0, dtype=ROW)
    column = {name: joined[name].astype(np.int64) for name in ROW.names or ()}
    table = BlockTable(
        ledger_id=ledger_id,
        first_entry_id=first,
        offset=offset,
        length=length,
        read_bytes=length,
        table_offset=offset + BLOCK_HEADER_BYTES + column["stored_bytes"] + END_MARKER_BYTES,
        **{name: values for name, values in column.items() if name != "reserved"},
    )
    _check_extended(table, index, column["reserved"], object_name)
    return table


def _joined(columns: Sequence[NDArray[np.int64]]) -> Int64s:
    return np.concatenate(columns).astype(np.int64) if columns else np.empty(0, dtype=np.int64)


def _check_ascending(group: IndexGroup, object_name: str) -> None:
    first, offset = group.entries["first_entry_id"].astype(np.int64), group.entries["offset"].astype(np.int64)
    if len(first) and (
        first[0] < 0 or offset[0] < 0 or (first[1:] < first[:-1]).any() or (offset[1:] <= offset[:-1]).any()
    ):
        raise Inconsistent(
            "index entries",
            object_name=object_name,
            expected="entry ids and offsets that ascend",
            found=f"ledger {group.ledger_id}",
        )


def _check_extended(table: BlockTable, index: ObjectIndex, reserved: Int64s, object_name: str) -> None:
    """What planning relies on without looking at the data object."""
    for codec in np.unique(table.codec).tolist():
        codec_of(codec, object_name=object_name)
    table_end = table.table_offset + table.table_bytes
    wrong = (
        (table.entries < 1)
        | (table.last_entry_id - table.first_entry_id != table.entries - 1)
        | (table_end > table.offset + table.length)
        | (reserved != 0)
    )
    first_offset = int(table.offset[0]) if len(table) else 0
    if wrong.any() or first_offset != 0 or index.header_bytes != BLOCK_HEADER_BYTES:
        raise Inconsistent(
            "index extension",
            object_name=object_name,
            expected="blocks that fit between their offsets",
            found=f"block {int(np.argmax(wrong)) if len(wrong) else 0}",
        )


def _upper_bounds(
    blocks: BlockTable, by_position: Int64s, ledgers: Sequence[LedgerGroup], has_extension: bool
) -> Int64s:
    if has_extension:
        return blocks.last_entry_id
    ledger, first = blocks.ledger_id[by_position], blocks.first_entry_id[by_position]
    # What the metadata of a ledger says that was open when the index was written may be too little.
    ends = {group.ledger_id: group.last_entry_id if group.closed else -1 for group in ledgers}
    upper = np.array([ends[each] for each in ledger.tolist()], dtype=np.int64)
    upper[upper < 0] = _INT64_MAX
    same = np.append(ledger[1:] == ledger[:-1], False) if len(ledger) else np.empty(0, dtype=bool)
    upper[same] = first[1:][same[:-1]] - 1 if len(first) > 1 else upper[same]
    result = np.empty_like(upper)
    result[by_position] = upper
    return result
