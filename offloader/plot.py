"""Plots ledgers against segments against time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloader.errors import AccessDeniedError, UnsupportedError, install_hint

_INK, _MUTED, _LINE = "#22303c", "#6b7a88", "#c9d2da"
_LEDGER_COLOURS = ("#2f6f9f", "#c96f1e", "#4b9b7a", "#a05195", "#c8553d", "#5c6bc0", "#8a9a3b", "#3a8fb7")
#: Bars narrower than this share of the width have no text.
_LABEL_WIDTH_MIN = 0.035
_BINS = 53
#: Maximum number of ledgers with their ends drawn as lines across the plot.
_LINES_MAX = 40
#: Maximum number of bars in a row; above it neighbours are merged.
_BARS_MAX = 500
_GAP_COLOUR = "#b3261e"
#: Maximum number of gaps with a label; further gaps are lines only.
_GAP_LABELS_MAX = 8
_MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class Span:
    """A ledger or a segment: events ``start`` (inclusive) to ``stop`` (exclusive) of the stream, and its bytes."""

    name: str
    start: int
    stop: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StreamTimeline:
    """Data of a plot.

    Attributes:
        title: of the plot.
        ledgers, segments: each ascending and without overlaps.
        timeline: (events before, publish time in ms) of some events, ascending in events.
        gaps: (events before, label of the missing entries).
        where_ledgers: in parentheses below the word "ledgers", unless empty.
    """

    title: str
    ledgers: Sequence[Span]
    segments: Sequence[Span]
    timeline: Sequence[tuple[int, int]]
    gaps: Sequence[tuple[int, str]] = ()
    where_ledgers: str = "hot tier"

    @property
    def events(self) -> int:
        return max((span.stop for span in [*self.ledgers, *self.segments]), default=0)


def draw(shape: StreamTimeline, path: Path) -> None:
    """Writes the plot (PNG or SVG, by the suffix).

    The horizontal axis is publish time if times ascend along the stream, else the number of events.

    Raises:
        UnsupportedError: matplotlib isn't installed.
        AccessDeniedError: the file can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "a picture needs the package matplotlib, which isn't installed", hint=install_hint("plot")
        ) from error
    figure = Figure(figsize=(14, 6.6), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axis = _Axis(shape)
    bars, rate = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.9, 1], "hspace": 0.1})
    figure.subplots_adjust(left=0.105, right=0.98, top=0.87, bottom=0.075)
    figure.text(0.105, 0.945, shape.title, fontsize=17, color=_INK, weight="bold")
    figure.text(0.105, 0.905, _subtitle(shape), fontsize=11, color=_MUTED)
    _draw_bars(bars, shape, axis)
    _draw_rate(rate, shape, axis)
    try:
        figure.savefig(path)
    except OSError as error:
        raise AccessDeniedError(
            f"picture {path} can't be written: {error.strerror or error}", hint="check the directory"
        ) from error


class _Axis:
    """Maps events to the horizontal axis: dates in days since 1970 if times ascend, else events."""

    def __init__(self, shape: StreamTimeline) -> None:
        self._events = np.array([events for events, _ in shape.timeline], dtype=np.int64)
        times_ms = np.array([time_ms for _, time_ms in shape.timeline], dtype=np.int64)
        self._days = times_ms / (_MS_PER_S * 86_400)
        ascends = len(times_ms) > 1 and bool((np.diff(times_ms) >= 0).all())
        self.by_time = ascends and bool(0 <= times_ms[0] < times_ms[-1])

    def at(self, event: float) -> float:
        return float(np.interp(event, self._events, self._days)) if self.by_time else float(event)

    def events_at(self, edges: NDArray[np.float64], shape: StreamTimeline) -> NDArray[np.float64]:
        """Events before each sample, and the stream's end."""
        days = np.append(self._days, self._days[-1])
        before: NDArray[np.float64] = np.interp(edges, days, np.append(self._events, shape.events))
        return before


def _subtitle(shape: StreamTimeline) -> str:
    over = int((_pieces_of(shape.segments, shape.ledgers) > 1).sum())
    cut = int((_pieces_of(shape.ledgers, shape.segments) > 1).sum())
    whole = " in ".join([_count(shape.events, "entry", "entries"), _count(len(shape.ledgers), "ledger", "ledgers")])
    spans = f"{_count(over, 'segment spans', 'segments span')} ledgers, {_count(cut, 'ledger spans', 'ledgers span')}"
    gaps = f"; {_count(len(shape.gaps), 'gap', 'gaps')}" if shape.gaps else ""
    return f"{whole}, offloaded as {_count(len(shape.segments), 'segment', 'segments')}: {spans} segments{gaps}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _edges_of(spans: Sequence[Span]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.array([span.start for span in spans], dtype=np.int64)
    return starts, np.array([span.stop for span in spans], dtype=np.int64)


def _pieces_of(spans: Sequence[Span], others: Sequence[Span]) -> NDArray[np.int64]:
    """For each of ``spans``, the number of ``others`` that share an event."""
    (starts, stops), (other_starts, other_stops) = _edges_of(spans), _edges_of(others)
    before = np.searchsorted(other_stops, starts, side="right")
    return (np.searchsorted(other_starts, stops, side="left") - before).astype(np.int64)


def thinned(spans: Sequence[Span], bars_max: int) -> Sequence[Span]:
    """At most ``bars_max`` spans; merges neighbours above that."""
    together = -(-len(spans) // bars_max)
    if together <= 1:
        return spans
    return [_joined(spans[at : at + together]) for at in range(0, len(spans), together)]


def _joined(spans: Sequence[Span]) -> Span:
    first, last = spans[0], spans[-1]
    name = first.name if first is last else f"{first.name} to {last.name.rpartition(' ')[2]}"
    return Span(name, first.start, last.stop, sum(span.size_bytes for span in spans))


def _draw_bars(axes: Any, shape: StreamTimeline, axis: _Axis) -> None:
    ledgers, segments = thinned(shape.ledgers, _BARS_MAX), thinned(shape.segments, _BARS_MAX)
    colours = list(itertools.islice(itertools.cycle(_LEDGER_COLOURS), len(ledgers)))
    width = (axis.at(shape.events) - axis.at(0)) or 1.0
    gap = width * 0.0012 if max(len(ledgers), len(segments)) < _BARS_MAX // 4 else 0.0

    def bar(start: float, stop: float, bottom: float, height: float, colour: str, alpha: float = 1.0) -> None:
        axes.broken_barh([(start, max(stop - start, width * 0.001))], (bottom, height), color=colour, alpha=alpha, lw=0)

    def label(start: float, stop: float, middle: float, text: str, colour: str, size: float) -> None:
        if (stop - start) / width >= _LABEL_WIDTH_MIN:
            axes.text((start + stop) / 2, middle, text, ha="center", va="center", color=colour, fontsize=size)

    for ledger, colour in zip(ledgers, colours, strict=True):
        start, stop = axis.at(ledger.start), axis.at(ledger.stop)
        bar(start + gap, stop - gap, 1.85, 0.8, colour)
        entries = f"{_count(ledger.stop - ledger.start, 'entry', 'entries')}\n" if (stop - start) / width > 0.1 else ""
        label(start, stop, 2.25, f"{ledger.name}\n{entries}{_mib(ledger.size_bytes)}", "white", 10)
        for edge in (ledger.start, ledger.stop) if len(ledgers) <= _LINES_MAX else ():
            for ends in ([0.66, 0.78], [1.62, 1.85]):
                axes.plot([axis.at(edge)] * 2, ends, color=_MUTED, lw=0.9, ls=(0, (4, 3)))
    starts, stops = _edges_of(ledgers)
    for segment in segments:
        # the ledgers that share an event with it; they ascend without overlaps
        below = int(np.searchsorted(stops, segment.start, side="right"))
        for number in range(below, int(np.searchsorted(starts, segment.stop, side="left"))):
            ledger = ledgers[number]
            first, last = ledger.start <= segment.start, ledger.stop >= segment.stop
            x0 = axis.at(max(segment.start, ledger.start)) + gap * first * 2
            x1 = axis.at(min(segment.stop, ledger.stop)) - gap * last * 2
            bar(x0, x1, 0.8, 0.8, colours[number], 0.28)
            bar(x0, x1, 0.8, 0.07, colours[number])
        start, stop = axis.at(segment.start), axis.at(segment.stop)
        label(start, stop, 1.22, f"{segment.name}\n{_mib(segment.size_bytes)}", _INK, 9.5)
    for events, text in shape.gaps:
        axes.plot([axis.at(events)] * 2, [0.72, 1.72], color=_GAP_COLOUR, lw=2.0)
        if len(shape.gaps) <= _GAP_LABELS_MAX:
            axes.text(axis.at(events), 1.73, text, ha="center", va="bottom", color=_GAP_COLOUR, fontsize=9)
    where = f"ledgers\n({shape.where_ledgers})" if shape.where_ledgers else "ledgers"
    axes.set_ylim(0.66, 2.7)
    axes.set_yticks([2.25, 1.2], [where, "segments\n(object store)"], fontsize=11, color=_INK)
    _bare(axes)
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _draw_rate(axes: Any, shape: StreamTimeline, axis: _Axis) -> None:
    axes.set_xlim(axis.at(0), axis.at(shape.events))
    _bare(axes)
    axes.tick_params(axis="both", colors=_MUTED, labelsize=10)
    if not axis.by_time:
        axes.set_xlabel("entries of the stream", color=_MUTED, fontsize=10)
        _draw_times(axes, shape)
        return
    edges = np.linspace(axis.at(0), axis.at(shape.events), _BINS + 1)
    unit, days = _unit((edges[-1] - edges[0]) / _BINS)
    per_unit = np.diff(axis.events_at(edges, shape)) / np.diff(edges) * days
    axes.stairs(per_unit, edges, fill=True, color=_LINE)
    axes.stairs(per_unit, edges, color=_MUTED, lw=1.0)
    axes.set_ylim(0, float(per_unit.max()) * 1.15 or 1.0)
    axes.set_ylabel(f"entries per {unit}\nby publish time", color=_INK, fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if per_unit.max() >= 10 else f"{value:g}")
    for ledger in shape.ledgers[1:] if len(shape.ledgers) <= _LINES_MAX else ():
        axes.axvline(axis.at(ledger.start), color=_MUTED, lw=0.9, ls=(0, (4, 3)))
    _show_dates(axes.xaxis)


def _draw_times(axes: Any, shape: StreamTimeline) -> None:
    """Draws publish times along the stream if they don't ascend and can't be the axis."""
    known = [(events, time_ms) for events, time_ms in shape.timeline if time_ms >= 0]
    if not known:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no publish times", transform=axes.transAxes, ha="center", color=_MUTED, fontsize=11)
        return
    axes.plot([e for e, _ in known], [ms / (_MS_PER_S * 86_400) for _, ms in known], color=_MUTED, lw=1.0, marker=".")
    axes.set_ylabel("publish time", color=_INK, fontsize=11)
    _show_dates(axes.yaxis)


def _show_dates(axis: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _unit(bin_days: float) -> tuple[str, float]:
    """A suitable unit of time for bins of that width, and its length in days."""
    for name, days in (("day", 1.0), ("hour", 1 / 24), ("minute", 1 / 1440)):
        if bin_days >= days:
            return name, days
    return "second", 1 / 86_400


def _bare(axes: Any) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:.1f} MiB" if size_bytes >= 100 * 1024 else f"{size_bytes / 1024:.1f} KiB"
