"""Reads of the hot tier, and its entries not covered by the manifest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice, takewhile
from math import ceil
from operator import itemgetter
from uuid import UUID

import numpy as np

from formats.entries import ENTRY_HEADER_BYTES, EntryBatch, Position
from formats.manifest import Gap
from formats.segment import LedgerFacts, LedgerSpan
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.ledger_table import ENTRY_ID_MAX
from offloader.manifest.state import ManifestState, SegmentRecord

#: Payload bytes of one read from the hot tier while catching up.
CATCH_UP_READ_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HotRead:
    """Entries of one ledger and, if they don't directly follow, the source's list of ledgers loaded afterwards."""

    batch: EntryBatch
    ledgers: list[LedgerInfo]


def read_next(source: LedgerSource, offered: Position | None, room_bytes: int) -> HotRead | None:
    """Read the entries after ``offered`` in the hot tier (``None``: from the beginning), or ``None`` at the end."""
    start = Position(0, 0) if offered is None else offered.next()
    batch = source.read(start, min(CATCH_UP_READ_BYTES, max(1, room_bytes)))
    if batch is None:
        return None
    # A ledger's end, its absence or a gap in it is certain only after a later entry was seen.
    return HotRead(batch, [] if offered is not None and batch.first == start else source.ledgers())


def facts_of(info: LedgerInfo) -> LedgerFacts:
    """Convert the source's ``LedgerInfo`` to the index's ``LedgerFacts``."""
    return LedgerFacts(
        ledger_id=info.ledger_id,
        closed=info.closed,
        size_bytes=info.size_bytes,
        closed_ms=info.closed_ms or 0,
        created_ms=info.created_ms,
    )


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """Positions that become one segment, or several; both ends included."""

    begin: Position
    end: Position

    @classmethod
    def of_ledger(cls, info: LedgerInfo) -> HistoryRange:
        """All entries of a ledger that isn't empty."""
        return cls(Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id))


#: Row of ``LedgerSizeEstimator``: entries of about equal sizes, with headers in ``bytes``.
_PIECE = np.dtype([("ledger", np.int64), ("first", np.int64), ("count", np.int64), ("bytes", np.float64)])


class LedgerSizeEstimator:
    """Converts between positions and byte offsets, estimated.

    Bytes are those of a segment: payloads and a 12-byte header each.

    Args:
        ledgers: ascending; empty ones don't matter.
        measured: ledger id -> runs of its entries whose bytes are known, in order, disjoint.
    """

    def __init__(
        self, ledgers: Iterable[LedgerInfo], measured: Mapping[int, Sequence[LedgerSpan]] | None = None
    ) -> None:
        pieces: list[tuple[int, int, int, float]] = []
        for info in ledgers:
            if info.entries:
                pieces += _pieces_of(info, (measured or {}).get(info.ledger_id, ()))
        table = np.array(pieces, dtype=_PIECE)
        self._ledger, self._first = table["ledger"], table["first"]
        self._count, self._bytes = table["count"], table["bytes"]
        self._ends = np.cumsum(self._bytes)

    def before(self, position: Position) -> float:
        """Bytes of all entries before ``position``."""
        row = int(np.searchsorted(self._ledger, position.ledger_id, side="left"))
        stop = int(np.searchsorted(self._ledger, position.ledger_id, side="right"))
        row += int(np.searchsorted(self._first[row:stop], position.entry_id, side="right"))
        if row == 0:
            return 0.0
        end, size, count = float(self._ends[row - 1]), float(self._bytes[row - 1]), int(self._count[row - 1])
        if self._ledger[row - 1] != position.ledger_id:
            return end
        return end - size + size * min(position.entry_id - int(self._first[row - 1]), count) / count

    def between(self, begin: Position, end: Position) -> float:
        """Bytes of the entries ``begin`` .. ``end``, both included."""
        return self.before(end.next()) - self.before(begin)

    def holding(self, size_bytes: float) -> Position:
        """The entry that contains the end of the first ``size_bytes`` bytes."""
        row = min(int(np.searchsorted(self._ends, size_bytes, side="left")), len(self._ends) - 1)
        inside = size_bytes - float(self._ends[row] - self._bytes[row])
        entry = ceil(inside * int(self._count[row]) / float(self._bytes[row]) - 1e-9) - 1
        entry = min(max(entry, 0), int(self._count[row]) - 1)
        return Position(int(self._ledger[row]), int(self._first[row]) + entry)

    def cut(self, wanted: HistoryRange, segment_bytes: int) -> HistoryRange:
        """The first segment of ``wanted``, cut into as few equal shares as fit ``segment_bytes``.

        Args:
            wanted: entries that exist, not empty.
            segment_bytes: the size of a segment; the entry that reaches a share's end is the last one in it.
        """
        total = self.between(wanted.begin, wanted.end)
        shares = ceil(total / segment_bytes)
        if shares <= 1:
            return wanted
        end = self.holding(self.before(wanted.begin) + total / shares)
        return HistoryRange(wanted.begin, min(max(end, wanted.begin), wanted.end))

    def segments(self, wanted: HistoryRange, segment_bytes: int) -> int:
        """Number of segments for ``wanted``."""
        return max(1, ceil(self.between(wanted.begin, wanted.end) / segment_bytes))


def _pieces_of(info: LedgerInfo, spans: Sequence[LedgerSpan]) -> list[tuple[int, int, int, float]]:
    """Runs of a ledger's entries with about equal sizes: ledger id, first entry, entries, bytes."""
    known = [span for span in spans if 0 <= span.first_entry_id <= span.last_entry_id < info.entries]
    seen = sum(span.entries for span in known)
    seen_bytes = sum(span.payload_bytes for span in known)
    rest_bytes = info.size_bytes - seen_bytes
    if rest_bytes < 0 or (seen and seen_bytes and not info.size_bytes):
        # The recorded size is wrong (Pulsar has closed ledgers with a recorded length of 0): use the measured bytes.
        rest_bytes = seen_bytes * (info.entries - seen) // max(seen, 1)
    mean = rest_bytes / (info.entries - seen) if info.entries > seen else 0.0
    pieces: list[tuple[int, int, int, float]] = []

    def add(first: int, stop: int, payload_bytes: float) -> None:
        if stop > first:
            pieces.append((info.ledger_id, first, stop - first, payload_bytes + ENTRY_HEADER_BYTES * (stop - first)))

    at = 0
    for span in known:
        add(at, span.first_entry_id, mean * (span.first_entry_id - at))
        add(span.first_entry_id, span.last_entry_id + 1, span.payload_bytes)
        at = span.last_entry_id + 1
    add(at, info.entries, mean * (info.entries - at))
    return pieces


def position_leaving(ledgers: Sequence[LedgerInfo], kept_bytes: int) -> Position | None:
    """The newest position to offload so that at most ``kept_bytes`` payload bytes stay behind.

    Walks from the newest ledger to the oldest; inside a ledger entries count evenly.

    Returns:
        ``None``: everything together is no larger than that.
    """
    left = float(kept_bytes)
    for info in sorted((info for info in ledgers if info.entries), key=lambda info: info.ledger_id, reverse=True):
        if info.size_bytes > left:
            stay = int(left * info.entries / info.size_bytes)
            return Position(info.ledger_id, info.last_entry_id - stay)
        left -= info.size_bytes
    return None


_Interval = tuple[Position, Position | None]


def is_left_out(state: ManifestState, info: LedgerInfo) -> bool:
    """Whether a ledger was deleted from the stream before any of it was offloaded or recorded as a gap."""
    if info.ledger_id not in state.deleted_ledgers:
        return False
    in_gap = any(gap.first.ledger_id <= info.ledger_id <= gap.last.ledger_id for gap in state.gaps)
    return not in_gap and not _segments_in(state, info)


def uncovered(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
) -> list[HistoryRange]:
    """Ranges still to be offloaded, in the stream's order.

    Args:
        state: the manifest; segments of every status and recorded gaps count as covered.
        ledgers: the hot tier's, ascending; entries marked as unreadable, and deleted ledgers, aren't offloaded.
        last: ignore entries after it.
        given_up: segments that don't count: their range is to be offloaded anew.
    """
    gone = state.deleted_ledgers
    deleted = {info.ledger_id for info in ledgers if info.ledger_id in gone}
    present = [info for info in ledgers if info.entries and info.ledger_id not in deleted]
    first = state.head
    prefix = state.prefix_end()
    if present and _begins_by(state, Position(present[0].ledger_id, 0)) and prefix is not None:
        # The prefix is complete, so a long history needn't be walked.
        following = prefix.next()
        first = following if first is None else max(first, following)
    segments = (
        (segment.begin, segment.end) for segment in state.segments.in_order(first) if segment.uuid not in given_up
    )
    gaps = ((gap.first, gap.last) for gap in state.gaps)
    not_given = (
        (Position(info.ledger_id, from_entry), Position(info.ledger_id, to_entry))
        for info in present
        for from_entry, to_entry in info.not_given
    )
    # A range over a deleted ledger would count as holding it, should the deletion be undone.
    left_out = ((Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX)) for ledger_id in sorted(deleted))
    covered = merge(segments, gaps, not_given, left_out, key=itemgetter(0))
    return uncovered_ranges(ledgers, covered, first=first, last=last)


def uncovered_ranges(
    ledgers: Iterable[LedgerInfo],
    covered: Iterable[_Interval],
    *,
    first: Position | None = None,
    last: Position | None = None,
) -> list[HistoryRange]:
    """Entries of ``ledgers`` outside of ``covered``, from ``first`` to ``last``, as maximal runs.

    Args:
        ledgers: ascending.
        covered: begin and end, both included, by begins; without an end it is unbounded.
    """
    found: list[HistoryRange] = []
    intervals = iter(covered)
    interval, joins = next(intervals, None), False
    for info in ledgers:
        if not info.entries:
            continue
        at, end = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
        at, end = at if first is None else max(at, first), end if last is None else min(end, last)
        joins = joins and at.entry_id == 0
        while at <= end:
            while interval is not None and interval[1] is not None and interval[1] < at:
                interval = next(intervals, None)
                joins = False  # the source may have lost a ledger in between
            if interval is None or interval[0] > end:
                _add(found, at, end, joins=joins)
                joins = end.entry_id == info.last_entry_id
                break
            if interval[0] > at:
                _add(found, at, Position(info.ledger_id, interval[0].entry_id - 1), joins=joins)
            joins = False
            if interval[1] is None:
                return found
            at = interval[1].next()
    return found


def cut_at_ledger_ends(ranges: Iterable[HistoryRange], ledgers: Iterable[LedgerInfo]) -> Iterator[HistoryRange]:
    """``ranges``, cut at ledger ends; all ascending."""
    filled = [info for info in ledgers if info.entries]
    at = 0
    for each in ranges:
        while filled[at].ledger_id < each.begin.ledger_id:
            at += 1
        for info in takewhile(lambda info: info.ledger_id <= each.end.ledger_id, islice(filled, at, None)):  # noqa: B023
            whole = HistoryRange.of_ledger(info)
            yield HistoryRange(max(each.begin, whole.begin), min(each.end, whole.end))


def without_gaps(
    ranges: Iterable[HistoryRange], gaps: Iterable[Gap], ledgers: Sequence[LedgerInfo]
) -> list[HistoryRange]:
    """``ranges``, cut where a gap lies between two of their ledgers; all ascending."""
    found = list(ranges)
    for gap in gaps:
        at = next((n for n, each in enumerate(found) if each.begin < gap.first <= each.end), None)
        if at is not None:
            before = [info for info in ledgers if info.entries and Position(info.ledger_id, 0) < gap.first][-1]
            end = min(Position(before.ledger_id, before.last_entry_id), found[at].end)
            after = gap.last.next()
            found[at : at + 1] = [HistoryRange(found[at].begin, end), HistoryRange(after, found[at].end)]
    return found


def acknowledged_end(state: ManifestState, ledgers: Sequence[LedgerInfo]) -> Position | None:
    """The position to acknowledge to a source: the committed end, unless something before it is missing.

    The committed end begins with the first known range, which need not be the first entry the source has.
    """
    end = state.committed_end()
    if end is None:
        return None
    missing = uncovered(state, ledgers, last=end)
    if not missing:
        return end
    before = missing[0].begin
    if before.entry_id:
        return before.previous()
    earlier = [info for info in ledgers if info.entries and info.ledger_id < before.ledger_id]
    return Position(earlier[-1].ledger_id, earlier[-1].last_entry_id) if earlier else None


def partly_offloaded(state: ManifestState, info: LedgerInfo, given_up: Collection[UUID] = ()) -> bool:
    """Whether a V2 segment holds or promises entries of a ledger: then the rest of it becomes V2 as well."""
    return any(segment.layout != 1 and segment.uuid not in given_up for segment in _segments_in(state, info))


def _segments_in(state: ManifestState, info: LedgerInfo) -> Sequence[SegmentRecord]:
    return state.segments.in_order(Position(info.ledger_id, 0), Position(info.ledger_id, ENTRY_ID_MAX))


def _begins_by(state: ManifestState, position: Position) -> bool:
    """Whether the stream's first known range begins at ``position`` or before."""
    found = state.segments.in_order(None, position)
    begins = [segment.begin for segment in found[:1]] + [gap.first for gap in state.gaps[:1]]
    return bool(begins) and min(begins) <= position


def _add(found: list[HistoryRange], begin: Position, end: Position, *, joins: bool) -> None:
    if joins and found:
        found[-1] = HistoryRange(found[-1].begin, end)
    else:
        found.append(HistoryRange(begin, end))
