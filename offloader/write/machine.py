"""State machine of one live stream: next actions, and recovery from failures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.keys import new_segment_uuid
from formats.manifest import Failed, Gap
from formats.segment import SegmentSummary
from offloader.errors import (
    AccessDenied,
    BucketMissing,
    Closed,
    Corrupt,
    Fenced,
    NotFound,
    OffloaderError,
    SourceMismatch,
    StoreUnavailable,
)
from offloader.ledgers.base import LedgerInfo, LedgerSource, Subscription
from offloader.manifest.checked_source import checked
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, ManifestState, StreamPaused
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Backoff, SerialTask, Timer, Workers
from offloader.write.backfill_plan import HistoryTools
from offloader.write.catch_up import CatchUp, StreamBackfill
from offloader.write.epoch import Ownership, Revival
from offloader.write.hot_tier import CATCH_UP_READ_BYTES
from offloader.write.quota import StreamQuota
from offloader.write.segment import OffloadHandle
from offloader.write.segment_queue import Commits, SegmentQueue, WritingSegment
from offloader.write.status import Lag, Mode, Progress, StreamState, StreamStatus, error_fields, lag_of

__all__ = ["LOOK_FIRST_S", "LOOK_MAX_S", "MakeHandle", "Pausing", "SegmentCommitter", "StreamMachine", "StreamOffload"]


class SegmentCommitter:
    """Commits segments. Used by a stream's steps, one at a time.

    Args:
        shared: the stream's state.
        source: receives acknowledgements.
        view: the current manifest.
        commits: of that manifest.
        given_up: the next record's edits about failed segments.
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
        """Commit the first segment once its objects are stored, or restart its range when it failed."""
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
        """After a failed segment: back off and read its entries again, under a new name."""
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
        """Record the first segment after a start or a failure; others are assigned with their predecessor's end."""
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
        """Close the gathering segment on request, or when only that frees its bytes.

        Args:
            at_end: no offers until the gathering segment is committed.
        """
        shared = self._shared
        with shared.lock:
            segment = shared.queue.gathering
            offered, close_at = shared.queue.offered, shared.close_at
            if segment is None:
                return
            # The request stands until its target is committed: the segment may fail and be gathered again.
            asked = close_at is not None and offered is not None and segment.begin <= close_at <= offered
            close = asked or at_end or shared.queue.is_stuck(CATCH_UP_READ_BYTES)
        if close:
            segment.handle.close()

    def _closed_ledgers(self) -> list[LedgerInfo]:
        with self._shared.lock:
            return self._shared.queue.closed_infos()


_log = logging.getLogger("offloader.stream")

#: First poll interval of a paused stream with waiting entries; doubles each time.
LOOK_FIRST_S = 5.0
#: Longest poll interval. A poll is three requests.
LOOK_MAX_S = 60.0


class Pausing:
    """Pause state of a stream. Used by its steps, one at a time; ``look_again`` is thread-safe.

    Args:
        shared: the stream's state.
        log: its manifest.
        workers: for the timer.
        schedule: makes another step.
    """

    def __init__(
        self, shared: StreamState, log: ManifestLog, workers: Workers, *, schedule: Callable[[], None]
    ) -> None:
        self._shared, self._log, self._workers, self._schedule = shared, log, workers, schedule
        self._looking = 0
        self._delay_s = LOOK_FIRST_S
        self._timer: Timer | None = None

    def look_again(self) -> None:
        """Reload the manifest in the next step."""
        with self._shared.lock:
            self._shared.looks_asked += 1
        self._schedule()

    def is_on(self) -> bool:
        """Whether the stream is paused by the last loaded manifest: every commit and every ``look_again`` reloads it.

        Raises: errors of loading a manifest.
        """
        self._looking = self._shared.looks_asked
        if self._looking != self._shared.looks_done:
            try:
                self._log.load()
            except NotFound:
                return False  # nothing of it was ever offloaded
        return self._log.is_loaded and self._log.state.paused

    def rest(self) -> None:
        """Drop unassigned segments: the hot tier has their entries."""
        shared = self._shared
        with shared.changed:
            if shared.mode is Mode.STOPPED:
                return
            begins, shared.mode = shared.mode is not Mode.PAUSED, Mode.PAUSED
            dropped = shared.queue.keep_assigned(self._log.state.committed_end())
            waits = shared.is_behind
            if waits and self._timer is None:
                self._timer = self._workers.call_after(self._delay_s, self._look)
            shared.is_watched = self._timer is not None
            shared.looks_done = self._looking
            shared.changed.notify_all()
        if begins:
            _log.info("stream %s is paused", shared.stream)
        for segment in dropped:
            segment.handle.abandon(Closed("the stream is paused"), abort=True)
        shared.buffer.stop_waiting()

    def end(self) -> bool:
        """Resume reading where the stream stopped. Returns whether it was paused with no segment in progress."""
        shared = self._shared
        with shared.changed:
            shared.looks_done = self._looking
            if shared.mode is not Mode.PAUSED:
                return False
            shared.mode, shared.is_watched = Mode.CATCH_UP, False
            timer, self._timer, self._delay_s = self._timer, None, LOOK_FIRST_S
            shared.changed.notify_all()
        if timer is not None:
            timer.cancel()
        _log.info("stream %s is resumed", shared.stream)
        return shared.queue.first is None

    def _look(self) -> None:
        with self._shared.lock:
            self._timer = None
            self._delay_s = min(2 * self._delay_s, LOOK_MAX_S)
        self.look_again()


#: Creates a handle that doesn't send yet, for (uuid, position to follow, buffer, callback on a change).
MakeHandle = Callable[[UUID, Position | None, StreamQuota, Callable[[], None]], OffloadHandle]


class StreamMachine:
    """State machine of a ``StreamOffload``, which has the same arguments.

    Attributes:
        shared: state shared with the appending thread and with waiting callers.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        make_handle: MakeHandle,
        tools: HistoryTools,
        take_over: bool,
        on_refused: Callable[[], None],
    ) -> None:
        self._log, self._tools, self._make_handle, self._on_refused = log, tools, make_handle, on_refused
        settings, workers = tools.settings, tools.workers
        self._step_task = SerialTask(workers, self._step)
        schedule = self._step_task.schedule
        buffer = StreamQuota(settings.offload_buffer_bytes_max, tools.budget, wake=schedule, relieve=self._relieve)
        progress = Progress.told_by(log.store, log.stream)
        self.shared = StreamState(log.stream, buffer, SegmentQueue(self._open_handle, buffer, settings), progress)
        self._backoff = Backoff(workers, settings.retry_seconds_max, schedule)

        # Accessed by steps only.
        self._commits = Commits(log, source, tools.driver, tools.clock)
        self._ownership = Ownership(log, source, settings, tools.clock, take_over=take_over)
        self._revival = Revival(
            log.stream, self._ownership, settings, workers, tail=lambda: self.shared.tail, reopen=self.reopen
        )
        self._pausing = Pausing(self.shared, log, workers, schedule=schedule)
        self._older = StreamBackfill(
            *(source, log, tools, self._commits),
            seen=self._seen_ledgers,
            schedule=schedule,
            on_progress=self._older_came,
            on_gap=self._gap_passed,
        )

        def view() -> ManifestState:
            return log.state

        def given_up() -> list[Failed]:
            return self._ownership.given_up

        self._catch_up = CatchUp(
            self.shared,
            source,
            view=view,
            commits=self._commits,
            given_up=given_up,
            on_gap=settings.on_gap,
            schedule=schedule,
        )
        self._settling = SegmentCommitter(
            self.shared,
            source,
            view=view,
            commits=self._commits,
            given_up=given_up,
            clock=tools.clock,
            schedule=schedule,
            on_success=self._segment_came,
            on_failure=self._older.look_again,
        )
        self._moves = (self._record_known, self._not_paused, self._owned, self._older_is_there, self._segments)

    def schedule(self) -> None:
        """Run a step soon."""
        self._step_task.schedule()

    def look_again(self) -> None:
        """Reload the manifest soon: the stream may have been paused or resumed."""
        self._pausing.look_again()

    def stop(self) -> None:
        """Refuse further entries, give unfinished segments up, and return their memory to the process's budget."""
        self._revival.stop()
        self.halt(Closed(f"stream {self._log.stream} was stopped"), abort=True)
        self.shared.buffer.leave()

    def reopen(self) -> None:
        """Take a fenced stream back; no effect on another."""
        if not self._revival.stop():
            return
        with self.shared.lock:
            self.shared.mode = Mode.CATCH_UP
            self.shared.error = None
            self._backoff.reset()
        self._ownership.reclaim()
        self._step_task.schedule()

    # -- incoming entries

    def on_appended(self, batch: EntryBatch) -> bool:
        """Called by the source for each batch that became durable; must be quick. False: the entries are read later."""
        with self.shared.lock:
            wake = self.shared.append(batch, ours=self._ownership.held)
            taken = self.shared.mode is Mode.LIVE
        if wake:
            self._step_task.schedule()
        return taken

    def on_ledger_closed(self, info: LedgerInfo) -> None:
        """Called by the source before the first batch of a later ledger, so that a rollover doesn't end live mode."""
        with self.shared.lock:
            self.shared.queue.learn([info])  # also when fenced: it may become the owner again

    def _open_handle(self, after: Position | None) -> OffloadHandle:
        uuid = new_segment_uuid(self._log.state.incarnation, int.from_bytes(self._tools.entropy(8), "big"))
        handle = self._make_handle(uuid, after, self.shared.buffer, self._step_task.schedule)
        age_s = self._tools.settings.max_offload_segment_rollover_time_minutes * 60
        timer = self._tools.workers.call_after(age_s, handle.close)
        handle.get_offload_result_async().add_done_callback(lambda _: timer.cancel())
        return handle

    # -- steps

    def _step(self) -> None:
        with self.shared.lock:
            if self.shared.mode is Mode.STOPPED or self._backoff.waiting:
                return
        if self._older.is_running:
            return  # it is committing now, and its end makes a step
        try:
            for move in self._moves:
                if not move():
                    return
        except Fenced as error:
            self._lose(error)
        except StreamPaused:
            self._step_task.schedule()  # the view is up to date by now: the next step pauses
        except (EditRefused, Corrupt, SourceMismatch) as error:
            # The manifest or the hot tier is damaged, or another one: a retry would read the same bytes.
            self.halt(error, abort=True)
            if isinstance(error, EditRefused):
                self._on_refused()
        except OffloaderError as error:
            self._retry_later(error)
        except BaseException as error:
            # For any error (memory, disk, a bug): report and retry; a stream never stalls silently.
            _log.exception("stream %s: a step failed", self._log.stream)
            self._retry_later(StoreUnavailable(f"stream {self._log.stream}: {type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise

    def _record_known(self) -> bool:
        self._commits.finish()
        return True

    def _not_paused(self) -> bool:
        """Pause the stream if requested; after a resume check for missing entries."""
        if not self._pausing.is_on():
            if self._pausing.end():
                self._older.look_again()
            return True
        self._pausing.rest()
        self._settling.settle_first()
        self._settling.close_due(at_end=True)
        return False

    def _owned(self) -> bool:
        """Open an epoch when there is something to offload, and settle the last owner's unfinished segments."""
        if self._ownership.held:
            return True
        # Compare before anything counts as offloaded already.
        state, shared = self._ownership.load_checked(), self.shared
        with shared.lock:
            shared.leave(state.aside_ledgers)
            if shared.queue.first is None:
                shared.committed = shared.queue.go_on_after_committed(state)
            if not shared.is_behind:
                shared.mode = Mode.LIVE
                return False
        if state.paused:
            self._pausing.rest()
            return False
        self._ownership.take(self._commits)
        self._older.look_again()
        return True

    def _older_is_there(self) -> bool:
        if not self._older.due:
            return True
        # Memory granted to the stream would be idle during a run, and the run may need it.
        self.shared.buffer.stop_waiting()
        if not self._older.is_done(self._ownership.given_up):
            return False
        with self.shared.changed:
            end = self.shared.queue.go_on_after_committed(self._log.state)
            self.shared.forget_before(end.ledger_id if end else 0)
            self.shared.moved_on(self._log.state)
        return True

    def _seen_ledgers(self) -> dict[int, int | None]:
        with self.shared.lock:
            return {**dict.fromkeys(self.shared.heard), **self.shared.queue.closed_ledgers()}

    def _older_came(self, summary: SegmentSummary) -> None:
        with self.shared.changed:
            self.shared.progress.committed(summary, self._tools.clock.now_ms())
            self.shared.moved_on(self._log.state)
        self._backoff.reset()

    def _gap_passed(self, _: Gap) -> None:
        with self.shared.changed:
            self.shared.gaps_recorded += 1
            self.shared.moved_on(self._log.state)

    def _segment_came(self) -> None:
        self._backoff.reset()
        with self.shared.lock:
            catches_up, offered = self.shared.mode is Mode.CATCH_UP, self.shared.queue.offered
        if catches_up and self._older.is_far_behind(offered):
            self._catch_up.is_yielding = True

    def _segments(self) -> bool:
        self._settling.settle_first()
        if self._catch_up.is_yielding and self.shared.queue.first is None:
            self._catch_up.is_yielding = False
            self._older.look_again()
            self._step_task.schedule()
            return False
        self._catch_up.read()
        self._settling.close_due(at_end=self._catch_up.is_at_end)
        self._catch_up.pass_hole()
        self._settling.assign_first()
        return True

    # -- failures

    def _retry_later(self, error: OffloaderError) -> None:
        with self.shared.changed:
            self.shared.error = error
            self.shared.changed.notify_all()
        # The memory granted in the queue would be idle meanwhile.
        self.shared.buffer.stop_waiting()
        delay_s = self._backoff.wait()
        _log.warning("stream %s: %s; again in %.1f s", self._log.stream, error, delay_s)

    def _relieve(self) -> int:
        """Under memory pressure: flush held bytes, or drop them; returns their number.

        Bytes that can't be sent now (the manifest or the store is unreachable) are dropped: the hot tier has them.
        """
        shared, dropped = self.shared, list[WritingSegment]()
        with shared.lock:
            segment, first = shared.queue.gathering, shared.queue.first
            held_bytes = shared.buffer.held_bytes
            if shared.mode is Mode.STOPPED or first is None:
                return 0
            if self._backoff.waiting and not first.assigned:
                dropped = shared.queue.clear(shared.committed)
                shared.mode = Mode.CATCH_UP
            elif shared.queue.is_leaving:
                return held_bytes
        for other in dropped:
            other.handle.abandon(Closed("its bytes are needed elsewhere; it is read again"), abort=True)
        if segment is not None and not dropped:
            segment.handle.close()
        return held_bytes

    def _lose(self, error: Fenced) -> None:
        """Fenced: stop without deletions, and poll until the successor is inactive."""
        # Before waking waiters: a caller that learns of the loss may reopen the stream at once.
        self._ownership.lose()
        self._revival.watch()
        self.halt(error, abort=False)

    def halt(self, error: OffloaderError, *, abort: bool) -> None:
        with self.shared.changed:
            if self.shared.mode is Mode.STOPPED:
                return
            self.shared.mode = Mode.STOPPED
            self.shared.error = error
            self._catch_up.hole, self._catch_up.is_yielding = None, False
            segments = self.shared.queue.clear(self.shared.queue.offered)
            self.shared.changed.notify_all()
        if not isinstance(error, Closed):
            self.shared.progress.stopped(error)
            _log.error("stream %s stopped: %s", self._log.stream, error)
        self._older.stop()
        for segment in segments:
            segment.handle.abandon(error, abort=abort)
        self.shared.buffer.stop_waiting()


#: Permanent errors: waiting callers of an offload get them at once. The stream itself keeps retrying.
_HOPELESS = (AccessDenied, BucketMissing)
#: Longest sleep of a waiting caller between reads of the clock.
_WAIT_S_MAX = 1.0
#: Poll interval for entries reported by the source.
_HEARD_S = 0.02


class StreamOffload:
    """Offloads one stream during its epoch.

    Args:
        source: the stream's hot tier.
        log: its manifest.
        make_handle: see ``MakeHandle``.
        tools: of the process: its workers, memory, clock, settings.
        take_over: take the stream from an active owner. On by default, because a source made this writer the active
            one. Commands leave it off unless requested.
        on_refused: called when the stream stops because the manifest refused its edits.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        make_handle: MakeHandle,
        tools: HistoryTools,
        take_over: bool = True,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source = checked(source, log)
        self._settings = tools.settings
        self._clock = tools.clock
        self._subscription: Subscription | None = None
        self._steps = StreamMachine(
            source, log, make_handle=make_handle, tools=tools, take_over=take_over, on_refused=on_refused
        )
        self._shared = self._steps.shared

    @property
    def stream(self) -> str:
        return self._shared.stream

    def start(self) -> None:
        """Continue after the manifest's end, on a worker. Sends no request before an entry is in the hot tier."""
        self._subscription = self._source.subscribe(self._steps.on_appended, self._steps.on_ledger_closed)
        try:
            ledgers = [info for info in self._source.ledgers() if info.entries]
        except BaseException:
            self.stop()  # or its subscription would take entries of an unowned stream
            raise
        with self._shared.changed:
            if ledgers:
                newest = Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id)
                self._shared.tail = newest if self._shared.tail is None else max(self._shared.tail, newest)
                self._shared.mode = Mode.CATCH_UP
                # So that a ledger missing at read time is detected.
                self._shared.queue.learn(ledgers)
                self._shared.heard |= {info.ledger_id for info in ledgers}
        if ledgers:
            self._steps.schedule()

    def status(self) -> StreamStatus:
        with self._shared.changed:
            return StreamStatus(
                mode=self._shared.mode,
                buffer_bytes=self._shared.buffer.held_bytes,
                buffer_bytes_max=self._shared.buffer.limit_bytes,
                tail=self._shared.tail,
                offered=self._shared.queue.offered,
                committed=self._shared.committed,
                **error_fields(self._shared.error),
                gaps_recorded=self._shared.gaps_recorded,
                segment_age_s=self._settings.max_offload_segment_rollover_time_minutes * 60,
                **self._shared.progress.fields(),
            )

    def lag(self) -> Lag:
        """Lag of the cold tier; queries the source's ledgers if there is one."""
        return lag_of(self.status(), self._source.ledgers)

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Close the segment that holds ``until`` (default: the newest entry now) and wait for its commit.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises:
            StoreUnavailable: not committed within ``timeout_s``.
            StreamPaused: the stream is paused.
            Fenced, Closed and other errors that stopped the stream; AccessDenied, BucketMissing: an unusable store.
        """
        wait_s = self._settings.drain_seconds_max if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + wait_s
        target = self.request_offload(until)
        if target is None:
            return None
        if self._shared.mode is Mode.PAUSED:
            self.look_again()  # the pause may have ended
        with self._shared.changed:
            while self._shared.committed is None or self._shared.committed < target:
                if self._shared.mode is Mode.STOPPED:
                    raise self._shared.error or Closed(f"stream {self.stream} was stopped")
                if isinstance(self._shared.error, _HOPELESS):
                    raise self._shared.error
                if self._shared.rests:
                    raise StreamPaused(self.stream)
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise StoreUnavailable(
                        f"stream {self.stream}: {target} isn't offloaded after {wait_s:g} s, committed is "
                        f"{self._shared.committed or 'nothing'}"
                        + (f"; last error: {self._shared.error}" if self._shared.error else ""),
                        hint="nothing is lost: the hot tier has it, and offloading goes on at the next start",
                    )
                self._shared.changed.wait(min(left_s, _WAIT_S_MAX))
            return self._shared.committed

    def hears_of(self, position: Position, *, within_s: float) -> bool:
        """Wait until the source has reported its entries up to ``position``, or the stream was stopped; False on
        timeout. Sources report with a delay, longer after a lost connection."""
        deadline_s = self._clock.monotonic_s() + within_s
        with self._shared.changed:
            while self._shared.tail is None or self._shared.tail < position:
                left_s = deadline_s - self._clock.monotonic_s()
                if self._shared.mode is Mode.STOPPED or left_s <= 0:
                    return self._shared.mode is Mode.STOPPED
                # Waiters poll: a wake-up for each batch would slow every writer.
                self._shared.changed.wait(min(left_s, _HEARD_S))
        return True

    def request_offload(self, until: Position | None = None) -> Position | None:
        """Request an ``offload`` without waiting. Returns the position to be committed, ``None``: no entries."""
        with self._shared.changed:
            target = self._shared.tail if until is None or self._shared.tail is None else min(until, self._shared.tail)
            if target is None:
                return None
            close_at = self._shared.close_at
            self._shared.close_at = target if close_at is None else max(close_at, target)
        self._steps.schedule()
        return target

    def look_again(self) -> None:
        """Reload the manifest soon, for a caller that paused or resumed the stream in this process. A change by another
        process is noticed with the next record or, if paused with waiting entries, by polling."""
        self._steps.look_again()

    def forget(self) -> None:
        """Unsubscribe without releasing anything, which simulates a crash of the process."""
        if self._subscription is not None:
            self._subscription.cancel()

    def stop(self) -> None:
        """Refuse further entries and give unfinished segments up: the next start offloads them again."""
        if self._subscription is not None:
            self._subscription.cancel()
        self._steps.stop()

    def reopen(self) -> None:
        """Take the stream back from the writer that fenced this one: its source made it the active one again, or the
        operator requested it. No effect on a stream that wasn't fenced."""
        self._steps.reopen()
