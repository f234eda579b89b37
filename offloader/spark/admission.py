"""How much of what is there one batch of a streaming query takes: limits, shared fairly among streams; pure.

Owns where a batch ends. Must never fetch: indexes come from the caller, and only those of segments that are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from formats.entries import Position
from formats.segment import SegmentSummary
from formats.segment_map import SegmentMap
from offloader.manifest.state import SegmentRecord
from offloader.read.plan import readable_segments, segments_between
from offloader.spark.planning import StreamRange

__all__ = ["IndexOf", "Limits", "batch_ends"]

#: The index of a segment; ``None`` for one that can't be read.
IndexOf = Callable[[str, SegmentRecord], SegmentMap | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Most of a batch. ``data_bytes`` are those of the blocks that are fetched; ``None``: no limit."""

    entries: int | None = None
    data_bytes: int | None = None

    def share(self, count: int) -> Limits:
        """One of ``count`` equal parts."""
        return Limits(*(None if each is None else each // count for each in (self.entries, self.data_bytes)))

    def less(self, taken: _Taken) -> Limits:
        """What is left."""
        return Limits(
            None if self.entries is None else self.entries - taken.entries,
            None if self.data_bytes is None else self.data_bytes - taken.data_bytes,
        )

    def hold(self, entries: int, data_bytes: int) -> bool:
        """Whether so much fits."""
        return (self.entries is None or entries <= self.entries) and (
            self.data_bytes is None or data_bytes <= self.data_bytes
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a stream gives to a batch: up to ``end``, included; ``None``: nothing."""

    end: Position | None = None
    entries: int = 0
    data_bytes: int = 0


def batch_ends(backlogs: Mapping[str, StreamRange], limits: Limits, index_of: IndexOf) -> dict[str, Position]:
    """Where each stream's part of a batch ends; streams that give nothing are left out.

    Every stream gets an equal share, and what the short ones don't need goes to the others. A batch holds at least one
    block or entry, so that a limit below a block's size slows a query down and doesn't stop it.

    Args:
        backlogs: name -> what isn't read yet.
        limits: of the whole batch.
        index_of: indexes of segments that are cut.
    """
    if limits == Limits():
        return {name: backlog.last for name, backlog in backlogs.items()}
    order = sorted(backlogs, key=lambda name: (*_size(backlogs[name], limits), name))
    ends: dict[str, Position] = {}
    left = limits
    for number, name in enumerate(order):
        taken = _cut(backlogs[name], left.share(len(order) - number), index_of, at_least_one=False)
        left = left.less(taken)
        if taken.end is not None:
            ends[name] = taken.end
    if order and not ends:
        taken = _cut(backlogs[order[-1]], limits, index_of, at_least_one=True)
        if taken.end is not None:
            ends[order[-1]] = taken.end
    return ends


def _size(backlog: StreamRange, limits: Limits) -> tuple[int, int]:
    """Bytes and entries, counted until they exceed the limits: a backlog may have a million segments."""
    entries = data_bytes = 0
    for record in _segments(backlog):
        if not limits.hold(entries, data_bytes):
            break
        summary = _summary(record)
        count = _ids_between(summary, backlog.first, backlog.last)
        entries += count
        data_bytes += _part_of_bytes(summary, count)
    return (data_bytes, entries) if limits.data_bytes is not None else (entries, data_bytes)


def _cut(backlog: StreamRange, limits: Limits, index_of: IndexOf, *, at_least_one: bool) -> _Taken:
    """As much of a stream as the limits hold."""
    taken = _Taken()
    for record in _segments(backlog):
        summary = _summary(record)
        first, last = _first_inside(summary, backlog.first), min(backlog.last, summary.end)
        count = _ids_between(summary, first, last)
        is_whole = first == summary.begin and last == summary.end
        index = None if is_whole or limits.data_bytes is None else index_of(backlog.state.stream, record)
        cost = _bytes_between(summary, index, first, last)
        if limits.hold(taken.entries + count, taken.data_bytes + cost):
            taken = _Taken(last, taken.entries + count, taken.data_bytes + cost)
            continue
        left = limits.less(taken)
        end = last if left.entries is None else _end_of_entries(summary, first, last, left.entries)
        if left.data_bytes is not None and cost > left.data_bytes:
            index = index_of(backlog.state.stream, record) if index is None else index
            one = at_least_one and taken.end is None
            by_bytes = _end_of_bytes(summary, index, first, last, left.data_bytes, at_least_one=one)
            end = None if end is None or by_bytes is None else min(end, by_bytes)
        if end is not None:
            count, cost = _ids_between(summary, first, end), _bytes_between(summary, index, first, end)
            taken = _Taken(end, taken.entries + count, taken.data_bytes + cost)
        break
    return taken


def _segments(backlog: StreamRange) -> Sequence[SegmentRecord]:
    return segments_between(readable_segments(backlog.state), backlog.first, backlog.last)


def _summary(record: SegmentRecord) -> SegmentSummary:
    assert record.summary is not None, "an offloaded segment has a summary"
    return record.summary


def _ids_between(summary: SegmentSummary, first: Position, last: Position) -> int:
    """Entry ids of a segment from ``first`` to ``last``, both included: the entries, unless ids are missing."""
    return sum(
        max(
            0,
            _last_id(span.ledger_id, span.last_entry_id, last)
            - _first_id(span.ledger_id, span.first_entry_id, first)
            + 1,
        )
        for span in summary.ledgers
        if first.ledger_id <= span.ledger_id <= last.ledger_id
    )


def _first_inside(summary: SegmentSummary, first: Position) -> Position:
    """The segment's lowest position from ``first`` on. A plain index doesn't say where its last block of a ledger ends,
    and would name that block for a position behind it."""
    for span in summary.ledgers:
        if Position(span.ledger_id, span.last_entry_id) >= first:
            return max(first, Position(span.ledger_id, span.first_entry_id))
    return summary.end


def _first_id(ledger_id: int, entry_id: int, first: Position) -> int:
    return max(entry_id, first.entry_id) if ledger_id == first.ledger_id else entry_id


def _last_id(ledger_id: int, entry_id: int, last: Position) -> int:
    return min(entry_id, last.entry_id) if ledger_id == last.ledger_id else entry_id


def _end_of_entries(summary: SegmentSummary, first: Position, last: Position, entries: int) -> Position | None:
    """Where ``entries`` ids from ``first`` on end; ``None``: not even one."""
    end = None
    for span in summary.ledgers:
        if entries <= 0 or not first.ledger_id <= span.ledger_id <= last.ledger_id:
            continue
        begin = _first_id(span.ledger_id, span.first_entry_id, first)
        stop = min(_last_id(span.ledger_id, span.last_entry_id, last), begin + entries - 1)
        if stop >= begin:
            end, entries = Position(span.ledger_id, stop), entries - (stop - begin + 1)
    return end


def _part_of_bytes(summary: SegmentSummary, count: int) -> int:
    whole = _ids_between(summary, summary.begin, summary.end)
    return summary.data_bytes * count // max(whole, 1)


def _bytes_between(summary: SegmentSummary, index: SegmentMap | None, first: Position, last: Position) -> int:
    """Bytes of the blocks that hold ``first`` .. ``last``; without an index in proportion."""
    if index is None:
        return _part_of_bytes(summary, _ids_between(summary, first, last))
    return int(index.blocks.length[index.find(first, last)].sum())


def _end_of_bytes(
    summary: SegmentSummary,
    index: SegmentMap | None,
    first: Position,
    last: Position,
    data_bytes: int,
    *,
    at_least_one: bool,
) -> Position | None:
    """The end of the last block that fits; ``None``: none does. Without an index it is all or nothing."""
    if index is None:
        return last if at_least_one else None
    numbers = index.find(first, last)
    fitting = int(np.searchsorted(np.cumsum(index.blocks.length[numbers]), data_bytes, side="right"))
    if at_least_one:
        fitting = max(fitting, 1)
    if fitting == 0:
        return None
    if fitting >= len(numbers):
        return last
    inside, beyond = numbers[fitting - 1], numbers[fitting]
    ledger_id = int(index.blocks.ledger_id[inside])
    if ledger_id == int(index.blocks.ledger_id[beyond]):
        return Position(ledger_id, int(index.blocks.first_entry_id[beyond]) - 1)
    [span] = [span for span in summary.ledgers if span.ledger_id == ledger_id]
    return Position(ledger_id, span.last_entry_id)
