"""Pure functions of the product that many simulated worlds call with the same values: each is computed once.

A world's processes read each of its objects dozens of times. Equal bytes give the same value, which nothing can change,
and the same view with the same record gives the same view. What raises an error is tried each time.
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from formats import checkpoint_parquet
from formats.checked_json import CheckedDocument
from formats.entries import Position
from offloader.manifest import boundary, checkpoint, load, log
from offloader.manifest.segment_table import SegmentSlice, SegmentTable
from offloader.retention import cuts
from offloader.store import checks
from tests.simulation import maintained_checks, maintained_rules, maintained_world, simulation_checks, topic_world

__all__ = ["decoding_remembered"]

#: Results of each function that are kept; a world needs some hundred.
RESULTS_MAX = 1024
#: Functions of bytes and plain values, each with its users.
_OF_EQUAL_VALUES: tuple[tuple[Any, str], ...] = (
    (load, "decode_record"),
    (boundary, "decode_record"),
    (load, "decode_checkpoint"),
    (checkpoint, "decode_checkpoint"),
    (load, "decode_columns"),
    (load, "decode_ledgers"),
    (load, "ManifestState"),
    (checkpoint_parquet, "require_sizes"),
    (checks, "_key_problem"),
    (simulation_checks, "entries_in"),
    (typing, "_get_protocol_attrs"),  # before Python 3.12 each isinstance of a protocol collects its methods anew
)
#: Functions of values that are compared by what they are, not by what they hold.
_OF_SAME_VALUES: tuple[tuple[Any, str], ...] = (
    (load, "fold"),
    (log, "fold"),
    (checkpoint, "fold"),
    (load, "restored"),
    (load, "compacted"),
    (cuts, "_cold_pieces"),
    (maintained_checks, "named_keys"),
    (maintained_world, "named_keys"),
    (topic_world, "named_keys"),
    (maintained_rules, "retire_records"),
)
#: Methods of a table of segments that answer what is in it, for the same bounds.
_OF_SAME_TABLE = ("in_order", "offloaded", "retired")


@contextlib.contextmanager
def decoding_remembered() -> Iterator[None]:
    """See the module. Inside of another one nothing is added."""
    decode = CheckedDocument.__dict__["decode"]
    if hasattr(decode.__func__, "cache_info"):
        yield
        return
    with contextlib.ExitStack() as stack:
        remembered: dict[object, Callable[..., Any]] = {}
        for users, remember in ((_OF_EQUAL_VALUES, lru_cache(RESULTS_MAX)), (_OF_SAME_VALUES, _by_identity)):
            for owner, name in users:
                function = getattr(owner, name)
                stack.callback(setattr, owner, name, function)
                setattr(owner, name, remembered.setdefault(function, remember(function)))
        for name in _OF_SAME_TABLE:
            look = getattr(SegmentTable, name)
            stack.callback(setattr, SegmentTable, name, look)
            setattr(SegmentTable, name, _of_same_table(look))
        each = SegmentSlice.__iter__
        stack.callback(setattr, SegmentSlice, "__iter__", each)
        SegmentSlice.__iter__ = _iterated_once(each)  # type: ignore[method-assign]
        stack.callback(setattr, CheckedDocument, "decode", decode)
        remembering: Any = lru_cache(RESULTS_MAX)(decode.__func__)
        CheckedDocument.decode = classmethod(remembering)  # type: ignore[assignment,method-assign]
        yield


def _by_identity(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its results by the identity of its arguments, which live as long as the result is kept."""
    results: dict[tuple[object, ...], tuple[object, object]] = {}

    def remembered(*arguments: Any) -> Any:
        key = tuple(map(_identity, arguments))
        found = results.get(key)
        if found is None:
            if len(results) >= RESULTS_MAX:
                results.clear()
            kept = [list(each) if isinstance(each, list) else each for each in arguments]
            found = results[key] = (function(*arguments), kept)
        return found[0]

    return remembered


def _identity(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(id, value))
    return value if isinstance(value, str | Position) else id(value)


def _of_same_table(look: Callable[..., SegmentSlice]) -> Callable[..., SegmentSlice]:
    remembered = _by_identity(look)

    def looked(table: SegmentTable, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        bounds = () if first is None and last is None else (first, last)
        # One that is still being built changes.
        return (remembered if type(table) is SegmentTable else look)(table, *bounds)

    return looked


def _iterated_once(iterate: Callable[[SegmentSlice], Iterator[Any]]) -> Callable[[SegmentSlice], Iterator[Any]]:
    remembered = _by_identity(lambda found: tuple(iterate(found)))
    return lambda found: iter(remembered(found))
