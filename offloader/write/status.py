"""Mode, progress and lag of a live stream, and the state it shares with the appending thread."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.segment import SegmentSummary
from offloader.errors import Closed, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.write.quota import StreamQuota
from offloader.write.segment_queue import SegmentQueue


class Mode(enum.Enum):
    """Path of entries to the gathering segment."""

    CATCH_UP = "catch-up"
    LIVE = "live"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """Status of a stream, for display and metrics.

    Attributes:
        mode: live, catch-up, paused or stopped.
        buffer_bytes, buffer_bytes_max: held now, and the limit.
        tail: newest entry known in the hot tier.
        offered: newest entry taken into a segment.
        committed: newest entry readable from the cold tier by the manifest.
        segments_committed: by this process.
        segments_failed: segments given up and started again.
        offers_refused: entries refused for lack of room when they were written (they are read from the hot tier later).
        gaps_recorded: gaps that this process recorded: ranges that the hot tier lost before they were offloaded.
        error, error_kind: the last step's error and its class, empty without one.
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
        """Whether it stopped on request."""
        return self.mode is Mode.STOPPED and self.error_kind == Closed.__name__


@dataclass(slots=True)
class Progress:
    """Counters of one stream in this process: see ``StreamStatus``.

    Attributes:
        tell: called with the name of a metric for each increment; may be called with locks held.
    """

    tell: Callable[[str], None] = lambda _: None
    segments_committed: int = 0
    entries_committed: int = 0
    bytes_committed: int = 0
    segments_failed: int = 0
    offers_refused: int = 0
    last_progress_ms: int | None = None
    oldest_time_ms: int | None = None
    tail_time_ms: int | None = None
    committed_time_ms: int | None = None

    def fields(self) -> dict[str, Any]:
        """The counters by name, as arguments of ``StreamStatus``."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tell"}

    def refused(self, really: bool) -> None:
        """Count a written entry without room; ``really``: not only because the stream isn't live."""
        if really:
            self.offers_refused += 1
            self.tell("offers_refused_total")

    def seen(self, batch: EntryBatch) -> None:
        """Record publish times of entries from the listener or a read."""
        newest_ms = int(batch.publish_times_ms[-1])
        if newest_ms == TIME_UNKNOWN_MS:
            return
        if self.oldest_time_ms is None:
            first_ms = int(batch.publish_times_ms[0])
            self.oldest_time_ms = newest_ms if first_ms == TIME_UNKNOWN_MS else first_ms
        self.tail_time_ms = newest_ms if self.tail_time_ms is None else max(self.tail_time_ms, newest_ms)

    def committed(self, summary: SegmentSummary, now_ms: int) -> None:
        """Count a committed segment."""
        self.segments_committed += 1
        self.entries_committed += summary.entries
        self.bytes_committed += summary.payload_bytes
        self.last_progress_ms = now_ms
        if summary.publish_time_max_ms != TIME_UNKNOWN_MS:
            self.committed_time_ms = summary.publish_time_max_ms


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance between the newest hot entry and the newest committed one.

    Attributes:
        entries: in the hot tier and not in the cold tier.
        payload_bytes: their bytes; inside a ledger that is partly committed, by the mean size of its entries.
        seconds: between the publish times of the two; ``None`` where entries carry none.
    """

    entries: int
    payload_bytes: int
    seconds: float | None


def lag_between(
    committed: Position | None,
    ledgers: Sequence[LedgerInfo],
    *,
    committed_time_ms: int | None = None,
    tail_time_ms: int | None = None,
) -> Lag:
    """Lag of ``committed`` behind the end of ``ledgers``.

    Args:
        committed: end of the entries readable from the cold tier, ``None``: none.
        ledgers: the hot tier's, any order.
        committed_time_ms, tail_time_ms: publish times of the two ends, ``None``: unknown.
    """
    entries = 0
    size_bytes = 0.0
    for info in ledgers:
        done = 0
        if committed is not None and info.ledger_id <= committed.ledger_id:
            done = info.entries if info.ledger_id < committed.ledger_id else min(info.entries, committed.entry_id + 1)
        left = info.entries - done
        entries += left
        size_bytes += info.size_bytes * left / info.entries if left else 0
    seconds = None
    if not entries:
        seconds = 0.0
    elif committed_time_ms is not None and tail_time_ms is not None:
        seconds = max(0, tail_time_ms - committed_time_ms) / 1000
    return Lag(entries, round(size_bytes), seconds)


def lag_of(status: StreamStatus, ledgers: Callable[[], Sequence[LedgerInfo]]) -> Lag:
    """Lag of a status; ``ledgers`` is only called if there is one.

    Before the first commit, time counts from the first entry seen.
    """
    since_ms = status.oldest_time_ms if status.committed_time_ms is None else status.committed_time_ms
    found = [] if status.tail == status.committed else ledgers()
    return lag_between(status.committed, found, committed_time_ms=since_ms, tail_time_ms=status.tail_time_ms)


class StreamState:
    """Shared state of a stream. Read and written under ``lock``.

    Attributes:
        changed: a condition over ``lock``, notified of every change that a caller may wait for.
        mode: live, catch-up, paused or stopped.
        tail: newest entry known in the hot tier.
        committed: end of the entries readable from the cold tier.
        close_at: requested commit position; the segment that holds it closes early.
        error: why the last step failed, or the stream stopped.
        is_watched: paused, and polled for a resume.
        wakes_asked, looks_done: number of requested and of completed polls of the pause state.
        heard: ledgers that had entries, from the committed one on, to detect a missing one.
        gaps_recorded: by this process.
    """

    def __init__(self, stream: str, buffer: StreamQuota, queue: SegmentQueue, progress: Progress) -> None:
        self.stream, self.buffer, self.queue, self.progress = stream, buffer, queue, progress
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.mode = Mode.LIVE
        self.tail: Position | None = None
        self.committed: Position | None = None
        self.close_at: Position | None = None
        self.error: OffloaderError | None = None
        self.is_watched = False
        self.wakes_asked = self.looks_done = self.gaps_recorded = 0
        self.heard: set[int] = set()

    @property
    def is_behind(self) -> bool:
        """Whether the hot tier has unoffered entries."""
        offered = self.queue.offered
        return self.tail is not None and (offered is None or self.tail > offered)

    @property
    def rests(self) -> bool:
        """Whether it is certainly paused, with no segment in progress."""
        return self.mode is Mode.PAUSED and self.queue.first is None and self.wakes_asked == self.looks_done

    def append(self, batch: EntryBatch, *, ours: bool) -> bool:
        """Take a batch that became durable; returns whether the workers have something to do.

        Args:
            ours: whether the stream's epoch is ours: else nothing can be offered.
        """
        self.heard.add(batch.ledger_id)
        if self.mode is Mode.STOPPED:
            self.tail = batch.last  # a fenced stream checks it later for waiting data
            return False
        before, self.tail = self.tail, batch.last
        self.progress.seen(batch)
        if self.mode is Mode.LIVE:
            ours = ours and self.queue.offered == before
            if not ours or self.queue.offer(batch) < len(batch):
                # The rest is in the hot tier: the next steps read it from there.
                self.mode = Mode.CATCH_UP
                self.progress.refused(ours and before is not None and before.ledger_id == batch.ledger_id)
        if self.mode is Mode.PAUSED:
            return not self.is_watched
        first = self.queue.first
        return self.mode is Mode.CATCH_UP or first is None or not first.assigned

    def keep_ledgers(self, needed: Callable[[int], bool]) -> None:
        """Drop facts about ledgers that aren't ``needed``, by their ids: the manifest has them, or set them aside."""
        self.queue.keep_ledgers(needed)
        self.heard = set(filter(needed, self.heard))

    def advance(self, state: ManifestState) -> None:
        """Record that more of the stream is readable; clears the last error."""
        self.committed = state.committed_end()
        if self.close_at is not None and self.committed is not None and self.committed >= self.close_at:
            self.close_at = None
        self.error = None
        self.changed.notify_all()
