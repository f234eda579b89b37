"""A manifest's view as spans of entries for a picture."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from formats.entries import Position
from formats.manifest import Gap
from offloader.errors import NotFoundError
from offloader.inspect.inspect import timeline_of
from offloader.plot import Span
from offloader.store.open import open_store
from tests.support.streams import BASE_MS, StreamWriter, batch_of

names = itertools.count()


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://shape-{next(names)}"))


def test_ledgers_and_segments_are_counted_in_entries_from_the_first(writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10, size=100), batch_of(4, 0, 5, size=100)], closes=[3])
    writer.add([batch_of(4, 5, 20, size=100)])
    shape = timeline_of(writer.log.state)
    assert shape.ledgers == [Span("ledger 3", 0, 10, 1000), Span("ledger 4", 10, 35, 2500)]
    assert [(span.name, span.start, span.stop) for span in shape.segments] == [
        ("segment 1", 0, 15),
        ("segment 2", 15, 35),
    ]
    sizes = [record.summary.data_bytes for record in writer.log.state.offloaded() if record.summary]
    assert [span.size_bytes for span in shape.segments] == sizes
    assert shape.timeline == [
        (0, BASE_MS + 3_000_000),
        (14, BASE_MS + 4_004_000),
        (15, BASE_MS + 4_005_000),
        (34, BASE_MS + 4_024_000),
    ]
    assert shape.gaps == []


def test_a_gap_is_a_place_between_two_entries(writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])
    writer.log.commit([Gap(Position(3, 10), Position(3, 14), "lost")])
    writer.add([batch_of(3, 15, 5)])
    state = writer.log.state
    assert timeline_of(state).gaps == [(10, "gap 3:10..3:14")]
    late = replace(state, gaps=(*state.gaps, Gap(Position(3, 20), Position(3, 29), "lost")))
    assert timeline_of(late).gaps == [(10, "gap 3:10..3:14"), (15, "gap 3:20..3:29")]


def test_a_stream_without_a_segment_has_no_shape(writer: StreamWriter) -> None:
    with pytest.raises(NotFoundError, match="no readable segment"):
        timeline_of(writer.log.state)
