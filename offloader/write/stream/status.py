"""What a stream is doing, as values.

Owns their fields and units. Must never compute them: the stream does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from formats.entries import Position
from offloader.errors import Closed

__all__ = ["Mode", "StreamStatus", "error_fields"]


class Mode(enum.Enum):
    """How entries reach the gathering segment."""

    CATCH_UP = "catch-up"
    LIVE = "live"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """What a stream is doing, for people and metrics.

    Attributes:
        mode: live, catch-up, paused or stopped.
        buffer_bytes, buffer_bytes_max: held now, and the limit.
        tail: newest entry known in the hot tier.
        offered: newest entry taken into a segment.
        committed: newest entry that the manifest says is readable from the cold tier.
        segments_committed: by this process.
        segments_failed: segments given up and started again.
        offers_refused: times an entry was written and there was no room (it is read from the hot tier later).
        gaps_recorded: gaps that this process recorded: ranges that the hot tier lost before they were offloaded.
        error, error_kind: why the last step failed and the error's class, empty when it didn't.
        entries_committed, bytes_committed: of those segments; bytes are payload.
        last_progress_ms: when this process last committed a segment, ms since 1970 UTC, ``None``: not yet.
        oldest_time_ms, tail_time_ms: publish times of the first and the newest entry seen here, ``None``: unknown.
        committed_time_ms: newest publish time of the last committed segment, ``None``: unknown.
        segment_age_s: how long its segments gather; ``None``: as those of the process.
    """

    mode: Mode
    buffer_bytes: int
    buffer_bytes_max: int
    tail: Position | None
    offered: Position | None
    committed: Position | None
    segments_committed: int
    segments_failed: int
    offers_refused: int
    error: str
    error_kind: str = ""
    entries_committed: int = 0
    bytes_committed: int = 0
    last_progress_ms: int | None = None
    oldest_time_ms: int | None = None
    tail_time_ms: int | None = None
    committed_time_ms: int | None = None
    gaps_recorded: int = 0
    segment_age_s: float | None = None

    @property
    def was_closed(self) -> bool:
        """Whether it stopped because it was told to."""
        return self.mode is Mode.STOPPED and self.error_kind == Closed.__name__


def error_fields(error: Exception | None) -> dict[str, Any]:
    """``error`` as a status says it."""
    return {"error": str(error or ""), "error_kind": type(error).__name__ if error is not None else ""}
