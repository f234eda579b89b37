"""A stream's shape as a document, small enough to be sent again and again.

Owns how much of it is told. Must never draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offloader.picture import Span, StreamShape, thinned

__all__ = ["shape_document"]

#: Ledgers, and segments; where there are more, neighbours are told as one.
BARS_MAX = 400
#: Points between entries and time.
POINTS_MAX = 800
#: Gaps that are told.
GAPS_MAX = 200


def shape_document(shape: StreamShape) -> dict[str, Any]:
    """``{"ledgers", "segments", "timeline", "gaps", "ledgers_total", "segments_total", "is_thinned"}``.

    A span is ``{"name", "start", "stop", "size_bytes"}`` in entries of the stream; ``timeline`` is pairs of entries
    before and publish time in ms (-1: unknown), ``gaps`` of entries before and what is missing there.
    """
    ledgers, segments = thinned(shape.ledgers, BARS_MAX), thinned(shape.segments, BARS_MAX)
    step = -(-len(shape.timeline) // POINTS_MAX) or 1
    # From the end, so that the last point is always among them; the first one is where the axis begins.
    points = [shape.timeline[0], *reversed(shape.timeline[:0:-step])] if shape.timeline else []
    return {
        "ledgers": _spans(ledgers),
        "segments": _spans(segments),
        "timeline": [list(point) for point in points],
        "gaps": [list(gap) for gap in shape.gaps[:GAPS_MAX]],
        "ledgers_total": len(shape.ledgers),
        "segments_total": len(shape.segments),
        "is_thinned": len(ledgers) < len(shape.ledgers) or len(segments) < len(shape.segments),
    }


def _spans(spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "start": each.start, "stop": each.stop, "size_bytes": each.size_bytes} for each in spans
    ]
