"""Rules for replacing segments and for undoing a truncation. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from uuid import UUID

from formats.checkpoint import DELETED, LAST_UNKNOWN, AssignedSegment, ReplacedSegment
from formats.entries import Position
from formats.manifest import Replace, Restore, Rewrite, Rewritten
from formats.segment import SegmentSummary
from offloader.manifest.ledger_table import follows
from offloader.manifest.segment_table import SegmentRecord, SegmentStatus, is_at_root
from offloader.manifest.state import RecordBuilder

__all__ = ["promise", "replace_segments", "restore_range", "without_promise"]

#: First entry, last entry, number of entries and payload bytes of one run of entries.
_Run = tuple[int, int, int, int]


def promise(draft: RecordBuilder, edit: Rewrite) -> None:
    """Adds a segment in flight; its range stays with the segments that hold it.

    Raises:
        EditRefused: the name is known, or the range lies in several ledgers.
    """
    draft.require_new(edit, edit.uuid)
    # Within a ledger, so that the neighbours follow each other by the same facts as before.
    if edit.begin.ledger_id != edit.end.ledger_id or edit.end < edit.begin:
        raise draft.refused(edit, f"{edit.begin}..{edit.end} isn't a part of one ledger")
    promised = AssignedSegment(
        uuid=edit.uuid,
        epoch=draft.now("epoch"),
        layout=edit.layout,
        begin=edit.begin,
        end=edit.end,
        assigned_ms=edit.assigned_ms,
        driver=edit.driver,
    )
    draft.changes["rewrites"] = (*draft.now("rewrites"), promised)


def without_promise(draft: RecordBuilder, uuid: UUID) -> bool:
    """Removes a segment in flight; False if there was none of that name."""
    left = tuple(each for each in draft.now("rewrites") if each.uuid != uuid)
    found = len(left) < len(draft.now("rewrites"))
    draft.changes["rewrites"] = left
    return found


def replace_segments(draft: RecordBuilder, edit: Replace) -> None:
    """Replaces the old segments by the new ones.

    Raises:
        EditRefused: an old one isn't readable or isn't ours, a new one wasn't promised, or together they hold different
            entries. Ledgers marked as deleted may be left out.
    """
    old = [draft.segment(edit, uuid, SegmentStatus.OFFLOADED) for uuid in edit.uuids]
    # Objects at the store's root, where Pulsar puts its own, aren't ours either: deletable objects are identified by
    # name.
    foreign = next((each.uuid for each in old if not each.owned or is_at_root(each.driver)), None)
    if foreign is not None:
        raise draft.refused(edit, f"segment {foreign} isn't ours")
    promised = {each.uuid: each for each in draft.now("rewrites")}
    new = [_record(draft, edit, each, promised.get(each.uuid)) for each in edit.by]
    _require_same_entries(draft, edit, old, new)
    _require_known_borders(draft, edit, old, new)
    replaced = list(draft.now("replaced"))
    for each in old:
        draft.sums = draft.sums.plus(each, -1)
        draft.segments.drop(each.uuid)
        assert each.summary is not None
        object_bytes = each.summary.data_bytes + each.summary.index_bytes
        replaced.append(
            ReplacedSegment(
                uuid=each.uuid,
                ledger_id=each.v1_ledger_id,
                retire_record=draft.record_id,
                object_bytes=object_bytes,
            )
        )
    draft.changes["replaced"] = tuple(replaced)
    for record in new:
        draft.require_free(edit, record.begin, record.end)
        without_promise(draft, record.uuid)
        draft.put_counted(record)


def _record(draft: RecordBuilder, edit: Replace, each: Rewritten, promised: AssignedSegment | None) -> SegmentRecord:
    summary = each.summary
    if promised is None:
        raise draft.refused(edit, f"segment {each.uuid} wasn't promised, or has failed")
    found = int(summary.layout), summary.begin, summary.end
    if found != (promised.layout, promised.begin, promised.end):
        raise draft.refused(
            edit, f"{each.uuid} holds {summary.begin}..{summary.end}, promised was {promised.begin}..{promised.end}"
        )
    if summary.layout == 1:
        last = draft.fact(summary.begin.ledger_id).last_entry_id
        if summary.begin.entry_id != 0 or summary.end.entry_id != last or summary.entries != last + 1:
            raise draft.refused(edit, f"V1 segment {each.uuid} isn't the whole of a closed ledger")
    return SegmentRecord(
        uuid=each.uuid,
        status=SegmentStatus.OFFLOADED,
        epoch=promised.epoch,
        layout=promised.layout,
        begin=promised.begin,
        end=summary.end,
        assigned_ms=promised.assigned_ms,
        offloaded_ms=edit.offloaded_ms,
        driver=promised.driver,
        summary=summary,
    )


def _require_same_entries(
    draft: RecordBuilder, edit: Replace, old: Iterable[SegmentRecord], new: Iterable[SegmentRecord]
) -> None:
    before, after = _runs(draft, old), _runs(draft, new)
    if before != after:
        wrong = min(ledger_id for ledger_id in before | after if before.get(ledger_id) != after.get(ledger_id))
        held, found = _text(before.get(wrong)), _text(after.get(wrong))
        raise draft.refused(edit, f"of ledger {wrong} the new segments hold {found}, the old ones {held}")


def _runs(draft: RecordBuilder, records: Iterable[SegmentRecord]) -> dict[int, list[_Run]]:
    """Ledger -> runs of consecutive entries, without entries deleted from the stream."""
    found: dict[int, list[_Run]] = {}
    for record in sorted(records, key=lambda each: each.begin):
        for span in _summary(record).ledgers:
            if draft.fact(span.ledger_id).flags & DELETED:
                continue
            runs = found.setdefault(span.ledger_id, [])
            run = (span.first_entry_id, span.last_entry_id, span.entries, span.payload_bytes)
            if runs and runs[-1][1] + 1 == run[0]:
                run = (runs[-1][0], run[1], runs[-1][2] + run[2], runs[-1][3] + run[3])
                runs.pop()
            runs.append(run)
    return found


def _text(runs: list[_Run] | None) -> str:
    return ", ".join(f"{first}..{last} ({count} entries, {size} bytes)" for first, last, count, size in runs or []) or (
        "nothing"
    )


def _require_known_borders(
    draft: RecordBuilder, edit: Replace, old: Iterable[SegmentRecord], new: Iterable[SegmentRecord]
) -> None:
    """Requires known ledger ends where new segments meet at a ledger change within an old one."""
    inside = {
        (Position(one.ledger_id, one.last_entry_id), Position(two.ledger_id, two.first_entry_id))
        for each in old
        for one, two in pairwise(_summary(each).ledgers)
    }
    closed = draft.ledgers().closed
    for one, two in pairwise(sorted(new, key=lambda each: each.begin)):
        assert one.end is not None
        if (one.end, two.begin) in inside and not follows(one.end, two.begin, closed):
            raise draft.refused(edit, f"ledger {one.end.ledger_id} isn't known to end at {one.end.entry_id}")


def _summary(record: SegmentRecord) -> SegmentSummary:
    assert record.summary is not None, "an offloaded segment has one"
    return record.summary


def restore_range(draft: RecordBuilder, edit: Restore) -> None:
    """Moves the head back, and unmarks deleted ledgers.

    Raises:
        EditRefused: the head would advance, or no offloaded segment and no gap would hold something between.
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


def _require_chain(draft: RecordBuilder, edit: Restore, first: Position, head: Position) -> None:
    """Requires consecutive ranges from ``first`` to the head."""
    if first == head:
        return
    closed = draft.ledgers().closed
    before = head.previous()
    ranges = [(gap.first, gap.last) for gap in draft.now("gaps")]
    for segment in draft.segments.table().in_order(first, before):
        if segment.status is not SegmentStatus.OFFLOADED or segment.end is None:
            raise draft.refused(edit, f"segment {segment.uuid} at {segment.begin} is {segment.status.value}")
        spans = () if segment.summary is None else segment.summary.ledgers
        if spans and all(draft.fact(span.ledger_id).flags & DELETED for span in spans):
            # A concurrent truncation: with the marks cleanup would retire it again, after the head.
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
