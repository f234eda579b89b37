"""Plan a stream's history as segments of about the segment size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from formats.entries import Position
from formats.manifest import Edit, Failed, Gap, LedgerClosed
from formats.segment import Layout, LedgerSpan, SegmentSummary
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import with_facts
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Workers
from offloader.settings import OffloadSettings
from offloader.write.backfill import (
    BackfillJob,
    HistoryMemory,
    HistoryPlan,
    OrderUpload,
    PlannedSegment,
    SegmentJob,
    parts_at_once,
    segment_memory_bytes,
)
from offloader.write.epoch import Ownership
from offloader.write.gaps import allowed_gaps, find_holes, require_recording
from offloader.write.hot_tier import HistoryRange, LedgerSizeEstimator, uncovered, without_gaps
from offloader.write.quota import MemoryBudget, segment_bytes_max
from offloader.write.segment_queue import Commits

__all__ = [
    "ATTEMPTS_MAX",
    "BackfillPlan",
    "FixedPlan",
    "HistoryStart",
    "HistoryTools",
    "OwnedStream",
    "interrupted",
    "plan_of_history",
    "start_of_history",
]

#: Attempts at one segment of a backfill; the store has its own retries.
ATTEMPTS_MAX = 3


class BackfillPlan:
    """Cuts ranges one segment after another; sizes measured in a ledger correct the estimate for its rest.

    Args:
        ranges: to be offloaded, in order.
        ledgers: that hold them, ascending.
        segment_bytes: size of a segment.
    """

    goes_on_after_failure = False

    def __init__(self, ranges: Iterable[HistoryRange], ledgers: Sequence[LedgerInfo], segment_bytes: int) -> None:
        self._left = list(ranges)
        self._ledgers = ledgers
        self._segment_bytes = segment_bytes
        self._measured: dict[int, list[LedgerSpan]] = {}
        self._sizes = LedgerSizeEstimator(ledgers)
        self.segments = sum(self._sizes.segments(each, segment_bytes) for each in self._left)
        self.wire_bytes = round(sum(self._sizes.between(each.begin, each.end) for each in self._left))

    @property
    def begin(self) -> Position | None:
        """Where the next segment begins, ``None``: no more."""
        return self._left[0].begin if self._left else None

    def next(self) -> PlannedSegment | None:
        if not self._left:
            return None
        wanted = self._left[0]
        cut = self._sizes.cut(wanted, self._segment_bytes)
        if cut.end == wanted.end:
            del self._left[0]
        else:
            self._left[0] = HistoryRange(_after(cut.end, self._ledgers), wanted.end)
        return PlannedSegment.of(Layout.V2, cut.begin, cut.end, self._ledgers)

    def uploaded(self, summary: SegmentSummary) -> None:
        if not self._left:
            return
        # Only a ledger still to be cut benefits from the measurement.
        spans = [span for span in summary.ledgers if span.ledger_id >= self._left[0].begin.ledger_id]
        for span in spans:
            self._measured.setdefault(span.ledger_id, []).append(span)
            self._measured[span.ledger_id].sort(key=lambda each: each.first_entry_id)
        if spans:
            self._sizes = LedgerSizeEstimator(self._ledgers, self._measured)


@dataclass(slots=True)
class FixedPlan:
    """Predetermined, independent segments."""

    segments: list[PlannedSegment]
    goes_on_after_failure: bool = True
    _next: int = field(default=0, init=False)

    def next(self) -> PlannedSegment | None:
        if self._next == len(self.segments):
            return None
        self._next += 1
        return self.segments[self._next - 1]

    def uploaded(self, summary: SegmentSummary) -> None:
        """No effect: the segments are independent."""


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
    ranges = without_gaps(uncovered(state, ledgers, last=last, given_up=given_up), gaps, ledgers)
    return BackfillPlan(ranges, ledgers, segment_bytes_max(settings))


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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.plan.segments or self.gaps or self.ends)


def start_of_history(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    settings: OffloadSettings,
    *,
    last: Position | None = None,
    given_up: Collection[UUID] = (),
    seen: Mapping[int, int | None] | None = None,
) -> HistoryStart:
    """The plan up to ``last``, or up to the first gap that may not be recorded; arguments as for ``find_holes``.

    Raises:
        Corrupt: the source lists entries where there are none.
    """
    holes = find_holes(state, ledgers, last=last, given_up=given_up, seen=seen)
    gaps, blocked = allowed_gaps(holes.gaps, settings.on_gap)
    if blocked is not None:
        before = blocked.first.previous()
        last = before if last is None else min(last, before)
    plan = plan_of_history(state, ledgers, settings, last=last, given_up=given_up, gaps=gaps)
    # Ends after the newest range are recorded together with the next range.
    newest = state.newest_end
    ends = [each for each in holes.ends if newest is not None and each.ledger_id < newest.ledger_id]
    return HistoryStart(plan, gaps, ends, blocked)


def interrupted(log: ManifestLog, given_up: Collection[Failed]) -> list[Failed]:
    """Segments that an earlier run of this epoch left assigned."""
    said = {edit.uuid for edit in given_up}
    own = (each.uuid for each in log.state.assigned() if each.epoch == log.epoch and each.uuid not in said)
    return [Failed(uuid, "interrupted") for uuid in own]


def _after(end: Position, ledgers: Sequence[LedgerInfo]) -> Position:
    """The next existing entry after ``end``, which isn't the last."""
    info = next(info for info in ledgers if info.ledger_id == end.ledger_id)
    if end.entry_id < info.last_entry_id:
        return end.next()
    following = next(info for info in ledgers if info.ledger_id > end.ledger_id and info.entries)
    return Position(following.ledger_id, 0)


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

    def new_run(
        self,
        source: LedgerSource,
        log: ManifestLog,
        plan: HistoryPlan,
        *,
        commits: Commits,
        first_edits: Sequence[Edit] = (),
        segments_max: int,
        attempts_max: int,
        acknowledges: bool = True,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
        on_first_record: Callable[[], None] = lambda: None,
    ) -> BackfillJob:
        """Create a run, not started; see ``BackfillJob``."""

        budget = self.budget
        parts_max = 1 if budget is None else parts_at_once(self.settings, segments_max, budget.limit_bytes)

        def upload(uuid: UUID, planned: PlannedSegment, is_stopped: Callable[[], bool]) -> SegmentSummary:
            whose = log.stream, log.state.incarnation, log.epoch or 0
            order = SegmentJob(*whose, uuid, planned, parts_max, log.testimony())
            return self.upload(source, order, is_stopped)

        memory = None if budget is None else HistoryMemory(budget, segment_memory_bytes(self.settings, parts_max))
        return BackfillJob(
            source,
            log,
            plan,
            upload=upload,
            driver=self.driver,
            settings=self.settings,
            workers=self.workers,
            uploaders=self.uploaders,
            memory=memory,
            clock=self.clock,
            entropy=self.entropy,
            commits=commits,
            first_edits=with_facts(first_edits, source),
            segments_max=segments_max,
            attempts_max=attempts_max,
            acknowledges=acknowledges,
            on_progress=on_progress,
            on_first_record=on_first_record,
        )


class OwnedStream:
    """A stream whose epoch this process opened, for successive runs over its history.

    Args:
        take_over: take the stream from an active owner.
        acknowledges: acknowledge offloaded entries to the source; a view can't take that.

    Raises:
        Fenced: an active owner has the stream, and ``take_over`` is off.
    """

    def __init__(
        self, tools: HistoryTools, source: LedgerSource, log: ManifestLog, *, take_over: bool, acknowledges: bool
    ) -> None:
        self.log = log
        self._tools = tools
        self._source = source
        self._acknowledges = acknowledges
        self._commits = Commits(log, source, tools.driver, tools.clock)
        ownership = Ownership(log, source, tools.settings, tools.clock, take_over=take_over, acknowledges=acknowledges)
        ownership.take(self._commits)
        self.given_up = ownership.given_up

    def run(
        self,
        plan: HistoryPlan,
        *,
        gaps: Sequence[Gap] = (),
        ends: Sequence[LedgerClosed] = (),
        segments_max: int,
        attempts_max: int,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> BackfillJob:
        """Create a run, not started. ``gaps`` and ``ends`` are part of its first record."""
        given_up, self.given_up = self.given_up, []
        for gap in gaps:
            require_recording(self.log.stream, gap, self._tools.settings.on_gap)
        return self._tools.new_run(
            self._source,
            self.log,
            plan,
            commits=self._commits,
            first_edits=[*given_up, *ends, *gaps],
            segments_max=segments_max,
            attempts_max=attempts_max,
            acknowledges=self._acknowledges,
            on_progress=on_progress,
        )
