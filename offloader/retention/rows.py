"""Cuts of our own streams as documents hold them, and back; pure.

Owns the translation. Must never give a partition's position to another incarnation of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from formats.entries import Position
from formats.retention_state import CutRow, StreamCutRow
from offloader.retention.cuts import Cut, SegmentId

__all__ = ["cut_of_rows", "partition_segment", "rows_of_cut", "stream_rows"]


def partition_segment(number: int) -> SegmentId:
    """The stream segment that partition ``number`` is; 0 for a stream without partitions."""
    return SegmentId(number, 0)


def rows_of_cut(cut: Cut) -> tuple[CutRow, ...]:
    """A cut, ascending by partition; it has positions only."""
    return tuple(
        CutRow(segment.number, position)
        for segment, position in sorted(cut.offsets.items())
        if isinstance(position, Position)
    )


def cut_of_rows(rows: tuple[CutRow, ...], alive: Collection[int] | None = None) -> Cut:
    """The cut in a document.

    Args:
        rows: its partitions.
        alive: the partitions that are still the same; ``None``: all.
    """
    return Cut({partition_segment(r.partition): r.position for r in rows if alive is None or r.partition in alive})


def stream_rows(cuts: Mapping[str, Cut]) -> tuple[StreamCutRow, ...]:
    """Cuts of several streams, ascending by stream."""
    return tuple(StreamCutRow(stream, rows_of_cut(cuts[stream])) for stream in sorted(cuts))
