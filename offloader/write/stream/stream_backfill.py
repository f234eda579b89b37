"""What a stream brings into the cold tier before a live segment begins: everything older.

Owns when that is a run of its own, with several segments on their way at once, and its gaps. Must never let a live
segment begin while something before it is missing, nor commit while a run is under way: the run does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.manifest import Failed, Gap, SetMethod
from formats.segment import SegmentSummary
from offloader.errors import StoreUnavailable
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import StreamPaused
from offloader.write.history.backfill import ATTEMPTS_MAX, HistoryStart, HistoryTools, interrupted, start_of_history
from offloader.write.history.history import HistoryOffload
from offloader.write.history.planned import HistoryResult
from offloader.write.hot.gaps import blocked_at, require_recording
from offloader.write.segment.assignment import segment_bytes_max
from offloader.write.segment.commits import Commits
from offloader.write.stream.progress import lag_between

__all__ = ["BEHIND_SEGMENTS_MIN", "StreamBackfill"]

#: A stream that is behind by so many segments gets a run; less is read by the stream itself, one after another.
BEHIND_SEGMENTS_MIN = 3


class StreamBackfill:
    """Used by a stream's steps, one at a time; only ``stop`` may be called by others.

    Args:
        source: the hot tier.
        log: the stream's manifest.
        tools: of the process.
        commits: of the same log, shared with the steps.
        seen: see ``find_holes``: since the stream was started.
        schedule: makes a step when a run ended.
        on_progress: called with each segment that is in the manifest.
        on_gap: called with each gap that is in the manifest.

    Attributes:
        due: whether older entries may be missing; set after a start, a takeover, a failure.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        tools: HistoryTools,
        commits: Commits,
        *,
        seen: Callable[[], Mapping[int, int | None]],
        schedule: Callable[[], None],
        on_progress: Callable[[SegmentSummary], None],
        on_gap: Callable[[Gap], None],
    ) -> None:
        self._source, self._log, self._tools, self._commits = source, log, tools, commits
        self._seen, self._schedule, self._on_progress, self._on_gap = seen, schedule, on_progress, on_gap
        self.due = True
        self._lock = threading.Lock()
        self._run: HistoryOffload | None = None
        self._outcome: Future[HistoryResult] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a run is under way, whose end makes a step."""
        outcome = self._outcome
        return outcome is not None and not outcome.done()

    def look_again(self) -> None:
        """Something happened after which older entries may be missing, or many may wait."""
        self.due = True

    def is_far_behind(self, offered: Position | None) -> bool:
        """Whether so much of the hot tier lies after ``offered`` that it is worth a run; asks the source."""
        lag = lag_between(offered, self._source.ledgers())
        return self._is_much(lag.payload_bytes + ENTRY_HEADER_BYTES * lag.entries)

    def _is_much(self, wire_bytes: int) -> bool:
        return wire_bytes >= BEHIND_SEGMENTS_MIN * segment_bytes_max(self._tools.settings)

    def stop(self) -> None:
        """A run that is under way ends soon; what it didn't finish is the next one's."""
        with self._lock:
            run = self._run
        if run is not None:
            run.stop()

    def is_done(self, given_up: list[Failed]) -> bool:
        """Whether everything older is in the cold tier or recorded as a gap; else a run begins.

        Args:
            given_up: what the next record has to say of failed segments; changed to what is left of it.

        Raises:
            Corrupt: a gap, and the policy is to block; or the source doesn't give what it lists.
            Fenced, StoreUnavailable and what else a run ends with.
        """
        self._end_run()
        if not self.due:
            return True
        start = self._look(given_up)
        if self._is_worth_a_run(start):
            for gap in start.gaps:
                require_recording(self._log.stream, gap, self._tools.settings.on_gap)
            self._begin_run(start, given_up)
            return False
        if start.blocked is not None:
            raise blocked_at(self._log.stream, start.blocked)
        self.due = False
        return True

    def _look(self, given_up: list[Failed]) -> HistoryStart:
        state = self._log.state
        if state.method != "streaming":
            self._commits.commit([SetMethod("streaming")], lambda _: None)
        given_up += interrupted(self._log, given_up)
        abandoned = {edit.uuid for edit in given_up}
        state, settings = self._log.state, self._tools.settings
        return start_of_history(state, self._source.ledgers(), settings, given_up=abandoned, seen=self._seen())

    def _is_worth_a_run(self, start: HistoryStart) -> bool:
        if start.gaps or start.ends or (start.blocked is not None and start.plan.segments):
            return True
        newest = self._log.state.newest_end
        if newest is not None and start.plan.begin is not None and start.plan.begin <= newest:
            return True  # a live segment follows the newest promise, so what is missing before it can't be one
        return self._is_much(start.plan.wire_bytes)

    def _begin_run(self, start: HistoryStart, given_up: list[Failed]) -> None:
        run = self._tools.new_run(
            self._source,
            self._log,
            start.plan,
            commits=self._commits,
            first_edits=[*given_up, *start.ends, *start.gaps],
            segments_max=self._tools.settings.backfill_segments_in_flight_max,
            attempts_max=ATTEMPTS_MAX,
            on_progress=self._on_progress,
            on_first_record=lambda: self._recorded(given_up, start.gaps),
        )
        with self._lock:
            self._run = run
        self._outcome = outcome = run.start()
        outcome.add_done_callback(lambda _: self._schedule())

    def _recorded(self, given_up: list[Failed], gaps: Sequence[Gap]) -> None:
        given_up.clear()
        for gap in gaps:
            self._on_gap(gap)

    def _end_run(self) -> None:
        """Takes note of how the last run ended; raises why it couldn't go on."""
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        with self._lock:
            self._run = None
        for error in outcome.result().errors:
            if isinstance(error, StreamPaused):
                raise error
            # The store's fault or the source's: what stays missing is seen, and named, when the stream looks again.
            raise StoreUnavailable(f"stream {self._log.stream}: its history can't be offloaded: {error}") from error
