"""Offload a range of history: parallel uploads, commits in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from formats.entries import Position
from formats.keys import Testimony, data_key, index_key, new_segment_uuid
from formats.manifest import Assign, Edit, Failed, LedgerClosed, Offloaded
from formats.segment import Layout, SegmentSummary
from offloader.errors import Fenced, OffloaderError
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import closed_edit
from offloader.manifest.state import EditRefused, ManifestState, StreamPaused
from offloader.runtime.clock import Clock
from offloader.runtime.workers import SerialTask, Workers
from offloader.settings import OffloadSettings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.write.hot_tier import acknowledged_end
from offloader.write.ledger_objects import READ_BYTES, pieces_between, write_segment
from offloader.write.quota import MemoryBudget, part_bytes_for, segment_bytes_max
from offloader.write.segment_queue import Commits
from offloader.write.upload import upload_of

__all__ = [
    "BackfillJob",
    "HistoryMemory",
    "HistoryPlan",
    "HistoryResult",
    "OrderUpload",
    "PlannedSegment",
    "SegmentJob",
    "parts_at_once",
    "segment_memory_bytes",
    "upload_order",
]


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment to be written.

    Attributes:
        ledger_ids: ledgers with entries in it at planning time. If one of them is missing when it is read, its entries
            are lost and need a recorded gap.
    """

    layout: Layout
    begin: Position
    end: Position
    ledger_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, layout: Layout, begin: Position, end: Position, ledgers: Iterable[LedgerInfo]) -> PlannedSegment:
        """Plan a segment while the source lists ``ledgers``."""
        first, last = begin.ledger_id, end.ledger_id
        ids = (info.ledger_id for info in ledgers if info.entries and first <= info.ledger_id <= last)
        return cls(layout, begin, end, tuple(ids))


class HistoryPlan(Protocol):
    """Segments to write, in order. Not thread-safe."""

    #: Whether the segments after a failed one are offloaded nevertheless.
    goes_on_after_failure: bool

    def next(self) -> PlannedSegment | None:
        """The next segment, ``None``: no more."""
        ...

    def uploaded(self, summary: SegmentSummary) -> None:
        """Record that one of them is in the store."""
        ...


@dataclass(slots=True)
class HistoryResult:
    """Result of a run.

    Attributes:
        offloaded: name and summary of each committed segment, in the order of commits.
        trimmed: segments whose ledger left the source meanwhile; no error.
        errors: of each segment that couldn't be offloaded, in order of occurrence.
        committed: the committed end afterwards.
    """

    offloaded: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    trimmed: list[PlannedSegment] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    committed: Position | None = None

    def add(self, later: HistoryResult) -> None:
        """Add the result of a later run of the same stream."""
        self.offloaded += later.offloaded
        self.trimmed += later.trimmed
        self.errors += later.errors
        self.committed = later.committed


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """An assigned segment to be uploaded; small and picklable.

    Attributes:
        stream, incarnation, epoch: of the stream's owner.
        uuid: its name, which the manifest has assigned to ``planned``.
        planned: its entries and layout.
        parts_max: parts of it that fit in memory at once, if this process uploads it.
        testimony: metadata in its data object about the record that assigned it.
    """

    stream: str
    incarnation: UUID
    epoch: int
    uuid: UUID
    planned: PlannedSegment
    parts_max: int = 1
    testimony: Testimony | None = None


#: Reads and uploads a segment, for (hot tier, order, whether to stop); both objects are verified when it returns.
OrderUpload = Callable[[LedgerSource, SegmentJob, Callable[[], bool]], SegmentSummary]


def upload_order(
    store: ObjectStore,
    source: LedgerSource,
    order: SegmentJob,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    settings: OffloadSettings,
    send_aside: Callable[[Callable[[], object]], object] | None = None,
) -> SegmentSummary:
    """Read and upload one segment in this process, at lower priority than live writes.

    Args:
        send_aside: sends parts while the next is made; ``None``: this thread sends them, one by one.

    Raises:
        as ``write_segment`` and ``pieces_between``.
    """
    planned = order.planned
    pieces = pieces_between(source, source.ledgers(), planned.begin, planned.end, planned.ledger_ids)
    ledger_id = planned.begin.ledger_id if planned.layout is Layout.V1 else None
    with working_at(Priority.BACKFILL):
        upload = upload_of(
            store,
            order.stream,
            order.uuid,
            ledger_id,
            incarnation=order.incarnation,
            epoch=order.epoch,
            codec=settings.codec,
            testimony=lambda: order.testimony,
        )
        return write_segment(
            *(pieces, planned.layout, upload, settings),
            is_stopped=is_stopped,
            parts_max=order.parts_max,
            send_aside=send_aside,
        )


#: Segments in parallel take at most this share of the budget; the first one takes what it needs.
HISTORY_SHARE = 2


def segment_memory_bytes(settings: OffloadSettings, parts_max: int = 1) -> int:
    """Memory for reading and uploading one segment: a read, the open part, the blocks being encoded, and ``parts_max``
    parts being sent; 1: no part is made while one is sent."""
    segment_bytes = segment_bytes_max(settings)
    part_bytes = min(part_bytes_for(settings), segment_bytes)
    parts = 1 if parts_max == 1 else 1 + parts_max
    return READ_BYTES + parts * part_bytes + 2 * min(settings.block_bytes, segment_bytes)


def parts_at_once(settings: OffloadSettings, segments_max: int, limit_bytes: int) -> int:
    """Parts of each segment of a run to send in parallel: in total as many as of one live segment, within the segments'
    share of the budget. Several parallel segments keep a store busy without it.

    Args:
        segments_max: of the run, in parallel.
        limit_bytes: the process's budget.
    """
    parts = max(1, settings.parts_in_flight_max // segments_max)
    while parts > 1 and segments_max * segment_memory_bytes(settings, parts) * HISTORY_SHARE > limit_bytes:
        parts -= 1
    return parts


class HistoryMemory:
    """Memory reservations of one size, one for each segment in progress. Not thread-safe.

    Args:
        budget: of the process.
        segment_bytes: of one reservation; less where the whole budget is smaller.

    Attributes:
        wake: called when ``take`` can have the room it waits for; set by the run.
    """

    def __init__(self, budget: MemoryBudget, segment_bytes: int) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._budget = budget
        self._segment_bytes = min(segment_bytes, budget.limit_bytes)
        self._granted_bytes = 0
        self._segments = 0
        self._joined = False

    def take(self) -> bool:
        """Reserve room for one more segment; False: not now. The first one is queued, and ``wake`` is called."""
        if not self._joined:
            # No flush to request under pressure: reserved bytes are already being sent and come back.
            self._budget.join(self, lambda: self.wake(), lambda: self._granted_bytes)
            self._joined = True
        wanted = (self._segments + 1) * self._segment_bytes
        missing = wanted - self._granted_bytes
        if missing > 0:
            if self._segments == 0:
                there = self._budget.wait_for(self, missing)
            else:
                there = wanted * HISTORY_SHARE <= self._budget.limit_bytes and self._budget.room_for(self) >= missing
            granted = self._budget.take(self, missing, 0) if there else 0
            if granted == 0:
                return False
            self._granted_bytes += granted
        self._segments += 1
        return True

    def keep(self, segments: int, *, leave: bool) -> None:
        """Return the room of all but ``segments`` segments.

        Args:
            leave: no more will be taken: without segments, leave the queue too.
        """
        if not self._joined or segments > self._segments:
            return
        self._segments = segments
        over = self._granted_bytes - segments * self._segment_bytes
        if over > 0:
            self._granted_bytes -= over
            self._budget.give_back(self, over)
        if leave and segments == 0:
            self._joined = False
            self._budget.leave(self)


_log = logging.getLogger("offloader.history")

#: Wait before the first retry; doubles up to ``retry_seconds_max``.
RETRY_DELAY_FIRST_S = 0.2
#: Attempts at a step that the store or the source refuses, before the run ends; the store has its own retries.
COMMIT_ATTEMPTS_MAX = 5


@dataclass(slots=True)
class _Attempt:
    planned: PlannedSegment
    uuid: UUID
    #: Ledgers with its entries: if one of them is missing in the source, it can't be offloaded any more.
    ledger_ids: frozenset[int]
    number: int = 1
    outcome: Future[SegmentSummary] = field(default_factory=Future)


class BackfillJob:
    """Offloads the segments of a plan. Single use.

    Args:
        source: the hot tier.
        log: the stream's manifest, its epoch open.
        plan: which segments.
        upload: reads and uploads one segment, for (name, segment, whether to stop); on a worker.
        driver: recorded with each segment.
        commits: earlier commits of the same log, if any; all finished, and without concurrent commits.
        first_edits: further edits of the first record: segments given up, gaps.
        uploaders: threads that read and upload segments; default: ``workers``. A segment occupies one all the time.
        memory: of the process, for the segments in progress; ``None``: unlimited.
        segments_max: in parallel.
        attempts_max: of one segment; the store has its own retries.
        acknowledges: whether to acknowledge offloaded entries to the source.
        on_progress: called after each commit that made entries readable.
        on_first_record: called when ``first_edits`` are in the manifest.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        plan: HistoryPlan,
        *,
        upload: Callable[[UUID, PlannedSegment, Callable[[], bool]], SegmentSummary],
        driver: dict[str, str],
        settings: OffloadSettings,
        workers: Workers,
        clock: Clock,
        entropy: Callable[[int], bytes],
        commits: Commits | None = None,
        first_edits: Sequence[Edit] = (),
        uploaders: Workers | None = None,
        memory: HistoryMemory | None = None,
        segments_max: int = 1,
        attempts_max: int = 1,
        acknowledges: bool = True,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
        on_first_record: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._log, self._plan, self._upload = source, log, plan, upload
        self._driver, self._settings, self._workers, self._clock = driver, settings, workers, clock
        self._entropy, self._uploaders, self._memory = entropy, uploaders or workers, memory
        self._segments_max, self._attempts_max = segments_max, attempts_max
        self._acknowledges, self._on_progress, self._on_first_record = acknowledges, on_progress, on_first_record
        self._done: Future[HistoryResult] = Future()
        self._task = SerialTask(workers, self._step)
        if memory is not None:
            memory.wake = self._task.schedule
        self._stopped = False

        # Accessed by steps only.
        self._commits = commits or Commits(log, source, driver, clock)
        self._first_edits = list(first_edits)
        self._ledgers: Sequence[LedgerInfo] = ()
        self._running: list[_Attempt] = []
        self._proposed: list[_Attempt] = []
        self._result = HistoryResult(committed=log.state.committed_end())
        self._facts_to = -1
        self._exhausted = False
        self._ends = False
        self._paused = False
        self._failures = 0

    def start(self) -> Future[HistoryResult]:
        """Start the run; the result arrives when no upload is in progress.

        Raises (in the future):
            Fenced, EditRefused, StoreUnavailable, OutcomeUnknown: the manifest refused the commit. Failed segments
            are in the result's ``errors``.
        """
        self._task.schedule()
        return self._done

    def stop(self) -> None:
        """End uploads early, unfinished; then the result arrives."""
        self._stopped = True
        self._task.schedule()

    # -- steps, one at a time

    def _step(self) -> None:
        if self._done.done():
            self._give_memory_back()
            return
        try:
            self._commits.finish()
            self._move()
        except StreamPaused as error:
            self._rest(error)
        except (Fenced, EditRefused) as error:
            self._fail(error)
        except OffloaderError as error:
            self._failures += 1
            if self._failures >= COMMIT_ATTEMPTS_MAX:
                self._fail(error)
            else:
                delay_s = RETRY_DELAY_FIRST_S * 2 ** (self._failures - 1)
                self._workers.call_after(min(delay_s, self._settings.retry_seconds_max), self._task.schedule)
        except Exception as error:
            _log.exception("stream %s: a step failed", self._log.stream)
            self._fail(error)

    def _move(self) -> None:
        """Commit arrived segments and start the next ones, in one record."""
        arrived = [attempt for attempt in self._running if attempt.outcome.done()]
        self._ledgers = self._source.ledgers()
        edits: list[Edit] = []
        settled: list[tuple[_Attempt, SegmentSummary]] = []
        given_up: list[_Attempt] = []
        for attempt in arrived:
            error = attempt.outcome.exception()
            if error is None:
                settled.append((attempt, attempt.outcome.result()))
            else:
                given_up += self._judge(attempt, error)
        self._give_memory_back()  # before taking more: a run that waits for itself would deadlock
        self._propose()
        edits += [*self._first_edits, *(Failed(a.uuid, str(a.outcome.exception())) for a in given_up)]
        edits += self._closed_edits([a.planned.end for a in (*self._proposed, *(a for a, _ in settled))])
        edits += [self._assign(attempt) for attempt in self._proposed]
        edits += [Offloaded(attempt.uuid, summary, self._clock.now_ms()) for attempt, summary in settled]
        if edits:
            self._commits.commit(edits, lambda state: self._committed(state, arrived, settled, given_up))
            closed = [edit.ledger_id for edit in edits if isinstance(edit, LedgerClosed)]
            self._facts_to = max(closed, default=self._facts_to)
        else:
            self._running = [attempt for attempt in self._running if attempt not in arrived]
        self._give_memory_back()
        if not self._running and not self._proposed and (self._exhausted or self._ends or self._stopped):
            self._result.committed = self._log.state.committed_end()
            self._finish(lambda: self._done.set_result(self._result))

    def _judge(self, attempt: _Attempt, error: BaseException) -> list[_Attempt]:
        """Decide about a failed attempt; returns the attempt if the manifest should drop it."""
        planned = attempt.planned
        # Decided again after a refused record: a replacement must be assigned in the same record as the failure, and a
        # run stopped meanwhile records neither.
        self._proposed = [each for each in self._proposed if each.planned != planned]
        if self._stopped or self._paused:
            return []
        if not attempt.ledger_ids <= {info.ledger_id for info in self._ledgers}:
            if planned not in self._result.trimmed:
                self._result.trimmed.append(planned)
            if planned.layout is Layout.V1:
                return [attempt]
            # It stays promised until one record has both its failure and its gap.
            self._ends = True
            return []
        if isinstance(error, OffloaderError) and error.retryable and attempt.number < self._attempts_max:
            self._proposed.append(self._attempt(planned, attempt.number + 1))
            return [attempt]
        if error not in self._result.errors:
            self._result.errors.append(error)
            _log.warning("stream %s: %s..%s: %s", self._log.stream, planned.begin, planned.end, error)
        self._ends = self._ends or not self._plan.goes_on_after_failure
        return []

    def _propose(self) -> None:
        """Take segments off the plan; they stay proposed until a record assigns them."""
        under_way = sum(1 for attempt in self._running if not attempt.outcome.done())
        while not (self._ends or self._stopped or self._exhausted):
            if under_way + len(self._proposed) >= self._segments_max:
                return
            if self._memory is not None and not self._memory.take():
                return  # the end of an upload makes a step
            planned = self._plan.next()
            if planned is None:
                self._exhausted = True
            else:
                self._proposed.append(self._attempt(planned, 1))

    def _committed(
        self,
        state: ManifestState,
        arrived: list[_Attempt],
        settled: list[tuple[_Attempt, SegmentSummary]],
        given_up: list[_Attempt],
    ) -> None:
        """After a record: start the assigned segments, forget the ended ones."""
        if self._first_edits:
            self._first_edits = []
            self._on_first_record()
        starting, self._proposed = self._proposed, []
        self._running = [attempt for attempt in self._running if attempt not in arrived] + starting
        self._failures = 0
        for attempt in starting:
            self._launch(attempt)
        for attempt, summary in settled:
            self._result.offloaded.append((attempt.uuid, summary))
            self._plan.uploaded(summary)
            self._on_progress(summary)
        if settled and self._acknowledges:
            self._acknowledge(state)
        for attempt in given_up:
            self._clean(attempt)
        self._task.schedule()

    def _launch(self, attempt: _Attempt) -> None:
        def run() -> None:
            try:
                attempt.outcome.set_result(self._upload(attempt.uuid, attempt.planned, lambda: self._stopped))
            except BaseException as error:
                attempt.outcome.set_exception(error)
            self._task.schedule()

        if attempt.number == 1:
            self._uploaders.submit(run)
        else:
            delay_s = RETRY_DELAY_FIRST_S * 2 ** (attempt.number - 2)
            self._workers.call_after(
                min(delay_s, self._settings.retry_seconds_max), lambda: self._uploaders.submit(run)
            )

    def _acknowledge(self, state: ManifestState) -> None:
        if state.committed_end() == self._result.committed:
            return
        self._result.committed = state.committed_end()
        end = acknowledged_end(state, self._ledgers)
        if end is None:
            return
        try:
            self._source.release(end)
        except OffloaderError as error:
            # It deletes nothing and is acknowledged again later: no reason to fail the commit.
            _log.warning("stream %s: the source wasn't told that %s is safe: %s", self._log.stream, end, error)

    def _clean(self, attempt: _Attempt) -> None:
        """Delete the remains of a failed attempt of this run, once; late arrivals are swept later.

        Not for another epoch's: its PUT may be in flight, and only the sweeper waits long enough.
        """
        ledger_id = attempt.planned.begin.ledger_id if attempt.planned.layout is Layout.V1 else None
        stream, uuid = self._log.stream, attempt.uuid
        try:
            self._log.store.delete([data_key(stream, uuid, ledger_id), index_key(stream, uuid, ledger_id)])
        except OffloaderError as error:
            _log.warning("stream %s: the failed attempt %s is left to the sweeper: %s", stream, uuid, error)

    # -- helpers

    def _assign(self, attempt: _Attempt) -> Assign:
        planned = attempt.planned
        now_ms = self._clock.now_ms()
        return Assign(attempt.uuid, int(planned.layout), planned.begin, planned.end, now_ms, self._driver)

    def _closed_edits(self, ends: list[Position]) -> list[Edit]:
        """The source's facts, missing in the manifest, about the ledgers of these segments."""
        if not ends:
            return []
        known, newest = self._log.state.closed_ledgers, max(ends).ledger_id
        infos = [info for info in self._ledgers if self._facts_to < info.ledger_id <= newest and info.closed]
        return [closed_edit(info, self._source) for info in infos if info.ledger_id not in known]

    def _attempt(self, planned: PlannedSegment, number: int) -> _Attempt:
        uuid = new_segment_uuid(self._log.state.incarnation, int.from_bytes(self._entropy(8), "big"))
        ends = {planned.begin.ledger_id, planned.end.ledger_id}
        return _Attempt(planned, uuid, frozenset(ends.union(planned.ledger_ids)), number)

    def _rest(self, error: StreamPaused) -> None:
        """Assign no more; segments in progress complete, the rest is left to the next run."""
        self._ends = self._paused = True
        # A failure is recorded only with the segment or gap that replaces it: else its range would be lost.
        self._proposed, self._first_edits = [], []
        self._result.errors.append(error)
        self._task.schedule()

    def _fail(self, error: BaseException) -> None:
        """The manifest refuses commits: end uploads early and leave their segments assigned."""
        self._stopped = True
        self._proposed = []  # if they are assigned all the same, the next run fails them
        self._finish(lambda: self._done.set_exception(error))

    def _finish(self, tell: Callable[[], None]) -> None:
        self._give_memory_back()
        tell()

    def _give_memory_back(self) -> None:
        """Return the memory of finished uploads; an upload left by a failed run counts until it ends."""
        if self._memory is None:
            return
        under_way = sum(1 for attempt in self._running if not attempt.outcome.done())
        over = self._done.done() or self._stopped or self._exhausted or self._ends
        self._memory.keep(under_way + len(self._proposed), leave=over)
