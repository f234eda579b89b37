"""Rules for replacing segments and for undoing a truncation. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from uuid import UUID

from formats.checkpoint import DELETED, LAST_UNKNOWN, AssignedSegment, ReplacedSegment
from formats.entries import Position
from formats.manifest import Replace, Restore, Rewrite, Rewritten
from offloader.manifest.ledger_table import follows
from offloader.manifest.segment_table import SegmentRecord, SegmentStatus, is_at_root
from offloader.manifest.state import RecordBuilder

#: First entry, last entry, number of entries and payload bytes of one run of entries.
_Run = tuple[int, int, int, int]


def _text(runs: list[_Run] | None) -> str:
    return ", ".join(f"{first}..{last} ({count} entries, {size} bytes)" for first, last, count, size in runs or []) or (
        "nothing"
    )


class ReplacingRules(RecordBuilder):
    """Precondition and effect of edits that replace segments or undo a truncation, in the method of their kind."""

    def rewrite(self, edit: Rewrite) -> None:
        """Adds a segment in flight; its range stays with the segments that hold it."""
        self.require_new(edit, edit.uuid)
        # Within a ledger, so that the neighbours follow each other by the same facts as before.
        if edit.begin.ledger_id != edit.end.ledger_id or edit.end < edit.begin:
            raise self.refused(edit, f"{edit.begin}..{edit.end} isn't a part of one ledger")
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
            raise self.refused(edit, f"segment {foreign} isn't ours")
        promised = {each.uuid: each for each in self.now("rewrites")}
        new = [self._record(edit, each, promised.get(each.uuid)) for each in edit.by]
        self._require_same_entries(edit, old, new)
        self._require_known_borders(edit, old, new)
        replaced = list(self.now("replaced"))
        for each in old:
            self.drop_counted(each)
            replaced.append(
                ReplacedSegment(
                    uuid=each.uuid,
                    ledger_id=each.v1_ledger_id,
                    retire_record=self.record_id,
                    object_bytes=each.object_bytes,
                )
            )
        self.changes["replaced"] = tuple(replaced)
        for record in new:
            self.require_free(edit, record.begin, record.end)
            self.drop_promise(record.uuid)
            self.put_counted(record)

    def _record(self, edit: Replace, each: Rewritten, promised: AssignedSegment | None) -> SegmentRecord:
        summary = each.summary
        if promised is None:
            raise self.refused(edit, f"segment {each.uuid} wasn't promised, or has failed")
        found = int(summary.layout), summary.begin, summary.end
        if found != (promised.layout, promised.begin, promised.end):
            raise self.refused(
                edit, f"{each.uuid} holds {summary.begin}..{summary.end}, promised was {promised.begin}..{promised.end}"
            )
        if summary.layout == 1:
            last = self.fact(summary.begin.ledger_id).last_entry_id
            if summary.begin.entry_id != 0 or summary.end.entry_id != last or summary.entries != last + 1:
                raise self.refused(edit, f"V1 segment {each.uuid} isn't the whole of a closed ledger")
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

    def _require_same_entries(self, edit: Replace, old: Iterable[SegmentRecord], new: Iterable[SegmentRecord]) -> None:
        before, after = self._runs(old), self._runs(new)
        if before != after:
            wrong = min(ledger_id for ledger_id in before | after if before.get(ledger_id) != after.get(ledger_id))
            held, found = _text(before.get(wrong)), _text(after.get(wrong))
            raise self.refused(edit, f"of ledger {wrong} the new segments hold {found}, the old ones {held}")

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
        """Requires known ledger ends where new segments meet at a ledger change within an old one."""
        inside = {
            (Position(one.ledger_id, one.last_entry_id), Position(two.ledger_id, two.first_entry_id))
            for each in old
            for one, two in pairwise(each.spans)
        }
        closed = self.ledgers().closed
        for one, two in pairwise(sorted(new, key=lambda each: each.begin)):
            assert one.end is not None
            if (one.end, two.begin) in inside and not follows(one.end, two.begin, closed):
                raise self.refused(edit, f"ledger {one.end.ledger_id} isn't known to end at {one.end.entry_id}")

    def restore(self, edit: Restore) -> None:
        """Moves the head back, and unmarks deleted ledgers.

        Raises:
            EditRefused: the head would advance, or no offloaded segment and no gap would hold something between.
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
                raise self.refused(edit, f"ledger {ledger_id} isn't known to be closed")
            missing = self.first_not_held(ledger_id, last)
            if missing is not None:
                raise self.refused(edit, f"entry {missing} isn't in any offloaded segment")

    def _require_chain(self, edit: Restore, first: Position, head: Position) -> None:
        """Requires consecutive ranges from ``first`` to the head."""
        if first == head:
            return
        closed = self.ledgers().closed
        before = head.previous()
        ranges = [(gap.first, gap.last) for gap in self.now("gaps")]
        for segment in self.segments.table().in_order(first, before):
            if segment.status is not SegmentStatus.OFFLOADED or segment.end is None:
                raise self.refused(edit, f"segment {segment.uuid} at {segment.begin} is {segment.status.value}")
            if segment.spans and self.is_gone(segment):
                # A concurrent truncation: with the marks cleanup would retire it again, after the head.
                raise self.refused(edit, f"ledger {segment.spans[0].ledger_id} is still marked as gone from the stream")
            ranges.append((segment.begin, segment.end))
        reached: Position | None = None
        for begin, end in sorted(ranges):
            if end < first or begin > before:
                continue
            if begin > first if reached is None else not follows(reached, begin, closed):
                break
            reached = end
        if reached is None or not (reached >= before or follows(reached, head, closed)):
            raise self.refused(edit, f"nothing holds what comes after {reached or first}: the head stays at {head}")
