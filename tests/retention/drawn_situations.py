"""Random situations by seed, the same ones every time: split, merged and migrated streams, partitions, brokers.

States of reading are drawn as rows, one number for each range segment, and written as cuts here: a cut of the product
that is read back wrongly differs from its row.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from formats.entries import Position
from offloader.retention.broker import BrokerView, FirstListed
from offloader.retention.cuts import FUTURE, Offset, Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription, decide
from offloader.retention.entries import TIME_UNKNOWN
from offloader.retention.lineage import Lineage, LineageMeasure, Measure, StreamSegment
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import Decision, RetentionSet
from tests.retention.independent_cycle import FULL, IndependentCycle, Vector
from tests.retention.lineages import ScalableLineage

#: Entries of each ledger of a partition. A ledger is one counted piece.
LEDGER_ENTRIES = 4
#: Ledgers of a partition, from ledger 1 on.
LEDGERS = 9
_SIZE_MAX = 12


@dataclass(frozen=True)
class Drawn:
    """A situation, with its history in plain values.

    Attributes:
        parents: range segment -> those that it follows, oldest first.
        ledgers: partition -> bytes of ledger 1 and following; empty: offsets are bytes.
    """

    situation: Situation
    parents: Mapping[SegmentId, Sequence[SegmentId]]
    ledgers: Mapping[SegmentId, Sequence[int]] = field(default_factory=dict)

    def model(self) -> IndependentCycle:
        return IndependentCycle(self.situation, self.parents, self.ledgers)


@dataclass(frozen=True)
class LedgerMeasure:
    """Measures positions in ``ledgers``: a ledger counts once a cut is behind all of it."""

    ledgers: Mapping[SegmentId, Sequence[int]]

    def bytes_before(self, cut: StreamCut) -> int:
        return sum(sum(self.ledgers[s][: at.ledger_id - 1]) for s, at in _positions(cut))

    def entries_before(self, cut: StreamCut) -> int:
        return sum((at.ledger_id - 1) * LEDGER_ENTRIES + at.entry_id for _, at in _positions(cut))

    def bytes_after(self, cut: StreamCut) -> int:
        return sum(map(sum, self.ledgers.values())) - self.bytes_before(cut)

    def bytes_in_doubt(self, cut: StreamCut) -> int:
        return sum(self.ledgers[s][at.ledger_id - 1] for s, at in _positions(cut) if at.entry_id)


def _positions(cut: StreamCut) -> Iterable[tuple[SegmentId, Position]]:
    return ((segment, at) for segment, at in cut.offsets.items() if isinstance(at, Position))


class _Stream:
    """A stream to draw from."""

    def __init__(self, rng: random.Random, *, is_migrated: bool) -> None:
        self.rng = rng
        self.ledgers: dict[SegmentId, list[int]] = {}
        if is_migrated:
            self.lineage = migrated(rng)
        else:
            self.lineage = self._partitions() if rng.random() < 0.4 else _history(rng)
        segments = sorted(self.lineage.segments, key=lambda one: one.segment.age_order)
        self.parents = {one.segment: one.predecessors for one in segments}
        self.sealed = {one.segment: one.sealed_bytes for one in self.lineage.segments}
        self.measure: Measure = LedgerMeasure(self.ledgers) if self.ledgers else LineageMeasure(self.lineage)

    def _partitions(self) -> Lineage:
        numbers = sorted(self.rng.sample(range(6), self.rng.choice([1, 1, 2, 3])))
        if self.rng.random() < 0.8:
            for number in numbers:
                self.ledgers[SegmentId(number, 0)] = [self.rng.randint(1, 5) for _ in range(LEDGERS)]
        return Lineage.of_partitions(numbers)

    def row(self) -> Vector:
        """A state of reading: nothing is read of a range segment before all that it follows is."""
        found: Vector = {}
        for segment, before in self.parents.items():
            size = self.sealed[segment]
            if not all(found[each] == FULL for each in before):
                found[segment] = 0
            elif self.ledgers:
                # Of a partition nothing, or from the first entry to the end of the last ledger.
                top = (LEDGERS + 1) * LEDGER_ENTRIES
                found[segment] = 0 if self.rng.random() < 0.1 else self.rng.randint(LEDGER_ENTRIES, top)
            elif size is not None and self.rng.random() < 0.6:
                found[segment] = FULL
            else:
                found[segment] = self.rng.randint(0, _SIZE_MAX if size is None else size)
        return found

    def rows(self, count: int) -> list[Vector]:
        """States of a growing tail."""
        found: list[Vector] = []
        for _ in range(count):
            row = self.row()
            found.append({s: max(at, found[-1][s]) for s, at in row.items()} if found else row)
        return found

    def cut(self, row: Vector) -> StreamCut:
        """The shortest cut of a state, or at times one with a future range segment more than it needs."""
        offsets: dict[SegmentId, Offset] = {}
        for segment, before in self.parents.items():
            read = [row[each] == FULL for each in before]
            if all(read) and row[segment] != FULL:
                if row[segment] or not self.lineage.is_partitioned:
                    offsets[segment] = self.offset(int(row[segment]))
            elif any(read) and row[segment] == 0:
                offsets[segment] = FUTURE
        if not self.lineage.is_partitioned and self.rng.random() < 0.2:
            unread = [s for s, before in self.parents.items() if before and s not in offsets and row[s] == 0]
            offsets.update(dict.fromkeys(unread[:1], FUTURE))
        return StreamCut(offsets)

    def offset(self, number: int) -> Offset:
        return Position(*divmod(number, LEDGER_ENTRIES)) if self.ledgers else number

    def drawn(self) -> StreamCut:
        return self.cut(self.row())


def _history(rng: random.Random) -> ScalableLineage:
    """One to three range segments, then splits, merges, and both at once."""
    edges = [0.0, *sorted(rng.sample([0.25, 0.5, 0.75], rng.randint(0, 2))), 1.0]
    ids = [SegmentId(number, 0) for number in range(len(edges) - 1)]
    stream = ScalableLineage.build({one: (edges[n], edges[n + 1]) for n, one in enumerate(ids)}, [ids])
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
        first = rng.randrange(len(stream.active))
        chosen = stream.active[first : first + rng.randint(1, 3)]
        low, high = chosen[0].key_from, chosen[-1].key_to
        inner = sorted(rng.sample([1, 2, 3], rng.randint(0, 2)))
        bounds = [low, *(low + (high - low) * each / 4 for each in inner), high]
        stream = stream.scaled({one.segment: rng.randint(0, _SIZE_MAX) for one in chosen}, list(pairwise(bounds)))
    return stream


def migrated(rng: random.Random, scalings_max: int = 4) -> Lineage:
    """A topic that began with any number of partitions, and split and merged since: epochs are 0, keys overlap."""
    segments = [StreamSegment(SegmentId(number, 0)) for number in range(rng.randint(1, 3))]
    active = [one.segment for one in segments]
    for step in range(rng.randint(0, scalings_max)):
        # The migration seals all partitions, and each new range segment follows all of them.
        sealed = rng.sample(active, len(active) if step == 0 else rng.randint(1, min(3, len(active))))
        new = [SegmentId(len(segments) + n, 0) for n in range(rng.randint(1, 3))]
        before = {one: set(sealed) if step == 0 else {rng.choice(sealed)} for one in new}
        for one in sealed:
            before[rng.choice(new)].add(one)
        segments = [replace(s, sealed_bytes=rng.randint(0, _SIZE_MAX)) if s.segment in sealed else s for s in segments]
        segments += [StreamSegment(one, tuple(sorted(before[one]))) for one in new]
        active = [one for one in active if one not in sealed] + new
    rng.shuffle(segments)
    return Lineage(tuple(segments))


def _limits(rng: random.Random, unit: Unit) -> Limits:
    low = rng.choice([0, rng.randint(0, 30)])
    return Limits(unit, low, rng.choice([None, low + rng.randint(0, 30) or None]))


def _policy(rng: random.Random) -> Policy:
    kind = rng.choice([*PolicyKind])
    is_queue, is_keep = kind is PolicyKind.CONSUMPTION, kind is PolicyKind.KEEP
    first = {PolicyKind.SIZE: Unit.SIZE, PolicyKind.TIME: Unit.TIME}.get(kind) or rng.choice([*Unit])
    own = _limits(rng, first)
    second = _limits(rng, next(unit for unit in Unit if unit is not first)) if rng.random() < 0.5 else None
    if is_keep and own.max is None and (second is None or second.max is None):
        own = Limits(first, own.min, own.min + rng.randint(1, 30))
    x = rng.choice([None, 10])
    y = 20 if x and not is_keep and rng.random() < 0.5 else None
    has_limits = not is_queue or rng.random() < 0.6
    return Policy(
        kind=kind,
        limits=own if has_limits else None,
        second=second if has_limits else None,
        subscriber_timeout_ms=x,
        fallback_after_ms=y,
        fallback=_limits(rng, rng.choice([*Unit])) if is_queue and y else None,
        protect_unpublished=rng.random() < 0.4,
    )


def _broker(rng: random.Random, stream: _Stream) -> BrokerView | None:
    """Mostly none, else a list of ledgers, which is unknown at times, and whose trim may be followed in part."""
    if (kind := rng.random()) < 0.7:
        return None
    if kind < 0.75:
        return BrokerView(problem="the list is unknown")
    trimmed = stream.drawn()
    some = {segment: at for segment, at in trimmed.offsets.items() if rng.random() < 0.7}
    followed = StreamCut(some) if stream.lineage.is_partitioned else trimmed
    return BrokerView(
        first=(FirstListed(0, 7),),
        bound=trimmed,
        followed=followed if followed.offsets and rng.random() < 0.6 else None,
        doubts=("it isn't recorded yet",) if rng.random() < 0.3 else (),
    )


def drawn(seed: int, *, is_migrated: bool = False) -> Drawn:
    rng = random.Random(seed)
    stream = _Stream(rng, is_migrated=is_migrated)
    tails = stream.rows(rng.choice([0, 1, 2, 3, 4, 5, 6, 7]))
    times = sorted(rng.sample(range(61), len(tails)))
    recorded = [stream.cut(row) for row in tails]
    records = tuple(
        Record(time, cut, stream.measure.bytes_before(cut)) for time, cut in zip(times, recorded, strict=True)
    )
    now_ms = rng.randint(times[-1] if times else 0, 80)
    head = stream.drawn() if rng.random() < 0.5 else stream.cut(dict.fromkeys(stream.parents, 0))
    if tails and rng.random() < 0.5:
        low = stream.row()
        head = stream.cut({segment: min(at, tails[-1][segment]) for segment, at in low.items()})
    ends = [stream.cut(row) for row in stream.rows(rng.choice([0, 0, 1, 3, 5]))]
    published = sorted(rng.choice([rng.randint(0, 90), TIME_UNKNOWN]) for _ in ends)
    has_policy = rng.random() < 0.95
    situation = Situation(
        policy=_policy(rng) if has_policy else Policy(kind=PolicyKind.CONSUMPTION),
        lineage=stream.lineage,
        measure=stream.measure,
        records=RetentionSet(records),
        head=head,
        now_ms=now_ms,
        created_ms=rng.choice([None, rng.randint(0, now_ms)]),
        head_time_ms=rng.choice([None, rng.randint(0, now_ms)]),
        subscriptions=tuple(
            Subscription(
                name=f"s{number}",
                cut=None if rng.random() < 0.3 else stream.drawn(),
                start=stream.drawn() if rng.random() < 0.3 else None,
                is_active=rng.random() < 0.6,
                active_ms=rng.randint(0, now_ms),
            )
            for number in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))
        ),
        tail=None,
        offloaded=stream.drawn() if rng.random() < 0.4 else None,
        broker=_broker(rng, stream),
        has_policy=has_policy,
        boundaries=tuple(Record(time, cut) for time, cut in zip(published, ends, strict=True)),
    )
    return Drawn(situation, stream.parents, stream.ledgers)


def checked(seed: int, *, is_migrated: bool = False) -> Decision:
    """The decision about a drawn situation, equal to that of the independent model."""
    case = drawn(seed, is_migrated=is_migrated)
    decision, model = decide(case.situation), case.model()
    assert model.new_head() == (None if decision.cut is None else model.vector(decision.cut)), seed
    return decision


def digest(decisions: Iterable[Decision]) -> str:
    """Of the decisions' JSON, as it is stored."""
    total = hashlib.sha256()
    for decision in decisions:
        total.update(json.dumps(decision.as_json()).encode())
    return total.hexdigest()[:16]
