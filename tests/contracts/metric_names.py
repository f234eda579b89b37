"""Metrics: names, kinds, labels, the values of labels that are there from the start, bounds of histograms."""

from __future__ import annotations

import re

from offloader.settings import TelemetrySettings
from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import METRICS
from offloader.testing.manual_clock import ManualClock

__all__ = ["metric_names"]


def metric_names() -> str:
    lines = []
    for name, metric in sorted(METRICS.items()):
        begins = [value for value in metric.begins_at_zero if value]
        zeros = f", {metric.labels[-1]} = {' '.join(begins)} from the start" if begins else ""
        lines.append(f"offloader_{name}: {metric.kind}{{{', '.join(metric.labels)}}}{zeros}")
    lines.append(f"\nbounds of histograms: {' '.join(_bounds())}")
    return "\n".join(lines) + "\n"


def _bounds() -> list[str]:
    histogram = next(metric for metric in METRICS.values() if metric.kind == "histogram" and metric.labels)
    kept = Metrics(TelemetrySettings(), ManualClock())
    kept.observe(histogram.name, 0.0, stream="a/b/c")
    return re.findall(rf'{histogram.name}_bucket{{.*?le="([^"]+)"', kept.exposition().decode())
