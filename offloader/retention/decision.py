"""The record of a retention cycle: what was chosen, by which rule, from what, and at whose cost.

Owns the values and their JSON. Must never decide anything (``offloader.retention.decide``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from offloader.retention.cuts import Cut
from offloader.retention.policy import Limits

__all__ = ["BoundKind", "Candidate", "Decision", "Lag", "Overridden", "OverrideReason", "Role", "Rule"]


class Rule(enum.Enum):
    """What decided; the value says it in words. The retention specification, sections 2 and 3."""

    NOTHING_RECORDED = "no cut of this stream was recorded yet"
    BELOW_MIN = "the whole stream is below min"
    NO_CUT_KEEPS_MIN = "no recorded cut keeps min"
    MIN_WITHOUT_BOUND = "nobody holds data back: the recorded cut that keeps least, but min"
    MAX_WITHOUT_BOUND = (
        "nobody holds data back, and the stream is above max: the recorded cut that keeps most within max"
    )
    ALL_READ = "everything that all subscribers have read goes"
    BOUND = "what all subscribers have read goes: that keeps between min and max"
    BOUND_LOWERED_TO_MIN = "of what all subscribers have read, min is kept"
    BOUND_LOWERED_THEN_RAISED = "of what all subscribers have read, min is kept; that is above max, so unread data goes"
    BOUND_RAISED_TO_MAX = "unread data is above max: what no longer fits goes"
    BOUND_RAISED_KEEPING_MIN = "unread data is above max: what no longer fits goes, as far as min allows"
    BOUND_ABOVE_MAX = "unread data is above max, but no recorded cut keeps less"
    TIME_BOUND = "what all subscribers have read and is older than min goes"
    TIME_RAISED_TO_MAX = "unread data is older than max: it goes, up to the oldest recorded cut within max"
    TIME_RAISED_TO_OLD = "unread data is older than max: it goes, up to the newest recorded cut that is older"
    NOBODY_PUBLISHED = "only what all subscribers have read goes, and none has published"
    ALL_SILENT = "all subscribers are silent, and what they haven't read is kept for them"


#: Rules by which nothing goes.
_NOTHING = {
    Rule.NOTHING_RECORDED,
    Rule.BELOW_MIN,
    Rule.NO_CUT_KEEPS_MIN,
    Rule.NOBODY_PUBLISHED,
    Rule.ALL_SILENT,
}


class BoundKind(enum.Enum):
    """Where the bound, up to which all have read, comes from."""

    SUBSCRIBERS = "the active subscribers' cuts"
    LAST_CUTS = "all subscribers timed out: their last cuts"
    NOBODY_PUBLISHED = "none: nobody has published"
    SILENT = "none: all subscribers timed out"
    GIVEN_UP = "none: all subscribers have been silent for longer than the fallback waits"


class Role(enum.Enum):
    """What a candidate is for."""

    MIN = "keeps least, but min"
    MAX = "keeps most within min and max"
    OLD = "newest that is older than max"
    BOUND = "read by all that count"
    CHOSEN = "chosen"


class OverrideReason(enum.Enum):
    """Why something goes that a subscriber hasn't read."""

    ABOVE_MAX = "max doesn't leave room for it"
    TIMED_OUT = "it has been silent for too long"
    NEVER_PUBLISHED = "it never published, so it holds nothing back"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cut that was looked at.

    Attributes:
        role: what for.
        cut: where, not before the head.
        keeps_bytes: bytes between it and the newest recorded cut, ``None`` if that can't be known.
        time_ms: when it was recorded, ``None`` for cuts that weren't.
    """

    role: Role
    cut: Cut
    keeps_bytes: int | None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber is behind the tail.

    Attributes:
        name: the subscriber.
        cut: from where on it hasn't read, not before the head.
        has_published: whether it ever said so itself.
        is_active: whether it wasn't silent for too long.
        is_counted: whether it holds data back.
        unread_bytes: bytes from ``cut`` to the tail, ``None`` if that can't be known.
        unread_entries: entries likewise.
    """

    name: str
    cut: Cut
    has_published: bool
    is_active: bool
    is_counted: bool
    unread_bytes: int | None
    unread_entries: int | None


@dataclass(frozen=True, slots=True)
class Overridden:
    """A subscriber that loses what it hasn't read.

    Attributes:
        name: the subscriber.
        reason: why.
        lost_bytes: bytes it hasn't read before the chosen cut, ``None`` if that can't be known.
        lost_entries: entries likewise.
    """

    name: str
    reason: OverrideReason
    lost_bytes: int | None
    lost_entries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a cycle decided about a stream, and everything needed to explain it.

    Attributes:
        at_ms: the time it was made for.
        cut: the new head; ``None``: nothing goes.
        rule: what decided.
        limits: the limits that ruled, ``None``: consumption alone.
        is_fallback: whether they are those of the fallback.
        is_held: whether less goes than the rule says, because the rest isn't offloaded yet.
        head: the head before.
        newest: the newest recorded cut, from which kept bytes are counted; ``None``: none is recorded.
        bound: what all that count have read, not before the head; ``None``: nobody holds data back.
        bound_kind: where it comes from.
        candidates: the cuts that were looked at, and what each keeps.
        removed_bytes: bytes between the head and ``cut``, ``None`` if that can't be known.
        removed_entries: entries likewise.
        cut_time_ms: when the newest record at or before ``cut`` was recorded: the stream's age is counted from it, once
            it is the head. ``None``: unknown, or nothing goes.
        lags: each subscriber's.
        overridden: who loses what.
    """

    at_ms: int
    cut: Cut | None
    rule: Rule
    limits: Limits | None
    is_fallback: bool
    is_held: bool
    head: Cut
    newest: Cut | None
    bound: Cut | None
    bound_kind: BoundKind
    candidates: tuple[Candidate, ...]
    removed_bytes: int | None
    removed_entries: int | None
    cut_time_ms: int | None
    lags: tuple[Lag, ...]
    overridden: tuple[Overridden, ...]

    @property
    def used_ms(self) -> frozenset[int]:
        """Times of the recorded cuts among the candidates."""
        return frozenset(one.time_ms for one in self.candidates if one.time_ms is not None)

    @property
    def why(self) -> str:
        """Why so much goes, or why nothing, in words."""
        if self.is_held:
            rest = "up to where the stream is offloaded" if self.cut else "but nothing of it is offloaded yet"
            return f"{self.rule.value}; {rest}"
        is_there = self.cut is None and self.rule not in _NOTHING
        return f"{self.rule.value}; the head is there already" if is_there else self.rule.value

    def as_json(self) -> dict[str, Any]:
        """For storing, and for ``--json``: enumerations by their names in lower case, cuts by their segments."""
        value: dict[str, Any] = _plain(self)
        return value | {"why": self.why}


def _plain(value: Any) -> Any:
    if isinstance(value, Cut):
        return value.as_json()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, str):
        return value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    return value
