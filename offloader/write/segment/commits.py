"""One stream's commits, one after another, whatever the store answers.

Owns what a record says of segments and gaps, and the edits whose outcome isn't known yet. Must never let other edits go
before those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from formats.entries import Position
from formats.manifest import Assign, Edit, Failed, Gap, Offloaded
from formats.segment import Layout, SegmentSummary
from offloader.clock import Clock
from offloader.errors import OffloaderError, OutcomeUnknown
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_check import closed_edit
from offloader.manifest.state import ManifestState
from offloader.store.attempts import recorder_of
from offloader.write.segment.announce import announce
from offloader.write.segment.queue import WritingSegment

__all__ = ["Commits"]

_Then = Callable[[ManifestState], None]


class Commits:
    """Commits edits, says so, and does what is to be done after them, exactly once.

    Args:
        log: the stream's manifest.
        source: the hot tier that facts about ledgers are of.
        driver: recorded with each segment: where its objects are.
        clock: for the times in the records.
    """

    def __init__(self, log: ManifestLog, source: LedgerSource, driver: Mapping[str, str], clock: Clock) -> None:
        self._log = log
        self._source = source
        self._driver = dict(driver)
        self._clock = clock
        self._recorder = recorder_of(log.store)
        self._pending: tuple[Sequence[Edit], _Then] | None = None

    def first(
        self, segment: WritingSegment, given_up: Sequence[Failed], closed: Sequence[LedgerInfo], then: _Then
    ) -> None:
        """Assigns a segment, in one record with the failure of those whose range it takes over."""
        self.commit([*given_up, *self._closed(segment.begin, closed), self._assign(segment)], then)

    def settled(
        self,
        segment: WritingSegment,
        summary: SegmentSummary,
        following: WritingSegment | None,
        closed: Sequence[LedgerInfo],
        then: _Then,
    ) -> None:
        """Ends a segment and, when entries are waiting, assigns the next: one record."""
        edits: list[Edit] = [Offloaded(segment.handle.uuid, summary, self._clock.now_ms())]
        if following is not None:
            edits.append(self._assign(following))
        newest = following.begin if following is not None else summary.end
        self.commit([*self._closed(newest, closed), *edits], then)

    def passed(self, gap: Gap, given_up: Sequence[Failed], closed: Sequence[LedgerInfo], then: _Then) -> None:
        """Records a gap, in one record with the failure of what was assigned there."""
        self.commit([*given_up, *self._closed(gap.first, closed), gap], then)

    def commit(self, edits: Sequence[Edit], then: _Then) -> None:
        """Commits ``edits``, then calls ``then`` with the new view.

        Raises:
            OutcomeUnknown: call ``finish`` until it returns; nothing else may be committed before.
            Fenced, EditRefused, StoreUnavailable: nothing was committed, and the edits are forgotten.
        """
        assert self._pending is None, "an earlier commit is unfinished"
        self._pending = (edits, then)
        self.finish()

    def finish(self) -> None:
        """Commits what is pending, if anything is; raises like ``commit``."""
        if self._pending is None:
            return
        edits, then = self._pending
        try:
            state = self._log.commit(edits)
        except OutcomeUnknown:
            raise
        except OffloaderError:
            self._pending = None
            raise
        self._pending = None
        announce(edits, state, self._recorder)
        then(state)

    def _assign(self, segment: WritingSegment) -> Assign:
        return Assign(segment.handle.uuid, int(Layout.V2), segment.begin, None, self._clock.now_ms(), self._driver)

    def _closed(self, newest: Position, closed: Sequence[LedgerInfo]) -> list[Edit]:
        """The source's facts about ledgers before ``newest``, all that the manifest lacks."""
        known = self._log.state.closed_ledgers
        new = [info for info in closed if info.ledger_id < newest.ledger_id and info.ledger_id not in known]
        return [closed_edit(info, self._source) for info in sorted(new, key=lambda info: info.ledger_id)]
