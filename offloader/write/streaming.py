"""One stream, offloaded while it is written: live or catching up, one segment after another.

Owns the order of things: what is read and offered, what is committed when, what is told to the source. Must never tell
the source that entries are safe before the manifest record that says so is durable, nor block the one who appends.

How it moves: entries are *offered* to the gathering segment. A closed segment is *completing*; the next one already
gathers, and sends its first part when the record that ends the former (and assigns the latter) is durable. All steps
run on the worker pool, one at a time; the appending thread only offers, and only while the stream is live.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.keys import new_segment_uuid
from formats.manifest import Assign, Edit, Failed, LedgerClosed, Offloaded
from formats.segment import Layout, SegmentSummary
from offloader.clock import Clock
from offloader.errors import Closed, Corrupt, Fenced, OffloaderError, StoreUnavailable
from offloader.ledgers.base import LedgerSource, Subscription
from offloader.logs import log_segment_offloaded
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, ManifestState
from offloader.settings import OffloadSettings
from offloader.write.buffer import StreamBuffer
from offloader.write.commits import Commits
from offloader.write.handle import OffloadHandle
from offloader.write.leftovers import give_up_leftovers
from offloader.write.progress import Lag, Progress, lag_of
from offloader.write.segment_queue import SegmentQueue, WritingSegment
from offloader.write.status import Mode, StreamStatus, error_fields
from offloader.write.workers import SerialTask, Workers

__all__ = ["StreamOffload"]

_log = logging.getLogger("offloader.stream")

#: Payload bytes of one read from the hot tier while catching up.
CATCH_UP_READ_BYTES = 2 * 1024 * 1024
#: Reads of one turn in the worker pool, so that one stream that is far behind leaves room for others.
CATCH_UP_READS_PER_STEP = 8
#: Wait before the first retry of a failed step; doubles up to ``retry_seconds_max``.
RETRY_DELAY_FIRST_S = 0.2
#: Longest sleep of a waiting caller before it looks at the clock again.
_WAIT_S_MAX = 1.0


class StreamOffload:
    """Offloads one stream for as long as its epoch lasts.

    Args:
        source: the stream's hot tier.
        log: its manifest.
        make_handle: gives an ``OffloadHandle`` that doesn't send yet, for (uuid, position to follow, buffer, what to
            call on a change).
        driver: recorded with each segment: where its objects are.
        entropy: source of random bytes for segment names.
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
    ) -> None:
        self._source = source
        self._log = log
        self._make_handle = make_handle
        self._driver = driver
        self._settings = settings
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self._buffer = StreamBuffer(settings.offload_buffer_bytes_max)
        self._step_task = SerialTask(workers, self._step)
        self._subscription: Subscription | None = None

        # Touched by steps only.
        self._commits = Commits(log)
        self._given_up: list[Failed] = []
        self._owned = False

        # Guards what the appending thread shares with the steps. Never held during I/O.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = SegmentQueue(self._open_handle, self._buffer, settings)
        self._mode = Mode.CATCH_UP
        self._tail: Position | None = None
        self._committed: Position | None = None
        self._close_at: Position | None = None
        self._error: OffloaderError | None = None
        self._retry_delay_s = 0.0
        self._retry_waiting = False
        self._progress = Progress()

    @property
    def stream(self) -> str:
        return self._log.stream

    def start(self) -> None:
        """Goes on where the manifest ends. Reads it; opens no epoch until there is an entry to offload.

        Raises:
            StoreUnavailable, AccessDenied, Corrupt: the manifest can't be read.
        """
        state = self._log.load(create=True)
        self._committed = self._queue.offered = state.committed_end()
        self._subscription = self._source.subscribe(self._on_appended)
        ledgers = [info for info in self._source.ledgers() if info.entries]
        with self._lock:
            if ledgers:
                newest = Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id)
                self._tail = newest if self._tail is None else max(self._tail, newest)
        self._step_task.schedule()

    def status(self) -> StreamStatus:
        with self._lock:
            return StreamStatus(
                mode=self._mode,
                buffer_bytes=self._buffer.held_bytes,
                buffer_bytes_max=self._buffer.limit_bytes,
                tail=self._tail,
                offered=self._queue.offered,
                committed=self._committed,
                **error_fields(self._error),
                **self._progress.fields(),
            )

    def lag(self) -> Lag:
        """How far the cold tier is behind; asks the source for its ledgers when it is."""
        return lag_of(self.status(), self._source.ledgers)

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Closes the segment that holds ``until`` (default: the newest entry now) and waits until it is committed.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises:
            StoreUnavailable: not committed within ``timeout_s``.
            Fenced, Closed and what else stopped the stream.
        """
        wait_s = self._settings.drain_seconds_max if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + wait_s
        with self._lock:
            target = self._tail if until is None or self._tail is None else min(until, self._tail)
            if target is None:
                return None
            self._close_at = target if self._close_at is None else max(self._close_at, target)
        self._step_task.schedule()
        with self._changed:
            while self._committed is None or self._committed < target:
                if self._mode is Mode.STOPPED:
                    raise self._error or Closed(f"stream {self.stream} was stopped")
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise StoreUnavailable(
                        f"stream {self.stream}: {target} isn't offloaded after {wait_s:g} s, committed is "
                        f"{self._committed or 'nothing'}" + (f"; last error: {self._error}" if self._error else ""),
                        hint="nothing is lost: the hot tier has it, and offloading goes on at the next start",
                    )
                self._changed.wait(min(left_s, _WAIT_S_MAX))
            return self._committed

    def stop(self) -> None:
        """Takes no more entries and gives unfinished segments up: the next start offloads them again."""
        if self._subscription is not None:
            self._subscription.cancel()
        self._halt(Closed(f"stream {self.stream} was stopped"), abort=True)

    # -- entries in

    def _on_appended(self, batch: EntryBatch) -> None:
        """Called by the source for each batch that became durable; must be quick."""
        with self._lock:
            if self._mode is Mode.STOPPED:
                return
            before, self._tail = self._tail, batch.last
            self._progress.seen(batch)
            if self._mode is Mode.LIVE:
                ours = self._owned and self._queue.offered == before
                if not ours or self._queue.offer(batch) < len(batch):
                    # The rest is in the hot tier: the next steps read it from there.
                    self._mode = Mode.CATCH_UP
                    self._progress.offers_refused += ours and before is not None and before.ledger_id == batch.ledger_id
            first = self._queue.first
            wake = self._mode is Mode.CATCH_UP or first is None or not first.assigned
        if wake:
            self._step_task.schedule()

    def _open_handle(self, after: Position | None) -> OffloadHandle:
        uuid = new_segment_uuid(self._log.state.incarnation, int.from_bytes(self._entropy(8), "big"))
        handle = self._make_handle(uuid, after, self._buffer, self._step_task.schedule)
        age_s = self._settings.max_offload_segment_rollover_time_minutes * 60
        timer = self._workers.call_after(age_s, handle.close)
        handle.get_offload_result_async().add_done_callback(lambda _: timer.cancel())
        return handle

    # -- steps

    def _step(self) -> None:
        """One turn: settle what finished, read what is behind, close what is due."""
        with self._lock:
            if self._mode is Mode.STOPPED or self._retry_waiting:
                return
        try:
            self._commits.finish()
            self._take_ownership()
            self._settle()
            self._catch_up()
            self._close_due()
            self._assign_first()
        except (Fenced, EditRefused, Corrupt) as error:
            # Corrupt: the manifest or the hot tier is damaged, trying again would read the same bytes.
            self._halt(error, abort=not isinstance(error, Fenced))
        except OffloaderError as error:
            self._retry_later(error)
        except Exception as error:
            _log.exception("stream %s: a step failed", self.stream)
            self._retry_later(StoreUnavailable(f"stream {self.stream}: {type(error).__name__}: {error}"))

    def _take_ownership(self) -> None:
        """Opens an epoch when there is something to offload, and gives up what the last owner left unfinished."""
        with self._lock:
            behind = self._tail is not None and (self._queue.offered is None or self._tail > self._queue.offered)
        if self._owned or not behind:
            return
        if self._log.epoch is None:
            self._log.open_epoch()
        self._given_up = give_up_leftovers(self._log)
        with self._lock:
            self._committed = self._queue.offered = self._log.state.committed_end()
            self._owned = True
            self._error = None

    def _settle(self) -> None:
        """Commits the first segment when its objects are there, or starts its range again when it failed."""
        with self._lock:
            segment, following = self._queue.first, self._queue.following
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
        edits: list[Edit] = [Offloaded(segment.handle.uuid, summary, self._clock.now_ms())]
        if following is not None:
            edits.append(self._assign(following))
        newest = following.begin if following is not None else summary.end
        self._commits.commit(
            [*self._closed_edits(newest), *edits], lambda state: self._settled(state, summary, following)
        )
        log_segment_offloaded(_log, self.stream, segment.handle.uuid, summary)

    def _settled(self, state: ManifestState, summary: SegmentSummary, following: WritingSegment | None) -> None:
        with self._changed:
            if self._mode is Mode.STOPPED:
                return
            self._queue.pop_first()
            self._queue.forget_before(summary.end.ledger_id)
            self._committed = state.committed_end()
            if self._close_at is not None and self._committed is not None and self._committed >= self._close_at:
                self._close_at = None
            self._progress.committed(summary, self._clock.now_ms())
            self._retry_delay_s = 0.0
            self._error = None
            self._changed.notify_all()
        if following is not None:
            following.assigned = True
            following.handle.start_sending()
        self._step_task.schedule()
        self._source.release(summary.end)

    def _restart(self, segment: WritingSegment, error: BaseException) -> None:
        """A segment failed: forget what was offered since its begin, read it again after a wait, under a new name."""
        with self._lock:
            segments = self._queue.clear(self._log.state.committed_end())
            if self._mode is not Mode.STOPPED:
                self._mode = Mode.CATCH_UP
            self._progress.segments_failed += 1
        if segment.assigned:
            self._given_up.append(Failed(segment.handle.uuid, str(error)))
        for other in segments:
            other.handle.abandon(Closed("the segment before it failed"), abort=True)
        raise StoreUnavailable(f"stream {self.stream}: segment {segment.handle.uuid} failed: {error}") from error

    def _catch_up(self) -> None:
        """Reads the hot tier from the last offered entry on, until the tail is offered: then the stream is live."""
        for _ in range(CATCH_UP_READS_PER_STEP):
            with self._lock:
                if self._mode is not Mode.CATCH_UP:
                    return
                offered = self._queue.offered
                if self._tail is None or (offered is not None and offered >= self._tail):
                    self._mode = Mode.LIVE
                    return
                if not self._queue.has_room(CATCH_UP_READ_BYTES):
                    return
            start = Position(0, 0) if offered is None else Position(offered.ledger_id, offered.entry_id + 1)
            batch = self._source.read(start, CATCH_UP_READ_BYTES)
            if batch is None:
                return
            # A ledger's end is known for sure only after an entry of a later one was seen.
            infos = self._source.ledgers() if offered is None or offered.ledger_id != batch.ledger_id else []
            with self._lock:
                if self._mode is not Mode.CATCH_UP:
                    return
                self._queue.learn(infos)
                self._progress.seen(batch)
                if not self._queue.follows(batch.first):
                    what = f"stream {self.stream}: the hot tier goes on at {batch.first} after {offered}"
                    raise Corrupt(f"{what}: entries are gone", hint="nothing was committed beyond the hole")
                if self._queue.offer(batch) < len(batch):
                    return
        self._step_task.schedule()

    def _close_due(self) -> None:
        """Closes the gathering segment when that was asked for, or when it holds bytes that nothing else would free."""
        with self._lock:
            segment = self._queue.gathering
            offered, close_at = self._queue.offered, self._close_at
            if segment is None:
                return
            # The request stands until what it asked for is committed: the segment may fail and be gathered again.
            asked = close_at is not None and offered is not None and segment.begin <= close_at <= offered
            close = asked or self._queue.is_stuck(CATCH_UP_READ_BYTES)
        if close:
            segment.handle.close()

    def _assign_first(self) -> None:
        """Records the first segment after a start or a failure; others are assigned with their predecessor's end."""
        with self._lock:
            segment = self._queue.first
        if segment is None or segment.assigned:
            return
        edits = [*self._given_up, *self._closed_edits(segment.begin), self._assign(segment)]
        self._commits.commit(edits, lambda _: self._assigned(segment))

    def _assigned(self, segment: WritingSegment) -> None:
        self._given_up.clear()
        segment.assigned = True
        segment.handle.start_sending()

    def _assign(self, segment: WritingSegment) -> Assign:
        return Assign(segment.handle.uuid, int(Layout.V2), segment.begin, None, self._clock.now_ms(), self._driver)

    def _closed_edits(self, newest: Position) -> list[Edit]:
        """The source's facts about ledgers before ``newest``, all that the manifest lacks."""
        known = self._log.state.closed_ledgers
        with self._lock:
            closed = sorted(self._queue.closed_ledgers().items())
        return [LedgerClosed(i, last) for i, last in closed if i < newest.ledger_id and i not in known]

    # -- trouble

    def _retry_later(self, error: OffloaderError) -> None:
        with self._changed:
            self._error = error
            self._retry_waiting = True
            self._retry_delay_s = min(
                max(self._retry_delay_s * 2, RETRY_DELAY_FIRST_S), self._settings.retry_seconds_max
            )
            delay_s = self._retry_delay_s
            self._changed.notify_all()
        _log.warning("stream %s: %s; again in %.1f s", self.stream, error, delay_s)
        self._workers.call_after(delay_s, self._retry)

    def _retry(self) -> None:
        with self._lock:
            self._retry_waiting = False
        self._step_task.schedule()

    def _halt(self, error: OffloaderError, *, abort: bool) -> None:
        with self._changed:
            if self._mode is Mode.STOPPED:
                return
            self._mode = Mode.STOPPED
            self._error = error
            segments = self._queue.clear(self._queue.offered)
            self._changed.notify_all()
        if not isinstance(error, Closed):
            _log.error("stream %s stopped: %s", self.stream, error)
        for segment in segments:
            segment.handle.abandon(error, abort=abort)
