"""The rules of a cycle once more, as docs/explanation/retention.md writes them: slow, on plain vectors, one line each.

Shares nothing with the product but the values of a situation. A vector holds a number for each range segment, ``FULL``
being more than any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from formats.entries import Position
from offloader.retention.cuts import SegmentId, StreamCut
from offloader.retention.decide import Situation
from offloader.retention.policy import Limits, PolicyKind, Unit

FULL = math.inf
Vector = dict[SegmentId, float]


class IndependentCycle:
    """What a situation's new head has to have consumed, or ``None``.

    Args:
        parents: range segment -> those that it follows, oldest first.
        ledgers: partition -> bytes of ledger 1 and following, of four entries each; empty: offsets are bytes.
    """

    def __init__(
        self,
        situation: Situation,
        parents: Mapping[SegmentId, Sequence[SegmentId]],
        ledgers: Mapping[SegmentId, Sequence[int]] | None = None,
    ) -> None:
        self.given = situation
        self.parents = parents
        self.ledgers = ledgers or {}
        self.sealed = {one.segment: one.sealed_bytes for one in situation.lineage.segments}
        self.head = self.vector(situation.head)
        self.records = [(one.time_ms, join(self.vector(one.cut), self.head)) for one in situation.records.records]
        self.boundaries = [(one.time_ms, join(self.vector(one.cut), self.head)) for one in situation.boundaries]
        newest = situation.records.newest
        self.end = self.size(self.vector(newest.cut)) if newest else 0

    def vector(self, cut: StreamCut) -> Vector:
        """R4, R6: a valid cut lists each range segment that is begun or could be, so the others are read or not yet."""
        found: Vector = {}
        for segment, parents in self.parents.items():
            offset = cut.offsets.get(segment)
            if isinstance(offset, Position):
                found[segment] = offset.ledger_id * 4 + offset.entry_id
            elif offset is not None:
                found[segment] = max(offset, 0)
            else:
                is_read = not self.given.lineage.is_partitioned and all(found[each] == FULL for each in parents)
                found[segment] = FULL if is_read else 0
        return found

    def size(self, vector: Vector) -> int:
        return sum(self.part(segment, offset) for segment, offset in vector.items())

    def part(self, segment: SegmentId, offset: float) -> int:
        if offset == FULL:
            return self.sealed[segment] or 0
        return sum(self.ledgers[segment][: max(int(offset) // 4 - 1, 0)]) if self.ledgers else int(offset)

    def keep(self, vector: Vector) -> int:
        return self.end - self.size(vector)

    def keep_surely(self, vector: Vector) -> int:
        """R17: a ledger that the vector is inside of counts as if all of it were read."""
        inside = {s: int(offset) for s, offset in vector.items() if self.ledgers and offset % 4}
        return self.keep(vector) - sum(self.ledgers[s][offset // 4 - 1] for s, offset in inside.items())

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
        found = self.chosen() if self.given.has_policy else None
        if found is not None and self.given.offloaded is not None:
            found = self.lowered(found, self.vector(self.given.offloaded))
        if self.given.broker is not None:
            found = self.with_broker(self.head if found is None else found)
        return None if found == self.head else found

    def lowered(self, vector: Vector, limit: Vector) -> Vector:
        return join(meet(vector, limit), self.head)

    # --- R22, R23: brokers --------------------------------------------------------------------------------------------

    def with_broker(self, found: Vector) -> Vector:
        broker = self.given.broker
        assert broker is not None
        if broker.bound is None:
            return self.head
        kept = self.lowered(found, self.vector(broker.bound))
        if broker.followed is None:
            return kept
        trimmed = join(self.vector(broker.followed), self.head)
        for hold in self.holds():
            trimmed = self.lowered(trimmed, hold)
        return join(kept, trimmed)

    def holds(self) -> list[Vector]:
        """What a followed trim doesn't pass: the committed end, subscribers that count, and each min."""
        found = [self.vector(self.given.offloaded)] if self.given.offloaded is not None else []
        positions = self.positions()
        active = [vector for is_active, vector in positions.values() if is_active]
        limits = [each for each in (self.given.policy.limits, self.given.policy.second) if each is not None]
        if active or not self.gave_up():
            found += active or [vector for _, vector in positions.values()]
        elif self.given.policy.fallback is not None and (positions or not limits):
            limits = [self.given.policy.fallback]
        for each in limits:
            least = max(each.min, each.max or 0) if self.given.policy.kind is PolicyKind.KEEP else each.min
            if least:
                m = self.m_and_big_m(Limits(each.unit, least))[0] if self.records else None
                found.append(self.head if m is None else m)
        return found

    # --- R28, R29: silence --------------------------------------------------------------------------------------------

    def gave_up(self) -> bool:
        """Whether no subscriber has been active for longer than the fallback waits."""
        heard = [one.active_ms for one in self.given.subscriptions]
        since = max(heard) if heard else self.given.created_ms
        after = self.given.policy.fallback_after_ms
        nobody_active = not any(one.is_active for one in self.given.subscriptions)
        return nobody_active and after is not None and since is not None and self.given.now_ms - since > after

    def chosen(self) -> Vector | None:
        policy, positions, gave_up = self.given.policy, self.positions(), self.gave_up()
        own = [each for each in (policy.limits, policy.second) if each is not None]
        active = [vector for is_active, vector in positions.values() if is_active]
        if policy.kind is PolicyKind.KEEP:
            return self.kept(own) if self.records else None
        if active:
            return self.with_bounds(own, join(meet(*active), self.head))
        if policy.kind is not PolicyKind.CONSUMPTION:
            if not positions or gave_up:
                return self.together(own, [self.without_bound(each) for each in own])
            return self.with_bounds(own, join(meet(*(vector for _, vector in positions.values())), self.head))
        if not positions and own:
            return self.together(own, [self.without_bound(each) for each in own])
        if gave_up:
            assert policy.fallback is not None
            return self.without_bound(policy.fallback)
        return None

    def with_bounds(self, own: list[Limits], bound: Vector) -> Vector | None:
        return self.together(own, [self.with_bound(each, bound) for each in own]) if own else bound

    def kept(self, own: list[Limits]) -> Vector | None:
        """What keep and keep_size let go: of each the latest candidate that keeps no less."""
        found = [None if each.max is None else self.m_and_big_m(Limits(each.unit, each.max))[0] for each in own]
        return self.together(own, found, always=True)

    def together(self, own: list[Limits], found: list[Vector | None], *, always: bool = False) -> Vector | None:
        """The later of two cuts, lowered until each min is kept, or one of them that is further on and keeps them."""
        cuts = [each for each in found if each is not None]
        if not cuts or (len(own) == 1 and not always):
            return cuts[0] if cuts else None
        cut = join(*cuts, self.head)
        for each in own:
            if not self.keeps_min(cut, each):
                m = self.m_and_big_m(Limits(each.unit, each.min))[0]
                if m is None:
                    return None
                cut = join(meet(cut, m), self.head)
        for one in (join(each, self.head) for each in cuts):
            if at_or_after(one, cut) and all(self.keeps_min(one, each) for each in own):
                cut = one
        return cut

    def keeps_min(self, cut: Vector, limits: Limits) -> bool:
        if not limits.min or limits.unit is Unit.SIZE:
            return not limits.min or self.keep_surely(cut) >= limits.min
        m = self.m_and_big_m(Limits(limits.unit, limits.min))[0]
        return m is not None and at_or_after(m, cut)

    def amounts(self, limits: Limits, chain: list[tuple[int, Vector]]) -> list[tuple[int, Vector]]:
        """Of each record or boundary what it keeps."""
        if limits.unit is Unit.TIME:
            return [(self.given.now_ms - time, vector) for time, vector in chain]
        return [(self.keep(vector), vector) for _, vector in chain]

    def is_enough(self, each: tuple[int, Vector], limits: Limits) -> bool:
        amount = each[0] if limits.unit is Unit.TIME else self.keep_surely(each[1])
        return amount >= limits.min

    def m_and_big_m(self, limits: Limits) -> tuple[Vector | None, Vector | None]:
        """Of the two chains the better m and M, the records' where both keep the same; M is a head that fits."""
        best: tuple[int, Vector] | None = None
        both = [self.amounts(limits, chain) for chain in (self.records, self.boundaries)]
        for chain in both:
            enough = [each for each in chain if self.is_enough(each, limits)]
            if enough and (best is None or is_later(enough[-1], best)):
                best, own = enough[-1], chain
        if best is None:
            return None, None
        most: tuple[int, Vector] | None = None
        for chain in both:
            fitting = [e for e in chain if self.is_enough(e, limits) and (limits.max is None or e[0] <= limits.max)]
            usable = fitting and (chain is own or at_or_after(best[1], fitting[0][1]))
            if usable and (most is None or is_later(most, fitting[0])):
                most = fitting[0]
        if self.given.head_time_ms is not None:
            time = min([self.given.head_time_ms, *(first for first, _ in self.records[:1])])
            [(amount, _)] = self.amounts(limits, [(time, self.head)])
            if limits.max is None or amount <= limits.max:
                return best[1], self.head
        return best[1], (most or best)[1]

    def without_bound(self, limits: Limits) -> Vector | None:
        if not self.records:
            return None
        m, big_m = self.m_and_big_m(limits)
        size = self.keep(self.head)
        if limits.unit is Unit.TIME:
            since = self.given.head_time_ms
            since = self.given.created_ms if since is None else since
            since = self.records[0][0] if since is None else since
            since = min([since, *[time for time, vector in self.boundaries if vector != self.head][:1]])
            size = self.given.now_ms - since
        if size < limits.min:
            return None
        return big_m if limits.max is not None and size > limits.max else m

    def with_bound(self, limits: Limits, bound: Vector) -> Vector | None:
        if not self.records:
            return None
        m, big_m = self.m_and_big_m(limits)
        top = FULL if limits.max is None else limits.max
        if limits.unit is Unit.TIME:
            return self.by_time(limits, bound, m, big_m)
        keeps_min = self.keep_surely(bound) >= limits.min
        if keeps_min and self.keep(bound) <= top:
            return bound
        if not keeps_min:
            return None if m is None else meet(bound, m)
        if m is None or big_m is None or self.keep(big_m) >= self.keep(bound):
            return bound
        high = join(bound, big_m)
        return high if self.keep_surely(high) >= limits.min else join(meet(bound, m), big_m)

    def by_time(self, limits: Limits, bound: Vector, m: Vector | None, big_m: Vector | None) -> Vector | None:
        if m is None or big_m is None:
            return None
        base = meet(bound, m)
        old = None if limits.max is None else self.m_and_big_m(Limits(Unit.TIME, limits.max + 1))[0]
        if old is None or at_or_after(bound, old):
            return base
        return join(base, big_m) if at_or_after(old, bound) else join(base, old)


def meet(*vectors: Vector) -> Vector:
    return {segment: min(vector[segment] for vector in vectors) for segment in vectors[0]}


def join(*vectors: Vector) -> Vector:
    return {segment: max(vector[segment] for vector in vectors) for segment in vectors[0]}


def at_or_after(one: Vector, other: Vector) -> bool:
    return all(one[segment] >= other[segment] for segment in one)


def is_later(one: tuple[int, Vector], other: tuple[int, Vector]) -> bool:
    """Further in the stream; where neither is, with the smaller amount kept."""
    if at_or_after(other[1], one[1]):
        return False
    return at_or_after(one[1], other[1]) or one[0] < other[0]
