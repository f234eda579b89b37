"""Read a stream's hot tier from the last offered entry, or backfill it, until the stream is live again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.manifest import Failed, Gap, SetMethod
from formats.summary import SegmentSummary
from offloader.errors import StoreUnavailableError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState, StreamPaused
from offloader.runtime.workers import Backoff
from offloader.write.backfill import (
    BackfillJob,
    HistoryResult,
    HistoryStart,
    HistoryTools,
    failed_before,
    interrupted,
    start_of_history,
)
from offloader.write.epoch import Ownership
from offloader.write.hot_tier import CATCH_UP_READ_BYTES, blocked_at, gap_before, read_next, require_recording
from offloader.write.quota import segment_bytes_max
from offloader.write.recovery import recover_lost
from offloader.write.stream import Event, Phase
from offloader.write.stream_state import Commits, StreamState, lag_between

#: Reads per task in the worker pool, so that a stream far behind leaves room for others.
CATCH_UP_READS_PER_STEP = 8


#: A stream this many segments behind is backfilled in parallel; below that it reads sequentially itself.
BEHIND_SEGMENTS_MIN = 3


class CatchUp:
    """Offloads existing entries of the hot tier, by reads or, if far behind, by a run over the history.

    Used by the stream's steps, one at a time; ``stop`` is thread-safe.

    Args:
        commits: of the same log, shared with the steps.
        schedule: makes another step.

    Attributes:
        gap: the proven, unrecorded gap of the phase ``AT_GAP``.
    """

    def __init__(
        self,
        shared: StreamState,
        source: LedgerSource,
        log: ManifestLog,
        tools: HistoryTools,
        commits: Commits,
        ownership: Ownership,
        backoff: Backoff,
        *,
        schedule: Callable[[], None],
    ) -> None:
        self._shared, self._source, self._log, self._tools = shared, source, log, tools
        self._commits, self._ownership, self._backoff, self._schedule = commits, ownership, backoff, schedule
        self.gap: Gap | None = None
        self._gap_after: Position | None = None
        self._run: BackfillJob | None = None
        self._outcome: Future[HistoryResult] | None = None

    def read(self) -> None:
        """Offer entries after the last offered one up to the tail: then the stream is live."""
        for _ in range(CATCH_UP_READS_PER_STEP):
            if not self._read_once():
                return
        self._schedule()

    def _read_once(self) -> bool:
        """Perform one read; returns whether to continue."""
        shared = self._shared
        with shared.lock:
            if shared.phase is not Phase.CATCHING_UP:
                return False
            offered = shared.queue.offered
            if not shared.is_behind:
                shared.happen(Event.CAUGHT_UP)
                return False
            if not shared.queue.wait_for_room(CATCH_UP_READ_BYTES):
                return False
            room_bytes = shared.buffer.room_bytes
        if (read := read_next(self._source, offered, room_bytes)) is None:
            return False
        batch, self._gap_after = read.batch, offered
        with shared.lock:
            if shared.phase is not Phase.CATCHING_UP:
                return False
            shared.progress.seen(batch)
            shared.queue.learn(read.ledgers)
            seen, is_next = shared.queue.closed_ledgers(), shared.queue.follows(batch.first)
            self.gap = gap_before(shared.stream, read, shared.queue.offered, self._log.state, seen, is_next=is_next)
            if self.gap is not None:
                shared.happen(Event.GAP_FOUND)
            elif shared.queue.offer(batch) == len(batch):
                return True
        self._schedule()  # to queue for room, or to reach the gap
        return False

    def pass_gap(self) -> None:
        """Block at a gap, or record it once everything before it is committed."""
        with self._shared.lock:
            gap = self.gap
            if self._shared.phase is not Phase.AT_GAP or self._shared.queue.first is not None:
                return  # no gap, or a segment before it was just closed: that is committed first
            closed = self._shared.queue.closed_infos()
        assert gap is not None
        require_recording(self._shared.stream, gap, self._tools.settings.on_gap)
        self._commits.first(gap, self._ownership.given_up, closed, self._passed)

    def _passed(self, state: ManifestState) -> None:
        self._ownership.given_up.clear()
        with self._shared.changed:
            self.gap = None
            self._shared.happen(Event.GAP_PASSED)
            # After the gap there may be ranges that another method offloaded before.
            self._shared.queue.go_on_after_committed(state)
            self._shared.gaps_recorded += 1
            self._shared.advance(state)
        self._schedule()

    @property
    def is_running(self) -> bool:
        """Whether a run is in progress; its end makes a step."""
        outcome = self._outcome
        return outcome is not None and not outcome.done()

    def is_far_behind(self, offered: Position | None) -> bool:
        """Whether enough of the hot tier is after ``offered`` for a run; queries the source."""
        lag = lag_between(offered, self._source.ledgers())
        return self._is_much(lag.payload_bytes + ENTRY_HEADER_BYTES * lag.entries)

    def _is_much(self, wire_bytes: int) -> bool:
        return wire_bytes >= BEHIND_SEGMENTS_MIN * segment_bytes_max(self._tools.settings)

    def stop(self) -> None:
        """End a run early; the rest is left to the next one."""
        if (run := self._run) is not None:
            run.stop()

    def settle_history(self) -> bool:
        """Start a run over missing older entries; False if every missing entry is recorded as a gap.

        Raises:
            CorruptError: a gap, and the policy is to block; or the source doesn't return entries it lists.
            FencedError, StoreUnavailableError and other errors of a run.
        """
        self._end_run()
        if self._log.state.method != "streaming":
            self._commits.commit([SetMethod("streaming")])
        recover_lost(
            *(self._log, self._source, self._tools),
            commit=self._commits.commit,
            is_stopped=lambda: self._shared.is_ended,
        )
        given_up = self._ownership.given_up
        given_up += interrupted(self._log, given_up)
        ledgers = self._source.ledgers()
        with self._shared.lock:
            seen = {**dict.fromkeys(self._shared.heard), **self._shared.queue.closed_ledgers()}
        start = start_of_history(
            self._log.state, ledgers, self._tools.settings, given_up={edit.uuid for edit in given_up}, seen=seen
        )
        if self._is_worth_a_run(start):
            recorded = failed_before(start.blocked, given_up, self._log.state)
            self._run = run = BackfillJob(
                *(self._tools, self._source, self._log, start.plan),
                commits=self._commits,
                first_edits=[*recorded, *start.ends, *start.gaps],
                on_progress=self._progressed,
                on_first_record=lambda: self._recorded(recorded, len(start.gaps)),
            )
            with self._shared.lock:
                if self._shared.is_ended:  # before ``stop`` could see the run
                    return True
            self._outcome = outcome = run.start()
            outcome.add_done_callback(lambda _: self._schedule())
            return True
        if start.blocked is not None:
            raise blocked_at(self._log.stream, start.blocked)
        return False

    def _is_worth_a_run(self, start: HistoryStart) -> bool:
        if start.gaps or start.ends or (start.blocked is not None and start.plan.segments):
            return True
        newest = self._log.state.newest_end
        if newest is not None and start.plan.begin is not None and start.plan.begin <= newest:
            return True  # a live segment follows the newest promise, so the missing part before it can't become one
        return self._is_much(start.plan.wire_bytes)

    def _progressed(self, summary: SegmentSummary) -> None:
        with self._shared.changed:
            self._shared.progress.committed(summary, self._tools.clock.now_ms())
            self._shared.advance(self._log.state)
        self._backoff.reset()

    def _recorded(self, failed: Sequence[Failed], gaps: int) -> None:
        given_up = self._ownership.given_up
        given_up[:] = [edit for edit in given_up if edit not in failed]
        if gaps:
            with self._shared.changed:
                self._shared.gaps_recorded += gaps
                self._shared.advance(self._log.state)

    def _end_run(self) -> None:
        """Process the result of the last run; raises its error."""
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        self._run = None
        for error in outcome.result().errors:
            if isinstance(error, StreamPaused):
                raise error
            # An error of the store or the source: the next check finds and names the missing entries.
            raise StoreUnavailableError(
                f"stream {self._log.stream}: its history can't be offloaded: {error}"
            ) from error
