"""The comparison as bars.

It doesn't draw a bar where there is no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.kinds import KINDS

__all__ = ["draw", "plain"]

#: Title, where its figure is, whether the axis is logarithmic.
_PANELS = (
    ("offload, MB/s", ("offload", "mb_s"), False),
    ("read, MB/s", ("read", "mb_s"), False),
    ("one entry, median, ms", ("single", "median_ms"), True),
    ("price of offloading and reading a GiB, $", ("price",), False),
    ("memory to offload, MiB", ("offload", "memory_mib"), False),
    ("append to readable, median, s", ("readable", "median_s"), False),
)
_OURS, _THEIRS = ("#c96f1e", "#e8b98d"), ("#2f6f9f", "#a9c6dc")
_INK, _MUTED = "#22303c", "#6b7a88"


def plain(value: float) -> str:
    """Three figures, or all before the point; never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.5f}"


def _figure(document: Mapping[str, Any], name: str, delay: str, path: tuple[str, ...]) -> float | None:
    if path[0] == "readable":
        found = document["readable"].get(name, {}).get(delay, {}).get(path[1])
    elif path == ("price",):
        cell = document["cells"].get(name, {}).get(delay, {})
        parts = [cell[part]["usd_per_gib"] for part in ("offload", "read") if part in cell]
        found = sum(parts) if len(parts) == 2 else None
    else:
        found = document["cells"].get(name, {}).get(delay, {}).get(path[0], {}).get(path[1])
    return None if found is None else float(found)


def draw(document: Mapping[str, Any], path: Path) -> None:
    """A PNG at ``path``: a panel for each column, a bar for each peer and distance."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = [name for name in KINDS if name in document["cells"]]
    delays = sorted({delay for cells in document["cells"].values() for delay in cells}, key=int)
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    for axis, (title, where, is_log) in zip(axes.flat, _PANELS, strict=True):
        _panel(axis, document, names, delays, where, is_log=is_log)
        axis.set_title(title, loc="left", fontsize=11, color=_INK)
    shades = [mpl.patches.Patch(color=_THEIRS[turn % 2], label=f"+{delay} ms") for turn, delay in enumerate(delays)]
    figure.legend(handles=shades, loc="outside lower right", ncols=len(delays), frameon=False, fontsize=10)
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def _panel(
    axis: Any, document: Mapping[str, Any], names: list[str], delays: list[str], where: tuple[str, ...], *, is_log: bool
) -> None:
    height = 0.8 / len(delays)
    found = {(name, delay): _figure(document, name, delay, where) for name in names for delay in delays}
    values = [value for value in found.values() if value is not None]
    if is_log:
        axis.set_xscale("log")
        axis.set_xlim(min(values, default=1) / 3, max(values, default=1) * 3)
    else:
        axis.set_xlim(0, max(values, default=1) * 1.2)
        axis.locator_params(axis="x", nbins=5)
    for row, name in enumerate(names):
        for turn, delay in enumerate(delays):
            value, at = found[name, delay], row + (turn - (len(delays) - 1) / 2) * height
            if value is None:
                continue
            axis.barh(at, value, height * 0.92, color=(_OURS if name == "ours" else _THEIRS)[turn % 2])
            axis.annotate(plain(value), (value, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
        if all(found[name, delay] is None for delay in delays):
            axis.annotate(
                "not offered", (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=_MUTED
            )
    axis.set_yticks(range(len(names)), [KINDS[name].title.strip("*") for name in names], fontsize=9)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="x", labelsize=8, colors=_MUTED)
