"""When a segment closes, how much of a batch still belongs to it, how large its parts are; pure.

Owns these decisions. Must never look at a clock, a store or a stream.
"""

from __future__ import annotations

import numpy as np

from formats.entries import ENTRY_HEADER_BYTES, EntryBatch
from offloader.settings import OffloadSettings

__all__ = ["entries_that_fit", "part_bytes_for", "segment_bytes_max", "segment_is_full", "segment_is_old"]

#: S3 takes at most 10,000 parts an object; a tenth is kept for the last segment's overshoot and the block's overhead.
PARTS_MAX = 9_000


def segment_bytes_max(settings: OffloadSettings) -> int:
    """Entry bytes (headers included) at which a segment closes."""
    return max(1, int(settings.max_size_per_offload_segment_mbytes * 1024 * 1024))


def part_bytes_for(settings: OffloadSettings) -> int:
    """Part size of a segment: the setting, or more where the segment would need too many parts."""
    return max(settings.part_bytes, -(-segment_bytes_max(settings) // PARTS_MAX))


def segment_is_full(held_wire_bytes: int, settings: OffloadSettings) -> bool:
    """Whether a segment that took ``held_wire_bytes`` (payloads and 12-byte entry headers) closes now."""
    return held_wire_bytes >= segment_bytes_max(settings)


def segment_is_old(age_s: float, settings: OffloadSettings) -> bool:
    """Whether a segment closes ``age_s`` seconds after its first entry."""
    return age_s >= settings.max_offload_segment_rollover_time_minutes * 60


def entries_that_fit(batch: EntryBatch, held_wire_bytes: int, settings: OffloadSettings) -> int:
    """How many leading entries of ``batch`` belong to a segment that holds ``held_wire_bytes``.

    The entry that reaches the limit is the last one in, so a segment always takes at least one entry.
    """
    free_bytes = segment_bytes_max(settings) - held_wire_bytes
    if batch.wire_bytes <= free_bytes:
        return len(batch)
    sizes = batch.lengths.astype(np.int64) + ENTRY_HEADER_BYTES
    return min(len(batch), int(np.searchsorted(np.cumsum(sizes), free_bytes, side="left")) + 1)
