"""Lag of streaming queries as numbers, out of their progress.

Spark fills ``sources[].metrics`` of a query's progress only from sources in the JVM. A Python source gives Spark its
latest offset for ``sources[].latestOffset``, and ours has the lag of each stream in it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_log = logging.getLogger("offloader.spark")


@dataclass(frozen=True, slots=True)
class StreamLag:
    """The entries of a stream that a query hasn't read after a batch, up to the committed end when it was planned.

    Attributes:
        entries: their number; an entry may hold several messages.
        bytes: of their payloads; in the segment that the batch ends in, estimated by the number of entries.
    """

    entries: int
    bytes: int


def lag_of(progress: Mapping[str, Any]) -> dict[str, StreamLag]:
    """The lag of each stream, of all sources with the format ``offloader`` together; empty without such a source.

    Args:
        progress: ``query.lastProgress``, one of ``query.recentProgress``, or ``event.progress`` of a listener.
    """
    found: dict[str, StreamLag] = {}
    for source in progress["sources"]:
        for stream, offset in _offsets(source["latestOffset"]).items():
            if isinstance(offset, dict) and "entriesBehind" in offset:
                own = found.get(stream, StreamLag(0, 0))
                found[stream] = StreamLag(own.entries + offset["entriesBehind"], own.bytes + offset["bytesBehind"])
    return found


def _offsets(text: Any) -> dict[str, Any]:
    """A source's latest offset; empty for one that isn't a JSON object: each source has its own form."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class LagListener(StreamingQueryListener):
    """Calls a function with the lag after each batch: ``spark.streams.addListener(LagListener(report))``.

    Args:
        report: takes the progress and the lag by stream, on a thread of Spark's; ``None``: logs who is behind.
    """

    def __init__(self, report: Callable[[Mapping[str, Any], dict[str, StreamLag]], None] | None = None) -> None:
        self._report = report or _logged

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing: a query that begins has read nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Reports the lag."""
        lag = lag_of(event.progress)
        if lag:
            self._report(event.progress, lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing: a query is idle when it has read everything."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing: its last batch was reported."""


def _logged(progress: Mapping[str, Any], lag: dict[str, StreamLag]) -> None:
    name = progress["name"] or progress["id"]
    for stream, each in sorted(lag.items()):
        if each.entries:
            text = "query %s, batch %d: stream %s has %d unread entries, %d unread bytes"
            extra = {"event": "query_lag", "stream": stream, "entries": each.entries, "bytes": each.bytes}
            _log.info(text, name, progress["batchId"], stream, each.entries, each.bytes, extra=extra)
