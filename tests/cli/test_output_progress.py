"""Progress output while segments are written."""

from __future__ import annotations

import io

from formats.entries import Position
from offloader.cli.output import SegmentProgress
from tests.support.manifests import summary_of

SEGMENTS = [summary_of(Position(1, n * 10), Position(1, n * 10 + 9)) for n in range(3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *, always: bool = False, about: bool = False) -> str:
    with SegmentProgress(out, always=always) as progress:
        progress.expect(3, about=about)
        for each in SEGMENTS:
            progress.segment(each)
    return out.getvalue()


def test_no_progress_is_shown_without_a_terminal() -> None:
    assert shown(io.StringIO()) == ""


def test_progress_option_prints_a_line_per_segment() -> None:
    assert shown(io.StringIO(), always=True, about=True).splitlines() == [
        "1 of about 3 segments, 100 B: 1:0..1:9",
        "2 of about 3 segments, 200 B: 1:10..1:19",
        "3 of about 3 segments, 300 B: 1:20..1:29",
    ]


def test_progress_bar_is_erased_at_the_end() -> None:
    text = shown(Terminal())
    assert "3 of 3 300 B" in text
    assert "300 B" in text
    assert text.endswith("\x1b[2K"), "the bar's line is erased"


def test_nothing_to_do_has_no_bar() -> None:
    out = Terminal()
    with SegmentProgress(out) as progress:
        progress.expect(0)
    assert out.getvalue() == ""
