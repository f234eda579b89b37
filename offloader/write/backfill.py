"""Offload a range of history: plan of segments, parallel uploads, commits in order."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from uuid import UUID

from formats.block_memory import BlockMemory
from formats.entries import Position
from formats.keys import Testimony, data_key, index_key, new_segment_uuid
from formats.manifest import Assign, Edit, Failed, Gap, LedgerClosed, Offloaded
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.errors import CorruptError, FencedError, OffloaderError
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import closed_edit, with_facts
from offloader.manifest.state import EditRefusedError, ManifestState, StreamPaused
from offloader.runtime.clock import Clock
from offloader.runtime.workers import RETRY_DELAY_FIRST_S, SerialTask, Workers
from offloader.settings import OffloadSettings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.write.hot_tier import (
    HistoryRange,
    LedgerSizeEstimator,
    acknowledged_end,
    allowed_gaps,
    find_gaps,
    is_left_out,
    require_recording,
    uncovered,
)
from offloader.write.quota import MemoryBudget, part_bytes_for, segment_bytes_max
from offloader.write.stream_state import INTERRUPTED, Commits
from offloader.write.upload import READ_BYTES, LedgerPiece, SourceLedger, upload_of, write_segment


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment to be written.

    Attributes:
        ledger_ids: ledgers with entries in it at planning time; empty: those of both ends. If one of them is missing
            when it is read, its entries are lost and need a recorded gap.
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


def _v1_ledger_id(planned: PlannedSegment) -> int | None:
    return planned.begin.ledger_id if planned.layout is Layout.V1 else None


def _needed(planned: PlannedSegment) -> set[int]:
    return {planned.begin.ledger_id, planned.end.ledger_id, *planned.ledger_ids}


def _spans_not_given(planned: PlannedSegment, ledgers: Iterable[LedgerInfo]) -> bool:
    """Whether the source doesn't deliver some of its entries: no plan has these, once the source knows them."""
    return any(
        Position(info.ledger_id, first) <= planned.end and Position(info.ledger_id, last) >= planned.begin
        for info in ledgers
        for first, last in info.not_given
    )


def _pieces(planned: PlannedSegment, source: LedgerSource) -> list[LedgerPiece]:
    """Its parts of the source's ledgers, in order; ``CorruptError``: one of the ledgers is missing."""
    begin, end = planned.begin, planned.end
    pieces = [
        LedgerPiece(
            SourceLedger(source, info),
            begin.entry_id if info.ledger_id == begin.ledger_id else 0,
            end.entry_id if info.ledger_id == end.ledger_id else info.last_entry_id,
        )
        for info in source.ledgers()
        if info.entries and begin.ledger_id <= info.ledger_id <= end.ledger_id
    ]
    if gone := _needed(planned) - {piece.ledger.info.ledger_id for piece in pieces}:
        raise CorruptError(f"ledger {min(gone)} is no longer in the hot tier; {begin}..{end} can't be offloaded")
    return pieces


class HistoryPlan:
    """Segments to write, in order. Not thread-safe.

    Args:
        segments: independent of each other: they are written one by one, and each is tried once, even after a failure.

    Attributes:
        segment_bytes: their approximate length; 0: unknown.
    """

    independent = True
    segment_bytes = 0

    def __init__(self, segments: Iterable[PlannedSegment]) -> None:
        self._segments = iter(segments)

    def next(self) -> PlannedSegment | None:
        """The next segment, ``None``: no more."""
        return next(self._segments, None)

    def at_once(self, segments_max: int) -> int:  # noqa: ARG002 - they are written one by one
        """Number of segments to write in parallel if a run may write ``segments_max``."""
        return 1

    def uploaded(self, summary: SegmentSummary) -> None:
        """Record that one of them is in the store."""


class BackfillPlan(HistoryPlan):
    """Cuts ranges one segment after another; sizes measured in a ledger correct the estimate for its rest.

    Args:
        ranges: to be offloaded, in order.
        ledgers: that hold them, ascending.
        segment_bytes: size of a segment.
    """

    independent = False

    def __init__(self, ranges: Iterable[HistoryRange], ledgers: Sequence[LedgerInfo], segment_bytes: int) -> None:
        super().__init__(self._cut())
        self._left, self._ledgers, self._segment_bytes = list(ranges), ledgers, segment_bytes
        self._measured: dict[int, list[LedgerSpan]] = {}
        self._sizes = LedgerSizeEstimator(ledgers)
        self.segments = sum(self._sizes.segments(each, segment_bytes) for each in self._left)
        self.wire_bytes = round(sum(self._sizes.between(each.begin, each.end) for each in self._left))
        self.segment_bytes = self.wire_bytes // max(1, self.segments)

    @property
    def begin(self) -> Position | None:
        """Where the next segment begins, ``None``: no more."""
        return self._left[0].begin if self._left else None

    def at_once(self, segments_max: int) -> int:
        # A plan of few segments leaves more connections and memory to each of them.
        return max(1, min(segments_max, self.segments))

    def _cut(self) -> Iterator[PlannedSegment]:
        while self._left:
            wanted = self._left[0]
            cut = self._sizes.cut(wanted, self._segment_bytes)
            if cut.end == wanted.end:
                del self._left[0]
            else:
                self._left[0] = HistoryRange(self._following(cut.end), wanted.end)
            yield PlannedSegment.of(Layout.V2, cut.begin, cut.end, self._ledgers)

    def _following(self, end: Position) -> Position:
        """The next existing entry after ``end``, which isn't the last."""
        later = (info for info in self._ledgers if info.entries and info.ledger_id >= end.ledger_id)
        own = next(later)
        return end.next() if end.entry_id < own.last_entry_id else Position(next(later).ledger_id, 0)

    def uploaded(self, summary: SegmentSummary) -> None:
        # Only a ledger still to be cut benefits from the measurement.
        spans = [span for span in summary.ledgers if self._left and span.ledger_id >= self._left[0].begin.ledger_id]
        for span in spans:
            insort(self._measured.setdefault(span.ledger_id, []), span, key=lambda each: each.first_entry_id)
        if spans:
            self._sizes = LedgerSizeEstimator(self._ledgers, self._measured)


def plan_of_history(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    settings: OffloadSettings,
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
    gaps: Iterable[Gap] = (),
) -> BackfillPlan:
    """Plan the unoffloaded part of a stream up to ``last`` (default: everything), in segments.

    No segment spans one of ``gaps``.
    """
    return BackfillPlan(
        uncovered(state, ledgers, last=last, given_up=given_up, gaps=gaps), ledgers, segment_bytes_max(settings)
    )


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """Begin of a run.

    Attributes:
        plan: the segments to upload.
        gaps: to be recorded first.
        ends: of ledgers, to be recorded first.
        blocked: the gap at which the policy blocks, ``None``: none.
    """

    plan: BackfillPlan
    gaps: list[Gap]
    ends: list[LedgerClosed]
    blocked: Gap | None


def start_of_history(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    settings: OffloadSettings,
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
    seen: Mapping[int, int | None] | None = None,
) -> HistoryStart:
    """The plan up to ``last``, or up to the first gap that may not be recorded; arguments as for ``find_gaps``.

    Raises:
        CorruptError: the source lists entries where there are none.
    """
    found = find_gaps(state, ledgers, last=last, given_up=given_up, seen=seen)
    gaps, blocked = allowed_gaps(found.gaps, settings.on_gap)
    if blocked is not None:  # none of the gaps found begins after ``last``
        last = blocked.first.previous()
    plan = plan_of_history(state, ledgers, settings, last=last, given_up=given_up, gaps=gaps)
    # Ends after the newest range are recorded together with the next range.
    newest = state.newest_end
    ends = [each for each in found.ends if newest is not None and each.ledger_id < newest.ledger_id]
    return HistoryStart(plan, gaps, ends, blocked)


def failed_before(blocked: Gap | None, failed: Iterable[Failed], state: ManifestState) -> list[Failed]:
    """The edits that may be recorded while a gap blocks, all of them where none does.

    Segments promised in or behind the gap remain promised: a promise may be the only record of entries whose ledger the
    hot tier lost, and without it the next run would find no gap.
    """
    return [
        edit
        for edit in failed
        if blocked is None or (segment := state.segments.get(edit.uuid)) is None or segment.begin < blocked.first
    ]


def interrupted(log: ManifestLog, given_up: Collection[Failed]) -> list[Failed]:
    """Segments that an earlier run of this epoch left assigned."""
    said = {edit.uuid for edit in given_up}
    own = [each.uuid for each in log.state.assigned() if each.epoch == log.epoch]
    return [Failed(uuid, INTERRUPTED) for uuid in own if uuid not in said]


@dataclass(slots=True)
class HistoryResult:
    """Result of a run.

    Attributes:
        offloaded: name and summary of each committed segment, in the order of commits.
        trimmed: segments whose ledger left the source during the run; no error.
        errors: of each segment that couldn't be offloaded, in order of occurrence.
        state: the newest view of the manifest.
        is_outdated: whether the run learned of planned entries that the source lost or doesn't deliver: plan again.
    """

    offloaded: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    trimmed: list[PlannedSegment] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    state: ManifestState | None = None
    is_outdated: bool = False

    @property
    def committed(self) -> Position | None:
        """The committed end afterwards."""
        return None if self.state is None else self.state.committed_end()

    def add(self, later: HistoryResult) -> None:
        """Add the result of a later run of the same stream."""
        self.offloaded += later.offloaded
        self.trimmed += later.trimmed
        self.errors += later.errors
        self.state = later.state


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """An assigned segment to be uploaded; small and picklable.

    Attributes:
        stream, incarnation, epoch: of the stream's owner.
        uuid: its name, which the manifest has assigned to ``planned``.
        planned: its entries and layout.
        parts_max: maximum number of its parts in memory, if this process uploads it.
        part_bytes: length of its parts; 0: by the settings.
        testimony: metadata in its data object about the record that assigned it.
    """

    stream: str
    incarnation: UUID
    epoch: int
    uuid: UUID
    planned: PlannedSegment
    parts_max: int = 1
    part_bytes: int = 0
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
    memory: BlockMemory | None = None,
) -> SegmentSummary:
    """Read and upload one segment in this process, at lower priority than live writes.

    Args:
        send_aside: sends parts while the next is made; ``None``: this thread sends them, one by one.
        memory: buffers for blocks of the settings' size, shared with other segments.

    Raises:
        CorruptError: a ledger is missing; and as ``write_segment``.
    """
    planned = order.planned
    pieces = _pieces(planned, source)
    with working_at(Priority.BACKFILL):
        upload = upload_of(
            store,
            order.stream,
            order.uuid,
            _v1_ledger_id(planned),
            incarnation=order.incarnation,
            epoch=order.epoch,
            codec=settings.codec,
            testimony=lambda: order.testimony,
        )
        return write_segment(
            *(pieces, planned.layout, upload, settings),
            is_stopped=is_stopped,
            part_bytes=order.part_bytes,
            parts_max=order.parts_max,
            send_aside=send_aside,
            memory=memory,
        )


#: Parts of a run in flight, as a multiple of those of a live segment.
HISTORY_PARTS = 2
#: Parallel segments take at most this share of the budget; the first one takes the memory that it needs.
HISTORY_SHARE = 2
#: Longest part that a run chooses by itself, as long as Pulsar's: each part is a PUT, which costs money.
HISTORY_PART_BYTES_MAX = 64 * 1024 * 1024
#: Parts of a segment for each that is sent in parallel, at least: with fewer, connections wait for the first and the
#: last one.
PARTS_FOR_EACH_SENT_MIN = 4


def segment_memory_bytes(settings: OffloadSettings, parts_max: int = 1, part_bytes: int = 0) -> int:
    """Memory for reading and uploading one segment: a read, the open part, the blocks being encoded, and ``parts_max``
    parts being sent; 1: no part is made while one is sent.

    Args:
        part_bytes: length of a part; 0: by the settings.
    """
    segment_bytes = segment_bytes_max(settings)
    part_bytes = min(part_bytes or part_bytes_for(settings), segment_bytes)
    parts = 1 if parts_max == 1 else 1 + parts_max
    return READ_BYTES + parts * part_bytes + 2 * min(settings.block_size, segment_bytes)


def parts_at_once(settings: OffloadSettings, segments_max: int, limit_bytes: int) -> int:
    """Parts of each segment of a run to send in parallel, within the segments' share of the budget: as many as of a
    live segment, in total at most twice as many. Several parallel segments keep a store busy without it.

    Args:
        segments_max: of the run, in parallel.
        limit_bytes: the process's budget.
    """
    most = settings.parts_in_flight_max
    parts = max(1, min(most, HISTORY_PARTS * most // segments_max))
    while parts > 1 and segments_max * segment_memory_bytes(settings, parts) * HISTORY_SHARE > limit_bytes:
        parts -= 1
    return parts


def parts_of_history(
    settings: OffloadSettings, segment_bytes: int, segments_max: int, limit_bytes: int
) -> tuple[int, int]:
    """Parts of each segment of a run to send in parallel, and their length.

    The settings' length is doubled while the segments' share of the budget has room for it, if need be by sending half
    as many: as many bytes are on their way, in fewer requests. A run keeps as many requests as a live segment has, and
    a segment parts enough for its connections.

    Args:
        segment_bytes: of a segment of the run, about.
        segments_max: of the run, in parallel.
        limit_bytes: the process's budget.
    """
    parts, part_bytes = parts_at_once(settings, segments_max, limit_bytes), part_bytes_for(settings)

    def fits(parts: int, part_bytes: int) -> bool:
        memory_bytes = segments_max * segment_memory_bytes(settings, parts, part_bytes)
        return (
            memory_bytes * HISTORY_SHARE <= limit_bytes
            and segment_bytes >= PARTS_FOR_EACH_SENT_MIN * parts * part_bytes
        )

    while 2 * part_bytes <= HISTORY_PART_BYTES_MAX:
        half = parts // 2 if parts >= 4 and segments_max * (parts // 2) >= settings.parts_in_flight_max else parts
        chosen = next((each for each in (parts, half) if fits(each, 2 * part_bytes)), None)
        if chosen is None:
            break
        parts, part_bytes = chosen, 2 * part_bytes
    return parts, part_bytes


class HistoryMemory:
    """Memory reservations of one size, one for each segment in progress. Not thread-safe.

    Args:
        segment_bytes: of one reservation; less where the whole budget is smaller.
        wake: called when ``take`` can have the room it waits for.
    """

    def __init__(self, budget: MemoryBudget, segment_bytes: int, wake: Callable[[], None]) -> None:
        self._budget, self._wake = budget, wake
        self._segment_bytes = min(segment_bytes, budget.limit_bytes)
        self._granted_bytes = self._segments = 0
        self._joined = False

    def take(self) -> bool:
        """Reserve room for one more segment; False: not now. The first one is queued, and ``wake`` is called."""
        if not self._joined:
            # No flush to request under pressure: reserved bytes are already being sent and come back.
            self._budget.join(self, self._wake, lambda: self._granted_bytes)
            self._joined = True
        wanted = (self._segments + 1) * self._segment_bytes
        if (missing := wanted - self._granted_bytes) > 0:
            there = (
                self._budget.wait_for(self, missing)
                if self._segments == 0
                else wanted * HISTORY_SHARE <= self._budget.limit_bytes and self._budget.room_for(self) >= missing
            )
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
        if (over := self._granted_bytes - segments * self._segment_bytes) > 0:
            self._granted_bytes -= over
            self._budget.give_back(self, over)
        if leave and segments == 0:
            self._joined = False
            self._budget.leave(self)


@dataclass(frozen=True, slots=True)
class HistoryTools:
    """Process-wide resources of runs over history.

    Attributes:
        upload: reads and uploads an assigned segment, here or elsewhere.
        driver: recorded with each segment.
        workers: of all streams; steps and commits run there.
        uploaders: read and upload segments of history. A segment occupies one from its first entry to its last, so
            these are a few separate threads of the process: live streams never wait for one.
        budget: the process's memory; ``None``: ``upload`` takes none of it.
        writer_url: where this process serves requests as a stream's owner; empty: nowhere.
    """

    upload: OrderUpload
    driver: dict[str, str]
    settings: OffloadSettings
    workers: Workers
    uploaders: Workers
    budget: MemoryBudget | None
    clock: Clock
    entropy: Callable[[int], bytes]
    writer_url: str = ""

    def new_uuid(self, state: ManifestState) -> UUID:
        """A name for a new segment of a stream."""
        return new_segment_uuid(state.incarnation, int.from_bytes(self.entropy(8), "big"))


_log = logging.getLogger("offloader.history")

#: Attempts at one segment of a backfill; the store has its own retries.
ATTEMPTS_MAX = 3
#: Attempts at a step that the store or the source refuses, before the run ends; the store has its own retries.
COMMIT_ATTEMPTS_MAX = 5


@dataclass(slots=True)
class _Attempt:
    planned: PlannedSegment
    uuid: UUID
    number: int = 1
    outcome: Future[SegmentSummary] = field(default_factory=Future)


class BackfillJob:
    """Offloads the segments of a plan. Single use.

    Args:
        log: the stream's manifest, its epoch open.
        commits: of the same log; earlier ones are finished, and none are concurrent.
        first_edits: further edits of the first record: segments given up, gaps.
        acknowledges: whether to acknowledge offloaded entries to the source.
        on_progress: called after each commit that made entries readable.
        on_first_record: called when ``first_edits`` are in the manifest.

    Raises:
        CorruptError: one of the gaps mustn't be recorded (``on_gap``).
    """

    def __init__(
        self,
        tools: HistoryTools,
        source: LedgerSource,
        log: ManifestLog,
        plan: HistoryPlan,
        *,
        commits: Commits,
        first_edits: Sequence[Edit] = (),
        acknowledges: bool = True,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
        on_first_record: Callable[[], None] = lambda: None,
    ) -> None:
        self._tools, self._source, self._log, self._plan = tools, source, log, plan
        self._acknowledges, self._on_progress, self._on_first_record = acknowledges, on_progress, on_first_record
        for gap in (edit for edit in first_edits if isinstance(edit, Gap)):
            require_recording(log.stream, gap, tools.settings.on_gap)
        settings, budget = tools.settings, tools.budget
        self._segments_max = plan.at_once(settings.backfill_segments_in_flight_max)
        self._attempts_max = 1 if plan.independent else ATTEMPTS_MAX
        self._parts_max, self._part_bytes = 1, 0
        self._done: Future[HistoryResult] = Future()
        self._done.set_running_or_notify_cancel()  # ``stop`` ends it
        self._task = SerialTask(tools.workers, self._step)
        self._memory: HistoryMemory | None = None
        if budget is not None:
            self._parts_max, self._part_bytes = parts_of_history(
                settings, plan.segment_bytes, self._segments_max, budget.limit_bytes
            )
            segment_bytes = segment_memory_bytes(settings, self._parts_max, self._part_bytes)
            self._memory = HistoryMemory(budget, segment_bytes, self._task.schedule)
        self._stopped = False

        # Accessed by steps only.
        self._commits = commits
        self._first_edits = with_facts(first_edits, source)
        self._ledgers: Sequence[LedgerInfo] = ()
        self._running: list[_Attempt] = []
        self._proposed: list[_Attempt] = []
        self._result = HistoryResult(state=log.state)
        self._facts_to = -1
        self._exhausted = self._ends = self._paused = False
        self._failures = 0

    def start(self) -> Future[HistoryResult]:
        """Start the run; the result arrives when no upload is in progress.

        Raises (in the future):
            FencedError, EditRefusedError, StoreUnavailableError, OutcomeUnknownError: the manifest refused the commit.
            Failed segments are in the result's ``errors``.
        """
        self._task.schedule()
        return self._done

    def stop(self) -> None:
        """End uploads early, unfinished; then the result arrives."""
        self._stopped = True
        self._task.schedule()

    def _step(self) -> None:
        if self._done.done():
            self._give_memory_back()
            return
        try:
            self._commits.finish()
            self._move()
        except StreamPaused as error:
            self._rest(error)
        except (FencedError, EditRefusedError) as error:
            self._fail(error)
        except OffloaderError as error:
            self._failures += 1
            if self._stopped or self._failures >= COMMIT_ATTEMPTS_MAX:
                self._fail(error)
            else:
                self._later(self._failures, self._task.schedule)
        except Exception as error:
            _log.exception("stream %s: a step failed", self._log.stream)
            self._fail(error)

    def _move(self) -> None:
        """Commit arrived segments and start the next ones, in one record."""
        arrived = [attempt for attempt in self._running if attempt.outcome.done()]
        self._ledgers = self._source.ledgers()
        settled = [(each, each.outcome.result()) for each in arrived if each.outcome.exception() is None]
        given_up = [each for each in arrived if (error := each.outcome.exception()) and self._judge(each, error)]
        self._give_memory_back()  # before taking more: a run that waits for itself would deadlock
        self._propose()
        edits = [*self._first_edits, *(Failed(a.uuid, str(a.outcome.exception())) for a in given_up)]
        edits += self._closed_edits([a.planned.end for a in (*self._proposed, *(a for a, _ in settled))])
        now_ms, driver = self._tools.clock.now_ms(), self._tools.driver
        edits += [
            Assign(a.uuid, int(a.planned.layout), a.planned.begin, a.planned.end, now_ms, driver)
            for a in self._proposed
        ]
        edits += [Offloaded(attempt.uuid, summary, now_ms) for attempt, summary in settled]
        if edits:
            self._commits.commit(edits, lambda state: self._committed(state, arrived, settled, given_up))
            closed = [edit.ledger_id for edit in edits if isinstance(edit, LedgerClosed)]
            self._facts_to = max(closed, default=self._facts_to)
        else:
            self._running = [attempt for attempt in self._running if attempt not in arrived]
        self._give_memory_back()
        if not self._running and not self._proposed and (self._exhausted or self._ends or self._stopped):
            self._result.state = self._log.state
            self._done.set_result(self._result)

    def _judge(self, attempt: _Attempt, error: BaseException) -> bool:
        """Decide about a failed attempt; returns whether the manifest should drop it."""
        planned = attempt.planned
        # Decided again after a refused record: a replacement must be assigned in the same record as the failure, and a
        # run stopped meanwhile records neither.
        self._proposed = [each for each in self._proposed if each.planned != planned]
        if self._stopped or self._paused:
            return False
        # Without one of its ledgers, or one of its entries, it can no longer be offloaded.
        is_trimmed = not _needed(planned) <= {info.ledger_id for info in self._ledgers}
        if is_trimmed or _spans_not_given(planned, self._ledgers):
            self._result.is_outdated |= not (is_trimmed and self._plan.independent)
            if is_trimmed and planned not in self._result.trimmed:
                self._result.trimmed.append(planned)
            # A V2 segment remains promised until one record has both its failure and its gap.
            self._ends = self._ends or planned.layout is not Layout.V1
            return planned.layout is Layout.V1
        if isinstance(error, OffloaderError) and error.retryable and attempt.number < self._attempts_max:
            self._proposed.append(_Attempt(planned, self._tools.new_uuid(self._log.state), attempt.number + 1))
            return True
        if error not in self._result.errors:
            self._result.errors.append(error)
            _log.warning("stream %s: %s..%s: %s", self._log.stream, planned.begin, planned.end, error)
        self._ends = self._ends or not self._plan.independent
        return False

    def _propose(self) -> None:
        """Take segments off the plan; they remain proposed until a record assigns them."""
        under_way = sum(1 for attempt in self._running if not attempt.outcome.done())
        while not (self._ends or self._stopped or self._exhausted):
            is_full = under_way + len(self._proposed) >= self._segments_max
            if is_full or (self._memory is not None and not self._memory.take()):
                return  # the end of an upload makes a step
            if (planned := self._plan.next()) is None:
                self._exhausted = True
            else:
                self._proposed.append(_Attempt(planned, self._tools.new_uuid(self._log.state)))

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
            log = self._log
            try:
                order = SegmentJob(
                    stream=log.stream,
                    incarnation=log.state.incarnation,
                    epoch=log.epoch or 0,
                    uuid=attempt.uuid,
                    planned=attempt.planned,
                    parts_max=self._parts_max,
                    part_bytes=self._part_bytes,
                    testimony=log.testimony(),
                )
                attempt.outcome.set_result(self._tools.upload(self._source, order, lambda: self._stopped))
            except BaseException as error:
                attempt.outcome.set_exception(error)
            self._task.schedule()

        if attempt.number == 1:
            self._tools.uploaders.submit(run)
        else:
            self._later(attempt.number - 1, lambda: self._tools.uploaders.submit(run))

    def _later(self, failures: int, run: Callable[[], object]) -> None:
        # Doubles with each failure.
        delay_s = min(RETRY_DELAY_FIRST_S * 2 ** (failures - 1), self._tools.settings.retry_delay_max)
        self._tools.workers.call_after(delay_s, run)

    def _acknowledge(self, state: ManifestState) -> None:
        if state.committed_end() == self._result.committed:
            return
        self._result.state = state
        if (end := acknowledged_end(state, self._ledgers)) is None:
            return
        try:
            self._source.release(end)
        except OffloaderError as error:
            # It deletes nothing and is acknowledged again later: no reason to fail the commit.
            _log.warning(
                "stream %s: the source couldn't be told that %s is committed: %s", self._log.stream, end, error
            )

    def _clean(self, attempt: _Attempt) -> None:
        """Delete the remains of a failed attempt of this run, once; late arrivals are swept later.

        Not for another epoch's: its PUT may be in flight, and only the sweeper waits long enough.
        """
        stream, uuid, ledger_id = self._log.stream, attempt.uuid, _v1_ledger_id(attempt.planned)
        try:
            self._log.store.delete([data_key(stream, uuid, ledger_id), index_key(stream, uuid, ledger_id)])
        except OffloaderError as error:
            _log.warning("stream %s: the failed attempt %s is left to cleanup: %s", stream, uuid, error)

    def _closed_edits(self, ends: list[Position]) -> list[Edit]:
        """The source's facts, missing in the manifest, about the ledgers of these segments."""
        state, newest = self._log.state, max((end.ledger_id for end in ends), default=-1)
        # With its end recorded, the entries of a ledger deleted before it was offloaded would be missing.
        return [
            closed_edit(info, self._source)
            for info in self._ledgers
            if self._facts_to < info.ledger_id <= newest and info.closed
            if info.ledger_id not in state.closed_ledgers and not is_left_out(state, info)
        ]

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
        self._give_memory_back()
        self._done.set_exception(error)

    def _give_memory_back(self) -> None:
        """Return the memory of finished uploads; an upload left by a failed run counts until it ends."""
        if self._memory is None:
            return
        under_way = sum(1 for attempt in self._running if not attempt.outcome.done())
        over = self._done.done() or self._stopped or self._exhausted or self._ends
        self._memory.keep(under_way + len(self._proposed), leave=over)
