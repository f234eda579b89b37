"""Whether what a process uses stays the same, or grows: decided from samples.

It doesn't sample anything itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPREADS", "Limit", "Series", "Verdict", "ratio", "verdict_of"]

#: Samples are gathered into so many equal spans of time, each of which counts with its median: what comes and goes
#: within one (a segment that fills, a round of cleanup) is no growth.
SPANS = 30
#: What is left after the warm-up must have samples in at least so many spans, or nothing can be said.
SPANS_MIN = 12
#: The first and the last part of the spans that are compared, beside the slope through all of them.
ENDS = 5
#: For series that fluctuate without a trend: the medians of their ends differ by 0.8 times the spread (standard error),
#: so this is three standard errors. A leak grows with the length of the run, the spread doesn't.
SPREADS = 2.5
#: Standard deviation of normally distributed values, as a multiple of their median absolute deviation.
MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Limit:
    """Growth that is let pass: the largest of a part of the level, an amount in the series' unit, and a multiple of the
    spread around the trend."""

    part: float
    amount: float = 0.0
    spreads: float = 0.0

    def at(self, level: float, spread: float) -> float:
        return max(self.part * abs(level), self.amount, self.spreads * spread)


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one thing.

    Attributes:
        name, unit: for people.
        times_s: ascending, from the run's beginning.
        values: one each; NaN where there is none.
    """

    name: str
    unit: str
    times_s: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a series after the warm-up.

    Attributes:
        level: its median.
        slope_per_hour: the median of the slopes between any two spans (Theil-Sen): a few that stand out don't tilt it.
        growth: the larger of what the slope makes over the whole time, and the last spans' median above the first ones'
            (a step near the end hardly tilts a slope). Negative: it shrank.
        allowed: what of it is let pass.
        enough: whether there were samples enough to say anything.
    """

    name: str
    unit: str
    level: float
    slope_per_hour: float
    growth: float
    allowed: float
    enough: bool = True

    @property
    def is_flat(self) -> bool:
        return self.enough and self.growth <= self.allowed

    def __str__(self) -> str:
        if not self.enough:
            return f"{self.name}: too few samples after the warm-up to say anything"
        word = "flat" if self.is_flat else "GROWS"
        return (
            f"{self.name}: {word}, {self.level:,.4g} {self.unit}, grew by {self.growth:,.3g} "
            f"(allowed {self.allowed:,.3g}), {self.slope_per_hour:+,.3g} {self.unit} an hour"
        )


def verdict_of(series: Series, limit: Limit, *, warm_up_s: float) -> Verdict:
    """Decides about one series.

    Args:
        limit: growth over the whole time after the warm-up that is let pass.
        warm_up_s: what comes before it isn't looked at.
    """
    times_s, values = _spans(series, warm_up_s)
    if len(values) < SPANS_MIN:
        return Verdict(series.name, series.unit, 0.0, 0.0, 0.0, 0.0, enough=False)
    level = float(np.median(values))
    slope = _slope(times_s, values)
    by_slope = slope * float(times_s[-1] - times_s[0])
    around = values - slope * times_s
    spread = MAD_TO_DEVIATION * float(np.median(np.abs(around - np.median(around))))
    by_ends = float(np.median(values[-ENDS:]) - np.median(values[:ENDS]))
    return Verdict(
        series.name,
        series.unit,
        level=level,
        slope_per_hour=slope * 3600,
        growth=max(by_slope, by_ends),
        allowed=limit.at(level, spread),
    )


def ratio(name: str, unit: str, above: Series, below: Series) -> Series:
    """How much of ``above`` came for each unit of ``below``, both being totals that only rise: one value for each span
    of time, NaN where nothing came."""
    edges = np.linspace(above.times_s[0], above.times_s[-1], 4 * SPANS + 1)
    kept = ~np.isnan(above.values) & ~np.isnan(below.values)
    parts = [np.interp(edges, each.times_s[kept], each.values[kept]) for each in (above, below)]
    rises = [np.diff(each) for each in parts]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(rises[1] > 0, rises[0] / rises[1], np.nan)
    return Series(name, unit, (edges[1:] + edges[:-1]) / 2, values)


def _spans(series: Series, warm_up_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle and median of each span that has samples."""
    counts = (series.times_s >= warm_up_s) & ~np.isnan(series.values)
    times_s, values = series.times_s[counts], series.values[counts]
    if not len(times_s):
        return times_s, values
    edges = np.linspace(times_s[0], times_s[-1], SPANS + 1)
    numbers = np.clip(np.searchsorted(edges, times_s, side="right") - 1, 0, SPANS - 1)
    used = [number for number in range(SPANS) if np.any(numbers == number)]
    return (
        np.array([(edges[number] + edges[number + 1]) / 2 for number in used]),
        np.array([np.median(values[numbers == number]) for number in used]),
    )


def _slope(times_s: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    first, second = np.triu_indices(len(values), k=1)
    return float(np.median((values[second] - values[first]) / (times_s[second] - times_s[first])))
