"""Backfills and ledger-method runs over a stream's existing entries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from formats.entries import Position
from formats.manifest import Failed, Gap, Pause, Resume, SetMethod
from formats.segment import SegmentSummary
from offloader.errors import Closed, Fenced, NotFound, Unsupported
from offloader.ledgers.base import LedgerInfo, LedgerSource, listed_source
from offloader.manifest.log import ManifestLog, checked
from offloader.manifest.source_identity import closed_edit
from offloader.manifest.state import ManifestState, StreamPaused
from offloader.settings import ManifestSettings
from offloader.store.attempts import recorder_of
from offloader.store.base import ObjectStore
from offloader.write.backfill import (
    BackfillJob,
    BackfillPlan,
    HistoryPlan,
    HistoryResult,
    HistoryTools,
    PlannedSegment,
    interrupted,
    plan_of_history,
    start_of_history,
)
from offloader.write.commit_ack import CommitAck
from offloader.write.epoch import Ownership
from offloader.write.gaps import allowed_gaps, blocked_at, find_gaps
from offloader.write.hot_release import HotRelease
from offloader.write.hot_tier import is_left_out
from offloader.write.ledger_method import OFF, LedgerMethodPlan, ledgers_of_method
from offloader.write.rollback import LedgerRewrite, RewriteResult
from offloader.write.segment_queue import Commits


class BackfillService:
    """Runs over the history of streams. Each call is one run, one at a time for each stream."""

    def __init__(self, store: ObjectStore, tools: HistoryTools, manifest: ManifestSettings | None = None) -> None:
        self._store, self._tools, self._manifest = store, tools, manifest
        self._lock = threading.Lock()
        self._under_way: list[BackfillJob] = []
        self._stopped = False

    def backfill(
        self,
        source: LedgerSource,
        stream: str,
        *,
        last: Position | None = None,
        take_over: bool = True,
        acknowledges: bool = True,
        on_plan: Callable[[BackfillPlan], None] = lambda _: None,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> HistoryResult:
        """Offload all unoffloaded entries up to ``last`` (default: the newest entry now) as V2 segments.

        Safe to interrupt: committed segments stay, the next run continues with the rest.

        Args:
            source: the hot tier; a view opened with ``may_delete`` suffices.
            take_over: take the stream from an active owner.
            acknowledges: acknowledge offloaded entries to the source; a view can't take that.
            on_plan: called with the plan before its execution.
            on_progress: called with each segment that became readable, on a worker.

        Returns:
            The result; ``errors`` holds why a segment couldn't be offloaded, or the gap that ``on_gap`` blocks at:
            then none after it was begun.

        Raises:
            StreamPaused: the stream is paused; in ``errors`` when it was paused meanwhile.
            Fenced: an active owner has the stream, or another writer took it meanwhile.
            Corrupt: the source doesn't return entries it lists.
            StoreUnavailable, OutcomeUnknown: the manifest can't be read or takes no commit.
        """
        log = self._log(stream)
        source, settings = checked(source, log), self._tools.settings
        state = log.load(create=True)
        ledgers = [info for info in source.ledgers() if info.entries]
        if ledgers:
            newest = Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id)
            last = newest if last is None else min(last, newest)
        start = start_of_history(state, ledgers, settings, last=last, given_up=_promised(state))
        on_plan(start.plan)
        result = HistoryResult(committed=state.committed_end())
        if start.plan.segments or start.gaps or start.ends:
            _require_not_paused(state)
            commits, failed = self._own(source, log, take_over=take_over, acknowledges=acknowledges)
            again = True
            while again:
                failed += interrupted(log, failed)
                given_up = {edit.uuid for edit in failed}
                start = start_of_history(log.state, source.ledgers(), settings, last=last, given_up=given_up)
                run = BackfillJob(
                    *(self._tools, source, log, start.plan),
                    commits=commits,
                    first_edits=[*failed, *start.ends, *start.gaps],
                    acknowledges=acknowledges,
                    on_progress=on_progress,
                )
                done = self._finished(stream, run)
                result.add(done)
                failed = []
                # Entries lost by the hot tier meanwhile are a gap, which doesn't affect earlier ones.
                again = bool(done.trimmed) and not done.errors
        if start.blocked is not None:
            result.errors.append(blocked_at(stream, start.blocked))
        return result

    def ledgers(
        self,
        source: LedgerSource,
        stream: str,
        *,
        last: Position | None = None,
        threshold_bytes: int = 0,
        threshold_seconds: int = OFF,
        take_over: bool = True,
        acknowledges: bool = True,
        on_plan: Callable[[LedgerMethodPlan], None] = lambda _: None,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> HistoryResult:
        """Run the ledger method once: each due ledger, the oldest first, an object pair each.

        Args:
            last: only ledgers that end there or before.
            threshold_bytes, threshold_seconds: see ``due_ledgers``; the defaults mean every closed ledger.
            others: as for ``backfill``.

        Returns:
            The result; ``errors`` holds why ledgers couldn't be offloaded: the others were all tried.

        Raises: as ``backfill``.
        """
        log = self._log(stream)
        source = checked(source, log)
        state = log.load(create=True)
        ledgers = source.ledgers()

        def look(given_up: Collection[UUID], *, show: bool) -> tuple[LedgerMethodPlan, list[Gap], Gap | None]:
            plan = ledgers_of_method(
                *(log.state, ledgers),
                now_ms=self._tools.clock.now_ms(),
                threshold_bytes=threshold_bytes,
                threshold_seconds=threshold_seconds,
                given_up=given_up,
                last=last,
            )
            if show:
                on_plan(plan)
            lost = find_gaps(log.state, ledgers, last=last, given_up=given_up).gaps
            return plan, *allowed_gaps(lost, self._tools.settings.on_gap)

        plan, gaps, blocked = look(_promised(state), show=True)
        result = HistoryResult(committed=state.committed_end())
        if plan.segments or gaps:
            _require_not_paused(state)
            commits, failed = self._own(source, log, take_over=take_over, acknowledges=acknowledges)
            if log.state.method != "ledger":
                log.commit([SetMethod("ledger")])
            plan, gaps, blocked = look({edit.uuid for edit in failed}, show=False)
            run = BackfillJob(
                *(self._tools, source, log, HistoryPlan(plan.segments)),
                commits=commits,
                first_edits=[*failed, *gaps],
                acknowledges=acknowledges,
                on_progress=on_progress,
            )
            result = self._finished(stream, run)
        result.errors += [
            Unsupported(
                f"stream {stream}: ledger {info.ledger_id} has a gap, which the ledger method can't express",
                hint="offload it with the streaming method",
            )
            for info in plan.refused
        ]
        if blocked is not None:
            result.errors.append(blocked_at(stream, blocked))
        return result

    def switch(self, stream: str, method: str) -> bool:
        """Record the stream's offload method; False: unchanged.

        A running offloader isn't affected: the method applies from the next start.

        Args:
            method: ``streaming``, ``ledger`` or ``none``.
        """
        log = self._log(stream)
        if log.load(create=True).method == method:
            return False
        log.commit_as_maintainer([SetMethod(method)])
        return True

    def pause(self, stream: str, reason: str = "") -> bool:
        """Record that the stream is paused: no segment is assigned until ``resume``; False: already paused.

        Assigned segments complete, and committed ones stay readable. Entries stay in the hot tier. An offloader in
        another process notices with its next record.

        Args:
            reason: for display, kept in the record.

        Raises:
            NotFound: no such stream; Fenced: it was deleted.
        """
        return self._record_paused(stream, Pause(reason))

    def resume(self, stream: str) -> bool:
        """Record that the stream continues where it stopped; False: it wasn't paused. Raises as ``pause``."""
        return self._record_paused(stream, Resume())

    def _record_paused(self, stream: str, edit: Pause | Resume) -> bool:
        log = self._log(stream)
        state = log.load()
        if not state.record_id:
            raise NotFound(f"nothing of stream {stream} is in {self._store.url} yet", hint="let its writer begin first")
        if state.paused is isinstance(edit, Pause):
            return False
        log.commit_as_maintainer([edit])
        return True

    def note_ends(self, source: LedgerSource, stream: str) -> list[int]:
        """Record and return the committed ledgers that the source has closed since; takes no ownership.

        A ledger offloaded while open is known to be complete only then.
        """
        log = self._log(stream)
        source = checked(source, log)
        state = log.load()
        end, known = state.committed_end(), state.closed_ledgers
        facts = [
            closed_edit(info, source)
            for info in source.ledgers()
            if info.closed and end is not None and Position(info.ledger_id, info.last_entry_id) <= end
            if info.ledger_id not in known and not is_left_out(state, info)
        ]
        if facts:
            log.commit_as_maintainer(facts)
        return [fact.ledger_id for fact in facts]

    def rollback(
        self,
        stream: str,
        *,
        delete: Sequence[int] = (),
        take_over: bool = True,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> RewriteResult:
        """Make a stream's ledgers readable to a reader older than the streaming method, out of the cold tier alone.

        Each complete ledger becomes a V1 object; its segments are retired. The method ``streaming`` becomes ``ledger``.
        Safe to interrupt: the next call continues with the remaining ledgers.

        Args:
            delete: ledgers to be deleted from the stream instead.
            others: as for ``backfill``.

        Raises:
            InvalidCall: the settings compress, or a ledger of ``delete`` doesn't need rewriting.
            Fenced: an active owner has the stream, or another writer took it meanwhile.
            EditRefused: the stream is on hold.
            StoreUnavailable, OutcomeUnknown: the store is unreachable; call again.
        """
        return LedgerRewrite(
            self._log(stream),
            self._tools,
            delete=delete,
            take_over=take_over,
            is_stopped=lambda: self._stopped,
            on_progress=on_progress,
        ).run()

    def stop(self) -> None:
        """End runs early, leaving the rest to the next one, and refuse new ones."""
        with self._lock:
            self._stopped = True
            under_way = list(self._under_way)
        for run in under_way:
            run.stop()

    def release(self, source: LedgerSource, stream: str) -> HotRelease | CommitAck:
        """Create what releases a stream's hot copies; not started.

        To a broker that decides about its own copies, each commit is acknowledged.
        """
        listed = listed_source(source)
        if listed is None or not listed.acknowledges_commits:
            return self.hot_release(source, stream)
        return CommitAck(
            *(source, listed, self._log(stream)),
            with_gaps=self._tools.settings.release_with_gaps,
            workers=self._tools.workers,
        )

    def hot_release(self, source: LedgerSource, stream: str) -> HotRelease:
        """Create the deleter of a stream's hot copies after ``deletion_lag_minutes``; not started."""
        return HotRelease(
            source,
            self._log(stream),
            lag_minutes=self._tools.settings.deletion_lag_minutes,
            with_gaps=self._tools.settings.release_with_gaps,
            workers=self._tools.workers,
            clock=self._tools.clock,
        )

    def preview(
        self,
        state: ManifestState,
        ledgers: Sequence[LedgerInfo],
        *,
        method: str,
        last: Position | None,
        threshold_bytes: int,
    ) -> list[PlannedSegment]:
        """What a run of a method would do now, without any request. Sizes inside ledgers are estimated, so a backfill
        may cut elsewhere.

        Args:
            method: ``streaming`` or ``ledger``.
            last, threshold_bytes: as for ``ledgers``.
        """
        given_up, now_ms = _promised(state), self._tools.clock.now_ms()
        if method == "ledger":
            return ledgers_of_method(
                state, ledgers, now_ms=now_ms, threshold_bytes=threshold_bytes, given_up=given_up, last=last
            ).segments
        history = plan_of_history(state, ledgers, self._tools.settings, last=last, given_up=given_up)
        return list(iter(history.next, None))

    def _own(
        self, source: LedgerSource, log: ManifestLog, *, take_over: bool, acknowledges: bool
    ) -> tuple[Commits, list[Failed]]:
        """Open an epoch; returns its commits, and the failures for its first record."""
        commits = Commits(log, source, self._tools.driver, self._tools.clock)
        owners = Ownership(
            *(log, source, self._tools.settings, self._tools.clock), take_over=take_over, acknowledges=acknowledges
        )
        owners.take(commits)
        return commits, owners.given_up

    def _finished(self, stream: str, run: BackfillJob) -> HistoryResult:
        with self._lock:
            if self._stopped:
                raise Closed("the offloader was closed")
            self._under_way.append(run)
        try:
            return self._tools.workers.result_of(run.start())
        except Fenced:
            recorder_of(self._store).add("fenced_total", stream=stream)
            raise
        finally:
            run.stop()
            with self._lock:
                self._under_way.remove(run)

    def owners_log(self, stream: str) -> ManifestLog:
        """The manifest of a stream offloaded while it is written: no commit waits for a checkpoint."""
        return self._log(stream, checkpoint_aside=self._tools.workers.submit)

    def _log(
        self, stream: str, checkpoint_aside: Callable[[Callable[[], object]], object] | None = None
    ) -> ManifestLog:
        return ManifestLog(
            self._store,
            stream,
            clock=self._tools.clock,
            entropy=self._tools.entropy,
            settings=self._manifest,
            writer_url=self._tools.writer_url,
            checkpoint_aside=checkpoint_aside,
        )


def _promised(state: ManifestState) -> set[UUID]:
    """Segments that no other writer may finish once the epoch is ours."""
    return {segment.uuid for segment in state.assigned()}


def _require_not_paused(state: ManifestState) -> None:
    if state.paused:
        raise StreamPaused(state.stream)
