"""Failed segments are found in the kept records, also after a checkpoint."""

from __future__ import annotations

from uuid import uuid4

from formats.entries import Position
from formats.manifest import Assign, Failed
from offloader.manifest.failed_segments import failed_segments
from offloader.manifest.segment_table import SegmentStatus
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from tests.support.streams import BASE_MS, StreamWriter, batch_of


def test_failed_segments_are_those_that_were_given_up() -> None:
    writer = StreamWriter(MemoryStore("failed-segments", "", SystemClock()))
    writer.add([batch_of(1, 0, 10)], closes=[1])
    given_up = [uuid4() for _ in range(3)]
    for number, uuid in enumerate(given_up):
        writer.log.commit([Assign(uuid, 2, Position(2, 0), None, BASE_MS + number, {"bucket": "b"})])
        writer.log.commit([Failed(uuid, f"reason {number}")])
    writer.log.checkpoint()
    writer.log.commit([Assign(uuid4(), 2, Position(2, 0), None, BASE_MS, {})])

    found = failed_segments(writer.store, writer.log.state)

    assert [(each.record.uuid, each.reason) for each in found] == [
        (uuid, f"reason {number}") for number, uuid in enumerate(given_up)
    ]
    record = found[2].record
    assert (record.status, record.begin, record.assigned_ms) == (SegmentStatus.FAILED, Position(2, 0), BASE_MS + 2)
    assert found == failed_segments(writer.store, writer.log.state)
    assert failed_segments(writer.store, StreamWriter(writer.store, "another").log.state) == []
