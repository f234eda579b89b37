"""A writer's hold on its stream: when it takes it, what it inherits, when a fenced one may try again.

Owns the epoch and the settling of leftovers. Must never take a stream back from an owner that gives signs of life.
"""

from __future__ import annotations

from formats.entries import Position
from formats.manifest import Failed, Offloaded
from offloader.clock import Clock
from offloader.ledgers.base import LedgerSource, identified
from offloader.manifest.known_ledgers import compare_source
from offloader.manifest.log import ManifestLog
from offloader.manifest.owners import require_takeable
from offloader.manifest.state import ManifestState
from offloader.settings import OffloadSettings
from offloader.write.hot.coverage import acknowledged_end
from offloader.write.hot.ledger_facts import facts_of
from offloader.write.ownership.takeover import settle_leftover
from offloader.write.segment.assignment import part_bytes_for
from offloader.write.segment.commits import Commits

__all__ = ["Ownership"]


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
