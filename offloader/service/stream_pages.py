"""Pages of streams in an order that people ask for.

Owns the orders and the place where a page goes on. Must never skip or repeat a stream because another one came or went
between two pages: a place is a key, not a number.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from offloader.errors import InvalidCall

__all__ = ["Page", "StreamOrder", "page_of"]

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
