"""Ledgers out of V2 segments into V1 objects that an old reader can read, while everything stays readable.

Owns a run: promise, upload, compare, replace, group by group. Must never let a segment go before the new ones were read
back and hold the same, nor delete an object: what was replaced is retired, and what a broken run left is swept.

Safe to interrupt anywhere: each group is replaced in one record, the next run goes on with the ledgers that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from formats.keys import new_segment_uuid
from formats.manifest import Edit, Failed, LedgersDeleted, Replace, Retire, Rewrite, Rewritten, SetMethod
from formats.segment import Layout, SegmentSummary
from offloader.errors import Corrupt, ErrorKind, InvalidCall, OffloaderError
from offloader.limits import Priority, working_at
from offloader.manifest.apply import apply_edits
from offloader.manifest.log import ManifestLog
from offloader.manifest.owners import require_takeable
from offloader.manifest.state import EditRefused, ManifestState
from offloader.read.fetch import Fetcher
from offloader.read.reader import Reader
from offloader.read.workers import Workers as Parallel
from offloader.settings import ReadSettings
from offloader.store.attempts import recorder_of
from offloader.write.history.backfill import HistoryTools
from offloader.write.history.planned import PlannedSegment
from offloader.write.history.rollback import RewriteGroup, StreamedLedger, next_group, streamed_ledgers
from offloader.write.segment.announce import announce
from offloader.write.segment.assignment import segment_bytes_max
from offloader.write.segment.by_ledger import READ_BYTES, LedgerPiece, offload_pieces
from offloader.write.segment.cold_ledger import ColdLedger, EntryDigest, holds, ledger_info
from offloader.write.segment.upload import upload_of

__all__ = ["LedgerRewrite", "RewriteResult"]

_log = logging.getLogger("offloader.rollback")
_T = TypeVar("_T")

#: A group ends when it is so many segments large: what a crash repeats, and what is in the store twice per retry.
GROUP_SEGMENTS = 4
#: Times a run plans anew because somebody else changed the stream meanwhile.
REPLANS_MAX = 3
#: Why a ledger is left that was no candidate when the run began.
LATER = "it became whole meanwhile: the next run rewrites it"
#: Segments retired by one record.
RETIRED_PER_RECORD_MAX = 500
_MIB = 1024 * 1024


@dataclass(slots=True)
class RewriteResult:
    """What a run did.

    Attributes:
        rewritten: name and summary of each V1 object, in the stream's order.
        deleted: ledgers that were marked as deleted.
        replaced, retired: segments whose objects go after the grace period.
        left: ledgers that an old reader still can't read, and why.
        errors: why groups couldn't be rewritten.
    """

    rewritten: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    replaced: int = 0
    retired: int = 0
    left: list[StreamedLedger] = field(default_factory=list)
    errors: list[OffloaderError] = field(default_factory=list)


class LedgerRewrite:
    """One run over one stream; ``run`` it once.

    Args:
        log: the stream's manifest; the run opens an epoch, which fences who has the stream.
        tools: of the process; its settings must not compress: an old reader can't read that.
        delete: ledgers to be deleted from the stream instead of rewritten.
        take_over: take the stream from an owner that gives signs of life.
        is_stopped: asked now and then; when it answers True the run ends with an error.
        on_progress: called with each ledger that became readable to an old reader.

    Raises:
        InvalidCall: the settings compress, or a ledger to be deleted isn't one that an old reader can't read.
    """

    def __init__(
        self,
        log: ManifestLog,
        tools: HistoryTools,
        *,
        delete: Sequence[int] = (),
        take_over: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> None:
        if tools.settings.codec != "none":
            raise InvalidCall(f"an old reader can't read codec {tools.settings.codec}", hint="rewrite with codec none")
        self._log, self._tools, self._delete = log, tools, sorted(set(delete))
        self._take_over, self._is_stopped, self._on_progress = take_over, is_stopped, on_progress
        self._result = RewriteResult()

    def run(self) -> RewriteResult:
        """Rewrites what can be rewritten, deletes what is to be deleted.

        Raises:
            Fenced: a living owner has the stream, or somebody took it meanwhile.
            EditRefused: the stream is on hold, or a segment was retired meanwhile.
            StoreUnavailable, OutcomeUnknown: call again, it goes on where it was.
        """
        ledgers = streamed_ledgers(self._log.load())
        unknown = set(self._delete) - {each.ledger_id for each in ledgers}
        if unknown:
            raise InvalidCall(
                f"stream {self._log.stream}: an old reader reads ledger {min(unknown)}, or it isn't offloaded",
                hint="`offloader rollback plan` lists the ledgers that can be deleted",
            )
        wanted = [each.ledger_id for each in ledgers if not each.obstacle and each.ledger_id not in self._delete]
        failed: dict[int, OffloaderError] = {}
        if wanted or self._delete:
            if self._log.state.held:  # said before anybody is fenced
                raise EditRefused(
                    f"stream {self._log.stream} is on hold: nothing of it is replaced", hint="lift the hold first"
                )
            self._take()
            failed = self._rewrite(wanted)
            self._retire_deleted()
        self._result.left = [
            replace(each, obstacle=each.obstacle or str(failed.get(each.ledger_id, LATER)))
            for each in streamed_ledgers(self._log.state)
            if each.ledger_id not in self._log.state.deleted_ledgers
        ]
        return self._result

    def _take(self) -> None:
        """Opens an epoch and says what is different from here on."""
        tools, state = self._tools, self._log.state
        require_takeable(state, tools.clock.now_ms(), tools.settings.takeover_after_seconds, take_over=self._take_over)
        self._log.open_epoch()
        state = self._log.state
        edits: list[Edit] = [Failed(each.uuid, "its owner was replaced") for each in state.rewrites]
        # Else the stream's next segment would be V2 again.
        edits += [SetMethod("ledger")] if state.method == "streaming" else []
        deleted = [each for each in self._delete if each not in state.deleted_ledgers]
        edits += [LedgersDeleted(tuple(deleted))] if deleted else []
        if edits:
            self._commit(edits)
        self._result.deleted = deleted

    def _rewrite(self, wanted: list[int]) -> dict[int, OffloaderError]:
        """Group after group; why which ledgers couldn't be rewritten."""
        failed: dict[int, OffloaderError] = {}
        replans = 0
        bytes_max = GROUP_SEGMENTS * segment_bytes_max(self._tools.settings)
        while (group := next_group(self._log.state, wanted, bytes_max)) is not None:
            try:
                self._replace(group)
            except EditRefused:
                # Retention took a segment meanwhile, or somebody recorded something: look at it anew.
                replans += 1
                if replans > REPLANS_MAX:
                    raise
                self._give_up("the stream changed meanwhile")
                whole = {each.ledger_id for each in streamed_ledgers(self._log.state) if not each.obstacle}
                wanted = [each for each in wanted if each in whole]
                continue
            except OffloaderError as error:
                if error.kind is not ErrorKind.REPAIR_DATA:
                    raise
                _log.warning("stream %s: ledgers %s aren't rewritten: %s", self._log.stream, group.ledger_ids, error)
                self._result.errors.append(error)
                failed |= dict.fromkeys(group.ledger_ids, error)
                self._give_up(str(error))
            done = set(group.ledger_ids)
            wanted = [each for each in wanted if each not in done]
        return failed

    def _give_up(self, reason: str) -> None:
        """What was uploaded under the promised names is swept later."""
        promised = [Failed(each.uuid, reason) for each in self._log.load().rewrites]
        if promised:
            self._commit(promised)

    def _commit(self, edits: Sequence[Edit]) -> None:
        announce(edits, self._log.commit(edits), recorder_of(self._log.store))

    def _replace(self, group: RewriteGroup) -> None:
        """Promises, uploads, compares and replaces."""
        tools, log = self._tools, self._log
        named = [(self._new_uuid(), planned) for planned in group.new]
        now_ms = tools.clock.now_ms()
        log.commit([Rewrite(u, int(p.layout), p.begin, p.end, now_ms, tools.driver) for u, p in named])
        # What lies before the head isn't readable any more, but shares segments with what is.
        before = replace(log.state, head=None)
        sent = self._parallel(partial(self._send, uuid, planned, group, before) for uuid, planned in named)
        by = tuple(Rewritten(uuid, summary) for (uuid, _), (summary, _) in zip(named, sent, strict=True))
        edit = Replace(tuple(each.uuid for each in group.old), by, tools.clock.now_ms())
        # Read as readers will, before they do: the objects of the old ones are somebody's only copy.
        after = apply_edits(before, [edit], record_id=before.record_id + 1)
        found = self._parallel(partial(self._digest, after, planned) for _, planned in named)
        for (uuid, planned), (_, expected), digest in zip(named, sent, found, strict=True):
            if digest != expected:
                raise Corrupt(
                    f"stream {log.stream}: segment {uuid} reads otherwise than {planned.begin}..{planned.end} did",
                    hint="nothing was replaced",
                )
        self._commit([edit])
        self._result.replaced += len(group.old)
        for each in by:
            if each.summary.layout is Layout.V1:
                self._result.rewritten.append((each.uuid, each.summary))
                self._on_progress(each.summary)

    def _retire_deleted(self) -> None:
        """Segments all of whose ledgers are deleted go the way of every retired segment."""
        state = self._log.state
        gone = [
            segment.uuid
            for segment in state.offloaded()
            if segment.owned
            and segment.summary is not None
            and all(span.ledger_id in state.deleted_ledgers for span in segment.summary.ledgers)
        ]
        for start in range(0, len(gone), RETIRED_PER_RECORD_MAX):
            self._log.commit([Retire(tuple(gone[start : start + RETIRED_PER_RECORD_MAX]))])
        self._result.retired = len(gone)

    # -- one segment, on a thread of its own

    def _send(
        self, uuid: UUID, planned: PlannedSegment, group: RewriteGroup, before: ManifestState
    ) -> tuple[SegmentSummary, bytes]:
        """Uploads one segment; its summary, and the digest of what was read for it."""
        settings = self._tools.settings
        ledger_id = planned.begin.ledger_id
        fetcher = Fetcher(self._log.store, ReadSettings())
        holding = [each for each in group.old if holds(each, ledger_id)]
        info = ledger_info(fetcher, before, holding[-1], ledger_id)
        ledger = ColdLedger(Reader(fetcher, before), planned.begin, planned.end, info)
        piece = LedgerPiece(ledger, planned.begin.entry_id, planned.end.entry_id)
        payload_bytes = sum(each.summary.payload_bytes for each in holding if each.summary is not None)
        # A ledger may be larger than a segment: its parts have to be, too.
        size_mbytes = max(settings.max_size_per_offload_segment_mbytes, 2 * payload_bytes / _MIB)
        with working_at(Priority.BACKFILL):
            upload = upload_of(
                self._log.store,
                self._log.stream,
                uuid,
                ledger_id if planned.layout is Layout.V1 else None,
                incarnation=self._log.state.incarnation,
                epoch=self._log.epoch or 0,
                codec=settings.codec,
                testimony=self._log.testimony,
            )
            sized = replace(settings, max_size_per_offload_segment_mbytes=size_mbytes)
            summary = offload_pieces([piece], planned.layout, upload, sized, is_stopped=self._is_stopped)
        return summary, ledger.digest.value()

    def _digest(self, state: ManifestState, planned: PlannedSegment) -> bytes:
        digest = EntryDigest()
        reader = Reader(Fetcher(self._log.store, ReadSettings()), state)
        with working_at(Priority.BACKFILL), closing(reader.scan(planned.begin, planned.end, READ_BYTES)) as batches:
            for batch in batches:
                digest.add(batch)
        return digest.value()

    def _parallel(self, tasks: Iterable[Callable[[], _T]]) -> list[_T]:
        return list(Parallel(self._tools.settings.backfill_segments_in_flight_max).in_order(tasks))

    def _new_uuid(self) -> UUID:
        return new_segment_uuid(self._log.state.incarnation, int.from_bytes(self._tools.entropy(8), "big"))
