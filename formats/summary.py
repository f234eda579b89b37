"""Facts about a segment that are known without its objects: layout, positions, sizes, times and ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from formats.entries import TIME_UNKNOWN_MS, Position


class Layout(IntEnum):
    """Pulsar's layouts: V1 has one ledger per object, V2 runs of any ledgers."""

    V1 = 1
    V2 = 2


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
    """Summary of a finished segment.

    Attributes:
        data_crc32c: CRC-32C of the data object; 0 if it was never read (adopted by its index alone).
        publish_time_min_ms, publish_time_max_ms: earliest and latest known publish time, -1 when none is known.
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

    @classmethod
    def of_spans(
        cls,
        spans: Sequence[LedgerSpan],
        *,
        layout: Layout,
        data_bytes: int,
        data_crc32c: int,
        blocks: int,
        compressed: bool,
        index_bytes: int = 0,
        index_crc32c: int = 0,
        publish_time_min_ms: int = TIME_UNKNOWN_MS,
        publish_time_max_ms: int = TIME_UNKNOWN_MS,
    ) -> SegmentSummary:
        """The summary of a segment with the entries of ``spans``, which ascend; at least one."""
        return cls(
            layout=layout,
            begin=Position(spans[0].ledger_id, spans[0].first_entry_id),
            end=Position(spans[-1].ledger_id, spans[-1].last_entry_id),
            data_bytes=data_bytes,
            index_bytes=index_bytes,
            data_crc32c=data_crc32c,
            index_crc32c=index_crc32c,
            entries=sum(span.entries for span in spans),
            payload_bytes=sum(span.payload_bytes for span in spans),
            publish_time_min_ms=publish_time_min_ms,
            publish_time_max_ms=publish_time_max_ms,
            blocks=blocks,
            compressed=compressed,
            ledgers=tuple(spans),
        )
