"""Names the streams that have data and make no progress.

Owns what counts as progress and how long its absence may last. Must never read a clock, nor repair anything: it tells.

Progress is what can't go back and forth: the committed end moves on, or more was offered than ever before. A segment
that fails and is read again and again offers the same entries each time, and that is no progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from formats.entries import Position
from offloader.write.stream.status import Mode, StreamStatus

__all__ = ["Stall", "Watchdog"]


@dataclass(frozen=True, slots=True)
class Stall:
    """A stream that has data and makes no progress.

    Attributes:
        stream: its name.
        seconds: since its last progress.
        reason: one line: what waits, since when, why if that is known.
    """

    stream: str
    seconds: float
    reason: str


@dataclass(slots=True)
class _Seen:
    committed: Position | None
    offered_max: Position | None
    since_s: float


class Watchdog:
    """Compares what it sees with what it saw.

    Args:
        no_progress_s: how long a stream with data may make none.
        segment_age_s: how long a segment gathers; a stream of which everything is offered waits for that by right.
    """

    def __init__(self, no_progress_s: float, segment_age_s: float) -> None:
        self._no_progress_s = no_progress_s
        self._segment_age_s = segment_age_s
        self._seen: dict[str, _Seen] = {}

    @property
    def streams(self) -> int:
        """How many it remembers: those of the last look."""
        return len(self._seen)

    def look(
        self, now_s: float, statuses: Mapping[str, StreamStatus], hanging: Mapping[str, str] | None = None
    ) -> dict[str, Stall]:
        """The streams that are stalled now, by name; streams that aren't in ``statuses`` are forgotten.

        Args:
            now_s: of a clock that never goes back.
            statuses: stream -> its status.
            hanging: stream -> its request that is overdue, in words.
        """
        seen: dict[str, _Seen] = {}
        stalls: dict[str, Stall] = {}
        for stream, status in statuses.items():
            seen[stream] = self._moved(self._seen.get(stream), status, now_s)
            stall = self._stall(stream, status, now_s - seen[stream].since_s, (hanging or {}).get(stream, ""))
            if stall is not None:
                stalls[stream] = stall
        self._seen = seen
        return stalls

    def _moved(self, before: _Seen | None, status: StreamStatus, now_s: float) -> _Seen:
        # A paused stream makes none, and has all the time again when it is resumed.
        if before is None or not _has_data(status) or status.mode is Mode.PAUSED:
            return _Seen(status.committed, status.offered, now_s)
        committed = before.committed != status.committed
        offered = _after(status.offered, before.offered_max)
        if committed or offered:
            return _Seen(status.committed, status.offered if offered else before.offered_max, now_s)
        return before

    def _stall(self, stream: str, status: StreamStatus, quiet_s: float, hangs: str) -> Stall | None:
        if not _has_data(status) or status.mode is Mode.PAUSED:
            return None
        waits = f"stream {stream}: entries up to {status.tail} wait, committed is {status.committed or 'nothing'}"
        if status.mode is Mode.STOPPED:
            if status.was_closed:
                return None
            return Stall(stream, quiet_s, f"{waits}; it stopped: {status.error}")
        gathering = status.mode is Mode.LIVE and not _after(status.tail, status.offered)
        segment_age_s = self._segment_age_s if status.segment_age_s is None else status.segment_age_s
        allowed_s = self._no_progress_s + (segment_age_s if gathering else 0)
        if quiet_s < allowed_s:
            return None
        why = hangs or (f"last error: {status.error}" if status.error else "no error is known")
        return Stall(stream, quiet_s, f"{waits}; no progress for {quiet_s:.0f} s; {why}")


def _has_data(status: StreamStatus) -> bool:
    return _after(status.tail, status.committed)


def _after(one: Position | None, other: Position | None) -> bool:
    return one is not None and (other is None or one > other)
