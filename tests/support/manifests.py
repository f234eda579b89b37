"""Manifests for tests: segments without objects, and many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from formats.entries import Position
from formats.manifest import Assign, Edit, Offloaded
from formats.summary import Layout, LedgerSpan, SegmentSummary

DRIVER: Mapping[str, str] = {"managedLedgerOffloadDriver": "memory", "bucket": "b", "region": "", "serviceEndpoint": ""}
SEGMENT_ENTRIES = 10


def uuid_of(number: int) -> UUID:
    """A uuid whose halves don't grow with ``number``."""
    return UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)


def summary_of(begin: Position, end: Position, *, time_ms: int = -1, spans: int = 1) -> SegmentSummary:
    """Of a segment in ``spans`` ledgers: the begin's, and the end's last."""
    ledgers = [LedgerSpan(begin.ledger_id, begin.entry_id, end.entry_id, SEGMENT_ENTRIES, 100)]
    if spans > 1:
        ledgers = [
            LedgerSpan(begin.ledger_id, begin.entry_id, begin.entry_id + 1, 2, 20),
            LedgerSpan(end.ledger_id, 0, end.entry_id, SEGMENT_ENTRIES - 2, 80),
        ]
    return SegmentSummary(
        layout=Layout.V2,
        begin=begin,
        end=end,
        data_bytes=1000,
        index_bytes=50,
        data_crc32c=begin.entry_id * 2654435761 % 2**32,
        index_crc32c=7,
        entries=SEGMENT_ENTRIES,
        payload_bytes=100,
        publish_time_min_ms=time_ms,
        publish_time_max_ms=time_ms,
        blocks=1,
        compressed=False,
        ledgers=tuple(ledgers),
    )


def segment_edits(number: int, *, ledger_id: int = 1) -> list[Edit]:
    """Segment ``number`` of a ledger: ten entries each, one after the other; published a second apart."""
    begin = Position(ledger_id, number * SEGMENT_ENTRIES)
    end = Position(ledger_id, begin.entry_id + SEGMENT_ENTRIES - 1)
    uuid = uuid_of(ledger_id << 32 | number)
    return [
        Assign(uuid, 2, begin, None, 5, DRIVER),
        Offloaded(uuid, summary_of(begin, end, time_ms=1000 * number), 6),
    ]


def many_segments(start: int, stop: int, *, of_record: int = 100) -> Iterator[list[Edit]]:
    """The edits of segments ``start`` to ``stop`` of ledger 1, ``of_record`` segments together."""
    for first in range(start, stop, of_record):
        yield [edit for n in range(first, min(first + of_record, stop)) for edit in segment_edits(n)]
