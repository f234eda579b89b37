"""How far a streaming query has read each stream: offsets, their JSON, and what was deleted before it was read; pure.

Owns the shape in which offsets lie in a query's checkpoint. Must never do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.manifest.state import ManifestState

__all__ = ["StreamOffset", "before", "begin_of_batch", "decode_offsets", "encode_offsets", "first_unread", "is_lost"]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far one stream was read.

    Attributes:
        incarnation: the stream's; another one means that it was deleted and made again.
        manifest: the manifest record that showed these entries; for people.
        position: the last position that was read or passed over; ``None``: nothing yet, everything is wanted.
        since: the position after which the query began. Spark asks anew for the beginning when a query ends before
            its first batch was committed, and for ``latest`` the answer has moved on by then; a batch's end says it.
    """

    incarnation: UUID
    manifest: int
    position: Position | None
    since: Position | None


def encode_offsets(offsets: Mapping[str, StreamOffset]) -> dict[str, dict[str, object]]:
    """As JSON values, sorted by stream: Spark compares the text."""
    return {name: _encoded(offsets[name]) for name in sorted(offsets)}


def _encoded(offset: StreamOffset) -> dict[str, object]:
    values: dict[str, object] = {"incarnation": str(offset.incarnation), "manifest": offset.manifest}
    if offset.position is not None:
        values["position"] = str(offset.position)
    if offset.since is not None:
        values["since"] = str(offset.since)
    return values


def decode_offsets(values: Mapping[str, Any]) -> dict[str, StreamOffset]:
    """What ``encode_offsets`` made, back from the checkpoint.

    Raises:
        InvalidCall: it isn't that.
    """
    return {name: _decoded(name, given) for name, given in values.items()}


def _decoded(name: str, given: Any) -> StreamOffset:
    try:
        unknown = set(given) - {"incarnation", "manifest", "position", "since"}
        if unknown:
            raise ValueError(f"unknown {', '.join(sorted(unknown))}")
        positions = [Position.parse(given[key]) if key in given else None for key in ("position", "since")]
        return StreamOffset(UUID(given["incarnation"]), int(given["manifest"]), *positions)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise InvalidCall(
            f"the query's checkpoint holds no offset of this source for stream {name}: {given!r} ({cause})",
            hint="use the checkpoint directory that belongs to this query",
        ) from cause


def before(position: Position) -> Position:
    """What was read when ``position`` is next; its entry id is -1 at the beginning of a ledger."""
    return Position(position.ledger_id, position.entry_id - 1)


def first_unread(position: Position) -> Position:
    """The lowest position after ``position``."""
    return Position(position.ledger_id, position.entry_id + 1)


def begin_of_batch(start: StreamOffset | None, end: StreamOffset) -> Position | None:
    """After which position the batch from ``start`` to ``end`` begins; ``None``: at the stream's beginning.

    Before anything was read ``start`` may be a new answer to where to begin; ``end`` tells the one it was made for.
    """
    if start is None or start.incarnation != end.incarnation or start.position == start.since:
        return end.since
    return start.position


def is_lost(state: ManifestState, position: Position) -> bool:
    """Whether entries right after ``position`` were deleted: the stream begins later than there.

    A head that moved exactly to what comes next, over recorded gaps or into the next ledger, loses nothing.
    """
    committed, head = state.committed_end(), state.head
    if committed is None or position >= committed or head is None or head <= first_unread(position):
        return False
    first = state.first_position()
    if first is None or first > committed:
        return True
    reached = position
    for gap in state.gaps:
        if gap.last > reached and (gap.first <= first_unread(reached) or state.follows(reached, gap.first)):
            reached = gap.last
    return first > first_unread(reached) and not state.follows(reached, first)
