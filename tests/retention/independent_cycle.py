"""The rules of a cycle once more, as the specification's section 2 writes them: slow, on plain vectors, one line each.

Shares with the product only what a cut consumed. A vector holds a number for each stream segment, ``FULL`` being more
than any other.
"""

from __future__ import annotations

import math

from offloader.retention.cuts import Cut, SegmentId
from offloader.retention.decide import Situation
from offloader.retention.policy import Limits, PolicyKind, Unit

FULL = math.inf
Vector = dict[SegmentId, float]


class IndependentCycle:
    """What a situation's new head has to have consumed, or ``None``."""

    def __init__(self, situation: Situation) -> None:
        self.given = situation
        self.head = self.vector(situation.head)
        self.records = [(one.time_ms, join(self.vector(one.cut), self.head)) for one in situation.records.records]
        newest = situation.records.newest
        self.end = self.size(self.vector(newest.cut)) if newest else 0

    def vector(self, cut: Cut) -> Vector:
        consumed = self.given.lineage.consumed(cut)
        found: Vector = {}
        for one in self.given.lineage.segments:
            offset = consumed.at.get(one.segment, 0)
            assert isinstance(offset, int)
            found[one.segment] = FULL if one.segment in consumed.full else offset
        return found

    def size(self, vector: Vector) -> int:
        sealed = {one.segment: one.sealed_bytes for one in self.given.lineage.segments}
        return sum(int(sealed[s] or 0) if offset == FULL else int(offset) for s, offset in vector.items())

    def keep(self, vector: Vector) -> int:
        return self.end - self.size(vector)

    def positions(self) -> dict[str, tuple[bool, Vector]]:
        """Whoever published, or is protected: active, and from where on."""
        found = {}
        for one in self.given.subscriptions:
            if one.cut is not None:
                found[one.name] = one.is_active, self.vector(one.cut)
            elif self.given.policy.protect_unpublished:
                found[one.name] = one.is_active, self.vector(one.start) if one.start else self.head
        return found

    def new_head(self) -> Vector | None:
        found = self.chosen()
        if found is not None and self.given.offloaded is not None:
            found = join(meet(found, self.vector(self.given.offloaded)), self.head)
        return None if found == self.head else found

    def chosen(self) -> Vector | None:
        policy, now, positions = self.given.policy, self.given.now_ms, self.positions()
        active = [vector for is_active, vector in positions.values() if is_active]
        heard = [one.active_ms for one in self.given.subscriptions]
        since = max(heard) if heard else self.given.created_ms
        nobody_active = not any(one.is_active for one in self.given.subscriptions)
        y = policy.fallback_after_ms
        gave_up = nobody_active and y is not None and since is not None and now - since > y
        if active:
            return self.with_bound(join(meet(*active), self.head))
        if policy.kind is not PolicyKind.CONSUMPTION:
            assert policy.limits is not None
            if not positions or gave_up:
                return self.without_bound(policy.limits)
            return self.with_bound(join(meet(*(vector for _, vector in positions.values())), self.head))
        if not positions and policy.limits is not None:
            return self.without_bound(policy.limits)
        if gave_up:
            assert policy.fallback is not None
            return self.without_bound(policy.fallback)
        return None

    def amounts(self, limits: Limits) -> list[tuple[int, Vector]]:
        """Of each record what it keeps."""
        if limits.unit is Unit.TIME:
            return [(self.given.now_ms - time, vector) for time, vector in self.records]
        return [(self.keep(vector), vector) for _, vector in self.records]

    def m_and_big_m(self, limits: Limits) -> tuple[Vector | None, Vector | None]:
        amounts = self.amounts(limits)
        enough = [amount for amount, _ in amounts if amount >= limits.min]
        if not enough:
            return None, None
        m = [vector for amount, vector in amounts if amount == min(enough)][-1]
        fitting = [amount for amount in enough if limits.max is None or amount <= limits.max]
        return m, next(vector for amount, vector in amounts if amount == max(fitting)) if fitting else m

    def without_bound(self, limits: Limits) -> Vector | None:
        if not self.records:
            return None
        m, big_m = self.m_and_big_m(limits)
        size = self.keep(self.head)
        if limits.unit is Unit.TIME:
            since = self.given.head_time_ms
            since = self.given.created_ms if since is None else since
            size = self.given.now_ms - (self.records[0][0] if since is None else since)
        if size < limits.min:
            return None
        return big_m if limits.max is not None and size > limits.max else m

    def with_bound(self, bound: Vector) -> Vector | None:
        limits = self.given.policy.limits
        if limits is None:
            return bound
        if not self.records:
            return None
        m, big_m = self.m_and_big_m(limits)
        top = FULL if limits.max is None else limits.max
        if limits.unit is Unit.TIME:
            return self.by_time(limits, bound, m, big_m)
        if limits.min <= self.keep(bound) < top:
            return bound
        if self.keep(bound) < limits.min:
            if m is None or big_m is None:
                return None
            low = meet(bound, m)
            return join(low, big_m) if self.keep(low) > top else low
        if m is None or big_m is None or self.keep(big_m) >= self.keep(bound):
            return bound
        high = join(bound, big_m)
        return high if self.keep(high) >= limits.min else join(meet(bound, m), big_m)

    def by_time(self, limits: Limits, bound: Vector, m: Vector | None, big_m: Vector | None) -> Vector | None:
        if m is None or big_m is None:
            return None
        base = meet(bound, m)
        old = [
            vector for time, vector in self.records if limits.max is not None and self.given.now_ms - time >= limits.max
        ]
        if not old or at_or_after(bound, old[-1]):
            return base
        return join(base, big_m) if at_or_after(old[-1], bound) else join(base, old[-1])


def meet(*vectors: Vector) -> Vector:
    return {segment: min(vector[segment] for vector in vectors) for segment in vectors[0]}


def join(*vectors: Vector) -> Vector:
    return {segment: max(vector[segment] for vector in vectors) for segment in vectors[0]}


def at_or_after(one: Vector, other: Vector) -> bool:
    return all(one[segment] >= other[segment] for segment in one)
