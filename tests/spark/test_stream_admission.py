"""Offsets and limits of a streaming query as values, without Spark; only indexes are fetched."""

from __future__ import annotations

import json
import random
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Gap, LedgersDeleted, Retire, Truncate
from formats.segment import SegmentMap
from formats.summary import Layout
from offloader.errors import InvalidCallError
from offloader.manifest.state import SegmentRecord
from offloader.read.ranges import whole_range
from offloader.spark.scan import StreamRange
from offloader.spark.stream import (
    Limits,
    StreamOffset,
    batch_ends,
    begin_of_batch,
    decode_offsets,
    encode_offsets,
    is_lost,
)
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of, random_batch

INCARNATION = UUID(int=7)


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


def backlog_of(writer: StreamWriter, after: Position | None = None) -> StreamRange | None:
    ends = whole_range(writer.log.state)
    if ends is None:
        return None
    first = ends[0] if after is None else max(ends[0], after.next())
    return StreamRange(writer.log.state, first, ends[1]) if first <= ends[1] else None


class Indexes:
    """Reads indexes, and counts them."""

    def __init__(self, *writers: StreamWriter) -> None:
        self.writers = {writer.stream: writer for writer in writers}
        self.count = 0

    def __call__(self, stream: str, record: SegmentRecord) -> SegmentMap:
        self.count += 1
        _, key = record.object_keys(stream)
        return SegmentMap.parse(self.writers[stream].store.get(key)[0], ledger_id=record.v1_ledger_id)


def batches_until_the_end(writer: StreamWriter, limits: Limits) -> list[tuple[Position, Position]]:
    """The ranges of all batches that a query would make, both ends included."""
    found: list[tuple[Position, Position]] = []
    after = None
    while (backlog := backlog_of(writer, after)) is not None:
        after = batch_ends({writer.stream: backlog}, limits, Indexes(writer))[writer.stream]
        found.append((backlog.first, after))
        assert len(found) <= len(writer.entries)
    return found


@pytest.fixture
def mixed(writer: StreamWriter) -> StreamWriter:
    """Both layouts, with and without our extension, several ledgers in a segment."""
    chance = random.Random(5)
    writer.add([batch_of(3, 0, 200)])
    writer.add([batch_of(3, 200, 50), random_batch(chance, 4, 0, 100, 300)], closes=[3, 4])
    writer.add([batch_of(7, 0, 60), batch_of(9, 0, 40)], closes=[7, 9], extension=False)
    writer.add([batch_of(12, 0, 90)], layout=Layout.V1, closes=[12])
    writer.add([batch_of(14, 0, 30)], layout=Layout.V1, extension=False, closes=[14])
    return writer


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(entries=1),
        Limits(entries=37),
        Limits(entries=10**6),
        Limits(data_bytes=1),
        Limits(data_bytes=2500),
        Limits(data_bytes=10**8),
        Limits(entries=33, data_bytes=2500),
    ],
    ids=str,
)
def test_successive_batches_cover_the_stream_within_their_limits(mixed: StreamWriter, limits: Limits) -> None:
    ranges = batches_until_the_end(mixed, limits)
    found = [entry for first, last in ranges for entry in mixed.between(first, last)]
    assert found == sorted(mixed.entries)
    for first, last in ranges:
        inside = mixed.between(first, last)
        assert 0 < len(inside) <= (limits.entries or len(inside))
        blocks, size = blocks_between(mixed, inside[0].position, last)
        assert blocks == 1 or size <= (limits.data_bytes or size)
    if limits == Limits():
        assert len(ranges) == 1


def blocks_between(writer: StreamWriter, first: Position, last: Position) -> tuple[int, int]:
    """How many blocks a range touches, and their bytes."""
    count = size = 0
    for record in writer.log.state.offloaded(first, last):
        index = Indexes(writer)(writer.stream, record)
        numbers = index.find(first, last)
        count += len(numbers)
        size += int(index.blocks.length[numbers].sum())
    return count, size


def test_entry_limits_need_no_index_and_byte_limits_only_partial_ones(writer: StreamWriter) -> None:
    for number in range(10):
        writer.add([batch_of(1, 100 * number, 100)])
    indexes = Indexes(writer)
    backlog = backlog_of(writer, Position(1, 149))
    assert backlog is not None
    assert batch_ends({writer.stream: backlog}, Limits(entries=500), indexes) == {writer.stream: Position(1, 649)}
    assert indexes.count == 0
    batch_ends({writer.stream: backlog}, Limits(data_bytes=20_000), indexes)
    assert indexes.count == 2


def test_an_unreadable_index_is_all_or_nothing_of_its_segment(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    backlog = backlog_of(writer)
    assert backlog is not None
    ends = batch_ends({writer.stream: backlog}, Limits(data_bytes=100), lambda *_: None)
    assert ends == {writer.stream: Position(1, 99)}


def test_streams_share_a_limit_evenly_and_unused_shares_go_to_others(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    counts = {"a/large": 900, "b/small": 10, "c/large": 800}
    writers = {name: StreamWriter(store, name) for name in counts}
    for name, count in counts.items():
        writers[name].add([batch_of(1, 0, count)])
    backlogs = {name: backlog for name, writer in writers.items() if (backlog := backlog_of(writer)) is not None}
    ends = batch_ends(backlogs, Limits(entries=210), Indexes(*writers.values()))
    assert {name: end.entry_id + 1 for name, end in ends.items()} == {"a/large": 100, "b/small": 10, "c/large": 100}
    ends = batch_ends(backlogs, Limits(entries=2), Indexes(*writers.values()))
    assert sum(end.entry_id + 1 for end in ends.values()) == 2


def test_offsets_round_trip_in_json_independent_of_stream_order() -> None:
    offsets = {
        "b": StreamOffset(INCARNATION, 12, Position(3, 4), Position(3, -1)),
        "a/ä": StreamOffset(INCARNATION, 0, None, None),
    }
    text = json.dumps(encode_offsets(offsets))
    assert json.dumps(encode_offsets(decode_offsets(json.loads(text)))) == text
    assert decode_offsets(json.loads(text)) == offsets
    assert json.dumps(encode_offsets(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    "given",
    [3, {}, {"incarnation": "x", "manifest": 1}, {"incarnation": str(INCARNATION), "manifest": 1, "position": "3"},
     {"incarnation": str(INCARNATION), "manifest": 1, "later": 1}],
    ids=str,
)  # fmt: skip
def test_invalid_offset_is_refused_with_the_stream_name(given: object) -> None:
    with pytest.raises(InvalidCallError, match=r"no offset of this source for stream orders.*checkpoint directory"):
        decode_offsets({"orders": given})


def test_first_batch_begins_at_the_querys_recorded_beginning() -> None:
    def offset(position: int, since: int) -> StreamOffset:
        return StreamOffset(INCARNATION, 1, Position(1, position), Position(1, since))

    first_end = offset(20, 10)
    assert begin_of_batch(offset(10, 10), first_end) == Position(1, 10)
    assert begin_of_batch(offset(50, 50), first_end) == Position(1, 10)
    assert begin_of_batch(first_end, offset(30, 10)) == Position(1, 20)
    assert begin_of_batch(None, StreamOffset(INCARNATION, 1, Position(1, 5), None)) is None
    other = StreamOffset(UUID(int=8), 1, Position(1, 5), None)
    assert begin_of_batch(first_end, other) is None


def test_only_a_head_that_passed_unread_entries_is_a_loss(writer: StreamWriter) -> None:
    first = writer.add([batch_of(3, 0, 100)], closes=[3])
    writer.add([batch_of(4, 0, 100)])
    writer.log.commit([Gap(Position(4, 100), Position(4, 109), "lost in the hot tier")])
    writer.add([batch_of(4, 110, 100)])
    state = writer.log.state
    assert not is_lost(state, Position(3, -1))
    writer.log.commit([Truncate(Position(4, 0)), LedgersDeleted((3,)), Retire((first,))])
    state = writer.log.state
    assert [is_lost(state, Position(3, n)) for n in (50, 98, 99)] == [True, True, False]
    assert not is_lost(state, Position(4, 7))
    writer.log.commit([Truncate(Position(4, 110))])
    state = writer.log.state
    assert [is_lost(state, Position(4, n)) for n in (98, 99, 105, 109, 209)] == [True, False, False, False, False]
    writer.log.commit([Truncate(Position(4, 210))])
    state = writer.log.state
    assert [is_lost(state, Position(4, n)) for n in (110, 208, 209, 300)] == [True, True, False, False]
