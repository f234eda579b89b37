"""What a manifest record made true, said once: one log line for each segment, and the counters.

Owns the fields of those lines. Must never be called before the record is durable, nor twice for one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from formats.entries import TIME_UNKNOWN_MS
from formats.manifest import Edit, Failed, Gap, Offloaded, Replace
from formats.segment import SegmentSummary
from offloader.manifest.state import ManifestState
from offloader.telemetry import Recorder

__all__ = ["announce"]

_log = logging.getLogger("offloader.segments")


def announce(edits: Sequence[Edit], state: ManifestState, recorder: Recorder) -> None:
    """Logs and counts the segments and gaps of ``edits``; ``state`` is the view after them."""
    for edit in edits:
        match edit:
            case Offloaded():
                summary = edit.summary
                recorder.add("entries_offloaded_total", summary.entries, stream=state.stream)
                recorder.add("bytes_offloaded_total", summary.payload_bytes, stream=state.stream)
                recorder.add("segments_total", stream=state.stream, label="offloaded")
                _log_segment("segment_offloaded", edit.uuid, summary, edit.offloaded_ms, state)
            case Replace():
                # The same entries in other objects: what is readable hasn't become more.
                for each in edit.by:
                    _log_segment("segment_rewritten", each.uuid, each.summary, edit.offloaded_ms, state)
            case Failed():
                recorder.add("segments_total", stream=state.stream, label="failed")
                _log.warning(
                    *("stream %s: segment %s failed: %s", state.stream, edit.uuid, edit.reason),
                    extra={
                        "event": "segment_failed",
                        "stream": state.stream,
                        "segment": str(edit.uuid),
                        "reason": edit.reason,
                        "record": state.record_id,
                    },
                )
            case Gap():
                recorder.add("gaps_total", stream=state.stream)


def _log_segment(event: str, uuid: UUID, summary: SegmentSummary, offloaded_ms: int, state: ManifestState) -> None:
    record = state.segments.get(uuid)
    seconds = None if record is None else max(0, offloaded_ms - record.assigned_ms) / 1000
    times_ms = (summary.publish_time_min_ms, summary.publish_time_max_ms)
    _log.info(
        "stream %s: segment %s %s..%s, %d entries, %d bytes",
        *(state.stream, uuid, summary.begin, summary.end, summary.entries, summary.data_bytes),
        extra={
            "event": event,
            "stream": state.stream,
            "segment": str(uuid),
            "format": f"V{int(summary.layout)}",
            "epoch": None if record is None else record.epoch,
            "record": state.record_id,
            "begin": str(summary.begin),
            "end": str(summary.end),
            "ledgers": len(summary.ledgers),
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "data_bytes": summary.data_bytes,
            "index_bytes": summary.index_bytes,
            "blocks": summary.blocks,
            "publish_time_min_ms": times_ms[0] if times_ms[0] != TIME_UNKNOWN_MS else None,
            "publish_time_max_ms": times_ms[1] if times_ms[1] != TIME_UNKNOWN_MS else None,
            "seconds": seconds,
        },
    )
