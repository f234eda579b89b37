"""Recorded information about ledgers: facts reported by the source, gaps and fills. Does no I/O.

Answers whether two positions follow each other without scanning all facts. A fill is an object with the entries of
recorded gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import DELETED, LAST_UNKNOWN, LedgerColumns, RunRef
from formats.entries import Position
from formats.manifest import FACT_UNKNOWN, Gap, GapFilled
from offloader.coverage import ENTRY_ID_MAX, Range, first_missing, overlapping
from offloader.manifest.segment_table import SegmentStatus, SegmentTable

Int64s = NDArray[np.int64]


class LedgerFact(NamedTuple):
    """Facts of one ledger."""

    last_entry_id: int = LAST_UNKNOWN
    flags: int = 0
    payload_bytes: int = FACT_UNKNOWN
    created_ms: int = FACT_UNKNOWN


_NOTHING = LedgerFact()


class SealedLedgers(NamedTuple):
    """Facts in columns, and the object that holds them, ``None`` if none does yet."""

    columns: LedgerColumns
    run: RunRef | None = None

    def row_of(self, ledger_id: int) -> int | None:
        ids = self.columns.ledger_id
        row = int(np.searchsorted(ids, ledger_id))
        return row if row < len(ids) and ids[row] == ledger_id else None


@dataclass(eq=False, slots=True)
class LedgerTable:
    """ledger id -> fact. Immutable.

    Attributes:
        sealed: facts in columns, the newest last; of a ledger in several, the last one counts.
        tail: facts that are newer than all of those.
    """

    sealed: tuple[SealedLedgers, ...] = ()
    tail: Mapping[int, LedgerFact] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerTable):
            return NotImplemented
        own, its = self.merged(), other.merged()
        return all(np.array_equal(getattr(own, each.name), getattr(its, each.name)) for each in fields(LedgerColumns))

    __hash__ = None  # type: ignore[assignment]

    def get(self, ledger_id: int) -> LedgerFact:
        found = self.tail.get(ledger_id)
        if found is not None:
            return found
        for part in reversed(self.sealed):
            row = part.row_of(ledger_id)
            if row is not None:
                return LedgerFact(*(getattr(part.columns, name).item(row) for name in LedgerFact._fields))
        return _NOTHING

    def newest_id(self) -> int:
        """The highest ledger with a fact; -1: none."""
        return max([-1, *self.tail, *(int(part.columns.ledger_id[-1]) for part in self.sealed if len(part.columns))])

    def changed(self, facts: Mapping[int, LedgerFact]) -> LedgerTable:
        """A copy with ``facts`` replaced for their ledgers."""
        return LedgerTable(self.sealed, {**self.tail, **facts})

    def tail_columns(self) -> LedgerColumns:
        """The tail, in columns."""
        rows = [(ledger_id, *fact) for ledger_id, fact in sorted(self.tail.items())]
        ids, last, flags, size, created = np.array(rows, np.int64).reshape(-1, 5).T.copy()
        return LedgerColumns(
            ledger_id=ids, last_entry_id=last, flags=flags.astype(np.uint8), payload_bytes=size, created_ms=created
        )

    def merged(self) -> LedgerColumns:
        """All facts, one row each."""
        return LedgerColumns.merged([*(part.columns for part in self.sealed), self.tail_columns()])

    @property
    def closed(self) -> ClosedLedgers:
        return ClosedLedgers(self)

    def follow(self, ends: tuple[Int64s, Int64s], begins: tuple[Int64s, Int64s]) -> NDArray[np.bool_]:
        """``follows`` for n pairs: whether no entry can lie between an end and a begin.

        Args:
            ends, begins: ledger ids and entry ids, each int64, shape (n,).
        """
        (end_ledger, end_entry), (begin_ledger, begin_entry) = ends, begins
        facts = self.merged()
        row = np.searchsorted(facts.ledger_id, end_ledger)
        ids, lasts = np.append(facts.ledger_id, -1), np.append(facts.last_entry_id, LAST_UNKNOWN)
        is_last = (ids[row] == end_ledger) & (lasts[row] == end_entry)
        filled = facts.ledger_id[facts.last_entry_id >= 0]
        none_between = np.searchsorted(filled, end_ledger, "right") >= np.searchsorted(filled, begin_ledger, "left")
        rolled = (begin_ledger > end_ledger) & (begin_entry == 0) & is_last & none_between
        follow: NDArray[np.bool_] = rolled | ((begin_ledger == end_ledger) & (begin_entry == end_entry + 1))
        return follow


@dataclass(eq=False, repr=False, slots=True)
class ClosedLedgers(Mapping[int, int]):
    """Ledger id -> last entry id (-1: empty), of the ledgers that the source closed."""

    _table: LedgerTable

    def __getitem__(self, ledger_id: int) -> int:
        last = self._table.get(ledger_id).last_entry_id
        if last == LAST_UNKNOWN:
            raise KeyError(ledger_id)
        return last

    def __iter__(self) -> Iterator[int]:
        facts = self._table.merged()
        return iter(facts.ledger_id[facts.last_entry_id != LAST_UNKNOWN].tolist())

    def __len__(self) -> int:
        return int((self._table.merged().last_entry_id != LAST_UNKNOWN).sum())

    def ends_at(self, position: Position) -> bool:
        return self._table.get(position.ledger_id).last_entry_id == position.entry_id

    def next_with_entries(self, ledger_id: int, *, before: int = ENTRY_ID_MAX) -> int | None:
        """The lowest ledger after that one, and below ``before``, which is known to have entries."""
        tail = self._table.tail.items()
        found = [each for each, fact in tail if ledger_id < each < before and fact.last_entry_id >= 0]
        for part in self._table.sealed:
            ids = part.columns.ledger_id
            start, stop = np.searchsorted(ids, ledger_id, "right"), np.searchsorted(ids, before, "left")
            found += ids[start + np.flatnonzero(part.columns.last_entry_id[start:stop] >= 0)[:1]].tolist()
        return min(found, default=None)

    def has_entries_between(self, low: int, high: int) -> bool:
        """Whether a ledger strictly between two is known to have entries."""
        return self.next_with_entries(low, before=high) is not None


@dataclass(eq=False, repr=False, slots=True)
class FlaggedLedgers(Set[int]):
    """The ledgers that have one mark."""

    _table: LedgerTable
    _flag: int

    def __contains__(self, ledger_id: object) -> bool:
        return isinstance(ledger_id, int) and bool(self._table.get(ledger_id).flags & self._flag)

    def __iter__(self) -> Iterator[int]:
        facts = self._table.merged()
        return iter(facts.ledger_id[facts.flags & self._flag != 0].tolist())

    def __len__(self) -> int:
        return int((self._table.merged().flags & self._flag != 0).sum())


def fills_in(fills: Sequence[GapFilled], ledger_id: int, first: int, last: int) -> Sequence[GapFilled]:
    """The fills that overlap ``first`` to ``last`` of a ledger; ``fills`` ascend and are disjoint."""
    return overlapping(fills, Position(ledger_id, first), Position(ledger_id, last))


def settled_ranges(segments: SegmentTable, gaps: Sequence[Gap], first: Position, last: Position) -> list[Range]:
    """The ranges of gaps, and of segments with objects, that have a position in ``first`` .. ``last``."""
    stored = (each for each in segments.in_order(first, last) if each.status is not SegmentStatus.ASSIGNED)
    return [
        *((gap.first, gap.last) for gap in overlapping(gaps, first, last)),
        *((each.begin, each.end or each.begin) for each in stored),
    ]


def is_settled(segments: SegmentTable, gaps: Sequence[Gap], ledger_id: int, first: int, last: int) -> bool:
    """Whether every id from ``first`` to ``last`` is in a gap or in a segment with objects.

    Then no later gap can lie there, which a fill of this range would lack.
    """
    begin, end = Position(ledger_id, first), Position(ledger_id, last)
    return first_missing(settled_ranges(segments, gaps, begin, end), begin, end) is None


def is_gone(ledger_id: int, fact: LedgerFact, head: Position | None) -> bool:
    """Whether a ledger is deleted from the stream, or lies wholly before its head."""
    if fact.flags & DELETED or head is None or head.ledger_id < ledger_id:
        return bool(fact.flags & DELETED)
    return head.ledger_id > ledger_id or LAST_UNKNOWN != fact.last_entry_id < head.entry_id
