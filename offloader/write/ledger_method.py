"""The ledger method: offload closed ledgers, one object pair each, when thresholds are reached (PIP-17)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from formats.entries import Position
from formats.segment import Layout
from offloader.errors import Fenced, OffloaderError, SourceMismatch
from offloader.ledgers.base import LedgerInfo, LedgerSource, Subscription
from offloader.manifest.state import ManifestState, StreamPaused
from offloader.runtime.clock import Clock
from offloader.runtime.workers import SerialTask, Timer, Workers
from offloader.settings import OffloadSettings
from offloader.write.backfill import HistoryResult, PlannedSegment
from offloader.write.gaps import NOT_GIVEN
from offloader.write.hot_tier import HistoryRange, cut_at_ledger_ends, partly_offloaded, uncovered

#: A disabled threshold.
OFF = -1


def due_ledgers(
    ledgers: Sequence[LedgerInfo], *, now_ms: int, threshold_bytes: int, threshold_seconds: int
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
    threshold_seconds: int = OFF,
    given_up: Collection[UUID] = (),
    last: Position | None = None,
) -> LedgerMethodPlan:
    """Plan the ledger method's uploads.

    A ledger that streaming began stays in V2: its rest becomes a V2 segment once it is closed, whatever the thresholds.
    A ledger with unreadable entries becomes V2 segments too, around them.

    Args:
        ledgers: the hot tier's, ascending.
        now_ms: ms since 1970 UTC.
        threshold_bytes, threshold_seconds: as for ``due_ledgers``; the defaults make every closed ledger due.
        given_up: segments that don't count.
        last: only segments that end there or before.
    """
    missing: dict[int, list[HistoryRange]] = {}
    for each in cut_at_ledger_ends(uncovered(state, ledgers, given_up=given_up), ledgers):
        missing.setdefault(each.begin.ledger_id, []).append(each)
    infos = {info.ledger_id: info for info in ledgers}
    begun = {ledger_id for ledger_id in missing if partly_offloaded(state, infos[ledger_id], given_up)}
    untouched = [infos[ledger_id] for ledger_id in missing if ledger_id not in begun]
    due = due_ledgers(untouched, now_ms=now_ms, threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
    whole = {info.ledger_id: HistoryRange.of_ledger(info) for info in due}
    gapped = {ledger_id for ledger_id, entries in whole.items() if missing[ledger_id] != [entries]}
    in_v1 = [each for ledger_id, each in whole.items() if ledger_id not in gapped]
    not_given = {gap.first.ledger_id for gap in state.gaps if gap.reason in NOT_GIVEN}
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

#: Poll interval: how late a ledger's age is noticed, and when a failed ledger is retried.
LOOK_S = 60.0


class LedgerTrigger:
    """Runs the ledger method after each ledger that is closed, and once a minute.

    Args:
        source: the hot tier, of the appending process.
        run: offloads what is due, for ``threshold_bytes`` and ``threshold_seconds``.
        settings: the thresholds.
        workers: not those that upload: a run waits for these.
    """

    def __init__(
        self,
        source: LedgerSource,
        run: Callable[..., HistoryResult],
        *,
        settings: OffloadSettings,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._source, self._run, self._settings = source, run, settings
        self._workers, self._clock = workers, clock
        self._task = SerialTask(workers, self._look)
        self._one_run, self._lock = threading.Lock(), threading.Lock()
        self._stopped = False
        self._timer: Timer | None = None
        self._subscription: Subscription | None = None
        self._committed: Position | None = None
        #: Why it stopped by itself: another writer took the stream, or the hot tier isn't the stream's.
        self.stopped_by: Fenced | SourceMismatch | None = None

    def start(self) -> None:
        """Start polling."""
        self._subscription = self._source.subscribe(None, lambda _: self._task.schedule())
        self._task.schedule()

    def stop(self) -> None:
        """Stop polling: no run begins by itself after this and ``wait``; the offloader stops a running one."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()
        if self._subscription is not None:
            self._subscription.cancel()

    def wake(self) -> None:
        """Poll soon: the stream may have been resumed."""
        self._task.schedule()

    def wait(self) -> None:
        """Wait for the current run, if any."""
        with self._one_run:
            return

    def offload(self) -> HistoryResult:
        """Offload every closed ledger now, whatever the thresholds, after the current run."""
        with self._one_run:
            return self._ran(0, OFF)

    def _look(self) -> None:
        with self._lock:
            if self._stopped:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._workers.call_after(LOOK_S, self._task.schedule)
        try:
            done = -1 if self._committed is None else self._committed.ledger_id
            left = [info for info in self._source.ledgers() if info.ledger_id > done]
            limits = {
                "threshold_bytes": self._settings.offload_threshold_bytes,
                "threshold_seconds": self._settings.offload_threshold_seconds,
            }
            if not due_ledgers(left, now_ms=self._clock.now_ms(), **limits):
                return
            with self._one_run:
                if self._stopped:  # while another run was waited for
                    return
                for error in self._ran(**limits).errors:
                    _log.warning("offloading closed ledgers: %s; again in %g s", error, LOOK_S)
        except (Fenced, SourceMismatch) as error:
            _log.warning("%s; the ledger method stops here", error)
            self.stopped_by = error
            self.stop()
        except StreamPaused as error:
            _log.info("offloading closed ledgers: %s; looks again in %g s", error, LOOK_S)
        except OffloaderError as error:
            _log.warning("offloading closed ledgers: %s; again in %g s", error, LOOK_S)

    def _ran(self, threshold_bytes: int, threshold_seconds: int) -> HistoryResult:
        result = self._run(threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
        self._committed = result.committed
        return result
