"""The demo's picture: drawn for streams of every shape, with a description."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from offloader.errors import AccessDeniedError
from offloader.plot import Span, StreamTimeline, draw
from tests.demo.demo_cases import Watching, run, write_events
from tests.support.presence import there

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


def spans(name: str, *lengths: int) -> list[Span]:
    found, start = [], 0
    for number, length in enumerate(lengths, 1):
        found.append(Span(f"{name} {number}", start, start + length, length * 300))
        start += length
    return found


def timeline(events: int, *, step_ms: int = DAY_MS) -> list[tuple[int, int]]:
    return [(event, 1_600_000_000_000 + event * step_ms) for event in range(0, events, max(events // 200, 1))]


def test_the_suffix_decides_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw(StreamTimeline("x", spans("ledger", 5), spans("segment", 5), timeline(5)), path)
    assert ET.fromstring(path.read_bytes()).tag.endswith("svg")


def test_a_place_that_cant_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessDeniedError, match="nowhere"):
        draw(StreamTimeline("x", spans("ledger", 5), spans("segment", 5), []), tmp_path / "nowhere" / "p.png")


def test_unwritable_picture_is_a_problem_and_import_is_complete(tmp_path: Path) -> None:
    """The demo's picture path is taken by a directory: that is a problem at the end, the import is complete."""
    (tmp_path / "demo" / "picture.png").mkdir(parents=True)
    path = write_events(tmp_path / "e.ndjson", 100)
    result = run(Path(tmp_path, "demo"), Watching(), input_path=str(path), picture=True)
    assert there(result.verification).ok
    assert result.picture is None
    assert [type(problem) for problem in result.problems] == [AccessDeniedError]
