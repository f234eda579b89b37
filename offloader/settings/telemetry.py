"""What is told of a running process: settings of status, watchdog and metrics.

Owns the section `telemetry`. Must never hold a component or
read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import choice, setting, text

__all__ = ["TelemetrySettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What is told of a running process: status file, watchdog, metrics."""

    status_file: str = text("", "file that holds the status document, replaced atomically; empty: none")
    status_interval_s: float = setting(5.0, "time between two looks at the streams", low=0.05, high=3600)
    watchdog_no_progress_s: float = setting(
        900.0, "a stream with data and no progress for so long is named as stalled", low=1, high=7 * 24 * 3600
    )
    labels: str = choice("namespace", "what metrics are kept by", ("namespace", "topic"))
    topic_labels_max: int = setting(
        1000, "topics above which metrics are kept by namespace all the same", low=1, high=1_000_000
    )
    label_sets_max: int = setting(50_000, "label sets kept; more are counted as other", low=1, high=10_000_000)
    label_lifetime_s: float = setting(3600.0, "a label set not used for so long is dropped", low=1, high=7 * 24 * 3600)
    write_cost_per_1000: float = setting(0.005, "price of 1000 PUT-class requests, dollars", low=0, high=1000)
    read_cost_per_1000: float = setting(0.0004, "price of 1000 GET-class requests, dollars", low=0, high=1000)
