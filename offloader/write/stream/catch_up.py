"""Reading a stream's hot tier from where offering stopped, until the stream is live again.

Owns when it reads, and the hole that was met. Must never pass a hole before everything in front of it is committed.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.entries import Position
from formats.manifest import Failed, Gap
from offloader.ledgers.base import LedgerSource
from offloader.manifest.state import ManifestState
from offloader.write.hot.gaps import require_recording
from offloader.write.hot.reading import CATCH_UP_READ_BYTES, read_next
from offloader.write.segment.commits import Commits
from offloader.write.stream.state import StreamState
from offloader.write.stream.status import Mode

__all__ = ["CATCH_UP_READS_PER_STEP", "CatchUp"]

#: Reads of one turn in the worker pool, so that one stream that is far behind leaves room for others.
CATCH_UP_READS_PER_STEP = 8


class CatchUp:
    """Used by a stream's steps, one at a time.

    Args:
        shared: the stream's state.
        source: its hot tier.
        view: the manifest as it is now.
        commits: for gaps.
        given_up: what the next record has to say of failed segments.
        on_gap: the setting.
        schedule: makes another step.

    Attributes:
        hole: a proven gap that was met and isn't recorded yet.
        is_yielding: nothing more is read: a run over the history goes on from where offering stops.
    """

    def __init__(
        self,
        shared: StreamState,
        source: LedgerSource,
        *,
        view: Callable[[], ManifestState],
        commits: Commits,
        given_up: Callable[[], list[Failed]],
        on_gap: str,
        schedule: Callable[[], None],
    ) -> None:
        self._shared, self._source, self._view, self._commits = shared, source, view, commits
        self._given_up, self._on_gap, self._schedule = given_up, on_gap, schedule
        self.hole: Gap | None = None
        self._hole_after: Position | None = None
        self.is_yielding = False

    @property
    def is_at_end(self) -> bool:
        """Whether what is gathered now has to be committed before anything else is offered."""
        return self.hole is not None or self.is_yielding

    def read(self) -> None:
        """Offers what follows the last offered entry, until the tail is offered: then the stream is live."""
        for _ in range(CATCH_UP_READS_PER_STEP):
            if not self._read_once():
                return
        self._schedule()

    def _read_once(self) -> bool:
        """Whether it makes sense to go on."""
        shared = self._shared
        with shared.lock:
            if shared.mode is not Mode.CATCH_UP or self.is_at_end:
                return False
            offered = shared.queue.offered
            if not shared.is_behind:
                shared.mode = Mode.LIVE
                return False
            if not shared.queue.wait_for_room(CATCH_UP_READ_BYTES):
                return False
            room_bytes = shared.buffer.room_bytes
        read = read_next(self._source, offered, room_bytes)
        if read is None:
            return False
        batch, self._hole_after = read.batch, offered
        with shared.lock:
            if shared.mode is not Mode.CATCH_UP:
                return False
            shared.progress.seen(batch)
            shared.queue.learn(read.ledgers)
            self.hole = shared.queue.gap_before(read, self._view())
            if self.hole is None and shared.queue.offer(batch) == len(batch):
                return True
        self._schedule()  # it gets in line for room, or comes to the hole
        return False

    def pass_hole(self) -> None:
        """Blocks at a hole, or records it as a gap, when everything before it is committed."""
        gap = self.hole
        if gap is None:
            return
        with self._shared.lock:
            if self._shared.queue.first is not None:
                return  # closed by now, and committed first
            closed = self._shared.queue.closed_infos()
            if self._shared.queue.offered != self._hole_after:
                self.hole = None  # what came before it failed: it is read again, and may be gone too by now
        if self.hole is None:
            self._schedule()
            return
        require_recording(self._shared.stream, gap, self._on_gap)
        self._commits.passed(gap, self._given_up(), closed, self._passed)

    def _passed(self, state: ManifestState) -> None:
        self._given_up().clear()
        self.hole = None
        with self._shared.changed:
            # Behind the gap there may be ranges that another method offloaded before.
            self._shared.queue.go_on_after_committed(state)
            self._shared.gaps_recorded += 1
            self._shared.moved_on(state)
        self._schedule()
