"""Subscribers that follow somebody else's: a broker's subscriptions, for example; pure.

Owns what of theirs changes the registry. Must never touch a subscriber that isn't named.

Rules: the retention specification, section 3. A source that goes back, because somebody reset it, begins again: with a
higher generation and the earlier cut, in one step, so that at no time nobody needs what it is going to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from offloader.retention.cuts import Cut
from offloader.retention.subscribers import CutRules, PublishStatus, Registry

__all__ = ["Followed", "followed"]


@dataclass(frozen=True, slots=True)
class Followed:
    """One of somebody else's: what it has consumed, and whether a consumer is connected, which is a sign of life."""

    cut: Cut
    is_connected: bool


def followed(
    registry: Registry,
    wanted: Mapping[str, Followed],
    gone: Collection[str],
    rules: CutRules,
    *,
    now_ms: int,
    renew_ms: int | None,
) -> Registry:
    """The registry brought in line.

    Args:
        registry: as it is.
        wanted: by the subscriber's name.
        gone: names of subscribers that are to be forgotten.
        rules: of the stream's cuts; a cut that is none of them changes nothing.
        now_ms: the time.
        renew_ms: how old the sign of life of somebody connected may be; ``None``: as old as it likes.

    Raises:
        LimitReached: too many subscribers.
    """
    for name, each in wanted.items():
        found = registry.subscribers.get(name)
        generation = 0 if found is None else found.generation
        if found is None:
            registry = registry.add(name, generation, now_ms=now_ms)
        elif found.cut is not None and rules.reaches(found.cut, each.cut) and rules.reaches(each.cut, found.cut):
            is_old = renew_ms is not None and now_ms - found.active_ms > renew_ms
            if not (each.is_connected and is_old):
                continue
        outcome = registry.publish(name, generation, each.cut, rules, now_ms=now_ms)
        if outcome.status is PublishStatus.CUT_NOT_VALID and not rules.problem(each.cut):
            again = registry.remove(name, generation).add(name, generation + 1, now_ms=now_ms)
            outcome = again.publish(name, generation + 1, each.cut, rules, now_ms=now_ms)
        registry = outcome.registry
    for name in gone:
        there = registry.subscribers.get(name)
        if there is not None:
            registry = registry.remove(name, there.generation)
    return registry
