"""Preconditions and effect of each edit. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from formats.checkpoint import (
    ASIDE,
    DELETED,
    HOT_RELEASED,
    LAST_UNKNOWN,
    AssignedSegment,
    KnownSource,
    ReplacedSegment,
)
from formats.entries import Position
from formats.manifest import (
    FACT_UNKNOWN,
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    GapFilled,
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
    Rewritten,
    SetAside,
    SetMethod,
    StreamDeleted,
    Truncate,
    UndoRetire,
)
from offloader.manifest.fills import FillRules
from offloader.manifest.ledger_table import follows
from offloader.manifest.replacing import ReplacingRules
from offloader.manifest.segment_table import SegmentRecord, SegmentStatus, assigned_record
from offloader.manifest.state import EditRefused, ManifestState, StreamPaused, View, assigning_after, first_of


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


def _have(state: ManifestState, uuids: Iterable[UUID], holds: Callable[[SegmentRecord], bool]) -> bool:
    """Whether all these segments are in ``state``, and what ``holds`` asks is true of each."""
    return all((found := state.segments.get(uuid)) is not None and holds(found) for uuid in uuids)


def _holds(state: ManifestState, each: Offloaded | Rewritten) -> bool:
    return _have(state, [each.uuid], lambda found: found.summary == each.summary)


def _lacks(state: ManifestState, uuids: Iterable[UUID], others: Iterable[AssignedSegment | ReplacedSegment]) -> bool:
    """Whether none of these segments is in ``state`` or in its ``others``."""
    aside = {each.uuid for each in others}
    return not any(uuid in state.segments or uuid in aside for uuid in uuids)


_SAYS: Mapping[type[Edit], Callable[[ManifestState, Any, Record], bool]] = {
    OpenEpoch: lambda state, edit, record: state.epoch == edit.epoch and state.owner.nonce == record.writer.nonce,
    ReserveLedgers: lambda state, edit, _: state.source is not None and state.source.reserved >= edit.reserved,
    LedgerClosed: lambda state, edit, _: state.closed_ledgers.get(edit.ledger_id) == edit.last_entry_id,
    Assign: lambda state, edit, _: _have(state, [edit.uuid], lambda found: found.begin == edit.begin),
    Offloaded: lambda state, edit, _: _holds(state, edit),
    Failed: lambda state, edit, _: _lacks(state, [edit.uuid], state.rewrites),
    Gap: lambda state, edit, _: edit in state.gaps,
    GapFilled: lambda state, edit, _: edit in state.fills,
    Adopt: lambda state, edit, _: edit.uuid in state.segments,
    Release: lambda state, edit, _: _lacks(state, edit.uuids, state.replaced),
    Truncate: lambda state, edit, _: state.head is not None and state.head >= edit.head,
    LedgersDeleted: lambda state, edit, _: state.deleted_ledgers >= set(edit.ledger_ids),
    HotReleased: lambda state, edit, _: state.hot_released_ledgers >= set(edit.ledger_ids),
    SetAside: lambda state, edit, _: state.aside_ledgers >= set(edit.ledger_ids),
    Retire: lambda state, edit, record: _have(state, edit.uuids, lambda found: found.retire_record == record.record_id),
    Purged: lambda state, edit, _: _lacks(state, edit.uuids, state.replaced),
    UndoRetire: lambda state, edit, _: _have(state, edit.uuids, lambda found: found.status is SegmentStatus.OFFLOADED),
    Rewrite: lambda state, edit, _: any(each.uuid == edit.uuid for each in state.rewrites),
    Replace: lambda state, edit, _: all(_holds(state, each) for each in edit.by),
    Restore: lambda state, edit, _: (
        (edit.head is None or state.head is None or state.head <= edit.head)
        and state.deleted_ledgers.isdisjoint(edit.ledger_ids)
    ),
    SetMethod: lambda state, edit, _: state.method == edit.method,
    Pause: lambda state, _edit, _: state.paused,
    Resume: lambda state, _edit, _: not state.paused,
    Hold: lambda state, edit, _: state.held == edit.on,
    StreamDeleted: lambda state, _edit, _: state.stream_deleted,
}


#: Edits that lead to a deletion.
_DELETING = (LedgersDeleted, Purged, Release, Replace, Retire, Rewrite, StreamDeleted, Truncate)


def fold(state: ManifestState, record: Record) -> ManifestState:
    """The view after ``record``, which must be the next one.

    Raises:
        EditRefused: the record doesn't follow, or one of its edits isn't allowed here. Records are checked when
            written, so in a manifest this means damage.
    """
    require_follows(state, record)
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
    draft.reach_source(record.source_end)
    after = draft.state()
    if after.epoch != record.epoch:
        raise EditRefused(
            f"stream {state.stream}: record {record.record_id} has epoch {record.epoch}, not {after.epoch}"
        )
    totals = record.totals
    if after.sums != (totals.segments, totals.entries, totals.payload_bytes, totals.object_bytes):
        raise EditRefused(f"stream {state.stream}: record {record.record_id} has totals {totals}, not {after.sums}")
    return after


def require_follows(view: View, record: Record) -> None:
    """Raises ``EditRefused`` unless the record has the next number and names the nonce of the record before it.

    The nonce detects a lost record whose number was created again.
    """
    if record.record_id != view.record_id + 1 or record.incarnation != view.incarnation:
        raise EditRefused(
            f"stream {view.stream}: record {record.record_id} of {record.incarnation} doesn't follow "
            f"record {view.record_id} of {view.incarnation}"
        )
    if record.previous_nonce and record.previous_nonce != view.nonce:
        raise EditRefused(
            f"stream {view.stream}: record {record.record_id} follows another record {view.record_id} than the one "
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


class _Rules(ReplacingRules, FillRules):
    """Precondition and effect of each edit, in the method of its kind."""

    def apply(self, edit: Edit) -> None:
        if self.now("stream_deleted"):
            raise self.refused(edit, "the stream is deleted")
        if self.now("held") and isinstance(edit, _DELETING):
            raise self.refused(edit, "the stream is on hold, nothing of it is deleted")
        getattr(self, edit.kind)(edit)

    def open_epoch(self, edit: OpenEpoch) -> None:
        if edit.epoch != self.now("epoch") + 1:
            raise self.refused(edit, f"epoch {edit.epoch} doesn't follow {self.now('epoch')}")
        self.changes["epoch"] = edit.epoch
        known: KnownSource | None = self.now("source")
        if edit.source is not None:
            goes_on = known is not None and known.uuid == edit.source and not edit.accepted
            self.changes["source"] = KnownSource(
                uuid=edit.source,
                token=edit.token,
                reserved=-1 if known is None else known.reserved,  # -1: below every ledger id
                reach=known.reach if known is not None and goes_on else None,
            )
        if edit.reserved is not None:
            self.reserve_ledgers(ReserveLedgers(edit.reserved))

    def reserve_ledgers(self, edit: ReserveLedgers) -> None:
        known: KnownSource | None = self.now("source")
        if known is None:
            raise self.refused(edit, "no source is known that could give ledger ids")
        self.changes["source"] = replace(known, reserved=max(known.reserved, edit.reserved))

    def reach_source(self, source_end: Position | None) -> None:
        """Records the newest position of the owner's source."""
        known: KnownSource | None = self.now("source")
        if known is not None and source_end is not None and (known.reach is None or source_end > known.reach):
            self.changes["source"] = replace(known, reach=source_end)

    def ledger_closed(self, edit: LedgerClosed) -> None:
        fact = self.fact(edit.ledger_id)
        if fact.last_entry_id not in (LAST_UNKNOWN, edit.last_entry_id) or edit.last_entry_id < -1:
            raise self.refused(edit, f"ledger {edit.ledger_id} ended at {fact.last_entry_id}, now {edit.last_entry_id}")
        for name in ("payload_bytes", "created_ms"):
            before, now = getattr(fact, name), getattr(edit, name)
            if FACT_UNKNOWN not in (before, now) and before != now:
                raise self.refused(edit, f"ledger {edit.ledger_id} had {name} {before}, now {now}")
            if now != FACT_UNKNOWN:
                fact = fact._replace(**{name: now})
        self.facts[edit.ledger_id] = fact._replace(last_entry_id=edit.last_entry_id)

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
        self.segments.put(assigned_record(self.promised(edit)))

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
        if self.drop_promise(edit.uuid):
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
        self.changes["gaps"] = tuple(sorted([*self.now("gaps"), edit], key=first_of))

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
        for uuid in edit.uuids:
            segment = self.segment(edit, uuid, SegmentStatus.OFFLOADED)
            if segment.owned:
                raise self.refused(edit, f"segment {uuid} is our own: retire it")
            self.drop_counted(segment)
        self.drop_fills()

    def truncate(self, edit: Truncate) -> None:
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
        head = self.now("head")
        for uuid in edit.uuids:
            segment = self.segment(edit, uuid, SegmentStatus.OFFLOADED)
            assert segment.end is not None
            if not segment.owned:
                raise self.refused(edit, f"segment {uuid} isn't ours: release it")
            # The release of a ledger's hot copy is irrelevant: its entries live on in the segment.
            if not (head is not None and segment.end < head) and not self.is_gone(segment):
                raise self.refused(
                    edit, f"segment {uuid} is neither before the head nor are all its ledgers marked as deleted"
                )
            self.sums = self.sums.plus(segment, -1)
            self.segments.put(replace(segment, status=SegmentStatus.RETIRED, retire_record=self.record_id))

    def purged(self, edit: Purged) -> None:
        replaced = {each.uuid: each for each in self.now("replaced")}
        for uuid in edit.uuids:
            if uuid in replaced and replaced[uuid].retire_record == edit.retire_record:
                del replaced[uuid]
            else:
                self._retired_by(edit, uuid, edit.retire_record)
                self.segments.drop(uuid)
        self.changes["replaced"] = tuple(replaced.values())
        self.drop_fills()

    def undo_retire(self, edit: UndoRetire) -> None:
        for uuid in edit.uuids:
            segment = self._retired_by(edit, uuid, edit.retire_record)
            self.put_counted(replace(segment, status=SegmentStatus.OFFLOADED, retire_record=None))

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

    def stream_deleted(self, _edit: StreamDeleted) -> None:
        self.changes["stream_deleted"] = True
