"""Filters that Spark pushes down, as values that statistics can be asked about; pure.

Owns which blocks and segments a filter rules out. Must never rule out a row that Spark would keep: Spark evaluates
every filter again, so whatever isn't understood here costs time only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS

__all__ = ["Predicate", "block_mask", "matches_value", "microseconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64_MAX = 2**63 - 1
_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class Predicate:
    """One pushed filter on one column; several are all required.

    Attributes:
        column: stream, ledger_id, entry_id or publish_time.
        operation: ``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``, ``in``, ``not_in``, ``not_null``, ``null``,
            ``prefix``.
        values: what it compares with: text for stream, numbers for the ids, microseconds since 1970 UTC for the time.
    """

    column: str
    operation: str
    values: tuple[Any, ...] = ()


def microseconds(when: datetime) -> int | None:
    """Microseconds since 1970 UTC; ``None`` for a time without a zone, whose meaning isn't certain."""
    return None if when.tzinfo is None else (when - _EPOCH) // _MICROSECOND


def matches_value(predicates: Iterable[Predicate], column: str, value: str) -> bool:
    """Whether rows whose ``column`` is ``value`` may satisfy all predicates on it."""
    return all(_value_matches(p, value) for p in predicates if p.column == column)


def _value_matches(predicate: Predicate, value: str) -> bool:
    if predicate.operation == "prefix":
        return value.startswith(predicate.values[0])
    if predicate.operation == "null":
        return False
    low = np.array([value], dtype=object)
    return bool(_range_matches(predicate, low, low)[0])


def block_mask(predicates: Iterable[Predicate], columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which blocks (or other runs of entries) may hold rows that satisfy all predicates.

    Args:
        predicates: those on other columns than the ones below are taken as satisfiable.
        columns: ``ledger_id``; ``first_entry_id`` and ``last_entry_id`` (-1 unknown); ``publish_time_min_ms`` and
            ``publish_time_max_ms`` (-1 unknown, or no entry has a time). int64, shape (n,).
    """
    mask = np.ones(len(columns["ledger_id"]), dtype=bool)
    for predicate in predicates:
        if predicate.column == "ledger_id":
            mask &= _matches(predicate, columns["ledger_id"], columns["ledger_id"])
        elif predicate.column == "entry_id":
            last = columns["last_entry_id"]
            mask &= _matches(predicate, columns["first_entry_id"], np.where(last == -1, _INT64_MAX, last))
        elif predicate.column == "publish_time":
            mask &= _time_matches(predicate, columns["publish_time_min_ms"], columns["publish_time_max_ms"])
    return mask


def _matches(predicate: Predicate, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
    """For columns without nulls."""
    if predicate.operation == "null":
        return np.zeros(len(low), dtype=bool)
    return _range_matches(predicate, low, high)


def _time_matches(predicate: Predicate, low_ms: NDArray[np.int64], high_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
    # Comparisons are never true for a null time, so entries without one needn't be cared for. Where no time is known
    # nothing is ruled out.
    unknown = np.asarray((low_ms == TIME_UNKNOWN_MS) | (high_ms == TIME_UNKNOWN_MS), dtype=bool)
    # Object arrays: Python's integers don't overflow when ms become microseconds.
    low, high = low_ms.astype(object) * _US_PER_MS, high_ms.astype(object) * _US_PER_MS
    return unknown | _range_matches(predicate, low, high)


def _range_matches(predicate: Predicate, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a value between ``low`` and ``high``, both included, may satisfy the predicate."""
    values = predicate.values
    found: Any
    match predicate.operation:
        case "eq" | "in":
            found = functools.reduce(operator.or_, [(low <= value) & (high >= value) for value in values])
        case "ne" | "not_in":
            found = functools.reduce(operator.and_, [(low != value) | (high != value) for value in values])
        case "lt":
            found = low < values[0]
        case "le":
            found = low <= values[0]
        case "gt":
            found = high > values[0]
        case "ge":
            found = high >= values[0]
        case _:
            found = np.ones(len(low), dtype=bool)
    return np.asarray(found, dtype=bool)
