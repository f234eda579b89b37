"""Range segments of a stream, their succession, and the meaning of cuts in them. Pure.

Rules R4 to R7 of docs/explanation/retention.md.

**The graph.** A stream consists of range segments. A split, a merge or a migration seals some and creates others, their
successors. Each range segment names its predecessors. Neither epochs nor key ranges tell them: a migrated topic of
Pulsar 5 has epoch 0 everywhere, and each of its former partitions has all keys. A partitioned topic is a graph without
edges, a plain stream one range segment.

**States.** A state of reading is a set of range segments that are read to their end, and an offset in others. It is
consistent if all predecessors of each of these are in the set. Meet and join of consistent states, segment by segment,
are consistent in any graph without cycle.

**Cuts.** A cut names a state without the history: it lists range segments with offsets, or as future. Another segment
counts as read to its end if all its predecessors are, and every path from it to an active segment meets a listed one.
Without the first condition, the meet or join of two valid cuts may have no cut. Without the second, a cut that omits a
successor would count more as read than was. A cut is valid if it lists each segment whose predecessors are all read to
their end and that is not, and has offsets in no others: exactly the consistent states have valid cuts.

**Kept.** Brokers remove old range segments, and the edges to them, from a stream's description. A lineage keeps both:
a range segment whose predecessor is missing is refused, because it would look like the beginning of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce, total_ordering
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, TypeAlias

from offloader.errors import InvalidCallError
from offloader.retention.cuts import FUTURE, Offset, Order, SegmentId, StreamCut


@total_ordering
class _End:
    """Greater than each offset."""

    def __lt__(self, other: object) -> bool:
        return False

    def __repr__(self) -> str:
        return "END"


#: Offset in a range segment that is read to its end.
END = _End()
#: What lies before a cut: the offset in each range segment of which something is read, or ``END``. The offsets are of
#: one kind within a stream, which the type can't express.
Consumed: TypeAlias = Mapping[SegmentId, Any]


def _reaches(one: Consumed, other: Consumed) -> bool:
    return all(segment in one and one[segment] >= offset for segment, offset in other.items())


def _meet(one: Consumed, other: Consumed) -> Consumed:
    return {segment: min(offset, other[segment]) for segment, offset in one.items() if segment in other}


def _join(one: Consumed, other: Consumed) -> Consumed:
    return {**one, **{segment: max(offset, one.get(segment, offset)) for segment, offset in other.items()}}


class Measure(Protocol):
    """Size of a stream before a cut, since its creation. Doesn't decrease from a cut to a later one."""

    def bytes_before(self, cut: StreamCut) -> int | None:
        """Payload bytes, ``None`` if unknown."""

    def entries_before(self, cut: StreamCut) -> int | None:
        """Entries, ``None`` if unknown."""

    def bytes_after(self, cut: StreamCut) -> int | None:
        """Payload bytes from a cut to the current end; ``None``: no more is known than by ``bytes_before``."""

    def bytes_in_doubt(self, cut: StreamCut) -> int:
        """Payload bytes that may lie before a cut beyond ``bytes_before``: of pieces that it is inside of."""


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """One of a stream's range segments.

    Attributes:
        segment: its name.
        predecessors: the range segments that it follows: none of its entries is read before all of theirs.
        sealed_bytes: its size, if it was sealed and that was recorded.
    """

    segment: SegmentId
    predecessors: tuple[SegmentId, ...] = ()
    sealed_bytes: int | None = None


@dataclass(frozen=True)
class Lineage:
    """All range segments of a stream, to which its cuts refer.

    Attributes:
        segments: past and present ones, in any order; afterwards each is behind its predecessors.
        is_partitioned: partitions of a topic, without predecessors. As partitions can be added, a cut may omit some,
            with nothing before it.

    Raises:
        InvalidCallError: two range segments have one name, a predecessor is missing, or some precede each other; of
            every method that takes cuts: a cut names a range segment that the stream doesn't have.
    """

    segments: tuple[StreamSegment, ...]
    is_partitioned: bool = False

    def __post_init__(self) -> None:
        before = {one.segment: one.predecessors for one in self.segments}
        if len(before) < len(self.segments):
            raise InvalidCallError("two range segments of a stream have one name")
        for segment, predecessors in before.items():
            if missing := ", ".join(str(each) for each in predecessors if each not in before):
                raise InvalidCallError(f"range segment {segment} follows {missing}, which the stream doesn't have")
        try:
            rows = {segment: row for row, segment in enumerate(TopologicalSorter(before).static_order())}
        except CycleError as error:
            cycle = " before ".join(map(str, error.args[1]))
            raise InvalidCallError(f"range segments of a stream precede each other: {cycle}") from error
        object.__setattr__(self, "segments", tuple(sorted(self.segments, key=lambda one: rows[one.segment])))

    @classmethod
    def of_partitions(cls, numbers: Collection[int]) -> Lineage:
        """A topic's partitions, ``n.0`` each: those that there are, whatever their numbers; 0 of a plain stream."""
        return cls(tuple(StreamSegment(SegmentId(number, 0)) for number in sorted(numbers)), is_partitioned=True)

    @cached_property
    def by_id(self) -> dict[SegmentId, StreamSegment]:
        return {one.segment: one for one in self.segments}

    @cached_property
    def _successors(self) -> dict[SegmentId, list[SegmentId]]:
        """Successors of each range segment that has some, oldest first."""
        found: dict[SegmentId, list[SegmentId]] = {one.segment: [] for one in self.segments}
        for one in self.segments:
            for earlier in one.predecessors:
                found[earlier].append(one.segment)
        return {segment: after for segment, after in found.items() if after}

    def unknown(self, cut: StreamCut) -> list[SegmentId]:
        """Segments in ``cut`` that the stream doesn't have."""
        return [segment for segment in cut.offsets if segment not in self.by_id]

    def _require_known(self, cut: StreamCut) -> None:
        if not self.by_id.keys() >= cut.offsets.keys():
            unknown = ", ".join(map(str, self.unknown(cut)))
            raise InvalidCallError(f"the cut {cut} lists stream segments that the stream doesn't have: {unknown}")

    def consumed(self, cut: StreamCut) -> Consumed:
        """What lies before ``cut``."""
        self._require_known(cut)
        offsets = cut.offsets
        found: dict[SegmentId, Any] = {
            segment: offset for segment, offset in offsets.items() if not isinstance(offset, int) or offset > 0
        }
        # Listed, or all that follow are.
        met = set(offsets)
        for segment, after in reversed(self._successors.items()):
            if met.issuperset(after):
                met.add(segment)
        for segment in self._successors:
            if segment in met and segment not in offsets and not self._unread(segment, found):
                found[segment] = END
        return found

    def _unread(self, segment: SegmentId, consumed: Consumed) -> list[SegmentId]:
        """Predecessors that aren't read to their end."""
        return [each for each in self.by_id[segment].predecessors if consumed.get(each) is not END]

    def cut_of(self, consumed: Consumed) -> StreamCut:
        """The shortest cut with ``consumed`` before it.

        It lists each segment not read to its end whose predecessors all are; as future, those with some that are.
        """
        offsets: dict[SegmentId, Offset] = {}
        for one in self.segments:
            offset, unread = consumed.get(one.segment, 0), self._unread(one.segment, consumed)
            if not unread:
                if offset is not END and (offset or not self.is_partitioned):
                    offsets[one.segment] = offset
            elif len(unread) < len(one.predecessors):
                offsets[one.segment] = FUTURE
        return StreamCut(offsets)

    def problem(self, cut: StreamCut) -> str:
        """Why ``cut`` is no consistent point of the stream, apart from written data's ends; empty if it is one."""
        if unknown := self.unknown(cut):
            return f"the stream has no stream segment {', '.join(map(str, unknown))}"
        future = {segment for segment, offset in cut.offsets.items() if offset == FUTURE}
        if len(future) == len(cut.offsets):
            return "it lists no stream segment with an offset"
        if self.is_partitioned:
            return f"partition {', '.join(map(str, sorted(future)))} has no offset" if future else ""
        consumed = self.consumed(cut)
        for one in self.segments:
            unread = ", ".join(map(str, self._unread(one.segment, consumed)))
            if not unread and one.segment not in cut.offsets and one.segment not in consumed:
                return f"it neither lists {one.segment} nor all that follow it"
            if unread and one.segment in cut.offsets and one.segment not in future:
                return f"it has an offset in {one.segment}, which follows {unread}, not read to its end"
        return ""

    def order(self, one: StreamCut, other: StreamCut) -> Order:
        """Order of ``one`` relative to ``other``; valid cuts of the stream, as everywhere below."""
        mine, theirs = self.consumed(one), self.consumed(other)
        if _reaches(mine, theirs):
            return Order.EQUAL_OR_AFTER
        return Order.BEFORE if _reaches(theirs, mine) else Order.OVERLAPS

    def reaches(self, one: StreamCut, other: StreamCut) -> bool:
        """Whether ``one`` is at or after ``other``."""
        return _reaches(self.consumed(one), self.consumed(other))

    def equal(self, one: StreamCut, other: StreamCut) -> bool:
        """Whether the same lies before both, even with different future segments."""
        return one == other or self.consumed(one) == self.consumed(other)

    def meet(self, cuts: Iterable[StreamCut]) -> StreamCut:
        """The latest cut that isn't after any of ``cuts``, of which there is at least one: their lower bound."""
        return self._combined(cuts, _meet)

    def join(self, cuts: Iterable[StreamCut]) -> StreamCut:
        """The earliest cut that isn't before any of ``cuts``, of which there is at least one."""
        return self._combined(cuts, _join)

    def _combined(self, cuts: Iterable[StreamCut], combine: Callable[[Consumed, Consumed], Consumed]) -> StreamCut:
        given = [(cut, self.consumed(cut)) for cut in cuts]
        result = reduce(combine, (consumed for _, consumed in given))
        for cut, consumed in given:
            if consumed == result:
                return cut
        return self.cut_of(result)

    def bytes_till(self, cut: StreamCut) -> int:
        """Bytes before ``cut``, whose offsets are bytes.

        Raises:
            InvalidCallError: offsets are positions, or the size of a segment before the cut wasn't recorded.
        """
        total = 0
        for segment, offset in self.consumed(cut).items():
            size_bytes = self.by_id[segment].sealed_bytes if offset is END else offset
            if size_bytes is None:
                raise InvalidCallError(
                    f"the size of stream segment {segment}, which lies before {cut}, wasn't recorded"
                )
            if not isinstance(size_bytes, int):
                raise InvalidCallError(
                    f"offset {offset} of stream segment {segment} is a position, not a number of bytes"
                )
            total += size_bytes
        return total


@dataclass(frozen=True, slots=True)
class LineageMeasure:
    """Measures cuts whose offsets are bytes; the number of entries is unknown."""

    lineage: Lineage

    def bytes_before(self, cut: StreamCut) -> int | None:
        with suppress(InvalidCallError):
            return self.lineage.bytes_till(cut)
        return None

    def entries_before(self, cut: StreamCut) -> int | None:  # noqa: ARG002  nothing about entries is in bytes
        return None

    def bytes_after(self, cut: StreamCut) -> int | None:  # noqa: ARG002  a lineage has no end
        return None

    def bytes_in_doubt(self, cut: StreamCut) -> int:  # noqa: ARG002  its offsets are bytes
        return 0
