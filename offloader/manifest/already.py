"""Whether a view says already what a record would say; pure.

Owns that comparison. A writer whose record's number was deleted meanwhile can't tell from the number whether its
record was folded before that or never was: it looks. Must never be used to skip a commit whose number is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from formats.manifest import (
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    Hold,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Pause,
    Purged,
    Record,
    Release,
    Replace,
    ReserveLedgers,
    Restore,
    Resume,
    Retire,
    Rewrite,
    SetAside,
    SetMethod,
    StreamDeleted,
    Truncate,
    UndoRetire,
)
from offloader.manifest.segment_record import SegmentStatus
from offloader.manifest.state import ManifestState

__all__ = ["say_already", "says_already"]


def says_already(state: ManifestState, record: Record) -> bool:
    """Whether everything that ``record`` says is so in ``state``, and by this very writer's epoch."""
    if record.incarnation != state.incarnation or record.epoch != state.epoch or record.record_id > state.record_id:
        return False
    return all(_SAYS[type(edit)](state, edit, record) for edit in record.edits)


def say_already(state: ManifestState, edits: Sequence[Edit]) -> bool:
    """Whether all that an owner wants to commit is so in ``state``, which has its epoch.

    Only a segment of its own proves that: uuids are used once. What others may say too, they may have said.
    """
    if not any(isinstance(edit, Assign | Offloaded | Failed) for edit in edits):
        return False
    writer = Record(state.record_id, state.incarnation, state.epoch, state.owner, 0, (), state.totals())
    return all(_SAYS[type(edit)](state, edit, writer) for edit in edits)


def _is_retired(state: ManifestState, edit: Retire, record: Record) -> bool:
    found = [state.segments.get(uuid) for uuid in edit.uuids]
    return all(each is not None and each.retire_record == record.record_id for each in found)


def _is_back(state: ManifestState, edit: UndoRetire, _: Record) -> bool:
    found = [state.segments.get(uuid) for uuid in edit.uuids]
    return all(each is not None and each.status is SegmentStatus.OFFLOADED for each in found)


def _is_offloaded(state: ManifestState, edit: Offloaded, _: Record) -> bool:
    found = state.segments.get(edit.uuid)
    return found is not None and found.summary == edit.summary


def _is_assigned(state: ManifestState, edit: Assign, _: Record) -> bool:
    found = state.segments.get(edit.uuid)
    return found is not None and found.begin == edit.begin


def _has_failed(state: ManifestState, edit: Failed, _: Record) -> bool:
    return edit.uuid not in state.segments and all(each.uuid != edit.uuid for each in state.rewrites)


def _have_replaced(state: ManifestState, edit: Replace, _: Record) -> bool:
    found = [(state.segments.get(each.uuid), each.summary) for each in edit.by]
    return all(record is not None and record.summary == summary for record, summary in found)


def _is_restored(state: ManifestState, edit: Restore, _: Record) -> bool:
    begins = edit.head is None or state.head is None or state.head <= edit.head
    return begins and not state.deleted_ledgers & set(edit.ledger_ids)


def _are_gone(state: ManifestState, edit: Release | Purged, _: Record) -> bool:
    replaced = {each.uuid for each in state.replaced}
    return not any(uuid in state.segments or uuid in replaced for uuid in edit.uuids)


_SAYS: Mapping[type[Edit], Callable[[ManifestState, Any, Record], bool]] = {
    OpenEpoch: lambda state, edit, record: state.epoch == edit.epoch and state.owner.nonce == record.writer.nonce,
    ReserveLedgers: lambda state, edit, _: state.source is not None and state.source.reserved >= edit.reserved,
    LedgerClosed: lambda state, edit, _: state.closed_ledgers.get(edit.ledger_id) == edit.last_entry_id,
    Assign: _is_assigned,
    Offloaded: _is_offloaded,
    Failed: _has_failed,
    Gap: lambda state, edit, _: edit in state.gaps,
    Adopt: lambda state, edit, _: edit.uuid in state.segments,
    Release: _are_gone,
    Truncate: lambda state, edit, _: state.head is not None and state.head >= edit.head,
    LedgersDeleted: lambda state, edit, _: state.deleted_ledgers >= set(edit.ledger_ids),
    HotReleased: lambda state, edit, _: state.hot_released_ledgers >= set(edit.ledger_ids),
    SetAside: lambda state, edit, _: state.aside_ledgers >= set(edit.ledger_ids),
    Retire: _is_retired,
    Purged: _are_gone,
    UndoRetire: _is_back,
    Rewrite: lambda state, edit, _: any(each.uuid == edit.uuid for each in state.rewrites),
    Replace: _have_replaced,
    Restore: _is_restored,
    SetMethod: lambda state, edit, _: state.method == edit.method,
    Pause: lambda state, _edit, _: state.paused,
    Resume: lambda state, _edit, _: not state.paused,
    Hold: lambda state, edit, _: state.held == edit.on,
    StreamDeleted: lambda state, _edit, _: state.stream_deleted,
}
