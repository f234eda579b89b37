"""The ledger method by itself: closed ledgers go when the thresholds say so.

Owns when a stream is looked at, and that there is one run at a time. Must never send a request when nothing is due, nor
hold up the one who appends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import Fenced, OffloaderError, SourceMismatch
from offloader.ledgers.base import LedgerInfo, LedgerSource, Subscription
from offloader.manifest.state import StreamPaused
from offloader.settings import OffloadSettings
from offloader.workers import SerialTask, Timer, Workers
from offloader.write.history.ledger_method import OFF, due_ledgers
from offloader.write.history.planned import HistoryResult

__all__ = ["LedgerTrigger"]

_log = logging.getLogger("offloader.ledgers")

#: Time between two looks: how late a ledger's age is noticed, and when a ledger that failed is tried again.
LOOK_S = 60.0


class LedgerTrigger:
    """Looks after each ledger that is closed, and once a minute.

    Args:
        source: the hot tier, of the one who appends.
        run: offloads what is due, for (threshold_bytes, threshold_seconds).
        settings: the thresholds.
        workers: not those that upload: a run waits for these.
    """

    def __init__(
        self,
        source: LedgerSource,
        run: Callable[[int, int], HistoryResult],
        *,
        settings: OffloadSettings,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._source, self._run, self._settings = source, run, settings
        self._workers, self._clock = workers, clock
        self._task = SerialTask(workers, self._look)
        self._one_run = threading.Lock()
        self._lock = threading.Lock()
        self._stopped = False
        self._timer: Timer | None = None
        self._subscription: Subscription | None = None
        self._committed: Position | None = None
        #: Why it stopped by itself: somebody else took the stream, or the hot tier isn't the stream's.
        self.stopped_by: Fenced | SourceMismatch | None = None

    def start(self) -> None:
        """Begins to look."""
        self._subscription = self._source.subscribe(None, self._on_closed)
        self._task.schedule()

    def stop(self) -> None:
        """No run begins after this returns; one that is under way is the offloader's to stop."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()
        if self._subscription is not None:
            self._subscription.cancel()

    def look_again(self) -> None:
        """Looks soon: somebody may have resumed the stream."""
        self._task.schedule()

    def wait(self) -> None:
        """Returns when no run is under way."""
        with self._one_run:
            return

    def offload(self) -> HistoryResult:
        """Offloads every closed ledger now, whatever the thresholds; waits for a run that is under way."""
        with self._one_run:
            return self._ran(0, OFF)

    def _on_closed(self, info: LedgerInfo) -> None:  # noqa: ARG002 - looked up when it is its turn
        self._task.schedule()

    def _look(self) -> None:
        with self._lock:
            if self._stopped:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._workers.call_after(LOOK_S, self._task.schedule)
        try:
            self._run_what_is_due()
        except (Fenced, SourceMismatch) as error:
            _log.warning("%s; the ledger method stops here", error)
            self.stopped_by = error
            self.stop()
        except StreamPaused as error:
            _log.info("offloading closed ledgers: %s; looks again in %g s", error, LOOK_S)
        except OffloaderError as error:
            _log.warning("offloading closed ledgers: %s; again in %g s", error, LOOK_S)

    def _run_what_is_due(self) -> None:
        limits = {
            "threshold_bytes": self._settings.offload_threshold_bytes,
            "threshold_seconds": self._settings.offload_threshold_seconds,
        }
        done = -1 if self._committed is None else self._committed.ledger_id
        left = [info for info in self._source.ledgers() if info.ledger_id > done]
        if not due_ledgers(left, now_ms=self._clock.now_ms(), **limits):
            return
        with self._one_run:
            for error in self._ran(**limits).errors:
                _log.warning("offloading closed ledgers: %s; again in %g s", error, LOOK_S)

    def _ran(self, threshold_bytes: int, threshold_seconds: int) -> HistoryResult:
        result = self._run(threshold_bytes, threshold_seconds)
        self._committed = result.committed
        return result
