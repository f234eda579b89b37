"""Which of the segments that were found make up the stream; pure.

Owns the choice between overlapping attempts and the proof that a ledger ends. Must never assume that nothing is
missing: where a ledger's end isn't proven it says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from formats.entries import Position
from formats.segment import Layout
from offloader.manifest.salvage import FoundSegment

__all__ = ["ChosenSegments", "choose_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSegments:
    """What a rebuilt manifest records.

    Attributes:
        recorded: disjoint, in the stream's order.
        overlapping: other attempts at the same entries; they stay where they are.
        before_head: they lie before the head; they stay as well.
        closed_ledgers: ledger id -> last entry id, of ledgers whose end is proven.
        unproven: last position found of ledgers that others follow, whose end nothing proves.
    """

    recorded: Sequence[FoundSegment]
    overlapping: Sequence[FoundSegment]
    before_head: Sequence[FoundSegment]
    closed_ledgers: Mapping[int, int]
    unproven: Sequence[Position]


def choose_segments(
    found: Sequence[FoundSegment], head: Position | None, closed_ledgers: Mapping[int, int]
) -> ChosenSegments:
    """Of overlapping attempts those that together hold the most entries, of equals the later epochs'.

    Args:
        found: any segments, each whole.
        head: what lies before it is left out; ``None``: nothing is.
        closed_ledgers: what is known of ledgers' ends from elsewhere.
    """
    before = [s for s in found if head is not None and s.summary.end < head]
    rest = [s for s in found if head is None or s.summary.end >= head]
    recorded = _most_entries(rest)
    taken = {(s.uuid, s.ledger_id) for s in recorded}
    overlapping = sorted(
        (s for s in rest if (s.uuid, s.ledger_id) not in taken), key=lambda s: (s.summary.begin, s.uuid)
    )
    ends = {**_proven_ends(recorded), **closed_ledgers}
    last = recorded[-1].summary.end.ledger_id if recorded else 0
    seen = {span.ledger_id: span.last_entry_id for s in recorded for span in s.summary.ledgers}
    return ChosenSegments(
        recorded=recorded,
        overlapping=overlapping,
        before_head=before,
        closed_ledgers=dict(sorted(ends.items())),
        unproven=[Position(i, seen[i]) for i in sorted(seen) if i != last and ends.get(i) != seen[i]],
    )


def _most_entries(found: Sequence[FoundSegment]) -> list[FoundSegment]:
    """Weighted interval scheduling: the best choice among the first n, by where they end."""
    ordered = sorted(found, key=lambda s: (s.summary.end, s.summary.begin, s.uuid))
    ends = [s.summary.end for s in ordered]
    best: list[tuple[int, int]] = [(0, 0)]
    before: list[int] = []
    for segment in ordered:
        before.append(bisect_left(ends, segment.summary.begin))
        entries, epochs = best[before[-1]]
        best.append(max(best[-1], (entries + segment.summary.entries, epochs + segment.epoch)))
    chosen, at = [], len(ordered)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(ordered[at - 1])
            at = before[at - 1]
    return chosen[::-1]


def _proven_ends(recorded: Sequence[FoundSegment]) -> dict[int, int]:
    ends: dict[int, int] = {}
    held: dict[int, tuple[int, int, int]] = {}
    whole: dict[int, int] = {}
    for segment in recorded:
        spans = segment.summary.ledgers
        # Its writer went on to the next ledger because the source said that this one ends here.
        ends |= {span.ledger_id: span.last_entry_id for span in spans[:-1]}
        if segment.summary.layout is Layout.V1:
            ends |= {span.ledger_id: span.last_entry_id for span in spans}
        for span in spans:
            first, last, size = held.get(span.ledger_id, (span.first_entry_id, -1, 0))
            held[span.ledger_id] = first, max(last, span.last_entry_id), size + span.payload_bytes
        whole |= segment.closed_bytes
    for ledger_id, size in whole.items():
        # All bytes that the ledger had when it was closed are here, from its first entry on.
        if ledger_id in held and held[ledger_id][0] == 0 and 0 < size == held[ledger_id][2]:
            ends.setdefault(ledger_id, held[ledger_id][1])
    return ends
