"""Calls to the store for many items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

#: Concurrent calls of one caller.
IN_FLIGHT_MAX = 8
#: Up to this number calls run sequentially: threads would cost more than they save.
SEQUENTIAL_MAX = 4

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Given = TypeVar("_Given")
_Answer = TypeVar("_Answer")


def at_once(
    call: Callable[[_Given], _Answer],
    given: Iterable[_Given],
    *,
    sequential_max: int = SEQUENTIAL_MAX,
    in_flight_max: int = IN_FLIGHT_MAX,
) -> list[_Answer]:
    """``call`` of each item, in order, several at a time; raises the first error.

    Args:
        sequential_max: up to this number of items run sequentially; 1 where each call is several requests.
        in_flight_max: concurrent calls.
    """
    items = list(given)
    if len(items) <= sequential_max:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(len(items), in_flight_max)) as threads:
        # Pass this thread's context on (the requests' priority).
        return list(threads.map(lambda pair: pair[0].run(call, pair[1]), [(copy_context(), item) for item in items]))


def both(first: Callable[[], _First], second: Callable[[], _Second], *, sequential: bool) -> tuple[_First, _Second]:
    """The answers of two calls that don't need each other; raises the error of the first that has one, in this order.

    Args:
        sequential: one after the other, on this thread, the second only after an answer of the first.
    """
    if sequential:
        return first(), second()
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(copy_context().run, second)
        return first(), other.result()
