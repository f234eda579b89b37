"""The demo's picture: drawn for streams of every shape, with a description."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from offloader.plot import StreamTimeline, draw
from tests.test_plot import spans, timeline

pytestmark = pytest.mark.slow


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
