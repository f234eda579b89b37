"""Preconditions and effect of each edit. Does no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any
from uuid import UUID

from formats.checkpoint import (
    ASIDE,
    DELETED,
    HOT_RELEASED,
    LAST_UNKNOWN,
    AssignedSegment,
    AssigningEpoch,
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
    Recover,
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
from formats.summary import SegmentSummary
from offloader.coverage import (
    ENTRY_ID_MAX,
    contiguous_end,
    count_of,
    first_begin,
    first_missing,
    follows,
    gap_runs,
    holes,
)
from offloader.manifest.ledger_table import LedgerFact, LedgerTable, fills_in, is_gone, is_settled
from offloader.manifest.segment_table import (
    SegmentDraft,
    SegmentRecord,
    SegmentStatus,
    SegmentTable,
    assigned_record,
    is_at_root,
)
from offloader.manifest.state import (
    EditRefusedError,
    ManifestState,
    StreamPaused,
    first_of,
    ranges_of,
)


def is_applied(state: ManifestState, record: Record) -> bool:
    """Whether ``state`` contains everything in ``record``, committed by this writer's epoch."""
    if record.incarnation != state.incarnation or record.epoch != state.epoch or record.record_id > state.record_id:
        return False
    return all(_SAYS[type(edit)](state, edit, record) for edit in record.edits)


def are_applied(state: ManifestState, edits: Sequence[Edit]) -> bool:
    """Whether ``state``, which has the owner's epoch, contains all of the owner's edits.

    Only a segment proves that: uuids are used once. Other edits may have been committed by another writer.
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
    Recover: lambda state, edit, _: all(_holds(state, each) for each in edit.by),
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
        EditRefusedError: the record doesn't follow, or one of its edits isn't allowed here. Records are checked when
            written, so in a manifest this means damage.
    """
    if record.record_id != state.record_id + 1 or record.incarnation != state.incarnation:
        raise EditRefusedError(
            f"stream {state.stream}: record {record.record_id} of {record.incarnation} doesn't follow "
            f"record {state.record_id} of {state.incarnation}"
        )
    # The nonce detects a lost record whose number was created again.
    if record.previous_nonce != state.nonce:
        raise EditRefusedError(
            f"stream {state.stream}: record {record.record_id} doesn't follow the existing record "
            f"{state.record_id}: the record before it was lost, and its number was used again"
        )
    draft = RecordBuilder(state, record.record_id)
    for edit in record.edits:
        draft.apply(edit)
    if draft.now("epoch") != state.epoch:
        draft.changes["owner"] = record.writer
    nonce = draft.now("owner").nonce
    if any(isinstance(edit, (Assign, Rewrite)) for edit in record.edits):
        others = (each for each in state.assigning if each.nonce != nonce)
        draft.changes["assigning"] = (*others, AssigningEpoch(nonce=nonce, record_id=record.record_id))
    draft.changes.update(writer=record.writer, time_ms=record.time_ms)
    draft.reach_source(record.source_end)
    after = draft.state()
    if after.epoch != record.epoch:
        raise EditRefusedError(
            f"stream {state.stream}: record {record.record_id} has epoch {record.epoch}, not {after.epoch}"
        )
    totals = record.totals
    if after.sums != (totals.segments, totals.entries, totals.payload_bytes, totals.object_bytes):
        raise EditRefusedError(
            f"stream {state.stream}: record {record.record_id} has totals {totals}, not {after.sums}"
        )
    return after


def apply_edits(state: ManifestState, edits: Iterable[Edit], *, record_id: int) -> ManifestState:
    """The view after ``edits``, in order; ``state`` isn't changed.

    Raises:
        EditRefusedError: an edit isn't allowed; which one and why.
    """
    draft = RecordBuilder(state, record_id)
    for edit in edits:
        draft.apply(edit)
    return draft.state()


#: First entry, last entry, number of entries and payload bytes of one run of entries.
_Run = tuple[int, int, int, int]


def _stored(assigned: SegmentRecord, summary: SegmentSummary, offloaded_ms: int) -> SegmentRecord:
    return replace(
        assigned, status=SegmentStatus.OFFLOADED, end=summary.end, offloaded_ms=offloaded_ms, summary=summary
    )


def _text(runs: list[_Run] | None) -> str:
    return ", ".join(f"{first}..{last} ({count} entries, {size} bytes)" for first, last, count, size in runs or []) or (
        "nothing"
    )


def _ledger_changes(segments: Iterable[SegmentRecord]) -> set[tuple[Position, Position]]:
    """Where one ledger ends within a segment, and where the next one begins."""
    return {
        (Position(one.ledger_id, one.last_entry_id), Position(two.ledger_id, two.first_entry_id))
        for each in segments
        for one, two in pairwise(each.spans)
    }


class RecordBuilder:
    """A mutable copy of a view, for building one record: precondition and effect of each edit in its kind's method."""

    def __init__(self, state: ManifestState, record_id: int) -> None:
        self.base = state
        self.record_id = record_id
        self.segments = SegmentDraft(state.segments)
        self.facts: dict[int, LedgerFact] = {}
        self.sums = state.sums
        self.earliest: Position | None = None
        self.changes: dict[str, Any] = {}

    def state(self) -> ManifestState:
        segments, ledgers = self.segments.table(), self.ledgers()
        committed, committed_from = self._committed(segments, ledgers)
        return replace(
            self.base,
            record_id=self.record_id,
            segments=segments,
            ledgers=ledgers,
            sums=self.sums,
            committed=committed,
            committed_from=committed_from,
            **self.changes,
        )

    def _committed(self, segments: SegmentTable, ledgers: LedgerTable) -> tuple[Position | None, Position | None]:
        """The committed end, and where its run begins unless that is with the first range."""
        base, head = self.base, self.now("head")
        ranges, ends = ranges_of(segments, self.now("gaps"), ledgers), ledgers.closed
        committed, begin = contiguous_end(base.committed, ranges, ends), base.committed_from
        if base.committed is not None and begin is None and self.earliest is not None:
            # The committed end never goes back: a range in front of it doesn't count until the two meet.
            first = first_begin(base.ranges())
            start = base.committed if first is None else min(first, base.committed)
            begin = start if self.earliest < start else None
        if begin is None or committed is None or (head is not None and head >= begin):
            return committed, None
        first = first_begin(ranges)
        if first is None or first >= begin:
            return committed, None
        prefix = contiguous_end(None, ranges, ends)
        return (committed, begin) if prefix is None or prefix < committed else (prefix, None)

    def now(self, name: str) -> Any:
        return self.changes.get(name, getattr(self.base, name))

    def ledgers(self) -> LedgerTable:
        return self.base.ledgers.changed(self.facts) if self.facts else self.base.ledgers

    def refused(self, edit: Edit, why: str) -> EditRefusedError:
        return EditRefusedError(f"stream {self.base.stream}: {edit.kind} in record {self.record_id}: {why}")

    def require_new(self, edit: Edit, uuid: UUID) -> None:
        """Requires an unused uuid: unique over ranges, fills, rewrites, and objects that await deletion."""
        aside = (each.uuid for name in ("fills", "rewrites", "replaced") for each in self.now(name))
        if self.segments.get(uuid) is not None or uuid in aside:
            raise self.refused(edit, f"segment {uuid} exists already")

    def segment(self, edit: Edit, uuid: UUID, status: SegmentStatus) -> SegmentRecord:
        found = self.segments.get(uuid)
        if found is None or found.status is not status:
            raise self.refused(
                edit, f"segment {uuid} is {found.status.value if found else 'unknown'}, not {status.value}"
            )
        return found

    def require_free(self, edit: Edit, begin: Position, end: Position | None, *, but: UUID | None = None) -> None:
        """Requires that ranges don't overlap; a live one (no end yet) claims everything after its begin."""
        if end is not None and end < begin:
            raise self.refused(edit, f"{begin}..{end} ends before it begins")
        other = self.segments.overlapping(begin, end, but=but)
        if other is not None:
            raise self.refused(
                edit, f"{begin}..{end or ''} overlaps segment {other.uuid} {other.begin}..{other.end or ''}"
            )
        gaps: tuple[Gap, ...] = self.now("gaps")
        at = len(gaps) if end is None else bisect_right(gaps, end, key=first_of)
        if at and gaps[at - 1].last >= begin:
            raise self.refused(edit, f"{begin}..{end or ''} overlaps the gap {gaps[at - 1].first}..{gaps[at - 1].last}")

    def require_after_head(self, edit: Edit, end: Position | None) -> None:
        """Requires a range after the head: one before it would begin a prefix that can't be continued."""
        head = self.now("head")
        if head is not None and end is not None and end < head:
            raise self.refused(edit, f"{end} lies before the head {head}")

    def claim(self, begin: Position, end: Position | None) -> None:
        """Adds a new range."""
        self.earliest = begin if self.earliest is None else min(self.earliest, begin)
        self.reach(end)

    def reach(self, end: Position | None) -> None:
        newest = self.now("newest_end")
        if end is not None and (newest is None or end > newest):
            self.changes["newest_end"] = end

    def put_counted(self, record: SegmentRecord) -> None:
        self.sums = self.sums.plus(record, 1)
        self.segments.put(record)

    def drop_counted(self, record: SegmentRecord) -> None:
        self.sums = self.sums.plus(record, -1)
        self.segments.drop(record.uuid)

    def promised(self, edit: Assign | Rewrite) -> AssignedSegment:
        """The segment in flight that an edit assigns."""
        return AssignedSegment(
            uuid=edit.uuid,
            epoch=self.now("epoch"),
            layout=edit.layout,
            begin=edit.begin,
            end=edit.end,
            assigned_ms=edit.assigned_ms,
            driver=edit.driver,
        )

    def is_gone(self, record: SegmentRecord) -> bool:
        """Whether all ledgers of an offloaded segment are marked as deleted."""
        return all(self.fact(span.ledger_id).flags & DELETED for span in record.spans)

    def fact(self, ledger_id: int) -> LedgerFact:
        found = self.facts.get(ledger_id)
        return self.base.ledgers.get(ledger_id) if found is None else found

    def mark(self, ledger_ids: Iterable[int], flag: int) -> None:
        for ledger_id in ledger_ids:
            fact = self.fact(ledger_id)
            self.facts[ledger_id] = fact._replace(flags=fact.flags | flag)

    def first_not_held(self, ledger_id: int, last_entry_id: int) -> Position | None:
        """The first entry of a ledger that only its hot copy may have."""
        if self.fact(ledger_id).flags & DELETED:
            return None
        begin, last = Position(ledger_id, 0), Position(ledger_id, last_entry_id)
        wanted = max(begin, self.now("head") or begin)
        held = [(s.begin, s.end) for s in self.segments.table().offloaded(wanted, last) if s.end]
        held += [(gap.first, gap.last) for gap in self.now("gaps")]
        return first_missing(held, wanted, last)

    def apply(self, edit: Edit) -> None:
        if self.now("stream_deleted"):
            raise self.refused(edit, "the stream is deleted")
        if self.now("held") and isinstance(edit, _DELETING):
            raise self.refused(edit, "the stream is on hold: nothing is deleted")
        getattr(self, edit.kind)(edit)

    def open_epoch(self, edit: OpenEpoch) -> None:
        if edit.epoch != self.now("epoch") + 1:
            raise self.refused(edit, f"epoch {edit.epoch} doesn't follow {self.now('epoch')}")
        self.changes["epoch"] = edit.epoch
        known: KnownSource | None = self.now("source")
        if edit.source is not None:
            self.changes["source"] = KnownSource(
                uuid=edit.source,
                token=edit.token,
                reserved=-1 if known is None else known.reserved,  # -1: below every ledger id
                reach=known.reach if known is not None and known.uuid == edit.source and not edit.accepted else None,
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
        if edit.end is None and not (newest is None or is_head or follows(newest, edit.begin, self.ledgers().closed)):
            raise self.refused(edit, f"a live segment at {edit.begin} doesn't follow the newest end {newest}")
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
        self.put_counted(_stored(segment, summary, edit.offloaded_ms))

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
                raise self.refused(edit, f"segment {uuid} belongs to this project: retire it instead")
            self.drop_counted(segment)
        self.drop_fills()

    def truncate(self, edit: Truncate) -> None:
        head = self.now("head")
        if head is not None and edit.head < head:
            raise self.refused(edit, f"the head can't move back: {edit.head} is before {head}")
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
            raise self.refused(
                edit, f"segment {promised.uuid} at {promised.begin} is being offloaded before {edit.head}"
            )

    def ledgers_deleted(self, edit: LedgersDeleted) -> None:
        self.mark(edit.ledger_ids, DELETED)

    def hot_released(self, edit: HotReleased) -> None:
        end = self.state().committed
        for ledger_id in edit.ledger_ids:
            last = self.fact(ledger_id).last_entry_id
            if last == LAST_UNKNOWN:
                raise self.refused(edit, f"ledger {ledger_id} isn't recorded as closed")
            if last >= 0 and (end is None or Position(ledger_id, last) > end):
                raise self.refused(edit, f"ledger {ledger_id} ends at {last}, the committed end is {end or '(none)'}")
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
                raise self.refused(edit, f"segment {uuid} doesn't belong to this project: release it instead")
            # The release of a ledger's hot copy is irrelevant: its entries live on in the segment.
            if not (head is not None and segment.end < head) and not self.is_gone(segment):
                raise self.refused(
                    edit, f"segment {uuid} is not before the head, and not all its ledgers are marked as deleted"
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
            raise self.refused(edit, f"unknown method {edit.method!r}")
        self.changes["method"] = edit.method

    def pause(self, _edit: Pause) -> None:
        self.changes["paused"] = True

    def resume(self, _edit: Resume) -> None:
        self.changes["paused"] = False

    def hold(self, edit: Hold) -> None:
        self.changes["held"] = edit.on

    def stream_deleted(self, _edit: StreamDeleted) -> None:
        self.changes["stream_deleted"] = True

    def gap_filled(self, edit: GapFilled) -> None:
        """Names a fill.

        Raises:
            EditRefusedError: it isn't of one ledger of the stream, overlaps another fill, doesn't hold just the entries
                of gaps in its range, or something in this range isn't offloaded yet.
        """
        self.require_new(edit, edit.uuid)
        ledger_id, first, last = edit.first.ledger_id, edit.first.entry_id, edit.last.entry_id
        if edit.last.ledger_id != ledger_id or last < first:
            raise self.refused(edit, f"{edit.first}..{edit.last} isn't a part of one ledger")
        fact = self.fact(ledger_id)
        if is_gone(ledger_id, fact, self.now("head")):
            raise self.refused(edit, f"ledger {ledger_id} is deleted from the stream")
        if fact.last_entry_id != LAST_UNKNOWN and last > fact.last_entry_id:
            raise self.refused(edit, f"ledger {ledger_id} ends at {fact.last_entry_id}")
        fills: tuple[GapFilled, ...] = self.now("fills")
        other = next(iter(fills_in(fills, ledger_id, first, last)), None)
        if other is not None:
            raise self.refused(
                edit, f"{edit.first}..{edit.last} overlaps fill {other.uuid} {other.first}..{other.last}"
            )
        gaps: tuple[Gap, ...] = self.now("gaps")
        runs = gap_runs(gaps, ledger_id, first, last)
        if not runs or (runs[0][0], runs[-1][1], count_of(runs)) != (first, last, edit.entries):
            raise self.refused(
                edit,
                f"{edit.entries} entries from {edit.first} to {edit.last}, the gaps in this range have {count_of(runs)}"
                + (f" from {runs[0][0]} to {runs[-1][1]}" if runs else ""),
            )
        if not is_settled(self.segments.table(), gaps, ledger_id, first, last):
            raise self.refused(edit, f"not everything between {edit.first} and {edit.last} is offloaded or a gap")
        self.changes["fills"] = tuple(sorted([*fills, edit], key=attrgetter("first")))

    def drop_fills(self) -> None:
        """Removes fills that no stream state can need, after segments have left.

        A restored stream would need a fill until the objects of the last segment of its ledger may be deleted.
        """
        self.changes["fills"] = tuple(each for each in self.now("fills") if not self._is_over(each))

    def _is_over(self, fill: GapFilled) -> bool:
        ledger_id = fill.first.ledger_id
        if not is_gone(ledger_id, self.fact(ledger_id), self.now("head")):
            return False
        return self.segments.overlapping(Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX)) is None

    def rewrite(self, edit: Rewrite) -> None:
        """Adds a segment in flight; the segments that hold its range keep it."""
        self.require_new(edit, edit.uuid)
        if edit.end < edit.begin:
            raise self.refused(edit, f"{edit.begin}..{edit.end} ends before it begins")
        self.changes["rewrites"] = (*self.now("rewrites"), self.promised(edit))

    def drop_promise(self, uuid: UUID) -> bool:
        """Removes a segment in flight; False if there was none of that name."""
        rewrites = self.now("rewrites")
        self.changes["rewrites"] = tuple(each for each in rewrites if each.uuid != uuid)
        return len(self.changes["rewrites"]) < len(rewrites)

    def replace(self, edit: Replace) -> None:
        """Replaces old segments by new ones that hold the same entries; ledgers marked as deleted may be left out."""
        old = [self.segment(edit, uuid, SegmentStatus.OFFLOADED) for uuid in edit.uuids]
        # Objects at the store's root, where Pulsar puts its own, aren't ours either: deletable ones are found by name.
        foreign = next((each.uuid for each in old if not each.owned or is_at_root(each.driver)), None)
        if foreign is not None:
            raise self.refused(edit, f"segment {foreign} doesn't belong to this project")
        promised = {each.uuid: each for each in self.now("rewrites")}
        new = [self._record(edit, each, promised.get(each.uuid)) for each in edit.by]
        self._require_same_entries(edit, old, new)
        self._require_known_borders(edit, old, new)
        replaced = (
            ReplacedSegment(
                uuid=each.uuid,
                ledger_id=each.v1_ledger_id,
                retire_record=self.record_id,
                object_bytes=each.object_bytes,
            )
            for each in old
        )
        self.changes["replaced"] = (*self.now("replaced"), *replaced)
        for each in old:
            self.drop_counted(each)
        for record in new:
            self.require_free(edit, record.begin, record.end)
            self.drop_promise(record.uuid)
            self.put_counted(record)

    def recover(self, edit: Recover) -> None:
        """Takes the new segments' ranges out of the gaps that hold them; the committed end doesn't change."""
        promised = {each.uuid: each for each in self.now("rewrites")}
        for each in edit.by:
            record = self._record(edit, each, promised.get(each.uuid))
            begin, end, gaps = record.begin, each.summary.end, self.now("gaps")
            at = bisect_right(gaps, begin, key=first_of) - 1
            if at < 0 or gaps[at].last < end:
                raise self.refused(edit, f"{begin}..{end} isn't in one gap")
            if any(fill.first <= end and fill.last >= begin for fill in self.now("fills")):
                raise self.refused(edit, f"a fill has entries of {begin}..{end}")
            gap = gaps[at]
            sides = Gap(gap.first, begin.previous(), gap.reason), Gap(end.next(), gap.last, gap.reason)
            self.changes["gaps"] = (*gaps[:at], *(side for side in sides if side.first <= side.last), *gaps[at + 1 :])
            self.require_free(edit, begin, end)
            self.require_after_head(edit, end)
            self.drop_promise(record.uuid)
            self.put_counted(record)

    def _record(self, edit: Replace | Recover, each: Rewritten, promised: AssignedSegment | None) -> SegmentRecord:
        summary = each.summary
        if promised is None:
            raise self.refused(edit, f"segment {each.uuid} wasn't announced by a rewrite, or has failed")
        if (int(summary.layout), summary.begin, summary.end) != (promised.layout, promised.begin, promised.end):
            raise self.refused(
                edit,
                f"{each.uuid} holds {summary.begin}..{summary.end}, announced was {promised.begin}..{promised.end}",
            )
        if summary.layout == 1:
            last = self.fact(summary.begin.ledger_id).last_entry_id
            if summary.begin.entry_id != 0 or summary.end.entry_id != last or summary.entries != last + 1:
                raise self.refused(edit, f"V1 segment {each.uuid} isn't the whole of a closed ledger")
        return _stored(assigned_record(promised), summary, edit.offloaded_ms)

    def _require_same_entries(self, edit: Replace, old: Iterable[SegmentRecord], new: Iterable[SegmentRecord]) -> None:
        before, after = self._runs(old), self._runs(new)
        if before != after:
            wrong = min(ledger_id for ledger_id in before | after if before.get(ledger_id) != after.get(ledger_id))
            held, found = _text(before.get(wrong)), _text(after.get(wrong))
            raise self.refused(edit, f"ledger {wrong}: the new segments hold {found}, the old ones {held}")

    def _runs(self, records: Iterable[SegmentRecord]) -> dict[int, list[_Run]]:
        """Ledger -> runs of consecutive entries, without entries deleted from the stream."""
        found: dict[int, list[_Run]] = {}
        for record in sorted(records, key=lambda each: each.begin):
            for span in record.spans:
                if self.fact(span.ledger_id).flags & DELETED:
                    continue
                runs = found.setdefault(span.ledger_id, [])
                run = (span.first_entry_id, span.last_entry_id, span.entries, span.payload_bytes)
                if runs and runs[-1][1] + 1 == run[0]:
                    run = (runs[-1][0], run[1], runs[-1][2] + run[2], runs[-1][3] + run[3])
                    runs.pop()
                runs.append(run)
        return found

    def _require_known_borders(self, edit: Replace, old: Iterable[SegmentRecord], new: Iterable[SegmentRecord]) -> None:
        """Requires a known ledger end at each ledger change that is within a segment before or after, but not both.

        Within a segment, its writer vouches for the ledger's end; between two segments, the manifest does. Nothing
        proves an unknown end, and an entry lost at a rollover would go unnoticed.
        """
        inside, now_inside = _ledger_changes(old), _ledger_changes(new)
        between = {(one.end, two.begin) for one, two in pairwise(sorted(new, key=lambda each: each.begin)) if one.end}
        closed = self.ledgers().closed
        for end, begin in sorted(inside & between | now_inside - inside):
            if not follows(end, begin, closed):
                why = f"ledger {end.ledger_id} isn't recorded as ending at {end.entry_id}, followed by {begin}"
                raise self.refused(edit, why)

    def restore(self, edit: Restore) -> None:
        """Moves the head back, and unmarks deleted ledgers.

        Raises:
            EditRefusedError: the head would advance, or no offloaded segment and no gap would hold something between.
        """
        head: Position | None = self.now("head")
        for ledger_id in edit.ledger_ids:
            fact = self.fact(ledger_id)
            self.facts[ledger_id] = fact._replace(flags=fact.flags & ~DELETED)
        if edit.head is not None:
            if head is None or edit.head > head:
                raise self.refused(edit, f"{edit.head} isn't before the head {head or '(none)'}")
            self._require_chain(edit, edit.head, head)
            self.changes["head"] = edit.head
        for ledger_id in edit.ledger_ids:
            last = self.fact(ledger_id).last_entry_id
            if last == LAST_UNKNOWN:
                raise self.refused(edit, f"ledger {ledger_id} isn't recorded as closed")
            missing = self.first_not_held(ledger_id, last)
            if missing is not None:
                raise self.refused(edit, f"entry {missing} isn't in any offloaded segment")

    def _require_chain(self, edit: Restore, first: Position, head: Position) -> None:
        """Requires consecutive ranges from ``first`` to the head."""
        if first == head:
            return
        before = head.previous()
        ranges = [(gap.first, gap.last) for gap in self.now("gaps") if gap.first <= before and gap.last >= first]
        for segment in self.segments.table().in_order(first, before):
            if segment.status is not SegmentStatus.OFFLOADED or segment.end is None:
                raise self.refused(edit, f"segment {segment.uuid} at {segment.begin} is {segment.status.value}")
            if segment.spans and self.is_gone(segment):
                # A concurrent truncation: with the marks cleanup would retire it again, after the head.
                raise self.refused(
                    edit, f"ledger {segment.spans[0].ledger_id} is still marked as deleted from the stream"
                )
            ranges.append((segment.begin, segment.end))
        absent = next(holes(first.previous(), ranges, self.ledgers().closed, until=head), None)
        if absent is not None:
            raise self.refused(
                edit, f"no segment or gap holds the entries after {absent[0].previous()}: the head remains at {head}"
            )
