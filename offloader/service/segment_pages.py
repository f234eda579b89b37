"""Where a page of segments goes on.

Owns the form of that place. Must never skip a segment because others were retired or replaced between two pages: a
place is a segment, not a number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.manifest.segment_record import SegmentRecord

__all__ = ["place_after", "start_after"]


def place_after(record: SegmentRecord) -> str:
    """The place behind a segment."""
    return f"{record.begin} {record.uuid}"


def start_after(segments: Sequence[SegmentRecord], after: str) -> int:
    """The number of the first segment behind a place; a segment that is gone is replaced by those that begin there.

    Args:
        segments: in the stream's order.
        after: a place; empty: the beginning.

    Raises:
        InvalidCall: ``after`` is no place.
    """
    if not after:
        return 0
    begin, _, uuid = after.partition(" ")
    try:
        position = Position.parse(begin)
    except ValueError as cause:
        raise InvalidCall(
            f"{ascii(after)[:100]} is no place among segments", hint="begin with the first page"
        ) from cause
    start = number = bisect_left(segments, position, key=lambda record: record.begin)
    while number < len(segments) and segments[number].begin == position:
        if str(segments[number].uuid) == uuid:
            return number + 1
        number += 1
    return start
