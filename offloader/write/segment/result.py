"""What a finished segment answers to who waits for it.

Owns the proposal's ``OffloadResult``. Must never hold entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from formats.segment import SegmentSummary

__all__ = ["OffloadResult"]


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """What a finished segment holds (PIP-76 ``OffloadResult``). Without entries: no objects, no ``summary``."""

    uuid: UUID
    summary: SegmentSummary | None

    @property
    def begin_ledger_id(self) -> int:
        """-1 without entries, like the other three."""
        return self.summary.begin.ledger_id if self.summary else -1

    @property
    def begin_entry_id(self) -> int:
        return self.summary.begin.entry_id if self.summary else -1

    @property
    def end_ledger_id(self) -> int:
        return self.summary.end.ledger_id if self.summary else -1

    @property
    def end_entry_id(self) -> int:
        return self.summary.end.entry_id if self.summary else -1
