"""A picture of a long run: each series, its warm-up, its slope, and what was decided.

It doesn't decide anything: it draws what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.proof.soak.soak_flatness import Series, Verdict

__all__ = ["draw"]

_INK, _MUTED, _GOOD, _BAD = "#22303c", "#c9d2da", "#2f6f9f", "#b3261e"
_COLUMNS = 3


def draw(title: str, found: Sequence[tuple[Series, Verdict | None]], warm_up_s: float, path: Path) -> None:
    """Writes the picture (PNG). A series without a verdict is shown and not judged."""
    rows = -(-len(found) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.6 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=_INK, fontsize=13)
    for number, (series, verdict) in enumerate(found, 1):
        axes = figure.add_subplot(rows, _COLUMNS, number)
        kept = ~np.isnan(series.values)
        minutes = series.times_s[kept] / 60
        colour = _GOOD if verdict is None or verdict.is_flat else _BAD
        axes.plot(minutes, series.values[kept], color=colour, linewidth=0.8)
        axes.axvspan(0, warm_up_s / 60, color=_MUTED, alpha=0.35, linewidth=0)
        if verdict is not None and verdict.enough and len(minutes):
            ends = np.array([warm_up_s / 60, minutes[-1]])
            middle = float(np.mean(ends))
            line = verdict.level + verdict.slope_per_hour * (ends - middle) / 60
            axes.plot(ends, line, color=_INK, linewidth=1.2, linestyle="--")
        word = "" if verdict is None else " - flat" if verdict.is_flat else " - GROWS"
        axes.set_title(f"{series.name} ({series.unit}){word}", color=_INK if colour == _GOOD else _BAD, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if number > len(found) - _COLUMNS:
            axes.set_xlabel("minutes", fontsize=8)
    figure.savefig(path, dpi=90)
