"""Conditions in SQL, read as bounds on streams, positions and publish times. Does no I/O.

A term that isn't understood bounds nothing. Spark evaluates the whole condition on the rows within the bounds, so they
only have to hold every row for which it may be true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from formats.entries import Position
from offloader.manifest.ledger_table import ENTRY_ID_MAX

_US_PER_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a condition leaves of some streams.

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


#: A literal, a word, an operator; the last group has what no understood term contains.
_TOKEN = re.compile(r"\s*(?:('[^'\\]*')|(`\w+`|[A-Za-z_]\w*)|([+-]?\d+)(?![\w.])|(<=>|<=|>=|<>|!=|==|[=<>(),])|(\S))")
#: Words after which AND doesn't combine two terms, or which bind weaker than it does.
_OTHER_GRAMMAR = frozenset({"OR", "CASE", "WHEN", "SELECT", "FROM", "WITH", "EXISTS"})
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EQUAL = frozenset({"=", "==", "<=>"})
_COLUMNS = ("stream", "ledger_id", "entry_id", "publish_time")
#: A date, or a time with or without a zone, as Spark reads it too.
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?")

#: Where a quote, an escape or a comment may hide what the tokens seem to be.
_HIDING = re.compile(r"[\"\\]|--|/\*")

_Comparison = tuple[str, str, int | tuple[str, ...]]


@dataclass(slots=True)
class _Ranges:
    """The range of each column; numbers include both ends, times in ms exclude the end."""

    streams: set[str] | None = None
    ledger: list[int] = field(default_factory=lambda: [0, ENTRY_ID_MAX])
    entry: list[int] = field(default_factory=lambda: [0, ENTRY_ID_MAX])
    start_ms: int | None = None
    end_ms: int | None = None


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
    ranges, is_exact = _Ranges(), True
    if _HIDING.search(where):
        return Bounds(is_exact=False)
    for term in _terms(_tokens(where)) if where.strip() else ():
        found = _comparisons(term, time_zone)
        own = has_own_times and any(column == "publish_time" for column, _, _ in found)
        for comparison in () if own else found:
            _narrow(ranges, comparison)
        is_exact &= bool(found) and not own and not _is_hull(term)
    (low, high), (first, last) = ranges.ledger, ranges.entry
    bounded = [low, high] != [0, ENTRY_ID_MAX]
    of_entry = [first, last] != [0, ENTRY_ID_MAX]
    return Bounds(
        streams=None if ranges.streams is None else tuple(sorted(ranges.streams)),
        # Also where several ledgers are left: of the first one nothing before, of the last one nothing after.
        first=Position(low, first) if bounded or of_entry else None,
        last=Position(high, last) if bounded or of_entry else None,
        start_ms=ranges.start_ms,
        end_ms=ranges.end_ms,
        is_exact=is_exact and (low == high or not of_entry),
    )


def columns_in(where: str, columns: Iterable[str]) -> list[str]:
    """Those of ``columns`` that a condition may use."""
    words = {word.lower() for word in re.findall(r"\w+", where)}
    return [name for name in columns if name in words]


def _tokens(text: str) -> list[str]:
    """Tokens; a column's name in lower case without quotes, a text with its quotes, another word in upper case."""
    found = []
    for literal, word, number, sign, other in _TOKEN.findall(text):
        name = word.strip("`").lower()
        found.append(name if name in _COLUMNS else literal or word.upper() or number or sign or f"?{other}")
    return found


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
    if len(pieces) == 1:
        return pieces
    return [term for piece in pieces for term in _terms(piece)]


def _closing(tokens: Sequence[str]) -> int:
    """Where the first parenthesis is closed; -1: nowhere."""
    depth = 0
    for at, word in enumerate(tokens):
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return at
    return -1


def _comparisons(term: Sequence[str], time_zone: str) -> list[_Comparison]:
    """Comparisons of a column with a value that all hold where the term is true; empty: it isn't understood."""
    # Beside a time TIMESTAMP '...' and DATE '...' mean what the text alone does.
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
    return int(literal) if re.fullmatch(r"[+-]?\d+", literal) else None


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


def _narrow(ranges: _Ranges, comparison: _Comparison) -> None:
    column, sign, value = comparison
    if isinstance(value, tuple):
        ranges.streams = set(value) if ranges.streams is None else ranges.streams & set(value)
    elif column == "publish_time":
        _narrow_times(ranges, sign, value)
    else:
        both = ranges.ledger if column == "ledger_id" else ranges.entry
        # No id is outside of these.
        value = min(max(value, -1), ENTRY_ID_MAX)
        if sign in ("=", ">", ">="):
            both[0] = max(both[0], min(value + (sign == ">"), ENTRY_ID_MAX))
        if sign in ("=", "<", "<="):
            both[1] = min(both[1], value - (sign == "<"))


def _narrow_times(ranges: _Ranges, sign: str, time_us: int) -> None:
    """Entries have whole milliseconds, literals microseconds."""
    below, above = time_us // _US_PER_MS, -(-time_us // _US_PER_MS)
    if sign in ("=", ">", ">="):
        start = below + 1 if sign == ">" else above
        ranges.start_ms = start if ranges.start_ms is None else max(ranges.start_ms, start)
    if sign in ("=", "<", "<="):
        end = above if sign == "<" else below + 1
        ranges.end_ms = end if ranges.end_ms is None else min(ranges.end_ms, end)
