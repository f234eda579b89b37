"""Index objects of V1 and V2, and the table of an object's blocks that they describe."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES
from formats.checksum import crc32c
from formats.entries import ENTRY_HEADER_BYTES, Buffer, Position, byte_array
from formats.errors import (
    BadMagicError,
    ChecksumMismatchError,
    InconsistentError,
    TruncatedError,
    located,
    require_at_most,
    require_bytes,
    require_equal,
)
from formats.extension import ROW, codec_of, decode_index_rows
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.summary import Layout

#: One block index entry, 20 bytes.
INDEX_ENTRY = np.dtype([("first_entry_id", ">i8"), ("part", ">i4"), ("offset", ">i8")])
#: BookKeeper custom metadata key of our extension in a V1 index.
BLOCKS_KEY = "offloader.blocks"
INDEX_CRC_KEY = "offloader.index-crc32c"

_MAGIC = {Layout.V1: bytes.fromhex("de47de47"), Layout.V2: bytes.fromhex("3d1fb0bc")}
_FIXED = struct.Struct(">4siqq")
INDEX_HEADER_BYTES = _FIXED.size
_V1_COUNTS = struct.Struct(">ii")
_V2_GROUP = struct.Struct(">qii")
#: Limit of an index, and of its header length: more than that is damage, Pulsar writes 128.
_LENGTH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class IndexGroup:
    """One ledger's part of an index.

    Attributes:
        ledger_id: the ledger; -1 when unknown (V1 doesn't contain it).
        metadata: the ledger metadata, protobuf, untouched.
        entries: ``INDEX_ENTRY``, shape (n,).
        last_entry_id: from the metadata; -1 if missing.
        blocks: our extension's rows for ``entries``, undecoded; ``None`` in a plain index.
    """

    ledger_id: int
    metadata: bytes
    entries: NDArray[np.void]
    last_entry_id: int = -1
    closed: bool = False
    blocks: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectIndex:
    """A whole index. ``header_bytes``: length of the block headers; ``groups``: in order, exactly one in V1."""

    layout: Layout
    data_bytes: int
    header_bytes: int
    groups: tuple[IndexGroup, ...]


def encode_index(index: ObjectIndex) -> bytes:
    """The index object's bytes; metadata is written unchanged.

    Raises:
        LimitExceededError: the index exceeds its own length field.
    """
    body = bytearray()
    for group in index.groups:
        counts = (len(group.entries), len(group.metadata))
        body += _V1_COUNTS.pack(*counts) if index.layout is Layout.V1 else _V2_GROUP.pack(group.ledger_id, *counts)
        body += group.metadata + group.entries.tobytes()
    total = require_at_most("index is too long", _FIXED.size + len(body), _LENGTH_MAX, unit="bytes")
    return _FIXED.pack(_MAGIC[index.layout], total, index.data_bytes, index.header_bytes) + body


class IndexHeader(NamedTuple):
    """The start of an index: layout, its own length, that of the data object, that of the block headers."""

    layout: Layout
    index_bytes: int
    data_bytes: int
    header_bytes: int


def is_index(data: Buffer) -> bool:
    """Whether an index begins with these bytes; needs four of them."""
    return byte_array(data)[:4].tobytes() in _MAGIC.values()


def decode_index_header(data: Buffer) -> IndexHeader:
    """Decodes the first ``INDEX_HEADER_BYTES`` bytes of an index; ignores what follows.

    Raises:
        FormatError: too short, no index, or impossible lengths.
    """
    view = byte_array(data)
    if len(view) < _FIXED.size:
        raise TruncatedError("index", expected=f"at least {_FIXED.size}", found=len(view))
    magic, index_bytes, data_bytes, header_bytes = _FIXED.unpack_from(view.data)
    layout = next((each for each, known in _MAGIC.items() if known == magic), None)
    if layout is None:
        known = " or ".join(each.hex() for each in _MAGIC.values())
        raise BadMagicError("index", offset=0, expected=known, found=magic.hex())
    if index_bytes < _FIXED.size:
        raise InconsistentError("index length", offset=4, expected=f"at least {_FIXED.size}", found=index_bytes)
    if data_bytes < 0 or not 0 <= header_bytes <= _LENGTH_MAX:
        raise InconsistentError(
            "index",
            offset=8,
            expected="lengths of data object and block headers",
            found=f"{data_bytes} and {header_bytes}",
        )
    return IndexHeader(layout, index_bytes, data_bytes, header_bytes)


def decode_index(data: Buffer, *, ledger_id: int | None = None) -> ObjectIndex:
    """Decodes the index at the start of ``data``; ignores bytes after its own length.

    ``ledger_id`` is of a V1 index, which doesn't contain it.

    Raises:
        FormatError: of every kind; nothing else, whatever the bytes are.
    """
    view = byte_array(data)
    header = decode_index_header(view)
    require_bytes("index", len(view), header.index_bytes)
    whole = view[: header.index_bytes].tobytes()
    groups, sealed_at = _decode_groups(whole, header.layout, ledger_id)
    _check_seal(whole, groups, sealed_at)
    return ObjectIndex(header.layout, header.data_bytes, header.header_bytes, groups)


def _decode_groups(
    whole: bytes, layout: Layout, ledger_id: int | None
) -> tuple[tuple[IndexGroup, ...], list[tuple[int, int]]]:
    """The groups, and the offset and value of each one's CRC of the index, if present."""
    groups: list[IndexGroup] = []
    seals: list[tuple[int, int]] = []
    head = _V1_COUNTS if layout is Layout.V1 else _V2_GROUP
    position = _FIXED.size
    while position < len(whole) or (layout is Layout.V1 and not groups):
        if len(whole) - position < head.size:
            raise TruncatedError("index group", offset=position, expected=head.size, found=len(whole) - position)
        *of_ledger, count, metadata_bytes = head.unpack_from(whole, position)
        of_ledger = of_ledger or [-1 if ledger_id is None else ledger_id]
        at = position + head.size
        needed = metadata_bytes + INDEX_ENTRY.itemsize * count
        if count < 0 or metadata_bytes < 0 or needed > len(whole) - at:
            raise InconsistentError(
                "index group",
                offset=position,
                expected=f"metadata and index entries in {len(whole) - at} bytes",
                found=f"{metadata_bytes} bytes and {count} entries",
            )
        metadata = whole[at : at + metadata_bytes]
        entries = np.frombuffer(whole, dtype=INDEX_ENTRY, count=count, offset=at + metadata_bytes)
        position = at + needed
        with located("", at):
            group, crc = _group_of(layout, of_ledger[0], metadata, entries)
        groups.append(group)
        if crc is not None:
            seals.append((at + metadata_bytes - 4, crc))
        if layout is Layout.V1 and position != len(whole):
            raise InconsistentError("index length", offset=4, expected=position, found=len(whole))
    return tuple(groups), seals


def _group_of(
    layout: Layout, ledger_id: int, metadata: bytes, entries: NDArray[np.void]
) -> tuple[IndexGroup, int | None]:
    """The group with this metadata, and the CRC of the index in it, if present."""
    crc: bytes | None
    if layout is Layout.V1:
        v1 = BookKeeperLedger.decode(metadata)
        last, closed, blocks = v1.last_entry_id, v1.closed, v1.custom.get(BLOCKS_KEY)
        crc = v1.custom.get(INDEX_CRC_KEY)
    else:
        v2 = PulsarLedger.decode(metadata)
        require_equal("ledger of an index group", v2.ledger_id, ledger_id)
        last, closed, blocks = None if v2.entries is None else v2.entries - 1, bool(v2.closed_ms), v2.blocks
        crc = None if v2.index_crc32c is None else v2.index_crc32c.to_bytes(4, "little")
    if crc is not None and (len(crc) != 4 or not metadata.endswith(crc)):
        raise InconsistentError("index checksum", expected="four bytes at the end")
    group = IndexGroup(ledger_id, metadata, entries, -1 if last is None else last, closed, blocks)
    return group, None if crc is None else int.from_bytes(crc, "little")


def _check_seal(whole: bytes, groups: Sequence[IndexGroup], seals: list[tuple[int, int]]) -> None:
    """Checks the CRC: an index has the extension, with a CRC, in all groups or in none."""
    extended = sum(group.blocks is not None for group in groups)
    if extended == 0 and not seals:
        return
    if extended != len(groups) or len(seals) != len(groups):
        raise InconsistentError(
            "index extension is incomplete",
            expected=f"blocks and a checksum in {len(groups)} groups",
            found=f"{extended} and {len(seals)}",
        )
    computed = crc32c(_unsealed(whole, seals))
    for at, crc in seals:
        if crc != computed:
            raise ChecksumMismatchError("index", offset=at, expected=f"{crc:08x}", found=f"{computed:08x}")


def _unsealed(whole: bytes, seals: list[tuple[int, int]]) -> bytearray:
    plain = bytearray(whole)
    for at, _ in seals:
        plain[at : at + 4] = bytes(4)
    return plain


def seal_index(index: ObjectIndex) -> bytes:
    """The bytes of an extended index: every group's metadata ends with four bytes that become the index's CRC-32C.

    The CRC is computed with those four bytes of every group zeroed.
    """
    encoded = encode_index(index)
    _, seals = _decode_groups(encoded, index.layout, None)
    whole = _unsealed(encoded, seals)
    crc = crc32c(whole).to_bytes(4, "little")
    for at, _ in seals:
        whole[at : at + 4] = crc
    return bytes(whole)


Int64s = NDArray[np.int64]
#: Upper bound of a block's entry ids if its end is unknown.
ENTRY_ID_UNKNOWN_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """One ledger of an index.

    Attributes:
        ledger_id: the ledger; -1 in a V1 index parsed without it.
        metadata: the ledger metadata, protobuf, untouched.
        first_entry_id: first entry in the object; -1 when the group has no blocks.
        last_entry_id: last entry in the metadata (of the ledger, or of the ledger in this segment); -1 unknown.
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
        offset: where the block begins in the data object.
        length: bytes to the next block's offset, or to the end of the object.
        read_bytes: how many bytes from ``offset`` on ``SegmentMap.decode`` needs. More than ``length`` by one block
            header in plain objects, whose index may point between the entries of a block.
        payload_crc32c, stored_bytes: of the stored payload.
        uncompressed_bytes: of the run of entries, 12-byte entry headers included.
        codec, flags: number of a ``Codec``; see ``formats.extension``.
        table_offset, table_bytes, table_crc32c: where the entry table begins in the data object, length and CRC-32C.
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
    """Non-overlapping blocks in the order of their positions, for binary search.

    Attributes:
        numbers: of the blocks, int64, shape (n,). The other columns are n Python numbers in their order: bisecting
            those takes a fifth of the time of one NumPy lookup.
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
        """The blocks of a table; ``None`` if they overlap."""
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
        return self.numbers[start : max(start, bisect_right(self.first_entry_id, last.entry_id, begin, end))]

    def _of_ledger(self, ledger_id: int) -> tuple[int, int]:
        begin = bisect_left(self.ledger_id, ledger_id)
        return begin, bisect_right(self.ledger_id, ledger_id, begin)


def rows_of(index: ObjectIndex, ledger_id: int | None) -> tuple[list[int], list[NDArray[np.void]] | None]:
    """The ledger of each group, and the rows of our extension if there is one."""
    ledgers = [group.ledger_id for group in index.groups]
    if len(set(ledgers)) != len(ledgers):
        raise InconsistentError("index", expected="one group per ledger", found=f"{ledgers[:10]}")
    if not index.groups or index.groups[0].blocks is None:
        return ledgers, None
    decoded = [
        decode_index_rows(
            group.blocks or b"",
            ledger_id=ledger_id if index.layout is Layout.V1 else group.ledger_id,
            rows=len(group.entries),
        )
        for group in index.groups
    ]
    return [of_ledger for of_ledger, _ in decoded], [rows for _, rows in decoded]


def build_block_table(index: ObjectIndex, ledgers: Sequence[int], rows: list[NDArray[np.void]] | None) -> BlockTable:
    """The table of an index; ``ledgers`` and ``rows`` are the result of ``rows_of``.

    Raises:
        InconsistentError: index entries that don't ascend, or an extension that contradicts them.
    """
    for group in index.groups:
        _check_ascending(group)
    ledger_id = np.repeat(np.array(ledgers, dtype=np.int64), [len(group.entries) for group in index.groups])
    first = _joined([group.entries["first_entry_id"] for group in index.groups])
    offset = _joined([group.entries["offset"] for group in index.groups])
    order = np.argsort(offset, kind="stable")
    ledger_id, first, offset = ledger_id[order], first[order], offset[order]
    length = np.maximum(np.append(offset[1:], index.data_bytes) - offset, 0)
    if rows is None:
        # Bytes that a run needs beyond the next offset, within the object.
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
    _check_extended(table, index, column["reserved"])
    return table


def _joined(columns: Sequence[NDArray[np.int64]]) -> Int64s:
    return np.concatenate(columns).astype(np.int64) if columns else np.empty(0, dtype=np.int64)


def _check_ascending(group: IndexGroup) -> None:
    first, offset = group.entries["first_entry_id"].astype(np.int64), group.entries["offset"].astype(np.int64)
    if len(first) and (
        first[0] < 0 or offset[0] < 0 or (first[1:] < first[:-1]).any() or (offset[1:] <= offset[:-1]).any()
    ):
        raise InconsistentError(
            "index entries", expected="entry ids and offsets that ascend", found=f"ledger {group.ledger_id}"
        )


def _check_extended(table: BlockTable, index: ObjectIndex, reserved: Int64s) -> None:
    """Checks what read planning relies on without the data object."""
    for codec in np.unique(table.codec).tolist():
        codec_of(codec)
    needed = BLOCK_HEADER_BYTES + table.stored_bytes + END_MARKER_BYTES + table.table_bytes
    wrong = (
        (table.entries < 1)
        | (table.last_entry_id < table.first_entry_id)
        | (table.last_entry_id - table.first_entry_id != table.entries - 1)
        | (ENTRY_HEADER_BYTES * table.entries > table.uncompressed_bytes)
        | (needed > table.length)
        | (reserved != 0)
    )
    if wrong.any() or table.offset[:1].any() or index.header_bytes != BLOCK_HEADER_BYTES:
        raise InconsistentError(
            "index extension",
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
    # The metadata of a ledger that was open when the index was written may be outdated.
    ends = {group.ledger_id: group.last_entry_id if group.closed else -1 for group in ledgers}
    upper = np.array([ends[each] for each in ledger.tolist()], dtype=np.int64)
    upper[upper < 0] = ENTRY_ID_UNKNOWN_MAX
    followed = np.flatnonzero(ledger[1:] == ledger[:-1])
    upper[followed] = first[followed + 1] - 1
    result = np.empty_like(upper)
    result[by_position] = upper
    return result
