"""Situations of topics with one or two partitions, written in few words: offsets are bytes, ``(10, 5)`` is a cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offloader.retention.cuts import Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription
from offloader.retention.lineage import LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import RetentionSet
from tests.retention.lineages import ScalableLineage

Offsets = tuple[int, ...]


def at(offsets: Offsets | None) -> StreamCut | None:
    return None if offsets is None else StreamCut({SegmentId(n, 0): offset for n, offset in enumerate(offsets)})


def by_size(low: int, high: int | None = None, **more: Any) -> Policy:
    return Policy(kind=PolicyKind.SIZE, limits=Limits(Unit.SIZE, low, high), **more)


def by_time(low: int, high: int | None = None, **more: Any) -> Policy:
    return Policy(kind=PolicyKind.TIME, limits=Limits(Unit.TIME, low, high), **more)


def keep(
    age: int | None = None, size: int | None = None, *, age_least: int = 0, size_least: int = 0, **more: Any
) -> Policy:
    """``keep = age``, ``keep_size = size``, and what is kept at least of each."""
    own = [Limits(Unit.TIME, age_least, age), Limits(Unit.SIZE, size_least, size)]
    first, *rest = [each for each in own if each.min or each.max]
    return Policy(kind=PolicyKind.KEEP, limits=first, second=rest[0] if rest else None, **more)


def ends(given: Mapping[int, Offsets]) -> tuple[Record, ...]:
    """Segment boundaries: newest publish time before each -> cut."""
    return tuple(Record(time, found) for time, cut in given.items() if (found := at(cut)))


def queue(**more: Any) -> Policy:
    return Policy(kind=PolicyKind.CONSUMPTION, **more)


def who(name: str, cut: Offsets | None = None, start: Offsets | None = None, **more: Any) -> Subscription:
    return Subscription(name=name, cut=at(cut), start=at(start), **more)


def stream(
    policy: Policy,
    records: Mapping[int, Offsets],
    *subscriptions: Subscription,
    now_ms: int = 100,
    head: Offsets | None = None,
    offloaded: Offsets | None = None,
    tail: Offsets | None = None,
    **more: Any,
) -> Situation:
    """``records``: time -> cut. The head is the beginning, and there are as many partitions as it or a record names."""
    partitions = len(head or next(iter(records.values()), (0,)))
    lineage = ScalableLineage.of_partitions(range(partitions))
    recorded = [Record(time, found, sum(cut)) for time, cut in records.items() if (found := at(cut))]
    return Situation(
        policy=policy,
        lineage=lineage,
        measure=more.pop("measure", LineageMeasure(lineage)),
        records=RetentionSet(tuple(recorded)),
        head=at(head) or StreamCut(),
        now_ms=now_ms,
        subscriptions=subscriptions,
        offloaded=at(offloaded),
        tail=at(tail),
        **more,
    )
