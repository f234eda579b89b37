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
                "block_size": 512,
                "segment_size_max": "2KiB",
                "retry_delay_max": 1.0,
                "deletion_lag": "0m",
            },
            "manifest": {"checkpoint_records": random.choice([5, 100]), "record_requests_max": 1},
            "cleanup": {"grace_period": "0h"},
            "retention": _drawn_policy(random),
        }
    )


def _drawn_policy(random: Random) -> dict[str, object]:
    kind = random.choice(["none", "size", "time", "queue", "queue", "fallback", "fallback"])
    if kind == "none":
        return {}
    drawn: dict[str, object] = {"record_interval": 60 * random.choice([0.01, 1.0])}
    if kind == "size":
        least = random.choice([0.001, 0.01])
        drawn |= {"policy": "size", "min_size": round(least * 2**20)}
        if random.random() < 0.5:
            drawn["max_size"] = round(least * 2**20) * random.choice([1, 3])
    elif kind == "time":
        least = random.choice([0.5, 60.0])
        drawn |= {"policy": "time", "min_age": 60 * least}
        if random.random() < 0.5:
            drawn["max_age"] = 60 * least * random.choice([1, 3])
    else:
        drawn["policy"] = "consumption"
    if kind == "fallback":
        silent = random.choice([1.0, 120.0])
        drawn |= {
            "subscriber_timeout": 60 * silent,
            "fallback_after": 60 * (silent * random.choice([1, 3])),
            "fallback_min_size": 1049,
            "fallback_max_size": random.choice([2097, 20_972]),
        }
    elif kind != "queue" and random.random() < 0.3:
        drawn["subscriber_timeout"] = random.choice(["1m", "240m"])
    return drawn
