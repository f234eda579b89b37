"""Small segments of quiet streams stay open until they have a minimum size, or reach the limit of their age."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offloader.manifest.log import load_manifest
from tests.support.readback import stored_entries
from tests.write.stream_phases import SEGMENT_AGE_S, STREAM, PhaseWorld

LIMIT_S = 2.5 * SEGMENT_AGE_S


@pytest.fixture
def world() -> Iterator[PhaseWorld]:
    made = PhaseWorld(segment_size_min=4 * 1024, segment_age_limit=LIMIT_S)
    made.start()
    yield made
    made.offloader.close()


def committed(world: PhaseWorld) -> int:
    """Entries in the cold tier."""
    return load_manifest(world.memory, STREAM).totals().entries


def test_small_segment_closes_at_the_age_limit(world: PhaseWorld) -> None:
    world.append()
    world.run()
    world.pass_time(LIMIT_S - 1)
    assert committed(world) == 0
    world.pass_time(2)
    assert committed(world) == 1
    assert world.stream.status().segment_age_s == LIMIT_S
    assert stored_entries(world.memory, STREAM) == world.source.appended


def test_segment_that_reached_the_minimum_closes_at_the_next_look(world: PhaseWorld) -> None:
    world.append()
    world.run()
    world.pass_time(SEGMENT_AGE_S + 1)
    world.append(8, 600)
    world.run()
    assert committed(world) == 0
    world.pass_time(SEGMENT_AGE_S)
    assert committed(world) == 9
    assert stored_entries(world.memory, STREAM) == world.source.appended


def test_segment_above_the_minimum_closes_by_age(world: PhaseWorld) -> None:
    world.append(8, 600)
    world.run()
    world.pass_time(SEGMENT_AGE_S - 1)
    assert committed(world) == 0
    world.pass_time(2)
    assert committed(world) == 8
