"""What each edit changes, and when it is allowed; pure.

Owns the rules: ranges never overlap, a live segment follows the newest end, a segment is offloaded only while it is
assigned, only what was retired by a named record is purged. Must never do I/O or change a view that somebody holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from formats.entries import Position
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
    Resume,
    Retire,
    SetMethod,
    StreamDeleted,
    Truncate,
    UndoRetire,
)
from offloader.manifest.state import EditRefused, ManifestState, SegmentRecord, SegmentStatus

__all__ = ["apply_edits", "fold"]


def fold(state: ManifestState, record: Record) -> ManifestState:
    """The view after ``record``, which must be the next one.

    Raises:
        EditRefused: the record doesn't follow, or an edit of it isn't allowed here. A record in a manifest was checked
            when it was written, so this means damage.
    """
    if record.record_id != state.record_id + 1 or record.incarnation != state.incarnation:
        raise EditRefused(
            f"stream {state.stream}: record {record.record_id} of {record.incarnation} doesn't follow "
            f"record {state.record_id} of {state.incarnation}"
        )
    after = apply_edits(state, record.edits, record_id=record.record_id)
    if after.epoch != record.epoch:
        raise EditRefused(
            f"stream {state.stream}: record {record.record_id} has epoch {record.epoch}, not {after.epoch}"
        )
    return replace(after, writer=record.writer, time_ms=record.time_ms)


def apply_edits(state: ManifestState, edits: Iterable[Edit], *, record_id: int) -> ManifestState:
    """The view after ``edits``, in order; ``state`` itself stays as it is.

    Raises:
        EditRefused: an edit isn't allowed; which one and why.
    """
    draft = _Draft(state, record_id)
    for edit in edits:
        draft.apply(edit)
    return draft.state()


class _Draft:
    """A mutable copy of a view, for the length of one record."""

    def __init__(self, state: ManifestState, record_id: int) -> None:
        self._base = state
        self._record_id = record_id
        self._segments = dict(state.segments)
        self._changes: dict[str, Any] = {}

    def state(self) -> ManifestState:
        return replace(self._base, record_id=self._record_id, segments=self._segments, **self._changes)

    def apply(self, edit: Edit) -> None:
        if self._now("stream_deleted"):
            raise self._refused(edit, "the stream is deleted")
        _HANDLERS[type(edit)](self, edit)

    def _now(self, name: str) -> Any:
        return self._changes.get(name, getattr(self._base, name))

    def _refused(self, edit: Edit, why: str) -> EditRefused:
        return EditRefused(f"stream {self._base.stream}: {edit.kind} in record {self._record_id}: {why}")

    def _segment(self, edit: Edit, uuid: UUID, *statuses: SegmentStatus) -> SegmentRecord:
        found = self._segments.get(uuid)
        if found is None or found.status not in statuses:
            wanted = " or ".join(status.value for status in statuses)
            raise self._refused(edit, f"segment {uuid} is {found.status.value if found else 'unknown'}, not {wanted}")
        return found

    def _require_free(self, edit: Edit, begin: Position, end: Position | None, *, but: UUID | None = None) -> None:
        """Ranges never overlap; a live one (no end yet) claims everything after its begin."""
        for other in self._segments.values():
            if other.uuid == but:
                continue
            if (other.end is None or other.end >= begin) and (end is None or other.begin <= end):
                raise self._refused(
                    edit, f"{begin}..{end or ''} overlaps segment {other.uuid} {other.begin}..{other.end or ''}"
                )
        for gap in self._now("gaps"):
            if gap.last >= begin and (end is None or gap.first <= end):
                raise self._refused(edit, f"{begin}..{end or ''} overlaps the gap {gap.first}..{gap.last}")

    def _reach(self, end: Position | None) -> None:
        newest = self._now("newest_end")
        if end is not None and (newest is None or end > newest):
            self._changes["newest_end"] = end

    def open_epoch(self, edit: OpenEpoch) -> None:
        if edit.epoch != self._now("epoch") + 1:
            raise self._refused(edit, f"epoch {edit.epoch} doesn't follow {self._now('epoch')}")
        self._changes["epoch"] = edit.epoch

    def ledger_closed(self, edit: LedgerClosed) -> None:
        closed = self._now("closed_ledgers")
        if closed.get(edit.ledger_id, edit.last_entry_id) != edit.last_entry_id:
            raise self._refused(
                edit, f"ledger {edit.ledger_id} ended at {closed[edit.ledger_id]}, now {edit.last_entry_id}"
            )
        self._changes["closed_ledgers"] = {**closed, edit.ledger_id: edit.last_entry_id}

    def assign(self, edit: Assign) -> None:
        if edit.uuid in self._segments:
            raise self._refused(edit, f"segment {edit.uuid} exists already")
        if edit.end is not None and edit.end < edit.begin:
            raise self._refused(edit, f"{edit.begin}..{edit.end} ends before it begins")
        self._require_free(edit, edit.begin, edit.end)
        newest = self._now("newest_end")
        if edit.end is None and newest is not None and not self.state().follows(newest, edit.begin):
            raise self._refused(edit, f"a live segment at {edit.begin} doesn't follow {newest}, the newest end")
        self._reach(edit.end)
        self._segments[edit.uuid] = SegmentRecord(
            uuid=edit.uuid,
            status=SegmentStatus.ASSIGNED,
            epoch=self._now("epoch"),
            layout=edit.layout,
            begin=edit.begin,
            end=edit.end,
            assigned_ms=edit.assigned_ms,
            offloaded_ms=None,
            driver=edit.driver,
            summary=None,
        )

    def offloaded(self, edit: Offloaded) -> None:
        segment = self._segment(edit, edit.uuid, SegmentStatus.ASSIGNED)
        summary = edit.summary
        if summary.begin != segment.begin or (segment.end is not None and summary.end != segment.end):
            raise self._refused(
                edit,
                f"{edit.uuid} holds {summary.begin}..{summary.end}, assigned was {segment.begin}..{segment.end or ''}",
            )
        self._require_free(edit, summary.begin, summary.end, but=edit.uuid)
        self._reach(summary.end)
        self._segments[edit.uuid] = replace(
            segment, status=SegmentStatus.OFFLOADED, end=summary.end, offloaded_ms=edit.offloaded_ms, summary=summary
        )

    def failed(self, edit: Failed) -> None:
        self._segment(edit, edit.uuid, SegmentStatus.ASSIGNED)
        del self._segments[edit.uuid]

    def gap(self, edit: Gap) -> None:
        if edit.last < edit.first:
            raise self._refused(edit, f"{edit.first}..{edit.last} ends before it begins")
        self._require_free(edit, edit.first, edit.last)
        self._reach(edit.last)
        self._changes["gaps"] = (*self._now("gaps"), edit)

    def adopt(self, edit: Adopt) -> None:
        if edit.uuid in self._segments:
            raise self._refused(edit, f"segment {edit.uuid} exists already")
        self._require_free(edit, edit.summary.begin, edit.summary.end)
        self._reach(edit.summary.end)
        self._segments[edit.uuid] = SegmentRecord(
            uuid=edit.uuid,
            status=SegmentStatus.OFFLOADED,
            epoch=self._now("epoch"),
            layout=int(edit.summary.layout),
            begin=edit.summary.begin,
            end=edit.summary.end,
            assigned_ms=self._now("time_ms"),
            offloaded_ms=self._now("time_ms"),
            driver=edit.driver,
            summary=edit.summary,
            owned=edit.owned,
        )

    def release(self, edit: Release) -> None:
        for uuid in edit.uuids:
            if self._segment(edit, uuid, SegmentStatus.OFFLOADED).owned:
                raise self._refused(edit, f"segment {uuid} is our own: retire it")
            del self._segments[uuid]

    def truncate(self, edit: Truncate) -> None:
        head = self._now("head")
        if head is not None and edit.head < head:
            raise self._refused(edit, f"the head never goes back: {edit.head} is before {head}")
        self._changes["head"] = edit.head

    def ledgers_deleted(self, edit: LedgersDeleted) -> None:
        self._changes["deleted_ledgers"] = self._now("deleted_ledgers") | set(edit.ledger_ids)

    def hot_released(self, edit: HotReleased) -> None:
        self._changes["hot_released_ledgers"] = self._now("hot_released_ledgers") | set(edit.ledger_ids)

    def retire(self, edit: Retire) -> None:
        for uuid in edit.uuids:
            segment = self._segment(edit, uuid, SegmentStatus.OFFLOADED)
            self._segments[uuid] = replace(segment, status=SegmentStatus.RETIRED, retire_record=self._record_id)

    def purged(self, edit: Purged) -> None:
        for uuid in edit.uuids:
            self._retired_by(edit, uuid, edit.retire_record)
            del self._segments[uuid]

    def undo_retire(self, edit: UndoRetire) -> None:
        for uuid in edit.uuids:
            segment = self._retired_by(edit, uuid, edit.retire_record)
            self._segments[uuid] = replace(segment, status=SegmentStatus.OFFLOADED, retire_record=None)

    def _retired_by(self, edit: Edit, uuid: UUID, retire_record: int) -> SegmentRecord:
        # Naming the record keeps a sweeper with an old list of leases from purging what was undone and retired again.
        segment = self._segment(edit, uuid, SegmentStatus.RETIRED)
        if segment.retire_record != retire_record:
            raise self._refused(
                edit, f"segment {uuid} was retired by record {segment.retire_record}, not {retire_record}"
            )
        return segment

    def set_method(self, edit: SetMethod) -> None:
        if edit.method not in ("streaming", "ledger", "none"):
            raise self._refused(edit, f"no method {edit.method!r}")
        self._changes["method"] = edit.method

    def pause(self, _edit: Pause) -> None:
        self._changes["paused"] = True

    def resume(self, _edit: Resume) -> None:
        self._changes["paused"] = False

    def hold(self, edit: Hold) -> None:
        self._changes["held"] = edit.on

    def delete_stream(self, _edit: StreamDeleted) -> None:
        self._changes["stream_deleted"] = True


_HANDLERS: Mapping[type[Edit], Callable[[_Draft, Any], None]] = {
    OpenEpoch: _Draft.open_epoch,
    LedgerClosed: _Draft.ledger_closed,
    Assign: _Draft.assign,
    Offloaded: _Draft.offloaded,
    Failed: _Draft.failed,
    Gap: _Draft.gap,
    Adopt: _Draft.adopt,
    Release: _Draft.release,
    Truncate: _Draft.truncate,
    LedgersDeleted: _Draft.ledgers_deleted,
    HotReleased: _Draft.hot_released,
    Retire: _Draft.retire,
    Purged: _Draft.purged,
    UndoRetire: _Draft.undo_retire,
    SetMethod: _Draft.set_method,
    Pause: _Draft.pause,
    Resume: _Draft.resume,
    Hold: _Draft.hold,
    StreamDeleted: _Draft.delete_stream,
}
