"""Random streams for property tests: histories of scalings, consistent cuts of them, and situations to decide in."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from offloader.retention.cuts import FUTURE, Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription
from offloader.retention.entries import TIME_UNKNOWN
from offloader.retention.lineage import END, Consumed, LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import RetentionSet
from tests.retention.lineages import KeyedSegment, ScalableLineage

#: Offsets and sealed sizes go up to here; all amounts are then of the size of the limits that are drawn.
SIZE_MAX = 12


@st.composite
def lineages(draw: st.DrawFn, scalings_max: int = 4) -> ScalableLineage:
    """One to three segments, then splits, merges and both at once, of neighbours and of segments apart."""
    first = [(number / 4, (number + 1) / 4) for number in range(4)]
    joined = draw(st.sampled_from([(4,), (2, 2), (1, 3), (1, 1, 2)]))
    ranges, at = [], 0
    for width in joined:
        ranges.append((first[at][0], first[at + width - 1][1]))
        at += width
    ids = [SegmentId(number, 0) for number in range(len(ranges))]
    stream = ScalableLineage.build(dict(zip(ids, ranges, strict=True)), [ids])
    for _ in range(draw(st.integers(0, scalings_max))):
        chosen = draw(st.sets(st.sampled_from(stream.active), min_size=1, max_size=3))
        sealed = {one.segment: draw(st.integers(0, SIZE_MAX)) for one in sorted(chosen, key=lambda one: one.segment)}
        stream = stream.scaled(sealed, [keys for run in runs(chosen) for keys in draw(parts(*run))])
    return stream


def runs(chosen: set[KeyedSegment]) -> list[tuple[float, float]]:
    """The key ranges of neighbours together."""
    found: list[tuple[float, float]] = []
    for one in sorted(chosen, key=lambda one: one.key_from):
        if found and found[-1][1] == one.key_from:
            found[-1] = (found[-1][0], one.key_to)
        else:
            found.append((one.key_from, one.key_to))
    return found


@st.composite
def parts(draw: st.DrawFn, low: float, high: float) -> list[tuple[float, float]]:
    """One to three ranges instead of one."""
    inner = draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=2, unique=True))
    return list(pairwise([low, *sorted(low + (high - low) * part for part in inner), high]))


@st.composite
def read(draw: st.DrawFn, stream: ScalableLineage) -> Consumed:
    """What somebody can have read: of a segment something only if all that it took over from was read to the end."""
    found: dict[SegmentId, Any] = {}
    for one in stream.keyed:
        if all(found.get(before) is END for before in one.predecessors):
            size = SIZE_MAX if one.sealed_bytes is None else one.sealed_bytes
            if one.ended_epoch is not None and draw(st.integers(0, 2)):
                found[one.segment] = END
            elif offset := draw(st.integers(0, size)):
                found[one.segment] = offset
    return found


@st.composite
def cuts(draw: st.DrawFn, stream: ScalableLineage) -> StreamCut:
    """A valid cut, at times with more future segments than it needs, as reader groups publish them."""
    consumed = draw(read(stream))
    cut = stream.cut_of(consumed)
    for one in stream.segments:
        if one.segment not in cut.offsets and draw(st.integers(0, 3)) == 0:
            longer = StreamCut({**cut.offsets, one.segment: FUTURE})
            if stream.consumed(longer) == consumed and not stream.problem(longer):
                cut = longer
    return cut


@st.composite
def tails(draw: st.DrawFn, stream: ScalableLineage, count_max: int = 7) -> list[StreamCut]:
    """Cuts at a growing tail: each at or after the one before it."""
    found: list[StreamCut] = []
    for one in draw(st.lists(cuts(stream), max_size=count_max)):
        found.append(stream.join([found[-1], one]) if found else one)
    return found


@st.composite
def limits(draw: st.DrawFn, unit: Unit) -> Limits:
    low = draw(st.integers(0, 30))
    return Limits(unit, low, draw(st.none() | st.integers(low, 60)))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    kind = draw(st.sampled_from(PolicyKind))
    is_queue, is_keep = kind is PolicyKind.CONSUMPTION, kind is PolicyKind.KEEP
    first = {PolicyKind.SIZE: Unit.SIZE, PolicyKind.TIME: Unit.TIME}.get(kind) or draw(st.sampled_from(Unit))
    own = draw(limits(first))
    second = draw(limits(next(unit for unit in Unit if unit is not first))) if draw(st.booleans()) else None
    if is_keep and own.max is None and (second is None or second.max is None):
        own = Limits(first, own.min, own.min + draw(st.integers(1, 30)))
    x = draw(st.none() | st.just(10))
    y = draw(st.none() | st.just(20)) if x and not is_keep else None
    has_limits = not (is_queue and draw(st.booleans()))
    return Policy(
        kind=kind,
        limits=own if has_limits else None,
        second=second if has_limits else None,
        subscriber_timeout_ms=x,
        fallback_after_ms=y,
        fallback=draw(limits(draw(st.sampled_from(Unit)))) if is_queue and y else None,
        protect_unpublished=draw(st.booleans()),
    )


@st.composite
def boundaries(draw: st.DrawFn, stream: ScalableLineage) -> tuple[Record, ...]:
    """Ends of segments, with publish times that may repeat, lie in the future, or be unknown from some on."""
    ends = draw(tails(stream, 5))
    times = sorted(draw(st.lists(st.integers(0, 90) | st.just(TIME_UNKNOWN), min_size=len(ends), max_size=len(ends))))
    return tuple(Record(time, cut) for time, cut in zip(times, ends, strict=True))


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    stream = draw(lineages())
    recorded = draw(tails(stream))
    times = sorted(draw(st.sets(st.integers(0, 60), min_size=len(recorded), max_size=len(recorded))))
    at = [stream.bytes_till(cut) for cut in recorded]
    records = tuple(Record(*one) for one in zip(times, recorded, at, strict=True))
    now_ms = draw(st.integers(times[-1] if times else 0, 80))
    # Heads lie anywhere, also aside of the records: manual truncations do that
    head = draw(st.just(stream.first_cut) | cuts(stream))
    if bool(recorded) and draw(st.booleans()):
        head = stream.meet([head, recorded[-1]])
    subscriptions = [
        Subscription(
            name=f"s{number}",
            cut=draw(st.none() | cuts(stream)),
            start=draw(st.none() | cuts(stream)),
            is_active=draw(st.booleans()),
            active_ms=draw(st.integers(0, now_ms)),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    return Situation(
        policy=draw(policies()),
        lineage=stream,
        measure=LineageMeasure(stream),
        records=RetentionSet(records),
        head=head,
        now_ms=now_ms,
        created_ms=draw(st.none() | st.integers(0, now_ms)),
        head_time_ms=draw(st.none() | st.integers(0, now_ms)),
        subscriptions=tuple(subscriptions),
        tail=stream.join([recorded[-1], draw(cuts(stream))]) if bool(recorded) and draw(st.booleans()) else None,
        offloaded=draw(st.none() | cuts(stream)),
        boundaries=draw(st.just(()) | boundaries(stream)),
    )
