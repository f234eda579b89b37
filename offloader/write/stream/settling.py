"""A stream's segments from assignment to commit: one record ends a segment and assigns the next.

Owns what becomes of a segment that is complete, or that failed. Must never tell the source that entries are safe before
the record that says so is durable, nor let anything newer go before a range that failed.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.manifest import Failed
from formats.segment import SegmentSummary
from offloader.clock import Clock
from offloader.errors import Closed, StoreUnavailable
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.state import ManifestState
from offloader.write.hot.reading import CATCH_UP_READ_BYTES
from offloader.write.segment.commits import Commits
from offloader.write.segment.queue import WritingSegment
from offloader.write.stream.state import StreamState
from offloader.write.stream.status import Mode

__all__ = ["Settling"]


class Settling:
    """Used by a stream's steps, one at a time.

    Args:
        shared: the stream's state.
        source: is told what is safe.
        view: the manifest as it is now.
        commits: of that manifest.
        given_up: what the next record has to say of failed segments.
        clock: for the time of the last progress.
        schedule: makes another step.
        on_success: called when a segment is in the manifest.
        on_failure: called when one failed: its range is read again.
    """

    def __init__(
        self,
        shared: StreamState,
        source: LedgerSource,
        *,
        view: Callable[[], ManifestState],
        commits: Commits,
        given_up: Callable[[], list[Failed]],
        clock: Clock,
        schedule: Callable[[], None],
        on_success: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._shared, self._source, self._view, self._commits = shared, source, view, commits
        self._given_up, self._clock, self._schedule = given_up, clock, schedule
        self._on_success, self._on_failure = on_success, on_failure

    def settle_first(self) -> None:
        """Commits the first segment when its objects are there, or starts its range again when it failed."""
        with self._shared.lock:
            segment, following = self._shared.queue.first, self._shared.queue.following
        if segment is None:
            return
        result = segment.handle.get_offload_result_async()
        if not result.done():
            return
        error = result.exception()
        if error is not None:
            self._restart(segment, error)
        if not segment.assigned:
            return
        summary = result.result().summary
        assert summary is not None, "a segment is opened for an entry"
        self._commits.settled(
            *(segment, summary, following, self._closed_ledgers()),
            then=lambda state: self._settled(state, summary, following),
        )

    def _settled(self, state: ManifestState, summary: SegmentSummary, following: WritingSegment | None) -> None:
        shared = self._shared
        with shared.changed:
            if shared.mode is Mode.STOPPED:
                return
            shared.queue.pop_first()
            shared.forget_before(summary.end.ledger_id)
            shared.progress.committed(summary, self._clock.now_ms())
            shared.moved_on(state)
        if following is not None:
            following.assigned = True
            following.handle.start_sending()
        self._schedule()
        self._source.release(summary.end)
        self._on_success()

    def _restart(self, segment: WritingSegment, error: BaseException) -> None:
        """A segment failed: forget what was offered since its begin, read it again after a wait, under a new name."""
        with self._shared.lock:
            segments = self._shared.queue.clear(self._view().committed_end())
            if self._shared.mode not in (Mode.STOPPED, Mode.PAUSED):
                self._shared.mode = Mode.CATCH_UP
            self._shared.progress.segments_failed += 1
        if segment.assigned:
            self._given_up().append(Failed(segment.handle.uuid, str(error)))
        for other in segments:
            other.handle.abandon(Closed("the segment before it failed"), abort=True)
        self._on_failure()
        raise StoreUnavailable(
            f"stream {self._shared.stream}: segment {segment.handle.uuid} failed: {error}"
        ) from error

    def assign_first(self) -> None:
        """Records the first segment after a start or a failure; others are assigned with their predecessor's end."""
        with self._shared.lock:
            segment = self._shared.queue.first
        if segment is None or segment.assigned:
            return
        self._commits.first(
            *(segment, self._given_up(), self._closed_ledgers()), then=lambda _: self._assigned(segment)
        )

    def _assigned(self, segment: WritingSegment) -> None:
        self._given_up().clear()
        segment.assigned = True
        segment.handle.start_sending()

    def close_due(self, *, at_end: bool) -> None:
        """Closes the gathering segment when that was asked for, or when it holds bytes that nothing else would free.

        Args:
            at_end: nothing is offered until what is gathered is committed.
        """
        shared = self._shared
        with shared.lock:
            segment = shared.queue.gathering
            offered, close_at = shared.queue.offered, shared.close_at
            if segment is None:
                return
            # The request stands until what it asked for is committed: the segment may fail and be gathered again.
            asked = close_at is not None and offered is not None and segment.begin <= close_at <= offered
            close = asked or at_end or shared.queue.is_stuck(CATCH_UP_READ_BYTES)
        if close:
            segment.handle.close()

    def _closed_ledgers(self) -> list[LedgerInfo]:
        with self._shared.lock:
            return self._shared.queue.closed_infos()
