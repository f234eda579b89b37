"""One round of deletion: of a stream, and of all streams of a store.

Owns what comes before what. Must never let one stream's failure keep the others from their turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from formats.deletion_record import DeletionRecord
from offloader.cleanup.audit import expire_audit, read_batches, retry_at_ms
from offloader.cleanup.plan import Action, CleanupPlan, plan_cleanup, retired_groups
from offloader.cleanup.removal import remove_stream
from offloader.cleanup.retirement import forget_readers, retired_facts
from offloader.cleanup.sweeper import Sweeper, Swept
from offloader.clock import Clock
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.limits import Priority, working_at
from offloader.manifest.catalog import forget_name, list_streams
from offloader.manifest.global_hold import DeletionStopped, require_no_global_hold
from offloader.manifest.leases import user_at_host
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused
from offloader.manifest.store_time import DeletionClock
from offloader.manifest.topics import release_topics_of
from offloader.settings import Settings
from offloader.store.base import ObjectStore

__all__ = ["CleanupReport", "LargeDelete", "cleanup_all", "cleanup_stream"]

#: Times a round plans anew because the manifest changed before its plan was carried out.
PLANS_MAX = 5
_MS_PER_HOUR = 3_600_000


class LargeDelete(InvalidCall):
    """More than half of a stream would be deleted, and nobody said that this is meant."""


@dataclass(slots=True, kw_only=True)
class CleanupReport:
    """What one round did with one stream, or in a dry run would do.

    Attributes:
        plan: what was to be done; ``None``: it couldn't be made.
        swept: what was done.
        pending: batches that are recorded as purged, or were on the way to it, and whose objects aren't all gone.
        held: the stream is on hold: nothing was done.
        is_deleted: the stream itself is being deleted; ``is_finished``: nothing of it is left.
        expired: batches of the audit that were forgotten.
        error: why the round ended early.
    """

    stream: str
    dry_run: bool
    plan: CleanupPlan | None = None
    swept: Swept = field(default_factory=Swept)
    pending: Sequence[DeletionRecord] = ()
    held: bool = False
    is_deleted: bool = False
    is_finished: bool = False
    expired: int = 0
    error: OffloaderError | None = None


def cleanup_stream(
    store: ObjectStore,
    stream: str,
    *,
    clock: Clock,
    settings: Settings | None = None,
    deletion_clock: DeletionClock | None = None,
    by: str = "",
    allow_large: bool = False,
    dry_run: bool = False,
    on_plan: Callable[[CleanupPlan], object] = lambda _: None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> CleanupReport:
    """One round for one stream: goes on with what is under way, purges what is due, retires what nobody needs.

    Safe to interrupt and to repeat: each step is recorded before the next.

    Args:
        deletion_clock: kept by who calls this again and again, so that a clock that jumps is noticed.
        by: who runs this, for the audit; default: user and machine.
        allow_large: retire more than half of the stream if it comes to that.
        dry_run: only plan; writes nothing.
        on_plan: gets the plan before anything of it is done; another one when the manifest changed meanwhile, by
            another round or an undo, so that the first one doesn't fit any more.

    Raises:
        NotFound: no such stream.
        DeletionStopped: all deletion in the store is stopped.
        ClockSkew: the clocks can't be trusted; nothing was deleted.
        LargeDelete: more than half of the stream would be retired; what was due is purged nevertheless.
        EditRefused, StoreUnavailable, OutcomeUnknown: it ended early; the next round goes on.
    """
    report = CleanupReport(stream=stream, dry_run=dry_run)
    with working_at(Priority.DELETION):
        _clean(
            *(report, store, clock, settings or Settings()),
            deletion_clock=deletion_clock,
            by=by or user_at_host(),
            allow_large=allow_large,
            on_plan=on_plan,
            entropy=entropy,
        )
        if report.is_finished:
            now_ms = (deletion_clock or _deletion_clock(store, clock, settings or Settings())).now_ms()
            release_topics_of(store, [stream], clock=clock, now_ms=now_ms)
    return report


def cleanup_all(
    store: ObjectStore,
    *,
    clock: Clock,
    settings_of: Callable[[str], Settings] = lambda _: Settings(),
    deletion_clock: DeletionClock | None = None,
    prefix: str = "",
    by: str = "",
    allow_large: bool = False,
    dry_run: bool = False,
    may_delete: Callable[[str], bool] = lambda _: True,
    on_plan: Callable[[CleanupPlan], object] = lambda _: None,
) -> Iterator[CleanupReport]:
    """One round for each stream; a stream that fails has its error in its report.

    Args:
        settings_of: the settings of a stream.
        prefix: only streams whose names begin with it.
        may_delete: whether anything of a stream may be deleted; else its round is a dry run.

    Raises:
        DeletionStopped: all deletion in the store is stopped.
    """
    if not dry_run:
        require_no_global_hold(store)
    kept = deletion_clock
    deleted = []
    streams = list_streams(store, prefix=prefix)
    for stream in streams:
        settings = settings_of(stream)
        kept = kept or _deletion_clock(store, clock, settings)
        report = CleanupReport(stream=stream, dry_run=dry_run or not may_delete(stream))
        try:
            with working_at(Priority.DELETION):
                _clean(
                    *(report, store, clock, settings),
                    deletion_clock=kept,
                    by=by or user_at_host(),
                    allow_large=allow_large,
                    on_plan=on_plan,
                    entropy=os.urandom,
                )
        except DeletionStopped:
            raise
        except OffloaderError as error:
            report.error = error
        deleted += [stream] if report.is_finished else []
        yield report
    if dry_run:
        return
    # Void entries: of names that were deleted, by somebody who didn't come to the end.
    names = set(filter(may_delete, set(list_streams(store, prefix=prefix, released=True)).difference(streams)))
    if not names and not deleted:
        return
    require_no_global_hold(store)
    now_ms = (kept or _deletion_clock(store, clock, settings_of(""))).now_ms()
    for name in sorted(names):
        try:
            forget_name(store, name, clock=clock, now_ms=now_ms)
        except OffloaderError as error:
            yield CleanupReport(stream=name, dry_run=False, is_deleted=True, error=error)
    # After all of them: a topic's last partition tells.
    release_topics_of(store, [*deleted, *names], clock=clock, now_ms=now_ms)


def _deletion_clock(store: ObjectStore, clock: Clock, settings: Settings) -> DeletionClock:
    return DeletionClock(store, clock, skew_ms_max=settings.manifest.clock_skew_seconds_max * 1000)


def _clean(
    report: CleanupReport,
    store: ObjectStore,
    clock: Clock,
    settings: Settings,
    *,
    deletion_clock: DeletionClock | None,
    by: str,
    allow_large: bool,
    on_plan: Callable[[CleanupPlan], object],
    entropy: Callable[[int], bytes],
) -> None:
    times = deletion_clock or _deletion_clock(store, clock, settings)
    if not report.dry_run:
        require_no_global_hold(store)
    log = ManifestLog(store, report.stream, clock=clock, settings=settings.manifest, entropy=entropy)
    for attempt in range(1, PLANS_MAX + 1):
        try:
            _clean_once(
                *(report, log, clock, settings, times),
                by=by,
                allow_large=allow_large,
                on_plan=on_plan,
                entropy=entropy,
            )
        except EditRefused:
            # Somebody else's round was quicker, or an undo: what is left to do is what is seen now.
            if report.is_deleted or attempt == PLANS_MAX:
                raise
        else:
            return


def _clean_once(
    report: CleanupReport,
    log: ManifestLog,
    clock: Clock,
    settings: Settings,
    times: DeletionClock,
    *,
    by: str,
    allow_large: bool,
    on_plan: Callable[[CleanupPlan], object],
    entropy: Callable[[int], bytes],
) -> None:
    """One plan, and what it says done.

    Raises:
        EditRefused: the manifest changed meanwhile, nothing of the rest was done; ``report.swept`` has what was.
    """
    store, dry_run = log.store, report.dry_run
    # Listed first, loaded after: what a batch names and the manifest doesn't is purged.
    batches = list(read_batches(store, report.stream, done=False))
    state = log.load()
    report.is_deleted, report.held, report.pending = state.stream_deleted, state.held, batches
    if state.stream_deleted:
        if not dry_run:
            with suppress(NotFound):
                removal = remove_stream(
                    *(store, report.stream),
                    clock=clock,
                    settings=settings.manifest,
                    deletion_clock=times,
                    despite_readers=True,
                    entropy=entropy,
                )
                report.is_finished = removal.deletion is not None and removal.deletion.is_finished
        return

    def now_ms() -> int:
        return times.now_ms(newest_ms=log.state.time_ms, ask_store=not dry_run)

    grace_ms, now = int(settings.cleanup.grace_hours * _MS_PER_HOUR), now_ms()
    facts = retired_facts(
        store, state, retired_groups(state), now_ms=now, grace_ms=grace_ms, notes=not dry_run and not state.held
    )
    plan = report.plan = plan_cleanup(state, facts, now_ms=now, grace_ms=grace_ms)
    on_plan(plan)
    if dry_run or state.held:
        return
    sweeper = Sweeper(log, now_ms=now_ms, by=by, batches=batches, swept=report.swept, entropy=entropy)
    for batch in batches:
        if retry_at_ms(batch, settings.cleanup) <= now:
            sweeper.resume(batch, void_before_ms=now - int(settings.manifest.orphan_age_hours_min * _MS_PER_HOUR))
    for group in plan.due:
        sweeper.purge(group)
    large = plan.large and not (allow_large or settings.cleanup.allow_large_delete)
    if not large:
        for doomed in plan.doomed:
            (sweeper.retire if doomed.action is Action.RETIRE else sweeper.release)(doomed)
    if batches or sweeper.swept.purged or sweeper.swept.released:
        report.pending = list(read_batches(store, report.stream, done=False))
    report.expired = expire_audit(store, report.stream, settings.cleanup, now_ms=now)
    forget_readers(store, log.state, retired_groups(log.state))
    if large:
        raise _too_large(plan)


def _too_large(plan: CleanupPlan) -> LargeDelete:
    going = sum(each.segments.sums().object_bytes for each in plan.doomed)
    return LargeDelete(
        f"stream {plan.state.stream}: {going:,} of {plan.state.sums.object_bytes:,} bytes would be deleted, more than "
        "half: nothing new was retired",
        hint="look at it with `offloader cleanup plan`, then say --yes, or set cleanup.allow_large_delete",
    )
