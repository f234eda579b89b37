"""Ownership of a stream: open an epoch, start, reacquire after fencing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from formats.entries import Position
from formats.manifest import Failed, Offloaded
from offloader.errors import NotFound, OffloaderError, SourceMismatch
from offloader.ledgers.base import LedgerSource, identified
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.catalog import read_entry
from offloader.manifest.checked_source import checked
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import compare_source, first_free_ledger
from offloader.manifest.state import ManifestState, require_takeable
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Workers
from offloader.settings import OffloadSettings
from offloader.write.hot_tier import acknowledged_end, facts_of
from offloader.write.quota import part_bytes_for
from offloader.write.recovery import accept_source, settle_leftover
from offloader.write.segment_queue import Commits

__all__ = ["Ownership", "Revival", "open_source"]


class Ownership:
    """Ownership of one stream. Used by its steps only, one at a time.

    Args:
        log: the stream's manifest.
        source: its hot tier.
        take_over: take the stream from any owner (the source made this writer active, or the operator requested it).
        acknowledges: acknowledge offloaded entries to the source; a view can't take that.

    Attributes:
        held: the epoch is ours and leftovers are settled.
        given_up: edits about failed segments, for the record that assigns the next segment.
    """

    def __init__(
        self,
        log: ManifestLog,
        source: LedgerSource,
        settings: OffloadSettings,
        clock: Clock,
        *,
        take_over: bool,
        acknowledges: bool = True,
    ) -> None:
        self._log = log
        self._source = source
        self._settings = settings
        self._clock = clock
        self._take_over = take_over
        self._acknowledges = acknowledges
        # A start that waits for its epoch opens it before any append.
        self._epoch_open = log.epoch is not None
        self.loaded = self._is_fresh = False
        self.held = False
        self.given_up: list[Failed] = []
        self._seen_record = -1
        self._silent_since_s = 0.0

    def load(self) -> ManifestState:
        """Load the manifest, creating a missing one, and compare the source with it.

        Raises:
            SourceMismatch: the source isn't the one that the manifest knows.
        """
        self._is_fresh = not self.loaded
        if not self.loaded:
            self._log.load(create=True)
            compare_source(self._source, self._log.state)
            self.loaded = True
        return self._log.state

    def load_checked(self) -> ManifestState:
        """As ``load``, and also verify the source against the manifest.

        Raises:
            SourceMismatch: it isn't the stream's.
        """
        state = self.load()
        if identified(self._source) is not None:
            self._source.ledgers()
        return state

    def take(self, commits: Commits) -> None:
        """Open an epoch, which fences the previous owner, and settle its unfinished segments.

        Safe to call again after an error: it continues where it stopped.

        Raises:
            Fenced: an active owner has the stream, and ``take_over`` is off; or the source reports that this writer
                isn't the active one.
            SourceMismatch: as ``load``.
        """
        if not self._epoch_open:
            # The view just loaded shows the owner's activity as well as another load.
            state = self._log.state if self._is_fresh else self._log.load(create=True)
            self._is_fresh = False
            compare_source(self._source, state)
            require_takeable(
                state, self._clock.now_ms(), self._settings.takeover_after_seconds, take_over=self._take_over
            )
            self._log.open_epoch(identified(self._source))
            self._epoch_open = True
        # An earlier epoch's rewrite can't be finished any more; the segments it was to replace still exist.
        given_up = [Failed(each.uuid, "its owner was replaced") for each in self._log.state.rewrites]
        leftovers = [segment for segment in self._log.state.assigned() if segment.epoch != self._log.epoch]
        facts = {info.ledger_id: facts_of(info) for info in self._source.ledgers()} if leftovers else {}
        for segment in leftovers:
            edit = settle_leftover(
                self._log,
                segment,
                facts,
                part_bytes=part_bytes_for(self._settings),
                now_ms=self._clock.now_ms(),
            )
            if isinstance(edit, Offloaded):
                commits.commit([edit], lambda _: None)
            else:
                given_up.append(edit)
        end = acknowledged_end(self._log.state, self._source.ledgers()) if self._acknowledges else None
        if end is not None:
            # Shows a newly opened source which entries another writer took from it meanwhile.
            self._source.release(end)
        self.given_up = given_up
        self.held = True

    def lose(self) -> None:
        """Record that another writer took the stream."""
        self.held = self._epoch_open = False
        self._take_over = False
        self._seen_record = self._log.state.record_id
        self._silent_since_s = self._clock.monotonic_s()

    def reclaim(self) -> None:
        """The next ``take`` takes the stream from any owner."""
        self._take_over = True

    def is_abandoned(self, tail: Position | None) -> bool:
        """Whether a lost stream may be taken back: data waits, and no record was written for long enough.

        An owner that gathers a segment is silent for as long as a segment may take; one without a segment is idle or
        dead. The source is queried too (a source that knows its owner refuses an acknowledgement).

        Raises:
            Fenced: the source reports that this writer isn't the active one.
        """
        # Measure silence up to the request: the owner may have written while the response was in flight.
        asked_s = self._clock.monotonic_s()
        state = self._log.load(create=True)
        committed = state.committed_end()
        if state.record_id != self._seen_record or state.paused:
            self._seen_record, self._silent_since_s = state.record_id, self._clock.monotonic_s()
            return False
        patience_s = self._settings.takeover_after_seconds
        if state.assigned():
            patience_s += self._settings.max_offload_segment_rollover_time_minutes * 60
        if tail is None or (committed is not None and tail <= committed) or asked_s - self._silent_since_s < patience_s:
            return False
        if committed is not None:
            self._source.release(committed)
        return True


_log = logging.getLogger("offloader.stream")


def open_source(
    database: EmbeddedLedgers,
    log: ManifestLog,
    *,
    settings: OffloadSettings,
    clock: Clock,
    new_source: bool = False,
) -> EmbeddedStream:
    """Open the stream for appending and fence its previous owner.

    An offloaded stream then has an open epoch, ``log``'s. A stream that was never offloaded costs one request.

    Args:
        log: of the stream, not loaded yet.
        new_source: accept this database although the manifest knows another one.

    Raises:
        SourceMismatch: the database isn't the one that the manifest knows; appends are refused.
        StoreUnavailable, OutcomeUnknown: the store is unreachable; call again.
    """
    if settings.method == "none":
        return _not_offloaded(database, log, settings, clock, new_source=new_source)
    database.require_name(log.stream)
    log.load(create=True)
    source = _opened(database, log.stream, new_source=new_source, held=True)
    try:
        _start(log, source)
    except SourceMismatch:
        if not new_source:
            raise
        _accept(log, source, settings, clock)
    return source


def _opened(
    database: EmbeddedLedgers, stream: str, *, new_source: bool, held: bool = False, above: int = 0
) -> EmbeddedStream:
    try:
        return database.open_stream(stream, held=held, above=above)
    except SourceMismatch:
        if not new_source:
            raise
        database.accept_loss(stream)
        return database.open_stream(stream, held=held, above=above)


def _start(log: ManifestLog, source: LedgerSource) -> None:
    """Open an epoch for a source that takes its ledger ids from a range of this start's own."""
    checked(source, log).ledgers()
    log.open_epoch(identified(source), reserve=True)


def _not_offloaded(
    database: EmbeddedLedgers, log: ManifestLog, settings: OffloadSettings, clock: Clock, *, new_source: bool
) -> EmbeddedStream:
    """Leave the epoch with a separate offloader that runs beside the appending process."""
    try:
        state = None if read_entry(log.store, log.stream) is None else log.load()
    except NotFound:
        state = None
    above = 0 if state is None else max(first_free_ledger(state) - 1, 0)
    source = _opened(database, log.stream, new_source=new_source, above=above)
    if state is None:
        return source
    try:
        checked(source, log).ledgers()
    except SourceMismatch:
        if not new_source:
            raise
        _accept(log, source, settings, clock)
    return source


def _accept(log: ManifestLog, source: EmbeddedStream, settings: OffloadSettings, clock: Clock) -> None:
    done = accept_source(log, source, settings=settings, clock=clock, reserve=True)
    _log.error(
        "stream %s: ledger database %s is its hot tier from now on: %s; missing: %s; left aside: %s",
        *(log.stream, done.source, done.why),
        ", ".join(f"{gap.first} up to {gap.last}" for gap in done.gaps) or "nothing that is known of",
        ", ".join(map(str, done.aside)) or "no ledger",
    )


class Revival:
    """Calls ``reopen`` when the owner of a lost stream is inactive.

    Args:
        stream: its name, for the log.
        ownership: checks whether the stream is abandoned.
        tail: the newest entry in the hot tier, as far as it is known.
        reopen: takes the stream back.
    """

    def __init__(
        self,
        stream: str,
        ownership: Ownership,
        settings: OffloadSettings,
        workers: Workers,
        *,
        tail: Callable[[], Position | None],
        reopen: Callable[[], object],
    ) -> None:
        self._stream = stream
        self._ownership = ownership
        self._settings = settings
        self._workers = workers
        self._tail = tail
        self._reopen = reopen
        self._lock = threading.Lock()
        self._watching = False

    @property
    def is_lost(self) -> bool:
        """Whether the stream is lost and polled."""
        return self._watching

    def watch(self) -> None:
        """Start polling a lost stream."""
        with self._lock:
            self._watching = True
        self._look_later()

    def stop(self) -> bool:
        """Stop polling: the stream was taken back, or stopped for good. Returns whether it was polled."""
        with self._lock:
            watched, self._watching = self._watching, False
        return watched

    def _look_later(self) -> None:
        self._workers.call_after(self._settings.takeover_after_seconds, self._look)

    def _look(self) -> None:
        if not self._watching:
            return
        try:
            abandoned = self._ownership.is_abandoned(self._tail())
        except OffloaderError as error:
            _log.warning("stream %s is fenced, and can't be looked at: %s", self._stream, error)
            abandoned = False
        if abandoned:
            _log.warning("stream %s: its owner is silent and data waits: taking it back", self._stream)
            self._reopen()
        else:
            self._look_later()
