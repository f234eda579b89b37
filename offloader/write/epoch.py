"""Ownership of a stream: opening an epoch, starting, reacquiring after fencing."""

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
    """Touched by a stream's steps only, one at a time.

    Args:
        log: the stream's manifest.
        source: its hot tier.
        take_over: take the stream whoever has it (the source made this writer the active one, or somebody said so).
        acknowledges: tell the source what is safe; a view can't be told.

    Attributes:
        held: the epoch is ours and leftovers are settled.
        given_up: what the record that assigns the next segment has to say of failed ones.
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
        # A start that waits for its epoch has opened it before anything is appended.
        self._epoch_open = log.epoch is not None
        self.loaded = self._is_fresh = False
        self.held = False
        self.given_up: list[Failed] = []
        self._seen_record = -1
        self._silent_since_s = 0.0

    def load(self) -> ManifestState:
        """The manifest as it is; made when it isn't there. Its source is compared with it.

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
        """As ``load``; its source was compared with the manifest, too.

        Raises:
            SourceMismatch: it isn't the stream's.
        """
        state = self.load()
        if identified(self._source) is not None:
            self._source.ledgers()
        return state

    def take(self, commits: Commits) -> None:
        """Opens an epoch, which fences whoever had the stream, and settles what they left unfinished.

        Safe to call again after an error: it goes on where it was.

        Raises:
            Fenced: a living owner has the stream, and ``take_over`` is off; or the source says that this writer isn't
                the active one.
            SourceMismatch: as ``load``.
        """
        if not self._epoch_open:
            # What this step has just read says as much about the owner as another look.
            state = self._log.state if self._is_fresh else self._log.load(create=True)
            self._is_fresh = False
            compare_source(self._source, state)
            require_takeable(
                state, self._clock.now_ms(), self._settings.takeover_after_seconds, take_over=self._take_over
            )
            self._log.open_epoch(identified(self._source))
            self._epoch_open = True
        # An earlier epoch's rewrite can't be finished any more; the segments it was to replace are still there.
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
            # A source that is new here sees by that what somebody else took from it meanwhile.
            self._source.release(end)
        self.given_up = given_up
        self.held = True

    def lose(self) -> None:
        """Another writer took the stream."""
        self.held = self._epoch_open = False
        self._take_over = False
        self._seen_record = self._log.state.record_id
        self._silent_since_s = self._clock.monotonic_s()

    def reclaim(self) -> None:
        """The next ``take`` takes the stream, whoever has it."""
        self._take_over = True

    def is_abandoned(self, tail: Position | None) -> bool:
        """Whether a lost stream may be taken back: data waits, and no record was written for long enough.

        An owner that gathers a segment is silent for as long as a segment may take; one that has none has nothing to
        do or is gone. The source is asked too (a source that knows its owner refuses an acknowledgement).

        Raises:
            Fenced: the source says that this writer isn't the active one.
        """
        # The silence lasts until it was asked: while the answer was on its way, the owner may have written.
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
    """The stream, to append to; whoever had it open is fenced.

    Of a stream that is offloaded an epoch is open then, ``log``'s. One that isn't, and never was, costs one request.

    Args:
        log: of the stream, not loaded yet.
        new_source: go on with this database although the manifest knows another one.

    Raises:
        SourceMismatch: the database isn't the one that the manifest knows; nothing can be appended.
        StoreUnavailable, OutcomeUnknown: the store can't be asked; call again.
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
    """Opens an epoch for a source that takes its ledger ids from a range of this start's own."""
    checked(source, log).ledgers()
    log.open_epoch(identified(source), reserve=True)


def _not_offloaded(
    database: EmbeddedLedgers, log: ManifestLog, settings: OffloadSettings, clock: Clock, *, new_source: bool
) -> EmbeddedStream:
    """Takes no epoch from whoever offloads the stream beside the one who appends."""
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
    """Calls ``reopen`` when a lost stream is abandoned.

    Args:
        stream: its name, for the log.
        ownership: is asked whether the stream is abandoned.
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
        """Whether the stream is lost, and watched."""
        return self._watching

    def watch(self) -> None:
        """The stream is lost from now on."""
        with self._lock:
            self._watching = True
        self._look_later()

    def stop(self) -> bool:
        """The stream isn't watched any more: taken back, or stopped for good. Whether it was."""
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
