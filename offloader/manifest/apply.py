"""Preconditions and effect of each edit. Does no I/O."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from formats.checkpoint import ASIDE, DELETED, HOT_RELEASED, LAST_UNKNOWN, KnownSource
from formats.entries import Position
from formats.manifest import (
    FACT_UNKNOWN,
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
from offloader.manifest.ledger_table import LedgerFact, follows
from offloader.manifest.replacing import promise, replace_segments, restore_range, without_promise
from offloader.manifest.segment_table import SegmentRecord, SegmentStatus
from offloader.manifest.state import EditRefused, ManifestState, RecordBuilder, StreamPaused, assigning_after, first_of

__all__ = [
    "NO_LEDGER",
    "apply_edits",
    "are_applied",
    "closed_fact",
    "fold",
    "is_applied",
    "open_source",
    "reach_source",
    "require_follows",
    "reserve",
]


def is_applied(state: ManifestState, record: Record) -> bool:
    """Whether ``state`` contains everything in ``record``, committed by this writer's epoch."""
    if record.incarnation != state.incarnation or record.epoch != state.epoch or record.record_id > state.record_id:
        return False
    return all(_SAYS[type(edit)](state, edit, record) for edit in record.edits)


def are_applied(state: ManifestState, edits: Sequence[Edit]) -> bool:
    """Whether ``state``, which has the owner's epoch, contains all of the owner's edits.

    Only a segment of its own proves that: uuids are used once. Other edits may have been committed by another writer.
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


#: Below every ledger id.
NO_LEDGER = -1


def open_source(draft: RecordBuilder, edit: OpenEpoch) -> None:
    """Records the source that a new epoch's owner offloads, if it has an identity."""
    known: KnownSource | None = draft.now("source")
    if edit.source is not None:
        goes_on = known is not None and known.uuid == edit.source and not edit.accepted
        draft.changes["source"] = KnownSource(
            uuid=edit.source,
            token=edit.token,
            reserved=NO_LEDGER if known is None else known.reserved,
            reach=known.reach if known is not None and goes_on else None,
        )
    if edit.reserved is not None:
        reserve(draft, edit, edit.reserved)


def reserve(draft: RecordBuilder, edit: Edit, reserved: int) -> None:
    """Reserves ledger ids up to ``reserved``."""
    known: KnownSource | None = draft.now("source")
    if known is None:
        raise draft.refused(edit, "no source is known that could give ledger ids")
    draft.changes["source"] = replace(known, reserved=max(known.reserved, reserved))


def reach_source(draft: RecordBuilder, source_end: Position | None) -> None:
    """Records the newest position of the owner's source."""
    known: KnownSource | None = draft.now("source")
    if known is not None and source_end is not None and (known.reach is None or source_end > known.reach):
        draft.changes["source"] = replace(known, reach=source_end)


def closed_fact(draft: RecordBuilder, edit: LedgerClosed, fact: LedgerFact) -> LedgerFact:
    """The fact of a ledger whose end its source reported.

    Raises:
        EditRefused: another payload size or creation time was recorded of it: it is another ledger.
    """
    for name in ("payload_bytes", "created_ms"):
        before, now = getattr(fact, name), getattr(edit, name)
        if FACT_UNKNOWN not in (before, now) and before != now:
            raise draft.refused(edit, f"ledger {edit.ledger_id} had {name} {before}, now {now}")
        if now != FACT_UNKNOWN:
            fact = fact._replace(**{name: now})
    return fact._replace(last_entry_id=edit.last_entry_id)


def fold(state: ManifestState, record: Record) -> ManifestState:
    """The view after ``record``, which must be the next one.

    Raises:
        EditRefused: the record doesn't follow, or one of its edits isn't allowed here. Records are checked when
            written, so in a manifest this means damage.
    """
    if record.record_id != state.record_id + 1 or record.incarnation != state.incarnation:
        raise EditRefused(
            f"stream {state.stream}: record {record.record_id} of {record.incarnation} doesn't follow "
            f"record {state.record_id} of {state.incarnation}"
        )
    require_follows(state.stream, state.nonce, record)
    draft = _Rules(state, record.record_id)
    for edit in record.edits:
        draft.apply(edit)
    if draft.now("epoch") != state.epoch:
        draft.changes["owner"] = record.writer
    owner = draft.now("owner")
    draft.changes["assigning"] = assigning_after(
        state.assigning, record.edits, epoch_nonce=owner.nonce, record_id=record.record_id
    )
    draft.changes.update(writer=record.writer, time_ms=record.time_ms)
    reach_source(draft, record.source_end)
    after = draft.state()
    if after.epoch != record.epoch:
        raise EditRefused(
            f"stream {state.stream}: record {record.record_id} has epoch {record.epoch}, not {after.epoch}"
        )
    totals = record.totals
    if after.sums != (totals.segments, totals.entries, totals.payload_bytes, totals.object_bytes):
        raise EditRefused(f"stream {state.stream}: record {record.record_id} has totals {totals}, not {after.sums}")
    return after


def require_follows(stream: str, nonce: str, record: Record) -> None:
    """Raises ``EditRefused`` unless the record names the nonce of the record before it.

    This detects a lost record whose number was created again.
    """
    if record.previous_nonce and record.previous_nonce != nonce:
        raise EditRefused(
            f"stream {stream}: record {record.record_id} follows another record {record.record_id - 1} than the one "
            "that is there: that one was lost, and its number created again"
        )


def apply_edits(state: ManifestState, edits: Iterable[Edit], *, record_id: int) -> ManifestState:
    """The view after ``edits``, in order; ``state`` isn't changed.

    Raises:
        EditRefused: an edit isn't allowed; which one and why.
    """
    draft = _Rules(state, record_id)
    for edit in edits:
        draft.apply(edit)
    return draft.state()


class _Rules(RecordBuilder):
    """Effect and precondition of each kind of edit."""

    def apply(self, edit: Edit) -> None:
        if self.now("stream_deleted"):
            raise self.refused(edit, "the stream is deleted")
        _HANDLERS[type(edit)](self, edit)

    def open_epoch(self, edit: OpenEpoch) -> None:
        if edit.epoch != self.now("epoch") + 1:
            raise self.refused(edit, f"epoch {edit.epoch} doesn't follow {self.now('epoch')}")
        self.changes["epoch"] = edit.epoch
        open_source(self, edit)

    def reserve_ledgers(self, edit: ReserveLedgers) -> None:
        reserve(self, edit, edit.reserved)

    def ledger_closed(self, edit: LedgerClosed) -> None:
        fact = self.fact(edit.ledger_id)
        if fact.last_entry_id not in (LAST_UNKNOWN, edit.last_entry_id) or edit.last_entry_id < -1:
            raise self.refused(edit, f"ledger {edit.ledger_id} ended at {fact.last_entry_id}, now {edit.last_entry_id}")
        self.facts[edit.ledger_id] = closed_fact(self, edit, fact)

    def assign(self, edit: Assign) -> None:
        if self.now("paused"):
            raise StreamPaused(self.base.stream)
        self.require_new(edit, edit.uuid)
        self.require_free(edit, edit.begin, edit.end)
        self.require_after_head(edit, edit.end)
        newest, head = self.now("newest_end"), self.now("head")
        # After a truncation past the end the stream continues at its head.
        is_head = head is not None and newest is not None and head > newest and edit.begin == head
        is_free_live = newest is None or is_head or follows(newest, edit.begin, self.ledgers().closed)
        if edit.end is None and not is_free_live:
            raise self.refused(edit, f"a live segment at {edit.begin} doesn't follow {newest}, the newest end")
        self.claim(edit.begin, edit.end)
        self.segments.put(
            SegmentRecord(
                uuid=edit.uuid,
                status=SegmentStatus.ASSIGNED,
                epoch=self.now("epoch"),
                layout=edit.layout,
                begin=edit.begin,
                end=edit.end,
                assigned_ms=edit.assigned_ms,
                offloaded_ms=None,
                driver=edit.driver,
                summary=None,
            )
        )

    def offloaded(self, edit: Offloaded) -> None:
        segment = self.segment(edit, edit.uuid, SegmentStatus.ASSIGNED)
        summary = edit.summary
        if summary.begin != segment.begin or (segment.end is not None and summary.end != segment.end):
            raise self.refused(
                edit,
                f"{edit.uuid} holds {summary.begin}..{summary.end}, assigned was {segment.begin}..{segment.end or ''}",
            )
        self.require_free(edit, summary.begin, summary.end, but=edit.uuid)
        self.reach(summary.end)
        self.put_counted(
            replace(
                segment,
                status=SegmentStatus.OFFLOADED,
                end=summary.end,
                offloaded_ms=edit.offloaded_ms,
                summary=summary,
            )
        )

    def failed(self, edit: Failed) -> None:
        if without_promise(self, edit.uuid):
            return
        self.segment(edit, edit.uuid, SegmentStatus.ASSIGNED)
        self.segments.drop(edit.uuid)

    def gap(self, edit: Gap) -> None:
        self.require_free(edit, edit.first, edit.last)
        head, committed = self.now("head"), self.state().committed
        # Entries truncated while the stream wasn't offloaded form a gap before the head that joins two ends.
        joins = head is not None and (edit.last.ledger_id, edit.last.entry_id + 1) == head
        if not joins and not (committed is not None and follows(committed, edit.first, self.ledgers().closed)):
            self.require_after_head(edit, edit.last)
        self.claim(edit.first, edit.last)
        gaps = list(self.now("gaps"))
        insort(gaps, edit, key=first_of)
        self.changes["gaps"] = tuple(gaps)

    def adopt(self, edit: Adopt) -> None:
        self.require_new(edit, edit.uuid)
        self.require_free(edit, edit.summary.begin, edit.summary.end)
        self.require_after_head(edit, edit.summary.end)
        self.claim(edit.summary.begin, edit.summary.end)
        self.put_counted(
            SegmentRecord(
                uuid=edit.uuid,
                status=SegmentStatus.OFFLOADED,
                epoch=self.now("epoch"),
                layout=int(edit.summary.layout),
                begin=edit.summary.begin,
                end=edit.summary.end,
                assigned_ms=self.now("time_ms"),
                offloaded_ms=self.now("time_ms"),
                driver=edit.driver,
                summary=edit.summary,
                owned=edit.owned,
            )
        )

    def release(self, edit: Release) -> None:
        self._require_no_hold(edit)
        for uuid in edit.uuids:
            segment = self.segment(edit, uuid, SegmentStatus.OFFLOADED)
            if segment.owned:
                raise self.refused(edit, f"segment {uuid} is our own: retire it")
            self.sums = self.sums.plus(segment, -1)
            self.segments.drop(uuid)

    def truncate(self, edit: Truncate) -> None:
        self._require_no_hold(edit)
        head = self.now("head")
        if head is not None and edit.head < head:
            raise self.refused(edit, f"the head never goes back: {edit.head} is before {head}")
        self.changes["head"] = edit.head
        if self.now("method") == "none":
            return
        # Otherwise the hot copy of an assigned range is deleted with its ledger, and the range can never be offloaded.
        # A forced truncation adds a gap in the same record, which advances the committed end.
        state = self.state()
        end = state.committed
        if end is None or not (edit.head <= end or follows(end, edit.head, self.ledgers().closed)):
            raise self.refused(edit, f"the head {edit.head} is past the committed end {end or '(none)'}")
        promised = next((each for each in state.assigned() if each.begin < edit.head), None)
        if promised is not None:  # in front of the committed range
            raise self.refused(edit, f"segment {promised.uuid} at {promised.begin} is on its way before {edit.head}")

    def ledgers_deleted(self, edit: LedgersDeleted) -> None:
        self._require_no_hold(edit)
        self.mark(edit.ledger_ids, DELETED)

    def hot_released(self, edit: HotReleased) -> None:
        end = self.state().committed
        for ledger_id in edit.ledger_ids:
            last = self.fact(ledger_id).last_entry_id
            if last == LAST_UNKNOWN:
                raise self.refused(edit, f"ledger {ledger_id} isn't known to be closed")
            if last >= 0 and (end is None or Position(ledger_id, last) > end):
                raise self.refused(edit, f"ledger {ledger_id} ends at {last}, committed is only {end or '(nothing)'}")
            # The prefix begins with the first range: a ledger before that was never offloaded.
            missing = self.first_not_held(ledger_id, last)
            if missing is not None:
                raise self.refused(edit, f"entry {missing} is neither in an offloaded segment nor before the head")
        self.mark(edit.ledger_ids, HOT_RELEASED)

    def retire(self, edit: Retire) -> None:
        self._require_no_hold(edit)
        for uuid in edit.uuids:
            segment = self.segment(edit, uuid, SegmentStatus.OFFLOADED)
            if not segment.owned:
                raise self.refused(edit, f"segment {uuid} isn't ours: release it")
            if not self._is_deletable(segment):
                raise self.refused(
                    edit, f"segment {uuid} is neither before the head nor are all its ledgers marked as deleted"
                )
            self.sums = self.sums.plus(segment, -1)
            self.segments.put(replace(segment, status=SegmentStatus.RETIRED, retire_record=self.record_id))

    def _is_deletable(self, segment: SegmentRecord) -> bool:
        # The release of a ledger's hot copy is irrelevant: its entries live on in the segment.
        assert segment.end is not None
        assert segment.summary is not None
        head = self.now("head")
        if head is not None and segment.end < head:
            return True
        return all(self.fact(span.ledger_id).flags & DELETED for span in segment.summary.ledgers)

    def _require_no_hold(self, edit: Edit) -> None:
        if self.now("held"):
            raise self.refused(edit, "the stream is on hold, nothing of it is deleted")

    def purged(self, edit: Purged) -> None:
        self._require_no_hold(edit)
        replaced = {each.uuid: each for each in self.now("replaced")}
        for uuid in edit.uuids:
            if uuid in replaced and replaced[uuid].retire_record == edit.retire_record:
                del replaced[uuid]
            else:
                self._retired_by(edit, uuid, edit.retire_record)
                self.segments.drop(uuid)
        self.changes["replaced"] = tuple(replaced.values())

    def undo_retire(self, edit: UndoRetire) -> None:
        for uuid in edit.uuids:
            segment = self._retired_by(edit, uuid, edit.retire_record)
            self.put_counted(replace(segment, status=SegmentStatus.OFFLOADED, retire_record=None))

    def restore(self, edit: Restore) -> None:
        restore_range(self, edit)

    def set_aside(self, edit: SetAside) -> None:
        self.mark(edit.ledger_ids, ASIDE)

    def _retired_by(self, edit: Edit, uuid: UUID, retire_record: int) -> SegmentRecord:
        # Naming the record keeps a sweeper with an old list of leases from purging a segment that was restored and
        # retired again.
        segment = self.segment(edit, uuid, SegmentStatus.RETIRED)
        if segment.retire_record != retire_record:
            raise self.refused(
                edit, f"segment {uuid} was retired by record {segment.retire_record}, not {retire_record}"
            )
        return segment

    def rewrite(self, edit: Rewrite) -> None:
        self._require_no_hold(edit)
        promise(self, edit)

    def replace(self, edit: Replace) -> None:
        self._require_no_hold(edit)
        replace_segments(self, edit)

    def set_method(self, edit: SetMethod) -> None:
        if edit.method not in ("streaming", "ledger", "none"):
            raise self.refused(edit, f"no method {edit.method!r}")
        self.changes["method"] = edit.method

    def pause(self, _edit: Pause) -> None:
        self.changes["paused"] = True

    def resume(self, _edit: Resume) -> None:
        self.changes["paused"] = False

    def hold(self, edit: Hold) -> None:
        self.changes["held"] = edit.on

    def delete_stream(self, edit: StreamDeleted) -> None:
        self._require_no_hold(edit)
        self.changes["stream_deleted"] = True


_HANDLERS: Mapping[type[Edit], Callable[[_Rules, Any], None]] = {
    OpenEpoch: _Rules.open_epoch,
    ReserveLedgers: _Rules.reserve_ledgers,
    SetAside: _Rules.set_aside,
    LedgerClosed: _Rules.ledger_closed,
    Assign: _Rules.assign,
    Offloaded: _Rules.offloaded,
    Failed: _Rules.failed,
    Gap: _Rules.gap,
    Adopt: _Rules.adopt,
    Release: _Rules.release,
    Truncate: _Rules.truncate,
    LedgersDeleted: _Rules.ledgers_deleted,
    HotReleased: _Rules.hot_released,
    Retire: _Rules.retire,
    Purged: _Rules.purged,
    UndoRetire: _Rules.undo_retire,
    Rewrite: _Rules.rewrite,
    Replace: _Rules.replace,
    Restore: _Rules.restore,
    SetMethod: _Rules.set_method,
    Pause: _Rules.pause,
    Resume: _Rules.resume,
    Hold: _Rules.hold,
    StreamDeleted: _Rules.delete_stream,
}
