"""Release hot copies: delete ledgers after the deletion lag, or acknowledge commits to a broker that decides itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from formats.entries import Position
from formats.manifest import Edit, Gap, HotReleased
from offloader.coverage import GapReason, missing
from offloader.errors import CorruptError, FencedError, NotFoundError, OffloaderError
from offloader.ledgers.base import LedgerInfo, LedgerSource, ListedSource, noting
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import load_noted
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.source_identity import checked, closed_edit
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.manifest.store_identity import note_start
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Alarm, Backoff, SerialTask, Workers
from offloader.write.hot_tier import acknowledged_end, listed_before, listed_ranges
from offloader.write.upload import verify_objects

_log = logging.getLogger("offloader.hot_release")

#: Poll interval: a fraction of the lag, within these bounds.
LOOK_S_MIN, LOOK_S_MAX = 1.0, 1800.0


@dataclass(slots=True)
class ReleasedLedgers:
    """Result of one poll.

    Attributes:
        deleted: ledgers whose hot copies are deleted.
        errors: why other ledgers were kept; the next poll retries them.
    """

    deleted: list[int] = field(default_factory=list)
    errors: list[OffloaderError] = field(default_factory=list)


def holding_segments(state: ManifestState, info: LedgerInfo) -> Sequence[SegmentRecord] | None:
    """Offloaded segments that together hold every readable entry of a ledger, ``None`` when they don't."""
    first, last = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
    segments = state.offloaded(first, last)
    # Unreadable entries can't be held; ``doubtful_gap`` decides whether the ledger may be deleted without them.
    held = [(gap.first, gap.last) for gap in state.gaps if GapReason.of(gap).is_listed and first <= gap.first <= last]
    held = sorted([*held, *((segment.begin, segment.end or last) for segment in segments)])
    return None if not info.entries or missing(listed_ranges([info]), held) else segments


def releasable_ledgers(
    state: ManifestState, ledgers: Sequence[LedgerInfo], *, now_ms: int, lag_ms: int
) -> list[LedgerInfo]:
    """Closed ledgers, every readable entry of which has been in the cold tier for ``lag_ms`` or longer, ascending;
    those with a ``doubtful_gap`` too.

    Args:
        now_ms: ms since 1970 UTC.
        lag_ms: negative: none.
    """
    end = state.committed_end()
    if lag_ms < 0 or end is None:
        return []
    return [
        info
        for info in ledgers
        if info.closed and info.entries and Position(info.ledger_id, info.last_entry_id) <= end
        if (segments := holding_segments(state, info)) is not None
        if all((segment.offloaded_ms or now_ms) + lag_ms <= now_ms for segment in segments)
    ]


def doubtful_gap(state: ManifestState, info: LedgerInfo) -> Gap | None:
    """The first recorded gap of a ledger with entries that are lost or not explained: they may only be recoverable from
    the hot copy."""
    first, last = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
    found = (gap for gap in state.gaps if GapReason.of(gap).keeps_hot_copy and gap.first <= last and gap.last >= first)
    return next(found, None)


def release_hot_ledgers(
    source: LedgerSource, log: ManifestLog, *, now_ms: int, lag_ms: int, with_gaps: bool = False
) -> ReleasedLedgers:
    """Delete releasable hot copies: HEAD of every object, the record, then the deletions.

    Ledgers truncated from the stream are deleted as well, offloaded or not.

    Safe to interrupt: the next call deletes the recorded remainder. Takes no ownership.

    Args:
        now_ms, lag_ms: as for ``releasable_ledgers``.
        with_gaps: whether ledgers with a ``doubtful_gap`` are deleted too; else they are among the errors.

    Raises:
        SourceMismatchError: the source, or the store, isn't the one that the other knows; nothing was deleted.
        StoreUnavailableError, OutcomeUnknownError, EditRefusedError: the manifest can't be read or took no record;
            nothing was deleted.
    """
    done = ReleasedLedgers()
    source = checked(source, log)
    # Load the manifest first: the newer list then lacks no ledger that this view expects.
    state = load_noted(log, source)
    ledgers = source.ledgers()
    able = releasable_ledgers(state, ledgers, now_ms=now_ms, lag_ms=lag_ms)
    kept = {} if with_gaps else {i.ledger_id: gap for i in able if (gap := doubtful_gap(state, i)) is not None}
    if kept:
        ledger_id, gap = next(iter(kept.items()))
        others = f", and {len(kept) - 1} other ledgers with such gaps" if len(kept) > 1 else ""
        done.errors.append(
            CorruptError(
                f"ledger {ledger_id} has a gap from {gap.first} up to {gap.last}{others}: {gap.reason}",
                hint="look for the entries in the hot tier; offload.release_with_gaps = true gives such ledgers up",
            )
        )
    due = [info for info in able if info.ledger_id not in kept and _is_confirmed(log, state, info, done)]
    if fresh := [info for info in due if info.ledger_id not in state.hot_released_ledgers]:
        facts: list[Edit] = [closed_edit(i, source) for i in fresh if i.ledger_id not in state.closed_ledgers]
        log.commit_as_maintainer([*facts, HotReleased(tuple(info.ledger_id for info in fresh))])
    # Truncated ledgers are deleted too, if still present.
    gone = [info for info in ledgers if info.closed and info.ledger_id in state.deleted_ledgers and info not in due]
    if due or gone:
        # A loss of these records is detected from here on.
        state = log.name_newest()
        # A ledger without a readable entry needs no segment.
        due = [i for i in due if i.ledger_id in state.hot_released_ledgers and holding_segments(state, i) is not None]
        gone = [info for info in gone if info.ledger_id in state.deleted_ledgers]
        if (notes := noting(source)) is not None:
            # A store restored from an older backup lacks the records that this relies on.
            notes.note_manifest(state.incarnation, state.record_id)
    for info in [*due, *gone]:
        try:
            source.delete(info.ledger_id)
        except OffloaderError as error:
            done.errors.append(error)
        else:
            done.deleted.append(info.ledger_id)
    return done


def _is_confirmed(log: ManifestLog, state: ManifestState, info: LedgerInfo, done: ReleasedLedgers) -> bool:
    segments = holding_segments(state, info)
    assert segments is not None
    for segment in segments:
        try:
            verify_objects(log.store, log.stream, segment.uuid, segment.content, at_root=is_at_root(segment.driver))
        except OffloaderError as error:
            done.errors.append(error)
            return False
    return True


class HotRelease:
    """Polls a stream and deletes releasable hot copies. Without candidates it sends no request.

    Args:
        log: a separate manifest log.
        lag_s: negative: does nothing.
        with_gaps: as for ``release_hot_ledgers``.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        lag_s: float,
        with_gaps: bool = False,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._source, self._log, self._with_gaps, self._clock = source, log, with_gaps, clock
        self._lag_ms = int(lag_s * 1000) if lag_s >= 0 else -1
        self._next_look = Alarm(workers, self._tick)

    def start(self) -> None:
        """Start polling, after a delay."""
        if self._lag_ms >= 0:
            self._next_look.set(min(max(self._lag_ms / 4000, LOOK_S_MIN), LOOK_S_MAX))

    def stop(self) -> None:
        """Stop polling; no poll begins after this returns."""
        self._next_look.stop()

    def look(self) -> ReleasedLedgers:
        """Poll now; raises like ``release_hot_ledgers``. Without a manifest nothing was offloaded yet."""
        now_ms = self._clock.now_ms()
        closed = (info for info in self._source.ledgers() if info.closed)
        if self._lag_ms < 0 or not any((info.closed_ms or now_ms) + self._lag_ms <= now_ms for info in closed):
            return ReleasedLedgers()
        try:
            return release_hot_ledgers(
                self._source, self._log, now_ms=now_ms, lag_ms=self._lag_ms, with_gaps=self._with_gaps
            )
        except NotFoundError:
            return ReleasedLedgers()

    def _tick(self) -> None:
        try:
            errors = self.look().errors
        except OffloaderError as cause:
            errors = [cause]
        finally:
            self.start()  # also after any other error
        # A common cause, such as a full disk, may block all of them: log it once.
        for error, count in Counter(map(str, errors)).items():
            times = f" ({count} times)" if count > 1 else ""
            _log.warning(
                *("stream %s: hot copies are kept for now: %s%s", self._log.stream, error, times),
                extra={"event": "retry", "stream": self._log.stream},
            )


#: Interval of checks besides those after a commit: for commits of other processes, and for settings.
LOOK_S = 60.0
#: Longest back-off after an error.
RETRY_S_MAX = 60.0


def acknowledgeable(
    state: ManifestState, ledgers: Sequence[LedgerInfo], *, with_gaps: bool = False
) -> tuple[Position | None, CorruptError | None]:
    """The position up to which a broker may delete its entries, and the reason that prevents more. Pure.

    Never after the committed end, nor after an entry that may only be recoverable from the hot tier.

    Args:
        ledgers: the hot tier's, ascending, read after ``state``.
        with_gaps: whether entries that the source lost, or doesn't explain, hold nothing back.
    """
    end = acknowledged_end(state, ledgers)
    if end is None or with_gaps:
        return end, None
    head, gone = state.head, state.deleted_ledgers
    listed = list(listed_ranges(ledgers))
    doubtful = (
        gap
        for gap in state.gaps
        if (reason := GapReason.of(gap)).keeps_hot_copy
        # Only a hot tier that lists the entries can fill it.
        and (not reason.may_be_filled or any(low <= gap.last and high >= gap.first for low, high in listed))
        and gap.first <= end
        and gap.first.ledger_id not in gone
        and (head is None or gap.last >= head)
    )
    first = min(doubtful, key=lambda gap: gap.first, default=None)
    if first is None:
        return end, None
    why = CorruptError(
        f"no entry from {first.first} on is acknowledged: there is a gap up to {first.last}: {first.reason}",
        hint="look for the entries in the hot tier; offload.release_with_gaps = true gives such ledgers up",
    )
    return listed_before(ledgers, first.first), why


class CommitAck:
    """Acknowledges after each commit. Takes no ownership, and deletes nothing.

    Args:
        source: calls back after each ``release``.
        log: a separate manifest log.
        with_gaps: as for ``acknowledgeable``.
    """

    def __init__(
        self,
        source: LedgerSource,
        listed: ListedSource,
        log: ManifestLog,
        *,
        with_gaps: bool,
        workers: Workers,
    ) -> None:
        self._source, self._listed, self._log, self._with_gaps = checked(source, log), listed, log, with_gaps
        self._task = SerialTask(workers, self._tick)
        self._backoff = Backoff(workers, RETRY_S_MAX, self._task.schedule)
        self._next_look = Alarm(workers, self._look_again)
        # Used by the task only.
        self._acknowledged: Position | None = None
        self._noted: UUID | None = None
        self._said = ""

    def start(self) -> None:
        """Acknowledge soon, then after each commit."""
        self._listed.watch_releases(self._task.schedule)
        self._look_again()

    def stop(self) -> None:
        """No acknowledgement begins after this returns."""
        self._next_look.stop()

    def look(self) -> CorruptError | None:
        """Acknowledge all committed entries; returns the reason that prevents more.

        Raises:
            FencedError: another process is the active one.
            NotFoundError: nothing was ever offloaded. OffloaderError: retry later; nothing was acknowledged.
        """
        # The manifest first: the newer list then lacks no ledger that this view expects.
        state = load_noted(self._log, self._source if self._noted is None else None)
        ledgers = self._source.ledgers()
        position, why = acknowledgeable(state, ledgers, with_gaps=self._with_gaps)
        if position is not None and position != self._acknowledged:
            # The broker may delete acknowledged entries: a loss of these records is detected from here on.
            position, why = acknowledgeable(self._log.name_newest(), ledgers, with_gaps=self._with_gaps)
        if position is not None:
            if self._noted != state.incarnation and (notes := noting(self._source)) is not None:
                note_start(self._log.store, notes, state)
                self._noted = state.incarnation
            self._listed.acknowledge(position)
            self._acknowledged = position
        return why

    def _look_again(self) -> None:
        self._task.schedule()
        self._next_look.set(LOOK_S)

    def _tick(self) -> None:
        if self._next_look.is_stopped or self._backoff.waiting:
            return
        error: OffloaderError | None = None
        try:
            error = self.look()
        except (NotFoundError, FencedError):
            pass  # nothing is offloaded yet, or another process acknowledges
        except OffloaderError as cause:
            error = cause
            self._backoff.wait()
        else:
            self._backoff.reset()
        said = "" if error is None else str(error)
        if said and said != self._said:
            _log.warning("stream %s: %s", self._log.stream, said, extra={"event": "retry", "stream": self._log.stream})
        self._said = said
