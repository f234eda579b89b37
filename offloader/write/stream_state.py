"""State of a live stream: its open segments and their commits, mode, progress and lag."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from formats.entries import ENTRY_HEADER_BYTES, TIME_UNKNOWN_MS, EntryBatch, Position
from formats.manifest import Assign, Edit, Failed, Gap, Offloaded, Recover, Replace
from formats.summary import Layout, SegmentSummary
from offloader.coverage import KnownEnds, follows
from offloader.errors import ClosedError, OffloaderError, OutcomeUnknownError
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import SegmentSums
from offloader.manifest.source_identity import closed_edit
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.settings import OffloadSettings
from offloader.store.wrappers import recorder_of
from offloader.telemetry.recorder import Recorder
from offloader.write.hot_tier import facts_of
from offloader.write.quota import StreamQuota, entries_that_fit, segment_bytes_max
from offloader.write.segment import OffloadHandle
from offloader.write.stream import ENDED, Event, Mode, Phase, step

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
            except ClosedError:
                continue  # it grew too old, or failed, since the line above: the next segment takes these
            finally:
                # Opened for an entry that didn't fit, or couldn't be taken: it is never assigned or sent. A segment
                # without entries would never be completed.
                if segment.handle.last_offered() is None:
                    self._segments.remove(segment)
                    segment.handle.close()
            if count < fit:
                self._refused_bytes = int(rest.lengths[count]) + ENTRY_HEADER_BYTES
            if count == 0:
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
        is_same = begin.ledger_id == self.offered.ledger_id
        return follows(self.offered, begin, KnownEnds() if is_same else self.closed_ledgers())

    def learn(self, infos: Iterable[LedgerInfo]) -> None:
        """Record the source's facts about its ledgers.

        A closed ledger remains closed: a list may have been read before it was closed, and its end can be unknown
            later, once its hot copy is deleted.
        """
        for info in infos:
            if info.closed or not self._is_closed(info.ledger_id):
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
        if last is not None and not self._is_closed(end.ledger_id):
            self._ledgers[end.ledger_id] = LedgerInfo(
                ledger_id=end.ledger_id, closed=True, entries=last + 1, size_bytes=0, created_ms=0
            )
        return end

    def keep_ledgers(self, needed: Callable[[int], bool]) -> None:
        """Drop facts about ledgers that aren't ``needed``, by their ids."""
        self._ledgers = {key: info for key, info in self._ledgers.items() if needed(key)}

    def closed_infos(self) -> list[LedgerInfo]:
        """Facts about closed ledgers."""
        return [info for info in self._ledgers.values() if info.closed]

    def closed_ledgers(self) -> KnownEnds:
        """Ledger id -> last entry id of the closed ones."""
        return KnownEnds({info.ledger_id: info.last_entry_id for info in self.closed_infos()})

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

    def _is_closed(self, ledger_id: int) -> bool:
        known = self._ledgers.get(ledger_id)
        return known is not None and known.closed

    def _open(self, begin: Position) -> WritingSegment | None:
        if len(self._segments) >= SEGMENTS_MAX:
            return None
        handle = self._open_handle(self.offered)
        for info in self.closed_infos():
            handle.ledger_closed(facts_of(info), info.last_entry_id)
        segment = WritingSegment(handle, begin)
        self._segments.append(segment)
        return segment


_log = logging.getLogger("offloader.segments")

#: Reason of a segment that an earlier owner left incomplete; the next one writes its entries again.
OWNER_REPLACED = "its owner was replaced"
#: Reason of a segment that an earlier run of the same epoch left incomplete: it was stopped, or the stream paused.
INTERRUPTED = "interrupted"
#: Reasons without a fault: the segment's own errors have other ones.
_ABANDONED = (OWNER_REPLACED, INTERRUPTED)


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
            case Recover():
                for each in edit.by:
                    recorder.add("entries_offloaded_total", each.summary.entries, stream=state.stream)
                    recorder.add("bytes_offloaded_total", each.summary.payload_bytes, stream=state.stream)
                    recorder.add("segments_total", stream=state.stream, label="offloaded")
                    _log_segment("segment_recovered", each.uuid, each.summary, edit.offloaded_ms, state)
            case Failed():
                # Its owner or its run ended before the segment was complete: a restart, and no fault.
                is_abandoned = edit.reason in _ABANDONED
                recorder.add("segments_total", stream=state.stream, label="abandoned" if is_abandoned else "failed")
                _log.log(
                    logging.INFO if is_abandoned else logging.WARNING,
                    "stream %s: segment %s %s: %s",
                    *(state.stream, edit.uuid, "is written again" if is_abandoned else "failed", edit.reason),
                    extra={
                        "event": "segment_abandoned" if is_abandoned else "segment_failed",
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
    first_ms, last_ms = (
        None if each == TIME_UNKNOWN_MS else each for each in (summary.publish_time_min_ms, summary.publish_time_max_ms)
    )
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
            "publish_time_min_ms": first_ms,
            "publish_time_max_ms": last_ms,
            "seconds": None if record is None else max(0, offloaded_ms - record.assigned_ms) / 1000,
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
        ended = Offloaded(segment.handle.uuid, summary, self._clock.now_ms())
        newest, assigned = (summary.end, []) if following is None else (following.begin, [self._assign(following)])
        self.commit([*self._closed(newest, closed), ended, *assigned], then)

    def commit(self, edits: Sequence[Edit], then: _Then = lambda _: None) -> None:
        """Commit ``edits``, then call ``then`` with the new view.

        Raises:
            OutcomeUnknownError: call ``finish`` until it returns; nothing else may be committed before.
            FencedError, EditRefusedError, StoreUnavailableError: nothing was committed, and the edits are dropped.
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
            if not isinstance(error, OutcomeUnknownError):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """Status of a stream, for display and metrics.

    Attributes:
        mode: live, catch-up, paused or stopped.
        buffer_bytes, buffer_bytes_max: held now, and the limit.
        tail: newest entry known in the hot tier.
        offered: newest entry taken into a segment.
        committed: newest entry readable from the cold tier by the manifest.
        segments_committed: by this process.
        segments_failed: segments given up and started again.
        offers_refused: entries refused for lack of room when they were written (they are read from the hot tier later).
        gaps_recorded: gaps that this process recorded: ranges that the hot tier lost before they were offloaded.
        stored: sums of the entries readable from the cold tier by the manifest as this process knows it, whichever
            writer offloaded them; ``None``: it hasn't read the manifest yet.
        error, error_kind: the last step's error and its class, empty without one.
        entries_committed, bytes_committed: of those segments; bytes are payload.
        last_progress_ms: when this process last committed a segment, ms since 1970 UTC, ``None``: not yet.
        oldest_time_ms, tail_time_ms: publish times of the first and the newest entry seen here, ``None``: unknown.
        committed_time_ms: newest publish time of the last committed segment, ``None``: unknown.
        segment_age_s: how long its segments gather; ``None``: as those of the process.
    """

    mode: Mode
    buffer_bytes: int
    buffer_bytes_max: int
    tail: Position | None
    offered: Position | None
    committed: Position | None
    segments_committed: int
    segments_failed: int
    offers_refused: int
    error: str
    error_kind: str = ""
    entries_committed: int = 0
    bytes_committed: int = 0
    last_progress_ms: int | None = None
    oldest_time_ms: int | None = None
    tail_time_ms: int | None = None
    committed_time_ms: int | None = None
    gaps_recorded: int = 0
    segment_age_s: float | None = None
    stored: SegmentSums | None = None

    @property
    def was_closed(self) -> bool:
        """Whether it stopped on request."""
        return self.mode is Mode.STOPPED and self.error_kind == ClosedError.__name__


@dataclass(slots=True)
class Progress:
    """Counters of one stream in this process: see ``StreamStatus``.

    Attributes:
        tell: called with the name of a metric for each increment; may be called with locks held.
    """

    tell: Callable[[str], None] = lambda _: None
    segments_committed: int = 0
    entries_committed: int = 0
    bytes_committed: int = 0
    segments_failed: int = 0
    offers_refused: int = 0
    last_progress_ms: int | None = None
    oldest_time_ms: int | None = None
    tail_time_ms: int | None = None
    committed_time_ms: int | None = None

    def fields(self) -> dict[str, Any]:
        """The counters by name, as arguments of ``StreamStatus``."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tell"}

    def refused(self) -> None:
        """Count a written entry without room."""
        self.offers_refused += 1
        self.tell("offers_refused_total")

    def seen(self, batch: EntryBatch) -> None:
        """Record publish times of entries from the listener or a read."""
        newest_ms = int(batch.publish_times_ms[-1])
        if newest_ms == TIME_UNKNOWN_MS:
            return
        if self.oldest_time_ms is None:
            first_ms = int(batch.publish_times_ms[0])
            self.oldest_time_ms = newest_ms if first_ms == TIME_UNKNOWN_MS else first_ms
        self.tail_time_ms = newest_ms if self.tail_time_ms is None else max(self.tail_time_ms, newest_ms)

    def committed(self, summary: SegmentSummary, now_ms: int) -> None:
        """Count a committed segment."""
        self.segments_committed += 1
        self.entries_committed += summary.entries
        self.bytes_committed += summary.payload_bytes
        self.last_progress_ms = now_ms
        if summary.publish_time_max_ms != TIME_UNKNOWN_MS:
            self.committed_time_ms = summary.publish_time_max_ms


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance between the newest hot entry and the newest committed one.

    Attributes:
        entries: in the hot tier and not in the cold tier.
        payload_bytes: their bytes; inside a ledger that is partly committed, by the mean size of its entries.
        seconds: between the publish times of the two; ``None`` where entries carry none.
        known_ms: time of the last known lag, ms since 1970 UTC, if the hot tier can't be queried now: ``seconds`` grows
            from there; ``None``: the lag is current.
    """

    entries: int
    payload_bytes: int
    seconds: float | None
    known_ms: int | None = None


def lag_between(
    committed: Position | None,
    ledgers: Sequence[LedgerInfo],
    *,
    committed_time_ms: int | None = None,
    tail_time_ms: int | None = None,
) -> Lag:
    """Lag of ``committed`` behind the end of ``ledgers``.

    Args:
        committed: end of the entries readable from the cold tier, ``None``: none.
        ledgers: the hot tier's, any order.
        committed_time_ms, tail_time_ms: publish times of the two ends, ``None``: unknown.
    """
    entries = 0
    size_bytes = 0.0
    for info in ledgers:
        done = 0
        if committed is not None and info.ledger_id <= committed.ledger_id:
            done = info.entries if info.ledger_id < committed.ledger_id else min(info.entries, committed.entry_id + 1)
        left = info.entries - done
        entries += left
        size_bytes += info.size_bytes * left / info.entries if left else 0
    seconds = None
    if not entries:
        seconds = 0.0
    elif committed_time_ms is not None and tail_time_ms is not None:
        seconds = max(0, tail_time_ms - committed_time_ms) / 1000
    return Lag(entries, round(size_bytes), seconds)


def lag_of(status: StreamStatus, ledgers: Callable[[], Sequence[LedgerInfo]]) -> Lag:
    """Lag of a status; ``ledgers`` is only called if there is one.

    Before the first commit, time counts from the first entry seen.
    """
    since_ms = status.oldest_time_ms if status.committed_time_ms is None else status.committed_time_ms
    found = [] if status.tail == status.committed else ledgers()
    return lag_between(status.committed, found, committed_time_ms=since_ms, tail_time_ms=status.tail_time_ms)


class StreamState:
    """Shared state of a stream. Read and written under ``lock``.

    Attributes:
        changed: a condition over ``lock``, notified of every change that a caller may wait for.
        phase: changed by ``happen`` only.
        tail: newest entry known in the hot tier.
        committed: end of the entries readable from the cold tier.
        stored: sums of the readable entries, ``None``: the manifest wasn't read yet.
        close_at: requested commit position; the segment that holds it closes early.
        error: why the last step failed, or the stream stopped.
        is_watched: paused, and polled for a resume.
        wakes_asked, looks_done: number of requested and of completed polls of the pause state.
        heard: ledgers that had entries, from the committed one on, to detect a missing one.
        gaps_recorded: by this process.
    """

    def __init__(self, stream: str, buffer: StreamQuota, queue: SegmentQueue, progress: Progress) -> None:
        self.stream, self.buffer, self.queue, self.progress = stream, buffer, queue, progress
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.phase = Phase.IDLE
        self.tail: Position | None = None
        self.committed: Position | None = None
        self.stored: SegmentSums | None = None
        self.close_at: Position | None = None
        self.error: OffloaderError | None = None
        self.is_watched = False
        self.wakes_asked = self.looks_done = self.gaps_recorded = 0
        self.heard: set[int] = set()

    def happen(self, event: Event) -> None:
        """Change the phase as the table says."""
        self.phase = step(self.phase, event)

    @property
    def is_ended(self) -> bool:
        """Whether it takes no step any more."""
        return self.phase in ENDED

    @property
    def is_behind(self) -> bool:
        """Whether the hot tier has unoffered entries."""
        offered = self.queue.offered
        return self.tail is not None and (offered is None or self.tail > offered)

    @property
    def rests(self) -> bool:
        """Whether it is certainly paused, with no segment in progress."""
        return self.phase is Phase.PAUSED and self.queue.first is None and self.wakes_asked == self.looks_done

    def append(self, batch: EntryBatch) -> bool:
        """Take a batch that became durable; returns whether the workers have something to do."""
        self.heard.add(batch.ledger_id)
        if self.is_ended:
            self.tail = batch.last  # a fenced stream checks it later for waiting data
            return False
        before, self.tail = self.tail, batch.last
        self.progress.seen(batch)
        if self.phase is Phase.LIVE and self.queue.offered == before:
            self._offer(batch, before)
        else:
            self.happen(Event.LEFT_IN_HOT_TIER)
        if self.phase is Phase.PAUSED:
            return not self.is_watched
        first = self.queue.first
        return self.phase is not Phase.LIVE or first is None or not first.assigned

    def _offer(self, batch: EntryBatch, before: Position | None) -> None:
        """Offer a batch to the live segment; the next steps read the rest from the hot tier, also after an error."""
        taken = 0
        try:
            taken = self.queue.offer(batch)
        finally:
            if taken < len(batch):
                self.happen(Event.LEFT_IN_HOT_TIER)
        if taken < len(batch) and before is not None and before.ledger_id == batch.ledger_id:
            self.progress.refused()  # not only because the stream isn't live

    def keep_ledgers(self, needed: Callable[[int], bool]) -> None:
        """Drop facts about ledgers that aren't ``needed``, by their ids: the manifest has them, or set them aside."""
        self.queue.keep_ledgers(needed)
        self.heard = set(filter(needed, self.heard))

    def advance(self, state: ManifestState) -> None:
        """Record that more of the stream is readable; clears the last error."""
        self.committed, self.stored = state.committed_end(), state.sums
        if self.close_at is not None and self.committed is not None and self.committed >= self.close_at:
            self.close_at = None
        self.error = None
        self.changed.notify_all()
