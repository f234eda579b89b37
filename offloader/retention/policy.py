"""Retention policies: limits by size or time, and the effect of subscribers."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from offloader.errors import InvalidCallError
from offloader.settings import RetentionSettings


class Unit(enum.Enum):
    """Unit of a limit: payload bytes of the stream, or the age of its data in ms."""

    SIZE = "size"
    TIME = "time"


class PolicyKind(enum.Enum):
    """Criterion of retention."""

    KEEP = "keep"
    SIZE = "size"
    TIME = "time"
    CONSUMPTION = "consumption"


@dataclass(frozen=True, slots=True)
class Limits:
    """Amount of a stream to keep.

    Attributes:
        unit: bytes or ms.
        min: always kept, as far as available.
        max: unread data beyond it isn't kept; ``None`` or 0: no limit.

    Raises:
        InvalidCallError: a negative value, or ``min`` above ``max``.
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
            raise InvalidCallError(f"retention by {self.unit.value}: {' and '.join(problems)}")
        if self.max == 0:
            object.__setattr__(self, "max", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Retention policy of a stream.

    Attributes:
        kind: keep: everything within ``max`` is kept, and the rest goes, read or not; or by size, by time, or by
            consumption.
        limits: min and max. Required by all but consumption. Without them consumption alone decides: data read by all
            subscribers is deleted.
        second: limits by the other unit. The later cut of the two counts, and neither ``min`` is violated.
        subscriber_timeout_ms: a subscriber silent for longer doesn't hold data back (x); ``None``: it always does.
        fallback_after_ms: when no subscriber was active for longer, their last cuts don't hold data back any more
            either (y); ``None``: they always do.
        fallback: with kind consumption, the limits that apply then, as if there were no acknowledged cuts.
        protect_unpublished: a subscriber without an acknowledged cut holds data back from its registration on.

    Raises:
        InvalidCallError: it contradicts itself; all contradictions are named.
    """

    kind: PolicyKind
    limits: Limits | None = None
    second: Limits | None = None
    subscriber_timeout_ms: int | None = None
    fallback_after_ms: int | None = None
    fallback: Limits | None = None
    protect_unpublished: bool = False

    def __post_init__(self) -> None:
        consumption, keep = self.kind is PolicyKind.CONSUMPTION, self.kind is PolicyKind.KEEP
        x, y = self.subscriber_timeout_ms, self.fallback_after_ms
        own = self.all_limits
        found = [
            (not consumption and self.limits is None, "it needs limits"),
            (
                not (consumption or keep) and bool(own) and own[0].unit.value != self.kind.value,
                f"its limits are by {own[0].unit.value if own else ''}",
            ),
            (self.second is not None and len(own) == 1, "second limits without limits"),
            (len(own) > 1 and own[0].unit is own[-1].unit, "both its limits are by one unit"),
            (keep and bool(own) and all(each.max is None for each in own), "it keeps everything: no limit has a max"),
            (keep and y is not None, "subscribers don't hold data back: no silence of theirs ends that"),
            (not consumption and self.fallback is not None, "only one by consumption can have a fallback"),
            (x is not None and x <= 0, f"subscriber_timeout_ms = {x} isn't a time"),
            (y is not None and y <= 0, f"fallback_after_ms = {y} isn't a time"),
            (
                y is not None and x is None,
                "fallback_after_ms without subscriber_timeout_ms: no subscriber ever times out",
            ),
            (x is not None and y is not None and 0 < y < x, "fallback_after_ms is shorter than subscriber_timeout_ms"),
            (consumption and y is not None and self.fallback is None, "fallback_after_ms without a fallback"),
            (self.fallback is not None and y is None, "a fallback without fallback_after_ms: it would never apply"),
        ]
        if problems := [text for is_wrong, text in found if is_wrong]:
            raise InvalidCallError(f"retention policy by {self.kind.value}: {'; '.join(problems)}")

    @property
    def all_limits(self) -> tuple[Limits, ...]:
        """Its own limits, without those of the fallback."""
        return tuple(each for each in (self.limits, self.second) if each is not None)


_SPANS = ((24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_DECIMAL_SIZES = ((10**12, "TB"), (10**9, "GB"))
_SIZES = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))


def is_internal(stream: str) -> bool:
    """Whether a stream is a broker's internal one, exempt from policies: its last level begins with _."""
    return stream.rpartition("/")[2].startswith("_")


def policy_of(stream: str, settings: RetentionSettings) -> Policy | None:
    """Policy of a stream; ``None``: no automatic truncation.

    Raises:
        InvalidCallError: the settings contradict each other; all contradictions are named.
    """
    problems = settings.problems()
    if problems:
        raise InvalidCallError(
            f"stream {stream}: {'; '.join(f'retention.{each}' for each in problems)}",
            hint="change one of them; until then nothing of the stream is deleted",
        )
    if not settings.deletes or is_internal(stream):
        return None
    kind = PolicyKind(settings.policy)
    found = _kept(settings) if kind is PolicyKind.KEEP else _limits(settings, "")
    # The policies size and time name the first one.
    found.sort(key=lambda each: each.unit.value != kind.value)
    return Policy(
        kind=kind,
        limits=found[0] if found else None,
        second=found[1] if len(found) > 1 else None,
        subscriber_timeout_ms=_ms(settings.subscriber_timeout),
        fallback_after_ms=_ms(settings.fallback_after),
        fallback=next(iter(_limits(settings, "fallback_")), None),
        protect_unpublished=settings.protect_unpublished,
    )


def _kept(settings: RetentionSettings) -> list[Limits]:
    least_ms, most_ms = (math.ceil(each * 1000) for each in (settings.keep_at_least, settings.keep))
    by_size = Limits(Unit.SIZE, settings.keep_at_least_size, settings.keep_size)
    return [each for each in (Limits(Unit.TIME, least_ms, most_ms), by_size) if each.min or each.max]


def _limits(settings: RetentionSettings, prefix: str) -> list[Limits]:
    found = (
        Limits(unit, *(round(getattr(settings, f"{prefix}{which}_{name}") * factor) for which in ("min", "max")))
        for unit, name, factor in ((Unit.SIZE, "size", 1), (Unit.TIME, "age", 1000))
    )
    return [each for each in found if each.min or each.max]


def _ms(seconds: float) -> int | None:
    return max(1, round(seconds * 1000)) if seconds else None


def policy_text(policy: Policy | None) -> str:
    """One-line description of a policy."""
    if policy is None:
        return "no policy: no automatic deletion"
    by_limits = (
        " and ".join(map(limits_text, policy.all_limits)) or "entries that all subscribers have read are deleted"
    )
    words = _keep_text(policy.all_limits) if policy.kind is PolicyKind.KEEP else by_limits
    if policy.subscriber_timeout_ms is not None:
        words += f"; a subscriber silent for {span_text(policy.subscriber_timeout_ms)} doesn't hold data back"
    if policy.fallback_after_ms is not None:
        words += f"; after {span_text(policy.fallback_after_ms)} of silence of all"
        words += ", no subscriber does" if policy.fallback is None else f": {limits_text(policy.fallback)}"
    return f"keep: {words}" if policy.kind is PolicyKind.KEEP else f"by {policy.kind.value}: {words}"


def _keep_text(limits: tuple[Limits, ...]) -> str:
    """``entries older than 1 d or beyond the newest 1 GiB are deleted; the newest 10 MiB are kept``."""
    goes = {Unit.TIME: "older than", Unit.SIZE: "beyond the newest"}
    over = [f"{goes[each.unit]} {_amount_text(each.unit, each.max)}" for each in limits if each.max is not None]
    stays = {Unit.TIME: "entries younger than {} are kept", Unit.SIZE: "the newest {} are kept"}
    at_least = [stays[each.unit].format(_amount_text(each.unit, each.min)) for each in limits if each.min]
    return "; ".join([f"entries {' or '.join(over)} are deleted", *at_least])


def _amount_text(unit: Unit, amount: int) -> str:
    return span_text(amount) if unit is Unit.TIME else size_text(amount)


def limits_text(limits: Limits) -> str:
    """Format ``keeps at least 1 GiB, unread data up to 10 GiB``."""
    most = "without a limit" if limits.max is None else f"up to {_amount_text(limits.unit, limits.max)}"
    return f"keeps at least {_amount_text(limits.unit, limits.min)}, unread data {most}"


def span_text(ms: int) -> str:
    """Format ``90_000`` as ``"1.5 min"``."""
    return _in_units(ms, _SPANS)


def size_text(size_bytes: int) -> str:
    """Format ``1536`` as ``"1.5 KiB"``, and ``2_000_000_000`` as ``"2 GB"``, as a setting may name it."""
    whole = next((f"{size_bytes // each} {name}" for each, name in _DECIMAL_SIZES if size_bytes % each == 0), None)
    return whole if whole and size_bytes else _in_units(size_bytes, _SIZES)


def _in_units(amount: int, units: tuple[tuple[int, str], ...]) -> str:
    for factor, name in units:
        if abs(amount) >= factor:
            return f"{amount / factor:.3g} {name}" if amount % factor else f"{amount // factor} {name}"
    return f"{amount} {units[-1][1]}"
