"""Backfills, ledger-method runs (PIP-17) and fills of gaps over a stream's existing entries."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from formats.checkpoint import LAST_UNKNOWN
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.frames import encode_fill
from formats.keys import fill_key, new_segment_uuid, object_metadata
from formats.manifest import Edit, Failed, Gap, GapFilled, Pause, Resume, SetMethod
from formats.summary import Layout, SegmentSummary
from offloader.coverage import GapReason, Range, Run, gap_runs, runs_of, without
from offloader.errors import (
    ClosedError,
    CorruptError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    SourceMismatchError,
    TrimmedError,
    UnsupportedError,
)
from offloader.ledgers.base import LedgerInfo, LedgerSource, listed_source, newest_listed
from offloader.manifest.ledger_table import fills_in, is_gone, is_settled
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import load_noted
from offloader.manifest.source_identity import checked, closed_edit
from offloader.manifest.state import EditRefusedError, ManifestState, StreamPaused, newest_of
from offloader.read.cold import read_fill
from offloader.settings import ManifestSettings, ReadSettings
from offloader.store.base import CREATE, ObjectStore
from offloader.store.wrappers import recorder_of
from offloader.write.backfill import (
    BackfillJob,
    BackfillPlan,
    HistoryPlan,
    HistoryResult,
    HistoryTools,
    PlannedSegment,
    failed_before,
    interrupted,
    plan_of_history,
    start_of_history,
)
from offloader.write.compact import Compaction, CompactionPlan, CompactionResult
from offloader.write.epoch import Ownership
from offloader.write.hot_release import CommitAck, HotRelease
from offloader.write.hot_tier import (
    HistoryRange,
    allowed_gaps,
    blocked_at,
    find_gaps,
    is_left_out,
    partly_offloaded,
    uncovered,
)
from offloader.write.recovery import recover_lost, recoverable
from offloader.write.stream_state import Commits

#: Attempts to plan one call again because other writers change the manifest.
ATTEMPTS_MAX = 5


def missing_runs(state: ManifestState, ledger_id: int, last: int, *, first: int = 0) -> list[Run]:
    """Runs of entries of a ledger, ``first`` to ``last``, that are recorded as gaps and that no fill holds."""
    filled = [(each.first.entry_id, each.last.entry_id) for each in fills_in(state.fills, ledger_id, first, last)]
    return without(gap_runs(state.gaps, ledger_id, first, last), filled)


def fill_gaps(
    log: ManifestLog,
    batch: EntryBatch,
    first: int,
    last: int,
    *,
    entropy: Callable[[int], bytes] = os.urandom,
) -> int:
    """Stores the missing entries from ``first`` to ``last`` of the batch's ledger, and records them.

    Idempotent: entries that are stored already may come again, if their bytes are the same.

    Args:
        log: of the stream; need not own it.
        batch: every entry in this range that is in a recorded gap and in no fill, and none that is in no gap.

    Returns:
        The number of entries, all of them stored when it returns.

    Raises:
        InvalidCallError: the batch has other entries.
        LimitReachedError: it is too large for one object.
        SourceMismatchError: an entry that is stored already has other bytes.
        TrimmedError: the ledger is deleted from the stream.
        EditRefusedError: the stream was deleted, or other writers changed the manifest at every attempt.
        OutcomeUnknownError, StoreUnavailableError: nothing, or all of it is recorded: call it again.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        state = log.load()
        state.check(state.incarnation, None)
        parts = list(_parts(state, batch, first, last))
        _require_same(log, state, batch)
        if not parts:
            return len(batch)
        # An object that a refused record leaves is unnamed: the orphan search deletes it.
        edits = [_stored(log, state, part, entropy) for part in parts]
        try:
            log.commit_as_maintainer(edits)
            return len(batch)
        except EditRefusedError:
            if attempt == ATTEMPTS_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


def _parts(state: ManifestState, batch: EntryBatch, first: int, last: int) -> Iterator[EntryBatch]:
    """The entries that no fill has, one batch for each object; checks that they are the missing ones."""
    ledger_id = batch.ledger_id
    where = f"stream {state.stream}, ledger {ledger_id}"
    fact = state.ledgers.get(ledger_id)
    if is_gone(ledger_id, fact, state.head):
        raise TrimmedError(f"{where}: it is deleted from the stream", first_available=state.first_position())
    given = runs_of(batch.entry_ids)
    if given and not first <= given[0][0] <= given[-1][1] <= last:
        raise InvalidCallError(
            f"{where}: received entries {given[0][0]} to {given[-1][1]} for the range {first} to {last}"
        )
    end = fact.last_entry_id
    if given and end != LAST_UNKNOWN and given[-1][1] > end:
        raise InvalidCallError(f"{where}: received entry {given[-1][1]}, but the ledger ends at {end}")
    if others := without(given, gap_runs(state.gaps, ledger_id, first, last)):
        raise InvalidCallError(
            f"{where}: received entry {others[0][0]}, which is in no recorded gap", hint="send only missing entries"
        )
    wanted = missing_runs(state, ledger_id, last, first=first)
    if absent := without(wanted, given):
        raise InvalidCallError(
            f"{where}: entry {absent[0][0]} is missing and wasn't received", hint="send all missing entries"
        )
    for group in _groups(state, ledger_id, wanted):
        yield batch.between(Position(ledger_id, group[0][0]), Position(ledger_id, group[-1][1]))


def _groups(state: ManifestState, ledger_id: int, wanted: list[Run]) -> Iterator[list[Run]]:
    """Missing runs that one fill may hold: no other fill lies between them, and no entry that isn't offloaded yet."""

    def joins(low: int, high: int) -> bool:
        is_filled = fills_in(state.fills, ledger_id, low, high)
        return not is_filled and is_settled(state.segments, state.gaps, ledger_id, low, high)

    if wanted and joins(wanted[0][0], wanted[-1][1]):
        yield wanted
        return
    group: list[Run] = []
    for run in wanted:
        if group and not joins(group[-1][1] + 1, run[0] - 1):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _require_same(log: ManifestLog, state: ManifestState, batch: EntryBatch) -> None:
    if not len(batch):
        return
    for fill in fills_in(state.fills, batch.ledger_id, batch.first.entry_id, batch.last.entry_id):
        if not len(given := batch.between(fill.first, fill.last)):
            continue
        stored = read_fill(log.store, state.stream, fill)
        _, own, its = np.intersect1d(given.entry_ids, stored.entry_ids, assume_unique=True, return_indices=True)
        if not given.payloads.take(own).equals(stored.payloads.take(its)):
            raise SourceMismatchError(
                f"stream {state.stream}: entries at {fill.first}..{fill.last} have other bytes than those in "
                f"fill {fill.uuid}",
                hint="a ledger of another cluster may have this number, or the broker's entry is damaged",
            )


def _stored(log: ManifestLog, state: ManifestState, batch: EntryBatch, entropy: Callable[[int], bytes]) -> GapFilled:
    from offloader import __version__

    uuid = new_segment_uuid(state.incarnation, int.from_bytes(entropy(8), "big"))
    try:
        body = encode_fill(batch)
    except FormatError as error:
        raise LimitReachedError(f"stream {state.stream}: {error}", hint="send fewer entries per call") from error
    checksum = 0
    for view in body.views:
        checksum = crc32c(view, checksum)
    metadata = object_metadata(
        role="fill",
        stream=state.stream,
        format_version=1,
        software_version=__version__,
        incarnation=state.incarnation,
        epoch=state.epoch,
        testimony=newest_of(state.assigning, state.owner.nonce),
    )
    log.store.put(fill_key(state.stream, uuid), body, mode=CREATE, metadata=metadata, crc32c=checksum)
    return GapFilled(
        uuid=uuid,
        first=batch.first,
        last=batch.last,
        entries=len(batch),
        payload_bytes=batch.payload_bytes,
        object_bytes=len(body),
        crc32c=checksum,
    )


#: A disabled threshold.
OFF = -1


def due_ledgers(
    ledgers: Sequence[LedgerInfo], *, now_ms: int, threshold_bytes: int, threshold_seconds: float
) -> list[LedgerInfo]:
    """Ledgers due now, the oldest first.

    A ledger is due when it and everything newer hold more than ``threshold_bytes`` bytes (walking from the newest to
    the oldest), or when it was closed ``threshold_seconds`` ago or earlier. 0: as soon as it is closed; negative: off.
    Every ledger older than a due one is due too: clocks that move back leave no gap before offloaded ledgers.

    Args:
        ledgers: not offloaded yet, ascending, including the open one: its bytes count.
        now_ms: ms since 1970 UTC.
    """
    due: list[LedgerInfo] = []
    tail_bytes = 0
    for info in reversed(ledgers):
        tail_bytes += info.size_bytes
        if not info.closed or not info.entries:
            continue
        large = threshold_bytes == 0 or 0 < threshold_bytes < tail_bytes
        age_s = (now_ms - (info.closed_ms or 0)) / 1000
        old = threshold_seconds == 0 or 0 < threshold_seconds <= age_s
        if large or old or due:
            due.append(info)
    return due[::-1]


@dataclass(frozen=True, slots=True)
class LedgerMethodPlan:
    """Actions of the ledger method now.

    Attributes:
        segments: the oldest first.
        refused: due ledgers with a recorded gap, which no V1 object can express.
    """

    segments: list[PlannedSegment]
    refused: list[LedgerInfo]


def ledgers_of_method(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    *,
    now_ms: int,
    threshold_bytes: int = 0,
    threshold_seconds: float = OFF,
    given_up: Collection[UUID] = (),
    last: Position | None = None,
) -> LedgerMethodPlan:
    """Plan the ledger method's uploads.

    A ledger that streaming began remains in V2: its rest becomes a V2 segment once it is closed, whatever the
    thresholds.
    A ledger with unreadable entries becomes V2 segments too, around them.

    Args:
        ledgers: the hot tier's, ascending.
        now_ms: ms since 1970 UTC.
        threshold_bytes, threshold_seconds: as for ``due_ledgers``; the defaults make every closed ledger due.
        given_up: segments that don't count.
        last: only segments that end there or before.
    """
    ranges = uncovered(state, ledgers, given_up=given_up, by_ledger=True)
    missing = {ledger_id: list(own) for ledger_id, own in groupby(ranges, key=lambda each: each.begin.ledger_id)}
    infos = {info.ledger_id: info for info in ledgers}
    begun = {ledger_id for ledger_id in missing if partly_offloaded(state, infos[ledger_id], given_up)}
    untouched = [infos[ledger_id] for ledger_id in missing if ledger_id not in begun]
    due = due_ledgers(untouched, now_ms=now_ms, threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
    whole = {info.ledger_id: HistoryRange.of_ledger(info) for info in due}
    gapped = {ledger_id for ledger_id, entries in whole.items() if missing[ledger_id] != [entries]}
    in_v1 = [each for ledger_id, each in whole.items() if ledger_id not in gapped]
    not_given = {gap.first.ledger_id for gap in state.gaps if GapReason.of(gap).is_listed}
    in_pieces = {ledger_id for ledger_id in gapped if infos[ledger_id].not_given or ledger_id in not_given}
    refused = [info for info in due if info.ledger_id in gapped - in_pieces]
    rests = {ledger_id for ledger_id in begun if infos[ledger_id].closed}
    in_v2 = [each for ledger_id in in_pieces | rests for each in missing[ledger_id]]
    planned = [
        PlannedSegment(layout, each.begin, each.end)
        for layout, ranges in ((Layout.V1, in_v1), (Layout.V2, in_v2))
        for each in ranges
        if last is None or each.end <= last
    ]
    return LedgerMethodPlan(sorted(planned, key=lambda each: each.begin), refused)


_log = logging.getLogger("offloader.ledgers")


def _start_of_method(
    state: ManifestState,
    given_up: Collection[UUID],
    *,
    ledgers: Sequence[LedgerInfo],
    on_gap: str,
    last: Position | None,
    limits: Mapping[str, Any],
) -> tuple[LedgerMethodPlan, list[Gap], Gap | None]:
    """The plan up to ``last``, or up to the first gap that may not be recorded; the gaps that may; and that one."""
    gaps, blocked = allowed_gaps(find_gaps(state, ledgers, last=last, given_up=given_up).gaps, on_gap)
    end = last if blocked is None else blocked.first.previous()
    return ledgers_of_method(state, ledgers, given_up=given_up, last=end, **limits), gaps, blocked


class _Round(NamedTuple):
    """A plan; edits to be recorded before its segments; and the gap at which it ends, ``None``: it is complete."""

    plan: HistoryPlan
    edits: Sequence[Edit]
    blocked: Gap | None


class BackfillService:
    """Runs over the history of streams. Each call is one run, one at a time for each stream."""

    def __init__(self, store: ObjectStore, tools: HistoryTools, manifest: ManifestSettings | None = None) -> None:
        self._store, self._tools, self._manifest = store, tools, manifest
        self._changed = threading.Condition()
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

        Safe to interrupt: committed segments are kept, and the next run continues with the rest.

        Args:
            source: the hot tier; a view opened with ``may_delete`` suffices.
            take_over: take the stream from an active owner.
            acknowledges: acknowledge offloaded entries to the source; a view can't do that.
            on_plan: called with the plan before its execution.
            on_progress: called with each segment that became readable, on a worker.

        Returns:
            The result; ``errors`` holds the reasons why segments couldn't be offloaded, or the gap at which ``on_gap``
            blocks: then no segment after it was begun.

        Raises:
            StreamPaused: the stream is paused; in ``errors`` when it was paused during the run.
            FencedError: an active owner has the stream, or another writer took it during the run.
            CorruptError: the source doesn't return entries it lists.
            StoreUnavailableError, OutcomeUnknownError: the manifest can't be read or accepts no commit.
        """
        log = self._log(stream)
        source, settings = checked(source, log), self._tools.settings
        state = load_noted(log, source, create=True)
        ledgers = source.ledgers()
        last = min((each for each in (last, newest_listed(ledgers)) if each is not None), default=None)
        start = start_of_history(state, ledgers, settings, last=last, given_up=_promised(state))
        on_plan(start.plan)
        result, blocked = HistoryResult(state=state), start.blocked
        if start.plan.segments or start.gaps or start.ends or recoverable(state, ledgers):

            def look(state: ManifestState, given_up: Collection[UUID]) -> _Round:
                found = start_of_history(state, source.ledgers(), settings, last=last, given_up=given_up)
                return _Round(found.plan, [*found.ends, *found.gaps], found.blocked)

            commits, failed = self._own(source, log, take_over=take_over, acknowledges=acknowledges)
            done, blocked = self._rounds(
                *(source, log, look, commits, failed), acknowledges=acknowledges, on_progress=on_progress
            )
            result.add(done)
        if blocked is not None:
            result.errors.append(blocked_at(stream, blocked))
        return result

    def ledgers(
        self,
        source: LedgerSource,
        stream: str,
        *,
        last: Position | None = None,
        threshold_bytes: int = 0,
        threshold_seconds: float = OFF,
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
            The result; ``errors`` holds the reasons why ledgers couldn't be offloaded (all others were tried), or the
            gap at which ``on_gap`` blocks: then no segment after it was begun.

        Raises: as ``backfill``.
        """
        log = self._log(stream)
        source = checked(source, log)
        state = load_noted(log, source, create=True)
        ledgers = source.ledgers()

        limits: dict[str, Any] = {
            "now_ms": self._tools.clock.now_ms(),
            "threshold_bytes": threshold_bytes,
            "threshold_seconds": threshold_seconds,
        }
        begin = partial(_start_of_method, on_gap=self._tools.settings.on_gap, last=last, limits=limits)
        try:
            plan, gaps, blocked = begin(state, _promised(state), ledgers=ledgers)
        except CorruptError:
            on_plan(ledgers_of_method(state, ledgers, given_up=_promised(state), last=last, **limits))
            raise
        on_plan(plan)
        result = HistoryResult(state=state)
        if plan.segments or gaps or recoverable(state, ledgers):

            def look(state: ManifestState, given_up: Collection[UUID]) -> _Round:
                nonlocal plan
                plan, gaps, blocked = begin(state, given_up, ledgers=source.ledgers())
                return _Round(HistoryPlan(plan.segments), gaps, blocked)

            commits, failed = self._own(source, log, take_over=take_over, acknowledges=acknowledges)
            if log.state.method != "ledger":
                log.commit([SetMethod("ledger")])
            done, blocked = self._rounds(
                *(source, log, look, commits, failed), acknowledges=acknowledges, on_progress=on_progress
            )
            result.add(done)
        result.errors += [
            UnsupportedError(
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

        Assigned segments complete, and committed ones remain readable. Entries remain in the hot tier. An offloader in
        another process notices the pause with its next record.

        Args:
            reason: for display, kept in the record.

        Raises:
            NotFoundError: no such stream; FencedError: it was deleted.
        """
        return self._record_paused(stream, Pause(reason))

    def resume(self, stream: str) -> bool:
        """Record that the stream continues where it stopped; False: it wasn't paused. Raises as ``pause``."""
        return self._record_paused(stream, Resume())

    def _record_paused(self, stream: str, edit: Pause | Resume) -> bool:
        log = self._log(stream)
        state = log.load()
        if not state.record_id:
            raise NotFoundError(
                f"stream {stream} has no objects in {self._store.url} yet", hint="start its writer first"
            )
        if state.paused is isinstance(edit, Pause):
            return False
        log.commit_as_maintainer([edit])
        return True

    def note_ends(
        self, source: LedgerSource, stream: str, *, method: str = "", known: ManifestState | None = None
    ) -> list[int]:
        """Record and return the committed ledgers that the source has closed since; takes no ownership.

        A ledger offloaded while open is known to be complete only then.

        Args:
            method: record it too, as ``switch`` does; empty: leave the stream's.
            known: a view of the manifest loaded before this call: without anything to record no request is sent.
        """
        if known is not None and not _closed_since(known, source) and method in ("", known.method):
            return []
        log = self._log(stream)
        source = checked(source, log)
        state = log.load()
        facts = [closed_edit(info, source) for info in _closed_since(state, source)]
        methods = [SetMethod(method)] if method and state.method != method else []
        if facts or methods:
            log.commit_as_maintainer([*methods, *facts])
        return [fact.ledger_id for fact in facts]

    def compact(
        self,
        stream: str,
        *,
        recode: bool = False,
        within: Range | None = None,
        beside_owner: bool = True,
        read: ReadSettings | None = None,
        on_plan: Callable[[CompactionPlan], None] = lambda _: None,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> CompactionResult:
        """Merge small neighbouring segments into segments of the configured size, out of the cold tier alone.

        Readers see the old segments until the record that replaces them. Their objects are deleted by cleanup, as those
        of retired segments. Safe to interrupt: the next call continues.

        Args:
            recode: also rewrite segments whose compression isn't the configured codec's.
            within: only segments between these positions, both included. Calls about disjoint ranges may run in
                parallel, in any processes.
            beside_owner: also if the stream's owner was active recently. The owner is never fenced and continues beside
                this run.
            read: of the stream's reader, for moved buckets.
            on_plan: called with the plan before its execution.
            on_progress: called with each new segment.

        Raises:
            FencedError: an active owner has the stream, or another writer opened an epoch during the run.
            EditRefusedError: the stream is on hold, or other writers changed it repeatedly.
            StoreUnavailableError, OutcomeUnknownError: the store is unreachable; call again.
        """
        return Compaction(
            self._log(stream),
            self._tools,
            read or ReadSettings(),
            recode=recode,
            within=within,
            beside_owner=beside_owner,
            is_stopped=lambda: self._stopped,
            on_plan=on_plan,
            on_progress=on_progress,
        ).run()

    def stop(self) -> None:
        """End runs early, leaving the rest to the next one, and refuse new ones."""
        with self._changed:
            self._stopped = True
            under_way = list(self._under_way)
        for run in under_way:
            run.stop()

    def wait(self) -> None:
        """Waits for the runs to end after ``stop``. Their threads would wait forever for workers that are closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def release(self, source: LedgerSource, stream: str) -> HotRelease | CommitAck:
        """Create the object that releases a stream's hot copies; not started.

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
        """Create the deleter of a stream's hot copies after ``deletion_lag``; not started."""
        return HotRelease(
            source,
            self._log(stream),
            lag_s=self._tools.settings.deletion_lag,
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
        """The segments that a run of a method would write now, without any request.

        Sizes inside ledgers are estimated, so a backfill may cut elsewhere.

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
        """Open an epoch of a manifest that was loaded just before; returns its commits, and the failures for its first
        record.

        Raises ``StreamPaused``.
        """
        if log.state.paused:
            raise StreamPaused(log.stream)
        commits = Commits(log, source, self._tools.driver, self._tools.clock)
        owners = Ownership(
            *(log, source, self._tools.settings, self._tools.clock),
            take_over=take_over,
            acknowledges=acknowledges,
            is_fresh=True,
        )
        owners.take(commits)
        recover_lost(log, source, self._tools, commit=commits.commit, is_stopped=lambda: self._stopped)
        return commits, owners.given_up

    def _rounds(
        self,
        source: LedgerSource,
        log: ManifestLog,
        look: Callable[[ManifestState, Collection[UUID]], _Round],
        commits: Commits,
        failed: list[Failed],
        *,
        acknowledges: bool,
        on_progress: Callable[[SegmentSummary], None],
    ) -> tuple[HistoryResult, Gap | None]:
        """Runs until a plan was complete; returns the result, and the gap at which the last plan ended.

        A run may learn that the hot tier has lost entries of its plan, or doesn't deliver them. They are a gap of the
        next plan, which doesn't affect earlier entries. Each round has fewer of them.

        Args:
            look: plans the rest, given the manifest and the segments that don't count.
            failed: edits about segments of earlier epochs.
        """
        result = HistoryResult(state=log.state)
        while True:
            failed = [*failed, *interrupted(log, failed)]
            now = look(log.state, {edit.uuid for edit in failed})
            recorded = failed_before(now.blocked, failed, log.state)
            run = BackfillJob(
                *(self._tools, source, log, now.plan),
                commits=commits,
                first_edits=[*recorded, *now.edits],
                acknowledges=acknowledges,
                on_progress=on_progress,
            )
            done = self._finished(log.stream, run)
            result.add(done)
            failed = [edit for edit in failed if edit not in recorded]
            if done.errors or not done.is_outdated:
                return result, now.blocked

    def _finished(self, stream: str, run: BackfillJob) -> HistoryResult:
        with self._changed:
            if self._stopped:
                raise ClosedError("the offloader was closed")
            self._under_way.append(run)
        try:
            return self._tools.workers.result_of(run.start())
        except FencedError:
            recorder_of(self._store).add("fenced_total", stream=stream)
            raise
        finally:
            run.stop()
            with self._changed:
                self._under_way.remove(run)
                self._changed.notify_all()

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


def _closed_since(state: ManifestState, source: LedgerSource) -> list[LedgerInfo]:
    """Ledgers that are committed completely, but aren't recorded as closed."""
    end = state.committed_end()
    return [
        info
        for info in source.ledgers()
        if info.closed and end is not None and Position(info.ledger_id, info.last_entry_id) <= end
        if info.ledger_id not in state.closed_ledgers and not is_left_out(state, info)
    ]


def _promised(state: ManifestState) -> set[UUID]:
    """Segments that no other writer may finish once the epoch is ours."""
    return {segment.uuid for segment in state.assigned()}
