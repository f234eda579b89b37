"""Everything that a retention decision depends on, as values.

Owns what a stream, its policy and its subscribers look like to a decision, and how the registry's subscribers become
that. Must never decide (``offloader.retention.decide``), nor read a clock or a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offloader.retention.cuts import Cut
from offloader.retention.lineage import Lineage, Measure
from offloader.retention.policy import Policy
from offloader.retention.recorded import RetentionSet
from offloader.retention.subscribers import Activity, CutRules, Registry

__all__ = ["Situation", "Subscription", "subscriptions_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a decision has to know of a subscriber.

    Attributes:
        name: unique in the stream.
        cut: the newest it published, valid in the stream; ``None``: it never did.
        start: where it was registered; ``None``: at the stream's beginning.
        is_active: whether it wasn't silent for longer than the policy's ``subscriber_timeout_ms``.
        active_ms: when it last was heard of, its registration included, ms since 1970 UTC.
    """

    name: str
    cut: Cut | None = None
    start: Cut | None = None
    is_active: bool = True
    active_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that a decision about a stream depends on.

    Attributes:
        policy: what the owner wants.
        lineage: the stream's segments.
        measure: how much lies before a cut.
        records: cuts recorded at the tail, this cycle's included.
        head: before it nothing is left.
        now_ms: the time, ms since 1970 UTC.
        created_ms: when the stream was created, ``None``: unknown.
        head_time_ms: ``Decision.cut_time_ms`` of the truncation that made the head; ``None``: there was none.
        subscriptions: all registered subscribers, in any order.
        tail: where the stream ends now, for lags; ``None``: at the newest record.
        offloaded: up to where the stream is offloaded: nothing behind it goes; ``None``: that doesn't matter.
    """

    policy: Policy
    lineage: Lineage
    measure: Measure
    records: RetentionSet
    head: Cut
    now_ms: int
    created_ms: int | None = None
    head_time_ms: int | None = None
    subscriptions: tuple[Subscription, ...] = ()
    tail: Cut | None = None
    offloaded: Cut | None = None


def subscriptions_of(
    registry: Registry,
    policy: Policy,
    *,
    now_ms: int,
    tail: Cut | None,
    rules: CutRules,
    canonical: Callable[[Cut], Cut] = lambda cut: cut,
) -> tuple[Subscription, ...]:
    """The registry's subscribers as a decision sees them.

    Args:
        registry: of the stream.
        policy: whose ``subscriber_timeout_ms`` says who is silent.
        now_ms: the time.
        tail: where the stream ends: who has read everything isn't silent; ``None``: unknown.
        rules: to compare cuts by.
        canonical: the one way to write a cut, of streams where a place has several positions.
    """
    timeout_ms = policy.subscriber_timeout_ms
    activities = registry.active(now_ms=now_ms, timeout_ms=timeout_ms, tail=tail, rules=rules)
    found = []
    for name in registry.names():
        each, activity = registry.subscribers[name], activities[name]
        if activity is Activity.UNPUBLISHED:
            # Its registration was its last sign of life
            is_active = timeout_ms is None or now_ms - each.active_ms <= timeout_ms
        else:
            is_active = activity is Activity.ACTIVE
        cut, start = (None if one is None else canonical(one) for one in (each.cut, each.start))
        found.append(Subscription(name=name, cut=cut, start=start, is_active=is_active, active_ms=each.active_ms))
    return tuple(found)
