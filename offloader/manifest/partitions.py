"""A partitioned topic's streams: Pulsar gives each partition a topic of its own, ``TOPIC-partition-N``.

Owns finding them. Must never take a stream for a partition because its name only looks alike.
"""

from __future__ import annotations

import re

from offloader.manifest.catalog import list_streams
from offloader.store.base import ObjectStore

__all__ = ["partition_number", "partitions_of"]

_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,9})")


def partition_number(stream: str, topic: str) -> int | None:
    """Which partition of a topic a stream is; ``None``: none of it."""
    match = _PARTITION.fullmatch(stream, len(topic)) if stream.startswith(topic) else None
    return None if match is None else int(match[1])


def partitions_of(store: ObjectStore, topic: str) -> list[str]:
    """The streams of a partitioned topic's partitions, by number; empty: it has none here."""
    streams = list_streams(store, prefix=f"{topic}-partition-")
    found = {number: each for each in streams if (number := partition_number(each, topic)) is not None}
    return [found[number] for number in sorted(found)]
