"""Index objects: which entries begin where in a data object; V1 and V2.

Owns the bytes of an index and of the extension inside its ledger metadata. Must never interpret offsets: a map of
blocks is ``formats.segment_map``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.block import Layout
from formats.buffers import Buffer, byte_array
from formats.checksum import crc32c
from formats.errors import BadMagic, ChecksumMismatch, Inconsistent, LimitExceeded, Truncated
from formats.metadata.messages import BookKeeperLedger, PulsarLedger

__all__ = [
    "BLOCKS_KEY",
    "INDEX_CRC_KEY",
    "INDEX_ENTRY",
    "INDEX_HEADER_BYTES",
    "IndexGroup",
    "IndexHeader",
    "ObjectIndex",
    "decode_index",
    "decode_index_header",
    "encode_index",
    "is_index",
    "seal_index",
]

#: One block index entry, 20 bytes.
INDEX_ENTRY = np.dtype([("first_entry_id", ">i8"), ("part", ">i4"), ("offset", ">i8")])
#: BookKeeper custom metadata in which a V1 index carries our extension.
BLOCKS_KEY = "offloader.blocks"
INDEX_CRC_KEY = "offloader.index-crc32c"

_MAGIC = {Layout.V1: bytes.fromhex("de47de47"), Layout.V2: bytes.fromhex("3d1fb0bc")}
_FIXED = struct.Struct(">4siqq")
INDEX_HEADER_BYTES = _FIXED.size
_V1_COUNTS = struct.Struct(">ii")
_V2_GROUP = struct.Struct(">qii")
_INDEX_BYTES_MAX = 2**31 - 1
#: Larger header lengths than this are damage; Pulsar writes 128.
_HEADER_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class IndexGroup:
    """One ledger's part of an index.

    Attributes:
        ledger_id: the ledger; -1 when unknown (V1 doesn't say it).
        metadata: the ledger metadata, protobuf, untouched.
        entries: ``INDEX_ENTRY``, shape (n,).
        last_entry_id: what the metadata says; -1 when it doesn't.
        closed: whether the metadata says that the ledger is closed.
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
    """A whole index.

    Attributes:
        layout: V1 or V2.
        data_bytes: length of the data object.
        header_bytes: length of its block headers.
        groups: in the order of the index; exactly one in V1.
    """

    layout: Layout
    data_bytes: int
    header_bytes: int
    groups: tuple[IndexGroup, ...]


def encode_index(index: ObjectIndex) -> bytes:
    """The index object's bytes; metadata is written as it is.

    Raises:
        LimitExceeded: the index would be longer than its own length field can say.
    """
    body = b"".join(_encode_group(index.layout, group) for group in index.groups)
    total = _FIXED.size + len(body)
    if total > _INDEX_BYTES_MAX:
        raise LimitExceeded("index is too long", expected=f"at most {_INDEX_BYTES_MAX} bytes", found=total)
    return _FIXED.pack(_MAGIC[index.layout], total, index.data_bytes, index.header_bytes) + body


def _encode_group(layout: Layout, group: IndexGroup) -> bytes:
    counts = (len(group.entries), len(group.metadata))
    head = _V1_COUNTS.pack(*counts) if layout is Layout.V1 else _V2_GROUP.pack(group.ledger_id, *counts)
    return head + group.metadata + group.entries.tobytes()


class IndexHeader(NamedTuple):
    """What an index begins with: layout, its own length, that of the data object, that of the block headers."""

    layout: Layout
    index_bytes: int
    data_bytes: int
    header_bytes: int


def is_index(data: Buffer) -> bool:
    """Whether an index begins with these bytes, four of them are enough."""
    return byte_array(data)[:4].tobytes() in _MAGIC.values()


def decode_index_header(data: Buffer, *, object_name: str = "") -> IndexHeader:
    """The first ``INDEX_HEADER_BYTES`` bytes of an index; what follows isn't looked at.

    Raises:
        FormatError: too short, no index, or lengths that can't be.
    """
    view = byte_array(data)
    if len(view) < _FIXED.size:
        raise Truncated("index", object_name=object_name, expected=f"at least {_FIXED.size}", found=len(view))
    magic, index_bytes, data_bytes, header_bytes = _FIXED.unpack_from(view.data)
    layout = next((each for each, known in _MAGIC.items() if known == magic), None)
    if layout is None:
        known = " or ".join(each.hex() for each in _MAGIC.values())
        raise BadMagic("index", object_name=object_name, offset=0, expected=known, found=magic.hex())
    if index_bytes < _FIXED.size:
        raise Inconsistent(
            "index length", object_name=object_name, offset=4, expected=f"at least {_FIXED.size}", found=index_bytes
        )
    if data_bytes < 0 or not 0 <= header_bytes <= _HEADER_BYTES_MAX:
        raise Inconsistent(
            "index",
            object_name=object_name,
            offset=8,
            expected="lengths of data object and block headers",
            found=f"{data_bytes} and {header_bytes}",
        )
    return IndexHeader(layout, index_bytes, data_bytes, header_bytes)


def decode_index(data: Buffer, *, object_name: str = "", ledger_id: int | None = None) -> ObjectIndex:
    """The index at the start of ``data``; bytes after its own length are ignored.

    Args:
        data: the index object.
        object_name: for error messages.
        ledger_id: the ledger of a V1 index, which doesn't say it.

    Raises:
        FormatError: of every kind; nothing else, whatever the bytes are.
    """
    view = byte_array(data)
    header = decode_index_header(view, object_name=object_name)
    if header.index_bytes > len(view):
        raise Truncated("index", object_name=object_name, expected=header.index_bytes, found=len(view))
    whole = view[: header.index_bytes].tobytes()
    groups, sealed_at = _decode_groups(whole, header.layout, ledger_id, object_name)
    _check_seal(whole, groups, sealed_at, object_name)
    return ObjectIndex(header.layout, header.data_bytes, header.header_bytes, groups)


def _decode_groups(
    whole: bytes, layout: Layout, ledger_id: int | None, object_name: str
) -> tuple[tuple[IndexGroup, ...], list[tuple[int, int]]]:
    """The groups, and for each one that has a CRC of the index where that stands and what it says."""
    groups: list[IndexGroup] = []
    seals: list[tuple[int, int]] = []
    head = _V1_COUNTS if layout is Layout.V1 else _V2_GROUP
    position = _FIXED.size
    while position < len(whole) or (layout is Layout.V1 and not groups):
        if len(whole) - position < head.size:
            raise Truncated(
                "index group", object_name=object_name, offset=position, expected=head.size, found=len(whole) - position
            )
        *of_ledger, count, metadata_bytes = head.unpack_from(whole, position)
        at = position + head.size
        needed = metadata_bytes + INDEX_ENTRY.itemsize * count
        if count < 0 or metadata_bytes < 0 or needed > len(whole) - at:
            raise Inconsistent(
                "index group",
                object_name=object_name,
                offset=position,
                expected=f"metadata and index entries in {len(whole) - at} bytes",
                found=f"{metadata_bytes} bytes and {count} entries",
            )
        metadata = whole[at : at + metadata_bytes]
        entries = np.frombuffer(whole, dtype=INDEX_ENTRY, count=count, offset=at + metadata_bytes)
        position = at + needed
        if layout is Layout.V1:
            group, crc = _v1_group(-1 if ledger_id is None else ledger_id, metadata, entries, object_name, at)
        else:
            group, crc = _v2_group(of_ledger[0], metadata, entries, object_name, at)
        groups.append(group)
        if crc is not None:
            seals.append((at + metadata_bytes - 4, crc))
        if layout is Layout.V1 and position != len(whole):
            raise Inconsistent("index length", object_name=object_name, offset=4, expected=position, found=len(whole))
    return tuple(groups), seals


def _v1_group(
    ledger_id: int, metadata: bytes, entries: NDArray[np.void], object_name: str, at: int
) -> tuple[IndexGroup, int | None]:
    ledger = BookKeeperLedger.decode(metadata, object_name=object_name, offset=at)
    last = -1 if ledger.last_entry_id is None else ledger.last_entry_id
    crc = ledger.custom.get(INDEX_CRC_KEY)
    group = IndexGroup(ledger_id, metadata, entries, last, ledger.closed, ledger.custom.get(BLOCKS_KEY))
    if crc is None:
        return group, None
    if len(crc) != 4 or not metadata.endswith(crc):
        raise Inconsistent("index checksum", object_name=object_name, offset=at, expected="four bytes at the end")
    return group, int.from_bytes(crc, "little")


def _v2_group(
    ledger_id: int, metadata: bytes, entries: NDArray[np.void], object_name: str, at: int
) -> tuple[IndexGroup, int | None]:
    ledger = PulsarLedger.decode(metadata, object_name=object_name, offset=at)
    if ledger.ledger_id != ledger_id:
        raise Inconsistent(
            "ledger of an index group", object_name=object_name, offset=at, expected=ledger_id, found=ledger.ledger_id
        )
    last = -1 if ledger.entries is None else ledger.entries - 1
    group = IndexGroup(ledger_id, metadata, entries, last, bool(ledger.closed_ms), ledger.blocks)
    crc = ledger.index_crc32c
    if crc is not None and not metadata.endswith(crc.to_bytes(4, "little")):
        raise Inconsistent("index checksum", object_name=object_name, offset=at, expected="four bytes at the end")
    return group, crc


def _check_seal(whole: bytes, groups: Sequence[IndexGroup], seals: list[tuple[int, int]], object_name: str) -> None:
    """An index has the extension in all groups, sealed in all, or in none."""
    extended = sum(group.blocks is not None for group in groups)
    if extended == 0 and not seals:
        return
    if extended != len(groups) or len(seals) != len(groups):
        raise Inconsistent(
            "index extension is incomplete",
            object_name=object_name,
            expected=f"blocks and a checksum in {len(groups)} groups",
            found=f"{extended} and {len(seals)}",
        )
    computed = crc32c(_unsealed(whole, [at for at, _ in seals]))
    for at, crc in seals:
        if crc != computed:
            raise ChecksumMismatch(
                "index", object_name=object_name, offset=at, expected=f"{crc:08x}", found=f"{computed:08x}"
            )


def _unsealed(whole: bytes, positions: Sequence[int]) -> bytearray:
    plain = bytearray(whole)
    for at in positions:
        plain[at : at + 4] = bytes(4)
    return plain


def seal_index(index: ObjectIndex) -> bytes:
    """The bytes of an extended index: every group's metadata ends with four bytes that become the index's CRC-32C.

    The CRC is computed with those four bytes of every group zeroed.
    """
    whole = bytearray(encode_index(index))
    positions: list[int] = []
    head = _V1_COUNTS.size if index.layout is Layout.V1 else _V2_GROUP.size
    position = _FIXED.size
    for group in index.groups:
        positions.append(position + head + len(group.metadata) - 4)
        position += head + len(group.metadata) + group.entries.nbytes
    crc = crc32c(_unsealed(bytes(whole), positions)).to_bytes(4, "little")
    for at in positions:
        whole[at : at + 4] = crc
    return bytes(whole)
