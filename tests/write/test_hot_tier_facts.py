"""Facts of a ledger for an index."""

from __future__ import annotations

import pytest

from formats.segment import LedgerFacts
from offloader.ledgers.base import LedgerInfo
from offloader.write.hot_tier import facts_of


@pytest.mark.parametrize(("closed_ms", "wanted"), [(5_000, 5_000), (None, 0)])
def test_facts_are_those_of_the_source(closed_ms: int | None, wanted: int) -> None:
    closed = closed_ms is not None
    info = LedgerInfo(ledger_id=7, closed=closed, entries=3, size_bytes=30, created_ms=4_000, closed_ms=closed_ms)
    assert facts_of(info) == LedgerFacts(ledger_id=7, closed=closed, size_bytes=30, closed_ms=wanted, created_ms=4_000)
