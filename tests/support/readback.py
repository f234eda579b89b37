"""Reads a stream back from its objects alone: manifest, index, blocks; none of ``offloader.read``.

What the write side is judged by, so it shares no code with the read side.
"""

from __future__ import annotations

from formats.block import decode_block
from formats.documents import STORE_IDENTITY_KEY
from formats.entries import Position
from formats.keys import data_key, index_key
from formats.segment_map import SegmentMap
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore

__all__ = ["stored_entries", "unaccounted_keys"]


def stored_entries(store: ObjectStore, stream: str) -> list[tuple[Position, bytes]]:
    """Every committed entry of the stream, in the manifest's order."""
    found: list[tuple[Position, bytes]] = []
    for segment in load_manifest(store, stream).offloaded():
        data, _ = store.get(data_key(stream, segment.uuid, segment.v1_ledger_id))
        index, _ = store.get(index_key(stream, segment.uuid, segment.v1_ledger_id))
        assert segment.summary is not None
        assert (len(data), len(index)) == (segment.summary.data_bytes, segment.summary.index_bytes)
        for offset in SegmentMap.parse(index).blocks.offset.tolist():
            batch = decode_block(
                memoryview(data)[offset:],
                block_bytes_max=2**30,
                decompressed_bytes_max=2**30,
                ledger_id=segment.begin.ledger_id if segment.layout == 1 else None,
            )
            found += [(entry.position, entry.payload) for entry in batch.entries()]
    return found


def unaccounted_keys(store: ObjectStore, stream: str) -> set[str]:
    """Keys below the stream that neither a segment of the manifest nor the manifest itself explains."""
    state = load_manifest(store, stream)
    known = set()
    for segment in state.segments.values():
        known |= {
            data_key(stream, segment.uuid, segment.v1_ledger_id),
            index_key(stream, segment.uuid, segment.v1_ledger_id),
        }
    keys = {info.key for info in store.list("").objects}
    known.add(STORE_IDENTITY_KEY)
    return {key for key in keys - known if not key.startswith("_catalog/") and "/manifest/" not in key}
