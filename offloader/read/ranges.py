"""Ranges of a stream: the readable range, ranges for exports, and entries that retention deleted before an export."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.coverage import holes
from offloader.errors import InvalidCallError, TrimmedError
from offloader.manifest.segment_table import SegmentSlice
from offloader.manifest.state import ManifestState

_T = TypeVar("_T")


class Run(NamedTuple):
    """Adjacent entries: first and last position, and the known publish times (ms; ``TIME_UNKNOWN_MS``: none)."""

    first: Position
    last: Position
    time_min_ms: int
    time_max_ms: int


def whole_range(state: ManifestState) -> tuple[Position, Position] | None:
    """First and last readable position; ``None`` when there is no readable entry.

    Entries after the committed end (the longest prefix of offloaded ranges and recorded gaps) are not readable yet,
    even in an offloaded segment.
    """
    first, last = state.first_position(), state.committed_end()
    return None if first is None or last is None or first > last else (first, last)


def readable_segments(state: ManifestState) -> SegmentSlice:
    """Offloaded segments with readable entries, in stream order."""
    ends = whole_range(state)
    return state.offloaded()[:0] if ends is None else state.offloaded(*ends)


def segments_between(segments: SegmentSlice, first: Position, last: Position) -> SegmentSlice:
    """The segments that may hold positions of ``first`` .. ``last``.

    Args:
        segments: offloaded segments in stream order; as ranges never overlap, their ends are also in order.
        first, last: both included.
    """
    start = bisect_left(segments, first, key=attrgetter("end"))
    return segments[start : bisect_right(segments, last, lo=start, key=attrgetter("begin"))]


def consecutive(batch: EntryBatch) -> Iterator[tuple[Position, Position]]:
    """The positions of a batch as ranges without a missing entry id."""
    ids = batch.entry_ids
    cuts = np.flatnonzero(np.diff(ids) != 1)
    for low, high in zip(ids[[0, *(cuts + 1)]].tolist(), ids[[*cuts, -1]].tolist(), strict=True) if len(ids) else ():
        yield Position(batch.ledger_id, low), Position(batch.ledger_id, high)


def grouped(items: Iterable[_T], size_of: Callable[[_T], int], size_max: int) -> Iterator[list[_T]]:
    """Adjacent items in groups of at most ``size_max``; a larger item is a separate group."""
    group, size = list[_T](), 0
    for each in items:
        own = size_of(each)
        if group and size + own > size_max:
            yield group
            group, size = [], 0
        group.append(each)
        size += own
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Positions to export together, inclusive; ``entries`` is ``None`` if the manifest does not record the number."""

    first: Position
    last: Position
    entries: int | None


def planned_ranges(state: ManifestState, after: Position | None, range_bytes: int) -> Iterator[PlannedRange]:
    """The readable part after a position, split at segment ends, each with at most ``range_bytes`` of data objects."""
    if (ends := whole_range(state)) is None:
        return
    first, last = ends if after is None else (max(ends[0], after.next()), ends[1])
    summaries = (record.content for record in segments_between(readable_segments(state), first, last))
    for together in grouped(summaries, lambda summary: summary.data_bytes, range_bytes):
        begin, end = together[0].begin, together[-1].end
        is_whole = first <= begin and end <= last
        entries = sum(each.entries for each in together) if is_whole else None
        yield PlannedRange(max(first, begin), min(last, end), entries)


def is_lost_between(state: ManifestState, reached: Position, first: Position) -> bool:
    """Whether entries may be lost between ``reached`` and ``first``, other than those of recorded gaps."""
    gaps = ((gap.first, gap.last) for gap in state.gaps if gap.last > reached)
    return any(holes(reached, gaps, state.closed_ledgers, until=first))


def is_lost_after(state: ManifestState, incarnation: str, last: Position, *, exported_to: str, skip_lost: bool) -> bool:
    """Whether entries between the last exported and the first readable position may have been deleted.

    Args:
        incarnation, last: of the exported stream, and the last exported position.
        exported_to: the export's destination, for errors.
        skip_lost: return the result instead of raising ``TrimmedError``.

    Raises:
        InvalidCallError: the stream was deleted and recreated.
        TrimmedError: entries were deleted before their export.
    """
    if incarnation != str(state.incarnation):
        raise InvalidCallError(
            f"stream {state.stream} was deleted and recreated since its export to {exported_to}",
            hint="export it to a new destination",
        )
    first = state.first_position()
    if first is None or not is_lost_between(state, last, first):
        return False
    if not skip_lost:
        raise TrimmedError(
            f"stream {state.stream}: exported up to {last}, but the following entries were deleted: the stream now "
            f"begins at {first}",
            first_available=first,
            hint=f"to continue at {first} without the deleted entries: --skip-lost (skip_lost=True)",
        )
    return True
