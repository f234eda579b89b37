"""Order of deletion in a scalable topic: all of a segment before anything of the segments that continue it. Pure.

**The problem.** A reader reads a segment after the ends of its parents, because the entries of a key are in a parent,
then in a child. Deleting a child's entries first would leave older entries of the same keys without the newer ones. So
the start positions of a topic's segments must be one consistent cut of its lineage (``offloader.retention.lineage``).

**Cuts as positions.** Here a cut has a position in each segment of which something is before it, also in segments that
are before it wholly. Then the meet and the join of cuts are those of partitions, segment by segment, sizes are sums
over segments, and a document written before a split is valid after it: it has nothing of the children.

**Invariant.** A cut is in order if it has a position in a segment only if each parent is at its end. Meet and join of
cuts in order are in order. So a decision is in order if everything it is made from is: ``lowered`` lowers each
recorded cut, boundary, subscriber's cut and the committed end to the latest cut in order at or before it. Lowering
keeps more data, never less. Start positions count as read in every cut. If they aren't in order themselves (an
operator truncated segments separately), they aren't moved back, and nothing more of a child goes before its parents
have reached their ends.

**Ends.** Whether a position is a segment's end:

| recorded end | the segment is at its end |
| --- | --- |
| none: it is active, or the broker wasn't asked yet | never |
| an entry, and the committed end is there | after the newest entry: what follows are gaps |
| an entry, otherwise | after that entry; never while the store has no stream of it |
| ``-1:-1``: nothing more comes | after all of its entries, with none under way; also if the store has nothing of it |

A segment whose stream was deleted from the store while its recorded end is an entry holds its descendants back. The
store can't tell this from entries that aren't offloaded yet. Readers leave these descendants out too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from formats.entries import Position
from formats.topic_layout import RangeSegment
from offloader.manifest.topic_layouts import NOTHING_MORE, in_order
from offloader.retention.cuts import Offset, SegmentId, StreamCut, partition_segment
from offloader.retention.entries import PartitionEntries
from offloader.retention.scope import Scope

#: Beyond each position: of a segment whose end isn't known.
_NEVER = Position(2**63 - 1, 2**63 - 1)


class Succession:
    """Order of the segments of a scope; every cut of another scope is in order.

    Args:
        partitions: the entries of its segments, loaded after its layout.
    """

    def __init__(self, scope: Scope, partitions: Mapping[int, PartitionEntries]) -> None:
        self._scope, self._partitions = scope, partitions

    @cached_property
    def _rows(self) -> list[tuple[RangeSegment, SegmentId, Position | None]]:
        """The segments, parents first, each with the first position at its end; ``None``: it is there in any cut."""
        layout = self._scope.layout
        rows = () if layout is None else (row for group in in_order(layout) for row in group)
        return [(row, partition_segment(row.id), self._end_of(row)) for row in rows]

    def _end_of(self, row: RangeSegment) -> Position | None:
        if row.end is None:
            return _NEVER
        if row.id not in self._partitions:
            return None if row.id in self._scope.absent else _NEVER
        entries = self._partitions[row.id]
        if row.end == NOTHING_MORE:
            return _NEVER if entries.state.assigned() else entries.tail
        committed = entries.state.prefix_end()
        return entries.tail if committed is not None and committed >= row.end else row.end.next()

    def lowered(self, cut: StreamCut) -> StreamCut:
        """The latest cut in order that isn't after ``cut`` or the start positions, whichever is later."""
        if self._scope.layout is None:
            return cut
        offsets: dict[SegmentId, Offset] = {}
        ended = set[int]()
        for row, segment, end in self._rows:
            if not ended.issuperset(row.parents):
                continue
            at = self._at(cut, segment)
            if at is not None:
                offsets[segment] = at
            if end is None or (at is not None and at >= end):
                ended.add(row.id)
        return StreamCut(offsets)

    def _at(self, cut: StreamCut, segment: SegmentId) -> Position | None:
        entries = self._partitions.get(segment.number)
        head = None if entries is None else entries.head
        offset = cut.offsets.get(segment)
        at = offset if isinstance(offset, Position) else None
        return max((each for each in (at, head) if each is not None), default=None)

    def parents_first(self, numbers: Mapping[int, Position]) -> dict[int, Position]:
        """New start positions by number, in the order in which they are set."""
        if self._scope.layout is None:
            return dict(numbers)
        return {row.id: numbers[row.id] for row, _, _ in self._rows if row.id in numbers}
