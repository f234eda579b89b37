"""The demo's picture: drawn for streams of every shape, with a description."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from offloader.errors import AccessDenied
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


SHAPES = {
    "time ascends": ((400, 400, 200), (300, 300, 300, 100), timeline(1000)),
    "seconds": ((400, 600), (1000,), timeline(1000, step_ms=50)),
    "time goes back": ((500, 500), (700, 300), [(0, 5000), (500, 1000), (999, 9000)]),
    "no times": ((500, 500), (700, 300), [(0, -1), (500, -1)]),
    "all at once": ((10,), (10,), [(0, 5), (5, 5)]),
    "one event": ((1,), (1,), [(0, 1_600_000_000_000)]),
    "many": ((10,) * 100, (4,) * 250, timeline(1000)),
    "ten thousand": ((7,) * 10_000, (10,) * 7_000, timeline(70_000)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_stream_is_drawn(tmp_path: Path, shape: str) -> None:
    ledgers, segments, times = SHAPES[shape]
    path = tmp_path / "picture.png"
    draw(StreamTimeline(shape, spans("ledger", *ledgers), spans("segment", *segments), times), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1540, 726)


def test_gaps_are_drawn_and_counted_and_ten_thousand_bars_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    shape = StreamTimeline(
        "x", spans("ledger", 50, 50), spans("segment", 40, 60), timeline(100), [(40, "gap 1:40..1:49")]
    )
    draw(shape, path)
    drawn = path.read_text()
    assert "<!-- gap 1:40..1:49 -->" in drawn
    assert "1 ledger spans segments; 1 gap" in drawn

    draw(StreamTimeline("x", spans("ledger", *(7,) * 10_000), spans("segment", *(10,) * 7_000), timeline(70_000)), path)
    assert "70,000 entries in 10,000 ledgers, offloaded as 7,000 segments" in path.read_text()
    assert path.stat().st_size < 4_000_000


def test_the_suffix_decides_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw(StreamTimeline("x", spans("ledger", 5), spans("segment", 5), timeline(5)), path)
    assert ET.fromstring(path.read_bytes()).tag.endswith("svg")


def test_a_place_that_cant_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessDenied, match="nowhere"):
        draw(StreamTimeline("x", spans("ledger", 5), spans("segment", 5), []), tmp_path / "nowhere" / "p.png")


def test_unwritable_picture_is_a_problem_and_import_is_complete(tmp_path: Path) -> None:
    """The demo's picture path is taken by a directory: that is a problem at the end, the import is complete."""
    (tmp_path / "demo" / "picture.png").mkdir(parents=True)
    path = write_events(tmp_path / "e.ndjson", 100)
    result = run(Path(tmp_path, "demo"), Watching(), input_path=str(path), picture=True)
    assert there(result.verification).ok
    assert result.picture is None
    assert [type(problem) for problem in result.problems] == [AccessDenied]
