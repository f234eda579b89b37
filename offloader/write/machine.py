"""State machine of one live stream: next actions, and recovery from failures."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import ClassVar

from formats.entries import EntryBatch, Position
from formats.manifest import Failed
from formats.summary import SegmentSummary
from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    ClosedError,
    CorruptError,
    FencedError,
    NotFoundError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerInfo, LedgerSource, NotChosenError, Subscription, newest, newest_listed
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import checked
from offloader.manifest.state import EditRefusedError, ManifestState, StreamPaused
from offloader.runtime.workers import RETRY_DELAY_FIRST_S, Alarm, Backoff, SerialTask, Timer
from offloader.store.wrappers import recorder_of
from offloader.write.backfill import HistoryTools
from offloader.write.catch_up import CatchUp
from offloader.write.epoch import Ownership
from offloader.write.hot_tier import CATCH_UP_READ_BYTES
from offloader.write.quota import StreamQuota, segment_age_s_max
from offloader.write.segment import OffloadHandle
from offloader.write.stream import TAKING, Event, Phase
from offloader.write.stream_state import (
    Commits,
    Lag,
    Progress,
    SegmentQueue,
    StreamState,
    StreamStatus,
    WritingSegment,
    lag_of,
)

_log = logging.getLogger("offloader.stream")

#: First poll interval of a paused stream with waiting entries; doubles each time.
LOOK_FIRST_S = 5.0
#: Longest poll interval. A poll is three requests.
LOOK_MAX_S = 60.0
#: Permanent errors: waiting callers of an offload get them immediately. The stream itself keeps retrying.
_HOPELESS = (AccessDeniedError, BucketMissingError)
#: Longest sleep of a waiting caller between reads of the clock.
_WAIT_S_MAX = 1.0
#: Poll interval for entries reported by the source.
_HEARD_S = 0.02


class StreamOffload:
    """Offloads one stream during its epoch, in steps on workers, one at a time.

    Args:
        make_handle: ``streaming_offload`` for this stream's segments, which don't send yet.
        tools: of the process: its workers, memory, clock, settings.
        take_over: take the stream from an active owner. On by default, because a source made this writer the active
            one. Commands leave it off unless requested.
        on_refused: called with this when the stream stops because the manifest refused its edits.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        make_handle: Callable[..., OffloadHandle],
        tools: HistoryTools,
        take_over: bool = True,
        on_refused: Callable[[StreamOffload], None] = lambda _: None,
    ) -> None:
        self._source = source = checked(source, log)
        self._log, self._tools, self._make_handle, self._on_refused = log, tools, make_handle, on_refused
        settings, workers, clock = tools.settings, tools.workers, tools.clock
        self._subscription: Subscription | None = None
        self._step_task = SerialTask(workers, self._step)
        schedule = self._step_task.schedule
        buffer = StreamQuota(
            settings.offload_buffer_size_max, tools.budget, wake=schedule, request_flush=self._request_flush
        )
        progress = Progress(partial(recorder_of(log.store).add, stream=log.stream))
        # Shared with the appending thread and with waiting callers.
        self._shared = StreamState(log.stream, buffer, SegmentQueue(self._open_handle, buffer, settings), progress)
        self._backoff = Backoff(workers, settings.retry_delay_max, schedule)
        self._next_look = Alarm(workers, self._look_at_owner)
        # Polls of a paused stream, and the number of requested ones that the last reload answered.
        self._pause_timer: Timer | None = None
        self._pause_delay_s, self._looking = LOOK_FIRST_S, 0

        # Accessed by steps only.
        self._commits = commits = Commits(log, source, tools.driver, clock)
        self._ownership = ownership = Ownership(log, source, settings, clock, take_over=take_over)
        self._catch_up = CatchUp(
            *(self._shared, source, log, tools, commits, ownership, self._backoff), schedule=schedule
        )

    @property
    def stream(self) -> str:
        return self._shared.stream

    def start(self) -> None:
        """Continue after the manifest's end, on a worker. Sends no request before an entry is in the hot tier."""
        self._subscription = self._source.subscribe(self._on_appended, self._on_ledger_closed)
        try:
            ledgers = [info for info in self._source.ledgers() if info.entries]
        except BaseException:
            self.stop()  # or its subscription would take entries of an unowned stream
            raise
        with self._shared.changed:
            if ledgers:
                self._shared.tail = newest(self._shared.tail, newest_listed(ledgers))
                self._shared.happen(Event.LEFT_IN_HOT_TIER)
                # So that a ledger missing at read time is detected.
                self._shared.queue.learn(ledgers)
                self._shared.heard |= {info.ledger_id for info in ledgers}
        if ledgers:
            self._step_task.schedule()

    def status(self) -> StreamStatus:
        with self._shared.changed:
            error = self._shared.error
            return StreamStatus(
                mode=self._shared.phase.mode,
                buffer_bytes=self._shared.buffer.held_bytes,
                buffer_bytes_max=self._shared.buffer.limit_bytes,
                tail=self._shared.tail,
                offered=self._shared.queue.offered,
                committed=self._shared.committed,
                error=str(error or ""),
                error_kind="" if error is None else type(error).__name__,
                gaps_recorded=self._shared.gaps_recorded,
                segment_age_s=segment_age_s_max(self._tools.settings),
                stored=self._shared.stored,
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
            StoreUnavailableError: not committed within ``timeout_s``.
            StreamPaused: the stream is paused.
            FencedError, ClosedError and other errors that stopped the stream; AccessDeniedError, BucketMissingError: an
            unusable store.
        """
        wait_s = self._tools.settings.drain_timeout if timeout_s is None else timeout_s
        deadline_s = self._tools.clock.monotonic_s() + wait_s
        if (target := self.request_offload(until)) is None:
            return None
        if self._shared.phase is Phase.PAUSED:
            self.wake()  # the pause may have ended
        with self._shared.changed:
            while self._shared.committed is None or self._shared.committed < target:
                if self._shared.is_ended:
                    raise self._shared.error or ClosedError(f"stream {self.stream} was stopped")
                if isinstance(self._shared.error, _HOPELESS):
                    raise self._shared.error
                if self._shared.rests:
                    raise StreamPaused(self.stream)
                if (left_s := deadline_s - self._tools.clock.monotonic_s()) <= 0:
                    raise StoreUnavailableError(
                        f"stream {self.stream}: {target} isn't offloaded after {wait_s:g} s, committed is "
                        f"{self._shared.committed or 'nothing'}"
                        + (f"; last error: {self._shared.error}" if self._shared.error else ""),
                        hint="nothing is lost: the hot tier has the entries, and offloading continues at the "
                        "next start",
                    )
                self._shared.changed.wait(min(left_s, _WAIT_S_MAX))
            return self._shared.committed

    def wait_until_seen(self, position: Position, *, within_s: float) -> bool:
        """Wait until the source has reported its entries up to ``position``, or the stream was stopped; False on
        timeout. Sources report with a delay, longer after a lost connection."""
        deadline_s = self._tools.clock.monotonic_s() + within_s
        with self._shared.changed:
            while self._shared.tail is None or self._shared.tail < position:
                left_s = deadline_s - self._tools.clock.monotonic_s()
                if self._shared.is_ended or left_s <= 0:
                    return self._shared.is_ended
                # Waiters poll: a wake-up for each batch would slow every writer.
                self._shared.changed.wait(min(left_s, _HEARD_S))
        return True

    def request_offload(self, until: Position | None = None) -> Position | None:
        """Request an ``offload`` without waiting. Returns the position to be committed, ``None``: no entries."""
        with self._shared.changed:
            target = self._shared.tail if until is None or self._shared.tail is None else min(until, self._shared.tail)
            if target is None:
                return None
            self._shared.close_at = newest(self._shared.close_at, target)
        self._step_task.schedule()
        return target

    def wake(self) -> None:
        """Reload the manifest soon, for a caller that paused or resumed the stream in this process. A change by another
        process is noticed with the next record or, if paused with waiting entries, by polling."""
        with self._shared.lock:
            self._shared.wakes_asked += 1
        self._step_task.schedule()

    def forget(self) -> None:
        """Unsubscribe without releasing anything, which simulates a crash of the process."""
        if self._subscription is not None:
            self._subscription.cancel()

    def stop(self) -> None:
        """Refuse further entries and give unfinished segments up: the next start offloads them again. Their memory
        returns to the process's budget."""
        self.forget()
        self._ownership.stop()
        self._halt(ClosedError(f"stream {self._log.stream} was stopped"), Event.STOP)
        self._shared.buffer.leave()

    def reopen(self) -> None:
        """Take the stream back from the writer that fenced this one: its source made it the active one again, or the
        operator requested it. No effect on a stream that wasn't fenced."""
        with self._shared.lock:
            if self._shared.phase is not Phase.FENCED:
                return
            self._shared.happen(Event.REOPENED)
            self._shared.error = None
            self._backoff.reset()
        self._ownership.take_over = True
        self._step_task.schedule()

    def _on_appended(self, batch: EntryBatch) -> bool:
        """Called by the source for each batch that became durable; must be quick. False: the entries are read later."""
        wake = True  # also after an error
        try:
            with self._shared.lock:
                wake = self._shared.append(batch)
                return self._shared.phase is Phase.LIVE
        finally:
            if wake:
                self._step_task.schedule()

    def _on_ledger_closed(self, info: LedgerInfo) -> None:
        """Called by the source before the first batch of a later ledger, so that a rollover doesn't end live mode."""
        with self._shared.lock:
            self._shared.queue.learn([info])  # also when fenced: it may become the owner again

    def _open_handle(self, after: Position | None) -> OffloadHandle:
        handle = self._make_handle(
            self._tools.new_uuid(self._log.state),
            incarnation=self._log.state.incarnation,
            epoch=self._log.epoch or 0,
            after=after,
            buffer=self._shared.buffer,
            on_change=self._step_task.schedule,
        )
        self._close_at_age(handle)
        return handle

    def _close_at_age(self, handle: OffloadHandle) -> None:
        """Close a segment at its age; one that is too small is looked at again, until it reaches the limit."""
        settings, call_after, clock = self._tools.settings, self._tools.workers.call_after, self._tools.clock
        age_s, opened_s = settings.segment_age_max, clock.monotonic_s()

        def look() -> None:
            left_s = opened_s + segment_age_s_max(settings) - clock.monotonic_s()
            if left_s <= 0 or handle.wire_bytes >= settings.segment_size_min:
                handle.close()
            elif handle.is_open:
                timers.append(call_after(min(age_s, left_s), look))

        timers = deque([call_after(age_s, look)], maxlen=1)
        handle.get_offload_result_async().add_done_callback(lambda _: timers[0].cancel())

    def _step(self) -> None:
        with self._shared.lock:
            if self._shared.is_ended or self._backoff.waiting:
                return
        if self._catch_up.is_running:
            return  # it is committing now, and its end makes a step
        try:
            self._commits.finish()
            self._look_for_pause()
            for phases, move in self._MOVES:
                if self._shared.phase in phases:
                    move(self)
        except FencedError as error:
            self._lose(error)
        except StreamPaused:
            self._step_task.schedule()  # the view is up to date by now: the next step pauses
        except (EditRefusedError, CorruptError, SourceMismatchError) as error:
            # The manifest or the hot tier is damaged or a different one: a retry would read the same bytes.
            self._halt(error, Event.DAMAGED)
            if isinstance(error, EditRefusedError):
                self._on_refused(self)
        except OffloaderError as error:
            self._retry_later(error)
        except BaseException as error:
            # For any error (memory, disk, a bug): report and retry; a stream never stalls silently.
            _log.exception("stream %s: a step failed", self._log.stream)
            self._retry_later(StoreUnavailableError(f"stream {self._log.stream}: {type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise

    def _look_for_pause(self) -> None:
        """Pause the stream if that is requested, or resume it."""
        if self._is_pause_recorded():
            self._rest()
        else:
            self._resume()

    def _complete(self) -> None:
        """While paused: commit the assigned segments."""
        self._settle_first()
        self._close_due(at_end=True)

    def _is_pause_recorded(self) -> bool:
        """Whether the last loaded manifest has a pause: every commit and every ``wake`` reloads it."""
        self._looking = self._shared.wakes_asked
        if self._looking != self._shared.looks_done:
            try:
                self._log.load()
            except NotFoundError:
                return False  # nothing of it was ever offloaded
        return self._log.is_loaded and self._log.state.paused

    def _rest(self) -> None:
        """Drop unassigned segments: the hot tier has their entries."""
        shared = self._shared
        with shared.changed:
            begins = shared.phase is not Phase.PAUSED
            shared.happen(Event.PAUSE_SEEN)
            if shared.phase is not Phase.PAUSED:
                return
            dropped = shared.queue.keep_assigned(self._log.state.committed_end())
            if shared.is_behind and self._pause_timer is None:
                self._pause_timer = self._tools.workers.call_after(self._pause_delay_s, self._look_for_resume)
            shared.is_watched = self._pause_timer is not None
            shared.looks_done = self._looking
            shared.changed.notify_all()
        if begins:
            _log.info("stream %s is paused", shared.stream)
        for segment in dropped:
            segment.handle.abandon(ClosedError("the stream is paused"), abort=True)
        shared.buffer.stop_waiting()

    def _resume(self) -> None:
        """If the stream was paused, resume reading where it stopped."""
        shared = self._shared
        with shared.changed:
            shared.looks_done = self._looking
            if shared.phase is not Phase.PAUSED:
                return
            shared.happen(Event.RESUMED if shared.queue.first is None else Event.RESUMED_OPEN)
            shared.is_watched = False
            timer, self._pause_timer, self._pause_delay_s = self._pause_timer, None, LOOK_FIRST_S
            shared.changed.notify_all()
        if timer is not None:
            timer.cancel()
        _log.info("stream %s is resumed", shared.stream)

    def _look_for_resume(self) -> None:
        with self._shared.lock:
            self._pause_timer = None
            self._pause_delay_s = min(2 * self._pause_delay_s, LOOK_MAX_S)
        self.wake()

    def _take(self) -> None:
        """Open an epoch when there is something to offload, and settle the last owner's unfinished segments."""
        if not self._ownership.held and not self._is_taken():
            return
        with self._shared.lock:
            self._shared.happen(Event.TAKEN)

    def _is_taken(self) -> bool:
        # Compare before anything counts as offloaded already.
        state, shared = self._ownership.load(), self._shared
        aside = state.aside_ledgers
        with shared.lock:
            shared.stored = state.sums
            shared.keep_ledgers(lambda each: each not in aside)
            if shared.queue.first is None:
                shared.committed = shared.queue.go_on_after_committed(state)
            if not shared.is_behind:
                shared.happen(Event.NOTHING_WAITS)
                if not shared.is_ended:
                    shared.error = None
                return False
        if state.paused:
            self._rest()
            return False
        self._ownership.take(self._commits)
        return True

    def _settle_history(self) -> None:
        # Memory granted to the stream would be idle during a run, and the run may need it.
        self._shared.buffer.stop_waiting()
        if self._catch_up.settle_history():
            return
        with self._shared.changed:
            self._shared.happen(Event.HISTORY_SETTLED)
            if (end := self._shared.queue.go_on_after_committed(self._log.state)) is not None:
                self._shared.keep_ledgers(lambda each: each >= end.ledger_id)
            self._shared.advance(self._log.state)

    def _move_segments(self) -> None:
        self._settle_first()
        with self._shared.lock:
            if self._shared.phase is Phase.DRAINING and self._shared.queue.first is None:
                self._shared.happen(Event.DRAINED)
                self._step_task.schedule()
                return
        self._catch_up.read()
        self._close_due(at_end=self._shared.phase in (Phase.DRAINING, Phase.AT_GAP))
        self._catch_up.pass_gap()
        self._assign_first()

    def _settle_first(self) -> None:
        """Commit the first segment once its objects are stored, or restart its range when it failed."""
        with self._shared.lock:
            segment, following = self._shared.queue.first, self._shared.queue.following
            closed = self._shared.queue.closed_infos()
        if segment is None:
            return
        result = segment.handle.get_offload_result_async()
        if not result.done():
            return
        if (error := result.exception()) is not None:
            self._restart(segment, error)
        if not segment.assigned:
            return
        summary = result.result().summary
        assert summary is not None, "a segment is opened for an entry"
        self._commits.settled(
            *(segment, summary, following, closed),
            then=lambda state: self._first_settled(state, summary, following),
        )

    def _first_settled(self, state: ManifestState, summary: SegmentSummary, following: WritingSegment | None) -> None:
        shared = self._shared
        with shared.changed:
            if shared.is_ended:
                return
            shared.queue.pop_first()
            shared.keep_ledgers(lambda each: each >= summary.end.ledger_id)
            shared.progress.committed(summary, self._tools.clock.now_ms())
            shared.advance(state)
        if following is not None:
            following.assigned = True
            following.handle.start_sending()
        self._step_task.schedule()
        self._source.release(summary.end)
        self._backoff.reset()
        with shared.lock:
            catches_up, offered = shared.phase is Phase.CATCHING_UP, shared.queue.offered
        if catches_up and self._catch_up.is_far_behind(offered):
            with shared.lock:
                shared.happen(Event.FELL_BEHIND)

    def _restart(self, segment: WritingSegment, error: BaseException) -> None:
        """After a failed segment: back off and read its entries again, under a new name."""
        with self._shared.lock:
            segments = self._shared.queue.clear(self._log.state.committed_end())
            self._shared.happen(Event.SEGMENT_FAILED)
            self._shared.progress.segments_failed += 1
        if segment.assigned:
            self._ownership.given_up.append(Failed(segment.handle.uuid, str(error)))
        for other in segments:
            other.handle.abandon(ClosedError("the segment before it failed"), abort=True)
        raise StoreUnavailableError(
            f"stream {self._shared.stream}: segment {segment.handle.uuid} failed: {error}"
        ) from error

    def _assign_first(self) -> None:
        """Record the first segment after a start or a failure; others are assigned with their predecessor's end."""
        with self._shared.lock:
            segment, closed = self._shared.queue.first, self._shared.queue.closed_infos()
        if segment is None or segment.assigned:
            return
        self._commits.first(segment, self._ownership.given_up, closed, then=lambda _: self._assigned(segment))

    def _assigned(self, segment: WritingSegment) -> None:
        self._ownership.given_up.clear()
        segment.assigned = True
        segment.handle.start_sending()

    def _close_due(self, *, at_end: bool) -> None:
        """Close the gathering segment on request, when only that frees its bytes, or ``at_end``: it takes no more."""
        shared = self._shared
        with shared.lock:
            if (segment := shared.queue.gathering) is None:
                return
            offered, close_at = shared.queue.offered, shared.close_at
            # The request stands until its target is committed: the segment may fail and be gathered again.
            asked = close_at is not None and offered is not None and segment.begin <= close_at <= offered
            close = asked or at_end or shared.queue.is_stuck(CATCH_UP_READ_BYTES)
        if close:
            segment.handle.close()

    def _retry_later(self, error: OffloaderError) -> None:
        with self._shared.changed:
            if self._shared.is_ended:
                return
            self._shared.error = error
            self._shared.changed.notify_all()
        # The memory granted in the queue would be idle meanwhile.
        self._shared.buffer.stop_waiting()
        delay_s = self._backoff.wait()
        # Once an outage: further attempts fail the same way.
        level = logging.WARNING if delay_s <= RETRY_DELAY_FIRST_S else logging.DEBUG
        _log.log(
            *(level, "stream %s: %s; retrying in %.1f s", self._log.stream, error, delay_s),
            extra={"event": "retry", "stream": self._log.stream},
        )

    def _request_flush(self) -> int:
        """Under memory pressure: flush held bytes, or drop them; returns their number.

        Bytes that can't be sent now (the manifest or the store is unreachable) are dropped: the hot tier has them.
        """
        shared, dropped = self._shared, list[WritingSegment]()
        with shared.lock:
            segment, first = shared.queue.gathering, shared.queue.first
            held_bytes = shared.buffer.held_bytes
            if shared.is_ended or first is None:
                return 0
            if self._backoff.waiting and not first.assigned:
                dropped = shared.queue.clear(shared.committed)
                # A record in doubt may still assign the dropped segment: it then has to be given up.
                shared.happen(Event.SEGMENT_FAILED)
            elif shared.queue.is_leaving:
                return held_bytes
        for other in dropped:
            other.handle.abandon(
                ClosedError("its memory is needed elsewhere; its entries will be read again"), abort=True
            )
        if segment is not None and not dropped:
            segment.handle.close()
        return held_bytes

    def _lose(self, error: FencedError) -> None:
        """Fenced: stop without deletions, and poll until the successor is inactive."""
        # Before waking waiters: a caller that learns of the loss may reopen the stream immediately.
        self._ownership.lose()
        self._halt(error, Event.FENCED)

    def _look_at_owner(self) -> None:
        if self._shared.phase is not Phase.FENCED:
            return
        abandoned = False
        try:
            abandoned = self._ownership.is_abandoned(self._shared.tail)
        except OffloaderError as error:
            _log.warning("stream %s is fenced, and its manifest can't be read: %s", self.stream, error)
        finally:
            if not abandoned:  # also after any other error
                self._next_look.set(self._tools.settings.takeover_after)
        if abandoned:
            _log.warning("stream %s: its owner is inactive with a backlog; taking over", self.stream)
            self.reopen()

    def _halt(self, error: OffloaderError, event: Event) -> None:
        """End for ``error``, unless it had ended before, perhaps for the successor that fenced it."""
        with self._shared.changed:
            was_ended = self._shared.is_ended
            self._shared.happen(event)
            if was_ended:
                return
            self._shared.error = error
            segments = self._shared.queue.clear(self._shared.queue.offered)
            if event is Event.FENCED:
                self._next_look.set(self._tools.settings.takeover_after)
            self._shared.changed.notify_all()
        if isinstance(error, NotChosenError):
            _log.info("stream %s is left to another process: %s", self._log.stream, error)
        elif not isinstance(error, ClosedError):
            if isinstance(error, FencedError):
                self._shared.progress.tell("fenced_total")
            _log.error("stream %s stopped: %s", self._log.stream, error)
        self._catch_up.stop()
        for segment in segments:
            # The new owner settles the objects of a stream that it took.
            segment.handle.abandon(error, abort=event is not Event.FENCED)
        self._shared.buffer.stop_waiting()

    #: In this order: each may lead to the phase of a later one.
    _MOVES: ClassVar[Sequence[tuple[Collection[Phase], Callable[[StreamOffload], None]]]] = (
        ((Phase.PAUSED,), _complete),
        ((Phase.IDLE, Phase.STARTING), _take),
        ((Phase.BACKFILLING,), _settle_history),
        (TAKING - {Phase.BACKFILLING}, _move_segments),
    )
