"""Execute a cleanup plan: retire, purge, delete, each step recorded before the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from formats.documents import DeletedSegment, DeletionRecord
from formats.entries import Position
from formats.keys import data_key, index_key
from formats.manifest import Edit, Purged, Release, Restore, Retire, Truncate, UndoRetire
from offloader.errors import InvalidCall, NotFound, OffloaderError, StoreUnavailable
from offloader.gc.audit import begin_batch, end_batch, expire_audit, read_batches, retry_at_ms, void_batch
from offloader.gc.delete_stream import remove_stream
from offloader.gc.plan import (
    Action,
    CleanupPlan,
    Deletable,
    Retired,
    forget_readers,
    note_readers,
    plan_cleanup,
    replaced_rule,
    retired_facts,
    retired_groups,
    rule_of,
)
from offloader.manifest.apply import apply_edits
from offloader.manifest.catalog import forget_name, list_streams
from offloader.manifest.deletion_clock import DeletionClock
from offloader.manifest.leases import DeletionStopped, require_no_global_hold, user_at_host
from offloader.manifest.load import kept_records
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import SegmentRecord, SegmentSlice
from offloader.manifest.state import EditRefused, ManifestState, follows
from offloader.manifest.topics import release_topics_of
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at

__all__ = [
    "SEGMENTS_PER_RECORD_MAX",
    "CleanupReport",
    "LargeDelete",
    "Sweeper",
    "Swept",
    "Undone",
    "cleanup_all",
    "cleanup_stream",
    "undo_retirements",
]

#: Segments that one record retires or purges: their objects are one delete request.
SEGMENTS_PER_RECORD_MAX = 500


@dataclass(slots=True)
class Swept:
    """Result of the steps.

    Attributes:
        retired, released, purged: segments.
        deleted_objects, deleted_bytes: of segments whose objects are all deleted.
        failed: batches with undeleted objects; they are retried.
    """

    retired: int = 0
    released: int = 0
    purged: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    failed: list[DeletionRecord] = field(default_factory=list)


class Sweeper:
    """Executes the steps on one stream.

    Args:
        log: of the stream, loaded, for this sweeper's exclusive use.
        now_ms: reads both clocks; raises when they can't be trusted.
        by: the operator or process, for the audit.
        batches: those under way, read before the log was loaded.
        swept: earlier results of the same round.
    """

    def __init__(
        self,
        log: ManifestLog,
        *,
        now_ms: Callable[[], int],
        by: str,
        batches: Sequence[DeletionRecord] = (),
        swept: Swept | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._batches = {_identity(b.action, b.retire_record, b.segments): b for b in batches}
        self._log, self._store = log, log.store
        self._now_ms, self._by, self._entropy = now_ms, by, entropy
        self.swept = Swept() if swept is None else swept

    def retire(self, doomed: Deletable) -> None:
        """Hide segments from readers; they can be restored until they are purged.

        Raises:
            EditRefused: the manifest changed meanwhile; segments retired so far stay retired.
        """
        records = []
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            uuids = tuple(segment.uuid for segment in segments)
            state = self._log.commit_as_maintainer([Retire(uuids)])
            retired = state.segments.get(uuids[0])
            if retired is not None and retired.retire_record is not None:
                records.append(retired.retire_record)
            self.swept.retired += len(uuids)
        note_readers(self._store, self._log.state, records, now_ms=self._now_ms())

    def release(self, doomed: Deletable) -> None:
        """Remove adopted segments that aren't ours from the manifest; their objects stay."""
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            batch = self._begin(Action.RELEASE, doomed.rule, 0, [_entry(segment, ()) for segment in segments])
            self._log.commit_as_maintainer([Release(tuple(segment.uuid for segment in segments))])
            end_batch(self._store, batch, now_ms=batch.planned_ms)
            self.swept.released += len(segments)

    def purge(self, group: Retired) -> None:
        """Record that segments are purged, then delete their objects.

        Raises:
            EditRefused: they are no longer retired by that record: none of the rest was purged.
            OutcomeUnknown: the purge may be recorded or not: none of their objects were deleted.
        """
        state = self._log.state
        for segments in _chunks(group.segments):
            entries = [_entry(segment, segment.object_keys(state.stream)) for segment in segments]
            self._purge(group.record_id, rule_of(state, segments[0]), entries)
        for start in range(0, len(group.replaced), SEGMENTS_PER_RECORD_MAX):
            replaced = group.replaced[start : start + SEGMENTS_PER_RECORD_MAX]
            entries = [
                DeletedSegment(
                    uuid=each.uuid,
                    keys=(
                        data_key(state.stream, each.uuid, each.ledger_id),
                        index_key(state.stream, each.uuid, each.ledger_id),
                    ),
                    first=None,
                    last=None,
                    entries=0,
                    object_bytes=each.object_bytes,
                )
                for each in replaced
            ]
            self._purge(group.record_id, replaced_rule(replaced[0]), entries)

    def resume(self, batch: DeletionRecord, *, void_before_ms: int) -> None:
        """Continue an unfinished recorded batch.

        Args:
            batch: read before the log was loaded.
            void_before_ms: a batch that was never committed and was planned earlier is dropped.
        """
        state = self._log.state
        if _names_any(state, batch):
            # Its record was never written, or was refused, or is still in flight.
            if batch.planned_ms < void_before_ms:
                void_batch(self._store, batch)
            return
        self._delete_purged(batch)

    def _purge(self, record_id: int, rule: str, entries: Sequence[DeletedSegment]) -> None:
        require_no_global_hold(self._store)
        batch = self._begin(Action.PURGE, rule, record_id, entries)
        self._log.commit_as_maintainer([Purged(tuple(each.uuid for each in entries), record_id)])
        self.swept.purged += len(entries)
        self._delete_purged(batch)

    def _delete_purged(self, batch: DeletionRecord) -> None:
        """Delete once the boundary names the purge record or a later one: a loss after that is detected."""
        state = self._log.name_newest()
        if not _names_any(state, batch):
            self._delete(batch)

    def _begin(self, action: Action, rule: str, record_id: int, entries: Sequence[DeletedSegment]) -> DeletionRecord:
        # A batch recorded before its purge record, when the last round stopped, is this one.
        found = self._batches.get(_identity(action.value, record_id, entries))
        if found is not None:
            return found
        state = self._log.state
        return begin_batch(
            *(self._store, state.stream, state.incarnation),
            action=action.value,
            by=self._by,
            rule=rule,
            retire_record=record_id,
            segments=entries,
            now_ms=self._now_ms(),
            entropy=self._entropy,
        )

    def _delete(self, batch: DeletionRecord) -> None:
        """Delete the objects of a batch that no manifest names any more."""
        keys = [key for each in batch.segments for key in each.keys]
        require_no_global_hold(self._store)
        problem = ""
        try:
            failures = self._store.delete(keys) if keys else ()
        except OffloaderError as error:
            problem = str(error)
        else:
            # The response to a multi-delete doesn't confirm each key.
            if failures:
                problem = f"{len(failures)} of {len(keys)} objects, first {failures[0].key}: {failures[0].reason}"
        batch = end_batch(self._store, batch, now_ms=self._now_ms(), problem=problem)
        if problem:
            self.swept.failed.append(batch)
            return
        self.swept.deleted_objects += len(keys)
        self.swept.deleted_bytes += sum(each.object_bytes for each in batch.segments if each.keys)


def _names_any(state: ManifestState, batch: DeletionRecord) -> bool:
    """Whether the manifest still names a segment of the batch."""
    others = {each.uuid for each in state.rewrites} | {each.uuid for each in state.replaced}
    return any(each.uuid in state.segments or each.uuid in others for each in batch.segments)


def _identity(action: str, retire_record: int, segments: Sequence[DeletedSegment]) -> tuple[object, ...]:
    return action, retire_record, *(each.uuid for each in segments)


def _chunks(segments: SegmentSlice) -> Iterator[list[SegmentRecord]]:
    for start in range(0, len(segments), SEGMENTS_PER_RECORD_MAX):
        yield list(segments[start : start + SEGMENTS_PER_RECORD_MAX])


def _entry(segment: SegmentRecord, keys: tuple[str, ...]) -> DeletedSegment:
    summary = segment.summary
    assert summary is not None, "only offloaded segments are deleted"
    return DeletedSegment(
        uuid=segment.uuid,
        keys=keys,
        first=segment.begin,
        last=segment.end,
        entries=summary.entries,
        object_bytes=summary.data_bytes + summary.index_bytes,
    )


#: Attempts of a round to plan again because the manifest changed before the plan was executed.
PLANS_MAX = 5
_MS_PER_HOUR = 3_600_000


class LargeDelete(InvalidCall):
    """More than half of a stream would be deleted without the operator's approval."""


@dataclass(slots=True, kw_only=True)
class CleanupReport:
    """Result of one round on one stream, or of its dry run.

    Attributes:
        plan: the planned actions; ``None``: planning failed.
        swept: what was done.
        pending: batches recorded as purged, or about to be, with undeleted objects.
        held: the stream is on hold: nothing was done.
        is_deleted: the stream itself is being deleted; ``is_finished``: nothing of it remains.
        expired: audit batches removed.
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
    """One cleanup round for one stream: continue open batches, purge due segments, retire unneeded ones.

    Safe to interrupt and to repeat: each step is recorded before the next.

    Args:
        deletion_clock: shared by repeated calls, to detect clock jumps.
        by: the operator or process, for the audit; default: user and machine.
        allow_large: allow retiring more than half of the stream.
        dry_run: only plan; writes nothing.
        on_plan: receives the plan before its execution; called again when a concurrent round or an undo changed the
            manifest and the plan no longer fits.

    Raises:
        NotFound: no such stream.
        DeletionStopped: all deletion in the store is stopped.
        ClockSkew: the clocks can't be trusted; nothing was deleted.
        LargeDelete: more than half of the stream would be retired; due segments are purged nevertheless.
        EditRefused, StoreUnavailable, OutcomeUnknown: it ended early; the next round continues.
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
    """One round for each stream; a failed stream has its error in its report.

    Args:
        settings_of: the settings of a stream.
        prefix: only streams whose names begin with it.
        may_delete: whether deletion is allowed in a stream; else its round is a dry run.

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
    # Placeholder entries: of deleted names whose deletion was interrupted.
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
    # After all streams: a topic ends with its last partition.
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
            # A concurrent round or an undo was first: plan again from the current state.
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
    """Make one plan and execute it.

    Raises:
        EditRefused: the manifest changed meanwhile, the rest wasn't executed; ``report.swept`` has the part that was.
    """
    store, dry_run = log.store, report.dry_run
    # List first, load after: segments that a batch names and the manifest doesn't are purged.
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


_AGAIN = "`offloader cleanup plan` shows what is retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """Restored segments, or in a dry run those to be restored.

    Attributes:
        segments: in the stream's order.
        head_before, head: the start position before and after.
        ledgers: no longer marked as deleted.
        record_id: the undo record; ``None``: a dry run.
    """

    stream: str
    segments: Sequence[SegmentRecord]
    head_before: Position | None
    head: Position | None
    ledgers: tuple[int, ...]
    record_id: int | None = None


def undo_retirements(
    log: ManifestLog, *, segments: Collection[UUID] = (), head: Position | None = None, dry_run: bool = False
) -> Undone:
    """Restore retired segments, and the start position from before their retirement.

    Args:
        segments: only these; default: all that are retired.
        head: the new start position; default: the one before the earliest of them was cut off, as far as records are
            kept, else that segment's begin.

    Raises:
        NotFound: no such stream.
        InvalidCall: nothing is retired, or one of ``segments`` isn't: it may be purged already.
        EditRefused: they would leave a gap, or a concurrent round purged them; nothing was changed.
        OutcomeUnknown, StoreUnavailable: they may be restored, but not durably: call it again.
    """
    state = log.load()
    groups = [
        (group.record_id, [s for s in group.segments if not segments or s.uuid in segments])
        for group in retired_groups(state)
    ]
    chosen = sorted((each for _, found in groups for each in found), key=lambda each: each.begin)
    missing = set(segments) - {each.uuid for each in chosen}
    if missing or not chosen:
        raise InvalidCall(
            f"stream {state.stream}: {'segment ' + str(min(missing)) if missing else 'nothing'} is retired"
            + (": not any more, or never" if missing else ", so nothing can come back"),
            hint=_AGAIN,
        )
    wanted = head or _head_before(log.store, state, chosen)
    ledgers = tuple(sorted(_ledgers(state, chosen, wanted)))
    edits: list[Edit] = [UndoRetire(tuple(s.uuid for s in found), number) for number, found in groups if found]
    edits.append(Restore(wanted, ledgers))
    after = apply_edits(state, edits, record_id=state.record_id + 1)
    _require_readable(after, chosen)
    undone = Undone(
        stream=state.stream, segments=chosen, head_before=state.head, head=wanted or state.head, ledgers=ledgers
    )
    if dry_run:
        return undone
    record_id = log.commit_as_maintainer(edits).record_id
    # Report success only now: if that record is lost later, the loss is detected and nothing is deleted.
    after = log.name_newest()
    if any((found := after.segments.get(each.uuid)) is None or found.retire_record is not None for each in chosen):
        raise StoreUnavailable(f"stream {state.stream}: others retired these segments again meanwhile", hint=_AGAIN)
    return replace(undone, record_id=record_id)


def _head_before(store: ObjectStore, state: ManifestState, chosen: Sequence[SegmentRecord]) -> Position | None:
    """Start position once the chosen segments that are contiguous up to the current one are restored."""
    head = state.head
    if head is None:
        return None
    closed, wanted = state.closed_ledgers, {each.uuid for each in chosen}
    ranges = [(gap.first, gap.last, False) for gap in state.gaps]
    before = head.previous()
    live = {each.uuid for each in state.offloaded(None, before)}
    ranges += [
        (each.begin, each.end, each.uuid in wanted)
        for each in state.segments.in_order(None, before)
        if each.end is not None and (each.uuid in wanted or each.uuid in live)
    ]
    found: tuple[Position, Position] | None = None
    reached = head
    for begin, end, is_chosen in sorted(ranges, reverse=True):
        if begin >= head:
            continue
        if not (begin < reached <= end or follows(end, reached, closed)):
            break
        reached = begin
        if is_chosen:
            found = begin, end
    if found is None:
        return None
    return _cut_off_at(store, state, *found)


def _cut_off_at(store: ObjectStore, state: ManifestState, begin: Position, end: Position) -> Position:
    """Within the earliest segment: the start position before it passed that segment."""
    for record in kept_records(store, state, newest_first=True):
        for edit in reversed(record.edits):
            if isinstance(edit, Truncate) and edit.head <= end:
                return max(begin, edit.head)
    return begin


def _ledgers(state: ManifestState, chosen: Sequence[SegmentRecord], head: Position | None) -> set[int]:
    """Ledgers marked as deleted that are restored completely, from the new start position on."""
    spans = {span.ledger_id for each in chosen if each.summary is not None for span in each.summary.ledgers}
    known = state.closed_ledgers
    deleted = state.deleted_ledgers
    if head is not None and state.head is not None:
        first, last = head.ledger_id, state.head.ledger_id
        spans |= {ledger_id for ledger_id in deleted if first <= ledger_id <= last}
        spans = {ledger_id for ledger_id in spans if ledger_id >= first}
    return {ledger_id for ledger_id in spans if ledger_id in deleted and ledger_id in known}


def _require_readable(after: ManifestState, chosen: Sequence[SegmentRecord]) -> None:
    """Refuse to restore segments that the next round would retire again."""
    back = {each.uuid for each in chosen}
    again = (
        segment
        for doomed in plan_cleanup(after, {}, now_ms=0, grace_ms=0).doomed
        for segment in doomed.segments
        if segment.uuid in back
    )
    found = next(again, None)
    if found is not None:
        raise InvalidCall(
            f"stream {after.stream}: segment {found.uuid} at {found.begin}..{found.end} can't come back: not "
            f"everything between it and the head {after.head} is there any more",
            hint=f"name segments that can (--segment); {_AGAIN}",
        )
