"""Settings and policies of simulated worlds in which a stream is tended.

It doesn't draw what a settings file would be refused for.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from offloader.settings import Settings

__all__ = ["drawn_settings"]


def drawn_settings(random: Random) -> Settings:
    """Small segments, short periods, and some policy."""
    drawn = Settings.of(
        {
            "offload": {
                "block_bytes": random.choice([512, 4096]),
                "max_size_per_offload_segment_mbytes": random.choice([1 / 512, 1 / 128]),
                "offload_buffer_bytes_max": 64 * 1024,
                "offload_memory_bytes_max": 1024 * 1024,
                "retry_seconds_max": 1.0,
                "deletion_lag_minutes": random.choice([0, 240]),
            },
            "manifest": {"checkpoint_records": random.choice([3, 10, 100]), "record_requests_max": 1},
            "cleanup": {"grace_hours": random.choice([0, 0.1, 5])},
            "retention": _drawn_policy(random),
        }
    )
    return replace(drawn, offload=replace(drawn.offload, part_bytes=random.choice([4096, 2**24])))


def _drawn_policy(random: Random) -> dict[str, object]:
    """None in a third of the worlds: those are truncated by hand."""
    kind = random.choice(["none", "size", "time", "keep", "consumption", "consumption"])
    if kind == "none":
        return {}
    if kind == "keep":
        options: list[dict[str, object]] = [
            {"keep_seconds": 60.0},
            {"keep_bytes": 5000},
            {"keep_seconds": 3600.0, "keep_bytes": 5000},
        ]
        kept = random.choice(options)
        return {**kept, "keep_at_least_seconds": random.choice([0.0, 30.0]), "record_minutes": 1.0}
    drawn: dict[str, object] = {"policy": kind, "record_minutes": random.choice([0.01, 1.0, 30.0])}
    unit = {"size": "mbytes", "time": "minutes"}.get(kind) or random.choice(["mbytes", "minutes", ""])
    if unit:
        least = random.choice([0.001, 0.01]) if unit == "mbytes" else random.choice([0.5, 60.0])
        drawn[f"min_{unit}"] = least
        if random.random() < 0.5:
            drawn[f"max_{unit}"] = least * random.choice([1, 2, 10])
    if random.random() < 0.3:
        drawn["subscriber_timeout_minutes"] = random.choice([1.0, 240.0])
    return drawn
