"""A second reader of data and index objects, made from the description of Pulsar's formats alone.

It imports nothing of this project, so that it can't share its mistakes. It knows V1 and V2, not our extension, and
no compression: what it reads, a reader that follows the format reads.
"""

from __future__ import annotations

import hashlib
import struct

BLOCK_MAGICS = {0xFBDBABCB: "V1", 0x26A66D32: "V2"}
INDEX_MAGICS = {0xDE47DE47: "V1", 0x3D1FB0BC: "V2"}

Entry = tuple[int, int, bytes]


def read_index(index: bytes, ledger_id: int = -1) -> tuple[int, int, dict[int, list[tuple[int, int]]]]:
    """Length of the data object, length of its block headers, and per ledger (first entry id, offset) of each block."""
    magic, index_length = struct.unpack_from(">Ii", index, 0)
    data_length, header_length = struct.unpack_from(">qq", index, 8)
    if magic not in INDEX_MAGICS:
        raise ValueError(f"not an index: {magic:08x}")
    if index_length != len(index):
        raise ValueError(f"index of {len(index)} bytes says {index_length}")
    blocks: dict[int, list[tuple[int, int]]] = {}
    position = 24
    while position < index_length:
        if INDEX_MAGICS[magic] == "V2":
            (ledger_id,) = struct.unpack_from(">q", index, position)
            position += 8
        count, metadata_length = struct.unpack_from(">ii", index, position)
        position += 8 + metadata_length
        entries = [struct.unpack_from(">qiq", index, position + 20 * number) for number in range(count)]
        blocks[ledger_id] = [(first, offset) for first, _, offset in entries]
        position += 20 * count
    if position != index_length:
        raise ValueError("index groups and index length disagree")
    return data_length, header_length, blocks


def read_segment(data: bytes, index: bytes, ledger_id: int = -1) -> list[Entry]:
    """All entries of an object, (ledger id, entry id, payload), in the order of their positions.

    ``ledger_id`` is for V1, whose objects don't say it.
    """
    data_length, header_length, ledgers = read_index(index, ledger_id)
    if data_length != len(data):
        raise ValueError(f"data object of {len(data)} bytes, index says {data_length}")
    entries: list[Entry] = []
    for ledger, blocks in sorted(ledgers.items()):
        for number, (first, offset) in enumerate(blocks):
            following = blocks[number + 1][0] if number + 1 < len(blocks) else None
            entries += _read_run(data, offset, header_length, ledger, first, following)
    return entries


def _read_run(
    data: bytes, offset: int, header_length: int, ledger: int, first: int, following: int | None
) -> list[Entry]:
    """Entries from one index entry on, to padding, another block, the end, or the next index entry's first entry."""
    entries: list[Entry] = []
    position = offset + header_length
    expected = first
    while position + 4 <= len(data) and expected != following:
        (length,) = struct.unpack_from(">i", data, position)
        if length < 0:
            break
        (entry_id,) = struct.unpack_from(">q", data, position + 4)
        payload = data[position + 12 : position + 12 + length]
        if len(payload) != length or entry_id < expected:
            raise ValueError(f"entry {entry_id} of {length} bytes at {position}, expected entry {expected}")
        entries.append((ledger, entry_id, payload))
        expected = entry_id + 1
        position += 12 + length
    return entries


def check_blocks(data: bytes) -> list[tuple[str, int, int, int | None]]:
    """Walks the object from block to block by the lengths in the headers: (layout, offset, first entry, ledger)."""
    blocks: list[tuple[str, int, int, int | None]] = []
    position = 0
    while position < len(data):
        magic, header_length, block_length, first, ledger = struct.unpack_from(">IQQqq", data, position)
        if magic not in BLOCK_MAGICS or header_length != 128 or block_length < header_length:
            raise ValueError(f"no block header at {position}")
        layout = BLOCK_MAGICS[magic]
        blocks.append((layout, position, first, ledger if layout == "V2" else None))
        position += block_length
    if position != len(data):
        raise ValueError("the last block goes past the end of the object")
    return blocks


def digest(entries: list[Entry]) -> str:
    """SHA-256 over ledger id, entry id, length and payload of every entry."""
    sha = hashlib.sha256()
    for ledger, entry_id, payload in entries:
        sha.update(struct.pack(">qqi", ledger, entry_id, len(payload)) + payload)
    return sha.hexdigest()
