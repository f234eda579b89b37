"""A stream's shape, for a picture: its segments against the ledgers they hold, over entries and time.

Owns how a manifest's view becomes spans of entries. Must never look at an object.
"""

from __future__ import annotations

from offloader.errors import NotFound
from offloader.manifest.state import ManifestState
from offloader.picture import Span, StreamShape
from offloader.read.plan import readable_segments

__all__ = ["shape_of"]


def shape_of(state: ManifestState) -> StreamShape:
    """The readable segments of ``state`` and the parts of ledgers in them.

    Entries count from the first readable one; a gap is a place between two of them. Sizes are of the data objects, and
    payload bytes of ledgers.

    Raises:
        NotFound: nothing of the stream is readable, so there is nothing to draw.
    """
    segments: list[Span] = []
    ledgers: dict[int, Span] = {}
    timeline: list[tuple[int, int]] = []
    begins = []
    events = 0
    for number, record in enumerate(readable_segments(state), 1):
        summary = record.summary
        assert summary is not None, "readable segments are complete"
        begins.append((record.begin, events))
        timeline.append((events, summary.publish_time_min_ms))
        at = events
        for part in summary.ledgers:
            before = ledgers.get(part.ledger_id) or Span(f"ledger {part.ledger_id}", at, at, 0)
            at += part.entries
            ledgers[part.ledger_id] = Span(before.name, before.start, at, before.size_bytes + part.payload_bytes)
        segments.append(Span(f"segment {number}", events, at, summary.data_bytes))
        events = at
        timeline.append((events - 1, summary.publish_time_max_ms))
    if not segments:
        raise NotFound(f"stream {state.stream} has no readable segment", hint="offload something first")
    gaps = []
    for gap in state.gaps:
        after = next((before for begin, before in begins if begin > gap.last), events)
        gaps.append((after, f"gap {gap.first}..{gap.last}"))
    return StreamShape(state.stream, list(ledgers.values()), segments, timeline, gaps, where_ledgers="")
