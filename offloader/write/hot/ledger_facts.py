"""What a source says of a ledger, as an index wants to hear it.

Owns that step. Must never ask a source.
"""

from __future__ import annotations

from formats.segment import LedgerFacts
from offloader.ledgers.base import LedgerInfo

__all__ = ["facts_of"]


def facts_of(info: LedgerInfo) -> LedgerFacts:
    """What an index says of a ledger, from what its source says."""
    return LedgerFacts(
        ledger_id=info.ledger_id,
        closed=info.closed,
        size_bytes=info.size_bytes,
        closed_ms=info.closed_ms or 0,
        created_ms=info.created_ms,
    )
