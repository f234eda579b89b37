"""A segment as a row, for people and programs.

Owns its fields. Must never look at an object.
"""

from __future__ import annotations

from formats.entries import TIME_UNKNOWN_MS
from offloader.manifest.segment_record import SegmentRecord

__all__ = ["segment_row"]


def segment_row(record: SegmentRecord, stream: str) -> dict[str, object]:
    """What the manifest says of one segment of ``stream``; positions as text, sizes only where it is complete."""
    summary = record.summary
    data, index = record.object_keys(stream)
    known = (
        {
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "object_bytes": summary.data_bytes + summary.index_bytes,
            "data_bytes": summary.data_bytes,
            "index_bytes": summary.index_bytes,
            "blocks": summary.blocks,
            "compressed": summary.compressed,
            "publish_time_min_ms": _known(summary.publish_time_min_ms),
            "publish_time_max_ms": _known(summary.publish_time_max_ms),
        }
        if summary is not None
        else {}
    )
    return {
        "uuid": str(record.uuid),
        "layout": f"V{record.layout}",
        "status": record.status.value,
        "first": str(record.begin),
        "last": None if record.end is None else str(record.end),
        "ledgers": [span.ledger_id for span in summary.ledgers] if summary else [],
        **known,
        "assigned_ms": record.assigned_ms,
        "offloaded_ms": record.offloaded_ms,
        "owned": record.owned,
        "data": data,
        "index": index,
    }


def _known(time_ms: int) -> int | None:
    return None if time_ms == TIME_UNKNOWN_MS else time_ms
