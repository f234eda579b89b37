"""A partitioned topic is truncated as one stream, whatever happens on the way."""

from __future__ import annotations

from itertools import count

import pytest

from formats.entries import Position
from formats.truncation_intent import PartitionHead, TruncationIntent, encode_intent, intent_key
from offloader.errors import InvalidCall, OutcomeUnknown, StoreUnavailable
from offloader.manifest.log import load_manifest
from offloader.manifest.partitions import partitions_of
from offloader.manifest.state import EditRefused
from offloader.retention.topic_truncation import resume_topic_truncation, truncate_topic
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

TOPIC = "public/default/persistent/orders"
ZERO, ONE, TEN = (f"{TOPIC}-partition-{number}" for number in (0, 1, 10))
_names = count()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"topic-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        for stream in (ZERO, ONE, TEN):
            writer = StreamWriter(self.memory, stream)
            writer.add([batch_of(1, 0, 10)], closes=[1])
            writer.add([batch_of(2, 0, 10)])

    def truncate(self, heads: dict[str, Position], **how: bool) -> None:
        truncate_topic(self.store, TOPIC, heads, clock=self.clock, by="somebody", **how)

    def heads(self) -> list[Position | None]:
        return [load_manifest(self.memory, stream).head for stream in (ZERO, ONE, TEN)]


def test_partitions_are_found_by_number_and_nothing_else_is() -> None:
    bench = Bench()
    StreamWriter(bench.memory, f"{TOPIC}-partition-01")
    StreamWriter(bench.memory, f"{TOPIC}-partition-1-retry")
    StreamWriter(bench.memory, f"{TOPIC}s-partition-1")
    assert partitions_of(bench.memory, TOPIC) == [ZERO, ONE, TEN]


def test_each_partition_begins_where_it_was_told_and_others_stay() -> None:
    bench = Bench()
    bench.truncate({ZERO: Position(2, 0), TEN: Position(1, 4)})
    assert bench.heads() == [Position(2, 0), None, Position(1, 4)]
    assert resume_topic_truncation(bench.store, TOPIC, clock=bench.clock) == {}


def test_what_one_partition_refuses_changes_none() -> None:
    bench = Bench()
    with pytest.raises(EditRefused, match="past the committed end"):
        bench.truncate({ZERO: Position(2, 0), ONE: Position(9, 0)})
    with pytest.raises(InvalidCall, match="is no partition of"):
        bench.truncate({ZERO: Position(2, 0), f"{TOPIC}-elsewhere": Position(1, 0)})
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects


def test_a_dry_run_changes_nothing() -> None:
    bench = Bench()
    bench.truncate({ZERO: Position(2, 0)}, dry_run=True)
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects


@pytest.mark.parametrize("after", [False, True])
def test_one_that_stops_at_any_request_is_all_or_nothing_in_the_end(after: bool) -> None:
    seen = set()
    for call in range(1, 120):
        bench = Bench()
        wanted = {ZERO: Position(2, 0), ONE: Position(1, 5), TEN: Position(2, 3)}
        bench.store.set_faults([Fault(call=call, after=after)])
        try:
            bench.truncate(wanted)
        except (StoreUnavailable, OutcomeUnknown):
            pass
        else:
            assert len(bench.store.calls) < call or bench.heads() == list(wanted.values())
        resume_topic_truncation(bench.memory, TOPIC, clock=bench.clock)
        heads = bench.heads()
        assert heads in ([None] * 3, list(wanted.values()))
        seen.add(heads[0])
        if len(bench.store.calls) < call:
            assert seen == {None, Position(2, 0)}
            return
    raise AssertionError("no run was without a fault")


def test_an_unfinished_one_of_somebody_else_is_finished_first() -> None:
    bench = Bench()
    theirs = TruncationIntent(
        TOPIC, (PartitionHead(ZERO, Position(1, 7)), PartitionHead(ONE, Position(2, 2))), False, "somebody else", 5
    )
    bench.memory.put(intent_key(TOPIC), encode_intent(theirs))
    bench.truncate({ZERO: Position(1, 3), TEN: Position(1, 1)})
    assert bench.heads() == [Position(1, 7), Position(2, 2), Position(1, 1)]
