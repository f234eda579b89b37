"""Settings and policies of simulated worlds in which a stream is tended.

It doesn't draw what a settings file would be refused for.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from offloader.settings import Settings, Size

__all__ = ["drawn_settings"]


def drawn_settings(random: Random) -> Settings:
    """Small segments, short periods, and some policy."""
    drawn = Settings.of(
        {
            "offload": {
                "block_size": random.choice([512, 4096]),
                "segment_size_max": random.choice(["2KiB", "8KiB"]),
                "offload_buffer_size_max": 64 * 1024,
                "offload_memory_size_max": 1024 * 1024,
                "retry_delay_max": 1.0,
                "deletion_lag": 60 * random.choice([0, 240]),
            },
            "manifest": {"checkpoint_records": random.choice([3, 10, 100]), "record_requests_max": 1},
            "cleanup": {"grace_period": 3600 * (random.choice([0, 0.1, 5]))},
            "retention": _drawn_policy(random),
        }
    )
    return replace(drawn, offload=replace(drawn.offload, part_size=Size(random.choice([4096, 2**24]))))


def _drawn_policy(random: Random) -> dict[str, object]:
    """None in a third of the worlds: those are truncated by hand."""
    kind = random.choice(["none", "size", "time", "keep", "consumption", "consumption"])
    if kind == "none":
        return {}
    if kind == "keep":
        options: list[dict[str, object]] = [
            {"keep": 60.0},
            {"keep_size": 5000},
            {"keep": 3600.0, "keep_size": 5000},
        ]
        kept = random.choice(options)
        return {**kept, "keep_at_least": random.choice([0.0, 30.0]), "record_interval": "1.0m"}
    drawn: dict[str, object] = {"policy": kind, "record_interval": 60 * random.choice([0.01, 1.0, 30.0])}
    unit = {"size": "size", "time": "age"}.get(kind) or random.choice(["size", "age", ""])
    if unit:
        least = random.choice([1049, 10_486]) if unit == "size" else random.choice([30, 3600])
        drawn[f"min_{unit}"] = least
        if random.random() < 0.5:
            drawn[f"max_{unit}"] = least * random.choice([1, 2, 10])
    if random.random() < 0.3:
        drawn["subscriber_timeout"] = random.choice(["1m", "240m"])
    return drawn
