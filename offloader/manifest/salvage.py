"""One segment's facts out of its two objects, without a manifest.

Owns reading and checking them. Must never write or delete anything, nor believe an index that contradicts its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from formats.block import BLOCK_HEADER_BYTES, Layout, decode_block_header
from formats.checksum import crc32c
from formats.entries import TIME_UNKNOWN_MS, Position
from formats.errors import FormatError, Inconsistent
from formats.keys import data_key, index_key, is_segment_uuid_of
from formats.metadata.messages import PulsarLedger
from formats.object_metadata import check_object_version, object_owner
from formats.recover import SegmentRecovery
from formats.segment import LedgerSpan, SegmentSummary
from formats.segment_map import SegmentMap
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore

__all__ = ["FoundSegment", "read_segment"]

#: Bytes of one GET of a data object.
READ_BYTES = 8 * 1024 * 1024
#: Largest block that is taken: what its own length field can say.
_BLOCK_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSegment:
    """A segment whose objects are whole.

    Attributes:
        uuid, ledger_id: as in its keys.
        epoch: of its writer, 0 when nobody recorded it.
        owned: whether its metadata and its uuid show that this project wrote it for a stream of this name.
        summary: what it holds.
        closed_bytes: of each ledger that its index says is closed the payload bytes of the whole ledger.
        index: an index object to be written, when there is none.
    """

    uuid: UUID
    ledger_id: int | None
    epoch: int
    owned: bool
    summary: SegmentSummary
    closed_bytes: Mapping[int, int]
    index: bytes | None = field(default=None, repr=False)


def read_segment(
    store: ObjectStore, stream: str, uuid: UUID, ledger_id: int | None, *, has_index: bool, part_bytes: int
) -> FoundSegment:
    """The facts of one segment.

    The data object is read whole unless its index describes every block and the store vouches for its checksum.

    Args:
        has_index: whether an index object is there; else one is made from the blocks.
        part_bytes: named by an index that has to be made.

    Raises:
        FormatError: its objects are damaged, contradict each other, or aren't of a segment.
        NotFound: the data object is gone.
    """
    key = data_key(stream, uuid, ledger_id)
    info = store.head(key)
    if info.metadata:  # not every store keeps user metadata
        check_object_version(info.metadata, key)
    owner = object_owner(info.metadata)
    segment_map, index = None, b""
    if has_index:
        own_key = index_key(stream, uuid, ledger_id)
        index = store.get(own_key)[0]
        segment_map = SegmentMap.parse(index, object_name=own_key, ledger_id=ledger_id)
        if segment_map.data_bytes != info.size_bytes:
            raise Inconsistent("data object", object_name=key, expected=segment_map.data_bytes, found=info.size_bytes)
    made, summary = _facts(store, key, info, segment_map, ledger_id, part_bytes)
    if segment_map is not None:
        summary = replace(summary, index_bytes=len(index), index_crc32c=crc32c(index))
    return FoundSegment(
        uuid=uuid,
        ledger_id=ledger_id,
        epoch=0 if owner is None else owner.epoch,
        owned=owner is not None and is_segment_uuid_of(uuid, owner.incarnation),
        summary=summary,
        closed_bytes={} if segment_map is None else _closed_bytes(segment_map, summary),
        index=made if segment_map is None else None,
    )


def _facts(
    store: ObjectStore,
    key: str,
    info: ObjectInfo,
    segment_map: SegmentMap | None,
    ledger_id: int | None,
    part_bytes: int,
) -> tuple[bytes, SegmentSummary]:
    header = decode_block_header(store.get(key, ByteRange(0, BLOCK_HEADER_BYTES))[0], object_name=key)
    layout = Layout.V2 if ledger_id is None else Layout.V1
    if header.layout is not layout:
        raise Inconsistent("layout", object_name=key, expected=layout.name, found=header.layout.name)
    if segment_map is not None and not segment_map.has_extension:
        return b"", _of_plain(store, key, info, segment_map)
    if segment_map is not None and info.crc32c is not None:
        return b"", segment_map.summary(info.crc32c)
    recovery = SegmentRecovery(
        layout=layout,
        part_bytes=part_bytes,
        object_name=key,
        block_bytes_max=_BLOCK_BYTES_MAX,
        decompressed_bytes_max=_BLOCK_BYTES_MAX,
        ledger_id=ledger_id,
    )
    for _, body in _pieces(store, key, info.size_bytes):
        recovery.feed(body)
    index, summary = recovery.finish()
    if segment_map is not None and segment_map.summary(summary.data_crc32c) != replace(
        summary, index_bytes=0, index_crc32c=0
    ):
        raise Inconsistent("index", object_name=segment_map.object_name, expected="what its data object holds")
    return index, summary


def _of_plain(store: ObjectStore, key: str, info: ObjectInfo, segment_map: SegmentMap) -> SegmentSummary:
    """The summary of an object in Pulsar's own layout: its blocks are decoded, nothing else says what is in them."""
    spans: dict[int, LedgerSpan] = {}
    blocks, checksum = segment_map.blocks, 0
    for number in range(len(blocks)):
        offset = int(blocks.offset[number])
        body = store.get(key, ByteRange(offset, offset + int(blocks.read_bytes[number])))[0]
        # Blocks reach to the next one's offset, the last one to the end: together they are the object.
        checksum = crc32c(memoryview(body)[: int(blocks.length[number])], checksum)
        batch = segment_map.decode(
            number, body, block_bytes_max=_BLOCK_BYTES_MAX, decompressed_bytes_max=_BLOCK_BYTES_MAX
        )
        if len(batch):
            span = spans.get(batch.ledger_id)
            spans[batch.ledger_id] = LedgerSpan(
                batch.ledger_id,
                batch.first.entry_id if span is None else span.first_entry_id,
                batch.last.entry_id,
                len(batch) + (0 if span is None else span.entries),
                batch.payload_bytes + (0 if span is None else span.payload_bytes),
            )
    found = sorted(spans.values(), key=lambda span: span.ledger_id)
    if not found or blocks.offset[0] != 0:
        raise Inconsistent("data object", object_name=key, expected="entries from its beginning on", found="none")
    return SegmentSummary(
        layout=segment_map.layout,
        begin=Position(found[0].ledger_id, found[0].first_entry_id),
        end=Position(found[-1].ledger_id, found[-1].last_entry_id),
        data_bytes=info.size_bytes,
        index_bytes=0,
        data_crc32c=checksum if info.crc32c is None else info.crc32c,
        index_crc32c=0,
        entries=sum(span.entries for span in found),
        payload_bytes=sum(span.payload_bytes for span in found),
        publish_time_min_ms=TIME_UNKNOWN_MS,
        publish_time_max_ms=TIME_UNKNOWN_MS,
        blocks=len(blocks),
        compressed=False,
        ledgers=tuple(found),
    )


def _pieces(store: ObjectStore, key: str, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    for start in range(0, size_bytes, READ_BYTES):
        yield start, store.get(key, ByteRange(start, min(start + READ_BYTES, size_bytes)))[0]


def _closed_bytes(segment_map: SegmentMap, summary: SegmentSummary) -> dict[int, int]:
    """Payload bytes of the whole ledger, of each ledger that the index says is closed."""
    if segment_map.layout is Layout.V1:
        return {span.ledger_id: span.payload_bytes for span in summary.ledgers}
    found = {}
    for group in segment_map.ledgers:
        if group.closed:
            try:
                found[group.ledger_id] = PulsarLedger.decode(group.metadata).size_bytes or 0
            except FormatError:
                continue
    return found
