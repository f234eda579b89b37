"""Streaming queries over scalable topics: the range segments that the next batch may read.

**The problem.** The entries of a key are in a segment, then in the children of that segment. The rows of one batch have
no order. So the order of keys over batches is kept if a segment is read only in batches after the last batch of its
parents.

**Rules.** A segment of the recorded layout is *read* by an offset, and *admitted* to the next batch:

* R1: an active segment isn't read. Neither is a sealed one while its end isn't recorded.
* R2: a sealed segment is read if the store has its entries up to the recorded end, and the offset is at the last one.
* R3: a recorded end with entry -1 is before all entries. The segment is read if the offset is at the last entry in the
  store, or the store has none.
* R4: entries that retention deleted don't keep a segment from being read. Whether their loss ends the query was
  decided before.
* R5: a segment whose stream was deleted is read if the offset is at its recorded end.
* A1: a segment is admitted if all its parents are admitted and read.
* A2: a segment that the offset names was admitted before, and remains so.

The offset is the end of the previous batch, not of the next one. There is no other state: a restarted query decides the
same from its checkpoint and the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from formats.entries import Position
from formats.topic_layout import RangeSegment, TopicLayout
from offloader.errors import InvalidCallError
from offloader.manifest.state import ManifestState
from offloader.manifest.topic_layouts import in_order
from offloader.read.ranges import whole_range


def admitted(
    layout: TopicLayout,
    views: Mapping[str, ManifestState],
    reached: Mapping[str, Position | None],
    known: Collection[str] = (),
) -> list[str]:
    """The streams of the admitted segments, parents first; also of segments that the store doesn't have.

    Args:
        views: stream -> manifest, of the segments in the store.
        reached: stream -> the last position that was read or skipped; absent or ``None``: none.
        known: the streams that the query's offset names.
    """
    found: list[str] = []
    complete: set[int] = set()
    for row in (row for group in in_order(layout) for row in group):
        if row.stream in known or complete.issuperset(row.parents):
            found.append(row.stream)
            if is_read(row, views.get(row.stream), reached.get(row.stream)):
                complete.add(row.id)
    return found


def is_read(row: RangeSegment, state: ManifestState | None, reached: Position | None) -> bool:
    """Whether nothing of a segment is unread at the position ``reached`` (R1 to R5).

    Args:
        state: the manifest of its stream; ``None``: the store doesn't have it.
    """
    if row.end is None:
        return False
    is_empty = row.end.entry_id < 0
    if state is None:
        return is_empty or is_at_end(row, reached)
    committed, unread = state.committed_end(), whole_range(state)
    has_all = is_empty or (committed is not None and committed >= row.end)
    return has_all and (unread is None or (reached is not None and reached >= unread[1]))


def is_at_end(row: RangeSegment, reached: Position | None) -> bool:
    """Whether a position is at the recorded end of a segment, which has entries."""
    return reached is not None and row.end is not None and row.end.entry_id >= 0 and reached >= row.end


def require_recorded(layout: TopicLayout, streams: Iterable[str]) -> None:
    """Raises ``InvalidCallError`` for a stream of a query's offset that isn't a segment of the topic."""
    if unknown := sorted(set(streams) - {row.stream for row in layout.segments}):
        raise InvalidCallError(
            f"the query's checkpoint names {unknown[0]}, but the recorded layout of {layout.topic} has no such segment",
            hint="use the checkpoint directory that belongs to this query; if an older copy of the store was restored,"
            " start the query with a new checkpoint directory",
        )
