"""Acknowledge each committed position to a broker that decides about its own copies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from formats.entries import Position
from offloader.errors import Corrupt, Fenced, NotFound, OffloaderError
from offloader.ledgers.base import LedgerInfo, LedgerSource, ListedSource
from offloader.manifest.log import ManifestLog, checked
from offloader.manifest.state import ManifestState
from offloader.runtime.workers import Backoff, SerialTask, Timer, Workers
from offloader.write.gaps import DOUBTFUL
from offloader.write.hot_tier import acknowledged_end

_log = logging.getLogger("offloader.hot_release")

#: Interval of checks besides those after a commit: for what another process committed, and for settings.
LOOK_S = 60.0
#: Longest back-off after an error.
RETRY_S_MAX = 60.0


def acknowledgeable(
    state: ManifestState, ledgers: Sequence[LedgerInfo], *, with_gaps: bool = False
) -> tuple[Position | None, Corrupt | None]:
    """The position up to which a broker may forget its entries, and what holds it back. Pure.

    Never after the committed end, nor after an entry that may only be recoverable from the hot tier.

    Args:
        ledgers: the hot tier's, ascending, read after ``state``.
        with_gaps: whether entries that the source lost, or doesn't explain, hold nothing back.
    """
    end = acknowledged_end(state, ledgers)
    if end is None or with_gaps:
        return end, None
    head, gone = state.head, state.deleted_ledgers
    doubtful = [
        gap
        for gap in state.gaps
        if gap.reason in DOUBTFUL
        and gap.first <= end
        and gap.first.ledger_id not in gone
        and (head is None or gap.last >= head)
    ]
    if not doubtful:
        return end, None
    first = min(doubtful, key=lambda gap: gap.first)
    why = Corrupt(
        f"nothing from {first.first} on is acknowledged: there is a gap up to {first.last}: {first.reason}",
        hint="look for the entries in the hot tier; offload.release_with_gaps = true gives such ledgers up",
    )
    if first.first.entry_id:
        return first.first.previous(), why
    earlier = [info for info in ledgers if info.entries and info.ledger_id < first.first.ledger_id]
    return (Position(earlier[-1].ledger_id, earlier[-1].last_entry_id) if earlier else None), why


class CommitAck:
    """Acknowledges after each commit. Takes no ownership, and deletes nothing.

    Args:
        source: calls back after each ``release``.
        log: a manifest log of its own.
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
        self._workers = workers
        self._task = SerialTask(workers, self._tick)
        self._backoff = Backoff(workers, RETRY_S_MAX, self._task.schedule)
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._stopped = False
        # Used by the task only.
        self._acknowledged: Position | None = None
        self._said = ""

    def start(self) -> None:
        """Acknowledge soon, then after each commit."""
        self._listed.watch_releases(self._task.schedule)
        self._again()
        self._task.schedule()

    def stop(self) -> None:
        """No acknowledgement begins after this returns."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def look(self) -> Corrupt | None:
        """Acknowledge now what is committed; returns what holds the rest back.

        Raises:
            Fenced: another process is the active one.
            NotFound: nothing was ever offloaded. OffloaderError: retry later; nothing was acknowledged.
        """
        # The manifest first: the newer list then lacks no ledger that this view expects.
        state = self._log.load()
        ledgers = self._source.ledgers()
        position, why = acknowledgeable(state, ledgers, with_gaps=self._with_gaps)
        if position is not None and position != self._acknowledged:
            # The broker may delete what is acknowledged: a loss of these records is detected from here on.
            position, why = acknowledgeable(self._log.name_newest(), ledgers, with_gaps=self._with_gaps)
        if position is not None:
            self._listed.acknowledge(position)
            self._acknowledged = position
        return why

    def _again(self) -> None:
        with self._lock:
            if not self._stopped:
                self._timer = self._workers.call_after(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._task.schedule()
        self._again()

    def _tick(self) -> None:
        if self._stopped or self._backoff.waiting:
            return
        error: OffloaderError | None = None
        try:
            error = self.look()
        except (NotFound, Fenced):
            pass  # nothing is offloaded yet, or another process acknowledges
        except OffloaderError as cause:
            error = cause
            self._backoff.wait()
        else:
            self._backoff.reset()
        said = "" if error is None else str(error)
        if said and said != self._said:
            _log.warning("stream %s: %s", self._log.stream, said)
        self._said = said
