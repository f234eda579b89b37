"""Reads of the hot tier, its entries that the manifest doesn't cover, and gaps: found, and recorded by policy."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import takewhile
from math import ceil
from operator import itemgetter
from uuid import UUID

import numpy as np

from formats.entries import ENTRY_HEADER_BYTES, EntryBatch, Position
from formats.manifest import Gap, LedgerClosed
from formats.segment import LedgerFacts
from formats.summary import LedgerSpan
from offloader.coverage import ENTRY_ID_MAX, GapReason, Range, follows, missing, outside
from offloader.errors import CorruptError
from offloader.ledgers.base import LedgerInfo, LedgerSource, newest, newest_listed
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
        measured = measured or {}
        held = (info for info in ledgers if info.entries)
        pieces = [piece for info in held for piece in _pieces_of(info, measured.get(info.ledger_id, ()))]
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
    runs: list[tuple[int, int, float]] = []
    at = 0
    for span in known:
        runs.append((at, span.first_entry_id, mean * (span.first_entry_id - at)))
        runs.append((span.first_entry_id, span.last_entry_id + 1, span.payload_bytes))
        at = span.last_entry_id + 1
    runs.append((at, info.entries, mean * (info.entries - at)))
    return [
        (info.ledger_id, first, stop - first, payload_bytes + ENTRY_HEADER_BYTES * (stop - first))
        for first, stop, payload_bytes in runs
        if stop > first
    ]


def position_leaving(ledgers: Sequence[LedgerInfo], kept_bytes: int) -> Position | None:
    """The newest position to offload so that at most ``kept_bytes`` payload bytes remain in the hot tier.

    Walks from the newest ledger to the oldest; inside a ledger entries count evenly.

    Returns:
        ``None``: everything together is no larger than that.
    """
    left = float(kept_bytes)
    for info in sorted((info for info in ledgers if info.entries), key=lambda info: info.ledger_id, reverse=True):
        if info.size_bytes > left:
            return Position(info.ledger_id, info.last_entry_id - int(left * info.entries / info.size_bytes))
        left -= info.size_bytes
    return None


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
    gaps: Iterable[Gap] = (),
    by_ledger: bool = False,
) -> list[HistoryRange]:
    """Ranges still to be offloaded, in the stream's order.

    Args:
        state: the manifest; segments of every status and recorded gaps count as covered.
        ledgers: the hot tier's, ascending; entries marked as unreadable, and deleted ledgers, aren't offloaded.
        last: ignore entries after it.
        given_up: segments that don't count: their range is to be offloaded again.
        gaps: to be recorded; no range spans one.
        by_ledger: cut ranges at the ends of ledgers.
    """
    gone = state.deleted_ledgers
    deleted = {info.ledger_id for info in ledgers if info.ledger_id in gone}
    present = [info for info in ledgers if info.entries and info.ledger_id not in deleted]
    first = state.head
    prefix = state.prefix_end()
    if present and _begins_by(state, Position(present[0].ledger_id, 0)) and prefix is not None:
        # The prefix is complete, so a long history needn't be walked.
        first = newest(first, prefix.next())
    segments = (
        (segment.begin, segment.end) for segment in state.segments.in_order(first) if segment.uuid not in given_up
    )
    lost = ((gap.first, gap.last) for gap in merge(state.gaps, gaps, key=lambda gap: gap.first))
    not_given = (
        (Position(info.ledger_id, from_entry), Position(info.ledger_id, to_entry))
        for info in present
        for from_entry, to_entry in info.not_given
    )
    # A range over a deleted ledger would count as holding it, should the deletion be undone.
    left_out = ((Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX)) for ledger_id in sorted(deleted))
    covered = merge(segments, lost, not_given, left_out, key=itemgetter(0))
    found = missing(listed_ranges(ledgers), covered, first=first, last=last, by_ledger=by_ledger)
    return [HistoryRange(*each) for each in found]


def listed_ranges(ledgers: Iterable[LedgerInfo]) -> Iterator[Range]:
    """The entries of each ledger that isn't empty."""
    return (
        (Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)) for info in ledgers if info.entries
    )


def acknowledged_end(state: ManifestState, ledgers: Sequence[LedgerInfo]) -> Position | None:
    """The position to acknowledge to a source: the committed end, unless something before it is missing.

    The committed end begins with the first known range, which need not be the first entry the source has.
    """
    if (end := state.committed_end()) is None:
        return None
    absent = uncovered(state, ledgers, last=end)
    return listed_before(ledgers, absent[0].begin) if absent else end


def listed_before(ledgers: Sequence[LedgerInfo], position: Position) -> Position | None:
    """The entry before ``position``, which is one of ``ledgers``; ``None`` if that is their first one."""
    if position.entry_id:
        return position.previous()
    return newest_listed([info for info in ledgers if info.ledger_id < position.ledger_id])


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


@dataclass(frozen=True, slots=True)
class FoundGaps:
    """Records needed to make the manifest contiguous.

    Attributes:
        gaps: in the stream's order.
        ends: of ledgers, as the source knows or knew them, where the next range follows without a gap.
    """

    gaps: list[Gap]
    ends: list[LedgerClosed]


def why_not_given(info: LedgerInfo, run: tuple[int, int]) -> GapReason:
    """Reason of the gap for one of a ledger's runs ``not_given``."""
    if run in info.lost:
        return GapReason.ACCEPTED if info.is_loss_accepted else GapReason.LOST
    return GapReason.UNCONFIRMED if run in info.unconfirmed else GapReason.UNDELIVERED


def find_gaps(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
    seen: Mapping[int, int | None] | None = None,
) -> FoundGaps:
    """Find the gaps and ledger ends to record so that everything up to ``last`` can be committed.

    A gap lies between two ranges that are covered or still in the hot tier, where the source reports entries as
    unreadable, or where a promised range is in neither. The length of a lost ledger is unknown: a gap extends to the
    next entry.

    Args:
        state: the manifest; everything not given up counts as covered.
        ledgers: the hot tier's, ascending, read after ``state``.
        last: ignore gaps that begin after it.
        given_up: segments that don't count; their ranges were promised.
        seen: ledgers that had entries once -> the last one, ``None``: not known; they may not be listed any more.

    Raises:
        CorruptError: the source lists entries in a gap: nothing is decided.
    """
    ends = _LedgerEnds(state, ledgers, seen or {})
    reached = state.prefix_end()
    promised = ends.first_promised() if reached is None else None
    claims = _claims(state, given_up)
    found, unrecorded_ends = list[Gap](), list[LedgerClosed]()

    def add(first: Position | None, end: Position) -> None:
        if first is not None and first <= end:
            found.extend(_split_at_head(state, ledgers, first, end))

    unrecorded = _gap_not_given(state, ledgers, given_up)
    for item in _present(state, ledgers, last, given_up, list(unrecorded)):
        before = item.begin.previous()
        if reached is None:
            add(promised, before)
        elif not follows(reached, item.begin, ends):
            add(reached.next(), before)
        else:
            if item.begin.ledger_id != reached.ledger_id and reached.ledger_id not in state.closed_ledgers:
                unrecorded_ends.append(LedgerClosed(*reached))
            if (claim := bisect_right(claims, reached)) < len(claims):
                # No fact about that ledger, but it existed when the range was assigned.
                add(max(reached.next(), Position(claims[claim].ledger_id, 0)), before)
        if item in unrecorded:
            found.append(Gap(item.begin, item.end, unrecorded[item]))
        reached = item.end if reached is None else max(reached, item.end)
    newest = state.newest_end
    if newest is not None and (last is None or newest <= last) and (reached is None or reached < newest):
        add(promised if reached is None else reached.next(), newest)
    return FoundGaps([gap for gap in found if last is None or gap.first <= last], unrecorded_ends)


class _LedgerEnds:
    """Ledger ends known to the manifest or the source."""

    def __init__(self, state: ManifestState, ledgers: Iterable[LedgerInfo], seen: Mapping[int, int | None]) -> None:
        self._state = state
        self._recorded = state.closed_ledgers
        self._listed = {**seen, **{info.ledger_id: info.last_entry_id for info in ledgers if info.closed}}
        self._filled = sorted(
            each for each, end in self._listed.items() if end != -1 and each not in state.deleted_ledgers
        )

    def ends_at(self, position: Position) -> bool:
        """See ``LedgerEnds``. An end counts although the hot copy is deleted: it was evicted, or trimmed later."""
        known = self._recorded.get(position.ledger_id), self._listed.get(position.ledger_id)
        return position.entry_id in known

    def has_entries_between(self, low: int, high: int) -> bool:
        listed = bisect_left(self._filled, high) > bisect_right(self._filled, low)
        return listed or self._recorded.has_entries_between(low, high)

    def first_promised(self) -> Position | None:
        """Original begin of the stream, deleted or not: its first range, or the first ledger with entries."""
        state = self._state
        begins = [segment.begin for segment in state.segments.in_order()[:1]] + [gap.first for gap in state.gaps[:1]]
        gone = state.deleted_ledgers
        filled = [each for each, last in self._recorded.items() if last >= 0 and each not in gone] + self._filled[:1]
        begins += [Position(each, 0) for each in filled]
        return min(begins, default=None)


def _gap_not_given(
    state: ManifestState, ledgers: Sequence[LedgerInfo], given_up: Collection[UUID]
) -> dict[HistoryRange, GapReason]:
    """Permanently unreadable entries that nothing in the manifest covers yet, in the stream's order, with reasons.

    A source joins runs side by side, so part of a run may be recorded, or offloaded before it became unreadable.
    """
    prefix = state.prefix_end()
    low = max(each for each in (state.head, None if prefix is None else prefix.next(), Position(-1, 0)) if each)
    segments = ((each.begin, each.end) for each in state.segments.in_order(low) if each.uuid not in given_up)
    covered = merge(segments, ((gap.first, gap.last) for gap in state.gaps), key=itemgetter(0))
    reasons = {
        (max(low, Position(info.ledger_id, first)), Position(info.ledger_id, last)): why_not_given(info, (first, last))
        for info in ledgers
        if info.ledger_id not in state.deleted_ledgers
        for first, last in info.not_given
    }
    return {HistoryRange(part.first, part.last): reasons[part.whole] for part in outside(reasons, covered)}


def _present(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    last: Position | None,
    given_up: Collection[UUID],
    not_given: Sequence[HistoryRange],
) -> Iterator[HistoryRange]:
    """Covered ranges after the prefix, runs of entries in the hot tier, and unreadable ones, by their begins."""
    prefix = state.prefix_end()
    first = None if prefix is None else prefix.next()
    covered = (
        HistoryRange(segment.begin, segment.end)
        for segment in state.segments.in_order(first)
        if segment.end is not None and segment.uuid not in given_up
    )
    gaps = (HistoryRange(gap.first, gap.last) for gap in state.gaps if first is None or gap.first >= first)
    hot = uncovered(state, ledgers, last=last, given_up=given_up, by_ledger=True)
    runs = (run for run in hot if first is None or run.begin >= first)
    together = merge(covered, gaps, runs, not_given, key=lambda each: each.begin)
    return together if last is None else takewhile(lambda each: each.begin <= last, together)


def _claims(state: ManifestState, given_up: Collection[UUID]) -> list[Position]:
    """Positions that existed once, from the ranges given up and the newest promise, ascending."""
    left = [segment for segment in state.assigned() if segment.uuid in given_up]
    newest = _newest_promised(state)
    ends = {each.end for each in left if each.end is not None} | ({newest} if newest is not None else set())
    return sorted({each.begin for each in left} | ends)


def _newest_promised(state: ManifestState) -> Position | None:
    """The newest end of any range, of a failed one too: nothing else may know that its entries existed, and no live
    segment can follow it unless its ledger's end is recorded or a gap covers it."""
    newest = state.newest_end
    return None if newest is None or newest.ledger_id in state.deleted_ledgers else newest


def _split_at_head(state: ManifestState, ledgers: Sequence[LedgerInfo], first: Position, end: Position) -> list[Gap]:
    found: list[Gap] = []
    head = state.head
    if head is not None and first < head:
        found.append(Gap(first, min(end, head.previous()), GapReason.BEFORE_HEAD))
        first = head
    if first <= end:
        _require_absent(state, ledgers, first, end)
        found.append(Gap(first, end, GapReason.DELETED))
    return found


def _require_absent(state: ManifestState, ledgers: Sequence[LedgerInfo], first: Position, end: Position) -> None:
    for info in ledgers:
        begins, ends = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
        may_grow = info.ledger_id == first.ledger_id and not info.closed
        if info.ledger_id not in state.deleted_ledgers and (may_grow or first <= ends >= begins <= end):
            raise CorruptError(
                f"stream {state.stream}: {first} up to {end} isn't offloaded, and ledger {info.ledger_id} is still "
                "listed in this range",
                hint="nothing was committed after the gap: repair the hot tier",
            )


_log = logging.getLogger("offloader.stream")


def proven_gap(after: Position, begin: Position, ledgers: Iterable[LedgerInfo]) -> Gap | None:
    """The gap between the last offered entry and the next existing one, ``None`` when it isn't proven.

    Entries are lost for good when the source's own list, read *after* the gap was seen, has no ledger that could hold
    them, or marks them as unreadable. Other listed entries that it doesn't return are its error, not a gap.

    Args:
        after: the newest entry offered.
        begin: the entry that the source gives next.
        ledgers: all that exist, read after ``begin`` was seen.
    """
    known = {info.ledger_id: info for info in ledgers}
    own, missed = known.get(after.ledger_id), _first_listed_between(after, begin, known)
    if missed is not None:
        gap = _not_given(known[missed.ledger_id], missed)
        if gap is None or (own is not None and not own.closed and missed.ledger_id > after.ledger_id):
            return None
        if own is not None:
            return gap
        begin = missed  # the unreadable run there is a separate gap
    if not _reaches(known, begin.ledger_id) or (own is not None and not own.closed):
        return None
    # The ledgers' lengths are unknown by now: the gap extends to the next entry.
    return Gap(after.next(), begin.previous(), GapReason.DELETED)


def _reaches(known: Mapping[int, LedgerInfo], ledger_id: int) -> bool:
    """Whether a list is complete up to a ledger with returned entries. A list that begins after it is, too: the stream
    was truncated meanwhile up to there. An empty one proves nothing."""
    return ledger_id in known or (bool(known) and ledger_id < min(known))


def _first_listed_between(after: Position, begin: Position, known: Mapping[int, LedgerInfo]) -> Position | None:
    """The first entry that a source lists between two positions."""
    for ledger_id in sorted(each for each in known if after.ledger_id <= each <= begin.ledger_id):
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        end = begin.entry_id if ledger_id == begin.ledger_id else known[ledger_id].entries
        if first < end:
            return Position(ledger_id, first)
    return None


def _not_given(info: LedgerInfo, position: Position) -> Gap | None:
    """From ``position`` to the end of the unreadable run that holds it."""
    runs = ((first, last) for first, last in info.not_given if first <= position.entry_id <= last)
    return next((Gap(position, Position(info.ledger_id, run[1]), why_not_given(info, run)) for run in runs), None)


def gap_before(
    stream: str,
    read: HotRead,
    offered: Position | None,
    state: ManifestState,
    seen: Mapping[int, int],
    *,
    is_next: bool,
) -> Gap | None:
    """The proven gap before a read, ``None`` when the read begins with the expected entry.

    It ends where the manifest or the hot tier has entries.

    Args:
        stream: its name, for the error.
        read: the next entries of the source.
        offered: the newest entry offered, ``None``: none yet. Then the first entry ever seen is the stream's first.
        state: the manifest. A range assigned in it is still promised, as its first entry was seen, and so is the newest
            end of any range. The stream can't continue after it without a recorded gap, whatever else is known of its
            ledger.
        seen: closed ledgers that this stream saw: id -> last entry id (-1: empty).
        is_next: whether it comes right after ``offered``, as far as ledgers are known.

    Raises:
        CorruptError: the gap isn't proven; the source doesn't return entries it lists.
    """
    begin, after = read.batch.first, offered
    if offered is None or is_next:
        awaited = [segment.begin for segment in state.assigned() if offered is None or segment.begin > offered]
        newest = _newest_promised(state)
        if offered is not None and newest is not None and newest > offered:
            awaited.append(max(offered.next(), Position(newest.ledger_id, 0)))
        if offered is None:
            awaited += [Position(ledger_id, 0) for ledger_id, last in seen.items() if last >= 0]
        first = min(awaited, default=begin)
        if begin <= first:
            return None
        after = first.previous()
    assert after is not None
    gap = proven_gap(after, begin, read.ledgers)
    if gap is None:
        raise CorruptError(
            f"stream {stream}: the hot tier continues at {begin} after {after}, but it still lists entries in between",
            hint="nothing was committed after the gap: repair the hot tier",
        )
    there = next(iter(state.offloaded(gap.first, gap.last)), None)
    return gap if there is None else replace(gap, last=there.begin.previous())


def allowed_gaps(lost: Sequence[Gap], policy: str) -> tuple[list[Gap], Gap | None]:
    """The leading gaps that may be recorded, and the first one that the policy blocks at.

    Args:
        lost: proven, in the stream's order.
        policy: the setting ``on_gap``.
    """
    for number, gap in enumerate(lost):
        if policy == "block" and GapReason.of(gap).may_block:
            return list(lost[:number]), gap
    return list(lost), None


def blocked_at(stream: str, gap: Gap) -> CorruptError:
    """Error with which a stream stops at a gap that isn't to be recorded."""
    confirm = "let the source confirm them (doctor names the missing permission) and start again"
    remedy = confirm if gap.reason == GapReason.UNCONFIRMED else "restore the hot tier"
    return CorruptError(
        f"stream {stream}: entries {gap.first} up to {_end_of(gap)} are missing: {gap.reason}",
        hint=f"nothing was committed after them: {remedy}, or set on_gap = record to continue without them",
    )


def require_recording(stream: str, gap: Gap, policy: str) -> None:
    """Log a gap before it is recorded: an error if entries were lost, a warning if they may be.

    Args:
        policy: the setting ``on_gap``.

    Raises:
        CorruptError: the policy is to block.
    """
    reason = GapReason.of(gap)
    if policy == "block" and reason.may_block:
        raise blocked_at(stream, gap)
    doubt = logging.WARNING if reason is GapReason.UNCONFIRMED else logging.ERROR
    level = doubt if reason.is_loss else logging.INFO
    _log.log(level, "stream %s: recording a gap from %s up to %s: %s", stream, gap.first, _end_of(gap), gap.reason)


def _end_of(gap: Gap) -> str:
    return f"{gap.last.ledger_id}:0" if gap.last.entry_id < 0 else str(gap.last)
