"""Which ledgers a reader from before the streaming method can't read; pure.

Owns that list. Must never change anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.manifest.state import ManifestState

__all__ = ["StreamedLedger", "streamed_ledgers"]


@dataclass(frozen=True, slots=True)
class StreamedLedger:
    """A ledger with entries in V2 segments.

    Attributes:
        segments: V2 segments that hold entries of it; others may share them.
        entries, payload_bytes: in those.
    """

    ledger_id: int
    segments: int
    entries: int
    payload_bytes: int


def streamed_ledgers(state: ManifestState) -> list[StreamedLedger]:
    """The ledgers that only a reader of V2 segments can read, ascending (proposal: rollback guide)."""
    found: dict[int, StreamedLedger] = {}
    for segment in state.offloaded():
        if segment.layout == 1 or segment.summary is None:
            continue
        for span in segment.summary.ledgers:
            known = found.get(span.ledger_id, StreamedLedger(span.ledger_id, 0, 0, 0))
            found[span.ledger_id] = StreamedLedger(
                span.ledger_id,
                known.segments + 1,
                known.entries + span.entries,
                known.payload_bytes + span.payload_bytes,
            )
    return [found[ledger_id] for ledger_id in sorted(found)]
