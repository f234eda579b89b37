"""What a finished segment's index and summary say, from its blocks' descriptions.

Owns the step from (offset, block) pairs to an index object and a ``SegmentSummary``; the writer of a segment and who
recovers one from its data object alone both take it. Must never see a payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from formats.block import BLOCK_HEADER_BYTES, Layout
from formats.block_builder import EncodedBlock
from formats.checksum import crc32c
from formats.entries import Position
from formats.extension import ROW, encode_index_rows
from formats.index import BLOCKS_KEY, INDEX_CRC_KEY, INDEX_ENTRY, IndexGroup, ObjectIndex, encode_index, seal_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger

__all__ = ["LedgerFacts", "LedgerSpan", "SegmentSummary", "describe_segment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the source knows of a ledger and an index says beyond what the builder saw.

    Attributes:
        ledger_id: the ledger.
        closed: whether no entry will be added to it.
        size_bytes: payload bytes of the whole ledger; 0 = say those of this segment.
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
    """What is known of a finished segment.

    Attributes:
        layout: V1 or V2.
        begin: position of the first entry.
        end: position of the last entry.
        data_bytes: length of the data object.
        index_bytes: length of the index object.
        data_crc32c: CRC-32C of the data object; 0 when nobody ever read it (adopted by its index alone).
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
        part_bytes: length of the upload's parts, whose numbers an index names.
        data_bytes, data_crc32c: length and CRC-32C of the data object.
        spans: the segment's ledgers, ascending; at least one.
        blocks: offset in the data object and description of each block, in order.
        facts: what the source knows of the ledgers; ledgers that are missing count as open.
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
    # Pulsar takes a ledger's last readable entry from the metadata of its last segment: so this says where
    # the segment ends, not where the ledger does.
    return PulsarLedger(
        ledger_id=span.ledger_id,
        entries=span.last_entry_id + 1,
        size_bytes=facts.size_bytes or span.payload_bytes,
        closed_ms=facts.closed_ms if facts.closed else None,
        blocks=rows,
        index_crc32c=None if rows is None else 0,
    ).encode()
