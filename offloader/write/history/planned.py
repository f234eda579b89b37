"""What a run over history is to make, and what came of it.

Owns these values. Must never read a tier or decide what is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from formats.entries import Position
from formats.segment import Layout, SegmentSummary
from offloader.ledgers.base import LedgerInfo

__all__ = ["HistoryPlan", "HistoryResult", "PlannedSegment"]


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """What becomes one segment.

    Attributes:
        ledger_ids: ledgers that had entries in it when it was planned. One of them that is gone when it is read was
            lost: nothing may go past it as if it had never been there.
    """

    layout: Layout
    begin: Position
    end: Position
    ledger_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, layout: Layout, begin: Position, end: Position, ledgers: Iterable[LedgerInfo]) -> PlannedSegment:
        """One that is planned while the source lists ``ledgers``."""
        first, last = begin.ledger_id, end.ledger_id
        ids = (info.ledger_id for info in ledgers if info.entries and first <= info.ledger_id <= last)
        return cls(layout, begin, end, tuple(ids))


class HistoryPlan(Protocol):
    """Which segments, in order. Asked by one thread at a time."""

    #: Whether the segments after one that can't be offloaded are offloaded all the same.
    goes_on_after_failure: bool

    def next(self) -> PlannedSegment | None:
        """The next segment, ``None``: that was all."""
        ...

    def uploaded(self, summary: SegmentSummary) -> None:
        """One of them is in the store."""
        ...


@dataclass(slots=True)
class HistoryResult:
    """What a run did.

    Attributes:
        offloaded: name and summary of each segment that is in the manifest now, in the order of commits.
        trimmed: segments whose ledger left the source meanwhile; no error.
        errors: of each segment that couldn't be offloaded, in the order in which they came up.
        committed: the committed end afterwards.
    """

    offloaded: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    trimmed: list[PlannedSegment] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    committed: Position | None = None

    def add(self, later: HistoryResult) -> None:
        """What a later run of the same stream did."""
        self.offloaded += later.offloaded
        self.trimmed += later.trimmed
        self.errors += later.errors
        self.committed = later.committed
