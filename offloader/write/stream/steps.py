"""One stream's steps: what comes first, and what it does about trouble.

Owns the order of things. Must never do I/O under the stream's lock or run two steps at once.

A step makes these moves, in this order; one that answers False ends it, and something will make another step:

| move           | what it sees to                                                  | ends the step while         |
| -------------- | ---------------------------------------------------------------- | --------------------------- |
| record known   | the last record's outcome is known before there is another       | (raises: the store is mute) |
| not paused     | what is on its way completes, nothing else is assigned           | the stream is paused        |
| owned          | the epoch is ours; earlier owners' leftovers are settled         | nothing is to be offloaded  |
| older is there | all before the live segment is committed, or recorded as lost    | a run over history works    |
| segments       | settle the first, read what is behind, close what is due, pass a | it is far behind: a run     |
|                | hole, assign the first                                           | over history comes next     |

Entries are *offered* to the gathering segment. A closed segment is *completing*; the next one already gathers, and
sends its first part when the record that ends the former (and assigns the latter) is durable. Steps run on the worker
pool, one at a time; the appending thread only offers, and only while the stream is live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.keys import new_segment_uuid
from formats.manifest import Failed, Gap
from formats.segment import SegmentSummary
from offloader.backoff import Backoff
from offloader.errors import Closed, Corrupt, Fenced, OffloaderError, SourceMismatch, StoreUnavailable
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, ManifestState, StreamPaused
from offloader.workers import SerialTask
from offloader.write.history.backfill import HistoryTools
from offloader.write.ownership.opening import Ownership
from offloader.write.ownership.revival import Revival
from offloader.write.segment.buffer import StreamBuffer
from offloader.write.segment.commits import Commits
from offloader.write.segment.handle import OffloadHandle
from offloader.write.segment.queue import SegmentQueue, WritingSegment
from offloader.write.stream.catch_up import CatchUp
from offloader.write.stream.pausing import Pausing
from offloader.write.stream.progress import Progress
from offloader.write.stream.settling import Settling
from offloader.write.stream.state import StreamState
from offloader.write.stream.status import Mode
from offloader.write.stream.stream_backfill import StreamBackfill

__all__ = ["MakeHandle", "StreamSteps"]

_log = logging.getLogger("offloader.stream")

#: Gives a handle that doesn't send yet, for (uuid, position to follow, buffer, what to call on a change).
MakeHandle = Callable[[UUID, Position | None, StreamBuffer, Callable[[], None]], OffloadHandle]


class StreamSteps:
    """The machine behind a ``StreamOffload``, which has the same arguments.

    Attributes:
        shared: what it shares with the appending thread and with those who wait.
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
        buffer = StreamBuffer(settings.offload_buffer_bytes_max, tools.budget, wake=schedule, relieve=self._relieve)
        progress = Progress.told_by(log.store, log.stream)
        self.shared = StreamState(log.stream, buffer, SegmentQueue(self._open_handle, buffer, settings), progress)
        self._backoff = Backoff(workers, settings.retry_seconds_max, schedule)

        # Touched by steps only.
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
        self._settling = Settling(
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
        """Runs a step soon."""
        self._step_task.schedule()

    def look_again(self) -> None:
        """Reads the manifest soon: somebody may have paused or resumed the stream."""
        self._pausing.look_again()

    def stop(self) -> None:
        """Takes no more entries, gives unfinished segments up, and what it holds of the process's memory back."""
        self._revival.stop()
        self.halt(Closed(f"stream {self._log.stream} was stopped"), abort=True)
        self.shared.buffer.leave()

    def reopen(self) -> None:
        """Takes a fenced stream back; does nothing to another."""
        if not self._revival.stop():
            return
        with self.shared.lock:
            self.shared.mode = Mode.CATCH_UP
            self.shared.error = None
            self._backoff.reset()
        self._ownership.reclaim()
        self._step_task.schedule()

    # -- entries in

    def on_appended(self, batch: EntryBatch) -> bool:
        """Called by the source for each batch that became durable; must be quick. False: it will be read."""
        with self.shared.lock:
            wake = self.shared.append(batch, ours=self._ownership.held)
            taken = self.shared.mode is Mode.LIVE
        if wake:
            self._step_task.schedule()
        return taken

    def on_ledger_closed(self, info: LedgerInfo) -> None:
        """Called by the source before the first batch of a later ledger: so that a rollover doesn't end live mode."""
        with self.shared.lock:
            self.shared.queue.learn([info])  # also when it is fenced: it may be the owner again

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
            return  # it commits now, and its end makes a step
        try:
            for move in self._moves:
                if not move():
                    return
        except Fenced as error:
            self._lose(error)
        except StreamPaused:
            self._step_task.schedule()  # the view has it by now: the next step rests
        except (EditRefused, Corrupt, SourceMismatch) as error:
            # The manifest or the hot tier is damaged, or is another one: trying again would read the same bytes.
            self.halt(error, abort=True)
            if isinstance(error, EditRefused):
                self._on_refused()
        except OffloaderError as error:
            self._retry_later(error)
        except BaseException as error:
            # Whatever it is (memory, disk, a bug): said, and tried again; a stream never stalls silently.
            _log.exception("stream %s: a step failed", self._log.stream)
            self._retry_later(StoreUnavailable(f"stream {self._log.stream}: {type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise

    def _record_known(self) -> bool:
        self._commits.finish()
        return True

    def _not_paused(self) -> bool:
        """Lets a paused stream rest, and one that is resumed look for what is missing."""
        if not self._pausing.is_on():
            if self._pausing.end():
                self._older.look_again()
            return True
        self._pausing.rest()
        self._settling.settle_first()
        self._settling.close_due(at_end=True)
        return False

    def _owned(self) -> bool:
        """Opens an epoch when there is something to offload, and settles what the last owner left unfinished."""
        if self._ownership.held:
            return True
        # Compared before anything counts as offloaded already.
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
        # What the stream was granted in line would lie idle while a run works, and the run may need it.
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

    # -- trouble

    def _retry_later(self, error: OffloaderError) -> None:
        with self.shared.changed:
            self.shared.error = error
            self.shared.changed.notify_all()
        # What it was granted in line would lie idle meanwhile.
        self.shared.buffer.stop_waiting()
        delay_s = self._backoff.wait()
        _log.warning("stream %s: %s; again in %.1f s", self._log.stream, error, delay_s)

    def _relieve(self) -> int:
        """The process's memory is scarce: brings held bytes on their way, or lets go of them; how many those are.

        What can't be sent now (the manifest or the store doesn't answer) is let go of: the hot tier has it.
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
        """Fenced: stops, deletes nothing; looks from time to time whether its successor is gone."""
        # Before anybody is told of it: who hears that the stream is lost may ask for it back at once.
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
