"""Bringing back what was retired and isn't purged yet.

Owns what comes back with it: the head, and the marks of ledgers. Must never bring a segment back that stays unreadable:
the next round would only retire it again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from formats.entries import Position
from formats.manifest import Edit, Restore, Truncate, UndoRetire
from offloader.cleanup.plan import plan_cleanup, retired_groups
from offloader.errors import InvalidCall, StoreUnavailable
from offloader.manifest.apply import apply_edits
from offloader.manifest.log import ManifestLog
from offloader.manifest.records import kept_records
from offloader.manifest.segment_record import SegmentRecord
from offloader.manifest.state import ManifestState, follows
from offloader.store.base import ObjectStore

__all__ = ["Undone", "undo_retirements"]

_AGAIN = "`offloader cleanup plan` shows what is retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What came back, or would.

    Attributes:
        segments: in the stream's order.
        head_before, head: where the stream began and begins.
        ledgers: that aren't gone after all.
        record_id: the record that says so; ``None``: a dry run.
    """

    stream: str
    segments: Sequence[SegmentRecord]
    head_before: Position | None
    head: Position | None
    ledgers: tuple[int, ...]
    record_id: int | None = None


def undo_retirements(
    log: ManifestLog, *, segments: Collection[UUID] = (), head: Position | None = None, dry_run: bool = False
) -> Undone:
    """Brings retired segments back, and with them the head to where it was before them.

    Args:
        segments: only these; default: all that are retired.
        head: where the stream begins then; default: where it began before the earliest of them was cut off, as far as
            records are kept, else at that segment.

    Raises:
        NotFound: no such stream.
        InvalidCall: nothing is retired, or one of ``segments`` isn't: it may be purged already.
        EditRefused: they can't come back without a hole, or somebody purged them meanwhile; nothing was changed.
        OutcomeUnknown, StoreUnavailable: they may be back, and that isn't sure to stay so: call it again.
    """
    state = log.load()
    groups = [
        (group.record_id, [s for s in group.segments if not segments or s.uuid in segments])
        for group in retired_groups(state)
    ]
    chosen = sorted((each for _, found in groups for each in found), key=lambda each: each.begin)
    missing = set(segments) - {each.uuid for each in chosen}
    if missing or not chosen:
        raise InvalidCall(
            f"stream {state.stream}: {'segment ' + str(min(missing)) if missing else 'nothing'} is retired"
            + (": not any more, or never" if missing else ", so nothing can come back"),
            hint=_AGAIN,
        )
    wanted = head or _head_before(log.store, state, chosen)
    ledgers = tuple(sorted(_ledgers(state, chosen, wanted)))
    edits: list[Edit] = [UndoRetire(tuple(s.uuid for s in found), number) for number, found in groups if found]
    edits.append(Restore(wanted, ledgers))
    after = apply_edits(state, edits, record_id=state.record_id + 1)
    _require_readable(after, chosen)
    undone = Undone(
        stream=state.stream, segments=chosen, head_before=state.head, head=wanted or state.head, ledgers=ledgers
    )
    if dry_run:
        return undone
    record_id = log.amend(edits).record_id
    # Only now it may be said: if that record is lost from here on, nobody deletes on the word of what is left.
    after = log.name_newest()
    if any((found := after.segments.get(each.uuid)) is None or found.retire_record is not None for each in chosen):
        raise StoreUnavailable(f"stream {state.stream}: others retired these segments again meanwhile", hint=_AGAIN)
    return replace(undone, record_id=record_id)


def _head_before(store: ObjectStore, state: ManifestState, chosen: Sequence[SegmentRecord]) -> Position | None:
    """Where the stream begins when all that is chosen, and follows each other up to the head, is back."""
    head = state.head
    if head is None:
        return None
    closed, wanted = state.closed_ledgers, {each.uuid for each in chosen}
    ranges = [(gap.first, gap.last, False) for gap in state.gaps]
    before = Position(head.ledger_id, head.entry_id - 1)
    live = {each.uuid for each in state.offloaded(None, before)}
    ranges += [
        (each.begin, each.end, each.uuid in wanted)
        for each in state.segments.in_order(None, before)
        if each.end is not None and (each.uuid in wanted or each.uuid in live)
    ]
    found: tuple[Position, Position] | None = None
    reached = head
    for begin, end, is_chosen in sorted(ranges, reverse=True):
        if begin >= head:
            continue
        if not (begin < reached <= end or follows(end, reached, closed)):
            break
        reached = begin
        if is_chosen:
            found = begin, end
    if found is None:
        return None
    return _cut_off_at(store, state, *found)


def _cut_off_at(store: ObjectStore, state: ManifestState, begin: Position, end: Position) -> Position:
    """Within the earliest segment: where the stream began before its head passed that segment."""
    for record in kept_records(store, state, newest_first=True):
        for edit in reversed(record.edits):
            if isinstance(edit, Truncate) and edit.head <= end:
                return max(begin, edit.head)
    return begin


def _ledgers(state: ManifestState, chosen: Sequence[SegmentRecord], head: Position | None) -> set[int]:
    """Ledgers that are marked as gone and come back whole, from the new head on."""
    spans = {span.ledger_id for each in chosen if each.summary is not None for span in each.summary.ledgers}
    known = state.closed_ledgers
    deleted = state.deleted_ledgers
    if head is not None and state.head is not None:
        first, last = head.ledger_id, state.head.ledger_id
        spans |= {ledger_id for ledger_id in deleted if first <= ledger_id <= last}
        spans = {ledger_id for ledger_id in spans if ledger_id >= first}
    return {ledger_id for ledger_id in spans if ledger_id in deleted and ledger_id in known}


def _require_readable(after: ManifestState, chosen: Sequence[SegmentRecord]) -> None:
    """Whatever the next round would retire again isn't brought back."""
    back = {each.uuid for each in chosen}
    again = (
        segment
        for doomed in plan_cleanup(after, {}, now_ms=0, grace_ms=0).doomed
        for segment in doomed.segments
        if segment.uuid in back
    )
    found = next(again, None)
    if found is not None:
        raise InvalidCall(
            f"stream {after.stream}: segment {found.uuid} at {found.begin}..{found.end} can't come back: not "
            f"everything between it and the head {after.head} is there any more",
            hint=f"name segments that can (--segment); {_AGAIN}",
        )
