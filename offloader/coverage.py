"""Which positions of a stream are held, which are missing, and which ranges are contiguous. Does no I/O.

**Ranges.** A range is a first and a last position, both included. Positions are ordered as (ledger id, entry id).
``Position.next`` is the next entry id of the same ledger, whether or not that entry exists, so two ranges touch only
within a ledger. ``joined``, ``without`` and ``first_missing`` are set operations on ranges. They know nothing about
where ledgers end, and therefore also serve runs of entry ids within one ledger.

**Contiguity.** Entry ids of a ledger are dense, ledger ids aren't: BookKeeper assigns them across topics. No entry can
lie between the end of a range and the begin of a range in a later ledger only if the earlier ledger is known to end
there, the later range begins with entry 0, and no ledger between the two is known to have entries (``follows``).
Without these facts an entry that was lost at a rollover would go unnoticed, so an unknown ledger end is a hole
(``holes``) and not a gap of length zero. A hole extends to the next range: the length of a lost ledger is unknown.
``contiguous_end`` is the end of what readers see. It merges several ascending sequences of ranges, the compacted ones
in strides of columns.

**Missing.** A source lists whole ledgers. ``missing`` returns what it lists and nothing covers, as maximal runs. A run
crosses from one ledger to the next, but never something covered in between: that may be a ledger that the source lost.

**Gaps.** A recorded gap is a range that no segment holds and that the committed end passes. ``GapReason`` says why, and
decides whether entries are lost, whether the policy ``on_gap`` applies, and whether the hot copy is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from operator import attrgetter, itemgetter
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from formats.entries import Position
from formats.manifest import Gap, GapFilled

#: The highest id that an entry of a ledger may have.
ENTRY_ID_MAX = 2**63 - 1

#: First and last entry id of a ledger, both included.
Run = tuple[int, int]
#: First and last position, both included.
Range = tuple[Position, Position]
#: A range whose last position may be unknown (``None``): it is unbounded.
OpenRange = tuple[Position, Position | None]

_Edge = TypeVar("_Edge", int, Position)
_Edit = TypeVar("_Edit", Gap, GapFilled)


class GapReason(StrEnum):
    """Why a range is recorded as a gap. The values are in manifests, as the reasons of gaps."""

    BEFORE_HEAD = "truncated while the stream wasn't offloaded"
    TRUNCATED = "truncated before it was offloaded"
    UNDELIVERED = "not delivered: the source stores them and gives them to nobody (markers, aborted transactions)"
    FILLED = "not delivered: readers aren't given these entries, a fill keeps them"
    LOST = "lost by the source: it lists them, and can't give them to anybody any more"
    ACCEPTED = "lost by the source, and accepted by an operator"
    UNCONFIRMED = "unconfirmed: the source lists them, gives them to nobody, and doesn't say that they are harmless"
    DELETED = "the hot tier has nothing there: its ledgers were deleted before they were offloaded"
    SOURCE_REPLACED = "the ledger database was replaced, and these entries aren't in the one that was accepted"
    UNRECOVERED = "lost"

    @classmethod
    def of(cls, gap: Gap) -> GapReason:
        """The reason of a recorded gap; a text of another version counts as lost entries."""
        return next((each for each in cls if each == gap.reason), cls.DELETED)

    @property
    def is_loss(self) -> bool:
        """Whether acknowledged entries are lost, or may be."""
        return self not in (self.BEFORE_HEAD, self.TRUNCATED, self.UNDELIVERED, self.FILLED)

    @property
    def may_block(self) -> bool:
        """Whether the policy ``block`` stops at such a gap: a loss that no operator has accepted."""
        return self.is_loss and self is not self.ACCEPTED

    @property
    def is_listed(self) -> bool:
        """Whether the source lists the entries."""
        return self in (self.UNDELIVERED, self.LOST, self.ACCEPTED, self.UNCONFIRMED)

    @property
    def keeps_hot_copy(self) -> bool:
        """Whether the hot copy may be the only place from which the entries can be recovered."""
        return self in (self.LOST, self.UNCONFIRMED) or self.may_be_filled

    @property
    def may_be_filled(self) -> bool:
        """Whether a writer whose hot tier lists the entries offloads them: nobody looked there before."""
        return self is self.UNRECOVERED


class LedgerEnds(Protocol):
    """What is known about the ends of closed ledgers."""

    def ends_at(self, position: Position) -> bool:
        """Whether the ledger of ``position`` is known to end there; entry id -1: to be empty."""

    def has_entries_between(self, low: int, high: int) -> bool:
        """Whether a ledger strictly between two is known to have entries."""


class KnownEnds(dict[int, int]):
    """Ledger id -> last entry id (-1: empty), of a few ledgers."""

    def ends_at(self, position: Position) -> bool:
        return self.get(position.ledger_id) == position.entry_id

    def has_entries_between(self, low: int, high: int) -> bool:
        return any(low < ledger_id < high and last >= 0 for ledger_id, last in self.items())


def joined(ranges: Iterable[tuple[_Edge, _Edge]]) -> list[tuple[_Edge, _Edge]]:
    """The same ids or positions, ascending; ranges that touch or overlap are one."""
    found: list[tuple[_Edge, _Edge]] = []
    for first, last in sorted(ranges):
        if found and first <= _next(found[-1][1]):
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def without(ranges: Iterable[tuple[_Edge, _Edge]], others: Sequence[tuple[_Edge, _Edge]]) -> list[tuple[_Edge, _Edge]]:
    """The ids or positions of ``ranges`` that aren't in ``others``; both ascend and are disjoint."""
    found = []
    for low, high in ranges:
        start = bisect_left(others, low, key=itemgetter(1))
        for first, last in others[start : bisect_right(others, high, key=itemgetter(0))]:
            if first > low:
                found.append((low, _previous(first)))
            low = _next(last)
        if low <= high:
            found.append((low, high))
    return found


def first_missing(held: Iterable[Range], first: Position, last: Position) -> Position | None:
    """The first position of ``first`` .. ``last``, in one ledger, that no range holds; ``None``: there is none."""
    for begin, end in sorted(held):
        if begin <= first <= end:
            first = end.next()
    return first if first <= last else None


def unheld(named: Iterable[Range], held: Iterable[Range], after: Position | None) -> list[Range]:
    """Parts of the named ranges from ``after`` on that no held range has; ascending, and disjoint."""
    reached = after
    apart: list[Range] = []
    for first, last in sorted(named):
        begin = first if reached is None else max(first, reached)
        if begin <= last:
            apart.append((begin, last))
            reached = last.next()
    return without(apart, joined(held))


def follows(end: Position, begin: Position, ends: LedgerEnds) -> bool:
    """Whether no entry can lie between ``end`` and ``begin``.

    True for the next entry of a ledger, and for the first entry of a later ledger if the earlier one is known to end
    at ``end`` and no ledger between the two is known to have entries.
    """
    if begin.ledger_id == end.ledger_id:
        return begin.entry_id == end.entry_id + 1
    if begin.ledger_id < end.ledger_id or begin.entry_id != 0 or not ends.ends_at(end):
        return False
    return not ends.has_entries_between(end.ledger_id, begin.ledger_id)


class RangeSequence(Protocol):
    """Ascending, disjoint ranges. ``end_of_run`` is for ranges in columns, which are passed in strides."""

    def after(self, reached: Position | None) -> OpenRange | None:
        """The first range that begins after ``reached``; ``None``: there is none."""

    def end_of_run(self, begin: Position, end: Position, until: Position | None) -> Position:  # noqa: ARG002
        """The end of a contiguous run from ``begin`` .. ``end`` on, of ranges that begin before ``until``."""
        return end


class SortedRanges(RangeSequence):
    """Gaps as a ``RangeSequence``; ascending and disjoint."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._gaps = gaps

    def after(self, reached: Position | None) -> OpenRange | None:
        at = 0 if reached is None else bisect_right(self._gaps, reached, key=attrgetter("first"))
        return (self._gaps[at].first, self._gaps[at].last) if at < len(self._gaps) else None


def first_begin(sequences: Iterable[RangeSequence]) -> Position | None:
    """Where the first range begins, even one without an end; ``None`` if there is none."""
    return min((found[0] for each in sequences if (found := each.after(None)) is not None), default=None)


def contiguous_end(reached: Position | None, sequences: Sequence[RangeSequence], ends: LedgerEnds) -> Position | None:
    """End of the longest contiguous run of ranges after ``reached``.

    Args:
        reached: everything up to here is accounted for; ``None``: begin with the first range.
        sequences: the ranges of all are disjoint. A range without an end ends the run.
        ends: of ledgers.
    """
    while True:
        ahead = [(found, each) for each in sequences if (found := each.after(reached)) is not None]
        if not ahead:
            return reached
        (begin, end), nearest = min(ahead, key=lambda row: row[0][0])
        if end is None or (reached is not None and not follows(reached, begin, ends)):
            return reached
        until = min((found[0] for found, each in ahead if each is not nearest), default=None)
        reached = nearest.end_of_run(begin, end, until)


def holes(
    reached: Position, held: Iterable[OpenRange], ends: LedgerEnds, *, until: Position | None = None
) -> Iterator[Range]:
    """The ranges after ``reached`` in which entries may have existed and that no range holds.

    Args:
        reached: everything up to here is accounted for.
        held: in any order; an unbounded range counts as its first position.
        ends: of ledgers.
        until: the first position that isn't looked at; ``None``: end with the last range.
    """
    ranges = sorted((begin, end or begin) for begin, end in held)
    for begin, end in chain(ranges, () if until is None else [(until, until)]):
        if until is not None and begin > until:
            continue
        if begin > reached and not follows(reached, begin, ends):
            yield reached.next(), begin.previous()
        reached = max(reached, end)


class Part(NamedTuple):
    """The positions ``first`` .. ``last`` of the range ``whole``.

    Attributes:
        is_apart: whether something covered lies between this part and the one before.
    """

    whole: Range
    first: Position
    last: Position
    is_apart: bool


def outside(ranges: Iterable[Range], covered: Iterable[OpenRange]) -> Iterator[Part]:
    """The parts of ``ranges``, of one ledger each, outside of ``covered``.

    Args:
        ranges: ascending and disjoint.
        covered: by their begins; nothing is outside of an unbounded one.
    """
    intervals = iter(covered)
    interval, is_apart = next(intervals, None), False
    for whole in ranges:
        at, last = whole
        while at <= last:
            while interval is not None and interval[1] is not None and interval[1] < at:
                interval, is_apart = next(intervals, None), True
            if interval is None or interval[0] > last:
                yield Part(whole, at, last, is_apart)
                is_apart = False
                break
            if interval[0] > at:
                yield Part(whole, at, interval[0].previous(), is_apart)
            if interval[1] is None:
                return
            at, is_apart = interval[1].next(), True


def missing(
    listed: Iterable[Range],
    covered: Iterable[OpenRange],
    *,
    first: Position | None = None,
    last: Position | None = None,
    by_ledger: bool = False,
) -> list[Range]:
    """Positions of ``listed`` outside of ``covered``, from ``first`` to ``last``, as maximal runs.

    Args:
        listed: the entries of whole ledgers, ascending.
        covered: by their begins; without a last position it is unbounded.
        by_ledger: cut the runs at the ends of ledgers.
    """
    low, high = first or Position(0, 0), last or Position(ENTRY_ID_MAX, ENTRY_ID_MAX)
    wanted = ((max(begin, low), min(end, high)) for begin, end in listed)
    found: list[Range] = []
    for part in outside(wanted, covered):
        if found and not part.is_apart and not by_ledger:
            found[-1] = found[-1][0], part.last
        else:
            found.append((part.first, part.last))
    return found


def overlapping(edits: Sequence[_Edit], first: Position, last: Position) -> Sequence[_Edit]:
    """Those gaps or fills with a position in ``first`` .. ``last``; ``edits`` ascend and are disjoint."""
    begins, ends = attrgetter("first"), attrgetter("last")
    return edits[bisect_left(edits, first, key=ends) : bisect_right(edits, last, key=begins)]


def gap_runs(gaps: Sequence[Gap], ledger_id: int, first: int, last: int) -> list[Run]:
    """Runs of ids from ``first`` to ``last`` of a ledger that recorded gaps cover; those side by side are joined.

    Args:
        gaps: in the stream's order. One may begin or end in another ledger.
    """
    begin, end = Position(ledger_id, first), Position(ledger_id, last)
    cut = ((max(gap.first, begin), min(gap.last, end)) for gap in overlapping(gaps, begin, end))
    return joined((low.entry_id, high.entry_id) for low, high in cut if low <= high)


def runs_of(entry_ids: NDArray[np.int64]) -> list[Run]:
    """The runs of ascending ids, int64, shape (n,)."""
    if not len(entry_ids):
        return []
    breaks = np.flatnonzero(np.diff(entry_ids) != 1)
    starts, stops = entry_ids[np.append(0, breaks + 1)], entry_ids[np.append(breaks, len(entry_ids) - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def count_of(runs: Iterable[Run]) -> int:
    """How many ids the runs have."""
    return sum(high - low + 1 for low, high in runs)


def _next(edge: _Edge) -> _Edge:
    return edge.next() if isinstance(edge, Position) else edge + 1


def _previous(edge: _Edge) -> _Edge:
    return edge.previous() if isinstance(edge, Position) else edge - 1
