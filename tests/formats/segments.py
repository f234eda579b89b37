"""Segments for tests: build them whole, and read them back through the map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.segment import FinishedSegment, LedgerFacts, SegmentBuilder, SegmentMap
from formats.summary import Layout

START = Position(-1, 0)
END = Position(2**63 - 1, 2**63 - 1)
LIMITS: dict[str, Any] = {"block_bytes_max": 1 << 28, "decompressed_bytes_max": 1 << 28}

Entries = list[tuple[int, int, bytes]]


def build(
    batches: Iterable[EntryBatch],
    *,
    layout: Layout = Layout.V2,
    block_bytes: int = 4096,
    part_bytes: int = 1 << 20,
    codec: Codec = Codec.NONE,
    extension: bool = True,
    facts: dict[int, LedgerFacts] | None = None,
) -> tuple[bytes, FinishedSegment]:
    """The data object and the rest of a segment of these batches."""
    builder = SegmentBuilder(
        layout=layout, block_bytes=block_bytes, part_bytes=part_bytes, codec=codec, extension=extension
    )
    parts = [part for batch in batches for part in builder.append(batch)]
    finished = builder.finish(facts)
    parts += finished.parts
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    return b"".join(bytes(part.body) for part in parts), finished


def batch(ledger_id: int, first: int, payloads: Sequence[bytes], times: Sequence[int] | int = -1) -> EntryBatch:
    return EntryBatch.build(ledger_id, first, payloads, times)


def entries_of(batches: Iterable[EntryBatch]) -> Entries:
    return [(e.ledger_id, e.entry_id, e.payload) for each in batches for e in each.entries()]


def block_bytes(segment_map: SegmentMap, data: bytes, number: int) -> bytes:
    start = int(segment_map.blocks.offset[number])
    return data[start : start + int(segment_map.blocks.read_bytes[number])]


def decode(segment_map: SegmentMap, data: bytes, first: Position = START, last: Position = END) -> list[EntryBatch]:
    """The blocks that may hold the range, decoded."""
    numbers = segment_map.find(first, last).tolist()
    return [segment_map.decode(number, block_bytes(segment_map, data, number), **LIMITS) for number in numbers]


def read(data: bytes, index: bytes, ledger_id: int | None = None) -> Entries:
    """Every entry of an object, through its index."""
    return entries_of(decode(SegmentMap.parse(index, ledger_id=ledger_id), data))
