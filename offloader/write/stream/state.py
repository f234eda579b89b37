"""What the thread that appends to a stream shares with the workers that offload it.

Owns the lock around it. Must never be held during I/O, nor decide anything.
"""

from __future__ import annotations

import threading
from collections.abc import Set

from formats.entries import EntryBatch, Position
from offloader.errors import OffloaderError
from offloader.manifest.state import ManifestState
from offloader.write.segment.buffer import StreamBuffer
from offloader.write.segment.queue import SegmentQueue
from offloader.write.stream.progress import Progress
from offloader.write.stream.status import Mode

__all__ = ["StreamState"]


class StreamState:
    """Read and written under ``lock``.

    Args:
        stream: its name.
        buffer: bytes held.
        queue: segments under way.
        progress: what was done.

    Attributes:
        changed: a condition over ``lock``, told of every change that somebody may wait for.
        mode: live, catch-up, paused or stopped.
        tail: newest entry known in the hot tier.
        committed: end of what is readable from the cold tier.
        close_at: up to here somebody asked for; the segment that holds it closes early.
        error: why the last step failed, or the stream stopped.
        is_watched: paused, and somebody looks from time to time whether it may go on.
        looks_asked, looks_done: how often somebody wanted to know whether the manifest says that it is paused, and got
            the answer.
        heard: ledgers that had entries, from the committed one on: one of them that is gone is missed.
        gaps_recorded: by this process.
    """

    def __init__(self, stream: str, buffer: StreamBuffer, queue: SegmentQueue, progress: Progress) -> None:
        self.stream = stream
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.buffer = buffer
        self.queue = queue
        self.mode = Mode.LIVE
        self.tail: Position | None = None
        self.committed: Position | None = None
        self.close_at: Position | None = None
        self.error: OffloaderError | None = None
        self.is_watched = False
        self.looks_asked = self.looks_done = 0
        self.heard: set[int] = set()
        self.gaps_recorded = 0
        self.progress = progress

    @property
    def is_behind(self) -> bool:
        """Whether the hot tier has entries that weren't offered."""
        offered = self.queue.offered
        return self.tail is not None and (offered is None or self.tail > offered)

    @property
    def rests(self) -> bool:
        """Whether it is paused for certain, and nothing is on its way any more."""
        return self.mode is Mode.PAUSED and self.queue.first is None and self.looks_asked == self.looks_done

    def append(self, batch: EntryBatch, *, ours: bool) -> bool:
        """Takes a batch that became durable; whether the workers have something to do.

        Args:
            ours: whether the stream's epoch is ours: else nothing can be offered.
        """
        self.heard.add(batch.ledger_id)
        if self.mode is Mode.STOPPED:
            self.tail = batch.last  # a fenced stream may be asked later whether data waits
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

    def forget_before(self, ledger_id: int) -> None:
        """Drops what was known of earlier ledgers: the manifest has it by now."""
        self.queue.forget_before(ledger_id)
        self.heard = {each for each in self.heard if each >= ledger_id}

    def leave(self, ledger_ids: Set[int]) -> None:
        """Drops what was known of ledgers that the manifest has set aside."""
        self.queue.leave(ledger_ids)
        self.heard = {each for each in self.heard if each not in ledger_ids}

    def moved_on(self, state: ManifestState) -> None:
        """A record made more of the stream readable; the last trouble is over."""
        self.committed = state.committed_end()
        if self.close_at is not None and self.committed is not None and self.committed >= self.close_at:
            self.close_at = None
        self.error = None
        self.changed.notify_all()
