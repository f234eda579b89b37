"""Which entries of the hot tier no segment of the manifest holds or promises; pure.

Owns that comparison. Must never look at the store, nor take an entry for offloaded because a later one is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from uuid import UUID

from formats.entries import Position
from formats.manifest import Gap
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.write.hot.split import HistoryRange

__all__ = ["acknowledged_end", "partly_offloaded", "uncovered", "uncovered_ranges", "without_gaps"]

_Interval = tuple[Position, Position | None]
_ENTRY_ID_MAX = 2**63 - 1


def uncovered(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
) -> list[HistoryRange]:
    """What is still to be offloaded, in the stream's order.

    Args:
        state: the manifest; segments of every status and recorded gaps count as covered.
        ledgers: the hot tier's, ascending; what it says it will never give isn't to be offloaded.
        last: ignore what lies after it.
        given_up: segments that don't count: their range is to be offloaded anew.
    """
    present = [info for info in ledgers if info.entries and info.ledger_id not in state.deleted_ledgers]
    first = state.head
    prefix = state.prefix_end()
    if present and _begins_by(state, Position(present[0].ledger_id, 0)) and prefix is not None:
        # Nothing inside the prefix is missing, so that a long history needn't be walked.
        following = Position(prefix.ledger_id, prefix.entry_id + 1)
        first = following if first is None else max(first, following)
    segments = (
        (segment.begin, segment.end) for segment in state.segments.in_order(first) if segment.uuid not in given_up
    )
    gaps = ((gap.first, gap.last) for gap in state.gaps)
    covered = merge(segments, gaps, _holes(present), key=_begin_of)
    return uncovered_ranges(present, covered, first=first, last=last)


def uncovered_ranges(
    ledgers: Iterable[LedgerInfo],
    covered: Iterable[_Interval],
    *,
    first: Position | None = None,
    last: Position | None = None,
) -> list[HistoryRange]:
    """Entries of ``ledgers`` outside of ``covered``, from ``first`` to ``last``, as the longest runs there are.

    Args:
        ledgers: ascending.
        covered: begin and end, both included, by begins; without an end it goes on for ever.
    """
    found: list[HistoryRange] = []
    intervals = iter(covered)
    interval = next(intervals, None)
    joins = False
    for info in ledgers:
        if not info.entries:
            continue
        at, end = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
        at, end = at if first is None else max(at, first), end if last is None else min(end, last)
        joins = joins and at.entry_id == 0
        while at <= end:
            while interval is not None and interval[1] is not None and interval[1] < at:
                interval = next(intervals, None)
                joins = False  # what lies between may be in a ledger that the source has no more
            if interval is None or interval[0] > end:
                _add(found, at, end, joins=joins)
                joins = end.entry_id == info.last_entry_id
                break
            if interval[0] > at:
                _add(found, at, Position(info.ledger_id, interval[0].entry_id - 1), joins=joins)
            joins = False
            if interval[1] is None:
                return found
            at = Position(interval[1].ledger_id, interval[1].entry_id + 1)
    return found


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
            after = Position(gap.last.ledger_id, gap.last.entry_id + 1)
            found[at : at + 1] = [HistoryRange(found[at].begin, end), HistoryRange(after, found[at].end)]
    return found


def acknowledged_end(state: ManifestState, ledgers: Sequence[LedgerInfo]) -> Position | None:
    """Up to where a source may be told that it is safe: the committed end, unless something before it is missing.

    The committed end begins with the first range there is, which need not be the first entry the source has.
    """
    end = state.committed_end()
    if end is None:
        return None
    missing = uncovered(state, ledgers, last=end)
    if not missing:
        return end
    before = missing[0].begin
    if before.entry_id:
        return Position(before.ledger_id, before.entry_id - 1)
    earlier = [info for info in ledgers if info.entries and info.ledger_id < before.ledger_id]
    return Position(earlier[-1].ledger_id, earlier[-1].last_entry_id) if earlier else None


def partly_offloaded(state: ManifestState, info: LedgerInfo, given_up: Collection[UUID] = ()) -> bool:
    """Whether a V2 segment holds or promises some of a ledger's entries: then the rest of it goes the same way."""
    ends = Position(info.ledger_id, 0), Position(info.ledger_id, _ENTRY_ID_MAX)
    return any(segment.layout != 1 and segment.uuid not in given_up for segment in state.segments.in_order(*ends))


def _begins_by(state: ManifestState, position: Position) -> bool:
    """Whether the stream's first known range begins at ``position`` or before."""
    found = state.segments.in_order(None, position)
    begins = [segment.begin for segment in found[:1]] + [gap.first for gap in state.gaps[:1]]
    return bool(begins) and min(begins) <= position


def _holes(ledgers: Iterable[LedgerInfo]) -> Iterator[_Interval]:
    for info in ledgers:
        for first, last in info.not_given:
            yield Position(info.ledger_id, first), Position(info.ledger_id, last)


def _begin_of(interval: _Interval) -> Position:
    return interval[0]


def _add(found: list[HistoryRange], begin: Position, end: Position, *, joins: bool) -> None:
    if joins and found:
        found[-1] = HistoryRange(found[-1].begin, end)
    else:
        found.append(HistoryRange(begin, end))
