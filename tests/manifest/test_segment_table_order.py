"""Segments of several parts and of the tail come in the stream's order, however many of one part follow each other."""

from __future__ import annotations

from uuid import UUID

import pytest

from formats.entries import Position
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.manifest.segment_table import SealedSegments, SegmentRecord, SegmentStatus, SegmentTable, columns_of


def offloaded(number: int) -> SegmentRecord:
    begin, end = Position(number, 0), Position(number, 9)
    summary = SegmentSummary(
        layout=Layout.V2,
        begin=begin,
        end=end,
        compressed=False,
        ledgers=(LedgerSpan(number, 0, 9, 10, 100),),
        data_bytes=200,
        index_bytes=50,
        data_crc32c=number,
        index_crc32c=number,
        entries=10,
        payload_bytes=100,
        publish_time_min_ms=number,
        publish_time_max_ms=number,
        blocks=1,
    )
    return SegmentRecord(
        uuid=UUID(int=number + 1),
        status=SegmentStatus.RETIRED if number % 5 == 4 else SegmentStatus.OFFLOADED,
        epoch=1,
        layout=2,
        begin=begin,
        end=end,
        assigned_ms=5,
        offloaded_ms=6,
        driver={"bucket": "b"},
        summary=summary,
        retire_record=3 if number % 5 == 4 else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", ["t", "0", "0t", "0000t", "00000000", "000000tttt1111111t00", "01t01t01t01t", "0" * 400]
)
def test_segments_of_parts_and_tail_come_in_the_streams_order(parts: str) -> None:
    records = [offloaded(number) for number in range(len(parts))]
    of_part = {part: [records[at] for at, its in enumerate(parts) if its == part] for part in "01t"}
    sealed = tuple(SealedSegments(columns_of(of_part[part])) for part in "01" if of_part[part])
    table = SegmentTable(sealed, {each.uuid: each for each in of_part["t"]})
    assert list(table.in_order()) == records
    assert [table.in_order()[at] for at in range(len(records))] == records
    assert list(table.in_order()[1:]) == records[1:]
    for status, found in ((SegmentStatus.OFFLOADED, table.offloaded()), (SegmentStatus.RETIRED, table.retired())):
        assert list(found) == [each for each in records if each.status is status]
    middle = records[len(records) // 2].begin
    assert list(table.in_order(middle, middle)) == [each for each in records if each.begin == middle]
