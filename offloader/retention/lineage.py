"""Segments of a stream, their succession, and the meaning of cuts in them. Pure.

Rules R4 to R7 of docs/explanation/retention.md. An unlisted segment counts as read to its end only if all segments it
succeeds are. Without that condition, the meet or join of two valid cuts may have no cut (rule R6).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Protocol

from offloader.errors import InvalidCallError
from offloader.retention.cuts import (
    FUTURE,
    Consumed,
    Cut,
    Offset,
    Order,
    SegmentId,
    covers,
    join,
    meet,
    order,
)


class Measure(Protocol):
    """Size of a stream before a cut, since its creation. Doesn't decrease from a cut to a later one."""

    def bytes_before(self, cut: Cut) -> int | None:
        """Payload bytes, ``None`` if unknown."""

    def entries_before(self, cut: Cut) -> int | None:
        """Entries, ``None`` if unknown."""

    def bytes_after(self, cut: Cut) -> int | None:
        """Payload bytes from a cut to the current end; ``None``: no more is known than by ``bytes_before``."""

    def bytes_in_doubt(self, cut: Cut) -> int:
        """Payload bytes that may lie before a cut beyond ``bytes_before``: of pieces that it is inside of."""


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """One of a stream's parallel parts.

    Attributes:
        segment: its name, with the epoch that created it.
        key_from: its first key, in [0, 1).
        key_to: the first key after it.
        ended_epoch: the first epoch without it, ``None``: active.
        sealed_bytes: its size, if it ended and that was recorded.
    """

    segment: SegmentId
    key_from: float
    key_to: float
    ended_epoch: int | None = None
    sealed_bytes: int | None = None

    def overlaps(self, other: StreamSegment) -> bool:
        """Whether the key ranges overlap."""
        return self.key_from < other.key_to and other.key_from < self.key_to


@dataclass(frozen=True)
class Lineage:
    """All segments of a stream, to which its cuts refer.

    Attributes:
        segments: all stream segments, past and present, oldest first.
        is_partitioned: partitions of a topic: the segments are a single epoch. As partitions can be added, a cut may
            omit some, with nothing before it.

    Raises:
        InvalidCallError: (of every method that takes cuts) a cut names a segment that the stream doesn't have.
    """

    segments: tuple[StreamSegment, ...]
    is_partitioned: bool = False

    @classmethod
    def of_partitions(cls, numbers: Collection[int]) -> Lineage:
        """A topic's partitions, ``n.0`` each: those that there are, whatever their numbers; 0 of a plain stream."""
        count = len(numbers)
        return cls(
            tuple(
                StreamSegment(SegmentId(number, 0), row / count, (row + 1) / count)
                for row, number in enumerate(sorted(numbers))
            ),
            is_partitioned=True,
        )

    @cached_property
    def by_id(self) -> dict[SegmentId, StreamSegment]:
        return {segment.segment: segment for segment in self.segments}

    @cached_property
    def predecessors(self) -> dict[SegmentId, tuple[SegmentId, ...]]:
        """Predecessors of each segment: those that ended when it was created and share keys."""
        ended: dict[int, list[StreamSegment]] = {}
        for segment in self.segments:
            if segment.ended_epoch is not None:
                ended.setdefault(segment.ended_epoch, []).append(segment)
        return {
            s.segment: tuple(p.segment for p in ended.get(s.segment.epoch, ()) if p.overlaps(s)) for s in self.segments
        }

    @cached_property
    def _ended(self) -> list[tuple[StreamSegment, tuple[SegmentId, ...], dict[SegmentId, tuple[float, float]]]]:
        """Ended segments, oldest first, with their predecessors, and the key ranges of their successors."""
        return [
            (
                one,
                self.predecessors[one.segment],
                {
                    s.segment: (s.key_from, s.key_to)
                    for s in self.segments
                    if s.segment.epoch >= one.ended_epoch and s.overlaps(one)
                },
            )
            for one in self.segments
            if one.ended_epoch is not None
        ]

    @cached_property
    def active(self) -> tuple[StreamSegment, ...]:
        """Active segments, by keys."""
        return tuple(sorted((s for s in self.segments if s.ended_epoch is None), key=lambda s: s.key_from))

    def unknown(self, cut: Cut) -> list[SegmentId]:
        """Segments in ``cut`` that the stream doesn't have."""
        return [segment for segment in cut.offsets if segment not in self.by_id]

    def _require_known(self, cut: Cut) -> None:
        if not self.by_id.keys() >= cut.offsets.keys():
            unknown = ", ".join(map(str, self.unknown(cut)))
            raise InvalidCallError(f"the cut {cut} lists stream segments that the stream doesn't have: {unknown}")

    def consumed(self, cut: Cut) -> Consumed:
        """The offsets and segments before ``cut``."""
        self._require_known(cut)
        offsets = cut.offsets
        at = {s: offset for s, offset in offsets.items() if not isinstance(offset, int) or offset > 0}
        full: set[SegmentId] = set()
        for one, before, after in self._ended:
            if one.segment not in offsets and full.issuperset(before):
                taken = [keys for segment, keys in after.items() if segment in offsets]
                if taken and covers(taken, one.key_from, one.key_to):
                    full.add(one.segment)
        return Consumed(frozenset(full), at)

    def cut_of(self, consumed: Consumed) -> Cut:
        """The shortest cut with ``consumed`` before it.

        It lists each segment not read to its end whose predecessors all are; as future, those with some that are.
        """
        offsets: dict[SegmentId, Offset] = {}
        for one in self.segments:
            if one.segment in consumed.full:
                continue
            before = [segment in consumed.full for segment in self.predecessors[one.segment]]
            if all(before):
                if one.segment in consumed.at or not self.is_partitioned:
                    offsets[one.segment] = consumed.at.get(one.segment, 0)
            elif any(before):
                offsets[one.segment] = FUTURE
        return Cut(offsets)

    def problem(self, cut: Cut) -> str:
        """Why ``cut`` is no consistent point of the stream, apart from written data's ends; empty if it is one."""
        if unknown := self.unknown(cut):
            return f"the stream has no stream segment {', '.join(map(str, unknown))}"
        listed = [self.by_id[segment] for segment in cut.offsets]
        if not (present := [s for s in listed if cut.offsets[s.segment] != FUTURE]):
            return "it lists no stream segment with an offset"
        if self.is_partitioned:
            future = [str(s.segment) for s in listed if s not in present]
            return f"partition {', '.join(future)} has no offset" if future else ""
        if not covers([(s.key_from, s.key_to) for s in listed], 0.0, 1.0):
            return "it doesn't cover all keys"
        for one, other in pairwise(sorted(present, key=lambda s: s.key_from)):
            if one.overlaps(other):
                return f"the keys of {one.segment} and {other.segment} overlap"
        consumed = self.consumed(cut)
        for one in present:
            if unread := [str(p) for p in self.predecessors[one.segment] if p not in consumed.full]:
                return f"it has an offset in {one.segment}, which follows {', '.join(unread)}, not read to its end"
        return ""

    def order(self, one: Cut, other: Cut) -> Order:
        """Order of ``one`` relative to ``other``; valid cuts of the stream, as everywhere below."""
        return order(self.consumed(one), self.consumed(other))

    def reaches(self, one: Cut, other: Cut) -> bool:
        """Whether ``one`` is at or after ``other``."""
        return self.order(one, other) is Order.EQUAL_OR_AFTER

    def equal(self, one: Cut, other: Cut) -> bool:
        """Whether the same lies before both, even with different future segments."""
        return one == other or self.consumed(one) == self.consumed(other)

    def meet(self, cuts: Iterable[Cut]) -> Cut:
        """The latest cut that isn't after any of ``cuts``, of which there is at least one: their lower bound."""
        return self._combined(cuts, meet)

    def join(self, cuts: Iterable[Cut]) -> Cut:
        """The earliest cut that isn't before any of ``cuts``, of which there is at least one."""
        return self._combined(cuts, join)

    def _combined(self, cuts: Iterable[Cut], combine: Callable[[Consumed, Consumed], Consumed]) -> Cut:
        given = [(cut, self.consumed(cut)) for cut in cuts]
        result = reduce(combine, (consumed for _, consumed in given))
        for cut, consumed in given:
            if consumed == result:
                return cut
        return self.cut_of(result)

    def bytes_till(self, cut: Cut) -> int:
        """Bytes before ``cut``, whose offsets are bytes.

        Raises:
            InvalidCallError: offsets are positions, or the size of a segment before the cut wasn't recorded.
        """
        consumed = self.consumed(cut)
        total = 0
        for segment in consumed.full:
            if (sealed_bytes := self.by_id[segment].sealed_bytes) is None:
                raise InvalidCallError(
                    f"the size of stream segment {segment}, which lies before {cut}, wasn't recorded"
                )
            total += sealed_bytes
        for segment, offset in consumed.at.items():
            if not isinstance(offset, int):
                raise InvalidCallError(
                    f"offset {offset} of stream segment {segment} is a position, not a number of bytes"
                )
            total += offset
        return total


@dataclass(frozen=True, slots=True)
class LineageMeasure:
    """Measures cuts whose offsets are bytes; the number of entries is unknown."""

    lineage: Lineage

    def bytes_before(self, cut: Cut) -> int | None:
        with suppress(InvalidCallError):
            return self.lineage.bytes_till(cut)
        return None

    def entries_before(self, cut: Cut) -> int | None:  # noqa: ARG002  nothing about entries is in bytes
        return None

    def bytes_after(self, cut: Cut) -> int | None:  # noqa: ARG002  a lineage has no end
        return None

    def bytes_in_doubt(self, cut: Cut) -> int:  # noqa: ARG002  its offsets are bytes
        return 0
