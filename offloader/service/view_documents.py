"""Documents for a view: a timeline, and a topic made of its partitions. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from offloader.plot import StreamTimeline, thinned

#: Bars of ledgers, and of segments; above it neighbours are merged.
BARS_MAX = 400
#: Points of entries over time.
POINTS_MAX = 800
#: Gaps listed.
GAPS_MAX = 200


def timeline_document(shape: StreamTimeline) -> dict[str, Any]:
    """``{"ledgers", "segments", "timeline", "gaps", "ledgers_total", "segments_total", "is_thinned"}``.

    A span is ``{"name", "start", "stop", "size_bytes"}`` in entries of the stream; ``timeline`` is pairs of entries
    before and publish time in ms (-1: unknown), ``gaps`` of entries before and what is missing there.
    """
    ledgers, segments = thinned(shape.ledgers, BARS_MAX), thinned(shape.segments, BARS_MAX)
    step = -(-len(shape.timeline) // POINTS_MAX) or 1
    # From the end, to include the last point; the first one is the origin of the axis.
    points = [shape.timeline[0], *reversed(shape.timeline[:0:-step])] if shape.timeline else []
    return {
        "ledgers": list(map(asdict, ledgers)),
        "segments": list(map(asdict, segments)),
        "timeline": [list(point) for point in points],
        "gaps": [list(gap) for gap in shape.gaps[:GAPS_MAX]],
        "ledgers_total": len(shape.ledgers),
        "segments_total": len(shape.segments),
        "is_thinned": len(ledgers) < len(shape.ledgers) or len(segments) < len(shape.segments),
    }


_Row = Mapping[str, Any]
_TROUBLES = ("stalled", "disconnected", "last_error", "store_error")


def numbered(partitions: Mapping[int, str], answers: Iterable[_Row]) -> list[dict[str, Any]]:
    """The answers, in the order of the partitions, each with its ``stream`` and its ``partition``."""
    return [
        {**answer, "stream": stream, "partition": number}
        for (number, stream), answer in zip(partitions.items(), answers, strict=True)
    ]


def topic_row(topic: str, rows: Sequence[_Row]) -> dict[str, Any]:
    """A topic's status document: sums of its partitions' documents, and these in ``partitions``.

    What isn't known of each partition isn't known of the topic; a mode is the topic's if all partitions have it.
    """
    lags = [row["lag"] for row in rows]
    buffers = [row["buffer"] for row in rows if row.get("buffer")]
    rates = [row["bytes_per_second"] for row in rows if row.get("bytes_per_second") is not None]
    lag = None
    if all(lags):
        seconds = [each["seconds"] for each in lags if each["seconds"] is not None]
        lag = {
            "entries": sum(each["entries"] for each in lags),
            "bytes": sum(each["bytes"] for each in lags),
            "seconds": max(seconds, default=None),
        }
    segments: dict[str, int | None] = {}
    for row in rows:
        for status, count in (row.get("segments") or {}).items():
            segments[status] = _sum([segments.get(status, 0), count])
    buffer = {
        "bytes": sum(each["bytes"] for each in buffers),
        "bytes_max": max((each["bytes_max"] for each in buffers), default=0),
    }
    found: dict[str, Any] = {
        "stream": topic,
        **{key: _same(row.get(key) for row in rows) for key in ("namespace", "feed", "mode", "method")},
        "active": any(row["active"] for row in rows),
        "lag": lag,
        "lag_known_ms": min((row["lag_known_ms"] for row in rows if row.get("lag_known_ms")), default=None),
        "buffer": buffer if buffers else None,
        "segments": segments,
        **{key: _sum(row.get(key) for row in rows) for key in ("entries_offloaded", "bytes_offloaded")},
        "bytes_per_second": sum(rates) if rates else None,
        "last_progress_ms": max((row["last_progress_ms"] for row in rows if row.get("last_progress_ms")), default=None),
        "partitions": list(rows),
    }
    for key in _TROUBLES:
        said = [f"partition {row['partition']}: {row[key]}" for row in rows if row.get(key)]
        more = f"; and {len(said) - 1} more" if len(said) > 1 else ""
        if said or key != "store_error":
            found[key] = f"{said[0]}{more}" if said else None
    return found


def topic_plan(topic: str, plans: Sequence[_Row], *, limit: int) -> dict[str, Any]:
    """A topic's plan of cleanup: sums of its partitions' plans, and these in ``partitions``.

    Args:
        limit: most lines of all plans together; each has its ``stream``.
    """
    lines = [{**line, "stream": plan["stream"]} for plan in plans for line in plan["lines"]]
    return {
        "stream": topic,
        "plan": joint_plan({plan["stream"]: plan["plan"] for plan in plans}),
        **{key: sum(plan[key] for plan in plans) for key in ("segments", "bytes", "bytes_stored", "pending_batches")},
        **{key: all(plan[key] for plan in plans) for key in ("deletes", "is_deleted")},
        "grace_seconds": max(plan["grace_seconds"] for plan in plans),
        **{key: any(plan[key] for plan in plans) for key in ("held", "large")},
        "stopped": plans[0]["stopped"],
        "awaiting_approval": next((plan["awaiting_approval"] for plan in plans if plan["awaiting_approval"]), None),
        "lines": lines[:limit],
        "is_whole": len(lines) <= limit and all(plan["is_whole"] for plan in plans),
        "partitions": [
            {key: value for key, value in plan.items() if key not in ("lines", "is_whole")} for plan in plans
        ],
    }


def joint_plan(plans: Mapping[str, str | None]) -> str | None:
    """The identity of a topic's plan, of its partitions' plans by stream; ``None``: nothing is planned in any."""
    known = sorted((stream, plan) for stream, plan in plans.items() if plan is not None)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32] if known else None


def _same(values: Iterable[Any]) -> Any:
    """The value that all of them are; ``None``: they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _sum(values: Iterable[int | None]) -> int | None:
    """``None``: one of them isn't known."""
    known = list(values)
    return None if None in known else sum(each for each in known if each is not None)
