"""Execute a cleanup plan: retire, purge, delete, each step recorded before the next; keep an audit of it.

**The problem.** The objects may be the only copy of their entries, and manifest and objects can't change together.
Readers use older views, an operator may undo a decision or set a hold, several rounds may run concurrently, and records
may be lost later. Therefore every step is durable before the next one begins, and the objects are deleted last.

**From a retention decision to a deleted object** (D1 to D9 of docs/explanation/manifest.md). The last sentences of a
step describe a crash directly after it.

1. D1 (``offloader.retention.cycle``): the recorded cuts get the size before the new head. The next cycle decides again.
2. D2: if the registry, read again, is unchanged, the decision is stored. The next cycle decides again.
3. D3 (``offloader.retention.truncate``): the new heads of a partitioned topic are stored. The next cycle or truncation
   of the topic finishes this one first.
4. D4: one record of each stream or partition moves the head and marks ledgers as deleted. When the boundary names it,
   their hot copies are deleted. The next truncation, or the owner's next release of hot copies, deletes the remaining
   ones.
5. D5 (``Sweeper.retire``): a record hides segments before the head, and those whose ledgers are all marked. Until D8
   ``undo_retirements`` can restore them. The next round retires the rest.
6. D6 (``note_readers``): the live leases are listed. Without this list, the leases that are live at the end of the
   grace period are awaited, and listed then.
7. D7 (``_begin``): when the grace period and the awaited leases have ended, a batch with the keys is stored. The next
   round uses it for the same segments. If they are never purged, it is dropped after ``manifest.orphan_age_min``.
8. D8 (``_purge``): a record removes the segments from the manifest, for good. The next round continues with the batch.
9. D9 (``_delete_purged``): the boundary names that record or a later one (M34). The next round deletes the objects.

Then ``_delete`` deletes the objects, and ``end_batch`` stores the batch as an audit entry before it removes the open
one. A batch with undeleted objects remains open and is retried with increasing delays. Deleting a key twice is
harmless, because no uuid is used twice.

**States of a segment.** Offloaded, retired, purged. Imported segments are released instead, and their objects are kept.
Segments that others replaced are purged in the same way, but can't be restored (M49).

**Invariants.**

* A crash may leave an object that the manifest doesn't name. The manifest never names a deleted object.
* Batches are listed before the manifest is loaded. A batch whose segments the manifest doesn't name was purged.
* A ``purged`` edit names the record that retired its segments. It is refused if they were restored and retired again.
* If an edit is refused, another round, an undo or a hold was first, and the round plans again from the newest manifest.
* The hold of the store is read before each truncation, record of a round, and deletion. A hold of the stream refuses
  the records of D4, D5 and D8 (M41).
* A grace period begins at the latest possible time of its record, and ends by the earlier of two clocks (M45).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from formats.checkpoint import ReplacedSegment
from formats.documents import DeletedSegment, DeletionRecord, deletion_key, deletion_name, deletion_prefix
from formats.entries import Position
from formats.keys import data_key, fill_key, index_key
from formats.manifest import Edit, GapFilled, Purged, Release, Restore, Retire, Truncate, UndoRetire
from offloader.coverage import follows
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.gc.delete_stream import remove_stream
from offloader.gc.plan import (
    NOTHING_BESIDE,
    Action,
    Beside,
    CleanupPlan,
    Deletable,
    Retired,
    doomed_bytes_of,
    forget_readers,
    note_readers,
    plan_cleanup,
    replaced_rule,
    retired_facts,
    retired_groups,
    rule_of,
)
from offloader.manifest.apply import apply_edits
from offloader.manifest.boundary import decoded, delete_keys, listed
from offloader.manifest.catalog import forget_name, list_streams, release_topics_of
from offloader.manifest.load import kept_records, load_manifest
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import (
    DeletionClock,
    DeletionStoppedError,
    age_limit_ms,
    require_no_global_hold,
    user_at_host,
)
from offloader.manifest.segment_table import SegmentRecord
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentStatus
from offloader.manifest.topic_layouts import read_layout
from offloader.parallel_map import at_once
from offloader.runtime.clock import Clock
from offloader.settings import CleanupSettings, Settings
from offloader.store.base import MAY_NOT_DELETE, ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.stream_names import place_of

#: Wait before failed deletions are retried; doubles up to ``retry_delay_max``.
RETRY_FIRST_MS = 60_000


def end_batch(store: ObjectStore, record: DeletionRecord, *, now_ms: int, problem: str = "") -> DeletionRecord:
    """Record that all objects are deleted, or why not."""
    record = (
        replace(record, attempts=record.attempts + 1, tried_ms=now_ms, problem=problem)
        if problem
        else replace(record, done_ms=now_ms, problem="")
    )
    write_batch(store, record)
    if not problem:
        void_batch(store, record)
    return record


def void_batch(store: ObjectStore, record: DeletionRecord) -> None:
    """Forget an open batch: it is done, or was never committed."""
    delete_keys(store, [deletion_key(record.stream, record.name, done=False)])


def retry_at_ms(record: DeletionRecord, settings: CleanupSettings) -> int:
    """When the remaining objects of a batch are retried."""
    if not record.attempts:
        return 0
    wait_ms = RETRY_FIRST_MS << min(record.attempts - 1, 30)
    return record.tried_ms + min(wait_ms, int(settings.retry_delay_max * 1000))


def read_batches(store: ObjectStore, stream: str, *, done: bool) -> Iterator[DeletionRecord]:
    """The finished or the open batches of a stream, the oldest first.

    Raises:
        CorruptError: one of them is damaged.
        UnsupportedError: a later release wrote one of them.
    """
    for name in _names(store, stream, done=done):
        key = deletion_key(stream, name, done=done)
        with suppress(NotFoundError):  # removed meanwhile
            yield decoded(store.get(key)[0], key, DeletionRecord.decode, f"the deletion record {key}")


def expire_audit(store: ObjectStore, stream: str, settings: CleanupSettings, *, now_ms: int) -> int:
    """Remove old batches, and the oldest above the limit. Returns their number."""
    names = _names(store, stream, done=True)
    old_ms = age_limit_ms(now_ms, settings.audit_period)
    over = max(len(names) - settings.audit_records_max, 0)
    gone = [name for number, name in enumerate(names) if number < over or int(name[:16]) < old_ms]
    delete_keys(store, [deletion_key(stream, name, done=True) for name in gone])
    return len(gone)


def _names(store: ObjectStore, stream: str, *, done: bool) -> list[str]:
    below = listed(store, deletion_prefix(stream, done=done))
    return sorted(name for info in below if (name := deletion_name(info.key, stream, done=done)) is not None)


def write_batch(store: ObjectStore, record: DeletionRecord) -> None:
    """Record the state of a batch: before its deletion, after a failed attempt, or at its end."""
    store.put(deletion_key(record.stream, record.name, done=record.done_ms is not None), record.encode())


#: Segments that one record retires or purges: their objects are one delete request.
SEGMENTS_PER_RECORD_MAX = 500


@dataclass(slots=True)
class Swept:
    """Result of the steps.

    Attributes:
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
        own = (batch for batch in batches if batch.incarnation == log.state.incarnation)
        self._batches = {_identity(batch.action, batch.retire_record, batch.segments): batch for batch in own}
        self._log, self._store = log, log.store
        self._now_ms, self._by, self._entropy = now_ms, by, entropy
        self.swept = Swept() if swept is None else swept

    def retire(self, doomed: Deletable) -> None:
        """Hide segments from readers; they can be restored until they are purged.

        Raises:
            EditRefusedError: the manifest changed before the next step; segments retired so far remain retired.
        """
        records = []
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            uuids = tuple(segment.uuid for segment in segments)
            retired = self._log.commit_as_maintainer([Retire(uuids)]).segments.get(uuids[0])
            if retired is not None and retired.retire_record is not None:
                records.append(retired.retire_record)
            self.swept.retired += len(uuids)
        note_readers(self._store, self._log.state, records, now_ms=self._now_ms())

    def release(self, doomed: Deletable) -> None:
        """Remove adopted segments from the manifest; their objects belong to Pulsar and are kept."""
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            batch = self._begin(Action.RELEASE, doomed.rule, 0, [_entry(segment, ()) for segment in segments])
            self._log.commit_as_maintainer([Release(tuple(segment.uuid for segment in segments))])
            end_batch(self._store, batch, now_ms=batch.planned_ms)
            self.swept.released += len(segments)

    def purge(self, group: Retired) -> None:
        """Record that segments are purged, then delete their objects.

        Raises:
            EditRefusedError: they are no longer retired by that record: none of the rest was purged.
            OutcomeUnknownError: the purge may be recorded or not: none of their objects were deleted.
        """
        state = self._log.state
        for segments in _chunks(group.segments):
            entries = [_entry(segment, segment.object_keys(state.stream)) for segment in segments]
            self._purge(group.record_id, rule_of(state, segments[0]), entries)
        for replaced in _chunks(group.replaced):
            entries = [_replaced_entry(state.stream, each) for each in replaced]
            self._purge(group.record_id, replaced_rule(replaced[0]), entries)

    def resume(self, batch: DeletionRecord, *, void_before_ms: int) -> None:
        """Continue an unfinished recorded batch.

        Args:
            batch: read before the log was loaded.
            void_before_ms: a batch that was never committed and was planned earlier is dropped.
        """
        state = self._log.state
        # Another manifest than the batch's, after a rebuild, doesn't tell whether its purge was recorded.
        if batch.incarnation == state.incarnation and not _names_any(state, batch):
            self._delete_purged(batch)
        elif batch.planned_ms < void_before_ms:
            # Its record was never written, or was refused, or is still in flight.
            void_batch(self._store, batch)
            self._batches.pop(_identity(batch.action, batch.retire_record, batch.segments), None)

    def _purge(self, record_id: int, rule: str, entries: Sequence[DeletedSegment]) -> None:
        require_no_global_hold(self._store)
        purged, state = Purged(tuple(each.uuid for each in entries), record_id), self._log.state
        fills: list[DeletedSegment] = []
        if state.fills:  # with the last segment of a ledger its fills leave, too
            after = {each.uuid for each in apply_edits(state, [purged], record_id=state.record_id + 1).fills}
            fills = [_fill_entry(state.stream, each) for each in state.fills if each.uuid not in after]
        batch = self._begin(Action.PURGE, rule, record_id, [*entries, *fills])
        self._log.commit_as_maintainer([purged])
        self.swept.purged += len(entries)
        self._delete_purged(batch)

    def _delete_purged(self, batch: DeletionRecord) -> None:
        """Delete once the boundary names the purge record or a later one: a loss after that is detected."""
        state = self._log.name_newest()
        if not _names_any(state, batch):
            # A fill whose ledger was restored in between is named still.
            fills = {each.uuid for each in state.fills}
            self._delete(replace(batch, segments=tuple(each for each in batch.segments if each.uuid not in fills)))

    def _begin(self, action: Action, rule: str, record_id: int, entries: Sequence[DeletedSegment]) -> DeletionRecord:
        # A batch recorded before its purge record, when the last round stopped, is this one.
        if (found := self._batches.get(_identity(action.value, record_id, entries))) is not None:
            return found
        now_ms = self._now_ms()
        batch = DeletionRecord(
            name=f"{now_ms:016d}-{self._entropy(8).hex()}",
            stream=self._log.stream,
            incarnation=self._log.state.incarnation,
            action=action.value,
            by=self._by,
            rule=rule,
            retire_record=record_id,
            segments=tuple(entries),
            planned_ms=now_ms,
        )
        write_batch(self._store, batch)
        return batch

    def _delete(self, batch: DeletionRecord) -> None:
        """Delete the objects of a batch that no manifest names any more."""
        keys = [key for each in batch.segments for key in each.keys]
        require_no_global_hold(self._store)
        problem = ""
        try:
            failures = self._store.delete(keys) if keys else ()
            # The response to a multi-delete doesn't confirm each key.
            if failures:
                problem = f"{len(failures)} of {len(keys)} objects, first {failures[0].key}: {failures[0].reason}"
                problem += f" ({MAY_NOT_DELETE})" if failures[0].is_denied else ""
        except OffloaderError as error:
            problem = str(error)
        batch = end_batch(self._store, batch, now_ms=self._now_ms(), problem=problem)
        if problem:
            self.swept.failed.append(batch)
            return
        self.swept.deleted_objects += len(keys)
        self.swept.deleted_bytes += sum(each.object_bytes for each in batch.segments if each.keys)


_Segment = TypeVar("_Segment")


def _names_any(state: ManifestState, batch: DeletionRecord) -> bool:
    """Whether the manifest still names a segment of the batch."""
    others = {each.uuid for each in state.rewrites} | {each.uuid for each in state.replaced}
    return any(each.uuid in state.segments or each.uuid in others for each in batch.segments)


def _identity(action: str, retire_record: int, segments: Sequence[DeletedSegment]) -> tuple[object, ...]:
    return action, retire_record, *(each.uuid for each in segments)


def _chunks(segments: Sequence[_Segment]) -> Iterator[list[_Segment]]:
    for start in range(0, len(segments), SEGMENTS_PER_RECORD_MAX):
        yield list(segments[start : start + SEGMENTS_PER_RECORD_MAX])


def _replaced_entry(stream: str, each: ReplacedSegment) -> DeletedSegment:
    keys = data_key(stream, each.uuid, each.ledger_id), index_key(stream, each.uuid, each.ledger_id)
    return DeletedSegment(uuid=each.uuid, keys=keys, first=None, last=None, entries=0, object_bytes=each.object_bytes)


def _fill_entry(stream: str, fill: GapFilled) -> DeletedSegment:
    return DeletedSegment(
        uuid=fill.uuid,
        keys=(fill_key(stream, fill.uuid),),
        first=fill.first,
        last=fill.last,
        entries=fill.entries,
        object_bytes=fill.object_bytes,
    )


def _entry(segment: SegmentRecord, keys: tuple[str, ...]) -> DeletedSegment:
    return DeletedSegment(
        uuid=segment.uuid,
        keys=keys,
        first=segment.begin,
        last=segment.end,
        entries=segment.content.entries,
        object_bytes=segment.object_bytes,
    )


#: Attempts of a round to plan again because the manifest changed before the plan was executed.
PLANS_MAX = 5


class LargeDeleteError(InvalidCallError):
    """More than half of a stream would be deleted without the operator's approval."""


@dataclass(slots=True, kw_only=True)
class CleanupReport:
    """Result of one round on one stream, or of its dry run.

    Attributes:
        pending: batches recorded as purged, or about to be, with undeleted objects.
        held: the stream is on hold: nothing was done.
        is_deleted: the stream itself is being deleted; ``is_finished``: nothing of it remains.
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
    settings: Settings = Settings(),
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
        dry_run: only plan; writes nothing.
        on_plan: receives the plan before its execution; called again when a concurrent round or an undo changed the
            manifest and the plan no longer fits.

    Raises:
        NotFoundError: no such stream.
        DeletionStoppedError: all deletion in the store is stopped.
        ClockSkewError: the clocks can't be trusted; nothing was deleted.
        LargeDeleteError: more than half of the stream would be retired; due segments are purged nevertheless.
        EditRefusedError, StoreUnavailableError, OutcomeUnknownError: it ended early; the next round continues.
    """
    report = CleanupReport(stream=stream, dry_run=dry_run)
    times = deletion_clock or _deletion_clock(store, clock, settings)
    with working_at(Priority.DELETION):
        _Round(store, clock, settings, times, by, allow_large, on_plan, entropy).run(report)
        if report.is_finished:
            release_topics_of(store, [stream], clock=clock, now_ms=times.now_ms())
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
        prefix: only streams whose names begin with it.
        may_delete: whether deletion is allowed in a stream; else its round is a dry run.

    Raises:
        DeletionStoppedError: all deletion in the store is stopped.
    """
    if not dry_run:
        require_no_global_hold(store)
    times = deletion_clock or _deletion_clock(store, clock, settings_of(""))
    deleted = []
    streams = list_streams(store, prefix=prefix)
    for stream in streams:
        report = CleanupReport(stream=stream, dry_run=dry_run or not may_delete(stream))
        try:
            with working_at(Priority.DELETION):
                _Round(store, clock, settings_of(stream), times, by, allow_large, on_plan, os.urandom).run(report)
        except DeletionStoppedError:
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
    now_ms = times.now_ms()
    for name in sorted(names):
        try:
            forget_name(store, name, clock=clock, now_ms=now_ms)
        except OffloaderError as error:
            yield CleanupReport(stream=name, dry_run=False, is_deleted=True, error=error)
    # After all streams: a topic ends with its last partition.
    release_topics_of(store, [*deleted, *names], clock=clock, now_ms=now_ms)


def _deletion_clock(store: ObjectStore, clock: Clock, settings: Settings) -> DeletionClock:
    return DeletionClock(store, clock, skew_ms_max=settings.manifest.clock_skew_max * 1000)


@dataclass(slots=True)
class _Round:
    store: ObjectStore
    clock: Clock
    settings: Settings
    times: DeletionClock
    by: str
    allow_large: bool
    on_plan: Callable[[CleanupPlan], object]
    entropy: Callable[[int], bytes]

    def run(self, report: CleanupReport) -> None:
        if not report.dry_run:
            require_no_global_hold(self.store)
        log = ManifestLog(
            self.store, report.stream, clock=self.clock, settings=self.settings.manifest, entropy=self.entropy
        )
        for attempt in range(1, PLANS_MAX + 1):
            try:
                self._once(report, log)
                return
            except EditRefusedError:
                # A concurrent round or an undo was first: plan again from the current state.
                if report.is_deleted or attempt == PLANS_MAX:
                    raise

    def _once(self, report: CleanupReport, log: ManifestLog) -> None:
        """Make one plan and execute it.

        Raises:
            EditRefusedError: the manifest changed, and the rest wasn't executed; ``report.swept`` has the executed
                part.
        """
        # List first, load after: segments that a batch names and the manifest doesn't are purged.
        batches = list(read_batches(self.store, report.stream, done=False))
        state = log.load()
        report.is_deleted, report.held, report.pending = state.stream_deleted, state.held, batches
        if not state.stream_deleted:
            self._execute(report, log, batches)
        elif not report.dry_run:
            with suppress(NotFoundError):
                removal = remove_stream(
                    *(self.store, report.stream),
                    clock=self.clock,
                    settings=self.settings.manifest,
                    deletion_clock=self.times,
                    ignore_leases=True,
                    entropy=self.entropy,
                )
                report.is_finished = removal.deletion is not None and removal.deletion.is_finished

    def _execute(self, report: CleanupReport, log: ManifestLog, batches: Sequence[DeletionRecord]) -> None:
        store, state, settings = self.store, log.state, self.settings
        writes = not report.dry_run and not state.held

        def now_ms() -> int:
            return self.times.now_ms(newest_ms=log.state.time_ms, ask_store=not report.dry_run)

        grace_ms, now = int(settings.cleanup.grace_period * 1000), now_ms()
        facts = retired_facts(store, state, retired_groups(state), now_ms=now, grace_ms=grace_ms, notes=writes)
        plan = plan_cleanup(state, facts, now_ms=now, grace_ms=grace_ms)
        if plan.large:
            plan = replace(plan, beside=_beside(store, report.stream))
        report.plan = plan
        self.on_plan(plan)
        if not writes:
            return
        sweeper = Sweeper(
            log, now_ms=now_ms, by=self.by or user_at_host(), batches=batches, swept=report.swept, entropy=self.entropy
        )
        for batch in batches:
            if retry_at_ms(batch, settings.cleanup) <= now:
                sweeper.resume(batch, void_before_ms=age_limit_ms(now, settings.manifest.orphan_age_min))
        for group in plan.due:
            sweeper.purge(group)
        large = plan.large and not (self.allow_large or settings.cleanup.allow_large_delete)
        if not large:
            for doomed in plan.doomed:
                (sweeper.retire if doomed.action is Action.RETIRE else sweeper.release)(doomed)
        if batches or sweeper.swept.purged or sweeper.swept.released:
            report.pending = list(read_batches(store, report.stream, done=False))
        report.expired = expire_audit(store, report.stream, settings.cleanup, now_ms=now)
        forget_readers(store, log.state, retired_groups(log.state))
        if large:
            raise LargeDeleteError(
                f"stream {report.stream}: {plan.doomed_bytes():,} of {state.sums.object_bytes:,} bytes would be "
                f"deleted, more than half{_of_topic(plan.beside)}: nothing new was retired",
                hint="check `offloader cleanup plan`, then use --allow-large, or set cleanup.allow_large_delete",
            )


def _of_topic(beside: Beside) -> str:
    if not beside.stored_bytes:
        return ""
    return f", and {beside.doomed_bytes:,} of {beside.stored_bytes:,} of the topic's other segments"


def _beside(store: ObjectStore, stream: str) -> Beside:
    """The other segments if a stream is one of a scalable topic; nothing if one of them can't be read."""
    with suppress(CorruptError, UnsupportedError):
        place = place_of(stream)
        layout = None if place is None else read_layout(store, place)
        streams = [] if layout is None else [row.stream for row in layout.segments]
        if stream in streams:
            found = at_once(partial(_sizes_of, store), [each for each in streams if each != stream])
            return Beside(sum(each.doomed_bytes for each in found), sum(each.stored_bytes for each in found))
    return NOTHING_BESIDE


def _sizes_of(store: ObjectStore, stream: str) -> Beside:
    with suppress(NotFoundError):
        state = load_manifest(store, stream)
        if not state.stream_deleted:
            return Beside(doomed_bytes_of(state), state.sums.object_bytes)
    return NOTHING_BESIDE


_AGAIN = "`offloader cleanup plan` lists retired segments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """Restored segments, or in a dry run those to be restored.

    Attributes:
        head_before, head: the start position before and after.
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
        segments: only these; default: all that are retired and reach ``head``.
        head: the new start position; default: the one before the earliest of them was cut off, as far as records are
            kept, else that segment's begin.

    Raises:
        NotFoundError: no such stream.
        InvalidCallError: nothing is retired, or one of ``segments`` isn't: it may be purged already.
        EditRefusedError: they would leave a gap, or a concurrent round purged them; nothing was changed.
        OutcomeUnknownError, StoreUnavailableError: they may be restored, but not durably: call it again.
    """
    state = log.load()
    groups = [
        (group.record_id, [s for s in group.segments if (s.uuid in segments if segments else _reaches(s, head))])
        for group in retired_groups(state)
    ]
    chosen = sorted((each for _, found in groups for each in found), key=lambda each: each.begin)
    missing = set(segments) - {each.uuid for each in chosen}
    if missing or not chosen:
        raise InvalidCallError(
            f"stream {state.stream}: {'segment ' + str(min(missing)) if missing else 'nothing'} is retired"
            + (": it was purged, or never retired" if missing else ", so nothing can be restored"),
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
        raise StoreUnavailableError(f"stream {state.stream}: another process retired these segments again", hint=_AGAIN)
    return replace(undone, record_id=record_id)


def _reaches(segment: SegmentRecord, head: Position | None) -> bool:
    return head is None or segment.end is None or segment.end >= head


def _head_before(store: ObjectStore, state: ManifestState, chosen: Sequence[SegmentRecord]) -> Position | None:
    """Start position once the chosen segments that are contiguous up to the current one are restored."""
    if (reached := state.head) is None:
        return None
    closed, wanted = state.closed_ledgers, {each.uuid for each in chosen}
    ranges = [
        *((gap.first, gap.last, False) for gap in state.gaps if gap.first < reached),
        *(
            (each.begin, each.end, each.uuid in wanted)
            for each in state.segments.in_order(None, reached.previous())
            if each.end is not None and (each.uuid in wanted or each.status is SegmentStatus.OFFLOADED)
        ),
    ]
    found: tuple[Position, Position] | None = None
    for begin, end, is_chosen in sorted(ranges, reverse=True):
        if not (begin < reached <= end or follows(end, reached, closed)):
            break
        reached = begin
        found = (begin, end) if is_chosen else found
    if found is None:
        return None
    begin, end = found
    # Within the earliest segment: the start position before it passed that segment.
    edits = (edit for record in kept_records(store, state, newest_first=True) for edit in reversed(record.edits))
    heads = (edit.head for edit in edits if isinstance(edit, Truncate) and edit.head <= end)
    return max(begin, next(heads, begin))


def _ledgers(state: ManifestState, chosen: Sequence[SegmentRecord], head: Position | None) -> set[int]:
    """Ledgers marked as deleted that are restored completely, from the new start position on."""
    spans = {span.ledger_id for each in chosen for span in each.spans}
    known, deleted = state.closed_ledgers, state.deleted_ledgers
    if head is not None and state.head is not None:
        first, last = head.ledger_id, state.head.ledger_id
        spans |= {ledger_id for ledger_id in deleted if first <= ledger_id <= last}
        spans = {ledger_id for ledger_id in spans if ledger_id >= first}
    return {ledger_id for ledger_id in spans if ledger_id in deleted and ledger_id in known}


def _require_readable(after: ManifestState, chosen: Sequence[SegmentRecord]) -> None:
    """Refuse to restore segments that the next round would retire again."""
    back = {each.uuid for each in chosen}
    doomed = (segment for each in plan_cleanup(after, {}, now_ms=0, grace_ms=0).doomed for segment in each.segments)
    if (found := next((segment for segment in doomed if segment.uuid in back), None)) is not None:
        raise InvalidCallError(
            f"stream {after.stream}: segment {found.uuid} at {found.begin}..{found.end} can't be restored: "
            f"entries between it and the head {after.head} no longer exist",
            hint=f"use --segment with segments that can be restored; {_AGAIN}",
        )
