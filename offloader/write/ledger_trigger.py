"""The ledger method of one stream while its process runs: when a ledger is closed, when it is old, and on request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from formats.entries import Position
from offloader.errors import Closed, Fenced, OffloaderError, SourceMismatch, StoreUnavailable
from offloader.ledgers.base import LedgerSource, Subscription
from offloader.manifest.state import StreamPaused
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Alarm, SerialTask, Workers
from offloader.settings import OffloadSettings
from offloader.write.backfill import HistoryResult
from offloader.write.backfill_service import OFF, due_ledgers

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
        self._clock, self._one_run = clock, threading.Lock()
        self._task = SerialTask(workers, self._look)
        self._next_look = Alarm(workers, self._task.schedule)
        self._subscription: Subscription | None = None
        self._committed: Position | None = None
        #: The result of the run that further callers wait for, until it begins.
        self._wanted: Future[HistoryResult] | None = None
        self._lock = threading.Lock()
        #: Why it stopped by itself: another writer took the stream, or the hot tier isn't the stream's.
        self.stopped_by: Fenced | SourceMismatch | None = None

    def start(self) -> None:
        """Start polling."""
        self._subscription = self._source.subscribe(None, lambda _: self._task.schedule())
        self._task.schedule()

    def stop(self) -> None:
        """Stop polling: no run begins by itself after this and ``wait``; the offloader stops a running one."""
        self._next_look.stop()
        if self._subscription is not None:
            self._subscription.cancel()

    def wake(self) -> None:
        """Poll soon: the stream may have been resumed."""
        self._task.schedule()

    def wait(self) -> None:
        """Wait for the current run, if any."""
        with self._one_run:
            return

    def offload(self, *, timeout_s: float | None = None) -> HistoryResult:
        """Offload every closed ledger now, after the current run.

        Args:
            timeout_s: limit of the wait, for callers that can't wait for all of a history; the run goes on after it.

        Raises:
            Closed: it was stopped meanwhile. StoreUnavailable: it isn't done within ``timeout_s``.
        """
        if timeout_s is None:
            return self._all_ran()
        with self._lock:
            wanted = self._wanted = self._wanted or Future()
        is_done = threading.Event()
        wanted.add_done_callback(lambda _: is_done.set())
        self._task.schedule()
        if not self._clock.wait(is_done, timeout_s):
            raise StoreUnavailable(
                f"the closed ledgers aren't committed within {timeout_s:.3g} s; that goes on", hint="ask again later"
            )
        return wanted.result()

    def _all_ran(self) -> HistoryResult:
        with self._one_run:
            if self._next_look.is_stopped and self.stopped_by is None:
                raise Closed("the ledger method of this stream was stopped")
            return self._ran(0, OFF)

    def _run_wanted(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        try:
            wanted.set_result(self._all_ran())
        except Exception as error:
            wanted.set_exception(error)

    def _look(self) -> None:
        self._run_wanted()
        if self._next_look.is_stopped:
            return
        self._next_look.set(LOOK_S)
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
                if self._next_look.is_stopped:  # while another run was waited for
                    return
                for error in self._ran(**limits).errors:
                    self._tell(error)
        except (Fenced, SourceMismatch) as error:
            _log.warning("%s; the ledger method stops here", error)
            self.stopped_by = error
            self.stop()
        except StreamPaused as error:
            _log.info("offloading closed ledgers: %s; tries again in %g s", error, LOOK_S)
        except OffloaderError as error:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        _log.warning("offloading closed ledgers: %s; again in %g s", error, LOOK_S, extra={"event": "retry"})

    def _ran(self, threshold_bytes: int, threshold_seconds: int) -> HistoryResult:
        result = self._run(threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
        self._committed = result.committed
        return result
