"""Conditions in SQL, read as bounds on streams, positions and publish times. Does no I/O.

A term that isn't understood bounds nothing. Spark evaluates the whole condition on the rows within the bounds, so they
only have to hold every row for which it may be true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any
from zoneinfo import ZoneInfo

from formats.entries import Position
from offloader.coverage import ENTRY_ID_MAX

_US_PER_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The part of some streams that satisfies a condition.

    Attributes:
        streams: their names; ``None``: all.
        first, last: positions, both included; nothing is left if ``last`` is before ``first``.
        start_ms, end_ms: publish times, the end excluded; either excludes entries without one.
        limit: how many of the first entries are needed; ``None``: all.
        is_exact: every row within the bounds satisfies the condition.
    """

    streams: tuple[str, ...] | None = None
    first: Position | None = None
    last: Position | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None
    is_exact: bool = True

    def encoded(self) -> str:
        """As JSON, for an option."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def decode(cls, text: str) -> Bounds:
        """From ``encoded``; raises ``ValueError`` or ``TypeError`` for another text."""
        given: dict[str, Any] = json.loads(text)
        made = cls(**given)
        first, last = (None if at is None else Position(*at) for at in (made.first, made.last))
        return replace(made, streams=None if made.streams is None else tuple(made.streams), first=first, last=last)


#: A literal, a word, an operator; the last group has all other text, which no understood term contains.
_TOKEN = re.compile(r"\s*(?:('[^'\\]*')|(`\w+`|[A-Za-z_]\w*)|([+-]?\d+)(?![\w.])|(<=>|<=|>=|<>|!=|==|[=<>(),])|(\S))")
#: Words after which AND doesn't combine two terms, or which bind weaker than it does.
_OTHER_GRAMMAR = frozenset({"OR", "CASE", "WHEN", "SELECT", "FROM", "WITH", "EXISTS"})
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EQUAL = frozenset({"=", "==", "<=>"})
_COLUMNS = ("stream", "ledger_id", "entry_id", "publish_time")
#: A date, or a time with or without a zone, as Spark reads it too.
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?")

#: Patterns where a quote, an escape or a comment may hide the real tokens.
_HIDING = re.compile(r"[\"\\]|--|/\*")

#: No time in the calendar is so many milliseconds before or after 1970.
_ALWAYS = 2**62

_Comparison = tuple[str, str, int | tuple[str, ...]]


def bounds_of(where: str, *, time_zone: str, has_own_times: bool = False) -> Bounds:
    """The bounds of a condition.

    Understood are terms combined with AND, each of them a column and literals, in parentheses or not:
    ``ledger_id`` and ``entry_id`` with ``=``, ``<``, ``<=``, ``>``, ``>=``, ``BETWEEN`` and ``IN``; ``publish_time``
    with the same except ``IN``, and a time in ISO 8601, with or without TIMESTAMP; ``stream`` with ``=`` and ``IN``.

    Args:
        where: Spark's SQL; empty: no condition.
        time_zone: of times without one, as Spark's setting names it.
        has_own_times: rows have other publish times than entries; none of them is bounded then.
    """
    streams: list[set[str]] = []
    # Both ends are included; entries have whole milliseconds.
    ranges = {"ledger_id": [0, ENTRY_ID_MAX], "entry_id": [0, ENTRY_ID_MAX], "publish_time": [-_ALWAYS, _ALWAYS]}
    is_exact = True
    if _HIDING.search(where):
        return Bounds(is_exact=False)
    for term in _terms(_tokens(where)) if where.strip() else ():
        found = _comparisons(term, time_zone)
        own = has_own_times and any(column == "publish_time" for column, _, _ in found)
        for column, sign, value in () if own else found:
            if isinstance(value, tuple):
                streams.append(set(value))
            else:
                _narrow(ranges[column], sign, value, unit=_US_PER_MS if column == "publish_time" else 1)
        is_exact &= bool(found) and not own and not _is_hull(term)
    (low, high), (first, last), (start_ms, end_ms) = ranges.values()
    low, first = min(low, ENTRY_ID_MAX), min(first, ENTRY_ID_MAX)
    bounded = [low, high] != [0, ENTRY_ID_MAX]
    of_entry = [first, last] != [0, ENTRY_ID_MAX]
    return Bounds(
        streams=tuple(sorted(set.intersection(*streams))) if streams else None,
        # Also where several ledgers are left: of the first one nothing before, of the last one nothing after.
        first=Position(low, first) if bounded or of_entry else None,
        last=Position(high, last) if bounded or of_entry else None,
        start_ms=None if start_ms == -_ALWAYS else start_ms,
        end_ms=None if end_ms == _ALWAYS else end_ms + 1,
        is_exact=is_exact and (low == high or not of_entry),
    )


def columns_in(where: str, columns: Iterable[str]) -> list[str]:
    """Those of ``columns`` that a condition may use."""
    words = {word.lower() for word in re.findall(r"\w+", where)}
    return [name for name in columns if name in words]


def _tokens(text: str) -> list[str]:
    """Tokens; a column's name in lower case without quotes, a text with its quotes, another word in upper case."""
    return [
        name
        if (name := word.strip("`").lower()) in _COLUMNS
        else literal or word.upper() or number or sign or f"?{other}"
        for literal, word, number, sign, other in _TOKEN.findall(text)
    ]


def _terms(tokens: Sequence[str]) -> list[Sequence[str]]:
    """The terms of a condition that all have to be true; the whole condition if it can't be taken apart."""
    while tokens and tokens[0] == "(" and _closing(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    cuts, depth, between = [-1], 0, False
    for at, word in enumerate(tokens):
        depth += (word == "(") - (word == ")")
        if depth:
            continue
        if word in _OTHER_GRAMMAR or word.startswith("?"):
            return [tokens]
        if word == "AND" and not between:
            cuts.append(at)
        between = word == "BETWEEN" or (between and word != "AND")
    pieces = [tokens[start + 1 : stop] for start, stop in zip(cuts, [*cuts[1:], len(tokens)], strict=True)]
    return pieces if len(pieces) == 1 else [term for piece in pieces for term in _terms(piece)]


def _closing(tokens: Sequence[str]) -> int:
    """Where the first parenthesis is closed; -1: nowhere."""
    depths = accumulate((word == "(") - (word == ")") for word in tokens)
    return next((at for at, depth in enumerate(depths) if depth == 0), -1)


def _comparisons(term: Sequence[str], time_zone: str) -> list[_Comparison]:
    """Comparisons of a column with a value that all hold where the term is true; empty: it isn't understood."""
    # Beside a time TIMESTAMP '...' and DATE '...' have the meaning of the text alone.
    match [word for at, word in enumerate(term) if not _is_prefix(word, "".join(term[at + 1 : at + 2]))]:
        case [column, "BETWEEN", low, "AND", high] if column in _COLUMNS:
            pairs = [(">=", low), ("<=", high)]
        case [column, "IN", "(", *listed, ")"] if column in _COLUMNS and all(sign == "," for sign in listed[1::2]):
            return _listed(column, listed[::2]) if len(listed) % 2 else []
        case [column, sign, literal] if column in _COLUMNS:
            pairs = [(sign, literal)]
        case [literal, sign, column] if column in _COLUMNS:
            pairs = [(_FLIPPED.get(sign, sign), literal)]
        case _:
            return []
    found: list[_Comparison] = []
    for sign, literal in pairs:
        value = _value(column, literal, time_zone)
        if value is None or not (sign in _EQUAL or (sign in _FLIPPED and column != "stream")):
            return []
        found.append((column, "=" if sign in _EQUAL else sign, (value,) if isinstance(value, str) else value))
    return found


def _listed(column: str, literals: Sequence[str]) -> list[_Comparison]:
    values = [_value(column, literal, "") for literal in literals]
    numbers = [value for value in values if isinstance(value, int)]
    if column == "publish_time" or None in values:
        return []
    if column == "stream":
        return [(column, "=", tuple(map(str, values)))]
    return [(column, ">=", min(numbers)), (column, "<=", max(numbers))]


def _is_hull(term: Sequence[str]) -> bool:
    """Whether the bounds of a term are wider than it: a list of several numbers."""
    return "IN" in term and "," in term and "stream" not in term


def _is_prefix(word: str, text: str) -> bool:
    """Whether a word only names the type of the text after it; Spark leaves the time of day out of a DATE."""
    return text.startswith("'") and (word == "TIMESTAMP" or (word == "DATE" and len(text) == len("'2026-01-01'")))


def _value(column: str, literal: str, time_zone: str) -> str | int | None:
    text = literal[1:-1] if literal.startswith("'") else None
    if column == "stream":
        return text
    if column == "publish_time":
        return None if text is None else _microseconds(text, time_zone)
    # No id is outside of these.
    return min(max(int(literal), -1), ENTRY_ID_MAX) if re.fullmatch(r"[+-]?\d+", literal) else None


def _microseconds(text: str, time_zone: str) -> int | None:
    if _TIME.fullmatch(text) is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=ZoneInfo(time_zone))
        return (when - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, KeyError, OSError):  # no such day, or a zone that only Spark knows
        return None


def _narrow(both: list[int], sign: str, value: int, *, unit: int) -> None:
    """Narrows a range, whose ends are multiples of ``unit`` and included; ``value`` may be between two of them."""
    below, above = value // unit, -(-value // unit)
    if sign in ("=", ">", ">="):
        both[0] = max(both[0], below + 1 if sign == ">" else above)
    if sign in ("=", "<", "<="):
        both[1] = min(both[1], above - 1 if sign == "<" else below)
