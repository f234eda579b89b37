"""The proposal's ``OffloadContext`` of one ledger, made from a manifest; pure.

Owns the translation. Must never add what the manifest doesn't say.
"""

from __future__ import annotations

from formats.entries import Position
from formats.metadata.messages import OffloadContext, OffloadSegment
from offloader.manifest.state import ManifestState, SegmentRecord, SegmentStatus

__all__ = ["offload_context"]

#: Name of the driver in recorded driver metadata.
DRIVER_KEY = "managedLedgerOffloadDriver"
_ENTRY_ID_MAX = 2**63 - 1


def offload_context(state: ManifestState, ledger_id: int) -> OffloadContext:
    """Where the entries of a ledger are, in Pulsar's words (PIP-76, metadata changes).

    A ledger in one V1 object has the attempt's uuid and ``complete``. A ledger in V2 segments lists them in order, each
    with the ledger's last entry in it; ``uuid`` is the first one's, ``complete`` stays false: so says the proposal.

    Args:
        state: the manifest's view.
        ledger_id: the ledger; one that the manifest doesn't know has an empty context.
    """
    ends = Position(ledger_id, 0), Position(ledger_id, _ENTRY_ID_MAX)
    found = [s for s in state.segments.in_order(*ends) if s.status is not SegmentStatus.RETIRED]
    pieces = [(segment, end) for segment in found if (end := _end_in(segment, ledger_id)) is not None]
    if not pieces:
        return OffloadContext()
    first, _ = pieces[0]
    if first.layout == 1:
        return OffloadContext(
            uuid=first.uuid,
            complete=first.status is SegmentStatus.OFFLOADED,
            timestamp_ms=first.offloaded_ms or first.assigned_ms,
            driver_name=first.driver.get(DRIVER_KEY, ""),
            driver_metadata=first.driver,
        )
    return OffloadContext(
        uuid=first.uuid,
        timestamp_ms=first.assigned_ms,
        driver_name=first.driver.get(DRIVER_KEY, ""),
        driver_metadata=first.driver,
        segments=tuple(
            OffloadSegment(
                uuid=segment.uuid,
                complete=segment.status is SegmentStatus.OFFLOADED,
                assigned_ms=segment.assigned_ms,
                offloaded_ms=segment.offloaded_ms,
                end_entry_id=end if end >= 0 else None,
                driver_name=segment.driver.get(DRIVER_KEY, ""),
                driver_metadata=segment.driver,
            )
            for segment, end in pieces
        ),
    )


def _end_in(segment: SegmentRecord, ledger_id: int) -> int | None:
    """The ledger's last entry in the segment, -1 while that is open; ``None`` when it has none."""
    if segment.summary is not None:
        return next((span.last_entry_id for span in segment.summary.ledgers if span.ledger_id == ledger_id), None)
    if segment.end is not None:
        inside = segment.begin.ledger_id <= ledger_id <= segment.end.ledger_id
        return -1 if inside else None
    return -1 if segment.begin.ledger_id == ledger_id else None
