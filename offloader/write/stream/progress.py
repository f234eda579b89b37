"""What a stream has done so far, and how far its cold tier is behind the hot one.

Owns the counters behind a status and the arithmetic of lag. Must never do I/O; the stream's lock guards the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.segment import SegmentSummary
from offloader.errors import Fenced, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.store.attempts import recorder_of
from offloader.store.base import ObjectStore
from offloader.write.stream.status import StreamStatus

__all__ = ["Lag", "Progress", "lag_between", "lag_of"]


@dataclass(slots=True)
class Progress:
    """Counters of one stream in this process.

    Attributes:
        tell: is told the name of a metric each time there is one more; may be called with locks held.
        segments_committed, entries_committed, bytes_committed: what became readable from the cold tier; bytes of
            payload.
        segments_failed: segments given up and started again.
        offers_refused: times an entry was written and there was no room.
        last_progress_ms: wall clock of the last commit.
        oldest_time_ms: publish time of the first entry seen here.
        tail_time_ms: publish time of the newest entry seen here.
        committed_time_ms: newest publish time of the last committed segment.
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

    @classmethod
    def told_by(cls, store: ObjectStore, stream: str) -> Progress:
        """Of a stream; the metrics go where those of the store's requests go."""
        return cls(partial(recorder_of(store).add, stream=stream))

    def fields(self) -> dict[str, Any]:
        """The counters by name, as ``StreamStatus`` takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tell"}

    def refused(self, really: bool) -> None:
        """An entry was written, and there was no room; ``really``: not only because the stream isn't live."""
        if really:
            self.offers_refused += 1
            self.tell("offers_refused_total")

    def stopped(self, error: OffloaderError) -> None:
        """The stream stopped by itself."""
        if isinstance(error, Fenced):
            self.tell("fenced_total")

    def seen(self, batch: EntryBatch) -> None:
        """Entries came by, from the listener or from a read."""
        newest_ms = int(batch.publish_times_ms[-1])
        if newest_ms == TIME_UNKNOWN_MS:
            return
        if self.oldest_time_ms is None:
            first_ms = int(batch.publish_times_ms[0])
            self.oldest_time_ms = newest_ms if first_ms == TIME_UNKNOWN_MS else first_ms
        self.tail_time_ms = newest_ms if self.tail_time_ms is None else max(self.tail_time_ms, newest_ms)

    def committed(self, summary: SegmentSummary, now_ms: int) -> None:
        """A segment is in the manifest."""
        self.segments_committed += 1
        self.entries_committed += summary.entries
        self.bytes_committed += summary.payload_bytes
        self.last_progress_ms = now_ms
        if summary.publish_time_max_ms != TIME_UNKNOWN_MS:
            self.committed_time_ms = summary.publish_time_max_ms


@dataclass(frozen=True, slots=True)
class Lag:
    """The newest hot entry against the newest committed one.

    Attributes:
        entries: how many the hot tier has and the cold tier hasn't.
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
    """How far ``committed`` is behind the end of ``ledgers``.

    Args:
        committed: end of what is readable from the cold tier, ``None``: nothing is.
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
    """The lag that a status stands for; ``ledgers`` is asked only when there is one.

    Where nothing was committed yet, time counts from the first entry seen.
    """
    since_ms = status.oldest_time_ms if status.committed_time_ms is None else status.committed_time_ms
    found = [] if status.tail == status.committed else ledgers()
    return lag_between(status.committed, found, committed_time_ms=since_ms, tail_time_ms=status.tail_time_ms)
