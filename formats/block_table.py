"""The table of an object's blocks, in columns, built from its index.

Owns what is known of each block without looking at the data object. Must never decode a block or fetch one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES, Layout
from formats.compression import codec_of
from formats.entries import Position
from formats.errors import Inconsistent
from formats.extension import ROW, decode_index_rows
from formats.index import IndexGroup, ObjectIndex

__all__ = [
    "ENTRY_ID_UNKNOWN_MAX",
    "BlockTable",
    "InOrder",
    "Int64s",
    "LedgerGroup",
    "build_block_table",
    "rows_of",
    "upper_bounds",
]

Int64s = NDArray[np.int64]
#: Upper bound of a block's entry ids when nothing says where it ends.
ENTRY_ID_UNKNOWN_MAX = 2**63 - 1


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
class InOrder:
    """Blocks in the order of their positions, where no block reaches into the next one: found by halving.

    Attributes:
        numbers: of the blocks, int64, shape (n,); the other columns are n numbers in their order, as Python's own:
            halving those takes a fifth of what asking NumPy for one place does.
        ledger_id: ascending.
        first_entry_id: ascending in each ledger.
        upper: largest entry id that a block may hold; ascending in each ledger.
    """

    numbers: Int64s
    ledger_id: list[int]
    first_entry_id: list[int]
    upper: list[int]

    @classmethod
    def of(cls, blocks: BlockTable, by_position: Int64s, upper: Int64s) -> InOrder | None:
        """The blocks of a table; ``None`` when they overlap."""
        ledger, first = blocks.ledger_id[by_position], blocks.first_entry_id[by_position]
        ordered = upper[by_position]
        if ((ordered[1:] < ordered[:-1]) & (ledger[1:] == ledger[:-1])).any():
            return None
        return cls(by_position, ledger.tolist(), first.tolist(), ordered.tolist())

    def between(self, first: Position, last: Position) -> Int64s:
        """Numbers of the blocks that may hold entries with ``first <= position <= last``."""
        begin, end = self._of_ledger(first.ledger_id)
        start = bisect_left(self.upper, first.entry_id, begin, end)
        if last.ledger_id != first.ledger_id:
            begin, end = self._of_ledger(last.ledger_id)
        stop = bisect_right(self.first_entry_id, last.entry_id, begin, end)
        return self.numbers[start : max(start, stop)]

    def _of_ledger(self, ledger_id: int) -> tuple[int, int]:
        begin = bisect_left(self.ledger_id, ledger_id)
        return begin, bisect_right(self.ledger_id, ledger_id, begin)


def rows_of(
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


def build_block_table(
    index: ObjectIndex, ledgers: Sequence[int], rows: list[NDArray[np.void]] | None, object_name: str
) -> BlockTable:
    """The table of an index; ``ledgers`` and ``rows`` are what ``rows_of`` answered for it.

    Raises:
        Inconsistent: index entries that don't ascend, or an extension that contradicts them.
    """
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
        # What a run needs beyond the next offset, but not beyond the object.
        beyond = np.minimum(length, ENTRY_ID_UNKNOWN_MAX - index.header_bytes) + index.header_bytes
        read_bytes = np.minimum(beyond, np.maximum(index.data_bytes - offset, length))
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
    needed = BLOCK_HEADER_BYTES + table.stored_bytes + END_MARKER_BYTES + table.table_bytes
    wrong = (
        (table.entries < 1)
        | (table.last_entry_id < table.first_entry_id)
        | (table.last_entry_id - table.first_entry_id != table.entries - 1)
        | (needed > table.length)
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


def upper_bounds(
    blocks: BlockTable, by_position: Int64s, ledgers: Sequence[LedgerGroup], has_extension: bool
) -> Int64s:
    """Largest entry id that each block may hold, int64, shape (n,): from the index, the next block or the metadata."""
    if has_extension:
        return blocks.last_entry_id
    ledger, first = blocks.ledger_id[by_position], blocks.first_entry_id[by_position]
    # What the metadata of a ledger says that was open when the index was written may be too little.
    ends = {group.ledger_id: group.last_entry_id if group.closed else -1 for group in ledgers}
    upper = np.array([ends[each] for each in ledger.tolist()], dtype=np.int64)
    upper[upper < 0] = ENTRY_ID_UNKNOWN_MAX
    followed = np.flatnonzero(ledger[1:] == ledger[:-1])
    upper[followed] = first[followed + 1] - 1
    result = np.empty_like(upper)
    result[by_position] = upper
    return result
