"""Identity of a topic whose partitions change, beside plain streams of similar names."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.errors import NotFoundError
from offloader.gc.delete_stream import remove_stream
from offloader.retention.cycle import retained_streams
from offloader.retention.lineage import Lineage
from offloader.retention.scope import find_scope, home_of, record_partitions
from offloader.retention.subscribers import open_retention
from tests.retention.retained_streams import STREAM, TOPIC, Bench


def test_topic_without_its_first_partition_lives_on_in_a_later_one() -> None:
    bench = Bench()
    for number in range(2):
        bench.grow(f"{TOPIC}-partition-{number}")
        open_retention(bench.memory, TOPIC, clock=bench.clock).add(f"reader {number}")
    for _ in range(2):
        remove_stream(bench.memory, f"{TOPIC}-partition-0", clock=bench.clock)
        bench.clock.advance(25 * 3600)
    found = open_retention(bench.memory, TOPIC, clock=bench.clock).registry()
    assert found.names() == ["reader 0", "reader 1"]


def test_topic_lives_on_in_a_partition_that_came_after_its_last_record() -> None:
    bench, (zero, one) = Bench(policy="consumption"), (f"{TOPIC}-partition-{number}" for number in range(2))
    bench.grow(one)
    bench.subscribe("billing", TOPIC)
    bench.grow(zero, ledgers=3)
    record_partitions(bench.memory, [one])
    for _ in range(2):
        remove_stream(bench.memory, one, clock=bench.clock)
        bench.clock.advance(25 * 3600)
    assert open_retention(bench.memory, TOPIC, clock=bench.clock).registry().names() == ["billing"]
    bench.run(TOPIC)
    assert bench.head(zero) is None


def test_stream_named_like_a_partition_of_a_plain_stream_has_its_own_retention() -> None:
    bench, odd = Bench(policy="consumption"), f"{STREAM}-partition-0"
    for name in (STREAM, odd):
        bench.grow(name, ledgers=3)
        bench.subscribe("billing", name)
    assert retained_streams(bench.memory) == [STREAM, odd]
    assert home_of(bench.memory, odd) == (odd, 0)
    bench.publish("billing", Position(3, 0), odd)
    for name in (STREAM, odd):
        bench.run(name)
    assert (bench.head(STREAM), bench.head(odd)) == (None, Position(3, 0))


def test_stream_being_deleted_has_no_cycle() -> None:
    bench = Bench(policy="size", min_size="1MiB")
    bench.grow_and_run(1)
    remove_stream(bench.memory, STREAM, clock=bench.clock)
    bench.clock.advance(60)
    with pytest.raises(NotFoundError, match="was deleted"):
        bench.run()


def test_cycle_costs_what_partitions_there_are_and_not_what_numbers_they_have() -> None:
    bench = Bench(policy="consumption")
    for number in (7, 200_000):
        bench.grow(f"{TOPIC}-partition-{number}", ledgers=2)
    assert len(Lineage.of_partitions(find_scope(bench.memory, TOPIC).partitions).segments) == 2
    far = f"{TOPIC}-partition-999999999"
    bench.grow(far, ledgers=2)
    bench.subscribe("billing", TOPIC)
    bench.publish("billing", {7: Position(1, 5), 999_999_999: Position(2, 0)}, TOPIC)
    bench.run(TOPIC)
    assert (bench.head(f"{TOPIC}-partition-7"), bench.head(far)) == (Position(1, 5), Position(2, 0))
