"""Ranges of a stream that an export writes together, and what retention took before they were exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from formats.entries import Position
from formats.segment import SegmentSummary
from offloader.errors import InvalidCall, Trimmed
from offloader.manifest.state import ManifestState
from offloader.read.fetch import readable_segments, segments_between, whole_range


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Positions to export together, inclusive; ``entries`` is ``None`` if the manifest doesn't have the number."""

    first: Position
    last: Position
    entries: int | None


def planned_ranges(state: ManifestState, after: Position | None, range_bytes: int) -> Iterator[PlannedRange]:
    """The readable part after a position, split at segments' ends, each of ``range_bytes`` of data objects at most."""
    ends = whole_range(state)
    if ends is None:
        return
    first, last = ends if after is None else (max(ends[0], after.next()), ends[1])

    def planned(summaries: Sequence[SegmentSummary]) -> PlannedRange:
        begin, end = summaries[0].begin, summaries[-1].end
        is_whole = first <= begin and end <= last
        entries = sum(each.entries for each in summaries) if is_whole else None
        return PlannedRange(max(first, begin), min(last, end), entries)

    together, size = list[SegmentSummary](), 0
    for record in segments_between(readable_segments(state), first, last):
        if together and size + record.content.data_bytes > range_bytes:
            yield planned(together)
            together, size = [], 0
        together.append(record.content)
        size += record.content.data_bytes
    if together:
        yield planned(together)


def is_lost_after(state: ManifestState, incarnation: str, last: Position, *, exported_to: str, skip_lost: bool) -> bool:
    """Whether entries between the last exported and the first readable position may have been deleted.

    Args:
        incarnation, last: of the stream that was exported, and where the export ended.
        exported_to: where to, for the errors.
        skip_lost: return it instead of raising ``Trimmed``.

    Raises:
        InvalidCall: the stream was deleted and made anew.
        Trimmed: entries were deleted before their export.
    """
    if incarnation != str(state.incarnation):
        raise InvalidCall(
            f"stream {state.stream} was deleted and made anew since its export to {exported_to}",
            hint="export it to a new place",
        )
    first = state.first_position()
    if first is None or first <= last or state.follows(last, first):
        return False
    if any(last < gap.last and gap.first < first for gap in state.gaps):
        return False
    if not skip_lost:
        raise Trimmed(
            f"stream {state.stream}: exported up to {last}, and what follows was deleted: it begins at {first}",
            first_available=first,
            hint=f"to go on at {first} without what was between: --skip-lost (skip_lost=True)",
        )
    return True
