"""When a truncation or the deletion of ledgers may be taken back, and what that changes; pure.

Owns the proof that everything from the new head on is held. Must never bring a position back that nothing holds.
"""

from __future__ import annotations

from formats.checkpoint_ledgers import DELETED, LAST_UNKNOWN
from formats.entries import Position
from formats.manifest import Restore
from offloader.manifest.draft import Draft
from offloader.manifest.ledger_table import follows
from offloader.manifest.segment_record import SegmentStatus

__all__ = ["restore_range"]


def restore_range(draft: Draft, edit: Restore) -> None:
    """Moves the head back, and takes marks off ledgers.

    Raises:
        EditRefused: the head would move on, or something between would be held by no offloaded segment and no gap.
    """
    head: Position | None = draft.now("head")
    for ledger_id in edit.ledger_ids:
        fact = draft.fact(ledger_id)
        draft.facts[ledger_id] = fact._replace(flags=fact.flags & ~DELETED)
    if edit.head is not None:
        if head is None or edit.head > head:
            raise draft.refused(edit, f"{edit.head} isn't before the head {head or '(none)'}")
        _require_chain(draft, edit, edit.head, head)
        draft.changes["head"] = edit.head
    for ledger_id in edit.ledger_ids:
        last = draft.fact(ledger_id).last_entry_id
        if last == LAST_UNKNOWN:
            raise draft.refused(edit, f"ledger {ledger_id} isn't known to be closed")
        missing = draft.first_not_held(ledger_id, last)
        if missing is not None:
            raise draft.refused(edit, f"entry {missing} isn't in any offloaded segment")


def _require_chain(draft: Draft, edit: Restore, first: Position, head: Position) -> None:
    """Ranges that follow each other hold everything from ``first`` to the head."""
    if first == head:
        return
    closed = draft.ledgers().closed
    before = Position(head.ledger_id, head.entry_id - 1)
    ranges = [(gap.first, gap.last) for gap in draft.now("gaps")]
    for segment in draft.segments.table().in_order(first, before):
        if segment.status is not SegmentStatus.OFFLOADED or segment.end is None:
            raise draft.refused(edit, f"segment {segment.uuid} at {segment.begin} is {segment.status.value}")
        spans = () if segment.summary is None else segment.summary.ledgers
        if spans and all(draft.fact(span.ledger_id).flags & DELETED for span in spans):
            # A truncation that came in between: with the marks cleanup would retire it again, behind the head.
            raise draft.refused(edit, f"ledger {spans[0].ledger_id} is still marked as gone from the stream")
        ranges.append((segment.begin, segment.end))
    reached: Position | None = None
    for begin, end in sorted(ranges):
        if end < first or begin > before:
            continue
        if begin > first if reached is None else not follows(reached, begin, closed):
            break
        reached = end
    if reached is None or not (reached >= before or follows(reached, head, closed)):
        raise draft.refused(edit, f"nothing holds what comes after {reached or first}: the head stays at {head}")
