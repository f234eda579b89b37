"""Periodic retention, cleanup and orphan search of a store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from offloader.errors import InvalidCallError, NotFoundError, OffloaderError
from offloader.gc.delete_stream import StreamRemoval, removal_of, remove_stream
from offloader.gc.orphans import Garbage, Outcome
from offloader.gc.plan import AwaitedApproval, CleanupPlan
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import CleanupReport, LargeDeleteError, cleanup_all, cleanup_stream
from offloader.manifest.catalog import list_streams, read_entry, release_layout, release_topics_of, segment_streams
from offloader.manifest.maintenance import expire_history
from offloader.manifest.protection import DeletionClock, require_no_global_hold, time_for_deletion_ms
from offloader.manifest.topic_layouts import read_layout
from offloader.read.message_counts import messages_from
from offloader.retention.cycle import MANY, HotStreams, RetentionCycle, RetentionService, phase, until_next_s
from offloader.retention.scope import SourceOf, find_scope, home_of, no_source, record_partitions
from offloader.retention.state import past_moves, read_decisions
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.stream_names import is_place
from offloader.telemetry.recorder import NO_TELEMETRY, Reading, Recorder

_log = logging.getLogger("offloader.maintenance")

CLEANUP = "cleanup"
ORPHANS = "orphans"
#: Maximum threads of ``Maintenance.start``: one each for retention, cleanup and orphan search. A search may take
#: minutes, during which cleanup keeps its schedule.
JOBS_AT_ONCE_MAX = 3
#: Maximum delay of the first run, which starts early so that short-lived processes run it too.
FIRST_S_MAX = 3600.0
_KEPT = ": nothing was deleted because cleanup.delete is false"


@dataclass(frozen=True, slots=True)
class JobRun:
    """Newest run of cleanup or of the orphan search: its end, and the error that ended it early."""

    at_ms: int
    error: OffloaderError | None


@dataclass(slots=True)
class _Job:
    """A periodic job, due at ``due_s`` by the monotonic clock; 0 as the period: never. One run at a time."""

    name: str
    period_s: float
    run: Callable[[], None]
    due_s: float
    running: threading.Lock = field(default_factory=threading.Lock)
    runs: int = 0
    #: Consecutive failed runs.
    failures: int = 0
    latest: JobRun | None = None
    succeeded_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Remaining orphans of a search: count, bytes, and the write time of the oldest."""

    objects: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None

    def plus(self, each: Garbage) -> Left:
        oldest_ms = each.modified_ms if self.oldest_ms is None else min(self.oldest_ms, each.modified_ms)
        return Left(self.objects + each.objects, self.size_bytes + each.size_bytes, oldest_ms)


def awaited_approval(store: ObjectStore, plan: CleanupPlan) -> AwaitedApproval | None:
    """The approval that a cleanup plan needs, with the time from the stored retention decisions; ``None``: none.

    Raises:
        CorruptError, UnsupportedError, StoreUnavailableError: the decisions can't be read.
    """
    if not plan.large:
        return None
    home, number = home_of(store, plan.state.stream)
    retention = open_retention(store, home)
    return plan.awaited_approval(past_moves(read_decisions(retention, retention.scope()), number))


def plan_changed(name: str) -> InvalidCallError:
    """The error for the approval of a plan that isn't the current one of a stream or topic."""
    return InvalidCallError(
        f"stream {name}: the cleanup plan has changed since you read it",
        hint="read the new plan, then approve it",
    )


class _Pending(NamedTuple):
    """One stream's undeleted objects of purged segments, refused batches, and objects kept by ``cleanup.delete``."""

    objects: int = 0
    refused: int = 0
    deletable_segments: int = 0
    deletable_bytes: int = 0


class Maintenance:
    """Periodic maintenance of a store until it is closed.

    Args:
        store: open for writing.
        clock: for the schedules; deletions use the store's time if it is earlier.
        settings_of: the settings of a stream or topic; those of the name "" set the periods.
        source_of: the hot tier of a stream, for entries that aren't offloaded yet.
        hot_streams: the streams of ``source_of``: policies also apply to those that aren't offloaded.
        by: actor, for the audit; default: user and machine.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        settings_of: Callable[[str], Settings] = lambda _: Settings(),
        source_of: SourceOf = no_source,
        hot_streams: Callable[[], Iterable[str]] = tuple,
        recorder: Recorder = NO_TELEMETRY,
        by: str = "",
    ) -> None:
        settings = settings_of("")
        self._store, self._clock, self._settings_of = store, clock, settings_of
        self._recorder, self._by = recorder, by
        cycle = RetentionCycle(
            store,
            clock=clock,
            settings_of=settings_of,
            source_of=source_of,
            by=by,
            messages_from=messages_from,
        )
        #: Schedules the streams.
        self.retention = RetentionService(
            cycle,
            clock=clock,
            period_s=settings.retention.cycle_interval,
            recorder=recorder,
            hot_streams=HotStreams(store, clock=clock, settings_of=settings_of, names=hot_streams),
        )
        self._times = DeletionClock(store, clock, skew_ms_max=settings.manifest.clock_skew_max * 1000)
        self._jobs = [
            _Job(name, period_s, run, due_s=clock.monotonic_s() + min(period_s, FIRST_S_MAX) * phase(self._seed(name)))
            for name, period_s, run in (
                (CLEANUP, settings.cleanup.cycle_interval, self._clean),
                (ORPHANS, settings.cleanup.orphans_interval, self._find_orphans),
            )
        ]
        # Guards the start flags and the values of the gauges.
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._awaited: dict[str, AwaitedApproval] = {}
        #: Remaining orphans of the newest search, by owner: ``ours`` and ``foreign``; empty before the first search.
        self.leftovers: Mapping[str, Left] = {}
        self._started = self._closed = False
        self._unwatch = recorder.watch(self._readings)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Starts all periodic jobs, each with a separate schedule. A second call has no effect.

        Args:
            call_after: runs a call after a number of seconds, on another thread; at most ``JOBS_AT_ONCE_MAX`` calls run
            concurrently. A run may take long: don't queue time-critical work behind it.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True
        self.retention.start(call_after)

        def turn(job: _Job) -> None:
            wait_s = self._run_due(job)
            if not self._closed:
                call_after(wait_s, partial(turn, job))

        for job in self._jobs:
            if job.period_s:
                call_after(0.0, partial(turn, job))

    def close(self) -> None:
        """Prevents further runs and waits for the current steps. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        self.retention.close()
        for job in self._jobs:
            with job.running:
                pass
        if not closed:
            self._unwatch()

    @property
    def latest(self) -> Mapping[str, JobRun]:
        """The newest run of each job that has run at least once."""
        return {job.name: job.latest for job in self._jobs if job.latest is not None}

    @property
    def awaited_approvals(self) -> list[AwaitedApproval]:
        """The approvals that the newest round needed and didn't have, by stream."""
        with self._lock:
            return sorted(self._awaited.values(), key=lambda each: each.stream)

    def clean_approved(self, stream: str, *, plan: str, by: str) -> CleanupReport:
        """Run one round for one stream, which may retire more than half of it.

        Args:
            plan: the identity of the plan that ``by`` approved.

        Raises:
            InvalidCallError: the plan has changed since, or ``cleanup.delete`` is off; nothing was retired.
            As ``cleanup_stream``.
        """
        if not self._may_delete(stream):
            raise InvalidCallError(
                f"stream {stream}: nothing is deleted because cleanup.delete is false", hint="set cleanup.delete = true"
            )

        def require_approved(found: CleanupPlan) -> None:
            if found.identity != plan:
                raise plan_changed(stream)

        report = cleanup_stream(
            self._store,
            stream,
            clock=self._clock,
            settings=self._settings_of(stream),
            deletion_clock=self._times,
            by=by,
            allow_large=True,
            on_plan=require_approved,
        )
        self._tell(report)
        return report

    def _run_due(self, job: _Job) -> float:
        with job.running:
            if job.due_s <= self._clock.monotonic_s() and not self._closed:
                self._run(job)
            return max(job.due_s - self._clock.monotonic_s(), 0.0)

    def _run(self, job: _Job) -> None:
        error: OffloaderError | None = None
        failed, has_begun = True, False
        try:
            with working_at(Priority.DELETION):
                require_no_global_hold(self._store)
                has_begun = True
                job.run()
            failed = False
        except OffloaderError as found:
            error = found
            if has_begun or job.latest is None or job.latest.error is None:
                self._warn(job.name, "", found)
        except Exception:
            # An error in one stream must not stop maintenance.
            _log.exception("a run of %s failed; it is retried", job.name)
        job.runs += 1
        # A failure before the start costs one request: retry often, so that the job runs soon after an outage.
        job.failures = job.failures + has_begun if failed else 0
        in_a_row = job.failures if has_begun else 1
        job.latest = JobRun(self._clock.now_ms(), error)
        if not failed:
            job.succeeded_ms = job.latest.at_ms
        job.due_s = self._clock.monotonic_s() + until_next_s(
            job.period_s,
            self._seed(f"{job.name} {job.runs}"),
            failed=failed,
            in_a_row=in_a_row if error is not None and error.retryable else MANY,
        )

    def _may_delete(self, stream: str) -> bool:
        """Whether cleanup may delete; the name "" stands for objects of no stream."""
        return self._settings_of(stream).cleanup.delete

    def _seed(self, text: str) -> str:
        return f"{self._store.url} {text}"  # jobs of two stores run at different times

    def _clean(self) -> None:
        seen: set[str] = set()
        reports = cleanup_all(
            self._store,
            clock=self._clock,
            settings_of=self._settings_of,
            deletion_clock=self._times,
            by=self._by,
            may_delete=self._may_delete,
        )
        for report in reports:
            self._tell(report)
            seen.add(report.stream)
            would_go = report.plan if report.dry_run and not report.held else None
            pending = _Pending(
                sum(len(segment.keys) for batch in report.pending for segment in batch.segments),
                sum(batch.attempts > 0 for batch in report.pending),
                *((0, 0) if would_go is None else would_go.size()),
            )
            with self._lock:
                self._pending[report.stream] = pending
            if self._closed:
                return
        with self._lock:
            self._pending = {stream: each for stream, each in self._pending.items() if stream in seen}
            self._awaited = {stream: each for stream, each in self._awaited.items() if stream in seen}
            found = [each for each in self._pending.values() if each.deletable_segments]
        if found:
            text = "cleanup would retire, release or purge %d segments (%d bytes) of %d streams" + _KEPT
            segments, size_bytes = sum(e.deletable_segments for e in found), sum(e.deletable_bytes for e in found)
            _log.info(text, segments, size_bytes, len(found), extra={"event": "cleanup_reported"})

    def _tell(self, report: CleanupReport) -> None:
        add, stream, swept = self._recorder.add, report.stream, report.swept
        self._remember(report)
        result = "failed" if report.error else "held" if report.held else "done"
        add("cleanup_cycles_total", stream=stream, label=result)
        for status, count in (("retired", swept.retired), ("released", swept.released), ("purged", swept.purged)):
            add("cleanup_segments_total", float(count), stream=stream, label=status)
        add("cleanup_deleted_objects_total", float(swept.deleted_objects), stream=stream)
        add("cleanup_deleted_bytes_total", float(swept.deleted_bytes), stream=stream)
        if report.error is not None:
            add("cleanup_refusals_total", stream=stream, label=report.error.label)
            self._warn(CLEANUP, stream, report.error)
        for batch in report.pending:
            if batch.attempts:
                text = "stream %s: objects of batch %s not deleted after %d attempts: %s"
                extra = {"event": "delete_failed", "stream": stream, "attempts": batch.attempts}
                _log.warning(text, stream, batch.name, batch.attempts, batch.problem, extra=extra)
        if swept.purged or swept.retired or swept.released:
            text = "stream %s: %d segments retired, %d released, %d purged; %d objects deleted"
            counts = (swept.retired, swept.released, swept.purged, swept.deleted_objects)
            _log.info(text, stream, *counts, extra={"event": "cleaned", "stream": stream})

    def _remember(self, report: CleanupReport) -> None:
        """Keeps the approval that the stream's round needs, and drops an older one."""
        awaited = None
        if isinstance(report.error, LargeDeleteError) and report.plan is not None:
            try:
                awaited = awaited_approval(self._store, report.plan)
            except OffloaderError:  # without the time
                awaited = report.plan.awaited_approval(())
        with self._lock:
            self._awaited.pop(report.stream, None)
            if awaited is not None:
                self._awaited[report.stream] = awaited

    def _find_orphans(self) -> None:
        failures: list[OffloaderError] = []

        def fail(stream: str, error: OffloaderError) -> None:
            failures.append(error)
            self._warn(ORPHANS, stream, error)

        left, deletable = {"ours": Left(), "foreign": Left()}, Left()
        search = StoreReconciliation(
            self._store,
            clock=self._clock,
            settings_of=lambda name: self._settings_of(name).manifest,
            failed=fail,
            delete=True,
            may_delete=self._may_delete,
        )
        for each in search.leftovers():
            if each.outcome is Outcome.DELETABLE:
                deletable = deletable.plus(each)
            if each.outcome is Outcome.DELETED:
                self._recorder.add("orphan_deleted_objects_total", float(each.objects), stream=each.stream)
                self._recorder.add("orphan_deleted_bytes_total", float(each.size_bytes), stream=each.stream)
            else:
                owner = "ours" if each.reason.is_ours else "foreign"
                left[owner] = left[owner].plus(each)
            if self._closed:
                return
        self.leftovers = left
        if deletable.objects:
            text = "%d orphans (%d bytes) could be deleted" + _KEPT
            _log.info(text, deletable.objects, deletable.size_bytes, extra={"event": "orphans_reported"})
        self._expire_history(fail)
        if failures:
            raise failures[0]

    def _expire_history(self, fail: Callable[[str, OffloaderError], None]) -> None:
        kept = list[int]()
        for stream in list_streams(self._store):
            if self._closed:
                return
            require_no_global_hold(self._store)
            settings = self._settings_of(stream)
            try:
                done = expire_history(
                    self._store,
                    stream,
                    clock=self._clock,
                    settings=settings.manifest,
                    dry_run=not settings.cleanup.delete,
                )
            except NotFoundError:
                continue  # deleted meanwhile
            except OffloaderError as error:
                fail(stream, error)
                continue
            if done is None or not (objects := done.records + done.checkpoints + done.runs):
                continue
            if not settings.cleanup.delete:
                kept.append(objects)
                continue
            text = "stream %s: its manifest now starts at record %d; %d records, %d checkpoints, %d runs deleted"
            counts = (done.first_kept_id, done.records, done.checkpoints, done.runs)
            _log.info(text, stream, *counts, extra={"event": "history_expired", "stream": stream})
        if kept:
            text = "%d objects of %d manifests are older than manifest.history_age_min" + _KEPT
            _log.info(text, sum(kept), len(kept), extra={"event": "history_reported"})

    def _warn(self, job: str, stream: str, error: OffloaderError) -> None:
        where = f" of stream {stream}" if stream else ""
        extra = {"event": f"{job}_failed", "stream": stream, "retryable": error.retryable}
        _log.warning("%s%s: %s", job, where, error, extra=extra)

    def _readings(self) -> Iterator[Reading]:
        with self._lock:
            now = dict(self._pending)
        for stream, pending in now.items():
            yield Reading("cleanup_pending_objects", float(pending.objects), stream)
            yield Reading("cleanup_pending_retries", float(pending.refused), stream)
            yield Reading("cleanup_deletable_bytes", float(pending.deletable_bytes), stream)
        for owner, left in self.leftovers.items():
            yield Reading("orphan_objects", float(left.objects), label=owner)
            yield Reading("orphan_bytes", float(left.size_bytes), label=owner)
            age_ms = 0 if left.oldest_ms is None else max(self._clock.now_ms() - left.oldest_ms, 0)
            yield Reading("orphan_oldest_seconds", age_ms / 1000, label=owner)
        for job in self._jobs:
            if job.succeeded_ms is not None:
                yield Reading("maintenance_last_success_timestamp_seconds", job.succeeded_ms / 1000, label=job.name)


def delete_streams(
    store: ObjectStore,
    name: str,
    *,
    clock: Clock,
    settings: ManifestSettings,
    ignore_leases: bool = False,
    dry_run: bool = False,
) -> list[StreamRemoval]:
    """Delete a stream, or all partitions or segments of a topic and then the records of the topic, as far as safe now.

    Call it again after ``orphan_age_min`` to finish.

    Args:
        ignore_leases: also while a reader holds a lease.
        dry_run: only count; nothing is written.

    Raises:
        as ``removal_of`` and ``remove_stream``.
    """
    streams = [name]
    if read_entry(store, name) is None:
        try:
            streams = [each.stream for each in find_scope(store, name).partitions.values()]
        except NotFoundError:
            # Of a scalable topic the record may be deleted before the streams, and the streams before the record.
            streams = sorted(segment_streams(store, name)) if is_place(name) else []
            if not streams and (not is_place(name) or read_layout(store, name) is None):
                raise
    if dry_run:
        return [removal_of(store, each, now_ms=clock.now_ms()) for each in streams]
    record_partitions(store, streams)
    done = [remove_stream(store, each, clock=clock, settings=settings, ignore_leases=ignore_leases) for each in streams]
    now_ms = time_for_deletion_ms(store, clock, skew_ms_max=settings.clock_skew_max * 1000)
    release_topics_of(store, streams, clock=clock, now_ms=now_ms)
    if is_place(name):
        release_layout(store, name, streams, clock=clock, now_ms=now_ms)
    return done
