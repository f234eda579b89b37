"""What an earlier owner of a stream left unfinished.

Owns ending it: adopting complete objects, giving up the rest. Must never write data under a uuid of another epoch, nor
delete an object: whatever still arrives under a failed uuid is swept later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from formats.block_table import BlockTable
from formats.checksum import crc32c
from formats.errors import FormatError
from formats.keys import data_key, index_key
from formats.manifest import Failed, Offloaded
from formats.object_metadata import object_metadata
from formats.recover import SegmentRecovery
from formats.segment import Layout, LedgerFacts, SegmentSummary
from formats.segment_map import SegmentMap
from offloader.errors import NotFound, PreconditionFailed
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import SegmentRecord
from offloader.store.base import CREATE, ByteRange, ObjectStore
from offloader.write.segment.upload import abort_uploads

__all__ = ["settle_leftover"]

#: Bytes of one GET while a leftover data object is checked: what that needs of memory, with one block.
CHECK_READ_BYTES = 8 * 1024 * 1024
#: Largest block that is adopted: what its own length field can say.
_BLOCK_BYTES_MAX = 2**31 - 1


def settle_leftover(
    log: ManifestLog,
    segment: SegmentRecord,
    facts: Mapping[int, LedgerFacts],
    *,
    part_bytes: int,
    now_ms: int,
) -> Offloaded | Failed:
    """Ends a segment that an earlier epoch assigned: adopted when its data object is whole, else given up.

    Call it after ``log.open_epoch()``: only then can its owner commit nothing any more. Calling it again after an error
    is safe.

    Args:
        log: the stream's manifest, its epoch open.
        segment: assigned, of an earlier epoch.
        facts: what the source knows of the ledgers, for an index that has to be made.
        part_bytes: named by an index that has to be made.
        now_ms: ms since 1970 UTC.

    Returns:
        The edit that says so. ``Failed`` belongs into one record with the segment that takes over the range.

    Raises:
        StoreUnavailable, OutcomeUnknown, AccessDenied: the store doesn't tell. Nothing is decided.
    """
    assert segment.epoch != log.epoch, "only an earlier epoch leaves something"
    key = data_key(log.stream, segment.uuid, segment.v1_ledger_id)
    if not _is_there(log.store, key):
        abort_uploads(log.store, key)
    # Looked at again: its owner's last request may have completed the object just before the abort.
    if not _is_there(log.store, key):
        return Failed(segment.uuid, "its owner was replaced")
    try:
        index, summary = _recovered(log.store, key, segment, facts, part_bytes)
        summary = _with_index(log, segment, index, summary)
    except FormatError as error:
        return Failed(segment.uuid, f"its owner was replaced, and its objects aren't whole: {error}")
    if summary.begin != segment.begin or segment.end not in (None, summary.end):
        return Failed(segment.uuid, f"its owner was replaced, and its object holds {summary.begin}..{summary.end}")
    return Offloaded(segment.uuid, summary, now_ms)


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def _recovered(
    store: ObjectStore, key: str, segment: SegmentRecord, facts: Mapping[int, LedgerFacts], part_bytes: int
) -> tuple[bytes, SegmentSummary]:
    """Index and summary of the data object, every block of it checked."""
    recovery = SegmentRecovery(
        layout=Layout(segment.layout),
        part_bytes=part_bytes,
        object_name=key,
        block_bytes_max=_BLOCK_BYTES_MAX,
        decompressed_bytes_max=_BLOCK_BYTES_MAX,
        ledger_id=segment.v1_ledger_id,
    )
    start, size_bytes = 0, 1
    while start < size_bytes:
        body, info = store.get(key, ByteRange(start, start + CHECK_READ_BYTES))
        recovery.feed(body)
        start += CHECK_READ_BYTES
        size_bytes = info.size_bytes
    return recovery.finish(facts)


def _with_index(log: ManifestLog, segment: SegmentRecord, index: bytes, summary: SegmentSummary) -> SegmentSummary:
    """The summary with the index object that is in the store: the one there is, checked against the data, or ours."""
    from offloader import __version__

    key = index_key(log.stream, segment.uuid, segment.v1_ledger_id)
    metadata = object_metadata(
        role="index",
        stream=log.stream,
        format_version=2 if summary.compressed else 1,
        software_version=__version__,
        incarnation=log.state.incarnation,
        epoch=log.epoch or 0,
    )
    try:
        log.store.put(key, index, mode=CREATE, metadata=metadata, crc32c=summary.index_crc32c)
    except PreconditionFailed:
        existing = log.store.get(key)[0]
        _require_same_blocks(existing, index, key, segment.v1_ledger_id)
        # It may know less or more of the ledgers' ends than ours: what counts is that it describes this data.
        return replace(summary, index_bytes=len(existing), index_crc32c=crc32c(existing))
    return summary


def _require_same_blocks(existing: bytes, index: bytes, key: str, ledger_id: int | None) -> None:
    found = SegmentMap.parse(existing, object_name=key, ledger_id=ledger_id)
    wanted = SegmentMap.parse(index, object_name=key, ledger_id=ledger_id)
    same = all(
        np.array_equal(getattr(found.blocks, column.name), getattr(wanted.blocks, column.name))
        for column in fields(BlockTable)
    )
    if not same or found.data_bytes != wanted.data_bytes or found.encode() != existing:
        raise FormatError("the index doesn't describe the data object", object_name=key)
