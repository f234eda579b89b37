"""Which ledgers a reader from before the streaming method can't read, and what has to be rewritten for it; pure.

Owns that plan. Must never look at the store, nor leave an entry of a segment that goes without a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from formats.entries import Position
from formats.segment import Layout, LedgerSpan
from offloader.manifest.segment_record import is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.write.history.planned import PlannedSegment

__all__ = ["RewriteGroup", "StreamedLedger", "next_group", "streamed_ledgers"]

#: Segments that one group replaces.
GROUP_SEGMENTS_MAX = 256


@dataclass(frozen=True, slots=True)
class StreamedLedger:
    """A ledger that an old reader can't read: it has entries in V2 segments, or in compressed blocks.

    Attributes:
        segments: that hold entries of it; others may share them.
        entries, payload_bytes: in those.
        obstacle: why it can't be rewritten, for people; empty: it can.
    """

    ledger_id: int
    segments: int
    entries: int
    payload_bytes: int
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """What one record replaces.

    Attributes:
        old: segments that go.
        new: what takes their place, in the stream's order: whole ledgers (V1), and of the ledgers that stay as they are
            what the old segments hold (V2).
    """

    old: tuple[SegmentRecord, ...]
    new: tuple[PlannedSegment, ...]

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers that an old reader can read afterwards."""
        return [each.begin.ledger_id for each in self.new if each.layout is Layout.V1]


@dataclass(slots=True)
class _Found:
    """What segments hold of one ledger."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    segments: int = 0
    entries: int = 0
    payload_bytes: int = 0
    foreign: SegmentRecord | None = None

    def add(self, segment: SegmentRecord, span: LedgerSpan) -> None:
        self.segments += 1
        self.entries += span.entries
        self.payload_bytes += span.payload_bytes
        if not segment.owned or is_at_root(segment.driver):
            self.foreign = segment
        if self.runs and self.runs[-1][1] + 1 == span.first_entry_id:
            self.runs[-1] = (self.runs[-1][0], span.last_entry_id)
        else:
            self.runs.append((span.first_entry_id, span.last_entry_id))


def streamed_ledgers(state: ManifestState) -> list[StreamedLedger]:
    """The ledgers that an old reader can't read, ascending (proposal: rollback guide)."""
    found: dict[int, _Found] = {}
    for segment, span in _spans(_unreadable(state.offloaded())):
        found.setdefault(span.ledger_id, _Found()).add(segment, span)
    return [
        StreamedLedger(ledger_id, of.segments, of.entries, of.payload_bytes, _obstacle(state, ledger_id, of))
        for ledger_id, of in sorted(found.items())
    ]


def next_group(state: ManifestState, wanted: Sequence[int], bytes_max: int) -> RewriteGroup | None:
    """The first group of those that make ``wanted`` readable; ``None``: there is nothing of them to be rewritten.

    Whole segments go, as long as they hold wanted ledgers and until they are enough and have completed one. So little
    is written twice: only what the first and the last one hold of ledgers that aren't complete in them.

    Args:
        state: the manifest as it is now.
        wanted: ledger ids without an obstacle, ascending.
        bytes_max: object bytes from which on a group ends; it also ends at ``GROUP_SEGMENTS_MAX`` segments.
    """
    if not wanted:
        return None
    left, missing, complete = set(wanted), dict[int, int](), set[int]()
    old, old_bytes = list[SegmentRecord](), 0
    for segment in _unreadable(state.offloaded(Position(wanted[0], 0))):
        assert segment.summary is not None
        spans = [span for span in segment.summary.ledgers if span.ledger_id in left]
        if not spans:
            if old:
                break
            continue
        old.append(segment)
        old_bytes += segment.summary.data_bytes
        for span in spans:
            entries = missing.get(span.ledger_id, state.closed_ledgers[span.ledger_id] + 1) - span.entries
            missing[span.ledger_id] = entries
            if not entries:
                complete.add(span.ledger_id)
        if complete and (old_bytes >= bytes_max or len(old) >= GROUP_SEGMENTS_MAX):
            break
    return RewriteGroup(tuple(old), tuple(_new(state, complete, old))) if complete else None


def _new(state: ManifestState, complete: set[int], old: Sequence[SegmentRecord]) -> Iterator[PlannedSegment]:
    """What takes the place of ``old``: runs of entries, one of each ledger at a time."""
    found: dict[int, _Found] = {}
    for segment, span in _spans(old):
        if span.ledger_id not in state.deleted_ledgers:
            found.setdefault(span.ledger_id, _Found()).add(segment, span)
    for ledger_id, of in sorted(found.items()):
        layout = Layout.V1 if ledger_id in complete else Layout.V2
        for first, last in of.runs:
            yield PlannedSegment(layout, Position(ledger_id, first), Position(ledger_id, last))


def _unreadable(segments: Sequence[SegmentRecord]) -> Iterator[SegmentRecord]:
    """Those that an old reader can't read."""
    for segment in segments:
        assert segment.summary is not None, "an offloaded segment has one"
        if segment.layout != 1 or segment.summary.compressed:
            yield segment


def _spans(segments: Iterator[SegmentRecord] | Sequence[SegmentRecord]) -> Iterator[tuple[SegmentRecord, LedgerSpan]]:
    for segment in segments:
        assert segment.summary is not None, "an offloaded segment has one"
        for span in segment.summary.ledgers:
            yield segment, span


def _obstacle(state: ManifestState, ledger_id: int, of: _Found) -> str:
    """Why a ledger can't become one V1 object; empty: it can."""
    if ledger_id in state.deleted_ledgers:
        return "it is deleted from the stream"
    if of.foreign is not None:
        return f"segment {of.foreign.uuid} is adopted and isn't ours to replace"
    last = state.closed_ledgers.get(ledger_id)
    if last is None:
        return "it isn't known to be closed"
    if state.head is not None and state.head > Position(ledger_id, 0):
        return f"the stream begins at {state.head}"
    missing = _missing(of, last)
    if missing is not None:
        gap = next((g for g in state.gaps if g.first <= Position(ledger_id, missing[0]) <= g.last), None)
        why = "aren't offloaded" if gap is None else f"are a gap ({gap.reason})"
        return f"entries {missing[0]}..{missing[1]} {why}"
    committed = state.committed_end()
    if committed is None or committed < Position(ledger_id, last):
        return f"the stream is committed to {committed or 'nothing'} only"
    return ""


def _missing(of: _Found, last: int) -> tuple[int, int] | None:
    """The first entries of a ledger that no segment has."""
    expected = 0
    for first, end in of.runs:
        if first > expected:
            return expected, first - 1
        expected = end + 1
    if expected <= last:
        return expected, last
    # Inside a segment there may be holes that only the count tells of.
    return None if of.entries == last + 1 else (0, last)
