"""Segments: boundaries of blocks and parts, refused input, and round trips."""

from __future__ import annotations

import numpy as np
import pytest

from formats.entries import EntryBatch
from formats.segment import SegmentBuilder, SegmentMap
from tests.formats.segments import LIMITS, batch
from tests.formats.test_segment import MIB


@pytest.mark.slow
def test_an_object_above_two_gibibytes() -> None:
    """Really built, part by part: offsets, parts and sizes go past 2**31, and the last block reads back."""
    step = batch(7, 0, [np.random.default_rng(4).bytes(4 * MIB - 200)] * 16)
    builder = SegmentBuilder(block_bytes=4 * MIB, part_bytes=64 * MIB)
    sizes = 0
    kept = []
    for at in range(33):
        ids = np.arange(at * 16, at * 16 + 16, dtype=np.int64)
        for part in builder.append(EntryBatch(7, ids, step.payloads, step.publish_times_ms)):
            assert part.offset == sizes
            sizes += len(bytes(part.body))
            kept = [part]
    finished = builder.finish()
    kept += finished.parts
    found = SegmentMap.parse(finished.index)
    assert finished.summary.data_bytes == found.data_bytes > 2**31
    assert int(found.blocks.offset[-1]) > 2**31
    tail = b"".join(bytes(part.body) for part in kept)
    start = int(found.blocks.offset[-1]) - kept[0].offset
    last = found.decode(len(found.blocks) - 1, tail[start:], **LIMITS)
    assert last.entry_ids.tolist() == [33 * 16 - 1]
    assert last.payloads[0] == step.payloads[15]
