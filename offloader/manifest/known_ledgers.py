"""What a view of the manifest knows of a hot tier's ledgers; pure but for ``compare_source``, which asks the source."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from formats.checkpoint_ledgers import LAST_UNKNOWN
from formats.entries import Position
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.known import ComparedSource, KnownLedger, KnownLedgers
from offloader.manifest.state import ManifestState, SegmentRecord

__all__ = ["compare_source", "known_ledgers"]

_ENTRY_ID_MAX = 2**63 - 1


def known_ledgers(state: ManifestState, ledger_ids: Sequence[int]) -> KnownLedgers:
    """What ``state`` knows of some ledgers: their facts, segments and gaps."""
    found = {each: known for each in ledger_ids if (known := _known(state, each)) is not None}
    first, last = state.segments.in_order()[:1], state.prefix_end()
    begins = [segment.begin for segment in first] + [gap.first for gap in state.gaps[:1]]
    whole = (min(begins).ledger_id, last.ledger_id) if begins and last is not None else None
    return KnownLedgers(newest=state.newest_end, whole=whole, ledgers=found)


def compare_source(source: LedgerSource, state: ManifestState) -> None:
    """Has a source that can compare itself do so with ``state``; before its ledgers are listed for anything else.

    Raises: as ``ComparedSource.require_same``.
    """
    if isinstance(source, ComparedSource):
        source.require_same(partial(known_ledgers, state))


def _known(state: ManifestState, ledger_id: int) -> KnownLedger | None:
    fact = state.ledgers.get(ledger_id)
    last = None if fact.last_entry_id == LAST_UNKNOWN else fact.last_entry_id
    begin, end = Position(ledger_id, 0), Position(ledger_id, _ENTRY_ID_MAX)
    reached = max((_reached(segment, ledger_id) for segment in state.segments.in_order(begin, end)), default=-1)
    is_known = last is not None or fact.flags or reached >= 0
    if is_known or any(gap.first <= end and gap.last >= begin for gap in state.gaps):
        return KnownLedger(last, reached)
    return None


def _reached(segment: SegmentRecord, ledger_id: int) -> int:
    """The newest entry of a ledger that a segment is known to hold; -1: none. It may only pass over the ledger."""
    spans = () if segment.summary is None else segment.summary.ledgers
    held = [span.last_entry_id for span in spans if span.ledger_id == ledger_id]
    ends = [each for each in (segment.begin, segment.end) if each is not None]
    return max([*held, *(each.entry_id for each in ends if each.ledger_id == ledger_id)], default=-1)
