"""Pages of streams, in an order that people ask for, and of a stream's segments; where each goes on.

A place is a key, not a number: no stream is skipped or repeated because another one came or went between two pages, and
no segment because others were retired or replaced.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.manifest.segment_record import SegmentRecord

__all__ = ["Page", "StreamOrder", "page_of", "place_after", "start_after"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item]):
    """Some of many.

    Attributes:
        items: at most as many as were asked for.
        next_after: where the next page goes on; ``None``: this was the last one.
        total: how many there are on all pages now.
    """

    items: tuple[_Item, ...]
    next_after: str | None
    total: int


class StreamOrder(StrEnum):
    """What comes first."""

    NAME = "name"
    #: The furthest behind.
    LAG = "lag"
    #: Stalled or failing ones, then by lag.
    TROUBLE = "trouble"


_Key = tuple[int, float, int, str]


def page_of(
    rows: Sequence[Mapping[str, Any]], order: StreamOrder, *, after: str, limit: int
) -> Page[Mapping[str, Any]]:
    """The rows that come after ``after`` in an order.

    Args:
        rows: of a status document, in any order.
        after: ``next_after`` of the page before; empty: the first page.
        limit: most rows of the page, at least 1.

    Raises:
        InvalidCall: ``after`` is no place in this order.
    """
    place = _place(after, order)
    rest = rows if place is None else [row for row in rows if _key(row, order) > place]
    # One more than asked for tells whether there is another page.
    found = heapq.nsmallest(max(limit, 1) + 1, rest, key=lambda row: _key(row, order))
    items = tuple(found[: max(limit, 1)])
    last = json.dumps([order.value, *_key(items[-1], order)]) if len(found) > len(items) else None
    return Page(items, last, len(rows))


def _key(row: Mapping[str, Any], order: StreamOrder) -> _Key:
    name = str(row["stream"])
    if order is StreamOrder.NAME:
        return 0, 0.0, 0, name
    lag = row.get("lag") or {}
    trouble = 0 if order is StreamOrder.TROUBLE and (row.get("stalled") or row.get("last_error")) else 1
    return trouble, -float(lag.get("seconds") or 0), -int(lag.get("bytes") or 0), name


def _place(after: str, order: StreamOrder) -> _Key | None:
    if not after:
        return None
    try:
        given, trouble, seconds, size_bytes, name = json.loads(after)
        if given == order.value and isinstance(name, str):
            return int(trouble), float(seconds), int(size_bytes), name
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    raise InvalidCall(f"{after[:100]!r} is no place in the order {order.value}", hint="begin with the first page")


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
