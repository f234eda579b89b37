"""One stream, offloaded while it is written: live or catching up, one segment after another.

Owns starting, stopping, asking and waiting; the work is ``offloader.write.stream.steps``. Must never block the one who
appends.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.entries import Position
from offloader.errors import AccessDenied, BucketMissing, Closed, StoreUnavailable
from offloader.ledgers.base import LedgerSource, Subscription
from offloader.manifest.checked_source import checked
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import StreamPaused
from offloader.write.history.backfill import HistoryTools
from offloader.write.stream.progress import Lag, lag_of
from offloader.write.stream.status import Mode, StreamStatus, error_fields
from offloader.write.stream.steps import MakeHandle, StreamSteps

__all__ = ["StreamOffload"]

#: Errors that waiting doesn't mend: who waits for an offload hears of them at once. The stream itself goes on trying.
_HOPELESS = (AccessDenied, BucketMissing)
#: Longest sleep of a waiting caller before it looks at the clock again.
_WAIT_S_MAX = 1.0
#: Between two looks at whether the source has told.
_HEARD_S = 0.02


class StreamOffload:
    """Offloads one stream for as long as its epoch lasts.

    Args:
        source: the stream's hot tier.
        log: its manifest.
        make_handle: see ``MakeHandle``.
        tools: of the process: its workers, memory, clock, settings.
        take_over: take the stream from an owner that gives signs of life. On by default, because a source made this
            writer the active one. A command that isn't told to leaves it off.
        on_refused: called when the stream stops because the manifest refused what it had to say.
    """

    def __init__(
        self,
        source: LedgerSource,
        log: ManifestLog,
        *,
        make_handle: MakeHandle,
        tools: HistoryTools,
        take_over: bool = True,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source = checked(source, log)
        self._settings = tools.settings
        self._clock = tools.clock
        self._subscription: Subscription | None = None
        self._steps = StreamSteps(
            source, log, make_handle=make_handle, tools=tools, take_over=take_over, on_refused=on_refused
        )
        self._shared = self._steps.shared

    @property
    def stream(self) -> str:
        return self._shared.stream

    def start(self) -> None:
        """Goes on where the manifest ends, on a worker. No request is sent before there is an entry in the hot tier."""
        self._subscription = self._source.subscribe(self._steps.on_appended, self._steps.on_ledger_closed)
        try:
            ledgers = [info for info in self._source.ledgers() if info.entries]
        except BaseException:
            self.stop()  # or it would hear of entries, and take the stream for nobody
            raise
        with self._shared.changed:
            if ledgers:
                newest = Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id)
                self._shared.tail = newest if self._shared.tail is None else max(self._shared.tail, newest)
                self._shared.mode = Mode.CATCH_UP
                # So that one of them that is gone when it is read is missed.
                self._shared.queue.learn(ledgers)
                self._shared.heard |= {info.ledger_id for info in ledgers}
        if ledgers:
            self._steps.schedule()

    def status(self) -> StreamStatus:
        with self._shared.changed:
            return StreamStatus(
                mode=self._shared.mode,
                buffer_bytes=self._shared.buffer.held_bytes,
                buffer_bytes_max=self._shared.buffer.limit_bytes,
                tail=self._shared.tail,
                offered=self._shared.queue.offered,
                committed=self._shared.committed,
                **error_fields(self._shared.error),
                gaps_recorded=self._shared.gaps_recorded,
                segment_age_s=self._settings.max_offload_segment_rollover_time_minutes * 60,
                **self._shared.progress.fields(),
            )

    def lag(self) -> Lag:
        """How far the cold tier is behind; asks the source for its ledgers when it is."""
        return lag_of(self.status(), self._source.ledgers)

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Closes the segment that holds ``until`` (default: the newest entry now) and waits until it is committed.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises:
            StoreUnavailable: not committed within ``timeout_s``.
            StreamPaused: somebody paused the stream.
            Fenced, Closed and what else stopped the stream; AccessDenied, BucketMissing: the store can't be used.
        """
        wait_s = self._settings.drain_seconds_max if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + wait_s
        target = self.request_offload(until)
        if target is None:
            return None
        if self._shared.mode is Mode.PAUSED:
            self.look_again()  # it may be over by now
        with self._shared.changed:
            while self._shared.committed is None or self._shared.committed < target:
                if self._shared.mode is Mode.STOPPED:
                    raise self._shared.error or Closed(f"stream {self.stream} was stopped")
                if isinstance(self._shared.error, _HOPELESS):
                    raise self._shared.error
                if self._shared.rests:
                    raise StreamPaused(self.stream)
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise StoreUnavailable(
                        f"stream {self.stream}: {target} isn't offloaded after {wait_s:g} s, committed is "
                        f"{self._shared.committed or 'nothing'}"
                        + (f"; last error: {self._shared.error}" if self._shared.error else ""),
                        hint="nothing is lost: the hot tier has it, and offloading goes on at the next start",
                    )
                self._shared.changed.wait(min(left_s, _WAIT_S_MAX))
            return self._shared.committed

    def hears_of(self, position: Position, *, within_s: float) -> bool:
        """Waits until the source has told of its entries up to ``position``, or the stream was stopped; whether that
        came to pass. A source tells some time after it has an entry, and later where it lost a connection."""
        deadline_s = self._clock.monotonic_s() + within_s
        with self._shared.changed:
            while self._shared.tail is None or self._shared.tail < position:
                left_s = deadline_s - self._clock.monotonic_s()
                if self._shared.mode is Mode.STOPPED or left_s <= 0:
                    return self._shared.mode is Mode.STOPPED
                # Nobody is woken by each batch: that would cost every writer.
                self._shared.changed.wait(min(left_s, _HEARD_S))
        return True

    def request_offload(self, until: Position | None = None) -> Position | None:
        """Asks for what ``offload`` does, and doesn't wait; what will be committed, ``None``: there are no entries."""
        with self._shared.changed:
            target = self._shared.tail if until is None or self._shared.tail is None else min(until, self._shared.tail)
            if target is None:
                return None
            close_at = self._shared.close_at
            self._shared.close_at = target if close_at is None else max(close_at, target)
        self._steps.schedule()
        return target

    def look_again(self) -> None:
        """Reads the manifest soon. For who paused or resumed the stream in this process; where that was done in another
        one, the stream notices with its next record, and when it is paused and entries wait, by looking now and then.
        """
        self._steps.look_again()

    def forget(self) -> None:
        """Hears of no more entries and lets go of nothing: what a crash of its process does."""
        if self._subscription is not None:
            self._subscription.cancel()

    def stop(self) -> None:
        """Takes no more entries and gives unfinished segments up: the next start offloads them again."""
        if self._subscription is not None:
            self._subscription.cancel()
        self._steps.stop()

    def reopen(self) -> None:
        """Takes the stream back after another writer had fenced this one: its source made it the active one again, or
        somebody said so. Does nothing to a stream that wasn't fenced."""
        self._steps.reopen()
