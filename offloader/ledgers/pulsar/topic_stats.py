"""What a broker's admin interface says of one topic: how its ledgers end, its cursors, its subscriptions; pure.

Owns reading those documents. Must never ask a broker, nor take for durable what the broker doesn't call so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

from formats.entries import Position
from offloader.errors import Corrupt, InvalidCall
from offloader.ledgers.pulsar.topics import TopicLedgers, ledgers_of_topics

__all__ = ["Cursor", "SubscriptionState", "TopicInternals", "TopicStats", "internals_of", "stats_of"]

_POSITION = re.compile(r"(-?\d{1,20}):(-?\d{1,20})")
#: A run of entries as Java prints it: ``(4:3..4:9]``, without the first one and with the last.
_RUN = re.compile(r"\((-?\d{1,20}):(-?\d{1,20})\.\.(-?\d{1,20}):(-?\d{1,20})\]")
_TERMINATED = "Terminated"
_DEDUPLICATES = "Enabled"


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far something has consumed a topic: a subscription, or a part of the broker.

    Attributes:
        name: of the subscription.
        mark_delete: the last entry up to which all are consumed; entry -1: none of that ledger.
        individually_deleted: runs of consumed entries behind it: (entry before the first one, last one).
    """

    name: str
    mark_delete: Position
    individually_deleted: tuple[tuple[Position, Position], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInternals:
    """A topic's internal statistics.

    Attributes:
        ledgers: all there are; of the open one, which is the last, entries and bytes are in the next two.
        open_entries, open_size_bytes: of the open ledger.
        last_confirmed: the newest entry that is stored; entry -1: none of that ledger.
        is_terminated: whether nothing will ever be added.
        newest_ledger_created_ms: when the last ledger was opened, ms since 1970 UTC; ``None``: it doesn't say.
        cursors: by name.
    """

    ledgers: TopicLedgers
    open_entries: int
    open_size_bytes: int
    last_confirmed: Position | None
    is_terminated: bool
    cursors: Mapping[str, Cursor]
    newest_ledger_created_ms: int | None = None

    def stored(self) -> list[tuple[int, int]]:
        """All ledgers, ascending, and how many entries each has, the open one too."""
        found = [(each.ledger_id, each.entries) for each in self.ledgers.ledgers]
        if found:
            ledger_id, entries = found[-1]
            found[-1] = ledger_id, max(entries, self.open_entries)
        return found


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """One subscription: whether it outlives its consumers, and how many are connected."""

    name: str
    is_durable: bool
    consumers: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic's statistics: its subscriptions by name, and whether the broker drops what a producer repeats."""

    subscriptions: Mapping[str, SubscriptionState]
    deduplicates: bool


def internals_of(document: object, topic: str) -> TopicInternals:
    """The parsed answer of ``.../internalStats``.

    Raises:
        Corrupt: it is none, or none of this topic.
    """
    try:
        found = ledgers_of_topics(document, topic)
    except InvalidCall as cause:
        raise Corrupt(f"{topic}: no internal statistics of a topic: {cause.message}") from cause
    if [each.topic for each in found] != [topic]:
        raise Corrupt(f"{topic}: the broker's internal statistics are about {len(found)} other topics")
    [ledgers] = found
    try:
        fields: Any = document
        cursors = [_cursor(unquote_plus(name), each) for name, each in fields.get("cursors", {}).items()]
        last = fields.get("lastConfirmedEntry")
        return TopicInternals(
            ledgers=ledgers,
            open_entries=int(fields.get("currentLedgerEntries", 0)),
            open_size_bytes=int(fields.get("currentLedgerSize", 0)),
            last_confirmed=None if last is None else _position(last),
            is_terminated=fields.get("state") == _TERMINATED,
            cursors={cursor.name: cursor for cursor in cursors},
            newest_ledger_created_ms=_time_ms(fields.get("lastLedgerCreatedTimestamp")),
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as cause:
        raise Corrupt(f"{topic}: no internal statistics of a topic: {cause}") from cause


def stats_of(document: object, topic: str) -> TopicStats:
    """The parsed answer of ``.../stats``.

    Raises:
        Corrupt: it is none.
    """
    try:
        fields: Any = document
        found = [
            SubscriptionState(name, bool(each["isDurable"]), len(each.get("consumers") or ()))
            for name, each in fields["subscriptions"].items()
        ]
        return TopicStats({each.name: each for each in found}, fields.get("deduplicationStatus") == _DEDUPLICATES)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as cause:
        raise Corrupt(f"{topic}: no statistics of a topic: {cause!r}") from cause


def _cursor(name: str, fields: Any) -> Cursor:
    runs = _RUN.findall(fields.get("individuallyDeletedMessages") or "")
    return Cursor(
        name,
        _position(fields["markDeletePosition"]),
        tuple((Position(int(a), int(b)), Position(int(c), int(d))) for a, b, c, d in runs),
    )


def _time_ms(text: Any) -> int | None:
    """Of a time as Java prints it, ``2026-11-21T19:03:12.345Z``; what isn't one says nothing."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _position(text: str) -> Position:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.50} is no position")
    return Position(int(found[1]), int(found[2]))
