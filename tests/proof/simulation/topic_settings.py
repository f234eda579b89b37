"""Settings and policies of simulated worlds in which a topic of partitions is tended.

It doesn't draw what a settings file would be refused for.
"""

from __future__ import annotations

from random import Random

from offloader.settings import Settings

__all__ = ["drawn_topic_settings"]


def drawn_topic_settings(random: Random) -> Settings:
    """Small segments, short periods, and some policy; without one the topic is truncated by hand."""
    return Settings.of(
        {
            "offload": {
                "block_bytes": 512,
                "max_size_per_offload_segment_mbytes": 1 / 512,
                "retry_seconds_max": 1.0,
                "deletion_lag_minutes": 0,
            },
            "manifest": {"checkpoint_records": random.choice([5, 100]), "record_requests_max": 1},
            "cleanup": {"grace_hours": 0},
            "retention": _drawn_policy(random),
        }
    )


def _drawn_policy(random: Random) -> dict[str, object]:
    kind = random.choice(["none", "size", "time", "queue", "queue", "fallback", "fallback"])
    if kind == "none":
        return {}
    drawn: dict[str, object] = {"record_minutes": random.choice([0.01, 1.0])}
    if kind == "size":
        least = random.choice([0.001, 0.01])
        drawn |= {"policy": "size", "min_mbytes": least}
        if random.random() < 0.5:
            drawn["max_mbytes"] = least * random.choice([1, 3])
    elif kind == "time":
        least = random.choice([0.5, 60.0])
        drawn |= {"policy": "time", "min_minutes": least}
        if random.random() < 0.5:
            drawn["max_minutes"] = least * random.choice([1, 3])
    else:
        drawn["policy"] = "consumption"
    if kind == "fallback":
        silent = random.choice([1.0, 120.0])
        drawn |= {
            "subscriber_timeout_minutes": silent,
            "fallback_after_minutes": silent * random.choice([1, 3]),
            "fallback_min_mbytes": 0.001,
            "fallback_max_mbytes": random.choice([0.002, 0.02]),
        }
    elif kind != "queue" and random.random() < 0.3:
        drawn["subscriber_timeout_minutes"] = random.choice([1.0, 240.0])
    return drawn
