"""A topic whose partitions come and go is the same one as long as one of them lives."""

from __future__ import annotations

from offloader.cleanup.removal import remove_stream
from offloader.retention.stream_retention import open_retention
from tests.retention.retained_streams import TOPIC, Bench


def test_a_topic_that_lost_its_first_partition_lives_on_in_one_that_came_later() -> None:
    bench = Bench()
    for number in range(2):
        bench.grow(f"{TOPIC}-partition-{number}")
        open_retention(bench.memory, TOPIC, clock=bench.clock).add(f"reader {number}")
    for _ in range(2):
        remove_stream(bench.memory, f"{TOPIC}-partition-0", clock=bench.clock)
        bench.clock.advance(25 * 3600)
    found = open_retention(bench.memory, TOPIC, clock=bench.clock).registry()
    assert found.names() == ["reader 0", "reader 1"]
