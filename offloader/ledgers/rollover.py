"""When a ledger ends and the next begins.

Owns the three decisions of rollover, as pure functions. Must never read a clock or a database.
"""

from __future__ import annotations

import numpy as np

from formats.entries import EntryBatch
from offloader.ledgers.base import LedgerInfo
from offloader.settings import LedgerSettings

__all__ = ["is_full", "must_roll", "room"]

_MS_PER_MINUTE = 60_000


def is_full(ledger: LedgerInfo, settings: LedgerSettings) -> bool:
    """Whether a ledger has reached a size at which it closes at once."""
    return ledger.size_bytes >= settings.ledger_bytes_max or ledger.entries >= settings.ledger_entries_max


def must_roll(ledger: LedgerInfo, now_ms: int, settings: LedgerSettings) -> bool:
    """Whether the open ledger takes no more entries: full, or old. One without entries takes some, whatever its age."""
    age_ms = now_ms - ledger.created_ms
    old = age_ms >= settings.ledger_age_minutes_max * _MS_PER_MINUTE
    return ledger.entries > 0 and (old or is_full(ledger, settings))


def room(ledger: LedgerInfo, batch: EntryBatch, settings: LedgerSettings) -> int:
    """How many leading entries of ``batch`` go into a ledger that isn't full: up to the one that fills it, included."""
    offsets = batch.offsets
    target = int(offsets[0]) + settings.ledger_bytes_max - ledger.size_bytes
    filling = int(np.searchsorted(offsets[1:], target, side="left")) + 1
    return min(filling, settings.ledger_entries_max - ledger.entries, len(batch))
