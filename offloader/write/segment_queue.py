"""A stream's one or two open segments, and their commits in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, EntryBatch, Position
from formats.manifest import Assign, Edit, Failed, Gap, Offloaded, Replace
from formats.segment import Layout, SegmentSummary
from offloader.errors import Closed, OffloaderError, OutcomeUnknown
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import closed_edit
from offloader.manifest.state import ManifestState, follows
from offloader.runtime.clock import Clock
from offloader.settings import OffloadSettings
from offloader.store.attempts import recorder_of
from offloader.telemetry.recorder import Recorder
from offloader.write.hot_tier import facts_of
from offloader.write.quota import StreamQuota, entries_that_fit, segment_bytes_max
from offloader.write.segment import OffloadHandle

#: One completes while the next gathers; more would only hold entries in memory instead of the hot tier.
SEGMENTS_MAX = 2


@dataclass(slots=True)
class WritingSegment:
    """A segment in progress. ``assigned``: the manifest has it, so its parts may be sent."""

    handle: OffloadHandle
    begin: Position
    assigned: bool = False


class SegmentQueue:
    """Segments in the stream's order; entries are offered to the last one.

    Args:
        open_handle: creates the handle of a new segment that follows a position (``None``: the stream's first).
        settings: when a segment is full.
    """

    def __init__(
        self, open_handle: Callable[[Position | None], OffloadHandle], buffer: StreamQuota, settings: OffloadSettings
    ) -> None:
        self._open_handle, self._buffer, self._settings = open_handle, buffer, settings
        self._segments: list[WritingSegment] = []
        self._ledgers: dict[int, LedgerInfo] = {}
        self._refused_bytes = 0
        #: The newest entry taken by any segment.
        self.offered: Position | None = None

    @property
    def first(self) -> WritingSegment | None:
        """The segment to be committed next."""
        return self._segments[0] if self._segments else None

    @property
    def following(self) -> WritingSegment | None:
        """The segment after that one."""
        return self._segments[1] if len(self._segments) > 1 else None

    @property
    def gathering(self) -> WritingSegment | None:
        """The segment that takes entries now."""
        return self._segments[-1] if self._segments and self._segments[-1].handle.is_open else None

    def offer(self, batch: EntryBatch) -> int:
        """Offer ``batch`` to the gathering segment and, when that is full, to the next. Returns the number of entries
        taken.

        The batch's memory is immutable from now on: sources guarantee that for batches reported or read.

        None are taken if they don't follow the last offered entry, as far as known.
        """
        if not self.follows(batch.first):
            return 0
        taken = 0
        self._refused_bytes = 0
        while taken < len(batch):
            # Most batches fit whole: no slice is made.
            rest = batch.slice(taken, len(batch)) if taken else batch
            segment = self.gathering or self._open(rest.first)
            if segment is None:
                break
            fit = entries_that_fit(rest, segment.handle.wire_bytes, self._settings)
            try:
                count = segment.handle.offer_batch(rest.slice(0, fit) if fit < len(rest) else rest, own=True)
            except Closed:
                # It grew too old, or failed, since the line above: the next segment takes these. A segment without
                # entries would never be completed.
                if segment.handle.last_offered() is None:
                    self._segments.remove(segment)
                continue
            if count < fit:
                self._refused_bytes = int(rest.lengths[count]) + ENTRY_HEADER_BYTES
            if count == 0:
                if segment.handle.last_offered() is None:
                    # Opened for an entry that didn't fit: it is never assigned or sent.
                    self._segments.remove(segment)
                    segment.handle.close()
                break
            taken += count
            self.offered = Position(batch.ledger_id, int(batch.entry_ids[taken - 1]))
            if segment.handle.wire_bytes >= segment_bytes_max(self._settings):
                segment.handle.close()
            elif count < fit:
                break
        return taken

    def follows(self, begin: Position) -> bool:
        """Whether ``begin`` directly follows the last offered entry, as far as known."""
        if self.offered is None:
            return True
        known = {} if begin.ledger_id == self.offered.ledger_id else self.closed_ledgers()
        return follows(self.offered, begin, known)

    def learn(self, infos: Iterable[LedgerInfo]) -> None:
        """Record the source's facts about its ledgers."""
        for info in infos:
            self._ledgers[info.ledger_id] = info
            if info.closed:
                for segment in self._segments:
                    segment.handle.ledger_closed(facts_of(info), info.last_entry_id)

    def go_on_after_committed(self, state: ManifestState) -> Position | None:
        """Continue offering after the manifest's committed end; returns that end.

        Its ledger's end may only be known to the manifest: the hot copy may have been released.
        """
        end = self.offered = state.committed_end()
        if end is None:
            return None
        self.keep_ledgers(lambda each: each >= end.ledger_id)
        last = state.closed_ledgers.get(end.ledger_id)
        if last is not None and end.ledger_id not in self._ledgers:
            info = LedgerInfo(ledger_id=end.ledger_id, closed=True, entries=last + 1, size_bytes=0, created_ms=0)
            self._ledgers[end.ledger_id] = info
        return end

    def keep_ledgers(self, needed: Callable[[int], bool]) -> None:
        """Drop facts about ledgers that aren't ``needed``, by their ids."""
        self._ledgers = {key: info for key, info in self._ledgers.items() if needed(key)}

    def closed_infos(self) -> list[LedgerInfo]:
        """Facts about closed ledgers."""
        return [info for info in self._ledgers.values() if info.closed]

    def closed_ledgers(self) -> dict[int, int]:
        """Ledger id -> last entry id of the closed ones."""
        return {info.ledger_id: info.last_entry_id for info in self.closed_infos()}

    def wait_for_room(self, size_bytes: int) -> bool:
        """Whether to read up to ``size_bytes`` more from the hot tier now; else the buffer wakes the caller later."""
        if self.gathering is None and len(self._segments) >= SEGMENTS_MAX:
            return False
        return self._buffer.wait_for_room(self._wait_bytes(size_bytes))

    def is_stuck(self, size_bytes: int) -> bool:
        """Whether the buffer is full and only closing the gathering segment frees it."""
        if self.gathering is None or any(segment.handle.can_drain for segment in self._segments):
            return False
        return self._buffer.limit_bytes - self._buffer.held_bytes < self._wait_bytes(size_bytes)

    @property
    def is_leaving(self) -> bool:
        """Whether some held bytes will be freed without another close."""
        return any(segment.handle.is_leaving for segment in self._segments)

    def _wait_bytes(self, size_bytes: int) -> int:
        return max(self._refused_bytes, self._buffer.wait_bytes(size_bytes))

    def pop_first(self) -> None:
        """Remove the first segment after its commit."""
        self._segments.pop(0)

    def clear(self, offered: Position | None) -> list[WritingSegment]:
        """Remove all segments, which the caller abandons; offering restarts after ``offered``."""
        segments, self._segments = self._segments, []
        self.offered = offered
        return segments

    def keep_assigned(self, committed: Position | None) -> list[WritingSegment]:
        """Remove unassigned segments, which the caller abandons; offering restarts after the others, or after
        ``committed``."""
        dropped = [segment for segment in self._segments if not segment.assigned]
        if dropped:
            self._segments = [segment for segment in self._segments if segment.assigned]
            self.offered = self._segments[-1].handle.last_offered() if self._segments else committed
        return dropped

    def _open(self, begin: Position) -> WritingSegment | None:
        if len(self._segments) >= SEGMENTS_MAX:
            return None
        handle = self._open_handle(self.offered)
        for info in self._ledgers.values():
            if info.closed:
                handle.ledger_closed(facts_of(info), info.last_entry_id)
        segment = WritingSegment(handle, begin)
        self._segments.append(segment)
        return segment


_log = logging.getLogger("offloader.segments")


def announce(edits: Sequence[Edit], state: ManifestState, recorder: Recorder) -> None:
    """Log and count the segments and gaps of ``edits``; ``state`` is the view after them."""
    for edit in edits:
        match edit:
            case Offloaded():
                summary = edit.summary
                recorder.add("entries_offloaded_total", summary.entries, stream=state.stream)
                recorder.add("bytes_offloaded_total", summary.payload_bytes, stream=state.stream)
                recorder.add("segments_total", stream=state.stream, label="offloaded")
                _log_segment("segment_offloaded", edit.uuid, summary, edit.offloaded_ms, state)
            case Replace():
                # The same entries in other objects: no more entries are readable.
                for each in edit.by:
                    _log_segment("segment_rewritten", each.uuid, each.summary, edit.offloaded_ms, state)
            case Failed():
                recorder.add("segments_total", stream=state.stream, label="failed")
                _log.warning(
                    *("stream %s: segment %s failed: %s", state.stream, edit.uuid, edit.reason),
                    extra={
                        "event": "segment_failed",
                        "stream": state.stream,
                        "segment": str(edit.uuid),
                        "reason": edit.reason,
                        "record": state.record_id,
                    },
                )
            case Gap():
                recorder.add("gaps_total", stream=state.stream)


def _log_segment(event: str, uuid: UUID, summary: SegmentSummary, offloaded_ms: int, state: ManifestState) -> None:
    record = state.segments.get(uuid)
    seconds = None if record is None else max(0, offloaded_ms - record.assigned_ms) / 1000
    times_ms = (summary.publish_time_min_ms, summary.publish_time_max_ms)
    _log.info(
        "stream %s: segment %s %s..%s, %d entries, %d bytes",
        *(state.stream, uuid, summary.begin, summary.end, summary.entries, summary.data_bytes),
        extra={
            "event": event,
            "stream": state.stream,
            "segment": str(uuid),
            "format": f"V{int(summary.layout)}",
            "epoch": None if record is None else record.epoch,
            "record": state.record_id,
            "begin": str(summary.begin),
            "end": str(summary.end),
            "ledgers": len(summary.ledgers),
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "data_bytes": summary.data_bytes,
            "index_bytes": summary.index_bytes,
            "blocks": summary.blocks,
            "publish_time_min_ms": times_ms[0] if times_ms[0] != TIME_UNKNOWN_MS else None,
            "publish_time_max_ms": times_ms[1] if times_ms[1] != TIME_UNKNOWN_MS else None,
            "seconds": seconds,
        },
    )


_Then = Callable[[ManifestState], None]


class Commits:
    """Commits edits, announces them, and runs their follow-up exactly once.

    Args:
        source: the hot tier, for facts about ledgers.
        driver: recorded with each segment: where its objects are.
    """

    def __init__(self, log: ManifestLog, source: LedgerSource, driver: Mapping[str, str], clock: Clock) -> None:
        self._log, self._source, self._driver, self._clock = log, source, dict(driver), clock
        self._recorder = recorder_of(log.store)
        self._pending: tuple[Sequence[Edit], _Then] | None = None

    def first(
        self, new: WritingSegment | Gap, given_up: Sequence[Failed], closed: Sequence[LedgerInfo], then: _Then
    ) -> None:
        """Assign a segment or record a gap, in one record with the failure of those whose range it takes over."""
        begin, edit = (new.first, new) if isinstance(new, Gap) else (new.begin, self._assign(new))
        self.commit([*given_up, *self._closed(begin, closed), edit], then)

    def settled(
        self,
        segment: WritingSegment,
        summary: SegmentSummary,
        following: WritingSegment | None,
        closed: Sequence[LedgerInfo],
        then: _Then,
    ) -> None:
        """End a segment and, when entries are pending, assign the next: one record."""
        edits: list[Edit] = [Offloaded(segment.handle.uuid, summary, self._clock.now_ms())]
        if following is not None:
            edits.append(self._assign(following))
        newest = following.begin if following is not None else summary.end
        self.commit([*self._closed(newest, closed), *edits], then)

    def commit(self, edits: Sequence[Edit], then: _Then) -> None:
        """Commit ``edits``, then call ``then`` with the new view.

        Raises:
            OutcomeUnknown: call ``finish`` until it returns; nothing else may be committed before.
            Fenced, EditRefused, StoreUnavailable: nothing was committed, and the edits are dropped.
        """
        assert self._pending is None, "an earlier commit is unfinished"
        self._pending = (edits, then)
        self.finish()

    def finish(self) -> None:
        """Commit pending edits, if any; raises like ``commit``."""
        if self._pending is None:
            return
        edits, then = self._pending
        try:
            state = self._log.commit(edits)
        except OffloaderError as error:
            if not isinstance(error, OutcomeUnknown):
                self._pending = None
            raise
        self._pending = None
        announce(edits, state, self._recorder)
        then(state)

    def _assign(self, segment: WritingSegment) -> Assign:
        return Assign(segment.handle.uuid, int(Layout.V2), segment.begin, None, self._clock.now_ms(), self._driver)

    def _closed(self, newest: Position, closed: Sequence[LedgerInfo]) -> list[Edit]:
        """The source's facts, missing in the manifest, about ledgers before ``newest``."""
        known = self._log.state.closed_ledgers
        new = [info for info in closed if info.ledger_id < newest.ledger_id and info.ledger_id not in known]
        return [closed_edit(info, self._source) for info in sorted(new, key=lambda info: info.ledger_id)]
