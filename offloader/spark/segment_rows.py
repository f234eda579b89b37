"""Rows of ``content=segments``: what the manifests say of segments, as one Arrow batch.

Owns the meaning of those columns. Must never read anything but manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from formats.entries import TIME_UNKNOWN_MS
from offloader.manifest.state import ManifestState, SegmentRecord

__all__ = ["segment_batch", "segment_row"]

_US_PER_MS = 1000


def segment_batch(states: Iterable[ManifestState], schema: pa.Schema) -> pa.RecordBatch:
    """All segments of the streams: in each stream by position; assigned and retired ones too."""
    rows = [segment_row(state.stream, record) for state in states for record in state.segments.in_order()]
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def segment_row(stream: str, record: SegmentRecord) -> Mapping[str, object]:
    """One segment; what isn't known before it is offloaded is ``None``. Times in microseconds since 1970 UTC."""
    summary, end = record.summary, record.end
    spans = summary.ledgers if summary else ()
    return {
        "stream": stream,
        "uuid": str(record.uuid),
        "status": record.status.value,
        "format": record.layout,
        "epoch": record.epoch,
        "first_ledger_id": record.begin.ledger_id,
        "first_entry_id": record.begin.entry_id,
        "last_ledger_id": end.ledger_id if end else None,
        "last_entry_id": end.entry_id if end else None,
        "entries": summary.entries if summary else None,
        "payload_bytes": summary.payload_bytes if summary else None,
        "data_bytes": summary.data_bytes if summary else None,
        "index_bytes": summary.index_bytes if summary else None,
        "blocks": summary.blocks if summary else None,
        "compressed": summary.compressed if summary else None,
        "publish_time_min": _micros(summary.publish_time_min_ms if summary else None),
        "publish_time_max": _micros(summary.publish_time_max_ms if summary else None),
        "assigned_time": _micros(record.assigned_ms),
        "offloaded_time": _micros(record.offloaded_ms),
        "ledgers": [
            {
                "ledger_id": span.ledger_id,
                "first_entry_id": span.first_entry_id,
                "last_entry_id": span.last_entry_id,
                "entries": span.entries,
                "payload_bytes": span.payload_bytes,
            }
            for span in spans
        ],
    }


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None or time_ms == TIME_UNKNOWN_MS else time_ms * _US_PER_MS
