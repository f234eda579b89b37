"""Facts that the source reported of ledgers: closed, deleted, released. Does no I/O.

Answers whether two positions follow each other without scanning all facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import ASIDE, DELETED, HOT_RELEASED, LAST_UNKNOWN, LedgerColumns, RunRef
from formats.entries import Position
from formats.manifest import FACT_UNKNOWN

__all__ = ["ClosedLedgers", "FlaggedLedgers", "LedgerFact", "LedgerTable", "SealedLedgers", "follows"]

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


class LedgerTable:
    """ledger id -> fact. Immutable.

    Attributes:
        sealed: facts in columns, the newest last; of a ledger in several, the last one counts.
        tail: facts that are newer than all of those.
    """

    __slots__ = ("sealed", "tail")

    def __init__(self, sealed: tuple[SealedLedgers, ...] = (), tail: Mapping[int, LedgerFact] | None = None) -> None:
        self.sealed = sealed
        self.tail: Mapping[int, LedgerFact] = {} if tail is None else tail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerTable) and all(map(np.array_equal, self._all(), other._all()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LedgerTable({sum(len(part.columns) for part in self.sealed)} sealed, {dict(self.tail)})"

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
        ids = [*self.tail, *(int(part.columns.ledger_id[-1]) for part in self.sealed if len(part.columns))]
        return max(ids, default=-1)

    def changed(self, facts: Mapping[int, LedgerFact]) -> LedgerTable:
        """A copy with ``facts`` replaced for their ledgers."""
        return LedgerTable(self.sealed, {**self.tail, **facts})

    def tail_columns(self) -> LedgerColumns:
        """The tail, in columns."""
        rows = sorted(self.tail.items())
        return LedgerColumns(
            ledger_id=np.array([ledger_id for ledger_id, _ in rows], dtype=np.int64),
            last_entry_id=np.array([fact.last_entry_id for _, fact in rows], dtype=np.int64),
            flags=np.array([fact.flags for _, fact in rows], dtype=np.uint8),
            payload_bytes=np.array([fact.payload_bytes for _, fact in rows], dtype=np.int64),
            created_ms=np.array([fact.created_ms for _, fact in rows], dtype=np.int64),
        )

    def merged(self) -> LedgerColumns:
        """All facts, one row each."""
        return LedgerColumns.merged([*(part.columns for part in self.sealed), self.tail_columns()])

    def _all(self) -> tuple[Any, ...]:
        merged = self.merged()
        return merged.ledger_id, merged.last_entry_id, merged.flags, merged.payload_bytes, merged.created_ms

    @property
    def closed(self) -> ClosedLedgers:
        return ClosedLedgers(self)

    @property
    def deleted(self) -> FlaggedLedgers:
        return FlaggedLedgers(self, DELETED)

    @property
    def hot_released(self) -> FlaggedLedgers:
        return FlaggedLedgers(self, HOT_RELEASED)

    @property
    def aside(self) -> FlaggedLedgers:
        return FlaggedLedgers(self, ASIDE)

    def follow(self, ends: tuple[Int64s, Int64s], begins: tuple[Int64s, Int64s]) -> NDArray[np.bool_]:
        """``follows`` for n pairs: whether no entry can lie between an end and a begin.

        Args:
            ends, begins: ledger ids and entry ids, each int64, shape (n,).
        """
        (end_ledger, end_entry), (begin_ledger, begin_entry) = ends, begins
        facts = self.merged()
        row = np.minimum(np.searchsorted(facts.ledger_id, end_ledger), max(len(facts) - 1, 0))
        if len(facts):
            is_last = (facts.ledger_id[row] == end_ledger) & (facts.last_entry_id[row] == end_entry)
        else:
            is_last = np.zeros(len(end_ledger), dtype=bool)
        filled = facts.ledger_id[facts.last_entry_id >= 0]
        none_between = np.searchsorted(filled, end_ledger, "right") >= np.searchsorted(filled, begin_ledger, "left")
        rolled = (begin_ledger > end_ledger) & (begin_entry == 0) & is_last & none_between
        follow: NDArray[np.bool_] = rolled | ((begin_ledger == end_ledger) & (begin_entry == end_entry + 1))
        return follow


class ClosedLedgers(Mapping[int, int]):
    """Ledger id -> last entry id (-1: empty), of the ledgers that the source closed."""

    __slots__ = ("_table",)

    def __init__(self, table: LedgerTable) -> None:
        self._table = table

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

    def __repr__(self) -> str:
        return f"ClosedLedgers({dict(self)})"

    def has_entries_between(self, low: int, high: int) -> bool:
        """Whether a ledger strictly between two is known to have entries."""
        if any(low < ledger_id < high and fact.last_entry_id >= 0 for ledger_id, fact in self._table.tail.items()):
            return True
        for part in self._table.sealed:
            ids = part.columns.ledger_id
            start, stop = np.searchsorted(ids, low, "right"), np.searchsorted(ids, high, "left")
            if start < stop and bool((part.columns.last_entry_id[start:stop] >= 0).any()):
                return True
        return False


class FlaggedLedgers(Set[int]):
    """The ledgers that have one mark."""

    __slots__ = ("_flag", "_table")

    def __init__(self, table: LedgerTable, flag: int) -> None:
        self._table = table
        self._flag = flag

    def __contains__(self, ledger_id: object) -> bool:
        return isinstance(ledger_id, int) and bool(self._table.get(ledger_id).flags & self._flag)

    def __iter__(self) -> Iterator[int]:
        facts = self._table.merged()
        return iter(facts.ledger_id[facts.flags & self._flag != 0].tolist())

    def __len__(self) -> int:
        return int((self._table.merged().flags & self._flag != 0).sum())

    def __repr__(self) -> str:
        return f"FlaggedLedgers({set(self)})"


def follows(end: Position, begin: Position, closed_ledgers: Mapping[int, int]) -> bool:
    """Whether no entry can lie between ``end`` and ``begin``.

    True for the next entry of a ledger, and for the first entry of a later ledger when the source reported that the
    earlier one ends at ``end`` and that all between are empty (else an entry lost at a rollover would go unnoticed).

    Args:
        end, begin: the two positions.
        closed_ledgers: ledger id -> last entry id (-1: empty), as reported by the source.
    """
    if begin.ledger_id == end.ledger_id:
        return begin.entry_id == end.entry_id + 1
    if begin.ledger_id < end.ledger_id or begin.entry_id != 0:
        return False
    if closed_ledgers.get(end.ledger_id) != end.entry_id:
        return False
    # Ledger ids aren't dense (BookKeeper assigns them across topics): only known ledgers can lie between.
    if isinstance(closed_ledgers, ClosedLedgers):
        return not closed_ledgers.has_entries_between(end.ledger_id, begin.ledger_id)
    return all(last == -1 for ledger, last in closed_ledgers.items() if end.ledger_id < ledger < begin.ledger_id)
