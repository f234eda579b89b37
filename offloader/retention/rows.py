"""Cuts of our own streams as documents hold them, and back; pure.

Owns the translation. Must never give a partition's position to another incarnation of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from formats.entries import Position
from formats.retention_state import CutRow, PartitionRow, StreamCutRow
from offloader.retention.cuts import Cut, SegmentId

__all__ = ["both_rows", "cut_of_rows", "partition_segment", "rows_alive", "rows_of_cut", "stream_rows"]


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


def stream_rows(
    cuts: Mapping[str, Cut], homes: Mapping[str, tuple[PartitionRow, ...]] | None = None
) -> tuple[StreamCutRow, ...]:
    """Cuts of several streams, ascending by stream.

    Args:
        homes: the partitions of each stream as they are; ``None``: nobody looked.
    """
    known = homes or {}
    rows = ((stream, rows_of_cut(cuts[stream])) for stream in sorted(cuts))
    return tuple(StreamCutRow(stream, cut, _named(cut, known.get(stream, ()))) for stream, cut in rows)


def both_rows(
    stream: str, one: StreamCutRow | None, other: StreamCutRow | None, choose: Callable[[Position, Position], Position]
) -> StreamCutRow:
    """One cut of two of a stream.

    Args:
        other: the newer one: where a partition was another stream in the first, its position counts.
        choose: which of two positions of the same stream counts.
    """
    homes, cuts = dict[int, UUID](), dict[int, Position]()
    for each in (one, other):
        told = {} if each is None else {row.number: row.incarnation for row in each.partitions}
        for row in () if each is None else each.cut:
            number, before = row.partition, cuts.get(row.partition)
            is_same = number not in told or number not in homes or told[number] == homes[number]
            cuts[number] = row.position if before is None or not is_same else choose(before, row.position)
            if number in told:
                homes[number] = told[number]
    cut = tuple(CutRow(number, cuts[number]) for number in sorted(cuts))
    return StreamCutRow(stream, cut, tuple(PartitionRow(number, homes[number]) for number in sorted(homes)))


def rows_alive(
    cut: tuple[CutRow, ...], told: tuple[PartitionRow, ...], now: tuple[PartitionRow, ...]
) -> tuple[CutRow, ...]:
    """Those of partitions that are still the same, as far as that is known."""
    incarnations, alive = {row.number: row.incarnation for row in told}, {row.number: row.incarnation for row in now}
    return tuple(
        row
        for row in cut
        if row.partition not in incarnations or incarnations[row.partition] == alive.get(row.partition)
    )


def _named(cut: tuple[CutRow, ...], home: tuple[PartitionRow, ...]) -> tuple[PartitionRow, ...]:
    named = {row.partition for row in cut}
    return tuple(row for row in home if row.number in named)
