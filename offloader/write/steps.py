"""One stream's steps: read what is behind, offer it, commit what finished, close what is due.

Owns the order of things and what the appending thread shares with the workers. Must never do I/O under its lock, run
two steps at once, or tell the source that entries are safe before the record that says so is durable.

How it moves: entries are *offered* to the gathering segment. A closed segment is *completing*; the next one already
gathers, and sends its first part when the record that ends the former (and assigns the latter) is durable. All steps
run on the worker pool, one at a time; the appending thread only offers, and only while the stream is live.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.keys import new_segment_uuid
from formats.manifest import Failed, Gap
from formats.segment import SegmentSummary
from offloader.clock import Clock
from offloader.errors import Closed, Corrupt, Fenced, OffloaderError, StoreUnavailable
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, ManifestState
from offloader.settings import OffloadSettings
from offloader.write.backoff import Backoff
from offloader.write.buffer import StreamBuffer
from offloader.write.catch_up import CATCH_UP_READ_BYTES, CATCH_UP_READS_PER_STEP, read_next
from offloader.write.commits import Commits
from offloader.write.gaps import require_recording
from offloader.write.handle import OffloadHandle
from offloader.write.memory import MemoryBudget
from offloader.write.ownership import Ownership
from offloader.write.progress import Progress
from offloader.write.revival import Revival
from offloader.write.segment_queue import SegmentQueue, WritingSegment
from offloader.write.status import Mode
from offloader.write.workers import SerialTask, Workers

__all__ = ["StreamSteps"]

_log = logging.getLogger("offloader.stream")


class StreamSteps:
    """The machine behind a ``StreamOffload``, which has the same arguments.

    Attributes:
        changed: guards the rest, and is told of every change that somebody may wait for.
        mode: live, catch-up or stopped.
        tail: newest entry known in the hot tier.
        committed: end of what is readable from the cold tier.
        close_at: up to here somebody asked for; the segment that holds it closes early.
        error: why the last step failed, or the stream stopped.
        queue, buffer, progress, gaps_recorded: segments under way, bytes held, counters.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        make_handle: Callable[[UUID, Position | None, StreamBuffer, Callable[[], None]], OffloadHandle],
        driver: dict[str, str],
        settings: OffloadSettings,
        workers: Workers,
        clock: Clock,
        entropy: Callable[[int], bytes],
        budget: MemoryBudget | None = None,
        take_over: bool = True,
        fill_holes: Callable[[Commits, Sequence[Failed]], list[Failed]] = lambda _, given_up: list(given_up),
    ) -> None:
        self._source, self._log = source, log
        self._make_handle = make_handle
        self._settings = settings
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self._step_task = SerialTask(workers, self._step)
        self.buffer = StreamBuffer(
            settings.offload_buffer_bytes_max, budget, wake=self._step_task.schedule, relieve=self._relieve
        )

        # Touched by steps only.
        self._commits = Commits(log, driver, clock)
        self._ownership = Ownership(log, source, settings, clock, take_over=take_over, fill_holes=fill_holes)
        self._revival = Revival(
            log.stream, self._ownership, settings, workers, tail=lambda: self.tail, reopen=self.reopen
        )
        self._gap: Gap | None = None
        self._gap_after: Position | None = None

        # Guards what the appending thread shares with the steps. Never held during I/O.
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.queue = SegmentQueue(self._open_handle, self.buffer, settings)
        self.mode = Mode.LIVE
        self.tail: Position | None = None
        self.committed: Position | None = None
        self.close_at: Position | None = None
        self.error: OffloaderError | None = None
        self._backoff = Backoff(workers, settings.retry_seconds_max, self.schedule)
        self.gaps_recorded = 0
        self.progress = Progress.told_by(log.store, log.stream)

    @property
    def stream(self) -> str:
        return self._log.stream

    def schedule(self) -> None:
        """Runs a step soon."""
        self._step_task.schedule()

    def stop(self) -> None:
        """Takes no more entries, gives unfinished segments up, and what it holds of the process's memory back."""
        self._revival.stop()
        self.halt(Closed(f"stream {self.stream} was stopped"), abort=True)
        self.buffer.leave()

    def reopen(self) -> None:
        """Takes a fenced stream back; does nothing to another."""
        if not self._revival.stop():
            return
        with self._lock:
            self.mode = Mode.CATCH_UP
            self.error = None
            self._backoff.reset()
        self._ownership.reclaim()
        self._step_task.schedule()

    # -- entries in

    def on_appended(self, batch: EntryBatch) -> None:
        """Called by the source for each batch that became durable; must be quick."""
        with self._lock:
            if self.mode is Mode.STOPPED:
                self.tail = batch.last  # a fenced stream may be asked later whether data waits
                return
            before, self.tail = self.tail, batch.last
            self.progress.seen(batch)
            if self.mode is Mode.LIVE:
                ours = self._ownership.held and self.queue.offered == before
                if not ours or self.queue.offer(batch) < len(batch):
                    # The rest is in the hot tier: the next steps read it from there.
                    self.mode = Mode.CATCH_UP
                    self.progress.refused(ours and before is not None and before.ledger_id == batch.ledger_id)
            first = self.queue.first
            wake = self.mode is Mode.CATCH_UP or first is None or not first.assigned
        if wake:
            self._step_task.schedule()

    def on_ledger_closed(self, info: LedgerInfo) -> None:
        """Called by the source before the first batch of a later ledger: so that a rollover doesn't end live mode."""
        with self._lock:
            self.queue.learn([info])  # also when it is fenced: it may be the owner again

    def _open_handle(self, after: Position | None) -> OffloadHandle:
        uuid = new_segment_uuid(self._log.state.incarnation, int.from_bytes(self._entropy(8), "big"))
        handle = self._make_handle(uuid, after, self.buffer, self._step_task.schedule)
        age_s = self._settings.max_offload_segment_rollover_time_minutes * 60
        timer = self._workers.call_after(age_s, handle.close)
        handle.get_offload_result_async().add_done_callback(lambda _: timer.cancel())
        return handle

    # -- steps

    def _step(self) -> None:
        """One turn: settle what finished, read what is behind, close what is due."""
        with self._lock:
            if self.mode is Mode.STOPPED or self._backoff.waiting:
                return
        try:
            self._commits.finish()
            self._take_ownership()
            self._settle()
            self._catch_up()
            self._close_due()
            self._pass_gap()
            self._assign_first()
        except Fenced as error:
            self._lose(error)
        except (EditRefused, Corrupt) as error:
            # Corrupt: the manifest or the hot tier is damaged, trying again would read the same bytes.
            self.halt(error, abort=True)
        except OffloaderError as error:
            self._retry_later(error)
        except Exception as error:
            _log.exception("stream %s: a step failed", self.stream)
            self._retry_later(StoreUnavailable(f"stream {self.stream}: {type(error).__name__}: {error}"))

    def _take_ownership(self) -> None:
        """Opens an epoch when there is something to offload, and settles what the last owner left unfinished."""
        if self._ownership.held:
            return
        state = self._ownership.load()
        with self._lock:
            if self.queue.first is None:
                self.committed = self.queue.go_on_after_committed(state)
            behind = self.tail is not None and (self.queue.offered is None or self.tail > self.queue.offered)
            if not behind:
                self.mode = Mode.LIVE
                return
        self._ownership.take(self._commits)
        with self._lock:
            self.committed = self.queue.go_on_after_committed(self._log.state)
            self.error = None
            self.changed.notify_all()

    def _settle(self) -> None:
        """Commits the first segment when its objects are there, or starts its range again when it failed."""
        with self._lock:
            segment, following = self.queue.first, self.queue.following
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
        with self.changed:
            if self.mode is Mode.STOPPED:
                return
            self.queue.pop_first()
            self.queue.forget_before(summary.end.ledger_id)
            self.committed = state.committed_end()
            if self.close_at is not None and self.committed is not None and self.committed >= self.close_at:
                self.close_at = None
            self.progress.committed(summary, self._clock.now_ms())
            self._backoff.reset()
            self.error = None
            self.changed.notify_all()
        if following is not None:
            following.assigned = True
            following.handle.start_sending()
        self._step_task.schedule()
        self._source.release(summary.end)

    def _restart(self, segment: WritingSegment, error: BaseException) -> None:
        """A segment failed: forget what was offered since its begin, read it again after a wait, under a new name."""
        with self._lock:
            segments = self.queue.clear(self._log.state.committed_end())
            if self.mode is not Mode.STOPPED:
                self.mode = Mode.CATCH_UP
            self.progress.segments_failed += 1
        if segment.assigned:
            self._ownership.given_up.append(Failed(segment.handle.uuid, str(error)))
        for other in segments:
            other.handle.abandon(Closed("the segment before it failed"), abort=True)
        raise StoreUnavailable(f"stream {self.stream}: segment {segment.handle.uuid} failed: {error}") from error

    def _catch_up(self) -> None:
        """Reads the hot tier from the last offered entry on, until the tail is offered: then the stream is live."""
        for _ in range(CATCH_UP_READS_PER_STEP):
            with self._lock:
                if self.mode is not Mode.CATCH_UP or not self._ownership.held or self._gap is not None:
                    return
                offered = self.queue.offered
                if self.tail is None or (offered is not None and offered >= self.tail):
                    self.mode = Mode.LIVE
                    return
                if not self.queue.wait_for_room(CATCH_UP_READ_BYTES):
                    return
            if (read := read_next(self._source, offered, self.buffer.room_bytes)) is None:
                return
            batch, self._gap_after = read.batch, offered
            with self._lock:
                if self.mode is not Mode.CATCH_UP:
                    return
                self.progress.seen(batch)
                self.queue.learn(read.ledgers)
                self._gap = self.queue.gap_before(read, self._log.state)
                if self._gap is not None or self.queue.offer(batch, own=True) < len(batch):
                    break  # the next step gets in line for room
        self._step_task.schedule()

    def _pass_gap(self) -> None:
        """Blocks at a gap, or records it, when everything before it is committed."""
        if (gap := self._gap) is None:
            return
        with self._lock:
            if self.queue.first is not None:
                return  # closed by now, and committed first
            if self.queue.offered != self._gap_after:
                self._gap = None  # what came before it failed: it is read again, and may be gone too by now
        if self._gap is None:
            self.schedule()
            return
        require_recording(self.stream, gap, self._settings.on_gap)
        self._commits.passed(gap, self._ownership.given_up, self._passed)

    def _passed(self, state: ManifestState) -> None:
        self._ownership.given_up.clear()
        self._gap = None
        with self.changed:
            # Behind the gap there may be ranges that another method offloaded before.
            self.committed = self.queue.go_on_after_committed(state)
            self.gaps_recorded += 1
            self.changed.notify_all()
        self._step_task.schedule()

    def _close_due(self) -> None:
        """Closes the gathering segment when that was asked for, or when it holds bytes that nothing else would free."""
        with self._lock:
            segment = self.queue.gathering
            offered, close_at = self.queue.offered, self.close_at
            if segment is None:
                return
            # The request stands until what it asked for is committed: the segment may fail and be gathered again.
            asked = close_at is not None and offered is not None and segment.begin <= close_at <= offered
            close = asked or self._gap is not None or self.queue.is_stuck(CATCH_UP_READ_BYTES)
        if close:
            segment.handle.close()

    def _assign_first(self) -> None:
        """Records the first segment after a start or a failure; others are assigned with their predecessor's end."""
        with self._lock:
            segment = self.queue.first
        if segment is None or segment.assigned:
            return
        self._commits.first(
            *(segment, self._ownership.given_up, self._closed_ledgers()), then=lambda _: self._assigned(segment)
        )

    def _assigned(self, segment: WritingSegment) -> None:
        self._ownership.given_up.clear()
        segment.assigned = True
        segment.handle.start_sending()

    def _closed_ledgers(self) -> dict[int, int]:
        with self._lock:
            return self.queue.closed_ledgers()

    # -- trouble

    def _retry_later(self, error: OffloaderError) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()
        # What it was granted in line would lie idle meanwhile.
        self.buffer.stop_waiting()
        delay_s = self._backoff.wait()
        _log.warning("stream %s: %s; again in %.1f s", self.stream, error, delay_s)

    def _relieve(self) -> int:
        """The process's memory is scarce: brings held bytes on their way, or lets go of them; how many those are.

        What can't be sent now (the manifest or the store doesn't answer) is let go of: the hot tier has it.
        """
        dropped: list[WritingSegment] = []
        with self._lock:
            segment, first = self.queue.gathering, self.queue.first
            held_bytes = self.buffer.held_bytes
            if self.mode is Mode.STOPPED or first is None:
                return 0
            if self._backoff.waiting and not first.assigned:
                dropped = self.queue.clear(self.committed)
                self.mode = Mode.CATCH_UP
            elif self.queue.is_leaving:
                return held_bytes
        for other in dropped:
            other.handle.abandon(Closed("its bytes are needed elsewhere; it is read again"), abort=True)
        if segment is not None and not dropped:
            segment.handle.close()
        return held_bytes

    def _lose(self, error: Fenced) -> None:
        """Fenced: stops, deletes nothing; looks from time to time whether its successor is gone."""
        self.halt(error, abort=False)
        self._ownership.lose()
        self._revival.watch()

    def halt(self, error: OffloaderError, *, abort: bool) -> None:
        with self.changed:
            if self.mode is Mode.STOPPED:
                return
            self.mode = Mode.STOPPED
            self.error = error
            self._gap = None
            segments = self.queue.clear(self.queue.offered)
            self.changed.notify_all()
        if not isinstance(error, Closed):
            self.progress.stopped(error)
            _log.error("stream %s stopped: %s", self.stream, error)
        for segment in segments:
            segment.handle.abandon(error, abort=abort)
        self.buffer.stop_waiting()
