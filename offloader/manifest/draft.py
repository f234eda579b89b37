"""A view that one record is changing; pure.

Owns what every kind of edit needs: looking at the segments as they are by now, claiming a range, taking note. Must
never change the view it began with, nor know an edit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from formats.checkpoint_ledgers import DELETED
from formats.entries import Position
from formats.manifest import Edit, Gap
from offloader.manifest.committed import committed_end_from, first_begin
from offloader.manifest.ledger_table import LedgerFact, LedgerTable
from offloader.manifest.segment_record import SegmentRecord, SegmentStatus
from offloader.manifest.segment_table import SegmentDraft, SegmentTable
from offloader.manifest.state import EditRefused, ManifestState

__all__ = ["Draft", "first_of"]


def first_of(gap: Gap) -> Position:
    """What gaps are ordered by."""
    return gap.first


class Draft:
    """A mutable copy of a view, for the length of one record.

    Args:
        state: the view, which stays as it is.
        record_id: the record that changes it.
    """

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
        base, gaps, head = self.base, self.now("gaps"), self.now("head")
        committed, begin = committed_end_from(base.committed, segments, gaps, ledgers), base.committed_from
        if base.committed is not None and begin is None and self.earliest is not None:
            # Whoever was told of the committed end keeps it: a range in front of it waits until the two meet.
            first = first_begin(base.segments, base.gaps)
            start = base.committed if first is None else min(first, base.committed)
            begin = start if self.earliest < start else None
        if begin is None or committed is None or (head is not None and head >= begin):
            return committed, None
        first = first_begin(segments, gaps)
        if first is None or first >= begin:
            return committed, None
        prefix = committed_end_from(None, segments, gaps, ledgers)
        return (committed, begin) if prefix is None or prefix < committed else (prefix, None)

    def now(self, name: str) -> Any:
        return self.changes.get(name, getattr(self.base, name))

    def ledgers(self) -> LedgerTable:
        return self.base.ledgers.changed(self.facts) if self.facts else self.base.ledgers

    def refused(self, edit: Edit, why: str) -> EditRefused:
        return EditRefused(f"stream {self.base.stream}: {edit.kind} in record {self.record_id}: {why}")

    def require_new(self, edit: Edit, uuid: UUID) -> None:
        """A name is used once: for a range, for a rewrite, and not again while objects of that name await deletion."""
        aside = (each.uuid for name in ("rewrites", "replaced") for each in self.now(name))
        if self.segments.get(uuid) is not None or uuid in aside:
            raise self.refused(edit, f"segment {uuid} exists already")

    def segment(self, edit: Edit, uuid: UUID, *statuses: SegmentStatus) -> SegmentRecord:
        found = self.segments.get(uuid)
        if found is None or found.status not in statuses:
            wanted = " or ".join(status.value for status in statuses)
            raise self.refused(edit, f"segment {uuid} is {found.status.value if found else 'unknown'}, not {wanted}")
        return found

    def require_free(self, edit: Edit, begin: Position, end: Position | None, *, but: UUID | None = None) -> None:
        """Ranges never overlap; a live one (no end yet) claims everything after its begin."""
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
        """What lies before the head is gone: a range there would begin a prefix that its neighbours can't continue."""
        head = self.now("head")
        if head is not None and end is not None and end < head:
            raise self.refused(edit, f"{end} lies before the head {head}")

    def claim(self, begin: Position, end: Position | None) -> None:
        """Takes note of a new range."""
        self.earliest = begin if self.earliest is None else min(self.earliest, begin)
        self.reach(end)

    def reach(self, end: Position | None) -> None:
        newest = self.now("newest_end")
        if end is not None and (newest is None or end > newest):
            self.changes["newest_end"] = end

    def put_counted(self, record: SegmentRecord) -> None:
        self.sums = self.sums.plus(record, 1)
        self.segments.put(record)

    def fact(self, ledger_id: int) -> LedgerFact:
        found = self.facts.get(ledger_id)
        return self.base.ledgers.get(ledger_id) if found is None else found

    def mark(self, ledger_ids: Iterable[int], flag: int) -> None:
        for ledger_id in ledger_ids:
            fact = self.fact(ledger_id)
            self.facts[ledger_id] = fact._replace(flags=fact.flags | flag)

    def first_not_held(self, ledger_id: int, last_entry_id: int) -> Position | None:
        """The first entry of a ledger that only its hot copy may have."""
        wanted, last = Position(ledger_id, 0), Position(ledger_id, last_entry_id)
        head = self.now("head")
        if self.fact(ledger_id).flags & DELETED:
            return None
        if head is not None and head > wanted:
            wanted = head
        table = self.segments.table()
        held = [(s.begin, s.end) for s in table.offloaded(wanted, last) if s.end]
        held += [(gap.first, gap.last) for gap in self.now("gaps")]
        for begin, end in sorted(held):
            if begin <= wanted <= end:
                wanted = (
                    Position(ledger_id, end.entry_id + 1) if end.ledger_id == ledger_id else Position(ledger_id + 1, 0)
                )
        return wanted if wanted <= last else None
