"""What the owner of a stream wants kept: limits by size or by time, and what subscribers mean for them.

Owns the frozen values and every contradiction in them. Must never look at a stream, nor at a clock.

Rules: the retention specification, sections 1 to 3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from offloader.errors import InvalidCall

__all__ = ["Limits", "Policy", "PolicyKind", "Unit"]


class Unit(enum.Enum):
    """What is limited: payload bytes of the stream, or the age of its data in ms."""

    SIZE = "size"
    TIME = "time"


class PolicyKind(enum.Enum):
    """By what a stream is retained."""

    SIZE = "size"
    TIME = "time"
    CONSUMPTION = "consumption"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stream is kept.

    Attributes:
        unit: bytes or ms.
        min: what is kept always, if there is as much.
        max: what unread data isn't kept beyond; ``None`` or 0: no limit.

    Raises:
        InvalidCall: a negative value, or ``min`` above ``max``.
    """

    unit: Unit
    min: int = 0
    max: int | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {value} is negative" for name, value in (("min", self.min), ("max", self.max or 0)) if value < 0
        ]
        if not problems and self.max and self.min > self.max:
            problems.append(f"min = {self.min} is above max = {self.max}")
        if problems:
            raise InvalidCall(f"retention by {self.unit.value}: {' and '.join(problems)}")
        if self.max == 0:
            object.__setattr__(self, "max", None)

    def allows(self, kept: int) -> bool:
        """Whether ``kept`` lies within min..max."""
        return self.min <= kept and (self.max is None or kept <= self.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a stream is retained.

    Attributes:
        kind: by size, by time, or by consumption.
        limits: min and max. Those of size and time need them; without, consumption alone decides: what all have read
            goes.
        subscriber_timeout_ms: a subscriber silent for longer doesn't hold data back (x); ``None``: it always does.
        fallback_after_ms: when no subscriber was active for longer, their last cuts don't hold data back any more
            either (y); ``None``: they always do.
        fallback: with kind consumption, the limits that rule then, as if nobody had ever published.
        protect_unpublished: a subscriber that never published holds data back from where it was registered on.

    Raises:
        InvalidCall: it contradicts itself; all contradictions are named.
    """

    kind: PolicyKind
    limits: Limits | None = None
    subscriber_timeout_ms: int | None = None
    fallback_after_ms: int | None = None
    fallback: Limits | None = None
    protect_unpublished: bool = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise InvalidCall(f"retention policy by {self.kind.value}: {'; '.join(problems)}")

    def _problems(self) -> list[str]:
        consumption = self.kind is PolicyKind.CONSUMPTION
        x, y = self.subscriber_timeout_ms, self.fallback_after_ms
        found = [
            (not consumption and self.limits is None, "it needs limits"),
            (
                not consumption and self.limits is not None and self.limits.unit.value != self.kind.value,
                f"its limits are by {self.limits.unit.value if self.limits else ''}",
            ),
            (not consumption and self.fallback is not None, "only one by consumption can have a fallback"),
            (x is not None and x <= 0, f"subscriber_timeout_ms = {x} isn't a time"),
            (y is not None and y <= 0, f"fallback_after_ms = {y} isn't a time"),
            (y is not None and x is None, "fallback_after_ms without subscriber_timeout_ms: nobody ever times out"),
            (x is not None and y is not None and 0 < y < x, "fallback_after_ms is shorter than subscriber_timeout_ms"),
            (consumption and y is not None and self.fallback is None, "fallback_after_ms without a fallback"),
            (self.fallback is not None and y is None, "a fallback without fallback_after_ms: it would never rule"),
        ]
        return [text for is_wrong, text in found if is_wrong]
