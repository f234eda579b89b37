"""Draws the layers of the code as SVG, from the table that the architecture test checks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tests.test_architecture import LAYERS

WIDTH, ROW, GAP, MARGIN, LABEL = 960, 34, 8, 16, 160
CHARACTER = 7.4
#: What each layer is, from the bottom up.
TITLES = (
    "bytes",
    "foundation",
    "tiers",
    "state of a stream",
    "work on a stream",
    "one stream, whole",
    "processes",
    "demo",
    "command line",
)
FILLS = ("#e2e8f0", "#f1f5f9", "#fde68a", "#ddd6fe", "#bae6fd", "#a7f3d0", "#fecaca", "#f5d0fe", "#fed7aa")


def layers_picture() -> str:
    """The picture: the highest layer on top; a module imports from its own row and from rows below."""
    rows = [_lines(sorted(name.removeprefix("offloader.") for name in layer)) for layer in LAYERS]
    heights = [len(lines) * (ROW + GAP) + GAP for lines in rows]
    height = sum(heights) + GAP * (len(rows) - 1) + 2 * MARGIN
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            ' font-family="system-ui, sans-serif" font-size="13" role="img" aria-labelledby="title">'
        ),
        '  <title id="title">Layers of the code: a module imports from its own row and from rows below</title>',
        f'  <rect width="{WIDTH}" height="{height}" rx="12" fill="#f8fafc"/>',
    ]
    top = MARGIN
    for title, fill, lines, rise in reversed(list(zip(TITLES, FILLS, rows, heights, strict=True))):
        out.append(
            f'  <rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{rise}" rx="8" fill="{fill}"/>'
            f'<text x="{MARGIN + 12}" y="{top + rise / 2 + 5:g}" font-weight="600" fill="#0f172a">{title}</text>'
        )
        for number, line in enumerate(lines):
            out += _boxes(line, top + GAP + number * (ROW + GAP))
        top += rise + GAP
    return "\n".join([*out, "</svg>", ""])


def _width(name: str) -> int:
    return round(len(name) * CHARACTER) + 20


def _lines(names: list[str]) -> list[list[str]]:
    """Names in as many lines as they need."""
    lines: list[list[str]] = [[]]
    used = MARGIN + LABEL
    for name in names:
        if lines[-1] and used + _width(name) > WIDTH - 2 * MARGIN:
            lines.append([])
            used = MARGIN + LABEL
        lines[-1].append(name)
        used += _width(name) + GAP
    return lines


def _boxes(names: list[str], top: int) -> Iterator[str]:
    left = MARGIN + LABEL
    for name in names:
        width = _width(name)
        yield (
            f'  <rect x="{left}" y="{top}" width="{width}" height="{ROW}" rx="4" fill="#fff" stroke="#94a3b8"/>'
            f'<text x="{left + width / 2:g}" y="{top + 22}" text-anchor="middle" fill="#0f172a">{escape(name)}</text>'
        )
        left += width + GAP
