"""What the texts of Pravega's stream retention and of PDP-47 ask for, by brute force, over random streams.

Written from the two texts and not from the product: a stream is a row of numbers, one for each stream segment, and
every record is looked at. The product is used for three things only: to build a history of splits and merges, to write
a row as a cut, and to read a cut as a row.

The texts leave some cases open, and the product departs from them in others. ``Named`` lists these; each has the
condition under which it may occur, and what must still hold. Everything else has to be equal.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from offloader.retention.cuts import Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription
from offloader.retention.lineage import END, LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import RetentionSet
from tests.retention.lineages import ScalableLineage

#: Of a stream segment that was read to its end.
FULL = math.inf
#: How far each stream segment is read, in the order of ``Lineage.segments``.
Row = tuple[float, ...]
_SIZE_MAX = 12
_X_MS, _Y_MS = 10, 20


class Named(enum.Enum):
    """How a decision may relate to the texts."""

    EQUAL = "as the texts say"
    MEET = "the bound overlaps min: the meet of both, not the first record before them"
    JOIN = "the bound overlaps max: the join of both, not the first record behind them"
    NONE_WITHIN = "no record lies within min and max: the one closest to min, not none"
    KNOWN_OLD = "by time: unread data goes as far as it is known to be older than max, not further"
    BOTH_OVERLAP = "by time: the bound overlaps min and max, for which the texts have no order"


def before(one: Row, other: Row) -> bool:
    """Whether ``one`` is at or before ``other``."""
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def overlap(one: Row, other: Row) -> bool:
    return not before(one, other) and not before(other, one)


def lowest(rows: Iterable[Row]) -> Row:
    return tuple(map(min, zip(*rows, strict=True)))


def highest(rows: Iterable[Row]) -> Row:
    return tuple(map(max, zip(*rows, strict=True)))


@dataclass(frozen=True)
class Case:
    """A random stream with its policy, as the product takes it."""

    situation: Situation

    def row(self, cut: StreamCut) -> Row:
        lineage = self.situation.lineage
        consumed = lineage.consumed(cut)
        offsets = [consumed.get(one.segment, 0) for one in lineage.segments]
        return tuple(FULL if offset is END else offset for offset in offsets)


# --- drawing ----------------------------------------------------------------------------------------------------------


def _history(rng: random.Random) -> ScalableLineage:
    edges = [0.0, *sorted(rng.sample([0.25, 0.5, 0.75], rng.randint(0, 2))), 1.0]
    ids = [SegmentId(number, 0) for number in range(len(edges) - 1)]
    ranges = {one: (edges[n], edges[n + 1]) for n, one in enumerate(ids)}
    stream = ScalableLineage.build(ranges, [ids])
    for _ in range(rng.choice([0, 0, 0, 1, 2, 3])):
        first = rng.randrange(len(stream.active))
        chosen = stream.active[first : first + rng.randint(1, 2)]
        low, high = chosen[0].key_from, chosen[-1].key_to
        inner = sorted(rng.sample([1, 2, 3], rng.randint(0, 2)))
        cut = [low, *(low + (high - low) * each / 4 for each in inner), high]
        sealed = {one.segment: rng.randint(1, _SIZE_MAX) for one in chosen}
        stream = stream.scaled(sealed, list(pairwise(cut)))
    return stream


def _drawn(rng: random.Random, stream: ScalableLineage) -> Row:
    """A place in the stream: of a segment something is read only if all that it took over from is read to the end."""
    found: dict[SegmentId, float] = {}
    for one in stream.segments:
        ready = all(found[earlier] == FULL for earlier in one.predecessors)
        ended = one.sealed_bytes is not None
        if ready and ended and rng.random() < 0.6:
            found[one.segment] = FULL
        else:
            size = one.sealed_bytes - 1 if one.sealed_bytes is not None else _SIZE_MAX * 2
            found[one.segment] = rng.randint(0, size) if ready else 0
    return tuple(found[one.segment] for one in stream.segments)


def _cut(stream: ScalableLineage, row: Row) -> StreamCut:
    at = dict(zip((one.segment for one in stream.segments), row, strict=True))
    return stream.cut_of({one: END if offset == FULL else int(offset) for one, offset in at.items() if offset})


def _limits(rng: random.Random, unit: Unit) -> Limits:
    low = rng.randint(0, 30)
    return Limits(unit, low, rng.choice([None, low + rng.randint(0, 30) or None]))


def _policy(rng: random.Random) -> Policy:
    """By size, by time, or by consumption: with PDP-47's two times, and with or without limits."""
    kind = rng.choice([PolicyKind.SIZE, PolicyKind.TIME, PolicyKind.CONSUMPTION])
    if kind is not PolicyKind.CONSUMPTION:
        return Policy(kind=kind, limits=_limits(rng, Unit(kind.value)))
    x = rng.choice([None, _X_MS])
    y = _Y_MS if x and rng.random() < 0.5 else None
    fallback = _limits(rng, rng.choice([*Unit])) if y else None
    own = _limits(rng, rng.choice([*Unit])) if rng.random() < 0.3 else None
    return Policy(kind=kind, limits=own, subscriber_timeout_ms=x, fallback_after_ms=y, fallback=fallback)


def drawn_case(seed: int) -> Case:
    rng = random.Random(seed)
    stream = _history(rng)
    tails: list[Row] = []
    for _ in range(rng.randint(1, 7)):
        tails.append(highest([*tails[-1:], _drawn(rng, stream)]))
    now_ms = rng.randint(40, 80)
    times = sorted(rng.sample(range(now_ms + 1), len(tails)))
    sizes = [_bytes(stream, row) for row in tails]
    records = tuple(Record(time, _cut(stream, row), size) for time, row, size in zip(times, tails, sizes, strict=True))
    zero = tuple(0.0 for _ in stream.segments)
    is_truncated = rng.random() < 0.4
    head = lowest([tails[0], _drawn(rng, stream)]) if is_truncated else zero
    policy = _policy(rng)
    subscriptions = []
    for number in range(rng.choice([0, 1, 1, 2, 2, 3])):
        active_ms = rng.randint(now_ms - 30, now_ms)
        # A subscriber reads what is there.
        read = lowest([_drawn(rng, stream), tails[-1]])
        subscriptions.append(
            Subscription(
                name=f"s{number}",
                cut=None if rng.random() < 0.1 else _cut(stream, read),
                is_active=policy.subscriber_timeout_ms is None or now_ms - active_ms <= policy.subscriber_timeout_ms,
                active_ms=active_ms,
            )
        )
    return Case(
        Situation(
            policy=policy,
            lineage=stream,
            measure=LineageMeasure(stream),
            records=RetentionSet(records),
            head=_cut(stream, head),
            now_ms=now_ms,
            created_ms=rng.choice([None, rng.randint(0, times[0])]),
            head_time_ms=rng.randint(0, times[0]) if is_truncated else None,
            subscriptions=tuple(subscriptions),
        )
    )


def _bytes(stream: ScalableLineage, row: Row) -> int:
    sealed = [one.sealed_bytes or 0 for one in stream.segments]
    return sum(size if offset == FULL else int(offset) for size, offset in zip(sealed, row, strict=True))


# --- the texts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Where the texts truncate, ``None``: not at all, and how the product may differ there."""

    row: Row | None
    may: Named = Named.EQUAL


class Texts:
    """The two texts, applied to one case."""

    def __init__(self, case: Case) -> None:
        given = case.situation
        self.given, self.stream = given, given.lineage
        assert isinstance(self.stream, ScalableLineage)
        self.head = case.row(given.head)
        self.retention_set = [(record.time_ms, case.row(record.cut)) for record in given.records.records]
        self.published = {s.name: case.row(s.cut) for s in given.subscriptions if s.cut is not None}
        self.active = [s.name for s in given.subscriptions if s.is_active and s.cut is not None]

    def leaves(self, row: Row) -> int:
        """Bytes that a truncation leaves."""
        assert isinstance(self.stream, ScalableLineage)
        return _bytes(self.stream, self.retention_set[-1][1]) - _bytes(self.stream, row)

    def bound_of(self, names: Sequence[str]) -> Row:
        """The subscriber lower bound: the furthest place at which nobody loses anything. Never before the head."""
        return highest([self.head, lowest(self.published[name] for name in names)])

    @property
    def bound(self) -> Row | None:
        """The bound that counts, ``None``: there is none."""
        is_queue = self.given.policy.kind is PolicyKind.CONSUMPTION
        names = self.active if is_queue else [*self.published]
        return self.bound_of(names) if names else None

    def asked(self) -> Asked:
        policy = self.given.policy
        if self.bound is not None:
            if policy.limits is None:
                return Asked(self.bound)  # PDP-47: one cut of all valid subscribers' cuts
            return self.with_bound(policy.limits, self.bound)
        if policy.kind is PolicyKind.CONSUMPTION and (self.published or policy.limits is None):
            return self.nobody_valid(policy)
        assert policy.limits is not None
        return self.without_bound(policy.limits)  # Pravega, case 1: no entries are found

    def nobody_valid(self, policy: Policy) -> Asked:
        """PDP-47: no truncation in this cycle; after y minutes without an active subscriber the fallback decides."""
        if policy.fallback is None or policy.fallback_after_ms is None:
            return Asked(None)
        if any(one.is_active for one in self.given.subscriptions):
            return Asked(None)
        heard = max((one.active_ms for one in self.given.subscriptions), default=self.given.created_ms)
        if heard is None or self.given.now_ms - heard <= policy.fallback_after_ms:
            return Asked(None)
        return self.without_bound(policy.fallback)

    def amounts(self, limits: Limits) -> list[tuple[int, Row]]:
        """What a truncation at each member of the retention set leaves, in the limits' unit."""
        if limits.unit is Unit.SIZE:
            return [(self.leaves(row), row) for _, row in self.retention_set]
        return [(self.given.now_ms - time, row) for time, row in self.retention_set]

    def closest_to_min(self, limits: Limits) -> Row | None:
        """At least min, as the policy promises, and no cut is closer to it."""
        enough = [each for each in self.amounts(limits) if each[0] >= limits.min]
        return min(enough, key=lambda each: each[0])[1] if enough else None

    def closest_to_max(self, limits: Limits) -> Row | None:
        """At least min and not more than max, and no cut is closer to max."""
        fitting = [each for each in self.amounts(limits) if limits.min <= each[0] <= (limits.max or FULL)]
        return max(fitting, key=lambda each: each[0])[1] if fitting else None

    def without_bound(self, limits: Limits) -> Asked:
        size = self.leaves(self.head)
        if limits.unit is Unit.TIME:
            since = [self.given.head_time_ms, self.given.created_ms, self.retention_set[0][0]]
            size = self.given.now_ms - next(time for time in since if time is not None)
        if size < limits.min:
            return Asked(None)
        if limits.max is not None and size > limits.max:
            found = self.closest_to_max(limits)
            return Asked(found, Named.EQUAL if found else Named.NONE_WITHIN)
        return Asked(self.closest_to_min(limits))

    def with_bound(self, limits: Limits, bound: Row) -> Asked:
        smallest, largest = self.closest_to_min(limits), self.closest_to_max(limits)
        if limits.unit is Unit.TIME:
            return self.by_time(limits, bound, smallest, largest)
        left = self.leaves(bound)
        if left < limits.min:
            return self.near_min(bound, smallest)  # ii and iv
        if limits.max is None or left <= limits.max:
            return Asked(bound)  # i
        if largest is None:
            return Asked(None, Named.NONE_WITHIN)
        if before(bound, largest):
            return Asked(largest)  # iii
        return Asked(self.first_behind(bound), Named.JOIN)  # v

    def by_time(self, limits: Limits, bound: Row, smallest: Row | None, largest: Row | None) -> Asked:
        """By ages a bound has no amount of its own: its place among the members of the retention set has."""
        if smallest is None or before(smallest, bound):
            return Asked(smallest)  # ii
        if limits.max is None:
            return Asked(bound) if before(bound, smallest) else self.near_min(bound, smallest)
        if largest is None:
            return Asked(None, Named.NONE_WITHIN)
        if overlap(bound, smallest):
            return Asked(None, Named.BOTH_OVERLAP) if overlap(bound, largest) else self.near_min(bound, smallest)
        if before(largest, bound):
            return Asked(bound)  # i
        old = self.as_old_as(limits.max + 1)
        if before(bound, largest):
            is_known = any(before(bound, row) and row != bound for row in old)
            return Asked(largest, Named.EQUAL if is_known else Named.KNOWN_OLD)  # iii
        return Asked(self.first_behind(bound), Named.KNOWN_OLD)  # v

    def near_min(self, bound: Row, smallest: Row | None) -> Asked:
        """ii: the cut closest to min; iv, where the bound overlaps it: the first cut before the bound."""
        if smallest is None or before(smallest, bound):
            return Asked(smallest)
        return Asked(next((row for _, row in reversed(self.retention_set) if before(row, bound)), None), Named.MEET)

    def first_behind(self, bound: Row) -> Row | None:
        return next((row for _, row in self.retention_set if before(bound, row)), None)

    def as_old_as(self, age_ms: int) -> list[Row]:
        return [row for time, row in self.retention_set if self.given.now_ms - time >= age_ms]

    # --- the comparison -----------------------------------------------------------------------------------------------

    def relation(self, found: Row | None) -> Named:
        """How a decision relates to the texts; fails where no name covers it, or what must hold doesn't."""
        asked = self.asked()
        place = self.head if found is None else found
        self.keeps_min(place)
        self.loses_unread_only_for_max(place)
        wanted = self.head if asked.row is None else highest([asked.row, self.head])
        if place == wanted:
            return Named.EQUAL
        bound, limits = self.bound, self.ruling
        match asked.may:
            case Named.MEET:
                # More goes than by the text, and nothing that anyone still reads.
                assert bound is not None
                assert before(wanted, place)
                assert before(place, bound)
            case Named.JOIN:
                # Less unread data goes than by the text.
                assert bound is not None
                assert asked.row is None or before(place, wanted)
            case Named.KNOWN_OLD:
                assert bound is not None
                assert limits is not None
                assert before(place, highest([bound, *self.as_old_as((limits.max or 0) + 1)]))
                assert asked.row is None or before(place, wanted)
            case Named.EQUAL:
                raise AssertionError(f"the texts ask for {wanted}, found {place}: {self.given}")
        return asked.may

    @property
    def ruling(self) -> Limits | None:
        """The limits that decide: a policy's, or the fallback's when nobody is valid."""
        policy = self.given.policy
        if policy.kind is PolicyKind.CONSUMPTION and self.bound is None and (self.published or policy.limits is None):
            return policy.fallback
        return policy.limits

    def keeps_min(self, place: Row) -> None:
        """The policy's promise: never less than min stays, of what is there."""
        limits = self.ruling
        if limits is None or place == self.head:
            return
        if limits.unit is Unit.SIZE:
            assert self.leaves(place) >= limits.min
        else:
            assert before(place, highest([self.head, *self.as_old_as(limits.min)]))

    def loses_unread_only_for_max(self, place: Row) -> None:
        """Cases iii and v alone drop unread data: when the bound leaves more than max."""
        bound, limits = self.bound, self.ruling
        if bound is None or before(place, bound):
            return
        assert limits is not None
        assert limits.max is not None
        if limits.unit is Unit.SIZE:
            assert self.leaves(bound) > limits.max
        else:
            assert any(not before(row, bound) for row in self.as_old_as(limits.max + 1))
